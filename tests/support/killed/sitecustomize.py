"""Put on a child's PYTHONPATH: ends it by SIGKILL at an exact moment, or gives its database little room.

AGAC_TEST_KILL is `EVENT:N`: the N-th time that EVENT is about to happen. EVENT is `statement` (any SQL statement),
`commit`, `committed` (right after a COMMIT), or one of Python's audit events: `import`, `os.rename`, `os.scandir`; or a
moment of a batch's life (see batchmoments.py); or `any` of those that leave something behind.
AGAC_TEST_SIGNAL is what it sends itself instead of SIGKILL, such as SIGSTOP.
AGAC_TEST_PAGES is the most pages that a database may have: SQLite says that the disk is full beyond that.
AGAC_TEST_PATIENCE is how many seconds a statement waits for a lock, whatever the program says.
AGAC_TEST_BACK_OFF is how many seconds a failed call waits before it is tried again for the first time, not 0.5.
AGAC_TEST_UMASK is the umask of the process, in octal digits.
AGAC_TEST_REAL: the simulator's replies count as those of a real provider.
AGAC_TEST_SILENT is after how many seconds without a word a worker counts as lost, not 60.
AGAC_TEST_PUSH is after how many seconds a shard pushes its answers and looks whether it may go on, not 15 and 2.
AGAC_TEST_SURE is after how many seconds of silence a shard's process proves that it was not taken over, not 90.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

import batchmoments

EVENT = ""
LEFT = 0
PAGES = PATIENCE = ""


def leaves_something(event: str) -> bool:
    """Whether there is something in the store, on the disk or at a provider before or after it that was not there."""
    return event in ("commit", "committed", "os.rename") or batchmoments.is_moment(event)


def happens(event: str) -> None:
    """Counts down, and ends this process as kill -9 does (or stops it) when it is time."""
    global LEFT
    if event == EVENT or (EVENT == "any" and leaves_something(event)):
        LEFT -= 1
        if LEFT == 0:
            os.kill(os.getpid(), getattr(signal, os.environ.get("AGAC_TEST_SIGNAL", "SIGKILL")))


def audit(event: str, arguments: Any) -> None:
    if event != "os.scandir" or "output" in str(arguments[0]):  # Python looks into folders of its own, too
        happens(event)


class Connection(sqlite3.Connection):
    """A connection that tells of its statements."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if PAGES:
            super().execute(f"PRAGMA max_page_count = {int(PAGES)}").close()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        happens("statement")
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        happens("commit")
        done = super().execute(sql, *parameters)
        happens("committed")
        return done

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        happens("statement")
        return super().executemany(sql, parameters)


_connect = sqlite3.connect


def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    if PATIENCE:
        options["timeout"] = float(PATIENCE)
    return _connect(*arguments, factory=Connection, **options)


def begin() -> None:
    """From here on, as the environment says."""
    global EVENT, LEFT, PAGES, PATIENCE
    EVENT, _, number = os.environ.get("AGAC_TEST_KILL", "").rpartition(":")
    LEFT = int(number or 0)
    PAGES, PATIENCE = os.environ.get("AGAC_TEST_PAGES", ""), os.environ.get("AGAC_TEST_PATIENCE", "")
    if umask := os.environ.get("AGAC_TEST_UMASK"):
        os.umask(int(umask, 8))
    if pause := os.environ.get("AGAC_TEST_BACK_OFF"):
        from agac.engine.ask import retry_policy

        retry_policy._backoff.multiplier = 2 * float(pause)
    if os.environ.get("AGAC_TEST_REAL"):
        from agac.providers import dialect

        dialect.SIMULATOR_MARK = ""
    if silent := os.environ.get("AGAC_TEST_SILENT"):
        from agac.engine.workers import pool

        pool.SILENT = float(silent)
    if soon := os.environ.get("AGAC_TEST_PUSH"):
        from agac.engine.sharding import shard_run

        shard_run.EVERY = shard_run.PUSH_SECONDS = shard_run.BEAT_SECONDS = float(soon)
    if sure := os.environ.get("AGAC_TEST_SURE"):
        from agac.engine.sharding import shard_lease

        shard_lease.SURE_SECONDS = float(sure)
    if not (EVENT or PAGES or PATIENCE):
        return
    if stores := sys.modules.get("ready_stores"):
        stores.REAL = True  # type: ignore[attr-defined]
    sqlite3.connect = connect  # type: ignore[assignment]
    sys.addaudithook(audit)
    if EVENT == "any" or batchmoments.is_moment(EVENT):
        batchmoments.tell(happens)


begin()
