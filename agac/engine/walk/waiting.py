"""Stored rows that wait for batches or for people, and those for which something came since."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agac.engine.decide.unfinished import rows_that_wait
from agac.store.batches import ready_tasks, waiting_rows
from agac.store.db import Database
from agac.store.decisions import rows_decided, rows_waiting


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Finds rows of a run that wait, and rows that need not wait any longer. A run and a plan both
    ask it."""

    database: Database
    """The store."""
    positions: Mapping[str, int]
    """The positions of all stages, by name."""
    batched: bool
    """True if rows may wait for batches."""
    reviewed: bool
    """True if rows may wait for people."""
    fixed: Collection[int]
    """The keys of rows whose result at a stage people set by hand, which no run has taken up."""

    async def decided(self, keys: Sequence[int]) -> set[int]:
        """Finds those of these rows about which people decided something that no run has taken
        up."""
        by_people = set[int]()
        if self.reviewed and keys:
            by_people = await rows_decided(self.database, keys)
        return by_people.union(key for key in keys if key in self.fixed)

    async def merely_waiting(
        self, keys: Sequence[int], *, event: int, now: float
    ) -> dict[int, int]:
        """Finds those of these rows that need not be walked, since all there is to do for them is
        in batches or up to people, with the position of the stage at which they wait.

        Tasks of batches that invocations before `event` left unsent do not count: the rows may not
        ask for them any more. `now` is in seconds since 1970."""
        in_batches = dict[int, int]()
        moved = set[int]()
        if self.batched and keys:
            in_batches = await waiting_rows(self.database, keys, event)
            moved = {*await ready_tasks(self.database, keys), *await self.decided(keys)}
        for_people = dict[int, int]()
        if self.reviewed and keys:
            stages = await rows_waiting(self.database, keys, now)
            for_people = {
                key: self.positions[stage]
                for key, stage in stages.items()
                if stage in self.positions
            }
        return rows_that_wait(in_batches, moved, for_people, self.fixed)
