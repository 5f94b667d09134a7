"""Rows that are not finished: which stored rows a run takes up again, and which stay as they are.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from collections.abc import Callable

from agac.store.rows import WALKED, State, StoredRow

ENDED = WALKED | {State.DROPPED}
"""Ends after which an unchanged row needs nothing."""


def is_finished(row: StoredRow, content: bytes, *, is_reopened: bool) -> bool:
    """True if a stored row of the input needs nothing more: it came to its end with this content.

    `is_reopened`: one of its results is too old, or people decided something about it."""
    return row.hash == content and row.state in ENDED and not is_reopened


def is_retried(row: StoredRow, *, is_chosen: bool, is_changed: bool) -> bool:
    """True if a retry works on a row that a stage made: the retry chose it, it is open, or it is
    made of other content now."""
    return row.state == State.PENDING or is_changed or is_chosen


def is_taken_up(
    row: StoredRow, *, is_chosen: bool | None, is_reopened: bool, stays_failed: Callable[[], bool]
) -> bool:
    """True if a run works on a row that a stage made, as it is stored.

    `is_chosen` is what a retry says of it, None without a retry. `stays_failed` says
    of a failed row whether it is left as it is."""
    if is_chosen is not None:
        return is_retried(row, is_chosen=is_chosen, is_changed=False)
    if row.state == State.PENDING or is_reopened:
        return True
    return row.state == State.FAILED and not stays_failed()
