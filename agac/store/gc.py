"""Drops old runs with all that no kept run needs, and copies the database. A crash at any point
does no harm."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import LeaseHeld, StoreCorrupt, StoreError
from agac.core.keys import JOB, canonical, is_job
from agac.core.types import Report
from agac.store import db
from agac.store.batches import runs_in_batches
from agac.store.db import (
    BUSY_SECONDS,
    Database,
    change,
    fetch,
    reading_uri,
    schema_of,
    select,
    slices,
    sql,
    translated,
)
from agac.store.derived_row_writer import counted_tasks
from agac.store.history import RunLine, run_lines
from agac.store.lease import BEAT_SECONDS, Lease, is_dead, lease_held
from agac.store.records import PRESENT, CounterKey
from agac.store.rows import OUTCOME_OF, State
from agac.store.runs import definition_of
from agac.store.write_batch import CounterDelta

# A run is dropped row by row, in short transactions, each row with all that was made of it and with
# its roll-ups: half of it is a run with fewer rows and groups with fewer members, which `agac run`
# would go on with. Results are dropped last, since runs of all workflows share them. Nobody may be
# at work meanwhile, or a result could be dropped that has just been found again: whoever drops
# holds the lease of every workflow, and each transaction looks whether somebody new came in. Doing
# the same again finishes what was interrupted.

T = TypeVar("T")

_log = logging.getLogger("agac.store")

CHUNK_ROWS = 2048  # rows with their tasks and attempts in one transaction: some tenths of a second
# tasks of batches in one transaction: some hundredths of a second, since most of them stay
CHUNK_TASKS = 65_536
LANES_KEPT = 7 * 86_400.0  # seconds for which it is kept how lanes were
VACUUM_PAGES = 4096  # pages given back in one transaction: 16 MB

_AGAIN = (
    "nothing that is needed was dropped; run the same command again once it has ended: it "
    "goes on where it was"
)

_AFTER_ALL = 1 << 62

_WORD_INDEX = re.compile(r"words-\d+\.db(-wal|-shm|-journal)?")

# Which results and endpoints are in use is found out in short readings, and kept as one byte for
# each result.

_RANGES = {
    "gc_references": "rows",
    "gc_results": "results",
    "gc_result_endpoints": "results",
    "gc_asked_elsewhere": "attempts",
    "gc_attempt_endpoints": "attempts",
    "batches_results": "tasks",
}
"""The statements that are read range by range, each with what it reads."""

RANGE = 8192  # keys in one reading: some hundredths of a second


class _Row(NamedTuple):
    """A row about to be dropped."""

    key: int
    ordinal: int | None
    place: int | None
    """The position of a row that a stage made; below 0 of a part of a group."""
    state: int
    error: str | None
    """The kind of its error."""


class GarbageCollector:
    """Drops under the leases of all workflows. Begin with `begin`; every method may be called
    again. Of a database that is open for reading alone nothing is dropped: it only tells what is
    used."""

    def __init__(
        self, database: Database, leases: Sequence[Lease], clock: Callable[[], float]
    ) -> None:
        self._database = database
        self._leases = leases
        self._clock = clock
        self._event: int | None = None
        self._beaten = 0.0

    async def begin(self, run: int, about: dict[str, Any]) -> None:
        """Records, as an event of a run that stays, what is about to be dropped. The record also
        holds the last number that a run ever had: no later run gets the number of a dropped one."""

        def write(writer: sqlite3.Connection) -> None:
            body = _with_last_run(writer, about)
            writer.execute(sql("gc_events_drop"))
            self._event = writer.execute(
                sql("event_make"), (run, "gc", self._clock(), body)
            ).lastrowid

        await self.transaction(write)

    async def end(self, about: dict[str, Any]) -> None:
        """Records what was dropped."""

        def write(writer: sqlite3.Connection) -> None:
            writer.execute(
                sql("event_end"), (self._clock(), 0, _with_last_run(writer, about), self._event)
            )

        await self.transaction(write)

    async def drop_run(self, run: int, stages: Sequence[str]) -> None:
        """Drops a run whose stages have these names."""
        while await self.transaction(lambda writer: self._drop_rows(writer, run, stages)):
            pass
        await self.transaction(lambda writer: db.execute(writer, "gc_run_drop", [(run,)]))

    async def drop_left_rows(self, run: int) -> None:
        """Drops rows of a run that stays which left the input, or that stages no longer make. They
        count nowhere."""

        def write(writer: sqlite3.Connection, before: int) -> list[_Row]:
            found = [
                _Row(*row) for row in writer.execute(sql("gc_left_rows"), (run, before, CHUNK_ROWS))
            ]
            self._drop(writer, found)
            return found

        before = _AFTER_ALL
        while some := await self.transaction(partial(write, before=before)):
            before = some[-1].key

    async def drop_batch_tasks(self) -> None:
        """Drops what is on record of tasks in batches whose row or run is gone."""

        def drop(writer: sqlite3.Connection, after: int) -> None:
            writer.execute(sql("batches_tasks_drop"), {"after": after, "upto": after + CHUNK_TASKS})

        (last,) = await self.read("last_numbers", dict[str, int])
        for after in range(0, last["tasks"], CHUNK_TASKS):
            await self.transaction(partial(drop, after=after))

    async def used_results(self, choice: RunChoice, workflow: str | None) -> bytearray:
        """1 for each result to which rows of kept runs refer, by its id; rows that left the input
        only where they are kept. Also those that came in a batch, and that no row has taken up
        yet. With `workflow`, also those that rows of other workflows asked for and no longer refer
        to: their old content may come back, and would be asked again.
        """
        kept = {line.id for line in choice.kept}
        (last_result,) = await self.read("result_id_max", int)
        used = bytearray(last_result + 1)
        elsewhere = [] if workflow is None else ["gc_asked_elsewhere"]
        for statement in ("gc_references", "batches_results", *elsewhere):
            async for rows in self.ranges(statement, workflow):
                for run, left, result in rows:
                    is_tidied = left and run in choice.tidied
                    if run is None or (run in kept and not is_tidied):
                        used[result] = 1
        return used

    async def drop_results(self, ids: Sequence[int]) -> None:
        """Drops results that no task refers to."""
        await self.transaction(
            lambda writer: writer.executemany(sql("gc_result_drop"), [(key,) for key in ids])
        )

    async def drop_unused(self) -> None:
        """Drops definitions and conversations no run needs, endpoints that neither results nor
        attempts name, old results of tools and lane samples."""
        naming = ("gc_result_endpoints", "gc_attempt_endpoints")
        endpoints = {key for name in naming async for rows in self.ranges(name) for (key,) in rows}

        def write(writer: sqlite3.Connection) -> None:
            now = self._clock()
            db.execute(writer, "gc_unused_drop", [{"now": now, "lanes_since": now - LANES_KEPT}])
            known = {key for key, *_ in writer.execute(sql("endpoints_read"))}
            writer.executemany(sql("gc_endpoint_drop"), [(key,) for key in known - endpoints])

        await self.transaction(write)

    async def give_back_space(self) -> None:
        """Gives free pages back to the file system, some megabytes at a time, and empties the
        write-ahead log."""

        def vacuum(writer: sqlite3.Connection) -> bool:
            if writer.execute("PRAGMA freelist_count").fetchone()[0] == 0:
                return False
            # not `execute`: it makes one step of a statement that gives no columns, and each step
            # frees one page
            writer.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES});")
            return True

        assert self._database.writer is not None
        with translated(self._database.path):
            while await self._database.writer.at_once(vacuum):
                await self._stay()
            await self._database.writer.at_once(
                lambda one: one.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            )

    async def read(self, name: str, record: type[T], *values: Any, **named: Any) -> list[T]:
        """Reads what a short statement selects. The leases are kept alive between two of them."""
        await self._stay()
        return await select(self._database, name, record, *values, **named)

    async def ranges(
        self, statement: str, workflow: str | None = None
    ) -> AsyncIterator[Iterable[Any]]:
        """Reads what a statement selects, by ranges of the keys of its table."""
        (last,) = await self.read("last_numbers", dict[str, int])
        for after in range(0, last[_RANGES[statement]], RANGE):
            yield await self.read(
                statement, tuple[Any, ...], after=after, upto=after + RANGE, workflow=workflow
            )

    async def _stay(self) -> None:
        """Shows a sign of life where one is due."""
        if self._clock() - self._beaten > BEAT_SECONDS:
            await self.transaction(lambda _: None)

    async def transaction(self, write: Callable[[sqlite3.Connection], T]) -> T | None:
        """Writes all of it or nothing, and only while all leases are ours and no other process came
        in."""
        if self._database.writer is None:
            return None

        def whole(writer: sqlite3.Connection) -> T:
            for lease in self._leases:
                lease.prove(writer, self._clock(), "", _AGAIN)
            ours = {lease.workflow for lease in self._leases}
            for workflow, holder, _ in writer.execute(sql("leases")):
                if workflow not in ours and not is_dead(holder):
                    raise LeaseHeld(
                        f"workflow {workflow!r} began while old runs were dropped", remedy=_AGAIN
                    )
            (newest,) = writer.execute(sql("gc_event_newest")).fetchone()
            if self._event is not None and newest != self._event:
                raise LeaseHeld(
                    "another workflow was run while old runs were dropped", remedy=_AGAIN
                )
            return write(writer)

        done = await change(self._database, whole)
        self._beaten = self._clock()
        return done

    def _drop_rows(self, writer: sqlite3.Connection, run: int, stages: Sequence[str]) -> bool:
        """Drops some rows, if there are any, with what they and their tasks count in the roll-ups.
        Returns True if it dropped any.

        Rows that left the input no longer count, and rows that are no longer made have no
        tasks."""
        rows = _next_rows(writer, run)
        if not rows:
            return False
        counts = _counted_rows(rows)
        counted_keys = [row.key for row in rows if row.ordinal is not None or row.place is not None]
        for keys in slices(counted_keys):
            counts += counted_tasks(writer, keys, stages)
        values = [
            (run, *key, *CounterDelta(tasks=-count).values()) for key, count in counts.items()
        ]
        writer.executemany(sql("counter_add"), values)
        writer.execute(sql("run_revise"), (run,))
        self._drop(writer, rows)
        return True

    def _drop(self, writer: sqlite3.Connection, rows: Sequence[_Row]) -> None:
        """Drops rows, the last generation first, with all that refers to them. Groups that lose
        members are open."""
        for keys in slices([row.key for row in rows]):
            members = fetch(writer, "memberships", tuple[int, int], keys)
            opened = [(self._event or 0, group) for group in {group for _, group in members}]
            writer.executemany(sql("made_open"), opened)
            writer.executemany(sql("member_drop"), members)
        db.execute(writer, "gc_row_drop", [(row.key,) for row in rows])


def _next_rows(writer: sqlite3.Connection, run: int) -> list[_Row]:
    """Returns the next rows of a run to be dropped, with those made of them."""
    rows: list[_Row] = []
    for (root,) in writer.execute(sql("gc_roots"), (run, CHUNK_ROWS)).fetchall():
        rows += [_Row(*row) for row in writer.execute(sql("gc_tree"), (root,))]
        if len(rows) >= CHUNK_ROWS:
            break
    return rows


def _counted_rows(rows: Sequence[_Row]) -> Counter[CounterKey]:
    """Returns what rows of the input count in the roll-ups."""
    counts: Counter[CounterKey] = Counter()
    for row in rows:
        if row.ordinal is None:
            continue
        counts[PRESENT] += 1
        outcome = OUTCOME_OF.get(State(row.state))
        if outcome:
            counts["", outcome.value, row.error or "", ""] += 1
    return counts


def _with_last_run(writer: sqlite3.Connection, about: dict[str, Any]) -> str:
    (last,) = writer.execute(sql("run_number_last")).fetchone()
    return canonical({**about, "last_run": last})


@dataclass(frozen=True, slots=True)
class RunToDrop(Report):
    """A run that is dropped, and how many rows it has."""

    JSON_KEYS = ("run=line.id", "workflow=line.workflow", "rows", "last_worked_at=line.last_at")

    line: RunLine
    rows: int


@dataclass(frozen=True, slots=True)
class GcCounts:
    """What is dropped, or would be."""

    kept: list[RunLine] = field(default_factory=list)
    """Runs that stay."""
    dropped: list[RunToDrop] = field(default_factory=list)
    """Runs that go, with their rows."""
    left_rows: int = 0
    """Rows of kept runs that left the input."""
    gone_rows: int = 0
    """Rows of kept runs that are no longer made."""
    results: int = 0
    """Results that no kept row refers to."""


@dataclass(frozen=True, slots=True)
class RunChoice:
    """Which runs go and which stay."""

    doomed: list[RunLine]
    """Runs that go."""
    kept: list[RunLine]
    """Runs that stay."""
    tidied: set[int]
    """Kept runs whose rows that left the input go."""


def choose(
    lines: list[RunLine], keep: int, workflow: str | None, needed: Collection[int] = ()
) -> RunChoice:
    """Chooses the runs that stay: of each workflow the `keep` runs that were last worked on,
    `lines` being in that order. Row runs count as one workflow. With `workflow`, only its runs may
    go.

    The newest run over the whole input always stays, so that a preview does not cost a night's
    answers. So do the runs in `needed`, with all their rows: what is open in a batch is paid for.
    """
    concerned = [line for line in lines if workflow in (None, line.workflow)]
    by_workflow = db.grouped(
        concerned, lambda line: JOB if is_job(line.workflow) else line.workflow
    )
    tidied = set[int]()
    for runs in by_workflow.values():
        whole = [line for line in runs if not line.partial]
        tidied |= {line.id for line in [*runs[:keep], *whole[:1]]}
    gone = {line.id for line in concerned} - tidied - set(needed)
    doomed = [line for line in lines if line.id in gone]
    kept = [line for line in lines if line.id not in gone]
    return RunChoice(doomed, kept, tidied - set(needed))


async def clear(
    database: Database, keep: int, workflow: str | None, clock: Callable[[], float]
) -> GcCounts:
    """Keeps the `keep` last runs of each workflow (or of one) and drops what no kept run needs.
    Gives free space back to the file system. Only counts where the database is open for reading
    alone.

    Raises LeaseHeld while any workflow is at work, since results are shared.
    """
    drops = database.writer is not None
    async with AsyncExitStack() as stack:
        names = await select(database, "leases_known", str) if drops else []
        leases = [
            await stack.enter_async_context(lease_held(database, name, clock)) for name in names
        ]
        collector = GarbageCollector(database, leases, clock)
        lines = await run_lines(database, None)
        choice = choose(lines, keep, workflow, await runs_in_batches(database))
        if not choice.kept:
            return GcCounts()
        about = {
            "keep_runs": keep,
            "workflow": workflow,
            "dropped": [line.id for line in choice.doomed],
        }
        await collector.begin(choice.kept[0].id, about)
        dropped = [await _drop_run(database, collector, line) for line in choice.doomed]
        left, gone = await _drop_left_rows(collector, choice)
        await collector.drop_batch_tasks()
        results = await _drop_unused_results(collector, choice, workflow)
        if drops:
            await collector.drop_unused()
            await collector.end({**about, "results": results, "left_rows": left, "gone_rows": gone})
            await collector.give_back_space()
    return GcCounts(choice.kept, dropped, left, gone, results)


async def _drop_run(database: Database, collector: GarbageCollector, line: RunLine) -> RunToDrop:
    """Counts the rows of a run, and drops it where the database is open for writing."""
    rows = (await collector.read("gc_row_count", int, line.id))[0]
    if database.writer is not None:
        definition = await definition_of(database, line.id)
        _log.info("dropping run %d of %s", line.id, line.workflow)
        await collector.drop_run(line.id, [stage["name"] for stage in definition["stages"]])
    return RunToDrop(line, rows)


async def _drop_left_rows(collector: GarbageCollector, choice: RunChoice) -> tuple[int, int]:
    """Drops rows of kept runs that left the input or are no longer made. Returns how many of each
    there were."""
    left = 0
    gone = 0
    for run in sorted(choice.tidied):
        counts = await collector.read("gc_row_count", tuple[int, int, int], run)
        ((_, run_left, run_gone),) = counts
        left += run_left
        gone += run_gone
        await collector.drop_left_rows(run)
    return left, gone


async def _drop_unused_results(
    collector: GarbageCollector, choice: RunChoice, workflow: str | None
) -> int:
    """Drops the results that no kept row refers to, and returns how many there were."""
    used = await collector.used_results(choice, workflow)
    count = 0
    async for rows in collector.ranges("gc_results"):
        unused = [result for (result,) in rows if not used[result]]
        count += len(unused)
        if unused:
            await collector.drop_results(unused)
    return count


def remove_word_indexes(path: Path) -> None:
    """Deletes the index files of words that older versions made next to the database `path`."""
    for file in path.parent.glob("words-*.db*"):
        if _WORD_INDEX.fullmatch(file.name):
            file.unlink(missing_ok=True)


# A consistent copy of the database while runs are at work.
#
# SQLite's backup API copies pages in steps, under one read transaction: without it every commit of
# a run would begin the copy anew, and a busy run commits all the time. Nobody waits for it; the
# write-ahead log grows by what is committed meanwhile and is emptied afterwards. (`VACUUM INTO`
# would read under one transaction as well, cannot be interrupted between steps, and builds every
# index again.)

STEP_PAGES = 4096  # pages copied between two looks at signals: 16 MB


def copy_database(source: Path, target: Path, step: Callable[[], None] = lambda: None) -> None:
    """Copies the database at `source` into `target`, an empty file, and checks the copy. `step` is
    called in between. The copy is one file without a log beside it, of the database at one moment.
    Nobody holds a lease in it: one that was at work counts as killed. A crash leaves a target that
    nobody takes for a backup. Raises StoreError."""
    connected = partial(sqlite3.connect, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    with translated(source), closing(connected(reading_uri(source))) as reader:
        if schema_of(source, reader, to_copy=True) == 0:
            raise StoreError(
                f"{source} is empty", remedy="run a workflow first: agac run -a WORKFLOW"
            )
        reader.execute("BEGIN")
        reader.execute(
            "PRAGMA schema_version"
        ).fetchone()  # from here on the copy is of this moment
        with translated(target), closing(connected(f"{target.as_uri()}?mode=rw")) as writer:
            reader.backup(writer, pages=STEP_PAGES, progress=lambda *_: step())
            writer.execute("PRAGMA journal_mode = DELETE").fetchone()
            found = [text for (text,) in writer.execute("PRAGMA quick_check(1)")]
            if found != ["ok"]:
                raise StoreCorrupt(
                    f"{source} is damaged: {found[0]}",
                    remedy="no copy was made; restore an older backup, or move the database away "
                    "and run again with --accept-store: every task is run again then",
                )
            writer.execute(sql("leases_free"))
