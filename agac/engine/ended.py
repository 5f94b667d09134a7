"""What rows came to: results put together of several stages, and fields that stages changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agac.core.keys import snapshot
from agac.core.types import JSONValue
from agac.plan.recorded import RecordedStage, ends_of, recorded_stages
from agac.store.db import Database
from agac.store.rows import ExportRow, StageResult, State, export_rows, results_of_rows

Results = Mapping[tuple[int, int], StageResult]
"""What came of stages, by a row's key and a stage's position."""

_NOTHING = StageResult(None, skipped=False)


class Ended:
    """Reads the rows of a run for its outputs, as the run's definition says what they come to."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        stages = recorded_stages(definition)
        self._ends = [stages[position] for position in ends_of(definition)]
        self._by_name = {stage.name: stage for stage in stages}
        first = self._ends[0]
        self._changes = self._way(first.name if first.changes_rows else first.rows_of)
        self._joins = len(self._ends) > 1 or not first.is_kept

    def _way(self, name: str | None) -> list[RecordedStage]:
        """The stages that changed a row, up to one, in their order."""
        way: list[RecordedStage] = []
        while name is not None:
            way.append(self._by_name[name])
            name = way[-1].rows_of
        return way[::-1]

    async def rows(self, database: Database, run: int) -> AsyncIterator[list[ExportRow]]:
        """All rows of the input in order, some hundred at a time."""
        async for rows in export_rows(database, run):
            if self._joins or self._changes:
                results = await results_of_rows(database, [row.key for row in rows])
                yield [self._whole(row, results) for row in rows]
            else:
                yield rows

    def _whole(self, row: ExportRow, results: Results) -> ExportRow:
        form = self._formed(row, self._changes, results)
        value = self._joined(row, results) if self._joins and row.state == State.DONE else row.value
        return row._replace(value=value, form=form if self._changes else None)

    def _formed(self, row: ExportRow, way: list[RecordedStage], results: Results) -> dict[str, JSONValue]:
        """The row's fields after some stages; as far as it came, of one that did not come that far."""
        fields: dict[str, JSONValue] = json.loads(row.data) or {}
        for stage in way:
            value, skipped = results.get((row.key, stage.index), _NOTHING)
            changed = fields if skipped else stage.form(fields, value)
            if changed is None:
                break
            fields = changed
        return fields

    def _joined(self, row: ExportRow, results: Results) -> str:
        """The result of one stage, or an object of those of several; one that was skipped is null in it."""
        texts = [self._text(row, end, results) for end in self._ends]
        if len(texts) == 1:
            return texts[0]
        return f"{{{','.join(f'{snapshot(end.name)}:{text}' for end, text in zip(self._ends, texts, strict=True))}}}"

    def _text(self, row: ExportRow, end: RecordedStage, results: Results) -> str:
        value, skipped = results.get((row.key, end.index), _NOTHING)
        if not (end.is_kept or skipped):
            name = end.name if end.changes_rows else end.rows_of
            return snapshot(self._formed(row, self._way(name), results))
        return value if value is not None else "null"
