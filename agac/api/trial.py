"""`agac try`: a changed stage over a sample of rows, beside the stored answers of the version before. A trial is a run
of a selection that asks this stage alone and writes no files; what it is answered is reused by runs that ask the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from agac.api.plan import Confirm, ask, confirm_store, planned
from agac.api.project import RunOptions, made_ready, project_of
from agac.api.report import RowCount, Watch
from agac.api.run import ready_work, walk_through
from agac.api.run_compare import ComparedStage, RunComparison
from agac.api.sync import calling, interruptible
from agac.core.errors import ExitCode, SpecError, UsageError, Where
from agac.core.keys import canonical
from agac.core.statistics import Interval, proportion
from agac.core.types import Report, Row, RowId, counted, dollars, usd
from agac.engine.estimate import PlanReport
from agac.engine.run import Invocation
from agac.engine.telemetry import calls_of, summarise
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, Selection
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
"""Rows that are tried where nobody says how many, and in the first round of a trial that goes on until it is sure."""


@dataclass(frozen=True, slots=True)
class StageTrial(Report):
    """A stage that was `tried` for so many of the `rows` with a stored answer of another version. To `failed` of them
    no answer came; the `comparison` is of those that have both, `altered` the share of these whose answer is another
    one. To ask the `rest` of the rows would cost `rest_usd`. None: not known. `stopped`: why it ended early."""

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


@calling
async def trial(
    workflow: Path | str, stage: str, *, prompt: Path | str | None = None, model: str | None = None,
    sample: int | None = None, within: float | None = None, seed: int = 0, budget: Budget | float | None = None,
    limit: int = 20, yes: bool = False, project: Path | str | None = None, progress: Watch | bool = False,
    confirm: Confirm | None = None, handle_signals: bool = False,
) -> StageTrial:  # fmt: skip
    """Asks the stage as it is in the files, or with the prompt of a file or another model, for `sample` rows (default
    30) that have a stored answer of another version, and compares the answers. With `within` (0.01: one percent of the
    rows) more are asked, round by round, until the share of rows with another answer is known so closely, or `sample`
    rows or the budget are used up. The report has the first `limit` changed rows. Tells the price and asks before the
    first call, unless `yes`. Raises UsageError, SpecError."""
    if within is not None and not 0 < within < 1:
        raise UsageError(f"--within {within:.4%}: give a share of the rows, such as 1%")
    opened = project_of(workflow, project)
    change = StageChange(stage, model, None if prompt is None else _text(Path(prompt)))
    options = RunOptions(stage=stage, sample=sample or FIRST_ROWS, seed=seed, budget=budget, yes=yes, change=change)
    opened, checked, options = await made_ready(opened, workflow, options)
    scope = options.scope([one.name for one in checked.workflow.stages])
    _refuse(checked.workflow, stage)
    if missing := missing_variables(checked.models, checked.workflow):
        raise SpecError(missing)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(opened.store))
        work = await ready_work(stack, database, opened, checked, options, confirm)
        run, position, stored = await _version_before(database, work.plan, stage)
        first = await _side(database, run, stage)
        ids = sorted(stored, key=str)
        Random(seed).shuffle(ids)  # noqa: S311 - chance, not secrecy
        most = min(sample or (len(ids) if within else FIRST_ROWS), len(ids))
        stages = tuple(
            replace(one, run_mode="sync") if isinstance(one, PlannedStage) else one for one in work.plan.stages
        )
        plan = replace(work.plan, stages=stages, selection=Selection(sample=most, seed=seed))
        index = next(one.index for one in stages if one.name == stage)

        def rows(count: int) -> Callable[[], Iterator[Row]]:
            some = frozenset(ids[:count])
            return lambda: (row for row in checked.rows(Selection()) if row.id in some)

        work = replace(work, plan=plan, scope=scope, rows=rows(most))
        expected = await planned(database, plan, scope, work.rows)
        if expected.calls and not yes:
            _ask(expected, stage, most, within, confirm)
        accepted = await confirm_store(database, work)
        told = {"stage": stage, "prompt": prompt and str(prompt), "model": model, "within": within and f"{within:.4%}"}
        given = {key: value for key, value in told.items() if value} | {"sample": most, "seed": seed}
        size = min(FIRST_ROWS, most) if within else most
        while True:
            invocation = Invocation(given={"trial": given}, accepted=accepted)
            work, count = replace(work, rows=rows(size)), partial(RowCount, size, exact=True)
            with interruptible(invocation.stop_signal.interrupt, signals=handle_signals):
                await walk_through(database, work, invocation, list(checked.warnings), progress, count)
            compared = RunComparison(first, await _side(database, invocation.run, stage), None, [
                ComparedStage(stage, stage, (position, index))
            ])  # fmt: skip
            await _compare(database, compared, {one: stored[one] for one in ids[:size]}, limit)
            both, other = compared.rows["both"], compared.rows["changed"]
            altered = proportion(other, both, of=len(ids)) if both else None
            sure = within is None or (altered is not None and altered.reach <= within)
            if sure or size == most or not invocation.ended:
                break
            size = min(most, 2 * size, _enough(altered.middle if altered else 0.5, size, len(ids), within or 1))
        rest = (await planned(database, plan, scope, rows(len(ids)))).stages[index]
        code, failed = invocation.exit_code, compared.second["failed"]
        return StageTrial(
            plan.workflow, stage, len(ids), size, failed, altered, compared, rest.run, rest.estimate.usd,
            rest.simulated, invocation.stop_signal.why or None,
            ExitCode.ROWS_FAILED if code is ExitCode.DONE and failed else code,
        )  # fmt: skip


def _text(file: Path) -> PlacedText:
    try:
        return placed_file(file, str(file), Where("--prompt"))
    except Unusable as error:
        raise SpecError([error.problem]) from None


def _refuse(workflow: Workflow, stage: str) -> None:
    """Raises UsageError for a stage of which there is nothing to compare row by row."""
    if stage not in [one.name for one in workflow.asking]:
        raise UsageError(f"--stage {stage}: it asks no model", remedy="Name a stage that has a prompt.")
    if (maker := homes(workflow.stages)[stage]) is not None:
        what = f"--stage {stage}: it answers rows that the stage {maker} makes, and only rows of the input are tried"
        raise UsageError(what, remedy="Change the file, and run a sample (`agac run --sample 30`).")


async def _version_before(database: Database, plan: Plan, stage: str) -> tuple[int, int, dict[RowId, int]]:
    """The newest run of another version with answers of the stage that is no trial, those over all rows first; the
    stage's position in it, and the keys of the rows that have an answer, by id."""
    found, now = list[tuple[bool, int, int]](), canonical(plan.body)
    for number in await runs.run_ids(database, plan.workflow):
        record, definition = await runs.run_record(database, number), await runs.definition_of(database, number)
        names = [one["name"] for one in definition["stages"]]
        was_trial = record.invocation is not None and "trial" in record.invocation.body.get("given", {})
        if stage in names and not was_trial and canonical(definition) != now:
            found.append((Selection(**record.selection).partial, number, names.index(stage)))
    for _, number, position in sorted(found, key=lambda one: one[0]):
        if answered := await _answered(database, number, position):
            return number, position, answered
    what = f"{plan.workflow} has no stored answers of another version of the stage {stage}"
    remedy = f"Run it (agac run -a {plan.workflow}), then change its file, or name --prompt or --model."
    raise UsageError(what, remedy=remedy)


async def _answered(database: Database, run: int, position: int) -> dict[RowId, int]:
    """The keys of the rows of the input that have an answer of the stage, by id."""
    found: dict[RowId, int] = {}
    async for page in export_rows(database, run):
        results = await results_of_rows(database, [row.key for row in page])
        there = {key for (key, stage), one in results.items() if stage == position and one.value is not None}
        found |= {row.id: row.key for row in page if row.key in there}
    return found


def _ask(expected: PlanReport, stage: str, most: int, within: float | None, confirm: Confirm | None) -> None:
    """Tells the price, and raises UsageError unless somebody says yes."""
    simulated = any(one.simulated for one in expected.stages if one.run)
    cost = "price not known" if expected.usd is None else dollars(expected.usd, None, simulated=simulated, about="~")
    said = f"{counted(expected.calls, 'call')} for {counted(most, 'row')}, {cost}"
    said = f"trying {stage} takes {'at most ' if within else ''}{said}"
    ask(confirm, "no calls were made", said, "Continue?", "Add --yes to continue, or try fewer rows with --sample.")


async def _compare(database: Database, report: RunComparison, keys: Mapping[RowId, int], limit: int) -> None:
    """Adds the rows with these ids, of which the keys in the first run are given, that have an answer in both."""
    (stage,) = report.stages
    for ids in slices(list(keys)):
        rows = await rows_by_id(database, report.second["run"], ids)
        pairs = [(one, keys[one], min(same, key=lambda row: row.occurrence).key) for one, same in rows.items()]
        results = await results_of_rows(database, [key for _, *both in pairs for key in both])
        for pair in pairs:
            now = results.get((pair[2], stage.positions[1]))
            if now is not None and now.value is not None:
                report.add(pair, list(stage.changes(pair, results)), limit)


def _enough(share: float, size: int, of: int, within: float) -> int:
    """How many rows, more than there were, make the share so sure, if it stays what it is."""
    return bisect_left(
        range(of), True, lo=size + 1, key=lambda n: proportion(round(share * n), n, of=of).reach <= within
    )


async def _side(database: Database, run: int, stage: str) -> dict[str, Any]:
    """What the stage took in a run, in the form of a comparison of runs."""
    summary = await summarise(database, await runs.run_record(database, run))
    own = next(one for one in summary["stages"] if one["name"] == stage)
    calls = calls_of([one for one in await runs.counters(database, run) if one.stage == stage])
    asked, cost = own["done"] + own["failed"], calls["cost_usd"]
    thousand = usd(1000 * cost / asked) if cost is not None and asked else None
    return {
        **{name: summary[name] for name in ("run", "workflow", "complete")}, "model": own["model"], "calls": calls,
        "rows_asked": asked, "failed": own["failed"], "timing_ms": own["timing_ms"], "usd_per_1000_rows": thousand,
    }  # fmt: skip
