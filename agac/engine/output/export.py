"""Writes output files and tables from the store: streamed in row order, into a temporary file that
is renamed at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from agac.core.errors import AgacError
from agac.core.types import JSONValue
from agac.data import sinks
from agac.data.files import PREVIOUS, PreviousFile, stamp
from agac.data.tables import Observed, TableColumn, TableLayout, result_name
from agac.engine.output.output_folder import edited_files, place_of_project
from agac.engine.output.output_lines import (
    Lines,
    decoded,
    fields_of,
    filtered_lines,
    is_grouped,
    own_id,
)
from agac.engine.output.run_outputs import PLAIN_MERGES, Outputs
from agac.engine.output.telemetry import write_telemetry
from agac.engine.summary import RunSummary, StoreMark, SummaryFile
from agac.engine.walk.replay import FinalRows
from agac.plan.stage import ends_of, recorded_stages, written_of
from agac.spec.workflow import shape_of_ends
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database, write
from agac.store.rows import ExportRow, State
from agac.store.runs import RunRecord, WrittenFiles

# Outputs are made from the store, so that they can be made again at any time.


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that an export wrote, and those that it replaced."""

    files: list[Path]
    """The files that were written."""
    not_written: AgacError | None = None
    """Why a table in a database is not among the `files`."""
    replaced: int | None = None
    """The run whose results were in the folder, if it was another one."""
    edited: Mapping[Path, Path] = field(default_factory=dict)
    """Files that were changed since they were written, with the copies that keep the changes."""
    lines: int | None = None
    """How many rows are in the results; None: nothing was written."""


class RowsElsewhere(Protocol):
    """Reads the final rows of a run that this store does not hold."""

    def rows(self, database: Database, run: int, /) -> AsyncIterator[list[ExportRow]]:
        """Yields all rows that are written, some hundred at a time."""
        ...

    def failed(self, database: Database, run: int, /) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """Yields the failed rows that `rows` does not reach, with their levels."""
        ...

    def filtered(self) -> AsyncIterator[list[tuple[Any, str]]]:
        """Yields the lines of rows that a stage filtered out, each with its key before it."""
        ...


@dataclass(frozen=True, slots=True)
class _OpenSinks:
    """The open files and tables into which the rows of a run are written."""

    json_files: Mapping[str, sinks.JsonSink]
    """The JSON files of the output folder, by name."""
    tables: Sequence[sinks.RowSink]
    """Files with columns, and the table of a database."""
    database_table: sinks.IsolatedSink | None
    """The table of a database among `tables`; None: none is written."""

    def write(self, lines: Lines) -> None:
        """Writes some rows into all files and tables."""
        for name, texts in lines.by_file.items():
            if name in self.json_files:
                self.json_files[name].write_texts(texts)
        for sink in self.tables:
            sink.write(lines.rows)


async def export_run(
    database: Database,
    run: RunRecord,
    root: Path,
    summary: RunSummary,
    env: Mapping[str, str],
    source: RowsElsewhere | None = None,
) -> Exported:
    """Writes the JSON files into the run's output folder, and the other outputs that its workflow
    asks for.

    `env` has the variables of a server's address. The rows come from `source` if the store has
    none. A row without an outcome has no envelope; `results.json` has the ok results;
    `errors.jsonl` always has the input. If the table of a database cannot be written, all other
    outputs are. A crash leaves the old files or the new ones, and no run that claims to be shown
    there, so that the next one writes them again."""
    outputs = Outputs(run, root, summary.rows.total)
    outputs.telemetry = outputs.telemetry and source is None
    final_rows, layout = await _final_rows(
        database, run, outputs, tables=outputs.tables, source=source
    )
    lines_of = partial(
        Lines,
        include_input=run.include_input,
        layout=layout,
        merge=outputs.merge,
        by_line=await _by_line(database, run),
        marks=outputs.places is not None,
    )
    written = await runs.files_written(database, run.output_dir)
    mark = StoreMark(await project_token(database), run.revision, place_of_project(root))
    previous = outputs.previous(run, written)
    replaced = _replaced_run(outputs, run, written)
    folder = _output_folder(outputs, root, written, mark, previous)
    await write(database, "run_exporting", run.id)
    with folder as out:
        opened = _open_sinks(outputs, out, layout, env)
        count = await _write_rows(database, run, final_rows, lines_of, opened)
        if "summary.json" in opened.json_files:
            is_marked = not outputs.preview and source is None
            file = SummaryFile(summary, mark if is_marked else None)
            opened.json_files["summary.json"].write(file.as_json())
        await _write_optional_files(database, run, outputs, out, source)
    failure = _table_failure(opened.database_table, run)
    _remove_stale_files(outputs, written)
    stamps = outputs.stamps(unwritten=failure is not None)
    if outputs.places is not None:
        copy = previous.stamp or run.exported_files.get(PREVIOUS)
        if copy:
            stamps[PREVIOUS] = copy
    await write(database, "run_exported", run.revision, json.dumps(stamps), run.id)
    return Exported(
        outputs.files(but_table=failure is not None), failure, replaced, out.kept, count
    )


def _output_folder(
    outputs: Outputs,
    root: Path,
    written: list[WrittenFiles],
    mark: StoreMark,
    previous: PreviousFile,
) -> sinks.OutputFolder:
    """Returns what puts the files into place, and keeps those that were changed since they were
    written."""
    if outputs.places is not None:
        return sinks.OutputFolder(
            outputs.folder, root, previous.files, places=outputs.places, keep=previous.kept_as
        )
    return sinks.OutputFolder(outputs.folder, root, edited_files(outputs, written, mark))


def _replaced_run(outputs: Outputs, run: RunRecord, written: list[WrittenFiles]) -> int | None:
    """Returns the run whose results are in the folder; None if it is this one, or if there are
    none."""
    if outputs.places is not None or outputs.preview:
        return None
    if not (outputs.folder / "results.jsonl").exists():
        return None
    return next((other.run for other in written if other.shown and other.run != run.id), None)


def _open_sinks(
    outputs: Outputs, out: sinks.OutputFolder, layout: TableLayout | None, env: Mapping[str, str]
) -> _OpenSinks:
    """Opens the tables, which come first, and the JSON files that are always written."""
    tables: list[sinks.RowSink] = []
    database_table = None
    if layout is not None:
        tables, database_table = outputs.open(out, layout, env)
    json_files = {
        name: out.open(name, one_value=outputs.one_value and name == "results.json")
        for name in sinks.FILES
        if name in outputs.names and name not in sinks.OPTIONAL
    }
    return _OpenSinks(json_files, tables, database_table)


async def _write_rows(
    database: Database,
    run: RunRecord,
    final_rows: FinalRows | RowsElsewhere,
    lines_of: Callable[[list[ExportRow]], Lines],
    opened: _OpenSinks,
) -> int:
    """Writes all rows, and into errors.jsonl the failed ones that are not among them. Returns how
    many rows are in the results."""
    count = 0
    async for rows in final_rows.rows(database, run.id):
        lines = lines_of(rows)
        count += len(lines.results)
        opened.write(lines)
    errors = opened.json_files.get("errors.jsonl")
    if errors is not None:
        async for _, failed in final_rows.failed(database, run.id):
            errors.write_texts(Lines(failed, run.include_input).errors)
    return count


async def _write_optional_files(
    database: Database,
    run: RunRecord,
    outputs: Outputs,
    out: sinks.OutputFolder,
    source: RowsElsewhere | None,
) -> None:
    """Writes telemetry.jsonl and filtered.jsonl, as far as the run wants them."""
    if outputs.telemetry:
        await write_telemetry(database, run.id, out.open(sinks.TELEMETRY))
    if outputs.filtered:
        sink = out.open(sinks.FILTERED)
        left = filtered_lines(database, run) if source is None else source.filtered()
        async for lines in left:
            sink.write_texts([line for _, line in lines])


def _table_failure(table: sinks.IsolatedSink | None, run: RunRecord) -> AgacError | None:
    """Explains why the table of a database was not written, and how to write it; None: it was."""
    if table is None or table.failure is None:
        return None
    error = table.failure
    partial_run = "" if run.finished_at is not None else " --partial"
    remedy = (
        "The results are stored, and all other files are written. Write the table "
        f"with: agac export --run {run.id}{partial_run}"
    )
    return AgacError(
        f"{error.message}; nothing of it was written",
        remedy=f"{error.remedy or ''} {remedy}".strip(),
    )


def _remove_stale_files(outputs: Outputs, written: list[WrittenFiles]) -> None:
    """Removes files of formats that are not wanted any longer, unless they were changed since a
    run left them in this folder."""
    possible = {*map(sinks.file_of, sinks.TABLES), sinks.PREVIEW_DATABASE, *sinks.OPTIONAL}
    for name in possible.difference(outputs.names):
        stale = outputs.folder / name
        if not stale.is_file() or stale.is_symlink():
            continue
        if stamp(stale) in [earlier.files.get(name) for earlier in written]:
            stale.unlink()


async def _final_rows(
    database: Database,
    run: RunRecord,
    outputs: Outputs,
    *,
    tables: bool,
    source: RowsElsewhere | None = None,
) -> tuple[FinalRows | RowsElsewhere, TableLayout | None]:
    """Returns what reads the rows that are written, and the columns for `tables` and for results
    that are merged with rows."""
    formed = tables or outputs.merge not in PLAIN_MERGES
    layout = await _layout_of(database, run, outputs, source) if formed else None
    return source or await rows_of_run(database, run, outputs, formed=formed), layout


async def _layout_of(
    database: Database, run: RunRecord, outputs: Outputs, source: RowsElsewhere | None
) -> TableLayout:
    """Returns the columns of all rows, after a look at each of them."""
    definition = await runs.definition_of(database, run.id)
    stages = recorded_stages(definition)
    id_field = definition["input"]["id_field"]
    ends = [stages[position] for position in ends_of(definition)]
    observed = Observed(shape_of_ends(ends), outputs.fields)
    async for rows in (source or FinalRows(definition, formed=True)).rows(database, run.id):
        for row in rows:
            _observe(observed, row, id_field)
    maker = written_of(definition)
    return observed.layout(
        outputs.merge or "extend",
        result_name([end.name for end in ends]),
        id_field,
        grouped=is_grouped(stages, None if maker is None else stages[maker]),
        sources=outputs.sources,
    )


def _observe(observed: Observed, row: ExportRow, id_field: str | None) -> None:
    """Notes the fields, the id and the result of a row that has a line."""
    if row.state in (State.DONE, State.SKIPPED, State.FAILED):
        data = fields_of(row)
        observed.row(data)
        row_id = own_id(row, data, id_field)
        if row_id is not None:
            observed.row_id(row_id)
    if row.state == State.DONE and row.value is not None:
        observed.result(decoded(row.value))


async def _by_line(database: Database, run: RunRecord) -> bool:
    """True if lines of a text output correspond to those of a text input: all rows are selected,
    or the first ones."""
    source = (await runs.definition_of(database, run.id))["input"]
    chosen = run.selection.get("offset") or run.selection.get("sample")
    return source["format"] == "txt" and "sql" not in source and not chosen


async def rows_of_run(
    database: Database, run: RunRecord, outputs: Outputs, *, formed: bool
) -> FinalRows:
    """Returns what reads the rows that are written; `formed`: with what tables need."""
    definition = await runs.definition_of(database, run.id)
    inputs = run.include_input
    sources = outputs.sources
    return FinalRows(definition, formed=formed, inputs=inputs, hows=outputs.how, sources=sources)


async def export_file(
    database: Database,
    run: RunRecord,
    root: Path,
    file: Path,
    format: str,  # noqa: A002
    note: Callable[[Path], Awaitable[None]] | None = None,
) -> None:
    """Writes into one file, anywhere, what `results.FORMAT` in the run's output folder has, or
    would have.

    The file appears complete or not at all. The store is only read, except by `note`, which is
    awaited before a file of JSON appears."""
    outputs = Outputs(run, root, runs.row_counts(await runs.counters(database, run.id))["total"])
    final_rows, layout = await _final_rows(database, run, outputs, tables=format in sinks.TABLES)
    by_line = await _by_line(database, run)
    marks = outputs.places is not None
    sink: sinks.RowSink | sinks.JsonSink
    if layout is not None and format in sinks.TABLES:
        sink = sinks.TABLES[format](file, layout, outputs.csv_safe, outputs.bom)
    else:
        sink = sinks.FILES[sinks.file_of(format)](file)
        if outputs.one_value and format == "json":
            sink = sinks.JsonSink(file, sinks.ONE_VALUE)
    try:
        async for rows in final_rows.rows(database, run.id):
            lines = Lines(
                rows, run.include_input, layout, outputs.merge, by_line=by_line, marks=marks
            )
            if isinstance(sink, sinks.JsonSink):
                sink.write_texts(lines.results if format == "jsonl" else lines.values)
            else:
                sink.write(lines.rows)
        if note is not None and isinstance(sink, sinks.JsonSink):
            sink.finish()
            await note(sink.temporary)
        sink.commit()
    finally:
        sink.abort()


async def table_of(
    database: Database, run: RunRecord, root: Path
) -> tuple[Sequence[TableColumn], list[list[JSONValue]]]:
    """Returns the columns of the run's tables, and the cells of all rows."""
    outputs = Outputs(run, root, 0)
    final_rows, layout = await _final_rows(database, run, outputs, tables=True)
    assert layout is not None
    cells = []
    async for rows in final_rows.rows(database, run.id):
        cells += [row.cells for row in Lines(rows, False, layout, outputs.merge).rows]
    return layout.columns, cells
