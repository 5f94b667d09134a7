"""Batches without a run (`agac doctor`): cancelled by the user, compared with the provider,
adopted or sent again."""

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
from agac.engine.settle import Totals
from agac.engine.stop_rules import StopSignal
from agac.providers.batch import BatchState, ProviderBatch
from agac.spec.rules import DEFAULT_BATCH
from agac.store.batches import AT_PROVIDER, BatchRecord, BatchStep, BatchView, known_ids, read_batch
from agac.store.db import Database
from agac.store.lease import lease_held
from agac.store.writer import Ledger

NO_RUN = 0
PREFIX = "agac-"  # how the names of our files at providers begin


@asynccontextmanager
async def batch_maintenance(
    database: Database, workflow: str, batching: Batching, redactor: Redactor, clocks: Clocks
) -> AsyncIterator[BatchContext]:
    """The workflow's batches, for the block, under its lease. Raises LeaseHeld when another
    process has that."""
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
            database, ledger, batching, redactor, clocks, stop_signal,
            workflow=workflow, run=NO_RUN, event=NO_RUN, totals=Totals(),
            keys=accepted_keys(database, ledger, stop_signal, clocks.wall),
        )  # fmt: skip
        # signs of life, while a provider takes its time
        beating = asyncio.ensure_future(ledger.run())
        try:
            yield context
        finally:
            beating.cancel()
            await asyncio.wait({beating})
            await context.close()


@dataclass(frozen=True, slots=True)
class Finding(Report):
    """One thing that was found: of which `kind`, whether it was set right already (`done`), and
    what to do if not."""

    JSON_KEYS = (
        "kind",
        "batch=batch.id",
        "provider_id=batch.provider_id",
        "message",
        "remedy",
        "done",
    )

    kind: str
    message: str
    batch: BatchRecord | None = None
    remedy: str | None = None
    done: bool = False


def has_ended(record: BatchRecord) -> bool:
    """Whether a batch that is not ingested has come to its end at its provider."""
    if record.state != BatchStep.SUBMITTED:
        return record.state in AT_PROVIDER
    return record.status is not None and BatchState(record.status).is_terminal


def stuck_seconds(batch: BatchView, now: float) -> float | None:
    """For how long no count of a batch moved that its provider works on; None where that is not
    too long. Where the provider reports no counts before the end, it is stuck once it is older
    than it was to become."""
    if batch.state != BatchStep.SUBMITTED or has_ended(batch):
        return None
    has_counts = batch.done is not None or batch.failed is not None
    if has_counts:
        since = batch.moved_at or batch.submitted_at
    else:
        since = batch.expires_at
    if since is None or since > now:
        return None
    still = round(now - since, 3)
    most = batch.stuck_after
    if still >= (DEFAULT_BATCH.stuck_after if most is None else most):
        return still
    return None


async def compare(
    context: BatchContext, own: Sequence[BatchRecord], findings: list[Finding], *, clean: bool
) -> None:
    """Compares the batches of a workflow with the providers, and adds what there is to say: what
    was found before an error stays. `clean` deletes files of ours at the providers that nothing
    needs."""
    await clean_up(context)
    own = [record for record in own if record.open or context.has_account(record.provider)]
    for record in own:
        findings += await _find_late(context, record)
        now = await read_batch(context.database, record.id)
        if now.open:
            findings += await _look_at(context, now)
    findings += await _leftovers(context, own, clean=clean)


async def _look_at(context: BatchContext, record: BatchRecord) -> list[Finding]:
    """An open batch: found where it was lost, reported where it is undecided."""
    match BatchStep(record.state):
        case BatchStep.CREATE_INTENT:  # it was being created when something ended
            after = await look_for(context, record)
            if after.state == BatchStep.SUBMITTED:
                return [_adopted(after)]
            if after.state == BatchStep.NEEDS_HUMAN:
                return [_undecided(after)]
            if after.state == BatchStep.CREATE_INTENT:
                message = f"batch {after.id} is looked for: {after.note or 'it may still show up'}"
                return [Finding("lost", message, after)]
            message = (
                f"batch {after.id} was never created at {after.provider}: the next command "
                "creates it"
            )
            return [Finding("lost", message, after, done=True)]
        case BatchStep.NEEDS_HUMAN:  # it could not be found; perhaps it can with the right key
            if (
                record.provider_id is not None
                or context.account(record.provider).provider.account != record.account
            ):
                return [_undecided(record)]
            after = await look_once(context, record)
            return [_adopted(after) if after.state == BatchStep.SUBMITTED else _undecided(record)]
        case BatchStep.SUBMITTED | BatchStep.TERMINAL:
            seen = await observe(context, record)
            if not isinstance(seen, Fault):
                return []
            message = f"batch {record.id} ({record.provider_id}): {seen.message}"
            remedy = "if it stays so, check that the key is that of the project which submitted it"
            return [Finding("not_asked", message, record, remedy=remedy)]
        case BatchStep.PLANNED:
            note = await give_up_torn(context, record)
            return [
                Finding(
                    "damaged",
                    f"batch {record.id}: {note}; its tasks go into another one",
                    record,
                    done=True,
                )
            ]
        case _:
            return []


def _adopted(record: BatchRecord) -> Finding:
    message = (
        f"batch {record.id} was found at {record.provider} as {record.provider_id}, and taken over"
    )
    return Finding("adopted", message, record, done=True)


def _undecided(record: BatchRecord) -> Finding:
    if record.held_usd >= 0.1:
        cost = dollars(record.held_usd, 2)
    else:
        cost = dollars(record.held_usd, 6).rstrip("0")
    if record.priced:
        worst = f"; its requests cost up to {cost}, and would be billed twice"
    else:
        worst = ""
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


async def _find_late(context: BatchContext, record: BatchRecord) -> list[Finding]:
    """An abandoned batch that its provider may have nevertheless: then its finished requests are
    billed."""
    never = record.state == BatchStep.NOT_CREATED and record.provider_id is None
    # before that, what is there is it
    twice = record.attempt > 1 and record.provider_id is not None
    if record.created_after is None or not (never or twice):
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
        known = seen.id in record.not_ours or bool(await known_ids(context.database, [seen.id]))
        # one that was refused cost nothing
        if known or (seen.state is BatchState.FAILED and not seen.results):
            continue
        findings.append(await _came_late(context, record, seen))
    return findings


async def _came_late(context: BatchContext, record: BatchRecord, seen: ProviderBatch) -> Finding:
    """It exists, though its tasks were sent again: it is ended, and its finished answers are kept
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
    """Files of ours at the providers that nothing needs: of batches that are in, or never came to
    be."""
    findings = []
    intents = {record.intent: record for record in records}
    for name in dict.fromkeys(record.provider for record in records):
        api = context.account(name).api
        async for file in api.stale(PREFIX):
            if isinstance(file, Fault):
                findings.append(Finding("not_asked", f"{name}: {file.message}"))
                break
            record = intents.get((file.key or "")[:16])
            if record is None or record.open or record.state == BatchStep.INGESTED:
                continue
            size = "" if file.size is None else f", {file.size:,} bytes"
            message = f"leftover file {file.name} ({file.id}{size}) at {name}: no batch needs it"
            if not clean:
                findings.append(
                    Finding("stale_file", message, record, remedy="agac doctor --clean deletes it")
                )
                continue
            fault = await api.delete(file.id)
            deleted = f"{file.name} ({file.id}) was deleted at {name}"
            message = deleted if fault is None else f"{message}: {fault.message}"
            findings.append(Finding("stale_file", message, record, done=fault is None))
    return findings


async def adopt_as(context: BatchContext, record: BatchRecord, provider_id: str) -> Finding:
    """A user says which batch at the provider it is. Raises UsageError where that cannot be."""
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
    """A user says that the batch or its results are lost: its requests are sent again."""
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
    """Ends a batch at whatever step it is: whether it could be. Killed anywhere, the next look at
    it asks again."""
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
