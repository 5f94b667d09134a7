"""Look-ups in the store, many keys at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

MAX_KEYS = 512  # keys in one look-up

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LookupBatcher(Generic[K, V]):
    """Looks keys up many at a time with `fetch`: what comes during a look-up shares the next one;
    needs its `run`."""

    def __init__(self, fetch: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._fetch = fetch
        self._wanted: dict[K, asyncio.Future[V | None]] = {}
        self._work = asyncio.Event()

    async def get(self, key: K) -> V | None:
        """What belongs to the key."""
        found = self._wanted.get(key)
        if found is not None:  # somebody else asked just before
            return await asyncio.shield(found)
        found = self._wanted[key] = asyncio.get_running_loop().create_future()
        self._work.set()
        return await found

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._wanted:
                some = [self._wanted.popitem() for _ in range(min(MAX_KEYS, len(self._wanted)))]
                fetched = await self._fetch([key for key, _ in some])
                for key, found in some:
                    if not found.done():
                        found.set_result(fetched.get(key))
