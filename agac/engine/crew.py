"""Everyone who takes rows through the stages of one invocation, level by level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agac.engine.asking import Asker
from agac.engine.executor import Executor
from agac.engine.functions import Functions
from agac.engine.groups import Groups
from agac.engine.kept import Kept
from agac.engine.levels import LevelPass, walk_levels
from agac.engine.making import Makers
from agac.engine.parts import Parts
from agac.engine.replay import GroupContents
from agac.engine.tasks import Tasks
from agac.engine.work import InvocationContext
from agac.plan.prepare import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Level, Levels, levels_of


@dataclass(frozen=True)
class Crew:
    """Makes the workers of a plan's levels."""

    context: InvocationContext
    asker: Asker
    functions: Functions
    tasks: Tasks

    @cached_property
    def levels(self) -> Levels[AnyStage]:
        """The rows that walk alike."""
        return levels_of(self.context.plan.stages)

    @cached_property
    def preparer(self) -> Preparer:
        """Makes the requests of tasks."""
        plan = self.context.plan
        return Preparer(plan.stages, plan.vars, self.context.places.run)

    @cached_property
    def makers(self) -> Makers:
        """What the stages make of rows."""
        return Makers(self.levels, self.context.plan.output.stages)

    def executor(self, level: Level[AnyStage]) -> Executor:
        """Who walks the rows of a level."""
        plan, settler, clock = self.context.plan, self.context.settler, self.context.work.clocks.monotonic
        return Executor(
            plan, level, self.makers, self.preparer, self.asker, self.functions, self.tasks, settler, clock=clock
        )

    async def walk_made(self) -> None:
        """Takes all rows that stages made through theirs, once those that they are made of have come to their end."""
        context = self.context

        async def children(level: Level[AnyStage]) -> None:
            await LevelPass(context, level).walk(self.executor(level))

        async def kept(level: Level[AnyStage]) -> None:
            assert level.maker is not None
            await Kept(context.places, context.ledger, context.settler, context.control, level.maker).decide()
            await children(level)

        async def groups(level: Level[AnyStage]) -> None:
            stage = level.maker
            assert isinstance(stage, PlannedStage)
            contents = GroupContents(context.places, context.views, self.makers.members[stage.index], stage.index)
            parts = Parts(context, stage, contents, self.preparer, self.asker, self.tasks, context.settler)
            await Groups(context, level, self.executor(level), contents, parts, context.settler).walk()

        take = {"items": children, "rows": children, "kept": kept, "groups": groups}
        await walk_levels(context, self.levels.all[1:], take)
