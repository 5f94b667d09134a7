"""Output files, made from the store: streamed in row order, written aside, renamed. They can be made again any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import JSONValue, RowId
from agac.data.jsontext import encode
from agac.data.outputs.layout import Layout, Observed
from agac.data.outputs.records import Fields, OutputRow, result_name
from agac.data.sinks import FILTERED, TELEMETRY, OutputFolder, envelope
from agac.engine.ended import Ended
from agac.engine.filtered import write_filtered
from agac.engine.outputs import Outputs
from agac.engine.telemetry import write_telemetry
from agac.plan.definition import ends_of, recorded_stages
from agac.spec.workflow import shape_of_ends
from agac.store.db import Database, write
from agac.store.rows import ExportRow, State
from agac.store.runs import RunRecord, Written, definition_of, files_written


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, and what was there before.

    `not_written` is why a table in a database is not among the `files`. `replaced` is the run whose results stood in
    the folder, where it was another one; `edited` are files that somebody changed since they were written.
    """

    files: list[Path]
    not_written: AgacError | None = None
    replaced: int | None = None
    edited: tuple[Path, ...] = ()


async def export_run(database: Database, run: RunRecord, root: Path, summary: Mapping[str, Any]) -> Exported:
    """Writes the JSON files into the run's output folder, and the other outputs that its workflow asks for.

    A row without an outcome has no envelope; `results.json` holds the ok results; `errors.jsonl` always has the input.
    A crash leaves the old files or the new ones, and no run that claims to be shown there: the next one writes them
    again. A table of a database that cannot be written keeps nothing else from being replaced.
    """
    outputs = Outputs.of(run, root, summary["rows"]["total"])
    shaper = None
    if outputs.tabular or outputs.shapes_json:
        shaper = Shaper(await _look(database, run, outputs), merged=outputs.merge is not None)
    ended = Ended(await definition_of(database, run.id), formed=shaper is not None, inputs=run.include_input)
    written = await files_written(database, run.output_dir)
    replaced, edited = _before(run, outputs, written)
    await write(database, "run_exporting", run.id)
    with OutputFolder(outputs.folder, root) as out:
        others, table = outputs.open(out, root, shaper.layout) if shaper else ([], None)
        results, array = out.open("results.jsonl"), out.open("results.json")
        errors, document = out.open("errors.jsonl"), out.open("summary.json")
        async for rows in ended.rows(database, run.id):
            lines = Lines(run.include_input, shaper, shaped=outputs.shapes_json)
            for row in rows:
                lines.add(row)
            results.write_texts(lines.results)
            array.write_texts(lines.values)
            errors.write_texts(lines.errors)
            for sink in others:
                sink.write(lines.rows)
        async for rows in ended.failed(database, run.id):
            lines = Lines(run.include_input)
            for row in rows:
                lines.add(row)
            errors.write_texts(lines.errors)
        document.write(dict(summary))
        if outputs.telemetry:
            await write_telemetry(database, run.id, out.open(TELEMETRY))
        if outputs.filtered:
            await write_filtered(database, run, out.open(FILTERED))
    failure = _named(table.failure, run) if table and table.failure else None
    outputs.remove_stale(one.files for one in written)
    stamps = outputs.stamps(root, unwritten=failure is not None)
    await write(database, "run_exported", run.revision, json.dumps(stamps), run.id)
    return Exported(outputs.files(root, but_table=failure is not None), failure, replaced, edited)


def _before(run: RunRecord, outputs: Outputs, written: list[Written]) -> tuple[int | None, tuple[Path, ...]]:
    """The run whose results are about to be replaced, where it is another, and files that are not as any run left them.

    After an export that was killed nobody can tell whose files are there, or who changed them.
    """
    shown = [one for one in written if one.shown]
    if not shown or not (outputs.folder / "results.jsonl").exists():
        return None, ()
    others = [one.run for one in shown if one.run != run.id]
    edited = outputs.edited([one.files for one in written])
    return (others[0] if others and not outputs.preview else None), edited


def _named(error: AgacError, run: RunRecord) -> AgacError:
    """The failure of a table, with the command that writes it."""
    again = f"agac export --run {run.id}{'' if run.finished_at is not None else ' --partial'}"
    remedy = f"The results are stored, and all other files are written. Write the table with: {again}"
    return AgacError(f"{error.message}; nothing of it was written", remedy=f"{error.remedy or ''} {remedy}".strip())


async def _look(database: Database, run: RunRecord, outputs: Outputs) -> Layout:
    """The columns of all rows, by a look at each."""
    definition = await definition_of(database, run.id)
    stages, id_field = recorded_stages(definition), definition["input"]["id_field"]
    ends = [stages[place] for place in ends_of(definition)]
    observed = Observed(shape_of_ends([(end.name, end.shape) for end in ends]), outputs.fields)
    async for rows in Ended(definition, formed=True).rows(database, run.id):
        for row in rows:
            if row.state in _WITH_LINE:
                data = _fields(row)
                observed.row(data)
                if (own := _own_id(row, data, id_field)) is not None:
                    observed.row_id(own)
            if row.state == State.DONE and row.value is not None:
                observed.result(_decoded(row.value))
    return observed.layout(outputs.merge or "extend", result_name([end.name for end in ends]), id_field)


def _own_id(row: ExportRow, data: Fields, id_field: str | None) -> RowId | None:
    """The row's own id, an integer where it stands as one in the row; None where a row number stands for one."""
    if id_field is None:
        return row.id
    if not isinstance(row.id, str) or row.error_type == ErrorType.DUPLICATE_ID:
        return None
    own = data.get(id_field)
    return own if type(own) is int and str(own) == row.id else row.id  # not of one that was made unique (`suffix`)


_WITH_LINE = (State.DONE, State.SKIPPED, State.FAILED)

_decode = json.JSONDecoder().raw_decode


def _decoded(stored: str) -> JSONValue:
    """The value of stored JSON, which has no white space around it: `json.loads` costs three times as much."""
    return _decode(stored)[0]


def _fields(row: ExportRow) -> Fields:
    """The fields of a row as it came to its end."""
    return row.form if row.form is not None else _decoded(row.data) or {}


class Shaper:
    """Stored rows as rows of tables and lines, for one layout. `merged`: records are more than results alone."""

    def __init__(self, layout: Layout, *, merged: bool) -> None:
        self.layout = layout
        self._merged = merged

    def done(self, row: ExportRow, value: str) -> OutputRow:
        """A row with its result, which is JSON text."""
        data, result = _fields(row), _decoded(value)
        merger = self.layout.merger
        cells = self.layout.cells(merger.record(data, result), None)
        own = _own_id(row, data, self.layout.id_field)
        return OutputRow(own, cells, merger.value(data, result) if self._merged else result)

    def failed(self, row: ExportRow, error: RowError) -> OutputRow:
        """A row that failed: what it has itself, and why it failed."""
        data = _fields(row)
        cells = self.layout.cells(self.layout.merger.failed(data), f"{error.type}: {error.message}")
        return OutputRow(_own_id(row, data, self.layout.id_field), cells, None)


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
        """Adds a row; one without an outcome, or dropped, has no line. Of one whose results were all skipped it is
        null."""
        if row.state == State.SKIPPED or (row.state == State.DONE and row.value is not None):
            value = row.value if row.value is not None else "null"
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
