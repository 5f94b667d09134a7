"""The project's database as a whole: `agac gc` deletes older runs, `agac backup` copies it, and
`agac sql` reads from it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agac.api.status import (
    database_bytes,
    database_files,
    database_path,
    no_runs_yet,
    refuse_unknown,
    workflow_name,
)
from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import StoreError, UsageError
from agac.core.types import Report
from agac.data.files import (
    create_temporary,
    explained,
    refuse_target,
    remove_leftovers,
    sync_folder,
)
from agac.data.remote import forget_contents
from agac.data.sources import forget
from agac.spec.inputs import INPUTS
from agac.spec.paths import project_root
from agac.store.db import Database, open_for_reading
from agac.store.gc import GcCounts, clear, copy_database, remove_word_indexes
from agac.store.history import RunLine
from agac.store.query import QueryAnswer, answered, refuse_at_once
from agac.store.runs import run_record, run_settings_of
from agac.store.writer import open_database

SUGGESTED_NAME = "agac-backup.db"
"""The name that a message proposes for a copy."""


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What was deleted, or with `dry_run` would be."""

    JSON_KEYS = (
        "dry_run",
        "keep_runs",
        "kept",
        "dropped=cleared.dropped",
        "rows_that_left_the_input=cleared.left_rows",
        "rows_no_longer_made=cleared.gone_rows",
        "results=cleared.results",
        "bytes_before",
        "bytes_after",
    )

    cleared: GcCounts
    """The runs that were deleted, those that are kept, and how many rows and results went."""

    keep_runs: int
    """How many runs of each workflow are kept."""

    dry_run: bool
    """True if nothing was deleted."""

    bytes_before: int
    """Size of the database before, with its write-ahead log."""

    bytes_after: int
    """Size of the database afterwards, with its write-ahead log."""

    @property
    def kept(self) -> list[int]:
        """The numbers of the runs that are kept."""
        return [line.id for line in self.cleared.kept]


@blocking
async def gc(
    keep_runs: int,
    workflow: str | None = None,
    *,
    dry_run: bool = False,
    project: Path | str | None = None,
) -> GcReport:
    """Keeps the `keep_runs` most recently used runs of each workflow, or of one.

    Of the other runs it deletes rows, calls and roll-ups, results that no kept row uses, and rows
    that left the input of kept runs. Runs with open batches stay as they are. Index files of words
    that older versions made are deleted, too. Raises LeaseHeld while any workflow is at work."""
    if keep_runs < 1:
        raise UsageError(f"--keep-runs {keep_runs}: keep at least one run of each workflow")
    root = project_root(project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    before = database_bytes(path)
    if not path.exists():
        return GcReport(GcCounts(), keep_runs, dry_run, before, before)
    async with open_for_reading(path) if dry_run else open_database(path) as database:
        assert database is not None
        await refuse_unknown(database, root, workflow)
        cleared = await clear(database, keep_runs, workflow, time.time)
        if not dry_run:
            remove_word_indexes(path)
            await _forget_files(database, root, cleared.kept)
    return GcReport(cleared, keep_runs, dry_run, before, database_bytes(path))


async def _forget_files(database: Database, root: Path, kept: list[RunLine]) -> None:
    """Deletes kept copies of inputs and remote contents, except those that `kept` runs name: such
    a run may still be continued with them."""
    records = [await run_record(database, line.id) for line in kept]
    options = [one.invocation.body.get("given", {}) for one in records if one.invocation]
    forget(root / INPUTS, {Path(given.get("input", "")).name for given in options})
    settings = [await run_settings_of(database, line.id) for line in kept]
    remotes = [remote for each in settings for remote in (each or {}).get("remote", ())]
    forget_contents(root, {remote["hash"] for remote in remotes})


@dataclass(frozen=True, slots=True)
class BackupReport(Report):
    """A copy of the database."""

    JSON_KEYS = ("database", "file", "bytes", "restore")

    database: Path
    """The database that was copied."""

    file: Path
    """The copy."""

    bytes: int
    """Size of the copy."""

    @property
    def restore(self) -> str:
        """The shell command that puts the copy back, to be run while no run is at work.

        It removes the log of the old database, which would be applied to the copy."""
        log = [f"{self.database}-wal", f"{self.database}-shm"]
        return f"rm -f {shlex.join(log)} && cp {shlex.join([str(self.file), str(self.database)])}"


@typed
def backup(
    file: Path | str, *, force: bool = False, project: Path | str | None = None
) -> BackupReport:
    """Copies the database as it is at one moment into `file`, also while runs are at work.

    The file appears whole, checked and durable, or not at all; an existing one is only replaced
    with `force`. Raises UsageError for a file that may not be written, StoreError when the
    database or the disk fails."""
    source = database_path(project_root(project))
    target = Path(file).absolute()
    if not source.exists():
        raise no_runs_yet(source)
    protected = dict.fromkeys(database_files(source), "the database itself")
    refuse_target(target, protected, SUGGESTED_NAME, force=force)
    _refuse_full_disk(target, database_bytes(source))
    _write_copy(source, target, protected, force=force)
    sync_folder(target.parent)
    remove_leftovers(target.parent)
    return BackupReport(source, target, target.stat().st_size)


def _refuse_full_disk(target: Path, needed: int) -> None:
    """Raises StoreError if the disk of `target` has less than `needed` bytes free."""
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        message = (
            f"no space for {target}: the copy needs {needed / 1e6:,.1f} MB, "
            f"{free / 1e6:,.1f} MB are free"
        )
        raise StoreError(message, remedy="Free some space, or name a file on another disk.")


def _write_copy(source: Path, target: Path, protected: Mapping[Path, str], *, force: bool) -> None:
    """Copies the database into a temporary file next to `target` and renames that.

    A kill leaves the temporary file behind, which `remove_leftovers` of a later backup removes."""
    remedy = "Check that you may write there, or name a file elsewhere."
    with explained(target.parent, remedy, StoreError):
        temporary, descriptor = create_temporary(target, private=True)
    try:
        copy_database(source, temporary)
        os.fsync(descriptor)
        # another program may have written `target` in the meantime
        refuse_target(target, protected, SUGGESTED_NAME, force=force)
        temporary.replace(target)
    finally:
        os.close(descriptor)
        for path in (temporary, temporary.with_name(f"{temporary.name}-journal")):
            path.unlink(missing_ok=True)


@typed
@contextmanager
def sql(query: str, *, project: Path | str | None = None) -> Iterator[QueryAnswer]:
    """Answers one statement that reads, for use in `with`: `columns`, and when iterated over the
    rows as tuples.

    Rows are read as they are wanted, so that memory stays flat. `-` reads the query from standard
    input. Raises UsageError for a query that is wrong or would do more than read, and where
    nothing was run yet."""
    root = project_root(project)
    if query == "-":
        query = _piped_query()
    refuse_at_once(query)
    path = database_path(root)
    if not path.exists() or not path.stat().st_size:
        raise no_runs_yet(path)
    with answered(path, query) as answer:
        yield answer


def _piped_query() -> str:
    """Reads the query from standard input."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "-: nothing is piped in",
            remedy="Pipe the query in, as in `agac sql - < query.sql`.",
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"-: byte {error.start:,} is not UTF-8", remedy="Save the query as UTF-8."
        ) from error
