"""Follows a batch at its provider: ends it when it takes too long, downloads its results, deletes
its files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from errno import ENOSPC
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError, StoreError
from agac.core.state_files import make_folder
from agac.core.types import About, Fault, FaultKind
from agac.data.files import sync_folder
from agac.engine.batch.enrol import writing
from agac.engine.batch.ingest import ingest, keep_late
from agac.engine.batch.lifecycle import AROUND_A_REPLY, BatchContext, Intake, foreign
from agac.engine.batch.submit import UNSURE, create_later, halve, is_whole, names_other, over_cap
from agac.providers.batch import BatchState, ProviderBatch, Remote
from agac.providers.batch_calls import TOO_LARGE, BatchApi
from agac.providers.error_tables import with_remedy
from agac.store.batches import BatchRecord, BatchStep

_log = logging.getLogger("agac.batch")

RESULTS_KEPT = 30 * 86_400.0
"""Seconds for which results are taken to be kept if the provider does not say."""

NOT_CANCELLED = "its end could not be asked for: "
"""The beginning of the note of a batch that could not be ended."""

LATE_FILES = (0.1, 0.5, 2.0, 5.0)
"""Seconds between looks at a batch that has ended and whose results are missing, in full or in
part."""

_OF_WHOLE = (About.QUEUE, About.FRAME, About.ACCOUNT)
"""Errors for which no row is to blame, even if they name a line."""

MOST_REFUSALS = 5
"""How often a batch is created that is refused for a reason that may pass."""

LATE = ".late"
"""The further ending of files with results of a batch whose tasks were sent again."""


LEFT_TO_STORE = 64 << 20
"""Bytes of the disk that downloads leave to the store."""


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
    """Asks the provider for a batch."""
    assert record.provider_id is not None
    account = context.account(record.provider)
    seen = await account.api.look(record.provider_id)
    context.heard(account, seen)
    return seen


async def observe(context: BatchContext, record: BatchRecord) -> BatchRecord | Fault:
    """Asks the provider for the state of a batch and stores it, without a further step."""
    seen = await _seen(context, record)
    if isinstance(seen, Fault):
        return seen
    return await context.journal.seen(record, seen)


async def _follow(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks for the state of a batch. It ends only by a state that says so: a batch that is not
    found may show up later."""
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
    return await _end_if_due(context, record)


async def _end_if_due(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Ends a batch that has met its deadline, or that was to end and is not cancelled yet."""
    if record.note == UNSURE:  # it may be another user's
        return record
    if record.cancel_at is None and await context.is_due(record):
        record = await context.journal.cancel(record, "sync")
    if record.cancel_at is not None and record.status != BatchState.CANCELLING:
        return await cancel(context, record)
    return record


class BatchRefusal(NamedTuple):
    """The errors for which a batch was refused as a whole."""

    by_about: Mapping[About | None, Fault]
    """The first error that no row is to blame for, by what it is about."""

    lines: Mapping[int, RowError]
    """The errors of rows, by line from 1; none if the run stops."""

    stopping: Fault | None
    """What stops the run: its model, its schema or the account is refused."""

    @staticmethod
    def of(api: BatchApi, record: BatchRecord, seen: ProviderBatch) -> BatchRefusal:
        """Judges the errors of a batch."""
        judged = [(error, api.judged(error, record.model)) for error in seen.errors]
        by_about = {
            fault.about: fault
            for error, fault in reversed(judged)
            if error.line is None or fault.about in _OF_WHOLE
        }
        stopping = by_about.get(About.FRAME) or by_about.get(About.ACCOUNT)
        lines: dict[int, RowError] = {}
        for error, fault in judged:
            if error.line is not None and stopping is None:
                message = f"line {error.line} was refused: {error.words}"
                lines.setdefault(error.line, RowError(fault.type, message))
        return BatchRefusal(by_about, lines, stopping)


async def _refused(context: BatchContext, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
    """Takes a batch that was refused as a whole to its next step, by what its errors are about.

    It waits for room, is cut into smaller files or created again; or the rows at the lines that
    are named fail. Raises RunStopped if the model, the schema or the account was refused."""
    refusal = BatchRefusal.of(context.account(record.provider).api, record, seen)
    capped = refusal.by_about.get(About.QUEUE)
    if capped is not None:
        return await over_cap(context, record, capped.message)
    if not refusal.lines and refusal.stopping is None:
        repaired = await _sent_otherwise(context, record, refusal)
        if repaired is not None:
            return repaired
    reasons = seen.reasons or "no reason was given"
    note = f"{record.provider} refused it as a whole, and nothing was charged: {reasons}"
    form = await context.format(record)
    stage = form.stage if form is not None else None
    record = await context.journal.reject(record, refusal.lines, note, stage)
    if refusal.lines:
        return record
    remedy = refusal.stopping.remedies[0] if refusal.stopping is not None else ""
    message = f"batch {seen.id}: {with_remedy(note, remedy)}"
    raise context.stopped_by(Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, message))


async def _sent_otherwise(
    context: BatchContext, record: BatchRecord, refusal: BatchRefusal
) -> BatchRecord | None:
    """Cuts a batch that is too large, or creates it again later if the reason may pass; None:
    neither helps."""
    too_large = refusal.by_about.get(About.SIZE)
    if too_large is not None:
        return await halve(context, record, too_large)
    passing = refusal.by_about.get(About.LANE) or refusal.by_about.get(About.SERVER)
    if passing is not None and record.attempt < MOST_REFUSALS:
        return await create_later(context, record, passing)
    return None


def _is_gone(context: BatchContext, record: BatchRecord, fault: Fault) -> bool:
    """True if a batch that is not found will not show up: its results would be deleted by now, or
    its user ended it."""
    if fault.status != HTTPStatus.NOT_FOUND:
        return False
    kept = context.account(record.provider).traits.results_kept or RESULTS_KEPT
    until = record.results_until or (record.submitted_at or record.planned_at) + kept
    return record.cancel_at is not None or context.clocks.wall() > until


async def _vanished(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Leaves a batch that its provider does not know to the user."""
    note = f"{record.provider} does not know it (any more); what it finished may have been paid"
    return await context.journal.step(record, BatchStep.NEEDS_HUMAN, note)


async def cancel(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks the provider for the end of a batch, which was decided before.

    If that fails, the note of the batch says why, and it is asked for again later."""
    assert record.provider_id is not None
    api = context.account(record.provider).api
    attempts = count(1)
    while (fault := await api.cancel(record.provider_id)) is not None:
        is_fatal = fault.kind is FaultKind.FATAL
        if is_fatal or not await context.wait_and_retry(
            fault, next(attempts), f"cancelling batch {record.id}"
        ):
            return await context.journal.remark(record, f"{NOT_CANCELLED}{fault.message}")
    return record


async def _fetch(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Downloads the results of a batch.

    Killed meanwhile: a file under its final name is complete."""
    journal = context.journal
    taken = context.intakes.get(record.id, Intake())
    # if lines were missing, they may be late
    for pause in LATE_FILES[taken.downloads - 1 : taken.downloads]:
        await context.stop_signal.sleep(pause)
    seen = await _seen(context, record)
    if isinstance(seen, Fault):
        if _is_gone(context, record, seen):
            return await _vanished(context, record)
        return await journal.remark(record, seen.message)
    if not seen.state.is_terminal:  # it was terminal before: this answer proves nothing
        return await journal.remark(
            record, f"{record.provider} calls it {seen.word} again: it is looked at later"
        )
    seen = await _with_results(context, record, seen)
    lost = f"its results are gone from {record.provider}, and may have been paid"
    if not seen.results:
        problem = _problem_without_results(context, record, seen, lost)
        if problem is not None:
            return await journal.step(record, BatchStep.NEEDS_HUMAN, problem)
    files = []
    for remote in seen.results:
        file = await _download(context, record, remote)
        if isinstance(file, Fault):
            if file.kind is FaultKind.TASK:
                return await journal.step(record, BatchStep.NEEDS_HUMAN, f"{lost}: {file.message}")
            return await journal.remark(record, f"its results could not be fetched: {file.message}")
        files.append(file)
    context.intakes[record.id] = taken._replace(downloads=taken.downloads + 1)
    return await journal.write(record, "downloaded", outputs=json.dumps(files))


def _problem_without_results(
    context: BatchContext, record: BatchRecord, seen: ProviderBatch, lost: str
) -> str | None:
    """Says why a batch that has ended without result files is left to the user; None: it may have
    none.

    `lost` says that they are gone."""
    if seen.done or (seen.done is None and seen.state is BatchState.COMPLETED):
        return (
            f"what it finished may have been paid, and {record.provider} has no results of "
            "it (any more)"
        )
    if seen.results_until is not None and seen.results_until < context.clocks.wall():
        return lost
    return None


async def _with_results(
    context: BatchContext, record: BatchRecord, seen: ProviderBatch
) -> ProviderBatch:
    """Waits for the result files of a batch that has ended: some servers name them a moment
    later."""
    for pause in LATE_FILES:
        has_lines = seen.state is BatchState.COMPLETED or (seen.done or 0) + (seen.failed or 0) > 0
        if seen.results or not has_lines:
            break
        await context.stop_signal.sleep(pause)
        again = await _seen(context, record)
        if isinstance(again, ProviderBatch) and again.state.is_terminal:
            seen = again
    return seen


async def _download(
    context: BatchContext, record: BatchRecord, remote: Remote, suffix: str = ""
) -> tuple[str, int, str] | Fault:
    """Downloads a file completely or not at all. Returns its name, size and sha256.

    `suffix` keeps it apart from the files that the batch has itself."""
    path = context.path(record, f".{remote.kind}{suffix}")
    part = path.with_name(path.name + ".part")
    is_past = record.results_until is not None and context.clocks.wall() > record.results_until
    attempts = count(1)
    while True:
        try:
            with writing(part):
                size = await _download_part(context, record, remote, part)
                if not isinstance(size, Fault):
                    return path.name, size, await asyncio.to_thread(_kept, part, path)
        except StoreError:
            part.unlink(missing_ok=True)
            raise
        fault = size
        if fault.status == HTTPStatus.NOT_FOUND and is_past:  # it is not kept any longer
            fault = replace(fault, kind=FaultKind.TASK)
        if fault.kind is FaultKind.TASK or not await context.wait_and_retry(
            fault, next(attempts), f"fetching {path.name}"
        ):
            part.unlink(missing_ok=True)
            return fault


async def _download_part(
    context: BatchContext, record: BatchRecord, remote: Remote, part: Path
) -> int | Fault:
    """Downloads a file, or what is missing of it, and returns its bytes.

    Of a file that is longer than all results can be, the beginning is kept. Raises OSError if the
    disk has no room."""
    account = context.account(record.provider)
    most = record.tasks * (account.provider.limits.reply_bytes + AROUND_A_REPLY)
    make_folder(part.parent)
    begun = part.stat().st_size if part.exists() else 0
    free = shutil.disk_usage(part.parent).free + begun - LEFT_TO_STORE
    size = await account.api.download(remote, part, min(most, free))
    if isinstance(size, Fault) and size.code == TOO_LARGE:
        if free < most:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        _log.warning("batch %d: %s; only these are read", record.id, size.message)
        return part.stat().st_size
    return size


def _kept(part: Path, path: Path) -> str:
    """Writes a downloaded file to the disk under its final name and returns its sha256.

    It waits for the disk: call it in a thread."""
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return digest


async def _ingest(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Reads the results of a batch into the store. A file that is not what was downloaded is
    downloaded again."""
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
    """Stores the answers of a batch whose tasks were sent again, if a task has no other.

    Returns how many were stored, and how many others there were, which were paid for twice."""
    form = await context.format(record)
    assert form is not None
    kept = 0
    paid_twice = 0
    for remote in seen.results:
        downloaded = await _download(context, record, remote, LATE)
        if not isinstance(downloaded, Fault):
            name, _, _ = downloaded
            file = context.batching.folder / name
            stored, others = await keep_late(context, record, form, file)
            kept += stored
            paid_twice += others
            file.unlink(missing_ok=True)
    await context.journal.write(record, "late", foreign=foreign(record, seen.id))
    return kept, paid_twice


async def _clean(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Deletes the files of a batch at the provider and on this machine.

    Killed meanwhile: a file that is gone already is no fault."""
    api = context.account(record.provider).api
    lost = (record.counts or {}).get("missing", 0)
    if lost:
        note = (
            f"{lost:,} results never came: its files stay at {record.provider} until `agac "
            "doctor --clean`"
        )
        record = await context.journal.remark(record, note)
    elif api.uploads:
        for file in await _files_at_provider(context, record):
            fault = await api.delete(file)
            if fault is not None:
                note = f"a file of it is left at {record.provider}: {fault.message}"
                return await context.journal.remark(record, note)
    forget_files(context, record)
    return await context.journal.write(record, "cleaned")


async def _files_at_provider(context: BatchContext, record: BatchRecord) -> list[str]:
    """Returns the provider's names of the files of a batch."""
    files = [record.file_id] if record.file_id else []
    if record.provider_id is not None:
        seen = await _seen(context, record)
        if isinstance(seen, ProviderBatch):
            files += [result.ref for result in seen.results]
    return files


def forget_files(context: BatchContext, record: BatchRecord) -> None:
    """Removes the files of a batch on this machine."""
    for suffix in ("", ".output", ".errors"):
        context.path(record, suffix).unlink(missing_ok=True)
