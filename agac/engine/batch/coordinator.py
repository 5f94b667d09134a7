"""All batches of one invocation: filled while rows walk, submitted in the background, ingested when they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from agac.core.errors import AgacError
from agac.engine.batch.enrol import BatchedTasks, Enrolment, OpenBatch, Spool
from agac.engine.batch.ingest import STRANGE, Ingester, counts_of
from agac.engine.batch.lifecycle import BatchContext, BatchFormat, batch_context, batch_formats
from agac.engine.batch.poll import BatchPoller
from agac.engine.batch.submit import CAP_KEPT, Submitter
from agac.engine.budget import NOTHING, Amount, BudgetLimiter
from agac.engine.caller import Caller
from agac.engine.invocation import InvocationContext
from agac.engine.settle import Totals
from agac.engine.stop_rules import RunStopped
from agac.plan.plan import Plan
from agac.store.batches import (
    AT_PROVIDER,
    WAITING,
    BatchRecord,
    BatchStep,
    batches_of_run,
    intents,
    lane_load,
    outdated_tasks,
    read_batch,
    rows_in_batches,
    stale_tasks,
    unfinished_batches,
    untidy_batches,
    was_batched,
)
from agac.store.db import Database

# The order of an invocation: what earlier ones left is put right, what has ended is ingested, rows are walked (and
# enrol), what is full is submitted meanwhile, the rest at the end. With `stays` this goes round until nothing is open.

_log = logging.getLogger("agac.batch")

SHORTEST_POLL, LONGEST_POLL = 15.0, 300.0
"""Seconds between two looks at open batches, growing while nothing moves."""

UNSENT = frozenset({BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED})
"""Steps at which nothing of a batch can cost anything."""

FEWER = 97
"""Where batches are told apart by nothing but their size, those of one lane get sizes that differ by less than this."""


@dataclass(slots=True)
class BatchActivity:
    """What became of batches in an invocation, by their numbers."""

    submitted: list[int] = field(default_factory=list)
    ingested: list[int] = field(default_factory=list)
    moved: bool = False
    stale: list[tuple[BatchRecord, int]] = field(default_factory=list)
    any_open: bool = False
    """Whether batches of the run were open when it ended."""
    touched: bool = False
    """Whether the workflow has batches at all."""


Stale = list[tuple[BatchRecord, int]]
"""Batches of other runs with the number of tasks in them that this run does not want."""


class Batches:
    """The batches of a workflow in one invocation. `agree` is asked before anything is submitted beside stale ones;
    None: what is not submitted stays BUILT. `only`: the one batch that is taken in, None: all that have ended."""

    def __init__(
        self,
        context: BatchContext,
        budget: BudgetLimiter | None,
        totals: Totals,
        *,
        confirm_stale: Callable[[Stale], Awaitable[bool]],
        only_batch: int | None,
        poll: float | None,
        takes_over: bool,
    ) -> None:
        self._context, self._journal, self._budget = context, context.journal, budget
        self._submitter = Submitter(context)
        self._collector = BatchPoller(context, self._submitter, Ingester(context, budget, totals))
        self._confirm_stale, self._only_batch, self._poll = confirm_stale, only_batch, poll
        self._takes_over = takes_over
        self._closed: asyncio.Queue[OpenBatch] = asyncio.Queue()
        self._open_batches: dict[int, OpenBatch] = {}
        self._may_submit: bool | None = None
        self._had_open = self._released = False
        self._batched_tasks = BatchedTasks(context)
        self._enrolment: Enrolment | None = None
        self.done = BatchActivity(touched=True)

    async def recover(self) -> None:
        """Puts right what an earlier invocation left, and takes in what has ended."""
        for record in await unfinished_batches(self._context.database, self._context.workflow):
            own = record.run_id == self._context.run
            self._had_open = self._had_open or own
            if not own and self._takes_over and record.state in UNSENT:
                note = "another run of the workflow went on before it was submitted"
                await self._journal.release(record, BatchStep.NOT_CREATED, "run", note)
            elif record.state == BatchStep.PLANNED:  # its file is torn; nothing of it is known outside
                note = "the command that filled it ended before it was whole"
                await self._journal.release(record, BatchStep.NOT_CREATED, "batch", note)
            elif self._budget is not None and record.run_id == self._context.run and record.ingested_at is None:
                amount = Amount(record.held_usd, record.held_tokens, record.tasks)
                self._budget.load(record.id, record.stage, amount)
        with suppress(RunStopped):
            await self.collect()
        await clean_up(self._context)

    async def enrolling(self, caller: Caller, *, resume_parked: bool) -> Enrolment:
        """Where batch stages ask in this invocation. `resume_parked`: what was left for the user is gone on with."""
        forms = await self._context.forms(self._context.run)
        self._enrolment = Enrolment(
            forms, self, caller, self._context.ledger, self._context.stop_signal, self._budget,
            live=self._batched_tasks.live, quoting=self._batched_tasks.quoting, resume_parked=resume_parked,
        )  # fmt: skip
        return self._enrolment

    async def look_up(self) -> None:
        """Answers the enrolment's questions until cancelled."""
        await self._batched_tasks.run()

    @property
    def held_back(self) -> int:
        """Tasks for which a budget had no room."""
        return self._enrolment.held_back if self._enrolment is not None else 0

    def begin_again(self) -> bool:
        """Rows are walked once more: whether for some tasks a budget had no room the last time."""
        held_back = self.held_back > 0
        if self._enrolment is not None:
            self._enrolment.held_back = 0
        return held_back

    def close_all(self) -> None:
        """Nothing more is enrolled for now."""
        if self._enrolment is not None:
            self._enrolment.close()

    def stop_at_limit(self) -> None:
        """Nothing is open that could make room in the budget for what was held back."""
        if self._budget is not None:
            self._budget.stop_at_limit()

    async def begin(self, form: BatchFormat, first: bytes) -> OpenBatch:
        """A new batch to be filled (`enrol.Planner`)."""
        context = self._context
        account = context.accounts.of(form.model.provider.name)
        record = await self._journal.plan(
            form, first, run=context.run, event=context.event, account=account.mark, base_url=account.base_url
        )
        load = await lane_load(context.database, record, account.mark, context.clocks.wall() - CAP_KEPT)
        caps = [cap for cap in (load.cap, account.provider.limits.enqueued_tokens) if cap is not None]
        most = form.max_requests
        if account.traits.finds_by == "count" and most > 10 * FEWER:
            most -= record.id % FEWER
        spool = Spool(context.path(record))
        filling = OpenBatch(record.id, record.intent, form, spool, most, form.max_bytes, min(caps, default=None))
        self._open_batches[record.id] = filling
        return filling

    def close(self, filling: OpenBatch) -> None:
        """One is full (`enrol.Planner`)."""
        self._closed.put_nowait(filling)

    async def work(self) -> None:
        """Builds and submits what is full, until cancelled; a step that was begun is ended by the next command."""
        while True:
            filling = await self._closed.get()
            try:
                await self._build(filling)
            except RunStopped:
                _log.info("batch %d is not submitted: the run stops", filling.batch)
            finally:
                self._closed.task_done()

    async def _build(self, filling: OpenBatch) -> None:
        """Its tasks are committed first, then its file is brought to the disk, then both are declared whole."""
        await self._context.ledger.durable()
        if not filling.spool.lines:  # a budget had room when it was opened, and none when it was filled
            await self._empty(filling)
            return
        sha256 = await asyncio.to_thread(filling.spool.finish)
        self._open_batches.pop(filling.batch, None)
        record = await self._journal.built(
            filling.batch, tasks=filling.spool.lines, size=filling.spool.bytes, tokens=filling.tokens, sha256=sha256,
            held=filling.held, deadline=self._submitter.day_deadline(filling.form),
        )  # fmt: skip
        if self._may_submit is None:
            self._may_submit = not await self.stale()
        if self._may_submit:
            await self._submit(record)

    async def _empty(self, filling: OpenBatch) -> None:
        self._open_batches.pop(filling.batch, None)
        filling.spool.drop()
        record = await read_batch(self._context.database, filling.batch)
        if record is not None:
            await self._journal.release(record, BatchStep.NOT_CREATED, "batch", "nothing was written into it")

    async def _too_late(self, record: BatchRecord) -> bool:
        """Whether a batch met its deadline before there was room for it: then its tasks are called."""
        due = record.deadline is not None and self._context.clocks.wall() >= record.deadline
        if not due or record.state not in UNSENT or record.run_id != self._context.run:
            return False
        form = await self._context.form(record)
        if form is None or form.rules.on_deadline != "sync":
            return False
        note = "its deadline came before there was room for it: its tasks are called"
        self._give_back(await self._journal.release(record, BatchStep.NOT_CREATED, "sync", note))
        self._released = True
        return True

    async def _let_go(self, waiting: Sequence[BatchRecord]) -> None:
        """Nobody said yes: what was not sent waits for the next time that somebody runs the workflow."""
        for record in waiting:
            if record.run_id == self._context.run and record.state in UNSENT:
                note = "its user did not want it submitted beside others that are open"
                self._give_back(await self._journal.release(record, BatchStep.NOT_CREATED, "run", note))

    async def stale(self) -> Stale:
        """Open batches with tasks that nobody wants any more: those of other runs of the workflow, and those of this
        run where its rows changed."""
        await self._context.ledger.durable()
        database, run = self._context.database, self._context.run
        found = []
        changed = self._had_open and self._takes_over  # who retrieves looks at no input
        sent = [one.submitted_at for one in await batches_of_run(database, run) if one.submitted_at is not None]
        for number, count in await stale_tasks(database, run, self._context.workflow):
            record = await read_batch(database, number)
            # beside which something of this run was submitted already: somebody said yes to that
            if record is not None and not any(at > record.planned_at for at in sent):
                found.append((record, count))
        for number, count in await outdated_tasks(database, run) if changed else ():
            record = await read_batch(database, number)
            if record is not None:
                found.append((record, count))
        return [(record, count) for record, count in found if record.state in WAITING | AT_PROVIDER]

    async def _submit(self, record: BatchRecord) -> None:
        after = await self._submitter.send(record)
        self._released = self._released or after.state == BatchStep.NOT_CREATED
        self._give_back(after)
        if after.state == BatchStep.SUBMITTED and record.state != after.state:
            self.done.submitted.append(after.id)
        self.done.moved = self.done.moved or after.state != record.state

    async def submit(self) -> None:
        """Everything that was filled, and what waited before; as far as there is room."""
        with suppress(RunStopped):
            await self._built()
            waiting = await self._of(WAITING)
            if not waiting:
                return
            if not self._may_submit:
                self.done.stale = await self.stale()
                try:
                    self._may_submit = not self.done.stale or await self._confirm_stale(self.done.stale)
                except AgacError as error:
                    self._context.stop_signal.refuse(error)
                    await self._let_go(waiting)
            for record in waiting:
                if await self._too_late(record):
                    continue
                if record.run_id == self._context.run:
                    if self._may_submit or record.state == BatchStep.CREATE_INTENT:
                        await self._submit(record)
                elif record.state == BatchStep.CREATE_INTENT:
                    await self._submitter.look_for(record)
            await clean_up(self._context)

    def _give_back(self, record: BatchRecord) -> None:
        """What was set aside for a batch that never ran is free again."""
        if self._budget is not None and record.state in (BatchStep.NOT_CREATED, BatchStep.REJECTED):
            self._budget.ingested(record.id, NOTHING)

    async def _built(self) -> None:
        """Waits until everything that was filled is built and on its way; no longer once a user insists on the end."""
        ends = [asyncio.ensure_future(one) for one in (self._closed.join(), self._context.stop_signal.forced.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ends:
                one.cancel()

    async def collect(self) -> bool:
        """Looks at every batch at its provider once and takes in what has ended: whether anything was ingested."""
        ingested = False
        for record in await self._of(AT_PROVIDER | {BatchStep.INGESTED}):
            if self._only_batch is not None and record.id != self._only_batch:
                continue
            try:
                after = await self._collector.collect(record)
            except AgacError as error:
                if record.run_id == self._context.run and record.state in AT_PROVIDER:
                    raise
                _log.warning("batch %d of run %d is left: %s", record.id, record.run_id, error.message)
                continue
            self._give_back(after)
            if after.state != record.state or after.attempt != record.attempt:
                self.done.moved = True
            if record.ingested_at is None and after.ingested_at is not None:
                self.done.ingested.append(after.id)
                ingested = True
            ingested = ingested or after.state in (BatchStep.REJECTED, BatchStep.NOT_CREATED)
        return ingested

    async def complete(self, walk: Callable[[], Awaitable[None]]) -> None:
        """Submits what was filled; with `stays` waits for it, takes in what ends and `walk`s the rows on, until nothing
        is open or the run stops. Raises Halted then."""
        wait = 0.0
        while True:
            await self.submit()
            if self._context.stop_signal.stop is not None or self._context.stop_signal.error is not None:
                return
            if self._released:  # one was cut, or its file was spoiled: its tasks go into others
                self._released = False
                await walk()
                continue
            if not self._context.wait:
                return
            if await self.collect():
                wait = 0.0
                await walk()
                continue
            if not await self._anything_to_wait_for():
                return
            wait = min(max(SHORTEST_POLL, wait * 1.5), LONGEST_POLL) if self._poll is None else self._poll
            await self._context.stop_signal.sleep(wait * (1 + 0.1 * self._context.clocks.jitter()))

    async def _anything_to_wait_for(self) -> bool:
        """Whether batches are open of which this run, or a row of it, waits for something."""
        found = await self._of(AT_PROVIDER | (WAITING if self._may_submit else frozenset()))
        if any(record.run_id == self._context.run for record in found):
            return True
        return bool(found) and await rows_in_batches(self._context.database, self._context.run) > 0

    async def any_open(self) -> bool:
        """Whether a batch of this run is on its way, or not yet ingested."""
        return any(record.run_id == self._context.run for record in await self._of(WAITING | AT_PROVIDER))

    async def _of(self, steps: frozenset[BatchStep]) -> list[BatchRecord]:
        found = await unfinished_batches(self._context.database, self._context.workflow)
        return [record for record in found if record.state in steps]

    def drop(self) -> None:
        """What is half filled when an invocation stops is enrolled again by the next one."""
        for filling in self._open_batches.values():
            filling.spool.drop()
        self._open_batches.clear()


async def clean_up(context: BatchContext) -> None:
    """Removes what lies at providers, and on this machine, of batches that never ran."""
    for record in await untidy_batches(context.database, context.workflow):
        assert record.file_id is not None
        try:
            fault = await context.account(record).api.delete(file=record.file_id)
        except AgacError as error:  # its provider is not to be had any more, and nothing hangs on it
            why = error.message
        else:
            if fault is None:
                await context.journal.tidied(record)
                continue
            why = fault.message
        _log.warning("batch %d: %s is left at %s: %s", record.id, record.file_id, record.provider, why)
    await remove_old_files(context)


async def remove_old_files(context: BatchContext) -> None:
    """Removes what lies on this machine of batches that are over, whichever way; strange lines stay as long as the
    store knows the batch. Files of others that are being filled belong to batches that the store knew before."""
    files = list(context.folder.glob("*")) if context.folder.is_dir() else []
    needed, known = await intents(context.database)  # after the files: who fills one is in the store before it
    for file in files:
        wanted = known if file.name.endswith(STRANGE) else needed
        if file.name.partition(".")[0] not in wanted:
            file.unlink(missing_ok=True)


def batch_counts(record: BatchRecord) -> dict[str, int | str | None]:
    """What came of an ingested batch, for whoever shows it."""
    counts = counts_of(record)
    return {
        "id": record.id,
        "provider_id": record.provider_id,
        **{kind: counts.get(kind, 0) for kind in ("done", "failed", "again", "missing", "cancelled", "expired")},
        **{kind: counts.get(kind, 0) for kind in ("duplicate", "unknown", "malformed")},
    }


async def has_batches(database: Database, plan: Plan) -> bool:
    """Whether a workflow has a batch stage, or ever had a batch."""
    return any(stage.run_mode == "batch" for stage in plan.asking) or await was_batched(database, plan.workflow)


@asynccontextmanager
async def batches_of(invocation: InvocationContext) -> AsyncIterator[Batches | None]:
    """The batches of an invocation's workflow; None where rows cannot wait for any."""
    if not invocation.batched:
        yield None
        return
    work, plan, batching, (database, run, event) = (
        invocation.work,
        invocation.plan,
        invocation.work.batching,
        invocation.places,
    )
    formats = {run: batch_formats(plan, work.redactor)}
    async with batch_context(
        database, invocation.ledger, batching, work.redactor, work.clocks, invocation.stop_signal,
        workflow=plan.workflow, run=run, event=event, formats=formats,
    ) as context:  # fmt: skip
        polls = [stage.batch.poll_interval for stage in plan.asking if stage.batch.poll_interval is not None]
        batches = Batches(
            context,
            invocation.budgets,
            invocation.totals,
            confirm_stale=batching.confirm_stale,
            only_batch=batching.only_batch,
            poll=min(polls, default=None),
            takes_over=batching.resume_run is None,
        )
        try:
            yield batches
        finally:
            batches.drop()
