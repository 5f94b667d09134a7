"""The control state of a workflow in a remote: who works on its batches, and what others need to
go on with them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import Annotated
from urllib.parse import quote

from pydantic import Field

from agac.core.errors import AgacError, LeaseHeld, LeaseLost
from agac.core.types import CLOCKS_APART, Shard
from agac.data.object_store import ObjectStore
from agac.data.shared_log import (
    MAX_ENTRY,
    ContentHash,
    Line,
    SharedObject,
    entry_name,
    entry_numbers,
    gap_error,
    in_the_way,
    missing_entry,
    read_record,
)
from agac.store import runs
from agac.store.batches import BatchRecord, BatchStep, unfinished_batches
from agac.store.db import Database, to_the_end, write
from agac.store.lease import is_dead_here, lease_held, shown, this_process
from agac.store.packs import Damaged
from agac.store.snapshot import MAX_BYTES, State, batch_states, make_snapshot, take_snapshot

# One log a workflow: objects with numbers without gaps, each created once and never changed. The
# last entry says all: its snapshot of the runs, and how their batches stand since. The numbers are
# the fence: whoever finds the next one taken was taken over, and asks for nothing any more.

FOLDER = "v1/control"
SNAPSHOTS = "v1/snapshots"
BEAT_SECONDS = 120.0
STALE_SECONDS = 600.0
"""How often a holder shows a sign of life, and after how long without one it counts as gone."""

LOOKED_BACK = 100  # entries that cannot be believed are passed over, so many at most

_log = logging.getLogger("agac.batch")


class LogEntry(SharedObject):
    """An entry. `mark` tells its writer's from others, `free` that the lease was given back;
    `snapshot` names that, and `batches` are the columns of open ones in it, by intent."""

    number: Annotated[int, Field(ge=1, lt=1_000_000_000)]
    workflow: Line
    free: bool
    snapshot: ContentHash
    batches: Mapping[Line, State]


class Control:
    """The control state of one workflow. It `adopt`s what other machines left, and while it is
    `held` writes what becomes of the batches of this one. `trust`: whose entries are believed.
    `lost` is called when it was taken over."""

    def __init__(
        self,
        remote: ObjectStore,
        workflow: str,
        writer: str,
        trust: Iterable[str],
        shard: Shard | None = None,
    ) -> None:
        self._remote = remote
        self._workflow = workflow
        self._writer = writer
        self._trust = {*trust, writer} - {""}
        self._name = quote(workflow, safe="").replace("%", "=") + (
            f"@{shard.name}" if shard else ""
        )
        self._turn = asyncio.Lock()
        self._mark = token_hex(16)
        self._error: LeaseLost | None = None
        self.lost: Callable[[AgacError], None] = lambda _: None
        self._number = 0
        self._at = 0.0
        self._snapshot = ""
        self._known = set[str]()
        self._stored: object = None  # what was there when the snapshot was made

    async def last(self) -> LogEntry | None:
        """The last entry that can be believed, if any. Raises AgacError: there is none, a newer
        agac wrote one, or the log lacks an entry."""
        log = f"{FOLDER}/{self._name}"
        numbers = entry_numbers(
            name.removeprefix(f"{log}/") for name in await self._remote.sizes(log)
        )
        gap = await missing_entry(self._remote, log, numbers)
        if gap is not None:
            raise gap_error(self._remote, log, gap)
        self._number = max(numbers, default=0)
        for number in sorted(numbers, reverse=True)[:LOOKED_BACK]:
            content = await self._remote.read(self._entry(number), MAX_ENTRY) or b""
            if re.match(rb'\{\s*"format":\s*(?!1\b)\d', content):
                raise AgacError(
                    f"{self._remote.url}/{self._entry(number)}: a newer agac wrote it",
                    remedy="update agac",
                )
            try:
                entry = read_record(LogEntry, content)
                why = f"it is of another log, or its writer {entry.writer!r} is not trusted"
                is_here = (entry.number, entry.workflow) == (number, self._workflow)
                if (
                    is_here
                    and entry.writer in self._trust
                    and entry.at < time.time() + CLOCKS_APART
                ):
                    return entry
            except ValueError as error:
                why = f"it is no entry: {error}"
            _log.warning("%s/%s is left out: %s", self._remote.url, self._entry(number), why)
        if numbers:
            what = f"{self._remote.url}/{FOLDER}/{self._name} has no entry that can be believed"
            raise AgacError(
                what,
                remedy="name its writers at `remote: {trust: […]}` of agac.yml, or move it away",
            )
        return None

    def _entry(self, number: int) -> str:
        return f"{FOLDER}/{self._name}/{entry_name(number)}"

    async def adopt(self, database: Database, entry: LogEntry | None) -> None:
        """Takes in what other machines wrote, up to this last entry, since this store last knew of
        it. Raises LeaseHeld where a process of this machine is at work on the workflow, AgacError
        where the snapshot cannot be used."""
        known = await runs.control_known(database, self._workflow)
        if entry is None or known == entry.number:
            return
        name = f"{SNAPSHOTS}/{self._name}/{entry.snapshot}"
        content = await self._remote.read(name, MAX_BYTES)
        about = self._workflow, entry.number, entry.snapshot, entry.batches
        try:
            async with lease_held(database, self._workflow, time.time):
                assert database.writer is not None
                await database.writer.at_once(partial(take_snapshot, content, *about))
        except Damaged as error:
            remedy = (
                "restore the object (nothing was sent), or set `remote: {control: false}` "
                "to go on without it"
            )
            raise AgacError(
                f"{self._remote.url}/{name} cannot be used: {error}", remedy=remedy
            ) from None

    def holder(self, entry: LogEntry) -> str | None:
        """Who works on the workflow, in words; None: nobody does any more."""
        age = time.time() - entry.at
        if entry.free or is_dead_here(entry.holder) or age > STALE_SECONDS:
            return None
        return f"{entry.writer} ({shown(entry.holder)}, last sign of life {max(age, 0):.0f} s ago)"

    @asynccontextmanager
    async def held(self, database: Database) -> AsyncIterator[None]:
        """The workflow is this process's, among all machines, for the block. Raises LeaseHeld
        where it is another's."""
        tried = -1
        while not await self._taken(database):
            self._error = None
            if self._number == tried:
                raise in_the_way(self._remote, self._entry(tried + 1))
            tried = self._number
        beating = asyncio.ensure_future(self._beat(database))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait({beating})
            await to_the_end(self._give_back(database))

    async def _taken(self, database: Database) -> bool:
        """Whether the lease was taken, which another machine may have been faster to do."""
        entry = await self.last()
        if entry is not None and (holder := self.holder(entry)) is not None:
            what = f"workflow {self._workflow!r} is being run by {holder}"
            after = f"{STALE_SECONDS / 60:.0f} min after its last sign of life"
            raise LeaseHeld(
                what, remedy=f"wait for it to end; if it is gone it is taken over {after}"
            )
        await self.adopt(database, entry)
        stored = await self._now(database)
        if entry is None or stored[1].keys() - entry.batches.keys():
            await self._snap(database)  # some were submitted before there was a log
        else:
            self._snapshot = entry.snapshot
            self._known = set(entry.batches)
            self._stored = stored
        try:
            await self._append(database)
        except LeaseLost:
            return False
        return True

    async def _now(self, database: Database) -> tuple[list[tuple[int, int]], dict[str, str]]:
        """The runs that another machine would go on with (the last one, those with batches) with
        their revisions, and the states of batches that are filled and have not come to their end,
        by intent."""
        found = [
            one
            for one in await unfinished_batches(database, self._workflow)
            if one.state != BatchStep.PLANNED
        ]
        numbers = {
            *(await runs.run_ids(database, self._workflow))[:1],
            *(one.run_id for one in found),
        }
        revisions = [
            (run, (await runs.run_record(database, run)).revision) for run in sorted(numbers)
        ]
        return revisions, {one.intent: one.state for one in found}

    async def _snap(self, database: Database) -> None:
        """All that the store has of these runs lies in the remote from now on."""
        stored = await self._now(database)
        name, content = await asyncio.to_thread(
            make_snapshot, database.path, [run for run, _ in stored[0]]
        )
        await self._remote.create(f"{SNAPSHOTS}/{self._name}/{name}", content)
        self._snapshot = name
        self._known = set(stored[1])
        self._stored = stored

    async def _append(self, database: Database, *, free: bool = False) -> None:
        """One more entry, of how all stands now. Raises LeaseLost where another machine took the
        workflow over."""
        async with self._turn:
            while self._error is None:
                states = await database.reader.at_once(
                    partial(batch_states, self._workflow, self._known)
                )
                entry = LogEntry(
                    number=self._number + 1,
                    workflow=self._workflow,
                    writer=self._writer,
                    holder=this_process(),
                    mark=self._mark,
                    at=time.time(),
                    free=free,
                    snapshot=self._snapshot,
                    batches=states,
                )
                name = self._entry(entry.number)
                content = entry.model_dump_json().encode()
                if await self._remote.create(name, content):
                    self._number = entry.number
                    self._at = entry.at
                    await write(database, "control_keep", self._workflow, entry.number)
                    return
                if await self._is_ours(name):
                    self._number = entry.number  # we were cut off before we heard of it
                    continue
                what = (
                    f"another machine took over workflow {self._workflow!r} while this one "
                    "was silent"
                )
                self._error = LeaseLost(
                    what, remedy="the other one goes on with it; run the same command again later"
                )
                self.lost(self._error)
            raise self._error

    async def _is_ours(self, name: str) -> bool:
        try:
            return (
                read_record(LogEntry, await self._remote.read(name, MAX_ENTRY) or b"").mark
                == self._mark
            )
        except ValueError:
            return False

    async def wrote(self, database: Database, record: BatchRecord) -> None:
        """A step of a batch was committed. Returns once the remote knows of it."""
        is_known = record.intent in self._known
        if not is_known and record.state != BatchStep.CREATE_INTENT:
            return  # nothing of it is anywhere else
        # its tasks have ends: answers came
        if not is_known or (not record.open and record.state != BatchStep.CLEANED):
            await self._snap(database)
        await self._append(database)

    async def prove(self, database: Database) -> None:
        """Proves that the workflow is still ours, after a silence. Raises LeaseLost."""
        if self._error is not None or time.time() - self._at > 2 * BEAT_SECONDS:
            await self._append(database)

    async def _beat(self, database: Database) -> None:
        while self._error is None:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self._append(database)
            except AgacError as error:
                _log.warning("no sign of life could be given: %s", error.message)

    async def _give_back(self, database: Database) -> None:
        try:
            if self._error is None and self._stored != await self._now(database):
                await self._snap(database)
            if self._error is None:
                await self._append(database, free=True)
        except AgacError as error:
            _log.warning("workflow %s was not given back: %s", self._workflow, error.message)
