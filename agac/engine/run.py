"""One invocation of a run: the lease, the rows, the end. What it leaves behind is in the store
after every line."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.core.errors import ExitCode
from agac.core.keys import canonical, snapshot
from agac.core.types import Outcome
from agac.engine.agent import Agents, open_agents
from agac.engine.answers import AnswerSource
from agac.engine.attempts import fields
from agac.engine.batch.coordinator import BatchActivity, Batches, batches_of, has_batches
from agac.engine.batch.enrol import Enrolment
from agac.engine.caller import Caller
from agac.engine.connections import open_connections
from agac.engine.context import InvocationContext, WriteProof
from agac.engine.effects import ActiveRow
from agac.engine.estimate import estimate, request_characters
from agac.engine.executor import Executor, RowSource, run_workers
from agac.engine.groups import Deduplicator, Groups
from agac.engine.heartbeat import Heartbeat
from agac.engine.input_rows import InputRows
from agac.engine.invocation import InvocationRef, ReopenedRows, Retry, Work
from agac.engine.limits import (
    BudgetLimiter,
    RunStopped,
    StopReason,
    StopRules,
    StopSignal,
    balances_of,
)
from agac.engine.local_functions import FunctionAnswers, open_functions
from agac.engine.notify import Notifier
from agac.engine.past_usage import PastUsage
from agac.engine.prefix import engine_tokens, serving_facts
from agac.engine.rate_limiter import CallLimit, Lane
from agac.engine.replay import RowViews
from agac.engine.retry_policy import max_billed_calls
from agac.engine.review import Reviews, reviewings
from agac.engine.run_outputs import outputs_text
from agac.engine.settle import Settler, StageTotals, Totals
from agac.engine.stored_rows import ChildFeeds, LevelPass, has_work, open_rows, retried_rows
from agac.engine.tasks import Tasks
from agac.engine.telemetry import cost_of
from agac.plan.plan import Plan, run_settings
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.operations import Python, Review
from agac.store import runs
from agac.store.batches import project_token, was_batched
from agac.store.db import Database, write
from agac.store.decisions import DISCARD, asked_by, discarded_at, fixes_of, open_reviews, redos_of
from agac.store.derived_row_writer import DerivedRowWriter
from agac.store.lease import lease_held
from agac.store.rows import MadeCount, State, first_event_since, made_counts, newest_result
from agac.store.runs import Count
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.otlp import Traces
    from agac.engine.sharding.shard_run import WorkingShard
    from agac.engine.workers.chunks import WorkerCalls

# No row ever vanishes: rows in are the sum of outcomes, at every level, at the end of every run.


def assert_accounted(totals: Totals, made: Sequence[MadeCount], counts: Iterable[Count]) -> None:
    """Raises AssertionError where rows that were to be worked on have no outcome though the run
    came to its end: those that were read, those that stages made (but for parked ones); or where a
    roll-up counts what is not there."""
    if totals.seen != totals.settled:
        raise AssertionError(f"{totals.seen} rows were read and {totals.settled} have an outcome")
    waiting = sum(one.rows for one in made if one.state == State.PENDING)
    if waiting != totals.made_parked:
        raise AssertionError(
            f"{waiting} rows that stages made have no outcome, {totals.made_parked} were left open"
        )
    for count in counts:
        if count.tasks < 0:
            raise AssertionError(
                f"{count.tasks} tasks of stage {count.stage!r} are counted as {count.outcome}"
            )


# What the invocation before left behind when it did not come to its end: lost calls, rows that a
# retry had opened.


async def killed_before(
    database: Database, workflow: str
) -> tuple[runs.InvocationRecord, int] | None:
    """The workflow's last invocation if it was killed, and how many calls may have been lost with
    it, of its own run. The bound is twice its concurrency (`rate_limiter.CallLimit`), and no more
    than the calls of rows without an outcome, where all rows are the input's."""
    found = await runs.last_invocation(database, workflow)
    if found is None or found[1].ended_at is not None:
        return None
    run, last = found
    most = lost = 2 * int(last.body["concurrency"])
    if not await made_counts(database, run):
        pending = runs.row_counts(await runs.counters(database, run))["open"]
        lost = min(most, pending * int(last.body.get("billed_a_row", most)))
    return last, lost


async def broken_off_retry(database: Database, run: int) -> Retry | None:
    """The retry that the last invocation did not end, or whose rows wait for batches: a plain run
    finishes it."""
    record = await runs.run_record(database, run)
    last = record.invocation
    if last is None or not last.body.get("retry"):
        return None
    ended = last.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)
    waits = ended and record.finished_at is None and await was_batched(database, record.workflow)
    if ended and not waits:
        return None
    filters = last.body["retry"]
    return Retry(**{**filters, "rows": tuple(filters["rows"])})


# The rows of an invocation on their way: those of the input or of the store, and then what stages
# made of them.

DRAIN_SECONDS = 60.0
"""After the first Ctrl-C calls in flight may take so long to finish; then they are given up. After
any other stop they take as long as their own time-outs allow: they are paid for."""


@dataclass(frozen=True)
class RowWalk:
    """Takes all rows of an invocation through their stages, level by level, with so many `calls`
    in flight at most."""

    context: InvocationContext
    tasks: Tasks
    group: asyncio.TaskGroup
    calls: int

    async def all_rows(self, input_rows: InputRows, batches: Batches | None) -> None:
        """The rows of the input, or those a retry chose or a batch brought something for; then
        those made of them."""
        context = self.context
        work = context.work
        stop_signal = context.stop_signal
        if batches is not None:
            await self._expect_calls(0)
            await self.until_stopped(batches.recover())
            await self._expect_calls(self.calls)
        if stop_signal.stop is not None:
            return
        if work.batching.resume_run is not None:
            await self.open_rows(again=False)
            return
        if work.retry is not None:
            await self._from(retried_rows(context, work.retry))
        else:
            await self._from(input_rows.active_rows())
            if work.first is not None and not context.totals.all_read:
                stop_signal.end(
                    StopReason.QUOTE,
                    "its first rows are done, and what the rest costs was to be asked",
                )
        await self._derived_rows()

    async def open_rows(self, *, again: bool, idle: bool = True) -> None:
        """Rows of the store for which batches brought something."""
        await self._from(open_rows(self.context, again=again, idle=idle))
        await self._derived_rows()

    async def go_on(self, batches: Batches) -> None:
        """What was enrolled is submitted; who waits goes on until nothing is open."""
        stop_signal = self.context.stop_signal

        async def walk() -> None:
            await self._expect_calls(self.calls)
            await self.open_rows(again=True, idle=batches.enrolment.begin_again())
            batches.enrolment.close()
            await self._expect_calls(0)

        async def complete() -> None:
            with suppress(RunStopped):
                await batches.complete(walk)

        batches.enrolment.close()
        await self._expect_calls(0)
        with suppress(RunStopped):
            await self.until_stopped(complete())
        batches.done.any_open = await batches.any_open()
        # nothing that could make room is open
        held_back = batches.enrolment.held_back and not batches.done.any_open
        if stop_signal.stop is None and self.context.budgets is not None and held_back:
            self.context.budgets.stop_at_limit("batch")

    async def _expect_calls(self, calls: int) -> None:
        """Records how many calls may be in flight from now on: a kill while only batches are at
        work loses none."""
        if self.calls:
            await self.context.ledger.durable()
            await write(
                self.context.places.database,
                "event_say",
                "$.concurrency",
                calls,
                self.context.places.event,
            )

    async def _from(self, rows: AsyncGenerator[list[ActiveRow], None]) -> None:
        """Rows of the input, and beside them the children that are made of those."""
        context, feeds = self.context, ChildFeeds(self.context)
        sources = feeds.sources(
            rows, lambda level: Executor(context, level, self.tasks, feeds.add).walk
        )
        await self.until_stopped(run_workers(sources, context.stop_signal, context.workers))

    async def _derived_rows(self) -> None:
        """The rows that stages made and are open; then those once more of which people want
        another answer."""
        context, reviews = self.context, self.context.reviews
        if context.stop_signal.stop is None and len(context.levels.all) > 1:
            context.totals.made_parked = 0
            if context.work.sharding is not None:
                context.work.sharding.waits = ""
            await self.until_stopped(self._levels())
        if reviews is not None and reviews.redo and context.stop_signal.stop is None:
            reviews.redo = False
            await self.open_rows(again=True)

    async def _levels(self) -> None:
        """Level after level, each after those of whose rows it is made."""
        context, stop_signal = self.context, self.context.stop_signal
        for level in context.levels.all[1:]:
            if stop_signal.stop is not None or not await has_work(context, level):
                continue
            assert level.maker is not None
            executor = Executor(context, level, self.tasks)
            if level.maker.makes == "groups":
                await Groups(context, level, executor, self.tasks).walk()
                continue
            if level.maker.makes == "kept":
                await Deduplicator(context, level.maker).decide()
            rows = RowSource(LevelPass(context, level).all_rows(), executor.walk)
            await run_workers([rows], stop_signal, context.workers)

    async def until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Waits for the rows; after a Ctrl-C only so long, after a second no longer: calls in
        flight are given up."""
        stop_signal = self.context.stop_signal
        walking = self.group.create_task(work)

        async def give_up() -> None:
            await stop_signal.stopped.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    DRAIN_SECONDS if stop_signal.stop is StopReason.INTERRUPT else None
                ):
                    await stop_signal.forced.wait()
            walking.cancel()

        giving_up = self.group.create_task(give_up())
        await asyncio.wait({walking})
        giving_up.cancel()
        if not walking.cancelled():
            walking.result()


def may_call(stage: PlannedStage) -> bool:
    """Whether tasks of a stage may be called: else nothing is in flight that a kill could lose."""
    batch = stage.batch
    later = batch.retry == "sync" or batch.deadline is not None
    return (
        stage.run_mode == "sync" or later or any(one.provider.batch is None for one in stage.models)
    )


_log = logging.getLogger("agac.run")


@dataclass(slots=True)
class Invocation:
    """One invocation while it goes on and after it: what to show, and how it ended.

    `lost_calls` is the most calls that a killed invocation before this one may have paid for
    without a stored answer. `ended`: all that it was to do is done; `complete`: so is the run.
    `given` is what its caller changed, by option: what it takes to ask for the same run again.
    `chosen`: the rows of a retry when it began, as `chosen_counts` has it. `batches` were
    submitted and ingested; for `held_back` tasks the budget had no room beside open batches.
    `retrieves`: the rows are those of the store for which batches brought something. `accepted`:
    the mark of another store, or of a newer one, in whose place this one is accepted. `ledger`
    commits what it does, `notifier` makes messages of it. `serving` are facts of prefixes and
    slots, at first those of the last invocation; `past` is what was known of calls before it.
    `waits`: why groups wait for other shards, in words. `dropped_messages`: which messages are not
    sent because no file names their target, a sentence for each target."""

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
    accepted: str | None = None
    ledger: Ledger | None = None
    notifier: Notifier | None = None
    serving: dict[str, Any] = field(default_factory=dict)
    past: PastUsage = field(default_factory=PastUsage)
    waits: str = ""
    dropped_messages: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether nothing waits for batches, so that only failures are left to report."""
        return self.complete or not self.batches.touched

    @property
    def exit_code(self) -> ExitCode:
        """What the process says when this is all that happened."""
        if self.ended:
            # a Ctrl-C that came after the last row stopped nothing
            return ExitCode.NOT_READY if self.waits else ExitCode.DONE
        if self.stop_signal.stop is StopReason.INTERRUPT:
            return ExitCode.INTERRUPTED
        if self.stop_signal.stop is StopReason.LIMIT:
            return ExitCode.LIMIT
        return ExitCode.FAILED


async def run_once(database: Database, work: Work, invocation: Invocation) -> None:
    """Does what is left of a run. Raises AgacError when the store or a provider's setup cannot be
    used. A crash at any point leaves a database from which the same command goes on: rows are
    stored before they are worked on, every answer is stored in one transaction with its outcome,
    and the lease of a dead process is taken over."""
    plan = work.plan
    now = work.clocks.wall
    invocation.retry = work.retry
    invocation.retrieves = work.batching.resume_run is not None
    async with lease_held(database, plan.workflow, now) as lease:
        killed = await killed_before(database, plan.workflow)
        # with what it was itself about to say of one that was killed before it
        if killed is not None:
            invocation.lost_calls = killed[1] + int(killed[0].body["lost_calls"])
        await _find_run(database, work, invocation)
        run = invocation.run
        words = "going on with" if invocation.continued else "beginning"
        _log.info("%s run %d", words, run, extra=fields(run=run, workflow=plan.workflow))
        if work.retry is None:
            invocation.retry = await broken_off_retry(database, run)
        begun = {**_about(invocation), "concurrency": 0}  # no call is lost with one that made none
        last_of_workflow = await runs.last_invocation(database, plan.workflow)
        if last_of_workflow:
            invocation.serving = last_of_workflow.invocation.body.get("serving", {})
        else:
            invocation.serving = {}
        if work.sharding is not None and last_of_workflow:
            work.sharding.taken = last_of_workflow.invocation.body.get("taken", {})
        invocation.past = await PastUsage.read(database, plan.workflow, plan.asking)
        event = await write(database, "event_make", run, "invocation", now(), canonical(begun))
        makes = {stage.index: stage.makes for stage in plan.stages if stage.makes is not None}
        uncommitted = CallLimit(2 * plan.concurrency)
        ledger = invocation.ledger = Ledger(
            database,
            lease,
            run=run,
            event=event,
            urge=max(1, plan.concurrency // 2),
            clock=now,
            released=uncommitted.leave,
            descent=DerivedRowWriter(
                run, event, [stage.name for stage in plan.stages], makes, plan.selection.shard
            ),
            committed=work.watcher.committed if work.watcher else None,
        )
        invocation.notifier = Notifier(database, plan.workflow, run, event, plan.rules.notify, now)
        if work.discards:
            own = None, plan.workflow, "", None, DISCARD, None, "", "", now(), "api", False
            await write(database, "decision_put", *own)
        # it could not end itself; only now is the one that says so on record
        if killed is not None:
            last, lost = killed
            ended = canonical(last.body | {"lost": lost})
            await write(database, "event_end", now(), runs.KILLED, ended, last.id)
        context = await _context(database, work, invocation, ledger, event)
        try:
            if work.watcher is not None:
                await work.watcher.began(database, run)
            await _walk(context, invocation, uncommitted)
            await _end(context, invocation)
        finally:
            if work.sharding is not None and work.sharding.limits is not None:
                await work.sharding.limits.end()
            if context.traces is not None:
                await context.traces.close()
        if invocation.stop_signal.error is not None:
            raise invocation.stop_signal.error


async def _find_run(database: Database, work: Work, invocation: Invocation) -> None:
    """The run that is continued, or a new one."""
    plan = work.plan
    now = work.clocks.wall()
    identity = plan.workflow, plan.hash, plan.selection.text()
    await write(database, "definition_keep", plan.hash, plan.workflow, canonical(plan.body), now)
    found = work.batching.resume_run or (work.retry.run if work.retry else None)
    if found is None and not work.fresh:
        found = await runs.newest_run(database, *identity)
    where = work.output_dir, plan.output.include_input, outputs_text(plan)
    if any(map(may_call, plan.asking)):
        invocation.concurrency = plan.concurrency
    else:
        invocation.concurrency = 0
    invocation.billed_a_row = (
        sum(  # a turn of a conversation is durable before the next; children ask at the same time
            2 * plan.concurrency
            if stage.children
            else stage.replicas
            * max_billed_calls(*((0, 1) if stage.agent_spec else (stage.repair, len(stage.models))))
            for stage in plan.asking
        )
    )
    if found is None:
        invocation.run = await write(
            database, "run_make", *identity, *where, now if work.fresh else None, now
        )
    else:
        invocation.run = found
        invocation.continued = True
        await write(database, "run_retarget", *where, found)
    if work.batching.resume_run is None:
        await write(database, "run_manner", snapshot(run_settings(plan, work.root)), invocation.run)


def _about(invocation: Invocation) -> dict[str, Any]:
    return {
        **{
            name: getattr(invocation, name)
            for name in ("concurrency", "billed_a_row", "lost_calls", "given")
        },
        **({"retry": invocation.retry.filters()} if invocation.retry else {}),
        **({"retrieves": True} if invocation.retrieves else {}),
        **({"accepted": invocation.accepted} if invocation.accepted else {}),
    }


async def _context(
    database: Database, work: Work, invocation: Invocation, ledger: Ledger, event: int
) -> InvocationContext:
    """What the parts share: budgets, filled with what was spent, rules that stop it, and what is
    known of the work."""
    plan = work.plan
    totals = invocation.totals
    stop_signal = invocation.stop_signal
    run = invocation.run
    counts = await runs.counters(database, run)
    totals.stages |= {stage.name: StageTotals() for stage in plan.stages}
    if work.retry is None and await runs.was_read(database, run):
        totals.expected = runs.row_counts(counts)["total"]
    balances = balances_of(plan, counts, await runs.lost_calls(database, run, event))
    if balances or plan.rules.row:
        invocation.budgets = BudgetLimiter(stop_signal, balances, plan.rules.row)
    done: Counter[str] = Counter()
    for count in counts:
        done[count.stage] += count.tasks if count.outcome == Outcome.DONE else 0
    stops = StopRules(
        stop_signal, done, stop_loss=plan.rules.stop_loss, max_errors=plan.rules.max_errors
    )
    batched = await has_batches(database, plan)
    folders = [work.root / work.output_dir]
    if plan.output.to is not None and not plan.selection.partial:
        table = plan.output.to.path
    else:
        table = None
    folders += [table.parent] if table is not None else []
    folders += [work.batching.folder] if batched else []
    opened = None
    retry = invocation.retry
    now = work.clocks.wall()
    if retry is not None:  # rows that it, and what went on with it, opened
        first = await first_event_since(database, run, retry.since)
        opened = ReopenedRows(first, retry.position(plan), retry.since)
    places = InvocationRef(database, run, event)
    settler = Settler(ledger, totals, plan.stages, work.clocks.wall, stops, plan.rules.keep_replies)
    if work.retry is not None and work.retry.discard:
        discarded = work.retry.since
    else:
        discarded = 0.0
    reviews = None
    redos = await redos_of(database, plan.workflow, discarded)
    if reviewings(plan):
        reviews = Reviews(
            work, places, ledger, settler, await discarded_at(database, plan.workflow), redos
        )
    return InvocationContext(
        work=work,
        places=places,
        ledger=ledger,
        stop_signal=stop_signal,
        totals=totals,
        stops=stops,
        settler=settler,
        proof=WriteProof(ledger, tuple(folders), canonical(_about(invocation))),
        budgets=invocation.budgets,
        views=RowViews(plan.stages, plan.vars, database),
        cutoffs={
            stage.index: now - stage.max_age for stage in plan.asking if stage.max_age is not None
        },
        opened=opened,
        batched=batched,
        reviews=reviews,
        traces=await _traces(work, places, totals),
        notifier=invocation.notifier,
        fixes=await fixes_of(database, plan.workflow, run, [stage.name for stage in plan.stages]),
        redos=redos,
    )


async def _traces(work: Work, places: InvocationRef, totals: Totals) -> Traces | None:
    """Sends traces and metrics, where that is asked for; tests of workflows have none. The log
    says what lacks."""
    settings = work.otel if work.answers is None else None
    if settings is None:
        return None
    lack = settings.refused
    try:
        if not lack:
            # an extra, which takes a quarter of a second to load
            from agac.engine.otlp import Traces

            return Traces(settings, work, places, await project_token(places.database), totals)
    except ModuleNotFoundError as missing:
        lack = f"they need {missing.name}, which is not installed: "
        lack += "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    except (ValueError, RuntimeError) as wrong:  # a variable that the SDK cannot use
        lack = work.redactor.clean(str(wrong))
    _log.warning("no traces or metrics are sent: %s", lack)
    return None


async def _workers_of(context: InvocationContext) -> WorkerCalls | None:
    """Who carries out calls and functions in the place of this process, or did so for an earlier
    one."""
    if context.work.executor is None:
        return None
    from agac.engine.workers.chunks import WorkerCalls

    return await WorkerCalls.opened(context, context.work.executor)


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
        if isinstance(stage, LocalStage):
            if isinstance(stage.operation, Python):
                return self.functions
            return self.people if isinstance(stage.operation, Review) else None
        if self.enrolment is not None:
            return self.enrolment
        return self.models if stage.agent_spec is None else self.agents


def _working_shard(context: InvocationContext, lanes: Mapping[str, Lane]) -> WorkingShard:
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
    """Everything between the beginning and the end: rows walk until all are settled, or the run
    stops."""
    work = context.work
    totals = context.totals
    stop_signal = context.stop_signal
    database, run, _ = context.places
    record = await runs.run_record(database, run)
    newest = await newest_result(database)
    since = record.fresh_since or 0.0
    engines = await engine_tokens(work)
    workers = await _workers_of(context)
    tools = workers.tool if workers else None
    async with (
        open_connections(
            work, run, uncommitted, stop_signal, context.settler.note_wait
        ) as connections,
        open_functions(work, workers.function if workers else None) as functions,
        open_agents(
            context, caller := Caller(context, connections, workers), since, tools
        ) as agents,
        batches_of(context, caller, agents) as batches,
        asyncio.TaskGroup() as group,
    ):
        prefixes = {
            s.name: one
            for s in work.plan.asking
            if (one := connections[s.index][0].prefix) is not None
        }
        lanes = {id(own[0].lane): own[0].lane for own in connections.values()}
        for name, one in prefixes.items():
            if one.mark != invocation.serving.get("prefixes", {}).get(name, one.mark):
                _log.info(
                    "stage %s: its requests begin otherwise than before, so that caches begin anew",
                    name,
                )
        background = [group.create_task(context.ledger.run())]
        if workers is not None and workers.pool is not None:
            background.append(group.create_task(workers.pool.run()))
        if batches is not None:
            invocation.batches = batches.done
            background += [
                group.create_task(batches.work()),
                group.create_task(batches.enrolment.look_ups.run()),
            ]
        heartbeat = Heartbeat(context, connections, batches)
        if context.traces is not None:
            context.traces.lanes = heartbeat.lanes
        background.append(group.create_task(heartbeat.run()))
        if work.sharding is not None:
            working = _working_shard(context, heartbeat.lanes)
            await work.sharding.begin(working)
            background.append(group.create_task(work.sharding.run(working)))
        await heartbeat.obey()
        enrolment = None if batches is None else batches.enrolment
        askers = Askers(caller, agents, enrolment, functions, context.reviews)
        sources = askers.sources(work.plan.stages)
        tasks = Tasks(context, sources, newest_before=newest, since=since)
        background += [group.create_task(one.run()) for one in (tasks.look_ups, tasks.failures)]
        if context.reviews is not None:
            background.append(group.create_task(context.reviews.look_ups.run()))
        walk = RowWalk(context, tasks, group, invocation.concurrency)
        await walk.all_rows(InputRows(context), batches)
        if batches is not None:
            await walk.go_on(batches)
            invocation.held_back = batches.enrolment.held_back
        if stop_signal.stop is not None:
            context.settler.restore_outcomes()
        elif workers is not None:
            workers.keep_unasked(connections)
        await context.ledger.drained()
        for task in background:
            task.cancel()
    slots = sum(lane.most for lane in lanes.values())
    counted = [
        (address, engines[address], now) for address, now in (await engine_tokens(work)).items()
    ]
    if totals.calls:
        invocation.serving = serving_facts(prefixes, slots, totals, counted)
    else:
        invocation.serving = {}
    made = await made_counts(database, run)
    counts = await runs.counters(database, run)
    if context.reviews is not None:
        totals.reviews = sum((await open_reviews(database, work.plan.workflow, run)).values())
    settled = runs.row_counts(counts)["open"] == 0 and not any(
        one.state == State.PENDING for one in made
    )
    if work.batching.resume_run is not None:
        whole = settled and (await runs.run_record(database, run)).read_at is not None
    else:  # a retry leaves whole what was read to its end before
        whole = work.retry is None or (settled and await runs.was_read(database, run))
    invocation.ended = stop_signal.stop is None
    invocation.waits = work.sharding.waits if work.sharding is not None else ""
    invocation.complete = (
        invocation.ended and totals.rows_parked == totals.made_parked == 0 and whole
    )
    # groups without rows here may get some
    invocation.complete = invocation.complete and not invocation.waits
    if invocation.ended:
        assert_accounted(totals, made, counts)


_NOTED = (
    "rows_done",
    "rows_failed",
    "rows_parked",
    "tasks_done",
    "tasks_reused",
    "calls",
    "given_up",
    "retries",
)
"""Counts of an invocation that its record keeps by their names."""


async def _end(context: InvocationContext, invocation: Invocation) -> None:
    """Commits how the invocation ended."""
    totals = invocation.totals
    code = invocation.exit_code
    stop_signal = invocation.stop_signal
    now = context.work.clocks.wall()
    event = context.places.event
    log_fields = fields(
        run=invocation.run, rows_done=totals.rows_done, rows_failed=totals.rows_failed
    )
    why = f"; {stop_signal.why}" if stop_signal.why else ""
    counts = (invocation.run, totals.rows_done, totals.rows_failed, why)
    _log.info("run %d: this invocation ended, %d rows done, %d failed%s", *counts, extra=log_fields)
    body = _about(invocation) | {name: getattr(totals, name) for name in _NOTED} | {
        "rows_seen": totals.seen,
        **({"rows_short": totals.short} if totals.short else {}),
        "rows_left_failed": totals.left_failed + totals.failed_for_good,
        "cost_usd": cost_of(totals.cost, totals.unpriced),
        **({"serving": invocation.serving} if totals.calls else {}),
        **({"wait_for_people": totals.reviews} if totals.reviews else {}),
        **({"taken": sharding.taken} if (sharding := context.work.sharding) is not None else {}),
    }  # fmt: skip
    if not invocation.ended and stop_signal.stop is not None:
        body |= {"stop": stop_signal.stop.value, "stopped": stop_signal.why}
        last = totals.waiting_for
        if last is not None:
            body["waiting_for"] = {"type": last.type, "message": last.message}
    statements: list[tuple[str, Any]] = [("event_end", (now, code, canonical(body), event))]
    statements += _estimates(context.plan, invocation)
    told = invocation.notifier
    if told is not None:
        stop = None if invocation.ended else stop_signal.stop
        statements += await told.ended(code, stop, totals.reviews, complete=invocation.complete)
    if invocation.complete:
        statements.append(("run_finish", (now, invocation.run)))
    workflow = context.plan.workflow
    database = context.places.database
    for run in await asked_by(database, workflow) if invocation.ended else ():
        if run != invocation.run and await runs.superseded_by(database, run) is not None:
            statements.append(("reviews_superseded", (workflow, run)))
    await context.ledger.end(*statements)


def _estimates(plan: Plan, invocation: Invocation) -> Iterator[tuple[str, Any]]:
    """What the stages were expected to take, by what was known before and by the requests that
    were made: the next plan compares the lengths of its requests with these. It costs no second
    look at the rows."""
    for stage in plan.asking:
        own = invocation.totals.stages[stage.name]
        if own.requests:
            size = request_characters(stage, own.characters / own.requests)
            found = estimate(stage, own.requests, size, invocation.past, longer=1.0)
            about = stage.lane, found.basis, own.requests, None if stage.agent_spec else size
            took = found.calls, found.input_tokens, found.output_tokens, found.usd
            yield "estimate_keep", (invocation.run, stage.name, *about, *took)
