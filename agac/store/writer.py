"""Opens the database for writing and writes commits: each commit has everything that waited for
it (group commit)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agac.core.errors import LeaseHeld, StoreError
from agac.core.state_files import make_file, make_folder
from agac.store import db, records
from agac.store.commit_values import (
    Statement,
    batch_task_statements,
    call_values,
    changes_rows,
    conversation_statements,
    counter_statements,
    end_statements,
    review_statements,
    row_statements,
)
from agac.store.db import Database, change, first, select, sql
from agac.store.derived_row_writer import DerivedRowWriter, last_number
from agac.store.lease import BEAT_SECONDS, Lease, is_alive, shown
from agac.store.write_batch import WriteBatch

T = TypeVar("T")


@contextlib.asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Opens the database for writing. Makes it if there is none, and migrates an older one."""
    with db.translated(path):
        _make_database_file(path)
        async with db.connected(f"{path.as_uri()}?mode=rwc") as writer:
            await writer.at_once(partial(_prepare, path))
            async with db.connected(f"{path.as_uri()}?mode=ro") as reader:
                yield Database(path, reader, writer, path.stat())


def _make_database_file(path: Path) -> None:
    """Makes the folder and the file of the database where they are missing."""
    try:
        make_folder(path.parent)
        make_file(path)  # with its mode, which SQLite gives to its log
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            remedy = "a file stands there; move it away"
        else:
            remedy = "check the folder's owner"
        raise StoreError(
            f"{path.parent} cannot be made: {error.strerror}", remedy=remedy
        ) from error


def _prepare(path: Path, writer: sqlite3.Connection) -> None:
    """Sets the modes of a connection that writes, and migrates the database if it is older."""
    version = db.schema_of(path, writer)
    if version == 0:
        # only takes effect before the first table
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        writer.execute(f"PRAGMA application_id = {db.APPLICATION_ID}")
    # the mode is in force only once its answer was read
    writer.execute("PRAGMA journal_mode = WAL").fetchall()
    if version < db.migrations()[-1][0]:
        migrate(writer)


def migrate(writer: sqlite3.Connection) -> None:
    """Applies missing migrations and records them in one transaction, so that a killed process
    leaves the database as it was. The version is read again inside the transaction, since another
    process may have migrated first.

    Raises LeaseHeld while a process works on a workflow of an older database: that process does
    not know of the changes.
    """
    with db.transaction(writer):
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        missing = [(number, script) for number, script in db.migrations() if number > version]
        if version and missing:
            _refuse_live_holders(writer)
        for number, script in missing:
            for statement in db.split_script(script):
                writer.execute(statement)
            writer.execute(f"PRAGMA user_version = {number}")


def _refuse_live_holders(writer: sqlite3.Connection) -> None:
    """Raises LeaseHeld if a live process holds a lease of any workflow."""
    for workflow, holder, heartbeat_at in writer.execute(sql("leases")).fetchall():
        if is_alive(holder, time.time() - heartbeat_at):
            raise LeaseHeld(
                f"the database must be brought up to date, and {shown(holder)} is at work on "
                f"{workflow!r}",
                remedy="wait for it to end, then run the same command again",
            )


# Replies are processed without waiting for their commit. A kill can lose only as many calls as
# the concurrency allows: calls that are not durable yet count against it (`engine.rate_limiter`).

CEILING_SECONDS = 0.05
"""The longest time that a change waits for its commit to begin. The commit begins at once when a
caller of `durable` waits for it."""


class Ledger:
    """Collects changes in `batch` and commits them."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        *,
        run: int,
        event: int,
        urge: int,
        clock: Callable[[], float],
        descent: DerivedRowWriter | None = None,
        committed: Callable[[WriteBatch], Awaitable[None]] | None = None,
    ) -> None:
        """`event` is the invocation of `run`. Once `urge` calls wait, the next commit begins
        without waiting for more. `descent` writes derived rows. `committed` is called after each
        commit with what was written, before the next one begins."""
        self._batch = WriteBatch()
        self._committed = committed
        self._database = database
        self._lease = lease
        self._run = run
        self._event = event
        self._urge = urge
        self._clock = clock
        self._descent = descent
        self._endpoint_ids: dict[records.Endpoint, int] = {}
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def batch(self) -> WriteBatch:
        """Returns what the next commit writes. Reading this property asks for a commit, since the
        caller is about to add something."""
        if not self._work.is_set():
            self._work.set()
            self._idle.clear()
        return self._batch

    def count_call(self) -> None:
        """Counts a call that waits to be durable. Once `urge` calls wait, the next commit begins at
        once."""
        self.batch.calls.count += 1
        if self._batch.calls.count >= self._urge:
            self._hurry.set()

    async def durable(self) -> None:
        """Waits until everything that was added so far is committed, including a commit that is
        under way."""
        if self._idle.is_set():
            return
        done = asyncio.Event()
        self.batch.on_durable.append(done.set)
        self._hurry.set()
        await done.wait()

    async def drained(self) -> None:
        """Waits until nothing is left to commit."""
        self._hurry.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Commits until cancelled. A commit under way is finished first. Raises what a commit
        raises."""
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._work.wait()
            except TimeoutError:
                await self.change(lambda _: None)  # a sign of life
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CEILING_SECONDS):
                    await self._hurry.wait()
            self._work.clear()
            self._hurry.clear()
            batch = self._batch
            self._batch = WriteBatch()
            await self.change(partial(self._write, batch, self._run, self._event))
            if self._committed is not None:
                await self._committed(batch)
            for notify in batch.on_durable:
                notify()
            if not self._work.is_set():
                self._idle.set()

    async def end(self, *statements: tuple[str, Any]) -> None:
        """Runs statements, by name with their values, in a commit of their own, if the lease is
        still ours. Called after `run`, for the end of an invocation."""
        await self.change(
            lambda writer: [writer.execute(sql(name), values) for name, values in statements]
        )

    async def prove_room(self, body: str) -> None:
        """Proves that the disk has room for a full log: fills the log and the database once, then
        overwrites that with `body`, the invocation's record. The log keeps its size for later
        commits; the database gives the room back. Raises StoreError if the disk is too full."""

        def fill(writer: sqlite3.Connection) -> int:
            (pages,) = writer.execute("PRAGMA page_count").fetchone()
            writer.execute(sql("event_fill"), (" " * db.LOG_BYTES, self._event))
            return int(writer.execute("PRAGMA page_count").fetchone()[0]) - int(pages)

        def empty_log(writer: sqlite3.Connection) -> None:
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            # `execute` would make one step of it
            writer.executescript(f"PRAGMA incremental_vacuum({more});")

        more = await self.change(fill)
        await self.change(
            lambda writer: writer.execute(sql("event_note"), (body, self._event)).rowcount
        )
        assert self._database.writer is not None
        with db.translated(self._database.path):
            await self._database.writer.at_once(empty_log)

    async def put(
        self, batch: WriteBatch, run: int, event: int, further: Callable[[sqlite3.Connection], None]
    ) -> None:
        """Commits `batch` by itself, for an invocation of any run, together with what `further`
        writes."""

        def write(writer: sqlite3.Connection) -> None:
            self._write(batch, run, event, writer)
            further(writer)

        await self.change(write)

    async def change(self, write: Callable[[sqlite3.Connection], T]) -> T:
        """Commits what `write` does, if the lease is still ours, and returns its result. A commit
        that began is finished even when the caller is cancelled."""

        def write_with_lease(writer: sqlite3.Connection) -> T:
            self._database.prove_there()
            remedy = (
                "nothing was overwritten; run the same command again once the other "
                "process has ended"
            )
            self._lease.prove(writer, self._clock(), " while this one was asleep", remedy)
            return write(writer)

        commit = asyncio.ensure_future(change(self._database, write_with_lease))
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait({commit})
            commit.result()
            raise

    # From here on everything runs in the writer's thread, without the event loop: a commit has some
    # dozens of statements, and a change of threads for each would cost more than SQLite does.

    def _write(self, batch: WriteBatch, run: int, event: int, writer: sqlite3.Connection) -> None:
        """Writes a whole batch."""
        for name, rows in self._statements(batch, run, event, writer):
            if rows:
                db.execute(writer, name, rows)

    def _statements(
        self, batch: WriteBatch, run: int, event: int, writer: sqlite3.Connection
    ) -> Iterator[Statement]:
        """Yields the statements of a commit with their values, in their order. Each is built only
        after those before it ran, since some read what was written."""
        _number_new_lines(batch, writer)
        yield from row_statements(batch, run, event)
        yield "result_insert", [self._result_values(r, writer) for r in batch.tasks.results]
        calls = [
            call_values(new, call, event, self._endpoint_id(call.endpoint, writer))
            for new, call in batch.calls.attempts
        ]
        yield "attempt_insert", calls
        yield "key_accept", batch.accepted
        yield "chunk_call_put", [(event, run, *c[:4], c[4].key, *c[5:]) for c in batch.calls.given]
        # this includes the call of a worker that was lost before the call's line was stored
        yield "chunk_call_end", batch.calls.answered
        yield from conversation_statements(batch, self._lease.workflow, event)
        yield from end_statements(batch)
        if self._descent is not None:
            self._descent.write(writer, batch)
        yield from batch_task_statements(batch, run)
        yield from review_statements(batch, run)
        yield from counter_statements(batch, run, int(self._clock() // 60))
        if batch.waits is not None:
            yield "event_say", [("$.waits", batch.waits, event)]
        if changes_rows(batch):
            yield "run_revise", [(run,)]

    def _result_values(self, result: records.Result, writer: sqlite3.Connection) -> tuple[Any, ...]:
        """Builds the values of a result's line. Its endpoint and its sources are those of the
        result that it is made of, which may be stored already."""
        origin = result if result.like is None else result.like
        if origin.endpoint is None:
            endpoint, sources = writer.execute(sql("result_endpoint"), (origin.id,)).fetchone()
        else:
            endpoint = self._endpoint_id(origin.endpoint, writer)
            sources = None
            if origin.sources:
                sources = json.dumps([source._asdict() for source in origin.sources])
        return (
            result.id,
            result.fingerprint,
            result.value,
            endpoint,
            result.created_at,
            result.how,
            sources,
        )

    def _endpoint_id(self, endpoint: records.Endpoint, writer: sqlite3.Connection) -> int:
        """Returns the number of an endpoint's line, and writes the line if there is none."""
        number = self._endpoint_ids.get(endpoint)
        if number is None:
            (number,) = writer.execute(sql("endpoint_put"), endpoint).fetchone()
            self._endpoint_ids[endpoint] = int(number)
        return int(number)


def _number_new_lines(batch: WriteBatch, writer: sqlite3.Connection) -> None:
    """Gives new rows and new results their keys."""
    if batch.rows.inserts:
        for key, new in enumerate(batch.rows.inserts, last_number(writer, "row_key_max") + 1):
            new.key = key
    if batch.tasks.results:
        for number, result in enumerate(
            batch.tasks.results, last_number(writer, "result_id_max") + 1
        ):
            result.id = number


class ToolCache:
    """Results of tools that are kept for later runs. Results from before `since` (seconds since
    1970) are not used."""

    def __init__(
        self, database: Database, ledger: Ledger, clock: Callable[[], float], since: float
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._clock = clock
        self._since = since

    async def get(self, key: bytes) -> str | None:
        """Returns the result of an equal call, or None if none is kept."""
        return first(
            await select(self._database, "tool_cache_get", str, key, self._since, self._clock())
        )

    async def put(self, key: bytes, name: str, text: str, ttl: float | None) -> None:
        """Keeps a result for `ttl` seconds; None keeps it for ever."""
        now = self._clock()
        expires_at = None if ttl is None else now + ttl
        values = (key, name, text, now, expires_at)
        await self._ledger.change(lambda writer: writer.execute(sql("tool_cache_put"), values))
