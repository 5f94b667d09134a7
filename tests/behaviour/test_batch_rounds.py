"""Tasks that come back from a batch without a result: round again, to the next model, by a call, or to an error."""

import json
from typing import Any

import pytest
import yaml
from support.batchrun import BATCHES, BatchProject, Make, failed, outcomes
from support.server import Faulty, Server
from support.soak import few

import agac

Fault = dict[str, Any]
SENTIMENT = {"sentiment": "positive|neutral|negative", "reason": "string"}
SORT: dict[str, Any] = {"name": "sort", "prompt": "Review: ${text}", "output_schema": SENTIMENT}


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project with ten rows at a server with faults, and its batch submitted."""

    def start(*faults: Fault, stage: dict[str, Any] | None = None, **batch: Any) -> BatchProject:
        project = batches_at(*faults)
        project.batched(SORT | (stage or {}), defaults={"batch": batch}, stop_loss=False)
        assert project.run().exit_code == 0
        return project

    return start


def other_server(project: BatchProject, server: Server, **row: Any) -> None:
    """A second provider `other`, at another server."""
    body = yaml.safe_load((project.root / "agac.yml").read_text())
    body["providers"]["other"] = {**body["providers"]["local"], "base_url": server.base_url, **row}
    project.write("agac.yml", yaml.safe_dump(body))


def of_row(number: int, kind: str, **fault: Any) -> Fault:
    return {"kind": kind, "match": f"number {number}", **fault}


WRONG, LOST, AT_500 = of_row(3, "wrong_schema"), of_row(3, "batch_omit"), of_row(3, "batch_line_status", status=500)
FAILING: list[tuple[list[Fault], dict[str, Any], dict[str, Any], str, tuple[int, int] | None]] = [
    # faults, keys of the stage and of its batches: the third row fails; with which error, how many batches and requests
    *(([AT_500], {}, {"max_rounds": rounds}, "ProviderError", (rounds, 9)) for rounds in (1, 2, 3)),
    ([of_row(3, "batch_corrupt_line")], {}, {}, "BatchLost", (3, 9 + 3)),
    ([of_row(3, "batch_line_error", code="batch_expired")], {}, {}, "Timeout", (3, 9)),
    ([of_row(3, "batch_line_error", code="batch_cancelled")], {}, {}, "BatchLost", (3, 9)),
    ([of_row(3, "batch_line_zero")], {}, {}, "ProviderError", (3, 9)),
    ([of_row(3, "batch_line_status", status=429)], {}, {}, "RateLimited", (3, 9)),
    # its line is lost each time, beside one that fails and is in the results
    ([LOST, of_row(4, "batch_line_status", status=500)], {}, {}, "BatchLost", (3, 8 + 3)),
    # answers that are none are not asked again
    ([of_row(3, "refusal")], {}, {}, "Refused", None),
    ([of_row(3, "length")], {}, {}, "Truncated", None),
    ([of_row(3, "empty")], {}, {}, "EmptyResponse", None),
    # of the wrong form, after so many re-asks, wherever they are made
    *(([WRONG], {"repair": times}, {}, "SchemaMismatch", (1 + times, 10 + times)) for times in (0, 1, 2)),
    *(([WRONG], {"repair": times}, {"retry": "sync"}, "SchemaMismatch", (1, 10 + times)) for times in (1, 2)),
]


@pytest.mark.parametrize(("faults", "stage", "batch", "error", "charged"), few(FAILING, 2))
def test_each_way_to_fail_has_its_error(
    make: Make,
    faults: list[Fault],
    stage: dict[str, Any],
    batch: dict[str, Any],
    error: str,
    charged: tuple[int, int] | None,
) -> None:
    """So many rounds, and then it has failed."""
    project = make(*faults, stage=stage, **batch)
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-3": error, **({"r-4": "ProviderError"} if LOST in faults else {})}
    assert project.charged() == (charged or project.charged())
    assert LOST not in faults or project.query("SELECT count(*) FROM attempt WHERE ambiguous = 1") == [(3,)]
    rounds = len(project.steps())
    told = f"(after {rounds} round{'s' * (rounds > 1)})"
    may_pass = error not in ("Refused", "Truncated", "EmptyResponse", "SchemaMismatch")
    messages = [one["error"]["message"] for one in project.envelopes(file="errors.jsonl")]
    assert [message.endswith(told) for message in messages] == [may_pass] * len(messages)


def test_a_batch_that_did_something_and_shows_no_results_is_a_humans_decision(
    make: Make, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.batch.poll.LATE_FILES", ())
    project = make({"kind": "batch_omit", "at": [1]})
    assert project.retrieve().exit_code == 75
    assert project.steps() == ["NEEDS_HUMAN"]
    project.agac("doctor", "--resubmit", code=0)
    project.assert_ends_as_sync(server, (2, 20), doubles=10)


def test_fail_asks_nothing_again(make: Make) -> None:
    project = make({"kind": "batch_line_status", "status": 500, "match": "number 3", "at": [1]}, retry="fail")
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-3": "ProviderError"}
    assert project.charged() == (1, 9)
    # the user runs it again: failed tasks are tried again as ever
    project.run()
    assert project.to_the_end().exit_code == 0
    assert project.charged() == (2, 10)


def test_sync_calls_what_is_left(make: Make, server: Server) -> None:
    project = make(
        {"kind": "batch_line_status", "status": 500, "lines": [3, 4]},
        {"kind": "batch_omit", "lines": [7]},
        retry="sync",
    )
    assert project.to_the_end().exit_code == 0
    assert project.charged() == (1, 8 + 3)
    assert project.server.account()["charged"] == 3
    project.assert_as_sync(server)


def test_sync_is_never_begun_before_the_batch_is_in(make: Make) -> None:
    project = make({"kind": "batch_stuck", "word": "in_progress"}, retry="sync")
    for _ in range(2):
        assert project.retrieve().exit_code == 75
        assert project.run().exit_code == 0
    assert project.server.account()["charged"] == 0
    project.server.reset()


def fallback_project(batches_at: Make, server: Server, *faults: Fault, **row: Any) -> BatchProject:
    """A stage with two models, the second at another server."""
    project = batches_at(*faults)
    other_server(project, server, **row)
    project.batched(SORT | {"model": ["local/small", "other/small"]}, defaults={"batch": {"max_rounds": 2}})
    assert project.run().exit_code == 0
    return project


@pytest.mark.parametrize("row", [{"batch": BATCHES}, {"batch": "none"}])
@pytest.mark.parametrize("status", [500, 400])
def test_after_the_last_round_the_fallback_model(
    batches_at: Make, server: Server, row: dict[str, Any], status: int
) -> None:
    fault = {"kind": "batch_line_status", "status": status, "match": "number 3"}
    project = fallback_project(batches_at, server, fault, **row)
    assert project.to_the_end().exit_code == 0
    rounds = 2 if status == 500 else 1  # a 400 is the same in every round
    assert project.charged() == (rounds, 9)
    account = server.account()
    assert (account["batches"]["created"], account["batches"]["charged"], account["charged"]) == (
        (1, 1, 0) if row["batch"] != "none" else (0, 0, 1)
    )
    summary = project.output(file="summary.json")
    assert summary["stages"][0]["by_fallback"] == 1
    assert sorted(summary["stages"][0]["answered_by"]) == ["local/small", "other/small"]
    [one] = project.query("SELECT provider, model FROM batch WHERE position = 1") or [("other", "small")]
    assert one == ("other", "small")


def test_a_fallback_that_fails_too_is_the_end(batches_at: Make, faulty: Faulty, server: Server) -> None:
    fault = {"kind": "batch_line_status", "status": 400, "match": "number 3"}
    project = fallback_project(batches_at, server, fault, base_url=faulty([fault]).base_url, batch=BATCHES)
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-3": "ProviderError"}
    assert project.steps() == ["CLEANED", "CLEANED"]


@pytest.mark.parametrize("retry", ["batch", "sync"])
def test_a_reply_of_the_wrong_form_is_quoted(make: Make, server: Server, retry: str) -> None:
    """In the next round, or by a call: the model is told what was wrong, and what it said is paid once."""
    project = make({"kind": "wrong_schema", "first": 1, "match": "number 3"}, stage={"repair": 2}, retry=retry)
    assert project.to_the_end().exit_code == 0
    assert project.charged() == ((2, 11) if retry == "batch" else (1, 11))
    assert project.query("SELECT purpose, count(*) FROM attempt GROUP BY 1 ORDER BY 1") == [("ask", 10), ("repair", 1)]
    assert project.output(file="summary.json")["stages"][0]["repaired"] == 1
    twin = outcomes(project.twin(server))
    assert [one for one in outcomes(project) if one[0] != "r-3"] == [one for one in twin if one[0] != "r-3"]


def test_a_complaint_with_a_semicolon_stays_one_where_a_batch_asks_again(batches_at: Make) -> None:
    project = batches_at()
    project.rows([{"id": "a", "text": "short"}])
    checks = {"size(one) > 1000": "too short; say more", "size(one) > 900": "much too short; say more"}
    stage = {"name": "one", "prompt": "${text}", "checks": checks, "repair": 1}
    project.batched(stage, defaults={"model": "local/echo"})
    assert project.run().exit_code == 0
    assert project.to_the_end().exit_code == 3
    (row,) = agac.inspect("last", "a", project=project.root).rows or []
    again = row["stages"][0]["attempts"][1]
    wanted = "What is wrong:\n- too short; say more\n- much too short; say more\nReply again."
    assert json.dumps(wanted)[1:-1] in again["reply"]


def test_json_without_a_schema_and_another_syntax_come_back_from_batches(batches_at: Make) -> None:
    project = batches_at()
    project.rows([{"id": "a", "text": '{"x": {"y": 1}}'}, {"id": "b", "text": "no JSON"}])
    one = {"name": "one", "prompt": "{{text}}", "reply": "json", "repair": 1}
    two = {"name": "two", "prompt": "$ ${{one.x.y}} {text} ${text} {{one.x}}"}
    project.batched(one, two, defaults={"model": "local/echo", "syntax": "mustache"}, output={"stages": ["one", "two"]})
    assert project.run().exit_code == 0
    project.to_the_end()
    done, lost = project.envelopes()
    assert done["result"] == {"one": {"x": {"y": 1}}, "two": '$ $1 {text} ${text} {"y":1}'}
    assert (lost["error"]["type"], "is not JSON" in lost["error"]["message"]) == ("SchemaMismatch", True)
    assert project.query("SELECT purpose, count(*) FROM attempt GROUP BY 1 ORDER BY 1") == [("ask", 3), ("repair", 1)]


EQUAL = [{"id": f"r-{n}", "text": f"I love it {n % 3}"} for n in range(30)]


def test_equal_tasks_go_round_as_one(batches_at: Make, server: Server) -> None:
    project = batches_at(
        {"kind": "batch_line_status", "status": 500, "lines": [1], "at": [1]},
        {"kind": "batch_omit", "lines": [2], "at": [1]},
    )
    project.rows(EQUAL)
    project.submit(SORT)
    assert project.to_the_end().exit_code == 0
    assert [tasks for (tasks,) in project.query("SELECT tasks FROM batch ORDER BY id")] == [3, 2]
    project.assert_as_sync(server, charged=(2, 4), doubles=1)


def test_equal_tasks_fail_as_one(batches_at: Make) -> None:
    """The rows that wait for a task that fails are no orphans: each is tried, or fails, like it."""
    project = batches_at({"kind": "batch_line_status", "status": 400, "lines": [1], "at": [1]})
    project.rows(EQUAL)
    project.submit(SORT, stop_loss=False)
    project.to_the_end()
    states = dict(project.query("SELECT state, count(*) FROM row GROUP BY 1"))
    assert sum(states.values()) == 30
    assert 0 not in states


def test_an_answer_to_a_retry_counts_however_often_the_row_failed_before(batches_at: Make) -> None:
    project = batches_at({"kind": "refusal", "match": "number 2", "first": 3}, rows=3)
    project.batched()
    for _ in range(4):  # once more than is worth paying for
        project.run(wait=True)
    assert (failed(project), project.charged()[1]) == ({"r-2": "Refused"}, 5)
    agac.retry("last", agac.Retry(), project=project.root)
    project.to_the_end()
    assert (failed(project), project.charged()[1]) == ({}, 6)
