"""Passes over ids and positions of a run's rows that no other statement covers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.sql import padded, sql, sql_many


async def leaving_rows(
    database: Database, run: int, *, last: int, moved_from: int, event: int, limit: int
) -> list[tuple[int, int, str | None]]:
    """Rows past the input's end, or not met from `moved_from` on: (key, state, error type), at most `limit` of them."""
    values = {"run": run, "last": last, "shifted": moved_from, "event": event, "limit": limit}
    with translated(database.path):
        return [(k, s, e) for k, s, e in await database.reader.execute_fetchall(sql("rows_leaving"), values)]


async def scan_positions(database: Database, chunks: AsyncIterator[list[tuple[RowId, int]]]) -> None:
    """Notes the last position of each id in a scratch table of the reader's connection, on disk when it grows."""
    with translated(database.path):
        await database.reader.execute(sql("ids_scan_make"))
        async for chunk in chunks:
            await database.reader.execute("BEGIN")
            await database.reader.executemany(sql("ids_scan_put"), chunk)
            await database.reader.execute("COMMIT")


async def last_positions(database: Database, ids: Sequence[RowId]) -> dict[RowId, int]:
    """The last position of each of these ids, after `scan_positions`."""
    values = padded(list(ids))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("ids_scan_read", len(values)), values)
    return {row_id: ordinal for row_id, ordinal in found}  # noqa: C416 - rows are no pairs for mypy
