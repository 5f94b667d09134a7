"""What can be known from the store alone: no provider, no file of the project but its place is looked at."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.engine.export import export_run
from agac.engine.summary import iso, summarise
from agac.spec.root import find_project
from agac.store import runs
from agac.store.db import Database, open_database, open_for_reading
from agac.store.lease import holder_of


def database_path(root: Path) -> Path:
    """Where a project keeps its state."""
    return root / ".agac" / "agac.db"


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The state of a project: its newest runs, what they came to, and how large the store is."""

    project: Path
    database_bytes: int
    runs: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return {"project": str(self.project), "database_bytes": self.database_bytes, "runs": self.runs}


def status(workflow: str | None = None, *, project: Path | str | None = None, newest: int = 10) -> StatusReport:
    """The newest runs, of one workflow or of all. Changes nothing."""
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_status(root, workflow, newest))


async def _status(root: Path, workflow: str | None, newest: int) -> StatusReport:
    path = database_path(root)
    async with open_for_reading(path) as database:
        if database is None:
            return StatusReport(root, 0, [])
        ids = (await runs.run_ids(database, workflow))[:newest]
        reports = [await _run_report(database, number) for number in ids]
    size = sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())
    return StatusReport(root, size, reports)


async def _run_report(database: Database, number: int) -> dict[str, Any]:
    record = await runs.read_run(database, number)
    assert record is not None
    summary = await summarise(database, record)
    summary["last_invocation"] = await _invocation(database, record)
    summary["go_on"] = _go_on(record)
    return summary


def _go_on(record: runs.RunRecord) -> str:
    """The command that goes on with a run: with the same flags, since they are part of what the run is."""
    given: Mapping[str, Any] = record.invocation.body.get("given", {}) if record.invocation else {}
    words = ["agac", "run", "-a", record.workflow]
    for name, value in given.items():
        if name == "var":
            words += [word for variable, text in value.items() for word in ("--var", f"{variable}={text}")]
        else:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


async def _invocation(database: Database, record: runs.RunRecord) -> dict[str, Any] | None:
    last = record.invocation
    if last is None:
        return None
    state = "killed" if last.exit_code == runs.KILLED else "ended"
    if last.ended_at is None:
        state = "running" if await holder_of(database, record.workflow) else "killed"
    return {
        "state": state,
        "started_at": iso(last.at),
        "ended_at": iso(last.ended_at),
        "exit_code": last.exit_code,
        **last.body,
    }


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
        record = await _record(database, workflow, run)
        if record.finished_at is None and not partial:
            raise UsageError(
                f"run {record.id} of {record.workflow} is not finished",
                remedy=f"Finish it with `{_go_on(record)}`, or write what is there with --partial.",
            )
        summary = await summarise(database, record)
        files = await export_run(database, record, root, summary)
    return summary, files


async def _record(database: Database, workflow: str | None, run: int | None) -> runs.RunRecord:
    ids = await runs.run_ids(database, workflow)
    number = run if run is not None else next(iter(ids), None)
    record = await runs.read_run(database, number) if number is not None else None
    if record is None or (workflow and record.workflow != workflow):
        known = ", ".join(str(i) for i in ids[:10]) or "none"
        what = f"no run {run}" if run is not None else "no run"
        of = f" of workflow {workflow!r}" if workflow else ""
        raise UsageError(f"{what}{of}", remedy=f"Runs{of}: {known}. `agac status` lists them.")
    return record
