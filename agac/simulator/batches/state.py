"""What outlives a simulator: files, batches and what batches were charged, in SQLite and a folder beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agac.simulator.settings import SimulatorError

if sys.platform != "win32":
    import fcntl

VERSION = 1
APPLICATION = 0x53494D41
"""By which SQLite's file header tells whose file it is."""

PATIENCE = 60.0
"""Seconds for which a writer waits for another process that writes to the same file."""

LOCK_LOOKS = 0.02
"""Seconds between looks at whether another process has done its work."""

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE charged (digest INTEGER PRIMARY KEY);
CREATE TABLE file (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, name TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL, lag INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE batch (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, family TEXT NOT NULL, ended INTEGER NOT NULL,
    told TEXT NOT NULL
);
CREATE INDEX batch_open ON batch (ended, seq);
"""


class State:
    """A state file and its folder. Without a path both are temporary; nothing is created before it is needed.

    Every thread has a connection of its own. Several processes may share a file: writes are short transactions, and
    whoever works off batches holds `working`, so that nothing is done twice.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._temporary: Path | None = None
        self._local = threading.local()
        self._opening = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        self._instance = b""

    @property
    def exists(self) -> bool:
        """Whether there is anything to look at yet."""
        return self._temporary is not None or (self._path is not None and self._path.exists())

    @property
    def path(self) -> Path:
        """The state file; a temporary folder for it is made now where no path was given."""
        if self._path is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="agac-simulator-"))
            self._path = self._temporary / "state.db"
        return self._path

    @property
    def folder(self) -> Path:
        """Where the bytes of files lie."""
        return self.path.with_name(self.path.name + "-files")

    def problems(self) -> list[str]:
        """Why this state file cannot be used; looks at one that exists, and creates nothing."""
        if self._path is None:
            return []
        if self._path.exists():
            try:
                self.db()
            except SimulatorError as error:
                return error.problems
            return []
        there = next(folder for folder in self._path.absolute().parents if folder.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return []
        return [f"state file {self._path} cannot be created in {there}; name one in a folder that can be written to"]

    def db(self) -> sqlite3.Connection:
        """This thread's connection; creates the file. Raises SimulatorError for a file that is none of ours."""
        found: sqlite3.Connection | None = getattr(self._local, "db", None)
        if found is None:
            with self._opening:
                found = self._local.db = self._connect()
        return found

    def _connect(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.DatabaseError) as error:
            raise self._unusable(str(error)) from error
        try:
            self._prepare(db)
            self.folder.mkdir(exist_ok=True)
        except (OSError, sqlite3.DatabaseError) as error:
            db.close()
            raise self._unusable(str(error)) from error
        except SimulatorError:
            db.close()
            raise
        self._open.append(db)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Makes the tables of a new file; one that is somebody else's is left as it is."""
        db.execute("BEGIN IMMEDIATE")
        (version,), (ours,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id"))
        if version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO setting VALUES ('instance', ?)", (os.urandom(8),))
        elif ours != APPLICATION:
            raise self._unusable("it is a database of another program")
        elif version != VERSION:
            raise self._unusable("another version of the simulator wrote it")
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA cache_size = -16384")  # KiB: what was charged is looked up all over the file
        db.execute("PRAGMA synchronous = OFF")  # a kill loses nothing; a power cut may, and costs simulated money
        self._instance = db.execute("SELECT value FROM setting WHERE name = 'instance'").fetchone()[0]

    def _unusable(self, why: str) -> SimulatorError:
        return SimulatorError([f"state file {self.path} cannot be used: {why}; name another one"])

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """What a query finds; nothing, and nothing is created, where there is no state yet."""
        return self.db().execute(statement, values).fetchall() if self.exists else []

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that may write: all of it happens, or nothing."""
        db = self.db()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextmanager
    def working(self, stopped: Callable[[], bool]) -> Iterator[bool]:
        """Held by the one process that works off batches; ends with the process, however it dies. False: it was told to
        stop while another one held it."""
        if sys.platform == "win32":  # there, one process uses a state file
            yield True
            return
        self.folder.mkdir(exist_ok=True)
        with (self.folder / ".working").open("wb") as held:
            while not stopped():
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_LOOKS)
                else:
                    yield True
                    return
            yield False

    def now(self) -> float:
        """Seconds since 1970 by the simulator's clock: the machine's, moved forward by `advance`."""
        ahead = self.rows("SELECT value FROM setting WHERE name = 'ahead'")
        return time.time() + (ahead[0][0] if ahead else 0.0)

    def advance(self, seconds: float) -> float:
        """Moves the clock forward; gives the time it shows then."""
        with self.write() as db:
            db.execute(
                "INSERT INTO setting VALUES ('ahead', ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                (seconds,),
            )
        return self.now()

    def new_id(self, prefix: str, *parts: object) -> str:
        """A name that no other state file gives; the same again for the same parts."""
        return prefix + blake2b(repr(parts).encode(), digest_size=12, key=self._instance).hexdigest()

    def count(self, name: str, more: int = 1) -> int:
        """Adds to a counter; gives what it says now. Within a transaction."""
        row = self.db().execute(
            "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n RETURNING n", (name, more)
        )
        return int(row.fetchone()[0])

    def counters(self) -> dict[str, int]:
        """What was counted since the last reset."""
        return dict(self.rows("SELECT name, n FROM counter"))

    def charge(self, digests: list[int]) -> int:
        """Notes what was charged; gives how many of the digests had never been. Within a transaction."""
        made = self.db().executemany("INSERT OR IGNORE INTO charged VALUES (?)", zip(digests, strict=True))
        return made.rowcount

    def has(self, digest: int) -> bool:
        """Whether a batch was charged for this content."""
        return bool(self.rows("SELECT 1 FROM charged WHERE digest = ?", (digest,)))

    def reset(self) -> None:
        """Empties the account; files and batches stay."""
        if self.exists:
            with self.write() as db:
                db.execute("DELETE FROM counter")
                db.execute("DELETE FROM charged")

    def close(self) -> None:
        """Closes every connection, and deletes what was temporary."""
        for db in self._open:
            db.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def short(digest: bytes) -> int:
    """A digest's first 8 bytes as SQLite keeps integers: compact, and as good as unique for millions of contents."""
    return int.from_bytes(digest[:8], signed=True)
