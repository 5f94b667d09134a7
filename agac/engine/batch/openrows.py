"""Rows of the store that batches brought something for: where `retrieve` gets its rows from. The input is not read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable

from agac.core.types import Row
from agac.engine.flight import Flight
from agac.engine.work import InvocationContext
from agac.store.batch import NewRow
from agac.store.batches import OpenRow, Ready, rows_idle, rows_in_batches, rows_to_walk
from agac.store.db import Database
from agac.store.rows import PriorTask, State, prior_tasks
from agac.store.runs import counters, row_counts

Page = Callable[[Database, int, int, int], Awaitable[list[OpenRow]]]

PAGE_ROWS = 512


class OpenRows:
    """Open rows of the input that need not wait, by their keys. `again`: this invocation had them all before, and left
    them waiting; `idle`: those that wait for nothing are taken too."""

    def __init__(self, context: InvocationContext, *, again: bool, idle: bool) -> None:
        self._places, self._ledger = context.places, context.ledger
        self._control, self._totals = context.control, context.totals
        self._standing, self._opened = context.standing, context.opened
        self._again, self._idle = again, idle

    async def flights(self) -> AsyncGenerator[list[Flight], None]:
        """Those for which something came; and those that wait for nothing: a crash left them before they were enrolled,
        or there was no room for them in a budget."""
        async for rows in self._pages(rows_to_walk, lambda row: row.key):
            yield await self._flown(rows)
        if self._idle and await self._any_idle():
            async for rows in self._pages(rows_idle, lambda row: row.ordinal):
                yield await self._flown(rows)

    async def _pages(self, page: Page, place: Callable[[OpenRow], int]) -> AsyncGenerator[list[OpenRow], None]:
        after = 0
        while self._control.stop is None:
            await self._ledger.durable()
            rows = await page(self._places.database, self._places.run, after, PAGE_ROWS)
            if not rows:
                return
            after = place(rows[-1])
            yield rows

    async def _any_idle(self) -> bool:
        """Whether more rows are open than wait for batches."""
        database, run, _ = self._places
        await self._ledger.durable()
        return row_counts(await counters(database, run))["open"] > await rows_in_batches(database, run)

    async def _flown(self, rows: list[OpenRow]) -> list[Flight]:
        keys = [row.key for row in rows]
        prior, ready = await prior_tasks(self._places.database, keys), await self._standing.ready(keys)
        if self._again:
            self._totals.rows_parked -= len(rows)
        else:
            self._totals.seen += len(rows)
        return [self._flight(row, prior.get(row.key, {}), ready.get(row.key, {})) for row in rows]

    def _flight(self, row: OpenRow, prior: dict[int, PriorTask], ready: Ready) -> Flight:
        flight = Flight(_stored(row), prior, known=True, resumed=True, ready=ready)
        if self._opened is not None and row.seen >= self._opened.first:
            flight.again_from, flight.since = self._opened.again_from, self._opened.since
        return flight


def _stored(row: OpenRow) -> NewRow:
    data = json.loads(row.data)
    return NewRow(Row(row.id, row.ordinal, data), row.occurrence, row.hash, row.data, State.PENDING, row.key)
