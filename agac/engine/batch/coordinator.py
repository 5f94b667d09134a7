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

ENDED = "run"
"""The next step of tasks whose user ended their batch: they wait until the user runs the workflow
again."""

ENDED_UNSENT = "its user ended it before it was created"

UNSENT = frozenset({BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED})
"""Steps at which nothing of a batch can cost anything."""

NEVER_RAN = (BatchStep.NOT_CREATED, BatchStep.REJECTED)
"""Steps of batches that their providers did not run."""

Stale = list[tuple[BatchRecord, int]]
"""Batches of other runs with the number of tasks in them that this run does not want."""


@dataclass(slots=True)
class BatchActivity:
    """The batches that changed in an invocation."""

    submitted: list[int] = field(default_factory=list)
    """The numbers of the batches that were submitted."""

    ingested: list[int] = field(default_factory=list)
    """The numbers of the batches whose results were taken in."""

    moved: bool = False
    """True if a batch changed its state."""

    stale: Stale = field(default_factory=list)
    """The stale batches for which the user was asked."""

    any_open: bool = False
    """True if batches of the run were open when the invocation ended."""

    touched: bool = False
    """True if the workflow has batches at all."""


class Batches:
    """Submits, follows and ingests the batches of a workflow in one invocation."""

    def __init__(
        self, context: BatchContext, enrolment: Enrolment, poll: float | None, *, reads_input: bool
    ) -> None:
        """`enrolment` is where batch stages ask. `poll`: seconds between two looks at open
        batches; None: a growing pause. `reads_input`: True if all rows are walked as the input has
        them now."""
        self._context = context
        self._journal = context.journal
        self._poll = poll
        self._reads_input = reads_input
        self._may_submit: bool | None = None
        self._had_open = False
        """True if this run had unfinished batches when the invocation began."""
        self._released = False
        """True if tasks of a batch are to go into another since rows were last walked."""
        self.enrolment = enrolment
        self.done = BatchActivity(touched=True)

    async def recover(self) -> None:
        """Repairs what an earlier invocation left, and takes in the batches that have ended."""
        context = self._context
        for record in await batches.unfinished_batches(context.database, context.workflow):
            if record.run_id == context.run:
                self._had_open = True
            await self._recover_batch(record)
        with suppress(RunStopped):
            await self._collect()
        await clean_up(context)

    async def _recover_batch(self, record: BatchRecord) -> None:
        """Drops an unfinished batch, or keeps it with what it holds of the budget."""
        if record.state in UNSENT:
            note = self._reason_to_drop(record)
            if note is not None:
                await self._journal.release(record, "run", note)
                return
        if record.state == BatchStep.PLANNED:
            await give_up_torn(self._context, record)
        else:
            self._reserve_again(record)
        is_of_this_run = record.run_id == self._context.run
        if is_of_this_run and self._reads_input and record.state in WAITING:
            self.enrolment.wanted_lines[record.id] = bytearray(record.tasks // 8 + 1)

    def _reserve_again(self, record: BatchRecord) -> None:
        """Reserves what a batch of this run may cost, if it was not ingested yet."""
        budget = self._context.budget
        plan = self._context.plan
        if budget is None or plan is None:
            return
        if record.run_id == self._context.run and record.ingested_at is None:
            amount = Amount(record.held_usd, record.held_tokens, record.tasks)
            budget.load(record.id, plan.stages[record.stage].name, amount)

    def _reason_to_drop(self, record: BatchRecord) -> str | None:
        """Returns why a batch that an earlier invocation left unsent is dropped.

        Its tasks are then run as the stage is now. None: the batch stays."""
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
        if self._reads_input and context.plan.stages[record.stage].settings.run_mode == "sync":
            return "its stage runs by calls now"
        return None

    async def work(self) -> None:
        """Builds and submits full batches until it is cancelled.

        The next command finishes a step that was begun."""
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
        """Commits the tasks of a full batch, then writes its file, then records that both are
        complete."""
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
        """Releases a batch of this run that is not to be sent any more; returns True if so."""
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
        """Returns the next step of the tasks of a batch that is not to be sent, and the reason.

        None: the batch is to be sent."""
        wanted = self.enrolment.wanted_lines.pop(record.id, None)
        if await self._context.is_due(record):
            return "sync", "its deadline came before there was room for it: its tasks are called"
        if record.cancel_at is not None:
            return ENDED, ENDED_UNSENT
        if wanted is not None and int.from_bytes(wanted, "big").bit_count() < record.tasks:
            return "batch", "rows changed before it was submitted: what they need goes into another"
        if record.primer is not None:
            return "batch", "an older version wrote it for a cache: its tasks go into another"
        return None

    async def _stale(self) -> Stale:
        """Finds open batches with tasks that are no longer needed, because they belong to another
        run of the workflow, or because rows of this run changed."""
        context = self._context
        await context.ledger.durable()
        database = context.database
        run = context.run
        submitted = [
            record.submitted_at
            for record in await batches.batches_of_run(database, run)
            if record.submitted_at is not None
        ]
        counts = await batches.stale_tasks(database, run, context.workflow)
        # an invocation that retrieves does not look at the input
        if self._had_open and context.batching.resume_run is None:
            counts = [*counts, *await batches.outdated_tasks(database, run)]
        stale = []
        for number, count in counts:
            record = await batches.read_batch(database, number)
            if self._is_stale(record, submitted):
                stale.append((record, count))
        return stale

    def _is_stale(self, record: BatchRecord, submitted: Sequence[float]) -> bool:
        """True if an open batch is reported before another is submitted.

        `submitted`: when batches of this run were submitted."""
        if record.state not in WAITING | AT_PROVIDER:
            return False
        if record.run_id == self._context.run:
            # an unsent one is filled again instead, if the input is read
            return not (self._reads_input and record.state in UNSENT)
        # whatever this run submitted after it was planned was confirmed with it in view
        return not any(at > record.planned_at for at in submitted)

    async def ask_for_ends(self, numbers: Sequence[int]) -> None:
        """Asks the providers to end these batches, which was decided before.

        A request that fails is repeated by the next look at the batch. A batch that its provider
        does not have yet is not submitted."""
        for number in numbers:
            record = await batches.read_batch(self._context.database, number)
            if record.state == BatchStep.SUBMITTED and record.provider_id is not None:
                problem = await self._cancel(record.provider, record.provider_id)
                if problem:
                    _log.warning("batch %d: %s%s", number, NOT_CANCELLED, problem)

    async def _cancel(self, provider: str, provider_id: str) -> str:
        """Asks a provider to cancel a batch. Returns why that failed; empty: it did not."""
        try:
            fault = await self._context.account(provider).api.cancel(provider_id)
        except AgacError as error:
            return error.message
        return "" if fault is None else fault.message

    async def _submit(self, record: BatchRecord) -> None:
        if record.cancel_at is not None and await self._dropped(record):
            return
        self._note(record, await send(self._context, record))

    def _note(self, record: BatchRecord, after: BatchRecord) -> None:
        """Notes what changed of a batch while it was submitted or looked for."""
        if after.state in NEVER_RAN:
            self._released = True
        self._give_back(after)
        if after.state != record.state:
            self.done.moved = True
            if after.state == BatchStep.SUBMITTED:
                self.done.submitted.append(after.id)

    async def submit(self) -> None:
        """Submits the batches that were filled, and those that waited, as far as there is room."""
        context = self._context
        with suppress(RunStopped):
            await self._until_built()
            waiting = await self._in_state(WAITING)
            if not waiting:
                await clean_up(context)  # of what was refused since
                return
            if not self._may_submit:
                await self._ask_about_stale(waiting)
            for record in waiting:
                context.stop_signal.check()
                await self._submit_waiting(record)
            await clean_up(context)

    async def _until_built(self) -> None:
        """Waits until all that was filled is built and submitted, or the user insists on the
        end."""
        waits = (self.enrolment.full.join(), self._context.stop_signal.forced.wait())
        futures = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in futures:
                future.cancel()

    async def _ask_about_stale(self, waiting: Sequence[BatchRecord]) -> None:
        """Asks the user whether batches may be submitted next to stale ones, if there are any.

        If that is refused, the run stops, and the tasks of unsent batches wait for the next
        `agac run`."""
        context = self._context
        self.done.stale = await self._stale()
        if not self.done.stale:
            self._may_submit = True
            return
        try:
            self._may_submit = await context.batching.confirm_stale(self.done.stale)
        except AgacError as error:
            context.stop_signal.refuse(error)
            for record in waiting:
                if record.run_id == context.run and record.state in UNSENT:
                    note = "its user did not want it submitted beside others that are open"
                    self._give_back(await self._journal.release(record, "run", note))

    async def _submit_waiting(self, record: BatchRecord) -> None:
        """Submits a batch of this run that waited; one of another run is only looked for."""
        is_of_this_run = record.run_id == self._context.run
        current = record
        if record.state == BatchStep.CREATE_INTENT:
            current = await look_for(self._context, record)
            if is_of_this_run:
                self._note(record, current)
        if await self._dropped(current):
            return
        # a batch whose creation was confirmed, and which the provider does not have, may be sent
        may_be_sent = self._may_submit or current.state != record.state
        if is_of_this_run and may_be_sent and current.state in UNSENT:
            await self._submit(current)

    def _give_back(self, record: BatchRecord) -> None:
        """Frees what was reserved for a batch that never ran."""
        if self._context.budget is not None and record.state in NEVER_RAN:
            self._context.budget.ingested(record.id, NOTHING)

    async def _collect(self) -> bool:
        """Looks once at every batch that its provider has, and takes in those that have ended.

        Returns True if tasks have results or are to be asked again."""
        changed = False
        for record in await self._in_state(AT_PROVIDER | {BatchStep.INGESTED}):
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
                changed = True
            if after.state in NEVER_RAN:
                changed = True
        return changed

    async def complete(self, walk: Callable[[], Awaitable[None]]) -> None:
        """Submits the filled batches. With `wait` it continues until no batch is open.

        `walk` takes rows through their stages once more. Raises RunStopped when the run stops."""
        context = self._context
        pause = 0.0
        while not context.batching.only_takes:
            await self.submit()
            if context.stop_signal.stop is not None or context.stop_signal.error is not None:
                return
            if self._released:  # one was cut, or its file was spoiled: its tasks go into others
                self._released = False
                await walk()
                continue
            if not context.batching.wait:
                return
            if await self._collect():
                pause = 0.0
                await walk()
                continue
            if not await self._anything_to_wait_for():
                return
            if self._poll is None:
                pause = min(max(SHORTEST_POLL, pause * 1.5), LONGEST_POLL)
            else:
                pause = self._poll
            await context.stop_signal.sleep(pause * (1 + 0.1 * context.clocks.jitter()))

    async def _anything_to_wait_for(self) -> bool:
        """True if batches are open for which this run, or one of its rows, waits."""
        steps = AT_PROVIDER | WAITING if self._may_submit else AT_PROVIDER
        records = await self._in_state(steps)
        if any(record.run_id == self._context.run for record in records):
            return True
        if not records:
            return False
        return await batches.rows_in_batches(self._context.database, self._context.run) > 0

    async def any_open(self) -> bool:
        """True if a batch of this run is waiting, at its provider, or not ingested yet."""
        records = await self._in_state(WAITING | AT_PROVIDER)
        return any(record.run_id == self._context.run for record in records)

    async def _in_state(self, steps: frozenset[BatchStep]) -> list[BatchRecord]:
        """Reads the unfinished batches of the workflow that are at one of these steps."""
        records = await batches.unfinished_batches(self._context.database, self._context.workflow)
        return [record for record in records if record.state in steps]


async def give_up_torn(context: BatchContext, record: BatchRecord) -> str:
    """Ends a PLANNED batch that no process fills: its file is incomplete, and no provider has it.

    Returns why."""
    note = "the command that filled it ended before it was whole"
    await context.journal.release(record, "batch", note)
    return note


async def clean_up(context: BatchContext) -> None:
    """Removes files of batches that need them no more, at their providers and on this machine."""
    for record in await batches.untidy_batches(context.database, context.workflow):
        await _delete_at_provider(context, record)
    folder = context.batching.folder
    files = list(folder.glob("*")) if folder.is_dir() else []
    # read after the files: a batch is in the store before its file is begun
    needed, known = await batches.intents(context.database)
    for file in files:
        # strange lines stay as long as the store knows the batch
        wanted = known if file.name.endswith(STRANGE) else needed
        if file.name.partition(".")[0] not in wanted:
            file.unlink(missing_ok=True)


async def _delete_at_provider(context: BatchContext, record: BatchRecord) -> None:
    """Deletes the file of a batch that never ran at its provider, and records that."""
    assert record.file_id is not None
    try:
        fault = await context.account(record.provider).api.delete(record.file_id)
    except AgacError as error:  # the provider cannot be reached any more; nothing needs the file
        problem = error.message
    else:
        if fault is None:
            await context.journal.write(record, "cleaned")
            return
        problem = fault.message
    _log.warning(
        "batch %d: %s is left at %s: %s", record.id, record.file_id, record.provider, problem
    )


def batch_counts(record: BatchRecord) -> dict[str, int | str | None]:
    """Counts the results of an ingested batch by kind, for reports."""
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
        kind: (record.counts or {}).get(kind, 0) for kind in kinds
    }


async def has_batches(database: Database, plan: Plan) -> bool:
    """True if a workflow has a batch stage, or ever had a batch."""
    return any(
        stage.settings.run_mode == "batch" for stage in plan.asking
    ) or await batches.was_batched(database, plan.workflow)


@asynccontextmanager
async def batches_of(
    invocation: InvocationContext, caller: Caller, agents: Agents | None
) -> AsyncIterator[Batches | None]:
    """Opens the batches of an invocation's workflow; None if no row can wait for one.

    The next invocation enrols the tasks of batches again that are half filled at the end."""
    if not invocation.row_facts.batched:
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
        stage.settings.batch.poll_interval
        for stage in plan.asking
        if stage.settings.batch.poll_interval is not None
    ]
    reads_input = work.retry is None and work.batching.resume_run is None
    enrolment = Enrolment(context, caller, agents)
    opened = Batches(context, enrolment, min(polls, default=None), reads_input=reads_input)
    try:
        yield opened
    finally:
        opened.enrolment.drop()
        await context.close()
