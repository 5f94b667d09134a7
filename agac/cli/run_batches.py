"""Says which batches a run submitted, retrieved or waits for, and which command continues it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agac.api.invocation_summary import BatchFacts
from agac.cli import terminal
from agac.core.reading import read_as
from agac.core.text import plain
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api.invocation_summary import InvocationSummary, StaleBatch
    from agac.engine.summary import RunSummary


CLOSED = ("INGESTED", "CLEANED", "NOT_CREATED", "REJECTED")
"""Final steps of a batch, as in `store.batches`, which is slow to load."""

RESULT_WORDS = {
    "done": "done",
    "failed": "failed",
    "missing": "without an answer",
    "expired": "expired",
    "cancelled": "cancelled",
    "duplicate": "answered twice",
    "unknown": "not requested by agac",
    "malformed": "unreadable",
    "again": "sent again",
}


def retrieved_line(ended: Mapping[str, Any]) -> str:
    """`Retrieved batch 4: 12 done, 1 failed`."""
    counts = [
        f"{ended[key]:,} {word}"
        for key, word in RESULT_WORDS.items()
        if ended.get(key) or key == "done"
    ]
    return (
        f"Retrieved {terminal.batch_name(ended['id'], ended['provider_id'])}: {', '.join(counts)}"
    )


def batch_lines(invocation: InvocationSummary) -> Iterator[str]:
    """Yields the batches that an invocation submitted, and those that are not submitted yet, why,
    and when that is retried."""
    waiting = [read_as(BatchFacts, facts) for facts in invocation.batches.waiting]
    submitted = [read_as(BatchFacts, facts) for facts in invocation.batches.submitted]
    for batch in submitted:
        if batch.step in CLOSED or batch in waiting:
            continue  # it was reported while it was waited for, or is among the waiting ones
        name = plain(batch.provider_id or str(batch.id))
        yield f"Submitted batch {name}: {_content_words(batch)}"
    for batch in waiting:
        why = plain(terminal.first_line(batch.waits or batch.note or "there is no room"))
        retried = f"; retried from {batch.try_at} on" if batch.try_at else ""
        yield f"Waiting batch {batch.id}: {_content_words(batch)}: {why}{retried}"


def _content_words(batch: BatchFacts) -> str:
    """`12 requests, 1 of 2, openai/gpt, up to $0.02 at batch price`."""
    most = terminal.price(batch.held_usd, simulated=batch.simulated)
    if batch.held_usd is not None:
        most = f"up to {most} at batch price"
    requests = counted(batch.requests, "request")
    return f"{requests}, {batch.number} of {batch.of}, {batch.model}, {most}"


def undecided_lines(invocation: InvocationSummary) -> Iterator[str]:
    """Yields the batches about which the user has to decide, and how."""
    for facts in invocation.batches.undecided:
        batch = read_as(BatchFacts, facts)
        note = f": {plain(terminal.first_line(batch.note))}" if batch.note else ""
        name = terminal.batch_name(batch.id, batch.provider_id)
        yield terminal.sentence(f"{name} needs your decision{note}")
        yield f"  {terminal.sentence(str(batch.remedy))}"


def next_lines(
    summary: RunSummary, invocation: InvocationSummary, command: str, *, stopped: bool = False
) -> Iterator[str]:
    """Yields what is stale, deferred and waited for, and how to resume with `command`.

    `stopped`: by an error, perhaps before anything was submitted that could be retrieved.
    """
    waits = invocation.waits_for_shards
    if waits:
        yield f"Waiting for {plain(waits)}; once they have come so far, run: {command}"
    yield from map(_stale_line, invocation.batches.stale)
    deferred = invocation.batches.tasks_held_back
    if deferred and not invocation.stopped_at_limit:
        tasks = counted(deferred, "task does", "tasks do")
        yield (
            f"Deferred: {tasks} not fit in the budget until open batches are retrieved; "
            "the next `agac batch retrieve` tries again"
        )
    yield from _earlier_run_lines(invocation, command)
    open_batches = invocation.batches.open
    if open_batches:
        none_submitted = stopped and open_batches["waiting"] == open_batches["batches"]
        if not none_submitted:
            yield _open_batches_line(summary, command)
    unsent = invocation.notes.notifications
    if unsent is not None:
        messages = counted(unsent.left, "message")
        why = unsent.error or "there was no time"
        yield f"Not sent: {messages} ({plain(why)}). The next run sends what is left."
    yield from (f"{sentence}." for sentence in invocation.notes.dropped_messages)


def _earlier_run_lines(invocation: InvocationSummary, command: str) -> Iterator[str]:
    """Yields which batches of an earlier run have requests that this run needs too."""
    awaited = [batch["batch"] for batch in invocation.batches.waits_for]
    if not awaited:
        return
    numbers = ", ".join(map(str, awaited))
    if len(awaited) == 1:
        batches = f"batch {numbers} of an earlier run, which has"
        once = "it has"
    else:
        batches = f"batches {numbers} of an earlier run, which have"
        once = "they have"
    yield (
        f"Rows wait for {batches} the same requests (`agac batch list`). When {once} ended, "
        f"resume with: {command}"
    )


def _open_batches_line(summary: RunSummary, command: str) -> str:
    """Says how many rows are finished while batches are open, and how to follow these."""
    # rows of the input, and those that stages made
    counts = [summary.rows, *(level.rows for level in summary.levels)]
    total = sum(rows.total for rows in counts)
    ended = total - sum(rows.open for rows in counts)
    if ended:
        are = "is" if ended == 1 else "are"
        finished = f"{ended:,} of {counted(total, 'row')} {are} finished"
    else:
        finished = "No row is finished yet"
    return (
        f"{finished}. `agac batch status` shows progress, `agac batch retrieve` collects "
        f"results; `{terminal.without(command, '--wait')} --wait` waits until every stage is done."
    )


def _stale_line(stale: StaleBatch) -> str:
    """`Stale: 3 requests in batch 4, up to $0.01, are no longer needed; …`."""
    most = terminal.price(stale.held_usd, simulated=stale.simulated)
    if stale.held_usd is not None:
        most = f"up to {most}"
    requests = counted(stale.requests, "request")
    are = "is" if stale.requests == 1 else "are"
    name = terminal.batch_name(stale.batch, stale.provider_id)
    return (
        f"Stale: {requests} in {name}, {most}, {are} no longer needed; cancel the batch with: "
        f"agac batch cancel {stale.batch}"
    )
