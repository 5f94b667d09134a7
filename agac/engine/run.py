"""One invocation of a run: the lease, the rows, the end. What it leaves behind is in the store after every line."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agac.core.errors import ExitCode
from agac.core.keys import canonical
from agac.core.types import Outcome
from agac.engine.accounts import assert_accounted
from agac.engine.asking import Asker, Calls
from agac.engine.batch.batches import Handled
from agac.engine.batch.opening import batches_of
from agac.engine.batch.standing import Standing
from agac.engine.before import broken_off_retry, bury, killed_before, opened_by
from agac.engine.budget import Purse
from agac.engine.budgets import Budgets
from agac.engine.call import Caller
from agac.engine.calllog import fields
from agac.engine.control import Control, Stop
from agac.engine.crew import Crew
from agac.engine.functions import open_functions
from agac.engine.intake import Intake
from agac.engine.levels import Passing
from agac.engine.limits import Exposure
from agac.engine.lineage import Lineage
from agac.engine.lines import open_lines
from agac.engine.lookup import Lookup
from agac.engine.outputs import outputs_text
from agac.engine.policy import most_billed
from agac.engine.repeats import Places
from agac.engine.scope import Retry
from agac.engine.settle import Settler
from agac.engine.stops import StopRules
from agac.engine.summary import cost_of
from agac.engine.tasks import Tasks
from agac.engine.totals import StageTotals, Totals
from agac.engine.walking import go_on, may_call, walk_rows, workers_of
from agac.engine.work import Work
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer
from agac.plan.run_settings import run_settings
from agac.spec.levels import levels_of
from agac.store import runs
from agac.store.db import Database
from agac.store.lease import lease_held
from agac.store.ledger import Ledger
from agac.store.making import Descent
from agac.store.rows import State, made_counts, newest_result

_log = logging.getLogger("agac.run")


@dataclass(slots=True)
class Invocation:
    """One invocation while it goes on and after it: what to show, and how it ended.

    `lost_calls` is the most calls that a killed invocation before this one may have paid for without a stored answer.
    `ended`: all that it was to do is done; `complete`: so is the run. `given` is what its caller changed, by option:
    what it takes to ask for the same run again. `chosen`: the rows of a retry when it began, as `chosen_counts` has it.
    `batches` were submitted and ingested; for `held_back` tasks the budget had no room beside open batches.
    `retrieves`: the rows are those of the store for which batches brought something."""

    given: dict[str, Any] = field(default_factory=dict)
    run: int = 0
    continued: bool = False
    lost_calls: int = 0
    concurrency: int = 0
    billed_a_row: int = 0
    totals: Totals = field(default_factory=Totals)
    control: Control = field(default_factory=Control)
    ended: bool = False
    complete: bool = False
    purse: Purse | None = None
    retry: Retry | None = None
    chosen: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    batches: Handled = field(default_factory=Handled)
    held_back: int = 0
    retrieves: bool = False

    @property
    def finished(self) -> bool:
        """Whether nothing waits for batches, so that what failed is all that is to be told."""
        return self.complete or not self.batches.touched

    @property
    def exit_code(self) -> ExitCode:
        """What the process says when this is all that happened."""
        if self.ended:
            return ExitCode.DONE  # a Ctrl-C that came after the last row stopped nothing
        if self.control.stop is Stop.INTERRUPT:
            return ExitCode.INTERRUPTED
        return ExitCode.LIMIT if self.control.stop is Stop.LIMIT else ExitCode.FAILED


async def run_once(database: Database, work: Work, invocation: Invocation) -> None:
    """Does what is left of a run. Raises AgacError when the store or a provider's setup cannot be used.

    A crash at any point leaves a database from which the same command goes on: rows are stored before they are worked
    on, every answer is stored in one transaction with its outcome, and the lease of a dead process is taken over.
    """
    plan, now = work.plan, work.clocks.wall
    invocation.retry, invocation.retrieves = work.retry, work.batching.retrieves is not None
    async with lease_held(database, plan.workflow, now) as lease:
        killed = await killed_before(database, plan.workflow)
        invocation.lost_calls = killed.to_tell if killed else 0
        await _find_run(database, work, invocation)
        told = fields(run=invocation.run, workflow=plan.workflow)
        _log.info("%s run %d", "going on with" if invocation.continued else "beginning", invocation.run, extra=told)
        if work.retry is None:
            invocation.retry = await broken_off_retry(database, invocation.run)
        event = await runs.begin_invocation(database, invocation.run, _about(invocation), now())
        exposure = Exposure(2 * plan.concurrency)
        ledger = Ledger(
            database, lease, run=invocation.run, event=event, urge=max(1, plan.concurrency // 2),
            clock=now, released=exposure.leave, descent=_descent(plan, invocation.run, event),
        )  # fmt: skip
        await bury(database, killed, now())
        await _work(database, work, invocation, ledger, exposure, event)
        await _end(ledger, invocation, event, now())
        if invocation.control.error is not None:
            raise invocation.control.error


async def _find_run(database: Database, work: Work, invocation: Invocation) -> None:
    plan, now = work.plan, work.clocks.wall()
    identity = runs.RunIdentity(plan.workflow, plan.hash, plan.selection.text())
    await runs.keep_definition(database, identity, canonical(plan.body), now)
    found = work.batching.retrieves or (work.retry.run if work.retry else None)
    if found is None and not work.fresh:
        found = await runs.newest_run(database, identity)
    where = runs.OutputPlace(work.output_dir, plan.output.include_input, outputs_text(plan))
    invocation.concurrency = plan.concurrency if any(map(may_call, plan.asking)) else 0
    invocation.billed_a_row = sum(
        stage.replicas * most_billed(stage.repair, len(stage.models)) for stage in plan.asking
    )
    if found is None:
        invocation.run = await runs.make_run(database, identity, where, fresh=work.fresh, now=now)
    else:
        invocation.run, invocation.continued = found, True
        await runs.retarget_run(database, found, where)
    if work.batching.retrieves is None:
        await runs.keep_manner(database, invocation.run, run_settings(plan, work.root))


def _about(invocation: Invocation) -> dict[str, Any]:
    return {
        "concurrency": invocation.concurrency,
        "billed_a_row": invocation.billed_a_row,
        "lost_calls": invocation.lost_calls,
        "given": invocation.given,
        **({"retry": invocation.retry.filters()} if invocation.retry else {}),
        **({"retrieves": True} if invocation.retrieves else {}),
    }


async def _end(ledger: Ledger, invocation: Invocation, event: int, now: float) -> None:
    totals, code = invocation.totals, invocation.exit_code
    told = fields(run=invocation.run, rows_done=totals.rows_done, rows_failed=totals.rows_failed)
    why = f"; {invocation.control.why}" if invocation.control.why else ""
    counts = (invocation.run, totals.rows_done, totals.rows_failed, why)
    _log.info("run %d: this invocation ended, %d rows done, %d failed%s", *counts, extra=told)
    body = _about(invocation) | {
        "rows_seen": totals.seen,
        "rows_done": totals.rows_done,
        "rows_failed": totals.rows_failed,
        "tasks_done": totals.tasks_done,
        "tasks_reused": totals.tasks_reused,
        "calls": totals.calls,
        "given_up": totals.given_up,
        "rows_left_failed": totals.left_failed + totals.failed_for_good,
        "rows_parked": totals.rows_parked,
        "retries": totals.retries,
        "cost_usd": cost_of(totals.cost, totals.unpriced),
        **_why_stopped(invocation),
    }
    statements: list[tuple[str, Any]] = [("event_end", (now, code, canonical(body), event))]
    if invocation.complete:
        statements.append(("run_finish", (now, invocation.run)))
    await ledger.end(*statements)


def _why_stopped(invocation: Invocation) -> dict[str, Any]:
    control = invocation.control
    if invocation.ended or control.stop is None:
        return {}
    again = invocation.totals.waiting_for
    waiting = {"waiting_for": {"type": again.type, "message": again.message}} if again else {}
    return {"stop": control.stop.value, "stopped": control.why, **waiting}


async def _work(
    database: Database, work: Work, invocation: Invocation, ledger: Ledger, exposure: Exposure, event: int
) -> None:
    plan, totals, control = work.plan, invocation.totals, invocation.control
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    newest = await newest_result(database)
    lookup = Lookup(database, record.fresh_since or 0.0)
    stops = await _bounds(database, work, invocation, event)
    settler = Settler(ledger, totals, plan.stages, work.clocks.wall, stops, keep_replies=plan.rules.keep_replies)
    opened = await opened_by(database, invocation.run, invocation.retry, _position(plan, invocation.retry))
    places = Places(database, invocation.run, event)
    async with (
        open_lines(work, exposure, control) as lines,
        open_functions(work) as functions,
        batches_of(
            work, database, ledger, control, invocation.purse, settler.book, run=invocation.run, event=event
        ) as batches,
        asyncio.TaskGroup() as group,
    ):
        standing = Standing(database, active=batches is not None)
        intake = Intake(
            places, ledger, settler, control, totals,
            stops, on_duplicate=plan.input.on_duplicate_id, numbered=plan.input.id_field is None,
            scope=work.scope, cutoffs=_cutoffs(work), place=work.place, opened=opened, standing=standing,
            stages=plan.stages,
        )  # fmt: skip
        background = [group.create_task(ledger.run()), group.create_task(lookup.run())]
        caller = Caller(
            lines, settler, control, invocation.purse,
            wall=work.clocks.wall, spread=work.clocks.spread, run=invocation.run,
        )  # fmt: skip
        tasks = Tasks(
            settler, ledger, lookup, totals, newest,
            timed=plan.rules.row_timeout is not None, scope=work.scope, wall=work.clocks.wall,
        )  # fmt: skip
        asker: Asker = Calls(caller)
        if batches is not None:
            invocation.batches = batches.done
            asker = await batches.enrolling(caller, takes_up=work.batching.retrieves is None)
            background += [group.create_task(batches.work()), group.create_task(batches.look_up())]
        crew = Crew(
            plan, levels_of(plan.stages), Preparer(plan.stages, plan.vars, invocation.run), asker, functions, tasks,
            settler, work.clocks.monotonic,
        )  # fmt: skip
        passing = Passing(
            places, ledger, control, totals, Lineage(plan.stages, plan.vars, database), work.scope, _cutoffs(work),
            work.retry, _position(plan, work.retry), opened, workers_of(plan), standing,
        )  # fmt: skip
        await walk_rows(work, intake, crew, passing, batches, group)
        if batches is not None:
            await go_on(crew, passing, batches, group)
            invocation.held_back = batches.held_back
        if control.stop is not None:
            settler.put_back()
        await ledger.drained()
        for task in background:
            task.cancel()
    if work.batching.retrieves is not None:
        read_at = await runs.input_read_at(database, invocation.run)
        whole = read_at is not None and await _is_settled(database, invocation.run)
    else:
        whole = work.retry is None or await _is_whole(database, invocation.run)
    invocation.ended = control.stop is None
    invocation.complete = control.stop is None and totals.rows_parked == totals.made_parked == 0 and whole
    if control.stop is None:
        made = await made_counts(database, invocation.run)
        assert_accounted(totals, made, await runs.counters(database, invocation.run))


def _descent(plan: Plan, run: int, event: int) -> Descent:
    makes = {stage.index: stage.makes for stage in plan.stages if stage.makes is not None}
    return Descent(run, event, [stage.name for stage in plan.stages], makes)


async def _bounds(database: Database, work: Work, invocation: Invocation, event: int) -> StopRules:
    """What bounds the invocation: its budgets, filled with what was spent before, and the rules that stop it; and what
    is known beforehand of how much there is to do."""
    plan, totals, control = work.plan, invocation.totals, invocation.control
    counts = await runs.counters(database, invocation.run)
    totals.stages = {stage.name: StageTotals() for stage in plan.stages}
    if work.retry is None and await runs.was_read(database, invocation.run):
        totals.expected = runs.row_counts(counts)["present"]
    budgets = Budgets.of(plan)
    if budgets is not None:
        lost = await runs.lost_calls(database, invocation.run, event)
        invocation.purse = budgets.purse(control, counts, lost)
    return _stop_rules(control, plan, counts)


async def _is_whole(database: Database, run: int) -> bool:
    """Whether the input was read to its end before, and every row of it has an outcome now, as those made of them."""
    return await runs.was_read(database, run) and await _is_settled(database, run)


async def _is_settled(database: Database, run: int) -> bool:
    """Whether every row that is stored has an outcome."""
    if any(one.state == State.PENDING for one in await made_counts(database, run)):
        return False
    return runs.row_counts(await runs.counters(database, run))["open"] == 0


def _cutoffs(work: Work) -> dict[int, float]:
    now = work.clocks.wall()
    return {stage.index: now - stage.max_age for stage in work.plan.asking if stage.max_age is not None}


def _position(plan: Plan, retry: Retry | None) -> int | None:
    return next((stage.index for stage in plan.stages if retry and stage.name == retry.from_stage), None)


def _stop_rules(control: Control, plan: Plan, counts: list[runs.Count]) -> StopRules:
    done: Counter[str] = Counter()
    for count in counts:
        done[count.stage] += count.tasks if count.outcome == Outcome.DONE else 0
    return StopRules(control, done, stop_loss=plan.rules.stop_loss, max_errors=plan.rules.max_errors)
