"""Compares two versions of a project's files: what a change of them does (`agac diff`), and the
plans of both (`agac plan --against`)."""

from __future__ import annotations

import filecmp
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.bugs import bug_problem
from agac.api.checked_workflow import CheckedWorkflow, check_workflow, defined
from agac.api.comparison import Relation, relations
from agac.api.plan import plan_in, planned
from agac.api.project import Project, open_project, project_of
from agac.api.run_options import RunOptions
from agac.api.status import workflow_name
from agac.api.sync import blocking
from agac.api.versions import Version, project_at, refuse_empty, version_of
from agac.core.errors import AgacError, Problem, SpecError, UsageError, Where, any_error
from agac.core.types import JSONValue, Report, RowId, Schema
from agac.engine.forecast.baseline import InvocationChoice
from agac.engine.forecast.forecasts import PlanReport
from agac.engine.invocation import Scope
from agac.plan.changes import Change, changes_of, settings_changes
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.run_settings import run_settings
from agac.spec import loader
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.paths import Unusable
from agac.spec.project import Overrides
from agac.spec.project_files import read_text
from agac.spec.schema_errors import TOO_MANY, some_errors
from agac.spec.test_files import case_files
from agac.store.db import open_for_reading

_SETTINGS = {
    "providers",
    "aliases",
    "paths",
    "tools",
    "mcp",
    "remote",
    "executor",
    "lint",
    "ci",
}
"""Keys of agac.yml that are not part of any workflow's definition: which providers are called, what
is started, where answers go."""


@dataclass(frozen=True, slots=True)
class PlanComparison(Report):
    """The plans of two versions of a workflow, with the same store."""

    JSON_KEYS = ("workflow=now.workflow", "against", "before", "now", "difference")

    against: Version
    """The other version."""

    before: PlanReport | None
    """None: the workflow did not exist."""

    now: PlanReport
    """The plan of the present version."""

    @property
    def difference(self) -> dict[str, float | None]:
        """What the present version takes more, negative if it takes less; None: a price is not
        known."""
        before = totals(self.before or PlanReport(self.now.workflow, []))
        difference: dict[str, float | None] = {}
        for key, now in totals(self.now).items():
            was = before[key]
            is_known = was is not None and now is not None
            difference[key] = round(now - was, 6) if is_known else None
        return difference


def totals(plan: PlanReport) -> dict[str, Any]:
    """Adds up a plan: rows of the input, answers that are reused, tasks, calls, tokens, dollars."""
    return {
        "rows": plan.rows["total"],
        "reuse": plan.valid,
        "run": sum(stage.run for stage in plan.stages if stage.stage.asks),
        "calls": plan.calls,
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
        "usd": plan.usd,
    }


@blocking
async def plan_against(
    ref: str,
    workflow: str,
    options: RunOptions | None = None,
    *,
    show: int = 0,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> PlanComparison:
    """Plans a workflow with the present files, and with those at `ref`, which is a commit, a
    branch, a tag or a folder. Raises UsageError, SpecError."""
    refuse_empty(ref)
    opened = project_of(workflow, project, untrusted=untrusted)
    options = options or RunOptions()
    now = await plan_in(opened, workflow, options, show=show)
    before = None
    try:
        with project_at(ref, opened) as earlier:
            if now.workflow in loader.workflow_names(earlier.spec):
                before = await plan_in(earlier, now.workflow, options)
    except SpecError as error:
        problems = list[Problem]()
        for problem in error.problems:
            file = f"{ref}:{problem.where.file}"
            problems.append(replace(problem, where=replace(problem.where, file=file)))
        raise SpecError(problems) from None
    return PlanComparison(version_of(ref, opened), before, now)


@dataclass(frozen=True, slots=True)
class WorkflowDiff(Report):
    """What became of a workflow."""

    workflow: str
    """The name of the workflow."""

    how: str
    """`new`, `gone` or `changed`."""

    changes: Sequence[Change] = ()
    """What changed."""

    problems: Sequence[Problem] = ()
    """The problems of the present version."""

    plan: PlanReport | None = None
    """The plan of the present version, if that has no errors."""

    @property
    def sound(self) -> bool:
        """True if there is a present version, and it can run."""
        return self.how != "gone" and not any_error(self.problems)


@dataclass(frozen=True, slots=True)
class DiffReport(Report):
    """The differences of a project from another version of it."""

    JSON_KEYS = (
        "ok",
        "against",
        "valid=all.valid",
        "least=all.least",
        "most=all.most",
        "usd=all.usd",
        "workflows",
        "unchanged",
        "problems",
        "beside",
    )

    against: Version
    """The other version."""

    workflows: list[WorkflowDiff]
    """The workflows that differ."""

    unchanged: list[str]
    """The names of the others."""

    problems: list[Problem]
    """Problems of the project."""

    beside: list[Change]
    """What differs outside of workflows: settings of agac.yml, and tests that changed or are
    gone."""

    @property
    def all(self) -> PlanReport:
        """The stages of all plans as one plan."""
        plans = [diff.plan for diff in self.workflows if diff.plan]
        return PlanReport("", [stage for plan in plans for stage in plan.stages])

    @property
    def ok(self) -> bool:
        """True if the present version can run, as far as it was looked at."""
        of_workflows = [problem for diff in self.workflows for problem in diff.problems]
        return not any_error([*self.problems, *of_workflows])


@blocking
async def diff(
    ref: str | None = None,
    workflows: Sequence[str] = (),
    *,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> DiffReport:
    """Finds how the project's workflows, or some of them, differ from those at `ref`: a commit, a
    branch, a tag or a folder; None: the last commit that is shared with main. What can be run is
    planned with the present store; nothing is asked or written. Raises UsageError, SpecError."""
    opened = open_project(project, untrusted=untrusted)
    version = version_of(ref, opened)
    with project_at(version.ref, opened) as earlier:
        return await differences(opened, earlier, version, workflows)


async def differences(
    opened: Project,
    earlier: Project | None,
    version: Version,
    workflows: Sequence[str],
    *,
    plans: bool = True,
) -> DiffReport:
    """Finds the same of projects that are open. Without a project before, all workflows are new;
    without `plans` none is planned."""
    diffs = list[WorkflowDiff]()
    unchanged = list[str]()
    now = loader.workflow_names(opened.spec)
    before = loader.workflow_names(earlier.spec) if earlier else []
    names = [str(workflow_name(workflow)) for workflow in workflows]
    for name in names or sorted({*now, *before}):
        is_gone = name in before and name not in now
        present = None if is_gone else opened
        was = earlier if name in before else None
        found = await _workflow_diff_or_bug(name, present, was, plans=plans)
        if found is None:
            unchanged.append(name)
        else:
            diffs.append(found)
    beside = list(settings_changes(_settings(earlier), _settings(opened)))
    problems = list(opened.problems)
    if earlier is not None:
        beside.extend(_test_changes(earlier, opened))
        problems += [problem for problem in earlier.problems if problem.severity == "warning"]
    return DiffReport(version, diffs, unchanged, problems, beside)


def _settings(project: Project | None) -> dict[str, Any]:
    """Reads the settings of agac.yml that no workflow shows."""
    if project is None:
        return {}
    return project.spec.file.model_dump(mode="json", include=_SETTINGS, exclude_unset=True)


def _test_changes(earlier: Project, opened: Project) -> Iterator[Change]:
    """Finds files of tests that the earlier version has and that changed or are gone."""
    before = _test_files(earlier)
    now = _test_files(opened)
    for path, how in relations(before, now):
        if how is Relation.ONLY_FIRST:
            yield Change(f"test {path} is gone", "gone")
        elif how is Relation.CHANGED:
            yield Change(f"test {path}", "test", None, before[path], now[path])


def _test_files(project: Project) -> dict[str, str]:
    """Reads the files of tests, by their paths; of a file that cannot be read, the reason. Nothing
    if their folder leads out of the project: that is reported as a problem of the tests."""
    texts: dict[str, str] = {}
    with suppress(Unusable):
        for file in case_files(project.spec):
            path = file.relative_to(project.root).as_posix()
            try:
                texts[path] = read_text(file, path, project.root)
            except Unusable as error:
                texts[path] = str(error.problem)
    return texts


async def _workflow_diff_or_bug(
    name: str,
    opened: Project | None,
    earlier: Project | None,
    *,
    plans: bool,
) -> WorkflowDiff | None:
    """Compares one workflow. A bug that it meets is reported as its problem."""
    try:
        return await _workflow_diff(name, opened, earlier, plans=plans)
    except AgacError:
        raise
    except Exception as error:  # noqa: BLE001 - the other workflows are compared all the same
        how = "changed" if earlier else "new"
        return WorkflowDiff(name, how, problems=[bug_problem(error, name)])


async def _workflow_diff(
    name: str,
    opened: Project | None,
    earlier: Project | None,
    *,
    plans: bool,
) -> WorkflowDiff | None:
    """Compares one workflow; None: it does not differ."""
    if opened is None:
        return WorkflowDiff(name, "gone")
    checked, problems = check_workflow(opened, name, Overrides())
    now, more_problems = _defined(opened, name)
    problems = loader.in_order([*problems, *more_problems])
    changes = list[Change]()
    is_compared = False
    if earlier is not None:
        before, earlier_problems = _defined(earlier, name)
        is_compared = before is not None
        if before is None:
            problems.append(_not_compared(name, earlier_problems))
        elif now is not None:
            old = _with_settings(before, earlier.root)
            new = _with_settings(now, opened.root)
            changes = _changes(old, new, problems)
            changes += _input_changes(earlier, name, checked)
            problems += _unfit_examples(checked, now, changes)
    has_error = any_error(problems)
    if is_compared and not changes and not has_error:
        return None
    plan = None
    if plans and not has_error:
        plan = await _plan_report(opened, checked, now)
    return WorkflowDiff(name, "changed" if earlier else "new", changes, problems, plan)


async def _plan_report(
    opened: Project,
    checked: CheckedWorkflow | None,
    plan: Plan | None,
) -> PlanReport | None:
    """Plans what a run would do with the present store."""
    if checked is None or plan is None:
        return None
    rows = partial(checked.rows, plan.selection)
    async with open_for_reading(opened.store) as database:
        return await planned(database, plan, InvocationChoice(scope=Scope(None, True)), rows)


def _not_compared(name: str, problems: Sequence[Problem]) -> Problem:
    """Warns that the version before has errors."""
    errors = "; ".join(str(problem) for problem in problems if problem.severity == "error")
    text = f"the version before is not compared, as it has problems: {errors}"
    return Problem(Where(name), text, "warning")


def _changes(
    before: dict[str, Any],
    now: dict[str, Any],
    problems: Sequence[Problem],
) -> list[Change]:
    """Compares two definitions with their settings. If the present input has an error, nothing is
    known of it, and so of its changes."""
    if any(problem.path == "input.path" and problem.severity == "error" for problem in problems):
        now = {**now, "input": before["input"]}
    return changes_of(before, now)


def _defined(project: Project, name: str) -> tuple[Plan | None, list[Problem]]:
    """Plans a workflow, as far as its files have no errors, without a look at its rows. Gives what
    is wrong with them, too."""
    workflow, models, problems = defined(project, name, Overrides())
    if workflow is None or not workflow.whole:
        return None, problems
    if any(stage.name not in models for stage in workflow.calling):
        return None, problems
    parts = (workflow, models, project.root, Selection(), None)
    try:
        plan = make_plan(*parts, untrusted=project.untrusted)
    except UsageError as error:
        text = f"{error.message}. {error.remedy or ''}".strip()
        return None, [*problems, Problem(Where(workflow.file), text)]
    return plan, problems


def _input_changes(
    earlier: Project,
    name: str,
    now: CheckedWorkflow | None,
) -> Iterator[Change]:
    """Counts the rows that differ, by their ids, if the two versions have different inputs."""
    if now is None:
        return
    before, _ = check_workflow(earlier, name, Overrides())
    if before is None or _is_same_input(before, now):
        return
    old_rows = _row_hashes(before)
    new_rows = _row_hashes(now)
    counts = Counter(how for _, how in relations(old_rows, new_rows))
    words = {
        Relation.ONLY_SECOND: "new",
        Relation.ONLY_FIRST: "gone",
        Relation.CHANGED: "different",
    }
    counted = [f"{counts[how]:,} {word}" for how, word in words.items() if counts[how]]
    if counted:
        text = f"rows of {now.workflow.input.shown}: {', '.join(counted)}"
        yield Change(text, "rows", None, len(old_rows), len(new_rows))


def _is_same_input(before: CheckedWorkflow, now: CheckedWorkflow) -> bool:
    """True if two versions read the same path, or files with the same content."""
    first = before.workflow.input.path
    second = now.workflow.input.path
    if first == second:
        return True
    if not first.is_file() or not second.is_file():
        return False
    return filecmp.cmp(first, second, shallow=False)


def _row_hashes(checked: CheckedWorkflow) -> dict[RowId, int]:
    """Hashes the content of each row: inputs may be larger than the memory."""
    rows = checked.rows(Selection())
    return {row.id: hash(json.dumps(row.data, sort_keys=True)) for row in rows}


def _unfit_examples(
    checked: CheckedWorkflow | None,
    plan: Plan,
    changes: Sequence[Change],
) -> Iterator[Problem]:
    """Finds answers in the examples of prompts that do not fit a schema that changed: models copy
    them."""
    if checked is None:
        return
    reshaped = {change.stage for change in changes if change.fields}
    for written, stage in zip(checked.workflow.asking, plan.asking, strict=True):
        if stage.schema is None or stage.name not in reshaped:
            continue
        for example in stage.examples:
            if example.role != "assistant" or example.content.placeholders:
                continue
            reason = _misfit(stage.schema, example.content.render({}))
            if reason is not None:
                text = f"the answer of an example does not fit the schema any more: {reason}"
                yield Problem(replace(written.at("messages"), path=example.path), text)


def _misfit(schema: Schema, text: str) -> str | None:
    """Says why an answer does not fit a schema; None: it does, or it is no JSON."""
    with suppress(ValueError):
        answer: JSONValue = json.loads(text)
        validator = compiled(schema.body)
        if not validator.is_valid(answer):
            errors = some_errors(validator, schema_cost(schema.body), answer, 1)
            return errors[0].message if errors else TOO_MANY
    return None


def _with_settings(plan: Plan, root: Path) -> dict[str, Any]:
    """Makes the definition of a plan with the settings that say how answers are got: run modes,
    fallbacks, bounds."""
    settings = run_settings(plan, root)
    stages = list[dict[str, Any]]()
    for body, own in zip(plan.body["stages"], settings["stages"], strict=True):
        models = own.pop("models", ())
        fallback = [f"{model['provider']}/{model['model']}" for model in models[1:]]
        known = ("schema", "python_schema", "children")
        shown = {key: value for key, value in own.items() if key not in known}
        stages.append({"fallback": fallback or None, **shown, **body})
    return {
        **plan.body,
        "rules": settings["rules"],
        "output": settings["output"],
        "stages": stages,
    }
