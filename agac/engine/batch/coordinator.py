"""All batches of one invocation: filled while rows walk, submitted in the background, ingested
when they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from agac.core.errors import AgacError
from agac.engine.ask.agent import Agents
from agac.engine.ask.caller import Caller
from agac.engine.ask.limits import NOTHING, Amount
from agac.engine.batch.enrol import Enrolment, OpenBatch
from agac.engine.batch.ingest import STRANGE
from agac.engine.batch.lifecycle import BatchContext
from agac.engine.batch.poll import NOT_CANCELLED, collect
from agac.engine.batch.submit import deadline, look_for, send
from agac.engine.context import InvocationContext
from agac.engine.stop_rules import RunStopped
from agac.plan.plan import Plan
from agac.store import batches
from agac.store.batches import AT_PROVIDER, WAITING, BatchRecord, BatchStep
from agac.store.db import Database

# The order of an invocation: what earlier ones left is put right, what has ended is ingested, rows
# are walked (and enrol), what is full is submitted meanwhile, the rest at the end. With `wait` this
# is repeated until nothing is open.

_log = logging.getLogger("agac.batch")

SHORTEST_POLL = 15.0  # seconds between two looks at open batches, growing while nothing moves
LONGEST_POLL = 300.0

# what becomes of tasks whose user ended their batch: nothing, before the user runs the workflow
# again
ENDED = "run"
ENDED_UNSENT = "its user ended it before it was created"

UNSENT = frozenset({BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED})
"""Steps at which nothing of a batch can cost anything."""

Stale = list[tuple[BatchRecord, int]]
"""Batches of other runs with the number of tasks in them that this run does not want."""


@dataclass(slots=True)
class BatchActivity:
    """What became of batches in an invocation, by their numbers."""

    submitted: list[int] = field(default_factory=list)
    ingested: list[int] = field(default_factory=list)
    moved: bool = False
    stale: Stale = field(default_factory=list)
    any_open: bool = False  # whether batches of the run were open when it ended
    touched: bool = False  # whether the workflow has batches at all


class Batches:
    """The batches of a workflow in one invocation. `poll`: seconds between looks at open batches,
    None: growing; `reads_input`: whether all rows are walked as the input has them now;
    `enrolment`: where batch stages ask."""

    def __init__(
        self, context: BatchContext, enrolment: Enrolment, poll: float | None, *, reads_input: bool
    ) -> None:
        self._context = context
        self._journal = context.journal
        self._poll = poll
        self._reads_input = reads_input
        self._may_submit: bool | None = None
        self._had_open = self._released = False
        self.enrolment = enrolment
        self.done = BatchActivity(touched=True)

    async def recover(self) -> None:
        """Puts right what an earlier invocation left, and takes in what has ended."""
        context = self._context
        for record in await batches.unfinished_batches(context.database, context.workflow):
            own = record.run_id == context.run
            self._had_open = self._had_open or own
            if record.state in UNSENT and (note := self._not_to_be_sent(record)) is not None:
                await self._journal.release(record, "run", note)
                continue
            if record.state == BatchStep.PLANNED:
                await give_up_torn(context, record)
            elif (
                context.budget is not None
                and context.plan is not None
                and own
                and record.ingested_at is None
            ):
                amount = Amount(record.held_usd, record.held_tokens, record.tasks)
                context.budget.load(record.id, context.plan.stages[record.stage].name, amount)
            if own and self._reads_input and record.state in WAITING:
                self.enrolment.asked[record.id] = bytearray(record.tasks // 8 + 1)
        with suppress(RunStopped):
            await self._collect()
        await clean_up(context)

    def _not_to_be_sent(self, record: BatchRecord) -> str | None:
        """Why a batch that an earlier invocation left unsent is dropped: its tasks are run as the
        stage is now."""
        context = self._context
        if record.cancel_at is not None:
            return ENDED_UNSENT
        if not context.has_account(record.provider):
            return f"{record.provider} has no batches any more"
        if context.batching.resume_run is not None:
            return None
        if record.run_id != context.run:
            return "another run of the workflow went on before it was submitted"
        assert context.plan is not None
        called = self._reads_input and context.plan.stages[record.stage].run_mode == "sync"
        return "its stage runs by calls now" if called else None

    async def work(self) -> None:
        """Builds and submits what is full, until cancelled; a step that was begun is ended by the
        next command."""
        full = self.enrolment.full
        while True:
            filling = await full.get()
            try:
                await self._build(filling)
            except RunStopped:
                _log.info("batch %d is not submitted: the run stops", filling.record.id)
            finally:
                full.task_done()

    async def _build(self, filling: OpenBatch) -> None:
        """Its tasks are committed first, then its file is brought to the disk, then both are
        declared whole."""
        await self._context.ledger.durable()
        spool = filling.spool
        if not spool.lines:  # a budget had room when it was opened, and none when it was filled
            spool.drop()
            await self._journal.release(filling.record, "batch", "nothing was written into it")
            return
        sha256 = await asyncio.to_thread(spool.finish)
        record = await self._journal.write(
            filling.record,
            "built",
            tasks=spool.lines,
            bytes=spool.bytes,
            tokens=filling.tokens,
            sha256=sha256,
            usd=filling.held.usd,
            held_tokens=filling.held.tokens,
            deadline=deadline(self._context, filling.form, day_only=True),
        )
        if self._may_submit is None:
            self._may_submit = not await self._stale()
        if self._may_submit:
            await self._submit(record)

    async def _dropped(self, record: BatchRecord) -> bool:
        """Releases a batch of this run that was not sent and is not to be; returns True if so."""
        if record.state not in UNSENT or record.run_id != self._context.run:
            return False
        ending = await self._ending_unsent(record)
        if ending is None:
            return False
        then_do, note = ending
        self._give_back(await self._journal.release(record, then_do, note))
        self._released = True
        return True

    async def _ending_unsent(self, record: BatchRecord) -> tuple[str, str] | None:
        """Returns what is next for the tasks of a batch that is not to be sent, and why it is not.

        None: it is to be sent."""
        asked = self.enrolment.asked.pop(record.id, None)
        if await self._context.is_due(record):
            return "sync", "its deadline came before there was room for it: its tasks are called"
        if record.cancel_at is not None:
            return ENDED, ENDED_UNSENT
        if asked is not None and int.from_bytes(asked, "big").bit_count() < record.tasks:
            return "batch", "rows changed before it was submitted: what they need goes into another"
        if record.primer is not None:
            return "batch", "an older version wrote it for a cache: its tasks go into another"
        return None

    async def _stale(self) -> Stale:
        """Open batches with tasks no longer needed: of other runs of the workflow, or of this
        one's changed rows."""
        context = self._context
        await context.ledger.durable()
        database = context.database
        run = context.run
        sent = [
            one.submitted_at
            for one in await batches.batches_of_run(database, run)
            if one.submitted_at is not None
        ]
        # who retrieves looks at no input
        changed = self._had_open and context.batching.resume_run is None
        others = await batches.stale_tasks(database, run, context.workflow)
        own = await batches.outdated_tasks(database, run) if changed else []
        found = []
        for number, count in [*others, *own]:
            record = await batches.read_batch(database, number)
            if record.state not in WAITING | AT_PROVIDER:
                continue
            # it is not sent as it is
            if record.run_id == run and self._reads_input and record.state in UNSENT:
                continue
            # unless something of this run was submitted next to it already: that was confirmed
            if record.run_id == run or not any(at > record.planned_at for at in sent):
                found.append((record, count))
        return found

    async def ask_for_ends(self, numbers: Sequence[int]) -> None:
        """Asks the providers for the ends of batches for which that was decided, where they have
        them; what could not be asked is asked by the next look at it, and what they have not got
        yet is not submitted."""
        for number in numbers:
            record = await batches.read_batch(self._context.database, number)
            if record.state == BatchStep.SUBMITTED and record.provider_id is not None:
                try:
                    fault = await self._context.account(record.provider).api.cancel(
                        record.provider_id
                    )
                    why = fault.message if fault is not None else ""
                except AgacError as error:
                    why = error.message
                if why:
                    _log.warning("batch %d: %s%s", number, NOT_CANCELLED, why)

    async def _submit(self, record: BatchRecord) -> None:
        if record.cancel_at is not None and await self._dropped(record):
            return
        self._note(record, await send(self._context, record))

    def _note(self, record: BatchRecord, after: BatchRecord) -> None:
        """What became of a batch on its way to the provider."""
        self._released = self._released or after.state in (
            BatchStep.NOT_CREATED,
            BatchStep.REJECTED,
        )
        self._give_back(after)
        if after.state == BatchStep.SUBMITTED and record.state != after.state:
            self.done.submitted.append(after.id)
        self.done.moved = self.done.moved or after.state != record.state

    async def submit(self) -> None:
        """Everything that was filled, and what waited before; as far as there is room."""
        context = self._context
        with suppress(RunStopped):
            # until all that was filled is built and on its way; no longer once a user insists on
            # the end
            waits = (self.enrolment.full.join(), self._context.stop_signal.forced.wait())
            ends = [asyncio.ensure_future(one) for one in waits]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in ends:
                    one.cancel()
            waiting = await self._of(WAITING)
            if not waiting:
                await clean_up(context)  # of what was refused since
                return
            if not self._may_submit:
                self.done.stale = await self._stale()
                try:
                    self._may_submit = not self.done.stale or await context.batching.confirm_stale(
                        self.done.stale
                    )
                except AgacError as error:
                    context.stop_signal.refuse(error)
                    # what was not sent waits for the next `agac run`
                    for record in waiting:
                        if record.run_id == context.run and record.state in UNSENT:
                            note = "its user did not want it submitted beside others that are open"
                            self._give_back(await self._journal.release(record, "run", note))
            for record in waiting:
                context.stop_signal.check()
                own = record.run_id == context.run
                found = record
                if record.state == BatchStep.CREATE_INTENT:
                    found = await look_for(context, record)
                    if own:
                        self._note(record, found)
                if await self._dropped(found):
                    continue
                if (
                    own
                    and found.state in UNSENT
                    and (self._may_submit or found.state != record.state)
                ):
                    await self._submit(found)
            await clean_up(context)

    def _give_back(self, record: BatchRecord) -> None:
        """Frees what was reserved for a batch that never ran."""
        if self._context.budget is not None and record.state in (
            BatchStep.NOT_CREATED,
            BatchStep.REJECTED,
        ):
            self._context.budget.ingested(record.id, NOTHING)

    async def _collect(self) -> bool:
        """Looks at every batch at its provider once and takes in what has ended: whether anything
        was ingested."""
        ingested = False
        for record in await self._of(AT_PROVIDER | {BatchStep.INGESTED}):
            if self._context.batching.only_batch not in (None, record.id):
                continue
            try:
                after = await collect(self._context, record)
            except AgacError as error:
                if record.run_id == self._context.run and record.state in AT_PROVIDER:
                    raise
                _log.warning(
                    "batch %d of run %d is left: %s", record.id, record.run_id, error.message
                )
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
        """Submits what was filled; with `wait` goes on until nothing is open. Raises RunStopped
        when the run stops."""
        wait = 0.0
        while not self._context.batching.only_takes:
            await self.submit()
            if (
                self._context.stop_signal.stop is not None
                or self._context.stop_signal.error is not None
            ):
                return
            if self._released:  # one was cut, or its file was spoiled: its tasks go into others
                self._released = False
                await walk()
                continue
            if not self._context.batching.wait:
                return
            if await self._collect():
                wait = 0.0
                await walk()
                continue
            if not await self._anything_to_wait_for():
                return
            if self._poll is None:
                wait = min(max(SHORTEST_POLL, wait * 1.5), LONGEST_POLL)
            else:
                wait = self._poll
            await self._context.stop_signal.sleep(wait * (1 + 0.1 * self._context.clocks.jitter()))

    async def _anything_to_wait_for(self) -> bool:
        """Whether batches are open of which this run, or a row of it, waits for something."""
        found = await self._of(AT_PROVIDER | (WAITING if self._may_submit else frozenset()))
        if any(record.run_id == self._context.run for record in found):
            return True
        return (
            bool(found)
            and await batches.rows_in_batches(self._context.database, self._context.run) > 0
        )

    async def any_open(self) -> bool:
        """Whether a batch of this run is on its way, or not yet ingested."""
        return any(
            record.run_id == self._context.run for record in await self._of(WAITING | AT_PROVIDER)
        )

    async def _of(self, steps: frozenset[BatchStep]) -> list[BatchRecord]:
        found = await batches.unfinished_batches(self._context.database, self._context.workflow)
        return [record for record in found if record.state in steps]


async def give_up_torn(context: BatchContext, record: BatchRecord) -> str:
    """Ends a batch that is PLANNED while no process fills it: its file is torn, no provider has
    it. Returns why."""
    note = "the command that filled it ended before it was whole"
    await context.journal.release(record, "batch", note)
    return note


async def clean_up(context: BatchContext) -> None:
    """Removes the files of batches that never ran at providers, and on this machine those of
    batches that are over, whichever way; strange lines stay as long as the store knows the batch.
    Files of others that are being filled belong to batches that the store knew before."""
    for record in await batches.untidy_batches(context.database, context.workflow):
        assert record.file_id is not None
        try:
            fault = await context.account(record.provider).api.delete(record.file_id)
        except (
            AgacError
        ) as error:  # its provider is not to be had any more, and nothing hangs on it
            why = error.message
        else:
            if fault is None:
                await context.journal.write(record, "cleaned")
                continue
            why = fault.message
        _log.warning(
            "batch %d: %s is left at %s: %s", record.id, record.file_id, record.provider, why
        )
    folder = context.batching.folder
    files = list(folder.glob("*")) if folder.is_dir() else []
    # after the files: who fills one is in the store before it
    needed, known = await batches.intents(context.database)
    for file in files:
        wanted = known if file.name.endswith(STRANGE) else needed
        if file.name.partition(".")[0] not in wanted:
            file.unlink(missing_ok=True)


def batch_counts(record: BatchRecord) -> dict[str, int | str | None]:
    """The results of an ingested batch by kind, for reports."""
    kinds = (
        "done",
        "failed",
        "again",
        "missing",
        "cancelled",
        "expired",
        "duplicate",
        "unknown",
        "malformed",
    )
    return {"id": record.id, "provider_id": record.provider_id} | {
        k: (record.counts or {}).get(k, 0) for k in kinds
    }


async def has_batches(database: Database, plan: Plan) -> bool:
    """Whether a workflow has a batch stage, or ever had a batch."""
    return any(stage.run_mode == "batch" for stage in plan.asking) or await batches.was_batched(
        database, plan.workflow
    )


@asynccontextmanager
async def batches_of(
    invocation: InvocationContext, caller: Caller, agents: Agents | None
) -> AsyncIterator[Batches | None]:
    """The batches of an invocation's workflow; None where rows cannot wait for any. What is half
    filled at the end is enrolled again by the next invocation."""
    if not invocation.batched:
        yield None
        return
    work, plan, (database, run, event) = invocation.work, invocation.plan, invocation.places
    context = BatchContext(
        database,
        invocation.ledger,
        work.batching,
        work.redactor,
        work.clocks,
        invocation.stop_signal,
        workflow=plan.workflow,
        run=run,
        event=event,
        totals=invocation.totals,
        keys=invocation.keys,
        plan=plan,
        budget=invocation.budgets,
        proof=invocation.proof,
        traces=invocation.traces,
    )
    context.journal.notifier = invocation.notifier
    polls = [
        stage.batch.poll_interval for stage in plan.asking if stage.batch.poll_interval is not None
    ]
    reads_input = work.retry is None and work.batching.resume_run is None
    enrolment = Enrolment(context, caller, agents)
    opened = Batches(context, enrolment, min(polls, default=None), reads_input=reads_input)
    try:
        yield opened
    finally:
        opened.enrolment.drop()
        await context.close()
