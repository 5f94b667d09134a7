"""The database: its connections and its schema, statements by name and the records that they give,
errors in words."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import aiosqlite

from agac.core.errors import StoreCorrupt, StoreError, StoreOutdated, StoreTooNew, TookTooLong

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

APPLICATION_ID = 0x61676163  # "agac", so that `file` and we ourselves know the database
STEPS = 20_000  # of SQLite's machine between two looks at the clock: some tenths of a millisecond
BUSY_SECONDS = (
    30.0  # how long a commit waits for another workflow's commit. Theirs take milliseconds.
)

LOG_BYTES = 1 << 20
"""The write-ahead log begins anew at this length: a disk that took so much takes every commit that
the database has."""

_PRAGMAS = (
    # the file, or one that is attached to it, may come from elsewhere
    "PRAGMA cell_size_check = ON",
    "PRAGMA synchronous = FULL",  # a commit survives a power cut: a lost one would be paid again
    # Larger caches did not make runs faster (the fingerprint index of 10^6 results is 25 MB, and
    # the operating system caches it too), and they count as our memory.
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
    f"PRAGMA wal_autocheckpoint = {LOG_BYTES >> 12}",  # in pages
)


class Connection(aiosqlite.Connection):
    """A connection with a thread of its own, in which every statement runs."""

    async def at_once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` as a whole in the connection's thread, so that many statements cost one
        change of threads. It runs to its end even when the caller is cancelled."""
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result

    async def gone(self) -> None:
        """Waits for the end of the thread. After a failed opening aiosqlite lets it outlive the
        event loop."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)


@dataclass(frozen=True, slots=True)
class Database:
    """An open database."""

    path: Path
    reader: Connection
    writer: Connection | None
    """The connection that writes; None if the database was opened for reading only."""
    file: os.stat_result | None = None
    """The status of its file when it was opened."""

    def prove_there(self) -> None:
        """Raises StoreError where the file was removed, emptied or replaced since it was opened:
        SQLite would go on writing into what nobody finds again. One look at the file, which takes
        some microseconds."""
        if not self._is_in_place():
            raise StoreError(
                (
                    f"{self.path} was removed or replaced while this process worked with it; "
                    "calls in flight may be billed"
                ),
                remedy="put it back, or a copy of it (`agac backup` makes them), and run the "
                "same command again; what is not in it is run and paid again",
            )

    def _is_in_place(self) -> bool:
        """True if the file at its path is the one that was opened."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        if not now.st_size:
            return False
        return self.file is None or os.path.samestat(self.file, now)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns what SQLite raises into a StoreError that says what to do: nothing above `store/` sees
    SQLite's own."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(error, path) from error


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    text = str(error)
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"{path} is damaged: {text}",
            remedy=f"restore a backup of it, or move it away (`mv {path} {path}.damaged`) and run "
            "again with --accept-store: every task is run again then",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            f"{path} was locked by another program for {BUSY_SECONDS:.0f} s",
            remedy=(
                "close the program that holds it (a database browser, a backup) and run "
                "the same command again"
            ),
        )
    if name.startswith("SQLITE_INTERRUPT"):
        what = f"a look at {path} took longer than it may, and was cut"
        return TookTooLong(
            what, remedy="look at less: fewer rows, a stage, a shorter time; or once more"
        )
    if name.startswith("SQLITE_FULL"):
        return StoreError(
            f"no space left on the disk of {path}",
            remedy="free some space and run the same command again",
        )
    if name.startswith("SQLITE_IOERR"):
        return StoreError(
            f"the disk of {path} refused to read or write: {text}",
            remedy=(
                "check that it has space left and that no file size limit is set, then run "
                "the same command again"
            ),
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreError(
            f"{path} cannot be opened for writing: {text}",
            remedy=(
                "check that the folder exists, that its disk is not read-only, and that "
                "you may write to it"
            ),
        )
    return StoreError(
        f"{path}: {text}", remedy="run the same command again; if it stays, check the disk"
    )


# Statements by name, and the records that they give.


@cache
def statements() -> dict[str, str]:
    """Every statement of `queries.sql` by its name, with the parts that it shares with others in
    their places."""
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for kind, name, body in re.findall(
        r"^-- (name|part): (\w+)\n(.*?)(?=\n\n-- |\Z)", text, re.MULTILINE | re.DOTALL
    ):
        found[kind][name] = re.sub(
            r"\{(\w+)\}", lambda named: found["part"][named[1]], body.strip().rstrip(";")
        )
    return found["name"]


def sql(name: str) -> str:
    """Returns the statement called `name`."""
    return statements()[name]


def execute(writer: sqlite3.Connection, name: str, values: Sequence[Any]) -> None:
    """Runs the statements called `name`, which change something, one after the other: each with
    every one of these."""
    for statement in split_script(sql(name)):
        writer.executemany(statement, values)


@cache
def sql_many(name: str, count: int) -> str:
    """Returns the statement called `name` with `count` placeholders in place of `(:many)`."""
    return sql(name).replace("(:many)", f"({','.join('?' * count)})")


def padded(values: Sequence[Any]) -> list[Any]:
    """`values` filled up with NULL, which equals nothing, to one of a few sizes, for SQLite's
    statement cache."""
    size = max(8, 1 << (len(values) - 1).bit_length())
    return [*values, *([None] * (size - len(values)))]


_SLICE = 512


def slices(keys: Sequence[T]) -> Iterator[list[T]]:
    """Yields the keys, as many at a time as one statement takes."""
    return (list(keys[start : start + _SLICE]) for start in range(0, len(keys), _SLICE))


def fetch(
    connection: sqlite3.Connection, name: str, record: type[T], *values: Any, **named: Any
) -> list[T]:
    """Every row that the statement `name` finds over this connection, each as a `record`. A record
    is a single value (the first column), a `tuple[...]`, or a NamedTuple or dataclass, whose
    fields are filled from the columns with their names. What SQLite cannot hold is converted by
    the field's type: bool, enums, JSON for a dict, and a further record `error` from the columns
    `error_…` (None where the first of them is NULL), or from those with the names of its own
    fields. A sequence among the values takes the place of `(:many)`."""
    statement = sql(name)
    bound = values
    for place, value in enumerate(values):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            many = padded(value)
            statement = sql_many(name, len(many))
            bound = (*values[:place], *many, *values[place + 1 :])
    cursor = connection.execute(statement, named or bound)
    kind: Any = record
    make = _record_maker(kind, tuple(column[0] for column in cursor.description))
    if make is None:
        return cursor.fetchall()
    return list(map(make, cursor))


async def select(
    database: Database, name: str, record: type[T], *values: Any, **named: Any
) -> list[T]:
    """Every row that the statement `name` finds, each as a `record`: see `fetch`. Raises
    StoreError."""
    with translated(database.path):
        return await database.reader.at_once(
            lambda reader: fetch(reader, name, record, *values, **named)
        )


Reads = Callable[Concatenate[Database, P], Awaitable[R]]
"""A read by a named statement: it takes the statement's values and gives what was found. Raises
StoreError."""


def reads(
    name: str, record: Any, give: Callable[[list[Any]], Any] = list
) -> Callable[..., Awaitable[Any]]:
    """Makes the read by the statement `name`, which says in `queries.sql` what it finds: `give` of
    its rows as `record`s."""

    async def read(database: Database, *values: Any, **named: Any) -> Any:
        return give(await select(database, name, record, *values, **named))

    return read


def first(values: list[T]) -> T | None:
    """Returns the first of these values; None if there is none."""
    return values[0] if values else None


def by(field: str) -> Callable[[list[Any]], dict[Any, Any]]:
    """Makes a dict of records by one of their fields."""
    return lambda records: {getattr(record, field): record for record in records}


def keyed(make: Callable[[list[Any]], Any]) -> Callable[[list[Any]], dict[Any, Any]]:
    """Makes a dict of rows: from the first part of each to what `make` gives of the others."""
    return lambda rows: {key: make(others) for key, *others in rows}


def grouped(values: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Lists values by a key of each, in the order in which they came."""
    groups: dict[Any, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def nested(rows: Iterable[tuple[Any, Any, Any]]) -> dict[Any, dict[Any, Any]]:
    """Makes dicts by the first part of each row: from the second part to the third."""
    outer: dict[Any, dict[Any, Any]] = {}
    for first_part, second, third in rows:
        outer.setdefault(first_part, {})[second] = third
    return outer


async def write(database: Database, name: str, *values: Any, **named: Any) -> int:
    """Runs one small writing statement in a transaction of its own; returns the number of the
    inserted row."""
    assert database.writer is not None
    with translated(database.path):
        return (await database.writer.execute(sql(name), named or values)).lastrowid or 0


async def change(database: Database, work: Callable[[sqlite3.Connection], T]) -> T:
    """Runs `work` in one transaction, in the writer's thread. Raises StoreError."""

    def whole(writer: sqlite3.Connection) -> T:
        with transaction(writer):
            return work(writer)

    assert database.writer is not None
    with translated(database.path):
        return await database.writer.at_once(whole)


@contextmanager
def transaction(writer: sqlite3.Connection) -> Iterator[None]:
    """Commits all that the block writes, or nothing of it."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    except BaseException:  # whatever ends the block, nothing of it stays
        if writer.in_transaction:  # a full disk made SQLite roll back already
            writer.execute("ROLLBACK")
        raise


Make = Callable[[tuple[Any, ...]], Any]  # makes a value of a row of the database


@cache
def _record_maker(record: Any, columns: tuple[str, ...]) -> Make | None:
    """Returns the function that makes a record of a row with these columns, or None if the row is
    one already."""
    if get_origin(record) is tuple:
        converters = [_converter(hint) for hint in get_args(record)]
        read = [_column(number, converter) for number, converter in enumerate(converters)]
        if any(converters):
            return lambda row: tuple([one(row) for one in read])
        return None
    if not _is_record(record):
        return _column(0, _converter(record))
    plain = all(
        _converter(hint) is None for name, hint in get_type_hints(record).items() if name in columns
    )
    if plain and columns == _field_names(record)[: len(columns)]:
        return lambda row: record(*row)
    return _field_maker(record, columns)


def _field_maker(record: Any, columns: Sequence[str], prefix: str = "") -> Make:
    """Makes a record of a row: its first fields, from the columns whose names begin with
    `prefix`."""
    hints = get_type_hints(record)
    read: list[Make] = []
    for name in _field_names(record):
        kind = _without_none(hints[name])
        if prefix + name in columns:
            read.append(_column(columns.index(prefix + name), _converter(kind)))
        elif _is_record(kind) and f"{name}_{_first_column(kind)}" in columns:
            read.append(_field_maker(kind, columns, f"{name}_"))
        elif _is_record(kind) and _first_column(kind) in columns:
            read.append(_field_maker(kind, columns))
        else:
            break
    if not prefix:
        return lambda row: record(*[one(row) for one in read])
    key = columns.index(prefix + _field_names(record)[0])
    return lambda row: None if row[key] is None else record(*[one(row) for one in read])


def _first_column(record: Any) -> str:
    """Returns the name of a record's first column, which may be that of a record in it."""
    name = _field_names(record)[0]
    kind = _without_none(get_type_hints(record)[name])
    return _first_column(kind) if _is_record(kind) else name


def _column(number: int, converter: Callable[[Any], Any] | None) -> Make:
    if converter is None:
        return itemgetter(number)
    return lambda row: None if row[number] is None else converter(row[number])


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Returns the function that converts SQLite's value to this type, or None if none is
    needed."""
    kind = _without_none(hint)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {one.value: one for one in kind}.__getitem__
    if kind is bool:
        return bool
    if (get_origin(kind) or kind) in (dict, list):
        return json.loads
    return None


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
    else:
        others = []
    return others[0] if len(others) == 1 else hint


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


@cache
def _field_names(record: Any) -> tuple[str, ...]:
    if is_dataclass(record):
        return tuple(one.name for one in fields(record))
    return tuple(record._fields)


# Opening for reading; `store/writer` opens for writing.


@asynccontextmanager
async def open_for_reading(
    path: Path, seconds: float | None = None
) -> AsyncIterator[Database | None]:
    """Opens without changing anything; None: there is no database. Older ones are refused. May
    raise TookTooLong."""
    ends = time.monotonic() + (seconds or 0.0)
    if not path.exists() or not path.stat().st_size:  # an empty file is a database without anything
        yield None
        return
    with translated(path):
        async with connected(reading_uri(path)) as reader:
            any_schema = await reader.at_once(partial(refuse_other_schemas, path))
            if seconds is not None:
                await reader.at_once(
                    lambda one: one.set_progress_handler(lambda: time.monotonic() > ends, STEPS)
                )
            yield Database(path, reader, None) if any_schema else None


def reading_uri(path: Path) -> str:
    """Returns the address under which a database is opened for reading alone.

    Readers make files next to a WAL database. If they may not, and no process is at work (there
    would be a WAL), it is read as a file that does not change."""
    may_write = os.access(path.parent, os.W_OK)
    at_work = path.with_name(f"{path.name}-wal").exists()
    return f"{path.as_uri()}?mode=ro" + ("" if may_write or at_work else "&immutable=1")


@asynccontextmanager
async def connected(uri: str) -> AsyncIterator[Connection]:
    connect = partial(sqlite3.connect, uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection = Connection(connect, iter_chunk_size=64)
    opening = asyncio.ensure_future(connection)

    async def close() -> None:
        """Closes what is open, also when the wait for its opening was cancelled."""
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            await connection.close()
        await connection.gone()

    try:
        await asyncio.shield(opening)
        for pragma in _PRAGMAS:
            await connection.execute_fetchall(pragma)
        yield connection
    finally:
        try:
            await to_the_end(close())
        except BaseException:  # an exception out of the event loop itself cancels even this
            # else the thread waits for work, and the process for the thread, for ever
            connection.stop()
            raise


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work`, which is short, even when cancelled meanwhile; the cancellation is raised
    after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


# The schema: its migrations, and databases of another age.


@cache
def migrations() -> list[tuple[int, str]]:
    """Returns all migrations in order: their number and their statements."""
    folder = files(__package__) / "migrations"
    return sorted(
        (int(f.name[:4]), f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")
    )


@cache
def split_script(script: str) -> list[str]:
    """Returns the statements of a script. A semicolon ends a statement only at the end of a
    line."""
    bare = re.sub(r"--[^\n]*", "", script)
    return [part.strip() for part in re.split(r";\s*(?:\n|\Z)", bare) if part.strip()]


def schema_of(path: Path, connection: sqlite3.Connection, *, to_copy: bool = False) -> int:
    """Returns the number of the schema; 0: nothing was written yet. Raises StoreTooNew if only a
    newer agac knows it, and StoreOutdated for one from before the first migration, which can only
    be copied."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    baseline, newest = (migrations()[place][0] for place in (0, -1))
    if version > newest:
        what = f"{path} was written by a newer agac (schema {version}, this one knows {newest})"
        raise StoreTooNew(
            what, remedy="Upgrade the agac that runs here: `agac version` says which one that is."
        )
    if 0 < version < baseline and not to_copy:
        raise StoreOutdated(
            (
                f"{path} was written by an early agac (schema {version}; this one needs "
                f"{baseline} or later)"
            ),
            remedy="run `agac run -a WORKFLOW` once with an agac that knows schema "
            f"{baseline}, then upgrade again; "
            f"or start with an empty store: mv {path} {path}.old, then run with --accept-store",
        )
    return version


def refuse_other_schemas(path: Path, connection: sqlite3.Connection) -> bool:
    """True if there is a schema; a process that was killed may have left none. Raises as
    `schema_of` does, and StoreOutdated for one that is older than this agac's."""
    version = schema_of(path, connection)
    if 0 < version < migrations()[-1][0]:
        what = f"{path} was written by an older agac"
        raise StoreOutdated(
            what, remedy="run `agac run -a WORKFLOW` once: it brings the database up to date"
        )
    return version > 0
