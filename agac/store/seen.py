"""Ids that one pass over an input met: how often each came, on disk when they are many."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agac.core.types import RowId


class SeenIds:
    """Counts ids in a temporary database of its own, which nobody else sees and which goes with it."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.execute("CREATE TABLE seen (id PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID")

    def times(self, ids: Sequence[RowId]) -> list[int]:
        """For each id, in order, how often it came before."""
        self._connection.execute("BEGIN")
        statement = (
            "INSERT INTO seen VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1 RETURNING times - 1"
        )
        found = [self._connection.execute(statement, (row_id,)).fetchone()[0] for row_id in ids]
        self._connection.execute("COMMIT")
        return found

    def totals(self, ids: Sequence[RowId]) -> list[int]:
        """For each id, in order, how often it came in all."""
        statement = "SELECT times FROM seen WHERE id = ?"
        return [self._connection.execute(statement, (row_id,)).fetchone()[0] for row_id in ids]

    def close(self) -> None:
        """Forgets everything."""
        self._connection.close()
