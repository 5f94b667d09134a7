"""Earlier results, looked up many at a time: whoever asks while a look-up is under way shares the next one."""

from __future__ import annotations

import asyncio

from agac.store.db import Database
from agac.store.results import EarlierResult, earlier_results

MOST = 512
"""Fingerprints in one statement."""

Found = asyncio.Future[EarlierResult | None]


class Lookup:
    """Finds earlier results made at or after `since`, seconds since 1970. Its `run` must be going."""

    def __init__(self, database: Database, since: float) -> None:
        self._database, self._since = database, since
        self._wanted: dict[float, dict[bytes, Found]] = {}
        self._work = asyncio.Event()

    async def find(self, fingerprint: bytes, since: float = 0.0) -> EarlierResult | None:
        """The newest earlier result, made at or after `since` too."""
        wanted = self._wanted.setdefault(max(since, self._since), {})
        found = wanted.get(fingerprint)
        if found is not None:  # somebody else asked just before
            return await asyncio.shield(found)
        found = wanted[fingerprint] = asyncio.get_running_loop().create_future()
        self._work.set()
        return await found

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._wanted:
                since, wanted = next(iter(self._wanted.items()))
                some = [wanted.popitem() for _ in range(min(MOST, len(wanted)))]
                if not wanted:
                    del self._wanted[since]
                results = await earlier_results(self._database, [key for key, _ in some], since)
                for key, found in some:
                    if not found.done():
                        found.set_result(results.get(key))
