"""Several workflows in one command: all are checked before the first one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agac.api.checking import Checked, check_workflow
from agac.api.confirming import Confirm
from agac.api.ending import RunReport
from agac.api.options import RunOptions
from agac.api.project import open_project
from agac.api.running import run
from agac.api.watching import Watch
from agac.core.errors import ExitCode, SpecError, UsageError, any_error
from agac.spec.load import in_order

WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.LIMIT,
    ExitCode.NOT_READY,
    ExitCode.ROWS_FAILED,
    ExitCode.DONE,
)  # fmt: skip
"""Of several ends the one that comes first here is told."""

GOING_ON = (ExitCode.DONE, ExitCode.ROWS_FAILED, ExitCode.NOT_READY)
"""Ends after which the next workflow runs."""


def run_several(
    workflows: Sequence[str],
    options: RunOptions,
    *,
    tell: Callable[[RunReport], None],
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> ExitCode:
    """Runs workflows one after the other, until one does not come to its end. `tell` gets each report at once.

    Raises SpecError with the problems of all of them before anything is asked.
    """
    if len(workflows) > 1:
        _check(workflows, options, project)
    codes = []
    for workflow in workflows:
        report = run(workflow, options, project=project, watch=watch, confirm=confirm, handle_signals=handle_signals)
        tell(report)
        codes.append(report.exit_code)
        if report.exit_code not in GOING_ON:
            break
    return min(codes, key=WORST_FIRST.index)


def _check(workflows: Sequence[str], options: RunOptions, project: Path | str | None) -> None:
    repeated = {name for name in workflows if workflows.count(name) > 1}
    if repeated:
        raise UsageError(f"-a {sorted(repeated)[0]} is given twice", remedy="Name each workflow once.")
    if options.output is not None:
        raise UsageError("--output is one folder, and there are several workflows", remedy="Run them one by one.")
    opened = open_project(project)
    problems = list(opened.problems)
    for workflow in workflows:
        checked, found = check_workflow(opened, workflow, options.overrides(), partial=options.selection().partial)
        problems += found
        if checked is not None:
            _check_scope(options, checked)
    if any_error(problems):
        raise SpecError(in_order(problems))


def _check_scope(options: RunOptions, checked: Checked) -> None:
    workflow = checked.workflow
    try:
        options.scope([stage.name for stage in workflow.stages])
    except UsageError as error:
        raise UsageError(f"{workflow.name}: {error.message}", remedy=error.remedy) from error
