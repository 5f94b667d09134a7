"""Care for the store: dropping what is old, and copying what is there."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.reading import database_bytes, database_path, workflow_files
from agac.api.reports import refuse_unknown, workflow_name
from agac.core.errors import StoreError, UsageError
from agac.core.report import Report, iso
from agac.data.atomic import refuse_what_is_no_file
from agac.data.piped import forget
from agac.spec.inputs import INPUTS
from agac.spec.root import find_project
from agac.store.backup import copy_database
from agac.store.clearing import Cleared, clear, would_clear
from agac.store.db import Database, open_database, open_for_reading
from agac.store.history import workflows_run


@dataclass(frozen=True, slots=True)
class GcReport:
    """What was dropped, or with `dry_run` would be. Sizes in bytes, with what waits to be written into the database."""

    cleared: Cleared
    keep_runs: int
    dry_run: bool
    bytes_before: int
    bytes_after: int

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        dropped = [
            {
                "run": doomed.line.id,
                "workflow": doomed.line.workflow,
                "rows": doomed.rows,
                "last_worked_at": iso(doomed.line.last_at),
            }
            for doomed in self.cleared.dropped
        ]
        return {
            "dry_run": self.dry_run,
            "keep_runs": self.keep_runs,
            "kept": [line.id for line in self.cleared.kept],
            "dropped": dropped,
            "rows_that_left_the_input": self.cleared.left_rows,
            "rows_no_longer_made": self.cleared.gone_rows,
            "results": self.cleared.results,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }


@dataclass(frozen=True, slots=True)
class BackupReport(Report):
    """A copy of the database, its size in bytes, and the shell command that puts it back."""

    JSON_KEYS = ("database", "file", "bytes", "restore")

    database: Path
    file: Path
    bytes: int

    @property
    def restore(self) -> str:
        """To be run while no run is at work. A log of the old database must not be left: it would be applied."""
        log = [f"{self.database}-wal", f"{self.database}-shm"]
        return f"rm -f {shlex.join(log)} && cp {shlex.join([str(self.file), str(self.database)])}"


def gc(
    keep_runs: int,
    workflow: str | None = None,
    *,
    dry_run: bool = False,
    project: Path | str | None = None,
) -> GcReport:
    """Keeps of each workflow, or of one, the `keep_runs` runs last worked on, and drops what none of them needs.

    That is their rows, calls and roll-ups, results that no kept row uses, and rows that left the input of kept runs.
    Runs with open batches stay as they are.
    Killed at any point, the same call finishes it. Raises LeaseHeld while any workflow is at work.
    """
    if keep_runs < 1:
        raise UsageError(f"--keep-runs {keep_runs}: keep at least one run of each workflow")
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_gc(root, keep_runs, workflow_name(workflow), dry_run))


async def _gc(root: Path, keep_runs: int, workflow: str | None, dry_run: bool) -> GcReport:
    path = database_path(root)
    before = database_bytes(path)
    if not path.exists():
        return GcReport(Cleared(), keep_runs, dry_run, before, before)
    async with open_for_reading(path) if dry_run else open_database(path) as database:
        assert database is not None
        await _refuse_unknown(database, root, workflow)
        if dry_run:
            cleared = await would_clear(database, keep_runs, workflow)
        else:
            cleared = await clear(database, keep_runs, workflow, time.time)
            forget(root / INPUTS, max(1, len(cleared.kept)))
    return GcReport(cleared, keep_runs, dry_run, before, database_bytes(path))


async def _refuse_unknown(database: Database, root: Path, workflow: str | None) -> None:
    known = await workflows_run(database)
    if workflow is not None and workflow not in known:
        refuse_unknown(workflow, [*known, *workflow_files(root)])


def backup(file: Path | str, *, force: bool = False, project: Path | str | None = None) -> BackupReport:
    """Copies the database as it is at one moment into `file`, also while runs are at work.

    The file appears whole, checked and durable, or not at all; an existing one is only replaced with `force`. Raises
    UsageError for a file that may not be written, StoreError when the database or the disk fails.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    source, target = database_path(root), Path(file).absolute()
    if not source.exists():
        raise UsageError("nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first.")
    _refuse_target(source, target, force)
    _refuse_little_space(source, target)
    with _beside(source, target) as temporary:
        copy_database(source, temporary)
        _make_durable(temporary)
        _refuse_target(source, target, force)  # somebody may have been faster
        temporary.replace(target)
        _make_durable(target.parent)
    return BackupReport(source, target, target.stat().st_size)


def _refuse_target(source: Path, target: Path, force: bool) -> None:
    if target.is_dir():
        raise UsageError(f"{target} is a folder", remedy=f"Name a file in it: {target / 'agac-backup.db'}")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", remedy=f"mkdir -p {shlex.quote(str(target.parent))}")
    refuse_what_is_no_file(target)
    own = [source, *(source.with_name(source.name + end) for end in ("-wal", "-shm", "-journal"))]
    resolved = target.resolve()
    if resolved in [path.resolve() for path in own] or (target.exists() and target.samefile(source)):
        raise UsageError(f"{target} is the database itself", remedy="Name another file for the copy.")
    if target.exists() and not force:
        raise UsageError(f"{target} exists", remedy="Name another file, or replace it with --force.")


def _refuse_little_space(source: Path, target: Path) -> None:
    needed, free = database_bytes(source), shutil.disk_usage(target.parent).free
    if free < needed:
        raise _no_space(target, f"the copy needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free")


def _no_space(target: Path, what: str) -> StoreError:
    return StoreError(f"no space for {target}: {what}", remedy="Free some space, or name a file on another disk.")


@contextmanager
def _beside(source: Path, target: Path) -> Iterator[Path]:
    """An empty file beside the target, readable by whom the database is; it is gone after the block."""
    prefix = f".{target.name}.agac-backup-"
    _remove_leftovers(target.parent, prefix)
    temporary = target.with_name(f"{prefix}{os.getpid()}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, source.stat().st_mode & 0o777))
    except OSError as error:
        what = f"{target.parent} cannot be written: {error.strerror}"
        raise StoreError(what, remedy="Check that you may write there, or name a file elsewhere.") from error
    try:
        yield temporary
    finally:
        for path in (temporary, temporary.with_name(f"{temporary.name}-journal")):
            path.unlink(missing_ok=True)


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """What backups into the same file left that were killed."""
    for path in [entry for entry in folder.iterdir() if entry.name.startswith(prefix)]:
        with suppress(ValueError, OSError):
            if not _lives(int(path.name.removeprefix(prefix).partition("-")[0])):
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
