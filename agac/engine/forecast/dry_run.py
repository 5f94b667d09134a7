"""A run without calls: the tasks that would be run or reused, and why. Writes nothing, sends
nothing.

Rows go through the same `LevelStages` as in a run, some hundred at a time and stage by stage, so
that a stage takes one look-up for all of them. An answer that is not in the store is `Unknown`:
the reason stays with the row, guards that need it are undecided, and a list that it would hold
counts as the last run's mean. Memory does not grow with the rows: the members of groups, and
values that were seen, are on disk meanwhile (`store/scratch`).

baseline     a row, the run that it is compared with, and outcomes, as far as the store knows them
dry_groups   derived rows, and groups once all members are known
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import cached_property
from itertools import count, islice

from agac.core.errors import ErrorType, Problem
from agac.core.types import Outcome, Row
from agac.engine.decide.dedupe import decide as decide_on_equals
from agac.engine.decide.duplicates import first_free_id, occurrence_of, state_of_repetition
from agac.engine.decide.unfinished import INPUT, is_finished, level_waits
from agac.engine.forecast.baseline import Baseline
from agac.engine.forecast.dry_groups import ForecastDeriver, GroupForecaster
from agac.engine.forecast.estimate import call_seconds, estimate
from agac.engine.forecast.estimate import request_characters as characters_of
from agac.engine.forecast.forecast_rows import ForecastRow
from agac.engine.forecast.forecasts import PlanReport, StageForecast
from agac.engine.forecast.past_usage import PastUsage
from agac.engine.forecast.planned_batches import planned_batches, planned_rounds
from agac.engine.forecast.stored_answers import StoredAnswers
from agac.engine.invocation import Retry
from agac.engine.output.run_summary import mean_asked
from agac.engine.walk.executor import LevelStages, Task
from agac.engine.walk.input_rows import CHUNK_ROWS, count_ids, read_chunk
from agac.plan import diff as why
from agac.plan.stage import CHOOSING_ROWS, AnyStage, LocalStage, PlannedStage
from agac.spec.data_specs import InputSpec, OnDuplicateId
from agac.spec.graph import NameSets, joined, levels_of
from agac.store.batches import lane_times, open_batches
from agac.store.records import NewRow
from agac.store.rows import WALKED, State, StoredRow, aged_rows, rows_by_id, rows_of_retry
from agac.store.runs import counters, row_counts
from agac.store.scratch import Scratch

Rows = Callable[[], Iterator[Row]]  # begins to read the input, each time it is called


async def dry_run(baseline: Baseline, rows: Rows | None, *, show: int = 0) -> PlanReport:
    """What a run over the input would do, which is read once, or twice where an id's last record
    counts; without `rows` what a retry would do, or a run over the rows that are stored. `show`
    rendered prompts are kept.

    Groups, and the first of equal rows, wait for all rows before them. If one of these stays open,
    the rows are walked once more, now with the stages that make nothing."""
    await baseline.read()
    waiting = frozenset[int]()
    while True:
        found = _nothing_found(baseline)
        more = await _walked(baseline, rows, found, waiting, show=show)
        if more <= waiting:
            break
        waiting |= more
    _note_what_is_beside(found.stages)
    await _estimate(baseline, found)
    return found


def _nothing_found(baseline: Baseline) -> PlanReport:
    """Returns the report of a dry run that has seen no row."""
    plan = baseline.plan
    before = baseline.before
    source = before.definition["input"] if before else {}
    return PlanReport(
        plan.workflow,
        [StageForecast(stage) for stage in plan.stages],
        continues=before.record.id if before and baseline.continued else None,
        compared_with=before.record.id if before else None,
        input_changes=[
            key
            for key in CHOOSING_ROWS
            if before and source.get(key) != plan.body["input"].get(key)
        ],
        confirm_above=plan.rules.confirm_above,
    )


async def _walked(
    baseline: Baseline, rows: Rows | None, found: PlanReport, waiting: frozenset[int], *, show: int
) -> frozenset[int]:
    """Takes all rows through their stages. Returns the positions of the stages that make nothing
    of rows, as rows before them stay open."""
    database = baseline.database
    in_batches = database is not None and not baseline.fresh and bool(await open_batches(database))
    with closing(Scratch()) as scratch:
        answers = StoredAnswers(baseline, found, scratch, show=show, in_batches=in_batches)
        walk = DryWalk(answers, waiting)
        async with aclosing(
            walk.stored_rows() if rows is None else walk.input_rows(rows)
        ) as chunks:
            async for chunk in chunks:
                await walk.through(chunk)
        await walk.through_groups()
    return walk.waiting_makers()


def _note_what_is_beside(stages: Sequence[StageForecast]) -> None:
    """Notes at which stages it is not sure what is asked: another stage that is run, and neither
    before nor after one, may make or drop rows of it."""
    sets = NameSets()
    before = dict[str, int]()
    after = dict[str, int]()
    for one in stages:
        before[one.name] = sets.add(one.name) | joined(before[need] for need in one.stage.needs)
        after[one.name] = 0
    for one in reversed(stages):
        for need in one.stage.needs:
            after[need] |= after[one.name] | sets.only(one.name)
    run = joined(sets.only(one.name) for one in stages if one.run)
    dropping = joined(sets.only(one.name) for one in stages if one.stage.may_drop)
    beside = {one.name: run & ~before[one.name] & ~after[one.name] for one in stages}
    makers = joined(
        sets.only(one.name) for one in stages if one.stage.makes is not None and beside[one.name]
    )
    for one in stages:
        if before[one.name] & makers:
            one.sure = 0
            one.again = one.reuse
        if beside[one.name] & dropping:
            one.sure = 0


async def _estimate(baseline: Baseline, found: PlanReport) -> None:
    """Adds what the tasks of each stage will take, by the history of the workflow's newest runs."""
    database = baseline.database
    plan = baseline.plan
    past = await PastUsage.read(database, plan.workflow, plan.asking)
    staying = dict[str, float]()
    for one in found.stages:
        stage = one.stage
        part = _part_asked(one, staying, past)
        if not isinstance(stage, PlannedStage):
            continue
        # earlier runs tell how many replicas a vote takes; else one in five is wrong
        if one.spared and stage.vote:
            took = mean_asked(past.counts(stage.name)) or stage.vote.lead / 0.6
            most = stage.replicas - stage.vote.lead
            part *= 1 - min(max((stage.replicas - took) / most, 0.0), 1.0) * one.spared / (
                one.run + one.further
            )
        if one.sampled:
            characters = characters_of(stage, one.characters / one.sampled)
        else:
            characters = None
        other = any(change in reason for reason in one.reasons for change in why.OTHER_TEXT)
        one.estimate = estimate(
            stage,
            one.questions,
            characters,
            past,
            longer=None if other else 1.0,
            part=part,
            exact=one.exact,
            rough=one.rough,
        )
        one.aliases = baseline.short_names(stage)
        lane = (stage.provider.name, stage.provider.account, stage.models[0].model)
        times = await lane_times(database, *lane) if database is not None else None
        one.batches = planned_batches(stage, one.questions, characters, times)
        if one.batches is None:
            seconds = call_seconds(stage, one.estimate, plan.concurrency, past.seconds(stage))
        else:
            if stage.agent_spec is not None:
                rounds = one.estimate.calls / (one.questions or 1)
            else:
                rounds = 1
            seconds = times.p50_s * rounds if times else None
        one.estimate = replace(one.estimate, seconds=seconds if one.questions else 0.0)
        if stage.agent_spec is not None and one.batches is not None and one.questions:
            one.rounds = planned_rounds(stage, one.questions, one.estimate, times)
            # by calls caches help more
            one.estimate.ways.update(sync=one.rounds.sync_usd, flex=one.rounds.flex_usd)


_ASKED = (Outcome.DONE, Outcome.REUSED, Outcome.FAILED)
# of tasks passes a guard that nobody can decide yet, and of which no run tells
GUESSED_PART = 2 / 3


def _part_asked(found: StageForecast, staying: dict[str, float], past: PastUsage) -> float:
    """Which part of a stage's tasks is expected to be asked: guards that nobody can decide yet
    pass over so many as in earlier runs, and so many rows leave or fail upstream. `staying`: the
    part that goes on after each stage."""
    stage = found.stage
    run = found.run or 1
    came = math.prod(map(staying.__getitem__, stage.ancestors))
    asked = past.part(stage.name, *_ASKED)
    left = past.part(stage.name, Outcome.DROPPED, Outcome.FAILED)
    if not found.undecided:
        passes = 1.0
    elif asked is None:
        passes = GUESSED_PART
    else:
        passes = asked
    part = 1 - (1 - passes) * found.undecided / run
    came_here = run + found.reuse + found.skipped
    leaving = (1 - part) * run * (stage.otherwise == "drop")
    # those that left already are some of them; a guess of rows that are made has them all
    if left is not None:
        told = (
            found.guess is not None
            and found.guess.run is not None
            and stage.makes in ("rows", "kept")
        )
        if told:
            leaving = 0.0
        else:
            leaving = min(max(left * (came_here + found.dropped) - found.dropped, 0.0), found.run)
    staying[stage.name] = 1 - leaving / came_here
    return part * (1 - (1 - came) * (found.run - found.sure) / run)


class DryWalk:
    """Takes rows through the stages of their levels, and then those that are made of them."""

    def __init__(self, answers: StoredAnswers, waiting: frozenset[int]) -> None:
        """`waiting` are the positions of stages that make nothing in the run, as rows before stay
        open."""
        self._waiting = waiting
        self._first_open: int | None = None
        self._answers = answers
        self._baseline = answers.baseline
        self._scratch = answers.scratch
        self._plan = self._baseline.plan
        self._db = self._baseline.database
        self._before = self._baseline.before
        self._levels = levels_of(self._plan.stages)
        self._does: dict[int | None, LevelStages[ForecastRow]] = {
            level.origin: LevelStages(self._plan, level, self._baseline.preparer, answers)
            for level in self._levels.all
        }
        self._deriver = ForecastDeriver(self._levels, answers)
        self._groups = GroupForecaster(self._levels, self._does, self._deriver, answers, waiting)
        self._makers = [stage for stage in self._plan.stages if stage.makes not in (None, "rows")]

    def waiting_makers(self) -> frozenset[int]:
        """Returns the positions of the stages that wait for rows before them that stay open."""
        return frozenset(
            maker.index
            for maker in self._makers
            if maker.makes in ("groups", "kept") and level_waits(maker.index, self._first_open)
        )

    def _note_open(self, rows: Iterable[ForecastRow]) -> None:
        """Notes the first stage of whose rows one stays open, INPUT for those of the input."""
        for row in rows:
            if row.stays_open:
                origin = INPUT if row.level.origin is None else row.level.origin
                if self._first_open is None or origin < self._first_open:
                    self._first_open = origin

    def _row(self, new: NewRow, old: StoredRow | None, *, chosen: bool = True) -> ForecastRow:
        view = self._baseline.preparer.view(new.row.data)
        return ForecastRow(new, view, level=self._levels.all[0], old=old, chosen=chosen)

    async def stored_rows(self) -> AsyncGenerator[list[ForecastRow], None]:
        """The rows of the run, as they are stored: those that a retry chooses may be worked on,
        the others are there as groups and equal rows may hang on them."""
        assert self._db is not None
        assert self._before is not None
        run = self._before.record.id
        retry = self._baseline.retry
        needs_all = retry is None or any(stage.makes is not None for stage in self._plan.stages)
        self._answers.found.rows["total"] = row_counts(await counters(self._db, run))["total"]
        async for rows in rows_of_retry(self._db, run, retry or Retry(), others=needs_all):
            yield [
                self._row(NewRow.of(one), one, chosen=retry is None or bool(one.chosen))
                for one in rows
            ]

    async def input_rows(self, rows: Rows) -> AsyncGenerator[list[ForecastRow], None]:
        """The rows of the input that need a look: those that are finished and unchanged need
        none."""
        found = self._answers.found
        async with aclosing(judged_chunks(rows, self._plan.input, self._scratch)) as chunks:
            async for chunk in chunks:
                usable = [new for new in chunk if new.state is State.PENDING]
                broken = [new.row for new in chunk if new.state is State.FAILED]
                if broken and not found.rows["unusable"]:
                    row = broken[0]
                    if row.error:
                        why = row.error.message
                    else:
                        why = f"an earlier row has its id {row.id!r}"
                    text = f"row {row.ordinal} cannot be used: {why}"
                    found.warnings.append(Problem(self._plan.input.where, text, "warning"))
                found.rows["total"] += len(chunk)
                short = sum(new.row.short for new in chunk)
                if short:
                    found.rows["short"] = found.rows.get("short", 0) + short
                found.rows["unusable"] += len(broken)
                found.rows["dropped"] += len(chunk) - len(usable) - len(broken)
                stored: dict[object, StoredRow] = {}
                if self._db is not None and self._before is not None and usable:
                    by_id = await rows_by_id(
                        self._db, self._before.record.id, [new.row.id for new in usable]
                    )
                    stored = {
                        row_id: min(same, key=lambda old: old.occurrence)
                        for row_id, same in by_id.items()
                    }
                reopened = await self._reopened(stored.values())
                begun = []
                for new in usable:
                    old = stored.get(new.row.id)
                    finished = (
                        self._passes_over
                        and old is not None
                        and is_finished(old, new.hash, is_reopened=old.key in reopened)
                    )
                    if not finished:
                        begun.append(self._row(new, old))
                for stage in found.stages:
                    stage.reuse += len(usable) - len(begun)
                yield begun

    @cached_property
    def _passes_over(self) -> bool:
        """True if finished rows of the run that would be continued need no look: else their tasks
        say what became of each stage."""
        stages = self._plan.stages
        needs_look = any(
            isinstance(stage, LocalStage) or stage.guard is not None or stage.makes is not None
            for stage in stages
        )
        return self._baseline.continued and not needs_look

    async def _reopened(self, stored: Iterable[StoredRow]) -> frozenset[int]:
        """The keys of those of these rows that have answers which are too old, or results that
        people set by hand."""
        if not self._passes_over or self._db is None:
            return frozenset()
        asking = self._plan.asking
        cutoffs = {
            s.index: self._baseline.now - s.settings.max_age
            for s in asking
            if s.settings.max_age is not None
        }
        walked = [old.key for old in stored if old.state in WALKED]
        aged = await aged_rows(self._db, walked, cutoffs) if cutoffs and walked else set[int]()
        return self._baseline.fixes.rows | aged

    async def through(self, rows: Iterable[ForecastRow]) -> None:
        """Takes them, and all that is made of them, as far as it goes without groups."""
        async for some in self._ended(rows):
            for maker in self._makers:
                fed = [row for row in some if self._deriver.feeds(row, maker)]
                if not fed:
                    continue
                if maker.makes == "items":
                    await self.through(
                        child for row in fed for child in self._deriver.items(maker, row)
                    )
                elif maker.makes == "groups":
                    self._groups.join(maker, fed)
                else:
                    await self.through(list(self._kept(maker, fed)))

    async def through_groups(self) -> None:
        """Takes the groups through, once all their members have come."""
        for stage in self._makers:
            if stage.makes == "groups":
                async for rows in self._groups.rows(stage):
                    await self.through(rows)

    async def _ended(self, rows: Iterable[ForecastRow]) -> AsyncIterator[list[ForecastRow]]:
        """These rows in order, after all stages of their levels; beside one for which functions
        gave others, those."""
        left = iter(rows)
        while some := list(islice(left, CHUNK_ROWS)):
            await self._stages([row for row in some if not row.ended])
            self._note_open(some)
            if any(row.lists and not row.ended for row in some):
                async for ended in self._ended(self._opened(some)):
                    yield ended
            else:
                yield some

    def _opened(self, rows: Sequence[ForecastRow]) -> Iterator[ForecastRow]:
        for row in rows:
            is_new = not row.ended
            row.ended = True
            yield row
            if is_new and row.lists and not row.dropped:
                yield from self._deriver.listed(row)

    async def _stages(self, rows: Sequence[ForecastRow]) -> None:
        """One chunk of rows through all stages of theirs."""
        await self._baseline.learn([row for row in rows if not row.learned])
        walking = [(row, self._does[row.level.origin]) for row in rows]
        for row, does in walking:
            if not does.in_turn:
                row.open_needs = does.branches.begin()
                self._begin_branches(row, does, does.branches.first)
        for stage in self._levels.stages:
            own = [(row, does) for row, does in walking if stage.index in does.walks]
            begun = [
                (row, does, task)
                for row, does in own
                if (task := self._begin(row, stage, does)) is not None
            ]
            if begun:
                results = await self._answers.answer(stage, [(row, task) for row, _, task in begun])
            else:
                results = []
            for (row, does, task), result in zip(begun, results, strict=True):
                if result is not None and does.take(row, stage, task, result) and not does.in_turn:
                    self._begin_branches(row, does, does.branches.freed(stage, row.open_needs))

    def _begin(
        self, row: ForecastRow, stage: AnyStage, does: LevelStages[ForecastRow]
    ) -> Task | None:
        """The task of a row at a stage, where it has one."""
        if (row.lists and self._is_elsewhere(row, stage)) or (
            row.dropped and stage.index not in row.begun
        ):
            return None
        if row.never_began and any(need in row.never_began for need in stage.needs):
            row.never_began |= {stage.name}
            return None
        if self._answers.is_guess(row, stage):
            self._answers.of(stage).exact = False
        if (
            row.blocked
            and (blocked := next((need for need in stage.needs if need in row.blocked), None))
            is not None
        ):
            self._answers.block(stage, row, why.upstream_blocked(blocked))
            return None
        if does.settle(row, stage) is not None if does.in_turn else stage.index not in row.begun:
            return None
        if row.refused is not None and stage is row.level.maker:
            if row.parked is not None:
                self._answers.block(stage, row, row.refused)
            else:
                does.fail(row, stage, ErrorType.INVALID_ROW, row.refused, row.refused)
            return None
        return does.task(row, stage)

    def _begin_branches(
        self, row: ForecastRow, does: LevelStages[ForecastRow], ready: Sequence[AnyStage]
    ) -> None:
        """Settles what of these stages, and of those that follow them, takes no answer; the others
        have begun."""

        def settle(stage: AnyStage) -> bool | None:
            lacks = any(need in row.blocked or need in row.never_began for need in stage.needs)
            if lacks or self._is_elsewhere(row, stage):
                return False
            return does.settle(row, stage)

        slow = does.branches.ready(ready, row.open_needs, settle)
        if not row.dropped:
            row.begun |= {stage.index for stage in slow}

    def _is_elsewhere(self, row: ForecastRow, stage: AnyStage) -> bool:
        """Whether rows that a function gave in the place of this one walk through the stage
        instead."""
        return bool(row.lists) and any(
            stage.index in self._does[index].walks for index in row.lists
        )

    def _kept(self, maker: AnyStage, rows: Sequence[ForecastRow]) -> Iterator[ForecastRow]:
        """Of rows with equal values the first goes on."""
        found = self._answers.of(maker)
        with self._scratch.at_once():
            for row in rows:
                found.exact = found.exact and not self._answers.is_guess(row, maker)
                if maker.index in self._waiting and not row.lost:
                    yield from self._kept_before(maker, row)
                    continue
                if row.lost:
                    candidate = None
                else:
                    candidate = self._deriver.made(row).alike.get(maker.index)
                if candidate is not None and not row.lost:
                    is_first = bool(self._scratch.new(maker.index, [candidate.hash]))
                    decided = decide_on_equals(is_first=is_first, came_as=candidate.state)
                    found.reuse += decided.goes_on
                    found.dropped += row.times - decided.goes_on
                    if decided.goes_on:
                        yield self._deriver.kept(maker, row, candidate.content)
                elif row.unmade is maker:
                    continue
                elif row.lost:
                    blocked = next(
                        (need for need in maker.needs if need in row.blocked), maker.name
                    )
                    self._answers.block(maker, row, why.upstream_blocked(blocked))
                else:
                    times = self._deriver.times(maker, row)
                    found.reuse += times
                    found.dropped += max(row.times - times, 0)
                    if times:
                        yield self._deriver.kept(maker, row, b"", times)

    def _kept_before(self, maker: AnyStage, row: ForecastRow) -> Iterator[ForecastRow]:
        """The row, if it went on in the run before: in this one it is not decided, as rows before
        stay open."""
        found = self._answers.of(maker)
        outcome = self._baseline.outcome_before(maker, row)
        if outcome is Outcome.DONE:
            candidate = self._deriver.made(row).alike.get(maker.index)
            found.reuse += row.times
            if candidate is not None:
                child = self._deriver.kept(maker, row, candidate.content)
                child.waits_for_others = True
                yield child
        elif outcome is Outcome.DROPPED:
            found.dropped += row.times
        else:
            self._answers.block(maker, row, why.OTHERS_WAIT)


async def judged_chunks(
    rows: Rows, source: InputSpec, scratch: Scratch
) -> AsyncGenerator[list[NewRow], None]:
    """The rows with what becomes of those whose ids repeat. Reads the input twice where an id's
    last row counts."""
    policy = source.on_duplicate_id if source.id_field else None
    if policy == "last":
        await count_ids(rows(), scratch)
    reader = rows()
    while chunk := await asyncio.to_thread(read_chunk, reader):
        if policy == "suffix":
            await asyncio.to_thread(_make_unique, chunk, scratch)
        elif policy is not None:
            await asyncio.to_thread(_judge, chunk, policy, scratch)
        yield chunk


def _judge(chunk: Sequence[NewRow], policy: OnDuplicateId, scratch: Scratch) -> None:
    """Gives rows whose ids repeat the states that they have in a run."""
    ids = [new.row.id for new in chunk]
    if policy == "last":
        occurrences = [
            occurrence_of(policy, 0, comes_again=further > 0) for further in scratch.times(ids, -1)
        ]
    else:
        occurrences = [
            occurrence_of(policy, times - 1, comes_again=False) for times in scratch.times(ids)
        ]
    for new, occurrence in zip(chunk, occurrences, strict=True):
        new.state = state_of_repetition(policy, new.state, occurrence)


def _make_unique(chunk: Sequence[NewRow], scratch: Scratch) -> None:
    """Gives rows whose ids came before other ids."""
    with scratch.at_once():
        for new in chunk:
            row_id = new.row.id
            times = scratch.count(row_id)
            if times == 1:
                continue
            free = first_free_id(row_id, count(times), scratch.has_come)
            assert free is not None
            scratch.count(free[0])
            new.row = new.row._replace(id=free[0])
