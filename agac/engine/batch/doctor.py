"""Works on batches without a run (`agac doctor`): cancels them for the user, compares them with
the provider, adopts them or sends their tasks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agac.core.errors import AgacError, UsageError
from agac.core.redact import Redactor
from agac.core.types import CLOCKS_APART, Fault, Report, dollars
from agac.engine.batch.coordinator import ENDED, ENDED_UNSENT, clean_up, give_up_torn
from agac.engine.batch.lifecycle import BatchContext
from agac.engine.batch.poll import NOT_CANCELLED, cancel, forget_files, observe, take_late
from agac.engine.batch.submit import UNSURE, deadline, look_for, look_once, order_of
from agac.engine.context import accepted_keys
from agac.engine.invocation import Batching, Clocks
from agac.engine.stop_rules import StopSignal
from agac.engine.totals import Totals
from agac.providers.batch import BatchState, ProviderBatch, RemoteFile
from agac.spec.rules import DEFAULT_BATCH
from agac.store.batches import AT_PROVIDER, BatchRecord, BatchStep, BatchView, known_ids, read_batch
from agac.store.db import Database
from agac.store.lease import lease_held
from agac.store.writer import Ledger

NO_RUN = 0
"""The number of a run that there is not."""

PREFIX = "agac-"
"""The beginning of the names of our files at providers."""


@asynccontextmanager
async def batch_maintenance(
    database: Database, workflow: str, batching: Batching, redactor: Redactor, clocks: Clocks
) -> AsyncIterator[BatchContext]:
    """Opens the batches of a workflow for the block, under its lease. Raises LeaseHeld if another
    process has it."""
    async with lease_held(database, workflow, clocks.wall) as lease:
        ledger = Ledger(
            database,
            lease,
            run=NO_RUN,
            event=NO_RUN,
            urge=1,
            clock=clocks.wall,
        )
        stop_signal = StopSignal()
        context = BatchContext(
            database,
            ledger,
            batching,
            redactor,
            clocks,
            stop_signal,
            workflow=workflow,
            run=NO_RUN,
            event=NO_RUN,
            totals=Totals(),
            keys=accepted_keys(database, ledger, stop_signal, clocks.wall),
        )
        # it shows signs of life while a provider takes its time
        beating = asyncio.ensure_future(ledger.run())
        try:
            yield context
        finally:
            beating.cancel()
            await asyncio.wait({beating})
            await context.close()


@dataclass(frozen=True, slots=True)
class Finding(Report):
    """Something to know about a batch or a file."""

    JSON_KEYS = (
        "kind",
        "batch=batch.id",
        "provider_id=batch.provider_id",
        "message",
        "remedy",
        "done",
    )

    kind: str
    """What sort of thing it is, in one word."""

    message: str
    """What was found."""

    batch: BatchRecord | None = None
    """The batch; None: it is about none, or about several."""

    remedy: str | None = None
    """What the user can do, if anything."""

    done: bool = False
    """True if nothing is left to do."""


def has_ended(record: BatchRecord) -> bool:
    """True if a batch that is not ingested has ended at its provider."""
    if record.state != BatchStep.SUBMITTED:
        return record.state in AT_PROVIDER
    return record.status is not None and BatchState(record.status).is_terminal


def stuck_seconds(batch: BatchView, now: float) -> float | None:
    """Returns for how long no count moved of a batch that its provider works on; None if that is
    not too long.

    If the provider reports no counts before the end, the time begins when the batch should have
    ended."""
    if batch.state != BatchStep.SUBMITTED or has_ended(batch):
        return None
    has_counts = batch.done is not None or batch.failed is not None
    since = (batch.moved_at or batch.submitted_at) if has_counts else batch.expires_at
    if since is None or since > now:
        return None
    seconds = round(now - since, 3)
    limit = DEFAULT_BATCH.stuck_after if batch.stuck_after is None else batch.stuck_after
    return seconds if seconds >= limit else None


async def compare(
    context: BatchContext, own: Sequence[BatchRecord], findings: list[Finding], *, clean: bool
) -> None:
    """Compares the batches of a workflow with the providers, and adds what it finds to
    `findings`, which keep what was found before an error.

    `clean` deletes files of ours at the providers that nothing needs."""
    await clean_up(context)
    own = [record for record in own if record.open or context.has_account(record.provider)]
    for record in own:
        findings += await _find_late(context, record)
        current = await read_batch(context.database, record.id)
        if current.open:
            finding = await _look_at(context, current)
            if finding is not None:
                findings.append(finding)
    findings += await _leftovers(context, own, clean=clean)


async def _look_at(context: BatchContext, record: BatchRecord) -> Finding | None:
    """Looks for an open batch that was lost, and says what there is to know of it; None:
    nothing."""
    match BatchStep(record.state):
        case BatchStep.CREATE_INTENT:
            return await _look_for_intended(context, record)
        case BatchStep.NEEDS_HUMAN:
            return await _look_again(context, record)
        case BatchStep.SUBMITTED | BatchStep.TERMINAL:
            seen = await observe(context, record)
            if not isinstance(seen, Fault):
                return None
            message = f"batch {record.id} ({record.provider_id}): {seen.message}"
            remedy = "if it stays so, check that the key is that of the project which submitted it"
            return Finding("not_asked", message, record, remedy=remedy)
        case BatchStep.PLANNED:
            note = await give_up_torn(context, record)
            message = f"batch {record.id}: {note}; its tasks go into another one"
            return Finding("damaged", message, record, done=True)
        case _:
            return None


async def _look_for_intended(context: BatchContext, record: BatchRecord) -> Finding:
    """Looks for a batch that a command was creating when it ended."""
    after = await look_for(context, record)
    if after.state == BatchStep.SUBMITTED:
        return _adopted(after)
    if after.state == BatchStep.NEEDS_HUMAN:
        return _undecided(after)
    if after.state == BatchStep.CREATE_INTENT:
        message = f"batch {after.id} is looked for: {after.note or 'it may still show up'}"
        return Finding("lost", message, after)
    message = f"batch {after.id} was never created at {after.provider}: the next command creates it"
    return Finding("lost", message, after, done=True)


async def _look_again(context: BatchContext, record: BatchRecord) -> Finding:
    """Looks again for a batch that could not be found: perhaps the key is the right one now."""
    if record.provider_id is not None:
        return _undecided(record)
    if context.account(record.provider).provider.account != record.account:
        return _undecided(record)
    after = await look_once(context, record)
    return _adopted(after) if after.state == BatchStep.SUBMITTED else _undecided(record)


def _adopted(record: BatchRecord) -> Finding:
    """Says that a batch was found."""
    message = (
        f"batch {record.id} was found at {record.provider} as {record.provider_id}, and taken over"
    )
    return Finding("adopted", message, record, done=True)


def _undecided(record: BatchRecord) -> Finding:
    """Says that the user has to decide about a batch, and what it can cost."""
    if record.held_usd >= 0.1:
        cost = dollars(record.held_usd, 2)
    else:
        cost = dollars(record.held_usd, 6).rstrip("0")
    worst = f"; its requests cost up to {cost}, and would be billed twice" if record.priced else ""
    again = f"`agac doctor --resubmit --batch-id {record.id}` sends its requests again"
    adopt = (
        f"look for it at {record.provider}: `agac doctor --adopt ID --batch-id "
        f"{record.id}` takes it over, "
    )
    return Finding(
        "needs_human",
        f"batch {record.id} ({record.tasks:,} requests to {record.lane}): {record.note}{worst}",
        record,
        remedy=again if record.provider_id is not None else adopt + again,
    )


def _may_be_late(record: BatchRecord) -> bool:
    """True if the provider may have a batch whose creation was given up."""
    if record.created_after is None:
        return False
    if record.provider_id is None:
        return record.state == BatchStep.NOT_CREATED
    # an earlier attempt may have created another one; before that, what is there is the batch
    return record.attempt > 1


async def _find_late(context: BatchContext, record: BatchRecord) -> list[Finding]:
    """Looks for an abandoned batch that its provider has nevertheless: its finished requests are
    billed."""
    if not _may_be_late(record):
        return []
    form = await context.format(record)
    account = context.account(record.provider)
    if form is None or account.traits.finds_by == "count":
        return []
    findings = []
    async for seen in account.api.candidates(
        order_of(context, record, form), record.planned_at - CLOCKS_APART
    ):
        if isinstance(seen, Fault):
            return [Finding("not_asked", f"batch {record.id}: {seen.message}", record)]
        if seen.id in record.not_ours or await known_ids(context.database, [seen.id]):
            continue
        if seen.state is BatchState.FAILED and not seen.results:  # it was refused and cost nothing
            continue
        findings.append(await _came_late(context, record, seen))
    return findings


async def _came_late(context: BatchContext, record: BatchRecord, seen: ProviderBatch) -> Finding:
    """Ends a batch that exists although its tasks were sent again, and keeps its finished answers
    for reuse."""
    if not seen.state.is_terminal:
        fault = await context.account(record.provider).api.cancel(seen.id)
        message = f"batch {record.id} was abandoned, but runs at {record.provider} as {seen.id}: "
        message += "it was cancelled" if fault is None else fault.message
        remedy = "run `agac doctor` again once it has ended: it stores the finished answers"
        return Finding("given_up", message, record, remedy=remedy)
    kept, twice = await take_late(context, record, seen)
    message = (
        f"batch {record.id} was abandoned, but {record.provider} had it as {seen.id}: "
        f"{kept:,} answers were kept"
    )
    message += f", {twice:,} were billed twice" if twice else ""
    return Finding("given_up", message, record, done=True)


async def _leftovers(
    context: BatchContext, records: Sequence[BatchRecord], *, clean: bool
) -> list[Finding]:
    """Finds files of ours at the providers that nothing needs, since their batches are ingested or
    were never created. `clean` deletes them."""
    findings = []
    intents = {record.intent: record for record in records}
    for name in dict.fromkeys(record.provider for record in records):
        async for file in context.account(name).api.stale(PREFIX):
            if isinstance(file, Fault):
                findings.append(Finding("not_asked", f"{name}: {file.message}"))
                break
            record = intents.get((file.key or "")[:16])
            if record is None or record.open or record.state == BatchStep.INGESTED:
                continue
            findings.append(await _leftover(context, name, record, file, clean=clean))
    return findings


async def _leftover(
    context: BatchContext, name: str, record: BatchRecord, file: RemoteFile, *, clean: bool
) -> Finding:
    """Says that a file at the provider `name` is not needed, or deletes it."""
    size = "" if file.size is None else f", {file.size:,} bytes"
    message = f"leftover file {file.name} ({file.id}{size}) at {name}: no batch needs it"
    if not clean:
        return Finding("stale_file", message, record, remedy="agac doctor --clean deletes it")
    fault = await context.account(name).api.delete(file.id)
    if fault is not None:
        return Finding("stale_file", f"{message}: {fault.message}", record)
    deleted = f"{file.name} ({file.id}) was deleted at {name}"
    return Finding("stale_file", deleted, record, done=True)


async def adopt_as(context: BatchContext, record: BatchRecord, provider_id: str) -> Finding:
    """Takes a batch at the provider that the user named for this one. Raises UsageError if that is
    not possible."""
    seen = await context.account(record.provider).api.look(provider_id)
    if isinstance(seen, Fault):
        raise UsageError(
            f"{provider_id} cannot be read: {seen.message}", remedy="check the id, and the key"
        )
    if seen.id != record.provider_id and await known_ids(context.database, [seen.id]):
        raise UsageError(
            f"{provider_id} is another batch of this project",
            remedy="`agac batch list --all` lists them",
        )
    if seen.total is not None and seen.total != record.tasks:
        what = (
            f"{provider_id} holds {seen.total:,} requests, and batch {record.id} "
            f"{record.tasks:,}: it is another one"
        )
        raise UsageError(what, remedy="check the id")
    form = await context.format(record)
    due = deadline(context, form) if form is not None else None
    after = await context.journal.submitted(record, seen, due, None)
    return Finding("adopted", f"batch {after.id} is {seen.id} from now on", after, done=True)


async def resubmit_as(context: BatchContext, record: BatchRecord) -> Finding:
    """Has the requests of a batch sent again, since the user says that it or its results are
    lost."""
    if record.state == BatchStep.TERMINAL:  # its results cannot be fetched
        record = await context.journal.step(record, BatchStep.NEEDS_HUMAN, record.note)
    after = await context.journal.release(
        record, "batch", "its user chose to send its requests again"
    )
    forget_files(context, after)
    await clean_up(context)
    message = (
        f"the {after.tasks:,} requests of batch {after.id} are sent again by the next "
        "`agac batch retrieve`"
    )
    return Finding("needs_human", message, after, done=True)


async def end(context: BatchContext, record: BatchRecord) -> bool:
    """Ends a batch at any step. Returns False if it has ended already.

    Killed anywhere, the next look at it asks again."""
    step = BatchStep(record.state)
    if step in (BatchStep.PLANNED, BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED):
        forget_files(context, await context.journal.release(record, ENDED, ENDED_UNSENT))
        return True
    if step is BatchStep.CREATE_INTENT:
        record = await look_for(context, record)
        if record.state == BatchStep.CREATE_INTENT:
            what = (
                f"whether batch {record.id} exists is not known yet: "
                f"{record.note or 'it may still show up'}"
            )
            raise UsageError(what, remedy="run `agac doctor`, then the same command again")
        return await end(context, record)
    if step is not BatchStep.SUBMITTED:
        return False
    if record.note == UNSURE:
        what = f"batch {record.id} was matched by its time alone, and may not be ours"
        raise UsageError(
            what, remedy="wait until it has ended: its results show whether it is ours"
        )
    record = await cancel(context, await context.journal.cancel(record, ENDED))
    if (record.note or "").startswith(NOT_CANCELLED):
        raise AgacError(
            f"batch {record.id} runs on: {record.note}",
            remedy=(
                "the next command that checks it asks the provider again; to be sure, run "
                "this command again"
            ),
        )
    await observe(context, record)
    return True
