"""Dropping old runs and what no kept run needs, in short transactions: a crash at any point leaves a sound store.

A run is dropped row by row, each with all that was made of it, and with its roll-ups: half of it is a run with fewer
rows and groups with fewer members, which `agac run` would go on with.
Results are dropped last, since runs of all workflows share them. Nobody may be at work meanwhile, or a result could be
dropped that has just been found again: whoever drops holds the lease of every workflow, and each transaction looks
whether somebody new came in. Doing the same again finishes what was interrupted.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import LeaseHeld, LeaseLost
from agac.core.keys import canonical
from agac.store.batch import AGREEMENT, PART, PRESENT, CounterKey, Tally
from agac.store.db import Database, translated
from agac.store.holders import is_dead
from agac.store.lease import BEAT_SECONDS, Lease
from agac.store.rows import OUTCOME_OF, State
from agac.store.sql import padded, sql, sql_many

T = TypeVar("T")

CHUNK_ROWS = 2048
"""Rows with their tasks and attempts in one transaction: some tenths of a second."""

CHUNK_TASKS = 65_536
"""Tasks of batches in one transaction: some hundredths of a second, since most of them stay."""

SLICE = 512
"""Keys in one statement."""


class Collector:
    """Drops under the leases of all workflows. Begin with `begin`; every method may be called again."""

    def __init__(self, database: Database, leases: Sequence[Lease], clock: Callable[[], float]) -> None:
        assert database.writer is not None
        self._database, self._writer = database, database.writer
        self._leases, self._clock = leases, clock
        self._event: int | None = None
        self._beaten = 0.0

    async def begin(self, run: int, about: dict[str, Any]) -> None:
        """Records, as an event of a run that stays, what is about to be dropped.

        The record also holds the last number that a run ever had: no later run gets the number of a dropped one.
        """

        def write(writer: sqlite3.Connection) -> None:
            (last,) = writer.execute(sql("run_number_last")).fetchone()
            writer.execute(sql("gc_events_drop"))
            body = canonical({**about, "last_run": last})
            self._event = writer.execute(sql("event_make"), (run, "gc", self._clock(), body)).lastrowid

        await self.transaction(write)

    async def drop_run(self, run: int, stages: Sequence[str]) -> int:
        """Drops a run whose stages have these names, and says how many rows it had."""
        rows = 0
        while some := await self.transaction(lambda writer: self._drop_rows(writer, run, stages)):
            rows += some
        await self.transaction(lambda writer: [writer.execute(sql(name), (run,)) for name in _OF_A_RUN])
        return rows

    async def drop_left_rows(self, run: int) -> tuple[int, int]:
        """Drops the rows of a run that stays which left the input, and those that stages no longer make; says how many
        of each, parts of groups not among them. They are counted nowhere."""

        def write(writer: sqlite3.Connection, before: int) -> list[_Row]:
            found = [_Row(*row) for row in writer.execute(sql("gc_left_rows"), (run, before, CHUNK_ROWS))]
            self._drop(writer, found)
            return found

        left = gone = 0
        before = _AFTER_ALL
        while some := await self.transaction(partial(write, before=before)):
            left += sum(row.place is None for row in some)
            gone += sum(row.place is not None and row.place >= 0 for row in some)
            before = some[-1].key
        return left, gone

    async def drop_batch_tasks(self) -> None:
        """Drops what is on record of tasks in batches whose row or run is gone."""
        (last,) = await self.read(lambda reader: reader.execute(sql("batches_last_task")).fetchone())
        for after in range(0, last, CHUNK_TASKS):
            await self.transaction(partial(_drop_tasks, {"after": after, "upto": after + CHUNK_TASKS}))

    async def drop_results(self, ids: Sequence[int]) -> None:
        """Drops results that no task refers to."""
        await self.transaction(lambda writer: writer.executemany(sql("gc_result_drop"), [(key,) for key in ids]))

    async def drop_unused(self, endpoints: set[int]) -> None:
        """Drops the definitions that no run has, and all endpoints but these."""

        def write(writer: sqlite3.Connection) -> None:
            writer.execute(sql("gc_definitions_drop"))
            known = writer.execute(sql("gc_endpoints")).fetchall()
            writer.executemany(sql("gc_endpoint_drop"), [key for key in known if key[0] not in endpoints])

        await self.transaction(write)

    async def end(self, about: dict[str, Any]) -> None:
        """Records what was dropped."""

        def write(writer: sqlite3.Connection) -> None:
            (last,) = writer.execute(sql("run_number_last")).fetchone()
            body = canonical({**about, "last_run": last})
            writer.execute(sql("event_end"), (self._clock(), 0, body, self._event))

        await self.transaction(write)

    async def give_back_space(self) -> None:
        """Gives free pages back to the file system, some megabytes at a time, and empties the write-ahead log."""
        with translated(self._database.path):
            while await self._writer.at_once(_vacuum_some):
                await self.stay()
            await self._writer.at_once(lambda writer: writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Reads something short; between two such readings the leases are kept alive."""
        await self.stay()
        with translated(self._database.path):
            return await self._writer.at_once(work)

    async def stay(self) -> None:
        """Shows a sign of life where one is due."""
        if self._clock() - self._beaten > BEAT_SECONDS:
            await self.transaction(lambda _: None)

    async def transaction(self, write: Callable[[sqlite3.Connection], T]) -> T:
        """All of it or nothing, and only while all leases are ours and nobody came in."""

        def whole(writer: sqlite3.Connection) -> T:
            writer.execute("BEGIN IMMEDIATE")
            try:
                self._prove_alone(writer)
                result = write(writer)
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise
            return result

        with translated(self._database.path):
            done = await self._writer.at_once(whole)
        self._beaten = self._clock()
        return done

    def _prove_alone(self, writer: sqlite3.Connection) -> None:
        for lease in self._leases:
            if writer.execute(sql("lease_beat"), (self._clock(), lease.workflow, lease.token)).rowcount == 0:
                raise LeaseLost(f"another process took over workflow {lease.workflow!r}", remedy=_AGAIN)
        ours = {lease.workflow for lease in self._leases}
        for workflow, holder in writer.execute(sql("lease_holders")):
            if workflow not in ours and not is_dead(holder):
                raise LeaseHeld(f"workflow {workflow!r} began while old runs were dropped", remedy=_AGAIN)
        (newest,) = writer.execute(sql("gc_event_newest")).fetchone()
        if self._event is not None and newest != self._event:
            raise LeaseHeld("another workflow was run while old runs were dropped", remedy=_AGAIN)

    def _drop_rows(self, writer: sqlite3.Connection, run: int, stages: Sequence[str]) -> int:
        found: list[_Row] = []
        for (root,) in writer.execute(sql("gc_roots"), (run, CHUNK_ROWS)).fetchall():
            found += [_Row(*row) for row in writer.execute(sql("gc_tree"), (root,))]
            if len(found) >= CHUNK_ROWS:
                break
        if not found:
            return 0
        counts = _counted(writer, found, stages)
        values = [(run, *key, *Tally(count=-count).values()) for key, count in counts.items()]
        writer.executemany(sql("counter_add"), values)
        writer.execute(sql("run_revise"), (run,))
        self._drop(writer, found)
        return sum(row.place is None or row.place >= 0 for row in found)

    def _drop(self, writer: sqlite3.Connection, found: Sequence[_Row]) -> None:
        """Drops rows, the last generation first, with all that refers to them. Groups that lose members are open."""
        keys = [(row.key,) for row in found]
        for start in range(0, len(keys), SLICE):
            wanted = padded([key for (key,) in keys[start : start + SLICE]])
            members = writer.execute(sql_many("memberships", len(wanted)), wanted).fetchall()
            groups = {group for _, group in members}
            writer.executemany(sql("made_open"), [(self._event or 0, group) for group in groups])
            writer.executemany(sql("member_drop"), members)
        for name in ("gc_members_drop", "alike_drop", "gc_tasks_drop", "gc_attempts_drop", "gc_row_drop"):
            writer.executemany(sql(name), keys)


_AGAIN = "nothing that is needed was dropped; run the same command again once it has ended: it goes on where it was"

_OF_A_RUN = (
    "gc_made_drop", "gc_counters_drop", "gc_timings_drop", "batches_drop", "gc_run_events_drop", "gc_run_drop",
)  # fmt: skip

_AFTER_ALL = 1 << 62


class _Row(NamedTuple):
    """A row about to be dropped. `ordinal`: its position in the input; `place`: only of one that a stage made, below 0
    of a part of a group; `error`: its kind."""

    key: int
    ordinal: int | None
    place: int | None
    state: int
    error: str | None


def _counted(writer: sqlite3.Connection, found: Sequence[_Row], stages: Sequence[str]) -> Counter[CounterKey]:
    """What rows and their tasks count in the roll-ups of their run. Rows that left the input count no more, and rows
    that are no longer made have no tasks."""
    counts: Counter[CounterKey] = Counter()
    for row in found:
        if row.ordinal is not None:
            counts[PRESENT] += 1
            if outcome := OUTCOME_OF.get(State(row.state)):
                counts["", outcome.value, row.error or "", ""] += 1
    present = [row.key for row in found if row.ordinal is not None or row.place is not None]
    for start in range(0, len(present), SLICE):
        keys = padded(present[start : start + SLICE])
        for stage, outcome, error, part, agreement in writer.execute(sql_many("tasks_counted", len(keys)), keys):
            counts[stages[stage], PART if part else outcome, "" if part else error or "", ""] += 1
            if agreement and not part:
                counts[stages[stage], AGREEMENT, agreement, ""] += 1
    return counts


def _drop_tasks(values: dict[str, int], writer: sqlite3.Connection) -> None:
    writer.execute(sql("batches_tasks_drop"), values)


VACUUM_PAGES = 4096
"""Pages given back in one transaction: 16 MB."""


def _vacuum_some(writer: sqlite3.Connection) -> bool:
    """Whether free pages were given back."""
    if writer.execute("PRAGMA freelist_count").fetchone()[0] == 0:
        return False
    # not `execute`: it makes one step of a statement that gives no columns, and each step frees one page
    writer.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES});")
    return True
