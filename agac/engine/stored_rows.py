"""Rows read from the store to be worked on: those of a retry, of a batch, and those that stages made."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import Row
from agac.engine.context import InvocationContext
from agac.engine.effects import ActiveRow
from agac.engine.executor import RowSource, RowWorker, run_workers
from agac.engine.invocation import Retry
from agac.engine.retry_policy import is_left
from agac.plan.render import RowView
from agac.plan.stage import AnyStage
from agac.spec.levels import Level
from agac.store.batches import OpenRow, Ready, rows_idle, rows_in_batches, rows_to_walk
from agac.store.db import Database
from agac.store.records import DerivedRows, NewRow, RowChange
from agac.store.rows import (
    OUTCOME_OF,
    WALKED,
    ChosenRow,
    MadeRow,
    PriorTask,
    State,
    aged_rows,
    children_of_parents,
    chosen_rows,
    made_counts,
    made_rows,
    prior_tasks,
)
from agac.store.runs import counters, read_run, row_counts

# Rows of a run as they are stored, taken up again: where `agac retry` gets its rows from.


class RetriedRows:
    """One pass over the rows that a retry chose, in the order of the input."""

    def __init__(self, context: InvocationContext, retry: Retry) -> None:
        self._db, self._run, _ = context.places
        self._ledger, self._settler = context.ledger, context.settler
        self._control, self._totals = context.stop_signal, context.totals
        self._retry, self._again_from = retry, context.again_from

    async def flights(self) -> AsyncGenerator[list[ActiveRow], None]:
        """The chosen rows, some hundred at a time, each open in the store before it is given out."""
        async for rows in chosen_rows(self._db, self._run, self._retry):
            if self._control.stop is not None:
                return
            prior = await prior_tasks(self._db, [row.key for row in rows])
            flights = [self._flight(row) for row in rows]
            for flight, row in zip(flights, rows, strict=True):
                flight.prior = prior.get(flight.new.key, {})
                self._settler.reopen_row(flight, row)
            self._totals.seen += len(rows)
            await self._ledger.durable()
            yield flights
        self._totals.all_read = True

    def _flight(self, old: ChosenRow) -> ActiveRow:
        """Opens the row again; its tasks stay until they are settled anew."""
        outcome = OUTCOME_OF.get(State(old.state))
        batch = self._ledger.batch
        if outcome is not None:
            batch.tally(("", outcome.value, old.error_type or "", "")).count -= 1
        batch.changes.append(RowChange(old.key, old.ordinal, old.hash, old.data, State.PENDING, None))
        row = Row(old.id, old.ordinal, json.loads(old.data))
        new = NewRow(row, old.occurrence, old.hash, old.data, State.PENDING, old.key)
        return ActiveRow(new, known=True, forced=True, again_from=self._again_from, since=self._retry.since)


# Rows that stages made go through their stages: level after level, each after those of whose rows it is made.
#
# Children and groups are stored together with the end of the rows that they are made of, so what is to be done is what
# is open in the store: after a crash the same pass goes on.

CHUNK_ROWS = 512


async def _waits(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """Whether a level that looks at all rows before it has to wait, since some of those are left open. Its own open
    rows are then counted as left."""
    database, run, _ = context.places
    origin = level.origin
    assert level.maker is not None
    assert origin is not None
    if level.maker.makes not in ("groups", "kept"):
        return False
    made = [count for count in await made_counts(database, run) if count.state == State.PENDING]
    upstream = sum(count.rows for count in made if count.origin < origin)
    if not upstream + row_counts(await counters(database, run))["open"]:
        return False
    context.totals.made_parked += sum(count.rows for count in made if count.origin == origin)
    return True


async def _has_work(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """Whether rows of a level may need work, as the store stands once everything is committed."""
    await context.ledger.durable()
    database, run, _ = context.places
    record = await read_run(database, run)
    changed = record is None or record.finished_at is None
    if context.again_from is not None or context.cutoffs or (changed and level.maker and level.maker.makes == "kept"):
        return True
    open_states = (State.PENDING, State.FAILED)
    counts = await made_counts(database, run)
    return any(count.origin == level.origin and count.state in open_states for count in counts)


class LevelPass:
    """One pass over the rows of a level that need work."""

    def __init__(self, context: InvocationContext, level: Level[AnyStage]) -> None:
        self._context, self._level, self._fed = context, level, is_fed(context, level)
        stages = {stage.index for stage in level.stages}
        self._cutoffs = {stage: since for stage, since in context.cutoffs.items() if stage in stages}
        again = context.again_from
        self._done_too = context.retry is not None and again is not None and any(stage >= again for stage in stages)

    async def walk(self, walker: RowWorker) -> None:
        """Takes them all through."""
        await run_workers(self._flights(), walker, self._context.stop_signal, self._context.workers)

    async def _flights(self) -> AsyncGenerator[list[ActiveRow], None]:
        async for rows in self.rows():
            yield await self.flights_of(rows)

    async def flights_of(self, rows: Sequence[MadeRow]) -> list[ActiveRow]:
        """The rows at work."""
        sights = await self._sights(rows)
        keys = [row.key for row in rows]
        prior, ready = await prior_tasks(self._context.places.database, keys), await self._context.ready(keys)
        flights = [self.flight(row, prior.get(row.key, {}), sights[row.key]) for row in rows]
        opened = {row.key for row in rows if row.state == State.PENDING}
        for flight in flights:
            flight.ready = ready.get(flight.new.key, {})
            flight.resumed = self._context.batch_waits.active and flight.new.key in opened
        return flights

    async def rows(self) -> AsyncGenerator[list[MadeRow], None]:
        """The rows that need work, some hundred at a time."""
        (database, run, _), after = self._context.places, 0
        assert self._level.origin is not None
        while self._context.stop_signal.stop is None:
            done_too = self._done_too or bool(self._cutoffs)
            found = await made_rows(database, run, self._level.origin, after, CHUNK_ROWS, done_too=done_too)
            if not found:
                return
            after = found[-1].key
            prior = await prior_tasks(database, [row.key for row in found if row.state == State.FAILED])
            aged = await aged_rows(database, [r.key for r in found if r.state in WALKED], self._cutoffs)
            chosen = [row for row in found if self._is_open(row, prior.get(row.key, {}), aged)]
            chosen = await self._walkable(chosen)
            opens = self._context.retry is not None or self._context.batch_waits.active
            reopened = [row.key for row in chosen if row.state != State.PENDING and opens]
            if reopened:  # so that a retry that is broken off is gone on with, and what waits for a batch is open
                self._context.ledger.batch.reopened += reopened
                await self._context.ledger.durable()
            if chosen:
                yield chosen

    async def _walkable(self, rows: list[MadeRow]) -> list[MadeRow]:
        """Those that do not merely wait for batches. The others are left open."""
        standing, keys = self._context.batch_waits, [row.key for row in rows if row.state == State.PENDING]
        waiting = await standing.merely_waiting(keys, await standing.ready(keys))
        self._context.totals.made_parked += len(waiting)
        return [row for row in rows if row.key not in waiting]

    def _is_open(self, row: MadeRow, prior: Mapping[int, PriorTask], aged: set[int]) -> bool:
        """Whether the row needs work in this invocation; it waits where what it was made of is open itself."""
        if row.parent_state == State.PENDING:
            self._context.totals.made_parked += row.state == State.PENDING
            return False
        if row.state == State.PENDING:
            return True
        if self._fed and row.seen == self._context.places.event:  # made in this invocation, and walked already
            return False
        retry, scope = self._context.retry, self._context.scope
        if retry is not None:
            return self._is_chosen(row, retry)
        if row.state != State.FAILED:
            return row.key in aged
        tried = row.error_stage is None or scope.tries_again(row.error_stage)
        left = not tried or any(is_left(task) for task in prior.values())
        self._context.totals.left_failed += left
        return not left

    def _is_chosen(self, row: MadeRow, retry: Retry) -> bool:
        """Whether a retry takes the row up again: it, or the row that it was made of, was named; it failed so."""
        named = not retry.rows or any(row.id == one or str(row.id).startswith(f"{one}/") for one in retry.rows)
        if row.state != State.FAILED:
            return named and self._done_too and retry.stage is None and retry.error is None
        return named and retry.stage in (None, row.error_stage) and retry.error in (None, row.error_type)

    def flight(self, row: MadeRow, prior: dict[int, PriorTask], sight: RowView) -> ActiveRow:
        """The row at work."""
        maker, retry, opened = self._level.maker, self._context.retry, self._context.opened
        assert maker is not None
        new = NewRow(Row(row.id, 0, {}), 0, row.hash, row.data, State.PENDING, row.key, maker.index)
        flight = ActiveRow(new, prior, view=sight)
        if retry is not None:
            flight.forced, flight.again_from, flight.since = True, self._context.again_from, retry.since
        elif opened is not None and row.state == State.PENDING and row.seen >= opened.first:
            flight.forced, flight.again_from, flight.since = True, opened.again_from, opened.since
        return flight

    async def _sights(self, rows: Sequence[MadeRow]) -> dict[int, RowView]:
        """What each row sees before its own stages, by key."""
        views, origin = self._context.views, self._level.origin
        parents = await views.ended(sorted({row.parent_key for row in rows if row.parent_key is not None}))
        return {
            row.key: views.begun(row.data, origin, parents[row.parent_key] if row.parent_key is not None else None)
            for row in rows
        }


# Children are walked while rows of the input still are: each as soon as what it is made of has ended.

PARENTS_AT_ONCE = 64
MOST_PARENTS = 4096
"""Rows whose children wait to be fed. While there are more, nothing is read that would add to them."""


class Parent(NamedTuple):
    """A row whose children from this place on are to be fed; it has so many of them."""

    key: int
    place: int
    children: int


def is_fed(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """Whether children of a level are fed by their parents, where those are walked in this invocation. Where rows may
    stay open at a stage they are not: they would be walked twice."""
    child = level.maker is not None and level.maker.makes in ("items", "rows")
    asked = all(context.scope.may_ask(stage.name) for stage in level.stages if stage.asks)
    return child and asked and context.retry is None and not context.batch_waits.active


class ChildFeeds:
    """Gives out the children of rows that are walked, as soon as those are stored.

    Of a parent only its key is held, and how many of its children were given out: they are read back by their places.
    Parents take turns, so that one with many children does not hold up those of others. All ends once the input was
    read to its end and every row that was given out has ended.
    """

    def __init__(self, context: InvocationContext, levels: Sequence[Level[AnyStage]]) -> None:
        self._context = context
        self.levels = [level for level in levels if is_fed(context, level)]
        self._parents: dict[int, deque[Parent]] = {one.maker.index: deque() for one in self.levels if one.maker}
        self._open = 1  # the input, rows that were given out, and parents that have children to give
        self._changed = asyncio.Event()

    def add(self, making: DerivedRows) -> None:
        """Has the children fed that are made of a row, once they are stored."""
        for origin, children in making.broods.items():
            if children and origin in self._parents:
                self._open += 1
                parent = Parent(making.row.key, 0, len(children))
                self._context.ledger.batch.on_durable.append(partial(self._stored, origin, parent))

    def source(self, flights: AsyncGenerator[list[ActiveRow], None], walker: RowWorker) -> RowSource:
        """The rows of the input, of which children are made."""
        return RowSource(self._input(flights), CountedRows(walker, self._ended))

    def child_source(self, level: Level[AnyStage], walker: RowWorker) -> RowSource:
        """The children of a level."""
        return RowSource(self._children(level), CountedRows(walker, self._ended))

    async def _input(self, flights: AsyncGenerator[list[ActiveRow], None]) -> AsyncGenerator[list[ActiveRow], None]:
        async with aclosing(flights):
            async for some in flights:
                self._open += len(some)
                yield some
                await self._room(-1)
        self._ended(1)

    async def _children(self, level: Level[AnyStage]) -> AsyncGenerator[list[ActiveRow], None]:
        assert level.maker is not None
        origin = level.maker.index
        parents, made = self._parents[origin], LevelPass(self._context, level)
        while self._open:
            if not parents:
                await self._changed.wait()
                continue
            some = [parents.popleft() for _ in range(min(len(parents), PARENTS_AT_ONCE))]
            width = CHUNK_ROWS // len(some)
            flights = await made.flights_of(await self._page(origin, some, width))
            left = [one._replace(place=one.place + width) for one in some if one.place + width < one.children]
            parents.extend(left)
            self._open += len(flights)
            self._ended(len(some) - len(left))
            self._tell()
            if flights:
                yield flights
            await self._room(origin)

    async def _page(self, origin: int, parents: Sequence[Parent], width: int) -> list[MadeRow]:
        """Children that this invocation made, so many of each parent at most. What stood open before is left to the
        pass over the level."""
        (database, run, event), places = self._context.places, [(one.key, one.place) for one in parents]
        return await children_of_parents(database, run, origin, event, places, width)

    async def _room(self, origin: int) -> None:
        """Waits while too many parents wait to have children fed that come of later stages than this one."""
        while sum(len(some) for later, some in self._parents.items() if later > origin) > MOST_PARENTS:
            await self._changed.wait()

    def _stored(self, origin: int, parent: Parent) -> None:
        self._parents[origin].append(parent)
        self._tell()

    def _ended(self, count: int = 1) -> None:
        self._open -= count
        if not self._open:
            self._tell()

    def _tell(self) -> None:
        """Wakes everyone who waits."""
        self._changed.set()
        self._changed = asyncio.Event()


class CountedRows:
    """Takes rows to their end, and says so of each."""

    def __init__(self, walker: RowWorker, ended: Callable[[], None]) -> None:
        self._walker, self._ended = walker, ended

    async def walk(self, flight: ActiveRow) -> None:
        """Takes a row to its end."""
        await self._walker.walk(flight)
        self._ended()


Take = Callable[[Level[AnyStage]], Awaitable[None]]
"""Takes the rows of a level through its stages."""


async def walk_levels(context: InvocationContext, levels: Sequence[Level[AnyStage]], take: Mapping[str, Take]) -> None:
    """Goes through the levels of rows that stages make, in order, until the run stops. `take` says how, by what their
    makers make."""
    for level in levels:
        assert level.maker is not None
        assert level.maker.makes is not None
        if context.stop_signal.stop is not None:
            return
        if await _has_work(context, level) and not await _waits(context, level):
            await take[level.maker.makes](level)


def unfit(stage: AnyStage, message: str) -> RowError:
    """Why a row that a stage made cannot be used."""
    return RowError(ErrorType.INVALID_ROW, f"stage {stage.name!r}: {message}")


# Rows of the store that batches brought something for: where `retrieve` gets its rows from. The input is not read.

Page = Callable[[Database, int, int, int], Awaitable[list[OpenRow]]]

PAGE_ROWS = 512


class OpenRows:
    """Open rows of the input that need not wait, by their keys. `again`: this invocation had them all before, and left
    them waiting; `idle`: those that wait for nothing are taken too."""

    def __init__(self, context: InvocationContext, *, again: bool, idle: bool) -> None:
        self._places, self._ledger = context.places, context.ledger
        self._control, self._totals = context.stop_signal, context.totals
        self._standing, self._opened = context.batch_waits, context.opened
        self._again, self._idle = again, idle

    async def flights(self) -> AsyncGenerator[list[ActiveRow], None]:
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

    async def _flown(self, rows: list[OpenRow]) -> list[ActiveRow]:
        keys = [row.key for row in rows]
        prior, ready = await prior_tasks(self._places.database, keys), await self._standing.ready(keys)
        if self._again:
            self._totals.rows_parked -= len(rows)
        else:
            self._totals.seen += len(rows)
        return [self._flight(row, prior.get(row.key, {}), ready.get(row.key, {})) for row in rows]

    def _flight(self, row: OpenRow, prior: dict[int, PriorTask], ready: Ready) -> ActiveRow:
        flight = ActiveRow(_stored(row), prior, known=True, resumed=True, ready=ready)
        if self._opened is not None and row.seen >= self._opened.first:
            flight.again_from, flight.since = self._opened.again_from, self._opened.since
        return flight


def _stored(row: OpenRow) -> NewRow:
    data = json.loads(row.data)
    return NewRow(Row(row.id, row.ordinal, data), row.occurrence, row.hash, row.data, State.PENDING, row.key)
