"""`agac batch retrieve`, `wait` and `cancel`, and `agac doctor`: on a run's recorded definition
and rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    WorkOptions,
    batching_of,
    executor_of,
    reachable,
    work_of,
)
from agac.api.project import Project, open_project
from agac.api.report import RunReport, leave_in_remote, report_of
from agac.api.run import walk_through
from agac.api.share import adopt_all, controlled
from agac.api.status import database_path, find_run, given_flags, go_on
from agac.api.stored_plan import recorded_plan
from agac.api.sync import asynchronous, blocking, calling, interruptible
from agac.api.watched_run import Watch
from agac.core.errors import AgacError, ExitCode, UsageError
from agac.core.types import Report, counted
from agac.engine.batch.coordinator import LONGEST_POLL, SHORTEST_POLL, clean_up
from agac.engine.batch.doctor import Finding, adopt_as, batch_maintenance, compare, end, resubmit_as
from agac.engine.batch.lifecycle import BatchContext
from agac.engine.invocation import Clocks, Scope
from agac.engine.output.output_folder import lost_store
from agac.engine.run_state import Invocation, InvocationGoal
from agac.providers.provider import Provider
from agac.spec.loader import load_workflow, workflow_names
from agac.store import batches, runs
from agac.store.batches import BatchStep, unfinished_batches
from agac.store.db import Database
from agac.store.writer import open_database


@asynccontextmanager
async def _opened(project: Path | str | None) -> AsyncIterator[tuple[Project, Database]]:
    """The project and its database. Raises SpecError where agac.yml has problems, UsageError where
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
    """What was taken in. `ready`: anything was, or all is done; `ingested` says of each batch what
    its requests came to, `submitted` and `waiting` are batches of the stages that follow; `run` is
    how the run stands after it, `again` the command that tries its failed rows again;
    `superseded_by`: the run that took its place."""

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
    message: str
    exit_code: ExitCode
    ingested: list[dict[str, Any]]
    submitted: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    batches: list[BatchLine]
    run: RunReport
    again: str
    superseded_by: int | None = None


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
    """Takes in what has ended of a batch (our number of it, or the provider's id), or of all open
    ones of a `run` (its number, or `last`; None: the one that submitted last), and goes on with
    that run: sync stages are asked, batches of those that follow are submitted, and the outputs
    are written once every row has an outcome. Called again it changes and pays nothing. Without
    `submit`, and for a run that another one superseded and that is not named by `run`, answers are
    stored and nothing is sent. `executor` is as in RunOptions. Exit code 75 when nothing was
    ready. Raises UsageError for an id that no batch has, and when there is no batch."""
    async with AsyncExitStack() as stack:
        opened, database = await stack.enter_async_context(_opened(project))
        only = None
        if batch_id is not None:
            (one, *_) = await chosen_batches(database, batch_id)
            number = one.run_id
            only = one.id
        else:
            if run is None:
                number = await last_run(database)
            else:
                number = (await find_run(database, None, run)).id
        before = await runs.run_record(database, number)
        if run is None or not submit:
            newer = await runs.superseded_by(database, number)
        else:
            newer = None
        plan = await recorded_plan(opened, opened.providers, database, number)
        only_takes = newer is not None or not submit
        asks = () if only_takes else plan.asking
        control = await stack.enter_async_context(controlled(opened, database, plan.workflow, asks))
        names = {one.provider.name for stage in plan.asking for one in stage.models}
        providers = await stack.enter_async_context(
            reachable(opened, database, plan.workflow, names)
        )
        if providers is not opened.providers:
            plan = await recorded_plan(opened, providers, database, number)
        plan = await with_named_targets(database, opened.root, plan)
        sharding = None
        if plan.selection.shard is not None:
            from agac.api.merge import sharded

            sharding = await stack.enter_async_context(sharded(opened, database, plan))
        request = BatchSettings(only=only, retrieves=number, only_takes=only_takes)
        batching = batching_of(
            opened, providers, plan.workflow, request, control=control, sharding=sharding
        )
        wanted = WorkOptions(
            rows=lambda: iter(()),
            place=str,
            scope=Scope(frozenset()) if only_takes else Scope(),
            executor=await executor_of(opened, database, plan, executor),
        )
        work = work_of(opened, plan, batching, wanted)
        invocation = Invocation(InvocationGoal(given_flags(before)))
        if before.finished_at is not None and not await unfinished_batches(database, plan.workflow):
            invocation.run = number  # there is nothing to do
            invocation.ended = True
            invocation.complete = True
        else:
            await confirm_store(database, work)
            with interruptible(invocation.stop_signal, signals=handle_signals):
                await walk_through(database, work, invocation, [], progress, lambda: None)
        report = await report_of(
            database, work, invocation, [], writes=newer is None and work.sharding is None
        )
        report = await reported(database, work, invocation, report)
        report = await leave_in_remote(database, opened, work, invocation, report)
        return await _retrieved(database, before, invocation, report, providers, newer)


async def _retrieved(
    database: Database,
    before: runs.RunRecord,
    invocation: Invocation,
    report: RunReport,
    providers: Mapping[str, Provider],
    newer: int | None,
) -> RetrieveReport:
    """What came of it, beside how the run stood before; `newer` superseded it."""
    after = await runs.run_record(database, before.id)
    lines = await batch_lines(database, providers, await batches.batches(database, run=before.id))
    summed = (await batches.open_batches(database)).get(before.id)
    done = after.finished_at is not None or (newer is not None and summed is None)
    moved = invocation.batches.moved or (before.revision, before.finished_at) != (
        after.revision,
        after.finished_at,
    )
    if summed is None and newer is not None:
        message = f"the batches of run {before.id} are in"
    elif done:
        message = "all rows have an outcome"
    elif summed is not None:
        open_ = counted(summed.batches, "batch is", "batches are")
        message = (
            f"{open_} open, with {summed.done + summed.failed:,} of {summed.requests:,} "
            "requests done"
        )
        message = message if moved else f"nothing is ready yet: {message}"
    elif after.read_at is None:
        message = "the input was not read to its end: `agac run` resumes it"
    else:
        message = "no batch is open, and rows remain: `agac run` resumes them"
    if newer is not None:
        partial = "" if after.finished_at is not None else " --partial"
        message += (
            f"; run {before.id} was superseded by run {newer}: nothing more is sent for it, and "
            "no output was replaced. Write its results with: agac export --run "
            f"{before.id}{partial}; resume it anyway with: agac batch retrieve --run {before.id}"
        )
    undecided = [str(one["id"]) for one in report.invocation["undecided_batches"]]
    if undecided:
        if len(undecided) == 1:
            subject = f"batch {undecided[0]} needs"
        else:
            subject = f"batches {', '.join(undecided)} need"
        message = f"{subject} your decision; run `agac doctor`; {message}"
    code = report.exit_code
    if not (moved or done) and code is ExitCode.DONE:
        code = ExitCode.NOT_READY
    took = (
        report.invocation["ingested"],
        report.invocation["batches"],
        report.invocation["waiting_batches"],
    )
    return RetrieveReport(moved or done, message, code, *took, lines, report, go_on(before), newer)


@dataclass(frozen=True, slots=True)
class WaitReport(Report):
    """How waiting ended: `ready` when all of them have ended at their providers."""

    ready: bool
    message: str
    exit_code: ExitCode
    batches: list[BatchLine]


@blocking
async def batch_wait(
    batch_id: str | int | None = None,
    *,
    timeout: float | None = None,
    project: Path | str | None = None,
) -> WaitReport:
    """Waits until a batch has ended at its provider, or all open ones of the run that submitted
    last; takes nothing in. `timeout` in seconds; past it the exit code is 75. Raises UsageError
    for no such batch."""
    ends = None if timeout is None else time.monotonic() + timeout
    report = await asynchronous(batch_status)(batch_id, only_open=True, project=project)

    def waited(message: str, code: ExitCode) -> WaitReport:
        return WaitReport(code is ExitCode.DONE, message, code, report.batches)

    wished = [line.batch.poll_interval for line in report.batches]
    poll = min((seconds for seconds in wished if seconds is not None), default=None)
    pause = 0.0
    while left := [
        line
        for line in report.batches
        if line.batch.state == BatchStep.SUBMITTED and not line.ready
    ]:
        if poll is None:
            pause = min(max(SHORTEST_POLL, pause * 1.5), LONGEST_POLL)
        else:
            pause = poll
        pause *= 1 + 0.1 * Clocks().jitter()
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                return waited(
                    f"{len(left)} of {len(report.batches)} have not ended yet", ExitCode.NOT_READY
                )
            pause = min(pause, remaining)
        await asyncio.sleep(pause)
        try:
            report = await asynchronous(batch_status)(batch_id, only_open=True, project=project)
        except UsageError:  # another command retrieved them meanwhile
            break
    if report.batches and all(line.batch.state == BatchStep.NEEDS_HUMAN for line in report.batches):
        return waited("they want a decision, which `agac doctor` explains", ExitCode.NOT_READY)
    return waited("all of them have ended: `agac batch retrieve` takes them", ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class CancelReport(Report):
    """Which batches were `asked` to end, and which had ended already and are `kept`."""

    asked: list[BatchLine]
    kept: list[BatchLine]
    message: str
    exit_code: ExitCode = ExitCode.DONE


@blocking
async def batch_cancel(
    batch_id: str | int | None = None, *, project: Path | str | None = None
) -> CancelReport:
    """Ends a batch, or all open ones of the run that submitted last. What they finished is kept,
    and taken by the next `retrieve`; what they did not waits for the next `run`. Asked twice they
    are ended once. Raises UsageError for an id that no batch has, and when none is open; LeaseHeld
    while a process works on it."""
    async with _opened(project) as (opened, database):
        found = await chosen_batches(database, batch_id)
        async with _maintenance(opened, database, found[0].workflow) as maintenance:
            asked = {one.id for one in found if await end(maintenance, one)}
            await clean_up(maintenance)
        lines = await batch_lines(database, opened.providers, await stored_again(database, found))
        record = await runs.run_record(database, found[0].run_id)
    sent = [
        line.batch.id
        for line in lines
        if line.batch.id in asked and line.batch.provider_id is not None
    ]
    message = "no batch had to be cancelled"
    if asked:
        one = str(sent[0]) if len(sent) == 1 else f"--run {record.id}"
        if sent:
            take = f"take what they finished with: agac batch retrieve {one} --no-submit; then "
        else:
            take = ""
        message = f"{take}run what is left with: {go_on(record)}"
    kept = [line for line in lines if line.batch.id not in asked]
    return CancelReport([line for line in lines if line.batch.id in asked], kept, message)


@asynccontextmanager
async def _maintenance(
    opened: Project, database: Database, workflow: str, also: Iterable[str] = ()
) -> AsyncIterator[BatchContext]:
    """The batches of a workflow at work without a run; the providers `also` are reachable too."""
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
    """What was found when the store was compared with the providers, and set right where that can
    be."""

    findings: list[Finding]
    exit_code: ExitCode


@blocking
async def doctor(
    *,
    clean: bool = False,
    adopt: str | None = None,
    resubmit: bool = False,
    batch_id: str | int | None = None,
    project: Path | str | None = None,
) -> DoctorReport:
    """Compares the store with the providers, and sets right what can be. `clean` deletes files of
    ours at the providers that nothing needs; `adopt` is a provider's id for the batch that could
    not be found, `resubmit` says that there is none; `batch_id` names that batch where several
    wait for a decision. Exit code 75 while a batch, or results whose store is lost, wait for a
    decision, 1 when a provider could not be asked. Raises UsageError for unfit ids."""
    findings: list[Finding] = []
    async with _opened(project) as (opened, database):
        if adopt is not None or resubmit:
            findings.append(
                await _decided(opened, database, adopt, None if batch_id is None else str(batch_id))
            )
        stored = await batches.batches(database, closed=True)
        for workflow in dict.fromkeys(one.workflow for one in stored):
            own = [one for one in stored if one.workflow == workflow]
            try:
                async with _maintenance(
                    opened, database, workflow, {one.provider for one in own}
                ) as maintenance:
                    await compare(maintenance, own, findings, clean=clean)
            except AgacError as error:
                findings.append(
                    Finding("not_asked", f"{workflow}: {error.message}", remedy=error.remedy)
                )
        for line in await batch_lines(database, opened.providers, await batches.batches(database)):
            if line.stuck_for_s is not None:
                hours = f"{line.stuck_for_s / 3600:.1f} h"
                message = (
                    f"batch {line.batch.id} ({line.batch.provider_id}) has not moved for {hours}"
                )
                findings.append(Finding("stuck", message, line.batch, remedy=line.remedy))
        for name in workflow_names(opened.spec):
            with suppress(AgacError):  # what is wrong with its files is for `agac validate` to say
                findings += await _lost(opened, database, name)
    if any(one.kind == "not_asked" for one in findings):
        code = ExitCode.FAILED
    else:
        code = ExitCode.DONE
    if any(one.kind in ("needs_human", "lost_store") and not one.done for one in findings):
        code = ExitCode.NOT_READY
    return DoctorReport(findings, code)


async def _lost(opened: Project, database: Database, name: str) -> list[Finding]:
    """Whether the results of a workflow tell of a store that is lost."""
    workflow, _ = load_workflow(opened.spec, name)
    if workflow is None or not workflow.asking:
        return []  # nothing would be paid again
    lost = await lost_store(database, name, opened.root, opened.spec.shown(workflow.output.dir))
    remedy = (
        "put the store, or a copy of it (`agac backup` makes them), in its place; if it is "
        "gone for good: "
    )
    remedy += f"agac run -a {name} --accept-store, which makes its calls again and pays them again"
    if lost:
        return [Finding("lost_store", f"{name}: {lost[0]}", remedy=remedy)]
    return []


async def _decided(
    opened: Project, database: Database, adopt: str | None, named: str | None
) -> Finding:
    """Applies a user's decision on a batch that could not be found."""
    stored = await batches.batches(database, named=named)
    undecided = [one for one in stored if one.state == BatchStep.NEEDS_HUMAN]
    if named and adopt is None:  # `note`: its results were asked for, and did not come
        undecided += [one for one in stored if one.state == BatchStep.TERMINAL and one.note]
    if not undecided:
        which = f"batch {named}" if named is not None else "no batch"
        raise UsageError(
            f"{which} waits for {'no' if named else 'a'} decision",
            remedy="`agac doctor` lists them",
        )
    if len(undecided) > 1:
        numbers = ", ".join(str(one.id) for one in undecided)
        raise UsageError(
            f"batches {numbers} wait for a decision", remedy="say which one with --batch-id"
        )
    (one,) = undecided
    async with _maintenance(opened, database, one.workflow, [one.provider]) as maintenance:
        return await (
            resubmit_as(maintenance, one) if adopt is None else adopt_as(maintenance, one, adopt)
        )
