"""A run while it is at work: snapshots of its counts for whoever shows it, and how many rows there are to work on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agac.api.project import CheckedWorkflow, count_rows
from agac.core.errors import AgacError, Problem, RowError, StoreError
from agac.core.types import RowId
from agac.engine.run import Invocation
from agac.engine.settle import StageTotals, Totals
from agac.plan.plan import Selection
from agac.spec.graph import StageNode, homes
from agac.store.batches import batches_alike
from agac.store.db import Database


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
class WatchedRun:
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
            stopping=self.invocation.stop_signal.stop is not None,
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


Watch = Callable[[WatchedRun], Awaitable[None]]
"""A coroutine that shows progress until it is cancelled."""


LOOK_SECONDS = 1.0
"""So often the store is asked for open batches; a provider is asked by the engine alone, at its own pace."""


async def show(watch: Watch, run: WatchedRun, database: Database, stages: Sequence[str]) -> None:
    """Shows a run until cancelled, with its open batches as the store had them a moment ago. `stages` by position."""
    seen: list[BatchCount] = []

    async def follow() -> None:
        while True:
            if run.invocation.batches.touched:
                with suppress(StoreError):  # whoever works with the store hears of it
                    found = await batches_alike(database, run.invocation.run)
                    seen[:] = [BatchCount(stages[one.stage], one.status or "not submitted", *one[2:]) for one in found]
            await asyncio.sleep(LOOK_SECONDS)

    follower = asyncio.ensure_future(follow())
    try:
        await watch(replace(run, batches=lambda: seen))
    finally:
        follower.cancel()
        await asyncio.wait({follower})


# How many rows a run will meet, without reading its input for long: counted in small files, else estimated.

COUNTED_BYTES = 8 * 1024 * 1024
"""A file up to this size is read for its count: a tenth of a second beside the first calls."""

SAMPLE_BYTES = 4 * 1024 * 1024
"""Of a larger one so much of its beginning is read, and its rows are taken to be of even length."""

QUOTING = frozenset({".csv", ".tsv"})
LINES = QUOTING | {".jsonl", ".ndjson", ".txt"}
"""Files in which a line end ends a row, unless it is quoted in those that quote."""


def estimated_rows(checked: CheckedWorkflow, selection: Selection) -> RowCount | None:
    """How many rows are selected; None when only reading all of a large input, or a stream, would tell."""
    path = Path(checked.workflow.input.path)
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            return None
        if size <= COUNTED_BYTES:
            return RowCount(count_rows(checked, selection), exact=True)
        if path.suffix.lower() not in LINES:
            return None
        with path.open("rb") as file:
            sample = file.read(SAMPLE_BYTES)
    except (OSError, AgacError):  # whoever reads the rows meets it too, and says it
        return None
    lines = lines_outside_quotes(sample) if path.suffix.lower() in QUOTING else sample.count(b"\n")
    rows = max(0, round(lines * size / len(sample)) - selection.offset)
    return RowCount(selection.taken(rows), exact=False)


def lines_outside_quotes(text: bytes) -> int:
    """Line ends that are not within double quotes: csv records may go on over several lines."""
    return sum(part.count(b"\n") for part in text.split(b'"')[::2])
