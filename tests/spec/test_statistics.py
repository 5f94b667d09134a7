"""Intervals against published tables, and against many drawn samples."""

from __future__ import annotations

import random

import pytest

from agac.core.statistics import Interval, paired_difference, proportion


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)  # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3
def test_wilsons_interval_is_that_of_the_published_table(hits: int, n: int, low: float, high: float) -> None:
    found = proportion(hits, n)
    assert (round(found.low, 4), found.middle, round(found.high, 4)) == (low, hits / n, high)


def test_what_is_known_whole_is_sure_and_what_is_nearly_known_nearly() -> None:
    assert proportion(3, 40, of=40) == Interval(0.075, 0.075, 0.075)
    assert proportion(3, 40, of=50).reach < proportion(3, 40, of=500).reach < proportion(3, 40).reach
    assert proportion(3, 40, of=10**9).reach == pytest.approx(proportion(3, 40).reach)
    assert proportion(40, 40).high == 1.0


@pytest.mark.parametrize(("share", "n", "of"), [(0.03, 400, None), (0.03, 400, 600), (0.3, 50, None), (0.3, 50, 80)])
def test_nearly_95_of_100_intervals_hold_the_share(share: float, n: int, of: int | None) -> None:
    draw, held, times = random.Random(7), 0, 1500
    population = of or 100_000
    marked = round(share * population)
    for _ in range(times):
        hits = sum(number < marked for number in draw.sample(range(population), n))
        found = proportion(hits, n, of=of)
        held += found.low <= marked / population <= found.high
    assert 0.92 <= held / times <= 0.975  # counts are whole numbers, so it is not 0.95 at each of them


def test_a_paired_difference_is_that_of_the_published_example() -> None:
    # airway hyper-responsiveness: Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014) 2850-2875
    found = paired_difference(1, 1, 7, 12)
    assert found.middle == pytest.approx(-6 / 21)
    assert (round(found.low, 3), round(found.high, 3)) == (-0.507, -0.026)


def test_nearly_95_of_100_paired_intervals_hold_the_difference() -> None:
    draw, held, times = random.Random(3), 0, 1500
    for _ in range(times):
        counts = [0, 0, 0, 0]
        for kind in draw.choices(range(4), weights=(80, 9, 4, 7), k=120):
            counts[kind] += 1
        found = paired_difference(*counts)
        held += found.low <= 0.05 <= found.high
    assert 0.93 <= held / times <= 0.975


def test_pairs_that_all_agree_differ_by_nothing() -> None:
    found = paired_difference(40, 0, 0, 0)
    assert found.middle == 0.0
    assert found.low < 0.0 < found.high


@pytest.mark.parametrize(("hits", "n", "of"), [(1, 0, None), (3, 2, None), (-1, 2, None), (1, 3, 2)])
def test_counts_that_cannot_be_are_refused(hits: int, n: int, of: int | None) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        proportion(hits, n, of=of)


def test_nothing_has_no_figure() -> None:
    with pytest.raises(ValueError, match="no rows"):
        paired_difference(0, 0, 0, 0)
