"""Rows of the input meet those of the store: unchanged ones are passed over; and how many results'
rows left."""

from __future__ import annotations

import asyncio
from collections import ChainMap, Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import numbered_id, row_hash, snapshot
from agac.core.types import Row, RowId
from agac.data.files import PREVIOUS
from agac.engine.context import InvocationContext, TasksOfRows
from agac.engine.decide.duplicates import (
    first_free_id,
    occurrence_of,
    repeated_id,
    state_of_repetition,
)
from agac.engine.decide.unfinished import ENDED, is_finished, is_resumed
from agac.engine.invocation import InvocationRef
from agac.engine.output.output_folder import read_summary
from agac.engine.summary import WrittenSummary
from agac.engine.walk.effects import ActiveRow
from agac.plan.plan import Plan, Selection
from agac.plan.stage import CHOOSING_ROWS
from agac.spec.data_specs import OnDuplicateId
from agac.store import rows as store
from agac.store.batches import project_token
from agac.store.db import Database, write
from agac.store.records import PRESENT, NewRow
from agac.store.rows import State, StoredRow
from agac.store.runs import counters, definition_of, last_invocation, read_run, row_counts
from agac.store.scratch import Scratch

# Rows by their ids: which stored row an input row is, and what becomes of a row whose id came
# before.
#
# Repetitions are counted in the order of the input. What is stored of a pass that is under way is
# what this pass placed already and what it has not met yet; `_is_placed` says which is which.

PROBES = 8  # ids of the form `id#2` that are looked up at a time for a repeated id


class RowMatcher:
    """Finds rows by id, chunk by chunk. Before the position `moved_from` of this pass they stand
    as stored."""

    def __init__(
        self, places: InvocationRef, policy: OnDuplicateId, place: Callable[[int], str]
    ) -> None:
        """`place` names a row by its ordinal."""
        self._db, self._run, self._event = places
        self._policy = policy
        self._named = place
        self.moved_from: int | None = None
        self._often: dict[RowId, tuple[int, int]] = {}  # how often an id was met, and where first

    async def match(
        self, chunk: list[NewRow], last: set[int]
    ) -> list[tuple[NewRow, StoredRow | None]]:
        """Decides for each row which occurrence of its id it is, or that it has another id or has
        ended; and finds the stored row that it is. Under `last`, rows at the positions `last`
        stay."""
        met, free = await self._known(chunk)
        matched = []
        for new in chunk:
            row_id = new.row.id
            ordinal = new.row.ordinal
            count, first = met.get(row_id, (0, ordinal))
            met[row_id] = count + 1, first
            old = None
            if count and self._policy == "suffix":
                old, number = await self._renamed(new, count, met)
                met[row_id] = number, first
            else:
                self._judge(new, count, first, stays=ordinal in last)
                old = free.get((row_id, new.occurrence))
            matched.append((new, old))
        if len(self._often) >= 10_000:  # how often others came is looked up again
            self._often.clear()
        self._often |= {row_id: known for row_id, known in met.items() if known[0] > 1}
        return matched

    async def _known(
        self, chunk: list[NewRow]
    ) -> tuple[dict[RowId, tuple[int, int]], dict[tuple[RowId, int], StoredRow]]:
        """Finds how often and where first this pass met the chunk's ids; and their stored rows
        that it did not meet yet, by id and occurrence. Not all rows of an id that comes often are
        read each time."""
        wanted = Counter(new.row.id for new in chunk)
        met = {row_id: self._often[row_id] for row_id in wanted if row_id in self._often}
        unknown = [row_id for row_id in wanted if row_id not in met]
        if unknown:
            rows = await store.rows_by_id(self._db, self._run, unknown)
        else:
            rows = {}
        for row_id, placed in self._placed(rows).items():
            met[row_id] = len(placed), min(placed)
        for row_id in wanted.keys() & self._often.keys():
            count = met[row_id][0]
            rows[row_id] = await store.rows_of_id(
                self._db, self._run, row_id, count, count + wanted[row_id]
            )
        free = {
            (old.id, old.occurrence): old
            for same in rows.values()
            for old in same
            if not self._is_placed(old)
        }
        return met, free

    def _is_placed(self, old: StoredRow) -> bool:
        """True if this pass met the row already."""
        assert self.moved_from is not None
        return old.ordinal is not None and (
            old.ordinal < self.moved_from or old.seen == self._event
        )

    def _placed(self, stored: dict[RowId, list[StoredRow]]) -> dict[RowId, list[int]]:
        """Finds the positions at which this pass met these ids."""
        found = {
            row_id: [old.ordinal or 0 for old in same if self._is_placed(old)]
            for row_id, same in stored.items()
        }
        return {row_id: placed for row_id, placed in found.items() if placed}

    def _judge(self, new: NewRow, repetition: int, first: int, *, stays: bool) -> None:
        """Decides what becomes of a row whose id was met before, or (under `last`) will be met
        again."""
        new.occurrence = occurrence_of(self._policy, repetition, comes_again=not stays)
        new.state = state_of_repetition(self._policy, new.state, new.occurrence)
        if new.occurrence and new.state is State.FAILED:
            row = new.row
            named = self._named(row.ordinal)
            # the envelope has the number alone
            error = repeated_id(
                row.id,
                row=named,
                first=self._named(first),
                is_by_number=named == f"row {row.ordinal}",
            )
            new.row = row._replace(error=error)

    async def _renamed(
        self, new: NewRow, last: int, met: dict[RowId, tuple[int, int]]
    ) -> tuple[StoredRow | None, int]:
        """Gives a repeated row the first free id of `id#2`, `id#3`, … after the number `last`.
        Returns the row that is stored under that id, and its number."""
        row_id = new.row.id
        while True:
            numbers = range(last + 1, last + 1 + PROBES)
            stored = await store.rows_by_id(
                self._db, self._run, [numbered_id(row_id, number) for number in numbers]
            )
            placed = self._placed(stored)
            taken = ChainMap[RowId, Any](placed, met)
            free = first_free_id(row_id, numbers, taken.__contains__)
            if free is not None:
                name, number = free
                met[name] = 1, new.row.ordinal
                new.row = new.row._replace(id=name)
                new.occurrence = 0
                same = stored.get(name, ())
                return next((old for old in same if old.occurrence == 0), None), number
            last = numbers[-1]


# Two ways to compare. While the input stands as it is stored (same ids at the same positions), a
# range of positions is read and compared, and nothing is written: so a finished run is run again.
# From the first chunk on that differs (new rows, moved rows, other ids), rows are found by their
# ids, and each is marked as seen in this pass; what was not seen at the end has left the input.
#
# A pass may be killed anywhere: rows that moved may then share a position with rows not met yet.
# The next pass finds more rows than positions there, goes the second way, and puts it right.

BEYOND_INPUTS = 1 << 62
"""A position beyond those of every input."""

CHUNK_ROWS = 512
CHUNK_CHARACTERS = 4_000_000
"""A chunk ends at either: rows are read ahead by one chunk, so this bounds what reading holds in
memory."""


class KnownOfRows(NamedTuple):
    """What is known of some stored rows."""

    tasks: TasksOfRows
    """Their tasks."""
    waiting: Mapping[int, int]
    """Those that merely wait, with the position of the stage at which they do."""
    aged: Collection[int]
    """Those with a result that is too old, or about which people decided."""


class InputRows:
    """One pass over the input. Rows that are no longer in it are removed as soon as its end is
    read, while others are at work."""

    def __init__(self, context: InvocationContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._settler = context.settler
        self._db, self._run, self._event = context.places
        self._totals = context.totals
        source = context.plan.input
        self._numbered = source.id_field is None  # ids are positions, so that none can come twice
        self._on_duplicate = "error" if self._numbered else source.on_duplicate_id
        self._matcher = RowMatcher(context.places, self._on_duplicate, context.work.reading.place)
        self._last = 0
        self._stored_last = 0

    async def active_rows(self) -> AsyncGenerator[list[ActiveRow], None]:
        """Gives the rows that need work, some hundred at a time, each stored before."""
        await write(self._db, "run_reading", None, self._run)
        if self._numbered:
            self._stored_last = await store.last_number(self._db, self._run)
        with closing(Scratch()) if self._on_duplicate == "last" else nullcontext() as scratch:
            if scratch is not None:
                await count_ids(self._context.work.reading.rows(), scratch)
            rows = self._context.work.reading.rows()
            left = self._context.work.reading.first
            while self._context.stop_signal.stop is None:
                chunk = await asyncio.to_thread(read_chunk, rows)
                if not chunk:
                    self._totals.rows.all_read = True
                    await self._finish()
                    await write(
                        self._db, "run_reading", self._context.work.clocks.wall(), self._run
                    )
                    return
                first = self._last + 1
                self._last = chunk[-1].row.ordinal
                last: set[int] = set()
                if scratch is not None:
                    further = await asyncio.to_thread(
                        scratch.times, [new.row.id for new in chunk], -1
                    )
                    last = {
                        new.row.ordinal
                        for new, more in zip(chunk, further, strict=True)
                        if not more
                    }
                active_rows = await self._place(chunk, first, last)
                self._totals.rows.seen += len(chunk)
                self._totals.rows.short += sum(new.row.short for new in chunk)
                await self._ledger.durable()  # the next chunk is compared with what is committed
                if left is not None:
                    some = max(0, left - self._totals.rows.unchanged)
                    if len(active_rows) > some:
                        yield active_rows[:some]
                        return
                    left -= len(active_rows)
                if active_rows:
                    yield active_rows

    async def _finish(self) -> None:
        """Removes the rows that are no longer in the input. Their results stay for reuse."""
        moved = self._matcher.moved_from
        if moved is None:
            moved = BEYOND_INPUTS
        while leaving := await store.leaving_rows(
            self._db, self._run, self._last, moved, self._event, CHUNK_ROWS
        ):
            tasks = await store.prior_tasks(self._db, [key for key, _, _ in leaving])
            for key, state, error_type in leaving:
                self._ledger.batch.rows.leaving.append(key)
                self._settler.count_row(state, -1, error_type)
                self._ledger.batch.tally(PRESENT).tasks -= 1
                self._settler.count_tasks(tasks.get(key, {}), -1)
            await self._ledger.durable()

    async def _place(self, chunk: list[NewRow], first: int, last: set[int]) -> list[ActiveRow]:
        """Stores the rows of a chunk, or finds them in the store. Returns those to be worked on.
        `first` is the position after the last chunk: a sample leaves positions out, at which rows
        may have been. At the positions `last` an id comes for the last time."""
        if self._matcher.moved_from is None:
            if self._numbered and first > self._stored_last:
                return [active for new in chunk for active in self._insert(new)]
            stored = await store.rows_at(self._db, self._run, first, self._last)
            if self._is_as_stored(chunk, stored, last):
                return await self._compare(list(zip(chunk, stored, strict=True)))
            self._matcher.moved_from = first
        inserted: list[ActiveRow] = []
        pairs: list[tuple[NewRow, StoredRow]] = []
        for new, old in await self._matcher.match(chunk, last):
            if old is None:
                inserted += self._insert(new)
                continue
            self._ledger.batch.rows.places.append((new.row.ordinal, old.key))
            if old.ordinal is None:  # it comes back
                self._ledger.batch.tally(PRESENT).tasks += 1
            pairs.append((new, old))
        return [*inserted, *await self._reopen(pairs)]

    def _is_as_stored(self, chunk: list[NewRow], stored: list[StoredRow], last: set[int]) -> bool:
        """True if the store has exactly these ids at exactly these positions, so that repetitions
        are what they were."""
        if len(chunk) != len(stored):
            return False
        for new, old in zip(chunk, stored, strict=True):
            row = new.row
            suffixed = False
            if self._on_duplicate == "suffix":
                suffixed = new.hash == old.hash and str(old.id).startswith(f"{row.id}#")
            if row.ordinal != old.ordinal or not (row.id == old.id or suffixed):
                return False
            if self._on_duplicate == "last" and (row.ordinal in last) != (old.occurrence == 0):
                return False
        return True

    async def _compare(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[ActiveRow]:
        """Compares rows with the stored ones at their positions. Returns those to be worked on:
        what is done and unchanged is left."""
        open_pairs = []
        aged = await self._aged(pairs)
        for new, old in pairs:
            if is_finished(old, new.hash, is_reopened=old.key in aged):
                self._totals.rows.unchanged += 1
                continue
            new.row = new.row._replace(id=old.id)
            # it repeats the id that it repeated before
            new.state = state_of_repetition(self._on_duplicate, new.state, old.occurrence)
            if old.occurrence and new.state is State.FAILED:
                error = RowError(ErrorType.DUPLICATE_ID, old.error_message or "")
                new.row = new.row._replace(error=error)
            open_pairs.append((new, old))
        return await self._reopen(open_pairs)

    async def _aged(self, pairs: list[tuple[NewRow, StoredRow]]) -> set[int]:
        """Finds the rows that have a result too old for its stage (`max_age`), or about which
        people decided."""
        done = [old.key for _, old in pairs if old.state in store.WALKED]
        aged = await store.aged_rows(self._db, done, self._context.row_facts.cutoffs)
        return aged | await self._context.decided_rows([old.key for _, old in pairs])

    async def _reopen(self, pairs: list[tuple[NewRow, StoredRow]]) -> list[ActiveRow]:
        """Opens stored rows that changed, failed or never came to their end. Returns those to be
        worked on."""
        if not pairs:
            return []
        context = self._context
        keys = [old.key for _, old in pairs]
        known = KnownOfRows(
            tasks=await context.tasks_of(keys),
            waiting=await context.merely_waiting(keys),
            aged=await self._aged(pairs),
        )
        active_rows = []
        for new, old in pairs:
            new.key = old.key
            tasks = known.tasks[0].get(old.key, {})
            if old.ordinal is None:
                self._settler.count_tasks(tasks, 1)
            is_same = new.hash == old.hash
            if is_same and old.key not in known.aged and self._left_as_it_is(new, old, tasks):
                self._totals.rows.unchanged += 1
                continue
            self._settler.count_row(old.state, -1, old.error_type)
            self._count(new)
            if not is_same or new.state != old.state or new.state is not State.PENDING:
                self._ledger.batch.rows.changes.append(new)
            if new.state is State.PENDING:
                row = self._open_again(new, old, known)
                if row is not None:
                    active_rows.append(row)
        return active_rows

    def _open_again(self, new: NewRow, old: StoredRow, known: KnownOfRows) -> ActiveRow | None:
        """Makes a row at work of a stored one that is open now; None: it merely waits."""
        context = self._context
        row = context.taken_up(new, context.preparer.view(new.row.data), known.tasks)
        is_same = new.hash == old.hash
        was_open = old.state == State.PENDING
        if is_same and was_open and old.key in known.waiting:
            self._settler.row_parked(row, context.plan.stages[known.waiting[old.key]])
            return None
        row.resumed = is_resumed(
            old,
            is_made=False,
            is_decided=old.key in known.aged,
            is_batched=context.row_facts.batched,
        )
        if was_open:
            context.go_on_as_retry(row, old.seen)
        if is_same:
            self._settler.reopen_row(row, old)
        return row

    def _left_as_it_is(
        self, new: NewRow, old: StoredRow, tasks: Mapping[int, store.PriorTask]
    ) -> bool:
        """True if an unchanged row is not tried again: it is done, unusable as before, or was
        refused often enough."""
        if new.state is not State.PENDING:
            message = new.row.error.message if new.row.error else None
            return new.state == old.state and message == old.error_message
        if old.state in ENDED:
            return True
        if old.state != State.FAILED or old.error_stage is None:
            return False
        return self._context.leaves_failed(old, tasks)

    def _insert(self, new: NewRow) -> list[ActiveRow]:
        """Stores a new row. Returns it, if it is to be worked on."""
        self._ledger.batch.rows.inserts.append(new)
        self._ledger.batch.tally(PRESENT).tasks += 1
        self._count(new)
        if new.state is State.PENDING:
            return [ActiveRow(new, self._context.preparer.view(new.row.data))]
        return []

    def _count(self, new: NewRow) -> None:
        """Counts a row that is settled before it is worked on."""
        error = new.row.error
        if new.state is State.DROPPED:
            self._settler.count_row(new.state, 1)
            self._totals.rows.dropped += 1
        elif new.state is State.FAILED and error:
            self._settler.count_row(new.state, 1, error.type)
            self._totals.rows.failed += 1
            self._totals.rows.unusable += 1
            self._context.stops.row_failed()
            self._totals.last_error = (error, new.row.id)


def read_chunk(rows: Iterator[Row]) -> list[NewRow]:
    """Reads the next rows, with their snapshots. Runs in a thread: reading a file may block."""
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


def read_ids(rows: Iterator[Row]) -> list[RowId]:
    """Reads the ids of the next rows. Runs in a thread, as `read_chunk` does."""
    return [row.id for row in islice(rows, CHUNK_ROWS)]


async def count_ids(rows: Iterator[Row], scratch: Scratch) -> None:
    """Reads the whole input once for `on_duplicate_id: last`, which has to know how often each id
    comes."""
    while ids := await asyncio.to_thread(read_ids, rows):
        await asyncio.to_thread(scratch.times, ids)


# Rows of the input and the results that an output folder shows: how many of them left.

CLOCK_GRAIN = 2.0
"""Seconds by which the time of a file may be behind the clock: the step of the coarsest file
systems."""


class LeftRows(NamedTuple):
    """How many rows with a result in an output folder left the input."""

    rows: int
    """The rows that have a result there."""
    left: int
    """Those of them that are no longer in the input."""
    empty: bool = False
    """True if the input has no rows."""

    @property
    def most_left(self) -> bool:
        """True if more than half of them left."""
        return 2 * self.left > self.rows


async def left_rows(
    database: Database | None, plan: Plan, rows: Callable[[], Iterator[Row]], folder: Path
) -> LeftRows | None:
    """Compares the input with the results in the run's output folder, or with those that were kept
    before most of their rows left. It is exact if more than half of them left; otherwise no more of
    the input is read than shows that half of them is there. None if there is nothing to compare:
    the run is a selection, there are no results, another store or workflow wrote them, or the
    input was not touched since they were made."""
    results = folder / "results.jsonl"
    if plan.selection.partial or not results.is_file():
        return None
    kept = read_summary(folder, f"summary.{PREVIOUS}.json")
    current = read_summary(folder)
    has_results = results.stat().st_size > 0
    if not has_results and not kept:
        return None
    if not kept and await _is_untouched(database, plan, current, results):
        return None
    reading = rows()
    ids = await asyncio.to_thread(read_ids, reading)
    if has_results and not ids:
        count = current.rows_with_result if current is not None else 0
        return LeftRows(count, count, empty=True)
    shown = kept or current
    if database is None or shown is None or not await _is_of_store(database, plan, shown):
        return None
    there = 0
    while ids and 2 * there < shown.rows_with_result:
        if plan.input.on_duplicate_id == "suffix":
            there += len(ids)  # ids of the store are not those of the input
        else:
            there += await store.rows_with_results(database, shown.run, ids)
        ids = await asyncio.to_thread(read_ids, reading)
    return LeftRows(shown.rows_with_result, max(0, shown.rows_with_result - there))


async def _is_of_store(database: Database, plan: Plan, shown: WrittenSummary) -> bool:
    """True if a run of this workflow and this store wrote the results of a summary."""
    if shown.workflow != plan.workflow:
        return False
    if shown.store is not None and shown.store.id != await project_token(database):
        return False
    return await read_run(database, shown.run) is not None


async def moved_rows(database: Database, plan: Plan, rows: Callable[[], Iterator[Row]]) -> str:
    """Says how many rows of the input came, changed and left since the workflow's last run read
    the same selection."""
    last = await last_invocation(database, plan.workflow)
    record = await read_run(database, last.run) if last else None
    if record is None or Selection(**record.selection) != plan.selection or not record.read_at:
        return ""
    there = row_counts(await counters(database, record.id))["total"]
    moved = Counter[str]()
    reading = rows()
    while chunk := await asyncio.to_thread(read_chunk, reading):
        stored = await store.rows_by_id(database, record.id, [new.row.id for new in chunk])
        for new in chunk:
            known = [old.hash for old in stored.get(new.row.id, ()) if old.ordinal is not None]
            moved["changed" if known else "added"] += new.hash not in known
        there -= len(chunk)
    moved["gone"] = there + moved["added"]
    words = ", ".join(f"{count:,} {how}" for how, count in sorted(moved.items()) if count)
    if words:
        return f"of the rows of the input, since run {record.id}: {words}"
    return ""


async def _is_untouched(
    database: Database | None, plan: Plan, shown: WrittenSummary | None, results: Path
) -> bool:
    """True if the input is a file that was not touched since the run of this summary read it and
    wrote `results`."""
    if database is None or shown is None:
        return False
    source = plan.input
    # a copy may be older than what took its place for a while
    if any(content.what == "input" for content in plan.remote):
        return False
    if source.statement is not None or not source.path.is_file():
        return False
    record = await read_run(database, shown.run)
    if record is None or record.read_at is None:
        return False
    before = (await definition_of(database, shown.run))["input"]
    if before["path"] != source.shown:
        return False
    if any(before.get(key) != getattr(source, key) for key in CHOOSING_ROWS):
        return False
    # it may have been read for another folder meanwhile
    since = min(record.read_at, results.stat().st_mtime)
    stat = source.path.stat()
    return max(stat.st_mtime, stat.st_ctime) < since - CLOCK_GRAIN
