"""Tasks of a run, each asked once: later ones with the same fingerprint wait for the first, or take what is stored."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Outcome
from agac.engine.call import Answer
from agac.engine.control import Halted
from agac.engine.flight import Flight
from agac.engine.lookup import Lookup
from agac.engine.patience import OutOfTime
from agac.engine.policy import is_left
from agac.engine.scope import Scope
from agac.engine.settle import Settler
from agac.engine.totals import Totals
from agac.plan.stage import AnyStage, PlannedStage
from agac.store.batch import Result
from agac.store.ledger import Ledger
from agac.store.rows import EarlierResult

T = TypeVar("T")

Ask = Callable[[], Awaitable["Answer | RowError | Parked"]]
"""Brings a task's answer, which nobody has yet; or has it wait in a batch."""

Wait = Callable[[], None]
"""Has a row wait for an equal task that is in a batch."""

REMEMBERED_FAILURES = 10_000
"""Failed fingerprints kept in memory, so that equal tasks later in the run share the failure. 100 bytes each."""


class Parked(Enum):
    """The end of a task that has no answer in this invocation: its row stays open. It may not be asked; or it is in a
    batch, or waits for one."""

    PARKED = "parked"
    ENROLLED = "enrolled"


PARKED = Parked.PARKED


class Tasks:
    """Brings the answers of tasks and settles those that have one; what becomes of a failure is for whoever asked.

    `newest_before` is the id of the last result that this invocation found in the store. `timed`: rows are bounded in
    time, so that a time-out may be a row's own. `wall` gives seconds since 1970.
    """

    def __init__(
        self,
        settler: Settler,
        ledger: Ledger,
        lookup: Lookup,
        totals: Totals,
        newest_before: int,
        *,
        timed: bool,
        scope: Scope,
        wall: Callable[[], float],
    ) -> None:
        self._settler, self._ledger, self._lookup, self._totals = settler, ledger, lookup, totals
        self._newest_before, self._timed, self._scope, self._wall = newest_before, timed, scope, wall
        self._asking: dict[bytes, asyncio.Future[Answer | RowError | Parked | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()

    async def answer(
        self,
        flight: Flight,
        stage: AnyStage,
        fingerprint: bytes,
        ask: Ask,
        *,
        replica: int = 0,
        wait: Wait | None = None,
    ) -> Answer | RowError | Parked:
        """A task's answer: an earlier one, that of an equal task, or the one that `ask` brings. `replica`, from 1: it
        is one of several of which the task's answer will be made. `wait`: it is told when an equal task has just been
        enrolled in a batch."""
        left = self.left(flight, stage, fingerprint)
        if left is not None:
            return left
        while (leader := self._asking.get(fingerprint)) is not None:
            answer = await self._follow(flight, stage, leader, replica)
            if answer is Parked.ENROLLED and wait is not None:
                wait()
            if answer is not None:
                return answer
        known = self._failed.get(fingerprint)
        return known if known is not None else await self._lead(flight, stage, fingerprint, ask, replica)

    def left(self, flight: Flight, stage: AnyStage, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed before and is not tried again."""
        prior = flight.prior.get(stage.index)
        if prior is None or prior.error is None or prior.fingerprint != fingerprint or flight.forced:
            return None
        if flight.resumed and not any(one[0] == stage.index for one in flight.ready):
            return prior.error
        if is_left(prior):
            self._totals.left_failed += 1
            return prior.error
        return None

    async def _follow(
        self, flight: Flight, stage: AnyStage, leader: asyncio.Future[Answer | RowError | Parked | None], replica: int
    ) -> Answer | RowError | Parked | None:
        """What became of the same task of another row; None: that row had no time or money left, this one may."""
        try:
            answer = await flight.patience.wait(_shielded(leader))
        except OutOfTime:
            return RowError(ErrorType.TIMEOUT, str(flight.patience))
        if answer is None:
            raise Halted
        if isinstance(answer, Answer):
            self._collapsed(flight, stage, answer.result.id, replica)
            self._settled(flight, stage, answer.result, Outcome.REUSED, replica)
        elif isinstance(answer, RowError) and self._is_of_its_row(answer):
            return None
        return answer

    def _collapsed(self, flight: Flight, stage: AnyStage, result: int, replica: int) -> None:
        """Counts a task that another one was asked for; a row counts once, also where it is walked again."""
        prior = flight.prior.get(stage.index)
        had = prior is not None and bool(result) and prior.result_id == result
        self._totals.collapsed += replica <= 1 and not had

    def _settled(self, flight: Flight, stage: AnyStage, result: Result, outcome: Outcome, replica: int) -> None:
        if replica:
            self._settler.replica_done(flight, stage, replica, result, outcome)
        else:
            self._settler.task_done(flight, stage, result, outcome)

    async def _lead(
        self, flight: Flight, stage: AnyStage, fingerprint: bytes, ask: Ask, replica: int
    ) -> Answer | RowError | Parked:
        mine: asyncio.Future[Answer | RowError | Parked | None] = asyncio.get_running_loop().create_future()
        self._asking[fingerprint] = mine
        durable = False
        answer: Answer | RowError | Parked | None = None
        try:
            earlier = await self.find(fingerprint, self.since(flight, stage))
            if earlier is not None:
                answer = Answer(Result(fingerprint, earlier.value, id=earlier.id), UNPARSED)
                # another row of this invocation asked it
                own = flight.asked_in_batch(stage.index, replica, fingerprint)
                if earlier.id > self._newest_before and not own:
                    self._collapsed(flight, stage, earlier.id, replica)
                self._settled(flight, stage, answer.result, Outcome.DONE if own else Outcome.REUSED, replica)
            elif not self._scope.may_ask(stage.name):
                answer = PARKED
            else:
                answer = await (ask() if replica else self.counted(stage, ask))
                if isinstance(answer, Answer):
                    durable = True
                    self._settled(flight, stage, answer.result, Outcome.DONE, replica)
                elif isinstance(answer, Parked):
                    durable = answer is Parked.ENROLLED
                else:
                    self._remember(fingerprint, answer)
        finally:
            mine.set_result(answer)
            if durable:  # until the commit a look-up would find neither it nor its place in a batch
                self._ledger.batch.on_durable.append(lambda: self._forget(fingerprint))
            else:
                del self._asking[fingerprint]
        return answer

    async def find(self, fingerprint: bytes, since: float) -> EarlierResult | None:
        """What the store has for a fingerprint, made at or after `since`."""
        return await self._lookup.find(fingerprint, since)

    async def counted(self, stage: AnyStage, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` brings, shown as a task in flight meanwhile."""
        own = self._totals.stage(stage.name)
        own.in_flight += 1
        try:
            return await ask()
        finally:
            own.in_flight -= 1

    def since(self, flight: Flight, stage: AnyStage) -> float:
        """From when on the stage's earlier results are taken, in seconds since 1970."""
        max_age = stage.max_age if isinstance(stage, PlannedStage) and not _has_had(flight, stage) else None
        if max_age is None and flight.again_from is None:
            return 0.0
        oldest = 0.0 if max_age is None else self._wall() - max_age
        return max(oldest, flight.takes_since(stage.index))

    def _forget(self, fingerprint: bytes) -> None:
        self._asking.pop(fingerprint, None)

    def _is_of_its_row(self, error: RowError) -> bool:
        """The row took too long, or spent too much, before it came here: another one may have its turn."""
        return error.type is ErrorType.BUDGET_EXCEEDED or (error.type is ErrorType.TIMEOUT and self._timed)

    def _remember(self, fingerprint: bytes, error: RowError) -> None:
        if self._is_of_its_row(error):
            return
        self._failed[fingerprint] = error
        if len(self._failed) > REMEMBERED_FAILURES:
            self._failed.popitem(last=False)


def _has_had(flight: Flight, stage: AnyStage) -> bool:
    """Whether the row goes on after a batch with what the stage gave it before: that grew old while the row waited."""
    if not (flight.resumed or flight.ready):
        return False
    prior = flight.prior.get(stage.index)
    return stage.replicas > 1 or (prior is not None and prior.outcome in (Outcome.DONE, Outcome.REUSED))


def value_of(answer: Answer) -> JSONValue:
    """The value of an answer, which may not have been read yet."""
    return json.loads(answer.result.value) if answer.value is UNPARSED else answer.value


async def _shielded(leader: asyncio.Future[T]) -> T:
    """Waits without ending what it waits for."""
    return await asyncio.shield(leader)


class _Unparsed:
    """Stands for a value that nobody needed as a value yet."""


UNPARSED: Any = _Unparsed()
