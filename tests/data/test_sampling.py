"""Samples: the same on every machine, fair, and stable while rows are added."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agac.data.sources import sampled


def test_these_are_drawn_on_every_machine_and_version() -> None:
    assert sampled(range(1, 1001), 5, 0) == [408, 518, 669, 912, 999]


@given(st.integers(0, 200), st.integers(1, 50), st.integers(0, 5))
def test_a_sample_is_some_of_the_rows_in_their_order(rows: int, size: int, seed: int) -> None:
    found = sampled(range(1, rows + 1), size, seed)
    assert found == sorted(set(found))
    assert len(found) == min(size, rows)
    assert set(found) <= set(range(1, rows + 1))


def test_every_row_is_as_likely_as_any_other() -> None:
    counts = Counter(row for seed in range(4_000) for row in sampled(range(20), 5, seed))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


def test_rows_added_at_the_end_change_little_and_another_seed_draws_another_sample() -> None:
    before, after = set(sampled(range(10_000), 100, 3)), set(sampled(range(10_100), 100, 3))
    assert len(before & after) >= 95
    assert all(row >= 10_000 for row in after - before)
    assert sampled((row for row in range(1000)), 10, 1) != sampled(range(1000), 10, 2)
