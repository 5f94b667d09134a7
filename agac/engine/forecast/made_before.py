"""How many rows stages made in the run that a plan is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agac.core.types import Outcome
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.operations import Python
from agac.store.db import Database
from agac.store.rows import MadeCount, made_counts, parent_count
from agac.store.runs import Count, counters

_WENT_ON = (Outcome.DONE, Outcome.REUSED)
_CAME = (Outcome.DONE, Outcome.REUSED, Outcome.DROPPED)


class MadeBefore:
    """What a dry run takes for the number of rows that stages make, where it cannot know it."""

    def __init__(self, plan: Plan) -> None:
        self.run: int | None = None
        """The run that tells it; None: none does."""
        self.each: dict[str, float] = {}
        """Rows that a stage made of each row that came to it; groups: how many there are in all.
        By the name of the stage."""
        self.listing: set[int] = {
            stage.index for stage in plan.stages if isinstance(stage, LocalStage) and _lists(stage)
        }
        """Positions of the stages whose functions gave lists, or say that they do."""
        self._makers = [stage for stage in plan.stages if stage.makes is not None]

    async def count(self, database: Database, run: int, positions: Mapping[str, int]) -> None:
        """Counts the rows that stages made in a run, whose stages had these positions."""
        if not self._makers:
            return
        self.run = run
        made = await made_counts(database, run)
        counts = await counters(database, run)
        for stage in self._makers:
            position = positions.get(stage.name)
            number = _rows_of(made, position)
            if stage.makes == "groups":
                if number:
                    self.each[stage.name] = float(number)
                continue
            parents = 0
            if stage.makes == "rows" and position is not None and number:
                parents = await parent_count(database, run, position)
            self._count_of_each_row(stage, number, parents, counts)

    def _count_of_each_row(
        self, stage: AnyStage, number: int, parents: int, counts: Sequence[Count]
    ) -> None:
        """Notes how many rows the stage made of each row: `number` in all, of `parents` rows if it
        is a function that gives lists. Rows that such a function left in their places count too."""
        total = number
        if parents:
            self.listing.add(stage.index)
            total += _tasks(counts, stage.name, _WENT_ON) - parents
        source = source_of(stage)
        if source is None:
            return
        came = _tasks(counts, source, _CAME if source == stage.name else _WENT_ON)
        if not came:
            return
        self.each[stage.name] = total / came
        if not number:
            self.listing.discard(stage.index)


def _lists(stage: LocalStage) -> bool:
    """True if the stage calls a function that says of itself that it gives lists."""
    operation = stage.operation
    return isinstance(operation, Python) and operation.function.gives_lists


def _rows_of(made: Iterable[MadeCount], position: int | None) -> int:
    return sum(count.rows for count in made if count.origin == position)


def _tasks(counts: Iterable[Count], stage: str, outcomes: Sequence[Outcome]) -> int:
    return sum(
        count.tasks for count in counts if count.stage == stage and count.outcome in outcomes
    )


def source_of(stage: AnyStage) -> str | None:
    """The stage upstream that gives what this one makes its rows of."""
    if stage.explode is not None:
        if stage.explode[0] in stage.ancestors:
            return stage.explode[0]
        return stage.rows_of
    return stage.name if stage.makes in ("rows", "kept") else None
