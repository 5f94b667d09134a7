"""Which stored rows are taken up, and which of equal ones go on: the tables that runs and plans share."""

import pytest

from agac.core.types import Outcome
from agac.engine.decide.dedupe import decide, is_changed
from agac.engine.decide.unfinished import (
    is_finished,
    is_resumed,
    is_retried,
    is_taken_up,
    level_waits,
    rows_that_wait,
)
from agac.store.rows import DedupeRow, State, StoredRow


def row(state: State) -> StoredRow:
    return StoredRow(1, "r", 0, 1, b"same", state, None, None, None, 1, None)


@pytest.mark.parametrize("state", [*State])
def test_rows_of_the_input_that_need_nothing(state: State) -> None:
    ended = state in (State.DONE, State.SKIPPED, State.FILTERED, State.DROPPED)
    assert is_finished(row(state), b"same", is_reopened=False) == ended
    assert not is_finished(row(state), b"other", is_reopened=False)
    assert not is_finished(row(state), b"same", is_reopened=True)


@pytest.mark.parametrize(
    ("state", "is_chosen", "is_reopened", "stays_failed", "taken_up"),
    [
        (State.PENDING, None, False, False, True),
        (State.PENDING, False, False, False, True),  # a retry goes on with what is open
        (State.DONE, None, False, False, False),
        (State.DONE, None, True, False, True),  # too old, or decided
        (State.DONE, True, False, False, True),
        (State.DONE, False, True, False, False),
        (State.FAILED, None, False, False, True),
        (State.FAILED, None, False, True, False),
        (State.FAILED, True, False, True, True),
        (State.FAILED, False, False, False, False),
    ],
)
def test_rows_that_stages_made(
    state: State, is_chosen: bool | None, is_reopened: bool, stays_failed: bool, taken_up: bool
) -> None:
    found = is_taken_up(row(state), is_chosen=is_chosen, is_reopened=is_reopened, stays_failed=lambda: stays_failed)
    assert found == taken_up


def test_a_retry_works_on_rows_that_changed() -> None:
    assert is_retried(row(State.DONE), is_chosen=False, is_changed=True)
    assert not is_retried(row(State.DONE), is_chosen=False, is_changed=False)


@pytest.mark.parametrize("came_as", [State.DONE, State.SKIPPED])
def test_the_first_of_equals_goes_on_as_it_came(came_as: State) -> None:
    first, other = (decide(is_first=one, came_as=came_as) for one in (True, False))
    assert (first.outcome, first.state, first.goes_on) == (Outcome.DONE, came_as, True)
    assert (other.outcome, other.state, other.goes_on) == (Outcome.DROPPED, State.FILTERED, False)


def equal(key: int, state: State, child: bytes | None = None, child_state: int | None = None) -> DedupeRow:
    return DedupeRow(b"h", key, b"content", State.DONE, state, f"r{key}", None, None, child, child_state)


KEPT = equal(1, State.DONE, b"content", State.DONE)


@pytest.mark.parametrize(
    ("one", "first", "changed"),
    [
        (KEPT, KEPT, False),
        (equal(1, State.DONE), KEPT, True),  # nothing was made of it yet
        (equal(1, State.DONE, b"older", State.DONE), KEPT, True),
        (equal(1, State.DONE, b"content", State.GONE), KEPT, True),
        (equal(1, State.FILTERED, b"content", State.DONE), KEPT, True),
        (equal(2, State.FILTERED), KEPT, False),
        (equal(2, State.DONE), KEPT, True),
        (equal(2, State.FILTERED), equal(1, State.FILTERED), True),  # its note names another one
    ],
)
def test_what_is_written_again_of_equal_rows(one: DedupeRow, first: DedupeRow, changed: bool) -> None:
    assert is_changed(one, first) == changed


def test_rows_that_wait_need_not_be_walked() -> None:
    assert rows_that_wait({1: 0, 2: 0}, {2}, {3: 4, 5: 4}, {5}) == {1: 0, 3: 4}


@pytest.mark.parametrize("is_made", [True, False])
def test_open_rows_are_resumed_once_something_was_decided_or_brought(is_made: bool) -> None:
    opened = row(State.PENDING)
    assert is_resumed(opened, is_made=is_made, is_decided=True, is_batched=False)
    assert is_resumed(opened, is_made=is_made, is_decided=False, is_batched=True) == is_made
    assert not is_resumed(row(State.DONE), is_made=is_made, is_decided=True, is_batched=True)


def test_a_level_waits_for_open_rows_before_it() -> None:
    assert [level_waits(2, first) for first in (None, -1, 1, 2, 3)] == [False, True, True, False, False]
