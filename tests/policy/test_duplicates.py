"""What becomes of rows whose ids repeat: the table that runs and plans share."""

from itertools import count
from typing import Any

import pytest

from agac.core.errors import ErrorType
from agac.engine.decide.duplicates import first_free_id, occurrence_of, repeated_id, state_of_repetition
from agac.store.rows import State

GOOD, FAILED, DROPPED = State.PENDING, State.FAILED, State.DROPPED


@pytest.mark.parametrize(
    ("policy", "occurrences", "states"),
    [
        ("error", [0, 1, 2], [GOOD, FAILED, FAILED]),
        ("first", [0, 1, 2], [GOOD, DROPPED, DROPPED]),
        ("last", [1, 2, 0], [DROPPED, DROPPED, GOOD]),
    ],
)
def test_three_rows_with_one_id(policy: Any, occurrences: list[int], states: list[State]) -> None:
    found = [occurrence_of(policy, place, comes_again=place < 2) for place in range(3)]
    assert found == occurrences
    assert [state_of_repetition(policy, GOOD, one) for one in found] == states


@pytest.mark.parametrize("policy", ["error", "first", "last"])
def test_a_row_that_cannot_be_used_still_uses_its_id(policy: Any) -> None:
    assert state_of_repetition(policy, FAILED, 0) == FAILED
    assert state_of_repetition(policy, FAILED, 1) == (FAILED if policy == "error" else DROPPED)


@pytest.mark.parametrize(
    ("taken", "numbers", "found"),
    [
        (set(), count(2), ("a#2", 2)),
        ({"a#2", "a#3"}, count(2), ("a#4", 4)),
        ({"a#2"}, count(3), ("a#3", 3)),  # those before were given already
        ({"a#2", "a#3"}, range(2, 4), None),
    ],
)
def test_the_first_free_id(taken: set[str], numbers: Any, found: Any) -> None:
    assert first_free_id("a", numbers, taken.__contains__) == found


def test_the_error_names_both_rows() -> None:
    error = repeated_id("a", row="data/b.csv, row 2", first="row 1", is_by_number=False)
    assert error.type is ErrorType.DUPLICATE_ID
    assert error.message.startswith("data/b.csv, row 2: id 'a' was used by row 1 already; give each row its own id")
    short = repeated_id("a", row="row 2", first="row 1", is_by_number=True)
    assert short.message.startswith("id 'a' was used by row 1 already")
