"""What outlives a simulator: files, batches and what batches were charged, in SQLite and a folder next to it. Functions
that read and write files and batches work within the caller's transaction."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from agac.core.state_files import make_file, make_folder
from agac.simulator.faults import FAULTS
from agac.simulator.settings import SimulatorError

if sys.platform != "win32":
    import fcntl

VERSION = 1
APPLICATION = 0x53494D41  # by which SQLite's file header names the program that owns the file
WRITE_TIMEOUT_S = 60.0
LOCK_INTERVAL_S = 0.02  # seconds between attempts to take the lock that another process holds
DAY = 86_400.0
RESULTS_KEPT = 29 * DAY  # how long Anthropic keeps results

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
"""`told` is a batch as JSON: its fields."""


@dataclass(slots=True)
class StoredFile:
    """An uploaded or written file. `lag` is how many creates still do not find it."""

    seq: int
    id: str
    name: str
    purpose: str
    bytes: int
    created_at: float
    expires_at: float | None
    lag: int = 0


@dataclass(slots=True)
class Batch:
    """A batch: what was requested, and how far it is. Times are seconds by the simulator's clock; sizes are bytes.
    `family` is openai, azure or anthropic. `seconds` is how long all of it takes, `faults` the rules that were picked
    for it, `executed` how many of its `total` requests are done: `good` ones (charged) and `bad` ones. By then its
    input was `read`, and its results were written, so far. `ended`: empty, completed, failed, expired or cancelled."""

    id: str
    family: str
    endpoint: str
    input_id: str
    created_at: float
    seconds: float
    expires_at: float | None
    metadata: dict[str, str] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    model: str = ""
    validated: bool = False
    total: int = 0
    enqueued_tokens: int = 0
    executed: int = 0
    read: int = 0
    out_size: int = 0
    err_size: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cancel_at: float | None = None
    ended: str = ""
    ended_at: float | None = None
    output_id: str | None = None
    error_id: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0

    def fault(self, kind: str) -> dict[str, Any] | None:
        return next((rule for rule in self.faults if rule["kind"] == kind), None)

    def hidden_by(self, kind: str, now: float) -> bool:
        """Whether a fault with `seconds` still applies: it counts them from the creation."""
        rule = self.fault(kind)
        return rule is not None and now < self.created_at + rule["seconds"]

    @property
    def reachable(self) -> int:
        """How many of its requests will ever be done."""
        usual = {"batch_expire": self.total // 2, "batch_stuck": self.total if self.stuck_status == "finalizing" else 0}
        rules = [(rule, after) for kind, after in usual.items() if (rule := self.fault(kind)) is not None]
        return min([self.total, *(after if rule.get("after") is None else rule["after"] for rule, after in rules)])

    @property
    def stuck_status(self) -> str:
        """The status at which it stays, empty for a batch that continues."""
        rule = self.fault("batch_stuck")
        return (rule.get("word") or "finalizing") if rule else ""

    def status(self, now: float) -> str:
        """Its status, in OpenAI's words or in those of a fault."""
        if masked := self.masked_status(now):
            return masked
        if self.ended or self.cancel_at is not None:
            return self.ended or "cancelling"
        stuck = self.stuck_status
        if stuck and (stuck == "validating" or (self.validated and self.executed >= self.reachable)):
            return stuck
        if not self.validated:
            return "validating"
        return "finalizing" if self.executed >= self.total else "in_progress"

    def masked_status(self, now: float) -> str:
        """An unknown status, for as long as a fault says it."""
        rule = self.fault("batch_unknown_status")
        return str(rule["word"]) if rule and self.hidden_by("batch_unknown_status", now) else ""

    def mark(self, number: int) -> str:
        return blake2b(f"{self.id}/{number}".encode(), digest_size=12).hexdigest()


class BatchStore:
    """A state file and its folder; without a path both are temporary. Nothing is created before it is needed. Every
    thread has a connection of its own; several processes may share a file: writes are short transactions."""

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
        """The state file; a temporary folder for it is made now if no path was given."""
        if self._path is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="agac-simulator-"))
            self._path = self._temporary / "state.db"
        return self._path

    @property
    def folder(self) -> Path:
        return self.path.with_name(self.path.name + "-files")

    def file_path(self, name: str) -> Path:
        return self.folder / name

    def open_part(self, batch: Batch, suffix: str) -> IO[bytes]:
        """Where its "output" or its "errors" are gathered, to append to; what was not committed of them is cut off."""
        path = self.file_path(f"{batch.id}.{suffix}")
        make_file(path)
        file = path.open("r+b")
        file.truncate(batch.out_size if suffix == "output" else batch.err_size)
        file.seek(0, os.SEEK_END)
        return file

    def check(self) -> None:
        """Raises SimulatorError for a state file that cannot be used; creates nothing."""
        if self.exists:
            self.db()
        elif self._path is not None:
            existing = next(folder for folder in self._path.absolute().parents if folder.exists())
            if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
                problem = f"state file {self._path} cannot be created in {existing}"
                raise SimulatorError([f"{problem}; name one in a folder that can be written to"])

    def db(self) -> sqlite3.Connection:
        """This thread's connection; creates the file. Raises SimulatorError for a file of another program."""
        found: sqlite3.Connection | None = getattr(self._local, "db", None)
        if found is None:
            with self._opening:
                found = self._local.db = self._connect()
        return found

    def _connect(self) -> sqlite3.Connection:
        """A connection; makes the tables of a new file, and leaves a file of another program as it is."""
        db: sqlite3.Connection | None = None
        try:
            make_folder(self.path.parent)
            make_file(self.path)
            db = sqlite3.connect(self.path, timeout=WRITE_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            db.execute("BEGIN IMMEDIATE")
            version, owner = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
            if version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO setting VALUES ('instance', ?)", (os.urandom(8),))
            elif owner != APPLICATION:
                raise self._unusable("it is a database of another program")
            elif version != VERSION:
                raise self._unusable("another version of the simulator wrote it")
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA cache_size = -16384")  # KiB: charged digests are looked up all over the file
            db.execute("PRAGMA synchronous = OFF")  # a kill loses nothing; a power cut may, and costs simulated money
            self._instance = db.execute("SELECT value FROM setting WHERE name = 'instance'").fetchone()[0]
            make_folder(self.folder)
        except (OSError, sqlite3.DatabaseError, SimulatorError) as error:
            if db is not None:
                db.close()
            raise error if isinstance(error, SimulatorError) else self._unusable(str(error)) from error
        self._open.append(db)
        return db

    def _unusable(self, why: str) -> SimulatorError:
        return SimulatorError([f"state file {self.path} cannot be used: {why}; name another one"])

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; none, and nothing is created, if there is no state yet."""
        return self.db().execute(statement, values).fetchall() if self.exists else []

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that may write: all of it happens, or nothing."""
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
        """Held by the one process that works on batches, until its end; False: the simulator was stopped before."""
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
        """Seconds since 1970 by the simulator's clock: the machine's, moved forward by `advance`."""
        ahead = self.rows("SELECT value FROM setting WHERE name = 'ahead'")
        return time.time() + (ahead[0][0] if ahead else 0.0)

    def advance(self, seconds: float) -> float:
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
        """Adds to a counter; gives its new value. Within a transaction."""
        row = self.db().execute(
            "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n RETURNING n", (name, more)
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
        """Stores charged digests; gives how many of them are new. Within a transaction."""
        made = self.db().executemany("INSERT OR IGNORE INTO charged VALUES (?)", zip(map(short, digests), strict=True))
        return made.rowcount

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
        self, file_id: str, path: Path, name: str, purpose: str, made: float, kept: float, lag: int = 0
    ) -> StoredFile:
        """Moves in a file that was `made` at that time, in seconds since 1970, and is `kept` for so many seconds."""
        values = (file_id, name, purpose, path.stat().st_size, made, made + kept, lag)
        path.replace(self.file_path(file_id))
        row = self.db().execute(
            "INSERT INTO file (id, name, purpose, bytes, created_at, expires_at, lag) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "RETURNING seq",
            values,
        )
        return StoredFile(row.fetchone()[0], *values)

    def file(self, file_id: str) -> StoredFile | None:
        return next(iter(self.files(file_id=file_id)), None)

    def files(
        self, purpose: str | None = None, after: str | None = None, *, file_id: str | None = None
    ) -> list[StoredFile]:
        """The one with an id, or those of one purpose or of all after the one named, the newest first."""
        rows = self.rows(
            "SELECT seq, id, name, purpose, bytes, created_at, expires_at, lag FROM file "
            "WHERE NOT deleted AND (expires_at IS NULL OR expires_at > ?1) AND purpose = COALESCE(?2, purpose) "
            "AND id = COALESCE(?3, id) AND (?4 IS NULL OR seq < (SELECT seq FROM file WHERE id = ?4)) "
            "ORDER BY seq DESC",
            (self.now(), purpose, file_id, after),
        )
        return [StoredFile(*row) for row in rows]

    def lower_lag(self, file: StoredFile) -> None:
        self.db().execute("UPDATE file SET lag = ? WHERE seq = ?", (file.lag - 1, file.seq))

    def delete_file(self, file_id: str) -> None:
        """Deletes a file; its bytes stay for as long as an open batch reads them."""
        self.db().execute("UPDATE file SET deleted = 1 WHERE id = ?", (file_id,))
        self.drop_bytes(file_id)

    def drop_bytes(self, file_id: str) -> None:
        """Deletes the bytes of a deleted file that no open batch reads."""
        gone = self.db().execute("SELECT 1 FROM file WHERE id = ? AND NOT deleted", (file_id,)).fetchone() is None
        if gone and not any(batch.input_id == file_id for batch in self.open_batches()):
            self.file_path(file_id).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Deletes the bytes of files that have expired, archived results, and the remains of broken uploads."""
        now = self.now()
        for (file_id,) in self.rows("SELECT id FROM file WHERE NOT deleted AND expires_at <= ?", (now,)):
            self.delete_file(file_id)
        for batch in self.batches("anthropic"):
            if batch.output_id and now >= batch.created_at + RESULTS_KEPT:
                self.file_path(batch.output_id).unlink(missing_ok=True)
        for path in self.folder.glob(".*-*"):
            if path.stat().st_mtime < time.time() - DAY:
                path.unlink(missing_ok=True)

    def add_batch(self, batch: Batch) -> Batch:
        self.sweep()
        self.count("created")
        self.count_faults(batch, "created")
        row = self.db().execute(
            "INSERT INTO batch (id, family, ended, told) VALUES (?, ?, 0, '') RETURNING seq", (batch.id, batch.family)
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
        """A batch of a family, or of any, as it is now."""
        statement = "SELECT told FROM batch WHERE id = ?1 AND family = COALESCE(?2, family)"
        return next((read_batch(stored) for (stored,) in self.rows(statement, (batch_id, family))), None)

    def fresh(self, batch_id: str) -> Batch:
        """A batch that exists, as it is now."""
        batch = self.batch(batch_id)
        assert batch is not None
        return batch

    def batches(self, family: str, *, before: int | None = None) -> list[Batch]:
        """Batches, the newest first: all, or those older than number `before`."""
        rows = self.rows(
            "SELECT told FROM batch WHERE family = ? AND seq < ? ORDER BY seq DESC",
            (family, 2**62 if before is None else before),
        )
        return [read_batch(stored) for (stored,) in rows]

    def open_batches(self) -> list[Batch]:
        return [read_batch(stored) for (stored,) in self.rows("SELECT told FROM batch WHERE ended = 0 ORDER BY seq")]


def read_batch(stored: str) -> Batch:
    return Batch(**{name: value for name, value in json.loads(stored).items() if name in Batch.__slots__})


def short(digest: bytes) -> int:
    """A digest's first 8 bytes as SQLite keeps integers: compact, and as good as unique for millions of contents."""
    return int.from_bytes(digest[:8], signed=True)
