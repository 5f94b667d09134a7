"""A look at the runs and batches of a database for a shell that waits: no engine, no event loop, no migration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from agac.store.sql import sql

PATIENCE_SECONDS = 0.2


def runs_at_a_glance(path: Path) -> list[tuple[int, str]]:
    """Number and workflow of each run, the one last worked on first; empty when the database cannot say."""
    return [(int(number), str(workflow)) for number, workflow in _glanced(path, "runs_at_a_glance")]


def batches_at_a_glance(path: Path) -> list[tuple[int, str | None, str]]:
    """Number, provider's id and workflow of each open batch, the newest first; empty when the database cannot say."""
    return [(int(number), named, str(workflow)) for number, named, workflow in _glanced(path, "batches_at_a_glance")]


def _glanced(path: Path, statement: str) -> list[tuple[Any, ...]]:
    if not path.is_file():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_SECONDS)) as connection:
            return connection.execute(sql(statement)).fetchall()
    except sqlite3.Error:
        return []
