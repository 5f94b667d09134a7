"""The attempts of one task, as many as the policy grants: every one of them is stored. A model is
asked; a reply of the wrong form is asked again, `repair` times at most; when that brings no valid
answer the next model of `fallback` is asked. This is the only place that tries anything again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agac.core.errors import REPAIRED, ErrorType, RowError
from agac.core.types import Fault, FaultKind, Finish, JSONValue, Reply, Request
from agac.engine.ask import limits
from agac.engine.ask.answers import Answer, TaskRequest
from agac.engine.ask.attempts import CapReached, TaskAttempts, fields, log_call
from agac.engine.ask.connections import ModelConnection, Sent, request_for_model
from agac.engine.ask.limits import Amount, BudgetLimiter, Reservation, RowBudgetExceeded
from agac.engine.ask.retry_policy import (
    FailTask,
    RetryAfter,
    RowDeadlineExceeded,
    StopRun,
    decide,
    max_calls,
    with_end_of_pause,
)
from agac.engine.ask.validate import ValidReply, repair_request
from agac.engine.context import InvocationContext
from agac.engine.invocation import OutgoingCall, ShownReplies
from agac.engine.settle import how_answered
from agac.engine.stop_rules import RunStopped
from agac.plan.render import Prepared
from agac.plan.stage import PlannedStage
from agac.providers.citations import sources_of_turns
from agac.store.records import Attempt, Call, HeldAmount, Result

if TYPE_CHECKING:
    from agac.engine.workers.chunks import WorkerCalls

_log = logging.getLogger("agac.call")


AskModel = Callable[[TaskAttempts, Request], Awaitable[Answer | RowError]]
"""Asks the model of the attempts' connection."""

Judge = Callable[[Reply], ValidReply | RowError | None]
"""Decides what a reply is worth; None: the conversation that it belongs to continues."""

Faults = dict[tuple[FaultKind, bool], int]
"""How often a request ended in each kind of fault, those of lost workers apart."""


class Caller:
    """Asks models. Each method from `ask` to `_send_once` adds one thing to the next: the models
    of the stage in turn, re-asks, retries, budgets."""

    def __init__(
        self,
        context: InvocationContext,
        connections: Mapping[int, tuple[ModelConnection, ...]],
        workers: WorkerCalls | None = None,
    ) -> None:
        """`connections` has the models of each stage in order of use, by the stage's index."""
        self._run = context.places.run
        self.connections = connections
        self._workers = workers
        self._settler = context.settler
        self._stop_signal = context.stop_signal
        self._budgets = context.budgets
        self._wall = context.work.clocks.wall
        self._jitter = context.work.clocks.jitter
        self._totals = context.totals
        self._proof = context.proof
        self._replies = context.work.hooks.replies
        self._answers = context.work.hooks.answers
        self._traces = context.traces
        self._ledger = context.ledger
        self._sharding = context.work.sharding
        self._keys = context.keys

    def begin(
        self,
        asked: TaskRequest,
        request: Request | None = None,
        *,
        position: int = 0,
        quoted: int = 0,
    ) -> TaskAttempts:
        """Makes the attempts of a task, with its own request or another one. `position` is the
        first of the stage's models to ask: those before it were asked in batches. `quoted`: the
        request quotes what was wrong with so many replies to batches."""
        stage = asked.stage
        assert isinstance(stage, PlannedStage)
        assert isinstance(asked.task, Prepared)
        models = self.connections[stage.index]
        models_left = len(models) - position
        return TaskAttempts(
            asked,
            models[position],
            max_calls(
                stage.settings.repair,
                models_left,
                stage.settings.retries.attempts,
                stage.most_turns,
            ),
            asked.task.request if request is None else request,
            position,
            quoted,
        )

    def ask(self, asked: TaskRequest) -> Awaitable[Answer | RowError]:
        """Asks a stage without tools. See AnswerSource."""
        return self.ask_in_turn(self.begin(asked), self._ask_model)

    def answer(self, attempts: TaskAttempts) -> Awaitable[Answer | RowError]:
        """Gets the answer, or the error with which the task fails. Raises RunStopped when the run
        stops before either."""
        return self.ask_in_turn(attempts, self._ask_model)

    async def ask_in_turn(self, attempts: TaskAttempts, ask_model: AskModel) -> Answer | RowError:
        """Asks the models of a stage by `ask_model`, one after the other, until one answers."""
        tried = list[str]()
        request = attempts.request
        models = self.connections[attempts.connection.stage.index]
        try:
            answer = await ask_model(attempts, request)
            for connection in models[attempts.position + 1 :]:
                if isinstance(answer, Answer) or attempts.talk.changed:
                    break
                tried.append(f"{attempts.connection.model.lane}: {answer.type}")
                self._turn_to(connection, attempts, answer)
                answer = await ask_model(attempts, request)
        except RowDeadlineExceeded:
            answer = RowError(ErrorType.TIMEOUT, str(attempts.asked.row.deadline))
        except RowBudgetExceeded:
            spent = "row_budget: the next call could cost more than the row has left"
            answer = RowError(ErrorType.BUDGET_EXCEEDED, spent)
        except CapReached as reached:
            answer = RowError(ErrorType.PROVIDER_ERROR, str(reached))
        if tried and isinstance(answer, RowError):
            before = "; ".join(tried)
            return replace(answer, message=f"{answer.message} (before that, {before})")
        return answer

    def _turn_to(
        self, connection: ModelConnection, attempts: TaskAttempts, error: RowError
    ) -> None:
        """Turns to the next model of the stage, after one that failed with the error."""
        attempts.connection = connection
        attempts.ambiguous = 0
        attempts.quoted = 0
        attempts.position += 1
        row_id = attempts.asked.row.new.row.id
        stage = connection.stage.name
        about = self._about(attempts, error=error.type.value)
        lane = connection.model.lane
        _log.info("row %r, stage %s: %s; asking %s", row_id, stage, error, lane, extra=about)

    async def _ask_model(self, attempts: TaskAttempts, request: Request) -> Answer | RowError:
        """Asks one model, and again with what was wrong, as often as the stage grants that, while
        replies have the wrong form."""
        connection = attempts.connection
        repairs_left = connection.stage.settings.repair - attempts.quoted
        if attempts.quoted:
            attempts.purpose = "repair"
        else:
            attempts.purpose = "fallback" if attempts.position else "ask"
            if attempts.position or attempts.asked.replica:
                request = request_for_model(
                    connection.model, request, attempts.position, attempts.asked.replica
                )
        attempts.request = request
        asked_again_because = ""
        replies: list[Reply] = []
        while True:
            reply, worth = await self.send(attempts)
            assert worth is not None
            if isinstance(reply, Fault):
                assert isinstance(worth, RowError)
                return RowError(worth.type, f"{worth.message}{asked_again_because}")
            replies.append(reply)
            if isinstance(worth, ValidReply):
                return self._answer_of(attempts, worth, replies)
            if reply.finish is Finish.PAUSED:
                # it continues once its message is sent back
                messages = (*attempts.request.messages, reply.message())
                attempts.request = replace(attempts.request, messages=messages)
                continue
            if repairs_left <= 0 or worth.type not in REPAIRED:
                return worth
            repairs_left -= 1
            asked_again_because = f" (asked again because: {worth.message})"
            wants_json = connection.stage.wants_json
            attempts.request = repair_request(request, reply, worth, wants_json=wants_json)
            attempts.purpose = "repair"

    def _answer_of(self, attempts: TaskAttempts, valid: ValidReply, replies: list[Reply]) -> Answer:
        """Makes the answer of the last of these replies, which is valid."""
        assert attempts.last is not None
        result = Result(
            attempts.asked.fingerprint,
            valid.text,
            attempts.last.endpoint,
            self._wall(),
            how=how_answered(attempts.purpose, attempts.position, valid),
        )
        result.sources = sources_of_turns(replies)
        return Answer(result, valid.value)

    async def send(
        self, attempts: TaskAttempts, judge: Judge | None = None
    ) -> tuple[Reply | Fault, ValidReply | RowError | None]:
        """Sends the request, and again after faults, until a reply comes or the policy gives up.
        Returns the reply with its worth, as `judge` or the check of the stage finds it; or the last
        fault with its error. Raises CapReached."""
        connection = attempts.connection
        provider = connection.model.provider
        body = connection.body(attempts.request)
        faults: Faults = {}
        # a connection that was lost may have been in the pool for too long
        fresh = False
        while True:
            if attempts.number >= attempts.most:
                raise CapReached(
                    f"the task was asked {attempts.number} times, which is more than any "
                    "retry is worth"
                )
            attempts.number += 1
            attempt = attempts.attempt(again=bool(faults))
            if self._replies is None:
                answer, call = await self._send_once(attempts, attempt, body, fresh=fresh)
            else:
                answer, call = await self._show(self._replies, attempts, attempt, body, fresh=fresh)
            if isinstance(answer, Reply):
                self._keys.answered(provider)
                worth = None
                try:
                    if judge is not None:
                        worth = judge(answer)
                    else:
                        worth = connection.check(answer, attempts.asked.row.view)
                finally:
                    # the attempt is kept with the reply itself, whatever the check says or raises
                    self._keep(attempts, call, answer, worth)
                return answer, worth
            self._keep(attempts, call, None, RowError(answer.type, answer.message))
            # only now: whoever waits for other answers must hold no place and no part of a budget
            fault = await self._keys.judged(provider, answer)
            if not await self._tries_again(attempts, fault, faults):
                return fault, RowError(fault.type, fault.message)
            fresh = call.status is None

    async def _tries_again(self, attempts: TaskAttempts, fault: Fault, faults: Faults) -> bool:
        """Counts a fault, and waits as long as the policy says before the same request is sent
        again. False: it is not. Raises RunStopped."""
        is_lost = fault.type is ErrorType.WORKER_LOST  # the provider is not to blame
        attempts.ambiguous += fault.ambiguous and not is_lost
        kind = (fault.kind, is_lost)
        faults[kind] = faults.get(kind, 0) + 1
        stage = attempts.connection.stage
        decision = decide(
            fault,
            faults[kind],
            attempts.ambiguous,
            self._jitter(),
            stage.settings.retries,
            has_alternative=attempts.position + 1 < len(stage.models),
            waited=attempts.asked.row.used.waited,
        )
        match decision:
            case FailTask():
                if attempts.asked.row.deadline.over:
                    raise RowDeadlineExceeded
                return False
            case StopRun():
                self._stop_signal.fail(with_end_of_pause(fault, self._wall()))
                raise RunStopped
            case RetryAfter(delay, lane):
                await self._wait(attempts, fault, delay, lane)
                return True

    async def _show(
        self,
        replies: ShownReplies,
        attempts: TaskAttempts,
        attempt: Attempt,
        body: bytes,
        *,
        fresh: bool,
    ) -> Sent:
        """Sends when no other call is under way, and shows what comes."""
        stage = attempts.connection.stage.name if len(self.connections) > 1 else ""
        about = {
            "stage": stage,
            "replica": attempt.replica,
            "attempt": attempt.number if attempt.number > 1 else 0,
        }
        more = "".join(f", {name} {value}" for name, value in about.items() if value)
        async with replies.turn:
            replies.begin(f"row {attempts.asked.row.new.row.id}{more}")
            return await self._send_once(attempts, attempt, body, fresh=fresh)

    async def _send_once(
        self, attempts: TaskAttempts, attempt: Attempt, body: bytes, *, fresh: bool
    ) -> Sent:
        """Sends once it is proved that the answer can be kept. Where there are budgets, the most
        that it may cost is reserved until the attempt is kept."""
        connection = attempts.connection
        if self._answers is not None or self._workers is not None:
            connection = self._diverted(attempts, connection)
        if not self._proof.made:
            await self._proof.make()
        if self._sharding is not None:
            await self._sharding.prove(self._stop_signal)
        if self._budgets is not None:
            await self._reserve(self._budgets, attempts, connection.worst_case(body))
        try:
            with self._keys.sending(connection.model.provider):
                return await connection.send(
                    attempt,
                    attempts.request,
                    body,
                    attempts.asked.row.deadline,
                    self._settler.given_up,
                    fresh=fresh,
                )
        except (RunStopped, RowDeadlineExceeded):  # it was not sent
            self._release(attempts.reservation, limits.NOTHING)
            raise
        except asyncio.CancelledError:  # perhaps it was
            if attempts.reservation is not None:
                self._release(attempts.reservation, attempts.reservation.worst)
            raise

    @staticmethod
    async def _reserve(budgets: BudgetLimiter, attempts: TaskAttempts, worst: Amount) -> None:
        """Reserves the most that a call can cost. Raises RunStopped, RowBudgetExceeded and
        RowDeadlineExceeded."""
        row = attempts.asked.row
        if row.used.budget is None:
            row.used.budget = budgets.row_balance()
        reserved = budgets.reserve(attempts.stage.name, row.used.budget, worst)
        attempts.reservation = await row.deadline.wait(reserved)

    def _release(self, reservation: Reservation | None, spent: Amount) -> None:
        """Counts a call that ended without an answer as `spent`, all of which is unconfirmed."""
        if self._budgets is not None and reservation is not None:
            self._budgets.settle(reservation, spent, spent)

    def _diverted(self, attempts: TaskAttempts, connection: ModelConnection) -> ModelConnection:
        """Returns the connection with another sender: the answers of a test, or workers."""
        if self._answers is not None:
            row_id = attempts.asked.row.new.row.id
            call = OutgoingCall(connection.stage, connection.model, row_id, attempts.request)
            send = partial(self._answers.send, call, connection.sender.send)
            return replace(connection, through=send)
        if self._workers is not None and connection.by_workers:
            return replace(connection, through=self._workers.through(attempts, connection))
        return connection

    async def _wait(self, attempts: TaskAttempts, fault: Fault, delay: float, lane: bool) -> None:
        """Waits before the next attempt; with the whole lane where that is asked for."""
        connection = attempts.connection
        row_id = attempts.asked.row.new.row.id
        stage = connection.stage.name
        message = fault.message
        about = self._about(
            attempts,
            attempt=attempts.number,
            status=fault.status,
            error=fault.type.value,
            wait_s=round(delay, 3),
        )
        text = "row %r, stage %s: %s; retrying in %.2f s"
        _log.info(text, row_id, stage, message, delay, extra=about)
        self._totals.calls.waiting_for = RowError(fault.type, message)
        if lane and connection.lane.pause(delay):
            name = connection.model.lane
            _log.warning("%s: %s; retrying in %.0f s", name, message, delay, extra=about)
        if not attempts.asked.row.deadline.outlasts(delay):
            raise RowDeadlineExceeded
        attempts.asked.row.used.waited += delay
        await self._stop_signal.sleep(delay)

    def _about(self, attempts: TaskAttempts, **more: JSONValue) -> dict[str, Any]:
        """Returns the `extra` of a log record about a task."""
        connection = attempts.connection
        about = {
            "row": attempts.asked.row.new.row.id,
            "stage": connection.stage.name,
            "model": connection.model.lane,
        }
        return fields(run=self._run, **about, **more, **attempts.asked.row.log_fields)

    def _keep(
        self,
        attempts: TaskAttempts,
        call: Call,
        reply: Reply | None,
        worth: ValidReply | RowError | None,
    ) -> None:
        """Stores a call with what was found of its reply, and counts what it cost."""
        if isinstance(worth, RowError):
            call = call._replace(error=worth)
        elif worth is not None and worth.mended:
            call = call._replace(mended=True)
        if attempts.given is not None:
            self._ledger.batch.calls.answered.append(attempts.given)
            attempts.given = None
        if self._budgets is not None and attempts.reservation is not None:
            real, unconfirmed = limits.counted(call, attempts.reservation.worst)
            if unconfirmed is not limits.NOTHING:
                call = call._replace(held=HeldAmount(unconfirmed.usd, unconfirmed.tokens))
            self._budgets.settle(attempts.reservation, real, unconfirmed)
            attempts.reservation = None
        attempts.last = call
        self._settler.keep_call(attempts.asked.row, attempts.stage, call)
        if self._traces is not None:
            self._traces.called(attempts, call, reply)
        if self._replies:
            self._replies.ended(reply.text if reply else "", str(call.error or ""))
        if _log.isEnabledFor(logging.DEBUG):
            log_call(self._run, attempts, call, reply)
