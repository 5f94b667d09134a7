"""What was asked and answered: rows with their tasks and attempts, and the invocations of a run, for those who look."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.runs import Invocation
from agac.store.sql import padded, sql, sql_many


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


async def run_lines(database: Database, workflow: str | None = None) -> list[RunLine]:
    """The runs of a workflow, or of all, the one last worked on first."""
    values = {"workflow": workflow}
    return [RunLine(*row) for row in await _all(database, sql("run_lines"), values)]


async def workflows_run(database: Database) -> list[str]:
    """The names of the workflows that have runs."""
    return [name for (name,) in await _all(database, sql("workflows_run"))]


async def definitions(database: Database, hashes: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
    """Resolved workflows by their hashes."""
    values = padded(list(hashes))
    found = await _all(database, sql_many("definitions_read", len(values)), values)
    return {key: json.loads(body) for key, body in found}


async def invocations(database: Database, run: int, most: int) -> list[Invocation]:
    """The last invocations of a run, the newest first."""
    found = await _all(database, sql("invocations_read"), (run, most))
    return [Invocation(event, at, ended_at, code, json.loads(body)) for event, at, ended_at, code, body in found]


async def rows_with_ids(database: Database, run: int, ids: Sequence[RowId]) -> list[RowRecord]:
    """Every row of a run that has one of these ids, repetitions too, in the order of the input, and then those that
    stages made."""
    values = padded(list(ids))
    found = await _all(database, sql_many("rows_look", len(values)), (run, *values))
    return sorted((RowRecord(*row) for row in found), key=lambda row: (row.ordinal is None, row.ordinal, row.key))


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
    while above := await _all(database, sql("row_above"), (found[-1].key if found else key,)):
        found.append(RowRecord(*above[0]))
    return found


async def rows_below(database: Database, key: int, most: int) -> list[Below]:
    """What stages made of a row, with so many ids of each stage at most."""
    states: dict[tuple[int, bool], dict[int, int]] = {}
    for origin, part, state, count in await _all(database, sql("rows_below"), (key,)):
        states.setdefault((origin, bool(part)), {})[state] = count
    return [
        Below(origin, part, found, [i for (i,) in await _all(database, sql("ids_below"), (key, origin, part, most))])
        for (origin, part), found in states.items()
    ]


async def parts_of(database: Database, group: int) -> list[RowRecord]:
    """The parts into which a large group is cut."""
    return [RowRecord(*row) for row in await _all(database, sql("parts_look"), (group,))]


async def member_ids(database: Database, group: int, most: int, *, failed: bool) -> list[RowId]:
    """The first members of a group by their ids: those that failed before they came to it, or the others."""
    return [row_id for (row_id,) in await _all(database, sql("member_ids"), (group, failed, most))]


async def groups_of_row(database: Database, key: int) -> list[tuple[int, RowId]]:
    """The groups that a row is in: the position of the stage that made each, and its id."""
    return [(origin, row_id) for _, origin, row_id in await _all(database, sql("groups_of"), (key,))]


async def ids_from(database: Database, run: int, ordinal: int, most: int) -> list[RowId]:
    """The ids of the rows from a position of the input on."""
    return [row_id for (row_id,) in await _all(database, sql("ids_from"), (run, ordinal, most))]


async def tasks_of_row(database: Database, key: int) -> list[TaskRecord]:
    """A row's tasks in the order of the stages, each before its replicas (`replica` from 1)."""
    return [TaskRecord(*row) for row in await _all(database, sql("tasks_look"), (key,))]


async def attempts_of_row(database: Database, key: int) -> list[AttemptRecord]:
    """Every call that was made for a row, in their order."""
    return [AttemptRecord(*row) for row in await _all(database, sql("attempts_look"), (key,))]


async def origins(database: Database, results: Sequence[int]) -> dict[int, Origin]:
    """Where results were asked: result → run and row. Reads all tasks, about half a second for a million rows.

    A result is missing here when its row changed since or is no longer stored.
    """
    if not results:
        return {}
    values = padded(list(results))
    found = await _all(database, sql_many("results_asked", len(values)), values)
    return {result: Origin(run, row_id, key) for result, run, row_id, key in found}


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


async def _all(database: Database, statement: str, values: Any = ()) -> list[Any]:
    with translated(database.path):
        return list(await database.reader.execute_fetchall(statement, values))
