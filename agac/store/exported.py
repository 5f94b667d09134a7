"""Rows that stages made, read for outputs: groups, children, and those that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.made import root_ordinals
from agac.store.rows import EXPORT_RANGE, ErrorExample, ExportRow, State, export_rows
from agac.store.sql import padded, sql, sql_many


async def group_rows(database: Database, run: int, origin: int) -> AsyncIterator[list[ExportRow]]:
    """All groups that a stage made, by their ids, some hundred at a time."""
    async for groups in _by_id(database, "groups_export", run, origin):
        yield groups


async def _by_id(database: Database, statement: str, run: int, origin: int) -> AsyncIterator[list[ExportRow]]:
    """Rows that a stage made, as a statement finds them by (run, id after which, occurrence, limit); never none."""
    after: RowId = -(1 << 63)
    while True:
        with translated(database.path):
            values = (run, after, -1 - origin, EXPORT_RANGE)
            rows = await database.reader.execute_fetchall(sql(statement), values)
        found = [ExportRow(*row)._replace(made=True) for row in rows]
        if found:
            yield found
        if len(found) < EXPORT_RANGE:
            return
        after = found[-1].id


async def child_counts(database: Database, keys: Sequence[int]) -> dict[tuple[int, int], int]:
    """How many children stages made of these rows, by the row's key and the stage's position."""
    wanted = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("child_counts", len(wanted)), wanted)
    return {(key, origin): count for key, origin, count in found}


async def children_export(
    database: Database, keys: Sequence[int], *, origin: int, after: int = -1, limit: int = -1
) -> list[tuple[int, int, ExportRow]]:
    """The children that a stage made of these rows, as (key of the parent, place, child), in their order; after a
    place, so many at most."""
    wanted = padded(list(keys))
    with translated(database.path):
        values = (origin, after, *wanted, limit)
        found = await database.reader.execute_fetchall(sql_many("children_export", len(wanted)), values)
    return [(row[0], row[1], ExportRow(*row[2:])._replace(made=True)) for row in found]


async def failed_rows(database: Database, run: int, origin: int | None) -> AsyncIterator[list[ExportRow]]:
    """The failed rows of the input in order, or those among the rows that a stage made by their ids, some hundred at a
    time."""
    if origin is None:
        async for some in export_rows(database, run):
            yield [row for row in some if row.state == State.FAILED]
        return
    async for found in _by_id(database, "made_failed", run, origin):
        roots = await root_ordinals(database, [row.key for row in found])
        yield [row._replace(ordinal=roots[row.key]) for row in found]


async def made_examples(database: Database, run: int) -> list[ErrorExample]:
    """The first failed row of each kind of error among those that stages made."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("made_examples"), (run,)))
    roots = await root_ordinals(database, [row[-1] for row in found])
    return [ErrorExample(*row[:-1])._replace(ordinal=roots[row[-1]]) for row in found]
