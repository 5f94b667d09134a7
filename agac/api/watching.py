"""What whoever shows a run sees of it while it goes on: a snapshot of counts, taken as often as it likes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from agac.core.errors import Problem, RowError
from agac.core.types import RowId
from agac.engine.run import Invocation
from agac.engine.totals import StageTotals, Totals
from agac.spec.levels import StageNode, homes


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows there are to work on; `exact` when they were counted."""

    rows: int
    exact: bool


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at a moment. Rows: `settled` need nothing more here, `worked` of them were settled by this invocation,
    of which its guard kept out `skipped` and `dropped`; `total` come here as far as is known.

    `cost` in USD, of the calls whose price is known.
    """

    name: str
    settled: int
    worked: int
    total: RowCount | None
    in_flight: int
    reused: int
    failed: int
    skipped: int
    dropped: int
    last_error: tuple[RowError, RowId] | None
    cost: float
    unpriced: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class BatchCount:
    """The open batches of a stage that stand alike (`status` as `agac batch status` says it), and their requests."""

    stage: str
    status: str
    batches: int
    requests: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at a moment. `unusable` rows failed before any stage; `stopping`: nothing new is begun; `waiting_for`: why
    the last call brought no answer; `batches`: those that are open."""

    workflow: str
    stages: tuple[StageSnapshot, ...]
    rows: RowCount | None
    settled: int
    unusable: int
    last_error: tuple[RowError, RowId] | None
    stopping: bool
    waiting_for: RowError | None = None
    batches: tuple[BatchCount, ...] = ()

    @property
    def in_flight(self) -> int:
        """Tasks that are being asked."""
        return sum(stage.in_flight for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Watched:
    """A run while its rows are worked on. `count_rows` reads the input for a moment, or gives None when that would
    take long; it may be called in a thread. `upstream`: the stages that are upstream of each, by name; how many rows
    come to the `uncounted` ones is not known before they are made; `batches` gives the open ones as last seen."""

    workflow: str
    invocation: Invocation
    count_rows: Callable[[], RowCount | None]
    warnings: list[Problem]
    upstream: Mapping[str, Collection[str]]
    uncounted: Collection[str] = ()
    batches: Callable[[], Sequence[BatchCount]] = tuple

    def snapshot(self, counted: RowCount | None = None) -> Snapshot:
        """The run now. `counted` is what `count_rows` gave, once it did."""
        totals, batches = self.invocation.totals, tuple(self.batches())
        rows = row_count(totals, counted)
        stages = [self._stage(name, stage, rows, to_come=bool(batches)) for name, stage in totals.stages.items()]
        return Snapshot(
            self.workflow,
            tuple(stages),
            rows,
            totals.settled,
            totals.unusable,
            totals.last_error,
            stopping=self.invocation.control.stop is not None,
            waiting_for=totals.waiting_for,
            batches=batches,
        )

    def _stage(self, name: str, stage: StageTotals, rows: RowCount | None, *, to_come: bool) -> StageSnapshot:
        """Rows that came to their end upstream never come here; neither do those that ended in a branch beside it
        without having been here, of which only the number is known, and only roughly while others are under way. Those
        that were parked are `to_come` when it is for batches."""
        totals = self.invocation.totals
        made = name in self.uncounted
        settled = stage.settled if made else totals.unchanged + stage.settled
        ended = [totals.stages[other] for other in self.upstream[name] if other in totals.stages]
        never = totals.unusable + totals.rows_dropped
        never += sum(other.failed + other.dropped for other in ended)
        if not to_come:
            never = max(never + stage.parked + sum(other.parked for other in ended), totals.settled - settled)
        return StageSnapshot(
            name=name,
            settled=settled,
            worked=stage.settled,
            total=RowCount(max(settled, rows.rows - never), rows.exact) if rows and not made else None,
            in_flight=stage.in_flight,
            reused=stage.reused,
            failed=stage.failed,
            skipped=stage.skipped,
            dropped=stage.dropped,
            last_error=stage.last_error,
            cost=stage.cost,
            unpriced=stage.unpriced,
            simulated=stage.simulated > 0,
        )


def uncounted(stages: Sequence[StageNode]) -> frozenset[str]:
    """The stages that are asked of rows which other stages make, or may make: explode, group, or call functions."""
    home = homes(stages)
    functions = {stage.name for stage in stages if stage.makes == "rows"}
    found: set[str] = set()
    for stage in stages:
        if home[stage.name] is not None or stage.makes == "kept" or (functions | found).intersection(stage.needs):
            found.add(stage.name)
    return frozenset(found)


def row_count(totals: Totals, counted: RowCount | None) -> RowCount | None:
    """The best that is known of the number of rows: what was read to the end, was counted, or was there last time."""
    if totals.all_read:
        return RowCount(totals.seen, exact=True)
    if counted is None and totals.expected is not None:
        counted = RowCount(totals.expected, exact=False)
    if counted is not None and counted.rows < totals.seen:
        return None  # there are more than anybody thought
    return counted


Watch = Callable[[Watched], Awaitable[None]]
"""A coroutine that shows progress until it is cancelled."""
