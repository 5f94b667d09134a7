"""How much a server takes, found by trying: calls at once and calls per second, raised and cut by a cubic curve."""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

# The curve is that of CUBIC (RFC 9438), which finds the rate of a network path in the same way. Nothing here waits or
# reads a clock: times are handed in, in seconds of one monotonic clock.

CUT = 0.85
"""What is left of a bound when it was too high."""

DEEPEST = 0.125
"""No share of what was last known to go is less than that: it must find back when the trouble is over."""

MIN_LIMIT = 3
"""So many refusals without a reason are needed to call them noise."""

MEMORY = 400
"""Calls over which noise is counted, about."""


class Phase(Enum):
    """Where a bound stands on its way."""

    CUT = 0  # just cut: what is refused now was refused for what came before
    CALM = 1  # below what went before
    GUESSED = 2  # the same, but nobody knows whether it ever went
    TRYING = 3


class CubicLimit:
    """A bound that falls when it was too high and comes back along a cubic curve: fast at first, flat around `top`,
    where it last went well, then faster and faster, because nothing says any more that this is still the end."""

    __slots__ = ("_low", "_proven", "_seconds", "_span", "top", "value")

    def __init__(self) -> None:
        self.value = self.top = math.inf
        self._proven = False
        self._low = self._seconds = self._span = 0.0

    @property
    def phase(self) -> Phase:
        """Where it stands. What `top` says is known only once it was reached again without a refusal."""
        if self.value >= self.top:
            return Phase.TRYING
        if not self._proven:
            return Phase.GUESSED
        return Phase.CUT if self._seconds < self._span / 10 else Phase.CALM

    def cut(self, top: float, span: float, share: float = CUT) -> None:
        """Falls to a share of where it stands, or of `top` if that is less; `span` seconds later it is at `top`."""
        self._proven = self._proven and self.phase is Phase.TRYING
        self.top, self._span, self._seconds = top, span, 0.0
        self._low = self.value = max(share * min(self.value, top), DEEPEST * top)

    def grow(self, seconds: float) -> None:
        """So long it was what held calls back."""
        self._seconds += seconds
        x = self._seconds / self._span - 1
        depth = self.top - self._low if x < 0 else (1 - CUT) * self.top
        self.value = self.top + depth * x * x * x
        self._proven = self._proven or x >= 0


class SpuriousRefusals:
    """Refusals that come whatever we do; who would cut for each of them would crawl.

    They are told by their coming now and then while a bound is below what went before: there nothing should be refused.
    Once that makes us doubt what went before, and it is measured anew; the second time it is noise.
    """

    __slots__ = ("_calls", "_calm_calls", "_calm_refusals", "_doubted", "_most", "_phase", "_refusals")

    def __init__(self, most: float) -> None:
        """`most`: who refuses more than this share of calls has lowered its limit."""
        self._most = most
        self._phase = Phase.TRYING
        self._doubted = False
        self._calls = self._refusals = self._calm_calls = self._calm_refusals = 0.0

    def sent(self, phase: Phase) -> None:
        """One more call."""
        self._pass_to(phase)
        self._calls += 1
        if self._calls > MEMORY:
            self._calls, self._refusals = self._calls / 2, self._refusals / 2
        if phase is Phase.CALM:
            self._calm_calls += 1
            if self._calm_calls > MEMORY:
                self._forget_half()

    def refused(self, phase: Phase) -> bool:
        """One more refusal: whether it says nothing about the bound."""
        self._pass_to(phase)
        self._refusals += 1
        match phase:
            case Phase.CUT:
                return True
            case Phase.GUESSED:
                return self._refusals < self._most * self._calls
            case Phase.CALM:
                self._calm_refusals += 1
                if self._refusals < MIN_LIMIT:
                    return True
                if self._doubted:
                    return self._refusals < self._most * self._calls
                self._doubted = True
                self._calm_calls = self._calm_refusals = 0.0
                return False
            case Phase.TRYING:
                if self._calm_refusals >= MIN_LIMIT:
                    expected = self._calls * self._calm_refusals / self._calm_calls
                    if self._refusals <= expected + 2 * math.sqrt(expected) + 1:  # as usual: two standard deviations
                        return True
                self._forget_half()
                return False

    def _pass_to(self, phase: Phase) -> None:
        if phase is not self._phase:
            if self._phase is Phase.CALM and self._refusals < MIN_LIMIT:
                self._doubted = False
            self._phase, self._calls, self._refusals = phase, 0.0, 0.0

    def _forget_half(self) -> None:
        self._calm_calls, self._calm_refusals = self._calm_calls / 2, self._calm_refusals / 2


FIRST = 8
"""Calls at once at the beginning."""

DOUBLING = 0.1
"""Seconds after which the calls at once double while nothing speaks against it. By time, not by replies: a model that
takes ten seconds is as soon at full width as one that takes ten milliseconds."""

HALF = 0.5
"""What is left of a pace that was too high as long as it is only guessed."""

RECOVERY = 6.0
"""Seconds, while it holds calls back, until a bound that was cut is where it was. Twice as long: a seventh higher;
four times: five times as high."""

LONGEST_RECOVERY = 60.0
"""However long calls take, and however few they are."""

GUESS_RECOVERY = RECOVERY / 4
"""The same for a pace that was guessed, not measured."""

MEASURED = 1.0
"""Seconds over which a rate is measured at least."""

DELAYS = 32
"""The last delays that a server asked for, the longest of which counts."""

SLOWEST = 0.5
"""Calls a second; what is slower is kept by the pauses that the server asks for."""

AT_ONCE = 0.05
"""Seconds that a server means at most by "again in 0 seconds", which says nothing about its limit."""

PACE_NOISE, ROOM_NOISE = 0.2, 0.02
"""Shares of calls. A pace that is too high by half has a third refused; of too many at once only those too many are."""


class Adaptive:
    """The two bounds of a lane: `limit`, calls at once, from 1 to `most`; `interval`, seconds between two calls.

    A refusal by rate (429) cuts the pace, a server that cannot cope (503, a time-out) the calls at once; a 429 that
    does not say when to come again may mean either and cuts both. One cut for all calls that were under way together:
    those that were sent before it say nothing about it. A bound grows only in the time in which it holds calls back.
    """

    def __init__(self, most: int, now: float) -> None:
        self.limit = min(FIRST, most)
        self.interval = 0.0
        self._most = most
        self._room, self._pace = CubicLimit(), CubicLimit()
        self._room_noise, self._pace_noise = SpuriousRefusals(ROOM_NOISE), SpuriousRefusals(PACE_NOISE)
        self._starting = 0.0
        self._sent = self._refused = 0
        self._room_cut = self._pace_cut = 0
        self._older = self._newer = (now, 0)
        self._refused_since = 0
        self._measured = False
        self._delays: deque[float] = deque(maxlen=DELAYS)

    def sent(self, now: float) -> int:
        """A call is sent: its number, from 1."""
        if self.interval:
            self._pace_noise.sent(self._pace.phase)
        elif now - self._newer[0] > MEASURED:
            self._older, self._newer = self._newer, (now, self._sent)
        if self._room_cut:
            self._room_noise.sent(self._room.phase)
        self._sent += 1
        return self._sent

    def held_by_limit(self, seconds: float) -> None:
        """So long calls waited because others were under way."""
        if self._room_cut:
            self._room.grow(seconds)
            self.limit = max(1, int(min(self._room.value, self._most)))
        elif self.limit < self._most:
            self._starting += seconds
            self.limit = min(int(FIRST * 2 ** min(self._starting / DOUBLING, 20)), self._most)

    def held_by_pace(self, seconds: float) -> None:
        """So long calls waited because the last one had only just been sent."""
        self._pace.grow(seconds)
        self.interval = self._between()

    def refused(self, number: int, now: float, *, took: float, beside: int, delay: float | None) -> None:
        """Call `number` was refused by rate, `took` seconds after it was sent, `beside` others being under way; the
        server wants to see nobody for `delay` seconds."""
        self._refused += 1
        if delay is None:
            self.overloaded(number, took=took, beside=beside)
        else:
            self._delays.append(delay or AT_ONCE)
        if self._refused >= self._sent:  # nothing ever went well: it is not the pace
            self._pace, self.interval, self._measured = CubicLimit(), 0.0, False
            return
        if number <= self._pace_cut:
            return
        self._refused_since += 1
        if not self._pace_noise.refused(self._pace.phase):
            self._slow_down(now, took, delay)

    def marked(self, number: int, now: float, *, took: float) -> None:
        """The answer to call `number` says that the account is at its end: what would be refused next is not sent."""
        if number > self._pace_cut and (not self.interval or now - self._newer[0] >= MEASURED):
            self._slow_down(now, took, None)

    def overloaded(self, number: int, *, took: float, beside: int) -> None:
        """Call `number` met a server that cannot cope; `beside` others are under way."""
        if number <= self._room_cut or self._room_noise.refused(self._room.phase):
            return
        self._room_cut = self._sent
        self._room.value = min(self._room.value, float(self.limit))
        self._room.cut(max(1.0, min(float(beside), self._room.value)), _recovery(took))
        self.limit = max(1, int(self._room.value))

    def _slow_down(self, now: float, took: float, delay: float | None) -> None:
        if not self.interval:  # a guess: what was sent in the last second or two, or when the server expects a call
            since, before = self._older
            rate = max(self._sent - before - 1, 1) / max(now - since, MEASURED)
            self._pace.cut(max(rate, 1 / delay if delay else 0.0, SLOWEST), GUESS_RECOVERY)
            self._newer, self._refused_since = (now, self._sent), 0
        elif now - self._newer[0] >= MEASURED:
            top = self._measure(now)
            self._pace.cut(top, _recovery(took, top))
        elif self._measured:
            self._pace.cut(self._pace.top, _recovery(took, self._pace.top))
        else:
            self._pace.cut(self._pace.value, GUESS_RECOVERY, HALF)
        self._pace_cut = self._sent
        self.interval = self._between()

    def _between(self) -> float:
        """Seconds between two calls: by the pace, but never more than twice what the server lately asked to be left
        alone. Who says that a fiftieth of a second is enough is not left alone for minutes."""
        wanted = 1 / self._pace.value
        return min(wanted, 2 * max(self._delays)) if self._delays else wanted

    def _measure(self, now: float) -> float:
        """What the server took a second since it last said that it was too much: from end to end of its patience, so
        that what it had saved up for us does not count."""
        since, before = self._newer
        taken = self._sent - before - self._refused_since
        self._newer, self._refused_since = (now, self._sent), 0
        if taken <= 0:
            return self._pace.top
        self._measured = True
        return max(min(taken / (now - since), self._pace.value), self._pace.top / 4, SLOWEST)


def _recovery(took: float, rate: float = math.inf) -> float:
    """Seconds until a bound is back: enough for the news of it to come, and for some calls."""
    return min(max(RECOVERY, 4 * took, 12 / rate), LONGEST_RECOVERY)
