"""Rows that are not finished: which stored rows a run takes up again, and which stay as they are.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

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


def rows_that_wait(
    in_batches: Mapping[int, int],
    moved: Collection[int],
    for_people: Mapping[int, int],
    fixed: Collection[int],
) -> dict[int, int]:
    """Returns the rows that need not be walked, with the position of the stage at which they wait,
    by their keys.

    `in_batches`: rows with tasks in batches; of them `moved` are those for which a batch or people
    brought something since. `for_people`: rows that wait for people and nothing else. `fixed`: rows
    with a result that people set by hand since."""
    waiting = {key: stage for key, stage in in_batches.items() if key not in moved}
    return waiting | {key: stage for key, stage in for_people.items() if key not in fixed}


def is_resumed(row: StoredRow, *, is_made: bool, is_decided: bool, is_batched: bool) -> bool:
    """True if a run goes on with an open row from where it waited: what failed for it meanwhile is
    not asked again, and answers that grew old still count.

    `is_decided`: people decided something about it. `is_batched`: rows of the workflow may wait
    for batches, which is enough for a row that a stage made (`is_made`); one of the input is walked
    from its beginning."""
    if row.state != State.PENDING:
        return False
    return is_decided or (is_batched and is_made)


INPUT = -1
"""The place of rows of the input before the positions of stages that make rows."""


def level_waits(maker: int, first_open: int | None) -> bool:
    """True if the rows that the stage at the position `maker` makes of many rows (groups, the
    first of equal ones) wait: a row before them stays open. `first_open` is the position of the
    first stage of whose rows one stays open, INPUT for rows of the input; None: none does."""
    return first_open is not None and first_open < maker
