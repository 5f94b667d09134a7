"""Rows of the input meet the rows of the store: unchanged ones are passed over, the others are worked on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from agac.core.errors import ErrorType, RowError
from agac.core.keys import row_hash, snapshot
from agac.core.types import Outcome, Row, RowId
from agac.engine.effects import ActiveRow
from agac.engine.invocation import InvocationContext, InvocationRef
from agac.engine.retry_policy import is_left
from agac.spec.workflow import OnDuplicateId
from agac.store.db import Database
from agac.store.records import PRESENT, NewRow, RowChange
from agac.store.rows import (
    OUTCOME_OF,
    WALKED,
    PriorTask,
    State,
    StoredRow,
    aged_rows,
    last_number,
    last_positions,
    leaving_rows,
    prior_tasks,
    rows_at,
    rows_by_id,
    rows_of_id,
    scan_positions,
)

# Rows by their ids: which stored row an input row is, and what becomes of a row whose id came before.
#
# Repetitions are counted in the order of the input. What is stored of a pass that is under way is what this pass placed
# already and what it has not met yet; `is_placed` tells the two apart.

PROBES = 8
"""Ids of the form `id#2` that are looked up at a time for a repeated id."""

KEPT_IDS = 10_000
"""Repeated ids of which is kept in memory how often they came; of others it is looked up again."""


@dataclass(slots=True)
class IdMatch:
    """An id before a chunk: how often this pass met it and where first, and its stored rows that were not met yet."""

    count: int
    first: int
    free: dict[int, StoredRow]


class RowMatcher:
    """Finds rows by id, chunk by chunk: `look_up` a chunk, `place` each of its rows in order, then `keep`.

    `moved_from` is the position from which on this pass places rows by id; before it they stand as stored.
    """

    def __init__(self, places: InvocationRef, policy: OnDuplicateId, place: Callable[[int], str]) -> None:
        """`place` names a row by its ordinal."""
        self._db, self._run, self._event = places
        self._policy, self._named = policy, place
        self.moved_from: int | None = None
        self._often: dict[RowId, tuple[int, int]] = {}  # how often an id was met, and where first
        self._numbers: dict[RowId, int] = {}  # the last number given to an id under `suffix`
        self._met: dict[RowId, IdMatch] = {}
        self._last: dict[RowId, int] = {}
        self._taken: Counter[RowId] = Counter()

    def is_placed(self, old: StoredRow) -> bool:
        """Whether this pass met the row already."""
        assert self.moved_from is not None
        return old.ordinal is not None and (old.ordinal < self.moved_from or old.seen == self._event)

    async def last_positions(self, chunk: list[NewRow]) -> dict[RowId, int]:
        """Where each of the chunk's ids comes last; empty unless the last one is to stay."""
        if self._policy != "last":
            return {}
        return await last_positions(self._db, [new.row.id for new in chunk])

    async def look_up(self, chunk: list[NewRow]) -> None:
        """Learns what is known of a chunk's ids. An id that comes often is not read as a whole each time."""
        wanted = Counter(new.row.id for new in chunk)
        unknown = [row_id for row_id in wanted if row_id not in self._often]
        stored = await rows_by_id(self._db, self._run, unknown) if unknown else {}
        self._met = {}
        for row_id in unknown:
            rows = stored.get(row_id, [])
            placed = [old.ordinal or 0 for old in rows if self.is_placed(old)]
            self._met[row_id] = IdMatch(len(placed), min(placed, default=0), self._free(rows))
        for row_id in wanted.keys() - self._met.keys():
            count, first = self._often[row_id]
            rows = await rows_of_id(self._db, self._run, row_id, count, count + wanted[row_id])
            self._met[row_id] = IdMatch(count, first, self._free(rows))
        self._last = await self.last_positions(chunk)
        self._taken = Counter()

    async def place(self, new: NewRow) -> StoredRow | None:
        """Decides what the row is: its occurrence, perhaps another id or an end. Gives the stored row that it is."""
        row = new.row
        met = self._met[row.id]
        repetition = new.occurrence = met.count + self._taken[row.id]
        met.first = min(met.first or row.ordinal, row.ordinal)
        self._taken[row.id] += 1
        if repetition and self._policy == "suffix":
            return await self._name_apart(new)
        self._judge(new, repetition, met.first)
        return met.free.get(new.occurrence)

    def keep(self) -> None:
        """Remembers which ids came more than once."""
        if len(self._often) >= KEPT_IDS:
            self._often.clear()
        for row_id, met in self._met.items():
            if met.count + self._taken[row_id] > 1:
                self._often[row_id] = (met.count + self._taken[row_id], met.first)

    def _free(self, rows: list[StoredRow]) -> dict[int, StoredRow]:
        return {old.occurrence: old for old in rows if not self.is_placed(old)}

    def _judge(self, new: NewRow, repetition: int, first: int) -> None:
        """What becomes of a row whose id was met before, or (under `last`) will be met again."""
        row = new.row
        if self._policy == "last":
            stays = self._last.get(row.id) == row.ordinal
            new.occurrence = 0 if stays else repetition + 1
            new.state = new.state if stays else State.DROPPED
        elif repetition == 0:
            return
        elif self._policy == "first":
            new.state = State.DROPPED
        else:
            place = self._named(row.ordinal)
            where = "" if place == f"row {row.ordinal}" else f"{place}: "  # the envelope has the number alone
            used = f"{where}id {row.id!r} was used by {self._named(first)} already"
            message = f"{used}; give each row its own id, or set "
            error = RowError(ErrorType.DUPLICATE_ID, message + "input.on_duplicate_id: first | last | suffix")
            new.row, new.state = row._replace(error=error), State.FAILED

    async def _name_apart(self, new: NewRow) -> StoredRow | None:
        """Gives a repeated row the first free id of `id#2`, `id#3`, …, and what is stored under that."""
        row_id, new.occurrence = new.row.id, 0
        number = self._numbers.get(row_id, 1)
        while True:
            names: list[RowId] = [f"{row_id}#{n}" for n in range(number + 1, number + 1 + PROBES)]
            stored = await rows_by_id(self._db, self._run, names)
            for name in names:
                number += 1
                rows = stored.get(name, [])
                if not self._taken[name] and not any(self.is_placed(old) for old in rows):
                    if len(self._numbers) >= KEPT_IDS:
                        self._numbers.clear()
                    self._numbers[row_id] = number
                    self._taken[name] += 1
                    new.row = new.row._replace(id=name)
                    return next((old for old in rows if old.occurrence == 0), None)


# Two ways to compare. While the input stands as it is stored (same ids at the same positions), a range of positions is
# read and compared, and nothing is written: so a finished run is run again. From the first chunk on that differs (new
# rows, moved rows, other ids), rows are found by their ids, and each is marked as seen in this pass; what was not
# seen at the end has left the input.
#
# A pass may be killed anywhere: rows that moved may then share a position with rows not met yet. The next pass finds
# more rows than positions there, goes the second way, and puts it right.

CHUNK_ROWS = 512
CHUNK_CHARACTERS = 4_000_000
"""A chunk ends at either: rows are read ahead by one chunk, so this bounds what reading holds in memory."""

_ENDED = WALKED | {State.DROPPED}
"""Ends after which an unchanged row needs nothing."""

NEVER = 1 << 62
"""A position beyond every input."""


class InputRows:
    """One pass over the input. Iterate `active_rows`, then call `finish` when all of it was read."""

    def __init__(self, context: InvocationContext) -> None:
        self._context, self._ledger, self._settler = context, context.ledger, context.settler
        self._db, self._run, self._event = context.places
        self._totals = context.totals
        self._numbered = context.plan.input.id_field is None  # ids are positions, so that none can come twice
        self._on_duplicate = "error" if self._numbered else context.plan.input.on_duplicate_id
        self._matcher = RowMatcher(context.places, self._on_duplicate, context.work.place)
        self._last = 0
        self._stored_last = 0

    async def active_rows(self, rows: Iterator[Row]) -> AsyncGenerator[list[ActiveRow], None]:
        """The rows that need work, some hundred at a time, each stored before it is given out."""
        if self._numbered:
            self._stored_last = await last_number(self._db, self._run)
        while self._context.stop_signal.stop is None:
            chunk = await asyncio.to_thread(read_chunk, rows)
            if not chunk:
                self._totals.all_read = True
                return
            first, self._last = self._last + 1, chunk[-1].row.ordinal
            active_rows = await self._place(chunk, first)
            self._totals.seen += len(chunk)
            await self._ledger.durable()  # the next chunk is compared with what is committed
            if active_rows:
                yield active_rows

    async def finish(self) -> None:
        """Lets go of the rows that the input no longer holds. Their results stay for reuse."""
        moved = NEVER if self._matcher.moved_from is None else self._matcher.moved_from
        while leaving := await leaving_rows(self._db, self._run, self._last, moved, self._event, CHUNK_ROWS):
            tasks = await prior_tasks(self._db, [key for key, _, _ in leaving])
            for key, state, error_type in leaving:
                self._ledger.batch.leaving.append(key)
                self._uncount(State(state), error_type)
                self._ledger.batch.tally(PRESENT).count -= 1
                self._settler.count_tasks(tasks.get(key, {}), -1)
            await self._ledger.durable()

    async def _place(self, chunk: list[NewRow], first: int) -> list[ActiveRow]:
        """`first` is the position after the last chunk's: a sample leaves positions out, where rows may have stood."""
        if self._matcher.moved_from is None:
            if self._numbered and first > self._stored_last:
                return [active for new in chunk for active in self._insert(new)]
            stored = await rows_at(self._db, self._run, first, self._last)
            if await self._is_as_stored(chunk, stored):
                return await self._compare(list(zip(chunk, stored, strict=True)))
            self._matcher.moved_from = first
        return await self._by_id(chunk)

    async def _is_as_stored(self, chunk: list[NewRow], stored: list[StoredRow]) -> bool:
        """Whether the store holds just these ids at just these positions, so that repetitions are what they were."""
        if len(chunk) != len(stored):
            return False
        last = await self._matcher.last_positions(chunk)
        for new, old in zip(chunk, stored, strict=True):
            row, suffixed = new.row, False
            if self._on_duplicate == "suffix":
                suffixed = new.hash == old.hash and str(old.id).startswith(f"{row.id}#")
            if row.ordinal != old.ordinal or not (row.id == old.id or suffixed):
                return False
            if last and (last.get(row.id) == row.ordinal) != (old.occurrence == 0):
                return False
        return True

    async def _compare(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[ActiveRow]:
        """Rows at their places: what is done and unchanged is passed over."""
        open_pairs = []
        aged = await self._aged([old for _, old in pairs])
        for new, old in pairs:
            if old.hash == new.hash and old.state in _ENDED and old.key not in aged:
                self._totals.unchanged += 1
                continue
            new.row = new.row._replace(id=old.id)
            if old.occurrence and self._on_duplicate == "error":  # it repeats the id that it repeated before
                error = RowError(ErrorType.DUPLICATE_ID, old.error_message or "")
                new.row, new.state = new.row._replace(error=error), State.FAILED
            elif old.occurrence:
                new.state = State.DROPPED
            open_pairs.append((new, old))
        return await self._reopen(open_pairs)

    async def _aged(self, rows: list[StoredRow]) -> set[int]:
        """Which done rows have a result that is too old for its stage (`max_age`)."""
        if not self._context.cutoffs:
            return set()
        return await aged_rows(self._db, [old.key for old in rows if old.state in WALKED], self._context.cutoffs)

    async def _reopen(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[ActiveRow]:
        """Stored rows that changed, failed or never came to their end."""
        if not pairs:
            return []
        keys = [old.key for _, old in pairs]
        prior, ready = await self._context.tasks_of(keys)
        waiting = await self._context.merely_waiting(keys)
        aged = await self._aged([old for _, old in pairs])
        active_rows = []
        for new, old in pairs:
            new.key, tasks = old.key, prior.get(old.key, {})
            same, was_open = new.hash == old.hash, old.state == State.PENDING
            if old.ordinal is None:
                self._settler.count_tasks(tasks, 1)
            if same and old.key not in aged and self._left_as_it_is(new, old, tasks):
                self._totals.unchanged += 1
                continue
            self._uncount(State(old.state), old.error_type)
            self._count(new)
            if not same or new.state != old.state or new.state is not State.PENDING:
                change = RowChange(old.key, new.row.ordinal, new.hash, new.data, new.state, new.row.error)
                self._ledger.batch.changes.append(change)
            if new.state is not State.PENDING:
                continue
            active = self._active(new)
            active.prior, active.known, active.ready = tasks, True, ready.get(old.key, {})
            if same and was_open and old.key in waiting:
                self._settler.row_parked(active, self._context.plan.stages[waiting[old.key]])
                continue
            if was_open:
                self._context.go_on_as_retry(active, old.seen)
            active_rows.append(active)
            if same:
                self._settler.reopen_row(active, old)
        return active_rows

    def _left_as_it_is(self, new: NewRow, old: StoredRow, tasks: dict[int, PriorTask]) -> bool:
        """Whether an unchanged row is not tried again: done, unusable as before, or refused often enough."""
        if new.state is not State.PENDING:
            message = new.row.error.message if new.row.error else None
            return new.state == old.state and message == old.error_message
        if old.state in _ENDED:
            return True
        if old.state != State.FAILED or old.error_stage is None:
            return False
        tried = self._context.work.scope.tries_again(old.error_stage)
        left = not tried or any(is_left(task) for task in tasks.values())
        self._totals.left_failed += left
        return left

    async def _by_id(self, chunk: list[NewRow]) -> list[ActiveRow]:
        """Rows wherever they stood before."""
        await self._matcher.look_up(chunk)
        active_rows: list[ActiveRow] = []
        reopened: list[tuple[NewRow, StoredRow]] = []
        for new in chunk:
            old = await self._matcher.place(new)
            if old is None:
                active_rows += self._insert(new)
                continue
            self._ledger.batch.places.append((new.row.ordinal, old.key))
            if old.ordinal is None:  # it comes back
                self._ledger.batch.tally(PRESENT).count += 1
            reopened.append((new, old))
        self._matcher.keep()
        return [*active_rows, *await self._reopen(reopened)]

    def _active(self, new: NewRow) -> ActiveRow:
        return ActiveRow(new, self._context.preparer.view(new.row.data))

    def _insert(self, new: NewRow) -> list[ActiveRow]:
        self._ledger.batch.inserts.append(new)
        self._ledger.batch.tally(PRESENT).count += 1
        self._count(new)
        return [self._active(new)] if new.state is State.PENDING else []

    def _count(self, new: NewRow) -> None:
        """Counts a row that is settled before it is worked on."""
        error = new.row.error
        if new.state is State.DROPPED:
            self._ledger.batch.tally(("", Outcome.DROPPED.value, "", "")).count += 1
            self._totals.rows_dropped += 1
        elif new.state is State.FAILED and error:
            self._ledger.batch.tally(("", Outcome.FAILED.value, error.type.value, "")).count += 1
            self._totals.rows_failed += 1
            self._totals.unusable += 1
            self._context.stops.row_failed()
            self._totals.last_error = (error, new.row.id)

    def _uncount(self, state: State, error_type: str | None) -> None:
        """A row that was counted in its old state is no longer in it."""
        outcome = OUTCOME_OF.get(state)
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


async def scan_ids(database: Database, rows: Iterator[Row]) -> None:
    """Reads the whole input once for `on_duplicate_id: last`, which has to know where each id comes last."""

    def some_ids() -> list[tuple[RowId, int]]:
        return [(row.id, row.ordinal) for row in islice(rows, 10 * CHUNK_ROWS)]

    async def chunks() -> AsyncIterator[list[tuple[RowId, int]]]:
        while chunk := await asyncio.to_thread(some_ids):
            yield chunk

    await scan_positions(database, chunks())
