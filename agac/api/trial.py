"""`agac try`: a changed stage over a sample of rows, beside the stored answers of the version
before. A trial is a run of a selection that asks this stage alone and writes no files; later runs
reuse its answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from agac.api.plan import Confirm, ask, confirm_store, planned
from agac.api.project import CheckedWorkflow, Project, RunOptions, made_ready, project_of
from agac.api.report import RowCount, Watch
from agac.api.run import ready_work, walk_through
from agac.api.run_compare import ComparedStage, RunComparison, side_of
from agac.api.status import given_flags
from agac.api.sync import calling, interruptible
from agac.core.errors import ExitCode, SpecError, UsageError, Where
from agac.core.keys import canonical
from agac.core.statistics import Interval, proportion
from agac.core.types import Report, Row, RowId, counted, dollars
from agac.engine.estimate import PlanReport, summed
from agac.engine.invocation import Scope
from agac.engine.run import Invocation
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.stage import PlannedStage
from agac.spec.graph import homes
from agac.spec.paths import Unusable
from agac.spec.templates import PlacedText, placed_file
from agac.spec.workflow import Budget, StageChange, Workflow
from agac.store import runs
from agac.store.db import Database, slices
from agac.store.rows import export_rows, results_of_rows, rows_by_id
from agac.store.writer import open_database

FIRST_ROWS = 30
"""Rows that are tried where nobody says how many, and in the first round of a trial that goes on
until it is sure."""


@dataclass(frozen=True, slots=True)
class StageTrial(Report):
    """A stage that was `tried` for so many of the `rows` with a stored answer of another version.
    To `failed` of them no answer came; the `comparison` is of those that have both, `altered` the
    share of these whose answer is another one. To ask the `rest` of the rows would cost
    `rest_usd`. None: not known. `stopped`: why it ended early."""

    workflow: str
    stage: str
    rows: int
    tried: int
    failed: int
    altered: Interval | None
    comparison: RunComparison
    rest: int
    rest_usd: float | None
    simulated: bool
    stopped: str | None
    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class SampledVersion:
    """A version of a workflow, with what the `options` change, of which the stages of the `scope`
    are asked, by calls, for chosen rows of the input: as many as the sample of the options. No
    files are written of its run."""

    opened: Project
    checked: CheckedWorkflow
    options: RunOptions
    scope: Scope

    @staticmethod
    async def ready(
        workflow: Path | str, options: RunOptions, project: Path | str | None
    ) -> SampledVersion:
        """The version, checked, with the stages that the options name. Raises SpecError,
        UsageError."""
        options = replace(options, run_mode="sync")
        opened, checked, options = await made_ready(
            project_of(workflow, project), workflow, options
        )
        missing = missing_variables(checked.models, checked.workflow)
        if missing:
            raise SpecError(missing)
        return SampledVersion(
            opened, checked, options, options.scope([one.name for one in checked.workflow.stages])
        )

    @property
    def plan(self) -> Plan:
        """What is asked, as far as it is known before providers are reached."""
        return make_plan(
            self.checked.workflow,
            self.checked.models,
            self.opened.root,
            self.options.selection(),
            None,
        )

    def stage(self, name: str) -> PlannedStage:
        """A stage that asks a model."""
        return next(one for one in self.plan.asking if one.name == name)

    def rows(self, chosen: Collection[RowId]) -> Callable[[], Iterator[Row]]:
        """The rows of the input with these ids."""
        some = frozenset(chosen)
        return lambda: (row for row in self.checked.rows(Selection()) if row.id in some)

    async def forecast(self, database: Database, chosen: Collection[RowId]) -> PlanReport:
        """What asking these rows would take."""
        return await planned(database, self.plan, self.scope, self.rows(chosen))

    async def ask(
        self,
        database: Database,
        chosen: Collection[RowId],
        given: Mapping[str, Any],
        progress: Watch | bool,
        *,
        signals: bool,
    ) -> Invocation:
        """Asks these rows, in an invocation of which `given` is noted: what it takes to type it
        again."""
        async with AsyncExitStack() as stack:
            work = await ready_work(stack, database, self.opened, self.checked, self.options, None)
            work = replace(work, scope=self.scope, rows=self.rows(chosen))
            invocation = Invocation(
                given={"trial": dict(given)}, accepted=await confirm_store(database, work)
            )
            count = partial(RowCount, len(chosen), exact=True)
            with interruptible(invocation.stop_signal, signals=signals):
                await walk_through(
                    database, work, invocation, list(self.checked.warnings), progress, count
                )
            return invocation


def confirm_price(
    confirm: Confirm | None, plans: Sequence[PlanReport], what: str, rows: int, bound: str = ""
) -> None:
    """Tells what is expected, and raises UsageError unless somebody says yes; says nothing where
    no call is made."""
    calls = sum(one.calls for one in plans)
    if not calls:
        return
    cost = summed(one.usd for one in plans)
    stages = [stage for one in plans for stage in one.stages if stage.run]
    simulated = any(one.simulated for one in stages)
    if cost is None:
        words = "price not known"
    else:
        words = dollars(cost, None, simulated=simulated, about="~")
    said = f"{what} takes {bound}{counted(calls, 'call')} for {counted(rows, 'row')}, {words}"
    ask(
        confirm,
        "no calls were made",
        said,
        "Continue?",
        "Add --yes to continue, or try fewer rows with --sample.",
    )


@calling
async def trial(
    workflow: Path | str,
    stage: str,
    *,
    prompt: Path | str | None = None,
    model: str | None = None,
    tool_stubs: str | None = None,
    sample: int | None = None,
    within: float | None = None,
    seed: int = 0,
    budget: Budget | float | None = None,
    limit: int = 20,
    yes: bool = False,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> StageTrial:
    """Asks the stage as it is in the files, or with the prompt of a file or another model, for
    `sample` rows (default 30) that have a stored answer of another version, and compares the
    answers. With `within` (0.01: one percent of the rows) more are asked, round by round, until
    the share of rows with another answer is known so closely, or `sample` rows or the budget are
    used up. `tool_stubs` is a file with stand-ins for tools. The report has the first `limit`
    changed rows. Tells the price and asks before the first call, unless `yes`. Raises UsageError,
    SpecError."""
    if within is not None and not 0 < within < 1:
        raise UsageError(f"--within {within:.4%}: give a share of the rows, such as 1%")
    change = StageChange(stage, model, None if prompt is None else _text(Path(prompt)))
    how: dict[str, Any] = {"budget": budget, "yes": yes, "change": change, "tool_stubs": tool_stubs}
    options = RunOptions(stage=stage, sample=sample or FIRST_ROWS, seed=seed, **how)
    version = await SampledVersion.ready(workflow, options, project)
    refuse_unfit(version.checked.workflow, stage)
    async with open_database(version.opened.store) as database:
        run, position, keys = await _version_before(database, version.plan, stage)
        most = min(sample or (len(keys) if within else FIRST_ROWS), len(keys))
        version = replace(version, options=replace(version.options, sample=most))
        first = await side_of(database, run, stage)
        stages = (position, version.stage(stage).index)
        ids = sorted(keys, key=str)
        Random(seed).shuffle(ids)  # noqa: S311 - chance, not secrecy
        if not yes:
            forecast = await version.forecast(database, ids[:most])
            confirm_price(
                confirm, [forecast], f"trying {stage}", most, "at most " if within else ""
            )
        told = {
            "stage": stage,
            "prompt": prompt and str(prompt),
            "model": model,
            "within": within and f"{within:.4%}",
        }
        told |= {"tool_stubs": tool_stubs} if tool_stubs else {}
        given = {**told, "sample": most, "seed": seed}
        size = min(FIRST_ROWS, most) if within else most
        while True:
            invocation = await version.ask(
                database, ids[:size], given, progress, signals=handle_signals
            )
            second = await side_of(database, invocation.run, stage)
            compared = RunComparison(first, second, None, [ComparedStage(stage, stage, stages)])
            await _compare(database, compared, {one: keys[one] for one in ids[:size]}, limit)
            both = compared.rows["both"]
            other = compared.rows["changed"]
            altered = proportion(other, both, of=len(ids)) if both else None
            sure = within is None or (altered is not None and altered.reach <= within)
            if sure or size == most or not invocation.ended:
                break
            size = min(
                most,
                2 * size,
                _enough(altered.middle if altered else 0.5, size, len(ids), within or 1),
            )
        plan = await version.forecast(database, ids)
        rest = next(one for one in plan.stages if one.name == stage)
        code = invocation.exit_code
        failed = compared.second["failed"]
        return StageTrial(
            plan.workflow,
            stage,
            len(ids),
            size,
            failed,
            altered,
            compared,
            rest.run,
            rest.estimate.usd,
            rest.simulated,
            invocation.stop_signal.why or None,
            ExitCode.ROWS_FAILED if code is ExitCode.DONE and failed else code,
        )


def _text(file: Path) -> PlacedText:
    try:
        return placed_file(file, str(file), Where("--prompt"), None)
    except Unusable as error:
        raise SpecError([error.problem]) from None


def refuse_unfit(workflow: Workflow, stage: str) -> None:
    """Raises UsageError for a stage of which there is nothing to compare row by row."""
    if stage not in [one.name for one in workflow.asking]:
        raise UsageError(
            f"--stage {stage}: it asks no model", remedy="Name a stage that has a prompt."
        )
    maker = homes(workflow.stages)[stage]
    if maker is not None:
        what = (
            f"--stage {stage}: it answers rows that the stage {maker} makes, and only rows "
            "of the input are compared"
        )
        raise UsageError(what, remedy="Change the file, and run a sample (`agac run --sample 30`).")


async def _version_before(
    database: Database, plan: Plan, stage: str
) -> tuple[int, int, dict[RowId, int]]:
    """The newest run of another version with answers of the stage that is no trial, those over all
    rows first; the stage's position in it, and the keys of the rows that have an answer, by id."""
    found = list[tuple[bool, int, int]]()
    now = canonical(plan.body)
    for number in await runs.run_ids(database, plan.workflow):
        record = await runs.run_record(database, number)
        definition = await runs.definition_of(database, number)
        names = [one["name"] for one in definition["stages"]]
        if stage in names and "trial" not in given_flags(record) and canonical(definition) != now:
            found.append((Selection(**record.selection).partial, number, names.index(stage)))
    for _, number, position in sorted(found, key=lambda one: one[0]):
        answered = await _answered(database, number, position)
        if answered:
            return number, position, answered
    what = f"{plan.workflow} has no stored answers of another version of the stage {stage}"
    remedy = (
        f"Run it (agac run -a {plan.workflow}), then change its file, or name --prompt or --model."
    )
    raise UsageError(what, remedy=remedy)


async def _answered(database: Database, run: int, position: int) -> dict[RowId, int]:
    """The keys of the rows of the input that have an answer of the stage, by id."""
    found: dict[RowId, int] = {}
    async for page in export_rows(database, run):
        results = await results_of_rows(database, [row.key for row in page])
        there = {
            key
            for (key, stage), one in results.items()
            if stage == position and one.value is not None
        }
        found |= {row.id: row.key for row in page if row.key in there}
    return found


async def _compare(
    database: Database, report: RunComparison, keys: Mapping[RowId, int], limit: int
) -> None:
    """Adds the rows with these ids, of which the keys in the first run are given, that have an
    answer in both."""
    (stage,) = report.stages
    for ids in slices(list(keys)):
        rows = await rows_by_id(database, report.second["run"], ids)
        pairs = [
            (one, keys[one], min(same, key=lambda row: row.occurrence).key)
            for one, same in rows.items()
        ]
        results = await results_of_rows(database, [key for _, *both in pairs for key in both])
        for pair in pairs:
            now = results.get((pair[2], stage.positions[1]))
            if now is not None and now.value is not None:
                report.add(pair, results, limit)


def _enough(share: float, size: int, of: int, within: float) -> int:
    """How many rows, more than there were, make the share so sure, if it stays what it is."""
    return bisect_left(
        range(of),
        True,
        lo=size + 1,
        key=lambda n: proportion(round(share * n), n, of=of).reach <= within,
    )
