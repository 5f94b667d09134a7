"""What a run has done so far, for whoever shows it. Kept by settle; the lasting counts are the store's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agac.core.errors import RowError
from agac.core.types import Outcome, RowId


@dataclass(slots=True)
class StageTotals:
    """Counts of one stage in this invocation. Tasks: asked and `done`, `reused`, `failed`, `skipped` or `dropped` by
    the stage's guard; `parked` are those of rows that stay open here, `in_flight` those being asked now.

    `cost` is in USD, of the calls whose price is known; `unpriced` and `simulated` count calls.
    """

    done: int = 0
    reused: int = 0
    failed: int = 0
    skipped: int = 0
    dropped: int = 0
    parked: int = 0
    in_flight: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Tasks that have an outcome."""
        return self.done + self.reused + self.failed + self.skipped + self.dropped


@dataclass(slots=True)
class Totals:
    """Counts of this invocation. Rows: `seen` in the input, `unchanged` of them needed nothing, `rows_skipped` went
    through without a result, `rows_filtered` left because of a guard, `rows_dropped` repeat an id, `rows_parked`
    stay open at a stage that was not to be asked (of rows that stages made: `made`, `made_parked`);
    `left_failed` were not tried again, `failed_for_good` will not be by the next ordinary run.

    `calls` counts requests that ended, retries and re-asks included; `given_up` those that a second Ctrl-C cut off.
    `cost` is in USD, of the calls whose price is known. `stages` are in the order of the workflow; `unusable` counts
    rows that failed before any stage. `expected` is how many rows the run had when it was last read to its end;
    `all_read`: `seen` is all of them. `waiting_for` is why the last call brought no answer.
    """

    stages: dict[str, StageTotals] = field(default_factory=dict)
    expected: int | None = None
    all_read: bool = False
    unusable: int = 0
    seen: int = 0
    unchanged: int = 0
    rows_done: int = 0
    rows_failed: int = 0
    rows_skipped: int = 0
    rows_filtered: int = 0
    rows_dropped: int = 0
    left_failed: int = 0
    failed_for_good: int = 0
    rows_parked: int = 0
    made: Counter[Outcome] = field(default_factory=Counter)
    made_parked: int = 0
    tasks_done: int = 0
    tasks_reused: int = 0
    collapsed: int = 0
    calls: int = 0
    retries: int = 0
    repairs: int = 0
    fallbacks: int = 0
    ambiguous: int = 0
    given_up: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    waiting_for: RowError | None = None
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Rows of the input that need nothing more in this invocation."""
        walked = self.rows_done + self.rows_skipped + self.rows_filtered
        return self.unchanged + walked + self.rows_failed + self.rows_dropped + self.rows_parked

    def stage(self, name: str) -> StageTotals:
        """The counts of a stage."""
        return self.stages.setdefault(name, StageTotals())
