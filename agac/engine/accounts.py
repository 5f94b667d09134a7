"""No row ever vanishes: rows in are the sum of outcomes, at every level, at the end of every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agac.engine.totals import Totals
from agac.store.rows import MadeCount, State
from agac.store.runs import Count


def assert_accounted(totals: Totals, made: Sequence[MadeCount], counts: Iterable[Count]) -> None:
    """Raises AssertionError where rows that were to be worked on have no outcome though the run came to its end: those
    that were read, those that stages made (but for parked ones); or where a roll-up counts what is not there."""
    if totals.seen != totals.settled:
        raise AssertionError(f"{totals.seen} rows were read and {totals.settled} have an outcome")
    waiting = sum(one.rows for one in made if one.state == State.PENDING)
    if waiting != totals.made_parked:
        raise AssertionError(
            f"{waiting} rows that stages made have no outcome, and {totals.made_parked} were left open"
        )
    for count in counts:
        if count.tasks < 0:
            raise AssertionError(f"{count.tasks} tasks of stage {count.stage!r} are counted as {count.outcome}")
