"""Batches and the tasks in them: what is committed before and after each step that reaches a provider."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.store.db import Database, translated
from agac.store.sql import padded, sql, sql_many


class TaskState(IntEnum):
    """Where a task of a batch stage stands. WAITING | ENROLLED → READY → SETTLED."""

    WAITING = 0  # an equal task is in a batch: it waits for its answer
    ENROLLED = 1  # in a batch that is not ingested
    READY = 2  # something came of it, and its row has not been walked since
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it is stored: the columns of the table, in their order. Times in seconds since 1970, `held_…` is what
    is set aside for it. `state` is a step of its life (`engine.batch.states`), `status` what its provider last said."""

    id: int
    run_id: int
    event_id: int
    stage: int
    position: int
    provider: str
    base_url: str
    model: str
    account: str
    state: str
    intent: str
    attempt: int
    file: str
    tasks: int
    bytes: int
    tokens: int
    sha256: str | None
    window: str | None
    held_usd: float
    held_tokens: int
    priced: bool
    file_id: str | None
    provider_id: str | None
    status: str | None
    word: str | None
    total: int | None
    done: int | None
    failed: int | None
    planned_at: float
    created_after: float | None
    submitted_at: float | None
    seen_at: float | None
    moved_at: float | None
    ended_at: float | None
    expires_at: float | None
    results_until: float | None
    ingested_at: float | None
    cleaned_at: float | None
    cancel_at: float | None
    then_do: str | None
    try_at: float | None
    deadline: float | None
    outputs: str | None
    counts: str | None
    cost: float | None
    foreign_ids: str | None
    note: str | None

    @property
    def lane(self) -> str:
        """The model as users write it."""
        return f"{self.provider}/{self.model}"

    @property
    def key(self) -> str:
        """Our name for it at the provider: the intent, and which attempt to create it this is."""
        return f"{self.intent}-{self.attempt}"

    @property
    def not_ours(self) -> frozenset[str]:
        """Ids of batches at the provider that were looked at and found to be others'."""
        return frozenset(json.loads(self.foreign_ids or "[]"))


class ReadyTask(NamedTuple):
    """What came of a task in a batch. `then_do` None: it has a result, or failed with `error`; else what is next:
    `batch`, `repair`, `fallback`, `sync`, or `run` (nothing, before the user runs the workflow again). `round`,
    `position` and `repairs` say what was asked so far. `enrolled`: it was in the batch itself; else it waited for an
    equal task that was."""

    row_key: int
    stage: int
    replica: int
    fingerprint: bytes
    round: int
    position: int
    repairs: int
    then_do: str | None
    enrolled: bool
    error: RowError | None


class PlacedTask(NamedTuple):
    """A task at its place in a batch."""

    id: int
    place: int
    row_key: int
    stage: int
    replica: int
    fingerprint: bytes
    state: int
    round: int
    position: int
    repairs: int


async def project_token(database: Database) -> str:
    """The database's own token."""
    return str((await _all(database, "project_token", ()))[0][0])


async def read_batch(database: Database, batch: int) -> BatchRecord | None:
    """One batch."""
    found = await _batches(database, "batch_read", (batch,))
    return found[0] if found else None


async def unfinished_batches(database: Database, workflow: str) -> list[BatchRecord]:
    """All batches of a workflow's runs that have not come to their end, oldest first."""
    return await _batches(database, "batches_unfinished", (workflow,))


async def untidy_batches(database: Database, workflow: str) -> list[BatchRecord]:
    """The batches of a workflow that never ran, and whose input still lies at the provider."""
    return await _batches(database, "batches_untidy", (workflow,))


async def batches_of_run(database: Database, run: int) -> list[BatchRecord]:
    """All batches of a run, oldest first."""
    return await _batches(database, "batches_of_run", (run,))


async def others_in_intent(database: Database, account: str, batch: int) -> bool:
    """Whether another batch of an account is about to be created, or may have been."""
    return bool(await _all(database, "batch_intents", (account, batch)))


async def newest_at(database: Database, provider: str, but: int) -> str | None:
    """The provider's id of the newest other batch that is known there."""
    found = await _all(database, "batch_newest_at", (provider, but))
    return str(found[0][0]) if found else None


async def known_ids(database: Database, provider_ids: Sequence[str]) -> set[str]:
    """Those of a provider's ids that are batches of this project already."""
    values = padded(list(provider_ids))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("batch_ids_known", len(values)), values)
    return {one for (one,) in found}


class LaneLoad(NamedTuple):
    """What is under way in a lane: tokens and batches that were submitted and have not ended, batches `of_account` in
    all its lanes, and how many tokens the account was seen to take at most (None: it did not refuse of late)."""

    tokens: int
    batches: int
    of_account: int
    cap: int | None


async def lane_load(database: Database, batch: BatchRecord, account: str, since: float) -> LaneLoad:
    """What is under way in a batch's lane, of all workflows. Limits shown before `since` do not count any more."""
    values = {"p": batch.provider, "a": account, "m": batch.model, "since": since}
    ((tokens, batches, of_account, cap),) = await _all(database, "lane_load", values)
    return LaneLoad(tokens or 0, batches, of_account, cap)


async def live_tasks(database: Database, prints: Sequence[bytes], workflow: str) -> set[bytes]:
    """Those of these fingerprints whose tasks are in a batch of the workflow that is not ingested."""
    values = padded(list(prints))
    with translated(database.path):
        statement = sql_many("tasks_live", len(values))
        return {one for (one,) in await database.reader.execute_fetchall(statement, (workflow, *values))}


async def was_batched(database: Database, workflow: str) -> bool:
    """Whether a workflow ever had a batch."""
    return bool(await _all(database, "batched", (workflow,)))


Ready = dict[tuple[int, int, bytes], ReadyTask]
"""What came of a row's tasks, by stage, replica and fingerprint."""


async def ready_tasks(database: Database, keys: Sequence[int]) -> dict[int, Ready]:
    """What came of the tasks of these rows, by their keys."""
    values = padded(list(keys))
    with translated(database.path):
        rows = await database.reader.execute_fetchall(sql_many("tasks_ready", len(values)), values)
    found: dict[int, Ready] = {}
    for *task, error_type, message in rows:
        error = RowError(ErrorType(error_type), message or "") if error_type else None
        one = ReadyTask._make([*task, error])
        found.setdefault(one.row_key, {})[one.stage, one.replica, one.fingerprint] = one
    return found


async def waiting_rows(database: Database, keys: Sequence[int]) -> dict[int, int]:
    """Those of these rows that have a task in a batch, or waiting for one, and the first stage where that is so."""
    values = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("rows_waiting", len(values)), values)
    return {int(key): int(stage) for key, stage in found}


class OpenRow(NamedTuple):
    """A row of the input that has no outcome yet; `seen` by the invocation that last placed it."""

    key: int
    id: Any
    occurrence: int
    ordinal: int
    hash: bytes
    data: str
    seen: int


async def rows_to_walk(database: Database, run: int, after: int, limit: int) -> list[OpenRow]:
    """Open rows of the input with a task of which something came that they were not walked with, by their keys."""
    values = {"run": run, "after": after, "most": limit}
    return [OpenRow(*row) for row in await _all(database, "rows_to_walk", values)]


async def rows_idle(database: Database, run: int, after: int, limit: int) -> list[OpenRow]:
    """Open rows of the input that wait for no batch, in the order of the input; `after` is an ordinal."""
    values = {"run": run, "after": after, "most": limit}
    return [OpenRow(*row) for row in await _all(database, "rows_idle", values)]


async def rows_in_batches(database: Database, run: int) -> int:
    """How many rows of a run have a task in a batch, or waiting for one."""
    return int((await _all(database, "rows_in_batches", (run,)))[0][0])


async def tasks_at(database: Database, batch: int, places: Sequence[int]) -> dict[int, PlacedTask]:
    """The tasks at these places of a batch."""
    values = padded(list(places))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("tasks_at", len(values)), (batch, *values))
    return {row[1]: PlacedTask._make(row) for row in found}


async def tasks_left(database: Database, batch: int, after: int, limit: int) -> list[PlacedTask]:
    """The tasks of a batch of which nothing came, by their places."""
    return [PlacedTask._make(row) for row in await _all(database, "tasks_left", (batch, after, limit))]


async def last_reply(database: Database, row_key: int, stage: int, replica: int, fingerprint: bytes) -> Any:
    """The last raw reply of a task that had the wrong form, as it is stored, with its status and what was wrong; None
    when there is none."""
    found = await _all(database, "reply_last", (row_key, stage, replica, fingerprint))
    return found[0] if found else None


async def stale_tasks(database: Database, run: int, workflow: str) -> list[tuple[int, int]]:
    """Batches of other runs of the workflow that hold tasks which this run does not want: their numbers, and how many
    tasks."""
    return [(batch, count) for batch, count in await _all(database, "tasks_stale", {"run": run, "workflow": workflow})]


async def outdated_tasks(database: Database, run: int) -> list[tuple[int, int]]:
    """Open batches of a run that hold tasks which its rows do not want any more: their numbers, and how many tasks."""
    return [(batch, count) for batch, count in await _all(database, "tasks_outdated", {"run": run})]


async def intents(database: Database) -> tuple[set[str], set[str]]:
    """The names of all batches whose files on this machine are still needed, and of all that there are."""
    found = await _all(database, "intents", ())
    return {intent for intent, needed in found if needed}, {intent for intent, _ in found}


async def _all(database: Database, name: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    with translated(database.path):
        return list(await database.reader.execute_fetchall(sql(name), values))


async def _batches(database: Database, name: str, values: Sequence[Any]) -> list[BatchRecord]:
    return [BatchRecord(*row) for row in await _all(database, name, values)]
