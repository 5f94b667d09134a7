"""Stages of one row side by side: each as soon as what it needs has an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from agac.engine.control import Halted
from agac.plan.stage import AnyStage

Settle = Callable[[AnyStage], bool | None]
"""Settles a stage for a row where that needs no waiting: whether those that need it may follow; None: it takes time."""

Begin = Callable[[AnyStage], Coroutine[None, None, bool]]
"""Takes a row through a stage that takes time: whether those that need it may follow."""


class Branches:
    """How the stages of a level follow each other; what they need of rows before is there. Made once for all rows."""

    def __init__(self, stages: Sequence[AnyStage]) -> None:
        own = {stage.name for stage in stages}
        needs = {stage.name: [need for need in stage.needs if need in own] for stage in stages}
        self._first = [stage for stage in stages if not needs[stage.name]]
        self._open = {name: len(wanted) for name, wanted in needs.items()}
        self._followers: dict[str, list[AnyStage]] = {stage.name: [] for stage in stages}
        for stage in stages:
            for need in needs[stage.name]:
                self._followers[need].append(stage)

    async def walk(self, settle: Settle, begin: Begin, over: Callable[[], bool]) -> None:
        """Begins each stage once all that it needs gave True; when it is `over`, no more. Of stages that may begin at
        the same time those that can be settled at once come first: a row that leaves is asked nothing more. What was
        begun comes to its end. Raises Halted when a stage does, after the others have ended."""
        left = dict(self._open)
        working: dict[asyncio.Task[bool], AnyStage] = {}
        ready, halted = list(self._first), False
        try:
            while True:
                for stage in [] if halted else self._settled(ready, left, settle):
                    if not over():
                        working[asyncio.ensure_future(begin(stage))] = stage
                if not working:
                    break
                ready = []
                ended, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for stage, goes_on in [(working.pop(task), _said(task)) for task in ended]:
                    halted = halted or goes_on is None
                    if goes_on:
                        ready += self._freed(stage, left)
        finally:
            if working:
                for task in working:
                    task.cancel()
                await asyncio.wait(working)
        if halted:
            raise Halted

    def _settled(self, ready: list[AnyStage], left: dict[str, int], settle: Settle) -> list[AnyStage]:
        """The stages that take time, of those that are ready and of those that others let begin at once."""
        slow, queue = [], ready
        while queue:
            stage = queue.pop(0)
            goes_on = settle(stage)
            if goes_on is None:
                slow.append(stage)
            elif goes_on:
                queue += self._freed(stage, left)
        return slow

    def _freed(self, stage: AnyStage, left: dict[str, int]) -> list[AnyStage]:
        """The stages that needed this one last."""
        freed = []
        for follower in self._followers[stage.name]:
            left[follower.name] -= 1
            if not left[follower.name]:
                freed.append(follower)
        return freed


def _said(task: asyncio.Task[bool]) -> bool | None:
    """What a stage gave; None: the run stops."""
    try:
        return task.result()
    except Halted:
        return None
