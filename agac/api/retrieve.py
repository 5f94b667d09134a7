"""`agac batch retrieve`, `wait` and `cancel`, and `agac doctor`: on a run's recorded definition and rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.batches import BatchReport, batch_lines, batch_status, chosen_batches, nothing_submitted, stored_again
from agac.api.options import RunOptions
from agac.api.plan import estimates, stored_tasks
from agac.api.project import Project, open_project
from agac.api.report import RunReport, Watch, report_of
from agac.api.run import batching_of, interruptible, reachable, recorded_plan, run_loop, walk_through, work_of
from agac.api.status import database_path, go_on
from agac.core.errors import AgacError, ExitCode, SpecError, UsageError, any_error
from agac.core.report import Report
from agac.core.types import Fault
from agac.engine.batch.coordinator import LONGEST_POLL, SHORTEST_POLL, clean_up
from agac.engine.batch.doctor import (
    BatchMaintenance,
    Finding,
    adopt_as,
    batch_maintenance,
    end,
    find_late,
    look_at,
    resubmit_as,
)
from agac.engine.estimate import CostEstimate
from agac.engine.invocation import Clocks, Scope
from agac.engine.run import Invocation
from agac.providers.provider import Provider
from agac.store import batches, runs
from agac.store.batches import (
    CLOSED,
    BatchRecord,
    BatchStep,
    BatchView,
    read_batch,
    unfinished_batches,
)
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
    return run_loop(_retrieve(opened, named, watch, handle_signals=handle_signals))


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

        async def tasks_left() -> tuple[int, list[CostEstimate]]:
            rows = runs.row_counts(await runs.counters(database, run))["present"]
            return rows, estimates(await stored_tasks(database, plan, run, Scope(retry_failed=False)))

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
            return "the input was not read to its end: `agac run` resumes it"
        return "no batch is open, and rows remain: `agac run` resumes them"
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
        pause *= 1 + 0.1 * Clocks().jitter()
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                message = f"{len(left)} of {len(report.batches)} have not ended yet"
                return WaitReport(False, _as_json(report), message, ExitCode.NOT_READY)
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
            settings = await runs.run_settings_of(database, run) or {"stages": []}
            rules = [stage["batch"] for stage in settings["stages"] if "batch" in stage]
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
            async with batch_maintenance(database, workflow, batching, opened.redactor(), Clocks()) as tended:
                for view in views:
                    changed = await end(tended, view.batch)
                    (asked if changed else kept).append(view.batch.id)
                await clean_up(tended.context)
            again = await batch_lines(database, providers, await stored_again(database, views))
            lines = {line.id: line.as_json() for line in again}
    message = "`agac batch retrieve` takes what they finished" if asked else "no batch had to be cancelled"
    return CancelReport([lines[one] for one in asked], [lines[one] for one in kept], message)


# The store compared with the providers: lost batches are found, undecided ones decided, leftover files listed.

PREFIX = "agac-"
"""How the names of our files at providers begin."""


@dataclass(frozen=True, slots=True)
class DoctorReport(Report):
    """What was found: of each its `kind`, `batch`, `provider_id`, `message`, `remedy`, and whether it is `done`."""

    findings: list[dict[str, Any]]
    exit_code: ExitCode


def doctor(
    *,
    clean: bool = False,
    adopt: str | None = None,
    resubmit: bool = False,
    batch_id: str | int | None = None,
    project: Path | str | None = None,
) -> DoctorReport:
    """Compares the store with the providers, and sets right what can be. `clean` deletes files of ours at the providers
    that nothing needs; `adopt` is a provider's id for the batch that nobody could find, `resubmit` says that there is
    none; `batch_id` names that batch where several wait for a decision.

    Exit code 75 while a batch waits for a decision, 1 when a provider could not be asked. Raises UsageError for ids
    that do not fit.
    """
    opened = opened_project(project)
    named = None if batch_id is None else str(batch_id)
    return asyncio.run(_doctor(opened, clean=clean, adopt=adopt, resubmit=resubmit, named=named))


async def _doctor(
    opened: Project, *, clean: bool, adopt: str | None, resubmit: bool, named: str | None
) -> DoctorReport:
    path = database_path(opened.root)
    if not path.exists():
        raise nothing_submitted()
    findings: list[Finding] = []
    async with open_database(path) as database:
        views = await batches.batches(database, closed=True)
        if adopt is not None or resubmit:
            findings.append(await _decided(opened, database, views, adopt, named))
            views = await batches.batches(database, closed=True)
        for workflow in dict.fromkeys(view.workflow for view in views):
            own = [view for view in views if view.workflow == workflow]
            try:
                async with _tended(opened, database, workflow, {view.batch.provider for view in own}) as tended:
                    await clean_up(tended.context)
                    findings += await _of_workflow(tended, [view.batch for view in own], clean=clean)
            except AgacError as error:
                findings.append(Finding("not_asked", f"{workflow}: {error.message}", remedy=error.remedy))
        findings += await _stuck(opened, database)
    return DoctorReport([one.as_json() for one in findings], _code(findings))


def _code(findings: Sequence[Finding]) -> ExitCode:
    if any(one.kind == "needs_human" and not one.done for one in findings):
        return ExitCode.NOT_READY
    return ExitCode.FAILED if any(one.kind == "not_asked" for one in findings) else ExitCode.DONE


@asynccontextmanager
async def _tended(
    opened: Project, database: Database, workflow: str, also: Iterable[str]
) -> AsyncIterator[BatchMaintenance]:
    async with reachable(opened, None, database, workflow, also) as providers:
        batching = batching_of(opened, providers, workflow, RunOptions(), None)
        async with batch_maintenance(database, workflow, batching, opened.redactor(), Clocks()) as tended:
            yield tended


async def _of_workflow(tended: BatchMaintenance, records: Sequence[BatchRecord], *, clean: bool) -> list[Finding]:
    findings = []
    for record in records:
        findings += await find_late(tended, record)
        now = await read_batch(tended.context.database, record.id)
        findings += [] if now is None or now.state in CLOSED else await look_at(tended, now)
    findings += await _stale(tended, records, clean=clean)
    return findings


async def _stale(tended: BatchMaintenance, records: Sequence[BatchRecord], *, clean: bool) -> list[Finding]:
    """Files of ours at the providers that nothing needs: of batches that are in, or never came to be."""
    findings = []
    intents = {record.intent: record for record in records}
    for name in dict.fromkeys(record.provider for record in records):
        api = tended.context.accounts.of(name).api
        async for file in api.stale(PREFIX):
            if isinstance(file, Fault):
                findings.append(Finding("not_asked", f"{name}: {file.message}"))
                break
            record = intents.get((file.key or "")[:16])
            if record is None or (record.state not in CLOSED) or record.state == BatchStep.INGESTED:
                continue
            size = "" if file.size is None else f", {file.size:,} bytes"
            message = f"leftover file {file.name} ({file.id}{size}) at {name}: no batch needs it"
            if not clean:
                findings.append(Finding("stale_file", message, record, remedy="agac doctor --clean deletes it"))
                continue
            fault = await api.delete(file=file.id)
            deleted = f"{file.name} ({file.id}) was deleted at {name}"
            message = deleted if fault is None else f"{message}: {fault.message}"
            findings.append(Finding("stale_file", message, record, done=fault is None))
    return findings


async def _stuck(opened: Project, database: Database) -> list[Finding]:
    views = await batches.batches(database)
    lines = await batch_lines(database, opened.providers, views)
    records = {view.batch.id: view.batch for view in views}
    return [
        Finding(
            "stuck", f"batch {line.id} ({line.provider_id}) has not moved for {(line.stuck_for_s or 0) / 3600:.1f} h",
            records[line.id], remedy=line.remedy,
        )
        for line in lines
        if line.stuck
    ]  # fmt: skip


async def _decided(
    opened: Project, database: Database, views: Sequence[BatchView], adopt: str | None, named: str | None
) -> Finding:
    """A human's decision on a batch of which nobody knew."""
    undecided = [view for view in views if view.batch.state == BatchStep.NEEDS_HUMAN]
    if named is not None:
        undecided = [view for view in undecided if named in (str(view.batch.id), view.batch.provider_id)]
    if not undecided:
        which = f"batch {named}" if named is not None else "no batch"
        raise UsageError(f"{which} waits for {'no' if named else 'a'} decision", remedy="`agac doctor` lists them")
    if len(undecided) > 1:
        numbers = ", ".join(str(view.batch.id) for view in undecided)
        raise UsageError(f"batches {numbers} wait for a decision", remedy="say which one with --batch-id")
    view = undecided[0]
    async with _tended(opened, database, view.workflow, [view.batch.provider]) as tended:
        return await (resubmit_as(tended, view.batch) if adopt is None else adopt_as(tended, view.batch, adopt))
