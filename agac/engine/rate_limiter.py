"""Where calls wait: the bound on uncommitted calls, the stage's bound, and the lane of the model."""

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
from agac.engine.retry_policy import MAX_RETRY_DELAY_S
from agac.engine.stop_rules import RunStopped, StopSignal

# What a server's headers let us send: `x-ratelimit-remaining-*` and `-reset-*`, read with care.
#
# Some servers count in windows: when nothing is left, nothing goes until the reset. Others have a bucket that fills all
# the time, and mean by the reset the moment in which it will be full; a single call goes long before. No header says
# which. Two of them do: while less and less is left, a window's reset comes nearer, and a bucket's goes away.


class QuotaBucket:
    """What is left of one thing, requests or tokens. `unit`: seconds in which a bucket gains one; 0 for a window."""

    __slots__ = ("_fullest", "unit")

    def __init__(self) -> None:
        self._fullest: tuple[int, float] | None = None
        self.unit = 0.0

    def read(self, left: int, reset: float) -> None:
        """Takes in one more header."""
        if self._fullest is None or left > self._fullest[0]:
            self._fullest = (left, reset)
            return
        gone, later = self._fullest[0] - left, reset - self._fullest[1]
        if later < 0:
            self._fullest = (left, reset)
        if gone:
            self.unit = max(later, 0.0) / gone


class HeaderQuota:
    """How far a lane may go until the next headers come."""

    __slots__ = ("_at", "_tokens", "_until", "ceiling", "requests")

    def __init__(self) -> None:
        self.requests, self._tokens = QuotaBucket(), QuotaBucket()
        self.ceiling: float = math.inf
        self._at = self._until = 0.0

    def opens(self, number: int) -> float:
        """The moment from which on call `number`, one above the ceiling, may be sent."""
        unit = self.requests.unit
        return min(self._until, self._at + (number - self.ceiling) * unit) if unit else self._until

    def read(self, number: int, sent_at: float, now: float, tokens: int, rates: RateState) -> float:
        """Takes in the headers of the answer to call `number`, which needed so many tokens. Gives the moment from which
        on anything is left; one that has passed when something is.

        A header may be as old as its call. So the calls that were sent after it come off what it says is left, and once
        its reset is over it says nothing any more.
        """
        opens = 0.0
        left, reset = rates.remaining_requests, rates.reset_requests
        if left is not None and reset:
            self.requests.read(left, reset)
            if sent_at + reset > now:
                self.ceiling, self._at = number + left, sent_at
                self._until = min(sent_at + reset, now + MAX_RETRY_DELAY_S)
                opens = 0.0 if left else self.opens(number + 2)
        left, reset = rates.remaining_tokens, rates.reset_tokens
        if left is not None and reset:
            self._tokens.read(left, reset)
            if not left:
                opens = max(opens, sent_at + min(reset, self._tokens.unit * tokens or reset))
        return opens


# One (provider, model) with its limits: every call to it, of whatever stage, waits here for its turn.

LATE = 0.02
"""Seconds by which a timer may wake us late without the pace losing them."""

STEP = 0.01
"""Seconds between looks at whether more may be under way at once."""

LONG, SAID_EVERY = 8.0, 60.0
"""Seconds: a pause that people wonder about, and how often they are told of one."""


class LanePermit(NamedTuple):
    """A call under way: its number in the lane, from 1, when it was sent, and the tokens it was expected to use."""

    number: int
    at: float
    tokens: int


class WaitReason(Enum):
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
        self, most: int, *, rpm: int | None, tpm: int | None, clock: Callable[[], float], stop_signal: StopSignal
    ) -> None:
        self._adaptive = Adaptive(most, clock())
        self._allowance = HeaderQuota()
        self._most = most
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._next_call = self._next_token = 0.0
        self._paused_until, self._said_at = 0.0, -math.inf
        self._sent = self.in_flight = 0
        self._clock, self._stop_signal = clock, stop_signal
        self._waiting: deque[tuple[asyncio.Future[LanePermit | None], int]] = deque()
        self._held, self._held_at = WaitReason.NOTHING, 0.0
        self._timer: asyncio.TimerHandle | None = None
        stop_signal.when_stopped(self._stop)

    def enter_now(self, tokens: int) -> LanePermit | None:
        """The turn of a call that may be sent now; None: it has to wait. Raises RunStopped when the run stops."""
        self._stop_signal.check()
        now = self._clock()
        if self._waiting or self._holds(now)[0] is not WaitReason.NOTHING:
            return None
        self._next_call = now
        return self._start(now, tokens)

    async def enter(self, tokens: int) -> LanePermit:
        """Waits until a call that should use so many tokens may be sent. Raises RunStopped when the run stops."""
        if (turn := self.enter_now(tokens)) is not None:
            return turn
        place: asyncio.Future[LanePermit | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((place, tokens))
        if len(self._waiting) == 1:
            self._serve()
        try:
            given = await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():  # it was let in just then
                self.leave()
            raise
        if given is None:
            raise RunStopped
        if self._stop_signal.stop is not None:
            self.leave()
            raise RunStopped
        return given

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
        self._pause_until(now + min(seconds, MAX_RETRY_DELAY_S))
        return worth

    def observe(self, turn: LanePermit, rates: RateState) -> None:
        """What the headers of its answer say is left."""
        now = self._clock()
        opens = self._allowance.read(turn.number, turn.at, now, turn.tokens, rates)
        if opens > now:
            if self._allowance.requests.unit > 0:  # they come back one by one
                self._adaptive.marked(turn.number, now, took=now - turn.at)
            self._pause_until(min(opens, now + MAX_RETRY_DELAY_S))
        elif self._held is WaitReason.HEADERS:
            self._serve()

    def heard(self, turn: LanePermit, answer: Reply | Fault) -> None:
        """How the call ended."""
        if isinstance(answer, Reply):  # the tokens that were really used take the place of those that were expected
            given, made = answer.usage.input_tokens, answer.usage.output_tokens
            if self._per_token and given is not None and made is not None:
                self._next_token += (given + made - turn.tokens) * self._per_token
                if self._waiting:
                    self._serve()
            return
        now = self._clock()
        took = now - turn.at
        if answer.kind is FaultKind.PAUSE and (answer.status == 429 or answer.type is ErrorType.RATE_LIMITED):
            self._adaptive.refused(turn.number, now, took=took, beside=self.in_flight, delay=answer.delay)
        elif answer.kind is FaultKind.PAUSE or answer.type is ErrorType.TIMEOUT:
            self._adaptive.overloaded(turn.number, took=took, beside=self.in_flight)

    def _pause_until(self, moment: float) -> None:
        if moment > self._paused_until:
            self._paused_until = moment
            if self._waiting:
                self._serve()

    def _holds(self, now: float) -> tuple[WaitReason, float]:
        """What keeps the next call from being sent now, and until when."""
        if now < self._paused_until:
            return WaitReason.PAUSE, self._paused_until
        if self.in_flight >= self._adaptive.limit:
            return WaitReason.LIMIT, now + STEP if self._adaptive.limit < self._most else math.inf
        if self._sent >= self._allowance.ceiling and now < (opens := self._allowance.opens(self._sent + 1)):
            return WaitReason.HEADERS, opens
        turn = max(self._next_call, self._next_token)
        return (WaitReason.PACE, turn) if now < turn else (WaitReason.NOTHING, now)

    def _start(self, now: float, tokens: int) -> LanePermit:
        self.in_flight += 1
        self._sent = self._adaptive.sent(now)
        self._next_call = max(self._next_call, now - LATE) + max(self._per_request, self._adaptive.interval)
        self._next_token = max(self._next_token, now) + tokens * self._per_token
        return LanePermit(self._sent, now, tokens)

    def _serve(self) -> None:
        """Lets in whoever may go, and sees to it that this is called again when the next one may."""
        now = self._clock()
        by_trial = self._adaptive.interval > self._per_request and self._next_call > self._next_token
        if self._held is WaitReason.LIMIT:
            self._adaptive.held_by_limit(now - self._held_at)
        elif self._held is WaitReason.PACE and by_trial:  # not by a pace from agac.yml
            self._adaptive.held_by_pace(now - self._held_at)
        self._held_at = now
        while self._waiting:
            place, tokens = self._waiting[0]
            if place.done():  # cancelled
                self._waiting.popleft()
                continue
            held, until = self._holds(now)
            if held is not WaitReason.NOTHING:
                self._held, self._held_at = held, now
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if until < math.inf:
                    self._timer = asyncio.get_running_loop().call_later(until - now, self._serve)
                return
            self._waiting.popleft()
            place.set_result(self._start(now, tokens))
        self._held = WaitReason.NOTHING

    def _stop(self) -> None:
        """The run stops: nobody who waits is let in any more."""
        while self._waiting:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_result(None)


class CallLimit:
    """So many calls at a time, in the order of asking: those of a stage that has its own bound; and calls in flight
    plus replies not yet durable, of which a kill can cost that many at most.

    (asyncio's Semaphore costs more on the way that never waits.)
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        """Counts one more call, unless there are too many."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def enter(self) -> None:
        """Counts one more call, waiting for others to leave when there are too many."""
        if self.enter_now():
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was counted just then
                self.leave()
            raise

    def leave(self, calls: int = 1) -> None:
        """These calls are over, or durable, or were never made: who has waited longest is counted in their place."""
        self._free += calls
        while self._free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._free -= 1
