"""The rows of a run as lines of the JSON files and as rows of tables."""

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
    """Where a row stands: among those of its level by the row of the input above it, without one
    by its id."""
    if ordinal is not None:
        return [level, ordinal]
    return [level, isinstance(row_id, str), row_id]


def is_grouped(stages: Sequence[StageNode], maker: StageNode | None) -> bool:
    """Whether the rows of this maker are groups, or were made of them: no row of the input stands
    behind one."""
    return any(one.makes == "groups" for one in descent(stages, maker))


def own_id(row: ExportRow, data: Fields, id_field: str | None) -> RowId | None:
    """The row's own id, an integer where it stands as one in the row; None where a row number
    stands for one."""
    if id_field is None:
        return row.id
    if not isinstance(row.id, str) or row.error_type == ErrorType.DUPLICATE_ID:
        return None
    own = data.get(id_field)
    # not of one that was made unique (`suffix`)
    if type(own) is int and str(own) == row.id:
        return own
    return row.id


_decode = json.JSONDecoder().raw_decode


def decoded(stored: str) -> JSONValue:
    """The value of stored JSON, which has no white space around it: `json.loads` costs three times
    as much."""
    return _decode(stored)[0]


def fields_of(row: ExportRow) -> Fields:
    if row.form is not None:
        return row.form
    return decoded(row.data) or {}


class Lines:
    """Some rows as the lines of the output files; with a `layout` also as rows of tables. Where
    they are merged with the fields of their rows (`merge`), the results in the JSON files are too.
    `by_line`: rows of tables have the line of the text file that they were. `marks`: among the
    values a row that failed is its envelope."""

    def __init__(
        self, rows: Iterable[ExportRow], include_input: bool, layout: TableLayout | None = None,
        merge: Merge | None = None, *, by_line: bool = False, marks: bool = False,
    ) -> None:  # fmt: skip
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
        """Adds a row; one without an outcome, or dropped, has no line. Where all results were
        skipped it is null."""
        layout = self._layout
        if row.state == State.SKIPPED or (row.state == State.DONE and row.value is not None):
            value = row.value if row.value is not None else "null"
            if layout is not None:
                data = fields_of(row)
                result = decoded(value)
                cells = layout.cells(layout.merger.record(data, result), None, row.sources)
                if self._merge is not None:
                    record = layout.merger.value(data, result)
                else:
                    record = result
                self.rows.append(
                    OutputRow(
                        own_id(row, data, layout.id_field), cells, record, line=self._line(row)
                    )
                )
                value = encode(record) if self._merge not in PLAIN_MERGES else value
            self.results.append(self._envelope(row, value, None, with_input=self._include_input))
            self.values.append(value)
        elif (failed := row.error) is not None:
            if layout is not None:
                data = fields_of(row)
                why = f"{failed.type}: {failed.message}"
                cells = layout.cells(layout.merger.failed(data), why, row.sources)
                self.rows.append(
                    OutputRow(own_id(row, data, layout.id_field), cells, None, why, self._line(row))
                )
            self.results.append(self._envelope(row, None, failed, with_input=self._include_input))
            self.errors.append(self._envelope(row, None, failed, with_input=True))
            if self._marks:
                self.values.append(sinks.envelope(row.id, row.ordinal, None, failed))

    def _envelope(
        self, row: ExportRow, value: str | None, error: RowError | None, *, with_input: bool
    ) -> str:
        about = {"how": row.how, "sources": row.sources}
        return sinks.envelope(row.id, row.ordinal, value, error, row.data, with_input, about)

    def _line(self, row: ExportRow) -> int | None:
        """The line of a text file that the row was; None where that is not asked for or not
        known."""
        if self._by_line:
            number = (decoded(row.data) or {}).get("line_number")
        else:
            number = None
        return number if type(number) is int else None


async def filtered_lines(
    database: Database, run: RunRecord
) -> AsyncIterator[list[tuple[Any, str]]]:
    """The lines of filtered.jsonl, each after the key that orders it, some hundred at a time: one
    for each row that a stage made leave, with the guard and the values that it looked at,
    `{"id","row_number","stage","when","values"}`, then `input` if included: of a row that a stage
    made, the fields with which it left. A row that repeats an id has no stage, but the number of
    the `kept_row`. Rows of the input come first, in order, those that a function gave in the place
    of one where it stands; then level by level those that stages made, in the order of the rows
    that they come from, and groups by their ids."""
    definition = await runs.definition_of(database, run.id)
    stages = recorded_stages(definition)
    views = RowViews(stages, definition["vars"], database)
    for level, maker in enumerate(
        (None, *(stage for stage in stages if stage.makes not in (None, "rows")))
    ):
        async for rows in WrittenRows(database, run.id, stages, descent(stages, maker)).rows():
            left = [row for row in rows if row.state in (State.FILTERED, State.DROPPED)]
            lines = list[tuple[Any, str]]()
            kept = await kept_rows(
                database, run.id, [row.id for row in left if row.state == State.DROPPED]
            )
            why = await why_filtered(database, [row.key for row in left])
            if run.include_input:
                seen = await views.ended([row.key for row in left if row.made])
            else:
                seen = {}
            for row in left:
                about = {"id": row.id, "row_number": row.ordinal}
                position, note = why.get(row.key, (None, ""))
                data = row.data
                if position is None:
                    policy = definition["input"]["on_duplicate_id"]
                    about |= {
                        "stage": None,
                        "on_duplicate_id": policy,
                        "kept_row": kept.get(row.id),
                    }
                else:
                    about |= {"stage": stages[position].name, **json.loads(note)}
                    if row.key in seen:
                        data = snapshot(seen[row.key].data(stages[position]))
                    else:
                        data = data
                tail = f',"input":{data}' if run.include_input else ""
                lines.append(
                    (order_key(level, row.ordinal, row.id), f"{encode(about)[:-1]}{tail}}}")
                )
            yield lines
