"""What a run would do and cost before any call: `agac plan`, and the confirmation above `confirm_above`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.inspect import meant_before
from agac.api.options import RunOptions
from agac.api.project import CheckedWorkflow, Project, count_rows, open_project, ready_workflow, selected_rows
from agac.api.report import RowCount
from agac.api.status import database_path
from agac.core.errors import AgacError, Problem, UsageError
from agac.core.report import Report, Usd, dollars
from agac.core.types import texts_of
from agac.engine.budget import Amount, RunBudgets
from agac.engine.budget import facts as budget_facts
from agac.engine.dry_run import DryRun, Rows
from agac.engine.estimate import LOCAL, CostEstimate, Cuts, cuts, estimate, history
from agac.engine.forecast import BaselineRun, Forecast, Reason, StageForecast
from agac.engine.invocation import Retry, Scope
from agac.plan.checks import missing_variables
from agac.plan.diff import OTHER_TEXT
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.workflow import RunMode
from agac.store import runs
from agac.store.batches import CLOSED, LaneTimes, batches_of_run, lane_times
from agac.store.db import Database, open_for_reading


@dataclass(frozen=True, slots=True)
class PlannedBatches(Report):
    """The batches of a stage: how many, of what size, in which `window` the provider ends them, and how long those of
    its lane took until now; None: none has ended yet."""

    cuts: Cuts
    window: str
    times: LaneTimes | None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        times = self.times
        return {
            "count": self.cuts.batches,
            "requests_at_most": self.cuts.requests,
            "completion_window": self.window,
            "ended_before": times.batches if times else 0,
            "p50_s": round(times.p50, 3) if times else None,
            "p95_s": round(times.p95, 3) if times else None,
        }


async def planned_batches(
    database: Database | None, stage: AnyStage, requests: int, characters: float | None
) -> PlannedBatches | None:
    """The batches that a stage will ask so many requests in; None for a stage that does not ask in batches."""
    if not isinstance(stage, PlannedStage) or stage.run_mode != "batch" or stage.provider.batch is None:
        return None
    times = None
    if database is not None:
        times = await lane_times(database, stage.provider.name, stage.provider.account, stage.model)
    window = stage.batch.completion_window or stage.provider.batch.windows[0]
    return PlannedBatches(cuts(stage, requests, characters), window, times)


HISTORY_RUNS = 5
"""Newest runs of a workflow from which its stages' history is taken."""


@dataclass(frozen=True, slots=True)
class PlannedTasks(Report):
    """One stage of a plan: how many of its tasks would be asked, reused, blocked, why, and what that takes.

    `aliases` are the short names of its models, as {written, means, meant}; `meant` is what the first one stood for in
    the run compared with, where that is something else. `batches` are those of a stage that is asked in batches.
    """

    JSON_KEYS = (
        "name=stage.name", "model=stage.lane", "run_mode", "aliases", "run=forecast.run", "reuse=forecast.reuse",
        "blocked=forecast.blocked", "skipped=forecast.skipped", "dropped=forecast.dropped",
        "undecided=forecast.undecided", "in_flight=forecast.in_flight", "reasons", "blocked_reasons",
        "collapsed=forecast.collapsed", "parts=forecast.parts", "exact=forecast.exact", "guess=forecast.guess",
        "estimate", "simulated", "batches",
    )  # fmt: skip

    stage: AnyStage
    forecast: StageForecast
    estimate: CostEstimate
    aliases: tuple[dict[str, str | None], ...] = ()
    batches: PlannedBatches | None = None

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """Why its tasks would be run: the most frequent reason first."""
        return _reasons(self.forecast.reasons)

    @property
    def blocked_reasons(self) -> list[dict[str, Any]]:
        """Why its blocked tasks are: the most frequent reason first."""
        return _reasons(self.forecast.blocked_reasons)

    @property
    def run_mode(self) -> RunMode | None:
        """How it is asked; None: it asks no model."""
        return self.stage.run_mode if isinstance(self.stage, PlannedStage) else None

    @property
    def simulated(self) -> bool:
        """Whether its calls cost nothing."""
        return isinstance(self.stage, PlannedStage) and self.stage.provider.simulated


def _reasons(reasons: Mapping[str, Reason]) -> list[dict[str, Any]]:
    ordered = sorted(reasons.items(), key=lambda item: -item[1].count)
    return [{"reason": name, "tasks": reason.count, "example": reason.example} for name, reason in ordered]


@dataclass(frozen=True, slots=True)
class PlanReport(Report):
    """What a run would do. `continues` is the run that it would go on with; `compared_with` the one compared with.

    `segments` are stages that a row walks through in one go, by name: it waits at one that is asked in batches.
    `budgets`: each with what this run has spent of it, and in `enough` whether what is expected fits. `confirm_above`
    in dollars, None: a run asks no question first.
    """

    JSON_KEYS = (
        "workflow", "continues", "compared_with", "rows", "segments", "stages", "exact", "calls", "input_tokens",
        "output_tokens", "usd", "usd_at_most", "budgets", "confirm_above", "wants_yes", "prompts",
    )  # fmt: skip

    workflow: str
    continues: int | None
    compared_with: int | None
    segments: list[list[str]]
    stages: list[PlannedTasks]
    forecast: Forecast
    warnings: list[Problem]
    budgets: list[dict[str, Any]] = field(default_factory=list)
    confirm_above: float | None = None

    @property
    def wants_yes(self) -> bool:
        """Whether the run would ask before its first call: it costs more than `confirm_above`, or nobody knows."""
        known = sum(stage.estimate.usd or 0.0 for stage in self.stages)
        return self.confirm_above is not None and (self.usd is None or known > self.confirm_above)

    @property
    def exact(self) -> bool:
        """Whether the number of tasks is known of all stages that ask; else it rests on a guess."""
        return all(stage.forecast.exact for stage in self.stages if stage.stage.asks and stage.forecast.run)

    @property
    def usd(self) -> Usd | None:
        """Expected dollars; None when a price is not known."""
        return _sum([stage.estimate.usd for stage in self.stages])

    @property
    def usd_at_most(self) -> Usd | None:
        """Dollars when every reply is as long as it may be and every re-ask is needed; None when nothing bounds it."""
        return _sum([stage.estimate.usd_at_most for stage in self.stages if stage.forecast.run])

    @property
    def calls(self) -> int:
        """Expected calls."""
        return sum(stage.estimate.calls for stage in self.stages)

    @property
    def input_tokens(self) -> int:
        """Expected tokens of all prompts."""
        return sum(stage.estimate.input_tokens for stage in self.stages)

    @property
    def output_tokens(self) -> int:
        """Expected tokens of all answers."""
        return sum(stage.estimate.output_tokens for stage in self.stages)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows the input has, and how many of them cannot be used or are left out."""
        found = self.forecast
        return {"total": found.rows, "unusable": found.unusable, "dropped": found.dropped}

    @property
    def prompts(self) -> list[dict[str, Any]]:
        """The rendered prompts that were requested."""
        return [
            {"row": one.row_id, "stage": one.stage, "messages": texts_of(one.request.messages)}
            for one in self.forecast.prompts
        ]


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def plan_run(
    workflow: str, options: RunOptions | None = None, *, show: int = 0, project: Path | str | None = None
) -> PlanReport:
    """What `run` with the same options would do. Writes nothing and asks nobody; keys need not be there.

    `show` rendered prompts are kept in the report.
    """
    return asyncio.run(_plan(open_project(project), workflow, options or RunOptions(), show))


async def _plan(opened: Project, workflow: str, options: RunOptions, show: int) -> PlanReport:
    checked, options = ready_workflow(opened, workflow, options)
    scope = options.scope([stage.name for stage in checked.workflow.stages])
    made = make_plan(checked.workflow, checked.models, opened.root, options.selection(), options.concurrency)
    missing = [
        Problem(problem.where, problem.message, problem.path, "warning")
        for problem in missing_variables(checked.models, checked.workflow)
    ]
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_for_reading(database_path(opened.root)))
        return await _report(checked, made, database, scope, options.fresh, show, [*checked.warnings, *missing])


async def _report(
    checked: CheckedWorkflow,
    made: Plan,
    database: Database | None,
    scope: Scope,
    fresh: bool,
    show: int,
    warnings: list[Problem],
) -> PlanReport:
    before = await _before(database, made)
    dry = DryRun(made, database, before, scope=scope, fresh=fresh, now=time.time(), show=show)
    found = await dry.forecast(lambda: selected_rows(checked, made.selection))
    stages = await _all_planned(database, made, found, before)
    continues = before.record.id if before and before.continued and not fresh else None
    compared = before.record.id if before else None
    budgets = await _budgets(database, made, continues, stages)
    bound = made.rules.confirm_above
    segments = _segments(made.stages)
    return PlanReport(made.workflow, continues, compared, segments, stages, found, warnings, budgets, bound)


def _segments(stages: Sequence[AnyStage]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for stage in stages:
        found[-1].append(stage.name)
        if isinstance(stage, PlannedStage) and stage.run_mode == "batch":
            found.append([])
    return [names for names in found if names]


async def _budgets(
    database: Database | None, made: Plan, run: int | None, stages: list[PlannedTasks]
) -> list[dict[str, Any]]:
    """Every budget that bounds the run, in the form of a run's summary."""
    budgets = RunBudgets.of(made)
    if budgets is None:
        return []
    counts = await runs.counters(database, run) if database and run else []
    lost = await runs.lost_calls(database, run, 0) if database and run else 0
    whole, own = budgets.balances(counts, lost)
    for batch in await batches_of_run(database, run) if database and run else []:
        if batch.state not in CLOSED:
            for pot in (*whole, *([own[batch.stage]] if batch.stage in own else [])):
                pot.reserve(Amount(batch.held_usd, batch.held_tokens, batch.tasks))
    found = []
    for pot in [*whole, *own.values()]:
        need = _needed([stage for stage in stages if pot.stage in (None, stage.stage.name)])
        (facts,) = budget_facts([pot])
        found.append({**facts, "enough": not pot.would_exceed(need)})
    return found


def _needed(stages: list[PlannedTasks]) -> Amount:
    total = Amount()
    for one in (stage.estimate for stage in stages):
        total = total.plus(Amount(one.usd or 0.0, one.input_tokens + one.output_tokens, one.calls))
    return total


async def _planned(
    database: Database | None,
    stage: AnyStage,
    found: StageForecast,
    counts: list[runs.Count],
    before: BaselineRun | None,
) -> PlannedTasks:
    if isinstance(stage, LocalStage):
        return PlannedTasks(stage, found, LOCAL)
    characters = found.characters / found.sampled if found.sampled else None
    if characters is not None and stage.schema is not None:
        characters += len(str(stage.schema.body))
    same = not any(change in reason for reason in found.reasons for change in OTHER_TEXT)
    past = history(counts, stage.name, stage.lane)
    expected = estimate(stage, found.questions, characters, past, same_prompt=same)
    batches = await planned_batches(database, stage, found.questions, characters)
    return PlannedTasks(stage, found, expected, tuple(_aliases(stage, before)), batches)


def _aliases(stage: PlannedStage, before: BaselineRun | None) -> Iterator[dict[str, str | None]]:
    """The short names of a stage's models; `meant` where the run before understood the same name otherwise."""
    for model in stage.models:
        if model.ref is None or model.ref.written is None:
            continue
        meant = meant_before(stage, before.definition) if before and model.ref is stage.ref else None
        yield {"written": model.ref.written, "means": model.ref.meaning, "meant": meant}


async def _before(database: Database | None, made: Plan) -> BaselineRun | None:
    """The run that would be continued, else the newest one of the workflow, of the same rows if there is one."""
    if database is None:
        return None
    identity = runs.RunIdentity(made.workflow, made.hash, made.selection.text())
    continued = await runs.newest_run(database, *identity)
    if continued is not None:
        return await _as_before(database, continued, continued=True)
    ids = await runs.run_ids(database, made.workflow)
    if not ids:
        return None
    for number in ids[:HISTORY_RUNS]:
        found = await _as_before(database, number, continued=False)
        if Selection.of(found.record.selection) == made.selection:
            return found
    return await _as_before(database, ids[0], continued=False)


async def _as_before(database: Database, number: int, *, continued: bool) -> BaselineRun:
    record = await runs.read_run(database, number)
    assert record is not None
    return BaselineRun(record, await runs.definition_of(database, number), continued)


async def _history(database: Database | None, workflow: str) -> list[runs.Count]:
    if database is None:
        return []
    ids = (await runs.run_ids(database, workflow))[:HISTORY_RUNS]
    return [count for number in ids for count in await runs.counters(database, number)]


async def expected_cost(
    checked: CheckedWorkflow, made: Plan, database: Database, scope: Scope, *, fresh: bool, retry: Retry | None
) -> tuple[float, list[str]]:
    """The dollars that a run or a retry is expected to cost, and the models whose price is not known, which cost more
    on top."""
    if retry is None:
        stages = (await _report(checked, made, database, scope, fresh, 0, [])).stages
    else:
        stages = await stored_tasks(database, made, retry.run, scope, retry=retry)
    known = sum(stage.estimate.usd or 0.0 for stage in stages)
    return known, [stage.stage.lane for stage in stages if stage.estimate.usd is None]


def estimates(tasks: Sequence[PlannedTasks]) -> list[CostEstimate]:
    """What the tasks of each stage will take."""
    return [one.estimate for one in tasks]


async def stored_tasks(
    database: Database, made: Plan, run: int, scope: Scope, *, retry: Retry | None = None
) -> list[PlannedTasks]:
    """What a retry of a run would do, or one that takes the run's rows as they are stored."""
    before = await _as_before(database, run, continued=True)
    found = await DryRun(
        made, database, before, scope=scope, fresh=False, now=time.time(), retry=retry
    ).forecast_stored()
    return await _all_planned(database, made, found, before)


async def input_tasks(
    database: Database, made: Plan, run: int, scope: Scope, rows: Rows
) -> tuple[int, list[PlannedTasks]]:
    """What is left to do of a run: the rows of its input, and the tasks of each stage."""
    before = await _as_before(database, run, continued=True)
    found = await DryRun(made, database, before, scope=scope, fresh=False, now=time.time()).forecast(rows)
    return found.rows, await _all_planned(database, made, found, before)


async def _all_planned(
    database: Database | None, made: Plan, found: Forecast, before: BaselineRun | None
) -> list[PlannedTasks]:
    counts = await _history(database, made.workflow)
    return [
        await _planned(database, stage, one, counts, before)
        for stage, one in zip(made.stages, found.stages, strict=True)
    ]


# What wants a yes before it costs: a run above `confirm_above`, one whose open batches hold what it no longer asks.

Confirm = Callable[[str], bool | None]
"""Asks the user a question; None: nobody is there to answer. May block: nothing else goes on yet."""


async def confirm_cost(
    checked: CheckedWorkflow,
    plan: Plan,
    database: Database,
    scope: Scope,
    *,
    fresh: bool,
    retry: Retry | None,
    confirm: Confirm | None,
) -> None:
    """Raises UsageError when the run is expected to cost more than `confirm_above` and nobody says yes."""

    bound = plan.rules.confirm_above
    if bound is None:
        return
    usd, unknown = await expected_cost(checked, plan, database, scope, fresh=fresh, retry=retry)
    if usd <= bound and not unknown:
        return
    simulated = all(stage.provider.simulated for stage in plan.asking)
    cost = dollars(usd, simulated=simulated) + _and_more(unknown)
    said = f"{plan.workflow} is expected to cost {cost}; confirm_above is {_exact(bound)}"
    answer = confirm(f"{said}. Continue?") if confirm is not None else None
    if not answer:
        raise UsageError(
            f"no calls were made: {said}" if answer is None else "no calls were made",
            remedy=f"Add --yes to continue; `agac plan -a {plan.workflow}` shows what it is made of.",
        )


def confirm_stale(workflow: str, stale: Sequence[Mapping[str, Any]], confirm: Confirm | None) -> None:
    """Raises UsageError when open batches hold requests that the workflow no longer asks, and nobody says yes to
    submitting what it asks now. `stale`: `batch`, `requests`, `held_usd` (None: price unknown), `simulated` of each."""
    if not stale:
        return
    requests, numbers = sum(one["requests"] for one in stale), list(dict.fromkeys(one["batch"] for one in stale))
    held = [one["held_usd"] for one in stale]
    mark = "simulated " if any(one["simulated"] for one in stale) else ""
    price = "price unknown" if None in held else f"up to {mark}{_exact(sum(held))}"
    batches = "1 open batch" if len(numbers) == 1 else f"{len(numbers):,} open batches"
    said = f"{workflow} no longer needs {requests:,} of the requests in {batches} ({price})"
    cancel = "; ".join(f"agac batch cancel {number}" for number in numbers)
    answer = confirm(f"{said}. They run on; to cancel them: {cancel}. Submit the others now?") if confirm else None
    if not answer:
        raise UsageError(
            f"nothing was submitted: {said}" if answer is None else "nothing was submitted",
            remedy=f"Add --yes to submit the others as well, or cancel them first with: {cancel}",
        )


def _and_more(unknown: Sequence[str]) -> str:
    models = list(dict.fromkeys(unknown))
    if not models:
        return ""
    whose = f"{models[0]} costs" if len(models) == 1 else f"{', '.join(models)} cost"
    return f", and on top what {whose}, whose price is not known"


def _exact(usd: float) -> str:
    return dollars(usd, 2 if usd >= 0.01 and round(usd, 2) == usd else 4)


# How many rows a run will meet, without reading its input for long: counted in small files, else estimated.

COUNTED_BYTES = 8 * 1024 * 1024
"""A file up to this size is read for its count: a tenth of a second beside the first calls."""

SAMPLE_BYTES = 4 * 1024 * 1024
"""Of a larger one so much of its beginning is read, and its rows are taken to be of even length."""

QUOTING = frozenset({".csv", ".tsv"})
LINES = QUOTING | {".jsonl", ".ndjson", ".txt"}
"""Files in which a line end ends a row, unless it is quoted in those that quote."""


def estimated_rows(checked: CheckedWorkflow, selection: Selection) -> RowCount | None:
    """How many rows are selected; None when only reading all of a large input, or a stream, would tell."""
    path = Path(checked.workflow.input.path)
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            return None
        if size <= COUNTED_BYTES:
            return RowCount(count_rows(checked, selection), exact=True)
        if path.suffix.lower() not in LINES:
            return None
        with path.open("rb") as file:
            sample = file.read(SAMPLE_BYTES)
    except (OSError, AgacError):  # whoever reads the rows meets it too, and says it
        return None
    lines = lines_outside_quotes(sample) if path.suffix.lower() in QUOTING else sample.count(b"\n")
    rows = max(0, round(lines * size / len(sample)) - selection.offset)
    return RowCount(selection.taken(rows), exact=False)


def lines_outside_quotes(text: bytes) -> int:
    """Line ends that are not within double quotes: csv records may go on over several lines."""
    return sum(part.count(b"\n") for part in text.split(b'"')[::2])
