"""`agac validate`: every problem of the workflows of a project, with nothing run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from agac.api.checked_workflow import check_workflow
from agac.api.project import Project, project_of
from agac.core.arguments import typed
from agac.core.errors import Problem, SpecError, UsageError, Where, any_error
from agac.core.types import Report
from agac.plan.checks import outside_strict
from agac.spec import loader
from agac.spec.paths import project_root, refused_by_windows
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.workflow import Workflow


@dataclass(frozen=True, slots=True)
class CheckReport(Report):
    """Problems that a check found."""

    JSON_KEYS = ("ok", "workflows", "problems")

    workflows: list[str]
    """The names of the workflows that were checked."""
    problems: list[Problem]
    """Errors and warnings, in the order of files and lines."""

    @property
    def ok(self) -> bool:
        """True if none of the problems is an error, so that everything can run."""
        return not any_error(self.problems)


@typed
def validate(
    workflow: loader.WorkflowSource | Sequence[str] | None = None,
    *,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> CheckReport:
    """Checks one workflow, several, or all of the project, and agac.yml. `untrusted`: anybody may
    have written the files, so they see nothing of the environment."""
    if isinstance(workflow, loader.WorkflowSource):
        requested = [workflow]
    else:
        requested = list[loader.WorkflowSource](workflow or ())
    first = requested[0] if requested else ""
    try:
        opened = project_of(first, project, untrusted=untrusted).reading_once()
    except SpecError as error:
        problems = [*error.problems, *loader.workflow_keys(project_root(project))]
        return CheckReport([], loader.in_order(problems))
    names = list(dict.fromkeys(requested)) or loader.workflow_names(opened.spec)
    problems = list(opened.problems)
    if not names:
        folder = Where(opened.spec.shown(opened.spec.paths.workflows) + "/")
        message = "no workflow is here; `agac init NAME` makes a project that has one"
        problems.append(Problem(folder, message))
    for name in names:
        try:
            problems += _problems_of(opened, name)
        except UsageError as error:
            if len(names) == 1:
                raise
            message = f"{error.message}. {error.remedy or ''}".strip()
            problems.append(Problem(Where(str(name)), message))
    return CheckReport(list(map(str, names)), loader.in_order(problems))


def _problems_of(project: Project, name: loader.WorkflowSource) -> list[Problem]:
    """Checks one workflow. Raises UsageError if there is none of this name."""
    checked, problems = check_workflow(project, name, Overrides())
    if isinstance(name, loader.BuiltWorkflow):
        problems = name.told(problems)
    if checked is None:
        return problems
    schemas = {stage.name: stage.schema for stage in checked.workflow.asking}
    return [
        *problems,
        *outside_strict(checked.workflow, checked.models, schemas),
        *_windows_warnings(checked.workflow, project.spec),
    ]


def _windows_warnings(workflow: Workflow, project: ProjectSpec) -> list[Problem]:
    """Warns of names of files and folders that Windows does not allow."""
    written = [workflow.file, project.shown(workflow.output.dir)]
    if workflow.output.to and workflow.output.to.path:
        written.append(project.shown(workflow.output.to.path))
    refused = {
        PurePath(part).stem: (path, part)
        for path in reversed(written)
        for part in refused_by_windows(path)
    }
    message = (
        "{}: Windows has no files or folders called {!r}; rename it if the project is to "
        "be used there"
    )
    where = Where(workflow.file)
    return [
        Problem(where, message.format(path, part), "warning") for path, part in refused.values()
    ]
