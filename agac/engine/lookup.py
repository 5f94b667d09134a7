"""Looked up many at a time: whoever asks while a look-up is under way shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from agac.store.db import Database
from agac.store.rows import EarlierResult, earlier_results

MOST = 512
"""Keys in one look-up."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Gathered(Generic[K, V]):
    """Finds what belongs to a key; `fetch` is given some hundred of them. Its `run` must be going."""

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
                some = [self._wanted.popitem() for _ in range(min(MOST, len(self._wanted)))]
                fetched = await self._fetch([key for key, _ in some])
                for key, found in some:
                    if not found.done():
                        found.set_result(fetched.get(key))


class Lookup:
    """Finds earlier results made at or after `since`, seconds since 1970. Its `run` must be going."""

    def __init__(self, database: Database, since: float) -> None:
        self._database, self._since = database, since
        self._gathered: Gathered[tuple[float, bytes], EarlierResult] = Gathered(self._fetch)

    async def find(self, fingerprint: bytes, since: float = 0.0) -> EarlierResult | None:
        """The newest earlier result, made at or after `since` too."""
        return await self._gathered.get((max(since, self._since), fingerprint))

    async def run(self) -> None:
        """Answers until cancelled."""
        await self._gathered.run()

    async def _fetch(self, keys: Sequence[tuple[float, bytes]]) -> dict[tuple[float, bytes], EarlierResult]:
        found = {}
        for since in {since for since, _ in keys}:
            prints = [fingerprint for one, fingerprint in keys if one == since]
            for fingerprint, result in (await earlier_results(self._database, prints, since)).items():
                found[since, fingerprint] = result
        return found
