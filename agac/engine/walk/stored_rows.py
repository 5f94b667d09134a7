"""Rows read from the store to be worked on: those of a retry, of a batch, and those that stages
made."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from agac.engine.context import InvocationContext, TasksOfRows
from agac.engine.decide.unfinished import INPUT, is_resumed, is_taken_up, level_waits
from agac.engine.invocation import Retry
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.executor import RowSource, Walk
from agac.plan.render import RowView
from agac.plan.stage import AnyStage
from agac.spec.graph import Level
from agac.store import rows as store
from agac.store.batches import rows_idle, rows_in_batches, rows_to_walk
from agac.store.decisions import any_decided
from agac.store.records import DerivedRows, NewRow
from agac.store.rows import State, StoredRow
from agac.store.runs import counters, row_counts, run_record

CHUNK_ROWS = 512

ActiveRows = AsyncGenerator[list[ActiveRow], None]


async def retried_rows(context: InvocationContext, retry: Retry) -> ActiveRows:
    """Gives the rows that a retry chose, in input order, some hundred at a time. Each is stored as
    open before it comes."""
    database, run, _ = context.places
    ledger = context.ledger
    async for rows in store.rows_of_retry(database, run, retry):
        if context.stop_signal.stop is not None:
            return
        prior = await store.prior_tasks(database, [row.key for row in rows])
        active_rows = []
        for old in rows:
            new = NewRow.of(old)
            row = context.taken_up(new, context.preparer.view(new.row.data), (prior, {}))
            context.go_on_as_retry(row, None)
            context.settler.count_row(old.state, -1, old.error_type)
            context.settler.reopen_row(row, old)
            ledger.batch.rows.changes.append(new)
            active_rows.append(row)
        context.totals.rows.seen += len(rows)
        await ledger.durable()
        yield active_rows
    context.totals.rows.all_read = True


async def open_rows(context: InvocationContext, *, again: bool, idle: bool) -> ActiveRows:
    """Gives open rows of the input, by their keys: those for which batches brought something; and
    (`idle`) those that wait for nothing, because a crash came before they were enrolled, or a
    budget had no room for them. `again`: this invocation had them all before, and left them
    waiting. The input is not read."""
    async for rows in _open_chunks(context, idle=idle):
        keys = [row.key for row in rows.stored]
        tasks = await context.tasks_of(keys)
        waiting = await context.merely_waiting(keys) if rows.may_wait else {}
        if again:
            context.totals.rows.parked -= len(keys)
        else:
            context.totals.rows.seen += len(keys)
        active_rows = []
        for old in rows.stored:
            new = NewRow.of(old)
            view = context.preparer.view(new.row.data)
            row = context.taken_up(new, view, tasks, resumed=True)
            context.go_on_as_retry(row, old.seen)
            row.again = again
            if old.key in waiting:
                context.settler.row_parked(row, context.plan.stages[waiting[old.key]])
            else:
                active_rows.append(row)
        yield active_rows


class OpenChunk(NamedTuple):
    """Some open rows of the input."""

    stored: list[StoredRow]
    """The rows."""
    may_wait: bool
    """True if some of them may merely wait; else batches brought something for each."""


async def _open_chunks(
    context: InvocationContext, *, idle: bool
) -> AsyncGenerator[OpenChunk, None]:
    """Reads the rows for which batches brought something, then (`idle`) those that wait for
    nothing, some hundred at a time."""
    database, run, _ = context.places
    after = 0
    while context.stop_signal.stop is None:
        await context.ledger.durable()
        rows = await rows_to_walk(database, run, after, CHUNK_ROWS)
        if not rows:
            break
        after = rows[-1].key
        yield OpenChunk(rows, may_wait=False)
    await context.ledger.durable()
    if not idle or not await _any_idle(context):
        return
    after = 0
    while context.stop_signal.stop is None:
        await context.ledger.durable()
        rows = await rows_idle(database, run, after, CHUNK_ROWS)
        if not rows:
            break
        after = rows[-1].ordinal or 0
        yield OpenChunk(rows, may_wait=True)


async def _any_idle(context: InvocationContext) -> bool:
    """True if more rows are open than have tasks in batches."""
    database, run, _ = context.places
    open_count = row_counts(await counters(database, run))["open"]
    return open_count > await rows_in_batches(database, run)


# Rows that stages made go through their stages level by level, each level after those whose rows it
# is made of.
#
# Children and groups are stored together with the end of the rows that they are made of, so what is
# left to do is what is open in the store: after a crash the same pass continues.


async def has_work(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """True if rows of a level that a stage makes may need work, by the store once everything is
    committed. A level that looks at all rows before it waits while some of those are open, here or
    in other shards."""
    await context.ledger.durable()
    database, run, _ = context.places
    parked_before = context.totals.rows.made_parked
    waits = await _waits_for_rows(context, level)
    counts = await store.made_counts(database, run)
    pending = 0
    any_unended = False
    for count in counts:
        if count.origin == level.origin:
            pending += count.rows if count.state == State.PENDING else 0
            any_unended = any_unended or count.state in (State.PENDING, State.FAILED)
    if not any_unended and not await _looks_at_ended_rows(context, level):
        return False
    if not waits:
        return True
    parked = pending
    # what a retry chose is opened now, to be worked on when those rows have ended
    if context.work.retry is not None:
        async for rows in LevelPass(context, level).rows():
            parked += sum(row.state != State.PENDING for row in rows)
    context.totals.rows.made_parked = parked_before + parked
    return False


async def _waits_for_rows(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """True if a level looks at all rows before it, and some of those are open."""
    assert level.maker is not None
    assert level.origin is not None
    if level.maker.makes not in ("groups", "kept"):
        return False
    database, run, _ = context.places
    counts = await store.made_counts(database, run)
    opened = [count.origin for count in counts if count.state == State.PENDING and count.rows]
    if row_counts(await counters(database, run))["open"]:
        opened.append(INPUT)
    if level_waits(level.origin, min(opened, default=None)):
        return True
    sharding = context.work.sharding
    if sharding is None:
        return False
    from agac.engine.sharding.group_packs import GroupExchange  # only shards need a remote

    return await GroupExchange(context, sharding, level.maker).waits()


async def _looks_at_ended_rows(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """True if rows of a level that are done may need work: a retry runs them again, results grew
    too old, people decided, or other rows may have come to a `dedupe`."""
    assert level.maker is not None
    assert level.origin is not None
    facts = context.row_facts
    if context.again_from is not None or facts.cutoffs or facts.fixes.rows:
        return True
    database, run, _ = context.places
    if level.maker.makes == "kept" and (await run_record(database, run)).finished_at is None:
        return True
    if context.reviews is None:
        return False
    return await any_decided(database, run, level.origin)


class LevelPass:
    """One pass over the rows of a level that need work."""

    def __init__(self, context: InvocationContext, level: Level[AnyStage]) -> None:
        self._context = context
        self._level = level
        self._fed = is_fed(context, level)
        stages = {stage.index for stage in level.stages}
        self._cutoffs = {
            stage: since for stage, since in context.row_facts.cutoffs.items() if stage in stages
        }
        again = context.again_from
        self._done_too = again is not None and any(stage >= again for stage in stages)

    async def all_rows(self) -> ActiveRows:
        """Gives the rows that need work."""
        async for made in self.rows():
            yield await self.active_rows(made)

    async def active_rows(self, made: Sequence[StoredRow]) -> list[ActiveRow]:
        """Makes rows at work of stored ones, with the views that they have before their own
        stages."""
        context = self._context
        views = context.views
        keys = [row.key for row in made]
        parent_keys = {row.parent_key for row in made if row.parent_key is not None}
        parents = await views.ended(sorted(parent_keys))
        tasks = await context.tasks_of(keys)
        decided = await context.decided_rows(keys)
        active_rows = []
        for old in made:
            parent = parents[old.parent_key] if old.parent_key is not None else None
            row = self.active_row(old, tasks, views.begun(old.data, self._level.origin, parent))
            row.resumed = is_resumed(
                old,
                is_made=True,
                is_decided=old.key in decided,
                is_batched=context.row_facts.batched,
            )
            active_rows.append(row)
        return active_rows

    async def rows(self) -> AsyncGenerator[list[StoredRow], None]:
        """Reads the rows that need work, some hundred at a time."""
        context = self._context
        database, run, _ = context.places
        assert self._level.origin is not None
        after = 0
        while context.stop_signal.stop is None:
            made = await store.made_rows(
                database, run, self._level.origin, after, self._reads_done_rows(), CHUNK_ROWS
            )
            if not made:
                return
            after = made[-1].key
            chosen = await self._chosen(made)
            reopened = [row.key for row in chosen if row.state != State.PENDING]
            if reopened and self._opens_rows():
                context.ledger.batch.derived.reopened += reopened
                await context.ledger.durable()
            if chosen:
                yield chosen

    def _reads_done_rows(self) -> bool:
        """True if rows that are done may need work."""
        facts = self._context.row_facts
        return (
            self._done_too
            or bool(self._cutoffs)
            or self._context.reviews is not None
            or bool(facts.fixes.rows)
        )

    def _opens_rows(self) -> bool:
        """True if rows are stored as open before they are worked on, so that a retry that is broken
        off is continued, and what waits for a batch or for people is open."""
        context = self._context
        return (
            context.work.retry is not None
            or context.row_facts.batched
            or context.reviews is not None
        )

    async def _chosen(self, made: Sequence[StoredRow]) -> list[StoredRow]:
        """Returns those of these rows that need work. Others that merely wait stay open."""
        context = self._context
        database = context.places.database
        failed = [row.key for row in made if row.state == State.FAILED]
        walked = [row.key for row in made if row.state in store.WALKED]
        prior = await store.prior_tasks(database, failed)
        aged = await store.aged_rows(database, walked, self._cutoffs)
        aged |= await context.decided_rows([row.key for row in made])
        chosen = [row for row in made if self._is_open(row, prior.get(row.key, {}), aged)]
        pending = [row.key for row in chosen if row.state == State.PENDING]
        waiting = await context.merely_waiting(pending)
        context.totals.rows.made_parked += len(waiting)
        return [row for row in chosen if row.key not in waiting]

    def _is_open(
        self, row: StoredRow, prior: Mapping[int, store.PriorTask], aged: set[int]
    ) -> bool:
        """True if the row needs work in this invocation. A row waits if what it was made of is open
        itself."""
        totals = self._context.totals
        retry = self._context.work.retry
        if row.parent_state == State.PENDING:
            totals.rows.made_parked += row.state == State.PENDING
            return False
        if row.state == State.PENDING:
            return True
        # made in this invocation, and walked already
        if self._fed and row.seen == self._context.places.event:
            return False
        if retry is None:
            is_chosen = None
        else:
            failed = row.state == State.FAILED
            is_chosen = retry.chooses_made(
                row.id, row.error_stage, row.error_type, failed=failed, again=self._done_too
            )
        return is_taken_up(
            row,
            is_chosen=is_chosen,
            is_reopened=row.key in aged,
            stays_failed=partial(self._context.leaves_failed, row, prior),
        )

    def active_row(self, made: StoredRow, tasks: TasksOfRows, view: RowView) -> ActiveRow:
        """Makes a row at work of a stored one."""
        row = self._context.taken_up(NewRow.of(made), view, tasks)
        if self._context.work.retry is not None:
            self._context.go_on_as_retry(row, None)
        elif made.state == State.PENDING:
            self._context.go_on_as_retry(row, made.seen)
        return row


# Children are worked on while rows of the input still are: each as soon as what it is made of has
# ended.

PARENTS_AT_ONCE = 64
"""How many parents have children read at the same time."""

MOST_PARENTS = 4096
"""How many rows may have children that wait to be given out. While there are more, nothing is read
that would add to them."""


class Parent(NamedTuple):
    """A row whose children are to be given out."""

    key: int
    """Its key."""
    place: int
    """The place of the next of its children."""
    children: int
    """How many children it has."""


def is_fed(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """True if children of a level are given out as soon as their parents have ended. They are not
    if rows may stay open at a stage, since they would be walked twice."""
    if level.maker is None or level.maker.makes not in ("items", "rows"):
        return False
    if context.work.retry is not None or context.row_facts.batched or context.reviews is not None:
        return False
    return all(context.work.scope.may_ask(stage.name) for stage in level.stages if stage.asks)


class ChildFeeds:
    """Gives out the children of rows, as soon as they are stored. Of a parent only its key is held,
    and how many of its children were given out: they are read back by their places. Parents take
    turns, so that one with many children does not hold up those of others. All ends with the input
    and every row that was given out."""

    def __init__(self, context: InvocationContext) -> None:
        self._context = context
        self._levels = [level for level in context.levels.all if is_fed(context, level)]
        self._parents: dict[int, deque[Parent]] = {
            level.maker.index: deque() for level in self._levels if level.maker
        }
        # the input, rows that were given out, and parents that have children to give
        self._open = 1
        self._changed = asyncio.Event()

    def add(self, derived: DerivedRows) -> None:
        """Has the children of a row given out, once they are stored."""
        for origin, children in derived.children.items():
            if children and origin in self._parents:
                self._open += 1
                parent = Parent(derived.row.key, 0, len(children))
                self._context.ledger.batch.on_durable.append(partial(self._stored, origin, parent))

    def sources(
        self, rows: ActiveRows, walk_of: Callable[[Level[AnyStage]], Walk]
    ) -> list[RowSource]:
        """Returns the sources of the input's rows and of what is made of them, level by level;
        `walk_of` takes a level's rows to their end."""

        def counted(level: Level[AnyStage]) -> Walk:
            """Counts the end of each row of a level."""
            walk = walk_of(level)

            async def walk_counted(row: ActiveRow) -> None:
                """Takes one row to its end."""
                await walk(row)
                self._ended(1)

            return walk_counted

        first = self._context.levels.all[0]
        if not self._levels:
            return [RowSource(rows, walk_of(first))]
        children = [RowSource(self._children(level), counted(level)) for level in self._levels]
        return [RowSource(self._input(rows), counted(first)), *children]

    async def _input(self, rows: ActiveRows) -> ActiveRows:
        """Gives out the rows of the input, while their children keep up."""
        async with aclosing(rows):
            async for some in rows:
                self._open += len(some)
                yield some
                await self._room(-1)
        self._ended(1)

    async def _children(self, level: Level[AnyStage]) -> ActiveRows:
        """Gives out the children of a level that this invocation makes, some of each parent at a
        time. Older ones come in the pass over the level."""
        assert level.maker is not None
        database, run, event = self._context.places
        origin = level.maker.index
        parents = self._parents[origin]
        level_pass = LevelPass(self._context, level)
        while self._open:
            if not parents:
                await self._changed.wait()
                continue
            some = [parents.popleft() for _ in range(min(len(parents), PARENTS_AT_ONCE))]
            width = CHUNK_ROWS // len(some)
            places = [(parent.key, parent.place) for parent in some]
            made = await store.children_of_parents(
                database,
                run=run,
                origin=origin,
                event=event,
                parents=json.dumps(places),
                limit=width,
            )
            rows = await level_pass.active_rows(made)
            left = [
                parent._replace(place=parent.place + width)
                for parent in some
                if parent.place + width < parent.children
            ]
            parents.extend(left)
            self._open += len(rows)
            self._ended(len(some) - len(left))
            self._wake()
            if rows:
                yield rows
            await self._room(origin)

    async def _room(self, origin: int) -> None:
        """Waits while too many parents of later stages than this one have children to give out."""
        while self._later_parents(origin) > MOST_PARENTS:
            await self._changed.wait()

    def _later_parents(self, origin: int) -> int:
        """Counts the parents of later stages that have children to give out."""
        return sum(len(parents) for later, parents in self._parents.items() if later > origin)

    def _stored(self, origin: int, parent: Parent) -> None:
        """Adds a parent whose children are stored now."""
        self._parents[origin].append(parent)
        self._wake()

    def _ended(self, count: int) -> None:
        """Counts rows and parents that need nothing more."""
        self._open -= count
        if not self._open:
            self._wake()

    def _wake(self) -> None:
        """Wakes all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
