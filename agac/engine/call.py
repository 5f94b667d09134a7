"""One task asked of its provider, with as many attempts as the policy grants: every one of them is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.redact import Redactor
from agac.core.types import Fault, Reply, Request, Usage
from agac.engine.control import Control, Halted
from agac.engine.limits import Exposure, Lane, Slots
from agac.engine.policy import Again, GiveUp, StopRun, decide
from agac.engine.settle import Flight, Settler
from agac.engine.validate import Checker, repair_request
from agac.plan.plan import PlannedStage
from agac.providers.base import Dialect, encode
from agac.providers.http import HttpReply, Sender
from agac.providers.prices import cost
from agac.providers.table import Price
from agac.store.batch import Call, Endpoint, Result

_log = logging.getLogger("agac.call")

NO_USAGE = Usage()
CHARACTERS_A_TOKEN = 4
"""A rough guess, used only to space calls out under a limit of tokens a minute."""


class Answer(NamedTuple):
    """A task's result, with its value parsed."""

    result: Result
    value: object


class Line(NamedTuple):
    """What one stage needs to be asked: its way to the provider, fixed for the run."""

    stage: PlannedStage
    dialect: Dialect
    sender: Sender
    lane: Lane
    slots: Slots | None
    checker: Checker
    price: Callable[[str | None], Price | None]
    redactor: Redactor


class Caller:
    """Asks tasks. `wall` gives seconds since 1970, `spread` a number in [0, 1) for back-off."""

    def __init__(
        self,
        lines: Mapping[int, Line],
        settler: Settler,
        exposure: Exposure,
        control: Control,
        *,
        wall: Callable[[], float],
        spread: Callable[[], float],
    ) -> None:
        self._lines, self._settler, self._exposure, self._control = lines, settler, exposure, control
        self._wall, self._spread = wall, spread

    async def ask(self, flight: Flight, stage: PlannedStage, fingerprint: bytes, request: Request) -> Answer | RowError:
        """The answer, or the error with which the task fails. Raises Halted when the run stops before either."""
        asking = _Asking(self, self._lines[stage.index], flight, fingerprint)
        replied = await asking.reply(request, "ask")
        if isinstance(replied, Fault):
            return RowError(replied.type, replied.message)
        checked = asking.settled(replied, "ask")
        if isinstance(checked, RowError) and checked.type is ErrorType.SCHEMA_MISMATCH:
            second = await asking.reply(repair_request(request, replied.reply, checked), "repair")
            if isinstance(second, Fault):
                return RowError(second.type, f"{second.message} (asked again because: {checked.message})")
            checked = asking.settled(second, "repair")
        return checked


class _Replied(NamedTuple):
    reply: Reply
    http: HttpReply
    at: float
    number: int


class _Asking:
    """The attempts of one task."""

    __slots__ = ("_ambiguous", "_caller", "_fingerprint", "_flight", "_line", "_number")

    def __init__(self, caller: Caller, line: Line, flight: Flight, fingerprint: bytes) -> None:
        self._caller, self._line, self._flight, self._fingerprint = caller, line, flight, fingerprint
        self._number = 0
        self._ambiguous = 0

    async def reply(self, request: Request, purpose: str) -> _Replied | Fault:
        """Sends until something is answered or the policy gives up."""
        stage, caller = self._line.stage, self._caller
        wire = encode(self._line.dialect.build(request, stage.model, stage.provider))
        tokens = len(wire) // CHARACTERS_A_TOKEN + (stage.params.max_tokens or 0)
        attempt = 0
        while True:
            attempt += 1
            got = await self._send(wire, tokens, purpose)
            if isinstance(got, _Replied):
                return got
            self._ambiguous += got.ambiguous
            match decide(got, attempt, self._ambiguous, caller._spread()):
                case GiveUp():
                    return got
                case StopRun():
                    caller._control.fail(got)
                    raise Halted
                case Again(delay, lane):
                    _log.info("row %r, stage %s: %s; again in %.2f s", self._row, stage.name, got.message, delay)
                    if lane:
                        self._line.lane.pause(delay)
                    await caller._control.sleep(delay)

    async def _send(self, wire: bytes, tokens: int, purpose: str) -> _Replied | Fault:
        line, caller = self._line, self._caller
        if line.slots:
            await line.slots.take()
        try:
            await caller._exposure.enter()
            try:
                await line.lane.enter(tokens)
                at = caller._wall()
                try:
                    http = await line.sender.send(wire, line.stage.timeout)
                except asyncio.CancelledError:
                    caller._settler.given_up()  # it may have been paid for
                    raise
                finally:
                    line.lane.leave()
            except BaseException:
                caller._exposure.leave(1)
                raise
        finally:
            if line.slots:
                line.slots.give()
        self._number += 1
        if isinstance(http, Fault):
            self._store(None, http, at, purpose)
            return http
        return self._read(http, at, purpose)

    def _read(self, http: HttpReply, at: float, purpose: str) -> _Replied | Fault:
        line, stage = self._line, self._line.stage
        line.lane.observe(line.dialect.rates(http.headers))
        reply = line.dialect.parse(
            http.status, http.headers, http.body, provider=stage.provider, model=stage.model, redactor=line.redactor
        )
        if isinstance(reply, Fault):
            self._store(http, reply, at, purpose)
            return reply
        return _Replied(reply, http, at, self._number)

    def _store(self, http: HttpReply | None, fault: Fault, at: float, purpose: str) -> None:
        """Keeps an attempt that brought no reply."""
        stage = self._line.stage
        call = Call(
            number=self._number,
            endpoint=Endpoint(stage.provider.name, stage.provider.base_url, stage.model, stage.provider.simulated),
            purpose=purpose,
            started_at=at,
            duration=http.ended - http.started if http else self._caller._wall() - at,
            status=fault.status,
            error=RowError(fault.type, fault.message),
            ambiguous=fault.ambiguous,
            usage=NO_USAGE,
            cost=None,
            body=self._clean(http.body) if http else None,
        )
        self._keep(call)

    def settled(self, replied: _Replied, purpose: str) -> Answer | RowError:
        """Checks a reply and keeps its attempt, with the reply itself, whatever the check says."""
        line, stage, reply = self._line, self._line.stage, replied.reply
        checked = line.checker.check(reply)
        endpoint = Endpoint(stage.provider.name, stage.provider.base_url, reply.model, reply.simulated)
        price = line.price(reply.service_tier)
        error = checked if isinstance(checked, RowError) else None
        call = Call(
            number=replied.number,
            endpoint=endpoint,
            purpose=purpose,
            started_at=replied.at,
            duration=replied.http.ended - replied.http.started,
            status=replied.http.status,
            error=error,
            ambiguous=False,
            usage=reply.usage,
            cost=cost(reply.usage, price) if price else None,
            body=self._clean(replied.http.body),
        )
        self._keep(call)
        if isinstance(checked, RowError):
            return checked
        text, value = checked
        return Answer(Result(self._fingerprint, text, endpoint, self._caller._wall()), value)

    def _keep(self, call: Call) -> None:
        self._caller._settler.call(self._flight, self._line.stage, self._fingerprint, call)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "row %r, stage %s, attempt %d (%s) to %s: status %s in %.0f ms, %s tokens in, %s out, %s",
                self._row, self._line.stage.name, call.number, call.purpose, self._line.stage.lane, call.status,
                call.duration * 1000, call.usage.input_tokens, call.usage.output_tokens,
                call.error.message if call.error else "ok",
            )  # fmt: skip

    @property
    def _row(self) -> str | int:
        return self._flight.new.row.id

    def _clean(self, body: bytes) -> bytes:
        """A reply may quote what we sent: no secret enters the store with it."""
        return self._line.redactor.clean(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
