"""A look at the runs of a database for a shell that waits: no engine, no event loop, no migration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from agac.store.sql import sql

PATIENCE_SECONDS = 0.2


def runs_at_a_glance(path: Path) -> list[tuple[int, str]]:
    """Number and workflow of each run, the one last worked on first; empty when the database cannot say."""
    if not path.is_file():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_SECONDS)) as connection:
            return [(int(number), str(workflow)) for number, workflow in connection.execute(sql("runs_at_a_glance"))]
    except sqlite3.Error:
        return []
