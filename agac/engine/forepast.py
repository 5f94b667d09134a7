"""How many rows stages made in the run compared with, for those that a forecast cannot know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agac.engine.comparison import Before
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage
from agac.store.db import Database
from agac.store.rows import made_counts, parent_count
from agac.store.runs import Count, counters


@dataclass(frozen=True, slots=True)
class Past:
    """What the run compared with made: `each` by the name of the stage that makes rows, of each row that came to it;
    of groups, how many there are in all. `run` None: nothing is known. `listing` are the positions of the stages whose
    functions gave lists."""

    run: int | None = None
    each: Mapping[str, float] = field(default_factory=dict)
    listing: frozenset[int] = frozenset()


def source_of(stage: AnyStage) -> str | None:
    """The stage upstream that gives what this one makes its rows of."""
    if stage.explode is not None:
        return stage.explode[0] if stage.explode[0] in stage.ancestors else stage.rows_of
    return stage.name if stage.makes in ("rows", "kept") else None


async def read_past(database: Database | None, before: Before | None, plan: Plan) -> Past:
    """What the run compared with made."""
    makers = [stage for stage in plan.stages if stage.makes is not None]
    if database is None or before is None or not makers:
        return Past()
    positions = {stage["name"]: index for index, stage in enumerate(before.definition["stages"])}
    run = before.record.id
    made: dict[int, int] = {}
    for one in await made_counts(database, run):
        made[one.origin] = made.get(one.origin, 0) + one.rows
    counts = await counters(database, run)
    each: dict[str, float] = {}
    listing = set()
    for stage in makers:
        position = positions.get(stage.name)
        number = made.get(position, 0) if position is not None else 0
        in_place = 0
        if position is not None and stage.makes == "rows" and number:
            listing.add(stage.index)
            in_place = _ended(counts, stage.name, "done", "reused") - await parent_count(database, run, position)
        found = _each(stage, number, in_place, counts)
        if found is not None:
            each[stage.name] = found
    return Past(run, each, frozenset(listing))


def _each(stage: AnyStage, made: int, in_place: int, counts: Sequence[Count]) -> float | None:
    """How many rows came of each; `in_place` are those that a function left in their places. None: not known."""
    if stage.makes == "groups":
        return float(made) if made else None
    source = source_of(stage)
    if source is None:
        return None
    dropped = _ended(counts, source, "dropped") if source == stage.name else 0
    came = _ended(counts, source, "done", "reused") + dropped
    return (made + in_place) / came if came else None


def _ended(counts: Sequence[Count], stage: str, *outcomes: str) -> int:
    return sum(count.tasks for count in counts if count.stage == stage and count.outcome in outcomes)
