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
from agac.engine.decide.unfinished import is_resumed, is_taken_up
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
    """The rows that a retry chose, in input order, some hundred at a time, each stored as open
    before it comes."""
    (database, run, _), ledger = context.places, context.ledger
    async for rows in store.rows_of_retry(database, run, retry):
        if context.stop_signal.stop is not None:
            return
        prior = await store.prior_tasks(database, [row.key for row in rows])
        found = []
        for old in rows:
            new = NewRow.of(old)
            row = context.taken_up(new, context.preparer.view(new.row.data), (prior, {}))
            context.go_on_as_retry(row, None)
            context.settler.count_row(old.state, -1, old.error_type)
            context.settler.reopen_row(row, old)
            ledger.batch.rows.changes.append(new)
            found.append(row)
        context.totals.rows.seen += len(rows)
        await ledger.durable()
        yield found
    context.totals.rows.all_read = True


async def open_rows(context: InvocationContext, *, again: bool, idle: bool) -> ActiveRows:
    """Open rows of the input, by their keys: those for which batches brought something; and
    (`idle`) those that wait for nothing, as a crash left them before they were enrolled, or there
    was no room for them in a budget. `again`: this invocation had them all before, and left them
    waiting. The input is not read."""
    (database, run, _), totals = context.places, context.totals
    for read in (rows_to_walk, rows_idle):
        if read is rows_idle:
            await context.ledger.durable()
            any_idle = idle and row_counts(await counters(database, run))[
                "open"
            ] > await rows_in_batches(database, run)
            if not any_idle:
                return
        after = 0
        while context.stop_signal.stop is None:
            await context.ledger.durable()
            rows = await read(database, run, after, CHUNK_ROWS)
            if not rows:
                break
            after = rows[-1].key if read is rows_to_walk else rows[-1].ordinal or 0
            tasks = await context.tasks_of([row.key for row in rows])
            waiting = await context.merely_waiting([row.key for row in rows if read is rows_idle])
            if again:
                totals.rows.parked -= len(rows)
            else:
                totals.rows.seen += len(rows)
            found = []
            for one in rows:
                new = NewRow.of(one)
                row = context.taken_up(
                    new, context.preparer.view(new.row.data), tasks, resumed=True
                )
                context.go_on_as_retry(row, one.seen)
                row.again = again
                if one.key in waiting:
                    context.settler.row_parked(row, context.plan.stages[waiting[one.key]])
                else:
                    found.append(row)
            yield found


# Rows that stages made go through their stages: level after level, each after those of whose rows
# it is made.
#
# Children and groups are stored together with the end of the rows that they are made of, so what is
# to be done is what is open in the store: after a crash the same pass goes on.


async def has_work(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """Whether rows of a level that a stage makes may need work, as the store stands once
    everything is committed. A level that looks at all rows before it waits where some of those are
    open, or with other shards."""
    await context.ledger.durable()
    (database, run, _), origin, before = (
        context.places,
        level.origin,
        context.totals.rows.made_parked,
    )
    assert level.maker is not None
    assert origin is not None
    record = await run_record(database, run)
    counts = await store.made_counts(database, run)
    waits = False
    if level.maker.makes in ("groups", "kept"):
        upstream = sum(
            count.rows for count in counts if count.state == State.PENDING and count.origin < origin
        )
        waits = bool(upstream + row_counts(await counters(database, run))["open"])
        sharding = context.work.sharding
        if sharding is not None and not waits:
            from agac.engine.sharding.group_packs import GroupExchange  # only shards need a remote

            waits = await GroupExchange(context, sharding, level.maker).waits()
            counts = await store.made_counts(database, run)
    changed = record.finished_at is None and level.maker.makes == "kept"
    anew = (
        context.again_from is not None
        or context.row_facts.cutoffs
        or context.row_facts.fixes.rows
        or changed
    )
    anew = anew or (context.reviews is not None and await any_decided(database, run, origin))
    unended = (State.PENDING, State.FAILED)
    if not anew and not any(count.origin == origin and count.state in unended for count in counts):
        return False
    if waits:
        parked = sum(
            count.rows
            for count in counts
            if count.state == State.PENDING and count.origin == origin
        )
        # what it chose is opened, to be worked on when those are through
        if context.work.retry is not None:
            async for rows in LevelPass(context, level).rows():
                parked += sum(row.state != State.PENDING for row in rows)
        context.totals.rows.made_parked = before + parked
    return not waits


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
        """The rows that need work, at work."""
        async for made in self.rows():
            yield await self.active_rows(made)

    async def active_rows(self, made: Sequence[StoredRow]) -> list[ActiveRow]:
        """These rows at work, with what each sees before its own stages."""
        context = self._context
        views = self._context.views
        parents = await views.ended(
            sorted({row.parent_key for row in made if row.parent_key is not None})
        )
        tasks = await context.tasks_of([row.key for row in made])
        decided = await context.decided_rows([row.key for row in made])
        found = []
        for one in made:
            parent = parents[one.parent_key] if one.parent_key is not None else None
            row = self.active_row(one, tasks, views.begun(one.data, self._level.origin, parent))
            row.resumed = is_resumed(
                one,
                is_made=True,
                is_decided=one.key in decided,
                is_batched=context.row_facts.batched,
            )
            found.append(row)
        return found

    async def rows(self) -> AsyncGenerator[list[StoredRow], None]:
        """The rows that need work, some hundred at a time."""
        context = self._context
        after = 0
        database, run, _ = context.places
        assert self._level.origin is not None
        while context.stop_signal.stop is None:
            done_too = (
                self._done_too
                or bool(self._cutoffs)
                or context.reviews is not None
                or bool(context.row_facts.fixes.rows)
            )
            found = await store.made_rows(
                database, run, self._level.origin, after, done_too, CHUNK_ROWS
            )
            if not found:
                return
            after = found[-1].key
            prior = await store.prior_tasks(
                database, [row.key for row in found if row.state == State.FAILED]
            )
            aged = await store.aged_rows(
                database, [r.key for r in found if r.state in store.WALKED], self._cutoffs
            )
            aged |= await context.decided_rows([row.key for row in found])
            chosen = [row for row in found if self._is_open(row, prior.get(row.key, {}), aged)]
            waiting = await context.merely_waiting(
                [row.key for row in chosen if row.state == State.PENDING]
            )
            context.totals.rows.made_parked += len(waiting)  # these are left open
            chosen = [row for row in chosen if row.key not in waiting]
            reopened = [row.key for row in chosen if row.state != State.PENDING]
            if reopened and (
                context.work.retry is not None
                or context.row_facts.batched
                or context.reviews is not None
            ):
                # so that a retry that is broken off is gone on with, and what waits for a batch is
                # open
                context.ledger.batch.derived.reopened += reopened
                await context.ledger.durable()
            if chosen:
                yield chosen

    def _is_open(
        self, row: StoredRow, prior: Mapping[int, store.PriorTask], aged: set[int]
    ) -> bool:
        """Whether the row needs work in this invocation; it waits where what it was made of is
        open itself."""
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
        """The row at work."""
        row = self._context.taken_up(NewRow.of(made), view, tasks)
        if self._context.work.retry is not None:
            self._context.go_on_as_retry(row, None)
        elif made.state == State.PENDING:
            self._context.go_on_as_retry(row, made.seen)
        return row


# Children are walked while rows of the input still are: each as soon as what it is made of has
# ended.

PARENTS_AT_ONCE = 64
# rows whose children wait to be fed. While there are more, nothing is read that would add to them.
MOST_PARENTS = 4096


class Parent(NamedTuple):
    """A row whose children from this place on are to be fed; it has so many of them."""

    key: int
    place: int
    children: int


def is_fed(context: InvocationContext, level: Level[AnyStage]) -> bool:
    """Whether children of a level are fed by their parents, where those are walked in this
    invocation. Where rows may stay open at a stage they are not: they would be walked twice."""
    child = level.maker is not None and level.maker.makes in ("items", "rows")
    asked = all(context.work.scope.may_ask(stage.name) for stage in level.stages if stage.asks)
    return (
        child
        and asked
        and context.work.retry is None
        and not context.row_facts.batched
        and context.reviews is None
    )


class ChildFeeds:
    """Gives out the children of rows that are walked, as soon as those are stored. Of a parent
    only its key is held, and how many of its children were given out: they are read back by their
    places. Parents take turns, so that one with many children does not hold up those of others.
    All ends with the input and every row that was given out."""

    def __init__(self, context: InvocationContext) -> None:
        self._context = context
        self._levels = [level for level in context.levels.all if is_fed(context, level)]
        self._parents: dict[int, deque[Parent]] = {
            one.maker.index: deque() for one in self._levels if one.maker
        }
        self._open = (
            1  # the input, rows that were given out, and parents that have children to give
        )
        self._changed = asyncio.Event()

    def add(self, derived: DerivedRows) -> None:
        """Has the children fed that are made of a row, once they are stored."""
        for origin, children in derived.children.items():
            if children and origin in self._parents:
                self._open += 1
                parent = Parent(derived.row.key, 0, len(children))
                self._context.ledger.batch.on_durable.append(partial(self._stored, origin, parent))

    def sources(
        self, rows: ActiveRows, walk_of: Callable[[Level[AnyStage]], Walk]
    ) -> list[RowSource]:
        """The input's rows and what is made of them, level by level; `walk_of` takes a level's
        rows to their end."""

        def counted(level: Level[AnyStage]) -> Walk:
            walk = walk_of(level)

            async def walk_counted(row: ActiveRow) -> None:
                await walk(row)
                self._ended(1)

            return walk_counted

        first = self._context.levels.all[0]
        if not self._levels:
            return [RowSource(rows, walk_of(first))]
        children = [RowSource(self._children(level), counted(level)) for level in self._levels]
        return [RowSource(self._input(rows), counted(first)), *children]

    async def _input(self, rows: ActiveRows) -> ActiveRows:
        async with aclosing(rows):
            async for some in rows:
                self._open += len(some)
                yield some
                await self._room(-1)
        self._ended(1)

    async def _children(self, level: Level[AnyStage]) -> ActiveRows:
        """A level's children of this invocation, some of each parent at a time; older ones come in
        its own pass."""
        assert level.maker is not None
        (database, run, event), origin = self._context.places, level.maker.index
        parents = self._parents[origin]
        level_pass = LevelPass(self._context, level)
        while self._open:
            if not parents:
                await self._changed.wait()
                continue
            some = [parents.popleft() for _ in range(min(len(parents), PARENTS_AT_ONCE))]
            width = CHUNK_ROWS // len(some)
            places = [(one.key, one.place) for one in some]
            where = {"run": run, "origin": origin, "event": event, "parents": json.dumps(places)}
            made = await store.children_of_parents(database, **where, limit=width)
            rows = await level_pass.active_rows(made)
            left = [
                one._replace(place=one.place + width)
                for one in some
                if one.place + width < one.children
            ]
            parents.extend(left)
            self._open += len(rows)
            self._ended(len(some) - len(left))
            self._wake()
            if rows:
                yield rows
            await self._room(origin)

    async def _room(self, origin: int) -> None:
        """Waits while too many parents wait to have children fed that come of later stages than
        this one."""
        while (
            sum(len(some) for later, some in self._parents.items() if later > origin) > MOST_PARENTS
        ):
            await self._changed.wait()

    def _stored(self, origin: int, parent: Parent) -> None:
        self._parents[origin].append(parent)
        self._wake()

    def _ended(self, count: int) -> None:
        self._open -= count
        if not self._open:
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
