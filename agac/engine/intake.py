"""Rows of the input meet the rows of the store: what is unchanged is passed over, everything else takes off.

Two roads. While the input stands as it is stored (same ids at the same positions), a range of positions is read and
compared, and nothing is written: this is how a finished run is run again. From the first chunk on that differs (new
rows, moved rows, other ids), rows are found by their ids, and each is marked as seen in this pass; what was not seen at
the end has left the input.

A pass may be killed anywhere: rows that moved may then share a position with rows not met yet. The next pass finds more
rows than positions there, takes the second road, and puts it right.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import NamedTuple

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.core.keys import row_hash, snapshot
from agac.core.types import Outcome, Row, RowId
from agac.engine.control import Control
from agac.engine.settle import Flight
from agac.engine.totals import Totals
from agac.spec.workflow import OnDuplicateId
from agac.store.batch import NewRow, RowChange
from agac.store.db import Database
from agac.store.ledger import Ledger
from agac.store.rows import PriorTask, State, StoredRow, count_rows, prior_tasks, rows_at, rows_by_id
from agac.store.scans import last_positions, leaving_rows, scan_positions

CHUNK_ROWS = 256
CHUNK_CHARACTERS = 4_000_000
"""A chunk ends at either: rows are read ahead by one chunk, so this bounds what reading holds in memory."""

FURTHER_RUNS = 2
"""Invocations that ask again for an answer that failed as an answer: a nightly run must not pay for ever."""


class Places(NamedTuple):
    """Which run and which invocation rows are placed for."""

    database: Database
    run: int
    event: int


class Intake:
    """One pass over the input. Iterate `flights`, then call `finish` when all of it was read."""

    def __init__(
        self, places: Places, ledger: Ledger, control: Control, totals: Totals, *, on_duplicate: OnDuplicateId,
        numbered: bool,
    ) -> None:  # fmt: skip
        """`numbered`: ids are positions, so that none can come twice."""
        self._db, self._run, self._event = places
        self._ledger, self._control, self._totals = ledger, control, totals
        self._on_duplicate, self._numbered = on_duplicate, numbered
        self._moved_from: int | None = None
        self._last = 0
        self._stored_last = 0

    async def flights(self, rows: Iterator[Row]) -> AsyncGenerator[list[Flight], None]:
        """The rows that need work, some hundred at a time, each stored before it is given out."""
        self._stored_last = await count_rows(self._db, "ordinal_last", self._run)
        while self._control.stop is None:
            chunk = await asyncio.to_thread(read_chunk, rows)
            if not chunk:
                return
            self._last = chunk[-1].row.ordinal
            flights = await self._place(chunk)
            self._totals.seen += len(chunk)
            if not self._ledger.batch.empty:
                await self._ledger.durable()
            if flights:
                yield flights

    async def finish(self) -> None:
        """Lets go of the rows that the input no longer holds. Their results stay for reuse."""
        moved = self._moved_from if self._moved_from is not None else 1 << 62
        while True:
            leaving = await leaving_rows(
                self._db, self._run, last=self._last, moved_from=moved, event=self._event, limit=CHUNK_ROWS
            )
            if not leaving:
                return
            for key, state, error_type in leaving:
                self._ledger.batch.leaving.append(key)
                self._uncount(State(state), error_type)
            await self._ledger.durable()

    async def _place(self, chunk: list[NewRow]) -> list[Flight]:
        first = chunk[0].row.ordinal
        if self._moved_from is None:
            if self._numbered and first > self._stored_last:
                return [flight for new in chunk for flight in self._insert(new)]
            stored = await rows_at(self._db, self._run, first, self._last)
            if self._stands(chunk, stored):
                return await self._compare(list(zip(chunk, stored, strict=True)))
            self._moved_from = first
        return await self._by_id(chunk)

    def _stands(self, chunk: list[NewRow], stored: list[StoredRow]) -> bool:
        """Whether the store holds just these ids at just these positions."""
        if len(chunk) != len(stored):
            return False
        suffixed = self._on_duplicate == "suffix"
        for new, old in zip(chunk, stored, strict=True):
            row = new.row
            same = row.id == old.id or (suffixed and str(old.id).startswith(f"{row.id}#") and new.hash == old.hash)
            if not same or row.ordinal != old.ordinal:
                return False
        return True

    async def _compare(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[Flight]:
        """Rows at their places: what is done and unchanged is passed over."""
        open_pairs = []
        for new, old in pairs:
            if old.hash == new.hash and (old.state == State.DONE or old.state == State.DROPPED):
                self._totals.unchanged += 1
            else:
                open_pairs.append((new, old))
        return await self._reopen(open_pairs)

    async def _reopen(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[Flight]:
        """Stored rows that changed, failed or never came to their end."""
        if not pairs:
            return []
        prior = await prior_tasks(self._db, [old.key for _, old in pairs])
        flights = []
        for new, old in pairs:
            new.key, tasks = old.key, prior.get(old.key, {})
            if self._left_as_it_is(new, old, tasks):
                self._totals.unchanged += 1
                continue
            self._change(new, old)
            if new.state is State.PENDING:
                flights.append(Flight(new, tasks))
        return flights

    def _left_as_it_is(self, new: NewRow, old: StoredRow, tasks: dict[int, PriorTask]) -> bool:
        """Whether an unchanged row is not tried again: done, unusable as before, or refused often enough."""
        if new.hash != old.hash or new.state is not State.PENDING:
            return new.hash == old.hash and new.state == old.state
        if old.state in (State.DONE, State.DROPPED):
            return True
        if old.state != State.FAILED or old.error_stage is None:
            return False
        failed = [t for t in tasks.values() if t.outcome is Outcome.FAILED and t.error]
        left = any(t.error and t.error.type in ANSWER_FAILURES and t.failures > FURTHER_RUNS for t in failed)
        self._totals.left_failed += left
        return left

    def _change(self, new: NewRow, old: StoredRow) -> None:
        """Stores what the row holds now; a row that only goes on is written only when its state has to change."""
        row = new.row
        self._uncount(State(old.state), old.error_type)
        self._count(new)
        if new.state != old.state or new.hash != old.hash:
            change = RowChange(old.key, row.ordinal, new.hash, new.data, new.state, row.error)
            self._ledger.batch.changes.append(change)

    async def _by_id(self, chunk: list[NewRow]) -> list[Flight]:
        """Rows wherever they stood before: by id, repetitions counted in the order of the input."""
        stored = await rows_by_id(self._db, self._run, list(dict.fromkeys(new.row.id for new in chunk)))
        last = await self._last_positions(chunk)
        taken: Counter[RowId] = Counter()
        flights: list[Flight] = []
        reopened: list[tuple[NewRow, StoredRow]] = []
        for new in chunk:
            row = new.row
            rows = stored.get(row.id, ())
            placed = [old for old in rows if self._is_placed(old)]
            repetition = len(placed) + taken[row.id]
            taken[row.id] += 1
            new.occurrence = repetition
            self._judge_repetition(new, repetition, placed, chunk, last)
            old = next((o for o in rows if o.occurrence == new.occurrence and not self._is_placed(o)), None)
            if new.row.id != row.id:  # it got an id of its own
                old = await self._stored_as(new.row.id)
            if old is None:
                flights += self._insert(new)
            else:
                self._ledger.batch.places.append((row.ordinal, old.key))
                reopened.append((new, old))
        return [*flights, *await self._reopen(reopened)]

    async def _stored_as(self, row_id: RowId) -> StoredRow | None:
        found = (await rows_by_id(self._db, self._run, [row_id])).get(row_id, [])
        return next((old for old in found if not self._is_placed(old)), None)

    def _is_placed(self, old: StoredRow) -> bool:
        """Whether this pass met the row already."""
        assert self._moved_from is not None
        return old.ordinal is not None and (old.ordinal < self._moved_from or old.seen == self._event)

    async def _last_positions(self, chunk: list[NewRow]) -> dict[RowId, int]:
        if self._on_duplicate != "last":
            return {}
        return await last_positions(self._db, [new.row.id for new in chunk])

    def _judge_repetition(
        self, new: NewRow, repetition: int, placed: list[StoredRow], chunk: list[NewRow], last: dict[RowId, int]
    ) -> None:
        """What becomes of a row whose id was met before, or (under `last`) will be met again."""
        row = new.row
        if self._on_duplicate == "last":
            stays = last.get(row.id) == row.ordinal
            new.occurrence = 0 if stays else repetition + 1
            if not stays:
                self._drop(new)
        elif repetition == 0:
            return
        elif self._on_duplicate == "first":
            self._drop(new)
        elif self._on_duplicate == "suffix":
            new.row = row._replace(id=f"{row.id}#{repetition + 1}")
            new.occurrence = 0
        else:
            before = [old.ordinal or 0 for old in placed] + [n.row.ordinal for n in chunk if n.row.id == row.id]
            message = f"id {row.id!r} was used by row {min(before)} already; give each row its own id, or set "
            error = RowError(ErrorType.DUPLICATE_ID, message + "input.on_duplicate_id: first | last | suffix")
            new.row, new.state = row._replace(error=error), State.FAILED

    def _drop(self, new: NewRow) -> None:
        new.state = State.DROPPED

    def _insert(self, new: NewRow) -> list[Flight]:
        self._ledger.batch.inserts.append(new)
        self._count(new)
        return [Flight(new)] if new.state is State.PENDING else []

    def _count(self, new: NewRow) -> None:
        """Counts a row that is settled before it takes off."""
        error = new.row.error
        if new.state is State.DROPPED:
            self._ledger.batch.tally(("", Outcome.DROPPED.value, "", "")).count += 1
            self._totals.rows_dropped += 1
        elif new.state is State.FAILED and error:
            self._ledger.batch.tally(("", Outcome.FAILED.value, error.type.value, "")).count += 1
            self._totals.rows_failed += 1
            self._totals.last_error = (error, new.row.id)

    def _uncount(self, state: State, error_type: str | None) -> None:
        """A row that was counted in its old state is no longer in it."""
        outcome = {State.DONE: Outcome.DONE, State.FAILED: Outcome.FAILED, State.DROPPED: Outcome.DROPPED}.get(state)
        if outcome is not None:
            self._ledger.batch.tally(("", outcome.value, error_type or "", "")).count -= 1


def read_chunk(rows: Iterator[Row]) -> list[NewRow]:
    """The next rows, with their snapshots. Runs in a thread: reading a file may block."""
    chunk: list[NewRow] = []
    characters = 0
    for row in rows:
        data = snapshot(row.data)
        error = row.error
        digest = row_hash(f"{error.type}:{error.message}:{data}" if error else data)
        chunk.append(NewRow(row, 0, digest, data, State.FAILED if error else State.PENDING))
        characters += len(data)
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            break
    return chunk


async def scan_ids(places: Places, rows: Iterator[Row]) -> None:
    """Reads the whole input once for `on_duplicate_id: last`, which has to know where each id comes last."""
    await scan_positions(places.database, _id_chunks(rows))


async def _id_chunks(rows: Iterator[Row]) -> AsyncIterator[list[tuple[RowId, int]]]:
    while chunk := await asyncio.to_thread(_some_ids, rows):
        yield chunk


def _some_ids(rows: Iterator[Row]) -> list[tuple[RowId, int]]:
    found = []
    for row in rows:
        found.append((row.id, row.ordinal))
        if len(found) == 10 * CHUNK_ROWS:
            break
    return found
