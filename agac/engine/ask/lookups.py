"""Look-ups in the store, many keys at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

MAX_KEYS = 512
"""Keys in one look-up."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LookupBatcher(Generic[K, V]):
    """Looks keys up many at a time: those that come during a look-up share the next one. Its `run`
    must be running."""

    def __init__(self, fetch: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        """`fetch` looks up many keys; those that have no value are missing in its result."""
        self._fetch = fetch
        self._wanted: dict[K, asyncio.Future[V | None]] = {}
        self._work = asyncio.Event()

    async def get(self, key: K) -> V | None:
        """Looks a key up; None: it has no value."""
        pending = self._wanted.get(key)
        if pending is not None:  # another task asked for it just before
            return await asyncio.shield(pending)
        pending = self._wanted[key] = asyncio.get_running_loop().create_future()
        self._work.set()
        return await pending

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._wanted:
                some = [self._wanted.popitem() for _ in range(min(MAX_KEYS, len(self._wanted)))]
                values = await self._fetch([key for key, _ in some])
                for key, pending in some:
                    if not pending.done():
                        pending.set_result(values.get(key))
