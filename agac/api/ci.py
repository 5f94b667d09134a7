"""`agac ci`: looks at a change, and says which workflows run after a merge."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from glob import escape
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.batch_control import adopt_all, loses_disk
from agac.api.bugs import bug_problem
from agac.api.ci_events import Event
from agac.api.diff import WorkflowDiff, differences
from agac.api.findings import Findings, PlanFigures, WorkflowFindings
from agac.api.plan import plan_in
from agac.api.project import Project, open_project
from agac.api.run_options import RunOptions
from agac.api.share import pull_in
from agac.api.style import lint_in
from agac.api.sync import blocking, calling
from agac.api.versions import Version, project_at, refuse_empty, version_of
from agac.api.workflow_tests import CaseResult, run_cases
from agac.core.errors import (
    AgacError,
    Problem,
    SpecError,
    UsageError,
    Where,
    any_error,
)
from agac.plan.changes import Change
from agac.spec import loader
from agac.spec.git import Repository
from agac.spec.lint import LintFinding
from agac.spec.paths import STORE, Unusable, project_root
from agac.spec.project import Overrides
from agac.spec.project_files import MAX_RECORDED, files_in, read_bytes
from agac.spec.python_code import FunctionRef
from agac.spec.test_files import FOLDER, WorkflowCase, case_files, find_cases
from agac.spec.workflow import PythonSchema
from agac.store.batches import batches
from agac.store.db import open_for_reading
from agac.store.runs import superseded_by

_log = logging.getLogger("agac.ci")

_FOREIGN = (
    "From another repository: no Python of it is imported, no variable is looked up, no "
    "answer is pulled."
)


@calling
async def check_change(
    event: Event,
    *,
    against: str | None = None,
    untrusted: bool = False,
    project: Path | str | None = None,
) -> Findings:
    """What a change does to the project's workflows: of those that differ from the version
    `against`, or from the last commit shared with the event's base, the changes, plans of both
    versions and tests. Nothing is asked; answers are pulled. Of a change from elsewhere, or
    `untrusted`, no Python is imported and no variable is looked up. Raises UsageError where there
    is no project, or no version to compare with."""
    untrusted = untrusted or event.foreign
    try:
        opened = open_project(project, untrusted=untrusted)
    except SpecError as error:
        place = _place(project_root(project))
        return Findings(
            project=place, head=event.head, untrusted=untrusted, problems=error.problems
        )
    version = _version_before(opened, event, against)
    try:
        found = await _found(opened, event, version)
    except Exception as error:  # noqa: BLE001 - findings are written whatever a file does
        found = failed_findings(
            event, error, untrusted=untrusted, project=opened.state, where=version.ref
        )
    return Findings.model_validate(_cleaned(found.model_dump(mode="json"), opened.redactor().clean))


def failed_findings(
    event: Event, error: Exception, *, untrusted: bool = False, project: Path | str | None = None,
    where: str = "agac ci",
) -> Findings:  # fmt: skip
    """The findings of a change that could not be looked at, so that another job has something to
    say. `where` stands before what was wrong."""
    try:
        place = _place(project_root(project))
    except UsageError:  # there is no project
        place = "."
    if isinstance(error, AgacError):
        problem = Problem(Where(where), _in_words(error))
    else:
        problem = bug_problem(error, where)
    return Findings(
        project=place, head=event.head, untrusted=untrusted or event.foreign, problems=[problem]
    )


async def _found(opened: Project, event: Event, version: Version) -> Findings:
    """What the change does, beside a version before."""
    wrong, variables = _kept_in_git(opened, version)
    if wrong:
        return Findings(
            project=_place(opened.state),
            head=event.head,
            against=version,
            untrusted=opened.untrusted,
            problems=wrong,
        )
    with ExitStack() as stack:
        notes = [_FOREIGN] if opened.untrusted else list[str]()
        earlier = None
        try:
            earlier = stack.enter_context(project_at(version.ref, opened))
        except UsageError as error:
            notes.append(
                f"There is no version to compare with, so that all is new: {_in_words(error)}"
            )
        change = _Change(opened, earlier, notes)
        report = await differences(
            opened, earlier, version, _looked_at(opened, earlier), plans=False
        )
        whole = not any_error(report.problems)
        if whole:
            sound = [one.workflow for one in report.workflows if one.sound]
        else:
            sound = []
        await change.pull(sound)
        if sound and not opened.store.exists():
            notes.append("No earlier answers are known here, so that all rows count as to be run.")
        workflows = [
            await change.planned(one, plans=one.workflow in sound) for one in report.workflows
        ]
        tests, wrong = await change.tested(sound) if whole else ([], [])
        return Findings(
            project=_place(opened.state),
            head=event.head,
            against=version,
            untrusted=opened.untrusted,
            workflows=workflows,
            problems=[*report.problems, *wrong],
            lint=change.linted(sound),
            tests=tests,
            notes=notes,
            max_usd=(earlier or opened).spec.file.ci.max_usd,
            beside=[*report.beside, *variables],
        )


def _looked_at(opened: Project, earlier: Project | None) -> list[str]:
    """The workflows that either version says: a change takes none away from its own review. Empty:
    all."""
    named = [one.spec.file.ci.workflows for one in (opened, earlier) if one is not None]
    if all(named):
        return list(dict.fromkeys(name for names in named for name in names))
    return []


_STATE_IN_GIT = (
    "the change brings files into the folder in which agac keeps its answers, and plans would "
    "count them; remove them (`git rm -r --cached {0}`), and name the folder in .gitignore"
)


def _kept_in_git(opened: Project, version: Version) -> tuple[list[Problem], list[Change]]:
    """What the change brings into agac's folder, and how its environment file differs, of which no
    value is told."""
    try:
        repository = Repository.of(opened.state, os.environ)
    except UsageError:  # there is none: another folder is compared with
        return [], []
    before = repository.at_top(version.commit) if version.commit else {}
    now = repository.at_top("HEAD")
    problems = list[Problem]()
    changes = list[Change]()
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) == now.get(name):
            continue
        if name.casefold() == STORE.parts[0] and name in now:
            problems.append(Problem(Where(name), _STATE_IN_GIT.format(name)))
        if name.casefold() == ".env":
            how = "changed"
            if name not in now:
                how = "gone"
            elif name not in before:
                how = "new"
            changes.append(Change(f"{name}, with variables for all commands, is {how}", "gone"))
    return problems, changes


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """JSON with its texts cleaned; a number stays one, whatever digits a secret has."""
    if isinstance(value, dict):
        return {clean(key): _cleaned(one, clean) for key, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one, clean) for one in value]
    return clean(value) if isinstance(value, str) else value


def _place(root: Path) -> str:
    """The project's folder in its repository, by which its comment is found again."""
    try:
        return Repository.of(root, os.environ).prefix.rstrip("/") or "."
    except UsageError:  # there is none: another folder is compared with
        return "."


def _version_before(opened: Project, event: Event, against: str | None) -> Version:
    if against is not None or event.base is None:
        return version_of(against, opened)
    refuse_empty(event.base)
    repository = Repository.of(opened.state, os.environ)
    base = repository.merged_into(event.head) or repository.commit(event.base)
    commit = repository.merge_base(base, event.base)
    return Version(
        commit, commit, repository.made_at(commit), event.into, repository.behind(commit, base)
    )


def _in_words(error: AgacError) -> str:
    problems = error.problems[:1] if isinstance(error, SpecError) else []
    return " ".join(filter(None, [f"{error.message}.", *map(str, problems), error.remedy]))


_MOST_IGNORED = 5
"""Findings that comments ignore, of which a note says the place."""


def _new(now: Sequence[LintFinding], before: Sequence[LintFinding]) -> list[LintFinding]:
    """The findings that were not there before: a file may have several that are told in the same
    words."""
    same = attrgetter("rule", "where.file", "where.path", "message")
    known = Counter(map(same, before))
    new = list[LintFinding]()
    for one in now:
        known[same(one)] -= 1
        new += [one] if known[same(one)] < 0 else []
    return new


class _Change(NamedTuple):
    """Two versions of a project, and what is to be said beside what is found in them."""

    now: Project
    before: Project | None
    notes: list[str]

    def had(self, names: Sequence[str]) -> list[str]:
        """Those that the version before has."""
        known = loader.workflow_names(self.before.spec) if self.before else []
        return [one for one in names if one in known]

    async def pull(self, names: Sequence[str]) -> None:
        """Takes the answers of both versions out of the remote, so that plans know them."""
        rules = self.now.spec.file.remote
        if self.now.untrusted or not names or not (rules.url or self.now.env.get("AGAC_REMOTE")):
            return
        try:
            await pull_in(self.now, names)
            # from where the present version says
            if self.before is not None and (had := self.had(names)):
                file = self.before.spec.file.model_copy(update={"remote": rules})
                await pull_in(replace(self.before, spec=replace(self.before.spec, file=file)), had)
        except AgacError as error:
            self.notes.append(f"Answers in the remote are not counted: {_in_words(error)}")

    async def planned(self, found: WorkflowDiff, *, plans: bool) -> WorkflowFindings:
        """The workflow with its plan, beside what the version before would cost."""
        plan = None
        more = None
        problems = list(found.problems)
        try:
            if plans:
                plan = await plan_in(self.now, found.workflow, RunOptions(), keys=False)
            else:
                plan = None
            more = plan.usd if plan else None
            if more is not None and self.before is not None and self.had([found.workflow]):
                before = (await plan_in(self.before, found.workflow, RunOptions())).usd
                more = None if before is None else more - before
        except AgacError as error:
            which = "the version before" if plan else "a run"
            message = f"what {which} would cost is not known: {_in_words(error)}"
            problems.append(Problem(Where(found.workflow), message, "warning"))
        except Exception as error:  # noqa: BLE001 - a bug that one workflow meets is said of it, the others are planned
            problems.append(bug_problem(error, found.workflow))
        problems += plan.warnings if plan else []
        return WorkflowFindings(
            workflow=found.workflow,
            how=found.how,
            changes=list(found.changes),
            problems=list(dict.fromkeys(problems)),
            plan=PlanFigures.model_validate(plan.as_json()) if plan else None,
            usd_more=more,
        )

    def linted(self, names: Sequence[str]) -> list[LintFinding]:
        """What lint finds in these workflows and in agac.yml, and not in the version before. A
        note says what comments of the change tell it to ignore."""
        if not names:
            return []
        now = lint_in(self.now, names)
        before = None
        if self.before and (now.findings or now.ignored):
            before = lint_in(self.before, self.had(names))
        ignored = _new(now.ignored, before.ignored if before else [])
        if ignored:
            first = ", ".join(
                f"{one.rule} ({one.where.file}:{one.where.line})" for one in ignored[:_MOST_IGNORED]
            )
            if len(ignored) > _MOST_IGNORED:
                more = f" and {len(ignored) - _MOST_IGNORED} more"
            else:
                more = ""
            self.notes.append(
                f"Comments of the change tell lint to ignore what it finds: {first}{more}."
            )
        return _new(now.findings, before.findings if before else [])

    async def tested(self, names: Sequence[str]) -> tuple[list[CaseResult], list[Problem]]:
        """The tests of these workflows, and those that changed themselves; what is wrong with
        files of tests."""
        try:
            if not case_files(self.now.spec):
                return [], []
        except Unusable as error:
            return [], [error.problem]
        cases, problems = find_cases(self.now.spec)
        cases = [one for one in cases if one.workflow in names or self._is_new(one)]
        left = [one for one in cases if self.now.untrusted and self._is_foreign(one)]
        if left:
            tests = ", ".join(one.path.stem for one in left)
            self.notes.append(f"Tests that import its Python or call tools were not run: {tests}.")
        found = await run_cases(self.now, [one for one in cases if one not in left])
        return [
            replace(one, failures=[replace(it, prompt=None) for it in one.failures])
            for one in found
        ], problems

    def _is_new(self, case: WorkflowCase) -> bool:
        """Whether the version before has not the same test, recorded replies and stored results."""
        names = f"{escape(case.path.stem)}[._]*"
        found = [_contents(one.root, names) for one in (self.now, self.before) if one]
        return found[1:] != found[:1]

    def _is_foreign(self, case: WorkflowCase) -> bool:
        """Whether the test would import Python of the project, or start what its tools name."""
        workflow, _ = loader.load_workflow(self.now.spec, case.workflow, Overrides())
        return case.body.tools_mode == "live" or _imports_python(workflow)


def _contents(root: Path, pattern: str) -> dict[Path, bytes | str]:
    """What files beside the tests hold, by their path in the project; of one that cannot be read,
    why."""
    found = dict[Path, bytes | str]()
    for file in files_in(root / FOLDER, root, f"**/{pattern}"):
        if not file.is_dir():
            try:
                found[file.relative_to(root)] = read_bytes(file, file.name, root, most=MAX_RECORDED)
            except Unusable as error:
                found[file.relative_to(root)] = str(error.problem)
    return found


def _imports_python(value: Any) -> bool:
    """Whether a workflow, or a part of it, names Python of the project, which a run imports."""
    parts: Iterable[Any]
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = ()
    if is_dataclass(value):
        parts = [getattr(value, one.name) for one in fields(value)]
    return isinstance(value, FunctionRef | PythonSchema) or any(map(_imports_python, parts))


# After a merge, and on a schedule.


@blocking
async def workflows_to_run(event: Event, *, project: Path | str | None = None) -> list[str]:
    """The workflows that changed since the event's base or have rows to run, once answers were
    pulled. Raises UsageError where what a job of CI pays for would be lost with its machine, and
    for a base that is empty."""
    refuse_empty(event.base)
    opened = open_project(project, sound=True)
    changed = set[str]()
    notes = list[str]()
    names = opened.spec.file.ci.workflows or loader.workflow_names(opened.spec)
    try:
        version = version_of(event.base, opened)
        with project_at(version.ref, opened) as earlier:
            report = await differences(opened, earlier, version, names, plans=False)
            changed = {one.workflow for one in report.workflows}
    except UsageError as error:  # a first push, or no repository
        notes.append(f"Which files changed is not known: {_in_words(error)}")
    await _Change(opened, None, notes).pull(names)
    for name in names:
        try:
            stages = (await plan_in(opened, name, RunOptions())).stages
        except AgacError:
            changed.add(name)  # its run says it
            continue
        changed |= (
            {name} if any(one.run or one.blocked or one.in_flight for one in stages) else set()
        )
        remote = opened.spec.file.remote.url or opened.env.get("AGAC_REMOTE")
        paid = any(one.run and one.run_mode and not one.simulated for one in stages)
        if paid and not remote and loses_disk(opened.env):
            remedy = (
                "Name a remote in agac.yml, or set AGAC_KEEPS_DISK=1 where .agac is kept "
                "from job to job."
            )
            raise UsageError(
                "the answers that this job pays for would be lost with its machine", remedy=remedy
            )
    for note in notes:
        _log.warning("%s", note)
    return [name for name in names if name in changed]


@blocking
async def open_runs(*, project: Path | str | None = None) -> dict[int, tuple[str, bool]]:
    """The runs with open batches, oldest first: the workflow of each, and whether it may go on: it
    is the newest."""
    opened = open_project(project, sound=True)
    await adopt_all(opened)
    async with open_for_reading(opened.store) as database:
        found = await batches(database) if database else []
        if database:
            newer = {one.run_id: await superseded_by(database, one.run_id) for one in found}
        else:
            newer = {}
    return {
        one.run_id: (one.workflow, newer[one.run_id] is None)
        for one in sorted(found, key=lambda one: one.run_id)
    }
