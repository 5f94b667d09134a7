"""Where a call waits before it comes to its lane: its stage's own bound, and that on calls that are not durable yet."""

from __future__ import annotations

import asyncio
from collections import deque


class Exposure:
    """Counts calls in flight plus replies not yet durable, and holds calls back at `limit` (twice the concurrency).

    That is what a kill can cost at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Counts one more call, waiting for a commit first when there are too many."""
        if self._count < self._limit:
            self._count += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was counted just then
                self.leave(1)
            raise

    def leave(self, calls: int) -> None:
        """These calls are durable now, or never left."""
        self._count -= calls
        while self._count < self._limit and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._count += 1


class Slots:
    """So many at a time, in the order of asking. (asyncio's Semaphore costs more on the way that never waits.)"""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Takes a slot, waiting for one when all are taken."""
        if self._free > 0:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was handed over just then
                self.give()
            raise

    def give(self) -> None:
        """Hands a slot over to the one who has waited longest, or keeps it for whoever comes."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
