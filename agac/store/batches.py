"""Batches and their tasks: committed before and after each step at a provider, and read for
reports."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import RowError
from agac.core.types import Moment, Report
from agac.store.db import Database, Reads, by, fetch, first, keyed, nested, reads, select
from agac.store.rows import StoredRow

# The life of a batch, as a table: which step may follow which. Each step is one committed
# transition.
#
# PLANNED ─► BUILT ─► UPLOAD_INTENT ─► UPLOADED ─► CREATE_INTENT ─► SUBMITTED
# SUBMITTED ─► TERMINAL ─► DOWNLOADED ─► INGESTED ─► CLEANED
#
# Providers that take requests inline pass over the upload pair. Aside: NOT_CREATED, REJECTED,
# NEEDS_HUMAN.


T = TypeVar("T")


class BatchStep(StrEnum):
    """A step of a batch's life. After a crash the next command continues from the step that was
    committed last."""

    PLANNED = "PLANNED"
    """Tasks join it; its file is being written. After a crash the tasks go into another one."""
    BUILT = "BUILT"
    """Its file is whole and on the disk; nothing of it is known outside."""
    UPLOAD_INTENT = "UPLOAD_INTENT"
    """Its file is about to be at the provider, or is there: it is looked for."""
    UPLOADED = "UPLOADED"
    """Its file is at the provider, and we know its name."""
    CREATE_INTENT = "CREATE_INTENT"
    """It is about to exist, or exists and costs: it is looked for."""
    SUBMITTED = "SUBMITTED"
    """It exists, and we know its name."""
    TERMINAL = "TERMINAL"
    """Nothing more will happen to it: what it left is fetched."""
    DOWNLOADED = "DOWNLOADED"
    """Its results are on this machine."""
    INGESTED = "INGESTED"
    """Each of its tasks has an end."""
    CLEANED = "CLEANED"
    """Its files are deleted, here and there."""
    NOT_CREATED = "NOT_CREATED"
    """It was never created: its tasks go into another one."""
    REJECTED = "REJECTED"
    """It was refused as a whole: nothing ran, nothing was charged."""
    NEEDS_HUMAN = "NEEDS_HUMAN"
    """It is unknown whether it exists, or what it cost is lost: the user decides."""


_NEXT = {
    "PLANNED": "BUILT NOT_CREATED",
    "BUILT": "UPLOAD_INTENT CREATE_INTENT NOT_CREATED",
    "UPLOAD_INTENT": "UPLOADED NOT_CREATED REJECTED",
    "UPLOADED": "CREATE_INTENT BUILT NOT_CREATED",
    "CREATE_INTENT": "SUBMITTED UPLOADED BUILT REJECTED NEEDS_HUMAN",
    "SUBMITTED": "TERMINAL REJECTED UPLOADED BUILT CREATE_INTENT NEEDS_HUMAN",
    "TERMINAL": "DOWNLOADED NEEDS_HUMAN CREATE_INTENT",
    "DOWNLOADED": "INGESTED TERMINAL CREATE_INTENT NEEDS_HUMAN",
    "INGESTED": "CLEANED",
    "NEEDS_HUMAN": "SUBMITTED NOT_CREATED",
}

WAITING = frozenset(
    {BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED, BatchStep.CREATE_INTENT}
)
"""Steps on the way to the provider: what is found in them is submitted, or waits until there is
room."""

CLOSED = frozenset({"INGESTED", "CLEANED", "NOT_CREATED", "REJECTED"})
"""Steps after which a batch gives nothing more."""

AT_PROVIDER = frozenset({BatchStep.SUBMITTED, BatchStep.TERMINAL, BatchStep.DOWNLOADED})
"""Steps at which it exists at the provider and has not been ingested."""


def may_follow(before: BatchStep, after: BatchStep) -> bool:
    """True if a batch may go from one step to another."""
    return after in _NEXT.get(before, "").split()


class TaskState(IntEnum):
    """The state of a task of a batch stage. WAITING | ENROLLED → READY → SETTLED."""

    WAITING = 0
    """An equal task is in a batch: it waits for its answer."""
    ENROLLED = 1
    """It is in a batch that is not ingested."""
    READY = 2
    """It has an outcome, and its row has not been walked since."""
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it is stored: the columns of the table, in their order. All times are in seconds
    since 1970."""

    id: int
    """The batch's number in the store."""
    run_id: int
    """The run that it belongs to."""
    event_id: int
    """The invocation that planned it."""
    stage: int
    """The stage's position in the run's definition."""
    position: int
    """Which of the stage's models it is for, from 0; those from 1 are fallbacks."""
    provider: str
    """The provider's name."""
    base_url: str
    """The provider's address."""
    model: str
    """The model's name at the provider."""
    account: str
    """A mark of the address and the key (`keys.account_mark`). It holds nothing secret."""
    state: str
    """The step of its life (`BatchStep`)."""
    intent: str
    """Our name for it (`keys.batch_intent`), in every custom id and in the file's name."""
    attempt: int
    """How often it was to be created, from 1."""
    file: str
    """The name of its file of requests in `.agac/batches/`."""
    tasks: int
    """How many tasks it has."""
    bytes: int
    """The size of its file."""
    tokens: int
    """The estimated tokens that count against what the account may enqueue."""
    sha256: str | None
    """The hash of its file, set with BUILT."""
    window: str | None
    """The completion window that was requested."""
    held_usd: float
    """The worst cost, set aside until it is ingested; 0 where no price is known."""
    held_tokens: int
    """The most tokens it may use, set aside until it is ingested."""
    priced: bool
    """True if `held_usd` is known."""
    file_id: str | None
    """The provider's id of the uploaded file."""
    provider_id: str | None
    """The provider's id of the batch."""
    status: str | None
    """The provider's last report, in words that are the same for all providers (`BatchState`)."""
    word: str | None
    """The provider's own word for `status`."""
    total: int | None
    """How many requests the provider counts, or None if it does not say."""
    done: int | None
    """How many of them are done."""
    failed: int | None
    """How many of them failed."""
    planned_at: float
    """When it was planned."""
    created_after: float | None
    """When the intent to create it was committed."""
    submitted_at: Moment | None
    """When the provider accepted it."""
    seen_at: Moment | None
    """When the provider was last asked for it."""
    moved_at: float | None
    """When a count or its status last changed."""
    ended_at: float | None
    """When it ended, by the provider's clock."""
    expires_at: Moment | None
    """When the provider gives it up."""
    results_until: Moment | None
    """When the provider deletes its results."""
    ingested_at: float | None
    """When its results were stored."""
    cleaned_at: float | None
    """When its files were deleted."""
    cancel_at: float | None
    """When its cancellation was decided."""
    then_do: str | None
    """What to do with its unfinished tasks after a cancellation: `run` or `sync`."""
    try_at: Moment | None
    """The earliest time to create it."""
    deadline: Moment | None
    """When it is cancelled if it has not ended."""
    outputs: list[tuple[str, int, str]] | None
    """The downloaded files: name, bytes and sha256 of each."""
    counts: dict[str, int] | None
    """How many of its lines had which outcome, set with INGESTED."""
    cost: float | None
    """The price of its answers in USD, or None if nothing was ingested or no price is known."""
    foreign_ids: list[str] | None
    """Ids of batches at the provider that were looked at and belong to others."""
    note: str | None
    """Why it waits, was refused or needs a human, in words."""
    primer: int | None
    """Set only by older versions: its requests wrote to a provider's cache."""

    @property
    def open(self) -> bool:
        """True if the batch has not come to its end."""
        return self.state not in CLOSED

    @property
    def lane(self) -> str:
        """The model as users write it."""
        return f"{self.provider}/{self.model}"

    @property
    def account_lane(self) -> tuple[str, str, str]:
        """The model of an account."""
        return self.provider, self.account, self.model

    @property
    def key(self) -> str:
        """Our name for it at the provider: the intent, and which attempt to create it this is."""
        return f"{self.intent}-{self.attempt}"

    @property
    def not_ours(self) -> list[str]:
        """Ids of batches at the provider that were looked at and found to be others'."""
        return self.foreign_ids or []


TOO_LARGE = "too_large"
BLOCKED = "blocked"
"""Words of batches that were refused for their size, and for what they held: their tasks go into
smaller ones."""


class ReadyTask(NamedTuple):
    """The outcome of a task in a batch, for its row."""

    row_key: int
    """The row's key."""
    stage: int
    """The position of the task's stage."""
    replica: int
    """The number of the task's replica."""
    fingerprint: bytes
    """The task's fingerprint."""
    round: int
    """How often its model was asked this question, from 1."""
    position: int
    """Which of the stage's models was asked, from 0."""
    repairs: int
    """How often a reply of the wrong form was quoted to the model."""
    then_do: str | None
    """The next step: `batch`, `repair`, `fallback`, `sync`, or `run` (wait until the user runs the
    workflow again). None: it has a result, or failed with `error`."""
    enrolled: bool
    """True if it was in the batch; False if it waited for an equal task."""
    refused_with: int | None
    """The bytes of the batch, where the batch was refused for what one of its tasks holds."""
    error: RowError | None
    """Why it failed."""


class PlacedTask(NamedTuple):
    """A task at its line in a batch."""

    id: int
    """The number of the task's line in the store."""
    place: int
    """Its line in the batch, from 0."""
    row_key: int
    """The row's key."""
    stage: int
    """The position of the task's stage."""
    replica: int
    """The number of the task's replica."""
    fingerprint: bytes
    """The task's fingerprint."""
    state: int
    """Its state (`TaskState`)."""
    round: int
    """How often its model was asked this question, from 1."""
    position: int
    """Which of the stage's models is asked, from 0."""
    repairs: int
    """How often a reply of the wrong form was quoted to the model."""


class LaneLoad(NamedTuple):
    """The work under way in a lane."""

    tokens: int
    """Tokens of batches that were submitted and have not ended."""
    batches: int
    """How many such batches there are in the lane."""
    of_account: int
    """How many there are in all lanes of the account."""
    cap: int | None
    """The most tokens that the account was seen to take, or None if it refused nothing of late."""


class LiveTask(NamedTuple):
    """A task in a batch that has not ended."""

    fingerprint: bytes
    """The task's fingerprint."""
    batch: int
    """The batch's number."""
    place: int
    """Its line in the batch, from 0."""


# what came of a row's tasks, by stage, replica and fingerprint
Ready = dict[tuple[int, int, bytes], ReadyTask]
project_token: Reads[[], str] = reads("project_token", str, first)
# of one that is there
read_batch: Reads[[int], BatchRecord] = reads("batch_read", BatchRecord, itemgetter(0))
# workflow
unfinished_batches: Reads[[str], list[BatchRecord]] = reads("batches_unfinished", BatchRecord)
untidy_batches: Reads[[str], list[BatchRecord]] = reads("batches_untidy", BatchRecord)  # workflow
batches_of_run: Reads[[int], list[BatchRecord]] = reads("batches_of_run", BatchRecord)
# account, but this batch
others_in_intent: Reads[[str, int], bool] = reads("batch_intents", int, bool)
# provider, but this batch
newest_at: Reads[[str, int], str | None] = reads("batch_newest_at", str, first)
known_ids: Reads[[Sequence[str]], set[str]] = reads("batch_ids_known", str, set)
live_tasks: Reads[[Sequence[bytes], str], dict[bytes, LiveTask]] = reads(
    "tasks_live", LiveTask, by("fingerprint")
)
# run, stage
conversations_left: Reads[[int, int], tuple[int, int]] = reads(
    "conversations_left", tuple[int, int], first
)
was_batched: Reads[[str], bool] = reads("batched", int, bool)
# run, after, how many
rows_to_walk: Reads[[int, int, int], list[StoredRow]] = reads("rows_to_walk", StoredRow)
# run, after, how many
rows_idle: Reads[[int, int, int], list[StoredRow]] = reads("rows_idle", StoredRow)
rows_in_batches: Reads[[int], int] = reads("rows_in_batches", int, first)
# keys, event
waiting_rows: Reads[[Sequence[int], int], dict[int, int]] = reads(
    "rows_waiting", tuple[int, int], dict
)
tasks_at: Reads[[int, Sequence[int]], dict[int, PlacedTask]] = reads(
    "tasks_at", PlacedTask, by("place")
)
# batch, after, how many
tasks_left: Reads[[int, int, int], list[PlacedTask]] = reads("tasks_left", PlacedTask)
# row key, stage, replica
last_reply: Reads[[int, int, int, bytes], Any] = reads("reply_last", tuple[Any, ...], first)
# run, workflow
stale_tasks: Reads[[int, str], list[tuple[int, int]]] = reads("tasks_stale", tuple[int, int])
outdated_tasks: Reads[[int], list[tuple[int, int]]] = reads("tasks_outdated", tuple[int, int])

_key_accepted: Reads[[str, str], int | None] = reads("key_accepted", int, first)
least_refused: Reads[[str, str, float], int | None] = reads("batch_least_refused", int, first)
"""Bytes of the smallest file that an account refused for its size since then, by provider and
account."""
lane_load: Reads[[str, str, str, float], LaneLoad] = reads("lane_load", LaneLoad, first)
"""By provider, account and model. Limits shown before a time do not count any more."""

ready_tasks: Reads[[Sequence[int]], dict[int, Ready]] = reads(
    "tasks_ready",
    ReadyTask,
    lambda tasks: nested(
        (task.row_key, (task.stage, task.replica, task.fingerprint), task) for task in tasks
    ),
)


async def intents(database: Database) -> tuple[set[str], set[str]]:
    """Returns the names of all batches whose files on this machine are still needed, and of all
    batches."""
    intents = await select(database, "intents", tuple[str, bool])
    return {intent for intent, needed in intents if needed}, {intent for intent, _ in intents}


# Batches for those who look. What a provider said of one is kept; nothing else is changed.


@dataclass(frozen=True, slots=True)
class BatchView(BatchRecord):
    """A batch with its workflow, its stage's name and its stage's settings."""

    workflow: str
    """The workflow's name."""
    stage_name: str
    """The stage's name."""
    number: int
    """Which of the batches it is that one invocation made for the stage, from 1."""
    among: int
    """How many batches the invocation made for the stage."""
    stuck_after: float | None
    """Seconds without progress after which it counts as stuck, or None if unknown."""
    poll_interval: float | None
    """Seconds between two questions to the provider, or None if unknown."""


class OpenBatches(NamedTuple):
    """The open batches of a run, summed."""

    batches: int
    """How many there are."""
    waiting: int
    """How many are not at the provider yet."""
    requests: int
    """How many requests they have."""
    done: int
    """How many requests were done when the providers were last asked."""
    failed: int
    """How many requests had failed then."""
    ready: int
    """How many batches have ended at the provider."""


@dataclass(frozen=True, slots=True)
class LaneTimes(Report):
    """How long a lane's batches took from submission to end."""

    batches: int
    """How many batches ended."""
    p50_s: float
    """Half of them took at most so many seconds."""
    p95_s: float
    """95 % of them took at most so many seconds."""


async def batches(
    database: Database,
    *,
    run: int | None = None,
    workflow: str | None = None,
    named: str | None = None,
    closed: bool = False,
) -> list[BatchView]:
    """Batches, oldest first; without `closed` the open ones. `named`: our number of one, or the
    provider's id."""
    values = {"run": run, "workflow": workflow, "named": named, "closed": closed}
    return await select(database, "batches_look", BatchView, **values)


class BatchCount(NamedTuple):
    """The open batches of a stage that have the same status."""

    stage: str
    """The stage's name."""
    status: str
    """The status as `agac batch status` shows it."""
    batches: int
    """How many batches there are."""
    requests: int
    """How many requests they have."""
    done: int
    """How many requests are done."""
    failed: int
    """How many requests failed."""


class RowTask(NamedTuple):
    """A row's task that is in a batch of a run, or waits for an equal task that is."""

    stage: int
    """The position of the task's stage."""
    replica: int
    """The number of the task's replica."""
    fingerprint: bytes
    """The task's fingerprint."""
    waits: bool
    """True if it waits for an equal task."""
    round: int
    """How often the task was put into a batch."""
    batch: int
    """The batch's number."""
    run: int
    """The batch's run."""
    provider_id: str | None
    """The provider's id of the batch, or None if the provider does not have it."""
    step: str
    """The batch's step (`BatchStep`)."""
    submitted_at: float | None
    """When the provider accepted the batch, or None if the provider does not have it."""


class Awaited(NamedTuple):
    """A batch of another run whose answers a run waits for."""

    batch: int
    """The batch's number."""
    run: int
    """The run that it belongs to."""
    provider_id: str | None
    """The provider's id of the batch."""


# and their ranks
runs_with_batches: Reads[[], list[tuple[int, int]]] = reads("batches_runs", tuple[int, int])
batches_alike: Reads[[int], list[BatchCount]] = reads("batches_alike", BatchCount)
tasks_of_row: Reads[[int], list[RowTask]] = reads("batches_of_row", RowTask)
awaited: Reads[[int], list[Awaited]] = reads("batches_waited_for", Awaited)
runs_in_batches: Reads[[], set[int]] = reads("batches_needing", int, set)

open_batches: Reads[[], dict[int, OpenBatches]] = reads(
    "batches_open", tuple[int, int, int, int, int, int, int], keyed(OpenBatches._make)
)
"""By run."""


def times_of(seconds: Sequence[float]) -> LaneTimes | None:
    """Returns the quantiles of durations, which come in order: the smallest value that this share
    of them does not exceed."""
    if not seconds:
        return None
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return LaneTimes(len(seconds), p50, p95)


lane_times: Reads[[str, str, str], LaneTimes | None] = reads("batches_lane_times", float, times_of)
"""By provider, account and model; None while no batch of the lane has ended."""


async def key_accepted(database: Database, provider: str, account: str) -> bool:
    """True if a call with this key was ever answered."""
    return bool(await _key_accepted(database, provider, account))


# For a shell that completes a word: no engine, no event loop, no migration.

COMPLETION_WAIT_S = 0.2


def at_a_glance(path: Path, statement: str, record: type[T], *values: Any) -> list[T]:
    """Reads what a statement selects. Empty when the database cannot be read."""
    if not path.is_file():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=COMPLETION_WAIT_S)) as connection:
            return fetch(connection, statement, record, *values)
    except sqlite3.Error:
        return []
