"""One task asked of its models, with as many attempts as the policy grants: every one of them is stored.

A model is asked; a reply of the wrong form is asked again, `repair` times at most; when that brings no valid answer the
next model of `fallback` is asked. This is the only place that tries anything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import Fault, FaultKind, Reply, Request
from agac.engine.budget import NOTHING, Reservation, RowBudgetExceeded, counted
from agac.engine.context import InvocationContext
from agac.engine.effects import ActiveRow
from agac.engine.retry_policy import FailTask, RetryAfter, RowDeadlineExceeded, StopRun, decide, max_calls
from agac.engine.routes import CallResult, EncodedRequest, ModelConnection, request_for_model
from agac.engine.settle import ReplyRecord, fault_call, fields, how_answered, log_call, reply_call
from agac.engine.stop_rules import RunStopped
from agac.engine.validate import repair_request
from agac.plan.stage import PlannedStage
from agac.store.records import Call, Result

_log = logging.getLogger("agac.call")


class Answer(NamedTuple):
    """A task's result, with its value parsed."""

    result: Result
    value: object


class CapReached(Exception):
    """A task was about to be sent more often than any policy allows."""


@dataclass(slots=True)
class TaskAttempts:
    """The attempts of one task in one invocation, never more than `most`.

    `number` of them were begun; `ambiguous` of those that `line`'s model was sent may have been billed without an
    answer. `replica`, from 1, says which of several answers to the question it is to bring; 0: the only one.
    `position` counts the stage's models from 0; `tried` says what became of those before; `quoted` re-asks of this one
    were made before. `hold` is what is set aside
    for the call under way, `request` what it asks.
    """

    flight: ActiveRow
    fingerprint: bytes
    line: ModelConnection
    most: int
    replica: int = 0
    position: int = 0
    number: int = 0
    ambiguous: int = 0
    tried: tuple[str, ...] = ()
    quoted: int = 0
    hold: Reservation | None = None
    request: Request | None = None

    def count(self) -> None:
        """One more attempt. Raises CapReached, whoever has lost count."""
        if self.number >= self.most:
            raise CapReached(f"the task was asked {self.number} times, which is more than any retry is worth")
        self.number += 1

    def turn_to(self, line: ModelConnection, error: RowError) -> None:
        """Goes on with the next model, since this one ended in an error."""
        self.tried += (f"{self.line.model.lane}: {error.type}",)
        self.line, self.ambiguous, self.position, self.quoted = line, 0, self.position + 1, 0

    def failed(self, error: RowError) -> RowError:
        """The last error, and what was tried before."""
        if not self.tried:
            return error
        return RowError(error.type, f"{error.message} (before that, {'; '.join(self.tried)})")


class Caller:
    """Asks tasks. `lines` holds each stage's models in the order in which they are asked, by the stage's index."""

    def __init__(self, context: InvocationContext, lines: Mapping[int, tuple[ModelConnection, ...]]) -> None:
        self._run, self._lines = context.places.run, lines
        self._settler, self._control, self._purse = context.settler, context.control, context.purse
        self._wall, self._spread = context.work.clocks.wall, context.work.clocks.spread

    async def ask(
        self,
        flight: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int = 0,
        *,
        position: int = 0,
        quoted: int = 0,
    ) -> Answer | RowError:
        """The answer, or the error with which the task fails. Raises Halted when the run stops before either.

        `position` is the first of the stage's models that is asked: those before it were, in batches. `quoted`: the
        request quotes what was wrong with replies to batches, as many of them."""
        first, *others = self._lines[stage.index][position:]
        most = max_calls(stage.repair, 1 + len(others))
        asking = TaskAttempts(flight, fingerprint, first, most, replica, position, quoted=quoted)
        try:
            given = (
                request_for_model(first.model, request, replica) if (replica or position) and not quoted else request
            )
            answer = await self._ask_model(asking, given)
            for line in others:
                if isinstance(answer, Answer):
                    return answer
                row_id, name, model = flight.new.row.id, stage.name, line.model.lane
                told = fields(run=self._run, row=row_id, stage=name, model=model, error=answer.type.value)
                _log.info("row %r, stage %s: %s; asking %s", row_id, name, answer, model, extra=told)
                asking.turn_to(line, answer)
                answer = await self._ask_model(asking, request_for_model(line.model, request, replica))
        except RowDeadlineExceeded:
            answer = RowError(ErrorType.TIMEOUT, str(flight.patience))
        except RowBudgetExceeded:
            answer = RowError(
                ErrorType.BUDGET_EXCEEDED, "row_budget: the next call could cost more than the row has left"
            )
        except CapReached as reached:
            answer = RowError(ErrorType.PROVIDER_ERROR, str(reached))
        return answer if isinstance(answer, Answer) else asking.failed(answer)

    async def _ask_model(self, asking: TaskAttempts, request: Request) -> Answer | RowError:
        """One model's answer, after as many re-asks as the stage grants for a reply of the wrong form."""
        first = "repair" if asking.quoted else "fallback" if asking.position else "ask"
        replied = await self._reply(asking, request, first)
        if isinstance(replied, Fault):
            return RowError(replied.type, replied.message)
        checked = self._checked(asking, replied, first)
        for _ in range(asking.line.stage.repair - asking.quoted):
            if not (isinstance(checked, RowError) and checked.type is ErrorType.SCHEMA_MISMATCH):
                break
            again = await self._reply(asking, repair_request(request, replied.reply, checked), "repair")
            if isinstance(again, Fault):
                return RowError(again.type, f"{again.message} (asked again because: {checked.message})")
            replied, checked = again, self._checked(asking, again, "repair")
        return checked

    async def _reply(self, asking: TaskAttempts, request: Request, purpose: str) -> ReplyRecord | Fault:
        """Sends until something is answered or the policy gives up."""
        wire = asking.line.write(request)
        asking.request = request
        faults: Counter[FaultKind] = Counter()
        while True:
            sent = await self._send(asking, wire)
            reply = asking.line.read(sent)
            if isinstance(reply, Reply):
                return ReplyRecord(reply, sent, asking.number, again=faults.total() > 0)
            again = faults.total() > 0
            self._keep(asking, fault_call(asking.line, sent, reply, asking.number, purpose, again=again))
            asking.ambiguous += reply.ambiguous
            faults[reply.kind] += 1
            match self._decided(asking, reply, faults[reply.kind]):
                case FailTask():
                    if asking.flight.patience.over:
                        raise RowDeadlineExceeded
                    return reply
                case StopRun():
                    self._control.fail(_with_wait(reply))
                    raise RunStopped
                case RetryAfter(delay, lane):
                    await self._wait(asking, reply, delay, lane)

    async def _send(self, asking: TaskAttempts, wire: EncodedRequest) -> CallResult:
        """Sends once, what it may cost at most being set aside until the attempt is kept."""
        flight, line = asking.flight, asking.line
        asking.count()
        if self._purse is None:
            return await line.send(wire, flight.patience, self._settler.given_up)
        if flight.purse is None:
            flight.purse = self._purse.row_pot()
        reserved = self._purse.reserve(line.stage.index, flight.purse, line.worst_case(wire.body))
        asking.hold = await flight.patience.wait(reserved)
        try:
            return await line.send(wire, flight.patience, self._settler.given_up)
        except (RunStopped, RowDeadlineExceeded):  # it was not sent
            self._purse.settle(asking.hold, NOTHING)
            raise
        except asyncio.CancelledError:  # perhaps it was
            self._purse.settle(asking.hold, asking.hold.worst, asking.hold.worst)
            raise

    def _decided(self, asking: TaskAttempts, fault: Fault, attempt: int) -> RetryAfter | FailTask | StopRun:
        """The policy's decision. Who has another model left does not stop for a long wait."""
        decision = decide(fault, attempt, asking.ambiguous, self._spread())
        others = len(self._lines[asking.line.stage.index]) - 1 - asking.position
        if isinstance(decision, StopRun) and fault.kind is FaultKind.PAUSE and others:
            return FailTask()
        return decision

    async def _wait(self, asking: TaskAttempts, fault: Fault, delay: float, lane: bool) -> None:
        row_id, stage = asking.flight.new.row.id, asking.line.stage.name
        told = fields(
            run=self._run, row=row_id, stage=stage, model=asking.line.model.lane, attempt=asking.number,
            status=fault.status, error=fault.type.value, wait_s=round(delay, 3),
        )  # fmt: skip
        _log.info("row %r, stage %s: %s; again in %.2f s", row_id, stage, fault.message, delay, extra=told)
        self._settler.asked_again(RowError(fault.type, fault.message))
        if lane and asking.line.lane.pause(delay):
            model = asking.line.model.lane
            _log.warning("%s: %s; it is asked again in %.0f s", model, fault.message, delay, extra=told)
        if not asking.flight.patience.outlasts(delay):
            raise RowDeadlineExceeded
        await self._control.sleep(delay)

    def _checked(self, asking: TaskAttempts, replied: ReplyRecord, purpose: str) -> Answer | RowError:
        """Checks a reply. Its attempt is kept with the reply itself, whatever the check says or raises."""
        line = asking.line
        call = reply_call(line, replied, purpose)
        try:
            checked = line.checker.check(replied.reply)
        except BaseException:
            self._keep(asking, call, replied.reply)
            raise
        if isinstance(checked, RowError):
            self._keep(asking, replace(call, error=checked), replied.reply)
            return checked
        self._keep(asking, replace(call, mended=True) if checked.mended else call, replied.reply)
        how = how_answered(purpose, asking.position, mended=checked.mended)
        return Answer(Result(asking.fingerprint, checked.text, call.endpoint, self._wall(), how=how), checked.value)

    def _keep(self, asking: TaskAttempts, call: Call, reply: Reply | None = None) -> None:
        stage = asking.line.stage
        if self._purse is not None and asking.hold is not None:
            real, unsure = counted(call, asking.hold.worst)
            if unsure is not NOTHING:
                call = replace(call, held_usd=unsure.usd, held_tokens=unsure.tokens)
            self._purse.settle(asking.hold, real, unsure)
            asking.hold = None
        self._settler.call(asking.flight, stage, asking.fingerprint, call, asking.replica)
        if _log.isEnabledFor(logging.DEBUG):
            self._log(asking, call, reply)

    def _log(self, asking: TaskAttempts, call: Call, reply: Reply | None) -> None:
        assert asking.request is not None
        row, line = asking.flight.new.row.id, asking.line
        log_call(
            _log, call, asking.request, reply,
            run=self._run, row=row, stage=line.stage.name, model=line.model.lane, redactor=line.redactor,
            replica=asking.replica,
        )  # fmt: skip


def _with_wait(fault: Fault) -> Fault:
    """A fault that stops a run because of its delay says so."""
    if fault.kind is FaultKind.FATAL or not fault.delay:
        return fault
    return replace(fault, message=f"{fault.message} It asks for a pause of {fault.delay / 60:,.0f} minutes.")
