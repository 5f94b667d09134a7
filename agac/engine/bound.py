"""A bound that nobody knows and that is found by trying, and how to tell its refusals from those that mean nothing.

The curve is that of CUBIC (RFC 9438), which finds the rate of a network path in the same way.
"""

from __future__ import annotations

import math
from enum import Enum

CUT = 0.85
"""What is left of a bound when it was too high."""

DEEPEST = 0.125
"""No share of what was last known to go is less than that: it must find back when the trouble is over."""

FEWEST = 3
"""So many refusals without a reason are needed to call them noise."""

MEMORY = 400
"""Calls over which noise is counted, about."""


class Phase(Enum):
    """Where a bound stands on its way."""

    CUT = 0  # just cut: what is refused now was refused for what came before
    CALM = 1  # below what went before
    GUESSED = 2  # the same, but nobody knows whether it ever went
    TRYING = 3


class Curve:
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


class Noise:
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
                return self._is_noise_in_the_calm()
            case Phase.TRYING:
                return self._is_as_usual()

    def _is_noise_in_the_calm(self) -> bool:
        self._calm_refusals += 1
        if self._refusals < FEWEST:
            return True
        if self._doubted:
            return self._refusals < self._most * self._calls
        self._doubted = True
        self._calm_calls = self._calm_refusals = 0.0
        return False

    def _is_as_usual(self) -> bool:
        if self._calm_refusals >= FEWEST:
            expected = self._calls * self._calm_refusals / self._calm_calls
            if self._refusals <= expected + 2 * math.sqrt(expected) + 1:  # two standard deviations
                return True
        self._forget_half()
        return False

    def _pass_to(self, phase: Phase) -> None:
        if phase is not self._phase:
            if self._phase is Phase.CALM and self._refusals < FEWEST:
                self._doubted = False
            self._phase, self._calls, self._refusals = phase, 0.0, 0.0

    def _forget_half(self) -> None:
        self._calm_calls, self._calm_refusals = self._calm_calls / 2, self._calm_refusals / 2
