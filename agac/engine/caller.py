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

    `number` of them were begun; `ambiguous` of those that `connection`'s model was sent may have been billed without an
    answer. `replica`, from 1, says which of several answers to the question it is to bring; 0: the only one.
    `position` counts the stage's models from 0; `tried` says what became of those before; `quoted` re-asks of this one
    were made before. `reservation` is what is set aside
    for the call under way, `request` what it asks.
    """

    active: ActiveRow
    fingerprint: bytes
    connection: ModelConnection
    most: int
    replica: int = 0
    position: int = 0
    number: int = 0
    ambiguous: int = 0
    tried: tuple[str, ...] = ()
    quoted: int = 0
    reservation: Reservation | None = None
    request: Request | None = None

    def count(self) -> None:
        """Counts one more attempt. Raises CapReached at the cap."""
        if self.number >= self.most:
            raise CapReached(f"the task was asked {self.number} times, which is more than any retry is worth")
        self.number += 1

    def turn_to(self, connection: ModelConnection, error: RowError) -> None:
        """Turns to the next model, since this one ended in an error."""
        self.tried += (f"{self.connection.model.lane}: {error.type}",)
        self.connection, self.ambiguous, self.position, self.quoted = connection, 0, self.position + 1, 0

    def failed(self, error: RowError) -> RowError:
        """The last error, and what was tried before."""
        if not self.tried:
            return error
        return RowError(error.type, f"{error.message} (before that, {'; '.join(self.tried)})")


class Caller:
    """Asks tasks. `connections`: each stage's models in the order of use, by stage index."""

    def __init__(self, context: InvocationContext, connections: Mapping[int, tuple[ModelConnection, ...]]) -> None:
        self._run, self._connections = context.places.run, connections
        self._settler, self._stop_signal, self._budgets = context.settler, context.stop_signal, context.budgets
        self._wall, self._jitter = context.work.clocks.wall, context.work.clocks.jitter

    async def ask(
        self,
        active: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int = 0,
        *,
        position: int = 0,
        quoted: int = 0,
    ) -> Answer | RowError:
        """The answer, or the error with which the task fails. Raises RunStopped when the run stops before either.

        `position` is the first of the stage's models that is asked: those before it were, in batches. `quoted`: the
        request quotes what was wrong with replies to batches, as many of them."""
        first, *others = self._connections[stage.index][position:]
        most = max_calls(stage.repair, 1 + len(others))
        attempts = TaskAttempts(active, fingerprint, first, most, replica, position, quoted=quoted)
        try:
            given = (
                request_for_model(first.model, request, replica) if (replica or position) and not quoted else request
            )
            answer = await self._ask_model(attempts, given)
            for connection in others:
                if isinstance(answer, Answer):
                    return answer
                row_id, name, model = active.new.row.id, stage.name, connection.model.lane
                log_fields = fields(run=self._run, row=row_id, stage=name, model=model, error=answer.type.value)
                _log.info("row %r, stage %s: %s; asking %s", row_id, name, answer, model, extra=log_fields)
                attempts.turn_to(connection, answer)
                answer = await self._ask_model(attempts, request_for_model(connection.model, request, replica))
        except RowDeadlineExceeded:
            answer = RowError(ErrorType.TIMEOUT, str(active.deadline))
        except RowBudgetExceeded:
            answer = RowError(
                ErrorType.BUDGET_EXCEEDED, "row_budget: the next call could cost more than the row has left"
            )
        except CapReached as reached:
            answer = RowError(ErrorType.PROVIDER_ERROR, str(reached))
        return answer if isinstance(answer, Answer) else attempts.failed(answer)

    def wait(self, active: ActiveRow, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """Nothing is enrolled where tasks are called."""
        raise AssertionError("a task waits for a batch, and there is none")

    async def _ask_model(self, attempts: TaskAttempts, request: Request) -> Answer | RowError:
        """One model's answer, after as many re-asks as the stage grants for a reply of the wrong form."""
        first = "repair" if attempts.quoted else "fallback" if attempts.position else "ask"
        replied = await self._reply(attempts, request, first)
        if isinstance(replied, Fault):
            return RowError(replied.type, replied.message)
        checked = self._checked(attempts, replied, first)
        for _ in range(attempts.connection.stage.repair - attempts.quoted):
            if not (isinstance(checked, RowError) and checked.type is ErrorType.SCHEMA_MISMATCH):
                break
            again = await self._reply(attempts, repair_request(request, replied.reply, checked), "repair")
            if isinstance(again, Fault):
                return RowError(again.type, f"{again.message} (asked again because: {checked.message})")
            replied, checked = again, self._checked(attempts, again, "repair")
        return checked

    async def _reply(self, attempts: TaskAttempts, request: Request, purpose: str) -> ReplyRecord | Fault:
        """Sends until something is answered or the policy gives up."""
        wire = attempts.connection.write(request)
        attempts.request = request
        faults: Counter[FaultKind] = Counter()
        while True:
            sent = await self._send(attempts, wire)
            reply = attempts.connection.read(sent)
            if isinstance(reply, Reply):
                return ReplyRecord(reply, sent, attempts.number, again=faults.total() > 0)
            again = faults.total() > 0
            self._keep(attempts, fault_call(attempts.connection, sent, reply, attempts.number, purpose, again=again))
            attempts.ambiguous += reply.ambiguous
            faults[reply.kind] += 1
            match self._decided(attempts, reply, faults[reply.kind]):
                case FailTask():
                    if attempts.active.deadline.over:
                        raise RowDeadlineExceeded
                    return reply
                case StopRun():
                    self._stop_signal.fail(_with_wait(reply))
                    raise RunStopped
                case RetryAfter(delay, lane):
                    await self._wait(attempts, reply, delay, lane)

    async def _send(self, attempts: TaskAttempts, wire: EncodedRequest) -> CallResult:
        """Sends once, what it may cost at most being set aside until the attempt is kept."""
        active, connection = attempts.active, attempts.connection
        attempts.count()
        if self._budgets is None:
            return await connection.send(wire, active.deadline, self._settler.given_up)
        if active.budget is None:
            active.budget = self._budgets.row_balance()
        reserved = self._budgets.reserve(connection.stage.index, active.budget, connection.worst_case(wire.body))
        attempts.reservation = await active.deadline.wait(reserved)
        try:
            return await connection.send(wire, active.deadline, self._settler.given_up)
        except (RunStopped, RowDeadlineExceeded):  # it was not sent
            self._budgets.settle(attempts.reservation, NOTHING)
            raise
        except asyncio.CancelledError:  # perhaps it was
            self._budgets.settle(attempts.reservation, attempts.reservation.worst, attempts.reservation.worst)
            raise

    def _decided(self, attempts: TaskAttempts, fault: Fault, attempt: int) -> RetryAfter | FailTask | StopRun:
        """The policy's decision. Who has another model left does not stop for a long wait."""
        decision = decide(fault, attempt, attempts.ambiguous, self._jitter())
        others = len(self._connections[attempts.connection.stage.index]) - 1 - attempts.position
        if isinstance(decision, StopRun) and fault.kind is FaultKind.PAUSE and others:
            return FailTask()
        return decision

    async def _wait(self, attempts: TaskAttempts, fault: Fault, delay: float, lane: bool) -> None:
        row_id, stage = attempts.active.new.row.id, attempts.connection.stage.name
        log_fields = fields(
            run=self._run, row=row_id, stage=stage, model=attempts.connection.model.lane, attempt=attempts.number,
            status=fault.status, error=fault.type.value, wait_s=round(delay, 3),
        )  # fmt: skip
        _log.info("row %r, stage %s: %s; retrying in %.2f s", row_id, stage, fault.message, delay, extra=log_fields)
        self._settler.asked_again(RowError(fault.type, fault.message))
        if lane and attempts.connection.lane.pause(delay):
            model = attempts.connection.model.lane
            _log.warning("%s: %s; retrying in %.0f s", model, fault.message, delay, extra=log_fields)
        if not attempts.active.deadline.outlasts(delay):
            raise RowDeadlineExceeded
        await self._stop_signal.sleep(delay)

    def _checked(self, attempts: TaskAttempts, replied: ReplyRecord, purpose: str) -> Answer | RowError:
        """Checks a reply. Its attempt is kept with the reply itself, whatever the check says or raises."""
        connection = attempts.connection
        call = reply_call(connection, replied, purpose)
        try:
            checked = connection.checker.check(replied.reply)
        except BaseException:
            self._keep(attempts, call, replied.reply)
            raise
        if isinstance(checked, RowError):
            self._keep(attempts, replace(call, error=checked), replied.reply)
            return checked
        self._keep(attempts, replace(call, mended=True) if checked.mended else call, replied.reply)
        how = how_answered(purpose, attempts.position, mended=checked.mended)
        return Answer(Result(attempts.fingerprint, checked.text, call.endpoint, self._wall(), how=how), checked.value)

    def _keep(self, attempts: TaskAttempts, call: Call, reply: Reply | None = None) -> None:
        stage = attempts.connection.stage
        if self._budgets is not None and attempts.reservation is not None:
            real, unconfirmed = counted(call, attempts.reservation.worst)
            if unconfirmed is not NOTHING:
                call = replace(call, held_usd=unconfirmed.usd, held_tokens=unconfirmed.tokens)
            self._budgets.settle(attempts.reservation, real, unconfirmed)
            attempts.reservation = None
        self._settler.book.keep(attempts.active, stage, attempts.fingerprint, call, attempts.replica)
        if _log.isEnabledFor(logging.DEBUG):
            self._log(attempts, call, reply)

    def _log(self, attempts: TaskAttempts, call: Call, reply: Reply | None) -> None:
        assert attempts.request is not None
        row, connection = attempts.active.new.row.id, attempts.connection
        log_call(
            _log, call, attempts.request, reply,
            run=self._run, row=row, stage=connection.stage.name, model=connection.model.lane,
            redactor=connection.redactor, replica=attempts.replica,
        )  # fmt: skip


def _with_wait(fault: Fault) -> Fault:
    """A fault that stops a run because of its delay says so."""
    if fault.kind is FaultKind.FATAL or not fault.delay:
        return fault
    return replace(fault, message=f"{fault.message} It asks for a pause of {fault.delay / 60:,.0f} minutes.")
