"""Keeps the control state of a workflow in a remote: who works on its batches, and what others
need to continue them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import Annotated, NamedTuple
from urllib.parse import quote

from pydantic import Field

from agac.core.errors import AgacError, LeaseLost
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
    held_error,
    in_the_way,
    lost_error,
    missing_entry,
    read_record,
)
from agac.store import runs
from agac.store.batches import BatchRecord, BatchStep, unfinished_batches
from agac.store.db import Database, to_the_end, write
from agac.store.lease import is_dead_here, lease_held, shown, this_process
from agac.store.packs import Damaged
from agac.store.snapshot import MAX_BYTES, State, batch_states, make_snapshot, take_snapshot

# Each workflow has one log: objects with numbers without gaps, each created once and never changed.
# The last entry says all: its snapshot of the runs, and the states of their batches since. The
# numbers are the fence: a process that finds the next one taken was taken over, and asks for
# nothing any more.

FOLDER = "v1/control"
SNAPSHOTS = "v1/snapshots"
BEAT_SECONDS = 120.0
"""Seconds between two signs of life of a holder."""

STALE_SECONDS = 600.0
"""Seconds without a sign of life after which a holder counts as gone."""

LOOKED_BACK = 100
"""How many entries that cannot be believed are passed over at most."""

_log = logging.getLogger("agac.batch")


class LogEntry(SharedObject):
    """An entry of the log. Its `mark` tells the entries of one process from others."""

    number: Annotated[int, Field(ge=1, lt=1_000_000_000)]
    """Its number in the log."""

    workflow: Line
    """The name of the workflow."""

    free: bool
    """True if the lease was given back."""

    snapshot: ContentHash
    """The name of the snapshot of the runs."""

    batches: Mapping[Line, State]
    """The columns of the open batches in the snapshot, by intent."""


class StoredBatches(NamedTuple):
    """The runs and batches that another machine would continue, as the store has them."""

    runs: list[tuple[int, int]]
    """The last run and those with open batches, each with its revision."""

    states: dict[str, str]
    """The states of the open batches that are filled, by intent."""


class Control:
    """The control state of one workflow.

    It adopts what other machines left (`adopt`). While it is `held`, it writes what becomes of the
    batches of this one."""

    def __init__(
        self,
        remote: ObjectStore,
        workflow: str,
        writer: str,
        trust: Iterable[str],
        shard: Shard | None = None,
    ) -> None:
        """`trust` are the writers whose entries are believed, besides the own ones."""
        self._remote = remote
        self._workflow = workflow
        self._writer = writer
        self._trust = {*trust, writer} - {""}
        suffix = f"@{shard.name}" if shard else ""
        self._name = quote(workflow, safe="").replace("%", "=") + suffix
        self._turn = asyncio.Lock()
        self._mark = token_hex(16)
        self._error: LeaseLost | None = None
        self.lost: Callable[[AgacError], None] = lambda _: None
        """Is called when another machine took the workflow over."""
        self._number = 0
        """The number of the last entry."""
        self._at = 0.0
        """When this process wrote its last entry, in seconds since 1970."""
        self._snapshot = ""
        """The name of the last snapshot."""
        self._known = set[str]()
        """The intents of the batches that are in it."""
        self._stored: StoredBatches | None = None
        """What the store had when it was made."""

    async def last(self) -> LogEntry | None:
        """Reads the last entry that can be believed; None: the log has none at all.

        Raises AgacError if no entry can be believed, a newer agac wrote one, or one is missing."""
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
            except ValueError as error:
                reason = f"it is no entry: {error}"
            else:
                if self._is_believed(entry, number):
                    return entry
                reason = f"it is of another log, or its writer {entry.writer!r} is not trusted"
            _log.warning("%s/%s is left out: %s", self._remote.url, self._entry(number), reason)
        if numbers:
            what = f"{self._remote.url}/{FOLDER}/{self._name} has no entry that can be believed"
            raise AgacError(
                what,
                remedy="name its writers at `remote: {trust: […]}` of agac.yml, or move it away",
            )
        return None

    def _is_believed(self, entry: LogEntry, number: int) -> bool:
        """True if an entry belongs at this number, and its writer is trusted."""
        if (entry.number, entry.workflow) != (number, self._workflow):
            return False
        return entry.writer in self._trust and entry.at < time.time() + CLOCKS_APART

    def _entry(self, number: int) -> str:
        """Returns the name of an entry in the remote."""
        return f"{FOLDER}/{self._name}/{entry_name(number)}"

    async def adopt(self, database: Database, entry: LogEntry | None) -> None:
        """Takes in what other machines wrote since this store last read the log, up to this
        entry.

        Raises LeaseHeld if a process of this machine is at work on the workflow, and AgacError if
        the snapshot cannot be used."""
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
        """Returns in words which process works on the workflow; None: none does."""
        age = time.time() - entry.at
        if entry.free or is_dead_here(entry.holder) or age > STALE_SECONDS:
            return None
        return f"{entry.writer} ({shown(entry.holder)}, last sign of life {max(age, 0):.0f} s ago)"

    @asynccontextmanager
    async def held(self, database: Database) -> AsyncIterator[None]:
        """Holds the workflow for this process, among all machines, for the block. Raises LeaseHeld
        if another holds it."""
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
        """Takes the lease; False: another machine was faster."""
        entry = await self.last()
        holder = self.holder(entry) if entry is not None else None
        if holder is not None:
            raise held_error(f"workflow {self._workflow!r} is being run by {holder}", STALE_SECONDS)
        await self.adopt(database, entry)
        stored = await self._now(database)
        if entry is None or stored.states.keys() - entry.batches.keys():
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

    async def _now(self, database: Database) -> StoredBatches:
        """Reads what another machine would continue."""
        filled = [
            record
            for record in await unfinished_batches(database, self._workflow)
            if record.state != BatchStep.PLANNED
        ]
        last_run = (await runs.run_ids(database, self._workflow))[:1]
        numbers = {*last_run, *(record.run_id for record in filled)}
        revisions = [
            (run, (await runs.run_record(database, run)).revision) for run in sorted(numbers)
        ]
        return StoredBatches(revisions, {record.intent: record.state for record in filled})

    async def _snap(self, database: Database) -> None:
        """Puts all that the store has of these runs into the remote."""
        stored = await self._now(database)
        name, content = await asyncio.to_thread(
            make_snapshot, database.path, [run for run, _ in stored.runs]
        )
        await self._remote.create(f"{SNAPSHOTS}/{self._name}/{name}", content)
        self._snapshot = name
        self._known = set(stored.states)
        self._stored = stored

    async def _append(self, database: Database, *, free: bool = False) -> None:
        """Appends an entry with the present states. Raises LeaseLost if another machine took the
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
                    self._number = entry.number  # the answer to its creation was lost
                    continue
                what = (
                    f"another machine took over workflow {self._workflow!r} while this one "
                    "was silent"
                )
                self._error = lost_error(what)
                self.lost(self._error)
            raise self._error

    async def _is_ours(self, name: str) -> bool:
        """True if this process wrote an entry."""
        content = await self._remote.read(name, MAX_ENTRY) or b""
        try:
            return read_record(LogEntry, content).mark == self._mark
        except ValueError:
            return False

    async def wrote(self, database: Database, record: BatchRecord) -> None:
        """Writes a step of a batch, which was committed, into the log, and returns once it is
        there."""
        is_known = record.intent in self._known
        if not is_known and record.state != BatchStep.CREATE_INTENT:
            return  # the provider has nothing of it, nor has another machine
        has_answers = not record.open and record.state != BatchStep.CLEANED
        if not is_known or has_answers:
            await self._snap(database)
        await self._append(database)

    async def prove(self, database: Database) -> None:
        """Proves after a silence that this process still holds the workflow. Raises LeaseLost."""
        if self._error is not None or time.time() - self._at > 2 * BEAT_SECONDS:
            await self._append(database)

    async def _beat(self, database: Database) -> None:
        """Shows signs of life until the workflow is taken over."""
        while self._error is None:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self._append(database)
            except AgacError as error:
                _log.warning("no sign of life could be given: %s", error.message)

    async def _give_back(self, database: Database) -> None:
        """Gives the lease back, with what changed since the last snapshot."""
        try:
            if self._error is None and self._stored != await self._now(database):
                await self._snap(database)
            if self._error is None:
                await self._append(database, free=True)
        except AgacError as error:
            _log.warning("workflow %s was not given back: %s", self._workflow, error.message)
