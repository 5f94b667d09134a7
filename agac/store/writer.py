"""The writer: one commit after the other, each of everything that waited (group commit), derived rows included."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from agac.core.errors import LeaseLost, RowError
from agac.core.types import RowId
from agac.store.db import BEAT_SECONDS, Database, Lease, padded, slices, sql, sql_many, transaction, translated
from agac.store.records import (
    AGREEMENT,
    PART,
    Attempt,
    Child,
    CounterDelta,
    CounterKey,
    DerivedRows,
    EndedTask,
    Endpoint,
    Enrolled,
    Membership,
    NewRow,
    Part,
    Result,
    RowEnd,
    TaskEnd,
    WaitingTask,
    WriteBatch,
)
from agac.store.rows import State

# What stages make of rows, written inside a commit: children, members of groups, rows that may be like others.
#
# Rows that are no longer made are not deleted: they are GONE, and come back under the same key. Everything that was
# made of them goes with them, down to the last generation.


class DerivedRowWriter:
    """Writes what is made of rows in one run. `stages` are the names of its stages by position, `makes` what those make
    that make anything (`spec.levels.Makes`)."""

    def __init__(self, run: int, event: int, stages: Sequence[str], makes: Mapping[int, str]) -> None:
        self._run, self._event, self.stages = run, event, stages
        kinds = set(makes.values())
        self._children, self._groups, self._kept = bool(kinds - {"groups"}), "groups" in kinds, "kept" in kinds
        self._any = bool(makes)
        self._keys: dict[tuple[int, RowId], int] = {}

    def write(self, writer: sqlite3.Connection, batch: WriteBatch) -> None:
        """Writes all that a commit says of it; of rows that left the input, or failed before any stage, nothing is made
        any longer. Adds to the roll-ups of the batch."""
        if not self._any:
            return
        commit = _Commit(self, writer, batch.tally)
        commit.vanish(batch.gone)
        commit.nothing_of([*batch.leaving, *(c.key for c in batch.changes if c.state is not State.PENDING)])
        for making in batch.makings:
            commit.make(making)
        for brood in batch.broods:
            commit.children(brood.row_key, brood.origin, brood.children)
        commit.parts(batch.parts, batch.cut)
        commit.reopen([*batch.reopened, *commit.opened])

    @property
    def has_children(self) -> bool:
        """Whether any row can have children."""
        return self._children

    @property
    def has_groups(self) -> bool:
        """Whether any row can be in a group."""
        return self._groups

    @property
    def keeps(self) -> bool:
        """Whether any stage keeps the first of equal rows."""
        return self._kept

    @property
    def place(self) -> tuple[int, int]:
        """The run and the invocation."""
        return self._run, self._event

    @property
    def known(self) -> dict[tuple[int, RowId], int]:
        """Keys of groups by the position of their stage and their id."""
        if len(self._keys) > 100_000:
            self._keys.clear()
        return self._keys


def counted_tasks(writer: sqlite3.Connection, keys: Sequence[int], stages: Sequence[str]) -> Counter[CounterKey]:
    """What the tasks of some rows count in the roll-ups; `stages` are the names of the stages by position."""
    counts: Counter[CounterKey] = Counter()
    values = padded(keys)
    for stage, outcome, error, part, agreement in writer.execute(sql_many("tasks_counted", len(values)), values):
        counts[stages[stage], PART if part else outcome, "" if part else error or "", ""] += 1
        if agreement and not part:
            counts[stages[stage], AGREEMENT, agreement, ""] += 1
    return counts


class _Commit:
    def __init__(
        self, descent: DerivedRowWriter, writer: sqlite3.Connection, tally: Callable[[CounterKey], CounterDelta]
    ) -> None:
        self._descent, self._writer, self._tally = descent, writer, tally
        self._run, self._event = descent.place
        self._next = int(writer.execute(sql("row_key_max")).fetchone()[0]) + 1
        self.opened: set[int] = set()  # groups whose members changed

    def make(self, making: DerivedRows) -> None:
        """What is made of one row, in the place of what was made of it before."""
        key, descent = making.row.key, self._descent
        if descent.has_children:
            origins = {origin for (origin,) in self._writer.execute(sql("origins_of_children"), (key,))}
            for origin in origins - making.broods.keys() - making.alike.keys():
                self.children(key, origin, ())
            for origin, children in making.broods.items():
                self.children(key, origin, children, new=origin not in origins)
        if descent.has_groups:
            self._join(key, making.groups)
        if descent.keeps:
            self._writer.execute(sql("alike_drop"), (key,))
            for origin, alike in making.alike.items():
                self._writer.execute(sql("alike_put"), (self._run, origin, alike.hash, key, alike.content, alike.state))

    def children(self, parent: int, origin: int, children: Sequence[Child], *, new: bool = False) -> None:
        """The children that a stage makes of a row: those that are as they were stay as they stand."""
        found = () if new else self._writer.execute(sql("children_of"), (parent, origin))
        old = {place: (key, digest, state) for place, key, digest, state in found}
        made, changed = [], []
        for place, child in enumerate(children):
            known = old.pop(place, None)
            if known is None:
                occurrence = -1 - origin
                descent = (self._event, parent, origin, place)
                made.append((self._next, self._run, child.id, occurrence, child.hash, child.data, *descent))
                self._next += 1
            elif known[1] != child.hash or known[2] == State.GONE:
                changed.append((child.hash, child.data, self._event, known[0]))
        self._writer.executemany(sql("child_put"), made)
        self._writer.executemany(sql("child_change"), changed)
        self.vanish([key for key, _, state in old.values() if state != State.GONE])

    def nothing_of(self, keys: Sequence[int]) -> None:
        """Nothing is made of these rows any longer."""
        for some in slices(keys):
            values = padded(some)
            if self._descent.has_groups:
                self._leave(some)
            if self._descent.keeps:
                self._writer.executemany(sql("alike_drop"), [(key,) for key in some])
            if self._descent.has_children or self._descent.has_groups:
                found = self._writer.execute(sql_many("children_of_rows", len(values)), values).fetchall()
                self.vanish([key for (key,) in found])

    def vanish(self, keys: Sequence[int]) -> None:
        """These rows are gone, with their tasks and with all that was made of them."""
        for some in slices(keys):
            for counter, count in counted_tasks(self._writer, some, self._descent.stages).items():
                self._tally(counter).count -= count
            one_by_one = [(key,) for key in some]
            self._writer.executemany(sql("tasks_drop"), one_by_one)
            self._writer.executemany(sql("row_gone"), one_by_one)
            self.nothing_of(some)

    def _join(self, key: int, wanted: Mapping[int, Membership]) -> None:
        """The groups that a row is in now. Those that it joins or leaves are open again."""
        left = []
        for group, origin, group_id in self._writer.execute(sql("groups_of"), (key,)).fetchall():
            self.opened.add(group)
            now = wanted[origin].group if origin in wanted else None
            if type(now) is not type(group_id) or now != group_id:
                left.append((key, group))
        self._writer.executemany(sql("member_drop"), left)
        for origin, one in wanted.items():
            group = self._group(origin, one)
            self.opened.add(group)
            self._writer.execute(sql("member_put"), (group, one.sort - (1 << 63), key, one.size, one.failed))

    def _leave(self, keys: Sequence[int]) -> None:
        values = padded(list(keys))
        found: list[Any] = self._writer.execute(sql_many("memberships", len(values)), values).fetchall()
        self.opened.update(group for _, group in found)
        self._writer.executemany(sql("member_drop"), found)

    def _group(self, origin: int, one: Membership) -> int:
        known = self._descent.known
        key = known.get((origin, one.group)) if isinstance(one.group, str) else None
        if key is not None:
            return key
        found = self._writer.execute(sql("group_find"), (self._run, one.group, -1 - origin)).fetchone()
        if found is None:
            key, self._next = self._next, self._next + 1
            occurrence = -1 - origin
            values = (key, self._run, one.group, occurrence, b"", one.data, self._event, None, origin, 0)
            self._writer.execute(sql("child_put"), values)
        else:
            key = int(found[0])
        if isinstance(one.group, str):
            known[origin, one.group] = key
        return key

    def parts(self, parts: Sequence[Part], cut: Sequence[int]) -> None:
        """What large groups are cut into; of those in `cut` no other part is left."""
        rows = []
        for part in parts:
            occurrence, place = -1 - part.origin, -part.height
            descent = (self._event, part.group, part.origin, place)
            rows.append((self._next, self._run, part.id, occurrence, b"", part.data, *descent))
            self._next += 1
        self._writer.executemany(sql("part_put"), rows)
        for group in cut:
            self.vanish([key for (key,) in self._writer.execute(sql("parts_stale"), (group, self._event)).fetchall()])

    def reopen(self, keys: Iterable[int]) -> None:
        """These rows are to be worked on again."""
        self._writer.executemany(sql("made_open"), [(self._event, key) for key in keys])


# The writer: one commit after the other, each of everything that waited (group commit).
#
# Nobody waits for a commit before going on with a reply; what bounds the loss of a kill is that calls which are not
# durable yet count against the concurrency (`engine.limits`).

T = TypeVar("T")

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
        descent: DerivedRowWriter | None = None,
    ) -> None:
        assert database.writer is not None
        self._batch = WriteBatch()
        self._database, self._writer, self._lease = database, database.writer, lease
        self._run, self._event, self._urge, self._clock = run, event, urge, clock
        self._released, self._descent = released, descent
        self._endpoints: dict[Endpoint, int] = {}
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._begun = False  # whether the events say already that there is work

    @property
    def batch(self) -> WriteBatch:
        """What the next commit writes. Whoever asks for it is about to add something: it will be committed."""
        if not self._begun:
            self._begun = True
            self._work.set()
            self._idle.clear()
        return self._batch

    def count_call(self) -> None:
        """One more call waits to be durable; when as many wait as may, the next commit begins at once."""
        self.batch.calls += 1
        if self._batch.calls >= self._urge:
            self._hurry.set()

    async def durable(self) -> None:
        """Waits until everything that was added so far is committed, what is being committed just now included."""
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
        """Commits until cancelled. A commit under way is finished first. Raises what a commit raises."""
        while True:
            if not await self._waited():
                await self._commit(WriteBatch())  # a heartbeat
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CEILING_SECONDS):
                    await self._hurry.wait()
            self._work.clear()
            self._begun = False
            self._hurry.clear()
            batch, self._batch = self._batch, WriteBatch()
            await self._commit(batch)
            self._released(batch.calls)
            for tell in batch.on_durable:
                tell()
            if not self._work.is_set():
                self._idle.set()

    async def _waited(self) -> bool:
        """Waits for work; False when the lease should show a sign of life first."""
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await self._work.wait()
        except TimeoutError:
            return False
        return True

    async def end(self, *statements: tuple[str, Any]) -> None:
        """Writes how it all ended, after `run`: statements by name with their values, if the lease is still ours."""

        def write(writer: sqlite3.Connection) -> None:
            for name, values in statements:
                writer.execute(sql(name), values)

        await self._transaction(write)

    async def change(self, write: Callable[[sqlite3.Connection], T]) -> T:
        """What `write` gives, committed by itself once it returns, if the lease is still ours."""
        return await self._to_its_end(write)

    async def put(self, batch: WriteBatch, run: int, event: int, further: Callable[[sqlite3.Connection], None]) -> None:
        """Commits a batch of its own, for a run and one of its invocations, together with what `further` writes."""

        def write(writer: sqlite3.Connection) -> None:
            self._write(batch, writer, (run, event))
            further(writer)

        await self._to_its_end(write)

    async def _commit(self, batch: WriteBatch) -> None:
        await self._to_its_end(partial(self._write, batch))

    async def _to_its_end(self, write: Callable[[sqlite3.Connection], T]) -> T:
        commit = asyncio.ensure_future(self._transaction(write))
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:  # it goes on in the writer's thread: nothing may be closed under it
            await asyncio.wait({commit})
            commit.result()
            raise

    async def _transaction(self, write: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._database.path):
            return await self._writer.at_once(partial(self._write_whole, write))

    # From here on everything runs in the writer's thread, without the event loop: a commit is some dozen statements,
    # and going there and back for each would cost more than SQLite does.

    def _write_whole(self, write: Callable[[sqlite3.Connection], T], writer: sqlite3.Connection) -> T:
        """All of it or nothing, and only if the lease is still ours."""
        with transaction(writer):
            self._prove_lease(writer)
            return write(writer)

    def _prove_lease(self, writer: sqlite3.Connection) -> None:
        beat = writer.execute(sql("lease_beat"), (self._clock(), self._lease.workflow, self._lease.token))
        if beat.rowcount == 0:
            raise LeaseLost(
                f"another process took over workflow {self._lease.workflow!r} while this one was asleep",
                remedy="nothing was overwritten; run the same command again once the other process has ended",
            )

    def _write(self, batch: WriteBatch, writer: sqlite3.Connection, place: tuple[int, int] | None = None) -> None:
        many, (run, event) = partial(_many, writer), place or (self._run, self._event)
        self._write_rows(batch, writer)
        self._write_results(batch.results, writer)
        many("attempt_insert", [self._attempt(a, event, writer) for a in batch.attempts])
        many("task_put", [_task(t) for t in batch.tasks])
        many("task_forget", batch.forgotten)
        many("replicas_forget", batch.unasked)
        many("row_settle", [_end(e) for e in batch.ends])
        if self._descent is not None:
            self._descent.write(writer, batch)
        many("task_told", [(new.key, stage, replica) for new, stage, replica in batch.told])
        many("task_enrol", [_enrolled(self._run, task) for task in batch.enrolled])
        many("task_wait", [_waiting(self._run, task) for task in batch.waiting])
        many("task_ended", [(t.then_do, *_error(t.error), t.id) for t in batch.ended])
        many("followers_ended", [_followed(t) for t in batch.ended])
        many("counter_add", [(run, *key, *tally.values()) for key, tally in batch.tallies.items()])
        many("timing_add", [(run, *key, count) for key, count in batch.timings.items()])
        if batch.ends or batch.inserts or batch.changes or batch.places or batch.leaving or batch.broods or batch.gone:
            writer.execute(sql("run_revise"), (self._run,))

    def _write_rows(self, batch: WriteBatch, writer: sqlite3.Connection) -> None:
        many = partial(_many, writer)
        if batch.inserts:
            for key, new in enumerate(batch.inserts, _last(writer, "row_key_max") + 1):
                new.key = key
            many("row_insert", [self._insert(new) for new in batch.inserts])
        changes = [(c.ordinal, c.hash, c.data, c.state, *_error(c.error), self._event, c.key) for c in batch.changes]
        many("row_change", changes)
        many("row_place", [(ordinal, self._event, key) for ordinal, key in batch.places])
        many("row_leave", [(key,) for key in batch.leaving])

    def _insert(self, new: NewRow) -> tuple[Any, ...]:
        row = new.row
        error = _error(row.error)
        return (
            new.key, self._run, row.id, new.occurrence, row.ordinal, new.hash, new.data, new.state, *error, self._event
        )  # fmt: skip

    def _write_results(self, results: list[Result], writer: sqlite3.Connection) -> None:
        if not results:
            return
        rows = []
        for number, result in enumerate(results, _last(writer, "result_id_max") + 1):
            result.id = number
            endpoint = self._endpoint_of(result, writer)
            rows.append((number, result.fingerprint, result.value, endpoint, result.created_at, result.how))
        _many(writer, "result_insert", rows)

    def _endpoint_of(self, result: Result, writer: sqlite3.Connection) -> int:
        """Who gave a result; of one that is in the store already, what stands there."""
        source = result if result.like is None else result.like
        if source.endpoint is not None:
            return self._endpoint(source.endpoint, writer)
        return int(writer.execute(sql("result_endpoint"), (source.id,)).fetchone()[0])

    def _attempt(self, a: Attempt, event: int, writer: sqlite3.Connection) -> tuple[Any, ...]:
        c, u = a.call, a.call.usage
        endpoint = self._endpoint(c.endpoint, writer)
        asked = (a.new.key, a.stage, a.replica, event, c.number, a.fingerprint, endpoint, c.purpose)
        came = (c.started_at, c.duration, c.status, *_error(c.error), c.ambiguous)
        took = (u.input_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens, c.cost)
        return (*asked, *came, *took, a.reply, c.ttft, c.time_to_response, c.service_tier)

    def _endpoint(self, endpoint: Endpoint, writer: sqlite3.Connection) -> int:
        found = self._endpoints.get(endpoint)
        if found is None:
            row = writer.execute(sql("endpoint_find"), endpoint).fetchone()
            found = row[0] if row else writer.execute(sql("endpoint_make"), endpoint).lastrowid
            assert found is not None
            self._endpoints[endpoint] = found
        return found


def _many(writer: sqlite3.Connection, name: str, rows: list[Any]) -> None:
    if rows:
        writer.executemany(sql(name), rows)


def _last(writer: sqlite3.Connection, statement: str) -> int:
    return int(writer.execute(sql(statement)).fetchone()[0])


def _error(error: RowError | None) -> tuple[str | None, str | None]:
    return (None, None) if error is None else (error.type.value, error.message)


def _task(t: TaskEnd) -> tuple[Any, ...]:
    result = t.result.id if t.result else None
    asked = (t.new.key, t.stage, t.replica, t.fingerprint)
    return (*asked, t.outcome.value, result, *_error(t.error), t.failures, t.at, t.note)


def _waiting(run: int, t: WaitingTask) -> dict[str, Any]:
    asked = {"row": t.new.key, "stage": t.stage, "replica": t.replica, "fingerprint": t.fingerprint}
    return {"run": run, **asked}


def _enrolled(run: int, t: Enrolled) -> tuple[Any, ...]:
    asked = (t.new.key, t.stage, t.replica, t.fingerprint)
    return (run, t.batch, t.place, *asked, t.round, t.position, t.repairs)


def _followed(t: EndedTask) -> tuple[Any, ...]:
    return (t.then_do, *_error(t.error), t.round, t.position, t.repairs, t.fingerprint)


def _end(e: RowEnd) -> tuple[Any, ...]:
    return (e.state, (e.result.id or None) if e.result else None, e.stage, *_error(e.error), e.new.key)
