"""Put on a child's PYTHONPATH: ends it by SIGKILL at an exact moment, or gives its database little room.

AGAC_TEST_KILL is `EVENT:N`: the N-th time that EVENT is about to happen. EVENT is `statement` (any SQL statement),
`commit`, `committed` (right after a COMMIT), or one of Python's audit events: `import`, `os.rename`, `os.scandir`.
AGAC_TEST_PAGES is the most pages that a database may have: SQLite says that the disk is full beyond that.
AGAC_TEST_PATIENCE is how many seconds a statement waits for a lock, whatever the program says.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

EVENT, _, _number = os.environ.get("AGAC_TEST_KILL", "").rpartition(":")
LEFT = int(_number or 0)
PAGES = os.environ.get("AGAC_TEST_PAGES")
PATIENCE = os.environ.get("AGAC_TEST_PATIENCE")


def happens(event: str) -> None:
    """Counts down, and ends this process as kill -9 does when it is time."""
    global LEFT
    if event == EVENT:
        LEFT -= 1
        if LEFT == 0:
            os.kill(os.getpid(), signal.SIGKILL)


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


if EVENT or PAGES or PATIENCE:
    sqlite3.connect = connect  # type: ignore[assignment]
    sys.addaudithook(audit)
