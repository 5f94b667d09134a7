"""Taking in what batches brought, waiting for them, ending them: all on a run's recorded definition and rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.batches import BatchReport, batch_status, chosen_batches, nothing_submitted
from agac.api.batching import batching_of, reachable, recorded_plan
from agac.api.batchlines import batch_lines
from agac.api.ending import RunReport, report_of
from agac.api.options import RunOptions
from agac.api.planning import PlannedTasks, stored_tasks
from agac.api.project import Project, open_project
from agac.api.reading import database_path
from agac.api.reports import go_on
from agac.api.running import interruptible, walk_through, work_of
from agac.api.watching import Watch
from agac.core.errors import ExitCode, SpecError, UsageError, any_error
from agac.core.report import Report
from agac.engine.batch.batches import LONGEST_POLL, SHORTEST_POLL, tidy
from agac.engine.batch.ending import end
from agac.engine.batch.states import BatchStep
from agac.engine.batch.tending import tending
from agac.engine.run import Invocation
from agac.engine.scope import Scope
from agac.engine.work import Clocks
from agac.providers.provider import Provider
from agac.store import batches, runs
from agac.store.batches import BatchView, unfinished_batches
from agac.store.db import Database, open_database, open_for_reading


@dataclass(frozen=True, slots=True)
class RetrieveReport(Report):
    """What was taken in. `ready`: anything was, or all is done; `ingested` says of each batch what its requests came
    to, `submitted` and `waiting` are batches of the stages that follow; `run` is how the run stands after it, `again`
    the command that tries its failed rows again."""

    JSON_KEYS = ("ready", "message", "exit_code", "ingested", "submitted", "waiting", "batches", "run")

    ready: bool
    message: str
    exit_code: ExitCode
    batches: list[dict[str, Any]] = field(default_factory=list)
    run: RunReport | None = None
    again: str = ""

    @property
    def ingested(self) -> list[dict[str, Any]]:
        """The batches that were taken in, with counts."""
        return list(self.run.invocation["ingested"]) if self.run else []

    @property
    def submitted(self) -> list[dict[str, Any]]:
        """The batches that were submitted."""
        return list(self.run.invocation["batches"]) if self.run else []

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """The batches that could not be submitted yet."""
        return list(self.run.invocation["waiting_batches"]) if self.run else []


def batch_retrieve(
    batch_id: str | int | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    handle_signals: bool = False,
) -> RetrieveReport:
    """Takes in what has ended of a batch (our number of it, or the provider's id), or of all open ones of the run that
    submitted last, and goes on with that run: sync stages are asked, batches of those that follow are submitted, and
    the outputs are written once every row has an outcome. Called again it changes and pays nothing.

    Exit code 75 when nothing was ready. Raises UsageError for an id that no batch has, and when there is no batch.
    """
    named = None if batch_id is None else str(batch_id)
    opened = opened_project(project)
    return asyncio.run(_retrieve(opened, named, watch, handle_signals=handle_signals))


def opened_project(project: Path | str | None) -> Project:
    """The project. Raises SpecError where agac.yml has problems."""
    opened = open_project(project)
    if any_error(opened.problems):
        raise SpecError(opened.problems)
    return opened


async def _retrieve(opened: Project, named: str | None, watch: Watch | None, *, handle_signals: bool) -> RetrieveReport:
    path = database_path(opened.root)
    if not path.exists():
        raise nothing_submitted()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(path))
        run, only = await _chosen(database, named)
        before = await runs.read_run(database, run)
        assert before is not None
        plan = await recorded_plan(opened, opened.providers, database, run)
        providers = await stack.enter_async_context(reachable(opened, plan, database))
        if providers is not opened.providers:
            plan = await recorded_plan(opened, providers, database, run)
        invocation = Invocation(given=before.invocation.body.get("given", {}) if before.invocation else {})
        if before.finished_at is not None and not await unfinished_batches(database, plan.workflow):
            invocation.run, invocation.ended, invocation.complete = run, True, True  # there is nothing to do
        else:
            batching = batching_of(opened, providers, plan.workflow, RunOptions(), None, only=only, retrieves=run)
            work = work_of(opened, plan, batching, lambda: iter(()), str)
            with interruptible(invocation) if handle_signals else nullcontext():
                await walk_through(database, work, invocation, [], watch, None)

        async def tasks_left() -> tuple[int, list[PlannedTasks]]:
            rows = runs.row_counts(await runs.counters(database, run))["present"]
            return rows, await stored_tasks(database, plan, run, Scope(retry_failed=False))

        report = await report_of(
            database, opened.root, plan, invocation, warnings=[], tasks_left=tasks_left, providers=providers
        )  # fmt: skip
        return await _taken(database, before, invocation, report, providers)


async def _taken(
    database: Database,
    before: runs.RunRecord,
    invocation: Invocation,
    report: RunReport,
    providers: Mapping[str, Provider],
) -> RetrieveReport:
    """What came of it, beside how the run stood before."""
    after = await runs.read_run(database, before.id)
    assert after is not None
    views = await batches.batches(database, run=before.id)
    lines = [line.as_json() for line in await batch_lines(database, providers, views)]
    done = after.finished_at is not None
    moved = invocation.batches.moved or (before.revision, before.finished_at) != (after.revision, after.finished_at)
    code = report.exit_code
    if not (moved or done) and code is ExitCode.DONE:
        code = ExitCode.NOT_READY
    message = await _message(database, before.id, moved=moved, done=done)
    undecided = report.invocation["undecided_batches"]
    if undecided:
        numbers = ", ".join(str(one["id"]) for one in undecided)
        subject = f"batch {numbers} needs" if len(undecided) == 1 else f"batches {numbers} need"
        message = f"{subject} your decision; run `agac doctor`; {message}"
    return RetrieveReport(moved or done, message, code, lines, report, go_on(before))


async def _chosen(database: Database, named: str | None) -> tuple[int, int | None]:
    """The run, and the one batch that was named."""
    if named is not None:
        (view, *_) = await chosen_batches(database, named)
        return view.batch.run_id, view.batch.id
    run = await batches.last_submitting_run(database)
    if run is None:
        raise nothing_submitted()
    return run, None


async def _message(database: Database, run: int, *, moved: bool, done: bool) -> str:
    """How it stands, in a sentence."""
    if done:
        return "all rows have an outcome"
    summed = (await batches.open_batches(database)).get(run)
    if summed is None:
        if await runs.input_read_at(database, run) is None:
            return "the input was not read to its end: `agac run` goes on with it"
        return "no batch is open, and rows are left: `agac run` goes on with them"
    ended = f"{summed.done + summed.failed:,} of {summed.requests:,} requests done"
    open_ = "1 batch is open" if summed.batches == 1 else f"{summed.batches} batches are open"
    return f"{open_}, with {ended}" if moved else f"nothing is ready yet: {open_}, with {ended}"


@dataclass(frozen=True, slots=True)
class WaitReport(Report):
    """How waiting ended: `ready` when all of them have ended at their providers."""

    JSON_KEYS = ("ready", "message", "exit_code", "batches")

    ready: bool
    batches: list[dict[str, Any]]
    message: str
    exit_code: ExitCode


def batch_wait(
    batch_id: str | int | None = None,
    *,
    timeout: float | None = None,
    project: Path | str | None = None,
    handle_signals: bool = False,
) -> WaitReport:
    """Waits until a batch has ended at its provider, or all open ones of the run that submitted last; takes nothing in.

    `timeout` in seconds; past it the exit code is 75. Raises UsageError for an id that no batch has, and when none is
    open; KeyboardInterrupt is the caller's.
    """
    del handle_signals  # nothing is under way that an interrupt could harm
    named = None if batch_id is None else str(batch_id)
    ends = None if timeout is None else time.monotonic() + timeout
    report = batch_status(named, project=project)
    poll = asyncio.run(_poll_interval(report.project, {line.run for line in report.batches}))
    pause = 0.0
    while left := [line for line in report.batches if line.step == BatchStep.SUBMITTED and not line.ready]:
        pause = min(max(SHORTEST_POLL, pause * 1.5), LONGEST_POLL) if poll is None else poll
        pause *= 1 + 0.1 * Clocks().spread()
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                told = f"{len(left)} of {len(report.batches)} have not ended yet"
                return WaitReport(False, _as_json(report), told, ExitCode.NOT_READY)
            pause = min(pause, remaining)
        time.sleep(pause)
        try:
            report = batch_status(named, project=project)
        except UsageError:  # somebody took them meanwhile
            break
    if report.batches and all(line.step == BatchStep.NEEDS_HUMAN for line in report.batches):
        return WaitReport(
            False, _as_json(report), "they want a decision, which `agac doctor` explains", ExitCode.NOT_READY
        )
    return WaitReport(True, _as_json(report), "all of them have ended: `agac batch retrieve` takes them", ExitCode.DONE)


def _as_json(report: BatchReport) -> list[dict[str, Any]]:
    return [line.as_json() for line in report.batches]


async def _poll_interval(root: Path, of_runs: set[int]) -> float | None:
    """The shortest `poll_interval` of the stages of some runs, in seconds; None: nothing is said."""
    wished: list[float] = []
    async with open_for_reading(database_path(root)) as database:
        assert database is not None
        for run in of_runs:
            manner = await runs.manner_of(database, run) or {"stages": []}
            rules = [stage["batch"] for stage in manner["stages"] if "batch" in stage]
            wished += [one["poll_interval"] for one in rules if one["poll_interval"] is not None]
    return min(wished, default=None)


@dataclass(frozen=True, slots=True)
class CancelReport(Report):
    """Which batches were `asked` to end, and which had ended already and are `kept`."""

    asked: list[dict[str, Any]]
    kept: list[dict[str, Any]]
    message: str
    exit_code: ExitCode = ExitCode.DONE


def batch_cancel(batch_id: str | int | None = None, *, project: Path | str | None = None) -> CancelReport:
    """Ends a batch, or all open ones of the run that submitted last. What they finished is kept, and taken by the next
    `retrieve`; what they did not waits for the next `run`. Asked twice they are ended once.

    Raises UsageError for an id that no batch has, and when none is open; LeaseHeld while a process works on it.
    """
    return asyncio.run(_cancel(opened_project(project), None if batch_id is None else str(batch_id)))


async def _cancel(opened: Project, named: str | None) -> CancelReport:
    path = database_path(opened.root)
    if not path.exists():
        raise nothing_submitted()
    asked: list[int] = []
    kept: list[int] = []
    async with open_database(path) as database:
        views = await chosen_batches(database, named)
        workflow = views[0].workflow
        async with reachable(opened, None, database, workflow) as providers:
            batching = batching_of(opened, providers, workflow, RunOptions(), None)
            async with tending(database, workflow, batching, opened.redactor(), Clocks()) as tended:
                for view in views:
                    changed = await end(tended, view.batch)
                    (asked if changed else kept).append(view.batch.id)
                await tidy(tended.scene)
            again = [view for view in await _views(database, views) if view.batch.id in asked + kept]
            lines = {line.id: line.as_json() for line in await batch_lines(database, providers, again)}
    told = "`agac batch retrieve` takes what they finished" if asked else "nothing was to be ended"
    return CancelReport([lines[one] for one in asked], [lines[one] for one in kept], told)


async def _views(database: Database, views: Sequence[BatchView]) -> list[BatchView]:
    runs_of = sorted({view.batch.run_id for view in views})
    return [view for run in runs_of for view in await batches.batches(database, run=run, closed=True)]
