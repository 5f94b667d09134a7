"""Counts durations in histograms of a fixed size, and reads quantiles from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

# The bounds of the buckets grow by a fixed ratio (as in DDSketch).
#
# A bucket holds values in (RATIO ** (number - 1), RATIO ** number] seconds, and answers with the
# value in it that is at most RELATIVE_ERROR away from both ends. Histograms of the same quantity
# are merged by adding their counts, so that parts may be counted separately: commit by commit,
# invocation by invocation, stage by stage.

RELATIVE_ERROR = 0.02
"""A quantile between SHORTEST and LONGEST differs from the true one by at most this share of
it."""

RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)

SHORTEST = 1e-4
LONGEST = 1e5
"""Seconds. Shorter and longer durations are counted in the first and the last bucket; about 520
buckets lie between."""

Histogram = Mapping[int, int]
"""How many values fell into each bucket."""

_LOG_RATIO = math.log(RATIO)


def bucket_of(seconds: float) -> int:
    """Returns the number of the bucket into which a duration falls."""
    return log_bucket(min(max(seconds, SHORTEST), LONGEST))


def log_bucket(value: float) -> int:
    """Returns the number of the bucket into which a value above 0 falls, of any size."""
    return math.ceil(math.log(value) / _LOG_RATIO)


def quantile(histogram: Histogram, share: float) -> float | None:
    """Returns the value in seconds below which `share` of all lie (0.5: the median); None for an
    empty histogram.

    Of n values in order it is the one at position floor(share * (n - 1)), counted from 0."""
    left = math.floor(share * (sum(histogram.values()) - 1))
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left < 0:
            return 2 * RATIO**bucket / (RATIO + 1)
    return None


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Adds up histograms."""
    return sum(map(Counter, histograms), Counter())
