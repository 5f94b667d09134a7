"""A run without calls: the tasks that would be run or reused, and why. Writes nothing, sends nothing.

Rows go through the same `LevelStages` as in a run, some hundred at a time and stage by stage, so that a stage takes one
look-up for all of them. An answer that is not in the store is `Unknown`: the reason stays with the row, guards that
need it are undecided, and a list that it would hold counts as the last run's mean. Memory does not
grow with the rows: the members of groups, and values that were seen, are on disk meanwhile (`store/scratch`).

forecast     the counts, and the run that they are compared with
dry_answers  outcomes, as far as the store knows them
dry_groups   derived rows, and groups once all members are known
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from itertools import islice

from agac.core.types import Row, RowId
from agac.engine.derived_rows import DerivationFailed
from agac.engine.dry_answers import CountedOutcomes, Prompts, StoredAnswers
from agac.engine.dry_groups import ForecastDeriver, GroupForecaster
from agac.engine.executor import LevelStages, Task
from agac.engine.forecast import (
    Baseline,
    BaselineCounts,
    BaselineOutcomes,
    BaselineRun,
    Forecast,
    ForecastRow,
    StageForecast,
    baseline_counts,
)
from agac.engine.input_rows import CHUNK_ROWS, read_chunk
from agac.engine.invocation import Retry, Scope
from agac.plan import diff as why
from agac.plan.plan import Plan
from agac.plan.render import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Levels, levels_of
from agac.spec.workflow import InputSpec, OnDuplicateId
from agac.store.batches import open_batches
from agac.store.db import Database
from agac.store.records import NewRow
from agac.store.rows import WALKED, ChosenRow, SeenIds, State, StoredRow, aged_rows, rows_by_id, rows_of_retry
from agac.store.runs import counters, row_counts
from agac.store.scratch import Scratch

Rows = Callable[[], Iterator[Row]]
"""Begins to read the input, each time it is called."""


class DryRun:
    """Makes a Forecast. `now` is in seconds since 1970; `show` rendered prompts are kept."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        before: BaselineRun | None,
        *,
        scope: Scope,
        fresh: bool,
        now: float,
        show: int = 0,
        retry: Retry | None = None,
    ) -> None:
        """`retry`: the rows are those of the run `before`, as it chooses them."""
        self._plan, self._db, self._before, self._retry = plan, database, before, retry
        self._scope, self._fresh, self._now, self._show = scope, fresh, now, show
        self._baseline = Baseline(plan, before, scope=scope, fresh=fresh, now=now, retry=retry)
        run = before.record.id if before and self._baseline.continued else 0
        self._preparer = Preparer(plan.stages, plan.vars, run)
        self._first = levels_of(plan.stages).all[0]
        self._found = Forecast([StageForecast(stage.name) for stage in plan.stages])

    async def forecast(self, rows: Rows) -> Forecast:
        """What a run over the input would do. Reads it once, or twice where an id's last record counts."""
        return await self._walked(self._input_rows(rows))

    async def forecast_stored(self) -> Forecast:
        """What a retry would do, or a run over the rows that are stored."""
        return await self._walked(self._stored_rows())

    async def _walked(self, chunks: AsyncGenerator[list[ForecastRow], None]) -> Forecast:
        counts = await baseline_counts(self._db, self._before, self._plan)
        outcomes = CountedOutcomes(self._plan, self._found, self._baseline, self._scope)
        answers = StoredAnswers(
            self._plan, self._db, self._baseline, outcomes, Prompts(self._preparer, self._found, self._show),
            fresh=self._fresh, listing=counts.listing, in_batches=await self._any_batch(),
        )  # fmt: skip
        memory = BaselineOutcomes(self._db, self._before, self._baseline)
        with closing(Scratch()) as scratch:
            walk = DryWalk(
                self._plan, self._preparer, outcomes, answers, self._baseline, counts, scratch, memory
            )  # fmt: skip
            async with aclosing(chunks):
                async for chunk in chunks:
                    await walk.through(chunk)
            await walk.through_groups()
        return self._found

    async def _input_rows(self, rows: Rows) -> AsyncGenerator[list[ForecastRow], None]:
        found = self._found
        async with aclosing(judged_chunks(rows, self._plan.input)) as chunks:
            async for chunk, dropped in chunks:
                found.rows += dropped + len(chunk)
                found.dropped += dropped
                usable = [new for new in chunk if new.state is State.PENDING]
                found.unusable += len(chunk) - len(usable)
                yield await self._begun(usable)

    async def _stored_rows(self) -> AsyncGenerator[list[ForecastRow], None]:
        """The rows of the run, as they are stored: those that a retry chooses may be worked on, the others are there as
        groups and equal rows may hang on them."""
        assert self._db is not None
        assert self._before is not None
        run, needs_all = self._before.record.id, any(stage.makes is not None for stage in self._plan.stages)
        self._found.rows = row_counts(await counters(self._db, run))["present"]
        async for rows in rows_of_retry(self._db, run, self._retry or Retry()):
            found = [self._stored_row(one) for one in rows if needs_all or one.chosen or self._retry is None]
            if found:
                yield found

    def _stored_row(self, one: ChosenRow) -> ForecastRow:
        read = Row(one.id, one.ordinal, json.loads(one.data))
        new = NewRow(read, one.occurrence, one.hash, one.data, State.PENDING)
        row = ForecastRow(one.id, self._preparer.view(new.row.data), new=new, level=self._first, old=one.stored)
        row.chosen = one.chosen or self._retry is None
        return row

    async def _any_batch(self) -> bool:
        """Whether a request may be in a batch already."""
        return self._db is not None and not self._fresh and bool(await open_batches(self._db))

    async def _begun(self, chunk: list[NewRow]) -> list[ForecastRow]:
        """One chunk of the input: rows that are finished and unchanged need no look, the others go through."""
        stored = await self._stored(chunk)
        rows = []
        finished = await self._finished(chunk, stored)
        for new in chunk:
            old = stored.get(new.row.id)
            if old is not None and old.key in finished and old.hash == new.hash:
                for stage in self._found.stages:
                    stage.reuse += 1
                continue
            view = self._preparer.view(new.row.data)
            rows.append(ForecastRow(new.row.id, view, new=new, level=self._first, old=old))
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
        if not self._baseline.continued or self._db is None or judges or makes:
            return set()  # its tasks say what became of each stage of such a row
        done = {old.key for new in chunk if (old := stored.get(new.row.id)) and old.state in WALKED}
        cutoffs = {s.index: self._now - s.max_age for s in self._plan.asking if s.max_age is not None}
        return done - await aged_rows(self._db, list(done), cutoffs) if cutoffs and done else done


class DryWalk:
    """Takes rows through the stages of their levels, and then those that are made of them."""

    def __init__(
        self,
        plan: Plan,
        preparer: Preparer,
        outcomes: CountedOutcomes,
        answers: StoredAnswers,
        baseline: Baseline,
        counts: BaselineCounts,
        scratch: Scratch,
        memory: BaselineOutcomes,
    ) -> None:
        self.levels: Levels[AnyStage] = levels_of(plan.stages)
        self._outcomes, self._answers, self._scratch, self._memory = outcomes, answers, scratch, memory
        self._does: dict[int | None, LevelStages[ForecastRow]] = {
            level.origin: LevelStages(plan, level, preparer, outcomes) for level in self.levels.all
        }
        self._walks = {origin: frozenset(stage.index for stage in does.stages) for origin, does in self._does.items()}
        self._made = ForecastDeriver(self.levels, outcomes.found.stages, counts, self._fail)
        self._groups = GroupForecaster(
            self.levels, self._does, self._made, outcomes, answers, baseline, counts, scratch, memory.learn, plan.vars
        )
        self._makers = [stage for stage in self.levels.stages if stage.makes not in (None, "rows")]

    async def through(self, rows: Iterable[ForecastRow]) -> None:
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

    async def _ended(self, rows: Iterable[ForecastRow]) -> AsyncIterator[list[ForecastRow]]:
        """These rows in their order, after all stages of their levels; in the place of one for which functions gave
        others, it and those."""
        left = iter(rows)
        while some := list(islice(left, CHUNK_ROWS)):
            await self._stages([row for row in some if not row.ended])
            if any(row.lists and not row.ended for row in some):
                async for ended in self._ended(self._opened(some)):
                    yield ended
            else:
                yield some

    def _opened(self, rows: Sequence[ForecastRow]) -> Iterator[ForecastRow]:
        for row in rows:
            is_new, row.ended = not row.ended, True
            yield row
            if is_new and row.lists and not row.dropped:
                yield from self._made.listed(row)

    async def _stages(self, rows: Sequence[ForecastRow]) -> None:
        """One chunk of rows through all stages of theirs."""
        await self._memory.learn([row for row in rows if not row.learned])
        for row in rows:
            does = self._does[row.level.origin]
            if not does.in_turn:
                row.open_needs = does.branches.begin()
                self._begin_branches(row, does, does.branches.first)
        for stage in self.levels.stages:
            own = [row for row in rows if stage.index in self._walks[row.level.origin]]
            begun = [(row, task) for row in own if (task := self._begin(row, stage)) is not None]
            if not begun:
                continue
            for (row, task), result in zip(begun, await self._answers.answer(stage, begun), strict=True):
                if result is not None:
                    does = self._does[row.level.origin]
                    if does.take(row, stage, task, result) and not does.in_turn:
                        self._begin_branches(row, does, does.branches.freed(stage, row.open_needs))

    def _begin(self, row: ForecastRow, stage: AnyStage) -> Task | None:
        """The task of a row at a stage, where it has one."""
        if self._is_elsewhere(row, stage) or (row.dropped and stage.index not in row.begun):
            return None
        if row.never_began and any(need in row.never_began for need in stage.needs):
            row.never_began.add(stage.name)
            return None
        if self._outcomes.is_guess(row, stage):
            self._outcomes.of(stage).exact = False
        if row.blocked and (blocked := next((need for need in stage.needs if need in row.blocked), None)) is not None:
            self._outcomes.block(stage, row, why.upstream_blocked(blocked))
            return None
        does = self._does[row.level.origin]
        if does.settle(row, stage) is not None if does.in_turn else stage.index not in row.begun:
            return None
        if row.group is not None and row.group.refused is not None and stage is row.level.maker:
            self._outcomes.block(stage, row, row.group.refused)
            return None
        return does.task(row, stage)

    def _begin_branches(self, row: ForecastRow, does: LevelStages[ForecastRow], ready: Sequence[AnyStage]) -> None:
        """Settles what of these stages, and of those that follow them, takes no answer; the others have begun."""

        def settle(stage: AnyStage) -> bool | None:
            lacks = any(need in row.blocked or need in row.never_began for need in stage.needs)
            return False if lacks or self._is_elsewhere(row, stage) else does.settle(row, stage)

        slow = does.branches.ready(ready, row.open_needs, settle)
        if not row.dropped:
            row.begun.update(stage.index for stage in slow)

    def _is_elsewhere(self, row: ForecastRow, stage: AnyStage) -> bool:
        """Whether rows that a function gave in the place of this one walk through the stage instead."""
        return bool(row.lists) and any(stage.index in self._walks[index] for index in row.lists)

    def _fail(self, row: ForecastRow, fault: DerivationFailed) -> None:
        row.fail(fault.stage, fault.error)
        self._outcomes.of(fault.stage).block(why.NOT_MADE, row.id, row.times)

    async def _feed(self, maker: AnyStage, rows: Sequence[ForecastRow]) -> None:
        """What a stage makes of rows that came to their end."""
        if not rows:
            return
        if maker.makes == "items":
            await self.through(child for row in rows for child in self._made.items(maker, row))
        elif isinstance(maker, PlannedStage):
            self._groups.join(maker, rows)
        else:
            await self.through(list(self._kept(maker, rows)))

    def _kept(self, maker: AnyStage, rows: Sequence[ForecastRow]) -> Iterator[ForecastRow]:
        """Of rows with equal values the first goes on."""
        found = self._outcomes.of(maker)
        self._scratch.begin()
        for row in rows:
            found.exact = found.exact and not self._outcomes.is_guess(row, maker)
            candidate = None if row.lost else self._made.made(row).alike.get(maker.index)
            if candidate is not None and not row.lost:
                is_first = self._scratch.is_first(maker.index, candidate.hash)
                found.reuse += is_first
                found.dropped += row.times - is_first
                if is_first:
                    yield self._made.kept(maker, row, candidate.content)
            elif row.unmade is maker:
                continue
            elif row.lost:
                blocked = next((need for need in maker.needs if need in row.blocked), maker.name)
                self._outcomes.block(maker, row, why.upstream_blocked(blocked))
            else:
                times = self._made.times(maker, row)
                found.reuse += times
                found.dropped += max(row.times - times, 0)
                if times:
                    yield self._made.kept(maker, row, b"", times)
        self._scratch.end()


async def judged_chunks(rows: Rows, source: InputSpec) -> AsyncGenerator[tuple[list[NewRow], int], None]:
    """Each chunk, and how many further rows would be dropped. Reads the input twice where an id's last row counts."""
    with ExitStack() as stack:
        seen = stack.enter_context(closing(SeenIds())) if source.id_field else None
        all_ids = None
        if seen is not None and source.on_duplicate_id == "last":
            all_ids = stack.enter_context(closing(SeenIds()))
            await asyncio.to_thread(_count, rows(), all_ids)
        reader = rows()
        while chunk := await asyncio.to_thread(read_chunk, reader):
            if seen is None:
                yield chunk, 0
            else:
                times = await asyncio.to_thread(_times, [new.row.id for new in chunk], seen, all_ids)
                kept = _judged(chunk, times, source.on_duplicate_id)
                yield kept, len(chunk) - len(kept)


def _count(rows: Iterator[Row], all_ids: SeenIds) -> None:
    while ids := [row.id for row in islice(rows, CHUNK_ROWS)]:
        all_ids.times(ids)


def _times(ids: list[RowId], seen: SeenIds, all_ids: SeenIds | None) -> list[int]:
    """How often each id came before; or comes after, where `all_ids` knows how often it comes."""
    before = seen.times(ids)
    if all_ids is None:
        return before
    return [total - times - 1 for total, times in zip(all_ids.totals(ids), before, strict=True)]


def _judged(chunk: list[NewRow], times: list[int], on_duplicate: OnDuplicateId) -> list[NewRow]:
    kept = []
    for new, others in zip(chunk, times, strict=True):
        if others and on_duplicate in ("first", "last"):
            continue
        if others and on_duplicate == "suffix":
            new.row = new.row._replace(id=f"{new.row.id}#{others + 1}")
        elif others:
            new.state = State.FAILED
        kept.append(new)
    return kept
