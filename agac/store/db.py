"""Opening the database: one writer connection, one reader, pragmas, migrations, and errors in words.

SQLite's exceptions are translated here and never seen above `store/`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite

from agac.core.errors import LeaseHeld, StoreCorrupt, StoreError, StoreOutdated, StoreTooNew
from agac.store.holders import is_alive, shown
from agac.store.shielded import to_the_end
from agac.store.sql import migrations, split_script, sql

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
            "everything is asked again then",
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
    """Raises StoreOutdated for a schema that a writing command has to bring up to date first."""
    if version < migrations()[-1][0]:
        raise StoreOutdated(
            f"{path} was written by an older agac",
            remedy="run `agac run -a WORKFLOW` once: it brings the database up to date",
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
                f"the database wants to be brought up to date, and {shown(holder)} is at work on {workflow!r}",
                remedy="wait for it to end, then run the same command again",
            )
