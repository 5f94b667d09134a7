"""One (provider, model) with its limits: every call to it, of whatever stage, waits here for its turn."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, RateState, Reply
from agac.engine.adaptive import Adaptive
from agac.engine.allowance import Allowance
from agac.engine.control import Control, Halted
from agac.engine.policy import LONGEST_WAIT

LATE = 0.02
"""Seconds by which a timer may wake us late without the pace losing them."""


STEP = 0.01
"""Seconds between looks at whether more may be under way at once."""


LONG, SAID_EVERY = 8.0, 60.0
"""Seconds: a pause that people wonder about, and how often they are told of one."""


class Turn(NamedTuple):
    """A call under way: its number in the lane, from 1, when it was sent, and the tokens it was expected to use."""

    number: int
    at: float
    tokens: int


class Held(Enum):
    """What the first in the queue waits for."""

    NOTHING = 0
    PAUSE = 1
    LIMIT = 2
    HEADERS = 3
    PACE = 4


class Lane:
    """Holds calls back: `most` at once and fewer while the server cannot take them (`Adaptive`), `rpm` and `tpm` spaced
    out evenly, everyone during a pause that the server asked for. Who came first goes first.

    `clock` is the event loop's: monotonic seconds.
    """

    def __init__(
        self, most: int, *, rpm: int | None, tpm: int | None, clock: Callable[[], float], control: Control
    ) -> None:
        self._adaptive = Adaptive(most, clock())
        self._allowance = Allowance()
        self._most = most
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._next_call = self._next_token = 0.0
        self._paused_until, self._said_at = 0.0, -math.inf
        self._sent = self.in_flight = 0
        self._clock, self._control = clock, control
        self._waiting: deque[tuple[asyncio.Future[Turn | None], int]] = deque()
        self._held, self._held_at = Held.NOTHING, 0.0
        self._timer: asyncio.TimerHandle | None = None
        control.when_stopped(self._stop)

    async def enter(self, tokens: int) -> Turn:
        """Waits until a call may be sent that is expected to use so many tokens. Raises Halted when the run stops."""
        self._control.check()
        now = self._clock()
        if not self._waiting and self._holds(now)[0] is Held.NOTHING:
            self._next_call = now
            return self._start(now, tokens)
        place: asyncio.Future[Turn | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((place, tokens))
        if len(self._waiting) == 1:
            self._serve()
        try:
            turn = await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():  # it was let in just then
                self.leave()
            raise
        if turn is None:
            raise Halted
        if self._control.stop is not None:
            self.leave()
            raise Halted
        return turn

    def leave(self) -> None:
        """The call is over, or was not made."""
        self.in_flight -= 1
        if self._waiting:
            self._serve()

    def pause(self, seconds: float) -> bool:
        """Nobody calls for so long. Gives whether that is worth a word: it is long, and nothing was said lately."""
        now = self._clock()
        worth = seconds >= LONG and now >= self._said_at + SAID_EVERY
        if worth:
            self._said_at = now
        self._pause_until(now + min(seconds, LONGEST_WAIT))
        return worth

    def observe(self, turn: Turn, rates: RateState) -> None:
        """What the headers of its answer say is left."""
        now = self._clock()
        opens = self._allowance.read(turn.number, turn.at, now, turn.tokens, rates)
        if opens > now:
            if self._allowance.refills:
                self._adaptive.marked(turn.number, now, took=now - turn.at)
            self._pause_until(min(opens, now + LONGEST_WAIT))
        elif self._held is Held.HEADERS:
            self._serve()

    def heard(self, turn: Turn, answer: Reply | Fault) -> None:
        """How the call ended."""
        if isinstance(answer, Reply):
            self._correct(turn, answer)
            return
        now = self._clock()
        took = now - turn.at
        if answer.kind is FaultKind.PAUSE and (answer.status == 429 or answer.type is ErrorType.RATE_LIMITED):
            self._adaptive.refused(turn.number, now, took=took, beside=self.in_flight, delay=answer.delay)
        elif answer.kind is FaultKind.PAUSE or answer.type is ErrorType.TIMEOUT:
            self._adaptive.overloaded(turn.number, took=took, beside=self.in_flight)

    def _correct(self, turn: Turn, reply: Reply) -> None:
        """The tokens that were really used take the place of those that were expected."""
        given, made = reply.usage.input_tokens, reply.usage.output_tokens
        if self._per_token and given is not None and made is not None:
            self._next_token += (given + made - turn.tokens) * self._per_token
            if self._waiting:
                self._serve()

    def _pause_until(self, moment: float) -> None:
        if moment > self._paused_until:
            self._paused_until = moment
            if self._waiting:
                self._serve()

    def _holds(self, now: float) -> tuple[Held, float]:
        """What keeps the next call from being sent now, and until when."""
        if now < self._paused_until:
            return Held.PAUSE, self._paused_until
        if self.in_flight >= self._adaptive.limit:
            return Held.LIMIT, now + STEP if self._adaptive.limit < self._most else math.inf
        if self._sent >= self._allowance.ceiling and now < (opens := self._allowance.opens(self._sent + 1)):
            return Held.HEADERS, opens
        turn = max(self._next_call, self._next_token)
        return (Held.PACE, turn) if now < turn else (Held.NOTHING, now)

    def _start(self, now: float, tokens: int) -> Turn:
        self.in_flight += 1
        self._sent = self._adaptive.sent(now)
        self._next_call = max(self._next_call, now - LATE) + max(self._per_request, self._adaptive.interval)
        self._next_token = max(self._next_token, now) + tokens * self._per_token
        return Turn(self._sent, now, tokens)

    def _serve(self) -> None:
        """Lets in whoever may go, and sees to it that this is called again when the next one may."""
        now = self._clock()
        self._grow(now)
        while self._waiting:
            place, tokens = self._waiting[0]
            if place.done():  # cancelled
                self._waiting.popleft()
                continue
            held, until = self._holds(now)
            if held is not Held.NOTHING:
                self._held, self._held_at = held, now
                self._wake_at(until, now)
                return
            self._waiting.popleft()
            place.set_result(self._start(now, tokens))
        self._held = Held.NOTHING

    def _grow(self, now: float) -> None:
        if self._held is Held.LIMIT:
            self._adaptive.held_by_limit(now - self._held_at)
        elif self._held is Held.PACE and self._by_trial():
            self._adaptive.held_by_pace(now - self._held_at)
        self._held_at = now

    def _by_trial(self) -> bool:
        """Whether it is the pace that was found by trying, not one from agac.yml, that holds the next call back."""
        return self._adaptive.interval > self._per_request and self._next_call > self._next_token

    def _wake_at(self, moment: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moment < math.inf:
            self._timer = asyncio.get_running_loop().call_later(moment - now, self._serve)

    def _stop(self) -> None:
        """The run stops: nobody who waits is let in any more."""
        while self._waiting:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
