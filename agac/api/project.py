"""A project opened for use: its files, environment, providers, options and rows. Everything is composed from here."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from dotenv import dotenv_values

from agac.api.options import RunOptions
from agac.core.errors import AgacError, Problem, SpecError, UsageError, Where, any_error
from agac.core.redact import Redactor
from agac.core.report import Report
from agac.core.types import Row
from agac.data.records import sampled
from agac.data.sources import STANDARD_INPUT, Source, keep, open_input, read_rows, separator_hint
from agac.engine.export import refusals
from agac.plan.checks import check_batches, check_budgets, missing_extras, resolve_models
from agac.plan.fields import check_placeholders
from agac.plan.plan import ResolvedModel, Selection
from agac.providers.model_string import alias_problem, parse_model
from agac.providers.provider import Provider
from agac.providers.table import build_providers
from agac.simulator.server import embedded_simulator
from agac.simulator.settings import Settings, SimulatorError
from agac.spec.inputs import INPUTS
from agac.spec.loader import in_order, load_project, load_workflow, output_folder, workflow_names
from agac.spec.paths import PROJECT_FILE, project_root
from agac.spec.workflow import Overrides, ProjectSpec, Workflow


@dataclass(frozen=True, slots=True)
class Project:
    """An opened project. `env` is the environment with the project's .env below it: it holds secrets."""

    spec: ProjectSpec
    providers: Mapping[str, Provider]
    problems: list[Problem]
    env: Mapping[str, str] = field(repr=False)

    @property
    def root(self) -> Path:
        """The folder of agac.yml."""
        return self.spec.root

    def redactor(self) -> Redactor:
        """Knows every secret of the providers."""
        return Redactor(secret for row in self.providers.values() for secret in row.secrets)


def open_project(project: Path | str | None, *, start: Path | None = None) -> Project:
    """The project at `project`, or the nearest one from `start` (the current folder) upward, with agac.yml's problems.

    With an error among them it is only good for finding more. Raises UsageError when there is no project, SpecError
    when nothing of agac.yml can be read.
    """
    root = project_root(project, start)
    env = environment(root)
    spec, problems = load_project(root, env)
    if spec is None:
        raise SpecError(problems)

    def locate(path: tuple[str, ...]) -> Where:
        key = ".".join(path)
        while key and key not in spec.where:
            key = key.rpartition(".")[0]
        return spec.where.get(key, Where(PROJECT_FILE))

    providers, found = build_providers(spec.providers, env, locate)
    # what was refused in a provider's row is missing from it: that it is missing is no further problem
    found = [problem for problem in found if not any(p.path.startswith(f"{problem.path}.") for p in problems)]
    return Project(spec, providers, [*problems, *found, *_alias_problems(spec, providers)], env)


def _alias_problems(spec: ProjectSpec, providers: Mapping[str, Provider]) -> list[Problem]:
    """What is wrong with agac.yml's short names of models, whether or not a workflow uses them."""
    problems = []
    for name, text in spec.aliases.items():
        wrong = alias_problem(name, providers)
        others = {key: value for key, value in spec.aliases.items() if key != name}
        messages = [wrong] if wrong else parse_model(text, providers, others)[1]
        where = spec.where[f"aliases.{name}"]
        problems += [Problem(where, message, f"aliases.{name}") for message in messages]
    return problems


def environment(root: Path) -> dict[str, str]:
    """The process's environment over the project's .env: what is exported wins."""
    file = root / ".env"
    if not file.is_file():
        return dict(os.environ)
    try:
        values = dotenv_values(file, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise UsageError(f".env:{line}: is not UTF-8", remedy="Save the file as UTF-8.") from None
    except OSError as error:
        raise UsageError(f".env: cannot be read: {error.strerror}", remedy="Give the file read permission.") from error
    return {**{key: value for key, value in values.items() if value is not None}, **os.environ}


# Checking workflows without running them: every problem of every file, and nothing of the user's is imported.


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
class CheckedWorkflow:
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


def checked_workflow(project: Project, name: str, overrides: Overrides, *, partial: bool) -> CheckedWorkflow:
    """The workflow, ready for a plan. Raises SpecError with all problems when there is an error among them."""
    checked, problems = check_workflow(project, name, overrides, partial=partial)
    problems = in_order([*project.problems, *problems])
    if checked is None or any_error(problems):
        raise SpecError(problems)
    return checked


def check_workflow(
    project: Project, name: str, overrides: Overrides, *, partial: bool = False
) -> tuple[CheckedWorkflow | None, list[Problem]]:
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
    return CheckedWorkflow(workflow, models, source, problems), problems


def _lost_providers(project: Project) -> set[str]:
    """Providers of agac.yml that have a problem and are therefore not there."""
    reported = {problem.path.split(".")[1] for problem in project.problems if problem.path.startswith("providers.")}
    return reported - project.providers.keys()


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


# Which rows a workflow reads, after the command line had its say.


def selected_rows(checked: CheckedWorkflow, selection: Selection) -> Iterator[Row]:
    """The selected rows, streamed; every call reads the input anew. A sample reads all of it once more, first."""
    rows = read_rows(checked.source, checked.workflow.input.id_field, selection.offset)
    if selection.sample is not None:
        rows = _drawn(checked, selection, rows)
    return rows if selection.limit is None else itertools.islice(rows, selection.limit)


def _drawn(checked: CheckedWorkflow, selection: Selection, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of the sample, in the order of the input."""
    ordinals = (record.ordinal for record in checked.source.records(selection.offset))
    wanted = iter(sampled(ordinals, selection.sample or 0, selection.seed))
    following = next(wanted, None)
    for row in rows:
        if following is None:
            return
        if row.ordinal == following:
            yield row
            following = next(wanted, None)


def count_rows(checked: CheckedWorkflow, selection: Selection) -> int:
    """How many rows are selected; reads the input, as far as it must."""
    records = checked.source.records(selection.offset)
    most = min((bound for bound in (selection.limit, selection.sample) if bound is not None), default=None)
    return sum(1 for _ in (records if most is None else itertools.islice(records, most)))


# A workflow made ready for work, with its rows at hand also where they are piped in.


def ready_workflow(project: Project, workflow: str, options: RunOptions) -> tuple[CheckedWorkflow, RunOptions]:
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
    return f", or resume with those of the last time: --input {newest}"


# The simulator, started for the time of a run where a model needs it.

STATE = "simulator.db"
"""Beside the project's database: what was submitted in batches, and when. The simulator goes on with it next time."""


@asynccontextmanager
async def embedded(models: Mapping[str, ResolvedModel], root: Path) -> AsyncIterator[dict[str, ResolvedModel]]:
    """The models with the simulator's address filled in, if one of them or of their fallbacks needs it."""
    if not any(one.provider.embedded for model in models.values() for one in (model, *model.fallbacks)):
        yield dict(models)
        return
    async with embedded_address(root) as base_url:
        yield {name: _at(model, base_url) for name, model in models.items()}


@asynccontextmanager
async def embedded_address(root: Path) -> AsyncIterator[str]:
    """The simulator's base URL for the time of the block. Its batches are those of the project at `root`."""
    folder = root / ".agac"
    folder.mkdir(exist_ok=True)
    try:
        async with embedded_simulator(Settings(state=folder / STATE)) as base_url:
            yield base_url
    except SimulatorError as error:
        raise AgacError("the simulator did not start: " + "; ".join(error.problems)) from error


def _at(model: ResolvedModel, base_url: str) -> ResolvedModel:
    fallbacks = tuple(_at(other, base_url) for other in model.fallbacks)
    provider = replace(model.provider, base_url=base_url) if model.provider.embedded else model.provider
    return replace(model, provider=provider, fallbacks=fallbacks)
