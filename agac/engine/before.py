"""What the invocation before left behind when it did not come to its end: lost calls, rows that a retry had opened."""

from __future__ import annotations

from typing import NamedTuple

from agac.core.errors import ExitCode
from agac.engine.scope import Opened, Retry
from agac.store import runs
from agac.store.batches import was_batched
from agac.store.db import Database
from agac.store.rows import first_event_since, made_counts


class Killed(NamedTuple):
    """An invocation that was killed: how many calls may have been `lost` with it, of its own run; and with what it was
    itself about to say of one that was killed before it, how many there are `to_tell` of."""

    invocation: runs.Invocation
    lost: int
    to_tell: int


async def killed_before(database: Database, workflow: str) -> Killed | None:
    """The workflow's last invocation if it was killed.

    The bound is twice its concurrency (`Exposure`), and no more than the calls of rows without an outcome, where all
    rows are the input's.
    """
    found = await runs.last_invocation(database, workflow)
    if found is None or found[1].ended_at is not None:
        return None
    run, last = found
    most = lost = 2 * int(last.body["concurrency"])
    if not await made_counts(database, run):
        pending = runs.row_counts(await runs.counters(database, run))["open"]
        lost = min(most, pending * int(last.body.get("billed_a_row", most)))
    return Killed(last, lost, lost + int(last.body["lost_calls"]))


async def bury(database: Database, killed: Killed | None, now: float) -> None:
    """Ends an invocation that could not do it; only once the one that says so is on record."""
    if killed is not None:
        event = killed.invocation
        await runs.end_invocation(database, event.id, runs.KILLED, event.body | {"lost": killed.lost}, now)


async def broken_off_retry(database: Database, run: int) -> Retry | None:
    """The retry with which the run's last invocation did not come to its end, or whose rows may wait for batches: a
    plain run finishes the rows that it opened as it would have."""
    record = await runs.read_run(database, run)
    last = record.invocation if record else None
    if record is None or last is None or not last.body.get("retry"):
        return None
    ended = last.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)
    waits = ended and record.finished_at is None and await was_batched(database, record.workflow)
    if ended and not waits:
        return None
    return Retry.of_filters(last.body["retry"])


async def opened_by(database: Database, run: int, retry: Retry | None, again_from: int | None) -> Opened | None:
    """The rows that a retry, and what went on with it, opened; `again_from` is the position of its stage."""
    if retry is None:
        return None
    return Opened(await first_event_since(database, run, retry.since), again_from, retry.since)
