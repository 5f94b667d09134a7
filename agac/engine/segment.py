"""A segment: consecutive row-wise stages, fused. One row walks through all of them in one coroutine."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, local_fingerprint
from agac.core.types import JSONValue, Outcome
from agac.engine.beside import Branches
from agac.engine.call import Answer, Caller
from agac.engine.control import Halted
from agac.engine.functions import Functions
from agac.engine.lookup import Lookup
from agac.engine.patience import OutOfTime, Patience
from agac.engine.policy import is_left
from agac.engine.scope import Scope
from agac.engine.settle import Flight, Settler, is_leave
from agac.engine.totals import Totals
from agac.engine.work import Clocks
from agac.plan.judging import filters, guards
from agac.plan.plan import Plan
from agac.plan.prepare import Prepared, Preparer, Sight
from agac.plan.steps import AnyStage, LocalStage, PlannedStage
from agac.spec.guardvalues import GuardFailed
from agac.spec.operations import Filter, Python, UnfitRow
from agac.store.batch import Result
from agac.store.ledger import Ledger

T = TypeVar("T")

Ask = Callable[[], Awaitable[Answer | RowError]]
"""Brings a task's answer, which nobody has yet."""

REMEMBERED_FAILURES = 10_000
"""Failed fingerprints kept in memory, so that equal tasks later in the run share the failure. 100 bytes each."""


class Parked(Enum):
    """The end of a task that may not be asked in this invocation: its row stays open."""

    PARKED = "parked"


PARKED = Parked.PARKED


@dataclass(slots=True)
class Walk:
    """A row on its way: what its stages see, and what became of them so far.

    `settled` are the positions of stages with an outcome. `reached`: one of those whose results are the row's has one;
    `written` is the last of these.
    `failed`: the first stage, in the order of the workflow, of those that failed. `ends`: names of the stages that
    ended so that none may follow them.
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
    """Walks rows through stages. Equal tasks of a run are asked once: the later ones wait for the first."""

    def __init__(
        self,
        plan: Plan,
        preparer: Preparer,
        caller: Caller,
        settler: Settler,
        ledger: Ledger,
        lookup: Lookup,
        totals: Totals,
        functions: Functions,
        newest_before: int,
        *,
        row_timeout: float | None,
        scope: Scope,
        clocks: Clocks,
    ) -> None:
        """`newest_before`: the id of the last result that this invocation found in the store.

        `row_timeout` in seconds; None: a row takes as long as it takes.
        """
        self._row_timeout, self._scope = row_timeout, scope
        self._clock, self._wall = clocks.monotonic, clocks.wall
        self._stages, self._preparer = plan.stages, preparer
        self._ends = frozenset(stage.name for stage in plan.ends)
        self._joins = len(plan.ends) > 1 or any(not stage.is_kept for stage in plan.ends)
        self._followed = frozenset(name for stage in plan.stages for name in stage.ancestors)
        self._branches = Branches(plan.stages)
        self._in_turn = all(len(stage.ancestors) == stage.index for stage in plan.stages)
        self._guards, self._filters = guards(plan), filters(plan)
        self._functions = functions
        self._caller, self._settler, self._ledger, self._lookup = caller, settler, ledger, lookup
        self._totals, self._newest_before = totals, newest_before
        self._asking: dict[bytes, asyncio.Future[Answer | RowError | Parked | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()

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
        answer = await self._task(flight, stage, prepared.fingerprint, asked)
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
            walk.sight.results[stage.name] = _value(answer)
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
        answer = await self._task(walk.flight, stage, fingerprint, called)
        if isinstance(answer, Answer) and is_leave(stage, answer.result.value):
            walk.settled.add(stage.index)
            walk.dropped = True
            return False
        goes_on = self._answered(walk, stage, fingerprint, answer)
        if goes_on and isinstance(answer, Answer):
            walk.sight.become(stage, _value(answer))
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

    async def _task(self, flight: Flight, stage: AnyStage, fingerprint: bytes, ask: Ask) -> Answer | RowError | Parked:
        """A task's answer: an earlier one, that of an equal task, or the one that `ask` brings."""
        prior = flight.prior.get(stage.index)
        if prior and prior.error and prior.fingerprint == fingerprint and not flight.forced and is_left(prior):
            self._totals.left_failed += 1
            return prior.error
        while (leader := self._asking.get(fingerprint)) is not None:
            answer = await self._follow(flight, stage, leader)
            if answer is not None:
                return answer
        known = self._failed.get(fingerprint)
        return known if known is not None else await self._lead(flight, stage, fingerprint, ask)

    async def _follow(
        self, flight: Flight, stage: AnyStage, leader: asyncio.Future[Answer | RowError | Parked | None]
    ) -> Answer | RowError | Parked | None:
        """What became of the same task of another row; None: that row had no time or money left, this one may."""
        try:
            answer = await flight.patience.wait(_shielded(leader))
        except OutOfTime:
            return RowError(ErrorType.TIMEOUT, str(flight.patience))
        if answer is None:
            raise Halted
        if isinstance(answer, Answer):
            self._totals.collapsed += 1
            self._settler.task_done(flight, stage, answer.result, Outcome.REUSED)
        elif isinstance(answer, RowError) and self._is_of_its_row(answer):
            return None
        return answer

    async def _lead(self, flight: Flight, stage: AnyStage, fingerprint: bytes, ask: Ask) -> Answer | RowError | Parked:
        mine: asyncio.Future[Answer | RowError | Parked | None] = asyncio.get_running_loop().create_future()
        self._asking[fingerprint] = mine
        durable = False
        answer: Answer | RowError | Parked | None = None
        try:
            earlier = await self._lookup.find(fingerprint, self._since(flight, stage))
            if earlier is not None:
                answer = Answer(Result(fingerprint, earlier.value, id=earlier.id), UNPARSED)
                self._totals.collapsed += earlier.id > self._newest_before  # another row of this invocation asked it
                self._settler.task_done(flight, stage, answer.result, Outcome.REUSED)
            elif not self._scope.may_ask(stage.name):
                answer = PARKED
            else:
                answer = await self._counted(stage, ask)
                if isinstance(answer, Answer):
                    durable = True
                    self._settler.task_done(flight, stage, answer.result, Outcome.DONE)
                else:
                    self._remember(fingerprint, answer)
        finally:
            mine.set_result(answer)
            if durable:  # until the commit a look-up would not find it
                self._ledger.batch.on_durable.append(lambda: self._forget(fingerprint))
            else:
                del self._asking[fingerprint]
        return answer

    async def _asked(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Answer | RowError:
        return await self._caller.ask(flight, stage, prepared.fingerprint, prepared.request)

    async def _counted(self, stage: AnyStage, ask: Ask) -> Answer | RowError:
        own = self._totals.stage(stage.name)
        own.in_flight += 1
        try:
            return await ask()
        finally:
            own.in_flight -= 1

    def _since(self, flight: Flight, stage: AnyStage) -> float:
        max_age = stage.max_age if isinstance(stage, PlannedStage) else None
        if max_age is None and flight.again_from is None:
            return 0.0
        oldest = 0.0 if max_age is None else self._wall() - max_age
        return max(oldest, flight.takes_since(stage.index))

    def _forget(self, fingerprint: bytes) -> None:
        self._asking.pop(fingerprint, None)

    def _is_of_its_row(self, error: RowError) -> bool:
        """The row took too long, or spent too much, before it came here: another one may have its turn."""
        return error.type is ErrorType.BUDGET_EXCEEDED or (
            error.type is ErrorType.TIMEOUT and self._row_timeout is not None
        )

    def _remember(self, fingerprint: bytes, error: RowError) -> None:
        if self._is_of_its_row(error):
            return
        self._failed[fingerprint] = error
        if len(self._failed) > REMEMBERED_FAILURES:
            self._failed.popitem(last=False)


def _value(answer: Answer) -> JSONValue:
    return json.loads(answer.result.value) if answer.value is UNPARSED else answer.value


async def _shielded(leader: asyncio.Future[T]) -> T:
    """Waits without ending what it waits for."""
    return await asyncio.shield(leader)


class _Unparsed:
    """Stands for a value that nobody needed as a value yet."""


UNPARSED: Any = _Unparsed()
