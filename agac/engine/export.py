"""Output files, made from the store: streamed in row order, written aside, renamed. They can be made again any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue
from agac.data.jsontext import encode
from agac.data.outputs.layout import Layout, Observed
from agac.data.outputs.records import OutputRow
from agac.data.sinks import TELEMETRY, OutputFolder, envelope
from agac.engine.outputs import Outputs
from agac.engine.telemetry import write_telemetry
from agac.store.db import Database
from agac.store.rows import ExportRow, State, export_rows
from agac.store.runs import RunRecord, definition_of, files_written, write


async def export_run(database: Database, run: RunRecord, root: Path, summary: Mapping[str, Any]) -> list[Path]:
    """Writes the JSON files into the run's output folder, and the other outputs that its workflow asks for.

    A row without an outcome has no envelope; `results.json` holds the ok results; `errors.jsonl` always has the input.
    A crash leaves the old files or the new ones, and no run that claims to be shown there: the next one writes them
    again. Returns their paths.
    """
    outputs = Outputs.of(run, root, summary["rows"]["total"])
    shaper = None
    if outputs.tabular or outputs.shapes_json:
        shaper = Shaper(await _look(database, run, outputs), merged=outputs.merge is not None)
    await write(database, "run_exporting", (run.id,))
    with OutputFolder(outputs.folder, root) as out:
        others = outputs.open(out, root, shaper.layout) if shaper else []
        results, array = out.open("results.jsonl"), out.open("results.json")
        errors, document = out.open("errors.jsonl"), out.open("summary.json")
        async for rows in export_rows(database, run.id):
            lines = Lines(run.include_input, shaper, shaped=outputs.shapes_json)
            for row in rows:
                lines.add(row)
            results.write_texts(lines.results)
            array.write_texts(lines.values)
            errors.write_texts(lines.errors)
            for sink in others:
                sink.write(lines.rows)
        document.write(dict(summary))
        if outputs.telemetry:
            await write_telemetry(database, run.id, out.open(TELEMETRY))
    outputs.remove_stale(await files_written(database, run.output_dir))
    await write(database, "run_exported", (run.revision, json.dumps(outputs.stamps(root)), run.id))
    return outputs.files(root)


async def _look(database: Database, run: RunRecord, outputs: Outputs) -> Layout:
    """The columns of all rows, by a look at each."""
    definition = await definition_of(database, run.id)
    last = definition["stages"][-1]
    observed = Observed(last["schema"]["body"] if last["schema"] else None, outputs.fields)
    async for rows in export_rows(database, run.id):
        for row in rows:
            if row.state in (State.DONE, State.FAILED):
                observed.row(_decoded(row.data) or {})
            if row.state == State.DONE and row.value is not None:
                observed.result(_decoded(row.value))
    return observed.layout(outputs.merge or "extend", last["name"], definition["input"]["id_field"])


_decode = json.JSONDecoder().raw_decode


def _decoded(stored: str) -> JSONValue:
    """The value of stored JSON, which has no white space around it: `json.loads` costs three times as much."""
    return _decode(stored)[0]


class Shaper:
    """Stored rows as rows of tables and lines, for one layout. `merged`: records are more than results alone."""

    def __init__(self, layout: Layout, *, merged: bool) -> None:
        self.layout = layout
        self._merged = merged
        self._identified = layout.id_field is not None

    def done(self, row: ExportRow, value: str) -> OutputRow:
        """A row with its result, which is JSON text."""
        data, result = _decoded(row.data) or {}, _decoded(value)
        merger = self.layout.merger
        cells = self.layout.cells(merger.record(data, result), None)
        return OutputRow(row.id, self._known(row), cells, merger.value(data, result) if self._merged else result)

    def failed(self, row: ExportRow, error: RowError) -> OutputRow:
        """A row that failed: what it has itself, and why it failed."""
        record = self.layout.merger.failed(_decoded(row.data) or {})
        cells = self.layout.cells(record, f"{error.type}: {error.message}")
        return OutputRow(row.id, self._known(row), cells, None)

    def _known(self, row: ExportRow) -> bool:
        """Whether the row's id is its own. Under `id_field` an integer is a row number in the place of one."""
        if not self._identified:
            return True
        return isinstance(row.id, str) and row.error_type != ErrorType.DUPLICATE_ID


class Lines:
    """Some rows as the lines of the output files; with a shaper also as rows of tables. `shaped`: the results in the
    JSON files are what the shaper makes of them."""

    def __init__(self, include_input: bool, shaper: Shaper | None = None, *, shaped: bool = False) -> None:
        self._include_input = include_input
        self._shaper = shaper
        self._shaped = shaped
        self.results: list[str] = []
        self.values: list[str] = []
        self.errors: list[str] = []
        self.rows: list[OutputRow] = []

    def add(self, row: ExportRow) -> None:
        """Adds a row; one without an outcome, or dropped, has no line."""
        if row.state == State.DONE and row.value is not None:
            value = row.value
            if self._shaper is not None:
                whole = self._shaper.done(row, value)
                self.rows.append(whole)
                value = encode(whole.record) if self._shaped else value
            self.results.append(envelope(row.id, row.ordinal, True, value, None, row.data, self._include_input))
            self.values.append(value)
        elif row.state == State.FAILED:
            failed = _error(row)
            if self._shaper is not None:
                self.rows.append(self._shaper.failed(row, failed))
            self.results.append(envelope(row.id, row.ordinal, False, None, failed, row.data, self._include_input))
            self.errors.append(envelope(row.id, row.ordinal, False, None, failed, row.data, True))


def files_of(run: RunRecord, root: Path, rows: int) -> list[Path]:
    """The files that a finished run's users expect. `rows` of its input are stored."""
    return Outputs.of(run, root, rows).files(root)


def is_shown(run: RunRecord, root: Path, rows: int) -> bool:
    """Whether the files in the output folder are what an export would write: none is missing, cut or another's."""
    outputs = Outputs.of(run, root, rows)
    return run.exported_revision == run.revision and run.exported_files == outputs.stamps(root)


def _error(row: ExportRow) -> RowError:
    return RowError(ErrorType(row.error_type or ErrorType.INVALID_ROW), row.error_message or "")
