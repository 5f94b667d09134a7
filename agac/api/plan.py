"""What a run would do and cost before any call: `agac plan`, and what needs a yes first: a cost above `confirm_above`,
batches that hold requests of older prompts; short names of models that mean something else now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agac.api.project import CheckedWorkflow, RunOptions, open_project, ready_workflow, selected_rows
from agac.api.status import blocking, database_path
from agac.core.errors import Problem, UsageError
from agac.core.types import Report, Usd, dollars, texts_of
from agac.engine.dry_run import DryRun, Rows
from agac.engine.estimate import LOCAL, CostEstimate, Cuts, cuts, estimate, history
from agac.engine.forecast import BaselineRun, Forecast, Reason, StageForecast
from agac.engine.invocation import Retry, Scope
from agac.engine.limits import Amount, balances_of
from agac.engine.limits import facts as budget_facts
from agac.plan.checks import missing_variables
from agac.plan.diff import OTHER_TEXT
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.workflow import RunMode, Workflow
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
        return _by_count(self.forecast.reasons)

    @property
    def blocked_reasons(self) -> list[dict[str, Any]]:
        """Why its blocked tasks are: the most frequent reason first."""
        return _by_count(self.forecast.blocked_reasons)

    @property
    def run_mode(self) -> RunMode | None:
        """How it is asked; None: it asks no model."""
        return self.stage.run_mode if isinstance(self.stage, PlannedStage) else None

    @property
    def simulated(self) -> bool:
        """Whether its calls cost nothing."""
        return isinstance(self.stage, PlannedStage) and self.stage.provider.simulated


def _by_count(reasons: Mapping[str, Reason]) -> list[dict[str, Any]]:
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
        known = needed(self.stages).usd
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


def needed(tasks: Sequence[PlannedTasks]) -> Amount:
    """What the tasks will take, without those whose price is not known."""
    total = Amount()
    for one in (stage.estimate for stage in tasks):
        total = total.plus(Amount(one.usd or 0.0, one.input_tokens + one.output_tokens, one.calls))
    return total


@blocking
async def plan_run(
    workflow: str, options: RunOptions | None = None, *, show: int = 0, project: Path | str | None = None
) -> PlanReport:
    """What `run` with the same options would do. Writes nothing and asks nobody; keys need not be there.

    `show` rendered prompts are kept in the report.
    """
    opened = open_project(project)
    checked, options = ready_workflow(opened, workflow, options or RunOptions())
    scope = options.scope([stage.name for stage in checked.workflow.stages])
    plan = make_plan(checked.workflow, checked.models, opened.root, options.selection(), options.concurrency)
    missing = [replace(one, severity="warning") for one in missing_variables(checked.models, checked.workflow)]
    async with open_for_reading(database_path(opened.root)) as database:
        report = await _report(checked, plan, database, scope, fresh=options.fresh, show=show)
        return replace(report, warnings=[*checked.warnings, *missing])


async def _report(
    checked: CheckedWorkflow, plan: Plan, database: Database | None, scope: Scope, *, fresh: bool, show: int = 0
) -> PlanReport:
    before = await _before(database, plan) if database is not None else None
    dry = DryRun(plan, database, before, scope=scope, fresh=fresh, now=time.time(), show=show)
    found = await dry.forecast(lambda: selected_rows(checked, plan.selection))
    stages = await _planned(database, plan, found, before)
    continues = before.record.id if before and before.continued and not fresh else None
    segments: list[list[str]] = [[]]
    for stage in plan.stages:
        segments[-1].append(stage.name)
        if isinstance(stage, PlannedStage) and stage.run_mode == "batch":
            segments.append([])
    return PlanReport(
        plan.workflow,
        continues,
        before.record.id if before else None,
        [names for names in segments if names],
        stages,
        found,
        [],
        await _budgets(database, plan, continues, stages),
        plan.rules.confirm_above,
    )


async def remaining_tasks(
    database: Database, plan: Plan, run: int, scope: Scope, *, rows: Rows | None = None, retry: Retry | None = None
) -> tuple[int, list[PlannedTasks]]:
    """What is left to do of a run: the rows that it is about, and the tasks of each stage. The rows are those of the
    input, or without `rows` the stored ones, as `retry` chooses them."""
    before = await _baseline(database, run, continued=True)
    dry = DryRun(plan, database, before, scope=scope, fresh=False, now=time.time(), retry=retry)
    found = await (dry.forecast_stored() if rows is None else dry.forecast(rows))
    return found.rows, await _planned(database, plan, found, before)


async def _planned(
    database: Database | None, plan: Plan, forecast: Forecast, before: BaselineRun | None
) -> list[PlannedTasks]:
    """The tasks of each stage, with what they will take by the history of the workflow's newest runs."""
    numbers = (await runs.run_ids(database, plan.workflow))[:HISTORY_RUNS] if database is not None else []
    counts = [count for number in numbers for count in await runs.counters(database, number)] if database else []
    planned = []
    for stage, found in zip(plan.stages, forecast.stages, strict=True):
        if not isinstance(stage, PlannedStage):
            planned.append(PlannedTasks(stage, found, LOCAL))
            continue
        characters = found.characters / found.sampled if found.sampled else None
        if characters is not None and stage.schema is not None:
            characters += len(str(stage.schema.body))
        same = not any(change in reason for reason in found.reasons for change in OTHER_TEXT)
        past = history(counts, stage.name, stage.lane)
        aliases = tuple(
            {
                "written": model.ref.written,
                "means": model.ref.meaning,
                "meant": _meant_before(stage, before.definition) if before and model.ref is stage.ref else None,
            }
            for model in stage.models
            if model.ref is not None and model.ref.written is not None
        )
        batches = None
        if stage.run_mode == "batch" and stage.provider.batch is not None:
            lane = (stage.provider.name, stage.provider.account, stage.model)
            batches = PlannedBatches(
                cuts(stage, found.questions, characters),
                stage.batch.completion_window or stage.provider.batch.windows[0],
                await lane_times(database, *lane) if database is not None else None,
            )
        expected = estimate(stage, found.questions, characters, past, same_prompt=same)
        planned.append(PlannedTasks(stage, found, expected, aliases, batches))
    return planned


async def _budgets(
    database: Database | None, plan: Plan, run: int | None, stages: list[PlannedTasks]
) -> list[dict[str, Any]]:
    """Every budget that bounds the run, in the form of a run's summary."""
    balances = balances_of(plan)
    if balances and database is not None and run is not None:
        counts = await runs.counters(database, run)
        balances = balances_of(plan, counts, await runs.lost_calls(database, run, 0))
        for batch in await batches_of_run(database, run):
            own = [one for one in balances if one.stage in (None, plan.stages[batch.stage].name)]
            for balance in own if batch.state not in CLOSED else ():
                balance.reserve(Amount(batch.held_usd, batch.held_tokens, batch.tasks))
    found = []
    for balance in balances:
        need = needed([stage for stage in stages if balance.stage in (None, stage.stage.name)])
        (facts,) = budget_facts([balance])
        found.append({**facts, "enough": not balance.would_exceed(need)})
    return found


async def _before(database: Database, plan: Plan) -> BaselineRun | None:
    """The run that would be continued, else the newest one of the workflow, of the same rows if there is one."""
    continued = await runs.newest_run(database, plan.workflow, plan.hash, plan.selection.text())
    if continued is not None:
        return await _baseline(database, continued, continued=True)
    ids = await runs.run_ids(database, plan.workflow)
    for number in ids[:HISTORY_RUNS]:
        found = await _baseline(database, number, continued=False)
        if Selection.of(found.record.selection) == plan.selection:
            return found
    return await _baseline(database, ids[0], continued=False) if ids else None


async def _baseline(database: Database, number: int, *, continued: bool) -> BaselineRun:
    record = await runs.read_run(database, number)
    assert record is not None
    return BaselineRun(record, await runs.definition_of(database, number), continued)


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
    if retry is None:
        stages = (await _report(checked, plan, database, scope, fresh=fresh)).stages
    else:
        _, stages = await remaining_tasks(database, plan, retry.run, scope, retry=retry)
    usd = needed(stages).usd
    unknown = list(dict.fromkeys(stage.stage.lane for stage in stages if stage.estimate.usd is None))
    if usd <= bound and not unknown:
        return
    cost = dollars(usd, simulated=all(stage.provider.simulated for stage in plan.asking))
    if unknown:
        whose = f"{', '.join(unknown)} cost{'s' if len(unknown) == 1 else ''}"
        cost += f", and on top what {whose}, whose price is not known"
    said = f"{plan.workflow} is expected to cost {cost}; confirm_above is {_exact(bound)}"
    remedy = f"Add --yes to continue; `agac plan -a {plan.workflow}` shows what it is made of."
    _ask(confirm, "no calls were made", said, "Continue?", remedy)


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
    question = f"They run on; to cancel them: {cancel}. Submit the others now?"
    remedy = f"Add --yes to submit the others as well, or cancel them first with: {cancel}"
    _ask(confirm, "nothing was submitted", said, question, remedy)


def _ask(confirm: Confirm | None, refusal: str, said: str, question: str, remedy: str) -> None:
    answer = confirm(f"{said}. {question}") if confirm is not None else None
    if not answer:
        raise UsageError(f"{refusal}: {said}" if answer is None else refusal, remedy=remedy)


def _exact(usd: float) -> str:
    return dollars(usd, 2 if usd >= 0.01 and round(usd, 2) == usd else 4)


# Short names of models that moved: what one meant in a run's definition, and what it means now.


def _meant_before(stage: PlannedStage, definition: Mapping[str, Any]) -> str | None:
    """What the stage's short name stood for in a stored definition, where that is something else."""
    if stage.ref is None or stage.ref.written is None:
        return None
    before = next((one for one in definition["stages"] if one["name"] == stage.name), None)
    alias = before.get("alias") if before else None
    if not alias or alias["written"] != stage.ref.written or alias["means"] == stage.ref.meaning:
        return None
    return str(alias["means"])


async def moved_names(database: Database, workflow: Workflow, plan: Plan) -> list[Problem]:
    """A warning for each short name that the workflow's last run understood otherwise: its rows are asked again."""
    if not any(stage.ref and stage.ref.written for stage in plan.asking):
        return []
    last = next(iter(await runs.run_ids(database, workflow.name)), None)
    if last is None:
        return []
    definition = await runs.definition_of(database, last)
    return [
        Problem(
            spec.at("model"),
            f"{stage.ref.written} meant {meant} in run {last} and means {stage.ref.meaning} now: its rows are run "
            f"again; to keep the answers write {meant}",
            "warning",
        )
        for spec, stage in zip(workflow.asking, plan.asking, strict=True)
        if stage.ref is not None and (meant := _meant_before(stage, definition)) is not None
    ]
