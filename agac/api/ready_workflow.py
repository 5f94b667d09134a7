"""A workflow made ready for one invocation: checked with its options, its rows kept in a file where
they are piped in or given by a program, and remote content as an unfinished run used it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from agac.api.checked_workflow import CheckedWorkflow, check_workflow
from agac.api.project import Project, open_project
from agac.api.run_options import RunOptions
from agac.api.status import workflow_name
from agac.core.errors import SpecError, UsageError, any_error
from agac.data.remote import FOLDER, kept_here
from agac.data.sources import STANDARD_INPUT, keep, keep_rows
from agac.plan.plan import Selection
from agac.plan.run_settings import remote_of
from agac.spec import loader
from agac.spec.inputs import INPUTS
from agac.store import runs
from agac.store.db import Database, open_for_reading
from agac.store.runs import RunRecord


async def made_ready(
    project: Project,
    workflow: loader.WorkflowSource,
    options: RunOptions,
    retried: int | None = None,
    *,
    dry: bool = False,
) -> tuple[Project, CheckedWorkflow, RunOptions]:
    """Does what `ready_workflow` does, in the project `with_pins`. Rows that a program gave are
    first kept in a file, which the returned options name. `dry`: for a plan, which asks no
    models. Raises UsageError also for a value that is no row."""
    if options.input is not None and not isinstance(options.input, Path | str):
        options = replace(options, input=await keep_rows(options.input, project.state / INPUTS))
    project = await with_pins(project, workflow, options, retried)
    return project, *ready_workflow(project, workflow, options, dry=dry)


def ready_workflow(
    project: Project, workflow: loader.WorkflowSource, options: RunOptions, *, dry: bool = False
) -> tuple[CheckedWorkflow, RunOptions]:
    """Checks the workflow, with what `options` change. If its input is standard input, that is
    first read to its end and kept in a file, which the returned options name, so that later
    invocations find the rows there. Raises SpecError with all problems, UsageError for wrong
    options."""
    overrides = replace(options.overrides(), dry=dry)
    partial = options.selection().partial
    checked, problems = check_workflow(project, workflow, overrides, partial=partial)
    problems = loader.in_order([*project.problems, *problems])
    if checked is None or any_error(problems):
        if isinstance(workflow, loader.BuiltWorkflow):
            problems = workflow.told(problems)
        raise SpecError(problems)
    if checked.workflow.input.piped:
        options = replace(options, input=str(kept_input(project.state)))
        return ready_workflow(project, workflow, options, dry=dry)
    return checked, options


def check_all(workflows: Sequence[str], options: RunOptions, project: Path | str | None) -> None:
    """Checks several workflows before the first of them runs. Raises SpecError with all problems,
    and UsageError."""
    repeated = {name for name in workflows if workflows.count(name) > 1}
    if repeated:
        raise UsageError(
            f"-a {sorted(repeated)[0]} is given twice", remedy="Name each workflow once."
        )
    if options.output is not None:
        raise UsageError(
            "--output is one folder, and there are several workflows", remedy="Run them one by one."
        )
    opened = open_project(project).reading_once()
    problems = list(opened.problems)
    partial = options.selection().partial
    for workflow in workflows:
        checked, found = check_workflow(opened, workflow, options.overrides(), partial=partial)
        problems += found
        if checked is not None:
            _check_scope(checked, options)
    if any_error(problems):
        raise SpecError(loader.in_order(problems))


def _check_scope(checked: CheckedWorkflow, options: RunOptions) -> None:
    """Raises UsageError, naming the workflow, if the options name stages that it does not have."""
    try:
        options.scope([stage.name for stage in checked.workflow.stages])
    except UsageError as error:
        message = f"{checked.workflow.name}: {error.message}"
        raise UsageError(message, remedy=error.remedy) from error


@cache
def kept_input(root: Path) -> Path:
    """Reads standard input and keeps it in a file of the project, whose path it returns. A process
    can read it only once, so several workflows share the file. Raises UsageError if nothing is
    piped in."""
    folder = root / INPUTS
    remedy = f"Pipe the rows in, as `cat rows.csv | agac run …`{_newest_kept(folder)}."
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"{STANDARD_INPUT}: nothing is piped in", remedy=remedy)
    try:
        return keep(sys.stdin.buffer, folder)
    except UsageError as error:
        raise UsageError(error.message, remedy=remedy) from error


def _newest_kept(folder: Path) -> str:
    """Returns the end of a remedy that names the rows that were piped in last, if any are kept."""
    if not folder.is_dir():
        return ""
    kept = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if not kept:
        return ""
    newest = max(kept, key=lambda path: path.stat().st_mtime)
    return f", or resume with those of the last time: --input {newest}"


async def with_pins(
    project: Project,
    workflow: loader.WorkflowSource,
    options: RunOptions,
    retried: int | None = None,
) -> Project:
    """Pins remote content to the version that the last run used, if that run is continued: it is
    unfinished, or is to be `retried`."""
    if options.refetch or options.fresh or project.untrusted:
        return project
    if not (project.state / FOLDER).is_dir():
        return project
    async with open_for_reading(project.store) as database:
        if database is None:
            return project
        record = await _continued_run(database, workflow_name(workflow), options, retried)
        if record is None:
            return project
        pinned = remote_of(await runs.run_settings_of(database, record.id), project.state)
        if await runs.control_known(database, record.workflow) is not None:
            pinned = tuple(kept_here(content, project.state / FOLDER) for content in pinned)
    if not pinned:
        return project
    remote = replace(project.remote, pinned=pinned)
    return replace(project, spec=replace(project.spec, fetch=remote.fetch), remote=remote)


async def _continued_run(
    database: Database, workflow: str | None, options: RunOptions, retried: int | None
) -> RunRecord | None:
    """Returns the run `retried`, or the workflow's last run if it is unfinished and has the same
    rows. None if a new run begins."""
    if retried:
        return await runs.read_run(database, retried)
    newest = next(iter(await runs.run_ids(database, workflow)), None)
    if not newest:
        return None
    record = await runs.read_run(database, newest)
    if record is None or record.finished_at:
        return None
    if Selection(**record.selection) != options.selection():
        return None
    return record
