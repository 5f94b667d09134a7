"""`agac backup`: copies the project's database into a file, also while runs are at work."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agac.api.status import database_bytes, database_files, database_path, no_runs_yet
from agac.core.arguments import typed
from agac.core.errors import StoreError
from agac.core.types import Report
from agac.data.files import (
    create_temporary,
    explained,
    refuse_target,
    remove_leftovers,
    sync_folder,
)
from agac.spec.paths import project_root
from agac.store.gc import copy_database

SUGGESTED_NAME = "agac-backup.db"
"""The name that a message proposes for the file."""


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
