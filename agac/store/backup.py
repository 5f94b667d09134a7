"""A consistent copy of the database while runs are at work.

SQLite's backup API copies pages in steps, under one read transaction: without it every commit of a run would begin the
copy anew, and a busy run commits all the time. Nobody waits for it; the write-ahead log grows by what is committed
meanwhile and is emptied afterwards. (`VACUUM INTO` would read under one transaction as well, cannot be interrupted
between steps, and builds every index again.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agac.core.errors import StoreCorrupt, StoreError
from agac.store.db import BUSY_SECONDS, reading_uri, refuse_newer, translated
from agac.store.sql import sql

STEP_PAGES = 4096
"""Pages copied between two looks at signals: 16 MB."""


def copy_database(source: Path, target: Path, step: Callable[[], None] = lambda: None) -> None:
    """Copies the database at `source` into `target`, an empty file, and checks the copy. `step` is called in between.

    The copy is one file without a log beside it, of the database at one moment. Nobody holds a lease in it: an
    invocation that was at work counts as killed there. A crash leaves a target that nobody takes for a backup.
    Raises StoreError.
    """
    with translated(source), closing(_opened(reading_uri(source))) as reader:
        _refuse_unusable(reader, source)
        reader.execute("BEGIN")
        reader.execute("PRAGMA schema_version").fetchone()  # from here on the copy is of this moment
        with translated(target), closing(_opened(f"{target.as_uri()}?mode=rw")) as writer:
            reader.backup(writer, pages=STEP_PAGES, progress=lambda *_: step())
            writer.execute("PRAGMA journal_mode = DELETE").fetchone()
            _check(writer, source)
            writer.execute(sql("leases_free"))


def _opened(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _refuse_unusable(reader: sqlite3.Connection, path: Path) -> None:
    (version,) = reader.execute("PRAGMA user_version").fetchone()
    refuse_newer(version, path)
    if version == 0:
        raise StoreError(f"{path} is empty", remedy="run a workflow first: agac run -a WORKFLOW")


def _check(copy: sqlite3.Connection, source: Path) -> None:
    found = [text for (text,) in copy.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StoreCorrupt(
            f"{source} is damaged: {found[0]}",
            remedy="no copy was made; restore an older backup, or move the database away and run again: "
            "everything is asked again then",
        )
