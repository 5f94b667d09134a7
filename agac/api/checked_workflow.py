"""Checks one workflow before its first call: its files, its models, its input and its outputs.
Nothing of the user's is imported and no row is processed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from agac.api.project import Project
from agac.core.errors import AgacError, Problem, SpecError, UsageError, any_error, did_you_mean
from agac.core.types import Row, counted
from agac.data.files import Source
from agac.data.json_formats import JsonSource
from agac.data.sources import (
    FirstRows,
    InputDigest,
    SeveralFiles,
    first_rows,
    open_input,
    read_rows,
    rows_of_shard,
    sampled,
)
from agac.data.text_formats import DelimitedSource, separator_hint
from agac.engine.output.output_checks import refusals
from agac.plan.batch_checks import check_batches
from agac.plan.checks import check_budgets, missing_parts
from agac.plan.fields import check_placeholders
from agac.plan.plan import Models, Selection
from agac.plan.resolved_models import resolve_models
from agac.spec import loader
from agac.spec.paths import output_folder
from agac.spec.project import Overrides
from agac.spec.workflow import Workflow


@dataclass(frozen=True, slots=True)
class CheckedWorkflow:
    """A workflow that can run."""

    workflow: Workflow
    """Its definition."""
    models: Models
    """Its models, found among the project's providers."""
    source: Source
    """Its opened input."""
    warnings: list[Problem]
    """What was found and is no error."""

    def rows(
        self, selection: Selection, *, labels: bool = False, read: InputDigest | None = None
    ) -> Iterator[Row]:
        """Streams the selected rows; each call reads the input again, a sample once more before.
        `labels`: with the columns that no stage sees. Of a shard, `read` is given the rows of all
        shards, so that shards can compare their inputs."""
        rows = read_rows(self.source, self.workflow.input.id_field, selection.offset)
        if self.workflow.labels and not labels:
            rows = map(self._without_labels, rows)
        if selection.sample is not None:
            ordinals = (record.ordinal for record in self.source.records(selection.offset))
            drawn = set(sampled(ordinals, selection.sample, selection.seed))
            rows = itertools.islice((row for row in rows if row.ordinal in drawn), len(drawn))
        if selection.limit is not None:
            rows = itertools.islice(rows, selection.limit)
        if selection.shard is None:
            return rows
        adds_suffixes = self.workflow.input.on_duplicate_id == "suffix"
        return rows_of_shard(rows, selection.shard, adds_suffixes, read)

    def _without_labels(self, row: Row) -> Row:
        """Removes the columns that no stage sees."""
        hidden = self.workflow.labels
        data = row.data and {name: row.data[name] for name in row.data if name not in hidden}
        return row._replace(data=data)

    def count(self, selection: Selection) -> int:
        """Counts the selected rows; reads the input as far as that takes."""
        if selection.shard is not None:
            return sum(1 for _ in self.rows(selection))
        bounds = [bound for bound in (selection.limit, selection.sample) if bound is not None]
        records = self.source.records(selection.offset)
        return sum(1 for _ in itertools.islice(records, min(bounds, default=None)))


def defined(
    project: Project, name: loader.WorkflowSource, overrides: Overrides
) -> tuple[Workflow | None, Models, list[Problem]]:
    """Reads one workflow and finds its models, as far as its files can be read, and returns their
    problems. Its input is not opened."""
    workflow, problems = loader.load_workflow(project.spec, name, overrides)
    if workflow is None:
        return None, {}, problems
    written_providers = project.spec.file.providers
    refused = {
        problem.path.split(".")[1]
        for problem in project.problems
        if problem.path.startswith("providers.")
    }
    addressed = {
        name: project.spec.document.where(("providers", name, "base_url"))
        for name, keys in written_providers.items()
        if keys.base_url is not None
    }
    models, model_problems = resolve_models(
        workflow,
        project.providers,
        project.spec.file.aliases,
        broken=any_error([*project.problems, *problems]),
        lost=refused - project.providers.keys(),
        addressed=addressed,
    )
    return workflow, models, [*problems, *model_problems]


def check_workflow(
    project: Project, name: loader.WorkflowSource, overrides: Overrides, *, partial: bool = False
) -> tuple[CheckedWorkflow | None, list[Problem]]:
    """Checks everything of one workflow that can be known before its first call. Returns None
    instead of the workflow if it cannot run. `partial`: only some rows of the input are to run,
    so that results go to a preview. Raises UsageError for a folder that `--output` cannot name."""
    workflow, models, problems = defined(project, name, overrides)
    if workflow is None:
        return None, problems
    workflow = _with_output_folder(workflow, project, overrides.output)
    if workflow.whole:
        problems += missing_parts(workflow, project.root, project.env)
        problems += check_budgets(workflow, models)
        problems += check_batches(workflow, models)
    if project.untrusted and _needs_server(workflow):
        message = (
            "a server of rows is not asked for files that are not trusted: all but its "
            "columns is checked"
        )
        return None, [*problems, Problem(workflow.input.where, message)]
    opened = _open_and_check_input(workflow, project.env)
    problems += opened.problems
    if workflow.whole:
        reported = {problem.path for problem in problems}
        refused = refusals(workflow, opened.columns, project.root, project.env, preview=partial)
        problems += [problem for problem in refused if problem.path not in reported]
    if opened.source is None or any_error(problems) or not workflow.whole:
        return None, problems
    if workflow.output.places is not None and _is_single_value(opened.source):
        workflow = replace(workflow, output=replace(workflow.output, one_value=True))
    return CheckedWorkflow(workflow, models, opened.source, problems), problems


def _with_output_folder(workflow: Workflow, project: Project, folder: str | None) -> Workflow:
    """Replaces the workflow's output folder by the one that `--output` names, if it names one."""
    if folder is None:
        return workflow
    spec = project.spec
    checked_folder = output_folder(folder, spec.root, spec.paths, workflow.input.path)
    return replace(workflow, output=replace(workflow.output, dir=checked_folder))


def _needs_server(workflow: Workflow) -> bool:
    """True if the workflow reads rows from a server, or writes results to one."""
    written_to = workflow.output.to
    writes_to_server = written_to is not None and not written_to.path
    return workflow.input.format == "postgres" or writes_to_server


def _is_single_value(source: Source) -> bool:
    """True if the input is one JSON value, not a list of rows."""
    return isinstance(source, JsonSource) and source.single


class OpenedInput(NamedTuple):
    """The input of a workflow, as far as it could be opened."""

    source: Source | None
    """None if there is no input, or it cannot be opened."""
    columns: tuple[str, ...] | None
    """Its columns without labels; None if they are unknown."""
    problems: list[Problem]
    """What is wrong with the input, and fields that it lacks."""


def _open_and_check_input(workflow: Workflow, env: Mapping[str, str]) -> OpenedInput:
    """Opens the input and looks for the fields that the workflow names."""
    where = workflow.input.where
    source = None
    try:
        if workflow.input.format or workflow.input.piped:
            source = open_input(workflow.input, env)
    except SpecError as error:
        return OpenedInput(None, None, error.problems)
    except UsageError as error:
        message = f"{error.message}. {error.remedy or ''}".strip()
        return OpenedInput(None, None, [Problem(where, message)])
    if source is None:
        return OpenedInput(None, None, _field_problems(workflow, None, None))
    columns = source.columns()
    if columns:
        columns = tuple(name for name in columns if name not in workflow.labels)
    first = None
    if not workflow.input.piped and _rows_may_lack_fields(workflow, source):
        first = _first_rows(source)
    problems = _field_problems(workflow, columns, first)
    return OpenedInput(source, columns, [*problems, *_short_records(workflow, first)])


def _rows_may_lack_fields(workflow: Workflow, source: Source) -> bool:
    """True if rows may lack what a prompt names: fields of their own, the last fields of a short
    record, or what is inside of a column."""
    columns = source.columns()
    if columns is None or isinstance(source, DelimitedSource | SeveralFiles):
        return True
    names = (
        placeholder.name for stage in workflow.asking for placeholder in stage.prompt.placeholders
    )
    return any("." in name and name.partition(".")[0] in columns for name in names)


def _first_rows(source: Source) -> FirstRows | None:
    """Reads the beginning of an input. Returns None if it cannot be read: the command that reads
    all of it reports why."""
    try:
        return first_rows(source)
    except AgacError:
        return None


def _short_records(workflow: Workflow, first: FirstRows | None) -> list[Problem]:
    """Warns of records with fewer fields than the header."""
    if first is None or not first.short:
        return []
    if first.complete:
        records = counted(first.looked_at, "record")
    else:
        records = f"the first {first.looked_at:,} records"
    have = "has" if first.short == 1 else "have"
    message = (
        f"{first.short:,} of {records} {have} fewer fields than the header, the first at "
        f"{first.first_short}; "
    )
    if workflow.input.on_short_record == "null":
        message += "their missing fields are null (on_short_record: null)"
    else:
        message += (
            "a row fails if a prompt or condition needs a missing field; `on_short_record: "
            "null` makes it null"
        )
        message += " (`agac process`: --read on_short_record=null)"
    return [Problem(workflow.input.where, message, "warning")]


def _field_problems(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None
) -> list[Problem]:
    """Returns a problem for each named field that the input lacks. If the file was read with the
    wrong separator, that is one problem in place of all of them."""
    id_problems = _id_problems(workflow, columns, first)
    if workflow.whole:
        placeholder_problems = check_placeholders(workflow, columns, first)
    else:
        placeholder_problems = []
    hint = separator_hint(columns) if columns else ""
    if not columns or not hint:
        return [*placeholder_problems, *id_problems]
    if id_problems:
        return id_problems
    message = f"the input has one column, {columns[0]!r}; {hint}"
    if any_error(placeholder_problems):
        return [Problem(workflow.input.where, message)]
    return [Problem(workflow.input.where, message, "warning")]


def _id_problems(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None
) -> list[Problem]:
    """Returns a problem if the input lacks the column or field that `id_field` names."""
    name = workflow.input.id_field
    if name is None:
        return []
    where = workflow.input.where
    at_key = replace(where, path=where.path and "input.id_field")
    if columns is not None and name not in columns:
        hint = separator_hint(columns) if columns else ""
        help_text = hint or did_you_mean(name, columns, "the columns are")
        return [Problem(at_key, f"the input has no column {name!r}; {help_text}")]
    if first is not None and first.lack((name,)):
        names = did_you_mean(name, first.names(), "the fields are")
        message = f"{first.words()} of the input has the id field {name!r}; {names}"
        return [Problem(at_key, message)]
    return []
