"""Goes from rows down to the rows that are written: those that stages made of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import NamedTuple

from agac.plan.stage import RecordedStage
from agac.spec.graph import levels_of
from agac.store import rows as store
from agac.store.db import Database
from agac.store.rows import ExportRow, StageResult, State

MAX_KEYS = 4096
"""Children that are read at once."""


class RowAtDepth(NamedTuple):
    """A row on the way down to those that are written."""

    row: ExportRow
    """The row."""

    depth: int
    """The levels of the way that are above it."""


class Makers(NamedTuple):
    """The stages that made the rows which are written in the place of a row."""

    origins: tuple[int, ...]
    """The indexes of the stages."""

    depth: int
    """The depth of the rows that they made."""


class WrittenRows:
    """Goes from rows down to what was made of them, along a path of stages."""

    def __init__(
        self,
        database: Database,
        run: int,
        stages: Sequence[RecordedStage],
        path: Sequence[RecordedStage],
        ends: Collection[str] | None = None,
    ) -> None:
        """`path` are the stages that make rows of rows, from the input or a group on.

        The rows of a list that a function gave stand in the place of its row if the function leads
        to one of the stages `ends`; None: wherever it leads."""
        self._db = database
        self._run = run
        self._groups = path[0] if path and path[0].makes == "groups" else None
        self._makers = path[1:] if self._groups else path
        origins = [
            self._groups.index if self._groups else None,
            *(maker.index for maker in self._makers),
        ]
        last = frozenset(stage.name for stage in stages) if ends is None else frozenset(ends)
        goals = [*({maker.name} for maker in self._makers), last]
        levels = levels_of(stages)
        self._functions = [
            [
                stage.index
                for stage in levels.by_origin[origin].stages
                if stage.makes == "rows" and levels.leads_to(stage, goal)
            ]
            for origin, goal in zip(origins, goals, strict=True)
        ]
        """By depth: the functions whose lists stand in the place of their rows."""
        self.met = {*origins, *(index for functions in self._functions for index in functions)}
        """The indexes of the stages whose rows are on the way; None: the input's."""

    async def rows(self, top: int | None = None) -> AsyncIterator[list[ExportRow]]:
        """Reads all written rows, and those of which nothing was made because they failed, some
        hundred at a time.

        `top`: only those of the row with this key."""
        origin = self._groups.index if self._groups is not None else None
        if top is not None:
            first = store.rows_of_results(self._db, [top], -1 if origin is None else origin)
        elif origin is not None:
            first = store.group_rows(self._db, self._run, origin)
        else:
            first = store.export_rows(self._db, self._run)
        is_input = self._groups is None and not self._makers and not self._functions[0]
        async for rows in first:
            if is_input:
                yield rows
                continue
            async for written in self._below([RowAtDepth(row, 0) for row in rows]):
                yield written

    async def _below(self, rows: list[RowAtDepth]) -> AsyncIterator[list[ExportRow]]:
        """Reads what is written of these rows, in their order."""
        makers = await self._makers_of(rows)
        if not makers:
            yield [at.row for at in rows if self._is_written(at)]
            return
        counts = await store.child_counts(self._db, list(makers))
        pairs = [(key, origin) for key, made in makers.items() for origin in made.origins]
        if sum(counts.get(pair, 0) for pair in pairs) <= MAX_KEYS:
            async for written in self._below(await self._replaced(rows, makers, pairs)):
                yield written
        elif len(rows) > 1:
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                async for written in self._below(half):
                    yield written
        else:
            for key, origin in pairs:
                async for written in self._paged(rows[0], key, origin, makers[key].depth):
                    yield written

    def _is_written(self, at: RowAtDepth) -> bool:
        """True if a row of which no others are written is written itself."""
        return at.depth == len(self._makers) or at.row.state == State.FAILED

    async def _replaced(
        self,
        rows: list[RowAtDepth],
        makers: Mapping[int, Makers],
        pairs: list[tuple[int, int]],
    ) -> list[RowAtDepth]:
        """Returns the rows with the children of those that have some in their place."""
        children = await self._children(pairs)
        replaced: list[RowAtDepth] = []
        for at in rows:
            made = makers.get(at.row.key)
            if made is None:
                replaced.append(at)
                continue
            replaced += [
                RowAtDepth(child._replace(ordinal=at.row.ordinal), made.depth)
                for child in children.get(at.row.key, ())
            ]
        return replaced

    async def _children(self, pairs: list[tuple[int, int]]) -> dict[int, list[ExportRow]]:
        """Reads the children of rows by the keys of the rows: of each pair of a row and a stage
        that made them."""
        children: dict[int, list[ExportRow]] = {}
        for origin in sorted({origin for _, origin in pairs}):
            keys = [key for key, maker in pairs if maker == origin]
            for parent, _, child in await store.children_export(self._db, keys, origin=origin):
                children.setdefault(parent, []).append(child)
        return children

    async def _paged(
        self, at: RowAtDepth, key: int, origin: int, depth: int
    ) -> AsyncIterator[list[ExportRow]]:
        """Reads what is written of the many children of one row."""
        after = -1
        while page := await store.children_export(
            self._db, [key], origin=origin, after=after, limit=store.EXPORT_RANGE
        ):
            after = page[-1][1]
            children = [
                RowAtDepth(child._replace(ordinal=at.row.ordinal), depth) for _, _, child in page
            ]
            async for written in self._below(children):
                yield written

    async def _makers_of(self, rows: list[RowAtDepth]) -> dict[int, Makers]:
        """Finds the rows in whose place others are written, by their keys."""
        through = [at for at in rows if at.row.state in (State.DONE, State.SKIPPED)]
        keys = sorted({at.row.key for at in through if self._functions[at.depth]})
        results = await store.results_of_rows(self._db, keys) if keys else {}
        makers: dict[int, Makers] = {}
        for at in through:
            lists = [
                function
                for function in self._functions[at.depth]
                if _is_list(results.get((at.row.key, function)))
            ]
            if lists:
                makers[at.row.key] = Makers(tuple(lists), at.depth)
            elif at.depth < len(self._makers):
                maker = self._makers[at.depth].index
                makers[at.row.key] = Makers((maker,), at.depth + 1)
        return makers


def _is_list(result: StageResult | None) -> bool:
    """True if a function gave a list."""
    return result is not None and result.value is not None and result.value.startswith("[")
