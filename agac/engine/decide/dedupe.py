"""Rows that are alike (`dedupe`): the first goes on, the others leave.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from typing import NamedTuple

from agac.core.types import Outcome
from agac.store.rows import DedupeRow, State


class DedupeDecision(NamedTuple):
    """What becomes of a row at a stage that keeps the first of equals."""

    outcome: Outcome
    """The outcome of the stage."""
    state: State
    """The state of the row."""

    @property
    def goes_on(self) -> bool:
        """True if the row goes on."""
        return self.outcome is Outcome.DONE


def decide(*, is_first: bool, came_as: State) -> DedupeDecision:
    """Decides on a row that came to the stage in the state `came_as`."""
    if is_first:
        return DedupeDecision(Outcome.DONE, came_as)
    return DedupeDecision(Outcome.DROPPED, State.FILTERED)


def is_changed(row: DedupeRow, first: DedupeRow) -> bool:
    """True if what becomes of the row is not what is stored. That the first of its equals is
    another one now counts as a change, as the row's note names it."""
    if row.key != first.key:
        return row.state != State.FILTERED or is_changed(first, first)
    return (
        row.state == State.FILTERED
        or row.child_state in (None, State.GONE)
        or row.child_hash != row.content
    )
