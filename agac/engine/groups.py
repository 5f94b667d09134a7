"""Groups of rows are asked (`group_by`): each once all of its members are there, large ones in parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.engine.contents import Contents, array
from agac.engine.executor import Executor
from agac.engine.flight import Flight
from agac.engine.levels import LevelPass, Passing, unfit
from agac.engine.parts import Parts
from agac.engine.settle import Settler
from agac.engine.window import walk_all
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage, PlannedStage
from agac.plan.tree import Node
from agac.spec.grouping import Group
from agac.spec.levels import Level
from agac.spec.template import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.rows import GroupSize, MadeRow, PriorTask, failed_part, group_sizes, prior_tasks

MOST_ROWS = 100_000
"""Members of a group that is not reduced in parts: no model takes as many, and all of them are held at once."""

_SOME = 64
"""Groups that are cut before any of them is asked."""


Unusable = Literal["failed", "incomplete", "large"]
"""Why a group cannot be asked: all its rows failed, some did and it needs all of them, one call does not hold it."""


def unusable(group: Group, rows: int, failed: int) -> Unusable | None:
    """Why a group cannot be asked that has so many members, and so many more that failed."""
    if not rows:
        return "failed"
    if failed and group.incomplete == "fail":
        return "incomplete"
    return "large" if rows > MOST_ROWS and not group.reduces else None


class Ready(NamedTuple):
    """A group that can be asked; `top` is its node where it was cut."""

    row: MadeRow
    prior: dict[int, PriorTask]
    size: GroupSize
    top: Node | None


class Groups:
    """Asks the groups of one level."""

    def __init__(
        self,
        passing: Passing,
        level: Level[AnyStage],
        executor: Executor,
        contents: Contents,
        parts: Parts,
        settler: Settler,
    ) -> None:
        stage = level.maker
        assert isinstance(stage, PlannedStage)
        assert stage.group is not None
        self._passing, self._stage, self._group = passing, stage, stage.group
        self._rows = LevelPass(passing, level)
        self._executor, self._contents, self._parts, self._settler = executor, contents, parts, settler

    async def walk(self) -> None:
        """All groups whose members changed, or that failed, some at a time."""
        async for rows in self._rows.rows():
            for start in range(0, len(rows), _SOME):
                await self._some(rows[start : start + _SOME])

    async def _some(self, rows: Sequence[MadeRow]) -> None:
        database, keys = self._passing.places.database, [row.key for row in rows]
        sizes, prior = await group_sizes(database, keys), await prior_tasks(database, keys)
        ready = []
        for row in rows:
            size = sizes.get(row.key)
            if size is None:  # all of its rows are elsewhere now
                self._passing.ledger.batch.gone.append(row.key)
            elif (one := await self._ready(row, size, prior.get(row.key, {}))) is not None:
                ready.append(one)
        for height in range(1, max((one.top.id.height for one in ready if one.top), default=1)):
            await self._parts.ask(height)
        await self._passing.ledger.durable()
        if self._passing.control.stop is None:
            await walk_all(self._flights(ready), self._executor, self._passing.control, self._passing.workers)

    async def _ready(self, row: MadeRow, size: GroupSize, prior: dict[int, PriorTask]) -> Ready | None:
        """The group as it is asked; None where it cannot be."""
        sight, error = self._sight(row, size), self._error(size)
        if error is not None:
            self._fail(self._rows.flight(row, prior, sight), error)
            return None
        may_ask = self._passing.scope.may_ask(self._stage.name)
        if self._fits(size) and self._group.reduces:  # it may have been larger
            self._passing.ledger.batch.cut.append(row.key)
        if self._fits(size) or not may_ask or not self._executor.does.lets_in(sight, self._stage):
            return Ready(row, prior, size, None)
        return Ready(row, prior, size, await self._parts.cut(row))

    def _sight(self, row: MadeRow, size: GroupSize) -> Sight:
        """What a group sees, but for its rows."""
        sight = self._passing.lineage.begun(row.data, None, None)
        sight.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
        return sight

    def _error(self, size: GroupSize) -> RowError | None:
        """Why the group cannot be asked."""
        match unusable(self._group, size.rows, size.failed):
            case "failed":
                return unfit(self._stage, f"all {size.failed:,} rows of this group failed")
            case "incomplete":
                text = f"{size.failed:,} of the {size.rows + size.failed:,} rows of this group failed"
                return unfit(self._stage, text)
            case "large":
                text = f"this group has {size.rows:,} rows; add `reduce: {{max_rows: 50}}` to ask them in parts"
                return unfit(self._stage, text)
        return None

    def _fits(self, size: GroupSize) -> bool:
        """Whether one call holds all of the group."""
        return self._group.fits(size.rows, size.tokens)

    def _fail(self, flight: Flight, error: RowError) -> None:
        self._settler.task_failed(flight, self._stage, None, error)
        self._settler.row_failed(flight, self._stage, error, {self._stage.index})

    async def _flights(self, ready: Sequence[Ready]) -> AsyncGenerator[list[Flight], None]:
        standing = await self._passing.ready([one.row.key for one in ready])
        for row, prior, size, top in ready:
            sight = self._sight(row, size)
            flight = self._rows.flight(row, prior, sight)
            flight.ready = standing.get(row.key, {})
            texts: list[str] | None = []  # of a group that is too large and not asked
            if top is not None:
                parts = [self._parts.name(row, child) for child in top.children]
                texts = await self._contents.of_parts(parts)
                if texts is None and await self._contents.waits(parts):
                    self._settler.row_parked(flight, self._stage)
                    continue
            elif self._fits(size):
                texts = await self._contents.of_members(row.key)
            if texts is None:
                self._fail(flight, await self._failed_part(row))
                continue
            sight.own[ROWS_JSON] = array(texts)
            yield [flight]

    async def _failed_part(self, row: MadeRow) -> RowError:
        failed = await failed_part(self._passing.places.database, row.key)
        if failed is None:
            return unfit(self._stage, "parts of this group have no result")
        kind, message, _ = failed
        return RowError(ErrorType(kind), f"in a part of this group: {message}")
