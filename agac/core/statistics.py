"""Computes how sure a figure is that rests on a sample: intervals of proportions and of their
differences."""

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
        """The distance of the farther bound from the middle: the figure after ±."""
        return max(self.high - self.middle, self.middle - self.low)


def proportion(hits: int, n: int, *, of: int | None = None) -> Interval:
    """Computes the share that `hits` of `n` are, by Wilson's interval.

    `of` is the size of the whole from which the `n` were drawn: the more of it was drawn, the
    narrower the interval. Raises ValueError for impossible counts."""
    is_possible = 0 <= hits <= n and n > 0
    if not is_possible or (of is not None and of < n):
        raise ValueError(f"no proportion: {hits} of {n}, drawn from {of}")
    share = hits / n
    if of == n:  # nothing is left that could differ
        return Interval(share, share, share)
    effective = n if of is None else n * (of - 1) / (of - n)
    square = _Z**2 / effective
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    low = 0.0 if hits == 0 else centre - half
    high = 1.0 if hits == n else centre + half
    return Interval(low, share, high)


def sample_needed(share: float) -> int:
    """Computes how many must be drawn at least, all free of errors, to prove that at most this
    share of the whole has an error."""
    return math.ceil(_Z**2 * (1 - share) / share)


def paired_difference(both: int, first_only: int, second_only: int, neither: int) -> Interval:
    """Computes by how much the share of the first exceeds that of the second, where each row was
    judged for both.

    It is Newcombe's interval (method 10), from Wilson's of the two shares and their correlation,
    which counts only as far as it exceeds chance. Raises ValueError if there are no rows."""
    n = both + first_only + second_only + neither
    if n == 0 or min(both, first_only, second_only, neither) < 0:
        raise ValueError("no rows were judged for both")
    first = proportion(both + first_only, n)
    second = proportion(both + second_only, n)
    correlation = _correlation(both, first_only, second_only, neither)
    middle = (first_only - second_only) / n

    def reach(of_first: float, of_second: float) -> float:
        square = of_first**2 - 2 * correlation * of_first * of_second + of_second**2
        return math.sqrt(max(0.0, square))

    low = middle - reach(first.middle - first.low, second.high - second.middle)
    high = middle + reach(first.high - first.middle, second.middle - second.low)
    return Interval(low, middle, high)


def _correlation(both: int, first_only: int, second_only: int, neither: int) -> float:
    """Computes the correlation of two judgments; a positive one is corrected for chance."""
    n = both + first_only + second_only + neither
    first_sums = (both + first_only) * (second_only + neither)
    second_sums = (both + second_only) * (first_only + neither)
    sums = first_sums * second_sums
    if not sums:
        return 0.0
    covariance: float = both * neither - first_only * second_only
    if covariance > 0:
        covariance = max(covariance - n / 2, 0.0)
    return covariance / math.sqrt(sums)
