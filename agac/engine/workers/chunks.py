"""Makes calls by workers.

A line in the store precedes each call, and goes when its reply is stored. After a crash the replies
to such calls are looked for in the remote."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from agac.core.errors import RowError
from agac.core.keys import bytes_digest, digest
from agac.core.types import Fault, JSONValue, Row
from agac.data.object_store import ObjectStore
from agac.engine.ask import limits
from agac.engine.ask.attempts import TaskAttempts
from agac.engine.ask.connections import ModelConnection
from agac.engine.ask.limits import Reservation
from agac.engine.context import InvocationContext
from agac.engine.settle import record_call
from agac.engine.workers.pool import CallItem, FunctionItem, RunExecutor, WorkerPool
from agac.engine.workers.work import FOLDER, unpacked_replies
from agac.plan.stage import PlannedStage
from agac.providers.dialect import Begins
from agac.providers.hints import HintingSender
from agac.providers.http import HttpReply
from agac.spec.python_code import FunctionInput, FunctionRef
from agac.spec.rules import Timeout
from agac.spec.tools import ToolSpec
from agac.store.packs import MAX_BYTES, Damaged
from agac.store.records import Attempt, CallTiming, HeldAmount, NewRow
from agac.store.rows import State
from agac.store.runs import GivenCall, given_calls
from agac.tools.tool_functions import Intent, ToolFailed

Line = tuple[int, NewRow, int, bytes, bytes]
"""What the store has of a call: stage, row, replica, fingerprint, mark of the request."""

_log = logging.getLogger("agac.workers")


class WorkerCalls:
    """Sends calls by workers, in the place of senders, and calls functions there.

    Without a pool it only returns replies to calls that a killed process left; this process does
    everything else itself."""

    def __init__(self, context: InvocationContext, executor: RunExecutor) -> None:
        self._context = context
        self._setup = executor.setup
        self._event = context.places.event
        self._wall = context.work.clocks.wall
        self._found: defaultdict[bytes, list[tuple[GivenCall, HttpReply]]] = defaultdict(list)
        token = executor.setup.token
        start = executor.start
        self.pool = None
        if start is not None:
            self.pool = WorkerPool(
                partial(start, executor.settings, executor.setup, context.work.env),
                chunk=executor.settings.chunk,
                most=context.plan.concurrency,
                write=self._write,
                wait=partial(context.settler.note_wait, "workers"),
                stop=context.stop_signal.lose_input,
                name=lambda number: digest(f"{token} {self._event} {number}").hex(),
            )
            context.stop_signal.when_stopped(self.pool.give_back)
        self.function = self._function if self.pool is not None else None
        self.tool = self._tool if self.pool is not None else None

    @staticmethod
    async def opened(context: InvocationContext, executor: RunExecutor) -> WorkerCalls:
        """Opens the calls of an invocation, and looks for replies to those that an earlier process
        left."""
        calls = WorkerCalls(context, executor)
        lines = await given_calls(context.places.database, context.plan.workflow)
        given = {(line.chunk, line.number) for line in lines}
        replies = await calls._replies(given) if executor.setup.remote else {}
        for line in lines:
            reply = replies.get((line.chunk, line.number))
            if reply is None or context.work.fresh:
                context.ledger.batch.calls.answered.append((line.event, line.number))
            else:  # it answers the same request of another run, too: one of an edited workflow
                calls._found[line.mark].append((line, reply))
        if lines:
            _log.info("workers had %d calls, and replied to %d of them", len(lines), len(replies))
        return calls

    async def _replies(
        self, given: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], HttpReply]:
        """Reads the replies to these calls that workers put into the remote, by chunk and
        number."""
        remote = ObjectStore(self._setup.remote or "", Path(self._setup.root))
        found = dict[tuple[str, int], HttpReply]()
        for chunk in {chunk for chunk, _ in given}:
            for name in await remote.sizes(f"{FOLDER}/{self._setup.token}/{chunk}"):
                try:
                    replies = unpacked_replies(await remote.read(name, MAX_BYTES) or b"")
                except (Damaged, ValueError) as error:
                    why = str(error).partition("\n")[0]
                    _log.warning(
                        "%s/%s is left out, and its calls are made again: %s", remote.url, name, why
                    )
                    continue
                for number, reply in replies.items():
                    if (chunk, number) in given:
                        found[chunk, number] = reply
        return found

    async def _write(self, chunk: str, worker: str, calls: Sequence[tuple[int, Line]]) -> None:
        """Commits the lines of calls that a worker is about to get."""
        ledger = self._context.ledger
        now = self._wall()
        ledger.batch.calls.given += [(number, chunk, worker, *line, now) for number, line in calls]
        await ledger.durable()

    def through(self, attempts: TaskAttempts, connection: ModelConnection) -> Callable[..., Any]:
        """Returns what sends one call of a connection, in the place of its sender."""
        send = partial(self._send, attempts, connection)
        if isinstance(connection.sender, HintingSender):
            return partial(connection.sender.send, through=send)
        return send

    async def _send(
        self,
        attempts: TaskAttempts,
        connection: ModelConnection,
        body: bytes,
        timeout: Timeout,
        *,
        within: float | None,
        fresh: bool,
        begins: Begins,
        **hints: Any,
    ) -> HttpReply | Fault:
        """Sends a call as `Sending.send` does, but for `begins`, which workers do not call."""
        provider = connection.model.provider
        mark = bytes_digest([f"{provider.name} {provider.base_url} ".encode(), body])
        left = self._found.get(mark)
        if left:
            given, reply = left.pop()
            attempts.given = given.event, given.number
            return reply
        if self.pool is None:
            return await connection.sender.send(
                body, timeout, within=within, fresh=fresh, begins=begins, **hints
            )
        number = next(self.pool.numbers)
        item = CallItem(
            number, provider.name, connection.transport, body, timeout, within, fresh, **hints
        )
        line = (
            attempts.stage.index,
            attempts.asked.row.new,
            attempts.asked.replica,
            attempts.asked.fingerprint,
            mark,
        )
        attempts.given = self._event, number
        late = partial(self._keep_late, copy(attempts), connection, self._wall())
        answer: HttpReply | Fault = await self.pool.call(item, mark, line, late)
        return answer

    async def _function(
        self, ref: FunctionRef, how: tuple[int | None, float | None], row: FunctionInput
    ) -> Any:
        """Calls a `python:` stage's function in so many processes and seconds, and returns what
        `tools.functions.Returned` has, or a RowError."""
        assert self.pool is not None
        return await self.pool.function(FunctionItem(next(self.pool.numbers), ref, row, *how))

    async def _tool(
        self,
        spec: ToolSpec,
        arguments: dict[str, JSONValue],
        key: str,
        timeout: float,
        again: bool,
        intent: Intent,
    ) -> str:
        """Calls a tool and returns its text. Raises ToolFailed; and WorkerLost if it is unknown
        whether it was called, and it may not be called `again`."""
        assert self.pool is not None
        item = FunctionItem(next(self.pool.numbers), spec, arguments, timeout=timeout, key=key)
        value: str | RowError | ToolFailed = await self.pool.function(
            item, again=again, begin=intent.begin
        )
        if isinstance(value, ToolFailed):
            raise value
        if isinstance(value, RowError):
            raise ToolFailed(value.message)
        return value

    def keep_unasked(self, connections: Mapping[int, Sequence[ModelConnection]]) -> None:
        """Stores the replies that no task asked for, since they were paid for.

        Those of another run are left out: its stages are not known."""
        for line, reply in chain.from_iterable(self._found.values()):
            if line.run == self._context.places.run:
                connection = connections[line.stage][0]
                new = NewRow(Row("", 0, {}), 0, b"", "", State.PENDING, line.row)
                connection = connections[line.stage][0]
                attempt = Attempt(
                    line.stage, line.fingerprint, line.replica, line.number, "paid_again"
                )
                self._keep(connection, new, connection.stage, attempt, line.at, reply)
            self._context.ledger.batch.calls.answered.append((line.event, line.number))

    def _keep_late(
        self, attempts: TaskAttempts, connection: ModelConnection, at: float, reply: HttpReply
    ) -> None:
        """A reply came after its call was given up, and counted at its worst."""
        attempt = attempts.attempt()._replace(purpose="paid_again")
        new = attempts.asked.row.new
        self._keep(connection, new, attempts.stage, attempt, at, reply, attempts.reservation)

    def _keep(
        self,
        connection: ModelConnection,
        new: NewRow,
        stage: PlannedStage,
        attempt: Attempt,
        at: float,
        reply: HttpReply,
        reservation: Reservation | None = None,
    ) -> None:
        """Books a reply that answers nobody."""
        context = self._context
        body = connection.redactor.clean_bytes(reply.body)
        answer = connection.parse(reply.status, reply.headers, body)
        times = CallTiming(at, reply.duration)
        call = connection.call(attempt, answer, reply.status, body, times)
        if reservation is not None and context.budgets is not None:
            context.budgets.correct(reservation, limits.counted(call, reservation.worst)[0])
            worst = reservation.worst
            call = call._replace(held=HeldAmount(-worst.usd, -worst.tokens))
        spent = record_call(context.ledger.batch, new, stage, call, keep_all=True)
        context.totals.count_call(call, spent, stage)
