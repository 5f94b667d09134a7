"""What a change of a project's files does: `agac diff`, and `agac plan --against`, which plans both versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.plan import plan_in, planned
from agac.api.project import Project, RunOptions, check_workflow, defined, open_project, project_of
from agac.api.status import workflow_name
from agac.api.sync import blocking
from agac.api.versions import Version, project_at, version_of
from agac.core.errors import Problem, SpecError, UsageError, Where, any_error
from agac.core.types import Report, Usd
from agac.data.frames import GivenRows
from agac.engine.estimate import PlanReport, StageForecast, summed
from agac.engine.invocation import Scope
from agac.plan.changes import Change, changes_of, setting_changes
from agac.plan.plan import Plan, Selection, make_plan
from agac.spec import loader
from agac.spec.workflow import Overrides
from agac.store.db import open_for_reading


@dataclass(frozen=True, slots=True)
class PlanComparison(Report):
    """The plans of two versions of a workflow, beside the same store. `before` None: it was not there."""

    JSON_KEYS = ("workflow=now.workflow", "against", "before", "now", "difference")

    against: Version
    before: PlanReport | None
    now: PlanReport

    @property
    def difference(self) -> dict[str, float | None]:
        """What the present version takes more, negative where that is less; `usd` None: a price is not known."""
        now, before = totals(self.now), totals(self.before)
        unknown = now["usd"] is None or before["usd"] is None
        found = {key: (value or 0) - (before[key] or 0) for key, value in now.items()}
        return {**found, "usd": None if unknown else round(found["usd"], 6)}


def totals(plan: PlanReport | None) -> dict[str, Any]:
    """What a plan comes to: rows of the input, tasks of models, calls, tokens, dollars; of none nothing."""
    if plan is None:
        return dict.fromkeys(("rows", "reuse", "run", "calls", "input_tokens", "output_tokens", "usd"), 0)
    asking = [stage for stage in plan.stages if stage.stage.asks]
    return {
        "rows": plan.rows["total"], "reuse": sum(one.reuse for one in asking), "run": sum(one.run for one in asking),
        "calls": plan.calls, "input_tokens": plan.input_tokens, "output_tokens": plan.output_tokens, "usd": plan.usd,
    }  # fmt: skip


@blocking
async def plan_against(
    ref: str,
    workflow: str,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,  # noqa: A002 - the option's name
    show: int = 0,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> PlanComparison:
    """`plan` of the files that there are, and of those at `ref`, which is a commit, a branch, a tag or a folder. Raises
    UsageError, SpecError."""
    opened, options = project_of(workflow, project, untrusted=untrusted), options or RunOptions()
    options = replace(options, input=options.input if input is None else input)
    now, before = await plan_in(opened, workflow, options, show=show), None
    try:
        with project_at(ref, opened) as earlier:
            if now.workflow in loader.workflow_names(earlier.spec):
                before = await plan_in(earlier, now.workflow, options)
    except SpecError as error:
        problems = [replace(one, where=replace(one.where, file=f"{ref}:{one.where.file}")) for one in error.problems]
        raise SpecError(problems) from None
    return PlanComparison(version_of(ref, opened), before, now)


@dataclass(frozen=True, slots=True)
class StageCount(Report):
    """Of a stage, or of all: how many stored results stay `valid`, and how many tasks would run, at least and at most;
    `most` None: nobody knows yet how many rows come to it. `usd` is what they are expected to cost, None: unknown."""

    stage: str
    valid: int
    least: int
    most: int | None
    usd: Usd | None

    @property
    def exact(self) -> bool:
        """Whether just so many would run."""
        return self.least == self.most

    def __str__(self) -> str:
        if self.exact:
            return f"{self.least:,}"
        return f"at least {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"

    @staticmethod
    def of(found: StageForecast) -> StageCount:
        """What the dry run counted."""
        most = found.run - found.collapsed if found.exact else None
        return StageCount(found.name, found.reuse, max(found.sure - found.collapsed, 0), most, found.estimate.usd)

    @staticmethod
    def sums(counts: Sequence[StageCount]) -> StageCount:
        """Of several."""
        most = [one.most for one in counts]
        bounds = sum(one.least for one in counts), None if None in most else sum(one or 0 for one in most)
        return StageCount("all", sum(one.valid for one in counts), *bounds, summed(one.usd for one in counts))


@dataclass(frozen=True, slots=True)
class WorkflowDiff(Report):
    """What became of a workflow (`how`: `new`, `gone`, `changed`), its `changes`, and the `problems` of the present
    version. Where that has no errors, `stages` that ask a model, and `all` of them, are counted by its `plan`."""

    JSON_KEYS = ("workflow", "how", "changes", "problems", "all", "stages")

    workflow: str
    how: str
    changes: Sequence[Change] = ()
    problems: Sequence[Problem] = ()
    plan: PlanReport | None = None

    @property
    def stages(self) -> list[StageCount]:
        """The stages that ask a model."""
        return [StageCount.of(one) for one in self.plan.stages if one.stage.asks] if self.plan else []

    @property
    def all(self) -> StageCount | None:
        """Their sums; None: nothing was counted."""
        return StageCount.sums(self.stages) if self.plan else None


@dataclass(frozen=True, slots=True)
class DiffReport(Report):
    """The workflows that differ from those of the version `against`, and the names of those that do not; `all` counts
    the tasks of those that can run."""

    JSON_KEYS = ("ok", "against", "all", "workflows", "unchanged", "problems")

    against: Version
    workflows: list[WorkflowDiff]
    unchanged: list[str]
    problems: list[Problem]

    @property
    def all(self) -> StageCount:
        """The sums of all stages."""
        return StageCount.sums([stage for one in self.workflows for stage in one.stages])

    @property
    def ok(self) -> bool:
        """Whether the present version can run, as far as it was looked at."""
        return not any_error([*self.problems, *(problem for one in self.workflows for problem in one.problems)])


@blocking
async def diff(
    ref: str | None = None,
    workflows: Sequence[str] = (),
    *,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> DiffReport:
    """How the project's workflows, or some of them, differ from those at `ref`: a commit, a branch, a tag or a folder;
    None: the last commit that is shared with main. What can be run is planned against the present store; nothing is
    asked or written. Raises UsageError, SpecError."""
    opened = open_project(project, untrusted=untrusted)
    version = version_of(ref, opened)
    found, unchanged = list[WorkflowDiff](), list[str]()
    with project_at(version.ref, opened) as earlier:
        now, before = (loader.workflow_names(one.spec) for one in (opened, earlier))
        names = [str(workflow_name(name)) for name in workflows] or sorted({*now, *before})
        for name in names:
            present = opened if name in now or name not in before else None
            one = await _workflow_diff(name, present, earlier if name in before else None)
            found += [one] if one else []
            unchanged += [] if one else [name]
        problems = [*opened.problems, *(one for one in earlier.problems if one.severity == "warning")]
    return DiffReport(version, found, unchanged, problems)


async def _workflow_diff(name: str, opened: Project | None, earlier: Project | None) -> WorkflowDiff | None:
    """How one workflow differs; None: it does not."""
    if opened is None:
        return WorkflowDiff(name, "gone")
    checked, problems = check_workflow(opened, name, Overrides())
    (now, found), (before, wrong) = _defined(opened, name), _defined(earlier, name)
    problems = loader.in_order([*problems, *found])
    if earlier is not None and before is None:
        said = "; ".join(str(one) for one in wrong if one.severity == "error")
        problems.append(
            Problem(Where(name), f"the version before is not compared, as it has problems: {said}", "warning")
        )
    changes = []
    if now is not None and before is not None and earlier is not None:
        settings = setting_changes(before, now, (earlier.root, opened.root))
        changes = [*changes_of(before.body, now.body), *settings]
    if not (changes or any_error(problems) or earlier is None or before is None):
        return None
    report = None
    if now is not None and checked is not None and not any_error(problems):
        async with open_for_reading(opened.store) as database:
            report = await planned(database, now, Scope(None, True), partial(checked.rows, now.selection))
    return WorkflowDiff(name, "changed" if earlier else "new", changes, problems, report)


def _defined(opened: Project | None, name: str) -> tuple[Plan | None, list[Problem]]:
    """The plan of a workflow, as far as its files have no errors, and what is wrong; its rows are not looked at."""
    if opened is None:
        return None, []
    workflow, models, problems = defined(opened, name, Overrides())
    if workflow is None or not workflow.whole or any(stage.name not in models for stage in workflow.calling):
        return None, problems
    try:
        plan = make_plan(workflow, models, opened.root, Selection(), None, untrusted=opened.untrusted)
    except UsageError as error:
        return None, [*problems, Problem(Where(workflow.file), f"{error.message}. {error.remedy or ''}".strip())]
    return plan, problems
