"""How often is asked again, how soon, and who waits: told by the provider's own account."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
import yaml
from scripted_server import Step, scripted
from support.canned import Answer, Talk, completion, serving
from support.processes import ended, interrupt, wait_until
from support.project import ProjectFolder, S
from support.server import Faulty

import agac

SAY = [{"name": "say", "prompt": "${text}"}]


def one_row(project: ProjectFolder, server: S, **provider: Any) -> S:
    """One row, to be asked of this server; gives it."""
    project.workflow(rows=1, stages=SAY)
    return project.asks(server, **provider)


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT number, purpose, status, error_type, ambiguous FROM attempt ORDER BY id")


ALWAYS = [
    ({"kind": "server_error", "retry_after": 0.001}, 6, 500, "ProviderError", False),
    ({"kind": "server_error", "status": 502, "retry_after": 0.001}, 3, 502, "ProviderError", True),
    ({"kind": "server_error", "status": 504, "retry_after": 0.001}, 3, 504, "Timeout", True),
    ({"kind": "server_error", "status": 503, "retry_after": 0.001}, 21, 503, "ProviderError", False),
    ({"kind": "rate_limit", "retry_after": 0.001}, 21, 429, "RateLimited", False),
    ({"kind": "rate_limit", "retry_after": 0.001, "in_ms": True}, 21, 429, "RateLimited", False),
    ({"kind": "bad_request"}, 1, 400, "ProviderError", False),
    ({"kind": "cut"}, 3, None, "ProviderError", True),
    ({"kind": "cut", "after_bytes": 40}, 3, None, "ProviderError", True),
    ({"kind": "invalid_body"}, 3, 200, "ProviderError", True),
]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(("fault", "calls", "status", "error", "ambiguous"), ALWAYS)
def test_what_always_fails_is_asked_so_often_and_every_call_is_kept(
    project: ProjectFolder, faulty: Faulty, fault: dict[str, Any], calls: int, status: int, error: str, ambiguous: bool
) -> None:
    server = one_row(project, faulty([{**fault, "always": True}]))
    report = project.run()
    assert report.exit_code == 3
    assert server.account()["requests"] == calls
    assert attempts(project) == [(n, "ask", status, error, int(ambiguous)) for n in range(1, calls + 1)]
    assert project.envelopes()[0]["error"]["type"] == error
    assert report.invocation["calls"] == report.summary["calls"]["count"] == calls
    assert report.invocation["retries"] == calls - 1
    assert report.summary["calls"]["failed"] == calls
    assert report.invocation["calls_perhaps_billed_without_answer"] == (calls if ambiguous else 0)
    project.assert_sound()


RULES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    # of agac.yml, of the workflow's defaults, of the stage → calls
    ({"attempts": 2}, {}, {}, 2),
    ({"attempts": 9}, {"attempts": 3}, {}, 3),
    ({}, {"attempts": 3}, {"attempts": 1}, 1),
    ({"attempts": 4}, {"delay": 0.01}, {"max_delay": "1s"}, 4),
    ({}, {}, {"attempts": 8}, 8),
]


@pytest.mark.parametrize(("project_wide", "workflow", "stage", "calls"), RULES)
def test_the_attempts_of_a_stage_are_those_of_the_strongest_level_that_says_them(
    project: ProjectFolder, project_wide: dict[str, Any], workflow: dict[str, Any], stage: dict[str, Any], calls: int
) -> None:
    trouble = Step(status=500, headers={"retry-after-ms": "1"}, body="{}")
    with project.asking(scripted(trouble)) as server:
        written = yaml.safe_load((project.root / "agac.yml").read_text())
        written["defaults"] |= {"retries": project_wide} if project_wide else {}
        project.write("agac.yml", yaml.safe_dump(written))
        own: dict[str, Any] = {"retries": stage} if stage else {}
        project.workflow(rows=1, stages=[{**SAY[0], **own}], defaults={"retries": workflow} if workflow else {})
        assert project.run().exit_code == 3
        assert len(server.asked) == calls


def test_retries_that_contradict_themselves_are_refused(project: ProjectFolder) -> None:
    wrong = {"attempts": 0, "delay": "5s", "max_delay": 1, "tries": 3}
    for retries, words in [
        ({"attempts": 0}, "must be at least 1"), ({"tries": 3}, "unknown key"), ({"delay": 901}, "900"),
        ({"delay": "5s", "max_delay": 1}, "5 s is longer than max_delay, 1 s; raise max_delay too"),
        ({"max_delay": 0.1}, "0.5 s is longer than max_delay, 0.1 s"),
    ]:  # fmt: skip
        project.workflow(rows=1, stages=[{**SAY[0], "retries": retries}])
        (problem,) = agac.validate("reviews", project=project.root).problems
        assert words in problem.message
        assert problem.path == f"stages[0].retries.{next(key for key in retries if key in wrong)}"


@pytest.mark.usefixtures("short_pauses")
def test_a_time_out_is_asked_again_and_may_have_been_billed(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "hang", "first": 1}]))
    report = project.run(project.workflow(rows=1, stages=[{**SAY[0], "timeout": 1.0}]))
    assert report.exit_code == 0
    assert attempts(project) == [(1, "ask", None, "Timeout", 1), (2, "ask", 200, None, 0)]
    assert report.invocation["calls_perhaps_billed_without_answer"] == 1


@pytest.mark.parametrize("kind", ["rate_limit", "server_error"])
@pytest.mark.parametrize("in_ms", [False, True])
def test_nobody_comes_back_before_the_time_that_was_asked_for(
    project: ProjectFolder, faulty: Faulty, kind: str, in_ms: bool
) -> None:
    server = one_row(project, faulty([{"kind": kind, "at": [1, 2], "retry_after": 0.3, "in_ms": in_ms}]))
    assert project.run().exit_code == 0
    account = server.account()
    assert account["requests"] == 3
    assert account["last_request_at"] - account["first_request_at"] >= 0.6


def test_lanes_do_not_wait_for_each_other(project: ProjectFolder) -> None:
    with scripted(Step(status=429, headers={"retry-after": "1"}, body="{}"), "late") as slow, scripted("ok") as quick:
        row = "{{dialect: openai-chat, base_url: '{}'}}"
        project.write(
            "agac.yml", f"providers:\n  slow: {row.format(slow.base_url)}\n  quick: {row.format(quick.base_url)}\n"
        )
        project.numbered(6)
        stages = [{"name": "one", "prompt": "${text}", "model": "quick/a"}]
        project.workflow(stages=[*stages, {"name": "two", "prompt": "two ${text}", "model": "slow/b"}])
        assert project.run(concurrency=6).exit_code == 0
    ((refused,),) = project.query("SELECT started_at FROM attempt WHERE status = 429")
    ((last,),) = project.query("SELECT max(started_at) FROM attempt WHERE stage = 0")
    assert last < refused + 1


@pytest.mark.parametrize("what", ["requests", "tokens"])
def test_a_lane_waits_for_the_reset_when_headers_say_that_nothing_is_left(project: ProjectFolder, what: str) -> None:
    headers = {f"x-ratelimit-remaining-{what}": "0", f"x-ratelimit-reset-{what}": "400ms"}
    with project.asking(scripted(Step("ok", headers=headers), "ok")) as server:
        project.workflow(rows=3, stages=SAY)
        assert project.run(concurrency=1).exit_code == 0
        first, second, third = server.times
    assert second - first >= 0.2  # the first may be late at the server
    assert third >= second


def test_a_connection_that_the_server_closes_after_each_answer_costs_no_row(project: ProjectFolder) -> None:
    """As llama.cpp does after a stream: a call that takes one from the pool is lost, and then has one of its own."""
    used, lost, stale = set[Any](), set[bytes](), list[bytes]()

    def take(talk: Talk) -> Answer:
        asked = talk.asked()
        again = talk.client_address in used
        used.add(talk.client_address)
        if again and asked.body in lost:
            stale.append(asked.body)
        if again:
            lost.add(asked.body)
        return Answer(completion("ok"), drop="unanswered" if again else "")

    with serving(take) as base_url:
        project.configure(base_url)
        project.workflow(rows=60, stages=SAY)
        report = project.run(concurrency=8)
    assert (report.exit_code, stale) == (0, [])
    assert lost
    [(ambiguous,)] = project.query("SELECT sum(ambiguous) FROM attempt")
    assert ambiguous == len(lost)


def test_what_a_refusal_asks_for_wins_over_when_the_quota_is_full_again(project: ProjectFolder) -> None:
    full = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}
    refused = Step(status=429, headers={**full, "retry-after-ms": "300"}, body="{}")
    with project.asking(scripted(refused, "ok")) as server:
        project.workflow(rows=2, stages=SAY)
        assert project.run(concurrency=1).exit_code == 0
    assert 0.15 <= server.times[1] - server.times[0] < 60


WAITS = {
    "refused": Step(status=429, headers={"retry-after": "300"}, body="{}"),
    "reset": Step("ok", headers={"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "99h"}),
    "usage": Step(body=json.dumps({**completion("ok"), "usage": {"prompt_tokens": 10**9, "completion_tokens": 1}})),
}


@pytest.mark.parametrize("why", WAITS)
def test_a_long_wait_is_bounded_and_shown_with_its_end(why: str, project: ProjectFolder) -> None:
    with project.asking(scripted(WAITS[why], "ok"), limits={"tpm": 1000}):
        project.workflow(rows=2, stages=[{**SAY[0], "max_tokens": 10}])
        before = time.time()
        process = project.start("run", "-a", "reviews", "--concurrency", "1")
        wait_until(lambda: "Run 1 is waiting for local until " in project.agac("status").out, "a wait", process)
        last = project.agac("status", "--json").json["runs"][0]["last_invocation"]
        end = datetime.fromisoformat(last["waits"]["local/small"])
        assert f"until {end.astimezone():%H:%M:%S}" in project.agac("status").out
        assert before + 200 < end.timestamp() < time.time() + 901
        interrupt(process)
        assert ended(process).code == 130
    assert "waits" not in project.agac("status", "--json").json["runs"][0]["last_invocation"]


def test_a_wait_beyond_all_bounds_stops_the_run_and_is_said_shortly(project: ProjectFolder) -> None:
    absurd = Step(status=429, headers={"retry-after": "1e308"}, body='{"error": {"message": "Slow down."}}')
    with project.asking(scripted(absurd)):
        project.workflow(rows=1, stages=SAY)
        ran = project.agac("run", "-a", "reviews", code=1)
    assert "local answered 429: Slow down; it asks for a pause of 1,440 minutes, until 20" in ran.err
    assert "run the same command again then" in ran.err


TOMORROW: dict[str, Callable[[float], dict[str, Any]]] = {
    "Unix time": lambda now: {"headers": {"retry-after": str(int(now) + 18_000)}},
    "Unix time in ms": lambda now: {
        "headers": {"x-ratelimit-reset": str(int(now + 18_000) * 1000), "x-ratelimit-remaining": "0"}
    },
    "a duration": lambda _: {"headers": {"retry-after": "5h0m0s"}},
    "words": lambda _: {"body": '{"error": {"message": "The day\'s quota is used up. Please try again in 5h0m0s."}}'},
}
"""What servers say that can be asked again five hours after a moment."""


@pytest.mark.parametrize("how", TOMORROW)
def test_a_wait_of_hours_stops_the_run_with_the_time_at_which_to_go_on(how: str, project: ProjectFolder) -> None:
    said = {"headers": {}, "body": '{"error": {"message": "Slow down."}}', **TOMORROW[how](time.time())}
    with project.asking(scripted(Step(status=429, **said))):
        project.workflow(rows=1, stages=SAY)
        report = project.run()
    assert (report.exit_code, report.stop) == (1, "fatal")
    found = re.search(r"a pause of (?:299|300) minutes, until (\d{4}-\d\d-\d\d \d\d:\d\d)", report.stopped or "")
    assert found is not None, report.stopped
    assert abs(datetime.fromisoformat(found[1]).timestamp() - time.time() - 18_000) < 600


@pytest.mark.parametrize("limits", [{"rpm": 600}, {"tpm": 9_000}], ids=["rpm", "tpm"])
def test_the_limits_of_agac_yml_space_calls_out(project: ProjectFolder, limits: dict[str, int]) -> None:
    with project.asking(scripted("ok"), limits=limits) as server:
        project.workflow(rows=6, stages=[{**SAY[0], "max_tokens": 1000}])
        assert project.run().exit_code == 0
        assert len(server.times) == 6
        assert max(server.times) - min(server.times) >= 0.3  # of 0.5: the first may be late at the server


def test_a_re_ask_that_meets_a_server_error_is_retried_and_then_fails_with_both_reasons(project: ProjectFolder) -> None:
    trouble = Step(status=500, headers={"retry-after-ms": "1"}, body='{"error": {"message": "out of order"}}')
    with project.asking(scripted('{"sentiment": 1}', trouble)) as server:
        project.workflow(rows=1)
        assert project.run().exit_code == 3
        assert len(server.asked) == 1 + 6
    message = project.envelopes()[0]["error"]["message"]
    assert "out of order" in message
    assert "is a required property" in message
    purposes = [(number, purpose) for number, purpose, *_ in attempts(project)]
    assert purposes == [(1, "ask"), *((n, "repair") for n in range(2, 8))]
    project.assert_sound()


# A server that says no when it is asked too often, and stages that share what it allows.

ONE = {"name": "one", "prompt": "Say ${text}"}
AGAIN = {"name": "two", "prompt": "Again ${text}: ${one.result}"}


def two_stages(second_model: str = "local/small") -> list[dict[str, Any]]:
    schema = {"result": "string"}
    return [{**ONE, "output_schema": schema}, {**AGAIN, "model": second_model, "output_schema": schema}]


def starts(project: ProjectFolder) -> list[float]:
    return [at for (at,) in project.query("SELECT started_at FROM attempt ORDER BY started_at")]


def test_a_run_finds_the_rate_that_a_server_allows(project: ProjectFolder, faulty: Faulty) -> None:
    """Two hundred a second are allowed, a hundred of them at once; the provider has no limits in agac.yml."""
    server = project.asks(faulty([], "--rpm", "12000", "--burst", "100", "--latency", "0.02"))
    report = project.run(project.workflow(rows=1000, stages=[ONE]), concurrency=64)
    assert report.exit_code == 0
    assert report.summary["rows"]["done"] == 1000
    account = server.account()
    assert (account["charged"], account["duplicates"]) == (1000, 0)
    assert account["requests"] == 1000 + account["limited"]
    assert account["limited"] < 0.1 * account["requests"]  # the 2 %: in virtual time, policy/test_adaptive_lanes.py
    assert report.invocation["retries"] == account["limited"]
    assert project.query("SELECT count(*) FROM attempt WHERE status = 429") == [(account["limited"],)]
    project.assert_sound()


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


@pytest.mark.parametrize("kind", [{"kind": "rate_limit"}, {"kind": "server_error", "status": 503}])
def test_one_stages_refusal_holds_the_other_stage_on_that_model(
    project: ProjectFolder, faulty: Faulty, kind: dict[str, Any]
) -> None:
    project.asks(faulty([{**kind, "match": "Say I love number 3", "first": 1, "retry_after": 0.7}]))
    project.workflow(rows=6, stages=two_stages())
    assert project.run(concurrency=2).exit_code == 0
    ((refused,),) = project.query("SELECT started_at + duration FROM attempt WHERE status IN (429, 503)")
    assert not [at for at in starts(project) if refused + 0.1 < at < refused + 0.69]
    assert max(later - sooner for sooner, later in pairwise(starts(project))) >= 0.6
