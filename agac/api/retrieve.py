"""`agac batch retrieve`, `wait` and `cancel`, and `agac doctor`. They work with the stored
definition and rows of a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agac.api.batch_control import adopt_all, controlled
from agac.api.batches import (
    BatchLine,
    batch_lines,
    batch_status,
    chosen_batches,
    last_run,
    no_batch_yet,
    stored_again,
)
from agac.api.notify import reported
from agac.api.notify_targets import with_named_targets
from agac.api.plan import confirm_store
from agac.api.prepare import (
    BatchSettings,
    batching_of,
    executor_of,
    reachable,
    work_of,
)
from agac.api.project import Project, open_project
from agac.api.report import RunReport, leave_in_remote, report_of
from agac.api.run import walk_through
from agac.api.run_options import RunOptions
from agac.api.status import database_path, find_run, given_flags, go_on
from agac.api.stored_plan import recorded_plan
from agac.api.sync import asynchronous, blocking, calling, interruptible
from agac.api.watched_run import Watch
from agac.core.errors import AgacError, ExitCode, UsageError
from agac.core.types import Report, counted
from agac.engine.batch.coordinator import LONGEST_POLL, SHORTEST_POLL, clean_up
from agac.engine.batch.doctor import Finding, adopt_as, batch_maintenance, compare, end, resubmit_as
from agac.engine.batch.lifecycle import BatchContext
from agac.engine.invocation import Clocks, Hooks, Reading, Scope, Work
from agac.engine.output.output_folder import lost_store
from agac.engine.run_state import Invocation, InvocationGoal
from agac.providers.provider import Provider
from agac.spec.loader import load_workflow, workflow_names
from agac.store import batches, runs
from agac.store.batches import BatchStep, OpenBatches, unfinished_batches
from agac.store.db import Database
from agac.store.writer import open_database


@asynccontextmanager
async def _opened(project: Path | str | None) -> AsyncIterator[tuple[Project, Database]]:
    """Opens the project and its database. Raises SpecError if agac.yml has problems, UsageError if
    nothing ran."""
    opened = open_project(project, sound=True)
    await adopt_all(opened)
    path = database_path(opened.root)
    if not path.exists():
        raise no_batch_yet()
    async with open_database(path) as database:
        yield opened, database


@dataclass(frozen=True, slots=True)
class RetrieveReport(Report):
    """The batches that `retrieve` took in, and the state of the run after it."""

    JSON_KEYS = (
        "ready",
        "message",
        "exit_code",
        "ingested",
        "submitted",
        "waiting",
        "batches",
        "run",
    )

    ready: bool
    """True if anything was taken in, or the run is done."""
    message: str
    """What to know and what to do next, in a sentence."""
    exit_code: ExitCode
    """The exit code of the command."""
    ingested: list[dict[str, Any]]
    """The batches that were taken in, with their requests by how they ended."""
    submitted: list[dict[str, Any]]
    """Batches of the stages that follow."""
    waiting: list[dict[str, Any]]
    """Those of them that could not be submitted yet."""
    batches: list[BatchLine]
    """The open batches of the run."""
    run: RunReport
    """How the run is after it."""
    again: str
    """The command that tries the run's failed rows again."""
    superseded_by: int | None = None
    """The run that replaced this one."""


@calling
async def retrieve(
    batch_id: str | int | None = None,
    *,
    run: int | str | None = None,
    submit: bool = True,
    executor: Literal["ray", "local"] | None = None,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    handle_signals: bool = False,
) -> RetrieveReport:
    """Takes in what has ended of a batch (agac's number of it, or the provider's id), or of all
    open ones of a `run` (its number, or `last`; None: the run that submitted last). Then it
    continues with that run: it asks sync stages, submits batches of the stages that follow, and
    writes the outputs once every row has an outcome. Called again it changes and pays nothing.
    Without `submit`, and for a run that another one superseded and that is not named by `run`, it
    stores answers and sends nothing. `executor` is as in RunOptions. The exit code is 75 if nothing
    was ready. Raises UsageError for an id that no batch has, and if there is no batch."""
    async with AsyncExitStack() as stack:
        opened, database = await stack.enter_async_context(_opened(project))
        number, only = await _run_and_batch(database, batch_id, run)
        before = await runs.run_record(database, number)
        newer = None
        if run is None or not submit:
            newer = await runs.superseded_by(database, number)
        request = BatchSettings(
            only=only, retrieves=number, only_takes=newer is not None or not submit
        )
        work = await _work_of_batches(stack, opened, database, request, executor)
        invocation = Invocation(InvocationGoal(given_flags(before)))
        workflow = work.plan.workflow
        if before.finished_at is not None and not await unfinished_batches(database, workflow):
            # there is nothing to do
            invocation.run = number
            invocation.ended = True
            invocation.complete = True
        else:
            await confirm_store(database, work)
            with interruptible(invocation.stop_signal, signals=handle_signals):
                await walk_through(database, work, invocation, [], progress, lambda: None)
        writes = newer is None and work.sharding is None
        report = await report_of(database, work, invocation, [], writes=writes)
        report = await reported(database, work, invocation, report)
        report = await leave_in_remote(database, opened, work, invocation, report)
        providers = work.batching.providers
        return await _retrieved(database, before, invocation, report, providers, newer)


async def _run_and_batch(
    database: Database, batch_id: str | int | None, run: int | str | None
) -> tuple[int, int | None]:
    """Returns the number of the run that is meant, and of the batch if one is named."""
    if batch_id is not None:
        (batch, *_) = await chosen_batches(database, batch_id)
        return batch.run_id, batch.id
    if run is None:
        return await last_run(database), None
    return (await find_run(database, None, run)).id, None


async def _work_of_batches(
    stack: AsyncExitStack,
    opened: Project,
    database: Database,
    request: BatchSettings,
    executor: Literal["ray", "local"] | None,
) -> Work:
    """Builds the work of taking in batches of a stored run, and reaches what it needs until the
    `stack` ends."""
    assert request.retrieves is not None
    plan = await recorded_plan(opened, opened.providers, database, request.retrieves)
    asks = () if request.only_takes else plan.asking
    control = await stack.enter_async_context(controlled(opened, database, plan.workflow, asks))
    names = {model.provider.name for stage in plan.asking for model in stage.models}
    providers = await stack.enter_async_context(reachable(opened, database, plan.workflow, names))
    if providers is not opened.providers:
        plan = await recorded_plan(opened, providers, database, request.retrieves)
    plan = await with_named_targets(database, opened.root, plan)
    sharding = None
    if plan.selection.shard is not None:
        from agac.api.merge import sharded

        sharding = await stack.enter_async_context(sharded(opened, database, plan))
    batching = batching_of(
        opened, providers, plan.workflow, request, control=control, sharding=sharding
    )
    return work_of(
        opened,
        plan,
        batching,
        RunOptions(),
        reading=Reading(lambda: iter(()), str),
        scope=Scope(frozenset()) if request.only_takes else Scope(),
        hooks=Hooks(executor=await executor_of(opened, database, plan, executor)),
    )


async def _retrieved(
    database: Database,
    before: runs.RunRecord,
    invocation: Invocation,
    report: RunReport,
    providers: Mapping[str, Provider],
    newer: int | None,
) -> RetrieveReport:
    """Builds the report: the run's state `before` and now. `newer` is the run that replaced it, if
    any."""
    after = await runs.run_record(database, before.id)
    lines = await batch_lines(database, providers, await batches.batches(database, run=before.id))
    still_open = (await batches.open_batches(database)).get(before.id)
    has_changed = (before.revision, before.finished_at) != (after.revision, after.finished_at)
    moved = invocation.batches.moved or has_changed
    is_replaced = newer is not None and still_open is None
    ready = moved or is_replaced or after.finished_at is not None
    message = _state_message(after, still_open, moved=moved, is_replaced=is_replaced)
    if newer is not None:
        message += _superseded_message(after, newer)
    done = report.invocation
    undecided = [str(batch["id"]) for batch in done["undecided_batches"]]
    if undecided:
        if len(undecided) == 1:
            subject = f"batch {undecided[0]} needs"
        else:
            subject = f"batches {', '.join(undecided)} need"
        message = f"{subject} your decision; run `agac doctor`; {message}"
    code = report.exit_code
    if not ready and code is ExitCode.DONE:
        code = ExitCode.NOT_READY
    return RetrieveReport(
        ready=ready,
        message=message,
        exit_code=code,
        ingested=done["ingested"],
        submitted=done["batches"],
        waiting=done["waiting_batches"],
        batches=lines,
        run=report,
        again=go_on(before),
        superseded_by=newer,
    )


def _state_message(
    run: runs.RunRecord, still_open: OpenBatches | None, *, moved: bool, is_replaced: bool
) -> str:
    """Tells how a run is after a retrieval that `moved` something or not."""
    if is_replaced:
        return f"the batches of run {run.id} are in"
    if run.finished_at is not None:
        return "all rows have an outcome"
    if still_open is not None:
        open_ = counted(still_open.batches, "batch is", "batches are")
        ended = still_open.done + still_open.failed
        message = f"{open_} open, with {ended:,} of {still_open.requests:,} requests done"
        return message if moved else f"nothing is ready yet: {message}"
    if run.read_at is None:
        return "the input was not read to its end: `agac run` resumes it"
    return "no batch is open, and rows remain: `agac run` resumes them"


def _superseded_message(run: runs.RunRecord, newer: int) -> str:
    """Tells what can be done with a run that another one replaced."""
    partial = "" if run.finished_at is not None else " --partial"
    return (
        f"; run {run.id} was superseded by run {newer}: nothing more is sent for it, and "
        "no output was replaced. Write its results with: agac export --run "
        f"{run.id}{partial}; resume it anyway with: agac batch retrieve --run {run.id}"
    )


@dataclass(frozen=True, slots=True)
class WaitReport(Report):
    """The end of waiting for batches."""

    ready: bool
    """True if all of them have ended at their providers."""
    message: str
    """What to know and what to do next, in a sentence."""
    exit_code: ExitCode
    """The exit code of the command."""
    batches: list[BatchLine]
    """The batches that were waited for."""


@blocking
async def batch_wait(
    batch_id: str | int | None = None,
    *,
    timeout: float | None = None,
    project: Path | str | None = None,
) -> WaitReport:
    """Waits until a batch has ended at its provider, or all open ones of the run that submitted
    last; takes nothing in. `timeout` in seconds; past it the exit code is 75. Raises UsageError
    if there is no such batch."""
    ends = None if timeout is None else time.monotonic() + timeout
    report = await asynchronous(batch_status)(batch_id, only_open=True, project=project)
    wanted = [line.batch.poll_interval for line in report.batches]
    interval = min((seconds for seconds in wanted if seconds is not None), default=None)
    pause = 0.0
    while left := _not_ended(report.batches):
        pause = _next_pause(pause, interval)
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                message = f"{len(left)} of {len(report.batches)} have not ended yet"
                return WaitReport(False, message, ExitCode.NOT_READY, report.batches)
            pause = min(pause, remaining)
        await asyncio.sleep(pause)
        try:
            report = await asynchronous(batch_status)(batch_id, only_open=True, project=project)
        except UsageError:  # another command retrieved them meanwhile
            break
    undecided = [line.batch.state == BatchStep.NEEDS_HUMAN for line in report.batches]
    if undecided and all(undecided):
        message = "they want a decision, which `agac doctor` explains"
        return WaitReport(False, message, ExitCode.NOT_READY, report.batches)
    message = "all of them have ended: `agac batch retrieve` takes them"
    return WaitReport(True, message, ExitCode.DONE, report.batches)


def _not_ended(lines: Sequence[BatchLine]) -> list[BatchLine]:
    """Returns the batches that have not ended at their providers."""
    submitted = [line for line in lines if line.batch.state == BatchStep.SUBMITTED]
    return [line for line in submitted if not line.ready]


def _next_pause(pause: float, interval: float | None) -> float:
    """Returns the seconds to the next look, with some chance: the provider's interval, or longer
    and longer ones."""
    if interval is None:
        pause = min(max(SHORTEST_POLL, pause * 1.5), LONGEST_POLL)
    else:
        pause = interval
    return pause * (1 + 0.1 * Clocks().jitter())


@dataclass(frozen=True, slots=True)
class CancelReport(Report):
    """The batches that were cancelled, and those that had ended before."""

    asked: list[BatchLine]
    """Batches whose providers were asked to end them."""
    kept: list[BatchLine]
    """Batches that had ended already."""
    message: str
    """What to do next."""
    exit_code: ExitCode = ExitCode.DONE
    """The exit code of the command."""


@blocking
async def batch_cancel(
    batch_id: str | int | None = None, *, project: Path | str | None = None
) -> CancelReport:
    """Ends a batch, or all open ones of the run that submitted last. What they finished is kept,
    and taken by the next `retrieve`; the rest remains for the next `run`. Batches that are
    cancelled twice are ended once. Raises UsageError for an id that no batch has, and if none is
    open; LeaseHeld while a process works on it."""
    async with _opened(project) as (opened, database):
        chosen = await chosen_batches(database, batch_id)
        async with _maintenance(opened, database, chosen[0].workflow) as maintenance:
            asked_ids = {batch.id for batch in chosen if await end(maintenance, batch)}
            await clean_up(maintenance)
        stored = await stored_again(database, chosen)
        lines = await batch_lines(database, opened.providers, stored)
        record = await runs.run_record(database, chosen[0].run_id)
    asked = [line for line in lines if line.batch.id in asked_ids]
    kept = [line for line in lines if line.batch.id not in asked_ids]
    if not asked_ids:
        return CancelReport(asked, kept, "no batch had to be cancelled")
    sent = [line.batch.id for line in asked if line.batch.provider_id is not None]
    message = f"run what is left with: {go_on(record)}"
    if sent:
        which = str(sent[0]) if len(sent) == 1 else f"--run {record.id}"
        take = f"take what they finished with: agac batch retrieve {which} --no-submit; then "
        message = take + message
    return CancelReport(asked, kept, message)


@asynccontextmanager
async def _maintenance(
    opened: Project, database: Database, workflow: str, also: Iterable[str] = ()
) -> AsyncIterator[BatchContext]:
    """Holds the batches of a workflow, without a run, for the block. Reaches the providers `also`
    too."""
    async with (
        controlled(opened, database, workflow) as control,
        reachable(opened, database, workflow, also) as providers,
    ):
        batching = batching_of(opened, providers, workflow, BatchSettings(), control=control)
        async with batch_maintenance(
            database, workflow, batching, opened.redactor(), Clocks()
        ) as maintenance:
            yield maintenance


@dataclass(frozen=True, slots=True)
class DoctorReport(Report):
    """Findings of a comparison of the store with the providers."""

    findings: list[Finding]
    """Differences, those that were set right included."""
    exit_code: ExitCode
    """The exit code of the command."""


@blocking
async def doctor(
    *,
    clean: bool = False,
    adopt: str | None = None,
    resubmit: bool = False,
    batch_id: str | int | None = None,
    project: Path | str | None = None,
) -> DoctorReport:
    """Compares the store with the providers, and corrects what can be corrected. `clean` deletes
    agac's files at the providers that nothing needs. `adopt` is a provider's id for the batch that
    could not be found, `resubmit` says that there is none; `batch_id` names that batch if several
    wait for a decision. The exit code is 75 while a batch, or results whose store is lost, wait
    for a decision, and 1 if a provider could not be asked. Raises UsageError for unfit ids."""
    findings: list[Finding] = []
    async with _opened(project) as (opened, database):
        if adopt is not None or resubmit:
            named = None if batch_id is None else str(batch_id)
            findings.append(await _decided(opened, database, adopt, named))
        findings += await _compared(opened, database, clean=clean)
        findings += await _stuck(opened, database)
        for name in workflow_names(opened.spec):
            with suppress(AgacError):  # `agac validate` reports what is wrong with its files
                findings += await _lost(opened, database, name)
    code = ExitCode.DONE
    if any(finding.kind == "not_asked" for finding in findings):
        code = ExitCode.FAILED
    open_kinds = {finding.kind for finding in findings if not finding.done}
    if open_kinds & {"needs_human", "lost_store"}:
        code = ExitCode.NOT_READY
    return DoctorReport(findings, code)


async def _compared(opened: Project, database: Database, *, clean: bool) -> list[Finding]:
    """Compares the batches of each workflow with those of its providers."""
    findings: list[Finding] = []
    stored = await batches.batches(database, closed=True)
    for workflow in dict.fromkeys(batch.workflow for batch in stored):
        of_workflow = [batch for batch in stored if batch.workflow == workflow]
        providers = {batch.provider for batch in of_workflow}
        try:
            async with _maintenance(opened, database, workflow, providers) as maintenance:
                await compare(maintenance, of_workflow, findings, clean=clean)
        except AgacError as error:
            message = f"{workflow}: {error.message}"
            findings.append(Finding("not_asked", message, remedy=error.remedy))
    return findings


async def _stuck(opened: Project, database: Database) -> list[Finding]:
    """Finds open batches that have not moved for long."""
    findings = []
    open_batches = await batches.batches(database)
    for line in await batch_lines(database, opened.providers, open_batches):
        if line.stuck_for_s is None:
            continue
        hours = f"{line.stuck_for_s / 3600:.1f} h"
        message = f"batch {line.batch.id} ({line.batch.provider_id}) has not moved for {hours}"
        findings.append(Finding("stuck", message, line.batch, remedy=line.remedy))
    return findings


async def _lost(opened: Project, database: Database, name: str) -> list[Finding]:
    """Finds out if the results of a workflow come from a store that is lost."""
    workflow, _ = load_workflow(opened.spec, name)
    if workflow is None or not workflow.asking:
        return []  # nothing would be paid again
    lost = await lost_store(database, name, opened.root, opened.spec.shown(workflow.output.dir))
    if not lost:
        return []
    remedy = (
        "put the store, or a copy of it (`agac backup` makes them), in its place; if it is "
        "gone for good: "
    )
    remedy += f"agac run -a {name} --accept-store, which makes its calls again and pays them again"
    return [Finding("lost_store", f"{name}: {lost[0]}", remedy=remedy)]


async def _decided(
    opened: Project, database: Database, adopt: str | None, named: str | None
) -> Finding:
    """Applies a user's decision on a batch that could not be found."""
    stored = await batches.batches(database, named=named)
    undecided = [batch for batch in stored if batch.state == BatchStep.NEEDS_HUMAN]
    if named and adopt is None:
        # those whose results were asked for and did not come, as the note says
        undecided += [batch for batch in stored if batch.note and batch.state == BatchStep.TERMINAL]
    if not undecided:
        what = f"batch {named} waits for no" if named else "no batch waits for a"
        raise UsageError(f"{what} decision", remedy="`agac doctor` lists them")
    if len(undecided) > 1:
        numbers = ", ".join(str(batch.id) for batch in undecided)
        raise UsageError(
            f"batches {numbers} wait for a decision", remedy="say which one with --batch-id"
        )
    (batch,) = undecided
    async with _maintenance(opened, database, batch.workflow, [batch.provider]) as maintenance:
        if adopt is None:
            return await resubmit_as(maintenance, batch)
        return await adopt_as(maintenance, batch, adopt)
