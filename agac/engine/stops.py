"""When a run stops because too much fails: the stop-loss of a stage's beginning, and `max_errors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agac.core.errors import ErrorType, RowError
from agac.core.types import RowId
from agac.engine.control import Control

FIRST_OUTCOMES = 20
"""Outcomes of a stage that are looked at. A stage that has so many answers already has shown that it works."""

ALIKE = 17
"""More than 80 % of them."""


class StopRules:
    """Counts outcomes of tasks that were asked, and turns the switch. Nothing waits for it."""

    def __init__(
        self, control: Control, done_before: Mapping[str, int], *, stop_loss: bool, max_errors: int | None
    ) -> None:
        """`done_before`: how many answers each stage has in this run so far, by name."""
        self._control, self._max_errors = control, max_errors
        self._errors = 0
        self._guards_all = stop_loss
        self._proven = {name for name, count in done_before.items() if count >= FIRST_OUTCOMES}
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[tuple[str, ErrorType]] = Counter()
        self._failed: set[tuple[str, bytes]] = set()

    def answered(self, stage: str) -> None:
        """A task was asked and has its answer."""
        if self._guards_all and stage not in self._proven:
            self._count(stage)

    def failed(self, stage: str, error: RowError, row_id: RowId, fingerprint: bytes | None) -> None:
        """A task failed in this invocation, and with it its row. Rows with the same question count once for the
        stop-loss: it was asked once."""
        self.row_failed()
        if not self._guards_all or stage in self._proven:
            return
        if fingerprint is not None:
            if (stage, fingerprint) in self._failed:
                return
            self._failed.add((stage, fingerprint))
        self._failures[stage, error.type] += 1
        if self._failures[stage, error.type] >= ALIKE:
            self._control.stop_loss(
                f"{ALIKE} of the first {self._outcomes[stage] + 1} outcomes of stage {stage!r} are {error.type}; "
                f"row {row_id!r} for example: {error.message}"
            )
        self._count(stage)

    def row_failed(self) -> None:
        """One more failed row; more than `max_errors` end the run."""
        self._errors += 1
        if self._max_errors is not None and self._errors > self._max_errors:
            rows = "1 row" if self._errors == 1 else f"{self._errors:,} rows"
            self._control.reach_limit(f"{rows} failed, and max_errors is {self._max_errors:,}")

    def _count(self, stage: str) -> None:
        self._outcomes[stage] += 1
        if self._outcomes[stage] >= FIRST_OUTCOMES:
            self._proven.add(stage)
