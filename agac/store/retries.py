"""Rows of a run that a retry chooses: those that failed in some way, or named ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.rows import EXPORT_RANGE, StoredRow
from agac.store.sql import sql


class Choice(Protocol):
    """What is chosen: ids (none: all), the stage and the kind of error of failed rows; `from_stage`: done rows too.

    Rows that invocations from `since` on left open are chosen as well: the same retry had opened them.
    """

    @property
    def rows(self) -> tuple[RowId, ...]: ...
    @property
    def stage(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def from_stage(self) -> str | None: ...
    @property
    def since(self) -> float: ...


class ChosenRow(NamedTuple):
    """A stored row with its snapshot."""

    key: int
    id: RowId
    occurrence: int
    ordinal: int
    hash: bytes
    data: str
    state: int
    error_type: str | None
    error_message: str | None
    error_stage: str | None
    result_id: int | None


async def first_event_since(database: Database, run: int, since: float) -> int:
    """The number of a run's first invocation from then on; 0 when there is none."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("first_event_since"), (run, since))
    return int(row[0] or 0)


async def chosen_rows(database: Database, run: int, choice: Choice) -> AsyncIterator[list[ChosenRow]]:
    """The chosen rows in the order of the input, some hundred at a time. Unusable ones are not chosen."""
    after = 0
    while True:
        values = {**_values(run, choice), "after": after, "limit": EXPORT_RANGE}
        with translated(database.path):
            found = await database.reader.execute_fetchall(sql("rows_chosen"), values)
        rows = [ChosenRow(*row) for row in found]
        chosen = [row for row in rows if not choice.rows or row.id in choice.rows]
        if chosen:
            yield chosen
        if len(rows) < EXPORT_RANGE:
            return
        after = rows[-1].ordinal


class RowOfRetry(NamedTuple):
    """A stored row with its snapshot, and whether it is `chosen`."""

    old: StoredRow
    data: str
    chosen: bool


async def rows_of_retry(database: Database, run: int, choice: Choice) -> AsyncIterator[list[RowOfRetry]]:
    """All usable rows of the input in its order, some hundred at a time: the chosen ones, and the others."""
    after = 0
    while True:
        values = {**_values(run, choice), "after": after, "limit": EXPORT_RANGE}
        with translated(database.path):
            found = list(await database.reader.execute_fetchall(sql("rows_of_retry"), values))
        rows = [RowOfRetry(StoredRow(*row[:-2]), row[-2], bool(row[-1])) for row in found]
        if rows:
            yield [row._replace(chosen=row.chosen and _is_named(row.old.id, choice)) for row in rows]
        if len(rows) < EXPORT_RANGE:
            return
        after = rows[-1].old.ordinal or 0


def _is_named(row_id: RowId, choice: Choice) -> bool:
    return not choice.rows or row_id in choice.rows


async def chosen_counts(database: Database, run: int, choice: Choice) -> list[tuple[str | None, str | None, int]]:
    """How many rows are chosen: (stage where they failed, kind of error, rows); (None, None, n) are done ones,
    ("", None, n) open ones."""
    with translated(database.path):
        if choice.rows:
            found: dict[tuple[str | None, str | None], int] = {}
            for row_id in choice.rows:
                values = {**_values(run, choice), "id": row_id}
                for stage, error, count in await database.reader.execute_fetchall(sql("row_chosen_count"), values):
                    found[stage, error] = found.get((stage, error), 0) + count
            return [(stage, error, count) for (stage, error), count in found.items()]
        rows = await database.reader.execute_fetchall(sql("rows_chosen_count"), _values(run, choice))
    return [(stage, error, count) for stage, error, count in rows]


def _values(run: int, choice: Choice) -> dict[str, object]:
    return {
        "run": run,
        "done_too": choice.from_stage is not None and choice.stage is None and choice.error is None,
        "stage": choice.stage,
        "error": choice.error,
        "since": choice.since,
    }
