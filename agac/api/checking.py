"""Checking workflows without running them: every problem of every file, and nothing of the user's is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from agac.api.project import Project, open_project
from agac.core.errors import Problem, SpecError, UsageError, Where, any_error
from agac.core.report import Report
from agac.data.sources import Source, open_input, separator_hint
from agac.engine.outputs import refusals
from agac.plan.batchcheck import check_batches
from agac.plan.budgetcheck import check_budgets
from agac.plan.check import missing_extras, resolve_models
from agac.plan.placeholders import check_placeholders
from agac.plan.plan import ResolvedModel
from agac.spec.inout import output_folder
from agac.spec.load import in_order, load_workflow, workflow_names
from agac.spec.workflow import Overrides, Workflow


def placed(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Problems as `--json` prints them, with their places."""
    return [
        {
            "file": problem.where.file,
            "line": problem.where.line,
            "column": problem.where.column,
            "path": problem.path,
            "severity": problem.severity,
            "message": problem.message,
        }
        for problem in problems
    ]


@dataclass(frozen=True, slots=True)
class CheckReport(Report):
    """What a check found. `workflows` were checked, by name; `ok`: none of the problems is an error."""

    JSON_KEYS = ("ok", "workflows", "problems")

    workflows: list[str]
    problems: Annotated[list[Problem], placed]

    @property
    def ok(self) -> bool:
        """Whether everything can run."""
        return not any_error(self.problems)


@dataclass(frozen=True, slots=True)
class Checked:
    """A workflow that can run, with its models and its opened input."""

    workflow: Workflow
    models: Mapping[str, ResolvedModel]
    source: Source
    warnings: list[Problem]


def validate(workflow: str | Sequence[str] | None = None, *, project: Path | str | None = None) -> CheckReport:
    """Checks one workflow, several, or all of the project, and agac.yml."""
    try:
        opened = open_project(project)
    except SpecError as error:
        return CheckReport([], error.problems)
    wanted = [workflow] if isinstance(workflow, str) else list(dict.fromkeys(workflow or ()))
    names = wanted or workflow_names(opened.spec)
    problems = list(opened.problems)
    if not names:
        folder = Where(opened.spec.shown(opened.spec.paths.workflows) + "/")
        problems.append(Problem(folder, "no workflow is here; `agac init NAME` makes a project that has one"))
    for name in names:
        _, found = check_workflow(opened, name, Overrides())
        problems += found
    return CheckReport(names, in_order(problems))


def checked_workflow(project: Project, name: str, overrides: Overrides, *, partial: bool) -> Checked:
    """The workflow, ready for a plan. Raises SpecError with all problems when there is an error among them."""
    checked, problems = check_workflow(project, name, overrides, partial=partial)
    problems = in_order([*project.problems, *problems])
    if checked is None or any_error(problems):
        raise SpecError(problems)
    return checked


def check_workflow(
    project: Project, name: str, overrides: Overrides, *, partial: bool = False
) -> tuple[Checked | None, list[Problem]]:
    """One workflow with everything that can be known of it before its first call.

    `partial`: the run is to be one over a selection. Raises UsageError for a folder that `--output` cannot name.
    """
    workflow, problems = load_workflow(project.spec, name, overrides)
    if workflow is None:
        return None, problems
    if overrides.output is not None:
        folder = output_folder(overrides.output, project.spec, workflow.input)
        workflow = replace(workflow, output=replace(workflow.output, dir=folder))
    broken = any_error([*project.problems, *problems])
    lost = _lost_providers(project)
    models, found = resolve_models(workflow, project.providers, project.spec.aliases, broken=broken, lost=lost)
    problems = [*problems, *found, *missing_extras(workflow), *check_budgets(workflow, models)]
    problems += check_batches(workflow, models)
    source, found = _open_input(workflow)
    problems += found
    columns = source.columns() if source else None
    if source is not None:
        problems += _fields(workflow, columns)
    problems += refusals(workflow, columns, project.root, preview=partial)
    if source is None or any_error(problems):
        return None, problems
    return Checked(workflow, models, source, problems), problems


def _lost_providers(project: Project) -> set[str]:
    """Providers of agac.yml that have a problem and are therefore not there."""
    told = {problem.path.split(".")[1] for problem in project.problems if problem.path.startswith("providers.")}
    return told - project.providers.keys()


def _open_input(workflow: Workflow) -> tuple[Source | None, list[Problem]]:
    spec = workflow.input
    try:
        return open_input(spec), []
    except UsageError as error:
        message = f"{error.message}. {error.remedy or ''}".strip()
        return None, [Problem(spec.where, message, "input.path")]


def _fields(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Problem]:
    """Names of fields that the input does not have. A file taken apart at the wrong sign is one problem, not ten."""
    placeholders, identity = check_placeholders(workflow, columns), _id_field(workflow, columns)
    hint = separator_hint(columns) if columns else ""
    if columns and hint and any_error([*placeholders, *identity]):
        whole = f"the input has one column, {columns[0]!r}; {hint}"
        return identity or [Problem(workflow.input.where, whole, "input.path")]
    return [*placeholders, *identity]


def _id_field(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Problem]:
    field = workflow.input.id_field
    if field is None or columns is None or field in columns:
        return []
    near = get_close_matches(field, columns, 1)
    named = f"did you mean '{near[0]}'?" if near else f"the columns are: {', '.join(columns)}"
    hint = separator_hint(columns) or named
    return [Problem(workflow.input.where, f"the input has no column {field!r}; {hint}", "input.id_field")]
