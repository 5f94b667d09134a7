"""A batch at its provider: followed, ended when it takes too long, its results downloaded, its
files deleted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
from dataclasses import replace
from errno import ENOSPC
from http import HTTPStatus
from itertools import count
from pathlib import Path

from agac.core.errors import ErrorType, RowError, StoreError
from agac.core.state_files import make_folder
from agac.core.types import About, Fault, FaultKind
from agac.data.files import sync_folder
from agac.engine.batch.enrol import writing
from agac.engine.batch.ingest import ingest, keep_late
from agac.engine.batch.lifecycle import AROUND_A_REPLY, BatchContext, Intake, foreign
from agac.engine.batch.submit import UNSURE, create_later, halve, is_whole, names_other, over_cap
from agac.providers.batch import BatchState, ProviderBatch, Remote
from agac.providers.batch_calls import TOO_LARGE
from agac.providers.error_tables import with_remedy
from agac.store.batches import BatchRecord, BatchStep

_log = logging.getLogger("agac.batch")

# seconds for which results are taken to be kept where a provider does not say
RESULTS_KEPT = 30 * 86_400.0
# how the note of a batch begins that runs on although it was to end
NOT_CANCELLED = "its end could not be asked for: "

LATE_FILES = (0.1, 0.5, 2.0, 5.0)
"""Seconds between looks at a batch that has ended and names no file with results, or whose files
hold none."""

_OF_WHOLE = (About.QUEUE, About.FRAME, About.ACCOUNT)
"""What no row is to blame for, although the error names a line."""

MOST_REFUSALS = (
    5  # times that a batch is created again which was refused for a reason that may pass
)

LATE = ".late"  # the further ending of results of a creation that was given up


async def collect(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Takes a batch from SUBMITTED as far as it goes now: CLEANED, or a step before it. Raises
    RunStopped."""
    steps = {
        BatchStep.SUBMITTED: _follow,
        BatchStep.TERMINAL: _fetch,
        BatchStep.DOWNLOADED: _ingest,
        BatchStep.INGESTED: _clean,
    }
    while True:
        context.stop_signal.check()
        before = record.state
        step = steps.get(BatchStep(before))
        if step is None:
            return record
        record = await step(context, record)
        if record.state == before:
            return record


async def _seen(context: BatchContext, record: BatchRecord) -> ProviderBatch | Fault:
    assert record.provider_id is not None
    account = context.account(record.provider)
    seen = await account.api.look(record.provider_id)
    context.heard(account, seen)
    return seen


async def observe(context: BatchContext, record: BatchRecord) -> BatchRecord | Fault:
    """How it is at its provider now; no further step is made."""
    seen = await _seen(context, record)
    if isinstance(seen, Fault):
        return seen
    return await context.journal.seen(record, seen)


async def _follow(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks for its state. What is not found may show up yet: only a state that ends it ends it."""
    seen = await _seen(context, record)
    if isinstance(seen, Fault):
        if seen.kind is FaultKind.FATAL:
            raise context.stopped_by(seen)
        _log.warning("batch %d (%s): %s", record.id, record.provider_id, seen.message)
        if _is_gone(context, record, seen):
            return await _vanished(context, record)
        return record
    if not seen.known:
        _log.warning(
            "batch %d (%s) is %r, which is no state that agac knows", record.id, seen.id, seen.word
        )
    record = await context.journal.seen(record, seen)
    if seen.state is BatchState.FAILED and not seen.results and not seen.done:
        return await _refused(context, record, seen)
    if seen.state.is_terminal:
        return await context.journal.step(record, BatchStep.TERMINAL, seen.reasons or None)
    # ends what has met its deadline; asks again for the end of what was cancelled and goes on
    if record.note == UNSURE:  # it may be another user's
        return record
    if record.cancel_at is None and await context.is_due(record):
        record = await context.journal.cancel(record, "sync")
    if record.cancel_at is not None and record.status != BatchState.CANCELLING:
        return await cancel(context, record)
    return record


async def _refused(context: BatchContext, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
    """What becomes of a batch that was refused as a whole, by what its errors are about: its model
    or schema, which stop the run, the size of its file, what passes, or the rows at the lines that
    are named."""
    api = context.account(record.provider).api
    judged = [(one, api.judged(one, record.model)) for one in seen.errors]
    by_about = {
        fault.about: fault
        for one, fault in reversed(judged)
        if one.line is None or fault.about in _OF_WHOLE
    }
    capped = by_about.get(About.QUEUE)
    if capped is not None:
        return await over_cap(context, record, capped.message)
    stopping = by_about.get(About.FRAME) or by_about.get(About.ACCOUNT)
    errors: dict[int, RowError] = {}
    for one, fault in judged:
        if one.line is not None and stopping is None:
            message = f"line {one.line} was refused: {one.words}"
            errors.setdefault(one.line, RowError(fault.type, message))
    if not errors and stopping is None:
        large = by_about.get(About.SIZE)
        if large is not None:
            return await halve(context, record, large)
        passing = by_about.get(About.LANE) or by_about.get(About.SERVER)
        if passing is not None and record.attempt < MOST_REFUSALS:
            return await create_later(context, record, passing)
    reasons = seen.reasons or "no reason was given"
    note = f"{record.provider} refused it as a whole, and nothing was charged: {reasons}"
    form = await context.format(record)
    record = await context.journal.reject(
        record, errors, note, form.stage if form is not None else None
    )
    if not errors:
        why = (
            f"batch {seen.id}: "
            f"{with_remedy(note, stopping.remedies[0] if stopping is not None else '')}"
        )
        raise context.stopped_by(Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, why))
    return record


def _is_gone(context: BatchContext, record: BatchRecord, fault: Fault) -> bool:
    """Whether what is not found is not late any more: its results would be deleted by now, or its
    user ended it."""
    kept = context.account(record.provider).traits.results_kept or RESULTS_KEPT
    until = record.results_until or (record.submitted_at or record.planned_at) + kept
    is_past = record.cancel_at is not None or context.clocks.wall() > until
    return fault.status == HTTPStatus.NOT_FOUND and is_past


async def _vanished(context: BatchContext, record: BatchRecord) -> BatchRecord:
    note = f"{record.provider} does not know it (any more); what it finished may have been paid"
    return await context.journal.step(record, BatchStep.NEEDS_HUMAN, note)


async def cancel(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks for the decided end of a batch, once in effect; where that failed, the note says why,
    to ask again."""
    assert record.provider_id is not None
    api = context.account(record.provider).api
    attempts = count(1)
    while (fault := await api.cancel(record.provider_id)) is not None:
        fatal = fault.kind is FaultKind.FATAL
        if fatal or not await context.wait_and_retry(
            fault, next(attempts), f"cancelling batch {record.id}"
        ):
            return await context.journal.remark(record, f"{NOT_CANCELLED}{fault.message}")
    return record


async def _fetch(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Downloads its results. Killed meanwhile: what is there under its last name is whole."""
    journal = context.journal
    taken = context.intakes.get(record.id, Intake())
    # lines are missing: they may be late
    for pause in LATE_FILES[taken.downloads - 1 : taken.downloads]:
        await context.stop_signal.sleep(pause)
    seen = await _seen(context, record)
    if isinstance(seen, Fault):
        gone = _is_gone(context, record, seen)
        return await (_vanished(context, record) if gone else journal.remark(record, seen.message))
    if not seen.state.is_terminal:  # it was terminal before: this answer proves nothing
        return await journal.remark(
            record, f"{record.provider} calls it {seen.word} again: it is looked at later"
        )
    seen = await _with_results(context, record, seen)
    if not seen.results and (
        seen.done or (seen.done is None and seen.state is BatchState.COMPLETED)
    ):
        note = (
            f"what it finished may have been paid, and {record.provider} has no results of "
            "it (any more)"
        )
        return await journal.step(record, BatchStep.NEEDS_HUMAN, note)
    lost = f"its results are gone from {record.provider}, and may have been paid"
    files = []
    for remote in seen.results:
        got = await _download(context, record, remote)
        if isinstance(got, Fault):
            if got.kind is FaultKind.TASK:
                return await journal.step(record, BatchStep.NEEDS_HUMAN, f"{lost}: {got.message}")
            return await journal.remark(record, f"its results could not be fetched: {got.message}")
        files.append(got)
    if (
        not seen.results
        and seen.results_until is not None
        and seen.results_until < context.clocks.wall()
    ):
        return await journal.step(record, BatchStep.NEEDS_HUMAN, lost)
    context.intakes[record.id] = taken._replace(downloads=taken.downloads + 1)
    return await journal.write(record, "downloaded", outputs=json.dumps(files))


async def _with_results(
    context: BatchContext, record: BatchRecord, seen: ProviderBatch
) -> ProviderBatch:
    """A batch that has ended with its result files, which some servers name a moment later."""
    for pause in LATE_FILES:
        finished = seen.state is BatchState.COMPLETED or (seen.done or 0) + (seen.failed or 0) > 0
        if seen.results or not finished:
            break
        await context.stop_signal.sleep(pause)
        again = await _seen(context, record)
        if isinstance(again, ProviderBatch) and again.state.is_terminal:
            seen = again
    return seen


async def _download(
    context: BatchContext, record: BatchRecord, remote: Remote, suffix: str = ""
) -> tuple[str, int, str] | Fault:
    """One file, whole or not at all. `suffix` keeps it apart from what the batch has itself."""
    path = context.path(record, f".{remote.kind}{suffix}")
    part = path.with_name(path.name + ".part")
    gone = record.results_until is not None and context.clocks.wall() > record.results_until
    account = context.account(record.provider)
    most = record.tasks * (account.provider.limits.reply_bytes + AROUND_A_REPLY)
    attempts = count(1)
    while True:
        try:
            with writing(part):
                make_folder(part.parent)
                begun = part.stat().st_size if part.exists() else 0
                free = shutil.disk_usage(part.parent).free + begun - (64 << 20)  # left to the store
                got = await account.api.download(remote, part, min(most, free))
                if isinstance(got, Fault) and got.code == TOO_LARGE:
                    if free < most:
                        raise OSError(ENOSPC, os.strerror(ENOSPC))
                    _log.warning("batch %d: %s; only these are read", record.id, got.message)
                    got = part.stat().st_size
                if not isinstance(got, Fault):
                    return path.name, got, await asyncio.to_thread(_kept, part, path)
        except StoreError:
            part.unlink(missing_ok=True)
            raise
        if got.status == HTTPStatus.NOT_FOUND and gone:  # it was kept so long, and is not late
            got = replace(got, kind=FaultKind.TASK)
        if got.kind is FaultKind.TASK or not await context.wait_and_retry(
            got, next(attempts), f"fetching {path.name}"
        ):
            part.unlink(missing_ok=True)
            return got


def _kept(part: Path, path: Path) -> str:
    """Brings a downloaded file to the disk under its last name; gives its sha256. Runs in a
    thread."""
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return digest


async def _ingest(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Reads its results into the store; a file that is not what was downloaded is downloaded
    again."""
    files = []
    for name, size, digest in record.outputs or []:
        files.append(context.batching.folder / name)
        if not await asyncio.to_thread(is_whole, files[-1], size, digest):
            return await context.journal.step(
                record, BatchStep.TERMINAL, f"{name} is not what was downloaded"
            )
    form = await context.format(record)
    if form is None:
        return await context.journal.remark(
            record, f"{record.provider} has no batch API in agac.yml any more"
        )
    # it was found by its time alone
    if form.traits.finds_by == "count" and names_other(form, record, files):
        return await context.journal.write(
            record, "not_ours", foreign=foreign(record, record.provider_id),
            note="what was taken for it is another one: it is looked for again",
        )  # fmt: skip
    return await ingest(context, record, form, files, len(LATE_FILES))


async def take_late(
    context: BatchContext, record: BatchRecord, seen: ProviderBatch
) -> tuple[int, int]:
    """Keeps answers of a batch whose tasks were sent again, where there is no other: how many, how
    many paid twice."""
    form = await context.format(record)
    assert form is not None
    kept = twice = 0
    for remote in seen.results:
        got = await _download(context, record, remote, LATE)
        if not isinstance(got, Fault):
            file = context.batching.folder / got[0]
            fresh, others = await keep_late(context, record, form, file)
            kept = kept + fresh
            twice = twice + others
            file.unlink(missing_ok=True)
    await context.journal.write(record, "late", foreign=foreign(record, seen.id))
    return kept, twice


async def _clean(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Deletes its files at the provider and here. Killed meanwhile: what is gone already is no
    fault."""
    api = context.account(record.provider).api
    lost = (record.counts or {}).get("missing", 0)
    if lost:
        note = (
            f"{lost:,} results never came: its files stay at {record.provider} until `agac "
            "doctor --clean`"
        )
        record = await context.journal.remark(record, note)
    elif api.uploads:
        if record.provider_id is not None:
            seen = await _seen(context, record)
        else:
            seen = None
        if isinstance(seen, ProviderBatch):
            results = [one.ref for one in seen.results]
        else:
            results = []
        for file in [*([record.file_id] if record.file_id else []), *results]:
            fault = await api.delete(file)
            if fault is not None:
                note = f"a file of it is left at {record.provider}: {fault.message}"
                return await context.journal.remark(record, note)
    forget_files(context, record)
    return await context.journal.write(record, "cleaned")


def forget_files(context: BatchContext, record: BatchRecord) -> None:
    """Removes the files of a batch on this machine."""
    for suffix in ("", ".output", ".errors"):
        context.path(record, suffix).unlink(missing_ok=True)
