"""A run without asking: what would be asked, what would be reused, and why. Writes nothing, asks nobody.

forecast    what comes of it, as numbers            foretasks   what becomes of the tasks of one stage
foreprompts prompts, rendered and measured
foremade    the rows that stages would make         forepast    how many they made before, where that is not known
foregroups  groups, once all members came           foreparts   groups that one call does not hold

Memory does not grow with the rows: they come in chunks, with what is made of them, and for each chunk a stage takes one
look-up. What has to be remembered of all rows (the members of groups, values that were seen) lies on disk meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import islice

from agac.core.types import RowId
from agac.engine.comparison import Before, Comparison, WalkedRow
from agac.engine.forecast import Forecast
from agac.engine.foregroups import GroupForecaster
from agac.engine.foremade import Made
from agac.engine.forepast import read_past
from agac.engine.foretasks import TaskForecaster
from agac.engine.intake import CHUNK_ROWS
from agac.engine.judging import Rows, judged_chunks
from agac.engine.scope import Scope
from agac.plan import reasons as why
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Levels, levels_of
from agac.store.batch import NewRow
from agac.store.batches import open_batches
from agac.store.db import Database
from agac.store.rows import WALKED, State, StoredRow, aged_rows, made_by_id, prior_tasks, rows_by_id
from agac.store.scratch import Scratch


class Forecaster:
    """Makes a Forecast. `now` is in seconds since 1970; `show` rendered prompts are kept."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        before: Before | None,
        *,
        scope: Scope,
        fresh: bool,
        now: float,
        show: int,
    ) -> None:
        self._plan, self._db, self._before = plan, database, before
        self._scope, self._fresh, self._now, self._show = scope, fresh, now, show
        self._comparison = Comparison(plan, before, scope=scope, fresh=fresh, now=now)
        run = before.record.id if before and self._comparison.continued else 0
        self._preparer = Preparer(plan.stages, plan.vars, run)

    async def forecast(self, rows: Rows) -> Forecast:
        """Reads the input once, or twice where an id's last record counts."""
        past = await read_past(self._db, self._before, self._plan)
        tasks = TaskForecaster(
            self._plan, self._db, self._comparison, self._preparer,
            scope=self._scope, fresh=self._fresh, show=self._show, listing=past.listing, flies=await self._flies(),
        )  # fmt: skip
        levels = levels_of(self._plan.stages)
        made = Made(levels, tasks.found.stages, past)
        found, memory = tasks.found, Memory(self._db, self._before, self._comparison)
        with closing(Scratch()) as scratch:
            groups = GroupForecaster(
                levels, made, tasks, self._comparison, past, scratch, memory.learn, self._plan.vars
            )
            walk = Walk(levels, tasks, made, groups, scratch, memory)
            async with aclosing(judged_chunks(rows, self._plan.input)) as chunks:
                async for chunk, dropped in chunks:
                    found.rows += dropped + len(chunk)
                    found.dropped += dropped
                    usable = [new for new in chunk if new.state is State.PENDING]
                    found.unusable += len(chunk) - len(usable)
                    await walk.through(await self._begun(usable, levels, found))
            await walk.through_groups()
        return found

    async def _flies(self) -> bool:
        """Whether a question may be in a batch already."""
        return self._db is not None and not self._fresh and bool(await open_batches(self._db))

    async def _begun(self, chunk: list[NewRow], levels: Levels[AnyStage], found: Forecast) -> list[WalkedRow]:
        """One chunk of the input: rows that stand as they are need no look, the others go through the stages."""
        stored = await self._stored(chunk)
        rows = []
        finished = await self._finished(chunk, stored)
        for new in chunk:
            old = stored.get(new.row.id)
            if old is not None and old.key in finished and old.hash == new.hash:
                for stage in found.stages:
                    stage.reuse += 1
                continue
            rows.append(WalkedRow(new, old, {}, self._preparer.sight(new.row.data), levels.all[0]))
        return rows

    async def _stored(self, chunk: Sequence[NewRow]) -> dict[RowId, StoredRow]:
        if self._db is None or self._before is None or not chunk:
            return {}
        found = await rows_by_id(self._db, self._before.record.id, [new.row.id for new in chunk])
        return {row_id: min(rows, key=lambda old: old.occurrence) for row_id, rows in found.items()}

    async def _finished(self, chunk: Sequence[NewRow], stored: Mapping[RowId, StoredRow]) -> set[int]:
        """The keys of done rows of the run that would be continued, but for those with answers that are too old."""
        judges = any(stage.guard for stage in self._plan.stages) or len(self._plan.asking) < len(self._plan.stages)
        makes = any(stage.makes is not None for stage in self._plan.stages)
        if not self._comparison.continued or self._db is None or judges or makes:
            return set()  # its tasks say what became of each stage of such a row
        done = {old.key for new in chunk if (old := stored.get(new.row.id)) and old.state in WALKED}
        cutoffs = {s.index: self._now - s.max_age for s in self._plan.asking if s.max_age is not None}
        return done - await aged_rows(self._db, list(done), cutoffs) if cutoffs and done else done


class Memory:
    """What became of rows in the run compared with."""

    def __init__(self, database: Database | None, before: Before | None, comparison: Comparison) -> None:
        self._db, self._before, self._comparison = database, before, comparison

    async def learn(self, rows: Sequence[WalkedRow]) -> None:
        """Looks up what became of these rows and of their tasks: one look-up for those of each maker."""
        if self._db is None or self._before is None:
            return
        by_maker: dict[str | None, list[WalkedRow]] = {}
        for row in rows:
            row.learned = True
            by_maker.setdefault(row.level.maker.name if row.level.maker else None, []).append(row)
        for maker, own in by_maker.items():
            position = self._comparison.position.get(maker) if maker is not None else None
            if position is not None:
                stored = await made_by_id(self._db, self._before.record.id, position, [row.id for row in own])
                for row in own:
                    row.old = stored.get(row.id)
        keys = {row.old.key: row for row in rows if row.old is not None}
        for key, tasks in (await prior_tasks(self._db, list(keys))).items() if keys else ():
            keys[key].tasks = tasks


class Walk:
    """Takes rows through the stages of their levels, and then those that are made of them."""

    def __init__(
        self,
        levels: Levels[AnyStage],
        tasks: TaskForecaster,
        made: Made,
        groups: GroupForecaster,
        scratch: Scratch,
        memory: Memory,
    ) -> None:
        self._levels, self._tasks, self._made, self._groups = levels, tasks, made, groups
        self._scratch, self._memory = scratch, memory
        self._walks = {
            origin: frozenset(stage.index for stage in level.stages if stage.makes != "kept")
            for origin, level in levels.by_origin.items()
        }
        self._makers = [stage for stage in levels.stages if stage.makes not in (None, "rows")]

    async def through(self, rows: Iterable[WalkedRow]) -> None:
        """Takes them, and all that is made of them, as far as it goes without groups."""
        async for some in self._ended(rows):
            for maker in self._makers:
                await self._feed(maker, [row for row in some if self._made.feeds(row, maker)])

    async def through_groups(self) -> None:
        """Takes the groups through, once all their members have come."""
        for stage in self._makers:
            if isinstance(stage, PlannedStage) and stage.group is not None:
                async for rows in self._groups.rows(stage):
                    await self.through(rows)

    async def _ended(self, rows: Iterable[WalkedRow]) -> AsyncIterator[list[WalkedRow]]:
        """These rows in their order, after all stages of their levels; in the place of one for which functions gave
        others, it and those."""
        left = iter(rows)
        while some := list(islice(left, CHUNK_ROWS)):
            await self._stages([row for row in some if not row.walked])
            if any(row.lists and not row.walked for row in some):
                async for ended in self._ended(self._opened(some)):
                    yield ended
            else:
                yield some

    def _opened(self, rows: Sequence[WalkedRow]) -> Iterator[WalkedRow]:
        for row in rows:
            is_new, row.walked = not row.walked, True
            yield row
            if is_new and not row.gone:
                yield from self._made.listed(row)

    async def _stages(self, rows: Sequence[WalkedRow]) -> None:
        """One chunk of rows through all stages of theirs."""
        await self._memory.learn([row for row in rows if not row.learned])
        for stage in self._levels.stages:
            own = [row for row in rows if self._comes_to(row, stage)]
            if own:
                await self._tasks.stage(stage, own)

    def _comes_to(self, row: WalkedRow, stage: AnyStage) -> bool:
        """Whether the row walks through the stage: those that it was replaced by do so in its place."""
        own = stage.index in self._walks[row.level.origin]
        return own and not any(stage.index in self._walks[index] for index in row.lists)

    async def _feed(self, maker: AnyStage, rows: Sequence[WalkedRow]) -> None:
        """What a stage makes of rows that came to their end."""
        if not rows:
            return
        if maker.makes == "items":
            await self.through(child for row in rows for child in self._made.items(maker, row))
        elif isinstance(maker, PlannedStage):
            self._groups.join(maker, rows)
        else:
            await self.through(list(self._kept(maker, rows)))

    def _kept(self, maker: AnyStage, rows: Sequence[WalkedRow]) -> Iterator[WalkedRow]:
        """Of rows with equal values the first goes on."""
        found = self._tasks.of(maker)
        self._scratch.begin()
        for row in rows:
            found.exact = found.exact and not self._tasks.is_guess(row, maker)
            making = self._made.making(row, maker)
            if making is not None and not row.failed and not row.parked:
                alike = making.alike[maker.index]
                is_first = self._scratch.is_first(maker.index, alike.hash)
                found.reuse += is_first
                found.dropped += row.times - is_first
                if is_first:
                    yield self._made.kept(maker, row, alike.content)
            elif row.failed or row.parked:
                blocked = next((need for need in maker.needs if need in row.blocked), maker.name)
                self._tasks.block(maker, row, why.upstream_blocked(blocked))
            else:
                times = self._made.times(maker, row)
                found.reuse += times
                found.dropped += max(row.times - times, 0)
                if times:
                    yield self._made.kept(maker, row, b"", times)
        self._scratch.end()
