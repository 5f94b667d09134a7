"""How stored rows stand to batches: which wait for one, and for which something came."""

from __future__ import annotations

from collections.abc import Sequence

from agac.store.batches import Ready, ready_tasks, waiting_rows
from agac.store.db import Database


class Standing:
    """Looks rows up; where the workflow never had a batch (`active` False) nothing is asked of the store."""

    def __init__(self, database: Database, *, active: bool) -> None:
        self._database, self._active = database, active

    @property
    def active(self) -> bool:
        """Whether rows of the workflow may wait for batches."""
        return self._active

    async def ready(self, keys: Sequence[int]) -> dict[int, Ready]:
        """What came of the tasks of these rows since they were last walked, by their keys."""
        return await ready_tasks(self._database, keys) if self._active and keys else {}

    async def merely_waiting(self, keys: Sequence[int], ready: dict[int, Ready]) -> dict[int, int]:
        """Those of these rows that need not be walked, since all there is to do for them is in batches; with the stage
        at which they wait."""
        if not self._active or not keys:
            return {}
        waiting = await waiting_rows(self._database, keys)
        return {key: stage for key, stage in waiting.items() if key not in ready}
