"""The state that outlives a simulator, in SQLite and a folder: files, batches and charges.

Functions that read and write files and batches work within the caller's transaction.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from agac.core.state_files import make_file, make_folder
from agac.simulator.batch_state import DAY, Batch
from agac.simulator.faults import FAULTS
from agac.simulator.settings import SimulatorError

if sys.platform != "win32":
    import fcntl

VERSION = 1
APPLICATION = 0x53494D41  # SQLite's file header names the program that owns the file by it
WRITE_TIMEOUT_S = 60.0
FILES_KEPT = 30 * DAY
LOCK_INTERVAL_S = 0.02  # seconds between attempts to take the lock that another process holds

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE charged (digest INTEGER PRIMARY KEY);
CREATE TABLE file (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, name TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL,
    lag INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE batch (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, family TEXT NOT NULL,
    ended INTEGER NOT NULL, told TEXT NOT NULL
);
CREATE INDEX batch_open ON batch (ended, seq);
"""
"""`told` is a batch as JSON: its fields."""

TUNING = """
PRAGMA journal_mode = WAL;
PRAGMA cache_size = -16384;
PRAGMA synchronous = OFF;
"""
"""For each connection. The cache is in KiB: charged digests are looked up all over the file.

Without `synchronous` a kill loses nothing; a power cut may, and costs simulated money.
"""

FILES = """
SELECT seq, id, name, purpose, bytes, created_at, expires_at, lag FROM file
WHERE NOT deleted AND (expires_at IS NULL OR expires_at > ?1) AND purpose = COALESCE(?2, purpose)
AND id = COALESCE(?3, id) AND (?4 IS NULL OR seq < (SELECT seq FROM file WHERE id = ?4))
ORDER BY seq DESC
"""
"""The files by time, purpose, id, and the file of the page before."""


@dataclass(slots=True)
class StoredFile:
    """An uploaded or written file."""

    seq: int
    id: str
    name: str
    purpose: str
    bytes: int
    created_at: float
    expires_at: float | None
    lag: int = 0
    """how many creates still do not find it"""


class BatchStore:
    """A state file and its folder; without a path both are temporary.

    Nothing is created before it is needed. Every thread has a connection of its own. Several
    processes may share a file: writes are short transactions.
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
        """True if there is anything to look at."""
        return self._temporary is not None or (self._path is not None and self._path.exists())

    @property
    def path(self) -> Path:
        """The state file; without a path, this makes a temporary folder for it."""
        if self._path is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="agac-simulator-"))
            self._path = self._temporary / "state.db"
        return self._path

    @property
    def folder(self) -> Path:
        return self.path.with_name(self.path.name + "-files")

    def file_path(self, name: str) -> Path:
        return self.folder / name

    def results_path(self, batch: Batch, suffix: str) -> Path:
        """Returns where a batch's "output" or its "errors" are gathered."""
        return self.file_path(f"{batch.id}.{suffix}")

    def open_results(self, batch: Batch, suffix: str) -> IO[bytes]:
        """Opens a batch's "output" or its "errors" to append to.

        What was not committed of them is cut off.
        """
        path = self.results_path(batch, suffix)
        make_file(path)
        file = path.open("r+b")
        file.truncate(batch.out_size if suffix == "output" else batch.err_size)
        file.seek(0, os.SEEK_END)
        return file

    def check(self) -> None:
        """Raises SimulatorError for a state file that cannot be used; creates nothing."""
        if self.exists:
            self.db()
            return
        if self._path is None:
            return
        parent = next(folder for folder in self._path.absolute().parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            problem = f"state file {self._path} cannot be created in {parent}"
            raise SimulatorError([f"{problem}; name one in a folder that can be written to"])

    def db(self) -> sqlite3.Connection:
        """Returns this thread's connection; creates the file.

        Raises SimulatorError for a file of another program.
        """
        connection: sqlite3.Connection | None = getattr(self._local, "db", None)
        if connection is None:
            with self._opening:
                connection = self._connect()
            self._local.db = connection
        return connection

    def _connect(self) -> sqlite3.Connection:
        """Opens a connection, and makes the tables of a new file."""
        db: sqlite3.Connection | None = None
        try:
            make_folder(self.path.parent)
            make_file(self.path)
            db = sqlite3.connect(
                self.path, timeout=WRITE_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            db.execute("BEGIN IMMEDIATE")
            self._make_tables(db)
            db.execute("COMMIT")
            run_statements(db, TUNING)
            instance = db.execute("SELECT value FROM setting WHERE name = 'instance'").fetchone()
            make_folder(self.folder)
        except (OSError, sqlite3.DatabaseError, SimulatorError) as error:
            if db is not None:
                db.close()
            if isinstance(error, SimulatorError):
                raise
            raise self._unusable(str(error)) from error
        self._instance = instance[0]
        self._open.append(db)
        return db

    def _make_tables(self, db: sqlite3.Connection) -> None:
        """Makes the tables of an empty file; leaves a file of another program as it is."""
        version = db.execute("PRAGMA user_version").fetchone()[0]
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        if version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            run_statements(db, SCHEMA)
            db.execute("INSERT INTO setting VALUES ('instance', ?)", (os.urandom(8),))
        elif owner != APPLICATION:
            raise self._unusable("it is a database of another program")
        elif version != VERSION:
            raise self._unusable("another version of the simulator wrote it")

    def _unusable(self, why: str) -> SimulatorError:
        problem = f"state file {self.path} cannot be used: {why}; name another one"
        return SimulatorError([problem])

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query: none if there is no state, and none is created."""
        return self.db().execute(statement, values).fetchall() if self.exists else []

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Makes the block one transaction that may write: all of it happens, or nothing."""
        db = self.db()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:  # whatever ends the block, nothing of it stays
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextmanager
    def working(self, stopping: threading.Event) -> Iterator[bool]:
        """Makes this the one process that works on batches, for the block.

        Gives False if the simulator was stopped before its turn came.
        """
        if sys.platform == "win32":  # there, one process uses a state file
            yield True
            return
        make_folder(self.folder)
        make_file(self.folder / ".working")
        with (self.folder / ".working").open("wb") as lock:
            while not stopping.is_set():
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    stopping.wait(LOCK_INTERVAL_S)
                else:
                    yield True
                    return
            yield False

    def now(self) -> float:
        """Seconds since 1970 by the simulator's clock: the machine's, moved by `advance`."""
        ahead = self.rows("SELECT value FROM setting WHERE name = 'ahead'")
        return time.time() + (ahead[0][0] if ahead else 0.0)

    def advance(self, seconds: float) -> float:
        """Moves the clock forward; returns what it shows then."""
        with self.write() as db:
            db.execute(
                "INSERT INTO setting VALUES ('ahead', ?) "
                "ON CONFLICT DO UPDATE SET value = value + excluded.value",
                (seconds,),
            )
        return self.now()

    def new_id(self, prefix: str, *parts: object) -> str:
        """Returns a name that no other state file gives; the same again for the same parts."""
        digest = blake2b(repr(parts).encode(), digest_size=12, key=self._instance)
        return prefix + digest.hexdigest()

    def count(self, name: str, more: int = 1) -> int:
        """Adds to a counter; returns its new value. Within a transaction."""
        row = self.db().execute(
            "INSERT INTO counter VALUES (?, ?) "
            "ON CONFLICT DO UPDATE SET n = n + excluded.n RETURNING n",
            (name, more),
        )
        return int(row.fetchone()[0])

    def counted(self, name: str) -> int:
        """Adds one to a counter, in a transaction of its own."""
        with self.write():
            return self.count(name)

    def counters(self) -> dict[str, int]:
        return dict(self.rows("SELECT name, n FROM counter"))

    def count_faults(self, batch: Batch, phase: str) -> None:
        """Counts the faults of a batch that take effect in a phase. Within a transaction."""
        for rule in batch.faults:
            if FAULTS[rule["kind"]].phase == phase:
                self.count(f"fault.{rule['kind']}")

    def charge(self, digests: list[bytes]) -> int:
        """Stores charged digests; returns how many are new. Within a transaction."""
        values = [(short(digest),) for digest in digests]
        return self.db().executemany("INSERT OR IGNORE INTO charged VALUES (?)", values).rowcount

    def was_charged(self, digest: bytes) -> bool:
        return bool(self.rows("SELECT 1 FROM charged WHERE digest = ?", (short(digest),)))

    def reset(self) -> None:
        """Empties the account; files and batches stay."""
        if self.exists:
            with self.write() as db:
                db.execute("DELETE FROM counter")
                db.execute("DELETE FROM charged")

    def close(self) -> None:
        for db in self._open:
            db.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def add_file(
        self, path: Path, file_id: str, name: str, purpose: str, created_at: float
    ) -> StoredFile:
        """Moves in a file that was created at that time."""
        expires_at = created_at + FILES_KEPT
        values = (file_id, name, purpose, path.stat().st_size, created_at, expires_at)
        path.replace(self.file_path(file_id))
        row = self.db().execute(
            "INSERT INTO file (id, name, purpose, bytes, created_at, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?) RETURNING seq",
            values,
        )
        return StoredFile(row.fetchone()[0], *values)

    def file(self, file_id: str) -> StoredFile | None:
        return next(iter(self.files(file_id=file_id)), None)

    def files(
        self, purpose: str | None = None, after: str | None = None, *, file_id: str | None = None
    ) -> list[StoredFile]:
        """Returns files, the newest first.

        Either the file with an id, or those of one purpose (None: all) that are older than the
        file `after`.
        """
        rows = self.rows(FILES, (self.now(), purpose, file_id, after))
        return [StoredFile(*row) for row in rows]

    def set_lag(self, file: StoredFile, lag: int) -> None:
        self.db().execute("UPDATE file SET lag = ? WHERE seq = ?", (lag, file.seq))

    def delete_file(self, file_id: str) -> None:
        """Deletes a file; its bytes stay for as long as an open batch reads them."""
        self.db().execute("UPDATE file SET deleted = 1 WHERE id = ?", (file_id,))
        self.drop_bytes(file_id)

    def drop_bytes(self, file_id: str) -> None:
        """Deletes the bytes of a deleted file that no open batch reads."""
        if self.rows("SELECT 1 FROM file WHERE id = ? AND NOT deleted", (file_id,)):
            return
        if not any(batch.input_id == file_id for batch in self.open_batches()):
            self.file_path(file_id).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Deletes the bytes of what has expired, and the remains of broken uploads."""
        now = self.now()
        expired = "SELECT id FROM file WHERE NOT deleted AND expires_at <= ?"
        for (file_id,) in self.rows(expired, (now,)):
            self.delete_file(file_id)
        for path in self.folder.glob(".*-*"):
            if path.stat().st_mtime < time.time() - DAY:
                path.unlink(missing_ok=True)

    def add_batch(self, batch: Batch) -> Batch:
        self.sweep()
        self.count("created")
        self.count_faults(batch, "created")
        row = self.db().execute(
            "INSERT INTO batch (id, family, ended, told) VALUES (?, ?, 0, '') RETURNING seq",
            (batch.id, batch.family),
        )
        batch.seq = row.fetchone()[0]
        self.save(batch)
        return batch

    def cancel(self, batch: Batch) -> None:
        if batch.cancel_at is None:
            batch.cancel_at = self.now()
            self.count("cancelled")
            self.save(batch)

    def save(self, batch: Batch) -> None:
        self.db().execute(
            "UPDATE batch SET ended = ?, told = ? WHERE seq = ?",
            (bool(batch.ended), json.dumps(asdict(batch)), batch.seq),
        )

    def batch(self, batch_id: str, family: str | None = None) -> Batch | None:
        """Returns a batch of a family, or of any, as it is now."""
        statement = "SELECT told FROM batch WHERE id = ?1 AND family = COALESCE(?2, family)"
        return next(read_batches(self.rows(statement, (batch_id, family))), None)

    def fresh(self, batch_id: str) -> Batch:
        """Returns a batch that exists, as it is now."""
        batch = self.batch(batch_id)
        assert batch is not None
        return batch

    def batches(self, family: str, *, before: int | None = None) -> list[Batch]:
        """Returns batches, the newest first: all, or those older than number `before`."""
        statement = "SELECT told FROM batch WHERE family = ? AND seq < ? ORDER BY seq DESC"
        newest = 2**62 if before is None else before
        return list(read_batches(self.rows(statement, (family, newest))))

    def open_batches(self) -> list[Batch]:
        rows = self.rows("SELECT told FROM batch WHERE ended = 0 ORDER BY seq")
        return list(read_batches(rows))

    def enqueued_tokens(self, model: str) -> int:
        """Returns the tokens of the open batches of a model; of all of them for no model."""
        return sum(
            batch.enqueued_tokens
            for batch in self.open_batches()
            if not model or batch.model == model
        )


def run_statements(db: sqlite3.Connection, statements: str) -> None:
    """Runs statements within the open transaction, if there is one."""
    for statement in statements.split(";"):
        db.execute(statement)


def read_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[Batch]:
    return (read_batch(row[0]) for row in rows)


def read_batch(stored: str) -> Batch:
    fields = json.loads(stored)
    return Batch(**{name: fields[name] for name in fields if name in Batch.__slots__})


def short(digest: bytes) -> int:
    """Returns a digest's first 8 bytes as SQLite keeps integers.

    That is compact, and as good as unique for millions of contents.
    """
    return int.from_bytes(digest[:8], signed=True)
