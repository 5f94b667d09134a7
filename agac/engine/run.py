"""One invocation of a run: the lease, the rows, the end. What it leaves behind is in the store after every line."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from agac.core.errors import ExitCode
from agac.core.keys import canonical
from agac.core.types import Outcome
from agac.engine.batch.coordinator import BatchActivity, Batches, batches_of, has_batches
from agac.engine.budget import BudgetLimiter, RunBudgets
from agac.engine.caller import Caller
from agac.engine.context import BatchWaits, InvocationContext
from agac.engine.derived_rows import Deduplicator, RowDeriver
from agac.engine.effects import ActiveRow
from agac.engine.executor import Executor, Functions, open_functions, run_sources
from agac.engine.export import outputs_text
from agac.engine.groups import Groups, Parts
from agac.engine.input_rows import InputRows, scan_ids
from agac.engine.invocation import InvocationRef, ReopenedRows, Retry, StageTotals, Totals, Work
from agac.engine.rate_limiter import UncommittedCallLimit
from agac.engine.replay import GroupContents, RowViews
from agac.engine.retry_policy import max_billed_calls
from agac.engine.routes import open_connections
from agac.engine.settle import Settler, fields
from agac.engine.stop_rules import RunStopped, StopReason, StopRules, StopSignal
from agac.engine.stored_rows import ChildFeeds, LevelPass, OpenRows, RetriedRows, walk_levels
from agac.engine.tasks import AnswerSource, Lookup, Tasks
from agac.engine.telemetry import cost_of
from agac.plan.plan import Plan, run_settings
from agac.plan.render import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Level, Levels, levels_of
from agac.store import runs
from agac.store.batches import was_batched
from agac.store.db import Database
from agac.store.lease import lease_held
from agac.store.records import DerivedRows
from agac.store.rows import MadeCount, State, first_event_since, made_counts, newest_result
from agac.store.runs import Count
from agac.store.writer import DerivedRowWriter, Ledger

# No row ever vanishes: rows in are the sum of outcomes, at every level, at the end of every run.


def assert_accounted(totals: Totals, made: Sequence[MadeCount], counts: Iterable[Count]) -> None:
    """Raises AssertionError where rows that were to be worked on have no outcome though the run came to its end: those
    that were read, those that stages made (but for parked ones); or where a roll-up counts what is not there."""
    if totals.seen != totals.settled:
        raise AssertionError(f"{totals.seen} rows were read and {totals.settled} have an outcome")
    waiting = sum(one.rows for one in made if one.state == State.PENDING)
    if waiting != totals.made_parked:
        raise AssertionError(
            f"{waiting} rows that stages made have no outcome, and {totals.made_parked} were left open"
        )
    for count in counts:
        if count.tasks < 0:
            raise AssertionError(f"{count.tasks} tasks of stage {count.stage!r} are counted as {count.outcome}")


# What the invocation before left behind when it did not come to its end: lost calls, rows that a retry had opened.


class KilledInvocation(NamedTuple):
    """An invocation that was killed: how many calls may have been `lost` with it, of its own run; and with what it was
    itself about to say of one that was killed before it, how many there are `to_tell` of."""

    invocation: runs.InvocationRecord
    lost: int
    to_tell: int


async def killed_before(database: Database, workflow: str) -> KilledInvocation | None:
    """The workflow's last invocation if it was killed.

    The bound is twice its concurrency (`Exposure`), and no more than the calls of rows without an outcome, where all
    rows are the input's.
    """
    found = await runs.last_invocation(database, workflow)
    if found is None or found[1].ended_at is not None:
        return None
    run, last = found
    most = lost = 2 * int(last.body["concurrency"])
    if not await made_counts(database, run):
        pending = runs.row_counts(await runs.counters(database, run))["open"]
        lost = min(most, pending * int(last.body.get("billed_a_row", most)))
    return KilledInvocation(last, lost, lost + int(last.body["lost_calls"]))


async def mark_killed(database: Database, killed: KilledInvocation | None, now: float) -> None:
    """Ends an invocation that could not do it; only once the one that says so is on record."""
    if killed is not None:
        event = killed.invocation
        await runs.end_invocation(database, event.id, runs.KILLED, event.body | {"lost": killed.lost}, now)


async def broken_off_retry(database: Database, run: int) -> Retry | None:
    """The retry with which the run's last invocation did not come to its end, or whose rows may wait for batches: a
    plain run finishes the rows that it opened as it would have."""
    record = await runs.read_run(database, run)
    last = record.invocation if record else None
    if record is None or last is None or not last.body.get("retry"):
        return None
    ended = last.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)
    waits = ended and record.finished_at is None and await was_batched(database, record.workflow)
    if ended and not waits:
        return None
    return Retry.of_filters(last.body["retry"])


async def opened_by(database: Database, run: int, retry: Retry | None, again_from: int | None) -> ReopenedRows | None:
    """The rows that a retry, and what went on with it, opened; `again_from` is the position of its stage."""
    if retry is None:
        return None
    return ReopenedRows(await first_event_since(database, run, retry.since), again_from, retry.since)


# Everyone who takes rows through the stages of one invocation, level by level.


@dataclass(frozen=True)
class LevelWorkers:
    """Makes the workers of a plan's levels."""

    context: InvocationContext
    asker: AnswerSource
    functions: Functions
    tasks: Tasks

    @cached_property
    def levels(self) -> Levels[AnyStage]:
        """The rows that walk alike."""
        return levels_of(self.context.plan.stages)

    @cached_property
    def preparer(self) -> Preparer:
        """Makes the requests of tasks."""
        plan = self.context.plan
        return Preparer(plan.stages, plan.vars, self.context.places.run)

    @cached_property
    def makers(self) -> RowDeriver:
        """What the stages make of rows."""
        return RowDeriver(self.levels, self.context.plan.output.stages)

    def executor(self, level: Level[AnyStage], on_made: Callable[[DerivedRows], None] | None = None) -> Executor:
        """Who walks the rows of a level; `on_made` is called with what is made of each."""
        plan, settler, clock = self.context.plan, self.context.settler, self.context.work.clocks.monotonic
        return Executor(
            plan, level, self.makers, self.preparer, self.asker, self.functions, self.tasks, settler,
            clock=clock, on_made=on_made,
        )  # fmt: skip

    async def walk_fed(self, flights: AsyncGenerator[list[ActiveRow], None]) -> None:
        """Takes rows of the input through their stages, and beside them the children that are fed by those."""
        feeds, first = ChildFeeds(self.context, self.levels.all), self.levels.all[0]
        sources = [feeds.source(flights, self.executor(first, feeds.add))]
        sources += [feeds.child_source(level, self.executor(level, feeds.add)) for level in feeds.levels]
        await run_sources(sources, self.context.stop_signal, self.context.workers)

    async def walk_made(self) -> None:
        """Takes all rows that stages made through theirs, once those that they are made of have come to their end."""
        context = self.context

        async def children(level: Level[AnyStage]) -> None:
            await LevelPass(context, level).walk(self.executor(level))

        async def kept(level: Level[AnyStage]) -> None:
            assert level.maker is not None
            await Deduplicator(
                context.places, context.ledger, context.settler, context.stop_signal, level.maker
            ).decide()
            await children(level)

        async def groups(level: Level[AnyStage]) -> None:
            stage = level.maker
            assert isinstance(stage, PlannedStage)
            contents = GroupContents(context.places, context.views, self.makers.members[stage.index], stage.index)
            parts = Parts(context, stage, contents, self.preparer, self.asker, self.tasks, context.settler)
            await Groups(context, level, self.executor(level), contents, parts, context.settler).walk()

        take = {"items": children, "rows": children, "kept": kept, "groups": groups}
        await walk_levels(context, self.levels.all[1:], take)


# The rows of an invocation on their way: those of the input or of the store, and then what stages made of them.


DRAIN_SECONDS = 60.0
"""After the first Ctrl-C calls in flight may take so long to finish; then they are given up. After any other stop they
take as long as their own time-outs allow: they are paid for."""


async def walk_rows(intake: InputRows, crew: LevelWorkers, batches: Batches | None, group: asyncio.TaskGroup) -> None:
    """Takes the rows of the input through their stages, or those of the store that a retry chose or for which a batch
    brought something, and then those that stages made of them, level by level."""
    context = crew.context
    work, plan, places, control = context.work, context.plan, context.places, context.stop_signal
    if batches is not None:
        await _ended(group.create_task(batches.recover()), control)
    if control.stop is not None:
        return None
    if work.batching.resume_run is not None:
        return await _walk_open(crew, group, again=False)
    if work.retry is not None:
        flights = RetriedRows(context, work.retry).flights()
    else:
        if plan.input.on_duplicate_id == "last" and plan.input.id_field:
            await scan_ids(places, work.rows())
        await runs.note_reading(places.database, places.run, None)
        flights = intake.active_rows(work.rows())
    await _walk_level(crew, flights, group)
    if not control.stopped.is_set() and work.retry is None:
        await intake.finish()
        await runs.note_reading(places.database, places.run, work.clocks.wall())
    await _walk_made(crew, group)
    return None


async def _walk_open(crew: LevelWorkers, group: asyncio.TaskGroup, *, again: bool, idle: bool = True) -> None:
    """Takes rows of the store through their stages for which batches brought something."""
    await _walk_level(crew, OpenRows(crew.context, again=again, idle=idle).flights(), group)
    await _walk_made(crew, group)


async def _walk_level(
    crew: LevelWorkers, flights: AsyncGenerator[list[ActiveRow], None], group: asyncio.TaskGroup
) -> None:
    await _ended(group.create_task(crew.walk_fed(flights)), crew.context.stop_signal)


async def _walk_made(crew: LevelWorkers, group: asyncio.TaskGroup) -> None:
    """The rows that stages made: all that are open, whoever looked at them before."""
    context = crew.context
    if context.stop_signal.stop is None and len(crew.levels.all) > 1:
        context.totals.made_parked = 0
        await _ended(group.create_task(crew.walk_made()), context.stop_signal)


async def go_on(crew: LevelWorkers, batches: Batches, group: asyncio.TaskGroup) -> None:
    """What was enrolled is submitted; who stays goes on until nothing is open."""
    context = crew.context

    async def walk() -> None:
        await _walk_open(crew, group, again=True, idle=batches.begin_again())
        batches.close_all()

    batches.close_all()
    with suppress(RunStopped):
        await _ended(group.create_task(_unhalted(batches.complete(walk))), context.stop_signal)
    batches.done.any_open = await batches.any_open()
    if context.stop_signal.stop is None and batches.held_back and not batches.done.any_open:
        batches.stop_at_limit()


def may_call(stage: PlannedStage) -> bool:
    """Whether tasks of a stage may be called: else nothing is in flight that a kill could lose."""
    batch = stage.batch
    later = (
        batch.retry == "sync" or batch.deadline is not None or any(one.provider.batch is None for one in stage.models)
    )
    return stage.run_mode == "sync" or later


async def _unhalted(work: Coroutine[None, None, None]) -> None:
    """Does it until the run stops."""
    with suppress(RunStopped):
        await work


async def _ended(walking: asyncio.Task[None], control: StopSignal) -> None:
    """Waits for the rows; after a Ctrl-C only so long, after a second one no longer: calls in flight are given up."""
    stopped = asyncio.ensure_future(control.stopped.wait())
    try:
        await asyncio.wait({walking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not walking.done():
            forced = asyncio.ensure_future(control.forced.wait())
            patience = DRAIN_SECONDS if control.stop is StopReason.INTERRUPT else None
            await asyncio.wait({walking, forced}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
        if not walking.done():
            walking.cancel()
            await asyncio.wait({walking})
    finally:
        stopped.cancel()
    if walking.cancelled():
        return
    walking.result()


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
    stop_signal: StopSignal = field(default_factory=StopSignal)
    ended: bool = False
    complete: bool = False
    budgets: BudgetLimiter | None = None
    retry: Retry | None = None
    chosen: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    batches: BatchActivity = field(default_factory=BatchActivity)
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
        if self.stop_signal.stop is StopReason.INTERRUPT:
            return ExitCode.INTERRUPTED
        return ExitCode.LIMIT if self.stop_signal.stop is StopReason.LIMIT else ExitCode.FAILED


async def run_once(database: Database, work: Work, invocation: Invocation) -> None:
    """Does what is left of a run. Raises AgacError when the store or a provider's setup cannot be used.

    A crash at any point leaves a database from which the same command goes on: rows are stored before they are worked
    on, every answer is stored in one transaction with its outcome, and the lease of a dead process is taken over.
    """
    plan, now = work.plan, work.clocks.wall
    invocation.retry, invocation.retrieves = work.retry, work.batching.resume_run is not None
    async with lease_held(database, plan.workflow, now) as lease:
        killed = await killed_before(database, plan.workflow)
        invocation.lost_calls = killed.to_tell if killed else 0
        await _find_run(database, work, invocation)
        told = fields(run=invocation.run, workflow=plan.workflow)
        _log.info("%s run %d", "going on with" if invocation.continued else "beginning", invocation.run, extra=told)
        if work.retry is None:
            invocation.retry = await broken_off_retry(database, invocation.run)
        event = await runs.begin_invocation(database, invocation.run, _about(invocation), now())
        exposure = UncommittedCallLimit(2 * plan.concurrency)
        ledger = Ledger(
            database, lease, run=invocation.run, event=event, urge=max(1, plan.concurrency // 2),
            clock=now, released=exposure.leave, descent=_descent(plan, invocation.run, event),
        )  # fmt: skip
        await mark_killed(database, killed, now())
        await _work(database, work, invocation, ledger, exposure, event)
        await _end(ledger, invocation, event, now())
        if invocation.stop_signal.error is not None:
            raise invocation.stop_signal.error


async def _find_run(database: Database, work: Work, invocation: Invocation) -> None:
    plan, now = work.plan, work.clocks.wall()
    identity = runs.RunIdentity(plan.workflow, plan.hash, plan.selection.text())
    await runs.keep_definition(database, identity, canonical(plan.body), now)
    found = work.batching.resume_run or (work.retry.run if work.retry else None)
    if found is None and not work.fresh:
        found = await runs.newest_run(database, *identity)
    where = runs.OutputPlace(work.output_dir, plan.output.include_input, outputs_text(plan))
    invocation.concurrency = plan.concurrency if any(map(may_call, plan.asking)) else 0
    invocation.billed_a_row = sum(
        stage.replicas * max_billed_calls(stage.repair, len(stage.models)) for stage in plan.asking
    )
    if found is None:
        invocation.run = await runs.make_run(database, identity, where, fresh=work.fresh, now=now)
    else:
        invocation.run, invocation.continued = found, True
        await runs.retarget_run(database, found, where)
    if work.batching.resume_run is None:
        await runs.store_run_settings(database, invocation.run, run_settings(plan, work.root))


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
    why = f"; {invocation.stop_signal.why}" if invocation.stop_signal.why else ""
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
    control = invocation.stop_signal
    if invocation.ended or control.stop is None:
        return {}
    again = invocation.totals.waiting_for
    waiting = {"waiting_for": {"type": again.type, "message": again.message}} if again else {}
    return {"stop": control.stop.value, "stopped": control.why, **waiting}


async def _work(
    database: Database, work: Work, invocation: Invocation, ledger: Ledger, exposure: UncommittedCallLimit, event: int
) -> None:
    plan, totals, control = work.plan, invocation.totals, invocation.stop_signal
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    newest = await newest_result(database)
    lookup = Lookup(database, record.fresh_since or 0.0)
    stops = await _bounds(database, work, invocation, event)
    settler = Settler(ledger, totals, plan.stages, work.clocks.wall, stops, keep_replies=plan.rules.keep_replies)
    context = InvocationContext(
        work=work,
        places=InvocationRef(database, invocation.run, event),
        ledger=ledger,
        stop_signal=control,
        totals=totals,
        stops=stops,
        settler=settler,
        budgets=invocation.budgets,
        views=RowViews(plan.stages, plan.vars, database),
        cutoffs=_cutoffs(work),
        again_from=_position(plan, work.retry),
        opened=await opened_by(database, invocation.run, invocation.retry, _position(plan, invocation.retry)),
        batch_waits=BatchWaits(database, active=await has_batches(database, plan)),
    )
    async with (
        open_connections(work, exposure, control) as lines,
        open_functions(work) as functions,
        batches_of(context) as batches,
        asyncio.TaskGroup() as group,
    ):
        intake = InputRows(context)
        background = [group.create_task(ledger.run()), group.create_task(lookup.run())]
        caller = Caller(context, lines)
        asker: AnswerSource = caller
        if batches is not None:
            invocation.batches = batches.done
            asker = await batches.enrolling(caller, resume_parked=work.batching.resume_run is None)
            background += [group.create_task(batches.work()), group.create_task(batches.look_up())]
        crew = LevelWorkers(context, asker, functions, Tasks(context, lookup, newest))
        await walk_rows(intake, crew, batches, group)
        if batches is not None:
            await go_on(crew, batches, group)
            invocation.held_back = batches.held_back
        if control.stop is not None:
            settler.restore_outcomes()
        await ledger.drained()
        for task in background:
            task.cancel()
    if work.batching.resume_run is not None:
        read_at = await runs.input_read_at(database, invocation.run)
        whole = read_at is not None and await _is_settled(database, invocation.run)
    else:
        whole = work.retry is None or await _is_whole(database, invocation.run)
    invocation.ended = control.stop is None
    invocation.complete = control.stop is None and totals.rows_parked == totals.made_parked == 0 and whole
    if control.stop is None:
        made = await made_counts(database, invocation.run)
        assert_accounted(totals, made, await runs.counters(database, invocation.run))


def _descent(plan: Plan, run: int, event: int) -> DerivedRowWriter:
    makes = {stage.index: stage.makes for stage in plan.stages if stage.makes is not None}
    return DerivedRowWriter(run, event, [stage.name for stage in plan.stages], makes)


async def _bounds(database: Database, work: Work, invocation: Invocation, event: int) -> StopRules:
    """What bounds the invocation: its budgets, filled with what was spent before, and the rules that stop it; and what
    is known beforehand of how much there is to do."""
    plan, totals, control = work.plan, invocation.totals, invocation.stop_signal
    counts = await runs.counters(database, invocation.run)
    totals.stages = {stage.name: StageTotals() for stage in plan.stages}
    if work.retry is None and await runs.was_read(database, invocation.run):
        totals.expected = runs.row_counts(counts)["present"]
    budgets = RunBudgets.of(plan)
    if budgets is not None:
        lost = await runs.lost_calls(database, invocation.run, event)
        invocation.budgets = budgets.limiter(control, counts, lost)
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


def _stop_rules(control: StopSignal, plan: Plan, counts: list[runs.Count]) -> StopRules:
    done: Counter[str] = Counter()
    for count in counts:
        done[count.stage] += count.tasks if count.outcome == Outcome.DONE else 0
    return StopRules(control, done, stop_loss=plan.rules.stop_loss, max_errors=plan.rules.max_errors)
