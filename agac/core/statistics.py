"""How sure a figure is that rests on a sample: intervals of proportions and of their differences."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_Z = NormalDist().inv_cdf(0.975)


class Interval(NamedTuple):
    """A figure (`middle`) between the bounds that hold it with a confidence of 95 %."""

    low: float
    middle: float
    high: float

    @property
    def reach(self) -> float:
        """How far the farther bound lies off: what stands after ±."""
        return max(self.high - self.middle, self.middle - self.low)


def proportion(hits: int, n: int, *, of: int | None = None) -> Interval:
    """The share that `hits` of `n` are, by Wilson's interval. `of`: how many there are at all, of which the `n` were
    drawn: the more of them are known, the narrower. Raises ValueError for counts that cannot be."""
    if not 0 <= hits <= n or n == 0 or (of is not None and of < n):
        raise ValueError(f"no proportion: {hits} of {n}, drawn from {of}")
    share = hits / n
    if of == n:  # nothing is left that could differ
        return Interval(share, share, share)
    known = n if of is None else n * (of - 1) / (of - n)
    square = _Z**2 / known
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Interval(0.0 if hits == 0 else centre - half, share, 1.0 if hits == n else centre + half)


def sample_needed(share: float) -> int:
    """How many must be drawn at least, and all be free of errors, to prove that at most this share of all has one."""
    return math.ceil(_Z**2 * (1 - share) / share)


def paired_difference(both: int, first_only: int, second_only: int, neither: int) -> Interval:
    """By how much the share of the first exceeds that of the second, where each row was judged for both: by Newcombe's
    interval (method 10), from Wilson's of the two shares and their correlation, which counts only where it exceeds what
    chance makes. Raises ValueError where there are no rows."""
    n = both + first_only + second_only + neither
    if n == 0 or min(both, first_only, second_only, neither) < 0:
        raise ValueError("no rows were judged for both")
    first, second = (proportion(both + only, n) for only in (first_only, second_only))
    sums = (
        (both + first_only)
        * (second_only + neither)
        * (both + second_only)
        * (first_only + neither)
    )
    alike = both * neither - first_only * second_only
    together = (max(alike - n / 2, 0.0) if alike > 0 else alike) / math.sqrt(sums) if sums else 0.0
    middle = (first_only - second_only) / n

    def reach(of_first: float, of_second: float) -> float:
        return math.sqrt(max(0.0, of_first**2 - 2 * together * of_first * of_second + of_second**2))

    low = middle - reach(first.middle - first.low, second.high - second.middle)
    return Interval(
        low, middle, middle + reach(first.high - first.middle, second.middle - second.low)
    )
