"""How much a server takes, found by trying: how many calls at once, and how many a second.

Nothing here waits or reads a clock: times are handed in, in seconds of one monotonic clock.
"""

from __future__ import annotations

import math

FIRST = 8
"""Calls at once at the beginning."""

DOUBLING = 0.1
"""Seconds after which the calls at once double while nothing speaks against it. By time, not by replies: a model that
takes ten seconds is as soon at full width as one that takes ten milliseconds."""

CUT = 0.85
"""What is left of a bound when it was too high."""

RECOVERY = 6.0
"""Seconds, while it holds calls back, until a bound that was cut is where it was. Twice as long: a seventh higher;
four times: five times as high."""

LONGEST_RECOVERY = 60.0
GUESS_RECOVERY = RECOVERY / 4
"""The same for a bound that was guessed, not measured."""

MEASURED = 1.0
"""Seconds over which a rate is measured at least."""

DEEPEST = 0.125
"""No share of what was last known to go is less than that: the pace must find back when the trouble is over."""


class Curve:
    """A bound that falls when it was too high and comes back along a cubic curve: fast at first, flat around `top`, where
    it last went well, then faster and faster, because nothing says any more that this is still the end."""

    __slots__ = ("_low", "_seconds", "_span", "top", "value")

    def __init__(self) -> None:
        self.value = self.top = math.inf
        self._low = self._seconds = self._span = 0.0

    @property
    def below_top(self) -> bool:
        """Whether it stands where there is no reason to refuse anything."""
        return self.value < 0.98 * self.top

    def cut(self, top: float, span: float = RECOVERY) -> None:
        """Falls by a share, from where it stands or from `top` if that is less; `span` seconds later it is at `top`."""
        self.top, self._span, self._seconds = top, span, 0.0
        self._low = self.value = max(CUT * min(self.value, top), DEEPEST * top)

    def grow(self, seconds: float) -> None:
        """So long it was what held calls back."""
        self._seconds += seconds
        x = self._seconds / self._span - 1
        depth = self.top - self._low if x < 0 else (1 - CUT) * self.top
        self.value = self.top + depth * x * x * x


class Noise:
    """Refusals that come whatever we do. They are told by their coming while a bound is below what went well before; who
    would cut for each of them would crawl."""

    __slots__ = ("_calm_calls", "_calm_refusals", "_calls", "_refusals")

    MEMORY = 200
    FEWEST = 3
    MOST = 0.2
    """More than this share is no noise but a limit that was lowered."""

    def __init__(self) -> None:
        self._calm_calls = self._calm_refusals = self._calls = self._refusals = 0.0

    def sent(self, *, calm: bool) -> None:
        """One more call; `calm`: while the bound was below its top."""
        self._calls += 1
        if self._calls > self.MEMORY / 2:
            self._calls, self._refusals = self._calls / 2, self._refusals / 2
        if calm:
            self._calm_calls += 1
            if self._calm_calls > self.MEMORY:
                self._calm_calls, self._calm_refusals = self._calm_calls / 2, self._calm_refusals / 2

    def refused(self, *, calm: bool) -> bool:
        """One more refusal: whether it is no more than noise."""
        self._refusals += 1
        self._calm_refusals += calm
        if self._calm_refusals < self.FEWEST or self._calm_refusals > self.MOST * self._calm_calls:
            return False
        usual = self._calm_refusals / self._calm_calls
        return self._refusals <= 3 * usual * max(self._calls, self.MEMORY / 4)


class Adaptive:
    """The two bounds of a lane: `limit`, calls at once, from 1 to `most`; `interval`, seconds between two calls.

    A refusal by rate (429) cuts the pace, a server that cannot cope (503, a time-out) the calls at once; a 429 that does
    not say when to come again may mean either and cuts both. One cut for all calls that were under way together: those
    that were sent before it say nothing about it. A bound grows only in the time in which it holds calls back.
    """

    def __init__(self, most: int, now: float) -> None:
        self.limit = min(FIRST, most)
        self.interval = 0.0
        self._most = most
        self._room, self._pace = Curve(), Curve()
        self._room_noise, self._pace_noise = Noise(), Noise()
        self._starting = 0.0
        self._sent = self._refused = 0
        self._room_cut = self._pace_cut = 0
        self._older = self._newer = (now, 0)

    def sent(self, now: float) -> int:
        """A call is sent: its number, from 1."""
        self._sent += 1
        if self.interval:
            self._pace_noise.sent(calm=self._pace.below_top)
        elif now - self._newer[0] > MEASURED:
            self._older, self._newer = self._newer, (now, self._sent - 1)
        if self._room_cut:
            self._room_noise.sent(calm=self._room.below_top)
        return self._sent

    def held_by_limit(self, seconds: float) -> None:
        """So long calls waited because others were under way."""
        if self._room_cut:
            self._room.grow(seconds)
            self.limit = max(1, int(min(self._room.value, self._most)))
            return
        self._starting += seconds
        if self._starting > DOUBLING * 0.999:  # a timer's word for a tenth of a second
            self._starting = 0.0
            self.limit = min(2 * self.limit, self._most)

    def held_by_pace(self, seconds: float) -> None:
        """So long calls waited because the last one had only just been sent."""
        self._pace.grow(seconds)
        self.interval = 1 / self._pace.value

    def refused(self, number: int, now: float, *, took: float, beside: int, delay: float | None) -> None:
        """Call `number` was refused by rate, `took` seconds after it was sent, `beside` others being under way; the
        server wants to see nobody for `delay` seconds."""
        self._refused += 1
        if delay is None:
            self.overloaded(number, took=took, beside=beside)
        if number <= self._pace_cut or self._pace_noise.refused(calm=self._pace.below_top):
            return
        if self._refused >= self._sent:
            return  # nothing ever went well: it is not the pace
        self._pace_cut = self._sent
        self._slow_down(now, took, delay)

    def marked(self, number: int, now: float, *, took: float) -> None:
        """The answer to call `number` says that the account is at its end: what would be refused next is not sent."""
        if number > self._pace_cut:
            self._pace_cut = self._sent
            self._slow_down(now, took, None)

    def _slow_down(self, now: float, took: float, delay: float | None) -> None:
        span = min(max(RECOVERY, 4 * took), LONGEST_RECOVERY)
        if math.isinf(self._pace.top):
            since, before = self._older
            rate = (self._sent - self._refused - before) / max(now - since, MEASURED)
            if delay and now - since < MEASURED:
                rate, span = max(rate, 1 / delay), GUESS_RECOVERY
            self._pace.cut(rate, span)
            self._newer = (now, self._sent - self._refused)
        else:
            self._pace.cut(self._measured(now), span)
        self.interval = 1 / self._pace.value

    def _measured(self, now: float) -> float:
        """What the server took a second since it last said that it was too much: from end to end of its patience, so
        that what it had saved up for us does not count."""
        since, before = self._newer
        top = self._pace.top
        if now - since < MEASURED:
            return top
        taken = self._sent - self._refused - before
        self._newer = (now, self._sent - self._refused)
        rate = taken / (now - since)
        return max(min(rate, self._pace.value), top / 4) if taken else top

    def overloaded(self, number: int, *, took: float, beside: int) -> None:
        """Call `number` met a server that cannot cope; `beside` others are under way."""
        if number <= self._room_cut or self._room_noise.refused(calm=self._room.below_top):
            return
        self._room_cut = self._sent
        self._room.value = min(self._room.value, float(self.limit))
        self._room.cut(max(1.0, min(float(beside), self._room.value)), min(max(RECOVERY, 4 * took), LONGEST_RECOVERY))
        self.limit = max(1, int(self._room.value))
