"""What was asked and answered: rows with their tasks and attempts, and the invocations of a run, for those who look."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, select, select_one
from agac.store.rows import EXPORT_RANGE, made_counts
from agac.store.runs import InvocationRecord


class RunLine(NamedTuple):
    """What tells two runs of a workflow apart. `last_at` is when an invocation of it last began or ended; `partial`
    whether it takes only a selection of the rows."""

    id: int
    workflow: str
    definition_hash: bytes
    fresh_since: float | None
    last_at: float
    partial: bool


class RowRecord(NamedTuple):
    """A stored row; `data` is its snapshot, JSON; `ordinal` is None once it left the input. Of one that a stage made
    `origin` is the position of the stage, `parent_key` the row of which it was made (None: it is a group), and `place`
    is from 0 among the children of that; below 0 of a part of a group."""

    key: int
    id: RowId
    occurrence: int
    ordinal: int | None
    data: str
    state: int
    error_stage: str | None
    error_type: str | None
    error_message: str | None
    origin: int | None = None
    parent_key: int | None = None
    place: int | None = None


class TaskRecord(NamedTuple):
    """What became of a task, with its result (`value`: JSON) and the endpoint that gave it, where there is one. `note`
    says why the stage was passed over: JSON with `when` and `values`.
    """

    stage: int
    fingerprint: bytes | None
    outcome: str
    error_type: str | None
    error_message: str | None
    failures: int
    settled_at: float
    result_id: int | None
    value: str | None
    how: str | None
    created_at: float | None
    provider: str | None
    base_url: str | None
    model: str | None
    simulated: bool | None
    note: str | None
    replica: int = 0


class AttemptRecord(NamedTuple):
    """One call. Times in seconds, `cost` in USD; `reply` as it is stored: see `reply_text`. `service_tier` is the one
    that served it, as the provider said; `ttft` and `time_to_response` are those of streamed calls."""

    stage: int
    invocation: int
    number: int
    fingerprint: bytes
    purpose: str
    started_at: float
    duration: float
    status: int | None
    error_type: str | None
    error_message: str | None
    ambiguous: bool
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost: float | None
    reply: str | bytes | None
    provider: str
    base_url: str
    model: str
    simulated: bool
    service_tier: str | None
    ttft: float | None
    time_to_response: float | None
    replica: int = 0


class Origin(NamedTuple):
    """The run and the row for which a result was asked."""

    run: int
    row_id: RowId
    row_key: int


class StoredTask(NamedTuple):
    """A row of a run with what became of one of its tasks; the task's columns are None where there is none.

    `value`, `how`, `answered_at`, `provider`, `model` are the result's; times in seconds since 1970.
    """

    run: int
    row_key: int
    data: str
    fingerprint: bytes | None
    outcome: str | None
    error_type: str | None
    error_message: str | None
    settled_at: float | None
    how: str | None
    answered_at: float | None
    provider: str | None
    model: str | None


class PastAttempts(NamedTuple):
    """The calls of a stage with one request in one invocation. `at`: the last one, in seconds since 1970; `answered`:
    one of them had a valid answer; `retry_from`: the invocation was a retry that ran this stage again."""

    stage: int
    fingerprint: bytes
    at: float
    answered: bool
    retry_from: str | None
    replica: int = 0


async def run_lines(database: Database, workflow: str | None = None) -> list[RunLine]:
    """The runs of a workflow, or of all, the one last worked on first."""
    return await select(database, "run_lines", RunLine, workflow=workflow)


async def workflows_run(database: Database) -> list[str]:
    """The names of the workflows that have runs."""
    return await select(database, "workflows_run", str)


async def definitions(database: Database, hashes: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
    """Resolved workflows by their hashes."""
    return dict(await select(database, "definitions_read", tuple[bytes, dict[str, Any]], list(hashes)))


async def invocations(database: Database, run: int, most: int) -> list[InvocationRecord]:
    """The last invocations of a run, the newest first."""
    return await select(database, "invocations_read", InvocationRecord, run, most)


async def rows_with_ids(database: Database, run: int, ids: Sequence[RowId]) -> list[RowRecord]:
    """Every row of a run that has one of these ids, repetitions too, in the order of the input, and then those that
    stages made."""
    found = await select(database, "rows_look", RowRecord, run, list(ids))
    return sorted(found, key=lambda row: (row.ordinal is None, row.ordinal, row.key))


class Below(NamedTuple):
    """Some rows that one stage made of a row: children, or the parts of a large group. `states`: how many are in which;
    `ids` are the first ones."""

    origin: int
    parts: bool
    states: dict[int, int]
    ids: list[RowId]


async def rows_above(database: Database, key: int) -> list[RowRecord]:
    """The row of which a row was made, and of which that was made, up to one of the input or a group."""
    found: list[RowRecord] = []
    while above := await select_one(database, "row_above", RowRecord, found[-1].key if found else key):
        found.append(above)
    return found


async def rows_below(database: Database, key: int, most: int) -> list[Below]:
    """What stages made of a row, with so many ids of each stage at most."""
    states: dict[tuple[int, bool], dict[int, int]] = {}
    for origin, part, state, count in await select(database, "rows_below", tuple[int, bool, int, int], key):
        states.setdefault((origin, part), {})[state] = count
    return [
        Below(origin, part, found, [name for (name,) in await select(database, "ids_below", tuple[RowId], *wanted)])
        for (origin, part), found in states.items()
        for wanted in [(key, origin, part, most)]
    ]


async def parts_of(database: Database, group: int) -> list[RowRecord]:
    """The parts into which a large group is cut."""
    return await select(database, "parts_look", RowRecord, group)


async def member_ids(database: Database, group: int, most: int, *, failed: bool) -> list[RowId]:
    """The first members of a group by their ids: those that failed before they came to it, or the others."""
    return [row_id for (row_id,) in await select(database, "member_ids", tuple[RowId], group, failed, most)]


async def groups_of_row(database: Database, key: int) -> list[tuple[int, RowId]]:
    """The groups that a row is in: the position of the stage that made each, and its id."""
    return [(origin, name) for _, origin, name in await select(database, "groups_of", tuple[int, int, RowId], key)]


async def ids_from(database: Database, run: int, ordinal: int, most: int) -> list[RowId]:
    """The ids of the rows from a position of the input on."""
    return [row_id for (row_id,) in await select(database, "ids_from", tuple[RowId], run, ordinal, most)]


async def tasks_of_row(database: Database, key: int) -> list[TaskRecord]:
    """A row's tasks in the order of the stages, each before its replicas (`replica` from 1)."""
    return await select(database, "tasks_look", TaskRecord, key)


async def attempts_of_row(database: Database, key: int) -> list[AttemptRecord]:
    """Every call that was made for a row, in their order."""
    return await select(database, "attempts_look", AttemptRecord, key)


async def origins(database: Database, results: Sequence[int]) -> dict[int, Origin]:
    """Where results were asked: result → run and row. Reads all tasks, about half a second for a million rows.

    A result is missing here when its row changed since or is no longer stored.
    """
    if not results:
        return {}
    found = await select(database, "results_asked", tuple[int, int, RowId, int], list(results))
    return {result: Origin(run, row_id, key) for result, run, row_id, key in found}


async def stored_task(database: Database, run: int, row_id: RowId, stage: int) -> StoredTask | None:
    """A row's task in a run; None when the run has no such row."""
    return await select_one(database, "task_of_row", StoredTask, stage, run, row_id)


async def runs_before(database: Database, run: int, row_id: RowId) -> list[int]:
    """Earlier runs of the same workflow that have a row with this id, the newest first."""
    return await select(database, "runs_with_row_before", int, run, run, row_id)


async def past_attempts(database: Database, row_key: int) -> list[PastAttempts]:
    """Every request that a row's stages sent, once for each invocation, in the order of time."""
    return await select(database, "attempts_by_request", PastAttempts, row_key)


def reply_bytes(stored: str | bytes | None) -> bytes | None:
    """A raw reply as it came; None when none was kept."""
    if stored is None:
        return None
    return stored.encode() if isinstance(stored, str) else zlib.decompress(stored)


def reply_text(stored: str | bytes | None) -> str | None:
    """A raw reply as text; bytes that are no UTF-8 are shown as escapes. None when none was kept."""
    if stored is None or isinstance(stored, str):
        return stored
    return zlib.decompress(stored).decode("utf-8", "backslashreplace")


# What calls took: read row by row for telemetry.jsonl, and as histograms for summaries.

Timings = dict[tuple[str, str], dict[int, int]]
"""Histograms by stage and measure: bucket → count."""


class CallRecord(NamedTuple):
    """A call with the row that it was made for. Times in seconds, `cost` in USD. `ordinal` is the position in the input
    of that row, or of the one that it descends from; None: a group, or a part of one.

    `event` is the invocation that made it, `endpoint` the key of who was asked.
    """

    row_key: int
    ordinal: int | None
    row_id: RowId
    state: int
    stage: int
    event: int
    number: int
    purpose: str
    endpoint: int
    status: int | None
    error_type: str | None
    started_at: float
    duration: float
    ttft: float | None
    time_to_response: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost: float | None
    service_tier: str | None
    replica: int = 0

    @property
    def took(self) -> tuple[float | None, ...]:
        """Input, cached, output and reasoning tokens, and the cost."""
        return self.input_tokens, self.cached_tokens, self.output_tokens, self.reasoning_tokens, self.cost


class EndpointRecord(NamedTuple):
    """Who was asked."""

    id: int
    provider: str
    model: str
    simulated: bool


async def calls_by_row(database: Database, run: int) -> AsyncIterator[list[CallRecord]]:
    """Every call for the rows that stand in the input, in their order, then for those that stages made, stage by stage,
    in the order in which they were made: those of some hundred rows at a time."""
    async for calls in _calls(database, "telemetry_upto", "telemetry_attempts", {"run": run}):
        yield calls
    for origin in sorted({count.origin for count in await made_counts(database, run)}):
        async for calls in _calls(database, "telemetry_made_upto", "telemetry_made", {"run": run, "origin": origin}):
            yield calls


async def _calls(database: Database, end: str, statement: str, rows: dict[str, int]) -> AsyncIterator[list[CallRecord]]:
    """The calls for `rows`, range by range; `end` is the statement that says where one ends."""
    after = 0
    while (upto := await select_one(database, end, int, *rows.values(), after, EXPORT_RANGE)) is not None:
        yield await select(database, statement, CallRecord, **rows, after=after, upto=upto)
        after = upto


async def agreements(database: Database, keys: Iterable[int]) -> dict[int, dict[int, str]]:
    """How many replicas agreed in the votes of these rows, by row and the stage's position: `2/3`, say."""
    found: dict[int, dict[int, str]] = {}
    for key, stage, agreement in await select(database, "agreements", tuple[int, int, str], list(keys)):
        found.setdefault(key, {})[stage] = agreement
    return found


async def endpoints(database: Database) -> dict[int, EndpointRecord]:
    """Everyone who was ever asked, by key."""
    return {one.id: one for one in await select(database, "endpoints_read", EndpointRecord)}


async def timings(database: Database, run: int) -> Timings:
    """The histograms of how long a run's calls took."""
    histograms: Timings = {}
    for stage, measure, bucket, count in await select(database, "timings", tuple[str, str, int, int], run):
        histograms.setdefault((stage, measure), {})[bucket] = count
    return histograms
