"""What a run would do and cost before any call: `agac plan`, and what needs a yes first: a cost
above `confirm_above`, batches that hold requests of older prompts; short names of models that mean
something else now."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agac.api.batch_control import refusal_in_ci
from agac.api.before_run import (
    compare_input,
    not_recorded,
    refusal_of_lost_store,
    run_would_end,
    warnings_before,
)
from agac.api.invocation_summary import StaleBatch
from agac.api.project import Project, project_of
from agac.api.ready_workflow import made_ready
from agac.api.run_options import RunOptions
from agac.api.share import shared_answers
from agac.api.sync import blocking
from agac.core.errors import Problem, UsageError, Where
from agac.core.keys import canonical, job_alias
from agac.core.text import CHARACTERS_A_TOKEN, cropped, duration, plain
from agac.core.types import RowId, counted, dollars
from agac.data.frames import GivenRows
from agac.data.json_formats import encode
from agac.engine.ask.limits import Amount, balances_of
from agac.engine.ask.limits import facts as budget_facts
from agac.engine.forecast.baseline import Baseline, InvocationChoice, RemoteAnswers
from agac.engine.forecast.baseline_run import BaselineRun
from agac.engine.forecast.dry_run import Rows, dry_run
from agac.engine.forecast.estimate import call_seconds, estimate
from agac.engine.forecast.forecasts import PlanReport, needed
from agac.engine.forecast.past_usage import PastRun, PastUsage
from agac.engine.invocation import Work
from agac.engine.output.output_folder import lost_store
from agac.engine.output.run_outputs import target_of
from agac.engine.summary import RunSummary
from agac.engine.walk.replay import FinalRows
from agac.plan.changes import changes_of
from agac.plan.checks import missing_variables, outside_strict
from agac.plan.plan import Plan, make_plan
from agac.plan.stage import PlannedStage
from agac.spec.loader import WorkflowSource
from agac.store import runs
from agac.store.batches import batches_of_run
from agac.store.db import Database, open_for_reading
from agac.store.runs import Count


@blocking
async def plan(
    workflow: WorkflowSource,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,  # noqa: A002 - the option's name
    show: int = 0,
    project: Path | str | None = None,
) -> PlanReport:
    """What `run` with the same arguments would do. Asks nobody, and writes nothing but rows that
    are given as `input`; keys need not be there. `show` rendered prompts are kept in the report."""
    options = options or RunOptions()
    options = replace(options, input=options.input if input is None else input)
    return await plan_in(project_of(workflow, project), workflow, options, show=show)


async def plan_in(
    opened: Project,
    workflow: WorkflowSource,
    options: RunOptions,
    *,
    show: int = 0,
    keys: bool = True,
) -> PlanReport:
    """The same in a project that is open already; without `keys` it is not told which a run
    lacks."""
    opened, checked, options = await made_ready(opened, workflow, options, dry=True)
    scope = options.scope([stage.name for stage in checked.workflow.stages])
    selection = options.selection()
    untrusted = opened.untrusted
    models = checked.models
    most = options.concurrency
    plan = make_plan(checked.workflow, models, opened.root, selection, most, untrusted=untrusted)
    if keys:
        lacking = missing_variables(checked.models, checked.workflow)
    else:
        lacking = []
    missing = [replace(one, severity="warning") for one in lacking]
    async with (
        open_for_reading(opened.store) as database,
        shared_answers(opened, missing) as remote,
    ):
        rows = partial(checked.rows, plan.selection)
        choice = InvocationChoice(scope=scope, fresh=options.fresh)
        report = await planned(database, plan, choice, rows, show=show, remote=remote)
        report.budgets = await _budgets(database, plan, report)
        loose = outside_strict(
            checked.workflow, checked.models, {one.name: one.schema for one in plan.asking}
        )
        report.warnings = [*checked.warnings, *missing, *loose, *report.warnings]
        if database is not None:
            report.warnings[:0] = await warnings_before(database, opened, checked, plan, ask=True)
        report.warnings += await _of_the_run(database, opened, plan, rows, report, options)
        return report


async def _of_the_run(
    database: Database | None,
    opened: Project,
    plan: Plan,
    rows: Rows,
    report: PlanReport,
    options: RunOptions,
) -> list[Problem]:
    """Lists what the run would say before any call, and what would end it there."""
    found = list[Problem]()
    note = not_recorded(plan.stages, {one.name for one in report.stages if one.reuse})
    if note:
        found.append(Problem(Where("tools_mode"), note, "warning"))
    refusal = None if opened.untrusted else refusal_in_ci(opened, plan.asking)
    if refusal is not None:
        found.append(run_would_end(refusal, Where("agac.yml", path="remote.control")))
    try:
        _, text = await compare_input(database, plan, rows, opened.root)
    except UsageError as error:
        found.append(run_would_end(error, plan.input.where))
    else:
        found += [Problem(plan.input.where, text, "warning")] if text else []
    if options.fresh:
        return found
    output = opened.spec.shown(target_of(plan))
    lost = await lost_store(database, plan.workflow, opened.root, output)
    refusal = refusal_of_lost_store(lost[0], plan.workflow, report) if lost is not None else None
    if refusal is not None:
        found.append(run_would_end(refusal, Where(f"{output}/summary.json")))
    return found


async def planned(
    database: Database | None,
    plan: Plan,
    choice: InvocationChoice,
    rows: Rows | None,
    *,
    show: int = 0,
    remote: RemoteAnswers | None = None,
) -> PlanReport:
    """What a run would do, or what is left of the run that is chosen; without `rows` for the
    stored ones."""
    before = None
    if database is not None:
        if choice.run is None:
            before = await BaselineRun.of(database, plan)
        else:
            before = await BaselineRun.read(database, choice.run, continued=True)
    known = Baseline(plan, database, before, choice, now=time.time(), remote=remote)
    return await dry_run(known, rows, show=show)


async def _budgets(
    database: Database | None, plan: Plan, report: PlanReport
) -> list[dict[str, Any]]:
    """Every budget that bounds the run, in the form of a run's summary."""
    balances = balances_of(plan)
    run = report.continues
    if balances and database is not None and run is not None:
        counts = await runs.counters(database, run)
        balances = balances_of(plan, counts, await runs.lost_calls(database, run, 0))
        for batch in await batches_of_run(database, run):
            own = [one for one in balances if one.holds_for(plan.stages[batch.stage].name)]
            for balance in own if batch.open else ():
                balance.reserve(Amount(batch.held_usd, batch.held_tokens, batch.tasks))
    found = []
    for balance in balances:
        need = needed(stage for stage in report.stages if balance.holds_for(stage.name))
        (facts,) = budget_facts([balance])
        found.append({**facts, "enough": not balance.would_exceed(need)})
    return found


# Rows with results that are no longer in the input.


# What wants a yes before it costs: a run above `confirm_above`, one whose open batches hold what it
# no longer asks.

Confirm = Callable[[Any], bool | Literal["batch"] | None]
"""Asks the user a question, a text or the `Quote` of a row run; None: nobody is there to answer.
It may block."""

FIRST_ROWS = 20  # so many rows are run before the others are quoted


class Quote(NamedTuple):
    """What the rest of a row run is expected to cost: `rows` more, by the tokens of the answers so
    far and the prompts that are left. `usd` by calls, in `seconds`, and `batch_usd` by batches;
    None: unknown, or not on offer. `answers`: ids of the first rows, each with its result or its
    error. With both prices the answer may be "batch"."""

    rows: int
    usd: float | None
    batch_usd: float | None
    seconds: float | None
    simulated: bool
    answers: list[tuple[RowId, Any]]

    def __str__(self) -> str:
        costs = ((self.usd, "now"), (self.batch_usd, "as a batch"))
        known = ((usd, how) for usd, how in costs if usd is not None)
        said = [
            f"{dollars(usd, 0 if usd >= 10 else None, simulated=self.simulated)} {how}"
            for usd, how in known
        ]
        said = said or ["price not known"]
        said += [] if self.seconds is None else [f"about {duration(max(1, self.seconds))}"]
        found = (
            (plain(str(row)), text if isinstance(text, str) else encode(text))
            for row, text in self.answers
        )
        lines = (f"  {row}: {cropped(' '.join(plain(text).split()), 100)}" for row, text in found)
        return "\n".join([*lines, f"rest: {', '.join(said)}"])

    @property
    def choices(self) -> str:
        """What a terminal takes for an answer."""
        if None in (self.usd, self.batch_usd):
            return "; [y/n]"
        return "; [y/batch/n]"


async def quote_of(database: Database, work: Work, summary: RunSummary) -> Quote:
    """What the rest of a run of one stage is expected to cost."""
    rows = work.reading.rows
    stage = work.plan.asking[0]
    run = summary.run
    ended = summary.rows.total - summary.rows.open
    choice = InvocationChoice(scope=work.scope)
    (left,) = (await planned(database, work.plan, choice, rows)).stages
    (done,) = (await planned(None, work.plan, choice, lambda: islice(rows(), ended))).stages
    first = (
        await anext(FinalRows(await runs.definition_of(database, run)).rows(database, run), [])
    )[:FIRST_ROWS]
    counts = await runs.counters(database, run)
    longer = left.characters * done.sampled / (left.sampled or 1)
    if not summary.calls.tokens.output:  # all answers were there before
        made = sum(len(row.value or "") for row in first) * done.sampled // (len(first) or 1)
        given = done.characters // CHARACTERS_A_TOKEN
        made = made // CHARACTERS_A_TOKEN
        of_stage = Count(stage=stage.name, outcome="call", model=stage.lane)
        counts = [replace(of_stage, tasks=done.sampled, input_tokens=given, output_tokens=made)]
    longer /= done.characters or 1
    past = PastUsage([PastRun(counts, {}, {})])
    took = summary.timing_ms.duration.p50
    now = estimate(_by_calls(stage), left.questions, None, past, longer=longer)
    seconds = call_seconds(stage, now, work.plan.concurrency, took / 1000 if took else None)
    answers = [(row.id, row.error_message or json.loads(row.value or "null")) for row in first]
    return Quote(left.run, now.usd, now.ways["batch"], seconds, left.simulated, answers)


async def _expected(database: Database, work: Work) -> PlanReport:
    """What an invocation is expected to do: over the input, or over rows of the store."""
    retry = work.retry
    run = work.batching.resume_run
    if retry is not None:
        choice = InvocationChoice(scope=work.scope, run=retry.run, retry=retry)
    elif run is not None:
        choice = InvocationChoice(scope=work.scope, run=run, open_alone=True)
    else:
        choice = InvocationChoice(scope=work.scope, fresh=work.fresh)
    from_input = retry is None and run is None
    return await planned(database, work.plan, choice, work.reading.rows if from_input else None)


async def confirm_store(database: Database, work: Work, *, accept: bool = False) -> str | None:
    """The mark of what is accepted (`accept`, or a fresh run) where results tell of another store
    or of a newer one; None where they do not, or no call would be made. Raises UsageError where
    calls would be made and nobody accepts."""
    lost = await lost_store(database, work.plan.workflow, work.root, work.output_dir)
    if lost is None or accept or work.fresh:
        return lost and lost[1]
    report = await _expected(database, work)
    by_input = work.retry is None and work.batching.resume_run is None
    refusal = refusal_of_lost_store(lost[0], work.plan.workflow, report, by_input=by_input)
    if refusal is not None:
        raise refusal
    return None


async def asks_first_rows_alone(database: Database, work: Work, quotes: str | None) -> bool:
    """True if a row run does its first rows, and quotes the rest. `quotes`: see BuiltWorkflow."""
    if quotes == "always":
        return True
    if quotes is None or quotes == "made" or work.plan.rules.confirm_above is None:
        return False
    return (await _expected(database, work)).wants_yes


def by_calls(plan: Plan) -> Plan:
    """The plan with all stages asked by calls."""
    stages = (
        _by_calls(stage) if isinstance(stage, PlannedStage) else stage for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def _by_calls(stage: PlannedStage) -> PlannedStage:
    """The stage asked by calls."""
    return replace(stage, settings=replace(stage.settings, run_mode="sync"))


async def confirm_cost(database: Database, work: Work, confirm: Confirm | None) -> None:
    """Asks before a cost above `confirm_above`. Raises UsageError without a yes."""
    plan = work.plan
    bound = plan.rules.confirm_above
    if bound is None:
        return
    report = await _expected(database, work)
    if not report.wants_yes:
        return
    usd = needed(report.stages).usd
    unknown = list(
        dict.fromkeys(one.stage.lane for one in report.stages if one.estimate.usd is None)
    )
    cost = dollars(usd, simulated=all(stage.provider.simulated for stage in plan.asking))
    if unknown:
        whose = f"{', '.join(unknown)} cost{'s' if len(unknown) == 1 else ''}"
        cost += f", and on top what {whose}, whose price is not known"
    said = f"{plan.workflow} is expected to cost {cost}; confirm_above is {_exact(bound)}"
    remedy = f"Add --yes to continue; `agac plan -a {plan.workflow}` shows what it is made of."
    ask(confirm, "no calls were made", said, "Continue?", remedy)


async def confirm_changes(
    database: Database, plan: Plan, work: Work, run: int, confirm: Confirm | None
) -> None:
    """Asks before a resumed job asks rows again that `run` answered, because a file or setting
    changed since. Raises UsageError without a yes; asks nothing while `run` would be continued, or
    all its answers are reused."""
    before = await BaselineRun.read(database, run, continued=False)
    if canonical(before.definition) == canonical(plan.body):
        return
    report = await dry_run(
        Baseline(plan, database, before, InvocationChoice(scope=work.scope), now=time.time()),
        work.reading.rows,
    )
    answered = sum(stage.answered for stage in report.stages)
    if not answered:
        return
    simulated = any(stage.simulated for stage in report.stages if stage.run)
    if report.usd is None:
        cost = "an unknown price"
    else:
        cost = f"about {dollars(report.usd, simulated=simulated)}"
    changes = "; ".join(change.text for change in changes_of(before.definition, plan.body))
    said = (
        f"{counted(answered, 'row')} that {job_alias(run)} answered would be asked again, "
        "since this changed: "
    )
    said += f"{changes}. In all, {counted(report.calls, 'call')} for {cost}"
    remedy = "Add --yes to ask them again. To keep their answers, undo the change first."
    ask(confirm, "no calls were made", said, "Ask them again?", remedy)


def confirm_stale(workflow: str, stale: Sequence[StaleBatch], confirm: Confirm | None) -> None:
    """Raises UsageError when open batches hold requests that the workflow no longer asks, and
    nobody says yes to submitting what it asks now."""
    if not stale:
        return
    requests = sum(one.requests for one in stale)
    numbers = list(dict.fromkeys(one.batch for one in stale))
    held = [one.held_usd for one in stale if one.held_usd is not None]
    mark = "simulated " if any(one.simulated for one in stale) else ""
    if len(held) < len(stale):
        price = "price unknown"
    else:
        price = f"up to {mark}{_exact(sum(held))}"
    batches = counted(len(numbers), "open batch", "open batches")
    said = f"{workflow} no longer needs {requests:,} of the requests in {batches} ({price})"
    cancel = "; ".join(f"agac batch cancel {number}" for number in numbers)
    question = f"They run on; to cancel them: {cancel}. Submit the others now?"
    remedy = f"Add --yes to submit the others as well, or cancel them first with: {cancel}"
    ask(confirm, "nothing was submitted", said, question, remedy)


def ask(confirm: Confirm | None, refusal: str, said: str, question: str, remedy: str) -> None:
    """Raises UsageError, with what was `said` where nobody could be asked, unless somebody says
    yes to the question."""
    answer = confirm(f"{said}. {question}") if confirm is not None else None
    if not answer:
        raise UsageError(f"{refusal}: {said}" if answer is None else refusal, remedy=remedy)


def _exact(usd: float) -> str:
    return dollars(usd, 2 if usd >= 0.01 and round(usd, 2) == usd else 4)
