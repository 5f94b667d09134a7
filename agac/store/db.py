"""The database: connections, migrations, named statements, and the lease that lets one process work on a workflow."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from importlib.resources import files
from itertools import starmap
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import aiosqlite

from agac.core.errors import LeaseHeld, StoreCorrupt, StoreError, StoreOutdated, StoreTooNew

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MANY = "(:many)"


@cache
def statements() -> dict[str, str]:
    """Every statement of `queries.sql` by its name."""
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return dict(zip(parts[1::2], (part.strip().rstrip(";") for part in parts[2::2]), strict=True))


def sql(name: str) -> str:
    """The statement called `name`."""
    return statements()[name]


@cache
def sql_many(name: str, count: int) -> str:
    """The statement called `name` with `count` placeholders in place of `(:many)`.

    Use `padded` for the values: only a few sizes exist then, and SQLite's statement cache keeps working.
    """
    return sql(name).replace(_MANY, f"({','.join('?' * count)})")


def padded(values: Sequence[bytes] | Sequence[int] | Sequence[str | int]) -> list[bytes | int | str | None]:
    """`values` filled up with NULL, which equals nothing, to the next of a few sizes."""
    size = 8
    while size < len(values):
        size *= 2
    return [*values, *([None] * (size - len(values)))]


_SLICE = 512


def slices(keys: Sequence[int]) -> Iterator[list[int]]:
    """The keys, as many at a time as one statement takes."""
    return (list(keys[start : start + _SLICE]) for start in range(0, len(keys), _SLICE))


def migrations() -> list[tuple[int, str]]:
    """All migrations in order: their number and their statements."""
    folder = files(__package__) / "migrations"
    found = [(int(f.name[:4]), f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")]
    return sorted(found)


def split_script(script: str) -> list[str]:
    """The statements of a migration. A semicolon ends a statement only at the end of a line."""
    bare = re.sub(r"--[^\n]*", "", script)
    return [part.strip() for part in re.split(r";\s*(?:\n|\Z)", bare) if part.strip()]


# Who holds a lease: naming this process, and telling whether another one still lives.

STALE_SECONDS = 60.0
"""Without a sign of life for so long a holder counts as gone, wherever it is."""


def is_alive(holder: str, age: float) -> bool:
    """Whether somebody holds a lease whose last sign of life is `age` seconds old.

    A clock that was set back makes the age negative: that is no proof of death, so it counts as fresh.
    """
    return bool(holder) and age < STALE_SECONDS and not is_dead(holder)


def this_process() -> str:
    """Names this process so that another one on the same machine can tell whether it still lives."""
    return f"{socket.gethostname()} {_boot_id()}/{_pid_namespace()} {os.getpid()} {_started(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Whether the holder surely no longer runs. Unknown (another machine) counts as alive."""
    parts = holder.split(" ")
    if len(parts) != 4 or parts[0] != socket.gethostname():
        return False
    _, machine, pid, started = parts
    boot, _, namespace = machine.partition("/")
    if boot != _boot_id():
        return True  # the machine was started again since
    if namespace != _pid_namespace():
        return False  # another container: its process numbers mean nothing here
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # alive, another user's
    return _started(int(pid)) != started or _is_zombie(int(pid))  # the number was given to another process


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else "-"  # proc(5): starttime is field 22, the third after the name is 3


def _is_zombie(pid: int) -> bool:
    return _stat_fields(pid)[:1] == ["Z"]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "-"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


def shown(holder: str) -> str:
    """A holder in words."""
    parts = holder.split(" ")
    return f"process {parts[2]} on {parts[0]}" if len(parts) == 4 else holder


# Work that is finished although its caller was cancelled: it is short, and half of it would stand in the way.


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` even when cancelled meanwhile; the cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


# Opening the database: one writer connection, one reader, pragmas, migrations, and errors in words.
#
# SQLite's exceptions are translated here and never seen above `store/`.

T = TypeVar("T")

APPLICATION_ID = 0x61676163  # "agac", so that `file` and we ourselves know the database
BUSY_SECONDS = 30.0
"""How long a commit waits for another workflow's commit. Theirs take milliseconds."""

_PRAGMAS = (
    "PRAGMA synchronous = FULL",  # a commit survives a power cut: a lost one would be paid again
    # Larger caches did not make runs faster (the fingerprint index of 10^6 results is 25 MB, and the operating system
    # caches it too), and they count as our memory.
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns what SQLite raises into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """What an SQLite error means for a user."""
    text = str(error)
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"{path} is damaged: {text}",
            remedy=f"restore a backup of it, or move it away (`mv {path} {path}.damaged`) and run again: "
            "every task is run again then",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            f"{path} was locked by another program for {BUSY_SECONDS:.0f} s",
            remedy="close the program that holds it (a database browser, a backup) and run the same command again",
        )
    if name.startswith("SQLITE_FULL"):
        return StoreError(
            f"no space left on the disk of {path}", remedy="free some space and run the same command again"
        )
    if name.startswith("SQLITE_IOERR"):
        return StoreError(
            f"the disk of {path} refused to read or write: {text}",
            remedy="check that it has space left and that no file size limit is set, then run the same command again",
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreError(
            f"{path} cannot be opened for writing: {text}",
            remedy="check that the folder exists, that its disk is not read-only, and that you may write to it",
        )
    return StoreError(f"{path}: {text}", remedy="run the same command again; if it stays, check the disk")


class Connection(aiosqlite.Connection):
    """A connection with a thread of its own, in which every statement runs."""

    async def at_once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` gives, run as a whole in the connection's thread: many statements cost one way there and back.

        It runs to its end even when the caller is cancelled.
        """
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result

    async def gone(self) -> None:
        """Waits for the end of the thread. After a failed opening aiosqlite lets it outlive the event loop."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)


@dataclass(frozen=True, slots=True)
class Database:
    """An open database. `writer` is None when it was opened for reading only."""

    path: Path
    reader: Connection
    writer: Connection | None


async def select(database: Database, name: str, record: type[T], *values: Any, **named: Any) -> list[T]:
    """Every row that the statement `name` finds, each as a `record`: see `fetch`. Raises StoreError."""
    with translated(database.path):
        return await database.reader.at_once(lambda reader: fetch(reader, name, record, *values, **named))


async def select_one(database: Database, name: str, record: type[T], *values: Any, **named: Any) -> T | None:
    """The first row that the statement `name` finds, as a `record`; None where it finds none."""
    found = await select(database, name, record, *values, **named)
    return found[0] if found else None


async def write(database: Database, name: str, *values: Any, **named: Any) -> int:
    """Runs one small writing statement in a transaction of its own; returns the number of the inserted row."""
    assert database.writer is not None
    with translated(database.path):
        return (await database.writer.execute(sql(name), named or values)).lastrowid or 0


def fetch(connection: sqlite3.Connection, name: str, record: type[T], *values: Any, **named: Any) -> list[T]:
    """Every row that the statement `name` finds over this connection, each as a `record`.

    A record is a single value (the first column), a `tuple[...]`, or a NamedTuple or dataclass, whose fields are filled
    from the columns with their names. What SQLite cannot hold is converted by the field's type: bool, enums, JSON for a
    dict, and a further record `error` from the columns `error_…` (None where the first of them is NULL), or from those
    with the names of its own fields.

    A list among the values takes the place of `(:many)`.
    """
    statement, bound = sql(name), values
    for place, value in enumerate(values):
        if isinstance(value, list):
            wanted = padded(value)
            statement = sql_many(name, len(wanted))
            bound = (*values[:place], *wanted, *values[place + 1 :])
    cursor = connection.execute(statement, named or bound)
    kind: Any = record
    make = _maker(kind, tuple(column[0] for column in cursor.description))
    return cursor.fetchall() if make is None else make(cursor)


@contextmanager
def transaction(writer: sqlite3.Connection) -> Iterator[None]:
    """All that the block writes is committed, or nothing of it."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:  # a full disk made SQLite roll back already
            writer.execute("ROLLBACK")
        raise


Read = Callable[[tuple[Any, ...]], Any]
"""Reads a value out of a row of the database."""


@cache
def _maker(record: Any, columns: tuple[str, ...]) -> Callable[[sqlite3.Cursor], list[Any]] | None:
    """How rows with these columns become records; None where they are the records."""
    if get_origin(record) is tuple:
        converters = [_converter(hint) for hint in get_args(record)]
        if not any(converters):
            return None
        read = [_column(number, converter) for number, converter in enumerate(converters)]
        return lambda rows: [tuple([one(row) for one in read]) for row in rows]
    if not _is_record(record):
        first = _column(0, _converter(record))
        return lambda rows: list(map(first, rows))
    plain = all(_converter(hint) is None for name, hint in get_type_hints(record).items() if name in columns)
    if plain and columns == _field_names(record)[: len(columns)]:
        return lambda rows: list(starmap(record, rows))
    make = _record_reader(record, columns)
    return lambda rows: list(map(make, rows))


def _record_reader(record: Any, columns: Sequence[str], prefix: str = "") -> Read:
    """Makes a record of a row: its first fields, from the columns whose names begin with `prefix`."""
    hints = get_type_hints(record)
    read: list[Read] = []
    for name in _field_names(record):
        kind = _bare(hints[name])
        if prefix + name in columns:
            read.append(_column(columns.index(prefix + name), _converter(kind)))
        elif _is_record(kind) and f"{name}_{_field_names(kind)[0]}" in columns:
            read.append(_record_reader(kind, columns, f"{name}_"))
        elif _is_record(kind) and _field_names(kind)[0] in columns:
            read.append(_record_reader(kind, columns))
        else:
            break
    if not prefix:
        return lambda row: record(*[one(row) for one in read])
    first = columns.index(prefix + _field_names(record)[0])
    return lambda row: None if row[first] is None else record(*[one(row) for one in read])


def _column(number: int, converter: Callable[[Any], Any] | None) -> Read:
    if converter is None:
        return itemgetter(number)
    return lambda row: None if row[number] is None else converter(row[number])


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """What makes a value of this type of what SQLite gives; None where nothing is to be done."""
    kind = _bare(hint)
    if kind is bool or (isinstance(kind, type) and issubclass(kind, Enum)):
        return kind
    return json.loads if (get_origin(kind) or kind) in (dict, list) else None


def _bare(hint: Any) -> Any:
    """A type without `None`."""
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        return others[0] if len(others) == 1 else Union[tuple(others)]  # noqa: UP007 - made of a list
    return hint


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


@cache
def _field_names(record: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(record)) if is_dataclass(record) else tuple(record._fields)


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Opens for writing, makes the database if there is none and migrates an older one."""
    with translated(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            remedy = "a file stands there; move it away" if in_the_way else "check the folder's owner"
            raise StoreError(f"{path.parent} cannot be made: {error.strerror}", remedy=remedy) from error
        async with _connected(f"{path.as_uri()}?mode=rwc") as writer:
            await _prepare(writer, path)
            async with _connected(f"{path.as_uri()}?mode=ro") as reader:
                yield Database(path, reader, writer)


@asynccontextmanager
async def open_for_reading(path: Path) -> AsyncIterator[Database | None]:
    """Opens without changing anything; gives None where there is no database yet. An older one is refused."""
    if not path.exists() or not path.stat().st_size:  # an empty file is a database without anything
        yield None
        return
    with translated(path):
        async with _connected(reading_uri(path)) as reader:
            refuse_older(await _version(reader, path), path)
            yield Database(path, reader, None)


def refuse_older(version: int, path: Path) -> None:
    """Raises StoreOutdated for a schema that a writing command has to bring up to date first, and for one that no
    command of this version can."""
    refuse_before_baseline(version, path)
    if version < migrations()[-1][0]:
        raise StoreOutdated(
            f"{path} was written by an older agac",
            remedy="run `agac run -a WORKFLOW` once: it brings the database up to date",
        )


def refuse_before_baseline(version: int, path: Path) -> None:
    """Raises StoreOutdated for a schema that is older than the first migration of this version."""
    baseline = migrations()[0][0]
    if 0 < version < baseline:  # 0: nothing was written into it yet
        raise StoreOutdated(
            f"{path} was written by an early agac (schema {version}; this one needs {baseline} or later)",
            remedy=f"run `agac run -a WORKFLOW` once with an agac that knows schema {baseline}, then upgrade again; "
            f"or start with an empty store: mv {path} {path}.old",
        )


def refuse_newer(version: int, path: Path) -> None:
    """Raises StoreTooNew for a schema that only a newer agac knows."""
    if version > migrations()[-1][0]:
        raise StoreTooNew(
            f"{path} was written by a newer agac (schema {version}, this one knows {migrations()[-1][0]})",
            remedy="upgrade: pip install --upgrade agac",
        )


def reading_uri(path: Path) -> str:
    """The address under which a database is opened for reading alone.

    Readers of a WAL database make files beside it. Where they may not, on a read-only disk, and nobody is at work
    (there would be a WAL), it is read as a file that does not change.
    """
    may_write = os.access(path.parent, os.W_OK)
    at_work = path.with_name(f"{path.name}-wal").exists()
    return f"{path.as_uri()}?mode=ro" + ("" if may_write or at_work else "&immutable=1")


@asynccontextmanager
async def _connected(uri: str) -> AsyncIterator[Connection]:
    connect = partial(sqlite3.connect, uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection = Connection(connect, iter_chunk_size=64)
    opening = asyncio.ensure_future(_opened(connection))
    try:
        await asyncio.shield(opening)
        for pragma in _PRAGMAS:
            await connection.execute_fetchall(pragma)
        yield connection
    finally:
        try:
            await to_the_end(_closed(connection, opening))
        except BaseException:  # an exception out of the event loop itself cancels even this
            connection.stop()  # else the thread waits for work, and the process for the thread, for ever
            raise


async def _opened(connection: Connection) -> None:
    await connection


async def _closed(connection: Connection, opening: asyncio.Task[None]) -> None:
    """Closes what is open, also when the wait for its opening was cancelled."""
    if not opening.done():
        await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await connection.close()
    await connection.gone()


async def _version(connection: aiosqlite.Connection, path: Path) -> int:
    (row,) = await connection.execute_fetchall("PRAGMA user_version")
    version = int(row[0])
    refuse_newer(version, path)
    return version


async def _prepare(writer: aiosqlite.Connection, path: Path) -> None:
    version = await _version(writer, path)
    refuse_before_baseline(version, path)
    if version == 0:
        await writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only takes effect before the first table
        await writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    await writer.execute_fetchall("PRAGMA journal_mode = WAL")  # it is in force once its answer was read
    if version < migrations()[-1][0]:
        await migrate(writer)


async def migrate(writer: aiosqlite.Connection) -> None:
    """Applies what is missing, each migration in one transaction together with the record of it.

    Looks again inside the transaction: another process may have been faster. Raises LeaseHeld while a process works on
    a workflow of an older database: it does not know what would be changed under it.
    """
    for number, script in migrations():
        await writer.execute("BEGIN IMMEDIATE")
        try:
            (row,) = await writer.execute_fetchall("PRAGMA user_version")
            if int(row[0]) < number:
                if int(row[0]):
                    await _refuse_at_work(writer)
                for statement in split_script(script):
                    await writer.execute(statement)
                await writer.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            if writer.in_transaction:  # a full disk made SQLite roll back already
                await writer.execute("ROLLBACK")
            raise
        await writer.execute("COMMIT")


async def _refuse_at_work(writer: aiosqlite.Connection) -> None:
    for workflow, holder, heartbeat_at in await writer.execute_fetchall(sql("leases")):
        if is_alive(holder, time.time() - heartbeat_at):
            raise LeaseHeld(
                f"the database must be brought up to date, and {shown(holder)} is at work on {workflow!r}",
                remedy="wait for it to end, then run the same command again",
            )


# One process at a time works on a workflow: a lease row with a heartbeat and a fencing token.
#
# A dead holder is taken over at once when it ran on this machine and its process is gone, else once its heartbeat is
# older than `STALE_SECONDS`. A holder that slept through that finds its token outdated in its next commit, and writes
# nothing.

BEAT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was ours when it was taken; every commit proves again that it still is."""

    workflow: str
    token: int


@asynccontextmanager
async def lease_held(database: Database, workflow: str, clock: Callable[[], float]) -> AsyncIterator[Lease]:
    """The workflow is this process's for the block. Raises LeaseHeld when another live process has it.

    However the block is left, and also when the wait for the lease is cancelled, the lease is given back: one that
    stayed with a living process would keep everybody out for a minute.
    """
    taking = asyncio.ensure_future(take_lease(database, workflow, clock()))
    try:
        yield await asyncio.shield(taking)
    finally:
        await to_the_end(_give_back(database, taking))


async def _give_back(database: Database, taking: asyncio.Task[Lease]) -> None:
    await asyncio.wait({taking})
    if not taking.cancelled() and taking.exception() is None:
        with suppress(StoreError):  # one that cannot be given back is taken over once this process has ended
            await free_lease(database, taking.result())


async def take_lease(database: Database, workflow: str, now: float) -> Lease:
    """Takes the workflow for this process. Raises LeaseHeld when another live process has it."""
    assert database.writer is not None
    with translated(database.path):
        return await database.writer.at_once(partial(_take, workflow, now))


def _take(workflow: str, now: float, writer: sqlite3.Connection) -> Lease:
    with transaction(writer):
        found = writer.execute(sql("lease_read"), (workflow,)).fetchone()
        if found:
            _refuse_living(workflow, holder=found[1], age=now - found[2])
        parameters = {"workflow": workflow, "holder": this_process(), "now": now}
        (token,) = writer.execute(sql("lease_take"), parameters).fetchone()
    return Lease(workflow, int(token))


def _refuse_living(workflow: str, *, holder: str, age: float) -> None:
    """A clock that was set back makes the age negative: that is no proof of death, so it counts as fresh."""
    if is_alive(holder, age):
        raise LeaseHeld(
            f"workflow {workflow!r} is being run by another process ({shown(holder)}, "
            f"last sign of life {max(age, 0):.0f} s ago)",
            remedy="wait for it to end, or stop it; if it hangs it is taken over "
            f"{STALE_SECONDS:.0f} s after its last sign of life",
        )


async def free_lease(database: Database, lease: Lease) -> None:
    """Gives the lease back; does nothing when it is no longer ours."""
    assert database.writer is not None
    with translated(database.path):
        await database.writer.execute(sql("lease_free"), (lease.workflow, lease.token))


async def holder_of(database: Database, workflow: str) -> str | None:
    """The live process that works on a workflow, in words; None when there is none."""
    with translated(database.path):
        rows = list(await database.reader.execute_fetchall(sql("lease_read"), (workflow,)))
    if not rows or not rows[0][1] or is_dead(rows[0][1]):
        return None
    return shown(rows[0][1])
