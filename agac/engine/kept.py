"""Of rows that are alike the first one goes on (`dedupe`): decided once all of them are there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from agac.core.keys import canonical
from agac.core.types import Row
from agac.engine.control import Control
from agac.engine.flight import Flight
from agac.engine.repeats import Places
from agac.engine.settle import Settler
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.operations import Dedupe
from agac.store.batch import Brood, Child, NewRow
from agac.store.ledger import Ledger
from agac.store.rows import DedupeRow, PriorTask, State, dedupe_page, prior_tasks, rows_of_keys

PAGE = 512
_LAST_KEY = 1 << 62

Order = tuple[int, ...]
"""Where a row stands: the position in the input of the row that it descends from, then the places of those between."""


class Kept:
    """Decides for one stage which rows go on. What was decided before and still holds is not written again."""

    def __init__(self, places: Places, ledger: Ledger, settler: Settler, control: Control, stage: AnyStage) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Dedupe)
        self._db, self._run, _ = places
        self._ledger, self._settler, self._control, self._stage = ledger, settler, control, stage
        self._fields = stage.operation.body()["dedupe"]

    async def decide(self) -> None:
        """All rows that came to the stage, some hundred at a time; more than that which are alike are read twice."""
        after = (b"", 0)
        while self._control.stop is None and (page := await self._page(after)):
            last = page[-1].hash
            whole = page if len(page) < PAGE else [row for row in page if row.hash != last]
            if whole:
                orders = await self._orders([row.key for rows in _repeated(whole) for row in rows])
                firsts = {digest: _first(list(rows), orders) for digest, rows in groupby(whole, attrgetter("hash"))}
                await self._write(whole, firsts)
                after = (whole[-1].hash, _LAST_KEY)
            else:
                await self._many(last)
                after = (last, _LAST_KEY)

    async def _page(self, after: tuple[bytes, int]) -> list[DedupeRow]:
        return await dedupe_page(self._db, self._run, self._stage.index, after, PAGE)

    async def _many(self, digest: bytes) -> None:
        """So many are alike that they are not held at once."""
        first: tuple[Order, DedupeRow] | None = None
        async for rows in self._alike(digest):
            orders = await self._orders([row.key for row in rows])
            own = _first(rows, orders)
            if first is None or orders[own.key] < first[0]:
                first = orders[own.key], own
        assert first is not None
        async for rows in self._alike(digest):
            await self._write(rows, {digest: first[1]})

    async def _alike(self, digest: bytes):  # type: ignore[no-untyped-def]
        key = 0
        while rows := [row for row in await self._page((digest, key)) if row.hash == digest]:
            yield rows
            key = rows[-1].key

    async def _orders(self, keys: Sequence[int]) -> dict[int, Order]:
        """Where these rows stand."""
        if not keys:
            return {}
        rows = await rows_of_keys(self._db, keys)
        above = await self._orders(sorted({row.parent_key for row in rows.values() if row.parent_key is not None}))
        return {
            key: (row.ordinal or 0,) if row.parent_key is None else (*above[row.parent_key], row.place or 0)
            for key, row in rows.items()
        }

    async def _write(self, rows: Sequence[DedupeRow], firsts: dict[bytes, DedupeRow]) -> None:
        changed = [(row, row.key == firsts[row.hash].key) for row in rows if self._is_new(row, firsts[row.hash])]
        prior = await prior_tasks(self._db, [row.key for row, _ in changed])
        for row, goes_on in changed:
            flight = self._flight(row, prior.get(row.key, {}))
            if goes_on:
                self._settler.local_done(flight, self._stage)
                self._ledger.batch.broods.append(Brood(row.key, self._stage.index, [Child(row.id, row.content, "{}")]))
                self._settler.row_moved(flight, row.state, State(row.came_as), row.result_id)
            else:
                note = canonical({"dedupe": self._fields, "first": firsts[row.hash].id, "values": {}})
                self._settler.task_dropped(flight, self._stage, note)
                self._ledger.batch.broods.append(Brood(row.key, self._stage.index, ()))
                self._settler.row_moved(flight, row.state, State.FILTERED, row.result_id)
        if changed:
            await self._ledger.durable()

    def _is_new(self, row: DedupeRow, first: DedupeRow) -> bool:
        """Whether what becomes of the row is not what is stored, its note of who is first included."""
        if row.key != first.key:
            return row.state != State.FILTERED or self._is_new(first, first)
        return row.state == State.FILTERED or row.child_state in (None, State.GONE) or row.child_hash != row.content

    def _flight(self, row: DedupeRow, prior: dict[int, PriorTask]) -> Flight:
        return Flight(NewRow(Row(row.id, 0, {}), 0, b"", "", State(row.state), row.key, row.origin), prior)


def _repeated(rows: Sequence[DedupeRow]) -> list[list[DedupeRow]]:
    found = [list(own) for _, own in groupby(rows, attrgetter("hash"))]
    return [own for own in found if len(own) > 1]


def _first(rows: Sequence[DedupeRow], orders: dict[int, Order]) -> DedupeRow:
    return rows[0] if len(rows) == 1 else min(rows, key=lambda row: orders[row.key])
