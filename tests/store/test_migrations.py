"""Older databases: migrated they are as if made today, and nothing that they hold is asked again."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.processes import kill_at
from support.project import ProjectFolder
from support.server import Server

from agac.store import db, sql
from agac.store.holders import this_process

SPINE = Path(__file__).with_name("spine_database.sql")
STAGES: list[dict[str, Any]] = [
    {
        "name": "classify",
        "prompt": "Review: ${text}",
        "output_schema": {"sentiment": "positive|neutral|negative", "reason": "string"},
    },
    {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}"},
]
TABLES = ("definition", "endpoint", "run", "event", "row", "task", "result", "attempt", "counter")


def old_database(path: Path) -> None:
    """A database with schema 1, as it was left by a finished run of five rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute(f"PRAGMA application_id = {db.APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SPINE.read_text("utf-8"))
    connection.execute("PRAGMA user_version = 1")
    connection.close()


@pytest.fixture
def old(project: ProjectFolder) -> ProjectFolder:
    """The project to which the database belongs; its model is the embedded simulator."""
    project.configure()
    rows = [{"id": f"r-{i}", "text": f"I love number {i}"} for i in range(1, 6)]
    project.rows([*rows, {"id": "r-1", "text": "again"}])
    project.workflow(stages=STAGES)
    old_database(project.root / ".agac/agac.db")
    return project


def shape(path: Path) -> Any:
    """All that a database is but for its content: columns by table, indexes, pragmas."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    columns = {table: sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({table})")) for table in tables}
    other = "SELECT type, name, sql FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL ORDER BY name"
    indexes = [(kind, name, re.sub(r"\s+", " ", text)) for kind, name, text in connection.execute(other)]
    pragmas = {
        name: connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("user_version", "application_id", "auto_vacuum", "journal_mode")
    }
    connection.close()
    return columns, indexes, pragmas


def content(path: Path) -> dict[str, list[dict[str, Any]]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    found = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")] for name in TABLES}
    connection.close()
    return found


async def opened(path: Path) -> None:
    async with db.open_database(path):
        pass


def test_a_migrated_database_equals_a_fresh_one_and_keeps_its_content(old: ProjectFolder, tmp_path: Path) -> None:
    path = old.root / ".agac/agac.db"
    before = content(path)
    asyncio.run(opened(path))
    asyncio.run(opened(tmp_path / "fresh.db"))
    assert shape(path) == shape(tmp_path / "fresh.db")
    after = content(path)
    for table, rows in before.items():
        kept = [{key: row[key] for key in rows[0]} for row in after[table]] if rows else after[table]
        assert kept == rows


def test_after_the_migration_nothing_is_asked_again(old: ProjectFolder) -> None:
    path = old.root / ".agac/agac.db"
    for words in (("status",), ("runs",), ("inspect", "1"), ("sql", "SELECT 1"), ("plan", "-a", "reviews")):
        refused = old.agac(*words)
        assert refused.code == 1, words
        assert "was written by an older agac" in refused.err
        assert "agac run -a WORKFLOW" in refused.err
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    ran = old.agac("run", "-a", "reviews", "--json")
    assert (ran.code, ran.json["run"], ran.json["invocation"]["calls"]) == (3, 1, 0), ran.err
    assert len(old.envelopes()) == 6
    reading = (("status",), ("runs",), ("inspect", "1", "r-2"), ("plan", "-a", "reviews"), ("export", "-a", "reviews"))
    for words in reading:
        assert old.agac(*words).code == 0, words
    old.assert_sound()


def test_nothing_is_migrated_under_a_process_at_work(old: ProjectFolder) -> None:
    path = old.root / ".agac/agac.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE lease SET holder = ?, heartbeat_at = unixepoch('now')", (this_process(),))
    refused = old.agac("run", "-a", "reviews")
    assert refused.code == 1
    assert "wants to be brought up to date" in refused.err
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.execute("UPDATE lease SET holder = ''")
    connection.close()
    assert old.agac("run", "-a", "reviews").code == 3


@pytest.mark.parametrize("statement", range(5, 44))
def test_a_migration_that_is_killed_is_done_by_the_next_command(statement: int, old: ProjectFolder) -> None:
    killed = old.agac("run", "-a", "reviews", env=kill_at(f"statement:{statement}"))
    assert killed.code == -9
    assert old.query("PRAGMA integrity_check") == [("ok",)]
    report = old.run()
    assert (report.exit_code, report.invocation["calls"]) == (3, 0)
    assert old.query("PRAGMA user_version") == [(sql.migrations()[-1][0],)]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-a", "reviews"),
        ("plan", "-a", "reviews"),
        ("status",),
        ("runs",),
        ("inspect", "1"),
        ("why", "1", "r-1", "classify"),
        ("retry", "1"),
        ("sql", "SELECT 1"),
        ("export", "-a", "reviews"),
        ("gc", "--keep-runs", "1"),
        ("backup", "copy.db"),
    ],
)
def test_a_newer_database_is_refused_by_every_command(words: tuple[str, ...], old: ProjectFolder) -> None:
    path = old.root / ".agac/agac.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {sql.migrations()[-1][0] + 1}")
    connection.close()
    before = path.read_bytes()
    refused = old.agac(*words)
    assert refused.code == 1, refused.out
    assert "was written by a newer agac" in refused.err
    assert path.read_bytes() == before
    log = path.with_name("agac.db-wal")
    assert not log.exists() or log.stat().st_size == 0
    assert not (old.root / "copy.db").exists()


def test_the_fixture_needs_no_server(old: ProjectFolder, server: Server) -> None:
    old.agac("run", "-a", "reviews")
    assert server.account()["requests"] == 0
