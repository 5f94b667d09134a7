"""A segment: the row-wise stages of one level, fused. One row walks through all of them in one coroutine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, local_fingerprint
from agac.core.types import JSONValue
from agac.engine.asking import Asker
from agac.engine.beside import Branches
from agac.engine.call import Answer
from agac.engine.flight import Flight, is_leave
from agac.engine.functions import Functions
from agac.engine.making import Makers, NotMade
from agac.engine.patience import Patience
from agac.engine.replicas import Replicas
from agac.engine.settle import Settler
from agac.engine.tasks import Parked, Tasks, value_of
from agac.plan.judging import filters, guards
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer, Sight, followed
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.guardvalues import GuardFailed
from agac.spec.levels import Level
from agac.spec.operations import Filter, Rename, Select, UnfitRow
from agac.store.batch import Making, Result
from agac.store.rows import State


@dataclass(slots=True)
class Walk:
    """A row on its way: what its stages see, and what became of them so far.

    `known`: something may have been made of the row before. `settled` are the positions of stages with an outcome.
    `reached`: one of those whose results are the row's has one; `written` is the last of these. `failed`: the first
    stage, in the order of the workflow, of those that failed. `dropped`: the row leaves. `waits`: a task of it is in a
    batch, so that it stays open whatever became of other branches; `held` are stages that could not be asked.
    `lists` are the rows that functions gave in the place of this one, by their stages' positions.
    """

    flight: Flight
    sight: Sight
    known: bool
    settled: set[int] = field(default_factory=set)
    reached: bool = False
    written: Result | None = None
    failed: tuple[AnyStage, RowError] | None = None
    dropped: bool = False
    parked: AnyStage | None = None
    waits: bool = False
    held: set[int] = field(default_factory=set)
    lists: dict[int, list[dict[str, JSONValue]]] = field(default_factory=dict)

    def fail(self, stage: AnyStage, error: RowError) -> None:
        """One more stage failed."""
        if self.failed is None or stage.index < self.failed[0].index:
            self.failed = (stage, error)


class Segment:
    """Walks rows of one level through its stages."""

    def __init__(
        self,
        plan: Plan,
        level: Level[AnyStage],
        makers: Makers,
        preparer: Preparer,
        asker: Asker,
        functions: Functions,
        tasks: Tasks,
        settler: Settler,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds, for the plan's `row_timeout`."""
        self._row_timeout, self._clock = plan.rules.row_timeout, clock
        self._level, self._makers, self._preparer = level, makers, preparer
        self._stages = tuple(stage for stage in level.stages if stage.makes != "kept")  # which waits for all rows
        own = {stage.name for stage in self._stages}
        self._ends = frozenset(stage.name for stage in plan.ends if stage.name in own)
        self._joins = len(plan.ends) > 1 or any(not stage.is_kept for stage in plan.ends) or not self._ends
        self._followed = followed(plan.stages)
        self._branches = Branches(self._stages)
        self._in_turn = all(len(own.intersection(s.ancestors)) == place for place, s in enumerate(self._stages))
        self._later = frozenset(stage.index for stage in level.makers if stage.makes == "kept")
        self._makes = bool(level.makers) or any(stage.makes == "rows" for stage in self._stages)
        self._guards, self._filters = guards(self._stages), filters(self._stages)
        self._asker, self._functions, self._tasks, self._settler = asker, functions, tasks, settler
        self._replicas = Replicas(tasks, asker, settler)

    async def walk(self, flight: Flight) -> None:
        """Takes a row through all stages and settles it. Raises Halted when the run stops on the way."""
        sight = flight.sight or self._preparer.sight(flight.new.row.data)
        walk = Walk(flight, sight, flight.known or flight.made, reached=not self._ends)
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
        if stage.rows_of is not None and stage.rows_of not in walk.sight.forms:
            why = f"stage {stage.name!r}: the function of {stage.rows_of!r} gave a list, this row has none of it"
            return self._failed_at(walk, stage, None, RowError(ErrorType.INVALID_ROW, why))
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
        if prepared.replicas:
            answer = await self._replicas.answer(flight, stage, prepared)
        else:
            asked = partial(self._asker.ask, flight, stage, prepared.fingerprint, prepared.request)
            wait = partial(self._asker.wait, flight, stage, prepared.fingerprint)
            answer = await self._tasks.answer(flight, stage, prepared.fingerprint, asked, wait=wait)
        return self._answered(walk, stage, prepared.fingerprint, answer)

    def _answered(self, walk: Walk, stage: AnyStage, fingerprint: bytes, answer: Answer | RowError | Parked) -> bool:
        """What came of a task: whether the stages that need it may follow."""
        if isinstance(answer, Parked):
            walk.waits = walk.waits or answer is Parked.ENROLLED
            if answer is Parked.PARKED:
                walk.held.add(stage.index)
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
            elif isinstance(does, Select | Rename):
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
        if not goes_on or not isinstance(answer, Answer):
            return False
        value = value_of(answer)
        if isinstance(value, list):  # what follows the function is done for each of its rows
            walk.sight.results.pop(stage.name, None)
            walk.lists[stage.index] = value
            walk.reached = walk.reached or stage.index in self._makers.to_ends
            return False
        walk.sight.become(stage, value)
        return True

    def _leaves(self, walk: Walk, stage: AnyStage, why: dict[str, JSONValue], values: dict[str, JSONValue]) -> bool:
        """The row leaves."""
        walk.settled.add(stage.index)
        walk.dropped = True
        self._settler.task_dropped(walk.flight, stage, canonical({**why, "values": values}))
        return False

    def lets_in(self, sight: Sight, stage: AnyStage) -> bool:
        """Whether the stage's guard would let the row in. One that cannot be told is settled in `walk`."""
        guard = self._guards.get(stage.index)
        try:
            return guard is None or guard.test(sight.judged(stage))
        except GuardFailed:
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
        if flight.ready:
            settler.told(flight, walk.held)
        whole = not (walk.dropped or walk.failed or walk.parked)
        made = self._made(walk) if self._makes and whole else None
        if walk.waits and walk.parked is not None:
            settler.row_parked(flight, walk.parked)
            return
        if walk.dropped:
            settler.row_filtered(flight, walk.settled)
        elif walk.failed is not None:
            settler.row_failed(flight, *walk.failed, walk.settled)
        elif walk.parked is not None:
            settler.row_parked(flight, walk.parked)
            return
        else:
            settled = walk.settled | self._later if self._makes else None
            if walk.reached:
                others = self._joins or any(index in self._makers.to_ends for index in walk.lists)
                settler.row_done(flight, None if others else walk.written, settled)
            else:
                settler.row_skipped(flight, settled)
        if self._makes:
            self._make(walk, made)

    def _made(self, walk: Walk) -> Making | None:
        """What is made of a row that went through; None: it fails for that."""
        try:
            state = State.DONE if walk.reached else State.SKIPPED
            return self._makers.made(self._level, walk.sight, walk.flight.new, walk.lists, state)
        except NotMade as fault:
            self._failed_at(walk, fault.stage, None, fault.error)
            return None

    def _make(self, walk: Walk, made: Making | None) -> None:
        """Stores what is made of a row, which may be nothing in the place of what was made before."""
        row = walk.flight.new
        if made is None:
            lacking = walk.failed is not None and not walk.dropped
            made = self._makers.lacking(self._level, walk.sight, row) if lacking else Making(row)
        if made.broods or made.groups or made.alike or walk.known:
            self._settler.making(made)
