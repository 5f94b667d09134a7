"""Numbers within bounds, and the formats of texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agac.simulator.words import Draft

ENDLESS = math.inf
SPAN = 100
"""How far from its only bound a number is taken."""

SHARE_NAMES = re.compile(r"confidence|probability|share|ratio|certainty", re.I)
RATING_NAMES = re.compile(r"rating|stars|score|satisfaction", re.I)


@dataclass(frozen=True, slots=True)
class Number:
    """A number: bounds are inclusive unless said otherwise; `step` is what it must be a multiple of."""

    whole: bool
    low: Fraction | None = None
    high: Fraction | None = None
    over: bool = False
    under: bool = False
    step: Fraction | None = None

    def grid(self) -> Fraction | None:
        """The distance between possible values, None where there is none."""
        if self.step is None:
            return Fraction(1) if self.whole else None
        return Fraction(self.step.numerator) if self.whole else self.step

    def ends(self) -> tuple[Fraction, Fraction]:
        """From where to where values are taken."""
        grid = self.grid() or Fraction(1)
        low, high = self.low, self.high
        known = low if low is not None else high or Fraction(0)
        reach = max(Fraction(SPAN), grid * 4, abs(known) / 10**6)  # at 1e300, a hundred more is the same float
        if low is None and high is None:
            return Fraction(0), reach
        if low is None:
            assert high is not None
            return high - reach, high
        return low, low + reach if high is None else high

    def counts(self, grid: Fraction) -> tuple[int, int]:
        """The smallest and the largest number of grid steps within the ends."""
        low, high = self.ends()
        first, last = math.ceil(low / grid), math.floor(high / grid)
        first += self.over and self.low is not None and first * grid == low
        last -= self.under and self.high is not None and last * grid == high
        return first, last

    def height(self) -> float:
        grid = self.grid()
        if grid is not None:
            first, last = self.counts(grid)
            return 0 if first <= last else ENDLESS
        low, high = self.ends()
        open_ended = (self.over and self.low is not None) or (self.under and self.high is not None)
        return ENDLESS if low > high or (low == high and open_ended) else 0

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        share = draft.random.random()
        if self.low is not None and self.high is not None and RATING_NAMES.search(name):
            share = {1: 0.8, 0: 0.4, -1: 0.0}[draft.mood] + share * 0.199
        grid = self.grid()
        if grid is not None:
            return self.stepped(grid, share)
        if self.low is None and self.high is None and SHARE_NAMES.search(name):
            return round(share, 2)
        return self.between(share)

    def stepped(self, grid: Fraction, share: float) -> int | float:
        """A multiple of the grid; of floats, one that survives being divided by the step again."""
        first, last = self.counts(grid)
        start = first + min(int(share * (last - first + 1)), last - first)
        for distance in range(min(last - first + 1, 200)):
            count = first + (start - first + distance) % (last - first + 1)
            value = grid * count
            nearest = int(value) if value.denominator == 1 else float(value)
            if grid.denominator == 1 or nearest / float(grid) == count:
                return nearest
        return float(grid * start)

    def between(self, share: float) -> float:
        """A number between the ends, with two decimals where they fit."""
        low, high = self.ends()
        exact = low + (high - low) * Fraction(share)
        for digits in (2, 6, 12):
            rounded = round(exact, digits)
            if self.holds(Fraction(float(rounded))):
                return float(rounded)
        nearest = float(exact)
        candidates = (nearest, math.nextafter(nearest, ENDLESS), math.nextafter(nearest, -ENDLESS))
        return next((value for value in candidates if self.holds(Fraction(value))), nearest)

    def holds(self, value: Fraction) -> bool:
        """Whether the value is within the bounds."""
        above = self.low is None or (value > self.low if self.over else value >= self.low)
        below = self.high is None or (value < self.high if self.under else value <= self.high)
        return above and below


def ascii_word(draft: Draft) -> str:
    """A word for addresses: plain small letters."""
    kept = "".join(letter for letter in draft.one_of(draft.words).lower() if letter.isascii() and letter.isalnum())
    return kept or "answer"


def day(draft: Draft) -> str:
    """A date that exists in every year."""
    return f"{2020 + draft.below(6)}-{1 + draft.below(12):02}-{1 + draft.below(28):02}"


def clock(draft: Draft) -> str:
    """A time of day."""
    return f"{draft.below(24):02}:{draft.below(60):02}:{draft.below(60):02}Z"


def hexadecimal(draft: Draft, count: int) -> str:
    """So many hexadecimal digits."""
    return "".join(draft.one_of("0123456789abcdef") for _ in range(count))


def uuid_text(draft: Draft) -> str:
    """A UUID of version 4."""
    tail = f"{draft.one_of('89ab')}{hexadecimal(draft, 3)}-{hexadecimal(draft, 12)}"
    return f"{hexadecimal(draft, 8)}-{hexadecimal(draft, 4)}-4{hexadecimal(draft, 3)}-{tail}"


FORMATS: dict[str, Callable[[Draft], str]] = {
    "date": day,
    "time": clock,
    "date-time": lambda draft: f"{day(draft)}T{clock(draft)}",
    "duration": lambda draft: f"P{1 + draft.below(30)}D",
    "email": lambda draft: f"{ascii_word(draft)}@example.com",
    "hostname": lambda draft: f"{ascii_word(draft)}.example.com",
    "ipv4": lambda draft: f"192.0.2.{1 + draft.below(254)}",
    "ipv6": lambda draft: f"2001:db8::{1 + draft.below(9999)}",
    "uri": lambda draft: f"https://example.com/{ascii_word(draft)}",
    "uuid": uuid_text,
}
"""How a text of each format is made; other formats are plain text."""
