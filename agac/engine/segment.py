"""A segment: consecutive row-wise stages, fused. One row walks through all of them in one coroutine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, local_fingerprint
from agac.core.types import JSONValue
from agac.engine.beside import Branches
from agac.engine.call import Answer, Caller
from agac.engine.functions import Functions
from agac.engine.patience import Patience
from agac.engine.settle import Flight, Settler, is_leave
from agac.engine.tasks import PARKED, Parked, Tasks, value_of
from agac.plan.judging import filters, guards
from agac.plan.plan import Plan
from agac.plan.prepare import Prepared, Preparer, Sight
from agac.plan.steps import AnyStage, LocalStage, PlannedStage
from agac.spec.guardvalues import GuardFailed
from agac.spec.operations import Filter, Python, UnfitRow
from agac.store.batch import Result


@dataclass(slots=True)
class Walk:
    """A row on its way: what its stages see, and what became of them so far.

    `settled` are the positions of stages with an outcome. `reached`: one of those whose results are the row's has one;
    `written` is the last of these.
    `failed`: the first stage, in the order of the workflow, of those that failed. `dropped`: the row leaves.
    """

    flight: Flight
    sight: Sight
    settled: set[int] = field(default_factory=set)
    reached: bool = False
    written: Result | None = None
    failed: tuple[AnyStage, RowError] | None = None
    dropped: bool = False
    parked: AnyStage | None = None

    def fail(self, stage: AnyStage, error: RowError) -> None:
        """One more stage failed."""
        if self.failed is None or stage.index < self.failed[0].index:
            self.failed = (stage, error)


class Segment:
    """Walks rows through stages."""

    def __init__(
        self,
        plan: Plan,
        preparer: Preparer,
        caller: Caller,
        functions: Functions,
        tasks: Tasks,
        settler: Settler,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds, for the plan's `row_timeout`."""
        self._row_timeout, self._clock = plan.rules.row_timeout, clock
        self._stages, self._preparer = plan.stages, preparer
        self._ends = frozenset(stage.name for stage in plan.ends)
        self._joins = len(plan.ends) > 1 or any(not stage.is_kept for stage in plan.ends)
        self._followed = frozenset(name for stage in plan.stages for name in stage.ancestors)
        self._branches = Branches(plan.stages)
        self._in_turn = all(len(stage.ancestors) == stage.index for stage in plan.stages)
        self._guards, self._filters = guards(plan), filters(plan)
        self._caller, self._functions, self._tasks, self._settler = caller, functions, tasks, settler

    async def walk(self, flight: Flight) -> None:
        """Takes a row through all stages and settles it. Raises Halted when the run stops on the way."""
        walk = Walk(flight, self._preparer.sight(flight.new.row.data))
        if self._row_timeout is not None:
            flight.patience = Patience(self._row_timeout, self._clock)
        if self._in_turn:
            for stage in self._stages:
                goes_on = self._at_once(walk, stage)
                if goes_on is None:
                    goes_on = await self._begin(walk, stage)
                if not goes_on:
                    break
        else:
            settle, begin = partial(self._at_once, walk), partial(self._begin, walk)
            await self._branches.walk(settle, begin, lambda: walk.dropped)
        self._settle(walk)

    def _at_once(self, walk: Walk, stage: AnyStage) -> bool | None:
        """Settles a stage of a row where that needs no waiting: whether those that need it may follow; None: it takes
        time."""
        if stage.guard is not None and (verdict := self._judge(walk, stage)) is not None:
            return verdict
        if isinstance(stage, LocalStage) and not stage.is_kept:
            return self._local(walk, stage)
        return None

    async def _begin(self, walk: Walk, stage: AnyStage) -> bool:
        """One stage of a row that takes time: whether those that need it may follow."""
        if isinstance(stage, LocalStage):
            return await self._python(walk, stage)
        flight = walk.flight
        prepared = self._preparer.prepare(stage, walk.sight, flight.new.row.id)
        if isinstance(prepared, RowError):
            return self._failed_at(walk, stage, None, prepared)
        asked = partial(self._asked, flight, stage, prepared)
        answer = await self._tasks.answer(flight, stage, prepared.fingerprint, asked)
        return self._answered(walk, stage, prepared.fingerprint, answer)

    def _answered(self, walk: Walk, stage: AnyStage, fingerprint: bytes, answer: Answer | RowError | Parked) -> bool:
        """What came of a task: whether the stages that need it may follow."""
        if answer is PARKED:
            walk.parked = walk.parked or stage
            return False
        if isinstance(answer, RowError):
            return self._failed_at(walk, stage, fingerprint, answer)
        walk.settled.add(stage.index)
        result = answer.result
        if stage.name in self._followed:
            walk.sight.results[stage.name] = value_of(answer)
        if stage.name in self._ends:
            walk.reached, walk.written = True, result
        return True

    def _local(self, walk: Walk, stage: LocalStage) -> bool:
        """A stage that only looks at the row, or changes its fields."""
        does = stage.operation
        try:
            if isinstance(does, Filter):
                seen = walk.sight.judged(stage)
                if not self._filters[stage.index].test(seen):
                    return self._leaves(walk, stage, {"when": does.guard.text}, self._filters[stage.index].values(seen))
            elif not isinstance(does, Python):
                walk.sight.become(stage, does.apply(walk.sight.data(stage)))
        except GuardFailed as failure:
            error = RowError(ErrorType.GUARD_ERROR, f"stage {stage.name!r}: {failure}")
            return self._failed_at(walk, stage, None, error)
        except UnfitRow as unfit:
            return self._failed_at(walk, stage, None, RowError(ErrorType.INVALID_ROW, f"stage {stage.name!r}: {unfit}"))
        walk.settled.add(stage.index)
        walk.reached = walk.reached or stage.name in self._ends
        self._settler.local_done(walk.flight, stage)
        return True

    async def _python(self, walk: Walk, stage: LocalStage) -> bool:
        """A function of the user's is given the row; what it gives is the row from here on."""
        given = walk.sight.given(stage)
        fingerprint = local_fingerprint(stage.prints, given)
        called = partial(self._functions.call, stage, fingerprint, given)
        answer = await self._tasks.answer(walk.flight, stage, fingerprint, called)
        if isinstance(answer, Answer) and is_leave(stage, answer.result.value):
            walk.settled.add(stage.index)
            walk.dropped = True
            return False
        goes_on = self._answered(walk, stage, fingerprint, answer)
        if goes_on and isinstance(answer, Answer):
            walk.sight.become(stage, value_of(answer))
        return goes_on

    def _leaves(self, walk: Walk, stage: AnyStage, why: dict[str, JSONValue], values: dict[str, JSONValue]) -> bool:
        """The row leaves."""
        walk.settled.add(stage.index)
        walk.dropped = True
        self._settler.task_dropped(walk.flight, stage, canonical({**why, "values": values}))
        return False

    def _judge(self, walk: Walk, stage: AnyStage) -> bool | None:
        """What the stage's guard says: None lets the row in; else whether stages that need this one may follow."""
        guard, seen = self._guards[stage.index], walk.sight.judged(stage)
        try:
            if guard.test(seen):
                return None
        except GuardFailed as failure:
            error = RowError(ErrorType.GUARD_ERROR, f"stage {stage.name!r}: when: {failure}")
            return self._failed_at(walk, stage, None, error)
        why: dict[str, JSONValue] = {"when": stage.guard.text if stage.guard else ""}
        if stage.otherwise == "drop":
            return self._leaves(walk, stage, why, guard.values(seen))
        walk.settled.add(stage.index)
        self._settler.task_skipped(walk.flight, stage, canonical({**why, "values": guard.values(seen)}))
        walk.sight.pass_over(stage)
        return True

    def _failed_at(self, walk: Walk, stage: AnyStage, fingerprint: bytes | None, error: RowError) -> bool:
        """A stage failed: nothing that needs it may follow."""
        walk.settled.add(stage.index)
        walk.fail(stage, error)
        self._settler.task_failed(walk.flight, stage, fingerprint, error)
        return False

    def _settle(self, walk: Walk) -> None:
        """What became of the row: of a failure in one branch and a guard in another that makes it leave, it leaves."""
        flight, settler = walk.flight, self._settler
        if walk.dropped:
            settler.row_filtered(flight, walk.settled)
        elif walk.failed is not None:
            settler.row_failed(flight, *walk.failed, walk.settled)
        elif walk.parked is not None:
            settler.row_parked(flight, walk.parked)
        elif walk.reached:
            settler.row_done(flight, None if self._joins else walk.written)
        else:
            settler.row_skipped(flight)

    async def _asked(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Answer | RowError:
        return await self._caller.ask(flight, stage, prepared.fingerprint, prepared.request)
