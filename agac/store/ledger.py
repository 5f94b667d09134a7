"""The writer: one commit after the other, each of everything that waited (group commit).

Nobody waits for a commit before going on with a reply; what bounds the loss of a kill is that calls which are not
durable yet count against the concurrency (`engine.limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from agac.core.errors import LeaseLost, RowError
from agac.store.batch import Attempt, Endpoint, NewRow, Result, RowEnd, TaskEnd, WriteBatch
from agac.store.db import Database, translated
from agac.store.lease import BEAT_SECONDS, Lease
from agac.store.sql import sql

CEILING_SECONDS = 0.05
"""The longest that anything waits for its commit to begin; it begins at once when somebody is held up by it."""


class Ledger:
    """Collects what is to be written in `batch`, and commits it.

    `urge` says how many calls may wait before the next commit begins without waiting for more; `released` is told how
    many calls each commit made durable.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        *,
        run: int,
        event: int,
        urge: int,
        clock: Callable[[], float],
        released: Callable[[int], None],
    ) -> None:
        assert database.writer is not None
        self.batch = WriteBatch()
        self._database, self._writer, self._lease = database, database.writer, lease
        self._run, self._event, self._urge, self._clock = run, event, urge, clock
        self._released = released
        self._endpoints: dict[Endpoint, int] = {}
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def touch(self) -> None:
        """Says that `batch` holds something."""
        self._work.set()
        self._idle.clear()
        if self.batch.calls >= self._urge:
            self._hurry.set()

    async def durable(self) -> None:
        """Waits until all that is in `batch` now is committed."""
        done = asyncio.Event()
        self.batch.on_durable.append(done.set)
        self.touch()
        self._hurry.set()
        await done.wait()

    async def drained(self) -> None:
        """Waits until nothing is left to commit."""
        self._hurry.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Commits until cancelled. A commit under way is finished first. Raises what a commit raises."""
        while True:
            if not await self._waited():
                await self._commit(WriteBatch())  # a heartbeat
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CEILING_SECONDS):
                    await self._hurry.wait()
            self._work.clear()
            self._hurry.clear()
            batch, self.batch = self.batch, WriteBatch()
            await self._commit(batch)
            self._released(batch.calls)
            for tell in batch.on_durable:
                tell()
            if self.batch.empty:
                self._idle.set()

    async def _waited(self) -> bool:
        """Waits for work; False when the lease should show a sign of life first."""
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await self._work.wait()
        except TimeoutError:
            return False
        return True

    async def _commit(self, batch: WriteBatch) -> None:
        with translated(self._database.path):
            await self._writer.execute("BEGIN IMMEDIATE")
            try:
                await self._write(batch)
            except BaseException:
                await self._writer.execute("ROLLBACK")
                raise
            await self._writer.execute("COMMIT")

    async def _write(self, batch: WriteBatch) -> None:
        now = self._clock()
        beat = await self._writer.execute(sql("lease_beat"), (now, self._lease.workflow, self._lease.token))
        if beat.rowcount == 0:
            raise LeaseLost(
                f"another process took over workflow {self._lease.workflow!r} while this one was asleep",
                remedy="nothing was overwritten; run the same command again once the other process has ended",
            )
        await self._write_rows(batch)
        await self._write_results(batch.results)
        await self._many("attempt_insert", [await self._attempt(a) for a in batch.attempts])
        await self._many("task_put", [_task(t) for t in batch.tasks])
        await self._many("task_forget", batch.forgotten)
        await self._many("row_settle", [_end(e) for e in batch.ends])
        await self._many("counter_add", [(self._run, *key, *tally.values()) for key, tally in batch.tallies.items()])
        if batch.ends or batch.inserts or batch.changes or batch.places or batch.leaving:
            await self._writer.execute(sql("run_revise"), (self._run,))

    async def _many(self, name: str, rows: list[Any]) -> None:
        if rows:
            await self._writer.executemany(sql(name), rows)

    async def _write_rows(self, batch: WriteBatch) -> None:
        if batch.inserts:
            last = await self._last("row_key_max")
            for key, new in enumerate(batch.inserts, last + 1):
                new.key = key
            await self._many("row_insert", [self._insert(new) for new in batch.inserts])
        changes = [(c.ordinal, c.hash, c.data, c.state, *_error(c.error), self._event, c.key) for c in batch.changes]
        await self._many("row_change", changes)
        await self._many("row_place", [(ordinal, self._event, key) for ordinal, key in batch.places])
        await self._many("row_leave", [(key,) for key in batch.leaving])

    def _insert(self, new: NewRow) -> tuple[Any, ...]:
        row = new.row
        error = _error(row.error)
        return (
            new.key, self._run, row.id, new.occurrence, row.ordinal, new.hash, new.data, new.state, *error, self._event
        )  # fmt: skip

    async def _write_results(self, results: list[Result]) -> None:
        if not results:
            return
        last = await self._last("result_id_max")
        rows = []
        for number, result in enumerate(results, last + 1):
            result.id = number
            assert result.endpoint is not None
            endpoint = await self._endpoint(result.endpoint)
            rows.append((number, result.fingerprint, result.value, endpoint, result.created_at))
        await self._many("result_insert", rows)

    async def _attempt(self, a: Attempt) -> tuple[Any, ...]:
        c, u = a.call, a.call.usage
        asked = (a.new.key, a.stage, self._event, c.number, a.fingerprint, await self._endpoint(c.endpoint), c.purpose)
        came = (c.started_at, c.duration, c.status, *_error(c.error), c.ambiguous)
        return (*asked, *came, u.input_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens, c.cost, a.reply)

    async def _endpoint(self, endpoint: Endpoint) -> int:
        found = self._endpoints.get(endpoint)
        if found is None:
            rows = list(await self._writer.execute_fetchall(sql("endpoint_find"), endpoint))
            if rows:
                found = int(rows[0][0])
            else:
                found = (await self._writer.execute(sql("endpoint_make"), endpoint)).lastrowid
                assert found is not None
            self._endpoints[endpoint] = found
        return found

    async def _last(self, statement: str) -> int:
        (row,) = await self._writer.execute_fetchall(sql(statement))
        return int(row[0])


def _error(error: RowError | None) -> tuple[str | None, str | None]:
    return (None, None) if error is None else (error.type.value, error.message)


def _task(t: TaskEnd) -> tuple[Any, ...]:
    result = t.result.id if t.result else None
    return (t.new.key, t.stage, t.fingerprint, t.outcome.value, result, *_error(t.error), t.failures, t.at)


def _end(e: RowEnd) -> tuple[Any, ...]:
    return (e.state, e.result.id if e.result else None, e.stage, *_error(e.error), e.new.key)
