"""Runs, their invocations and their roll-ups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from agac.store.db import Database, Reads, by, first, reads, select
from agac.store.write_batch import CounterDelta

KILLED = 137  # the exit code that is noted for an invocation that could not say one: 128 + SIGKILL

UNWRITTEN = [-1, -1]
"""In `exported_files` a table that could not be written: no file ever is so, so that the next run
tries again."""


class InvocationRecord(NamedTuple):
    """One call of `agac run`."""

    id: int
    at: float
    ended_at: float | None
    """When it ended; None while it runs, and forever if it was killed."""
    exit_code: int | None
    body: dict[str, Any]


class LastInvocation(NamedTuple):
    """An invocation with the run that it was about."""

    run: int
    invocation: InvocationRecord


class RunRecord(NamedTuple):
    """A stored run. Times are in seconds since 1970."""

    id: int
    workflow: str
    selection: dict[str, Any]
    output_dir: str
    include_input: bool
    outputs: dict[str, Any]
    """What is written besides the JSON files, and how."""
    fresh_since: float | None
    created_at: float
    read_at: float | None
    """When its input was read to its end; None if that has not happened."""
    finished_at: float | None
    revision: int
    exported_revision: int | None
    """The revision that the output files show."""
    exported_files: dict[str, list[int]]
    """The output files at that revision: name → [bytes, mtime in ns]."""
    invocation: InvocationRecord | None


@dataclass(slots=True)
class Count(CounterDelta):
    """One roll-up: how many tasks (or rows, or calls) ended in this way, and what they took."""

    stage: str = ""
    outcome: str = ""
    error_type: str = ""
    model: str = ""


class KeptEstimate(NamedTuple):
    """What tasks of a stage of a run were expected to take, by the store as it was before them."""

    stage: str
    lane: str
    tasks: int
    """The number of these tasks."""
    characters: float | None
    """The characters of a request on average."""
    usd: float | None
    """The dollars of all of them."""


class Notification(NamedTuple):
    """A message about a run to one target, of which so many attempts were made, and why the last
    one failed."""

    id: str
    body: dict[str, Any]
    target: dict[str, Any]
    attempts: int = 0
    error: str | None = None


class WrittenFiles(NamedTuple):
    """The files that a run left in its output folder."""

    run: int
    shown: bool
    """True if no run wrote there since."""
    files: dict[str, list[int]]
    """The files as `RunRecord.exported_files` has them."""


# By a run's number, if no other argument is named.


class GivenCall(NamedTuple):
    """A call that a worker had when the process died that waited for it."""

    event: int
    number: int
    chunk: str
    run: int
    stage: int
    row: int
    replica: int
    fingerprint: bytes
    mark: bytes
    at: float


read_run: Reads[[int], RunRecord | None] = reads("run_read", RunRecord, first)
# of one that is there
run_record: Reads[[int], RunRecord] = reads("run_read", RunRecord, itemgetter(0))
definition_of: Reads[[int], dict[str, Any]] = reads("definition_body", dict[str, Any], first)
run_settings_of: Reads[[int], dict[str, Any] | None] = reads(
    "run_manner_read", dict[str, Any], first
)
control_known: Reads[[str], int | None] = reads("control_read", int, first)
"""How much of a workflow's control state is known here; None: all of its runs are of this store."""
run_duration: Reads[[int], float] = reads("run_duration", float, first)  # seconds
given_calls: Reads[[str], list[GivenCall]] = reads("chunk_calls", GivenCall)  # workflow
counters: Reads[[int], list[Count]] = reads("counters", Count)
estimates: Reads[[int], dict[str, KeptEstimate]] = reads("estimates", KeptEstimate, by("stage"))
run_serving: Reads[[int], list[dict[str, Any]]] = reads("run_serving", dict[str, Any])
short_records: Reads[[int], int | None] = reads("run_short", int, first)
was_read: Reads[[int], bool] = reads("run_was_read", int, bool)
lane_lengths: Reads[[str], list[tuple[float, float]]] = reads("lane_lengths", tuple[float, float])
# workflow, hash, selection
newest_run: Reads[[str, bytes, str], int | None] = reads("run_newest", int, first)
superseded_by: Reads[[int], int | None] = reads("run_superseded_by", int, first)
run_ids: Reads[[str | None], list[int]] = reads("run_lines", int)  # of a workflow, or all
last_run_number: Reads[[], int] = reads("run_number_last", int, first)
store_accepted: Reads[[str], bool] = reads("store_accepted", int, lambda counts: counts[0] > 0)
last_invocation: Reads[[str], LastInvocation | None] = reads(
    "invocation_last", LastInvocation, first
)
files_written: Reads[[str], list[WrittenFiles]] = reads("run_files", WrittenFiles)
# seconds since 1970
due_notifications: Reads[[float], list[Notification]] = reads("notifications_due", Notification)
# how many messages, when the next one is due, and an error
OutboxLeft = tuple[int, float | None, str | None]
notifications_left: Reads[[], OutboxLeft] = reads("notifications_left", OutboxLeft, itemgetter(0))
# a workflow, a target as it is stored, and how many messages wait for it
WaitingMessages = tuple[str, str, int]
waiting_messages: Reads[[], list[WaitingMessages]] = reads("notification_targets", WaitingMessages)
# run, but one event
lost_calls: Reads[[int, int], int] = reads("lost_calls", int, lambda counts: counts[0] or 0)


async def waiting_for(database: Database, event: int) -> dict[str, str] | None:
    """Returns why the last call of an invocation brought no answer; None if it did, or if others
    made many since."""
    for unanswered, kind, message in await select(
        database, "call_last", tuple[bool, str, str], event
    ):
        if unanswered:
            return {"type": kind, "message": message}
        return None
    return None


def row_counts(counts: Iterable[Count]) -> dict[str, int]:
    """Returns the number of rows by outcome; `total` are all rows of the input, `open` those
    without an outcome."""
    rows = dict.fromkeys(("total", "done", "skipped", "failed", "dropped"), 0)
    for count in counts:
        if count.stage == "":
            rows["total" if count.outcome == "present" else count.outcome] += count.tasks
    with_outcome = sum(rows.values()) - rows["total"]
    return rows | {"open": rows["total"] - with_outcome}
