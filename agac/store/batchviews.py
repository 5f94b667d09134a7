"""Batches for those who look: which are open, how each stands, how long those of a lane take. What a provider tells
is kept; nothing else is changed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from agac.store.batches import BatchRecord, TaskState
from agac.store.db import Database, translated
from agac.store.sql import sql


class BatchView(NamedTuple):
    """A batch with its workflow. It is the `number`th, from 1, `among` those that one invocation made for a stage."""

    workflow: str
    number: int
    among: int
    batch: BatchRecord


CLOSED = frozenset({"INGESTED", "CLEANED", "NOT_CREATED", "REJECTED"})
"""Steps after which nothing is to come of a batch any more."""


class OpenBatches(NamedTuple):
    """The open batches of a run, summed up: `waiting` of them the provider has not got yet, `ready` ones have ended
    there. `done` and `failed` requests as they were last seen."""

    batches: int
    waiting: int
    requests: int
    done: int
    failed: int
    ready: int

    def as_json(self) -> dict[str, int]:
        """The value that `--json` prints."""
        return self._asdict()


class LaneTimes(NamedTuple):
    """How long a lane's batches took from submission to end, in seconds: half of them up to `p50`, 95 % up to `p95`."""

    batches: int
    p50: float
    p95: float


class Observation(NamedTuple):
    """What a provider told of a batch, and whether it had `moved` since; None: not told."""

    id: int
    provider_id: str
    status: str
    word: str
    total: int | None
    done: int | None
    failed: int | None
    moved: bool
    expires_at: float | None
    results_until: float | None
    ended_at: float | None
    now: float


async def batches(
    database: Database,
    *,
    run: int | None = None,
    workflow: str | None = None,
    named: str | None = None,
    closed: bool = False,
) -> list[BatchView]:
    """Batches, oldest first; without `closed` the open ones. `named`: our number of one, or the provider's id."""
    values = {"run": run, "workflow": workflow, "named": named, "closed": closed}
    found = await _all(database, "batches_look", values)
    return [BatchView(row[0], row[1], row[2], BatchRecord(*row[3:])) for row in found]


async def last_submitting_run(database: Database) -> int | None:
    """The run whose batch was submitted last; None when there never was one."""
    found = await _all(database, "batches_last_run")
    return int(found[0][0]) if found else None


class Alike(NamedTuple):
    """The open batches of a stage, by its position, that stand alike; `status` is '' of those not submitted."""

    stage: int
    status: str
    batches: int
    requests: int
    done: int
    failed: int


async def batches_alike(database: Database, run: int) -> list[Alike]:
    """The open batches of a run, summed up by stage and by how they stand."""
    return [Alike(*row) for row in await _all(database, "batches_alike", (run,))]


class RowTask(NamedTuple):
    """A task of a row that is in a batch of a run; or `waits` for an equal one that is. `round`: how often it was put
    into one; `provider_id` and `submitted_at` are None of a batch that the provider has not got."""

    stage: int
    replica: int
    fingerprint: bytes
    waits: bool
    round: int
    batch: int
    run: int
    provider_id: str | None
    step: str
    submitted_at: float | None


async def tasks_of_row(database: Database, row_key: int) -> list[RowTask]:
    """The tasks of a row of which a batch is to bring the answer."""
    found = await _all(database, "batches_of_row", (row_key,))
    return [RowTask._make((*row[:3], row[3] == TaskState.WAITING, *row[4:])) for row in found]


class Awaited(NamedTuple):
    """A batch of another run that is to answer what a run asks, too."""

    batch: int
    run: int
    provider_id: str | None


async def awaited(database: Database, run: int) -> list[Awaited]:
    """The batches of other runs for which rows of a run wait."""
    return [Awaited(*row) for row in await _all(database, "batches_waited_for", {"run": run})]


async def open_batches(database: Database) -> dict[int, OpenBatches]:
    """The open batches of each run that has any."""
    return {run: OpenBatches(*counts) for run, *counts in await _all(database, "batches_open")}


async def runs_in_batches(database: Database) -> set[int]:
    """The runs that have open batches, or tasks that wait for one."""
    return {run for (run,) in await _all(database, "batches_needing")}


async def lane_times(database: Database, provider: str, account: str, model: str) -> LaneTimes | None:
    """How long the lane's batches took; None while none has ended."""
    return times_of([seconds for (seconds,) in await _all(database, "batches_lane_times", (provider, account, model))])


def times_of(seconds: Sequence[float]) -> LaneTimes | None:
    """The quantiles of durations, which come in order: the smallest value that so many of them do not exceed."""
    if not seconds:
        return None
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return LaneTimes(len(seconds), p50, p95)


async def write_seen(database: Database, observations: Sequence[Observation]) -> None:
    """Keeps what providers told, in one commit. It changes no step of a batch, so it takes no lease."""
    assert database.writer is not None
    with translated(database.path):
        await database.writer.at_once(lambda writer: _write_seen(writer, observations))


def _write_seen(writer: sqlite3.Connection, observations: Sequence[Observation]) -> None:
    writer.execute("BEGIN IMMEDIATE")
    try:
        writer.executemany(sql("batch_seen"), [one._asdict() for one in observations])
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        raise


async def _all(database: Database, statement: str, values: Any = ()) -> list[Any]:
    with translated(database.path):
        return list(await database.reader.execute_fetchall(sql(statement), values))
