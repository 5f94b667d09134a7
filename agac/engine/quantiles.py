"""Quantiles of durations from a histogram of fixed size: buckets whose bounds grow by a fixed ratio (as in DDSketch).

A bucket holds what lies in (RATIO ** (number - 1), RATIO ** number] seconds, and answers with the value in it that is
at most RELATIVE_ERROR away from both ends. Histograms of the same quantity are merged by adding their counts, so the
parts may be counted apart: commit by commit, invocation by invocation, stage by stage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

RELATIVE_ERROR = 0.02
"""A quantile that lies between SHORTEST and LONGEST is at most this share of itself beside the true one."""

RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)

SHORTEST, LONGEST = 1e-4, 1e5
"""Seconds. What is shorter or longer is counted in the first or the last bucket: about 520 buckets lie between."""

Histogram = Mapping[int, int]
"""How many values fell into each bucket."""

_LOG_RATIO = math.log(RATIO)


def _number(seconds: float) -> int:
    return math.ceil(math.log(seconds) / _LOG_RATIO)


def bucket_of(seconds: float) -> int:
    """The number of the bucket into which a duration falls."""
    return _number(min(max(seconds, SHORTEST), LONGEST))


def quantile(histogram: Histogram, share: float) -> float | None:
    """The value in seconds below which `share` of all lie (0.5: the median), None of an empty histogram.

    Of n values in order it is the one at position floor(share * (n - 1)), counted from 0.
    """
    left = math.floor(share * (sum(histogram.values()) - 1))
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left < 0:
            return 2 * RATIO**bucket / (RATIO + 1)
    return None


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of everything that several have counted."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return total
