"""Output files and tables, made from the store: streamed in row order, written to a temporary file, renamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.core.errors import AgacError, ErrorType, Problem, RowError, UsageError
from agac.core.keys import canonical, snapshot
from agac.core.types import JSONValue, RowId
from agac.data.json_text import encode
from agac.data.sinks import (
    FILES,
    FILTERED,
    OPTIONAL,
    PREVIEW_DATABASE,
    TABLES,
    TELEMETRY,
    IsolatedSink,
    OutputFolder,
    RowSink,
    Sink,
    check_folder,
    envelope,
    file_of,
)
from agac.data.sqlite import FreshDatabase, TableSink, check_target, table_columns, tables_read
from agac.data.tables import Fields, Observed, OutputRow, TableColumn, TableLayout, declared_fields, result_name
from agac.engine.replay import FinalRows, RowViews, WrittenRows
from agac.engine.telemetry import write_telemetry
from agac.plan.stage import RecordedStage, ends_of, recorded_stages
from agac.spec.levels import descent
from agac.spec.workflow import InputSpec, Merge, OutputFormat, TableTarget, Workflow, shape_of_ends
from agac.store.db import Database, write
from agac.store.rows import ExportRow, State, why_filtered
from agac.store.runs import UNWRITTEN, RunRecord, WrittenFiles, definition_of, files_written

if TYPE_CHECKING:
    from agac.plan.plan import Plan


# filtered.jsonl: a line for each row that a stage made leave, with the guard and the values that it looked at.


async def write_filtered(database: Database, run: RunRecord, sink: Sink) -> None:
    """Writes the whole of filtered.jsonl: `{"id","row_number","stage","when","values"}`, then `input` if included.

    Rows of the input come first, in order, those that a function gave in the place of one where it stands; then level
    by level those that stages made, in the order of the rows that they come from, and groups by their ids.
    """
    definition = await definition_of(database, run.id)
    stages = recorded_stages(definition)
    lineage = RowViews(stages, definition["vars"], database)
    for maker in (None, *(stage for stage in stages if stage.makes not in (None, "rows"))):
        async for rows in WrittenRows(database, run.id, stages, descent(stages, maker)).rows():
            if left := [row for row in rows if row.state == State.FILTERED]:
                await _write(database, left, stages, lineage if run.include_input else None, sink)


async def _write(
    database: Database, rows: list[ExportRow], stages: tuple[RecordedStage, ...], lineage: RowViews | None, sink: Sink
) -> None:
    """Some rows that left; without `lineage` their fields are left out. Of a row that a stage made they are those with
    which it left."""
    why = await why_filtered(database, [row.key for row in rows])
    row_views = await lineage.ended([row.key for row in rows if row.made]) if lineage is not None else {}
    for row in rows:
        position, note = why[row.key]
        about = {"id": row.id, "row_number": row.ordinal, "stage": stages[position].name, **json.loads(note)}
        data = snapshot(row_views[row.key].data(stages[position])) if row.key in row_views else row.data
        tail = f',"input":{data}' if lineage is not None else ""
        sink.write_text(f"{encode(about)[:-1]}{tail}}}")


TELEMETRY_ROWS = 100_000
"""Rows up to which telemetry.jsonl is written without being asked for: beyond, it is a gigabyte that few look at, and
to write it again would be most of what a run costs that finds one changed cell."""

PREVIEW = "preview"
"""Folder, inside the output folder, of a run over a selection."""

_TEXTS = ("csv", "tsv", "files")
"""Formats whose fields are always text."""

Stamps = dict[str, list[int]]
"""What files were when they were written: name → [bytes, mtime in ns]."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a database, at a path relative to the project root."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a run as its last invocation wanted them. A preview keeps its table in a database of its own.

    `fields` are the result's in the order of its schema, as far as that says them: stored definitions are sorted.
    """

    folder: Path
    formats: tuple[OutputFormat, ...]
    to: Table | None
    merge: Merge | None
    csv_safe: bool
    fields: tuple[str, ...]
    preview: bool
    telemetry: bool
    filtered: bool

    @staticmethod
    def of(run: RunRecord, root: Path, rows: int) -> Outputs:
        """What the run's record says; `rows` are those of its input that are stored."""
        body = run.outputs
        to = body.get("to")
        return Outputs(
            root / run.output_dir,
            tuple(body.get("formats", ())),
            Table(to["path"], to["table"]) if to else None,
            body.get("merge"),
            body.get("csv_safe", False),
            tuple(body.get("fields", ())),
            bool(run.selection),
            body.get("telemetry", rows <= TELEMETRY_ROWS),
            body.get("filtered", False),
        )

    @property
    def tabular(self) -> bool:
        """Whether anything is written beside the JSON files."""
        return bool(self.formats) or self.to is not None

    @property
    def shapes_json(self) -> bool:
        """Whether the JSON files hold something else than results alone."""
        return self.merge is not None and self.merge != "replace"

    @property
    def names(self) -> list[str]:
        """The files of the output folder."""
        database = [PREVIEW_DATABASE] if self.to is not None and self.preview else []
        wanted = {TELEMETRY: self.telemetry, FILTERED: self.filtered}
        return [*(name for name in FILES if wanted.get(name, True)), *map(file_of, self.formats), *database]

    def database(self, root: Path) -> Path | None:
        """The user's database that is written to, if there is one."""
        return root / self.to.path if self.to is not None and not self.preview else None

    def files(self, root: Path, *, but_table: bool = False) -> list[Path]:
        """Every file that is written; `but_table`: that of the table is not."""
        database = self.database(root)
        found = [*(self.folder / name for name in self.names), *([database] if database else [])]
        table = database or self.folder / PREVIEW_DATABASE
        return [file for file in found if file != table] if but_table else found

    def edited(self, written: Iterable[Stamps]) -> tuple[Path, ...]:
        """Files that are about to be replaced and are not as any run left them: somebody changed them since."""
        left = list(written)
        found = []
        for file in (self.folder / name for name in self.names):
            stamps = [stamp[file.name] for stamp in left if file.name in stamp]
            if stamps and file.is_file() and _stamp(file) not in stamps:
                found.append(file)
        return tuple(found)

    def open(self, out: OutputFolder, root: Path, layout: TableLayout) -> tuple[list[RowSink], IsolatedSink | None]:
        """The sinks of tables and lines, which end together with the folder's files, and that of the table in a
        database among them. It comes first: what cannot be put in place by renaming is done before anything is."""
        folder, safe = self.folder, self.csv_safe
        table = None if self.to is None else out.add(IsolatedSink(partial(self._table, self.to.name, root, layout)))
        others = [out.add(TABLES[name](folder / file_of(name), layout, safe)) for name in self.formats]
        return [*([table] if table else []), *others], table

    def _table(self, name: str, root: Path, layout: TableLayout) -> RowSink:
        database = self.database(root)
        if self.to is None or database is None:
            return FreshDatabase(self.folder / PREVIEW_DATABASE, name, layout)
        return TableSink(database, name, layout, self.to.path)

    def stamps(self, root: Path, *, unwritten: bool = False) -> Stamps:
        """What the files are now. A database is only there or not: others write into it too. `unwritten`: the table
        could not be written."""
        found = {file.name: _stamp(file) for name in self.names if (file := self.folder / name).exists()}
        database = self.database(root)
        name = PREVIEW_DATABASE if self.to is None or database is None else f"to:{self.to.path}"
        if database is not None and database.exists():
            found[name] = [0, 0]
        if unwritten:
            found[name] = UNWRITTEN
        return found

    def remove_stale(self, written: Iterable[Stamps]) -> None:
        """Removes files of formats that are not wanted any longer, where they are as a run in this folder left them."""
        known = [*map(file_of, TABLES), PREVIEW_DATABASE, *OPTIONAL]
        stamps = list(written)
        for name in set(known) - set(self.names):
            file = self.folder / name
            if file.is_file() and not file.is_symlink() and _stamp(file) in [stamp.get(name) for stamp in stamps]:
                file.unlink()


def outputs_text(plan: Plan) -> str:
    """What is written beside the JSON files and how, as it is kept with a run: canonical JSON of what is set."""
    spec, shape = plan.output, plan.result_shape
    body: dict[str, object] = {}
    if spec.formats:
        body["formats"] = sorted(spec.formats)
    if spec.to is not None:
        body["to"] = {"path": spec.to.shown, "table": spec.to.table}
    if spec.merge is not None:
        body["merge"] = spec.merge
    if spec.csv_safe:
        body["csv_safe"] = True
    if body and shape is not None:
        body["fields"] = list(declared_fields(shape))
    if any(stage.may_drop for stage in plan.stages):
        body["filtered"] = True
    if plan.rules.telemetry_file is not None:
        body["telemetry"] = plan.rules.telemetry_file
    return canonical(body)


def refusals(workflow: Workflow, columns: tuple[str, ...] | None, root: Path, *, preview: bool) -> list[Problem]:
    """What would be in the way of the results, found before they are paid for; opens nothing for writing. `columns`
    are the input's, None where it declares none."""
    output, to = workflow.output, workflow.output.to
    names = list(map(file_of, output.formats))
    if to is not None and preview:
        names.append(PREVIEW_DATABASE)
    folder = output.dir / PREVIEW if preview else output.dir
    checks: list[tuple[Problem, Callable[[], None]]] = [
        (Problem(output.where, "", "output.dir"), partial(check_folder, folder, root, names))
    ]
    if to is not None and not preview:
        into = Problem(to.where, "", "output.to")
        checks.append((into, partial(_refuse_own_input, workflow.input, to)))
        checks.append((into, partial(check_target, to.path, to.table, _known_columns(workflow, columns), to.shown)))
    found = []
    for problem, check in checks:
        try:
            check()
        except AgacError as error:
            found.append(replace(problem, message=f"{error.message}. {error.remedy or ''}".strip()))
    return found


def _known_columns(workflow: Workflow, columns: tuple[str, ...] | None) -> list[TableColumn]:
    """The columns of the table, as far as they are certain before a row is read: the key, which is the first, the
    row's and those of the result's schema. What is not known of them is said at the end."""
    source, ends, merge = workflow.input, workflow.ends, workflow.output.merge or "extend"
    observed = Observed(shape_of_ends([(stage.name, stage.shape) for stage in ends]))
    if source.format in _TEXTS:
        observed.row_id("")
    observed.row(dict.fromkeys(columns or (), "" if source.format in _TEXTS else None))
    layout = observed.layout(merge, result_name([stage.name for stage in ends]), source.id_field)
    if columns is None and merge != "replace":
        return [layout.key]  # which of the result's names clash with the row's is not known
    kept = table_columns(replace(layout, columns=layout.columns[:-1]))
    return [kept[0], *(column for column in kept[1:] if column.name in layout.merger.fields)]


def _refuse_own_input(source: InputSpec, target: TableTarget) -> None:
    """A table that the input reads, perhaps by way of a view: what is written would change every row."""
    if source.statement is None or source.path != target.path or not source.path.is_file():
        return
    if target.table.lower() in tables_read(source.path, source.statement, source.shown):
        raise UsageError(
            f"{target.shown}: the input reads the table {target.table!r}: what is written into it would change the "
            "rows, and all of them would be asked again",
            remedy="Name another table in output.to.",
        )


def _stamp(file: Path) -> list[int]:
    stat = file.lstat()
    return [stat.st_size, stat.st_mtime_ns]


# Output files, made from the store: streamed in row order, written aside, renamed. They can be made again any time.


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
    ended = FinalRows(await definition_of(database, run.id), formed=shaper is not None, inputs=run.include_input)
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


def _before(run: RunRecord, outputs: Outputs, written: list[WrittenFiles]) -> tuple[int | None, tuple[Path, ...]]:
    """The run whose results are about to be replaced, where it is another, and files that are not as any run left them.

    After an export that was killed it is not known whose files are there, or who changed them.
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


async def _look(database: Database, run: RunRecord, outputs: Outputs) -> TableLayout:
    """The columns of all rows, by a look at each."""
    definition = await definition_of(database, run.id)
    stages, id_field = recorded_stages(definition), definition["input"]["id_field"]
    ends = [stages[place] for place in ends_of(definition)]
    observed = Observed(shape_of_ends([(end.name, end.shape) for end in ends]), outputs.fields)
    async for rows in FinalRows(definition, formed=True).rows(database, run.id):
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

    def __init__(self, layout: TableLayout, *, merged: bool) -> None:
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
