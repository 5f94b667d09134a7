"""The only places where a call waits: its lane, and the bound on calls that are not durable yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from agac.core.types import RateState
from agac.engine.control import Control
from agac.engine.policy import LONGEST_WAIT


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
        while self._count >= self._limit:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place
        self._count += 1

    def leave(self, calls: int) -> None:
        """These calls are durable now, or never left."""
        self._count -= calls
        free = self._limit - self._count
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1


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


class Lane:
    """One (provider, model) with its limits, shared by all stages that use it.

    `rpm` and `tpm` space calls out evenly; a pause asked for by the server holds everyone.
    """

    def __init__(
        self, slots: int, *, rpm: int | None, tpm: int | None, clock: Callable[[], float], control: Control
    ) -> None:
        self._slots = Slots(slots)
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._next = 0.0
        self._paused_until = 0.0
        self._clock = clock
        self._control = control

    async def enter(self, tokens: int) -> None:
        """Takes a slot and keeps to the rates. `tokens` is what the call is expected to use.

        Raises Halted when the run stops meanwhile; no slot is held then.
        """
        await self._slots.take()
        try:
            await self._pace(tokens)
            self._control.check()
        except BaseException:
            self.leave()
            raise

    async def _pace(self, tokens: int) -> None:
        await self._unpaused()
        if self._per_request or self._per_token:
            now = self._clock()
            mine = max(self._next, now)
            self._next = mine + max(self._per_request, tokens * self._per_token)
            if mine > now:
                await self._control.sleep(mine - now)
                await self._unpaused()

    async def _unpaused(self) -> None:
        while (wait := self._paused_until - self._clock()) > 0:
            await self._control.sleep(wait)

    def leave(self) -> None:
        """Gives the slot to the next."""
        self._slots.give()

    def pause(self, seconds: float) -> None:
        """Nobody in this lane calls for so long."""
        self._paused_until = max(self._paused_until, self._clock() + min(seconds, LONGEST_WAIT))

    def observe(self, rates: RateState | None) -> None:
        """Pauses when the headers say that nothing is left until a reset."""
        if rates is None:
            return
        for remaining, reset in (
            (rates.remaining_requests, rates.reset_requests),
            (rates.remaining_tokens, rates.reset_tokens),
        ):
            if remaining == 0 and reset:
                self.pause(reset)
