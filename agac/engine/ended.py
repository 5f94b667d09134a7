"""What rows came to: those that are written, results put together of several stages, fields as they were in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from agac.core.keys import snapshot
from agac.core.types import JSONValue
from agac.engine.effects import plain
from agac.engine.lineage import Lineage
from agac.engine.written import Written
from agac.plan.definition import RecordedStage, ends_of, recorded_stages, written_of
from agac.plan.prepare import Sight
from agac.spec.levels import descent, levels_of
from agac.store.db import Database
from agac.store.rows import ExportRow, StageResult, State, failed_rows, made_counts, results_of_rows

Results = Mapping[tuple[int, int], StageResult]
"""What came of stages, by a row's key and a stage's position."""

_NOTHING = StageResult(None, skipped=False)


class Ended:
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

    def _written(self, database: Database, run: int) -> Written:
        return Written(database, run, self._stages, self.path, [end.name for end in self._ends])

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

    def _whole(self, row: ExportRow, results: Results, sight: Sight | None) -> ExportRow:
        value = self._joined(row, results, sight) if self._joins and row.state == State.DONE else row.value
        if sight is None or not (self._formed or row.made):
            return row._replace(value=value)
        form = self._nearest(sight, self._last)
        shown = row.made and (self._inputs or row.state == State.FAILED)
        return row._replace(value=value, form=form, data=snapshot(form) if shown else row.data)

    def _joined(self, row: ExportRow, results: Results, sight: Sight | None) -> str:
        """The result of one stage, or an object of those of several; one that was skipped is null in it."""
        texts = [self._text(row, end, results, sight) for end in self._ends]
        if len(texts) == 1:
            return texts[0]
        return f"{{{','.join(f'{snapshot(end.name)}:{text}' for end, text in zip(self._ends, texts, strict=True))}}}"

    def _text(self, row: ExportRow, end: RecordedStage, results: Results, sight: Sight | None) -> str:
        value, skipped = results.get((row.key, end.index), _NOTHING)
        if not (end.is_kept or skipped) and sight is not None:
            return snapshot(self._nearest(sight, end.name if end.changes_rows else end.rows_of))
        if value is None and not skipped and sight is not None and end.name in sight.results:
            return snapshot(plain(sight.results[end.name]))  # of the row that this one was made of
        return value if value is not None else "null"

    def _nearest(self, sight: Sight, name: str | None) -> dict[str, JSONValue]:
        """The row's fields after a stage; as far as it came, of one that did not come that far."""
        while name is not None and name not in sight.forms:
            name = self._rows_of[name]
        return sight.forms[name]
