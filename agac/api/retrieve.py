"""`agac batch retrieve`, `wait` and `cancel`, and `agac doctor`: on a run's recorded definition and rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.batches import batch_lines, batch_status, chosen_batches, nothing_submitted, stored_again
from agac.api.plan import planned
from agac.api.project import Project, open_project
from agac.api.report import RunReport, Watch, report_of
from agac.api.run import batching_of, calling, interruptible, reachable, recorded_plan, walk_through, work_of
from agac.api.status import blocking, database_path, given_flags, go_on
from agac.core.errors import AgacError, ExitCode, SpecError, UsageError, any_error
from agac.core.types import Fault, Report
from agac.engine.batch import doctor as stored_batches
from agac.engine.batch.coordinator import LONGEST_POLL, SHORTEST_POLL, clean_up
from agac.engine.batch.doctor import Finding, batch_maintenance
from agac.engine.batch.lifecycle import BatchContext
from agac.engine.invocation import Clocks, Scope
from agac.engine.run import Invocation
from agac.providers.provider import Provider
from agac.store import batches, runs
from agac.store.batches import CLOSED, BatchRecord, BatchStep, BatchView, read_batch, unfinished_batches
from agac.store.db import Database, open_database, open_for_reading


@asynccontextmanager
async def _opened(project: Path | str | None) -> AsyncIterator[tuple[Project, Database]]:
    """The project and its database. Raises SpecError where agac.yml has problems, UsageError where nothing ran."""
    opened = open_project(project)
    if any_error(opened.problems):
        raise SpecError(opened.problems)
    path = database_path(opened.root)
    if not path.exists():
        raise nothing_submitted()
    async with open_database(path) as database:
        yield opened, database


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


@calling
async def batch_retrieve(
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
    async with AsyncExitStack() as stack:
        opened, database = await stack.enter_async_context(_opened(project))
        only = None
        if batch_id is not None:
            (view, *_) = await chosen_batches(database, str(batch_id))
            run, only = view.batch.run_id, view.batch.id
        elif (last := await batches.last_submitting_run(database)) is not None:
            run = last
        else:
            raise nothing_submitted()
        before = await runs.read_run(database, run)
        assert before is not None
        plan = await recorded_plan(opened, opened.providers, database, run)
        providers = await stack.enter_async_context(reachable(opened, database, plan.workflow, plan))
        if providers is not opened.providers:
            plan = await recorded_plan(opened, providers, database, run)
        invocation = Invocation(given=given_flags(before))
        if before.finished_at is not None and not await unfinished_batches(database, plan.workflow):
            invocation.run, invocation.ended, invocation.complete = run, True, True  # there is nothing to do
        else:
            batching = batching_of(opened, providers, plan.workflow, only=only, retrieves=run)
            work = work_of(opened, plan, batching, lambda: iter(()), str)
            with interruptible(invocation) if handle_signals else nullcontext():
                await walk_through(database, work, invocation, [], watch, lambda: None)

        what_is_left = partial(planned, database, plan, Scope(retry_failed=False), None, run=run)
        report = await report_of(
            database, opened.root, plan, invocation, warnings=[], what_is_left=what_is_left, providers=providers
        )  # fmt: skip
        return await _retrieved(database, before, invocation, report, providers)


async def _retrieved(
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
    summed = (await batches.open_batches(database)).get(before.id)
    done = after.finished_at is not None
    moved = invocation.batches.moved or (before.revision, before.finished_at) != (after.revision, after.finished_at)
    if done:
        message = "all rows have an outcome"
    elif summed is not None:
        open_ = "1 batch is open" if summed.batches == 1 else f"{summed.batches} batches are open"
        message = f"{open_}, with {summed.done + summed.failed:,} of {summed.requests:,} requests done"
        message = message if moved else f"nothing is ready yet: {message}"
    elif await runs.input_read_at(database, before.id) is None:
        message = "the input was not read to its end: `agac run` resumes it"
    else:
        message = "no batch is open, and rows remain: `agac run` resumes them"
    undecided = [str(one["id"]) for one in report.invocation["undecided_batches"]]
    if undecided:
        subject = f"batch {undecided[0]} needs" if len(undecided) == 1 else f"batches {', '.join(undecided)} need"
        message = f"{subject} your decision; run `agac doctor`; {message}"
    code = report.exit_code
    if not (moved or done) and code is ExitCode.DONE:
        code = ExitCode.NOT_READY
    return RetrieveReport(moved or done, message, code, lines, report, go_on(before))


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
    ends = None if timeout is None else time.monotonic() + timeout
    report = batch_status(batch_id, project=project)

    def waited(message: str, code: ExitCode) -> WaitReport:
        return WaitReport(code is ExitCode.DONE, [line.as_json() for line in report.batches], message, code)

    poll = asyncio.run(_poll_interval(report.project, {line.run for line in report.batches}))
    pause = 0.0
    while left := [line for line in report.batches if line.step == BatchStep.SUBMITTED and not line.ready]:
        pause = min(max(SHORTEST_POLL, pause * 1.5), LONGEST_POLL) if poll is None else poll
        pause *= 1 + 0.1 * Clocks().jitter()
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                return waited(f"{len(left)} of {len(report.batches)} have not ended yet", ExitCode.NOT_READY)
            pause = min(pause, remaining)
        time.sleep(pause)
        try:
            report = batch_status(batch_id, project=project)
        except UsageError:  # somebody took them meanwhile
            break
    if report.batches and all(line.step == BatchStep.NEEDS_HUMAN for line in report.batches):
        return waited("they want a decision, which `agac doctor` explains", ExitCode.NOT_READY)
    return waited("all of them have ended: `agac batch retrieve` takes them", ExitCode.DONE)


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


@blocking
async def batch_cancel(batch_id: str | int | None = None, *, project: Path | str | None = None) -> CancelReport:
    """Ends a batch, or all open ones of the run that submitted last. What they finished is kept, and taken by the next
    `retrieve`; what they did not waits for the next `run`. Asked twice they are ended once.

    Raises UsageError for an id that no batch has, and when none is open; LeaseHeld while a process works on it.
    """
    asked: list[int] = []
    kept: list[int] = []
    async with _opened(project) as (opened, database):
        views = await chosen_batches(database, None if batch_id is None else str(batch_id))
        async with _maintenance(opened, database, views[0].workflow) as maintenance:
            for view in views:
                changed = await stored_batches.end(maintenance, view.batch)
                (asked if changed else kept).append(view.batch.id)
            await clean_up(maintenance)
        again = await batch_lines(database, opened.providers, await stored_again(database, views))
    lines = {line.id: line.as_json() for line in again}
    message = "`agac batch retrieve` takes what they finished" if asked else "no batch had to be cancelled"
    return CancelReport([lines[one] for one in asked], [lines[one] for one in kept], message)


@asynccontextmanager
async def _maintenance(
    opened: Project, database: Database, workflow: str, also: Iterable[str] = ()
) -> AsyncIterator[BatchContext]:
    """The batches of a workflow at work without a run; the providers `also` are reachable too."""
    async with reachable(opened, database, workflow, also=also) as providers:
        batching = batching_of(opened, providers, workflow)
        async with batch_maintenance(database, workflow, batching, opened.redactor(), Clocks()) as maintenance:
            yield maintenance


# The store compared with the providers: lost batches are found, undecided ones decided, leftover files listed.

PREFIX = "agac-"
"""How the names of our files at providers begin."""


@dataclass(frozen=True, slots=True)
class DoctorReport(Report):
    """What was found: of each its `kind`, `batch`, `provider_id`, `message`, `remedy`, and whether it is `done`."""

    findings: list[dict[str, Any]]
    exit_code: ExitCode


async def _compare(maintenance: BatchContext, own: list[BatchRecord], findings: list[Finding], *, clean: bool) -> None:
    """Adds what there is to say of the batches of a workflow: what was found before an error stays."""
    await clean_up(maintenance)
    for record in own:
        findings += await stored_batches.find_late(maintenance, record)
        now = await read_batch(maintenance.database, record.id)
        if now is not None and now.state not in CLOSED:
            findings += await stored_batches.look_at(maintenance, now)
    findings += await _stale(maintenance, own, clean=clean)


@blocking
async def doctor(
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
    findings: list[Finding] = []
    async with _opened(project) as (opened, database):
        views = await batches.batches(database, closed=True)
        if adopt is not None or resubmit:
            named = None if batch_id is None else str(batch_id)
            findings.append(await _decided(opened, database, views, adopt, named))
            views = await batches.batches(database, closed=True)
        for workflow in dict.fromkeys(view.workflow for view in views):
            own = [view.batch for view in views if view.workflow == workflow]
            try:
                async with _maintenance(opened, database, workflow, {one.provider for one in own}) as maintenance:
                    await _compare(maintenance, own, findings, clean=clean)
            except AgacError as error:
                findings.append(Finding("not_asked", f"{workflow}: {error.message}", remedy=error.remedy))
        open_ones = await batches.batches(database)
        records = {view.batch.id: view.batch for view in open_ones}
        for line in await batch_lines(database, opened.providers, open_ones):
            if line.stuck:
                hours = f"{(line.stuck_for_s or 0) / 3600:.1f} h"
                message = f"batch {line.id} ({line.provider_id}) has not moved for {hours}"
                findings.append(Finding("stuck", message, records[line.id], remedy=line.remedy))
    code = ExitCode.FAILED if any(one.kind == "not_asked" for one in findings) else ExitCode.DONE
    if any(one.kind == "needs_human" and not one.done for one in findings):
        code = ExitCode.NOT_READY
    return DoctorReport([one.as_json() for one in findings], code)


async def _stale(maintenance: BatchContext, records: Sequence[BatchRecord], *, clean: bool) -> list[Finding]:
    """Files of ours at the providers that nothing needs: of batches that are in, or never came to be."""
    findings = []
    intents = {record.intent: record for record in records}
    for name in dict.fromkeys(record.provider for record in records):
        api = maintenance.account(name).api
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
    async with _maintenance(opened, database, view.workflow, [view.batch.provider]) as maintenance:
        if adopt is None:
            return await stored_batches.resubmit_as(maintenance, view.batch)
        return await stored_batches.adopt_as(maintenance, view.batch, adopt)
