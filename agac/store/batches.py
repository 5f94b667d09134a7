"""Batches and their tasks: committed before and after each step at a provider, and read for reports."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import RowError
from agac.core.report import Report
from agac.store.db import Database, fetch, select, select_one, sql, transaction, translated

# The life of a batch, as a table: which step may follow which. Each step is one committed transition.
#
#     PLANNED ─► BUILT ─► UPLOAD_INTENT ─► UPLOADED ─► CREATE_INTENT ─► SUBMITTED
#             SUBMITTED ─► TERMINAL ─► DOWNLOADED ─► INGESTED ─► CLEANED
#
# Providers that take requests inline pass over the upload pair. Aside: NOT_CREATED, REJECTED, NEEDS_HUMAN.


class BatchStep(StrEnum):
    """A step of a batch's life. What a crash leaves in each is gone on with from it by the next command."""

    PLANNED = "PLANNED"  # tasks join it; its file is being written. A crash: the tasks go into another one
    BUILT = "BUILT"  # its file is whole and on the disk; nothing of it is known outside
    UPLOAD_INTENT = "UPLOAD_INTENT"  # its file is about to lie at the provider, or lies there: it is looked for
    UPLOADED = "UPLOADED"
    CREATE_INTENT = "CREATE_INTENT"  # it is about to exist, or exists and costs: it is looked for
    SUBMITTED = "SUBMITTED"  # it exists, and we know its name
    TERMINAL = "TERMINAL"  # nothing will happen to it any more: what it left is fetched
    DOWNLOADED = "DOWNLOADED"  # its results lie on this machine
    INGESTED = "INGESTED"  # each of its tasks has an end
    CLEANED = "CLEANED"  # its files are deleted, here and there
    NOT_CREATED = "NOT_CREATED"  # it never came to exist: its tasks go into another one
    REJECTED = "REJECTED"  # refused as a whole: nothing ran, nothing was charged
    NEEDS_HUMAN = "NEEDS_HUMAN"  # whether it exists is unknown, or what it cost is lost: the user decides


_ON: dict[BatchStep, frozenset[BatchStep]] = {
    BatchStep.PLANNED: frozenset({BatchStep.BUILT, BatchStep.NOT_CREATED}),
    BatchStep.BUILT: frozenset({BatchStep.UPLOAD_INTENT, BatchStep.CREATE_INTENT, BatchStep.NOT_CREATED}),
    BatchStep.UPLOAD_INTENT: frozenset({BatchStep.UPLOADED, BatchStep.NOT_CREATED}),
    BatchStep.UPLOADED: frozenset({BatchStep.CREATE_INTENT, BatchStep.BUILT, BatchStep.NOT_CREATED}),
    BatchStep.CREATE_INTENT: frozenset(
        {BatchStep.SUBMITTED, BatchStep.UPLOADED, BatchStep.BUILT, BatchStep.REJECTED, BatchStep.NEEDS_HUMAN}
    ),
    BatchStep.SUBMITTED: frozenset(
        {
            BatchStep.TERMINAL,
            BatchStep.REJECTED,
            BatchStep.UPLOADED,
            BatchStep.BUILT,
            BatchStep.CREATE_INTENT,
            BatchStep.NEEDS_HUMAN,
        }
    ),
    BatchStep.TERMINAL: frozenset({BatchStep.DOWNLOADED, BatchStep.NEEDS_HUMAN, BatchStep.CREATE_INTENT}),
    BatchStep.DOWNLOADED: frozenset({BatchStep.INGESTED, BatchStep.TERMINAL, BatchStep.CREATE_INTENT}),
    BatchStep.INGESTED: frozenset({BatchStep.CLEANED}),
    BatchStep.CLEANED: frozenset(),
    BatchStep.NOT_CREATED: frozenset(),
    BatchStep.REJECTED: frozenset(),
    BatchStep.NEEDS_HUMAN: frozenset({BatchStep.SUBMITTED, BatchStep.NOT_CREATED}),
}

WAITING = frozenset({BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED, BatchStep.CREATE_INTENT})
"""Steps on the way to the provider: what is found in them is submitted, or waits until there is room."""

AT_PROVIDER = frozenset({BatchStep.SUBMITTED, BatchStep.TERMINAL, BatchStep.DOWNLOADED})
"""Steps at which it exists at the provider and has not been ingested."""


def may_follow(before: BatchStep, after: BatchStep) -> bool:
    """Whether a batch may go from one step to another."""
    return after in _ON[before]


T = TypeVar("T")


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
    return (await select(database, "project_token", str))[0]


async def read_batch(database: Database, batch: int) -> BatchRecord | None:
    """One batch."""
    return await select_one(database, "batch_read", BatchRecord, batch)


async def unfinished_batches(database: Database, workflow: str) -> list[BatchRecord]:
    """All batches of a workflow's runs that have not come to their end, oldest first."""
    return await select(database, "batches_unfinished", BatchRecord, workflow)


async def untidy_batches(database: Database, workflow: str) -> list[BatchRecord]:
    """The batches of a workflow that never ran, and whose input still lies at the provider."""
    return await select(database, "batches_untidy", BatchRecord, workflow)


async def batches_of_run(database: Database, run: int) -> list[BatchRecord]:
    """All batches of a run, oldest first."""
    return await select(database, "batches_of_run", BatchRecord, run)


async def others_in_intent(database: Database, account: str, batch: int) -> bool:
    """Whether another batch of an account is about to be created, or may have been."""
    return bool(await select(database, "batch_intents", int, account, batch))


async def newest_at(database: Database, provider: str, but: int) -> str | None:
    """The provider's id of the newest other batch that is known there."""
    return await select_one(database, "batch_newest_at", str, provider, but)


async def known_ids(database: Database, provider_ids: Sequence[str]) -> set[str]:
    """Those of a provider's ids that are batches of this project already."""
    return set(await select(database, "batch_ids_known", str, list(provider_ids)))


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
    return (await select(database, "lane_load", LaneLoad, **values))[0]


async def live_tasks(database: Database, prints: Sequence[bytes], workflow: str) -> set[bytes]:
    """Those of these fingerprints whose tasks are in a batch of the workflow that is not ingested."""
    return set(await select(database, "tasks_live", bytes, workflow, list(prints)))


async def was_batched(database: Database, workflow: str) -> bool:
    """Whether a workflow ever had a batch."""
    return bool(await select(database, "batched", int, workflow))


Ready = dict[tuple[int, int, bytes], ReadyTask]
"""What came of a row's tasks, by stage, replica and fingerprint."""


async def ready_tasks(database: Database, keys: Sequence[int]) -> dict[int, Ready]:
    """What came of the tasks of these rows, by their keys."""
    found: dict[int, Ready] = {}
    for one in await select(database, "tasks_ready", ReadyTask, list(keys)):
        found.setdefault(one.row_key, {})[one.stage, one.replica, one.fingerprint] = one
    return found


async def waiting_rows(database: Database, keys: Sequence[int]) -> dict[int, int]:
    """Those of these rows that have a task in a batch, or waiting for one, and the first stage where that is so."""
    return dict(await select(database, "rows_waiting", tuple[int, int], list(keys)))


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
    return await select(database, "rows_to_walk", OpenRow, run=run, after=after, most=limit)


async def rows_idle(database: Database, run: int, after: int, limit: int) -> list[OpenRow]:
    """Open rows of the input that wait for no batch, in the order of the input; `after` is an ordinal."""
    return await select(database, "rows_idle", OpenRow, run=run, after=after, most=limit)


async def rows_in_batches(database: Database, run: int) -> int:
    """How many rows of a run have a task in a batch, or waiting for one."""
    return (await select(database, "rows_in_batches", int, run))[0]


async def tasks_at(database: Database, batch: int, places: Sequence[int]) -> dict[int, PlacedTask]:
    """The tasks at these places of a batch."""
    return {task.place: task for task in await select(database, "tasks_at", PlacedTask, batch, list(places))}


async def tasks_left(database: Database, batch: int, after: int, limit: int) -> list[PlacedTask]:
    """The tasks of a batch of which nothing came, by their places."""
    return await select(database, "tasks_left", PlacedTask, batch, after, limit)


async def last_reply(database: Database, row_key: int, stage: int, replica: int, fingerprint: bytes) -> Any:
    """The last raw reply of a task that had the wrong form, as it is stored, with its status and what was wrong; None
    when there is none."""
    return await select_one(database, "reply_last", tuple[Any, ...], row_key, stage, replica, fingerprint)


async def stale_tasks(database: Database, run: int, workflow: str) -> list[tuple[int, int]]:
    """Batches of other runs of the workflow that hold tasks which this run does not want: their numbers, and how many
    tasks."""
    return await select(database, "tasks_stale", tuple[int, int], run=run, workflow=workflow)


async def outdated_tasks(database: Database, run: int) -> list[tuple[int, int]]:
    """Open batches of a run that hold tasks which its rows do not want any more: their numbers, and how many tasks."""
    return await select(database, "tasks_outdated", tuple[int, int], run=run)


async def intents(database: Database) -> tuple[set[str], set[str]]:
    """The names of all batches whose files on this machine are still needed, and of all that there are."""
    found = await select(database, "intents", tuple[str, bool])
    return {intent for intent, needed in found if needed}, {intent for intent, _ in found}


# Batches for those who look. What a provider said of one is kept; nothing else is changed.


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


@dataclass(frozen=True, slots=True)
class LaneTimes(Report):
    """How long a lane's batches took from submission to end, in seconds: half of them up to `p50`, 95 % up to `p95`."""

    JSON_KEYS = ("batches", "p50_s=p50", "p95_s=p95")

    batches: int
    p50: float
    p95: float


class Observation(NamedTuple):
    """What a provider reported of a batch, and whether it had `moved` since; None: not reported."""

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
    return await select(database, "batches_look", BatchView, **values)


async def last_submitting_run(database: Database) -> int | None:
    """The run whose batch was submitted last; None when there never was one."""
    return await select_one(database, "batches_last_run", int)


class BatchStatusCount(NamedTuple):
    """The open batches of a stage, by its position, that stand alike; `status` is '' of those not submitted."""

    stage: int
    status: str
    batches: int
    requests: int
    done: int
    failed: int


async def batches_alike(database: Database, run: int) -> list[BatchStatusCount]:
    """The open batches of a run, summed up by stage and by how they stand."""
    return await select(database, "batches_alike", BatchStatusCount, run)


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
    return await select(database, "batches_of_row", RowTask, row_key)


class Awaited(NamedTuple):
    """A batch of another run that is to answer what a run asks, too."""

    batch: int
    run: int
    provider_id: str | None


async def awaited(database: Database, run: int) -> list[Awaited]:
    """The batches of other runs for which rows of a run wait."""
    return await select(database, "batches_waited_for", Awaited, run=run)


async def open_batches(database: Database) -> dict[int, OpenBatches]:
    """The open batches of each run that has any."""
    found = await select(database, "batches_open", tuple[int, int, int, int, int, int, int])
    return {run: OpenBatches(*counts) for run, *counts in found}


async def runs_in_batches(database: Database) -> set[int]:
    """The runs that have open batches, or tasks that wait for one."""
    return set(await select(database, "batches_needing", int))


async def lane_times(database: Database, provider: str, account: str, model: str) -> LaneTimes | None:
    """How long the lane's batches took; None while none has ended."""
    return times_of(await select(database, "batches_lane_times", float, provider, account, model))


def times_of(seconds: Sequence[float]) -> LaneTimes | None:
    """The quantiles of durations, which come in order: the smallest value that so many of them do not exceed."""
    if not seconds:
        return None
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return LaneTimes(len(seconds), p50, p95)


async def write_seen(database: Database, observations: Sequence[Observation]) -> None:
    """Keeps the providers' reports, in one commit. It changes no step of a batch, so it takes no lease."""
    assert database.writer is not None
    with translated(database.path):
        await database.writer.at_once(lambda writer: _write_seen(writer, observations))


def _write_seen(writer: sqlite3.Connection, observations: Sequence[Observation]) -> None:
    with transaction(writer):
        writer.executemany(sql("batch_seen"), [one._asdict() for one in observations])


# For a shell that completes a word: no engine, no event loop, no migration.

COMPLETION_WAIT_S = 0.2


def runs_at_a_glance(path: Path) -> list[tuple[int, str]]:
    """Number and workflow of each run, the one last worked on first; empty when the database cannot say."""
    return _glanced(path, "runs_at_a_glance", tuple[int, str])


def batches_at_a_glance(path: Path) -> list[tuple[int, str | None, str]]:
    """Number, provider's id and workflow of each open batch, the newest first; empty when the database cannot say."""
    return _glanced(path, "batches_at_a_glance", tuple[int, str | None, str])


def _glanced(path: Path, statement: str, record: type[T]) -> list[T]:
    if not path.is_file():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=COMPLETION_WAIT_S)) as connection:
            return fetch(connection, statement, record)
    except sqlite3.Error:
        return []
