"""The rows that are written, in order: of the input, or those that stages made of its rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

from agac.plan.definition import RecordedStage
from agac.spec.levels import levels_of
from agac.store.db import Database
from agac.store.rows import (
    EXPORT_RANGE,
    ExportRow,
    State,
    child_counts,
    children_export,
    export_rows,
    group_rows,
    results_of_rows,
)

MOST = 4096
"""Children that are read at once."""


class At(NamedTuple):
    """A row on the way down to those that are written; `depth` counts the levels of the way that are above it."""

    row: ExportRow
    depth: int


Wanted = dict[int, tuple[tuple[int, ...], int]]
"""By the key of a row the positions of the stages that made those that stand in its place, and their depth."""


class Written:
    """Goes from rows down to what was made of them, along the stages `path`. In the place of a row for which a function
    gave a list stand the rows of that, where the function leads to the stages `ends` (None: wherever it leads). `met`
    are the positions of those whose rows are on the way; None: the input's.
    """

    def __init__(
        self,
        database: Database,
        run: int,
        stages: Sequence[RecordedStage],
        path: Sequence[RecordedStage],
        ends: Collection[str] | None = None,
    ) -> None:
        self._db, self._run = database, run
        levels = levels_of(stages)
        homes: list[RecordedStage | None] = [*path] if path and path[0].makes == "groups" else [None, *path]
        every = frozenset(stage.name for stage in stages)
        wanted = [*({maker.name} for maker in homes[1:] if maker), every if ends is None else frozenset(ends)]
        self._functions = [
            [
                stage.index
                for stage in levels.by_origin[home.index if home else None].stages
                if stage.makes == "rows" and levels.leads_to(stage, names)
            ]
            for home, names in zip(homes, wanted, strict=True)
        ]
        self.met = {home.index if home else None for home in homes}
        self.met |= {position for functions in self._functions for position in functions}
        self._groups = path[0] if path and path[0].makes == "groups" else None
        self._makers = path[1:] if self._groups else path
        self._deepest = len(self._makers)

    async def rows(self) -> AsyncIterator[list[ExportRow]]:
        """All of them, and those of which nothing was made since they failed, some hundred at a time."""
        if self._groups is not None:
            async for groups in group_rows(self._db, self._run, self._groups.index):
                async for found in self._below([At(row, 0) for row in groups]):
                    yield found
            return
        async for rows in export_rows(self._db, self._run):
            if not self._makers and not self._functions[0]:
                yield rows
                continue
            async for found in self._below([At(row, 0) for row in rows]):
                yield found

    async def _below(self, rows: list[At]) -> AsyncIterator[list[ExportRow]]:
        """What is written of these rows, in their order."""
        wanted = await self._wanted(rows)
        if not wanted:
            yield [at.row for at in rows if at.depth == self._deepest or at.row.state == State.FAILED]
            return
        counts = await child_counts(self._db, list(wanted))
        many = sum(counts.get((key, origin), 0) for key, (origins, _) in wanted.items() for origin in origins) > MOST
        if many and len(rows) > 1:
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                async for found in self._below(half):
                    yield found
        elif many:
            ((key, (origins, depth)),) = wanted.items()
            for origin in origins:
                async for found in self._paged(rows[0], key, origin, depth):
                    yield found
        else:
            async for found in self._below(await self._with_children(rows, wanted)):
                yield found

    async def _paged(self, at: At, key: int, origin: int, depth: int) -> AsyncIterator[list[ExportRow]]:
        """What is written of the many children of one row."""
        after = -1
        while page := await children_export(self._db, [key], origin=origin, after=after, limit=EXPORT_RANGE):
            after = page[-1][1]
            children = [At(child._replace(ordinal=at.row.ordinal), depth) for _, _, child in page]
            async for found in self._below(children):
                yield found

    async def _with_children(self, rows: list[At], wanted: Wanted) -> list[At]:
        """The rows with those that stages made of them in their place."""
        children: dict[int, list[ExportRow]] = {}
        for origin in sorted({origin for origins, _ in wanted.values() for origin in origins}):
            keys = [key for key, (origins, _) in wanted.items() if origin in origins]
            for parent, _, child in await children_export(self._db, keys, origin=origin):
                children.setdefault(parent, []).append(child)
        found = []
        for at in rows:
            if at.row.key in wanted:
                depth = wanted[at.row.key][1]
                made = children.get(at.row.key, ())
                found += [At(child._replace(ordinal=at.row.ordinal), depth) for child in made]
            else:
                found.append(at)
        return found

    async def _wanted(self, rows: list[At]) -> Wanted:
        """In the place of which rows others are written."""
        found: Wanted = {}
        through = [at for at in rows if at.row.state in (State.DONE, State.SKIPPED)]
        asked = {at.row.key for at in through if self._functions[at.depth]}
        lists = await self._lists(through, asked) if asked else {}
        for at in through:
            if at.row.key in lists:
                found[at.row.key] = (lists[at.row.key], at.depth)
            elif at.depth < self._deepest:
                found[at.row.key] = ((self._makers[at.depth].index,), at.depth + 1)
        return found

    async def _lists(self, rows: list[At], asked: set[int]) -> dict[int, tuple[int, ...]]:
        """The rows for which functions gave lists, with the positions of their stages."""
        results = await results_of_rows(self._db, sorted(asked))
        found: dict[int, tuple[int, ...]] = {}
        for at in rows:
            for position in self._functions[at.depth]:
                result = results.get((at.row.key, position))
                if result is not None and result.value is not None and result.value.startswith("["):
                    found[at.row.key] = (*found.get(at.row.key, ()), position)
        return found
