"""Quantiles of durations: near the true ones whatever the durations are, and mergeable."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.engine.output.histograms import LONGEST, RELATIVE_ERROR, SHORTEST, bucket_of, merged, quantile

durations = st.floats(SHORTEST, LONGEST, allow_nan=False)
shares = st.floats(0, 1)


def exact(values: list[float], share: float) -> float:
    return sorted(values)[math.floor(share * (len(values) - 1))]


def counted(values: list[float]) -> Counter[int]:
    return Counter(map(bucket_of, values))


@given(st.lists(durations, min_size=1, max_size=300), shares)
def test_a_quantile_is_near_the_true_one(values: list[float], share: float) -> None:
    assert quantile(counted(values), share) == pytest.approx(exact(values, share), rel=RELATIVE_ERROR * 1.0001)


@given(st.lists(st.lists(durations, max_size=60), max_size=6))
def test_parts_that_were_counted_apart_make_the_whole(parts: list[list[float]]) -> None:
    assert merged(map(counted, parts)) == counted([value for part in parts for value in part])


@given(st.floats(0, 1e9, allow_nan=False))
def test_there_are_never_more_buckets_than_about_five_hundred(seconds: float) -> None:
    assert bucket_of(SHORTEST) <= bucket_of(seconds) <= bucket_of(LONGEST)
    assert bucket_of(LONGEST) - bucket_of(SHORTEST) < 530


def test_nothing_has_no_quantile_and_what_is_off_the_scale_counts_as_its_end() -> None:
    assert (quantile({}, 0.5), merged([])) == (None, {})
    for seconds, end in ((0.0, SHORTEST), (-1.0, SHORTEST), (1e-9, SHORTEST), (1e7, LONGEST)):
        assert quantile({bucket_of(seconds): 1}, 0.5) == pytest.approx(end, rel=RELATIVE_ERROR * 1.0001)
