"""What a change of a project's files does: `agac diff`, and `agac plan --against`, which plans
both versions."""

from __future__ import annotations

import filecmp
import json
import os
import re
import tempfile
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.bugs import bug_problem
from agac.api.plan import plan_in, planned
from agac.api.project import (
    CheckedWorkflow,
    Project,
    RunOptions,
    check_workflow,
    defined,
    open_project,
    project_of,
)
from agac.api.status import workflow_name
from agac.api.sync import blocking
from agac.core.errors import AgacError, Problem, SpecError, UsageError, Where, any_error
from agac.core.types import Moment, Report
from agac.engine.estimate import PlanReport
from agac.engine.invocation import Scope
from agac.plan.changes import Change, changes_of, settings_changes
from agac.plan.plan import Plan, Selection, make_plan, run_settings
from agac.spec import loader
from agac.spec.git import Repository
from agac.spec.inputs import DATABASES, SUFFIXES, suffix_of
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.paths import PROJECT_FILE, Unusable, matches
from agac.spec.project_files import read_text
from agac.spec.schema_errors import TOO_MANY, some_errors
from agac.spec.test_files import FOLDER, case_files
from agac.spec.workflow import Overrides, Workflow
from agac.store.db import open_for_reading

_SETTINGS = {"providers", "aliases", "paths", "tools", "mcp", "remote", "executor", "lint", "ci"}
"""Keys of agac.yml that are no part of a workflow's definition: who is asked, what is started,
where answers go."""

_OF_ROWS = (SUFFIXES.keys() - {".json", ".txt"}) | DATABASES
"""Suffixes of files that hold rows, if anything: of another version those alone are read that a
workflow names."""

_IN_LFS = (
    "its content at {0} is in git LFS, which is not read; where it is an input the rows of "
    "the working tree are taken, "
    "for all else name a folder with that version (`git worktree add FOLDER {0}`)"
)


def _holds_rows(path: str) -> bool:
    # there are recorded replies
    return suffix_of(path) in _OF_ROWS and not path.startswith(f"{FOLDER}/")


@dataclass(frozen=True, slots=True)
class Version(Report):
    """What a project is compared with: the `ref` that was typed, or a commit that was chosen,
    which is shared with `main` there; where that is a commit its name and when it was made, and
    how many commits main has more."""

    ref: str
    commit: str | None = None
    made_at: Moment | None = None
    main: str | None = None
    behind: int | None = None


_FOLDER = re.compile(r"\.{1,2}(?:[/\\]|\Z)|[/\\]|[A-Za-z]:[/\\]")


def refuse_empty(ref: str | None) -> None:
    """Raises UsageError for a version that is given and empty, as an unset variable of a job is:
    it would be the working tree, in which nothing differs from itself."""
    if ref is not None and not ref.strip():
        remedy = (
            "Name a branch, a tag, a commit or a folder; where a variable names it, see "
            "that it is set."
        )
        raise UsageError("the version to compare with is empty", remedy=remedy)


def version_of(ref: str | None, project: Project) -> Version:
    """What `ref` means: a folder that holds a project where it is written as a path (`../before`),
    else a commit; None: the one that the working tree's HEAD shares with main (or master, or those
    of origin). Raises UsageError."""
    refuse_empty(ref)
    if ref is not None and _FOLDER.match(ref):
        return _folder_version(ref, project)
    repository = Repository.of(project.state, os.environ)
    if ref is None:
        main, newest = repository.main()
        commit = repository.merge_base(newest, main)
        return Version(
            commit, commit, repository.made_at(commit), main, repository.behind(commit, newest)
        )
    if repository.commit_or_none(ref) is None and (Path(ref) / PROJECT_FILE).is_file():
        remedy = (
            f"For the folder write ./{ref}; a change could bring a folder with the name of "
            "a branch."
        )
        raise UsageError(f"{ref!r} is no commit of this repository, and is a folder", remedy=remedy)
    commit = repository.commit(ref)
    return Version(ref, commit, repository.made_at(commit))


def _folder_version(ref: str, project: Project) -> Version:
    remedy = "Name a folder that holds another version of the project."
    if not (Path(ref) / PROJECT_FILE).is_file():
        raise UsageError(f"{ref} holds no {PROJECT_FILE}", remedy=remedy)
    if Path(ref).resolve() == project.root.resolve():
        raise UsageError(f"{ref} is the project itself, in which nothing differs", remedy=remedy)
    return Version(ref)


@contextmanager
def project_at(ref: str, project: Project) -> Iterator[Project]:
    """The project as it was at `ref`, for the block: with its files, the store, environment and
    fetched content of `project`, and the working tree's inputs where git does not have them.
    Raises UsageError, SpecError."""
    commit = version_of(ref, project).commit
    if commit is None:
        yield open_project(project.state, files=Path(ref).resolve(), untrusted=project.untrusted)
        return
    repository = Repository.of(project.state, os.environ)
    entries = repository.entries(commit)
    if not any(one.path == PROJECT_FILE for one in entries):
        if repository.prefix:
            where = f"in {repository.prefix}"
        else:
            where = "at the top of the repository"
        raise UsageError(
            f"{ref} has no {PROJECT_FILE} {where}",
            remedy="Name a commit in which the project is there.",
        )
    with tempfile.TemporaryDirectory(prefix="agac-") as made:
        folder = Path(made).resolve()
        pointers = repository.write([one for one in entries if not _holds_rows(one.path)], folder)
        opened = open_project(project.state, files=folder, untrusted=project.untrusted)
        named = loader.input_paths(opened.spec)
        rows = (one for one in entries if _holds_rows(one.path))
        read = [
            one
            for one in rows
            if any(one.path.startswith(f"{text}/") or matches(text, one.path) for text in named)
        ]
        pointers += repository.write(read, folder)
        problems = [Problem(Where(path), _IN_LFS.format(ref), "warning") for path in pointers]
        yield replace(opened, problems=[*opened.problems, *problems])


@dataclass(frozen=True, slots=True)
class PlanComparison(Report):
    """The plans of two versions of a workflow, beside the same store. `before` None: it was not
    there."""

    JSON_KEYS = ("workflow=now.workflow", "against", "before", "now", "difference")

    against: Version
    before: PlanReport | None
    now: PlanReport

    @property
    def difference(self) -> dict[str, float | None]:
        """What the present version takes more, negative where that is less; None: a price is not
        known."""
        before = totals(self.before or PlanReport(self.now.workflow, []))
        both = {key: (before[key], now) for key, now in totals(self.now).items()}
        return {key: None if None in (a, b) else round(b - a, 6) for key, (a, b) in both.items()}


def totals(plan: PlanReport) -> dict[str, Any]:
    """What a plan comes to: rows of the input, answers that are reused, tasks, calls, tokens,
    dollars."""
    run = sum(one.run for one in plan.stages if one.stage.asks)
    counts = {key: getattr(plan, key) for key in ("calls", "input_tokens", "output_tokens", "usd")}
    return {"rows": plan.rows["total"], "reuse": plan.valid, "run": run, **counts}


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
    """`plan` of the files that there are, and of those at `ref`, which is a commit, a branch, a
    tag or a folder. Raises UsageError, SpecError."""
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
        problems = [
            replace(one, where=replace(one.where, file=f"{ref}:{one.where.file}"))
            for one in error.problems
        ]
        raise SpecError(problems) from None
    return PlanComparison(version_of(ref, opened), before, now)


@dataclass(frozen=True, slots=True)
class WorkflowDiff(Report):
    """What became of a workflow (`how`: `new`, `gone`, `changed`), its `changes`, and the
    `problems` of the present version; where that has no errors, its `plan`."""

    workflow: str
    how: str
    changes: Sequence[Change] = ()
    problems: Sequence[Problem] = ()
    plan: PlanReport | None = None

    @property
    def sound(self) -> bool:
        """Whether there is a present version, which can run."""
        return self.how != "gone" and not any_error(self.problems)


@dataclass(frozen=True, slots=True)
class DiffReport(Report):
    """The workflows that differ from those of the version `against`, and the names of those that
    do not; what differs outside of workflows (`beside`): settings of agac.yml, and tests that
    changed or are gone."""

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
    workflows: list[WorkflowDiff]
    unchanged: list[str]
    problems: list[Problem]
    beside: list[Change]

    @property
    def all(self) -> PlanReport:
        """The stages of all plans."""
        return PlanReport(
            "", [stage for one in self.workflows if one.plan for stage in one.plan.stages]
        )

    @property
    def ok(self) -> bool:
        """Whether the present version can run, as far as it was looked at."""
        return not any_error(
            [*self.problems, *(problem for one in self.workflows for problem in one.problems)]
        )


@blocking
async def diff(
    ref: str | None = None,
    workflows: Sequence[str] = (),
    *,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> DiffReport:
    """How the project's workflows, or some of them, differ from those at `ref`: a commit, a
    branch, a tag or a folder; None: the last commit that is shared with main. What can be run is
    planned against the present store; nothing is asked or written. Raises UsageError, SpecError."""
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
    """The same of projects that are open: without a project before, all workflows are new; without
    `plans` none."""
    found = list[WorkflowDiff]()
    unchanged = list[str]()
    now, before = (loader.workflow_names(one.spec) if one else [] for one in (opened, earlier))
    for name in [str(workflow_name(one)) for one in workflows] or sorted({*now, *before}):
        present = opened if name in now or name not in before else None
        was = earlier if name in before else None
        try:
            one = await _workflow_diff(name, present, was, plans=plans)
        except AgacError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug that one workflow meets is said of it
            one = WorkflowDiff(
                name, "changed" if was else "new", problems=[bug_problem(error, name)]
            )
        found += [one] if one else []
        unchanged += [] if one else [name]
    told = [one for one in (earlier.problems if earlier else []) if one.severity == "warning"]
    beside = list(settings_changes(_settings(earlier), _settings(opened)))
    beside += _test_changes(earlier, opened) if earlier else []
    return DiffReport(version, found, unchanged, [*opened.problems, *told], beside)


def _settings(project: Project | None) -> dict[str, Any]:
    """What agac.yml says that no workflow shows."""
    if project:
        return project.spec.file.model_dump(mode="json", include=_SETTINGS, exclude_unset=True)
    return {}


def _test_changes(earlier: Project, opened: Project) -> Iterator[Change]:
    """Files of tests that the version before has, and that are other ones now, or gone."""
    was = _test_files(earlier)
    now = _test_files(opened)
    for path, content in was.items():
        if path not in now:
            yield Change(f"test {path} is gone", "gone")
        elif now[path] != content:
            yield Change(f"test {path}", "test", None, content, now[path])


def _test_files(project: Project) -> dict[str, str]:
    """What the files of tests hold, by their paths; of one that cannot be read why. Nothing where
    their folder leads out of the project: that is said as a problem of the tests."""
    found = dict[str, str]()
    with suppress(Unusable):
        for file in case_files(project.spec):
            path = file.relative_to(project.root).as_posix()
            try:
                found[path] = read_text(file, path, project.root)
            except Unusable as error:
                found[path] = str(error.problem)
    return found


async def _workflow_diff(
    name: str, opened: Project | None, earlier: Project | None, *, plans: bool
) -> WorkflowDiff | None:
    """How one workflow differs; None: it does not."""
    if opened is None:
        return WorkflowDiff(name, "gone")
    checked, problems = check_workflow(opened, name, Overrides())
    (now, found), (before, wrong) = _defined(opened, name), _defined(earlier, name)
    problems = loader.in_order([*problems, *found])
    if earlier is not None and before is None:
        said = "; ".join(str(one) for one in wrong if one.severity == "error")
        said = f"the version before is not compared, as it has problems: {said}"
        problems.append(Problem(Where(name), said, "warning"))
    changes = []
    if now is not None and before is not None and earlier is not None:
        told = _with_settings(before, earlier.root), _with_settings(now, opened.root)
        # nothing is known of it
        if any(one.path == "input.path" and one.severity == "error" for one in problems):
            told[1]["input"] = told[0]["input"]
        changes = changes_of(*told)
        if (
            checked is not None
            and (was := check_workflow(earlier, name, Overrides())[0]) is not None
        ):
            changes += _row_changes(was, checked)
        if checked is not None:
            problems += _unfit_examples(
                checked.workflow, now, {one.stage for one in changes if one.fields}
            )
    if not (changes or any_error(problems) or earlier is None or before is None):
        return None
    report = None
    if plans and now is not None and checked is not None and not any_error(problems):
        async with open_for_reading(opened.store) as database:
            report = await planned(
                database, now, Scope(None, True), partial(checked.rows, now.selection)
            )
    return WorkflowDiff(name, "changed" if earlier else "new", changes, problems, report)


def _defined(opened: Project | None, name: str) -> tuple[Plan | None, list[Problem]]:
    """The plan of a workflow, as far as its files have no errors, and what is wrong; its rows are
    not looked at."""
    if opened is None:
        return None, []
    workflow, models, problems = defined(opened, name, Overrides())
    if (
        workflow is None
        or not workflow.whole
        or any(stage.name not in models for stage in workflow.calling)
    ):
        return None, problems
    try:
        plan = make_plan(
            workflow, models, opened.root, Selection(), None, untrusted=opened.untrusted
        )
    except UsageError as error:
        return None, [
            *problems,
            Problem(Where(workflow.file), f"{error.message}. {error.remedy or ''}".strip()),
        ]
    return plan, problems


def _row_changes(before: CheckedWorkflow, now: CheckedWorkflow) -> Iterator[Change]:
    """How many rows differ, by their ids, where the two versions have inputs of their own."""
    a, b = (one.workflow.input.path for one in (before, now))
    if a == b or (a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)):
        return
    was, rows = (
        {row.id: hash(json.dumps(row.data, sort_keys=True)) for row in it.rows(Selection())}
        for it in (before, now)
    )
    different = sum(was.get(one, data) != data for one, data in rows.items())
    counts = {"new": len(rows.keys() - was), "gone": len(was.keys() - rows), "different": different}
    said = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)
    if said:
        yield Change(
            f"rows of {now.workflow.input.shown}: {said}", "rows", None, len(was), len(rows)
        )


def _unfit_examples(
    workflow: Workflow, plan: Plan, changed: Container[str | None]
) -> Iterator[Problem]:
    """Answers in examples before prompts that do not fit the schemas that were `changed`: models
    copy them."""
    for written, stage in zip(workflow.asking, plan.asking, strict=True):
        if stage.schema is None or stage.name not in changed:
            continue
        for one in (
            one
            for one in stage.examples
            if one.role == "assistant" and not one.content.placeholders
        ):
            with suppress(ValueError):  # it is no JSON
                answer = json.loads(one.content.render({}))
                body = stage.schema.body
                validator = compiled(body)
                if not validator.is_valid(answer):
                    errors = some_errors(validator, schema_cost(body), answer, 1)
                    reason = errors[0].message if errors else TOO_MANY
                    said = f"the answer of an example does not fit the schema any more: {reason}"
                    yield Problem(replace(written.at("messages"), path=one.path), said)


def _with_settings(plan: Plan, root: Path) -> dict[str, Any]:
    """A definition with what says beside it how answers are got: run modes, fallbacks, bounds."""
    written = run_settings(plan, root)
    stages = list[dict[str, Any]]()
    for body, own in zip(plan.body["stages"], written["stages"], strict=True):
        fallback = [f"{one['provider']}/{one['model']}" for one in own.pop("models", ())[1:]]
        told = {
            key: value
            for key, value in own.items()
            if key not in ("schema", "python_schema", "children")
        }
        stages.append({"fallback": fallback or None, **told, **body})
    return {**plan.body, "rules": written["rules"], "output": written["output"], "stages": stages}
