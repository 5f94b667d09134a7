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
# PLANNED ─► BUILT ─► UPLOAD_INTENT ─► UPLOADED ─► CREATE_INTENT ─► SUBMITTED SUBMITTED ─► TERMINAL
# ─► DOWNLOADED ─► INGESTED ─► CLEANED
#
# Providers that take requests inline pass over the upload pair. Aside: NOT_CREATED, REJECTED,
# NEEDS_HUMAN.


T = TypeVar("T")


class BatchStep(StrEnum):
    """A step of a batch's life. What a crash leaves in each is gone on with from it by the next
    command."""

    # tasks join it; its file is being written. A crash: the tasks go into another one
    PLANNED = "PLANNED"
    BUILT = "BUILT"  # its file is whole and on the disk; nothing of it is known outside
    UPLOAD_INTENT = (
        "UPLOAD_INTENT"  # its file is about to be at the provider, or is there: it is looked for
    )
    UPLOADED = "UPLOADED"
    CREATE_INTENT = "CREATE_INTENT"  # it is about to exist, or exists and costs: it is looked for
    SUBMITTED = "SUBMITTED"  # it exists, and we know its name
    TERMINAL = "TERMINAL"  # nothing will happen to it any more: what it left is fetched
    DOWNLOADED = "DOWNLOADED"  # its results lie on this machine
    INGESTED = "INGESTED"  # each of its tasks has an end
    CLEANED = "CLEANED"  # its files are deleted, here and there
    NOT_CREATED = "NOT_CREATED"  # it never came to exist: its tasks go into another one
    REJECTED = "REJECTED"  # refused as a whole: nothing ran, nothing was charged
    NEEDS_HUMAN = (
        "NEEDS_HUMAN"  # whether it exists is unknown, or what it cost is lost: the user decides
    )


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
"""Steps after which nothing is to come of a batch any more."""

AT_PROVIDER = frozenset({BatchStep.SUBMITTED, BatchStep.TERMINAL, BatchStep.DOWNLOADED})
"""Steps at which it exists at the provider and has not been ingested."""


def may_follow(before: BatchStep, after: BatchStep) -> bool:
    """Whether a batch may go from one step to another."""
    return after in _NEXT.get(before, "").split()


class TaskState(IntEnum):
    """The state of a task of a batch stage. WAITING | ENROLLED → READY → SETTLED."""

    WAITING = 0  # an equal task is in a batch: it waits for its answer
    ENROLLED = 1  # in a batch that is not ingested
    READY = 2  # something came of it, and its row has not been walked since
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it is stored: the columns of the table, in their order. Times in seconds since
    1970, `held_…` is what is set aside for it. `state` is a step of its life (`BatchStep`),
    `status` what its provider last said, in the words that are the same for all of them, and
    `word` its own. `outputs`: the downloaded files with size and sha256. `primer` is not None if an
    older version wrote its requests for a provider's cache."""

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
    submitted_at: Moment | None
    seen_at: Moment | None
    moved_at: float | None
    ended_at: float | None
    expires_at: Moment | None
    results_until: Moment | None
    ingested_at: float | None
    cleaned_at: float | None
    cancel_at: float | None
    then_do: str | None
    try_at: Moment | None
    deadline: Moment | None
    outputs: list[tuple[str, int, str]] | None
    counts: dict[str, int] | None
    cost: float | None
    foreign_ids: list[str] | None
    note: str | None
    primer: int | None

    @property
    def open(self) -> bool:
        """Whether anything is to come of it."""
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
    """What came of a task in a batch. `then_do` None: a result, or failed with `error`; else what
    is next: `batch`, `repair`, `fallback`, `sync`, or `run` (nothing, before the user runs the
    workflow again). `round`, `position` and `repairs` say what was asked so far. `enrolled`: it
    was in the batch; else it waited for an equal one. `refused_with`: bytes of the batch, where
    that was refused for what one of its tasks holds; else None."""

    row_key: int
    stage: int
    replica: int
    fingerprint: bytes
    round: int
    position: int
    repairs: int
    then_do: str | None
    enrolled: bool
    refused_with: int | None
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


class LaneLoad(NamedTuple):
    """What is under way in a lane: tokens and batches that were submitted and have not ended,
    batches `of_account` in all its lanes, and how many tokens the account was seen to take at most
    (None: it did not refuse of late)."""

    tokens: int
    batches: int
    of_account: int
    cap: int | None


class LiveTask(NamedTuple):
    """A task in a batch that has not ended, by its fingerprint and workflow."""

    fingerprint: bytes
    batch: int
    place: int


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
    lambda found: nested(
        (one.row_key, (one.stage, one.replica, one.fingerprint), one) for one in found
    ),
)


async def intents(database: Database) -> tuple[set[str], set[str]]:
    """The names of all batches whose files on this machine are still needed, and of all that there
    are."""
    found = await select(database, "intents", tuple[str, bool])
    return {intent for intent, needed in found if needed}, {intent for intent, _ in found}


# Batches for those who look. What a provider said of one is kept; nothing else is changed.


@dataclass(frozen=True, slots=True)
class BatchView(BatchRecord):
    """A batch with its workflow and its stage's name. It is the `number`th, from 1, `among` those
    that one invocation made for the stage, whose settings follow, in seconds; None where they are
    not known."""

    workflow: str
    stage_name: str
    number: int
    among: int
    stuck_after: float | None
    poll_interval: float | None


class OpenBatches(NamedTuple):
    """A run's open batches: `waiting`: not at the provider; `ready`: ended there; `done`, `failed`
    as last seen."""

    batches: int
    waiting: int
    requests: int
    done: int
    failed: int
    ready: int


@dataclass(frozen=True, slots=True)
class LaneTimes(Report):
    """How long a lane's batches took from submission to end: half up to `p50_s`, 95 % up to
    `p95_s`."""

    batches: int
    p50_s: float
    p95_s: float


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
    """The open batches of a stage in the same state (`status` as `agac batch status` says it), and
    their requests."""

    stage: str
    status: str
    batches: int
    requests: int
    done: int
    failed: int


class RowTask(NamedTuple):
    """A task of a row that is in a batch of a run; or `waits` for an equal one that is. `round`:
    how often it was put into one; `provider_id` and `submitted_at` are None of a batch that the
    provider has not got."""

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


class Awaited(NamedTuple):
    """A batch of another run that is to answer what a run asks, too."""

    batch: int
    run: int
    provider_id: str | None


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
    """The quantiles of durations, which come in order: the smallest value that so many of them do
    not exceed."""
    if not seconds:
        return None
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return LaneTimes(len(seconds), p50, p95)


lane_times: Reads[[str, str, str], LaneTimes | None] = reads("batches_lane_times", float, times_of)
"""By provider, account and model; None while no batch of the lane has ended."""


async def key_accepted(database: Database, provider: str, account: str) -> bool:
    """Whether a call with this key was ever answered."""
    return bool(await _key_accepted(database, provider, account))


# For a shell that completes a word: no engine, no event loop, no migration.

COMPLETION_WAIT_S = 0.2


def at_a_glance(path: Path, statement: str, record: type[T], *values: Any) -> list[T]:
    """What a statement finds; empty when the database cannot say."""
    if not path.is_file():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=COMPLETION_WAIT_S)) as connection:
            return fetch(connection, statement, record, *values)
    except sqlite3.Error:
        return []
