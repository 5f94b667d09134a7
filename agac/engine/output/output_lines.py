"""Makes lines of the JSON files, and rows of tables, of the rows of a run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from agac.core.errors import ErrorType, RowError
from agac.core.keys import snapshot
from agac.core.types import JSONValue, RowId
from agac.data import sinks
from agac.data.json_formats import encode
from agac.data.tables import Fields, OutputRow, TableLayout
from agac.engine.output.run_outputs import PLAIN_MERGES
from agac.engine.walk.replay import RowViews
from agac.engine.walk.written_rows import WrittenRows
from agac.plan.stage import recorded_stages
from agac.spec.data_specs import Merge
from agac.spec.graph import StageNode, descent
from agac.store import runs
from agac.store.db import Database
from agac.store.rows import ExportRow, State, kept_rows, why_filtered
from agac.store.runs import RunRecord


def order_key(level: int, ordinal: int | None, row_id: RowId) -> list[Any]:
    """Returns the key by which rows are in order: of a level by the row of the input above them,
    or by their ids if there is none."""
    if ordinal is not None:
        return [level, ordinal]
    return [level, isinstance(row_id, str), row_id]


def is_grouped(stages: Sequence[StageNode], maker: StageNode | None) -> bool:
    """True if the rows of this maker are groups, or were made of groups, so that they have no row
    of the input."""
    return any(stage.makes == "groups" for stage in descent(stages, maker))


def own_id(row: ExportRow, data: Fields, id_field: str | None) -> RowId | None:
    """Returns the row's own id, an integer if it is one in the row; None if it has only a row
    number."""
    if id_field is None:
        return row.id
    if not isinstance(row.id, str) or row.error_type == ErrorType.DUPLICATE_ID:
        return None
    value = data.get(id_field)
    # they differ if the id was made unique (`suffix`)
    if type(value) is int and str(value) == row.id:
        return value
    return row.id


_decode = json.JSONDecoder().raw_decode


def decoded(stored: str) -> JSONValue:
    """Reads stored JSON, which has no white space around it: `json.loads` costs three times as
    much."""
    return _decode(stored)[0]


def fields_of(row: ExportRow) -> Fields:
    """Returns the fields of a row: those that it had in the end, if they are known."""
    if row.form is not None:
        return row.form
    return decoded(row.data) or {}


class Lines:
    """Some rows as the lines of the output files, and as rows of tables."""

    def __init__(
        self,
        rows: Iterable[ExportRow],
        include_input: bool,
        layout: TableLayout | None = None,
        merge: Merge | None = None,
        *,
        by_line: bool = False,
        marks: bool = False,
    ) -> None:
        """There are rows of tables only with a `layout`. `merge`: how results are merged with the
        fields of their rows, in the JSON files, too. `by_line`: rows of tables have the number of
        the line of a text file that they were. `marks`: the value of a failed row is its
        envelope."""
        self._include_input = include_input
        self._layout = layout
        self._merge = merge
        self._by_line = by_line
        self._marks = marks
        self.results: list[str] = []
        self.values: list[str] = []
        self.errors: list[str] = []
        self.by_file = {
            "results.jsonl": self.results,
            "results.json": self.values,
            "errors.jsonl": self.errors,
        }
        self.rows: list[OutputRow] = []
        for row in rows:
            self._add(row)

    def _add(self, row: ExportRow) -> None:
        """Adds a row. A row without an outcome, or that was dropped, has no line."""
        if row.state == State.SKIPPED or (row.state == State.DONE and row.value is not None):
            self._add_result(row)
            return
        error = row.error
        if error is not None:
            self._add_error(row, error)

    def _add_result(self, row: ExportRow) -> None:
        """Adds a row with a result, which is null if all results were skipped."""
        layout = self._layout
        value = row.value if row.value is not None else "null"
        if layout is not None:
            data = fields_of(row)
            result = decoded(value)
            cells = layout.cells(layout.merger.record(data, result), None, row.sources)
            record = result if self._merge is None else layout.merger.value(data, result)
            row_id = own_id(row, data, layout.id_field)
            self.rows.append(OutputRow(row_id, cells, record, line=self._line(row)))
            if self._merge not in PLAIN_MERGES:
                value = encode(record)
        self.results.append(self._envelope(row, value, None, with_input=self._include_input))
        self.values.append(value)

    def _add_error(self, row: ExportRow, error: RowError) -> None:
        """Adds a row that failed."""
        layout = self._layout
        if layout is not None:
            data = fields_of(row)
            why = f"{error.type}: {error.message}"
            cells = layout.cells(layout.merger.failed(data), why, row.sources)
            row_id = own_id(row, data, layout.id_field)
            self.rows.append(OutputRow(row_id, cells, None, why, self._line(row)))
        self.results.append(self._envelope(row, None, error, with_input=self._include_input))
        self.errors.append(self._envelope(row, None, error, with_input=True))
        if self._marks:
            self.values.append(sinks.envelope(row.id, row.ordinal, None, error))

    def _envelope(
        self, row: ExportRow, value: str | None, error: RowError | None, *, with_input: bool
    ) -> str:
        """Makes the envelope of a row."""
        about = {"how": row.how, "sources": row.sources}
        return sinks.envelope(row.id, row.ordinal, value, error, row.data, with_input, about)

    def _line(self, row: ExportRow) -> int | None:
        """Returns the number of the line of a text file that the row was; None if that is not
        wanted or not known."""
        if not self._by_line:
            return None
        number = (decoded(row.data) or {}).get("line_number")
        return number if type(number) is int else None


async def filtered_lines(
    database: Database, run: RunRecord
) -> AsyncIterator[list[tuple[Any, str]]]:
    """Yields the lines of filtered.jsonl, some hundred at a time, each with its `order_key` before
    it.

    There is one for each row that a stage filtered out, with the guard and the values that it
    looked at, `{"id","row_number","stage","when","values"}`, then `input` if included: of a row
    that a stage made, the fields with which it left. A row that repeats an id has no stage, but
    the number of the `kept_row`.

    Rows of the input come first, in order; those that a function gave are in the place of their
    row. Then, level by level, come those that stages made, in the order of the rows that they were
    made of, and groups by their ids."""
    definition = await runs.definition_of(database, run.id)
    stages = recorded_stages(definition)
    filtered = _FilteredRows(database, run, definition)
    makers = [stage for stage in stages if stage.makes not in (None, "rows")]
    for level, maker in enumerate((None, *makers)):
        async for rows in WrittenRows(database, run.id, stages, descent(stages, maker)).rows():
            left = [row for row in rows if row.state in (State.FILTERED, State.DROPPED)]
            yield await filtered.lines(level, left)


class _FilteredRows:
    """Makes the lines of rows that left a run."""

    def __init__(self, database: Database, run: RunRecord, definition: dict[str, Any]) -> None:
        self._database = database
        self._run = run
        self._stages = recorded_stages(definition)
        self._views = RowViews(self._stages, definition["vars"], database)
        self._rule: str = definition["input"]["on_duplicate_id"]

    async def lines(self, level: int, rows: Sequence[ExportRow]) -> list[tuple[Any, str]]:
        """Makes the lines of rows of a level."""
        repeated = [row.id for row in rows if row.state == State.DROPPED]
        kept = await kept_rows(self._database, self._run.id, repeated)
        reasons = await why_filtered(self._database, [row.key for row in rows])
        views = {}
        if self._run.include_input:
            views = await self._views.ended([row.key for row in rows if row.made])
        lines = []
        for row in rows:
            about: dict[str, Any] = {"id": row.id, "row_number": row.ordinal}
            data = row.data
            position, note = reasons.get(row.key, (None, ""))
            if position is None:
                about["stage"] = None
                about["on_duplicate_id"] = self._rule
                about["kept_row"] = kept.get(row.id)
            else:
                stage = self._stages[position]
                about |= {"stage": stage.name, **json.loads(note)}
                if row.key in views:
                    data = snapshot(views[row.key].data(stage))
            tail = f',"input":{data}' if self._run.include_input else ""
            key = order_key(level, row.ordinal, row.id)
            lines.append((key, f"{encode(about)[:-1]}{tail}}}"))
        return lines
