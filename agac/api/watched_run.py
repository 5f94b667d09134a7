"""A run while it is at work, as the progress display sees it: snapshots of its counts, and how many
rows there are to work on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agac.api.checked_workflow import CheckedWorkflow
from agac.core.errors import AgacError, Problem, RowError, StoreError
from agac.core.types import Outcome, RowId, waits_left
from agac.data.sources import estimated_rows
from agac.engine.run_state import Invocation
from agac.engine.stop_rules import StopReason
from agac.engine.totals import StageTotals, Totals
from agac.plan.plan import Plan, Selection
from agac.spec.graph import StageNode, descent, homes, levels_of
from agac.store import runs
from agac.store.batches import BatchCount, batches_alike
from agac.store.db import Database
from agac.store.rows import made_counts, present

_MAX_COUNTED_BYTES = 8 << 20
"""Larger inputs are estimated. Smaller ones are counted in a tenth of a second, next to the first
calls."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """The number of rows to work on."""

    rows: int
    """Their number."""
    exact: bool
    """True if they were counted, False if their number is estimated."""


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment."""

    name: str
    """The stage's name."""
    settled: int
    """Rows that need nothing more at the stage."""
    total: RowCount | None
    """Rows that come to the stage; None if that is unknown."""
    counts: StageTotals
    """What this invocation did at the stage."""
    waits_for_batches: bool = False
    """True if the stage's rate does not tell when it will end."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    workflow: str
    """The workflow's name."""
    stages: tuple[StageSnapshot, ...]
    """Its stages, in walking order."""
    rows: RowCount | None
    """Rows of the input; None if their number is unknown."""
    settled: int
    """Rows that need nothing more."""
    unusable: int
    """Rows that failed before any stage."""
    last_error: tuple[RowError, RowId] | None
    """The last failure, and its row."""
    stopping: bool
    """True if nothing new is begun."""
    waiting_for: RowError | None = None
    """Why the last call brought no answer."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """Until when no call goes to a model, by lane."""
    batches: tuple[BatchCount, ...] = ()
    """The open batches."""
    elapsed: float | None = None
    """Seconds since the run is shown."""

    @property
    def in_flight(self) -> int:
        """Tasks that are being asked."""
        return sum(stage.counts.in_flight for stage in self.stages)


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run while its rows are worked on."""

    workflow: str
    """The workflow's name."""
    invocation: Invocation
    """The invocation, whose totals change meanwhile."""
    count_rows: Callable[[], RowCount | None]
    """Reads the input for a moment, or gives None if that would take long. May be called in a
    thread."""
    warnings: list[Problem]
    """What to warn of before the first call."""
    upstream: Mapping[str, Collection[str]]
    """The stages upstream of each stage."""
    uncounted: Collection[str] = ()
    """Stages whose number of rows is unknown until other stages made them."""
    in_batches: Collection[str] = ()
    """Stages that are asked in batches."""
    batches: list[BatchCount] = field(default_factory=list)
    """The open batches, as last read."""
    exploded: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Stages that children of lists come to, with the positions of the stages that made those
    children and their parents."""
    children: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What `count_children` counted last: rows settled before this invocation, and all."""

    def snapshot(self, counted: RowCount | None = None) -> Snapshot:
        """Returns the run now. `counted` is what `count_rows` gave, once it did."""
        totals = self.invocation.totals
        batches = tuple(self.batches)
        rows = row_count(totals, counted)
        stages = [
            self._stage(name, stage, rows, batches_continue=bool(batches))
            for name, stage in totals.stages.items()
        ]
        return Snapshot(
            workflow=self.workflow,
            stages=tuple(stages),
            rows=rows,
            settled=totals.rows.settled,
            unusable=totals.rows.unusable,
            last_error=totals.last_error,
            stopping=self.invocation.stop_signal.stop not in (None, StopReason.QUOTE),
            waiting_for=totals.calls.waiting_for,
            waits=waits_left(totals.waits, time.time()),
            batches=batches,
        )

    def _stage(
        self, name: str, stage: StageTotals, rows: RowCount | None, *, batches_continue: bool
    ) -> StageSnapshot:
        """Returns one stage now. `batches_continue`: rows that were parked for batches still come
        here."""
        is_made = name in self.uncounted
        settled = stage.settled
        if not is_made:
            settled += self.invocation.totals.rows.unchanged
        never = self._rows_that_never_come(name, stage, settled, batches_continue=batches_continue)
        if name in self.in_batches:  # a guard is no progress of what is asked in batches
            by_guard = stage.skipped + stage.dropped
            settled -= by_guard
            never += by_guard
        total = None
        if rows and not is_made:
            total = RowCount(max(settled, rows.rows - never), rows.exact)
        if name in self.children:
            settled_before, all_children = self.children[name]
            settled += settled_before
            total = RowCount(max(settled, all_children), exact=True)
        waits = not {name, *self.upstream[name]}.isdisjoint(self.in_batches)
        return StageSnapshot(name, settled, total, stage, waits)

    def _rows_that_never_come(
        self, name: str, stage: StageTotals, settled: int, *, batches_continue: bool
    ) -> int:
        """Counts rows that do not come to a stage: those that ended upstream of it, and those that
        ended in another branch. Of the latter only the number is known, and only roughly while
        other rows are being processed."""
        totals = self.invocation.totals
        before = [totals.stages[other] for other in self.upstream[name] if other in totals.stages]
        never = totals.rows.unusable + totals.rows.dropped
        never += sum(other.failed + other.dropped for other in before)
        if batches_continue:
            return never
        parked = stage.parked + sum(other.parked for other in before)
        return max(never + parked, totals.rows.settled - settled)


def uncounted(stages: Sequence[StageNode]) -> frozenset[str]:
    """Returns the stages that are asked of rows which other stages make, or may make: they explode,
    group, or call functions."""
    home = homes(stages)
    functions = {stage.name for stage in stages if stage.makes == "rows"}
    return frozenset(
        stage.name
        for stage in stages
        if stage.makes == "kept" or functions.intersection(stage.ancestors) or home[stage.name]
    )


def exploded(stages: Sequence[StageNode]) -> dict[str, tuple[int, int | None]]:
    """Returns the stages that children of lists come to, with the positions of the stages that made
    those children and their parents (None: the parents are rows of the input). There are none if a
    function may return other rows."""
    if any(stage.makes == "rows" for stage in stages):
        return {}
    levels = levels_of(stages)
    parent_origins = {
        maker.index: level.origin
        for level in levels.all
        for maker in level.makers
        if maker.makes == "items"
    }
    only_lists_above = [
        origin
        for origin in parent_origins
        if {level.index for level in descent(stages, stages[origin])} <= parent_origins.keys()
    ]
    return {
        stage.name: (origin, parent_origins[origin])
        for origin in only_lists_above
        for stage in levels.by_origin[origin].stages
    }


async def count_children(run: WatchedRun, database: Database) -> None:
    """Counts, for each stage that children of lists come to, how many were settled there before
    this invocation and how many come to it in all. Only stages whose children are all made are
    counted, and none before all rows of the input are settled."""
    invocation = run.invocation
    totals = invocation.totals
    if invocation.ledger is None or not _all_settled(totals):
        return
    await invocation.ledger.durable()
    made = await made_counts(database, invocation.run)
    counts = await runs.counters(database, invocation.run)
    tasks = Counter[tuple[str, str]]()
    for count in counts:
        tasks[count.stage, count.outcome] += count.tasks
    may_grow: set[int | None] = {None} if runs.row_counts(counts)["open"] else set()
    for name, (origin, parent_origin) in run.exploded.items():
        rows = present(made, origin)
        level = [other for other, (of_other, _) in run.exploded.items() if of_other == origin]
        failed_here = sum(totals.stages[stage].failed for stage in level)
        # some failed in an earlier invocation, and are tried again
        retried = rows["failed"] > failed_here
        parents_grow = parent_origin in may_grow
        if rows["open"] or retried or parents_grow:
            may_grow.add(origin)
        if retried or parents_grow:
            continue
        before = [stage for stage in level if stage in run.upstream[name]]
        settled, total = _children_of(name, before, rows, tasks)
        run.children[name] = settled - totals.stages[name].settled, total


def _all_settled(totals: Totals) -> bool:
    """True if the input was read to its end and none of its rows is open."""
    return (
        totals.rows.all_read and totals.rows.settled >= totals.rows.seen and not totals.rows.parked
    )


def _children_of(
    stage: str,
    before: Sequence[str],
    rows: Mapping[str, int],
    tasks: Counter[tuple[str, str]],
) -> tuple[int, int]:
    """Returns how many children are settled at a stage, and how many come to it in all: none that
    failed or was dropped in a stage `before` it."""
    ended = (Outcome.FAILED, Outcome.DROPPED)
    never = sum(tasks[other, outcome] for other in before for outcome in ended)
    settled = sum(tasks[stage, outcome] for outcome in Outcome)
    return settled, settled + min(rows["open"], rows["total"] - never - settled)


def row_count(totals: Totals, counted: RowCount | None) -> RowCount | None:
    """Returns the best known number of rows: those of an input that was read to its end, those
    `counted`, or those of the last invocation. None if none of these is known."""
    if totals.rows.all_read:
        return RowCount(totals.rows.seen, exact=True)
    if counted is None and totals.rows.expected is not None:
        counted = RowCount(totals.rows.expected, exact=False)
    if counted is not None and counted.rows < totals.rows.seen:
        return None  # more rows were read than there should be
    return counted


Watch = Callable[[WatchedRun], Awaitable[None]]
"""A coroutine function that shows progress until it is cancelled."""

LOOK_SECONDS = 1.0
"""Seconds between two readings of the open batches from the store. Only the engine asks the
provider about them, at its own pace."""


async def show_progress(
    watch: Watch,
    plan: Plan,
    invocation: Invocation,
    count: Callable[[], RowCount | None],
    warnings: list[Problem],
    database: Database,
) -> None:
    """Shows a run until cancelled, with its open batches as the store had them a moment ago."""
    run = WatchedRun(
        workflow=plan.workflow,
        invocation=invocation,
        count_rows=count,
        warnings=warnings,
        upstream={stage.name: stage.ancestors for stage in plan.stages},
        uncounted=uncounted(plan.stages),
        in_batches=[stage.name for stage in plan.asking if stage.settings.run_mode == "batch"],
        exploded=exploded(plan.stages),
    )
    follower = asyncio.ensure_future(_follow_store(run, database))
    try:
        await watch(run)
    finally:
        follower.cancel()
        await asyncio.wait({follower})


async def _follow_store(run: WatchedRun, database: Database) -> None:
    """Keeps the batches and children of a run up to date, until cancelled."""
    while True:
        # the run itself reports what is wrong with the store
        with suppress(StoreError):
            if run.invocation.batches.touched:
                run.batches[:] = await batches_alike(database, run.invocation.run)
            if run.exploded:
                await count_children(run, database)
        await asyncio.sleep(LOOK_SECONDS)


def counted_or_estimated(checked: CheckedWorkflow, selection: Selection) -> RowCount | None:
    """Counts the selected rows, or estimates them if the input is large. Returns None if only
    reading all of a large input, or a stream, would tell."""
    path = Path(checked.workflow.input.path)
    try:
        if not path.is_file():
            return None
        if path.stat().st_size <= _MAX_COUNTED_BYTES:
            return RowCount(checked.count(selection), exact=True)
        rows = estimated_rows(path) if checked.workflow.input.sql is None else None
    except (OSError, AgacError):  # the run reads the same rows, and reports it
        return None
    if rows is None:
        return None
    return RowCount(selection.taken(max(0, rows - selection.offset)), exact=False)
