"""Running workflows: from names and flags to an ended invocation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agac.api.notify import notifying, reported
from agac.api.plan import Confirm, confirm_changes, confirm_cost, confirm_store
from agac.api.prepare import InvocationRequest, PreparedRun, prepared
from agac.api.progress import display, warnings_only
from agac.api.project import Project, project_of
from agac.api.ready_workflow import check_all
from agac.api.report import RunReport, leave_in_remote, report_of
from agac.api.run_options import RunOptions
from agac.api.sync import calling, interruptible
from agac.api.trace_files import write_traces
from agac.api.watched_run import RowCount, Watch, show_progress
from agac.core.arguments import typed
from agac.core.errors import AgacError, ExitCode, Problem
from agac.data.frames import GivenRows
from agac.data.sinks import drop_previous
from agac.engine.invocation import Work
from agac.engine.output.output_folder import keep_previous
from agac.engine.run import run_once
from agac.engine.run_state import Invocation, InvocationGoal
from agac.spec.loader import BuiltWorkflow, WorkflowSource
from agac.store.db import Database

_log = logging.getLogger("agac.api")

Workflow = BuiltWorkflow  # `agac.Workflow`


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInterface:
    """The means by which a caller follows an invocation and asks a person."""

    confirm: Confirm | None = None
    """Asks a person; None: nobody is there."""

    progress: Watch | bool = False
    """Shows progress; True: as the terminal allows."""

    handle_signals: bool = False
    """True to stop at SIGINT and SIGTERM."""


@calling
async def run(
    workflow: WorkflowSource,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,  # noqa: A002 - the option's name
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """`agac.run` of a workflow: see `agac.api.task_run.arun`."""
    options = options or RunOptions()
    options = replace(options, input=options.input if input is None else input)
    opened = project_of(workflow, project)
    ui = RunInterface(confirm=confirm, progress=progress, handle_signals=handle_signals)
    return await invoke(opened, workflow, options, InvocationRequest(), ui)


async def invoke(
    opened: Project,
    workflow: WorkflowSource,
    options: RunOptions,
    request: InvocationRequest,
    ui: RunInterface,
) -> RunReport:
    """Runs a workflow once: everything is checked first, then confirmed, then done, then reported.
    A project whose state is in another folder has no outputs written."""
    async with prepared(opened, workflow, options, request, ui.confirm) as ready:
        goal = InvocationGoal(
            given=ready.given,
            chosen=ready.inspection.chosen,
            accepted=await _agreed(ready, ui.confirm),
        )
        invocation = Invocation(goal)
        left = ready.inspection.left
        if left is not None and left.most_left:
            keep_previous(ready.plan.output.dir)
        progress = ui.progress
        if ready.options.stream and progress:
            progress = warnings_only
        with interruptible(invocation.stop_signal, signals=ui.handle_signals):
            await walk_through(
                ready.database,
                ready.work,
                invocation,
                ready.inspection.warnings,
                progress,
                ready.inspection.count,
            )
        return await _ended(ready, invocation)


async def _agreed(ready: PreparedRun, confirm: Confirm | None) -> str | None:
    """Asks what a person has to agree to. Gives the mark of a store that is accepted in place of
    another one, if any. Raises UsageError without a yes."""
    options = ready.options
    accepted = await confirm_store(ready.database, ready.work, accept=options.accept_store)
    if options.yes:
        return accepted
    resumes = ready.built.resumes if ready.built else None
    if resumes is not None:
        await confirm_changes(ready.database, ready.plan, ready.work, resumes, confirm)
    if ready.quotes is None:
        await confirm_cost(ready.database, ready.work, confirm)
    return accepted


async def _ended(ready: PreparedRun, invocation: Invocation) -> RunReport:
    """Writes what an invocation leaves behind, and reports it."""
    database = ready.database
    work = ready.work
    report = await report_of(
        database,
        work,
        invocation,
        ready.inspection.warnings,
        ready.checked.workflow,
        writes=not ready.elsewhere and work.sharding is None,
        count=ready.inspection.count if work.retry is None else None,
    )
    report = await reported(database, work, invocation, report)
    if not ready.elsewhere:
        report = await leave_in_remote(database, ready.opened, work, invocation, report)
    left = ready.inspection.left
    if left is not None and not left.most_left and invocation.complete:
        drop_previous(ready.plan.output.dir)
    if ready.options.export_traces:
        file = Path(ready.options.export_traces).absolute()
        await write_traces(database, invocation.run, file, work.redactor.clean)
    return report


async def walk_through(
    database: Database,
    work: Work,
    invocation: Invocation,
    warnings: list[Problem],
    progress: Watch | bool,
    count: Callable[[], RowCount | None],
) -> None:
    """Does the work, and shows its `progress` meanwhile; `count` counts its rows."""
    plan = work.plan
    watching: asyncio.Task[Any] | None = None
    if progress is not False:
        watch = display() if progress is True else progress
        watching = asyncio.ensure_future(
            show_progress(watch, plan, invocation, count, warnings, database)
        )
    try:
        async with notifying(database, work, invocation):
            await run_once(database, work, invocation)
    except BaseExceptionGroup as group:
        # an AgacError if there is one, since what follows it is its consequence
        first: BaseException = group.subgroup(AgacError) or group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
            # what shows the work must not cost the work
            if not watching.cancelled() and watching.exception():
                _log.warning("progress could not be shown: %s", watching.exception())


# Several workflows in one command: all are checked before the first one runs.

WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.USAGE,
    ExitCode.LIMIT,
    ExitCode.NOT_READY,
    ExitCode.ROWS_FAILED,
    ExitCode.DONE,
)
"""Of several ends the one that comes first here is reported."""

GOING_ON = (ExitCode.DONE, ExitCode.ROWS_FAILED, ExitCode.NOT_READY)
"""Ends after which the next workflow runs."""


@typed
def run_several(
    workflows: Sequence[str],
    options: RunOptions,
    *,
    tell: Callable[[RunReport], None],
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> ExitCode:
    """Runs workflows one after the other, until one does not come to its end. `tell` gets each
    report at once. Raises SpecError with the problems of all of them before anything is asked."""
    if len(workflows) > 1:
        check_all(workflows, options, project)
    codes = []
    for workflow in workflows:
        end = run(
            workflow,
            options,
            project=project,
            progress=progress,
            confirm=confirm,
            handle_signals=handle_signals,
        )
        tell(end)
        codes.append(end.exit_code)
        if end.exit_code not in GOING_ON:
            break
    return min(codes, key=WORST_FIRST.index)
