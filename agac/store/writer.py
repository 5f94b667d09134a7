"""The database opened for writing, and its writer: each commit (group commit) is of everything
that waited."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import LeaseHeld, RowError, StoreError
from agac.core.keys import shard_of
from agac.core.state_files import make_file, make_folder
from agac.core.types import Outcome, RowId, Shard
from agac.store import db, records
from agac.store.db import Database, change, first, select, sql
from agac.store.lease import BEAT_SECONDS, Lease, is_alive, shown
from agac.store.records import WriteBatch
from agac.store.rows import AWAY, State

T = TypeVar("T")


@contextlib.asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Opens for writing, makes the database if there is none and migrates an older one."""
    with db.translated(path):
        try:
            make_folder(path.parent)
            make_file(path)  # with its mode, which SQLite gives to its log
        except OSError as error:
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            if in_the_way:
                remedy = "a file stands there; move it away"
            else:
                remedy = "check the folder's owner"
            raise StoreError(
                f"{path.parent} cannot be made: {error.strerror}", remedy=remedy
            ) from error
        async with db.connected(f"{path.as_uri()}?mode=rwc") as writer:
            await writer.at_once(partial(_prepare, path))
            async with db.connected(f"{path.as_uri()}?mode=ro") as reader:
                yield Database(path, reader, writer, path.stat())


def _prepare(path: Path, writer: sqlite3.Connection) -> None:
    version = db.schema_of(path, writer)
    if version == 0:
        # only takes effect before the first table
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        writer.execute(f"PRAGMA application_id = {db.APPLICATION_ID}")
    writer.execute(
        "PRAGMA journal_mode = WAL"
    ).fetchall()  # it is in force once its answer was read
    if version < db.migrations()[-1][0]:
        migrate(writer)


def migrate(writer: sqlite3.Connection) -> None:
    """Applies what is missing in one transaction, together with the record of it: a kill leaves a
    database as it was. Looks again inside the transaction: another process may have been faster.
    Raises LeaseHeld while a process works on a workflow of an older database: it does not know
    what would be changed under it."""
    with db.transaction(writer):
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        missing = [(number, script) for number, script in db.migrations() if number > version]
        for workflow, holder, heartbeat_at in (
            writer.execute(sql("leases")).fetchall() if version and missing else ()
        ):
            if is_alive(holder, time.time() - heartbeat_at):
                problem = (
                    f"the database must be brought up to date, and {shown(holder)} is at "
                    f"work on {workflow!r}"
                )
                raise LeaseHeld(
                    problem, remedy="wait for it to end, then run the same command again"
                )
        for number, script in missing:
            for statement in db.split_script(script):
                writer.execute(statement)
            writer.execute(f"PRAGMA user_version = {number}")


class FoundLine(NamedTuple):
    """The result of a row as a file has it."""

    id: str
    """The row's id; of a whole number its digits."""

    value: str | None
    """The answer as the store has it; None: there is none."""

    number: int | None
    """The id where the file has a whole number."""

    row_number: int | None
    input: str | None
    """The line's `input`, as JSON."""


class MatchingRow(NamedTuple):
    """A row of the input, for the line of its id."""

    id: RowId
    ordinal: int
    fingerprint: bytes
    confirms: Callable[[str], bool | None]
    """Whether this `input` of a line is the row: False where it contradicts it, None where it does
    not tell."""


class FoundCounts(NamedTuple):
    """How many ids a file has, `answers`, and those `of_rows`; lines that are `repeated` further
    down; answers that are refused, since their `other_input` contradicts the row, or since their
    ids are `row_numbers`."""

    ids: int
    answers: int
    of_rows: int
    repeated: int
    other_input: int
    row_numbers: int


class FoundNumbers(NamedTuple):
    """What tells whether the ids of a file are row numbers."""

    ids: int
    numbers: int
    row_numbers: int
    equal: int
    least: int | None
    most: int | None
    elsewhere: int

    @property
    def are_row_numbers(self) -> bool:
        """True if the ids seem to count rows in another way than the ids of the input. Programs
        count from 0, from 1, or by the lines of a csv file, so that a number names another row
        than the id with its digits."""
        if self.ids == 0 or self.numbers < self.ids or self.least is None or self.most is None:
            return False
        if self.row_numbers:
            counts_rows = self.equal == self.row_numbers
        else:
            counts_rows = self.least <= 2 and self.most - self.least + 1 == self.ids
        return counts_rows and (self.least != 1 or self.elsewhere > 0)


async def found_answers(
    database: Database, lines: Iterable[FoundLine], rows: Iterable[MatchingRow]
) -> tuple[FoundCounts, list[tuple[str, int]], list[tuple[str, str]]]:
    """Notes answers that stand in a file, the last one of each id, for the rows with these ids,
    without those that are of other rows by what the file says. Gives the counts, the commonest
    answers, and the first ones."""

    def note(writer: sqlite3.Connection) -> Any:
        writer.execute(sql("found_make"))
        writer.executemany(sql("found_put"), lines)
        for row in rows:
            found = writer.execute(sql("found_input"), (row.id,)).fetchone()
            if found is not None:
                confirmed = None if found[0] is None else row.confirms(found[0])
                writer.execute(
                    sql("found_match"), (row.fingerprint, row.ordinal, confirmed, row.id)
                )
        writer.execute(sql("found_refuse_inputs"))
        if FoundNumbers(*writer.execute(sql("found_numbers")).fetchone()).are_row_numbers:
            writer.execute(sql("found_refuse_numbers"))
        return [
            writer.execute(sql(name)).fetchall()
            for name in ("found_counts", "found_common", "found_first")
        ]

    assert database.writer is not None
    (counts,), common, first = await database.writer.at_once(note)
    return FoundCounts(*counts), common, first


async def keep_found(database: Database, workflow: str, file: str, at: float) -> None:
    """Stores the answers of rows that were found, as those of one workflow."""
    values = {"workflow": workflow, "file": file, "at": at}
    await change(database, lambda writer: db.execute(writer, "results_adopt", [values]))


def counted_tasks(
    writer: sqlite3.Connection, keys: Sequence[int], names: Sequence[str]
) -> Counter[records.CounterKey]:
    """What the tasks of some rows count in the roll-ups; `names` are the names of the stages by
    position."""
    counts: Counter[records.CounterKey] = Counter()
    for stage, outcome, error, part, agreement in db.fetch(
        writer, "tasks_counted", tuple[Any, ...], keys
    ):
        counts[
            names[stage], records.PART if part else outcome, "" if part else error or "", ""
        ] += 1
        if agreement and not part:
            counts[names[stage], records.AGREEMENT, agreement, ""] += 1
    return counts


class DerivedRowWriter:
    """Writes what stages make of rows in one run, inside a commit: children, members of groups,
    rows that may be like others. `stages` are the names of its stages by position, `makes` what
    those make that make anything (`spec.graph.Makes`). Rows that are no longer made are not
    deleted: they are GONE, and come back under the same key. Everything that was made of them goes
    with them, down to the last generation. Of a run's part (`shard`) the groups are no rows that
    are in other shards: while they are PENDING, those were not told of their members yet."""

    def __init__(
        self,
        run: int,
        event: int,
        stages: Sequence[str],
        makes: Mapping[int, str],
        shard: Shard | None = None,
    ) -> None:
        self._run = run
        self._event = event
        self._stages = stages
        self._shard = shard
        kinds = set(makes.values())
        self._has_children = bool(kinds - {"groups"})
        self._has_groups = "groups" in kinds
        self._dedupes = "kept" in kinds
        self._groups: dict[
            tuple[int, RowId], int
        ] = {}  # keys by the position of their stage and their id
        self._opened: set[int] = set()  # groups whose members changed in this commit
        self._keys = itertools.count()  # of the next rows that are made

    def write(self, writer: sqlite3.Connection, batch: WriteBatch) -> None:
        """Writes all that a commit says of it; of rows that left the input, or failed before any
        stage, nothing is made any longer. Adds to the roll-ups of the batch."""
        if not (self._has_children or self._has_groups):
            return
        self._writer = writer
        self._batch = batch
        self._keys = itertools.count(_last(writer, "row_key_max") + 1)
        self._opened.clear()
        if len(self._groups) > 100_000:
            self._groups.clear()
        self._drop(batch.gone)
        self._make_nothing_of(
            [*batch.leaving, *(c.key for c in batch.changes if c.state is not State.PENDING)]
        )
        for making in batch.makings:
            self._make(making)
        for made in batch.children:
            self._children(made.row_key, made.origin, made.children)
        for member in batch.distant:
            self._take(member)
        writer.executemany(sql("part_put"), [self._part(part) for part in batch.parts])
        for group in batch.cut:  # no other part of it is left
            self._drop(
                [
                    key
                    for (key,) in writer.execute(
                        sql("parts_stale"), (group, self._event)
                    ).fetchall()
                ]
            )
        writer.executemany(
            sql("made_open"), [(self._event, key) for key in [*batch.reopened, *self._opened]]
        )

    def _make(self, making: records.DerivedRows) -> None:
        """What is made of one row, in the place of what was made of it before."""
        key = making.row.key
        if self._has_children:
            origins = {
                origin for (origin,) in self._writer.execute(sql("origins_of_children"), (key,))
            }
            for origin in origins - making.children.keys() - making.alike.keys():
                self._children(key, origin, ())
            for origin, children in making.children.items():
                self._children(key, origin, children, new=origin not in origins)
        if self._has_groups:
            self._join(key, making.groups)
        if self._dedupes:
            self._writer.execute(sql("alike_drop"), (key,))
            for origin, one in making.alike.items():
                self._writer.execute(
                    sql("alike_put"), (self._run, origin, one.hash, key, one.content, one.state)
                )

    def _children(
        self, parent: int, origin: int, children: Sequence[records.Child], *, new: bool = False
    ) -> None:
        """The children that a stage makes of a row: those that are as they were stay as they
        stand."""
        found: Iterable[Any]
        if new:
            found = ()
        else:
            found = self._writer.execute(sql("children_of"), (parent, origin))
        old = {place: (key, digest, state) for place, key, digest, state in found}
        made = []
        changed = []
        for place, child in enumerate(children):
            key, digest, state = old.pop(place, (None, b"", 0))
            if key is None:
                descent = (self._event, parent, origin, place)
                made.append(
                    (
                        next(self._keys),
                        self._run,
                        child.id,
                        -1 - origin,
                        child.hash,
                        child.data,
                        *descent,
                    )
                )
            elif digest != child.hash or state == State.GONE:
                changed.append((child.hash, child.data, self._event, key))
        self._writer.executemany(sql("child_put"), made)
        self._writer.executemany(sql("child_change"), changed)
        self._drop([key for key, _, state in old.values() if state != State.GONE])

    def _part(self, part: records.Part) -> tuple[Any, ...]:
        descent = (self._event, part.group, part.origin, -part.height)
        return (next(self._keys), self._run, part.id, -1 - part.origin, b"", part.data, *descent)

    def _make_nothing_of(self, keys: Sequence[int]) -> None:
        """Nothing is made of these rows any longer."""
        for some in db.slices(keys):
            if self._has_groups:
                left = db.fetch(self._writer, "memberships", tuple[int, int], some)
                self._opened.update(group for _, group in left)
                self._writer.executemany(sql("member_drop"), left)
            if self._dedupes:
                self._writer.executemany(sql("alike_drop"), [(key,) for key in some])
            self._drop(db.fetch(self._writer, "children_of_rows", int, some))

    def _drop(self, keys: Sequence[int]) -> None:
        """These rows are gone, with their tasks and with all that was made of them."""
        for some in db.slices(keys):
            for counter, count in counted_tasks(self._writer, some, self._stages).items():
                self._batch.tally(counter).tasks -= count
            db.execute(self._writer, "row_gone", [(key,) for key in some])
            self._make_nothing_of(some)

    def _join(self, key: int, wanted: Mapping[int, records.Membership]) -> None:
        """The groups that a row is in now. Those that it joins or leaves are open again."""
        left = []
        for group, origin, group_id in self._writer.execute(sql("groups_of"), (key,)).fetchall():
            self._opened.add(group)
            now = wanted[origin].group if origin in wanted else None
            if type(now) is not type(group_id) or now != group_id:
                left.append((key, group))
        self._writer.executemany(sql("member_drop"), left)
        for origin, one in wanted.items():
            self._put_member(self._group(origin, one), one, key)

    def _put_member(self, group: int, one: records.Membership, key: int) -> None:
        self._opened.add(group)
        self._writer.execute(
            sql("member_put"), (group, one.sort - (1 << 63), key, one.size, one.failed)
        )

    def _take(self, one: records.DistantMember) -> None:
        """A row of another shard, and the group that it is in: open again where that is not as it
        was."""
        occurrence = (one.origin + 1) * AWAY - 2 - one.maker  # apart from all others of the same id
        found = self._writer.execute(sql("row_find"), (self._run, one.id, occurrence)).fetchone()
        key, text, joined = found or (next(self._keys), None, None)
        where = one.entry, None, one.origin, AWAY - one.shard
        self._writer.execute(
            sql("part_put"), (key, self._run, one.id, occurrence, b"", one.text, *where)
        )
        group = self._group(one.origin, one.place)
        if (text, joined) != (one.text, group):
            if joined not in (group, None):
                self._opened.add(joined)
                self._writer.execute(sql("member_drop"), (key, joined))
            self._put_member(group, one.place, key)

    def _group(self, origin: int, one: records.Membership) -> int:
        """The key of a group, which is made when its first member comes."""
        known = isinstance(one.group, str)
        if known and (origin, one.group) in self._groups:
            return self._groups[origin, one.group]
        found = self._writer.execute(
            sql("row_find"), (self._run, one.group, -1 - origin)
        ).fetchone()
        key = int(found[0]) if found else next(self._keys)
        if found is None:
            is_here = (
                self._shard is None or shard_of(one.group, self._shard.of) == self._shard.number
            )
            place = 0 if is_here else AWAY
            values = (
                key,
                self._run,
                one.group,
                -1 - origin,
                b"",
                one.data,
                self._event,
                None,
                origin,
                place,
            )
            self._writer.execute(sql("child_put"), values)
        if known:
            self._groups[origin, one.group] = key
        return key


# Nobody waits for a commit before going on with a reply; what bounds the loss of a kill is that
# calls which are not durable yet count against the concurrency (`engine.rate_limiter`).

CEILING_SECONDS = 0.05
"""The longest that anything waits for its commit to begin; it begins at once when somebody is held
up by it."""


class Ledger:
    """Collects what is to be written in `batch`, and commits it. `urge` says how many calls may
    wait before the next commit begins without waiting for more; `released` is called with how many
    calls each commit made durable, `committed` is given what it wrote before the next one begins.
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
        committed: Callable[[WriteBatch], Awaitable[None]] | None = None,
    ) -> None:
        self._batch = WriteBatch()
        self._committed = committed
        self._database = database
        self._lease = lease
        self._run = run
        self._event = event
        self._urge = urge
        self._clock = clock
        self._released = released
        self._descent = descent
        self._endpoints: dict[records.Endpoint, int] = {}
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def batch(self) -> WriteBatch:
        """What the next commit writes. Whoever asks for it is about to add something: it will be
        committed."""
        if not self._work.is_set():
            self._work.set()
            self._idle.clear()
        return self._batch

    def count_call(self) -> None:
        """One more call waits to be durable; when as many wait as may, the next commit begins at
        once."""
        self.batch.calls += 1
        if self._batch.calls >= self._urge:
            self._hurry.set()

    async def durable(self) -> None:
        """Waits until everything that was added so far is committed, what is being committed just
        now included."""
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
            batch, self._batch = self._batch, WriteBatch()
            await self.change(partial(self._write, batch, self._run, self._event))
            if self._committed is not None:
                await self._committed(batch)
            self._released(batch.calls)
            for tell in batch.on_durable:
                tell()
            if not self._work.is_set():
                self._idle.set()

    async def end(self, *statements: tuple[str, Any]) -> None:
        """Writes how it all ended, after `run`: statements by name with their values, if the lease
        is still ours."""
        await self.change(
            lambda writer: [writer.execute(sql(name), values) for name, values in statements]
        )

    async def prove_room(self, body: str) -> None:
        """Fills the log and the database once, and writes `body`, the invocation's record, in
        place of that. The log keeps its room for what comes next, the database gives it back.
        Raises StoreError where the disk has less."""

        def fill(writer: sqlite3.Connection) -> int:
            (pages,) = writer.execute("PRAGMA page_count").fetchone()
            writer.execute(sql("event_fill"), (" " * db.LOG_BYTES, self._event))
            return int(writer.execute("PRAGMA page_count").fetchone()[0]) - int(pages)

        def begin_anew(writer: sqlite3.Connection) -> None:
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            # `execute` would make one step of it
            writer.executescript(f"PRAGMA incremental_vacuum({more});")

        more = await self.change(fill)
        await self.change(
            lambda writer: writer.execute(sql("event_note"), (body, self._event)).rowcount
        )
        assert self._database.writer is not None
        with db.translated(self._database.path):
            await self._database.writer.at_once(begin_anew)

    async def put(
        self, batch: WriteBatch, run: int, event: int, further: Callable[[sqlite3.Connection], None]
    ) -> None:
        """Commits a batch of its own, for a run and one of its invocations, together with what
        `further` writes."""

        def write(writer: sqlite3.Connection) -> None:
            self._write(batch, run, event, writer)
            further(writer)

        await self.change(write)

    async def change(self, write: Callable[[sqlite3.Connection], T]) -> T:
        """What `write` gives, committed by itself if the lease is still ours; runs to its end even
        when cancelled."""

        def whole(writer: sqlite3.Connection) -> T:
            self._database.prove_there()
            remedy = (
                "nothing was overwritten; run the same command again once the other "
                "process has ended"
            )
            self._lease.prove(writer, self._clock(), " while this one was asleep", remedy)
            return write(writer)

        commit = asyncio.ensure_future(change(self._database, whole))
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait({commit})
            commit.result()
            raise

    # From here on everything runs in the writer's thread, without the event loop: a commit is some
    # dozen statements, and going there and back for each would cost more than SQLite does.

    def _write(self, batch: WriteBatch, run: int, event: int, writer: sqlite3.Connection) -> None:
        for name, rows in self._statements(batch, run, event, writer):
            if rows:
                db.execute(writer, name, rows)

    def _statements(
        self, batch: WriteBatch, run: int, event: int, writer: sqlite3.Connection
    ) -> Iterator[tuple[str, list[Any]]]:
        """The statements of a commit with their values, in their order: each is asked for once
        those before it ran."""
        if batch.inserts:
            for key, new in enumerate(batch.inserts, _last(writer, "row_key_max") + 1):
                new.key = key
        if batch.results:
            for number, result in enumerate(batch.results, _last(writer, "result_id_max") + 1):
                result.id = number
        yield from _rows(batch, run, event)
        yield "result_insert", [self._result(r, writer) for r in batch.results]
        yield "attempt_insert", [self._attempt(a, event, writer) for a in batch.attempts]
        yield "key_accept", batch.accepted
        yield "chunk_call_put", [(event, run, *c[:4], c[4].key, *c[5:]) for c in batch.given]
        # of a call that was lost before its line was there, too
        yield ("chunk_call_end", batch.answered)
        yield from self._conversations(batch, event)
        yield "task_put", [_task(t) for t in batch.tasks]
        yield "task_forget", batch.forgotten
        ends = [
            (e.state, e.result and (e.result.id or None), e.stage, *_error(e.error), e.new.key)
            for e in batch.ends
        ]
        yield "row_settle", ends
        if self._descent is not None:
            self._descent.write(writer, batch)
        yield from _batch_tasks(batch, run)
        yield from _reviews(batch, run)
        yield "counter_add", [(run, *key, *tally.values()) for key, tally in batch.tallies.items()]
        yield "timing_add", [(run, *key, count) for key, count in batch.timings.items()]
        yield from _minutes(batch, run, int(self._clock() // 60))
        if batch.waits is not None:
            yield "event_say", [("$.waits", batch.waits, event)]
        moved = (
            batch.ends,
            batch.inserts,
            batch.changes,
            batch.places,
            batch.leaving,
            batch.children,
            batch.gone,
            batch.distant,
        )
        if any((*moved, batch.reopened)):
            yield "run_revise", [(run,)]

    def _attempt(
        self, a: records.Attempt, event: int, writer: sqlite3.Connection
    ) -> tuple[Any, ...]:
        c = a.call
        u = a.call.usage
        endpoint = self._endpoint(c.endpoint, writer)
        asked = (a.new.key, a.stage, a.replica, event, c.number, a.fingerprint, endpoint, c.purpose)
        came = (c.started_at, c.duration, c.status, *_error(c.error), c.ambiguous)
        took = (u.input_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens, c.cost)
        used = u.cache_write_tokens, json.dumps(u.server_tools) if u.server_tools else None
        return (*asked, *came, *took, a.reply, c.ttft, c.time_to_response, c.service_tier, *used)

    def _conversations(self, batch: WriteBatch, event: int) -> Iterator[tuple[str, list[Any]]]:
        """Statements about turns and calls of tools."""
        own = self._lease.workflow
        turns = [
            (
                own,
                t.fingerprint,
                t.number,
                t.conversation,
                t.model,
                t.agent,
                t.new.key,
                t.stage,
                event,
                *t[7:],
            )
            for t in batch.turns
        ]
        yield "turn_put", turns
        yield "turn_ended", [(*end, own) for end in batch.turn_ends]
        calls = [
            (own, c.fingerprint, c.turn, c.place, c.new.key, c.stage, event, *c[5:])
            for c in batch.tool_calls
        ]
        yield "tool_call_put", calls

    def _result(self, result: records.Result, writer: sqlite3.Connection) -> tuple[Any, ...]:
        """A result's line. Who gave it and its sources are those of the one that it is like, which
        may be stored."""
        given = result if result.like is None else result.like
        if given.endpoint is not None:
            endpoint = self._endpoint(given.endpoint, writer)
            if given.sources:
                sources = json.dumps([one._asdict() for one in given.sources])
            else:
                sources = None
        else:
            endpoint, sources = writer.execute(sql("result_endpoint"), (given.id,)).fetchone()
        return (
            result.id,
            result.fingerprint,
            result.value,
            endpoint,
            result.created_at,
            result.how,
            sources,
        )

    def _endpoint(self, endpoint: records.Endpoint, writer: sqlite3.Connection) -> int:
        found = self._endpoints.get(endpoint)
        if found is None:
            found = self._endpoints[endpoint] = int(
                writer.execute(sql("endpoint_put"), endpoint).fetchone()[0]
            )
        return found


def _rows(batch: WriteBatch, run: int, event: int) -> Iterator[tuple[str, list[Any]]]:
    """Statements about rows of the input."""
    inserts = [
        (
            n.key,
            run,
            n.row.id,
            n.occurrence,
            n.row.ordinal,
            n.hash,
            n.data,
            n.state,
            *_error(n.row.error),
            event,
        )
        for n in batch.inserts
    ]
    yield "row_insert", inserts
    changes = [
        (c.row.ordinal, c.hash, c.data, c.state, *_error(c.row.error), event, c.key)
        for c in batch.changes
    ]
    yield "row_change", changes
    yield "row_place", [(ordinal, event, key) for ordinal, key in batch.places]
    yield "row_leave", [(key,) for key in batch.leaving]


def _batch_tasks(batch: WriteBatch, run: int) -> Iterator[tuple[str, list[Any]]]:
    """Statements about tasks in a provider's batches."""
    yield "task_used", [(new.key, stage, replica) for new, stage, replica in batch.used]
    enrolled = [
        (
            run,
            t.batch,
            t.place,
            t.new.key,
            t.stage,
            t.replica,
            t.fingerprint,
            t.round,
            t.position,
            t.repairs,
        )
        for t in batch.enrolled
    ]
    yield "task_enrol", enrolled
    yield "task_wait", [(run, t.new.key, t.stage, t.replica, t.fingerprint) for t in batch.waiting]
    yield "task_ended", [ended_task(one) for one in batch.ended]


def ended_task(one: records.EndedTask) -> dict[str, Any]:
    """The values of the statement `task_ended`."""
    kind, message = _error(one.error)
    return one.task._asdict() | {
        "then_do": one.then_do,
        "error_type": kind,
        "error_message": message,
    }


_OUTCOMES = {outcome.value: column for column, outcome in enumerate(Outcome)}


def _minutes(batch: WriteBatch, run: int, minute: int) -> Iterator[tuple[str, list[Any]]]:
    """Statements about what a minute (since 1970) saw: the same tallies once more, some of their
    columns, and how lanes are. Histograms are four times as coarse as those of the whole run, so
    that a commit moves few buckets."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0] * 11)
    for (stage, outcome, error, model), delta in batch.tallies.items():
        if outcome == "call":
            moved = found[stage, model]
            took = delta.tasks, delta.tasks if error else 0, delta.input_tokens, delta.cached_tokens
            for column, value in enumerate(
                (*took, delta.output_tokens, delta.cost), len(_OUTCOMES)
            ):
                moved[column] += value
        elif delta.tasks and (at := _OUTCOMES.get(outcome)) is not None:
            found[stage, ""][at] += delta.tasks
    yield "minute_add", [(run, minute, *key, *moved) for key, moved in found.items()]
    times: Counter[tuple[str, int]] = Counter()
    for (stage, measure, bucket), count in batch.timings.items():
        if measure == "duration":
            times[stage, bucket // 4] += count
    yield "minute_timing_add", [(run, minute, *key, count) for key, count in times.items()]
    yield "lane_sampled", [(run, *sample) for sample in batch.lanes]


def _reviews(batch: WriteBatch, run: int) -> Iterator[tuple[str, list[Any]]]:
    """Statements about what people are asked, and what counts as decided."""
    yield "review_stale", batch.reviewed
    yield "review_left", [(key,) for key in (*batch.leaving, *batch.gone)]
    opened = [
        (
            r.key,
            r.workflow,
            r.stage,
            r.new.row.id,
            run,
            r.new.key,
            r.seen,
            r.why,
            r.blind,
            r.last,
            r.state,
            r.sure,
            r.due,
            alone,
            r.at,
        )
        for r, alone in batch.reviews
    ]
    yield "review_put", opened
    yield "review_done", [(r.key, run, r.new.key, r.last, r.state) for r in batch.review_ends]
    yield "decision_put", [(one.key, *one[2:]) for one in batch.decisions]


def _last(writer: sqlite3.Connection, statement: str) -> int:
    return int(writer.execute(sql(statement)).fetchone()[0])


def _task(t: records.TaskEnd) -> tuple[Any, ...]:
    end = (
        t.outcome.value,
        t.result.id if t.result else None,
        *_error(t.error),
        t.failures,
        t.at,
        t.note,
    )
    return (t.new.key, t.stage, t.replica, t.fingerprint, *end)


def _error(error: RowError | None) -> tuple[str | None, str | None]:
    if error is None:
        return (None, None)
    return (error.type.value, error.message)


class ToolCache:
    """Results of tools that are kept for later runs. What was kept before `since` (seconds since
    1970) is not taken."""

    def __init__(
        self, database: Database, ledger: Ledger, clock: Callable[[], float], since: float
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._clock = clock
        self._since = since

    async def get(self, key: bytes) -> str | None:
        """The result of an equal call."""
        return first(
            await select(self._database, "tool_cache_get", str, key, self._since, self._clock())
        )

    async def put(self, key: bytes, name: str, text: str, ttl: float | None) -> None:
        """Keeps one, for so many seconds."""
        now = self._clock()
        values = key, name, text, now, None if ttl is None else now + ttl
        await self._ledger.change(lambda writer: writer.execute(sql("tool_cache_put"), values))
