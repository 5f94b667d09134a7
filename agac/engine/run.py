"""One invocation of a run: the lease, the rows, the end. What it leaves behind is in the store
after every line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from agac.core.errors import ExitCode
from agac.core.keys import canonical, snapshot
from agac.core.reading import read_as
from agac.engine.ask.agent import Agents, open_agents
from agac.engine.ask.answers import AnswerSource
from agac.engine.ask.attempts import fields
from agac.engine.ask.caller import Caller
from agac.engine.ask.connections import Connections, open_connections
from agac.engine.ask.local_functions import FunctionAnswers, open_functions
from agac.engine.ask.prefix import Prefix, engine_tokens, serving_facts
from agac.engine.ask.rate_limiter import CallLimit, Lane
from agac.engine.ask.retry_policy import max_billed_calls
from agac.engine.ask.review import Reviews
from agac.engine.ask.tasks import Tasks
from agac.engine.batch.coordinator import Batches, batches_of
from agac.engine.batch.enrol import Enrolment
from agac.engine.context import InvocationContext
from agac.engine.forecast.past_usage import PastUsage
from agac.engine.heartbeat import Heartbeat
from agac.engine.invocation import Retry, Work
from agac.engine.notify import Notifier
from agac.engine.output.run_outputs import outputs_text
from agac.engine.run_context import open_context
from agac.engine.run_end import assert_accounted, end_invocation
from agac.engine.run_state import Invocation, invocation_start
from agac.engine.stored_invocation import InvocationStart, ServingFacts, StoredInvocation
from agac.engine.walk.input_rows import InputRows
from agac.engine.walk.row_walk import RowWalk
from agac.plan.run_settings import run_settings
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.operations import Python, Review
from agac.store import runs
from agac.store.batches import was_batched
from agac.store.db import Database, write
from agac.store.decisions import DISCARD, open_reviews
from agac.store.derived_row_writer import DerivedRowWriter
from agac.store.lease import Lease, lease_held
from agac.store.rows import State, made_counts, newest_result
from agac.store.write_batch import WriteBatch
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.sharding.shard_run import WorkingShard
    from agac.engine.workers.chunks import WorkerCalls


async def killed_before(
    database: Database, workflow: str
) -> tuple[runs.InvocationRecord, int] | None:
    """Returns the workflow's last invocation if it was killed, and how many calls may have been
    lost with it, of its own run. The bound is twice its concurrency (`rate_limiter.CallLimit`), and
    no more than the calls of rows without an outcome, if all rows are the input's."""
    found = await runs.last_invocation(database, workflow)
    if found is None or found[1].ended_at is not None:
        return None
    run, last = found
    start = read_as(InvocationStart, last.body)
    most = 2 * start.concurrency
    if await made_counts(database, run):
        return last, most
    pending = runs.row_counts(await runs.counters(database, run))["open"]
    billed_a_row = most if start.billed_a_row is None else start.billed_a_row
    return last, min(most, pending * billed_a_row)


async def broken_off_retry(database: Database, run: int) -> Retry | None:
    """Returns the retry that the last invocation did not end, or whose rows wait for batches: a
    plain run finishes it."""
    record = await runs.run_record(database, run)
    last = record.invocation
    filters = read_as(InvocationStart, last.body).retry if last is not None else None
    if last is None or not filters:
        return None
    ended = last.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)
    waits = ended and record.finished_at is None and await was_batched(database, record.workflow)
    if ended and not waits:
        return None
    return Retry(**{**filters, "rows": tuple(filters["rows"])})


def may_call(stage: PlannedStage) -> bool:
    """Whether tasks of a stage may be called: else nothing is in flight that a kill could lose."""
    batch = stage.settings.batch
    later = batch.retry == "sync" or batch.deadline is not None
    return (
        stage.settings.run_mode == "sync"
        or later
        or any(one.provider.batch is None for one in stage.models)
    )


_log = logging.getLogger("agac.run")


async def run_once(database: Database, work: Work, invocation: Invocation) -> None:
    """Does what is left of a run. Raises AgacError when the store or a provider's setup cannot be
    used. A crash at any point leaves a database from which the same command goes on: rows are
    stored before they are worked on, every answer is stored in one transaction with its outcome,
    and the lease of a dead process is taken over."""
    plan = work.plan
    now = work.clocks.wall
    invocation.goal.retry = work.retry
    invocation.goal.retrieves = work.batching.resume_run is not None
    async with lease_held(database, plan.workflow, now) as lease:
        killed = await killed_before(database, plan.workflow)
        # with what it was itself about to say of one that was killed before it
        if killed is not None:
            before = read_as(InvocationStart, killed[0].body)
            invocation.risk.lost_calls = killed[1] + before.lost_calls
        await _find_run(database, work, invocation)
        run = invocation.run
        words = "going on with" if invocation.continued else "beginning"
        _log.info("%s run %d", words, run, extra=fields(run=run, workflow=plan.workflow))
        if work.retry is None:
            invocation.goal.retry = await broken_off_retry(database, run)
        # no call is lost with one that made none
        begun = replace(invocation_start(invocation), concurrency=0).as_json()
        await _take_over_facts(database, work, invocation)
        invocation.calls.past = await PastUsage.read(database, plan.workflow, plan.asking)
        event = await write(database, "event_make", run, "invocation", now(), canonical(begun))
        uncommitted = CallLimit(2 * plan.concurrency)
        ledger = _ledger_of(database, work, lease, run, event, uncommitted)
        invocation.ledger = ledger
        invocation.notifier = Notifier(database, plan.workflow, run, event, plan.rules.notify, now)
        if work.discards:
            decision = None, plan.workflow, "", None, DISCARD, None, "", "", now(), "api", False
            await write(database, "decision_put", *decision)
        # it could not end itself; only now is the one that says so on record
        if killed is not None:
            last, lost = killed
            ended = canonical(last.body | {"lost": lost})
            await write(database, "event_end", now(), runs.KILLED, ended, last.id)
        context = await open_context(database, work, invocation, ledger, event)
        await _walk_to_the_end(context, invocation, uncommitted)
        if invocation.stop_signal.error is not None:
            raise invocation.stop_signal.error


async def _take_over_facts(database: Database, work: Work, invocation: Invocation) -> None:
    """Begins with the facts that the workflow's last invocation kept for the next one."""
    last_of_workflow = await runs.last_invocation(database, work.plan.workflow)
    if not last_of_workflow:
        invocation.calls.serving = None
        return
    last = read_as(StoredInvocation, last_of_workflow.invocation.body)
    invocation.calls.serving = last.serving
    if work.sharding is not None:
        work.sharding.taken = dict(last.packs.taken) if last.packs is not None else {}


def _ledger_of(
    database: Database, work: Work, lease: Lease, run: int, event: int, uncommitted: CallLimit
) -> Ledger:
    """Returns what commits the work of an invocation."""
    plan = work.plan
    makes = {stage.index: stage.makes for stage in plan.stages if stage.makes is not None}
    names = [stage.name for stage in plan.stages]
    return Ledger(
        database,
        lease,
        run=run,
        event=event,
        urge=max(1, plan.concurrency // 2),
        clock=work.clocks.wall,
        descent=DerivedRowWriter(run, event, names, makes, plan.selection.shard),
        committed=partial(_after_commit, work, uncommitted),
    )


async def _walk_to_the_end(
    context: InvocationContext, invocation: Invocation, uncommitted: CallLimit
) -> None:
    """Walks the rows and commits how the invocation ended; closes in any case what tells others
    of it."""
    work = context.work
    try:
        if work.hooks.watcher is not None:
            await work.hooks.watcher.began(context.places.database, invocation.run)
        await _walk(context, invocation, uncommitted)
        await end_invocation(context, invocation)
    finally:
        if work.sharding is not None and work.sharding.limits is not None:
            await work.sharding.limits.end()
        if context.traces is not None:
            await context.traces.close()


async def _after_commit(work: Work, uncommitted: CallLimit, batch: WriteBatch) -> None:
    """Shows the watcher what was committed, then lets as many new calls in as became durable."""
    if work.hooks.watcher is not None:
        await work.hooks.watcher.committed(batch)
    uncommitted.leave(batch.calls.count)


async def _find_run(database: Database, work: Work, invocation: Invocation) -> None:
    """Finds the run that is continued, or makes a new one."""
    plan = work.plan
    now = work.clocks.wall()
    identity = plan.workflow, plan.hash, plan.selection.text()
    await write(database, "definition_keep", plan.hash, plan.workflow, canonical(plan.body), now)
    run = work.batching.resume_run or (work.retry.run if work.retry else None)
    if run is None and not work.fresh:
        run = await runs.newest_run(database, *identity)
    target = work.output_dir, plan.output.include_input, outputs_text(plan)
    if any(map(may_call, plan.asking)):
        invocation.risk.concurrency = plan.concurrency
    else:
        invocation.risk.concurrency = 0
    invocation.risk.billed_a_row = sum(
        _billed_a_row(stage, plan.concurrency) for stage in plan.asking
    )
    if run is None:
        fresh_since = now if work.fresh else None
        invocation.run = await write(database, "run_make", *identity, *target, fresh_since, now)
    else:
        invocation.run = run
        invocation.continued = True
        await write(database, "run_retarget", *target, run)
    if work.batching.resume_run is None:
        await write(database, "run_manner", snapshot(run_settings(plan, work.root)), invocation.run)


def _billed_a_row(stage: PlannedStage, concurrency: int) -> int:
    """Returns how many calls of a stage for one row may be paid for and not stored, at most."""
    if stage.children:  # which ask at the same time
        return 2 * concurrency
    if stage.agent_spec:  # a turn of a conversation is durable before the next
        return stage.replicas * max_billed_calls(0, 1)
    return stage.replicas * max_billed_calls(stage.settings.repair, len(stage.models))


async def _workers_of(context: InvocationContext) -> WorkerCalls | None:
    """Opens what carries out calls and functions in the place of this process, or did so for an
    earlier one."""
    if context.work.hooks.executor is None:
        return None
    from agac.engine.workers.chunks import WorkerCalls

    return await WorkerCalls.opened(context, context.work.hooks.executor)


class Askers(NamedTuple):
    """All that bring answers of tasks in an invocation."""

    models: Caller
    """Asks stages without tools."""
    agents: Agents | None
    """Asks stages with tools; None: there are none."""
    enrolment: Enrolment | None
    """Asks in batches, and by calls what is not to be in batches; None: there are no batches."""
    functions: FunctionAnswers
    """Calls the functions of `python:` stages."""
    people: Reviews | None
    """Asks people; None: there are no reviews."""

    def sources(self, stages: Iterable[AnyStage]) -> dict[int, AnswerSource]:
        """Returns who answers the tasks of each stage that has tasks, by its position."""
        found = ((stage.index, self._source_of(stage)) for stage in stages)
        return {index: source for index, source in found if source is not None}

    def _source_of(self, stage: AnyStage) -> AnswerSource | None:
        """Returns who answers the tasks of a stage; None: it has no tasks."""
        if isinstance(stage, LocalStage):
            if isinstance(stage.operation, Python):
                return self.functions
            return self.people if isinstance(stage.operation, Review) else None
        if self.enrolment is not None:
            return self.enrolment
        return self.models if stage.agent_spec is None else self.agents


def _working_shard(context: InvocationContext, lanes: Mapping[str, Lane]) -> WorkingShard:
    """Makes what a shard needs of the invocation that works on it."""
    from agac.engine.sharding.shard_run import WorkingShard  # only shards need a remote

    return WorkingShard(
        database=context.places.database,
        run=context.places.run,
        totals=context.totals,
        budgets=context.budgets,
        stop_signal=context.stop_signal,
        stops=context.stops,
        lanes=lanes,
        counts_errors=context.plan.rules.max_errors is not None,
    )


async def _walk(context: InvocationContext, invocation: Invocation, uncommitted: CallLimit) -> None:
    """Does everything between the beginning and the end: rows walk until all are settled, or the
    run stops."""
    work = context.work
    engines = await engine_tokens(work)
    workers = await _workers_of(context)
    note_wait = context.settler.note_wait
    run = context.places.run
    async with (
        open_connections(work, run, uncommitted, context.stop_signal, note_wait) as connections,
        open_functions(work, workers.function if workers else None) as functions,
    ):
        caller = Caller(context, connections, workers)
        prefixes = _prefixes_of(work, connections)
        _log_changed_prefixes(prefixes, invocation.calls.serving)
        await _walk_rows(context, invocation, caller, functions, workers)
    lanes = {id(models[0].lane): models[0].lane for models in connections.values()}
    slots = sum(lane.most for lane in lanes.values())
    engines_after = await engine_tokens(work)
    counted = [(address, engines[address], now) for address, now in engines_after.items()]
    invocation.calls.serving = None
    if context.totals.calls.count:
        invocation.calls.serving = serving_facts(prefixes, slots, context.totals, counted)
    await _note_how_complete(context, invocation)


async def _walk_rows(
    context: InvocationContext,
    invocation: Invocation,
    caller: Caller,
    functions: FunctionAnswers,
    workers: WorkerCalls | None,
) -> None:
    """Walks the rows with all that brings answers, until what they came to is committed."""
    record = await runs.run_record(context.places.database, context.places.run)
    newest = await newest_result(context.places.database)
    since = record.fresh_since or 0.0
    connections = caller.connections
    async with (
        open_agents(context, caller, since, workers.tool if workers else None) as agents,
        batches_of(context, caller, agents) as batches,
        asyncio.TaskGroup() as group,
    ):
        if batches is not None:
            invocation.batches = batches.done
        heartbeat = Heartbeat(context, connections, batches)
        background = await _begin_background(group, context, heartbeat, workers, batches)
        await heartbeat.obey()
        enrolment = None if batches is None else batches.enrolment
        askers = Askers(caller, agents, enrolment, functions, context.reviews)
        sources = askers.sources(context.plan.stages)
        tasks = Tasks(context, sources, newest_before=newest, since=since)
        background.append(group.create_task(tasks.look_ups.run()))
        background.append(group.create_task(tasks.failures.run()))
        if context.reviews is not None:
            background.append(group.create_task(context.reviews.look_ups.run()))
        walk = RowWalk(context, tasks, group, invocation.risk.concurrency)
        await walk.all_rows(InputRows(context), batches)
        if batches is not None:
            await walk.go_on(batches)
            invocation.left_over.held_back = batches.enrolment.held_back
        if context.stop_signal.stop is not None:
            context.settler.restore_outcomes()
        elif workers is not None:
            workers.keep_unasked(connections)
        await context.ledger.drained()
        for task in background:
            task.cancel()


def _prefixes_of(work: Work, connections: Connections) -> dict[str, Prefix]:
    """Returns what all requests of each stage begin with, by the stage's name."""
    prefixes = {}
    for stage in work.plan.asking:
        prefix = connections[stage.index][0].prefix
        if prefix is not None:
            prefixes[stage.name] = prefix
    return prefixes


def _log_changed_prefixes(prefixes: Mapping[str, Prefix], serving: ServingFacts | None) -> None:
    """Logs the stages whose requests begin otherwise than in the last invocation."""
    marks_before = serving.prefixes if serving is not None else {}
    for name, prefix in prefixes.items():
        if prefix.mark != marks_before.get(name, prefix.mark):
            _log.info(
                "stage %s: its requests begin otherwise than before, so that caches begin anew",
                name,
            )


async def _begin_background(
    group: asyncio.TaskGroup,
    context: InvocationContext,
    heartbeat: Heartbeat,
    workers: WorkerCalls | None,
    batches: Batches | None,
) -> list[asyncio.Task[None]]:
    """Starts what runs next to the rows: commits, workers, batches, the heartbeat, the shard."""
    background = [group.create_task(context.ledger.run())]
    if workers is not None and workers.pool is not None:
        background.append(group.create_task(workers.pool.run()))
    if batches is not None:
        background.append(group.create_task(batches.work()))
        background.append(group.create_task(batches.enrolment.look_ups.run()))
    if context.traces is not None:
        context.traces.lanes = heartbeat.lanes
    background.append(group.create_task(heartbeat.run()))
    sharding = context.work.sharding
    if sharding is not None:
        working = _working_shard(context, heartbeat.lanes)
        await sharding.begin(working)
        background.append(group.create_task(sharding.run(working)))
    return background


async def _note_how_complete(context: InvocationContext, invocation: Invocation) -> None:
    """Notes whether the invocation did all that it was to do, and whether the run is complete.
    Raises AssertionError if a row vanished."""
    work = context.work
    totals = context.totals
    database, run, _ = context.places
    made = await made_counts(database, run)
    counts = await runs.counters(database, run)
    if context.reviews is not None:
        totals.reviews = sum((await open_reviews(database, work.plan.workflow, run)).values())
    any_pending = any(count.state == State.PENDING for count in made)
    settled = runs.row_counts(counts)["open"] == 0 and not any_pending
    if work.batching.resume_run is not None:
        whole = settled and (await runs.run_record(database, run)).read_at is not None
    else:  # a retry leaves whole what was read to its end before
        whole = work.retry is None or (settled and await runs.was_read(database, run))
    invocation.ended = context.stop_signal.stop is None
    invocation.left_over.waits = work.sharding.waits if work.sharding is not None else ""
    any_parked = bool(totals.rows.parked or totals.rows.made_parked)
    # groups without rows here may get some from the shards that are waited for
    is_over = invocation.ended and not invocation.left_over.waits
    invocation.complete = is_over and whole and not any_parked
    if invocation.ended:
        assert_accounted(totals, made, counts)
