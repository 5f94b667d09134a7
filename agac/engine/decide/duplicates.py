"""Rows whose ids repeat (`input.on_duplicate_id`): which of them its id stands for, and what
becomes of the others.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agac.core.errors import ErrorType, RowError
from agac.core.keys import numbered_id
from agac.core.types import RowId
from agac.spec.data_specs import OnDuplicateId
from agac.store.rows import State

_KEY = "input.on_duplicate_id: first | last | suffix (`agac process`: --read on_duplicate_id=last)"


def occurrence_of(policy: OnDuplicateId, met_before: int, *, comes_again: bool) -> int:
    """Returns which repetition of its id a row is, 0 for the row that the id stands for.

    `met_before` counts the rows with this id before it. `comes_again`: another one follows, which
    matters for `last` alone."""
    if policy != "last":
        return met_before
    return met_before + 1 if comes_again else 0


def state_of_repetition(policy: OnDuplicateId, state: State, occurrence: int) -> State:
    """Returns the state of a row with which it begins; `state` is the one without regard to its
    id. Under `suffix` rows get other ids and repeat none."""
    if occurrence == 0:
        return state
    return State.FAILED if policy == "error" else State.DROPPED


def repeated_id(row_id: RowId, *, row: str, first: str, is_by_number: bool) -> RowError:
    """Returns the error of a row whose id was used before. `row` and `first` name the places of
    the two; with `is_by_number` the message can do without the first."""
    where = "" if is_by_number else f"{row}: "
    used = f"{where}id {row_id!r} was used by {first} already"
    return RowError(ErrorType.DUPLICATE_ID, f"{used}; give each row its own id, or set {_KEY}")


def first_free_id(
    row_id: RowId, numbers: Iterable[int], is_taken: Callable[[str], bool]
) -> tuple[str, int] | None:
    """Returns the first id of `id#2`, `id#3`, … that no row before has, with its number; None if
    all of these `numbers` are taken."""
    for number in numbers:
        name = numbered_id(row_id, number)
        if not is_taken(name):
            return name, number
    return None
