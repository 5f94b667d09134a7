"""A segment: consecutive row-wise stages, fused. One row walks through all of them in one coroutine."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from enum import Enum
from typing import Any, TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Outcome
from agac.engine.call import Answer, Caller
from agac.engine.control import Halted
from agac.engine.lookup import Lookup
from agac.engine.patience import OutOfTime, Patience
from agac.engine.policy import is_left
from agac.engine.scope import Scope
from agac.engine.settle import Flight, Settler
from agac.engine.totals import Totals
from agac.engine.work import Clocks
from agac.plan.plan import PlannedStage
from agac.plan.prepare import Prepared, Preparer
from agac.store.batch import Result
from agac.store.ledger import Ledger

T = TypeVar("T")

REMEMBERED_FAILURES = 10_000
"""Failed fingerprints kept in memory, so that equal tasks later in the run share the failure. 100 bytes each."""


class Parked(Enum):
    """The end of a task that may not be asked in this invocation: its row stays open."""

    PARKED = "parked"


PARKED = Parked.PARKED


class Segment:
    """Walks rows through stages. Equal tasks of a run are asked once: the later ones wait for the first."""

    def __init__(
        self,
        stages: tuple[PlannedStage, ...],
        preparer: Preparer,
        caller: Caller,
        settler: Settler,
        ledger: Ledger,
        lookup: Lookup,
        totals: Totals,
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
        self._stages, self._preparer = stages, preparer
        self._caller, self._settler, self._ledger, self._lookup = caller, settler, ledger, lookup
        self._totals, self._newest_before = totals, newest_before
        self._asking: dict[bytes, asyncio.Future[Answer | RowError | Parked | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()

    async def walk(self, flight: Flight) -> None:
        """Takes a row through all stages and settles it. Raises Halted when the run stops on the way."""
        results: dict[str, JSONValue] = {}
        visible = self._preparer.visible(flight.new.row.data, results)
        if self._row_timeout is not None:
            flight.patience = Patience(self._row_timeout, self._clock)
        result: Result | None = None
        last = self._stages[-1]
        for stage in self._stages:
            prepared = self._preparer.prepare(stage, visible, flight.new.row.id)
            if isinstance(prepared, RowError):
                self._settler.row_failed(flight, stage, None, prepared)
                return
            answer = await self._task(flight, stage, prepared)
            if answer is PARKED:
                self._settler.row_parked(flight, stage)
                return
            if isinstance(answer, RowError):
                self._settler.row_failed(flight, stage, prepared.fingerprint, answer)
                return
            result = answer.result
            if stage is not last:
                results[stage.name] = json.loads(result.value) if answer.value is UNPARSED else answer.value
        assert result is not None
        self._settler.row_done(flight, result)

    async def _task(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Answer | RowError | Parked:
        fingerprint = prepared.fingerprint
        prior = flight.prior.get(stage.index)
        if prior and prior.error and prior.fingerprint == fingerprint and not flight.forced and is_left(prior):
            self._totals.left_failed += 1
            return prior.error
        while (leader := self._asking.get(fingerprint)) is not None:
            answer = await self._follow(flight, stage, leader)
            if answer is not None:
                return answer
        known = self._failed.get(fingerprint)
        return known if known is not None else await self._lead(flight, stage, prepared)

    async def _follow(
        self, flight: Flight, stage: PlannedStage, leader: asyncio.Future[Answer | RowError | Parked | None]
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

    async def _lead(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Answer | RowError | Parked:
        fingerprint = prepared.fingerprint
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
                answer = await self._ask(flight, stage, prepared)
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

    async def _ask(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Answer | RowError:
        own = self._totals.stage(stage.name)
        own.in_flight += 1
        try:
            return await self._caller.ask(flight, stage, prepared.fingerprint, prepared.request)
        finally:
            own.in_flight -= 1

    def _since(self, flight: Flight, stage: PlannedStage) -> float:
        if stage.max_age is None and flight.again_from is None:
            return 0.0
        oldest = 0.0 if stage.max_age is None else self._wall() - stage.max_age
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


async def _shielded(leader: asyncio.Future[T]) -> T:
    """Waits without ending what it waits for."""
    return await asyncio.shield(leader)


class _Unparsed:
    """Stands for a value that nobody needed as a value yet."""


UNPARSED: Any = _Unparsed()
