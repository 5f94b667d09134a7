"""Stored rows: reading them by position and by id, and the tasks that they already went through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Outcome, RowId
from agac.store.db import Database, translated
from agac.store.sql import padded, sql, sql_many


class State(IntEnum):
    """Where a row of a run stands. PENDING → DONE | FAILED; changed or tried again: PENDING once more."""

    PENDING = 0
    DONE = 1
    FAILED = 2
    DROPPED = 3  # left out on purpose: a repeated id under `on_duplicate_id: first` or `last`
    FILTERED = 4  # a guard made it leave
    SKIPPED = 5  # it went through, but its guards left it without a result
    GONE = 6  # a row that a stage made, and no longer makes


OUTCOME_OF = {
    State.DONE: Outcome.DONE,
    State.FAILED: Outcome.FAILED,
    State.DROPPED: Outcome.DROPPED,
    State.FILTERED: Outcome.DROPPED,
    State.SKIPPED: Outcome.SKIPPED,
}
"""Under which outcome rows are counted that reached their end."""

WALKED = frozenset({State.DONE, State.FILTERED, State.SKIPPED})
"""Ends that a row comes to by going through its stages without a failure."""


class StoredRow(NamedTuple):
    """A row as it was stored. `error_stage` is None for an error of the input itself."""

    key: int
    id: RowId
    occurrence: int
    ordinal: int | None
    hash: bytes
    state: int
    error_type: str | None
    error_message: str | None
    error_stage: str | None
    seen: int
    result_id: int | None


class PriorTask(NamedTuple):
    """What became of a task earlier in this run. `agreement`: how many of its replicas agreed, as `2/3`."""

    row_key: int
    stage: int
    fingerprint: bytes | None
    outcome: Outcome
    result_id: int | None
    error: RowError | None
    failures: int
    agreement: str | None = None


class ExportRow(NamedTuple):
    """One row as an export needs it; `data` and `value` are JSON texts. `form`: the fields that the row had in the end,
    where they are not its own alone. `made`: by a stage. `ordinal` is that of the row of the input that it descends
    from; None: a group."""

    ordinal: int | None
    id: RowId
    state: int
    data: str
    value: str | None
    error_type: str | None
    error_message: str | None
    key: int
    form: dict[str, JSONValue] | None = None
    made: bool = False


async def rows_at(database: Database, run: int, first: int, last: int) -> list[StoredRow]:
    """The stored rows at the positions `first` to `last`."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("rows_at"), (run, first, last))
    return list(map(StoredRow._make, found))


async def rows_by_id(database: Database, run: int, ids: Sequence[RowId]) -> dict[RowId, list[StoredRow]]:
    """Every repetition of each of these ids, by id."""
    values = padded(list(ids))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("rows_by_id", len(values)), (run, *values))
    by_id: dict[RowId, list[StoredRow]] = {}
    for row in found:
        by_id.setdefault(row[1], []).append(StoredRow(*row))
    return by_id


async def rows_of_id(database: Database, run: int, row_id: RowId, first: int, last: int) -> list[StoredRow]:
    """The repetitions `first` to `last` of one id, and the row that has it."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("rows_of_id"), (run, row_id, first, last))
    return list(map(StoredRow._make, found))


async def prior_tasks(database: Database, keys: Sequence[int]) -> dict[int, dict[int, PriorTask]]:
    """What became of the tasks of these rows: row key → stage → task."""
    values = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("tasks_of_rows", len(values)), values)
    tasks: dict[int, dict[int, PriorTask]] = {}
    for row_key, stage, fingerprint, outcome, result_id, error_type, error_message, failures, agreement in found:
        error = RowError(ErrorType(error_type), error_message) if error_type else None
        task = PriorTask(row_key, stage, fingerprint, Outcome(outcome), result_id, error, failures, agreement)
        tasks.setdefault(row_key, {})[stage] = task
    return tasks


async def aged_rows(database: Database, keys: Sequence[int], cutoffs: Mapping[int, float]) -> set[int]:
    """Which of these rows have a result that is too old; `cutoffs` are seconds since 1970, by stage."""
    found: set[int] = set()
    values = padded(list(keys))
    with translated(database.path):
        for stage, cutoff in cutoffs.items():
            statement = sql_many("rows_aged", len(values))
            found |= {key for (key,) in await database.reader.execute_fetchall(statement, (stage, cutoff, *values))}
    return found


async def last_number(database: Database, run: int) -> int:
    """The last row number that was ever an id in a run whose ids are row numbers; 0 when there is none."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("number_last"), (run,))
    return int(row[0] or 0)


class ErrorExample(NamedTuple):
    """The first row that failed in a certain way, and how many did."""

    error_type: str
    row_id: RowId
    ordinal: int | None
    message: str
    stage: str | None
    rows: int


async def error_examples(database: Database, run: int) -> list[ErrorExample]:
    """The first failed row of each kind of error."""
    with translated(database.path):
        return [ErrorExample(*row) for row in await database.reader.execute_fetchall(sql("row_examples"), (run,))]


EXPORT_RANGE = 512
"""Rows an export reads at once: no long snapshot, so that the write-ahead log can be emptied meanwhile."""


async def export_rows(database: Database, run: int) -> AsyncIterator[list[ExportRow]]:
    """All rows of the input in order, some hundred at a time."""
    async for found in _ranges(database, "rows_export", run):
        yield [ExportRow(*row) for row in found]


async def _ranges(database: Database, statement: str, run: int) -> AsyncIterator[list[Any]]:
    """What a statement finds by (run, position after which, limit), some hundred at a time, never none. Its first
    column is the position."""
    after = 0
    while True:
        with translated(database.path):
            found = list(await database.reader.execute_fetchall(sql(statement), (run, after, EXPORT_RANGE)))
        if found:
            yield found
        if len(found) < EXPORT_RANGE:
            return
        after = found[-1][0]


async def why_filtered(database: Database, keys: Sequence[int]) -> dict[int, tuple[int, str]]:
    """The position of the stage that made each of these rows leave, and its note: JSON, of a guard with `when` and
    `values`."""
    wanted = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("rows_filtered", len(wanted)), wanted)
    return {key: (stage, note) for key, stage, note in found}


class StageResult(NamedTuple):
    """What a stage gave for a row: JSON, None where it keeps nothing or failed; `skipped`: its guard said no."""

    value: str | None
    skipped: bool


async def results_of_rows(database: Database, keys: Sequence[int]) -> dict[tuple[int, int], StageResult]:
    """What came of these rows' stages, by the row's key and the stage's position."""
    wanted = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("results_of_rows", len(wanted)), wanted)
    return {(key, stage): StageResult(value, bool(skipped)) for key, stage, value, skipped in found}
