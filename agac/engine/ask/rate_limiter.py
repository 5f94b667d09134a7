"""Where calls wait: the bound on uncommitted calls, the stage's bound, and the lane of the model.
How much a server takes is found by trying: calls at once and calls per second, raised and cut by a
cubic curve."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, RateState, Reply
from agac.engine.ask.retry_policy import MAX_RETRY_DELAY_S
from agac.engine.stop_rules import RunStopped, StopSignal
from agac.store.records import LaneSample

# The curve is that of CUBIC (RFC 9438), which finds the rate of a network path in the same way.
# Neither `TriedBound` nor `Adaptive` waits or reads a clock: times are handed in, in seconds of one
# monotonic clock.

CUT = 0.85  # what is left of a bound when it was too high
GUESS_CUT = 0.5  # the same of a pace as long as it is only guessed

DEEPEST_CUT = 0.125
"""No share of what was last known to go is less than that: it must find back when the trouble is
over."""

NOISE_REFUSALS = 3  # so many refusals without a reason are needed to call them noise
NOISE_CALLS = 400  # calls over which noise is counted, about


class LanePhase(Enum):
    """Where a bound stands on its way."""

    CUT = 0  # just cut: what is refused now was refused for what came before
    CALM = 1  # below what went before
    GUESSED = 2  # the same, but nobody knows whether it ever went
    TRYING = 3


class TriedBound:
    """A bound that falls when it was too high and comes back along a cubic curve: fast at first,
    flat around `top`, where it last went well, then faster and faster, because nothing says any
    more that this is still the end. Who would cut it for refusals that come whatever we do would
    crawl. They are recognised by their coming now and then while the bound is below what went
    before: there nothing should be refused. Once that makes us doubt what went before, and it is
    measured anew; the second time it is noise. `cut_at` is the last call that was sent before a
    cut."""

    def __init__(self, most_noise: float) -> None:
        """`most_noise`: who refuses more than this share of calls has lowered its limit."""
        self._most_noise = most_noise
        self.cut_at = 0
        self._counted_in = LanePhase.TRYING
        self._doubted = False
        self._calls = self._refusals = self._calm_calls = self._calm_refusals = 0.0
        self.reset()

    def reset(self) -> None:
        """Nothing is known any more of what goes."""
        self.value = self.top = math.inf
        self._proven = False
        self._low = self._seconds = self._span = 0.0

    @property
    def phase(self) -> LanePhase:
        """Where it stands. What `top` says is known only once it was reached again without a
        refusal."""
        if self.value >= self.top:
            return LanePhase.TRYING
        if not self._proven:
            return LanePhase.GUESSED
        if self._seconds < self._span / 10:
            return LanePhase.CUT
        return LanePhase.CALM

    def cut(self, call: int, top: float, span: float, share: float = CUT) -> None:
        """Falls to a share of itself, or of `top` if less; `top` again in `span` seconds. `call`:
        the last one sent."""
        self._proven = self._proven and self.phase is LanePhase.TRYING
        self.cut_at = call
        self.top = top
        self._span = span
        self._seconds = 0.0
        self._low = self.value = max(share * min(self.value, top), DEEPEST_CUT * top)

    def grow(self, seconds: float) -> None:
        """So long it was what held calls back."""
        self._seconds += seconds
        x = self._seconds / self._span - 1
        depth = self.top - self._low if x < 0 else (1 - CUT) * self.top
        self.value = self.top + depth * x * x * x
        self._proven = self._proven or x >= 0

    def count_call(self) -> None:
        """One more call was sent."""
        phase = self._count_anew()
        self._calls += 1
        if self._calls > NOISE_CALLS:
            self._calls = self._calls / 2
            self._refusals = self._refusals / 2
        if phase is LanePhase.CALM:
            self._calm_calls += 1
            if self._calm_calls > NOISE_CALLS:
                self._forget_half()

    def is_noise(self) -> bool:
        """One more call was refused: whether that says nothing about the bound."""
        phase = self._count_anew()
        self._refusals += 1
        match phase:
            case LanePhase.CUT:
                return True
            case LanePhase.CALM:
                self._calm_refusals += 1
                if self._refusals < NOISE_REFUSALS:
                    return True
                if not self._doubted:
                    self._doubted = True
                    self._calm_calls = self._calm_refusals = 0.0
                    return False
            case LanePhase.TRYING:
                if self._calm_refusals >= NOISE_REFUSALS:
                    expected = self._calls * self._calm_refusals / self._calm_calls
                    # as usual: two standard deviations
                    if self._refusals <= expected + 2 * math.sqrt(expected) + 1:
                        return True
                self._forget_half()
                return False
        return self._refusals < self._most_noise * self._calls

    def _count_anew(self) -> LanePhase:
        """The phase; calls and refusals are counted within one."""
        phase = self.phase
        if phase is not self._counted_in:
            if self._counted_in is LanePhase.CALM and self._refusals < NOISE_REFUSALS:
                self._doubted = False
            self._counted_in = phase
            self._calls = 0.0
            self._refusals = 0.0
        return phase

    def _forget_half(self) -> None:
        self._calm_calls = self._calm_calls / 2
        self._calm_refusals = self._calm_refusals / 2


INITIAL_CALLS = 8  # calls at once at the beginning

DOUBLING = 0.1
"""Seconds after which the calls at once double while nothing speaks against it. By time, not by
replies: a model that takes ten seconds is as soon at full width as one that takes ten
milliseconds."""

RECOVERY = 6.0
"""Seconds, while it holds calls back, until a bound that was cut is where it was. Twice as long: a
seventh higher; four times: five times as high."""

LONGEST_RECOVERY = 60.0  # however long calls take, and however few they are
GUESS_RECOVERY = RECOVERY / 4  # the same for a pace that was guessed, not measured
MEASURED = 1.0  # seconds over which a rate is measured at least
DELAYS = 32  # the last delays that a server asked for, the longest of which counts
SLOWEST = 0.5  # calls a second; what is slower is kept by the pauses that the server asks for
# seconds that a server means at most by "again in 0 seconds", which says nothing about its limit
AT_ONCE = 0.05

PACE_NOISE = 0.2
ROOM_NOISE = 0.02
"""Shares of calls. A pace that is too high by half has a third refused; of too many at once only
those too many are."""


class Adaptive:
    """The two bounds of a lane: `limit`, calls at once, from 1 to `most`; `interval`, seconds
    between two calls. A refusal by rate (429) cuts the pace, a server that cannot cope (503, a
    time-out) the calls at once; a 429 that does not say when to come again may mean either and
    cuts both. One cut for all calls that were under way together: those that were sent before it
    say nothing about it. A bound grows only in the time in which it holds calls back."""

    def __init__(self, most: int, now: float) -> None:
        self.limit = min(INITIAL_CALLS, most)
        self.interval = 0.0
        self._most = most
        self._room = TriedBound(ROOM_NOISE)
        self._pace = TriedBound(PACE_NOISE)
        self._starting = 0.0
        self._sent = self._refused = 0
        self._older = self._newer = (now, 0)
        self._refused_since = 0
        self._measured = False
        self._delays: deque[float] = deque(maxlen=DELAYS)

    def sent(self, now: float) -> int:
        """A call is sent: its number, from 1."""
        if self.interval:
            self._pace.count_call()
        elif now - self._newer[0] > MEASURED:
            self._older, self._newer = self._newer, (now, self._sent)
        if self._room.cut_at:
            self._room.count_call()
        self._sent += 1
        return self._sent

    def bound(self, most: int) -> None:
        """No more than so many calls at once from now on."""
        self._most = most
        self.limit = min(self.limit, most)

    def held_by_limit(self, seconds: float) -> None:
        """So long calls waited because others were under way."""
        if self._room.cut_at:
            self._room.grow(seconds)
            self.limit = max(1, int(min(self._room.value, self._most)))
        elif self.limit < self._most:
            self._starting += seconds
            self.limit = min(
                int(INITIAL_CALLS * 2 ** min(self._starting / DOUBLING, 20)), self._most
            )

    def held_by_pace(self, seconds: float) -> None:
        """So long calls waited because the last one had only just been sent."""
        self._pace.grow(seconds)
        self.interval = self._between()

    def refused(
        self, number: int, now: float, *, took: float, beside: int, delay: float | None
    ) -> None:
        """Call `number` was refused by rate, `took` seconds after it was sent, `beside` others
        being under way; the server wants to see nobody for `delay` seconds."""
        self._refused += 1
        if delay is None:
            self.overloaded(number, took=took, beside=beside)
        else:
            self._delays.append(delay or AT_ONCE)
        if self._refused >= self._sent:  # nothing ever went well: it is not the pace
            self._pace.reset()
            self.interval = 0.0
            self._measured = False
        elif number > self._pace.cut_at:
            self._refused_since += 1
            if not self._pace.is_noise():
                self._slow_down(now, took, delay)

    def marked(self, number: int, now: float, *, took: float) -> None:
        """The answer to call `number` says that the account is at its end: what would be refused
        next is not sent."""
        if number > self._pace.cut_at and (not self.interval or now - self._newer[0] >= MEASURED):
            self._slow_down(now, took, None)

    def overloaded(self, number: int, *, took: float, beside: int) -> None:
        """Call `number` met a server that cannot cope; `beside` others are under way."""
        room = self._room
        if number > room.cut_at and not room.is_noise():
            room.value = min(room.value, float(self.limit))
            room.cut(self._sent, max(1.0, min(float(beside), room.value)), _recovery(took))
            self.limit = max(1, int(room.value))

    def _slow_down(self, now: float, took: float, delay: float | None) -> None:
        top = self._pace.top
        span = GUESS_RECOVERY
        share = CUT
        # a guess: what was sent in the last second or two, or when the server expects a call
        if not self.interval:
            since, before = self._older
            rate = max(self._sent - before - 1, 1) / max(now - since, MEASURED)
            top = max(rate, 1 / delay if delay else 0.0, SLOWEST)
            self._newer = (now, self._sent)
            self._refused_since = 0
        elif now - self._newer[0] >= MEASURED:
            top = self._measure(now)
            span = _recovery(took, top)
        elif self._measured:
            span = _recovery(took, top)
        else:
            top = self._pace.value
            share = GUESS_CUT
        self._pace.cut(self._sent, top, span, share)
        self.interval = self._between()

    def _between(self) -> float:
        """Seconds between two calls: by the pace, but never more than twice what the server lately
        asked to be left alone. Who says that a fiftieth of a second is enough is not left alone
        for minutes."""
        wanted = 1 / self._pace.value
        if self._delays:
            return min(wanted, 2 * max(self._delays))
        return wanted

    def _measure(self, now: float) -> float:
        """What the server took a second between refusals: what it had saved up for us does not
        count."""
        since, before = self._newer
        taken = self._sent - before - self._refused_since
        self._newer = (now, self._sent)
        self._refused_since = 0
        if taken <= 0:
            return self._pace.top
        self._measured = True
        return max(min(taken / (now - since), self._pace.value), self._pace.top / 4, SLOWEST)


def _recovery(took: float, rate: float = math.inf) -> float:
    """Seconds until a bound is back: enough for the news of it to come, and for some calls."""
    return min(max(RECOVERY, 4 * took, 12 / rate), LONGEST_RECOVERY)


# What a server's headers let us send: `x-ratelimit-remaining-*` and `-reset-*`, read with care.
#
# Some servers count in windows: when nothing is left, nothing goes until the reset. Others have a
# bucket that fills all the time, and mean by the reset the moment in which it will be full; a
# single call goes long before. No header says which. Two of them do: while less and less is left, a
# window's reset comes nearer, and a bucket's goes away.


class QuotaBucket:
    """What is left of one thing, requests or tokens. `unit`: seconds in which a bucket gains one;
    0 for a window."""

    __slots__ = ("_fullest", "unit")

    def __init__(self) -> None:
        self._fullest: tuple[int, float] | None = None
        self.unit = 0.0

    def read(self, left: int, reset: float) -> None:
        """Takes in one more header."""
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
    """How far a lane may go until the next headers come."""

    __slots__ = ("_at", "_tokens", "_until", "ceiling", "requests")

    def __init__(self) -> None:
        self.requests = QuotaBucket()
        self._tokens = QuotaBucket()
        self.ceiling: float = math.inf
        self._at = self._until = 0.0

    def opens(self, number: int) -> float:
        """The moment from which on call `number`, one above the ceiling, may be sent."""
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
        """Takes in the headers of the answer to call `number`, which needed so many tokens. Gives
        the moment from which on anything is left; one that has passed when something is. A header
        may be as old as its call. So the calls that were sent after it come off what it says is
        left, and once its reset is over it says nothing any more. A reset may be when all is back:
        who was `asked` to wait some seconds waits no longer."""
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

LATE = 0.02  # seconds by which a timer may wake us late without the pace losing them
STEP = 0.01  # seconds between looks at whether more may be under way at once

LONG_PAUSE = 8.0
WARNING_INTERVAL = 60.0
"""Seconds: a pause that is worth a warning, and the least time between two warnings."""


class LanePermit(NamedTuple):
    """A call under way: its number in the lane, from 1, when it was sent, and the tokens it was
    expected to use."""

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
    """Holds calls back: `most` at once and fewer while the server cannot take them (`Adaptive`),
    `rpm` and `tpm` spaced out evenly, everyone during a pause that the server asked for. Who came
    first goes first. `clock` is the event loop's: monotonic seconds. `waits` is called with the
    seconds of each long wait; `waited` are those of all calls."""

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
        self.waited += given.at - now
        return given

    def leave(self) -> None:
        """The call is over, or was not made."""
        self.in_flight -= 1
        if self._waiting:
            self._serve()

    def share(self, processes: int) -> None:
        """So many processes share what the account takes, this one among them: it keeps to its
        part from now on."""
        self.most = max(1, self._most // processes)
        self._adaptive.bound(self.most)
        self._per_request = 60.0 * processes / self._rpm if self._rpm else 0.0
        self._per_token = 60.0 * processes / self._tpm if self._tpm else 0.0
        if self._waiting:
            self._serve()

    def pause(self, seconds: float) -> bool:
        """Nobody calls for so long. Gives whether that is worth a warning: it is long, and none
        was given lately."""
        now = self._clock()
        worth = seconds >= LONG_PAUSE and now >= self._warned_at + WARNING_INTERVAL
        if worth:
            self._warned_at = now
        self._pause_until(now + min(seconds, MAX_RETRY_DELAY_S))
        return worth

    def observe(self, turn: LanePermit, rates: RateState, asked: float | None = None) -> None:
        """What the headers of its answer say is left; `asked`: seconds that it asked us to wait."""
        now = self._clock()
        opens = self._allowance.read(turn.number, turn.at, now, turn.tokens, rates, asked)
        if opens > now:
            if self._allowance.requests.unit > 0:  # they come back one by one
                self._adaptive.marked(turn.number, now, took=now - turn.at)
            self._pause_until(opens)
        elif self._held is WaitReason.HEADERS:
            self._serve()

    def heard(self, turn: LanePermit, answer: Reply | Fault) -> None:
        """How the call ended."""
        # the tokens that were really used take the place of those that were expected
        if isinstance(answer, Reply):
            given = answer.usage.input_tokens
            made = answer.usage.output_tokens
            if self._per_token and given is not None and made is not None:
                used = self._next_token + (given + made - turn.tokens) * self._per_token
                self._next_token = min(used, self._clock() + MAX_RETRY_DELAY_S)
                if self._waiting:
                    self._serve()
            return
        now = self._clock()
        took = now - turn.at
        if answer.kind is FaultKind.PAUSE and (
            answer.status == 429 or answer.type is ErrorType.RATE_LIMITED
        ):
            self._refused += 1
            self._adaptive.refused(
                turn.number, now, took=took, beside=self.in_flight, delay=answer.delay
            )
        elif answer.kind is FaultKind.PAUSE or answer.type is ErrorType.TIMEOUT:
            self._adaptive.overloaded(turn.number, took=took, beside=self.in_flight)

    def sample(self, name: str, wall: float) -> LaneSample | None:
        """How it is now (`wall`: seconds since 1970), and what was since the last sample; None:
        nothing, again."""
        pause = self._paused_until - self._clock()
        was_idle, self._was_idle = (
            self._was_idle,
            not (self.in_flight or self._waiting or pause > 0),
        )
        if self._waiting and self._held is not WaitReason.NOTHING:
            held = self._held.name.lower()
        else:
            held = ""
        now = self.in_flight, self._adaptive.limit, self.most, len(self._waiting), held
        waited, refused, self._told, self._refused = (
            self.waited - self._told,
            self._refused,
            self.waited,
            0,
        )
        if was_idle and self._was_idle and not (waited or refused):
            return None
        return LaneSample(wall, name, *now, wall + pause if pause > 0 else None, waited, refused)

    def _pause_until(self, moment: float) -> None:
        if moment > self._paused_until:
            self._paused_until = moment
            self._show(moment)
            if self._waiting:
                self._serve()

    def _show(self, until: float) -> None:
        """Tells of a wait that is long, and ends later than the last one that was told."""
        left = until - self._clock()
        if left >= LONG_PAUSE and until > self._shown_until + 1:
            self._shown_until = until
            self._waits(left)

    def _holds(self, now: float) -> tuple[WaitReason, float]:
        """What keeps the next call from being sent now, and until when."""
        if now < self._paused_until:
            return WaitReason.PAUSE, self._paused_until
        if self.in_flight >= self._adaptive.limit:
            return WaitReason.LIMIT, now + STEP if self._adaptive.limit < self.most else math.inf
        if self._sent >= self._allowance.ceiling and now < (
            opens := self._allowance.opens(self._sent + 1)
        ):
            return WaitReason.HEADERS, opens
        turn = max(self._next_call, self._next_token)
        if now < turn:
            return (WaitReason.PACE, turn)
        return (WaitReason.NOTHING, now)

    def _start(self, now: float, tokens: int) -> LanePermit:
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
        """Lets in whoever may go, and sees to it that this is called again when the next one
        may."""
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
            place, tokens = self._waiting[0]
            if place.done():  # cancelled
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
            place.set_result(self._start(now, tokens))
        self._held = WaitReason.NOTHING

    def _stop(self) -> None:
        """The run stops: nobody who waits is let in any more."""
        while self._waiting:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_result(None)


class CallLimit:
    """So many calls at a time, in the order of asking: those of a stage that has its own bound;
    and calls in flight plus replies not yet durable, of which a kill can cost that many at most.
    (asyncio's Semaphore is slower.)"""

    def __init__(self, most: float) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Counts one more call, waiting for others to leave when there are too many."""
        if self._free > 0:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was counted just then
                self.leave()
            raise

    def leave(self, calls: float = 1) -> None:
        """These calls are over, or durable, or were never made: who has waited longest is counted
        in their place."""
        self._free += calls
        while self._free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._free -= 1
