"""A workflow made ready for work, with its rows at hand also where they are piped in."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from agac.api.checking import Checked, checked_workflow
from agac.api.options import RunOptions
from agac.api.project import Project
from agac.core.errors import UsageError
from agac.data.piped import STANDARD_INPUT, keep
from agac.spec.inputs import INPUTS


def ready_workflow(project: Project, workflow: str, options: RunOptions) -> tuple[Checked, RunOptions]:
    """The workflow, checked, with what `options` change. Standard input is read to its end first, where it is the
    input, and the options then name the file in which it is kept: what goes on later finds the rows there.

    Raises SpecError with all problems, UsageError for wrong options.
    """
    overrides, partial = options.overrides(), options.selection().partial
    checked = checked_workflow(project, workflow, overrides, partial=partial)
    if checked.workflow.input.piped:
        options = replace(options, input=str(kept_input(project.root)))
        checked = checked_workflow(project, workflow, options.overrides(), partial=partial)
    return checked, options


@cache
def kept_input(root: Path) -> Path:
    """Standard input in a file of the project. It can be read once in a process, so that several workflows share it.

    Raises UsageError when nothing is piped in.
    """
    folder = root / INPUTS
    remedy = f"Pipe the rows in, as `cat rows.csv | agac run …`{_or_go_on(root)}."
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"{STANDARD_INPUT}: nothing is piped in", remedy=remedy)
    try:
        return keep(sys.stdin.buffer, folder)
    except UsageError as error:
        raise UsageError(error.message, remedy=remedy) from error


def _or_go_on(root: Path) -> str:
    """How to go on with what was piped in before, if anything was."""
    folder = root / INPUTS
    kept = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if not kept:
        return ""
    newest = max(kept, key=lambda path: path.stat().st_mtime)
    return f", or go on with those of the last time: --input {newest}"
