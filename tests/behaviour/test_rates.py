"""Runs against a server that says no when it is asked too often, and stages that share what it allows."""

from itertools import pairwise
from typing import Any

import pytest
from support.project import ProjectFolder
from support.server import Faulty, Server

SAY = {"name": "one", "prompt": "Say ${text}"}
AGAIN = {"name": "two", "prompt": "Again ${text}: ${one.result}"}


def two_stages(second_model: str = "local/small") -> list[dict[str, Any]]:
    schema = {"result": "string"}
    return [{**SAY, "output_schema": schema}, {**AGAIN, "model": second_model, "output_schema": schema}]


def starts(project: ProjectFolder) -> list[float]:
    return [at for (at,) in project.query("SELECT started_at FROM attempt ORDER BY started_at")]


def test_a_run_finds_the_rate_that_a_server_allows(project: ProjectFolder, faulty: Faulty) -> None:
    """Two hundred a second are allowed, a hundred of them at once; the provider has no limits in agac.yml."""
    server = project.asks(faulty([], "--rpm", "12000", "--burst", "100", "--latency", "0.02"))
    report = project.run(project.workflow(rows=1000, stages=[SAY]), concurrency=64)
    assert report.exit_code == 0
    assert report.summary["rows"]["done"] == 1000
    account = server.account()
    assert (account["charged"], account["duplicates"]) == (1000, 0)
    assert account["requests"] == 1000 + account["limited"]
    assert account["limited"] < 0.1 * account["requests"]  # the 2 %: in virtual time, policy/test_adaptive_lanes.py
    assert report.invocation["retries"] == account["limited"]
    assert project.query("SELECT count(*) FROM attempt WHERE status = 429") == [(account["limited"],)]
    project.assert_sound()


def test_a_large_bucket_is_used_up_and_not_waited_for(project: ProjectFolder, faulty: Faulty) -> None:
    """The reset in the headers is the moment when the bucket will be full: ten minutes away for six hundred calls."""
    server = project.asks(faulty([], "--rpm", "60", "--burst", "600"))
    project.workflow(rows=603, stages=[SAY])
    assert project.run(concurrency=8).exit_code == 0
    account = server.account()
    assert account["charged"] == 603
    assert account["limited"] <= 12
    assert account["last_request_at"] - account["first_request_at"] < 60


@pytest.mark.parametrize(("second", "least", "most"), [("local/small", 3, 3), ("local/large", 4, 6)])
def test_stages_share_the_calls_at_once_of_a_model_and_have_a_lane_for_each(
    project: ProjectFolder, faulty: Faulty, second: str, least: int, most: int
) -> None:
    server = project.asks(faulty([], "--latency", "0.06"), limits={"concurrency": 3})
    project.workflow(rows=30, stages=two_stages(second))
    assert project.run(concurrency=12).exit_code == 0
    account = server.account()
    assert account["requests"] == 60
    assert least <= account["max_in_flight"] <= most


def test_two_stages_on_one_model_share_its_requests_a_minute(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, limits={"rpm": 1200})
    project.workflow(rows=6, stages=two_stages())
    assert project.run().exit_code == 0
    sent = starts(project)
    assert len(sent) == 12
    assert sent[-1] - sent[0] >= 11 * 0.05 - 0.03
    assert all(sent[i + 4] - sent[i] >= 4 * 0.05 - 0.03 for i in range(8))


@pytest.mark.parametrize("kind", [{"kind": "rate_limit"}, {"kind": "server_error", "status": 503}])
def test_one_stages_refusal_holds_the_other_stage_on_that_model(
    project: ProjectFolder, faulty: Faulty, kind: dict[str, Any]
) -> None:
    project.asks(faulty([{**kind, "match": "Say I love number 3", "first": 1, "retry_after": 0.7}]))
    project.workflow(rows=12, stages=two_stages())
    assert project.run(concurrency=2).exit_code == 0
    ((refused,),) = project.query("SELECT started_at + duration FROM attempt WHERE status IN (429, 503)")
    assert not [at for at in starts(project) if refused + 0.1 < at < refused + 0.69]
    assert max(later - sooner for sooner, later in pairwise(starts(project))) >= 0.6
