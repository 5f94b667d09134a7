"""The schema: its baseline is what the migrations before it made; a database that cannot be used is refused."""

import asyncio
import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.killed import ready_stores
from support.project import ProjectFolder

from agac.core.errors import LeaseHeld, StoreOutdated
from agac.store import db, lease, writer

STORES = sorted((Path(__file__).parents[1] / "golden/stores").glob("*.db.gz"))
"""Stores of an earlier program, which the migrations before the baseline made."""

NEWEST = db.migrations()[-1][0]

COMMANDS = [
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
]


@pytest.fixture(autouse=True)
def _no_ready_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """All migrations run in each new store."""
    monkeypatch.setattr(ready_stores, "REAL", True)


@pytest.fixture
def reviews(project: ProjectFolder) -> ProjectFolder:
    """A project whose model is the embedded simulator."""
    project.configure()
    project.rows([{"id": f"r-{i}", "text": f"I love number {i}"} for i in range(1, 6)])
    project.workflow(stages=[{"name": "classify", "prompt": "Review: ${text}"}])
    return project


def shape(connection: sqlite3.Connection) -> list[tuple[str, str, str, list[object]]]:
    """All that a schema says: each table, index, view and trigger with its text and its columns."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name")
    return [
        (kind, name, spaced(text), connection.execute(f"PRAGMA table_info({name})").fetchall())
        for kind, name, text in found.fetchall()
    ]


def spaced(text: str) -> str:
    """A statement without what its lay-out alone says."""
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", text))


async def opened(path: Path) -> None:
    async with writer.open_database(path):
        pass


def with_version(path: Path, version: int) -> bytes:
    """Makes a database say that it has another schema, and gives its bytes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


@pytest.mark.parametrize("stored", STORES, ids=[path.name for path in STORES])
def test_the_baseline_makes_what_the_migrations_before_it_made(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = db.migrations()[:1]
    monkeypatch.setattr(db, "migrations", lambda: baseline)
    (tmp_path / "old.db").write_bytes(gzip.decompress(stored.read_bytes()))
    asyncio.run(opened(tmp_path / "fresh.db"))
    with closing(sqlite3.connect(tmp_path / "old.db")) as old, closing(sqlite3.connect(tmp_path / "fresh.db")) as fresh:
        assert shape(fresh) == shape(old)
        for pragma, value in {"user_version": 11, "auto_vacuum": 2, "journal_mode": "wal"}.items():
            assert fresh.execute(f"PRAGMA {pragma}").fetchone() == (value,)
        assert fresh.execute("PRAGMA application_id").fetchone() == (db.APPLICATION_ID,)
        assert fresh.execute("SELECT length(token) FROM project").fetchall() == [(32,)]


@pytest.mark.parametrize(
    ("version", "said"), [(10, "was written by an early agac"), (NEWEST + 1, "was written by a newer agac")]
)
def test_a_database_of_another_age_is_refused_by_every_command(version: int, said: str, reviews: ProjectFolder) -> None:
    path = reviews.root / ".agac/agac.db"
    asyncio.run(opened(path))
    before = with_version(path, version)
    for words in COMMANDS:
        if version == 10 and words[0] == "backup":
            continue  # a copy can be made: test_backup
        refused = reviews.agac(*words)
        assert refused.code == 1, f"{words}: {refused.out}"
        assert said in refused.err, words
        if version == 10:
            assert "with an agac that knows schema 11" in refused.err, words
            assert f"mv {path} {path}.old" in refused.err, words
        assert path.read_bytes() == before, words
        log = path.with_name("agac.db-wal")
        assert not log.exists() or log.stat().st_size == 0, words
    assert not (reviews.root / "copy.db").exists()


def test_an_older_database_is_migrated_by_a_writing_command_alone_and_not_under_a_process_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agac.db"
    asyncio.run(opened(path))
    known = [*db.migrations(), (NEWEST + 1, "CREATE TABLE later (id INTEGER PRIMARY KEY)")]
    monkeypatch.setattr(db, "migrations", lambda: known)

    async def read() -> None:
        async with db.open_for_reading(path):
            pass

    with pytest.raises(StoreOutdated) as refused:
        asyncio.run(read())
    assert "agac run -a WORKFLOW" in (refused.value.remedy or "")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO lease VALUES ('reviews', 1, ?, unixepoch('now'))", (lease.this_process(),))
        with pytest.raises(LeaseHeld, match="must be brought up to date"):
            asyncio.run(opened(path))
        assert connection.execute("PRAGMA user_version").fetchone() == (NEWEST,)
        connection.execute("UPDATE lease SET holder = ''")
    asyncio.run(opened(path))
    asyncio.run(read())


async def test_a_ready_store_is_what_the_migrations_make_but_for_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tests take for a new store, in which no migration runs."""

    def refuse(connection: sqlite3.Connection) -> None:
        pytest.fail("a migration ran in a store that was ready")

    paths = [tmp_path / name for name in ("made.db", "copied.db", "another.db")]
    await opened(paths[0])
    ready_stores.made()
    monkeypatch.setattr(ready_stores, "REAL", False)
    monkeypatch.setattr(writer, "migrate", refuse)
    for path in paths[1:]:
        await opened(path)
    texts = []
    for path in paths:
        with closing(sqlite3.connect(path)) as connection:
            ((token,),) = connection.execute("SELECT token FROM project").fetchall()
            dump = "\n".join(connection.iterdump()).replace(token, "TOKEN")
            texts.append((token, dump, connection.execute("PRAGMA user_version").fetchone()))
    assert len({token for token, *_ in texts}) == 3
    assert texts[0][1:] == texts[1][1:] == texts[2][1:]
