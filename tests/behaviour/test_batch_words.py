"""What is said of batches that a run submits, of those that wait, of what is stale; and what is shown meanwhile."""

from typing import Any

import pytest
from support.project import ProjectFolder

import agac
from agac.api.invocation_summary import InvocationSummary, StaleBatch
from agac.api.plan import confirm_stale
from agac.api.progress import LineStyle, run_lines
from agac.api.watched_run import Snapshot
from agac.cli import run_batches as submitted
from agac.core.reading import read_as
from agac.engine.summary import MadeRows, RowCounts, RunSummary
from agac.store.batches import CLOSED, BatchCount

BATCH: dict[str, Any] = {
    "id": 4, "provider_id": "batch_abc123", "requests": 50_000, "number": 1, "of": 3, "model": "openai/gpt-5.4-mini",
    "held_usd": 12.4, "simulated": False, "step": "SUBMITTED", "waits": None, "note": None, "try_at": None,
}  # fmt: skip
STALE: dict[str, Any] = {"batch": 4, "requests": 1_200, "held_usd": 3.1, "simulated": False}
NO_ROWS = RunSummary("reviews", 1, RowCounts())


def invocation(**facts: Any) -> InvocationSummary:
    """An invocation that did this, and nothing else."""
    return read_as(InvocationSummary, facts)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "batch_abc123: 50,000 requests, 1 of 3, openai/gpt-5.4-mini, up to $12.40 at batch price"),
        (
            {"requests": 1, "held_usd": 0.0103, "simulated": True, "model": "simulator/small", "of": 1},
            "batch_abc123: 1 request, 1 of 1, simulator/small, up to simulated $0.0103 at batch price",
        ),
        ({"held_usd": None}, "batch_abc123: 50,000 requests, 1 of 3, openai/gpt-5.4-mini, price unknown"),
        (
            {"provider_id": "batch\x1b[2J", "model": "m"},
            "batch\\x1b[2J: 50,000 requests, 1 of 3, m, up to $12.40 at batch price",
        ),
    ],
)
def test_a_submitted_batch_has_a_line(changed: dict[str, Any], said: str) -> None:
    assert list(submitted.batch_lines(invocation(batches=[BATCH | changed]))) == [f"Submitted batch {said}"]


def test_a_waiting_batch_says_why_and_when_it_is_tried_again() -> None:
    facts = {
        "provider_id": None,
        "waits": "2,000,000 tokens fit, 1,900,000 are in use",
        "try_at": "2026-11-21T20:00:00Z",
    }
    (line,) = submitted.batch_lines(invocation(batches=[], waiting_batches=[BATCH | facts]))
    assert line == (
        "Waiting batch 4: 50,000 requests, 1 of 3, openai/gpt-5.4-mini, up to $12.40 at batch price: "
        "2,000,000 tokens fit, 1,900,000 are in use; retried from 2026-11-21T20:00:00Z on"
    )
    assert list(submitted.batch_lines(invocation())) == [], "a run without batches says nothing of them"


@pytest.mark.parametrize(
    ("open_rows", "batches", "said"),
    [
        (60, 1, "No row is finished yet. `agac batch status` shows progress, "),
        (59, 2, "1 of 60 rows is finished. `agac batch status` shows progress, "),
        (10, 2, "50 of 60 rows are finished. `agac batch status` shows progress, "),
        (0, 1, "60 of 80 rows are finished. `agac batch status` shows progress, "),  # those that a stage made are not
    ],
)
def test_what_to_do_next_is_said(open_rows: int, batches: int, said: str) -> None:
    made = MadeRows("again", "items", RowCounts(20, open=20))
    summary = RunSummary("reviews", 1, RowCounts(60, open=open_rows), levels=() if open_rows else (made,))
    waits = invocation(open_batches={"batches": batches})
    (line,) = submitted.next_lines(summary, waits, "agac run -a reviews --limit 60")
    assert line.startswith(said)
    assert line.endswith("`agac run -a reviews --limit 60 --wait` waits until every stage is done.")
    assert list(submitted.next_lines(summary, invocation(open_batches=None), "agac run -a reviews")) == []


def test_what_was_taken_is_counted_and_need_not_be_read_as_submitted() -> None:
    assert list(submitted.batch_lines(invocation(batches=[BATCH | {"step": "CLEANED"}]))) == []
    assert set(submitted.CLOSED) == CLOSED
    taken = {"id": 4, "provider_id": "batch_abc123", "done": 49_990, "failed": 3, "missing": 7, "again": 10}
    assert submitted.retrieved_line(taken) == (
        "Retrieved batch 4 (batch_abc123): 49,990 done, 3 failed, 7 without an answer, 10 sent again"
    )
    assert submitted.retrieved_line({"id": 4, "provider_id": None, "done": 0}) == "Retrieved batch 4: 0 done"


def test_what_wants_attention_is_said_with_its_command() -> None:
    stale = STALE | {"provider_id": "batch_abc123"}
    waits = invocation(stale=[stale], tasks_held_back=7)
    gone, held = submitted.next_lines(NO_ROWS, waits, "agac run -a reviews")
    assert gone == (
        "Stale: 1,200 requests in batch 4 (batch_abc123), up to $3.10, are no longer needed; cancel the batch with: "
        "agac batch cancel 4"
    )
    assert held.startswith("Deferred: 7 tasks do not fit in the budget until open batches are retrieved; ")
    assert list(submitted.next_lines(NO_ROWS, invocation(), "agac run -a reviews")) == []


def test_stale_requests_want_a_yes() -> None:
    asked: list[str] = []
    confirm_stale("reviews", [], None)
    both = [StaleBatch(4, None, 1_200, 3.1), StaleBatch(5, None, 1_200, 3.1)]
    confirm_stale("reviews", both, lambda question: not asked.append(question))
    (question,) = asked
    assert question == (
        "reviews no longer needs 2,400 of the requests in 2 open batches (up to $6.20). They run on; to cancel them: "
        "agac batch cancel 4; agac batch cancel 5. Submit the others now?"
    )
    unpriced = r"reviews no longer needs 1,200 of the requests in 1 open batch \(price unknown\)"
    for confirm, said in (
        (lambda _: False, "nothing was submitted"),
        (lambda _: None, f"nothing was submitted: {unpriced}"),
        (None, unpriced),
    ):
        with pytest.raises(agac.UsageError, match=said) as refused:
            confirm_stale("reviews", [StaleBatch(4, None, 1_200, None)], confirm)
        assert refused.value.remedy == (
            "Add --yes to submit the others as well, or cancel them first with: agac batch cancel 4"
        )


def test_progress_shows_the_batches() -> None:
    counts = (
        BatchCount("classify", "in_progress", 2, 100_000, 1_204, 3),
        BatchCount("reply", "not submitted", 1, 7, 0, 0),
    )
    snapshot = Snapshot("reviews", (), None, 0, 0, None, stopping=False, batches=counts)
    assert run_lines(snapshot, {}, LineStyle(None, "utf-8", bars=False)) == [
        "classify: 2 batches in_progress, 1,204/100,000 done, 3 failed",
        "reply: 1 batch not submitted, 0/7 done",
    ]
    (line, _) = run_lines(snapshot, {}, LineStyle(30, "utf-8"))
    assert len(line) == 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["batch", "wait", "--timeout", "soon"], "--timeout soon: 'soon' is no time; write it as 90s, 30m, 12h"),
        (["batch", "stauts"], "no such command 'stauts'. Did you mean 'status'?"),
        (["doctor", "--adopt", "x", "--resubmit"], "--adopt and --resubmit exclude one another"),
        (["doctor", "--batch-id", "4"], "--batch-id goes with --adopt or --resubmit"),
    ],
)
def test_wrong_arguments_are_refused(project: ProjectFolder, arguments: list[str], said: str) -> None:
    ran = project.agac(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
