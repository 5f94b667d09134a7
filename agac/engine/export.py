"""Output files and tables, made from the store: streamed in row order, written to a temporary
file, renamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agac.core.errors import AgacError
from agac.core.types import JSONValue
from agac.data import sinks
from agac.data.files import PREVIOUS, stamp
from agac.data.tables import (
    Observed,
    TableColumn,
    TableLayout,
    result_name,
)
from agac.engine.output_folder import edited_files, place_of_project
from agac.engine.output_lines import Lines, decoded, fields_of, filtered_lines, is_grouped, own_id
from agac.engine.outputs import PLAIN_MERGES, Outputs
from agac.engine.replay import FinalRows
from agac.engine.summary import RunSummary, StoreMark, SummaryFile
from agac.engine.telemetry import write_telemetry
from agac.plan.stage import ends_of, recorded_stages, written_of
from agac.spec.workflow import shape_of_ends
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database, write
from agac.store.rows import ExportRow, State
from agac.store.runs import RunRecord

# Output files, made from the store: streamed in row order, written aside, renamed. They can be made
# again any time.


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, and what was there before. `not_written` is why a table in a database
    is not among the `files`. `replaced` is the run whose results stood in the folder, where it was
    another one; `edited` are files that were changed since they were written, with the copies in
    which the changes are kept. `lines`: how many rows are in the results; None: nothing was
    written."""

    files: list[Path]
    not_written: AgacError | None = None
    replaced: int | None = None
    edited: Mapping[Path, Path] = field(default_factory=dict)
    lines: int | None = None


class RowsElsewhere(Protocol):
    """Reads the final rows of a run that this store does not hold."""

    def rows(self, database: Database, run: int, /) -> AsyncIterator[list[ExportRow]]:
        """Yields all rows that are written, some hundred at a time."""
        ...

    def failed(self, database: Database, run: int, /) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """Yields the failed rows that `rows` does not come to, with their levels."""
        ...

    def filtered(self) -> AsyncIterator[list[tuple[Any, str]]]:
        """Yields the lines of rows that a stage made leave, each after its key."""
        ...


async def export_run(
    database: Database,
    run: RunRecord,
    root: Path,
    summary: RunSummary,
    env: Mapping[str, str],
    source: RowsElsewhere | None = None,
) -> Exported:
    """Writes the JSON files into the run's output folder, and the other outputs that its workflow
    asks for. `env` has the variables of a server's address. A row without an outcome has no
    envelope; `results.json` holds the ok results; `errors.jsonl` always has the input. A crash
    leaves the old files or the new ones, and no run that claims to be shown there: the next one
    writes them again. A table of a database that cannot be written keeps nothing else from being
    replaced. The rows come from a `source` where the store has none."""
    outputs = Outputs(run, root, summary.rows.total)
    outputs.telemetry = outputs.telemetry and source is None
    ended, layout = await _final_rows(database, run, outputs, tables=outputs.tables, source=source)
    by_line = await _by_line(database, run)
    marks = outputs.places is not None
    written = await runs.files_written(database, run.output_dir)
    token = await project_token(database)
    place = place_of_project(root)
    keep = outputs.previous(run, written)
    replaced = None  # the run whose results were there, where it is another
    if outputs.places is None:
        if not outputs.preview and (outputs.folder / "results.jsonl").exists():
            replaced = next((one.run for one in written if one.shown and one.run != run.id), None)
        folder = sinks.OutputFolder(
            outputs.folder, root, edited_files(outputs, written, token, place)
        )
    else:
        folder = sinks.OutputFolder(
            outputs.folder, root, keep.files, places=outputs.places, keep=keep.kept_as
        )
    mark = None
    if not outputs.preview and source is None:
        mark = StoreMark(token, run.revision, place)
    await write(database, "run_exporting", run.id)
    written_lines = 0
    with folder as out:
        others, table = outputs.open(out, layout, env) if layout else ([], None)
        opened = {
            name: out.open(name, one_value=outputs.one_value and name == "results.json")
            for name in sinks.FILES
            if name in outputs.names and name not in sinks.OPTIONAL
        }
        async for rows in ended.rows(database, run.id):
            lines = Lines(
                rows, run.include_input, layout, outputs.merge, by_line=by_line, marks=marks
            )
            written_lines += len(lines.results)
            for name, texts in lines.by_file.items():
                if name in opened:
                    opened[name].write_texts(texts)
            for sink in others:
                sink.write(lines.rows)
        if "errors.jsonl" in opened:
            async for _, rows in ended.failed(database, run.id):
                opened["errors.jsonl"].write_texts(Lines(rows, run.include_input).errors)
        if "summary.json" in opened:
            opened["summary.json"].write(SummaryFile(summary, mark).as_json())
        if outputs.telemetry:
            await write_telemetry(database, run.id, out.open(sinks.TELEMETRY))
        if outputs.filtered:
            sink = out.open(sinks.FILTERED)
            async for lines_of_some in (
                filtered_lines(database, run) if source is None else source.filtered()
            ):
                sink.write_texts([line for _, line in lines_of_some])
    failure = None  # of a table, which keeps no file from being written
    if table is not None and (error := table.failure) is not None:
        again = f"agac export --run {run.id}{'' if run.finished_at is not None else ' --partial'}"
        remedy = (
            "The results are stored, and all other files are written. Write the table "
            f"with: {again}"
        )
        what = f"{error.message}; nothing of it was written"
        remedy = f"{error.remedy or ''} {remedy}".strip()
        failure = AgacError(what, remedy=remedy)
    # files of formats that are not wanted any longer, where they are as a run in this folder left
    # them
    for name in {
        *map(sinks.file_of, sinks.TABLES),
        sinks.PREVIEW_DATABASE,
        *sinks.OPTIONAL,
    }.difference(outputs.names):
        stale = outputs.folder / name
        if (
            stale.is_file()
            and not stale.is_symlink()
            and stamp(stale) in [one.files.get(name) for one in written]
        ):
            stale.unlink()
    stamps = outputs.stamps(unwritten=failure is not None)
    if outputs.places is not None and (copy := keep.stamp or run.exported_files.get(PREVIOUS)):
        stamps[PREVIOUS] = copy
    await write(database, "run_exported", run.revision, json.dumps(stamps), run.id)
    return Exported(
        outputs.files(but_table=failure is not None), failure, replaced, out.kept, written_lines
    )


async def _final_rows(
    database: Database,
    run: RunRecord,
    outputs: Outputs,
    *,
    tables: bool,
    source: RowsElsewhere | None = None,
) -> tuple[FinalRows | RowsElsewhere, TableLayout | None]:
    """What reads the rows that are written, and the columns for `tables` and for results that are
    merged with rows."""
    layout = None
    formed = tables or outputs.merge not in PLAIN_MERGES
    if formed:
        # the columns of all rows, by a look at each
        definition = await runs.definition_of(database, run.id)
        stages = recorded_stages(definition)
        id_field = definition["input"]["id_field"]
        ends = [stages[place] for place in ends_of(definition)]
        observed = Observed(shape_of_ends(ends), outputs.fields)
        async for rows in (source or FinalRows(definition, formed=True)).rows(database, run.id):
            for row in rows:
                if row.state in (State.DONE, State.SKIPPED, State.FAILED):  # which have a line
                    data = fields_of(row)
                    observed.row(data)
                    own = own_id(row, data, id_field)
                    if own is not None:
                        observed.row_id(own)
                if row.state == State.DONE and row.value is not None:
                    observed.result(decoded(row.value))
        maker = written_of(definition)
        grouped = is_grouped(stages, None if maker is None else stages[maker])
        name = result_name([end.name for end in ends])
        merge = outputs.merge or "extend"
        sources = outputs.sources
        layout = observed.layout(merge, name, id_field, grouped=grouped, sources=sources)
    return source or await rows_of_run(database, run, outputs, formed=formed), layout


async def _by_line(database: Database, run: RunRecord) -> bool:
    """Whether lines of a text output are to correspond to those of a text input: all are selected,
    or the first."""
    source = (await runs.definition_of(database, run.id))["input"]
    chosen = run.selection.get("offset") or run.selection.get("sample")
    return source["format"] == "txt" and "sql" not in source and not chosen


async def rows_of_run(
    database: Database, run: RunRecord, outputs: Outputs, *, formed: bool
) -> FinalRows:
    """What reads the rows that are written; `formed`: with what tables need."""
    definition = await runs.definition_of(database, run.id)
    inputs = run.include_input
    sources = outputs.sources
    return FinalRows(definition, formed=formed, inputs=inputs, hows=outputs.how, sources=sources)


async def export_file(
    database: Database, run: RunRecord, root: Path, file: Path, format: str,  # noqa: A002
    note: Callable[[Path], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """Writes into one file, anywhere, what `results.FORMAT` in the run's output folder holds or
    would hold. It appears whole or not at all; nothing is noted of it but by `note`, before a file
    of JSON appears; the store is read."""
    outputs = Outputs(run, root, runs.row_counts(await runs.counters(database, run.id))["total"])
    ended, layout = await _final_rows(database, run, outputs, tables=format in sinks.TABLES)
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
        async for rows in ended.rows(database, run.id):
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
    """The columns of the run's tables, and the cells of each row, in memory."""
    outputs = Outputs(run, root, 0)
    ended, layout = await _final_rows(database, run, outputs, tables=True)
    assert layout is not None
    read = ended.rows(database, run.id)
    return layout.columns, [
        row.cells async for rows in read for row in Lines(rows, False, layout, outputs.merge).rows
    ]
