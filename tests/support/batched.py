"""Batches put into a store by hand: what looks at batches is tested without waiting for any."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from support.project import ProjectFolder

HOUR = 3600.0


def put_batch(project: ProjectFolder, **columns: Any) -> int:
    """A batch of run 1's first stage that was submitted an hour ago, but for these columns; gives its number."""
    now = time.time()
    with store(project) as database:
        (event,) = database.execute(
            "SELECT max(id) FROM event WHERE run_id = ?", (columns.get("run_id", 1),)
        ).fetchone()
        (last,) = database.execute("SELECT coalesce(max(id), 0) FROM batch").fetchone()
        usual = {
            "id": last + 1, "run_id": 1, "event_id": event, "stage": 0, "position": 0, "provider": "local",
            "base_url": "http://127.0.0.1:1/v1", "model": "small", "account": "0" * 16, "state": "SUBMITTED",
            "intent": f"intent{last + 1:010d}", "attempt": 1, "file": f"intent{last + 1:010d}.jsonl", "tasks": 10,
            "bytes": 1000, "tokens": 500, "held_usd": 0.25, "held_tokens": 900, "priced": 1,
            "provider_id": f"batch_{last + 1:04d}", "planned_at": now - HOUR, "submitted_at": now - HOUR,
            "moved_at": now - HOUR, "seen_at": now - HOUR, "status": "in_progress", "word": "in_progress",
            "total": 10, "done": 4, "failed": 1, "expires_at": now + 23 * HOUR, "results_until": now + 30 * 24 * HOUR,
        }  # fmt: skip
        _insert(database, "batch", usual | columns)
    return int((usual | columns)["id"])


def _insert(database: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(values))
    database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))


def unsent(state: str = "BUILT", **columns: Any) -> dict[str, Any]:
    """The columns of a batch that its provider has not got yet."""
    told = ("provider_id", "submitted_at", "moved_at", "seen_at", "status", "word", "total", "done", "failed")
    return {"state": state, **dict.fromkeys((*told, "expires_at", "results_until")), **columns}


def put_task(project: ProjectFolder, row_key: int, **columns: Any) -> None:
    """A task of run 1's first stage, enrolled in batch 1 but for these columns."""
    usual = {
        "run_id": 1, "batch_id": 1, "place": row_key, "row_key": row_key, "stage": 0, "replica": 0,
        "fingerprint": row_key.to_bytes(16, "big"), "state": 1, "round": 1, "position": 0, "repairs": 0,
    }  # fmt: skip
    with store(project) as database:
        _insert(database, "batch_task", usual | columns)


@contextmanager
def store(project: ProjectFolder) -> Iterator[sqlite3.Connection]:
    """The database, for statements of a test; what they change is committed."""
    with closing(sqlite3.connect(project.root / ".agac/agac.db")) as database, database:
        yield database
