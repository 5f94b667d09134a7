"""What can be known from the store alone: no provider, no file of the project but its place is looked at."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.reports import find_run, full_report, go_on, refuse_unknown, run_report, workflow_name
from agac.core.errors import UsageError
from agac.core.report import Report
from agac.engine.export import export_run
from agac.engine.summary import summarise
from agac.spec.root import PROJECT_FILE, find_project
from agac.store import runs
from agac.store.db import open_database, open_for_reading
from agac.store.history import workflows_run


def database_path(root: Path) -> Path:
    """Where a project keeps its state."""
    return root / ".agac" / "agac.db"


def database_bytes(path: Path) -> int:
    """The size of a database with what waits beside it to be written into it."""
    return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())


@dataclass(frozen=True, slots=True)
class StatusReport(Report):
    """The state of a project: its newest runs, what they came to, and how large the store is."""

    project: Path
    database_bytes: int
    runs: list[dict[str, Any]]


def status(
    workflow: str | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
    newest: int = 10,
) -> StatusReport:
    """The newest runs, of one workflow or of all; or one run in full: its number, or `last`. Changes nothing.

    Raises UsageError for a workflow that neither has a file nor was ever run, and for a run that does not exist.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_status(root, workflow_name(workflow), run, newest))


async def _status(root: Path, workflow: str | None, run: int | str | None, newest: int) -> StatusReport:
    path = database_path(root)
    async with open_for_reading(path) as database:
        if run is not None:
            record = await find_run(database, workflow, run)
            assert database is not None
            return StatusReport(root, database_bytes(path), [await full_report(database, record)])
        if workflow is not None:
            known = await workflows_run(database) if database else []
            if workflow not in known:
                refuse_unknown(workflow, [*known, *workflow_files(root)])
        if database is None:
            return StatusReport(root, 0, [])
        ids = (await runs.run_ids(database, workflow))[:newest]
        records = [await runs.read_run(database, number) for number in ids]
        reports = [await run_report(database, record) for record in records if record]
    return StatusReport(root, database_bytes(path), reports)


def workflow_files(root: Path) -> list[str]:
    """The names of the workflows that have files; agac.yml is only read when it may name another folder."""
    folder = root / "workflows"
    if b"workflows" in (root / PROJECT_FILE).read_bytes():
        folder = _workflow_folder(root) or folder
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in found if file.suffix in (".yml", ".yaml")})


def _workflow_folder(root: Path) -> Path | None:
    """`paths.workflows` of agac.yml, where it can be read."""
    from agac.spec.load import load_project  # loads pydantic and YAML: most projects do without

    spec, _ = load_project(root, {})
    return spec.paths.workflows if spec else None


def export(
    workflow: str | None = None,
    *,
    run: int | None = None,
    partial: bool = False,
    project: Path | str | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Writes a run's output files again, from the store: the newest run of `workflow`, or the one numbered `run`.

    A run with open rows is refused unless `partial`. Gives the summary and the files.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_export(root, workflow, run, partial))


async def _export(
    root: Path, workflow: str | None, run: int | None, partial: bool
) -> tuple[dict[str, Any], list[Path]]:
    path = database_path(root)
    if not path.exists():
        raise UsageError("nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first.")
    async with open_database(path) as database:
        record = await find_run(database, workflow, run)
        if record.finished_at is None and not partial:
            raise UsageError(
                f"run {record.id} of {record.workflow} is not finished",
                remedy=f"Finish it with `{go_on(record)}`, or write what is there with --partial.",
            )
        summary = await summarise(database, record)
        exported = await export_run(database, record, root, summary)
    if exported.not_written is not None:
        raise exported.not_written
    return summary, exported.files
