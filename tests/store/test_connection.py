"""The connection's own thread: several statements at once, whatever becomes of the one who asked for them."""

import asyncio
import runpy
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import StoreError
from agac.store import db
from agac.store.db import translated
from agac.store.writer import open_database


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    """As shipped, that is: all other tests have switched it off (conftest.py)."""
    connected = runpy.run_path(str(db.__file__))["connected"]

    async def ask() -> Any:
        async with connected(f"file:{tmp_path}/agac.db") as connection:
            return await connection.execute_fetchall("PRAGMA synchronous")

    assert [*asyncio.run(ask())] == [(2,)], "FULL"


def test_statements_given_at_once_run_in_the_connections_own_thread(tmp_path: Path) -> None:
    """What goes wrong with them reaches the caller in words."""

    def work(writer: sqlite3.Connection) -> tuple[int, str]:
        return writer.execute("SELECT 1 + 1").fetchone()[0], threading.current_thread().name

    path = tmp_path / "agac.db"

    async def ask() -> tuple[int, str]:
        async with open_database(path) as database:
            assert database.writer is not None
            with pytest.raises(StoreError, match="no such column: missing"), translated(path):
                await database.writer.at_once(lambda writer: writer.execute("SELECT missing").fetchone())
            return await database.writer.at_once(work)

    result, thread = asyncio.run(ask())
    assert result == 2
    assert thread != threading.current_thread().name


def test_what_was_begun_at_once_runs_to_its_end_when_the_caller_is_cancelled(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(writer: sqlite3.Connection) -> None:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO event (run_id, kind, at, body) VALUES (1, 'first', 0, '{}')")
        begun.set()
        assert go_on.wait(timeout=30)
        writer.execute("INSERT INTO event (run_id, kind, at, body) VALUES (1, 'second', 0, '{}')")
        writer.execute("COMMIT")

    async def cancelled() -> None:
        async with open_database(tmp_path / "agac.db") as database:
            assert database.writer is not None
            asking = asyncio.ensure_future(database.writer.at_once(work))
            assert await asyncio.to_thread(begun.wait, 30)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            go_on.set()

    asyncio.run(cancelled())
    with closing(sqlite3.connect(tmp_path / "agac.db")) as database, database:
        assert database.execute("SELECT kind FROM event ORDER BY id").fetchall() == [("first",), ("second",)]
    database.close()
