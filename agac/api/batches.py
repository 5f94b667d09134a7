"""Looking at batches: those that are open, asked for at their providers, or all that there were."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.batchlines import BatchLine, batch_lines
from agac.api.project import Project, open_project
from agac.api.reading import database_path, workflow_files
from agac.api.reports import refuse_unknown, workflow_name
from agac.core.errors import AgacError, StoreError, UsageError
from agac.core.report import Report
from agac.engine.batch.states import BatchStep
from agac.engine.summary import calls_of
from agac.spec.root import find_project
from agac.store import batches
from agac.store.batches import BatchView
from agac.store.db import Database, open_database, open_for_reading
from agac.store.history import workflows_run
from agac.store.runs import counters, read_run


@dataclass(frozen=True, slots=True)
class BatchReport(Report):
    """Batches, oldest first, and by run what all its calls cost that are in. `not_asked`: why the providers of some
    could not be asked, so that what is shown of those is what was known before. `now` is when it was made; `elsewhere`
    are open batches of other runs."""

    JSON_KEYS = ("project", "batches", "runs", "not_asked", "open_elsewhere=elsewhere")

    project: Path
    now: float
    batches: list[BatchLine]
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    not_asked: list[str] = field(default_factory=list)
    elsewhere: int = 0

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What the calls of each run took."""
        return [{"run": run, "calls": calls} for run, calls in self.calls.items()]


def batch_status(batch_id: str | int | None = None, *, project: Path | str | None = None) -> BatchReport:
    """How a batch stands (our number of it, or the provider's id), or the open ones of the run that submitted last.

    Asks the providers of those that they have got, and keeps what they say. Where one cannot be asked, what is known is
    given with the reason. Raises UsageError for an id that no batch has, and when no batch is open.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_status(root, str(batch_id) if batch_id is not None else None))


async def _status(root: Path, named: str | None) -> BatchReport:
    opened, why_not = _opened(root)
    path = database_path(root)
    async with open_for_reading(path) as database:
        if database is None:
            raise nothing_submitted()
        found = await chosen_batches(database, named)
        said, reasons = await _ask(opened, path, found) if opened else ({}, [why_not])
        found = await _again(database, found)
        lines = await batch_lines(database, opened.providers if opened else {}, found, said)
        runs = sorted({line.run for line in lines})
        calls = {run: calls_of(await counters(database, run)) for run in runs}
        elsewhere = await _elsewhere(database, runs)
    return BatchReport(root, time.time(), lines, calls, reasons, elsewhere)


def _opened(root: Path) -> tuple[Project | None, str]:
    """The project with its providers; where its files cannot be read, why."""
    try:
        opened = open_project(root)
        wrong = next((str(problem) for problem in opened.problems if problem.severity == "error"), None)
    except AgacError as error:
        opened, wrong = None, error.message
    if opened is not None and wrong is None:
        return opened, ""
    return None, f"agac.yml cannot be used: {wrong}; `agac validate` says all of it"


async def _ask(opened: Project, path: Path, found: Sequence[BatchView]) -> tuple[dict[int, str], list[str]]:
    """Asks for those batches that providers work on, and keeps how they stand; gives what providers object to, by
    batch, and the reasons why some could not be asked."""
    wanted = [view.batch for view in found if view.batch.state == BatchStep.SUBMITTED]
    if not wanted:
        return {}, []
    from agac.api.batchasking import ask_providers, keep, objections  # loads the client

    seen, reasons = await ask_providers(opened, wanted)
    if seen:
        try:
            async with open_database(path) as database:
                await keep(database, wanted, seen, time.time())
        except StoreError as error:
            reasons.append(f"what the providers say could not be kept: {error.message}")
    return objections(seen), reasons


async def _again(database: Database, found: Sequence[BatchView]) -> list[BatchView]:
    """The same batches as they are stored now."""
    runs = {view.batch.run_id for view in found}
    wanted = {view.batch.id for view in found}
    return [
        view
        for run in sorted(runs)
        for view in await batches.batches(database, run=run, closed=True)
        if view.batch.id in wanted
    ]


async def chosen_batches(database: Database, named: str | None) -> list[BatchView]:
    """The batch that is named by our number or the provider's id; without a name the open ones of the run that
    submitted last. Raises UsageError when there is none."""
    if named is not None:
        found = await batches.batches(database, named=named, closed=True)
        if not found:
            raise UsageError(
                f"no batch {named!r} in this project",
                remedy="Batches are named by their number or by the provider's id. `agac batch list --all` lists them.",
            )
        return found
    run = await batches.last_submitting_run(database)
    if run is None:
        raise nothing_submitted()
    found = await batches.batches(database, run=run)
    if not found:
        raise await _nothing_open(database, run)
    return found


def nothing_submitted() -> UsageError:
    """What is said where no batch was ever submitted."""
    return UsageError(
        "no batch was submitted in this project yet",
        remedy="`run_mode: batch` in a workflow, or `agac run -a WORKFLOW --run-mode batch`, submits batches.",
    )


async def _nothing_open(database: Database, run: int) -> UsageError:
    record = await read_run(database, run)
    remedy = f"All that was submitted is in. Look at the run with: agac status {run}"
    return UsageError(f"run {run}{f' of {record.workflow}' if record else ''} has no open batches", remedy=remedy)


async def _elsewhere(database: Database, runs: Sequence[int]) -> int:
    counts = await batches.open_batches(database)
    return sum(one.batches for run, one in counts.items() if run not in runs)


def batch_list(
    workflow: str | None = None,
    *,
    all: bool = False,  # noqa: A002 - the flag's name
    project: Path | str | None = None,
) -> BatchReport:
    """The open batches of every run, or of a workflow's; with `all` the closed ones too. Asks nobody.

    Raises UsageError for a workflow that neither has a file nor was ever run.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_list(root, workflow_name(workflow), all))


async def _list(root: Path, workflow: str | None, closed: bool) -> BatchReport:
    opened, _ = _opened(root)
    async with open_for_reading(database_path(root)) as database:
        if workflow is not None:
            refuse_unknown(workflow, [*(await workflows_run(database) if database else []), *workflow_files(root)])
        if database is None:
            return BatchReport(root, time.time(), [])
        found = await batches.batches(database, workflow=workflow, closed=closed)
        lines = await batch_lines(database, opened.providers if opened else {}, found)
    return BatchReport(root, time.time(), lines)
