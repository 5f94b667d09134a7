"""The store held against the providers: what was lost is found, what is undecided is decided, what is stale is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.batches import nothing_submitted
from agac.api.batching import batching_of, reachable
from agac.api.batchlines import batch_lines
from agac.api.options import RunOptions
from agac.api.project import Project
from agac.api.reading import database_path
from agac.api.retrieving import opened_project
from agac.core.errors import AgacError, ExitCode, UsageError
from agac.core.report import Report
from agac.core.types import Fault
from agac.engine.batch.batches import tidy
from agac.engine.batch.doctor import Finding, adopt_as, look_again, look_at, resubmit_as
from agac.engine.batch.states import BatchStep
from agac.engine.batch.tending import Tending, tending
from agac.engine.work import Clocks
from agac.store import batches
from agac.store.batches import CLOSED, BatchRecord, BatchView, read_batch
from agac.store.db import Database, open_database

PREFIX = "agac-"
"""How the names of our files at providers begin."""


@dataclass(frozen=True, slots=True)
class DoctorReport(Report):
    """What was found: of each its `kind`, `batch`, `provider_id`, `message`, `remedy`, and whether it is `done`."""

    findings: list[dict[str, Any]]
    exit_code: ExitCode


def doctor(
    *,
    clean: bool = False,
    adopt: str | None = None,
    resubmit: bool = False,
    batch_id: str | int | None = None,
    project: Path | str | None = None,
) -> DoctorReport:
    """Compares the store with the providers, and sets right what can be. `clean` deletes files of ours at the providers
    that nothing needs; `adopt` is a provider's id for the batch that nobody could find, `resubmit` says that there is
    none; `batch_id` names that batch where several wait for a decision.

    Exit code 75 while a batch waits for a decision, 1 when a provider could not be asked. Raises UsageError for ids
    that do not fit.
    """
    opened = opened_project(project)
    named = None if batch_id is None else str(batch_id)
    return asyncio.run(_doctor(opened, clean=clean, adopt=adopt, resubmit=resubmit, named=named))


async def _doctor(
    opened: Project, *, clean: bool, adopt: str | None, resubmit: bool, named: str | None
) -> DoctorReport:
    path = database_path(opened.root)
    if not path.exists():
        raise nothing_submitted()
    findings: list[Finding] = []
    async with open_database(path) as database:
        views = await batches.batches(database, closed=True)
        if adopt is not None or resubmit:
            findings.append(await _decided(opened, database, views, adopt, named))
            views = await batches.batches(database, closed=True)
        for workflow in dict.fromkeys(view.workflow for view in views):
            own = [view for view in views if view.workflow == workflow]
            try:
                async with _tended(opened, database, workflow, {view.batch.provider for view in own}) as tended:
                    await tidy(tended.scene)
                    findings += await _of_workflow(tended, [view.batch for view in own], clean=clean)
            except AgacError as error:
                findings.append(Finding("not_asked", f"{workflow}: {error.message}", remedy=error.remedy))
        findings += await _stuck(opened, database)
    return DoctorReport([one.as_json() for one in findings], _code(findings))


def _code(findings: Sequence[Finding]) -> ExitCode:
    if any(one.kind == "needs_human" and not one.done for one in findings):
        return ExitCode.NOT_READY
    return ExitCode.FAILED if any(one.kind == "not_asked" for one in findings) else ExitCode.DONE


@asynccontextmanager
async def _tended(opened: Project, database: Database, workflow: str, also: Iterable[str]) -> AsyncIterator[Tending]:
    async with reachable(opened, None, database, workflow, also) as providers:
        batching = batching_of(opened, providers, workflow, RunOptions(), None)
        async with tending(database, workflow, batching, opened.redactor(), Clocks()) as tended:
            yield tended


async def _of_workflow(tended: Tending, records: Sequence[BatchRecord], *, clean: bool) -> list[Finding]:
    findings = []
    for record in records:
        findings += await look_again(tended, record)
        now = await read_batch(tended.scene.database, record.id)
        findings += [] if now is None or now.state in CLOSED else await look_at(tended, now)
    findings += await _stale(tended, records, clean=clean)
    return findings


async def _stale(tended: Tending, records: Sequence[BatchRecord], *, clean: bool) -> list[Finding]:
    """Files of ours at the providers that nothing needs: of batches that are in, or never came to be."""
    findings = []
    intents = {record.intent: record for record in records}
    for name in dict.fromkeys(record.provider for record in records):
        api = tended.scene.accounts.of(name).api
        async for file in api.stale(PREFIX):
            if isinstance(file, Fault):
                findings.append(Finding("not_asked", f"{name}: {file.message}"))
                break
            record = intents.get((file.key or "")[:16])
            if record is None or (record.state not in CLOSED) or record.state == BatchStep.INGESTED:
                continue
            size = "" if file.size is None else f", {file.size:,} bytes"
            message = f"leftover file {file.name} ({file.id}{size}) at {name}: no batch needs it"
            if not clean:
                findings.append(Finding("stale_file", message, record, remedy="agac doctor --clean deletes it"))
                continue
            fault = await api.delete(file=file.id)
            told = f"{file.name} ({file.id}) was deleted at {name}" if fault is None else f"{message}: {fault.message}"
            findings.append(Finding("stale_file", told, record, done=fault is None))
    return findings


async def _stuck(opened: Project, database: Database) -> list[Finding]:
    views = await batches.batches(database)
    lines = await batch_lines(database, opened.providers, views)
    records = {view.batch.id: view.batch for view in views}
    return [
        Finding(
            "stuck", f"batch {line.id} ({line.provider_id}) has not moved for {(line.stuck_for_s or 0) / 3600:.1f} h",
            records[line.id], remedy=line.remedy,
        )
        for line in lines
        if line.stuck
    ]  # fmt: skip


async def _decided(
    opened: Project, database: Database, views: Sequence[BatchView], adopt: str | None, named: str | None
) -> Finding:
    """A human's decision on a batch of which nobody knew."""
    undecided = [view for view in views if view.batch.state == BatchStep.NEEDS_HUMAN]
    if named is not None:
        undecided = [view for view in undecided if named in (str(view.batch.id), view.batch.provider_id)]
    if not undecided:
        which = f"batch {named}" if named is not None else "no batch"
        raise UsageError(f"{which} waits for {'no' if named else 'a'} decision", remedy="`agac doctor` tells which do")
    if len(undecided) > 1:
        numbers = ", ".join(str(view.batch.id) for view in undecided)
        raise UsageError(f"batches {numbers} wait for a decision", remedy="say which one with --batch-id")
    view = undecided[0]
    async with _tended(opened, database, view.workflow, [view.batch.provider]) as tended:
        return await (resubmit_as(tended, view.batch) if adopt is None else adopt_as(tended, view.batch, adopt))
