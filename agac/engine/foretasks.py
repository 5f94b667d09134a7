"""What would become of the tasks of one stage, some hundred rows at a time: asked, reused, or neither, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agac.core.keys import local_fingerprint
from agac.engine.comparison import Comparison, WalkedRow
from agac.engine.effects import is_leave
from agac.engine.forecast import SAMPLE, Forecast, Guess, StageForecast
from agac.engine.foreprompts import Prompts, Task, made_of
from agac.engine.lookup import MOST
from agac.engine.scope import Scope
from agac.plan import reasons as why
from agac.plan.judging import filters, guards
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer, Sight, followed
from agac.plan.standin import stand_in
from agac.plan.steps import AnyStage, LocalStage, PlannedStage
from agac.spec.guardvalues import GuardFailed
from agac.spec.operations import Filter, Rename, Select, UnfitRow
from agac.store.batches import live_tasks
from agac.store.db import Database
from agac.store.results import EarlierResult, earlier_results


class TaskForecaster:
    """Forecasts the tasks of a plan. `show` rendered prompts are kept; `listing` are the positions of
    stages whose functions gave lists of rows before; `flies`: batches of the project are open."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        comparison: Comparison,
        preparer: Preparer,
        *,
        scope: Scope,
        fresh: bool,
        show: int,
        listing: frozenset[int],
        flies: bool,
    ) -> None:
        self._listing, self._flies, self._workflow = listing, flies, plan.workflow
        self._db, self._comparison = database, comparison
        self._scope, self._fresh = scope, fresh
        self._guards, self._filters = guards(plan.stages), filters(plan.stages)
        self._followed = followed(plan.stages)
        self._by_name = {stage.name: stage for stage in plan.stages}
        self._functions = _functions_upstream(plan.stages)
        self.found = Forecast([StageForecast(stage.name) for stage in plan.stages])
        self.prompts = Prompts(preparer, self.found, show)

    def of(self, stage: AnyStage) -> StageForecast:
        """What was found of a stage so far."""
        return self.found.stages[stage.index]

    def is_guess(self, row: WalkedRow, stage: AnyStage) -> bool:
        """Whether it is a guess that the row, or one of it, comes to the stage: a function may give more or less."""
        return row.guessed or any(name in row.pending for name in self._functions[stage.index])

    async def stage(self, stage: AnyStage, rows: Sequence[WalkedRow]) -> None:
        """What becomes of the stage's tasks for these rows."""
        tasks = [(row, self._task(stage, row, self.of(stage))) for row in rows if not row.gone]
        await self._ask_or_reuse(stage, [(row, task) for row, task in tasks if task is not None], self.of(stage))

    def _task(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> Task | None:
        """The task of a row for which all that it needs is known; None when its fate is known without it."""
        if any(need in row.never_began for need in stage.needs):
            row.never_began.add(stage.name)
            return None
        found.exact = found.exact and not self.is_guess(row, stage)
        blocked = next((need for need in stage.needs if need in row.blocked), None)
        pending = next((need for need in stage.needs if need in row.pending), None)
        if blocked is not None:
            self.block(stage, row, why.upstream_blocked(blocked))
        elif not self._let_in(stage, row, found, pending):
            return None
        elif row.lot is not None and stage is row.level.maker and (row.lot.refused or row.lot.reason):
            self._lot(stage, row, found)
        elif pending is not None and self._is_done_now(stage, row):
            row.pending[stage.name] = row.pending[pending]
            self._do(stage, row, found)
        elif pending is not None:
            if self._may_ask(stage, row):
                reason = self._comparison.passed_on(stage, row, pending, row.pending[pending])
                found.asked(reason, row.id, stage.replicas, row.times)
                row.pending[stage.name] = row.pending[pending]
                self._guess(stage, found, row)
        elif not stage.is_kept:
            self._do(stage, row, found)
        else:
            return self._unless_left(stage, row)
        return None

    def _unless_left(self, stage: AnyStage, row: WalkedRow) -> Task | None:
        """The task, where it can be asked or looked up."""
        task = self._known(stage, row)
        if task is None:
            self.block(stage, row, why.MISSING_FIELD)
        elif left := self._comparison.left(stage, row, task.fingerprint):
            self.block(stage, row, left)
        else:
            return task
        return None

    def _known(self, stage: AnyStage, row: WalkedRow) -> Task | None:
        """A task as it would be looked up; None when its prompt cannot be rendered."""
        if isinstance(stage, LocalStage):
            return Task(local_fingerprint(stage.prints, row.sight.given(stage)), None)
        return self.prompts.known(stage, row.sight, row.id)

    def _lot(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> None:
        """A group of which it is known what becomes of it, though not what it would be asked."""
        if row.lot is None:
            return
        if row.lot.refused is not None:
            self.block(stage, row, row.lot.refused)
        elif row.lot.reason is not None and isinstance(stage, PlannedStage) and self._may_ask(stage, row):
            found.asked(row.lot.reason, row.id, stage.replicas + row.lot.parts, row.times)
            found.parts += row.lot.parts * row.times
            found.in_flight += row.lot.in_flight * row.times
            row.pending[stage.name] = row.lot.reason
            self.prompts.measure(stage, row.sight, row.id, row.lot.characters)

    def _is_done_now(self, stage: AnyStage, row: WalkedRow) -> bool:
        """Whether a stage that asks nothing looks at none of the answers that are not there yet."""
        does = stage.operation if isinstance(stage, LocalStage) else None
        names = does.guard.names if isinstance(does, Filter) else ()
        return not (stage.is_kept or stage.rows_of in row.pending or any(name in row.pending for name in names))

    def _do(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> None:
        """A stage that asks nothing is as good as done."""
        does = stage.operation if isinstance(stage, LocalStage) else None
        try:
            if isinstance(does, Filter):
                row.gone = not self._filters[stage.index].test(row.sight.judged(stage))
            elif isinstance(does, Select | Rename):
                row.sight.become(stage, does.apply(row.sight.data(stage)))
        except (GuardFailed, UnfitRow):
            self.block(stage, row, why.UNFIT)
            return
        found.dropped += row.times * row.gone
        found.reuse += row.times * (not row.gone)

    def _let_in(self, stage: AnyStage, row: WalkedRow, found: StageForecast, pending: str | None) -> bool:
        """Whether the stage's guard lets the row in, or may do so once what it looks at is there."""
        if stage.guard is None:
            return True
        if stage.rows_of in row.pending or any(name in row.pending for name in stage.guard.names):
            found.undecided += row.times
            return True
        try:
            passes = self._guards[stage.index].test(row.sight.judged(stage))
        except GuardFailed:
            self.block(stage, row, why.GUARD_FAILS)
            return False
        if not passes and stage.otherwise == "drop":
            found.dropped += row.times
            row.gone = True
        elif not passes:
            found.skipped += row.times
            row.sight.pass_over(stage)
            if pending is not None:  # what follows may see the answer that is not there yet
                row.pending[stage.name] = row.pending[pending]
        return passes

    def lets_in(self, stage: AnyStage, sight: Sight) -> bool:
        """Whether the stage's guard lets a row in that sees this."""
        guard = self._guards.get(stage.index)
        try:
            return guard is None or guard.test(sight.judged(stage))
        except GuardFailed:
            return False

    async def _ask_or_reuse(
        self, stage: AnyStage, wanted: Sequence[tuple[WalkedRow, Task]], found: StageForecast
    ) -> None:
        """The tasks whose prompt is known: one look-up for all of them."""
        earlier = await self.earlier(stage, [one for _, task in wanted for one in task.asked])
        flying = await self.in_flight([one for _, task in wanted for one in task.asked if one not in earlier])
        for row, task in wanted:
            there = [earlier[one].value for one in task.asked if one in earlier]
            lacking = sum(one not in earlier and one not in flying for one in task.asked)
            if len(there) == len(task.asked):
                self._reuse(stage, row, made_of(stage, there), found)
            elif not lacking:
                found.in_flight += row.times
                row.pending[stage.name] = why.NOT_YET
            elif self._comparison.never_began(stage, row):
                row.never_began.add(stage.name)
            elif self._may_ask(stage, row):
                reason = row.pending[stage.name] = self._comparison.reason(stage, row, task.fingerprint)
                found.asked(reason, row.id, lacking, row.times)
                if task.request is not None:
                    found.known += 1
                    found.different.add(task.fingerprint)
                    self.prompts.show(stage, row.id, task.request)
                else:
                    self._not_called(stage, row)

    async def earlier(self, stage: AnyStage, prints: Sequence[bytes]) -> dict[bytes, EarlierResult]:
        """The results of the stage that are there for these fingerprints, and that would be taken."""
        found: dict[bytes, EarlierResult] = {}
        if self._db is not None and not self._fresh:
            since = self._comparison.since(stage)
            for start in range(0, len(prints), MOST):
                found |= await earlier_results(self._db, prints[start : start + MOST], since)
        return found

    async def in_flight(self, prints: Sequence[bytes]) -> set[bytes]:
        """Those of these fingerprints that are in a batch, or wait for one."""
        found: set[bytes] = set()
        if self._db is not None and self._flies:
            for start in range(0, len(prints), MOST):
                found |= await live_tasks(self._db, prints[start : start + MOST], self._workflow)
        return found

    def _reuse(self, stage: AnyStage, row: WalkedRow, value: str, found: StageForecast) -> None:
        """An earlier result, JSON: read only where a stage follows that may look at it."""
        if is_leave(stage, value):
            found.dropped += row.times
            row.gone = True
            return
        found.reuse += row.times
        if stage.name not in self._followed:
            return
        result = json.loads(value)
        if not stage.asks and isinstance(result, list):
            row.lists[stage.index] = result
            return
        row.sight.results[stage.name] = result
        if not stage.asks:
            row.sight.become(stage, result)

    def _not_called(self, stage: AnyStage, row: WalkedRow) -> None:
        """A function is taken to leave the row as it is, unless it gave lists before."""
        row.sight.become(stage, row.sight.data(stage))
        if stage.index in self._listing:
            row.lists[stage.index] = None
        elif stage.makes == "rows":
            self.of(stage).guess = Guess("rows", stage.name, 1.0, None)

    def _guess(self, stage: AnyStage, found: StageForecast, row: WalkedRow) -> None:
        """Measures a prompt that names an answer which is not there yet, as if that were of the usual size."""
        if isinstance(stage, LocalStage):
            self._not_called(stage, row)
            return
        if found.sampled >= SAMPLE:
            return
        for name in stage.ancestors:
            if name not in row.sight.results:
                row.sight.results[name] = stand_in(self._by_name[name])
        self.prompts.measure(stage, row.sight, row.id)

    def _may_ask(self, stage: AnyStage, row: WalkedRow) -> bool:
        if self._scope.may_ask(stage.name):
            return True
        self.block(stage, row, why.NOT_IN_SCOPE)
        return False

    def block(self, stage: AnyStage, row: WalkedRow, reason: str) -> None:
        """The row's task cannot be asked, and neither can those that need it."""
        if reason == why.NOT_IN_SCOPE:
            row.parked = True
        elif not row.parked and not any(need in row.blocked for need in stage.needs):
            row.failed = True
        row.blocked.add(stage.name)
        shown = reason if self._scope.may_ask(stage.name) else why.NOT_IN_SCOPE
        self.of(stage).block(shown, row.id, row.times)


def _functions_upstream(stages: Sequence[AnyStage]) -> list[tuple[str, ...]]:
    """Of each stage the functions upstream that may give lists of rows, also where it groups what comes of them."""
    makes = {stage.name: stage.makes for stage in stages}
    found: dict[str, dict[str, None]] = {}
    for stage in stages:
        found[stage.name] = {name: None for need in stage.needs for name in found[need]}
        found[stage.name] |= {need: None for need in stage.needs if makes[need] == "rows"}
    return [tuple(found[stage.name]) for stage in stages]
