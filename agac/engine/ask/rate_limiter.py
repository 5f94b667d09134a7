"""Bounds on calls: the uncommitted ones, those of a stage, and those to one model (its lane)."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, RateState, Reply
from agac.engine.ask.adaptive import Adaptive
from agac.engine.ask.retry_policy import MAX_RETRY_DELAY_S
from agac.engine.stop_rules import RunStopped, StopSignal
from agac.store.records import LaneSample

# What a server's headers let us send: `x-ratelimit-remaining-*` and `-reset-*`, read with care.
#
# Some servers count in windows: when nothing is left, no call is accepted until the reset. Others
# have a bucket that fills all the time, and mean by the reset the moment in which it will be full;
# a single call is accepted long before. No header says which. Two of them together do: while less
# and less is left, a window's reset comes nearer, and a bucket's moves away.


class QuotaBucket:
    """What is left of a quota of requests or of tokens. `unit`: seconds in which a bucket gains
    one; 0 for a window."""

    __slots__ = ("_fullest", "unit")

    def __init__(self) -> None:
        self._fullest: tuple[int, float] | None = None
        self.unit = 0.0

    def read(self, left: int, reset: float) -> None:
        """Reads the header of one more answer."""
        if self._fullest is None or left > self._fullest[0]:
            self._fullest = (left, reset)
            return
        gone = self._fullest[0] - left
        later = reset - self._fullest[1]
        if later < 0:
            self._fullest = (left, reset)
        if gone:
            self.unit = max(later, 0.0) / gone


class HeaderQuota:
    """How many calls a lane may send until the next headers come."""

    __slots__ = ("_at", "_tokens", "_until", "ceiling", "requests")

    def __init__(self) -> None:
        self.requests = QuotaBucket()
        self._tokens = QuotaBucket()
        self.ceiling: float = math.inf
        self._at = self._until = 0.0

    def opens(self, number: int) -> float:
        """Returns the moment from which on call `number`, one above the ceiling, may be sent."""
        unit = self.requests.unit
        if unit:
            return min(self._until, self._at + (number - self.ceiling) * unit)
        return self._until

    def read(
        self,
        number: int,
        sent_at: float,
        now: float,
        tokens: int,
        rates: RateState,
        asked: float | None = None,
    ) -> float:
        """Reads the headers of the answer to call `number`, which needed so many tokens. Returns
        the moment from which on anything is left; one that has passed if something is left now.

        A header may be as old as its call. So the calls that were sent after it are subtracted
        from what it says is left, and once its reset is over it says nothing any more. A reset may
        be when all is back: a server that `asked` for a pause of some seconds is waited for no
        longer than that."""
        opens = 0.0
        latest = now + min(asked or math.inf, MAX_RETRY_DELAY_S)
        left = rates.remaining_requests
        reset = rates.reset_requests
        if left is not None and reset:
            self.requests.read(left, reset)
            if sent_at + reset > now:
                self.ceiling = number + left
                self._at = sent_at
                self._until = min(sent_at + reset, latest)
                opens = 0.0 if left else self.opens(number + 2)
        left = rates.remaining_tokens
        reset = rates.reset_tokens
        if left is not None and reset:
            self._tokens.read(left, reset)
            if not left:
                opens = max(
                    opens, min(latest, sent_at + min(reset, self._tokens.unit * tokens or reset))
                )
        return opens


# One (provider, model) with its limits: every call to it, of whatever stage, waits here for its
# turn.

LATE = 0.02
"""Seconds by which a timer may be late without the pace losing them."""

STEP = 0.01
"""Seconds between two looks at whether more calls may be in flight."""

LONG_PAUSE = 8.0
"""Seconds of a pause that is worth a warning."""

WARNING_INTERVAL = 60.0
"""The least number of seconds between two warnings."""


class LanePermit(NamedTuple):
    """A call in flight."""

    number: int
    """Its number in the lane, from 1."""
    at: float
    """When it was sent, in seconds of the lane's clock."""
    tokens: int
    """The tokens that it was expected to use."""


class WaitReason(Enum):
    """What the first call in the queue waits for."""

    NOTHING = 0
    PAUSE = 1
    LIMIT = 2
    HEADERS = 3
    PACE = 4


class Lane:
    """Holds calls back: `most` at once and fewer while the server cannot take them (`Adaptive`),
    `rpm` and `tpm` spaced out evenly, all during a pause that the server asked for. They are sent
    in the order in which they came. `waited` are the seconds that all calls waited."""

    def __init__(
        self,
        most: int,
        *,
        rpm: int | None,
        tpm: int | None,
        clock: Callable[[], float],
        stop_signal: StopSignal,
        waits: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`clock` is the event loop's: monotonic seconds. `waits` is called with the seconds of
        each long wait."""
        self._adaptive = Adaptive(most, clock())
        self._allowance = HeaderQuota()
        self._most = most
        self._rpm = rpm
        self._tpm = tpm
        self._next_call = self._next_token = 0.0
        self._paused_until = 0.0
        self._warned_at = -math.inf
        self._waits = waits
        self._shown_until = 0.0
        self._sent = self.in_flight = 0
        self._clock = clock
        self._stop_signal = stop_signal
        self._waiting: deque[tuple[asyncio.Future[LanePermit | None], int]] = deque()
        self._held = WaitReason.NOTHING
        self._held_at = 0.0
        self.waited = 0.0
        self._told = 0.0
        self._refused = 0
        self._was_idle = True
        self._timer: asyncio.TimerHandle | None = None
        self.share(1)
        stop_signal.when_stopped(self._stop)

    async def enter(self, tokens: int) -> LanePermit:
        """Waits until a call that should use so many tokens may be sent. Raises RunStopped when
        the run stops."""
        self._stop_signal.check()
        now = self._clock()
        if not self._waiting and self._holds(now)[0] is WaitReason.NOTHING:
            self._next_call = now
            return self._start(now, tokens)
        turn: asyncio.Future[LanePermit | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, tokens))
        if len(self._waiting) == 1:
            self._serve()
        try:
            permit = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():  # it was let in just then
                self.leave()
            raise
        if permit is None:
            raise RunStopped
        if self._stop_signal.stop is not None:
            self.leave()
            raise RunStopped
        self.waited += permit.at - now
        return permit

    def leave(self) -> None:
        """Ends a call that is over, or was not made."""
        self.in_flight -= 1
        if self._waiting:
            self._serve()

    def share(self, processes: int) -> None:
        """Keeps to a part of what the account takes from now on: so many processes share it, this
        one among them."""
        self.most = max(1, self._most // processes)
        self._adaptive.bound(self.most)
        self._per_request = 60.0 * processes / self._rpm if self._rpm else 0.0
        self._per_token = 60.0 * processes / self._tpm if self._tpm else 0.0
        if self._waiting:
            self._serve()

    def pause(self, seconds: float) -> bool:
        """Sends no call for so long. True if that is worth a warning: it is long, and there was
        none lately."""
        now = self._clock()
        warns = seconds >= LONG_PAUSE and now >= self._warned_at + WARNING_INTERVAL
        if warns:
            self._warned_at = now
        self._pause_until(now + min(seconds, MAX_RETRY_DELAY_S))
        return warns

    def observe(self, turn: LanePermit, rates: RateState, asked: float | None = None) -> None:
        """Reads what is left by the headers of a call's answer; `asked`: seconds that it asked us
        to wait."""
        now = self._clock()
        opens = self._allowance.read(turn.number, turn.at, now, turn.tokens, rates, asked)
        if opens > now:
            if self._allowance.requests.unit > 0:  # they come back one by one
                self._adaptive.marked(turn.number, now, took=now - turn.at)
            self._pause_until(opens)
        elif self._held is WaitReason.HEADERS:
            self._serve()

    def heard(self, turn: LanePermit, answer: Reply | Fault) -> None:
        """Learns from how a call ended."""
        if isinstance(answer, Reply):
            if self._per_token:
                self._correct_tokens(turn, answer)
            return
        now = self._clock()
        took = now - turn.at
        is_pause = answer.kind is FaultKind.PAUSE
        if is_pause and (answer.status == 429 or answer.type is ErrorType.RATE_LIMITED):
            self._refused += 1
            self._adaptive.refused(
                turn.number, now, took=took, in_flight=self.in_flight, delay=answer.delay
            )
        elif is_pause or answer.type is ErrorType.TIMEOUT:
            self._adaptive.overloaded(turn.number, took=took, in_flight=self.in_flight)

    def _correct_tokens(self, turn: LanePermit, reply: Reply) -> None:
        """Puts the tokens that were really used in the place of those that were expected."""
        given = reply.usage.input_tokens
        made = reply.usage.output_tokens
        if given is None or made is None:
            return
        used = self._next_token + (given + made - turn.tokens) * self._per_token
        self._next_token = min(used, self._clock() + MAX_RETRY_DELAY_S)
        if self._waiting:
            self._serve()

    def sample(self, name: str, wall: float) -> LaneSample | None:
        """Returns the state now (`wall`: seconds since 1970), with what happened since the last
        sample. None: the lane was idle then too, and nothing happened."""
        pause = self._paused_until - self._clock()
        was_idle = self._was_idle
        self._was_idle = not (self.in_flight or self._waiting or pause > 0)
        waited = self.waited - self._told
        refused = self._refused
        self._told = self.waited
        self._refused = 0
        if was_idle and self._was_idle and not (waited or refused):
            return None
        held_by = ""
        if self._waiting and self._held is not WaitReason.NOTHING:
            held_by = self._held.name.lower()
        return LaneSample(
            at=wall,
            lane=name,
            in_flight=self.in_flight,
            bound=self._adaptive.limit,
            most=self.most,
            waiting=len(self._waiting),
            held_by=held_by,
            paused_until=wall + pause if pause > 0 else None,
            waited=waited,
            refused=refused,
        )

    def _pause_until(self, moment: float) -> None:
        """Sends no call before a moment."""
        if moment > self._paused_until:
            self._paused_until = moment
            self._show(moment)
            if self._waiting:
                self._serve()

    def _show(self, until: float) -> None:
        """Reports a long wait once, unless a reported one ends later."""
        left = until - self._clock()
        if left >= LONG_PAUSE and until > self._shown_until + 1:
            self._shown_until = until
            self._waits(left)

    def _holds(self, now: float) -> tuple[WaitReason, float]:
        """Returns what keeps the next call from being sent now, and until when."""
        if now < self._paused_until:
            return (WaitReason.PAUSE, self._paused_until)
        limit = self._adaptive.limit
        if self.in_flight >= limit:
            return (WaitReason.LIMIT, now + STEP if limit < self.most else math.inf)
        if self._sent >= self._allowance.ceiling:
            opens = self._allowance.opens(self._sent + 1)
            if now < opens:
                return (WaitReason.HEADERS, opens)
        turn = max(self._next_call, self._next_token)
        if now < turn:
            return (WaitReason.PACE, turn)
        return (WaitReason.NOTHING, now)

    def _start(self, now: float, tokens: int) -> LanePermit:
        """Counts a call that is sent now."""
        self.in_flight += 1
        if self._shown_until > now:  # the wait that was shown is over before its time
            self._shown_until = 0.0
            self._waits(0.0)
        self._sent = self._adaptive.sent(now)
        self._next_call = max(self._next_call, now - LATE) + max(
            self._per_request, self._adaptive.interval
        )
        self._next_token = max(self._next_token, now) + tokens * self._per_token
        return LanePermit(self._sent, now, tokens)

    def _serve(self) -> None:
        """Lets calls in that may be sent, and sets a timer for the next one."""
        now = self._clock()
        by_trial = (
            self._adaptive.interval > self._per_request and self._next_call > self._next_token
        )
        if self._held is WaitReason.LIMIT:
            self._adaptive.held_by_limit(now - self._held_at)
        elif self._held is WaitReason.PACE and by_trial:  # not by a pace from agac.yml
            self._adaptive.held_by_pace(now - self._held_at)
        self._held_at = now
        while self._waiting:
            turn, tokens = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
                continue
            held, until = self._holds(now)
            if held is not WaitReason.NOTHING:
                self._held = held
                self._held_at = now
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if until < math.inf:
                    self._show(until)
                    self._timer = asyncio.get_running_loop().call_later(until - now, self._serve)
                return
            self._waiting.popleft()
            turn.set_result(self._start(now, tokens))
        self._held = WaitReason.NOTHING

    def _stop(self) -> None:
        """Releases all waiters without admitting them; the run is stopping."""
        while self._waiting:
            turn, _ = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)


class CallLimit:
    """Allows so many calls at a time, in the order of asking: those of a stage that has its own
    bound; and calls in flight plus replies not yet durable, of which a kill can cost that many at
    most. (asyncio's Semaphore is slower.)"""

    def __init__(self, most: float) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Counts one more call, waiting for others to leave if there are too many."""
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was counted just then
                self.leave()
            raise

    def leave(self, calls: float = 1) -> None:
        """Counts so many calls no longer: they are over, or durable, or were never made. Those that
        waited longest are counted in their place."""
        self._free += calls
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._free -= 1
