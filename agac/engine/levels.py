"""Rows that stages made go through their stages: level after level, each after those of whose rows it is made.

Children and groups are stored together with the end of the rows that they are made of, so what is to be done is what
is open in the store: after a crash the same pass goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from agac.core.errors import ErrorType, RowError
from agac.core.types import Row
from agac.engine.batch.standing import Standing
from agac.engine.control import Control
from agac.engine.flight import Flight
from agac.engine.lineage import Lineage
from agac.engine.policy import is_left
from agac.engine.repeats import Places
from agac.engine.scope import Opened, Retry, Scope
from agac.engine.totals import Totals
from agac.engine.window import Walker, walk_all
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage
from agac.spec.levels import Level
from agac.store.batch import NewRow
from agac.store.batches import Ready
from agac.store.ledger import Ledger
from agac.store.rows import WALKED, MadeRow, PriorTask, State, aged_rows, made_counts, made_rows, prior_tasks
from agac.store.runs import counters, read_run, row_counts

CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class Passing:
    """What the passes over all levels share. `cutoffs`: from when on results are taken, for the stages that say so, by
    position; `opened`: how to go on with rows that a retry opened and left."""

    places: Places
    ledger: Ledger
    control: Control
    totals: Totals
    lineage: Lineage
    scope: Scope
    cutoffs: Mapping[int, float]
    retry: Retry | None
    again_from: int | None
    opened: Opened | None
    workers: int
    standing: Standing

    async def ready(self, keys: Sequence[int]) -> dict[int, Ready]:
        """What batches brought for these rows since they were last walked."""
        return await self.standing.ready(keys)

    async def waits(self, level: Level[AnyStage]) -> bool:
        """Whether a level that looks at all rows before it has to wait, since some of those are left open. Its own open
        rows are then counted as left."""
        database, run, _ = self.places
        origin = level.origin
        assert level.maker is not None
        assert origin is not None
        if level.maker.makes not in ("groups", "kept"):
            return False
        made = [count for count in await made_counts(database, run) if count.state == State.PENDING]
        upstream = sum(count.rows for count in made if count.origin < origin)
        if not upstream + row_counts(await counters(database, run))["open"]:
            return False
        self.totals.made_parked += sum(count.rows for count in made if count.origin == origin)
        return True

    async def has_work(self, level: Level[AnyStage]) -> bool:
        """Whether rows of a level may need work, as the store stands once everything is committed."""
        await self.ledger.durable()
        database, run, _ = self.places
        record = await read_run(database, run)
        changed = record is None or record.finished_at is None
        if self.again_from is not None or self.cutoffs or (changed and level.maker and level.maker.makes == "kept"):
            return True
        open_states = (State.PENDING, State.FAILED)
        counts = await made_counts(database, run)
        return any(count.origin == level.origin and count.state in open_states for count in counts)


class LevelPass:
    """One pass over the rows of a level that need work."""

    def __init__(self, passing: Passing, level: Level[AnyStage]) -> None:
        self._passing, self._level = passing, level
        stages = {stage.index for stage in level.stages}
        self._cutoffs = {stage: since for stage, since in passing.cutoffs.items() if stage in stages}
        again = passing.again_from
        self._done_too = passing.retry is not None and again is not None and any(stage >= again for stage in stages)

    async def walk(self, walker: Walker) -> None:
        """Takes them all through."""
        await walk_all(self._flights(), walker, self._passing.control, self._passing.workers)

    async def _flights(self) -> AsyncGenerator[list[Flight], None]:
        async for rows in self.rows():
            sights = await self._sights(rows)
            keys = [row.key for row in rows]
            prior, ready = await prior_tasks(self._passing.places.database, keys), await self._passing.ready(keys)
            flights = [self.flight(row, prior.get(row.key, {}), sights[row.key]) for row in rows]
            opened = {row.key for row in rows if row.state == State.PENDING}
            for flight in flights:
                flight.ready = ready.get(flight.new.key, {})
                flight.resumed = self._passing.standing.active and flight.new.key in opened
            yield flights

    async def rows(self) -> AsyncGenerator[list[MadeRow], None]:
        """The rows that need work, some hundred at a time."""
        (database, run, _), after = self._passing.places, 0
        assert self._level.origin is not None
        while self._passing.control.stop is None:
            done_too = self._done_too or bool(self._cutoffs)
            found = await made_rows(database, run, self._level.origin, after, CHUNK_ROWS, done_too=done_too)
            if not found:
                return
            after = found[-1].key
            prior = await prior_tasks(database, [row.key for row in found if row.state == State.FAILED])
            aged = await aged_rows(database, [r.key for r in found if r.state in WALKED], self._cutoffs)
            chosen = [row for row in found if self._is_open(row, prior.get(row.key, {}), aged)]
            chosen = await self._walkable(chosen)
            opens = self._passing.retry is not None or self._passing.standing.active
            reopened = [row.key for row in chosen if row.state != State.PENDING and opens]
            if reopened:  # so that a retry that is broken off is gone on with, and what waits for a batch is open
                self._passing.ledger.batch.reopened += reopened
                await self._passing.ledger.durable()
            if chosen:
                yield chosen

    async def _walkable(self, rows: list[MadeRow]) -> list[MadeRow]:
        """Those that do not merely wait for batches. The others are left open."""
        standing, keys = self._passing.standing, [row.key for row in rows if row.state == State.PENDING]
        waiting = await standing.merely_waiting(keys, await standing.ready(keys))
        self._passing.totals.made_parked += len(waiting)
        return [row for row in rows if row.key not in waiting]

    def _is_open(self, row: MadeRow, prior: Mapping[int, PriorTask], aged: set[int]) -> bool:
        """Whether the row needs work in this invocation; it waits where what it was made of is open itself."""
        if row.parent_state == State.PENDING:
            self._passing.totals.made_parked += row.state == State.PENDING
            return False
        if row.state == State.PENDING:
            return True
        retry, scope = self._passing.retry, self._passing.scope
        if retry is not None:
            return self._is_chosen(row, retry)
        if row.state != State.FAILED:
            return row.key in aged
        tried = row.error_stage is None or scope.tries_again(row.error_stage)
        left = not tried or any(is_left(task) for task in prior.values())
        self._passing.totals.left_failed += left
        return not left

    def _is_chosen(self, row: MadeRow, retry: Retry) -> bool:
        """Whether a retry takes the row up again: it, or the row that it was made of, was named; it failed so."""
        named = not retry.rows or any(row.id == one or str(row.id).startswith(f"{one}/") for one in retry.rows)
        if row.state != State.FAILED:
            return named and self._done_too and retry.stage is None and retry.error is None
        return named and retry.stage in (None, row.error_stage) and retry.error in (None, row.error_type)

    def flight(self, row: MadeRow, prior: dict[int, PriorTask], sight: Sight) -> Flight:
        """The row at work."""
        maker, retry, opened = self._level.maker, self._passing.retry, self._passing.opened
        assert maker is not None
        new = NewRow(Row(row.id, 0, {}), 0, row.hash, row.data, State.PENDING, row.key, maker.index)
        flight = Flight(new, prior, sight=sight)
        if retry is not None:
            flight.forced, flight.again_from, flight.since = True, self._passing.again_from, retry.since
        elif opened is not None and row.state == State.PENDING and row.seen >= opened.first:
            flight.forced, flight.again_from, flight.since = True, opened.again_from, opened.since
        return flight

    async def _sights(self, rows: Sequence[MadeRow]) -> dict[int, Sight]:
        """What each row sees before its own stages, by key."""
        lineage, origin = self._passing.lineage, self._level.origin
        parents = await lineage.ended(sorted({row.parent_key for row in rows if row.parent_key is not None}))
        return {
            row.key: lineage.begun(row.data, origin, parents[row.parent_key] if row.parent_key is not None else None)
            for row in rows
        }


Take = Callable[[Level[AnyStage]], Awaitable[None]]
"""Takes the rows of a level through its stages."""


async def walk_levels(passing: Passing, levels: Sequence[Level[AnyStage]], take: Mapping[str, Take]) -> None:
    """Goes through the levels of rows that stages make, in order, until the run stops. `take` says how, by what their
    makers make."""
    for level in levels:
        assert level.maker is not None
        assert level.maker.makes is not None
        if passing.control.stop is not None:
            return
        if await passing.has_work(level) and not await passing.waits(level):
            await take[level.maker.makes](level)


def unfit(stage: AnyStage, message: str) -> RowError:
    """Why a row that a stage made cannot be used."""
    return RowError(ErrorType.INVALID_ROW, f"stage {stage.name!r}: {message}")
