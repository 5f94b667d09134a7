"""The attempts of one task, as many as the policy grants: every one of them is stored. A model is
asked; a reply of the wrong form is asked again, `repair` times at most; when that brings no valid
answer the next model of `fallback` is asked. This is the only place that tries anything again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agac.core.errors import REPAIRED, ErrorType, RowError
from agac.core.types import Fault, FaultKind, Finish, JSONValue, Reply, Request
from agac.engine.ask import limits
from agac.engine.ask.answers import Answer, TaskRequest
from agac.engine.ask.attempts import CapReached, TaskAttempts, call_of, fields, log_call
from agac.engine.ask.connections import CallResult, ModelConnection, request_for_model
from agac.engine.ask.limits import RowBudgetExceeded
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
from agac.store.records import Result

if TYPE_CHECKING:
    from agac.engine.workers.chunks import WorkerCalls

_log = logging.getLogger("agac.call")


AskModel = Callable[[TaskAttempts, Request], Awaitable[Answer | RowError]]
"""Asks the model of the attempts' connection."""

Judge = Callable[[Reply], ValidReply | RowError | None]
"""Finds what a reply is worth; None: the conversation that it belongs to continues."""


class Caller:
    """Asks models. `connections` has the models of each stage in order of use, by the stage's
    index."""

    def __init__(
        self,
        context: InvocationContext,
        connections: Mapping[int, tuple[ModelConnection, ...]],
        workers: WorkerCalls | None = None,
    ) -> None:
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
        self._replies = context.work.replies
        self._answers = context.work.answers
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
        left = len(models) - position
        return TaskAttempts(
            asked.row,
            asked.fingerprint,
            models[position],
            max_calls(stage.repair, left, stage.retries.attempts, stage.most_turns),
            asked.task.request if request is None else request,
            asked.replica,
            position,
            quoted,
        )

    def ask(self, asked: TaskRequest) -> Awaitable[Answer | RowError]:
        """Asks a stage without tools. See AnswerSource."""
        return self.in_turn(self.begin(asked), self._ask_model)

    def answer(self, attempts: TaskAttempts) -> Awaitable[Answer | RowError]:
        """Gets the answer, or the error with which the task fails. Raises RunStopped when the run
        stops before either."""
        return self.in_turn(attempts, self._ask_model)

    async def in_turn(self, attempts: TaskAttempts, ask_model: AskModel) -> Answer | RowError:
        """Asks the models of a stage by `ask_model`, one after the other, until one answers."""
        tried = list[str]()
        request = attempts.request
        models = self.connections[attempts.connection.stage.index]
        try:
            answer = await ask_model(attempts, request)
            for connection in models[attempts.position + 1 :]:
                if isinstance(answer, Answer) or attempts.changed:
                    break
                tried.append(f"{attempts.connection.model.lane}: {answer.type}")
                self._turn_to(connection, attempts, answer)
                answer = await ask_model(attempts, request)
        except RowDeadlineExceeded:
            answer = RowError(ErrorType.TIMEOUT, str(attempts.active.deadline))
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
        row = attempts.active.new.row.id
        stage = connection.stage.name
        about = self._about(attempts, error=error.type.value)
        lane = connection.model.lane
        _log.info("row %r, stage %s: %s; asking %s", row, stage, error, lane, extra=about)

    async def _ask_model(self, attempts: TaskAttempts, request: Request) -> Answer | RowError:
        """One model's answer, after as many re-asks as the stage grants for a reply of the wrong
        form."""
        connection = attempts.connection
        left = connection.stage.repair - attempts.quoted
        why = ""
        if not attempts.quoted:
            request = request_for_model(
                connection.model, request, attempts.position, attempts.replica
            )
        if attempts.quoted:
            attempts.purpose = "repair"
        elif attempts.position:
            attempts.purpose = "fallback"
        else:
            attempts.purpose = "ask"
        attempts.request = request
        replies: list[Reply] = []
        while True:
            reply, answer = await self.reply(attempts)
            assert answer is not None
            replies += [reply] if isinstance(reply, Reply) else []
            if isinstance(answer, ValidReply):
                assert attempts.last is not None
                how = how_answered(attempts.purpose, attempts.position, answer)
                made = Result(
                    attempts.fingerprint, answer.text, attempts.last.endpoint, self._wall(), how=how
                )
                made.sources = sources_of_turns(replies)
                return Answer(made, answer.value)
            if isinstance(reply, Fault):
                return RowError(answer.type, f"{answer.message}{why}")
            if reply.finish is Finish.PAUSED:  # it goes on where its message is sent back
                attempts.request = replace(
                    attempts.request, messages=(*attempts.request.messages, reply.message())
                )
                continue
            if left <= 0 or answer.type not in REPAIRED:
                return answer
            left = left - 1
            why = f" (asked again because: {answer.message})"
            wants_json = attempts.connection.stage.wants_json
            attempts.request = repair_request(request, reply, answer, wants_json=wants_json)
            attempts.purpose = "repair"

    async def reply(
        self, attempts: TaskAttempts, judge: Judge | None = None
    ) -> tuple[Reply | Fault, ValidReply | RowError | None]:
        """Sends until an answer comes or the policy gives up; gives a reply with its worth, as
        `judge` finds it, or the check of the stage. Raises CapReached."""
        connection = attempts.connection
        faults = Counter[tuple[FaultKind, bool]]()
        # a lost connection may have lain in the pool too long
        body = connection.body(attempts.request)
        fresh = False
        while True:
            if attempts.number >= attempts.most:
                raise CapReached(
                    f"the task was asked {attempts.number} times, which is more than any "
                    "retry is worth"
                )
            attempts.number += 1
            send = partial(self._shown, self._replies) if self._replies else self._send
            sent = await send(attempts, body, fresh=fresh)
            reply = sent.answer
            again = bool(faults)
            fresh = sent.status is None
            if isinstance(reply, Reply):
                self._keys.answered(connection.model.provider)
                checked = None
                try:
                    if judge is not None:
                        checked = judge(reply)
                    else:
                        checked = connection.check(reply, attempts.active.view)
                finally:
                    # the attempt is kept with the reply itself, whatever the check says or raises
                    self._keep(attempts, sent, checked, again=again)
                return reply, checked
            self._keep(attempts, sent, RowError(reply.type, reply.message), again=again)
            # only now: whoever waits for other answers must hold no place and no part of a budget
            reply = await self._keys.judged(connection.model.provider, reply)
            error = RowError(reply.type, reply.message)
            lost = reply.type is ErrorType.WORKER_LOST  # the provider is not to blame
            attempts.ambiguous += reply.ambiguous and not lost
            faults[reply.kind, lost] += 1
            has_next = attempts.position + 1 < len(connection.stage.models)
            counts = faults[reply.kind, lost], attempts.ambiguous
            rules = connection.stage.retries
            waited = attempts.active.waited
            match decide(
                reply, *counts, self._jitter(), rules, has_alternative=has_next, waited=waited
            ):
                case FailTask():
                    if attempts.active.deadline.over:
                        raise RowDeadlineExceeded
                    return reply, error
                case StopRun():
                    self._stop_signal.fail(with_end_of_pause(reply, self._wall()))
                    raise RunStopped
                case RetryAfter(delay, lane):
                    await self._wait(attempts, reply, delay, lane)

    async def _shown(
        self, replies: ShownReplies, attempts: TaskAttempts, body: bytes, *, fresh: bool
    ) -> CallResult:
        """Sends when no other call is under way, and shows what comes."""
        stage = attempts.connection.stage.name if len(self.connections) > 1 else ""
        about = {
            "stage": stage,
            "replica": attempts.replica,
            "attempt": attempts.number if attempts.number > 1 else 0,
        }
        more = "".join(f", {name} {what}" for name, what in about.items() if what)
        async with replies.turn:
            replies.begin(f"row {attempts.active.new.row.id}{more}")
            return await self._send(attempts, body, fresh=fresh)

    async def _send(self, attempts: TaskAttempts, body: bytes, *, fresh: bool) -> CallResult:
        """Sends once. Where there are budgets, what it may cost at most is set aside until the
        attempt is kept."""
        active = attempts.active
        connection = attempts.connection
        budgets = self._budgets
        if self._answers is not None or self._workers is not None:
            connection = self._diverted(attempts, connection)
        if not self._proof.made:
            await self._proof.make()
        if self._sharding is not None:
            await self._sharding.prove(self._stop_signal)
        given_up = self._settler.given_up
        provider = connection.model.provider
        if budgets is None:
            with self._keys.sending(provider):
                return await connection.send(
                    attempts.request, body, active.deadline, given_up, fresh=fresh
                )
        if active.budget is None:
            active.budget = budgets.row_balance()
        reserved = budgets.reserve(attempts.stage.name, active.budget, connection.worst_case(body))
        reservation = attempts.reservation = await active.deadline.wait(reserved)
        try:
            with self._keys.sending(provider):
                return await connection.send(
                    attempts.request, body, active.deadline, given_up, fresh=fresh
                )
        except (RunStopped, RowDeadlineExceeded):  # it was not sent
            budgets.settle(reservation, limits.NOTHING)
            raise
        except asyncio.CancelledError:  # perhaps it was
            budgets.settle(reservation, reservation.worst, reservation.worst)
            raise

    def _diverted(self, attempts: TaskAttempts, connection: ModelConnection) -> ModelConnection:
        """The connection, with what sends in the place of its sender: the answers of a test, or
        workers."""
        if self._answers is not None:
            row_id = attempts.active.new.row.id
            call = OutgoingCall(connection.stage, connection.model, row_id, attempts.request)
            send = partial(self._answers.send, call, connection.sender.send)
            return replace(connection, through=send)
        if self._workers is not None and connection.by_workers:
            return replace(connection, through=self._workers.through(attempts, connection))
        return connection

    async def _wait(self, attempts: TaskAttempts, fault: Fault, delay: float, lane: bool) -> None:
        """Waits before the next attempt; with the whole lane where that is asked for."""
        connection = attempts.connection
        said = (fault.message, delay)
        about = self._about(
            attempts,
            attempt=attempts.number,
            status=fault.status,
            error=fault.type.value,
            wait_s=round(delay, 3),
        )
        of_row = attempts.active.new.row.id, connection.stage.name
        _log.info("row %r, stage %s: %s; retrying in %.2f s", *of_row, *said, extra=about)
        self._totals.waiting_for = RowError(fault.type, fault.message)
        if lane and connection.lane.pause(delay):
            _log.warning("%s: %s; retrying in %.0f s", connection.model.lane, *said, extra=about)
        if not attempts.active.deadline.outlasts(delay):
            raise RowDeadlineExceeded
        attempts.active.waited += delay
        await self._stop_signal.sleep(delay)

    def _about(self, attempts: TaskAttempts, **more: JSONValue) -> dict[str, Any]:
        """The `extra` of a log record about a task."""
        active = attempts.active
        connection = attempts.connection
        about = {
            "row": active.new.row.id,
            "stage": connection.stage.name,
            "model": connection.model.lane,
        }
        return fields(run=self._run, **about, **more, **active.log_fields)

    def _keep(
        self,
        attempts: TaskAttempts,
        sent: CallResult,
        checked: ValidReply | RowError | None,
        *,
        again: bool,
    ) -> None:
        """Stores an attempt, at the price of the tier that served it, with what was found of its
        reply."""
        reply = sent.answer if isinstance(sent.answer, Reply) else None
        call = call_of(
            attempts.connection, sent, checked, attempts.number, attempts.purpose, again=again
        )
        if attempts.given is not None:
            self._ledger.batch.answered.append(attempts.given)
            attempts.given = None
        if self._budgets is not None and attempts.reservation is not None:
            real, unconfirmed = limits.counted(call, attempts.reservation.worst)
            if unconfirmed is not limits.NOTHING:
                call = call._replace(held_usd=unconfirmed.usd, held_tokens=unconfirmed.tokens)
            self._budgets.settle(attempts.reservation, real, unconfirmed)
            attempts.reservation = None
        attempts.last = call
        self._settler.keep_call(
            attempts.active, attempts.stage, attempts.fingerprint, call, attempts.replica
        )
        if self._traces is not None:
            self._traces.called(attempts, call, reply)
        if self._replies:
            self._replies.ended(reply.text if reply else "", str(call.error or ""))
        if _log.isEnabledFor(logging.DEBUG):
            log_call(self._run, attempts, call, reply)
