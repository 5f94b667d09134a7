"""Holds a shard of a run for one process, among all machines."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

from agac.core.errors import AgacError, LeaseLost
from agac.core.types import Shard
from agac.data.shared_log import entry_name, held_error, lost_error
from agac.engine.sharding.folder import (
    LAST,
    STALE_SECONDS,
    LeaseEntry,
    ShardFolder,
    ShardStatus,
)
from agac.store.db import to_the_end
from agac.store.lease import shown, this_process

SURE_SECONDS = 90.0
"""Seconds of silence after which a process proves that it was not taken over before it
continues."""

_log = logging.getLogger("agac.shard")


class ShardLease:
    """Holds a shard for one process, among all machines."""

    def __init__(
        self, folder: ShardFolder, shard: Shard, writer: str, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since 1970."""
        self.folder = folder
        self.shard = shard
        self.writer = writer
        self.clock = clock
        self.mark = token_hex(8)
        self._log = f"lease/{shard.name}"
        self._number = 0
        self._error: LeaseLost | None = None
        self._sure_at = 0.0
        self._beats = itertools.count(1)
        self._turn = asyncio.Lock()

    def about(self) -> dict[str, Any]:
        """Returns what each object says of its writer."""
        return {
            "writer": self.writer,
            "at": self.clock(),
            "holder": this_process(),
            "mark": self.mark,
        }

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Holds the shard for the block. Raises LeaseHeld if another process holds it."""
        beat = (await self.folder.alive()).get(self.shard.number)
        await self.folder.append(self._log, lambda last: self._taken(last, beat))
        self._number, _ = await self.folder.last(self._log)
        self._sure_at = self.clock()
        try:
            yield
        finally:
            await to_the_end(self._give_back())

    def _taken(self, last: bytes | None, beat: ShardStatus | None) -> bytes | None:
        """Makes the entry that takes the shard; None: it was made already. Raises LeaseHeld."""
        entry = self.folder.sure(LeaseEntry, self._log, last)
        # it was made, and the answer to its creation was lost
        if entry is not None and entry.mark == self.mark:
            return None
        if entry is not None and self.folder.is_alive(entry, beat):
            what = (
                f"shard {self.shard} of workflow {self.folder.workflow!r} is being run by "
                f"{entry.writer}"
            )
            raise held_error(f"{what} ({shown(entry.holder)})", STALE_SECONDS)
        return LeaseEntry(**self.about()).model_dump_json().encode()

    async def prove(self) -> None:
        """Proves after a silence that this process still holds the shard. Raises LeaseLost."""
        if self._error is not None or self.clock() - self._sure_at > SURE_SECONDS:
            await self._prove()

    async def _prove(self, *, free: bool = False) -> None:
        """Appends an entry to the log, which a process that took the shard over would have
        made."""
        async with self._turn:
            if self._error is not None:
                raise self._error
            entry = LeaseEntry(**self.about(), free=free)
            name = f"{self._log}/{entry_name(self._number + 1)}"
            if not await self.folder.create(name, entry.model_dump_json().encode()):
                there = self.folder.believed(LeaseEntry, name, await self.folder.read(name))
                # with our mark in it, only the answer to its creation was lost
                if there is None or there.mark != self.mark:
                    self._lose()
            self._number = self._number + 1
            self._sure_at = entry.at

    def _lose(self) -> None:
        """Raises LeaseLost, now and whenever the shard is used."""
        what = f"another process took over shard {self.shard} of workflow {self.folder.workflow!r}"
        self._error = lost_error(f"{what} while this one was silent")
        raise self._error

    async def beat(self, status: ShardStatus) -> None:
        """Shows a sign of life. Raises LeaseLost if the shard was taken over."""
        await self.prove()
        await self.folder.beat(status, next(self._beats) if status.state == "running" else LAST)
        if await self.folder.read(f"{self._log}/{entry_name(self._number + 1)}") is not None:
            self._lose()
        self._sure_at = status.at

    async def _give_back(self) -> None:
        """Gives the shard back."""
        try:
            if self._error is None:
                await self._prove(free=True)
        except AgacError as error:
            _log.warning("shard %s was not given back: %s", self.shard, error.message)
