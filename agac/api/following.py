"""How the open batches of a run stand while an invocation goes on, for whoever shows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agac.api.watching import BatchCount, Watch, Watched
from agac.core.errors import StoreError
from agac.engine.run import Invocation
from agac.store.batches import batches_alike
from agac.store.db import Database

LOOK_SECONDS = 1.0
"""So often the store is asked; a provider is asked by the engine alone, at its own pace."""


class Following:
    """The open batches of the invocation's run, as the store had them a moment ago."""

    def __init__(self, database: Database, invocation: Invocation, stages: list[str]) -> None:
        self._database, self._invocation, self._stages = database, invocation, stages
        self._seen: tuple[BatchCount, ...] = ()

    def counts(self) -> tuple[BatchCount, ...]:
        """Those of each stage that stand alike."""
        return self._seen

    async def shown(self, watch: Watch, seen: Watched) -> None:
        """Watches until cancelled, with counts that are kept up to date."""
        follower = asyncio.ensure_future(self._follow())
        try:
            await watch(seen)
        finally:
            follower.cancel()
            await asyncio.wait({follower})

    async def _follow(self) -> None:
        while True:
            if self._invocation.batches.touched:
                with suppress(StoreError):  # whoever works with the store hears of it
                    await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        found = await batches_alike(self._database, self._invocation.run)
        self._seen = tuple(
            BatchCount(self._stages[one.stage], one.status or "not submitted", *one[2:]) for one in found
        )
