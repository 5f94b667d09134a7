"""What a user sees of batches: `agac run` submits, `agac batch retrieve` takes and goes on, till the results are in."""

from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance
from support.processes import ended, interrupt, listening, wait_until
from support.server import Server

SECONDS = 100
"""How long a batch takes at the slow server, by its own clock, which only tests move."""

A: dict[str, Any] = {"name": "a", "prompt": "A ${text}", "model": "local/echo"}
B: dict[str, Any] = {"name": "b", "prompt": "B ${a}", "model": "local/echo", "run_mode": "sync"}
C: dict[str, Any] = {"name": "c", "prompt": "C ${b}", "model": "local/echo"}


@pytest.fixture
def slow(batches_at: Make) -> BatchProject:
    """A project at a server whose batches take a while; with ten rows."""
    return batches_at(seconds=SECONDS)


def test_retrieving_too_early_or_again_changes_nothing_and_asks_nothing(slow: BatchProject, server: Server) -> None:
    slow.submit()
    tables = ("state, tasks, note FROM batch", "* FROM row", "* FROM counter ORDER BY 1, 2, 3, 4, 5")
    stored = [slow.query(f"SELECT {table}") for table in tables]
    for done in (0, 5):
        assert f"{done} of 10 requests done" in slow.agac("batch", "retrieve", code=75).err
        assert [slow.query(f"SELECT {table}") for table in tables] == stored
        assert (slow.account["posts"], slow.steps(), (slow.root / "output").exists()) == (1, ["SUBMITTED"], False)
        advance(slow.server, SECONDS / 2)
    taken = slow.agac("batch", "retrieve")
    assert (taken.code, taken.err) == (0, "")
    assert "Retrieved batch 1 (" in taken.out
    assert "Results: output/reviews/results.jsonl" in taken.out
    slow.agac("batch", "retrieve")  # the first process closes the log of the database
    before, account = slow.picture(), slow.server.account()
    for arguments in (["batch", "retrieve"], ["batch", "retrieve", "1"], ["batch", "status", "1"], ["batch", "list"]):
        assert slow.agac(*arguments).code == 0, arguments
    again = slow.retrieve()
    assert (again.exit_code, again.ready, again.submitted, again.ingested) == (0, True, [], [])
    assert slow.picture() == before
    assert slow.server.account() == account
    slow.assert_as_sync(server, charged=(1, 10))


def test_an_older_copy_of_the_store_does_not_ask_later_stages_again(slow: BatchProject, server: Server) -> None:
    slow.batched(A, B)
    slow.agac("run", "-a", "reviews", code=0)
    slow.agac("backup", "copy.db", code=0)
    advance(slow.server, SECONDS)
    slow.agac("batch", "retrieve", code=0)
    (slow.root / "copy.db").replace(slow.root / ".agac/agac.db")
    calls = slow.charged()
    refused = slow.agac("batch", "retrieve", code=2)
    assert "an older copy of the one that wrote output/reviews" in refused.err
    assert "`agac run -a reviews` with --accept-store" in refused.err
    assert slow.charged() == calls


def test_batch_sync_batch_needs_run_retrieve_retrieve(slow: BatchProject, server: Server) -> None:
    slow.batched(A, B, C)
    slow.agac("run", "-a", "reviews", code=0)
    advance(slow.server, SECONDS)
    first = slow.agac("batch", "retrieve", code=0)
    assert first.out.count("\nSubmitted batch ") + first.out.startswith("Submitted batch ") == 1
    slow.agac("batch", "retrieve", code=75)
    advance(slow.server, SECONDS)
    second = slow.agac("batch", "retrieve", "--json", code=0)
    assert [one["done"] for one in second.json["ingested"]] == [10]
    assert (second.json["run"]["rows"]["done"], second.json["submitted"]) == (10, [])
    assert slow.account["kept"] == 0, "nothing is left at the provider"
    assert (slow.charged(), slow.doubles(), slow.account["posts"]) == ((2, 30), 0, 2)
    assert slow.query("SELECT count(*) FROM event") == [(4,)]
    slow.assert_as_sync(server)


@pytest.mark.parametrize("then", [["batch", "retrieve"], ["run", "-a", "reviews"], ["run", "-a", "reviews", "--wait"]])
def test_an_interrupted_wait_is_taken_up_by_any_command(slow: BatchProject, server: Server, then: list[str]) -> None:
    slow.batched(A, B, C)
    waiting = slow.start("run", "-a", "reviews", "--wait")
    listening(waiting)

    def submitted() -> bool:
        return slow.account["created"] == 1 and slow.steps() == ["SUBMITTED"]

    wait_until(submitted, "a submitted batch", waiting)
    if "retrieve" in then:
        others_are_refused(slow)
    interrupt(waiting)
    stopped = ended(waiting)
    assert stopped.code == 130
    assert "agac" in stopped.out + stopped.err
    assert not (slow.root / "output").exists()
    advance(slow.server, SECONDS)
    if "--wait" in then:
        slow.provider()
        going_on = slow.start(*then)
        listening(going_on)
        wait_until(lambda: slow.account["created"] == 2, "the second batch", going_on)
        advance(slow.server, SECONDS)
        interrupt(going_on)
        assert ended(going_on).code in (0, 130)
        slow.to_the_end()
    else:
        slow.agac(*then, code=0)
        advance(slow.server, SECONDS)
        slow.agac(*then, code=0)
    assert (slow.charged(), slow.doubles(), slow.account["posts"]) == ((2, 30), 0, 2)
    slow.assert_as_sync(server)


def others_are_refused(project: BatchProject) -> None:
    """Whoever comes while another process waits may look, and changes nothing."""
    for arguments in (["run", "-a", "reviews"], ["batch", "retrieve"], ["batch", "cancel"]):
        refused = project.agac(*arguments)
        assert refused.code in (1, 2), (arguments, refused)
        assert "is being run by another process" in refused.err
        assert "bug" not in refused.err
    for arguments in (["batch", "status"], ["batch", "list"], ["status"]):
        project.agac(*arguments, code=0)
    assert (project.account["posts"], project.account["cancelled"]) == (1, 0)


def test_each_batch_that_ends_moves_its_rows_on(slow: BatchProject, server: Server) -> None:
    """Of three batches one ends: its rows go through the next stages without the others."""
    slow.batched(A, B, C, defaults={"batch": {"max_requests": 4}})
    report = slow.run()
    assert [(one["requests"], one["number"], one["of"]) for one in report.invocation["batches"]] == [
        (4, 1, 3),
        (4, 2, 3),
        (2, 3, 3),
    ]
    advance(slow.server, SECONDS)
    first = slow.retrieve(2)
    assert [one["id"] for one in first.ingested] == [2]
    assert [one["requests"] for one in first.submitted] == [4]
    assert slow.steps() == ["SUBMITTED", "CLEANED", "SUBMITTED", "SUBMITTED"]
    assert [stage["done"] for stage in first.run.summary["stages"]] == [4, 4, 0]
    advance(slow.server, SECONDS)
    assert slow.retrieve(4).exit_code == 0
    assert slow.query("SELECT count(*) FROM row WHERE state = 1") == [(4,)]
    slow.assert_ends_as_sync(server, (6, 30), seconds=SECONDS)


def test_views_of_a_run_made_of_batches(slow: BatchProject) -> None:
    slow.provider(prices={"echo": {"input": 1.0, "output": 2.0, "batch": 0.5}})
    slow.submit(A, C | {"prompt": "C ${a}"}, defaults={"max_tokens": 50})
    shown = slow.agac("status")
    assert "waiting" in shown.out
    assert "Run 1 has 1 open batch: 0 done, 0 failed of 10 requests when last checked" in shown.out
    advance(slow.server, SECONDS)
    slow.to_the_end(seconds=SECONDS)
    summary = slow.output(file="summary.json")
    calls = summary["calls"]
    expected = (calls["input_tokens"] * 1.0 + calls["output_tokens"] * 2.0) * 0.5 / 1e6
    assert (calls["count"], calls["failed"], calls["simulated"], calls["calls_without_price"]) == (20, 0, 20, 0)
    assert calls["cost_usd"] == pytest.approx(expected)
    assert slow.query("SELECT sum(cost) FROM batch")[0][0] == pytest.approx(expected)
    assert [stage["timing_ms"]["duration"]["count"] for stage in summary["stages"]] == [0, 0]
    inspected = slow.agac("inspect", "last", "r-1", "--json").json["rows"][0]
    for stage, batch in zip(inspected["stages"], (1, 2), strict=True):
        [attempt] = stage["attempts"]
        assert (attempt["service_tier"], attempt["http_status"], attempt["purpose"]) == ("batch", 200, "ask")
        assert attempt["duration_s"] >= SECONDS - 2  # both ends are cut to whole seconds
        assert slow.query("SELECT stage FROM batch WHERE id = ?", batch) == [(batch - 1,)]
    assert "tier batch" in slow.agac("inspect", "last", "r-1").out
    assert "outcome: done" in slow.agac("why", "last", "r-1", "c").out
    telemetry = slow.envelopes(file="telemetry.jsonl")
    assert [one["usage"]["provider_attempts"][0]["service_tier"] for one in telemetry] == ["batch"] * 10
    costs = slow.agac("sql", "SELECT stage, calls, cost_usd FROM v_costs ORDER BY stage", "--json").json
    assert [(one["stage"], one["calls"]) for one in costs] == [("a", 10), ("c", 10)]
    assert sum(one["cost_usd"] for one in costs) == pytest.approx(expected)
