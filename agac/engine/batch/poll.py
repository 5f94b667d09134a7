"""A batch at its provider: followed, ended when it takes too long, its results downloaded, its files deleted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from agac.core.errors import ErrorType, RowError
from agac.core.types import Fault, FaultKind
from agac.engine.batch.enrol import full_or_forbidden, sync_folder
from agac.engine.batch.ingest import Ingester
from agac.engine.batch.lifecycle import BatchContext, StepRefused
from agac.engine.batch.submit import UNSURE, Submitter, capped, is_whole, names_other
from agac.engine.stop_rules import RunStopped
from agac.providers.batch import BatchError, BatchState, ProviderBatch, Remote
from agac.store.batches import BatchRecord, BatchStep

_log = logging.getLogger("agac.batch")

KINDS = {"output": ".output", "errors": ".errors"}
"""The endings of downloaded files, by what they hold."""


RESULTS_KEPT = 30 * 86_400.0
"""Seconds for which results are taken to be kept where a provider does not say."""

NOT_CANCELLED = "its end could not be asked for: "
"""How the note of a batch begins that runs on although it was to end."""

LATE = ".late"
"""The further ending of results of a creation that was given up."""

LATE_FILES = (0.1, 0.5, 2.0, 5.0)
"""Seconds between looks at a batch that has finished requests and names no file with results."""


class BatchPoller:
    """Takes batches from SUBMITTED to their end, each as far as it goes now."""

    def __init__(self, context: BatchContext, submitter: Submitter, ingester: Ingester) -> None:
        self._context, self._journal = context, context.journal
        self._submitter, self._ingester = submitter, ingester

    async def collect(self, record: BatchRecord) -> BatchRecord:
        """As far as it goes: CLEANED, or a step before it. Raises Halted when the run stops."""
        while True:
            self._context.stop_signal.check()
            before = record.state
            match BatchStep(before):
                case BatchStep.SUBMITTED:
                    record = await self._follow(record)
                case BatchStep.TERMINAL:
                    record = await self._fetch(record)
                case BatchStep.DOWNLOADED:
                    record = await self._ingest(record)
                case BatchStep.INGESTED:
                    record = await self._clean(record)
                case _:
                    return record
            if record.state == before:
                return record

    async def _follow(self, record: BatchRecord) -> BatchRecord:
        """Asks how it stands. What is not found may show up yet: only a state that ends it ends it."""
        assert record.provider_id is not None
        seen = await self._context.account(record).api.look(record.provider_id)
        if isinstance(seen, Fault):
            if seen.kind is FaultKind.FATAL:
                self._context.stop_signal.fail(seen)
                raise RunStopped
            _log.warning("batch %d (%s): %s", record.id, record.provider_id, seen.message)
            if seen.status == HTTPStatus.NOT_FOUND and self._is_past(record):
                return await self._vanished(record)
            return record
        if not seen.known:
            _log.warning("batch %d (%s) is %r, which is no state that agac knows", record.id, seen.id, seen.word)
        record = await self._journal.seen(record, seen)
        if not seen.state.is_terminal:
            return await self._in_time(record)
        if seen.state is BatchState.FAILED and not seen.results and not seen.done:
            return await self._refused(record, seen)
        return await self._journal.step(record, BatchStep.TERMINAL, _told(seen))

    async def _vanished(self, record: BatchRecord) -> BatchRecord:
        note = f"{record.provider} does not know it (any more); what it finished may have been paid"
        return await self._journal.step(record, BatchStep.NEEDS_HUMAN, note)

    def _is_past(self, record: BatchRecord) -> bool:
        """Whether what is not found is not late any more: its results would be deleted by now, or its user ended it."""
        kept = self._context.account(record).traits.results_kept or RESULTS_KEPT
        until = record.results_until or (record.submitted_at or record.planned_at) + kept
        return record.cancel_at is not None or self._context.clocks.wall() > until

    async def _in_time(self, record: BatchRecord) -> BatchRecord:
        """Ends what has met its deadline; asks again for the end of what was cancelled and goes on."""
        due = record.deadline is not None and self._context.clocks.wall() >= record.deadline
        form = await self._context.form(record)
        if record.note == UNSURE:  # it may be somebody else's
            return record
        if due and record.cancel_at is None and form is not None and form.rules.on_deadline == "sync":
            record = await self._journal.cancel(record, "sync")
        if record.cancel_at is not None and record.status != BatchState.CANCELLING:
            return await self.cancel(record)
        return record

    async def observe(self, record: BatchRecord) -> BatchRecord | Fault:
        """How it stands now, without going on with it."""
        assert record.provider_id is not None
        seen = await self._context.account(record).api.look(record.provider_id)
        return seen if isinstance(seen, Fault) else await self._journal.seen(record, seen)

    async def cancel(self, record: BatchRecord) -> BatchRecord:
        """Asks for the end of a batch for which that is decided. Asked twice it is ended once; where it could not be
        asked for, the note says why, and the next look at it asks again."""
        assert record.provider_id is not None
        attempt = 0
        while True:
            attempt += 1
            fault = await self._context.account(record).api.cancel(record.provider_id)
            if fault is None:
                return record
            fatal = fault.kind is FaultKind.FATAL
            if fatal or not await self._context.wait_and_retry(fault, attempt, f"cancelling batch {record.id}"):
                return await self._journal.remark(record, f"{NOT_CANCELLED}{fault.message}")

    async def _refused(self, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
        """Nothing of it ran. Too many tokens enqueued: it waits. Lines that the provider cannot take fail their tasks,
        the others go into another batch; what would meet every batch stops the run."""
        back = BatchStep.UPLOADED if record.file_id is not None else BatchStep.BUILT
        message = capped(seen.errors)
        if message is not None:
            return await self._submitter.over_cap(record, back, message)
        lines = [StepRefused(one.line, _refusal(one)) for one in seen.errors if one.line is not None]
        reasons = "; ".join(_words(one.code, one.message) for one in seen.errors) or "no reason was given"
        note = f"{record.provider} refused it as a whole, and nothing was charged: {reasons}"
        record = await self._journal.reject(record, lines, note)
        if not lines:
            self._context.stop_signal.fail(Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, f"batch {seen.id}: {note}"))
            raise RunStopped
        return record

    async def _fetch(self, record: BatchRecord) -> BatchRecord:
        """Downloads its results. Killed meanwhile: what is there under its last name is whole."""
        assert record.provider_id is not None
        api = self._context.account(record).api
        seen = await api.look(record.provider_id)
        if isinstance(seen, Fault):
            if seen.status == HTTPStatus.NOT_FOUND and self._is_past(record):
                return await self._vanished(record)
            return await self._journal.remark(record, seen.message)
        if not seen.state.is_terminal:  # a look that flapped: what it does not show is no proof of anything
            return await self._journal.remark(
                record, f"{record.provider} calls it {seen.word} again: it is looked at later"
            )
        seen = await self._with_results(record, seen)
        if not seen.results and seen.done:
            note = f"what it finished may have been paid, and {record.provider} has no results of it (any more)"
            return await self._journal.step(record, BatchStep.NEEDS_HUMAN, note)
        files = []
        for remote in seen.results:
            got = await self._download(record, remote)
            if isinstance(got, Fault):
                if got.kind is FaultKind.TASK:
                    note = f"its results are gone from {record.provider}, and may have been paid: {got.message}"
                    return await self._journal.step(record, BatchStep.NEEDS_HUMAN, note)
                return await self._journal.remark(record, f"its results could not be fetched: {got.message}")
            files.append(got)
        if not seen.results and seen.results_until is not None and seen.results_until < self._context.clocks.wall():
            note = f"its results are gone from {record.provider}, and may have been paid"
            return await self._journal.step(record, BatchStep.NEEDS_HUMAN, note)
        return await self._journal.downloaded(record, files)

    async def _with_results(self, record: BatchRecord, seen: ProviderBatch) -> ProviderBatch:
        """The batch with its result files: some servers name them a moment after it has ended."""
        for pause in LATE_FILES:
            finished = seen.state is BatchState.COMPLETED or (seen.done or 0) + (seen.failed or 0) > 0
            if seen.results or not finished:
                break
            await self._context.stop_signal.sleep(pause)
            again = await self._context.account(record).api.look(seen.id)
            if isinstance(again, ProviderBatch) and again.state.is_terminal:
                seen = again
        return seen

    async def _download(self, record: BatchRecord, remote: Remote, suffix: str = "") -> tuple[str, int, str] | Fault:
        """One file, whole or not at all. `suffix` keeps it apart from what the batch has itself."""
        path = self._context.path(record, KINDS[remote.kind] + suffix)
        part = path.with_name(path.name + ".part")
        gone = record.results_until is not None and self._context.clocks.wall() > record.results_until
        attempt = 0
        while True:
            attempt += 1
            try:
                part.parent.mkdir(parents=True, exist_ok=True)
                got = await self._context.account(record).api.download(remote, part)
                if not isinstance(got, Fault):
                    return path.name, got, await asyncio.to_thread(_kept, part, path)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise full_or_forbidden(error, part) from error
            if got.status == HTTPStatus.NOT_FOUND and gone:  # it was kept so long, and is not late
                got = replace(got, kind=FaultKind.TASK)
            if got.kind is FaultKind.TASK or not await self._context.wait_and_retry(
                got, attempt, f"fetching {path.name}"
            ):
                part.unlink(missing_ok=True)
                return got

    async def _ingest(self, record: BatchRecord) -> BatchRecord:
        """Reads its results into the store; a file that is not what was downloaded is downloaded again."""
        for name, size, digest in json.loads(record.outputs or "[]"):
            if not await asyncio.to_thread(is_whole, self._context.folder / name, size, digest):
                return await self._journal.step(record, BatchStep.TERMINAL, f"{name} is not what was downloaded")
        files = [self._context.folder / name for name, _, _ in json.loads(record.outputs or "[]")]
        form = await self._context.form(record)
        if form is None:
            return await self._journal.remark(record, f"{record.provider} has no batch API in agac.yml any more")
        if form.traits.finds_by == "count" and names_other(form, record, files):  # it was found by its size alone
            return await self._journal.not_ours(record, "what was taken for it is another one: it is looked for again")
        return await self._ingester.ingest(record, form, files)

    async def take_late(self, record: BatchRecord, seen: ProviderBatch) -> tuple[int, int]:
        """Keeps the answers of a batch whose tasks were asked again, where no other is there: how many, and how many
        were paid for twice."""
        form = await self._context.form(record)
        assert form is not None
        kept = twice = 0
        for remote in seen.results:
            got = await self._download(record, remote, LATE)
            if not isinstance(got, Fault):
                file = self._context.folder / got[0]
                fresh, others = await self._ingester.late(record, form, file)
                kept, twice = kept + fresh, twice + others
                file.unlink(missing_ok=True)
        await self._journal.late(record, seen)
        return kept, twice

    async def _clean(self, record: BatchRecord) -> BatchRecord:
        """Deletes its files at the provider and here. Killed meanwhile: what is gone already is no fault."""
        api = self._context.account(record).api
        refs = await self._remote_files(record)
        for ref in refs:
            fault = await api.delete(file=ref)
            if fault is not None:
                return await self._journal.remark(record, f"a file of it is left at {record.provider}: {fault.message}")
        self.forget_files(record)
        return await self._journal.cleaned(record)

    async def _remote_files(self, record: BatchRecord) -> Sequence[str]:
        api = self._context.account(record).api
        if not api.uploads:
            return []
        seen = await api.look(record.provider_id) if record.provider_id is not None else None
        results = [one.ref for one in seen.results] if isinstance(seen, ProviderBatch) else []
        return [*([record.file_id] if record.file_id else []), *results]

    def forget_files(self, record: BatchRecord) -> None:
        """Removes what lies on this machine of a batch."""
        for suffix in ("", *KINDS.values()):
            self._context.path(record, suffix).unlink(missing_ok=True)


def _kept(part: Path, path: Path) -> str:
    """Brings a downloaded file to the disk under its last name; gives its sha256. Runs in a thread."""
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return digest


def _refusal(one: BatchError) -> RowError:
    return RowError(ErrorType.PROVIDER_ERROR, f"line {one.line} was refused: {_words(one.code, one.message)}")


def _words(code: str, message: str) -> str:
    return f"{message} ({code})" if code else message


def _told(seen: ProviderBatch) -> str | None:
    """Why a batch that ended badly did, where it says so."""
    return "; ".join(_words(one.code, one.message) for one in seen.errors) or None
