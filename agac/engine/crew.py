"""Everyone who takes rows through the stages of one invocation, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from agac.engine.asking import Asker
from agac.engine.contents import Contents
from agac.engine.executor import Executor
from agac.engine.functions import Functions
from agac.engine.groups import Groups
from agac.engine.kept import Kept
from agac.engine.levels import LevelPass, Passing, walk_levels
from agac.engine.making import Makers
from agac.engine.parts import Parts
from agac.engine.settle import Settler
from agac.engine.tasks import Tasks
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Level, Levels


@dataclass(frozen=True)
class Crew:
    """Makes the walkers of a plan's levels. `clock` gives monotonic seconds."""

    plan: Plan
    levels: Levels[AnyStage]
    preparer: Preparer
    asker: Asker
    functions: Functions
    tasks: Tasks
    settler: Settler
    clock: Callable[[], float]

    @cached_property
    def makers(self) -> Makers:
        """What the stages make of rows."""
        return Makers(self.levels, self.plan.output.stages)

    def executor(self, level: Level[AnyStage]) -> Executor:
        """Who walks the rows of a level."""
        return Executor(
            self.plan, level, self.makers, self.preparer, self.asker, self.functions, self.tasks, self.settler,
            clock=self.clock,
        )  # fmt: skip

    async def walk_made(self, passing: Passing) -> None:
        """Takes all rows that stages made through theirs, once those that they are made of have come to their end."""

        async def children(level: Level[AnyStage]) -> None:
            await LevelPass(passing, level).walk(self.executor(level))

        async def kept(level: Level[AnyStage]) -> None:
            assert level.maker is not None
            await Kept(passing.places, passing.ledger, self.settler, passing.control, level.maker).decide()
            await children(level)

        async def groups(level: Level[AnyStage]) -> None:
            stage = level.maker
            assert isinstance(stage, PlannedStage)
            contents = Contents(passing.places, passing.lineage, self.makers.members[stage.index], stage.index)
            parts = Parts(passing, stage, contents, self.preparer, self.asker, self.tasks, self.settler)
            await Groups(passing, level, self.executor(level), contents, parts, self.settler).walk()

        take = {"items": children, "rows": children, "kept": kept, "groups": groups}
        await walk_levels(passing, self.levels.all[1:], take)
