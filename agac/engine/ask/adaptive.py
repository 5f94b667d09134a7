"""How much a server takes is found by trying: calls at once and calls per second, raised and cut by
a cubic curve."""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

# The curve is that of CUBIC (RFC 9438), which finds the rate of a network path in the same way.
# Neither `TriedBound` nor `Adaptive` waits or reads a clock: times are handed in, in seconds of one
# monotonic clock.

CUT = 0.85
"""The share that is left of a bound after it was too high."""

GUESS_CUT = 0.5
"""The same share of a pace that is only guessed."""

DEEPEST_CUT = 0.125
"""The least share of what last worked: a bound must recover when the trouble is over."""

NOISE_REFUSALS = 3
"""How many refusals without a reason are needed to call them noise."""

NOISE_CALLS = 400
"""About how many calls noise is counted over."""


class LanePhase(Enum):
    """The phase of a bound between two cuts."""

    CUT = 0
    """Just cut: what is refused now was refused for calls sent before the cut."""
    CALM = 1
    """Below what worked before."""
    GUESSED = 2
    """Below its top, of which it is unknown whether it ever worked."""
    TRYING = 3
    """Above what worked before."""


class TriedBound:
    """A bound that is cut when it was too high and recovers along a cubic curve: fast at first,
    flat around `top`, where it last worked, then faster and faster, because the limit may be
    higher now.

    Some servers refuse at random. Cutting on each refusal would slow to a crawl, so repeated
    refusals while the bound is below what worked before count as noise. The first time they only
    cast doubt on what worked before, which is measured again. `cut_at` is the last call that was
    sent before a cut."""

    def __init__(self, most_noise: float) -> None:
        """`most_noise`: a server that refuses more than this share of calls has lowered its
        limit."""
        self._most_noise = most_noise
        self.cut_at = 0
        self._counted_in = LanePhase.TRYING
        self._doubted = False
        self._calls = self._refusals = self._calm_calls = self._calm_refusals = 0.0
        self.reset()

    def reset(self) -> None:
        """Forgets all that is known of what works."""
        self.value = self.top = math.inf
        self._proven = False
        self._low = self._seconds = self._span = 0.0

    @property
    def phase(self) -> LanePhase:
        """The phase that it is in. `top` is proven only once it was reached again without a
        refusal."""
        if self.value >= self.top:
            return LanePhase.TRYING
        if not self._proven:
            return LanePhase.GUESSED
        if self._seconds < self._span / 10:
            return LanePhase.CUT
        return LanePhase.CALM

    def cut(self, call: int, top: float, span: float, share: float = CUT) -> None:
        """Cuts the bound to a share of itself, or of `top` if that is less. It is at `top` again
        in `span` seconds. `call` is the number of the last call that was sent."""
        self._proven = self._proven and self.phase is LanePhase.TRYING
        self.cut_at = call
        self.top = top
        self._span = span
        self._seconds = 0.0
        self._low = self.value = max(share * min(self.value, top), DEEPEST_CUT * top)

    def grow(self, seconds: float) -> None:
        """Raises the bound for the seconds in which it held calls back."""
        self._seconds += seconds
        x = self._seconds / self._span - 1
        depth = self.top - self._low if x < 0 else (1 - CUT) * self.top
        self.value = self.top + depth * x * x * x
        self._proven = self._proven or x >= 0

    def count_call(self) -> None:
        """Counts a call that was sent."""
        phase = self._counted_phase()
        self._calls += 1
        if self._calls > NOISE_CALLS:
            self._calls = self._calls / 2
            self._refusals = self._refusals / 2
        if phase is LanePhase.CALM:
            self._calm_calls += 1
            if self._calm_calls > NOISE_CALLS:
                self._forget_half()

    def is_noise(self) -> bool:
        """Counts a refusal. True if it says nothing about the bound."""
        phase = self._counted_phase()
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

    def _counted_phase(self) -> LanePhase:
        """Returns the phase. Calls and refusals are counted from its beginning."""
        phase = self.phase
        if phase is not self._counted_in:
            if self._counted_in is LanePhase.CALM and self._refusals < NOISE_REFUSALS:
                self._doubted = False
            self._counted_in = phase
            self._calls = 0.0
            self._refusals = 0.0
        return phase

    def _forget_half(self) -> None:
        """Lets older calls and refusals in calm phases count half."""
        self._calm_calls = self._calm_calls / 2
        self._calm_refusals = self._calm_refusals / 2


INITIAL_CALLS = 8
"""Calls at once at the beginning."""

DOUBLING = 0.1
"""Seconds after which the calls at once double while no refusal comes. It goes by time, not by
replies, so that a slow model is at full width as soon as a fast one."""

RECOVERY = 6.0
"""Seconds of holding calls back until a bound that was cut is where it was. After twice as long it
is a seventh higher; after four times as long, five times as high."""

LONGEST_RECOVERY = 60.0
"""Seconds of recovery at most, however long calls take, and however few they are."""

GUESS_RECOVERY = RECOVERY / 4
"""Seconds of recovery for a pace that was guessed, not measured."""

MEASURED = 1.0
"""Seconds over which a rate is measured at least."""

DELAYS = 32
"""How many of the delays that a server asked for are kept; the longest of them counts."""

SLOWEST = 0.5
"""Calls per second. What is slower is kept by the pauses that the server asks for."""

AT_ONCE = 0.05
"""Seconds that a server means at most by "again in 0 seconds", which says nothing about its
limit."""

PACE_NOISE = 0.2
ROOM_NOISE = 0.02
"""Shares of calls. Of calls at a pace that is half again too high a third is refused; of too many
at once only those too many are."""


class Adaptive:
    """The two bounds of a lane: `limit`, calls at once, from 1 to `most`; `interval`, seconds
    between two calls. A refusal by rate (429) cuts the pace; an overloaded server (503, a time-out)
    cuts the calls at once; a 429 that does not say when to retry may mean either and cuts both.

    There is one cut for all calls that were in flight together: those sent before a cut say nothing
    about it. A bound grows only in the time in which it holds calls back."""

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
        """Counts a call that is sent. Returns its number, from 1."""
        if self.interval:
            self._pace.count_call()
        elif now - self._newer[0] > MEASURED:
            self._older, self._newer = self._newer, (now, self._sent)
        if self._room.cut_at:
            self._room.count_call()
        self._sent += 1
        return self._sent

    def bound(self, most: int) -> None:
        """Allows at most so many calls at once from now on."""
        self._most = most
        self.limit = min(self.limit, most)

    def held_by_limit(self, seconds: float) -> None:
        """Raises `limit` for the seconds in which calls waited because others were in flight."""
        if self._room.cut_at:
            self._room.grow(seconds)
            self.limit = max(1, int(min(self._room.value, self._most)))
        elif self.limit < self._most:
            self._starting += seconds
            self.limit = min(
                int(INITIAL_CALLS * 2 ** min(self._starting / DOUBLING, 20)), self._most
            )

    def held_by_pace(self, seconds: float) -> None:
        """Shortens `interval` for the seconds in which calls waited for it."""
        self._pace.grow(seconds)
        self.interval = self._between()

    def refused(
        self, number: int, now: float, *, took: float, in_flight: int, delay: float | None
    ) -> None:
        """Learns that call `number` was refused by rate, `took` seconds after it was sent, with
        `in_flight` other calls open; the server asked for a pause of `delay` seconds."""
        self._refused += 1
        if delay is None:
            self.overloaded(number, took=took, in_flight=in_flight)
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
        """Learns from the answer to call `number` that the account's quota is used up: calls that
        would be refused next are not sent."""
        may_measure = not self.interval or now - self._newer[0] >= MEASURED
        if number > self._pace.cut_at and may_measure:
            self._slow_down(now, took, None)

    def overloaded(self, number: int, *, took: float, in_flight: int) -> None:
        """Learns that call `number` met an overloaded server, with `in_flight` other calls open."""
        room = self._room
        if number > room.cut_at and not room.is_noise():
            room.value = min(room.value, float(self.limit))
            top = max(1.0, min(float(in_flight), room.value))
            room.cut(self._sent, top, _recovery(took))
            self.limit = max(1, int(room.value))

    def _slow_down(self, now: float, took: float, delay: float | None) -> None:
        """Cuts the pace, after a rate that is measured, or guessed if it cannot be."""
        top = self._pace.top
        span = GUESS_RECOVERY
        share = CUT
        if not self.interval:
            # a guess: what was sent in the last second or two, or when the server expects a call
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
        """Returns the seconds between two calls: by the pace, but never more than twice the longest
        pause that the server asked for lately. A server that asks for a fiftieth of a second is not
        left alone for minutes."""
        wanted = 1 / self._pace.value
        if self._delays:
            return min(wanted, 2 * max(self._delays))
        return wanted

    def _measure(self, now: float) -> float:
        """Returns how many calls per second the server took between refusals. What it had saved
        up for us does not count."""
        since, before = self._newer
        taken = self._sent - before - self._refused_since
        self._newer = (now, self._sent)
        self._refused_since = 0
        if taken <= 0:
            return self._pace.top
        self._measured = True
        return max(min(taken / (now - since), self._pace.value), self._pace.top / 4, SLOWEST)


def _recovery(took: float, rate: float = math.inf) -> float:
    """Returns the seconds until a bound has recovered: enough for answers to come, and for some
    calls."""
    return min(max(RECOVERY, 4 * took, 12 / rate), LONGEST_RECOVERY)
