"""A row read back from the store: what its stages saw, which rows are written, and how they ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from agac.core.keys import snapshot
from agac.core.types import JSONValue
from agac.engine.effects import descended, plain, replay
from agac.plan.definition import RecordedStage, ends_of, recorded_stages, written_of
from agac.plan.render import RowView, followed
from agac.spec.levels import descent, levels_of
from agac.spec.workflow import Stage
from agac.store.db import Database
from agac.store.rows import (
    EXPORT_RANGE,
    ExportRow,
    StageResult,
    State,
    child_counts,
    children_export,
    export_rows,
    failed_rows,
    group_rows,
    made_counts,
    results_of_rows,
    rows_of_keys,
)

# What rows see, put together from the store: their own fields, and those and the results of what they were made of.


class Lineage:
    """Puts sights together, for rows that came to their end, and for those made of them. Of results those are read
    that some stage can see, and the `wanted` ones."""

    def __init__(
        self,
        stages: Sequence[Stage],
        variables: Mapping[str, JSONValue],
        database: Database,
        *,
        wanted: Collection[str] = (),
    ) -> None:
        self._stages, self._vars, self._db = stages, dict(variables), database
        self._followed = followed(stages).union(wanted)

    async def ended(self, keys: Sequence[int]) -> dict[int, RowView]:
        """What is seen of these rows after all of their stages, by key; of one that failed as far as it came."""
        rows = await rows_of_keys(self._db, keys)
        above = {row.parent_key for row in rows.values() if row.parent_key is not None}
        parents = await self.ended(sorted(above)) if above else {}
        stages: dict[int, list[tuple[int, StageResult]]] = {}
        for (key, stage), result in (await results_of_rows(self._db, keys)).items():
            stages.setdefault(key, []).append((stage, result))
        found = {}
        for key, row in rows.items():
            parent = parents[row.parent_key] if row.parent_key is not None else None
            sight = self.begun(row.data, row.origin, parent)
            for stage, result in sorted(stages.get(key, ())):
                self.replay(sight, self._stages[stage], result)
            found[key] = sight
        return found

    def begun(self, data: str, origin: int | None, parent: RowView | None) -> RowView:
        """What a row sees before its own stages: the stage at `origin` made it of the row that saw `parent`; `data` is
        JSON."""
        fields: dict[str, JSONValue] = json.loads(data) or {}
        if parent is None or origin is None:
            return RowView(fields, self._vars)
        return descended(parent, self._stages[origin], fields)

    def replay(self, sight: RowView, stage: Stage, result: StageResult) -> None:
        """Does to a sight what the stage did when the row came through it."""
        replay(sight, stage, result, self._followed)


def inner(value: JSONValue | Mapping[str, JSONValue], path: Sequence[str]) -> JSONValue:
    """What stands in `value` at the end of a path of keys. Raises KeyError with the key that is not there."""
    found: object = value
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError(key)
        found = found[key]
    return found


# The rows that are written, in order: of the input, or those that stages made of its rows.

MAX_KEYS = 4096
"""Children that are read at once."""


class At(NamedTuple):
    """A row on the way down to those that are written; `depth` counts the levels of the way that are above it."""

    row: ExportRow
    depth: int


Wanted = dict[int, tuple[tuple[int, ...], int]]
"""By the key of a row the positions of the stages that made those that stand in its place, and their depth."""


class WrittenRows:
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
        many = (
            sum(counts.get((key, origin), 0) for key, (origins, _) in wanted.items() for origin in origins) > MAX_KEYS
        )
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


# What rows came to: those that are written, results put together of several stages, fields as they were in the end.

Results = Mapping[tuple[int, int], StageResult]
"""What came of stages, by a row's key and a stage's position."""

_NOTHING = StageResult(None, skipped=False)


class FinalRows:
    """Reads the rows of a run for its outputs, as the run's definition says what they come to. `formed`: with the
    fields that they had in the end, where these are not their own; `inputs`: all that rows which stages made have, and
    not only where they failed."""

    def __init__(self, definition: Mapping[str, Any], *, formed: bool = False, inputs: bool = False) -> None:
        self._stages = recorded_stages(definition)
        self._rows_of = {stage.name: stage.rows_of for stage in self._stages}
        self._vars = definition["vars"]
        self._ends = [self._stages[position] for position in ends_of(definition)]
        position = written_of(definition)
        self.path = descent(self._stages, None if position is None else self._stages[position])
        first = self._ends[0]
        self._last = first.name if first.changes_rows else first.rows_of
        self._made_again = any(not end.is_kept for end in self._ends)
        own = levels_of(self._stages).by_origin[position].stages
        elsewhere = any(end not in own or end.makes == "rows" for end in self._ends)
        self._joins = len(self._ends) > 1 or self._made_again or elsewhere
        self._formed, self._inputs = formed and self._last is not None, inputs or formed

    async def rows(self, database: Database, run: int) -> AsyncIterator[list[ExportRow]]:
        """All rows that are written, in order, some hundred at a time, and those that failed before they came to be."""
        lineage = self._lineage(database)
        async for rows in self._written(database, run).rows():
            yield await self._wholes(database, lineage, rows)

    async def failed(self, database: Database, run: int) -> AsyncIterator[list[ExportRow]]:
        """The failed rows that `rows` does not come to: of levels beside and before those that are written."""
        lineage, levels = self._lineage(database), levels_of(self._stages)
        met = self._written(database, run).met
        failed = {count.origin for count in await made_counts(database, run) if count.state == State.FAILED}
        for level in levels.all:
            if level.origin in met or not (level.origin is None or level.origin in failed):
                continue
            async for rows in failed_rows(database, run, level.origin):
                yield await self._wholes(database, lineage, rows)

    def _written(self, database: Database, run: int) -> WrittenRows:
        return WrittenRows(database, run, self._stages, self.path, [end.name for end in self._ends])

    def _lineage(self, database: Database) -> Lineage:
        return Lineage(self._stages, self._vars, database, wanted=[end.name for end in self._ends])

    async def _wholes(self, database: Database, lineage: Lineage, rows: list[ExportRow]) -> list[ExportRow]:
        wanted = self._inputs or self._joins
        made = [row.key for row in rows if row.made and (wanted or row.state == State.FAILED)]
        if not (self._joins or self._formed or made):
            return rows
        keys = [row.key for row in rows]
        results = await results_of_rows(database, keys) if self._joins else {}
        sights = await lineage.ended(keys if self._formed or self._made_again else made)
        return [self._whole(row, results, sights.get(row.key)) for row in rows]

    def _whole(self, row: ExportRow, results: Results, sight: RowView | None) -> ExportRow:
        value = self._joined(row, results, sight) if self._joins and row.state == State.DONE else row.value
        if sight is None or not (self._formed or row.made):
            return row._replace(value=value)
        form = self._nearest(sight, self._last)
        shown = row.made and (self._inputs or row.state == State.FAILED)
        return row._replace(value=value, form=form, data=snapshot(form) if shown else row.data)

    def _joined(self, row: ExportRow, results: Results, sight: RowView | None) -> str:
        """The result of one stage, or an object of those of several; one that was skipped is null in it."""
        texts = [self._text(row, end, results, sight) for end in self._ends]
        if len(texts) == 1:
            return texts[0]
        return f"{{{','.join(f'{snapshot(end.name)}:{text}' for end, text in zip(self._ends, texts, strict=True))}}}"

    def _text(self, row: ExportRow, end: RecordedStage, results: Results, sight: RowView | None) -> str:
        value, skipped = results.get((row.key, end.index), _NOTHING)
        if not (end.is_kept or skipped) and sight is not None:
            return snapshot(self._nearest(sight, end.name if end.changes_rows else end.rows_of))
        if value is None and not skipped and sight is not None and end.name in sight.results:
            return snapshot(plain(sight.results[end.name]))  # of the row that this one was made of
        return value if value is not None else "null"

    def _nearest(self, sight: RowView, name: str | None) -> dict[str, JSONValue]:
        """The row's fields after a stage; as far as it came, of one that did not come that far."""
        while name is not None and name not in sight.forms:
            name = self._rows_of[name]
        return sight.forms[name]
