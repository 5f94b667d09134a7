"""Decides which stages of a level may begin, while one row walks through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence

from agac.engine.stop_rules import RunStopped
from agac.plan.stage import AnyStage

Settle = Callable[[AnyStage], bool | None]
"""Settles a stage for a row if that needs no waiting: True if the stages that need it may follow.
None: it takes time."""

Begin = Callable[[AnyStage], Coroutine[None, None, bool]]
"""Takes a row through a stage that takes time: True if the stages that need it may follow."""


class Branches:
    """The order of a level's stages, made once for all rows.

    What the stages need of earlier levels is there. Of stages that may begin at the same time,
    those that need no waiting come first: a row that leaves there has no task. What was begun
    comes to its end."""

    def __init__(self, stages: Sequence[AnyStage]) -> None:
        names = {stage.name for stage in stages}
        needs = {stage.name: [need for need in stage.needs if need in names] for stage in stages}
        self.first = [stage for stage in stages if not needs[stage.name]]
        """The stages that need no other of the level."""
        self._open = {name: len(needed) for name, needed in needs.items()}
        self._followers: dict[str, list[AnyStage]] = {stage.name: [] for stage in stages}
        for stage in stages:
            for need in needs[stage.name]:
                self._followers[need].append(stage)

    def begin(self) -> dict[str, int]:
        """Returns for a new row how many needs of each stage have no outcome yet."""
        return dict(self._open)

    def ready(
        self, stages: Sequence[AnyStage], left: dict[str, int], settle: Settle
    ) -> list[AnyStage]:
        """Settles these stages, and those that may follow at once. Returns the ones that take
        time."""
        slow = []
        queue = list(stages)
        while queue:
            stage = queue.pop(0)
            others_may_follow = settle(stage)
            if others_may_follow is None:
                slow.append(stage)
            elif others_may_follow:
                queue += self.freed(stage, left)
        return slow

    def freed(self, stage: AnyStage, left: dict[str, int]) -> list[AnyStage]:
        """Counts that a stage let others follow. Returns those that needed nothing else."""
        freed = []
        for follower in self._followers[stage.name]:
            left[follower.name] -= 1
            if not left[follower.name]:
                freed.append(follower)
        return freed

    async def walk(self, settle: Settle, begin: Begin, over: Callable[[], bool]) -> None:
        """Begins each stage once all that it needs gave True; none once `over`. Raises RunStopped
        after all have ended."""
        left = self.begin()
        working: dict[asyncio.Task[bool], AnyStage] = {}
        ready = self.first
        halted = False
        try:
            while True:
                slow = [] if halted else self.ready(ready, left, settle)
                for stage in slow:
                    if not over():
                        working[asyncio.ensure_future(begin(stage))] = stage
                if not working:
                    break
                ready = []
                ended, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    stage = working.pop(task)
                    if isinstance(task.exception(), RunStopped):
                        halted = True
                    elif task.result():
                        ready += self.freed(stage, left)
        finally:
            await _cancel(working)
        if halted:
            raise RunStopped


async def _cancel(working: Collection[asyncio.Task[bool]]) -> None:
    """Cancels tasks and waits for their ends."""
    for task in working:
        task.cancel()
    if working:
        await asyncio.wait(working)
