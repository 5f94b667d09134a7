"""Output files and tables, made from the store: streamed in row order, written to a temporary
file, renamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agac.core.errors import AgacError, ErrorType, Problem, RowError, UsageError
from agac.core.keys import canonical, place_mark, snapshot
from agac.core.reading import read_as
from agac.core.types import JSONValue, RowId
from agac.data import sinks
from agac.data.files import PREVIOUS, PreviousFile, put_aside, stamp
from agac.data.json_formats import encode
from agac.data.postgres import PostgresSink, Server, reads_table
from agac.data.postgres import check_target as check_server
from agac.data.sqlite import FreshDatabase, TableSink, check_target, table_columns, tables_read
from agac.data.tables import (
    Fields,
    Observed,
    OutputRow,
    TableColumn,
    TableLayout,
    declared_fields,
    result_name,
)
from agac.engine.replay import FinalRows, RowViews, WrittenRows
from agac.engine.summary import RunSummary, StoreMark, SummaryFile, WrittenSummary
from agac.engine.telemetry import write_telemetry
from agac.plan.stage import ends_of, recorded_stages, written_of
from agac.spec.graph import StageNode, descent
from agac.spec.paths import POSTGRES, server_parts
from agac.spec.workflow import InputSpec, Merge, OutputFormat, TableTarget, Workflow, shape_of_ends
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database, write
from agac.store.rows import ExportRow, State, kept_rows, why_filtered
from agac.store.runs import RunRecord, WrittenFiles

if TYPE_CHECKING:
    from agac.plan.plan import Plan

TELEMETRY_ROWS = 100_000
"""Rows up to which telemetry.jsonl is written without being asked for: beyond, it is a gigabyte
that few look at, and to write it again would be most of what a run costs that finds one changed
cell."""

PREVIEW = "preview"  # folder, inside the output folder, of a run over a selection
_TEXTS = ("csv", "tsv", "files")  # formats whose fields are always text
PLAIN_MERGES = (None, "replace")  # where nothing but results is written in the JSON files
# under this name `exported_files` has the mark of the file that a row run writes row by row
GROWING = "growing"
Stamps = dict[str, list[int]]  # what files were when they were written: name → [bytes, mtime in ns]


class Outputs:
    """The outputs of a run as its last invocation wanted them. A preview keeps its table in a
    database of its own. `to` is the `table` of a database, at a `path` relative to the project
    root. `fields` are the result's in the order of its schema, as far as that says them: stored
    definitions are sorted. `one_value`: JSON is the one result and no list."""

    def __init__(self, run: RunRecord, root: Path, rows: int) -> None:
        """`rows` are those of the run's input that are stored."""
        body = run.outputs
        self.root = root
        self.folder = root / run.output_dir
        self.preview = bool(run.selection)
        self.formats: tuple[OutputFormat, ...] = tuple(body.get("formats", ()))
        self.to: dict[str, str] | None = body.get("to")
        self.merge: Merge | None = body.get("merge")
        self.csv_safe: bool = body.get("csv_safe", False)
        self.bom: bool = body.get("bom", False)
        self.how: bool = body.get("how", False)
        self.sources: bool = body.get("sources", False)
        self.one_value: bool = body.get("one_value", False) and rows == 1
        self.fields = tuple(body.get("fields", ()))
        self.telemetry: bool = body.get("telemetry", rows <= TELEMETRY_ROWS)
        self.filtered: bool = body.get("filtered", False)
        self.places: dict[str, Path] | None = None
        if "places" in body:  # a row run writes into these files, and into no folder
            self.places = {name: root / place for name, place in body["places"].items()}
            self.preview = False
            self.telemetry = sinks.TELEMETRY in self.places
            self.filtered = False
            self.formats = tuple(one for one in sinks.TABLES if sinks.file_of(one) in self.places)  # type: ignore[misc]

    def path(self, name: str) -> Path:
        """Where the file of this name is."""
        if self.places is None:
            return self.folder / name
        return self.places[name]

    def previous(self, run: RunRecord, written: Sequence[WrittenFiles]) -> PreviousFile:
        """What keeps the results of a row run as they were; `written` is what runs wrote there."""
        results = next(
            (path for name, path in (self.places or {}).items() if name.startswith("results.")),
            None,
        )
        known = [known for one in written for known in one.files.values()]
        return PreviousFile(results, known, run.exported_files.get(GROWING))

    @property
    def tables(self) -> bool:
        """Whether anything with columns is written."""
        return bool(self.formats or self.to)

    @property
    def names(self) -> list[str]:
        """The files of the output folder."""
        if self.places is not None:
            return sorted(self.places, key=lambda name: not name.startswith("results."))
        if self.to is not None and self.preview:
            database = [sinks.PREVIEW_DATABASE]
        else:
            database = []
        wanted = {sinks.TELEMETRY: self.telemetry, sinks.FILTERED: self.filtered}
        return [
            *(name for name in sinks.FILES if wanted.get(name, True)),
            *map(sinks.file_of, self.formats),
            *database,
        ]

    @property
    def database(self) -> Path | None:
        """The user's database that is written to, if there is one and it is a file."""
        if self.to is not None and not self.preview and not self.at_server:
            return self.root / self.to["path"]
        return None

    @property
    def at_server(self) -> bool:
        """Whether the table that is written to is in a database of a server."""
        return (
            self.to is not None and not self.preview and POSTGRES.match(self.to["path"]) is not None
        )

    def files(self, *, but_table: bool = False) -> list[Path]:
        """Every file that is written; `but_table`: that of the table is not."""
        found = [*map(self.path, self.names), *([self.database] if self.database else [])]
        table = self.database or self.folder / sinks.PREVIEW_DATABASE
        if but_table:
            return [file for file in found if file != table]
        return found

    def open(
        self, out: sinks.OutputFolder, layout: TableLayout, env: Mapping[str, str]
    ) -> tuple[list[sinks.RowSink], sinks.IsolatedSink | None]:
        """The sinks of tables and lines, which end together with the folder's files, and that of
        the table in a database among them. It comes first: what cannot be put in place by renaming
        is done before anything is."""
        if self.to is not None:
            table = out.add(sinks.IsolatedSink(partial(self._table, self.to, layout, env)))
        else:
            table = None
        files = ((one, self.path(sinks.file_of(one))) for one in self.formats)
        opened = (
            out.add(sinks.TABLES[one](file, layout, self.csv_safe, self.bom)) for one, file in files
        )
        return [*([table] if table else []), *opened], table

    def _table(
        self, to: dict[str, str], layout: TableLayout, env: Mapping[str, str]
    ) -> sinks.RowSink:
        if self.at_server:
            return PostgresSink(Server(to["path"], env), to["table"], layout)
        if self.database is None:
            return FreshDatabase(self.folder / sinks.PREVIEW_DATABASE, to["table"], layout)
        return TableSink(self.database, to["table"], layout, to["path"])

    def stamps(self, *, unwritten: bool = False) -> Stamps:
        """What the files are now. A database is only there or not: others write to it.
        `unwritten`: no table came."""
        found = {name: stamp(file) for name in self.names if (file := self.path(name)).exists()}
        if self.to is None or self.preview:
            name = sinks.PREVIEW_DATABASE
        else:
            name = f"to:{self.to['path']}"
        if self.at_server or (self.database is not None and self.database.exists()):
            found[name] = [0, 0]
        if unwritten:
            found[name] = runs.UNWRITTEN
        return found


def target_of(plan: Plan) -> Path:
    """The folder with the results of a plan, or the file of a row run."""
    preview = plan.selection.partial and plan.output.places is None
    return plan.output.dir / PREVIEW if preview else plan.output.dir


def outputs_text(plan: Plan) -> str:
    """What is written besides the JSON files and how, as it is kept with a run: canonical JSON of
    what is set."""
    spec = plan.output
    shape = shape_of_ends(plan.ends)
    body: dict[str, object] = {
        "formats": sorted(spec.formats) or None,
        "merge": spec.merge,
        "csv_safe": spec.csv_safe or None,
        "to": spec.to and {"path": spec.to.shown, "table": spec.to.table},
        "bom": spec.bom or None,
        "how": spec.how or None,
        "sources": spec.sources or None,
        "one_value": spec.one_value or None,
        "places": None if spec.places is None else dict(spec.places),
    }
    body = {name: value for name, value in body.items() if value is not None}
    if body and shape is not None:
        body["fields"] = list(declared_fields(shape))
    if any(stage.may_drop for stage in plan.stages) or plan.input.on_duplicate_id in (
        "first",
        "last",
    ):
        body["filtered"] = True
    if plan.rules.telemetry_file is not None:
        body["telemetry"] = plan.rules.telemetry_file
    return canonical(body)


def refusals(
    workflow: Workflow,
    columns: tuple[str, ...] | None,
    root: Path,
    env: Mapping[str, str],
    *,
    preview: bool,
) -> list[Problem]:
    """What would be in the way of the results, found before they are paid for; opens nothing for
    writing. `columns` are the input's, None where it declares none. `env` has the variables of
    addresses."""
    output, to = workflow.output, workflow.output.to
    names = list(map(sinks.file_of, output.formats))
    if to is not None and preview:
        names.append(sinks.PREVIEW_DATABASE)
    folder = output.dir / PREVIEW if preview else output.dir
    checks: list[tuple[Problem, Callable[[], None]]] = []
    if output.places is None:
        at = Problem(replace(output.where, path="output.dir"), "")
        checks.append((at, partial(sinks.check_folder, folder, root, names)))
    if to is not None and not preview:
        into = Problem(to.where, "")
        checks.append((into, partial(_refuse_own_input, workflow.input, to, env)))
        checks.append((into, partial(_check_table, to, _known_columns(workflow, columns), env)))
    found = []
    for problem, check in checks:
        try:
            check()
        except AgacError as error:
            found.append(replace(problem, message=f"{error.message}. {error.remedy or ''}".strip()))
    return found


def _known_columns(workflow: Workflow, columns: tuple[str, ...] | None) -> list[TableColumn]:
    """The columns of the table, as far as they are certain before a row is read: the key, which is
    the first, the row's and those of the result's schema. What is not known of them is said at the
    end."""
    source = workflow.input
    ends = workflow.ends
    output = workflow.output
    merge = output.merge or "extend"
    grouped = is_grouped(
        workflow.stages, next((one for one in workflow.stages if one.name == output.rows), None)
    )
    columns = None if grouped else columns
    observed = Observed(shape_of_ends(ends))
    if source.format in _TEXTS or grouped:
        observed.row_id("")
    observed.row(dict.fromkeys(columns or (), "" if source.format in _TEXTS else None))
    name = result_name([stage.name for stage in ends])
    layout = observed.layout(merge, name, source.id_field, grouped=grouped)
    if columns is None and merge != "replace":
        return [layout.key]  # which of the result's names clash with the row's is not known
    kept = table_columns(replace(layout, columns=layout.columns[:-1]))
    return [kept[0], *(column for column in kept[1:] if column.name in layout.merger.fields)]


def _check_table(
    target: TableTarget, columns: Sequence[TableColumn], env: Mapping[str, str]
) -> None:
    if target.path is None:
        check_server(Server(target.shown, env), target.table, columns)
    else:
        check_target(target.path, target.table, columns, target.shown)


def _refuse_own_input(source: InputSpec, target: TableTarget, env: Mapping[str, str]) -> None:
    """A table that the input reads, perhaps by way of a view: what is written would change every
    row."""
    its_own = False
    if source.format == "postgres" and source.statement and target.path is None:
        servers = [
            Server(address, env)
            for address in (server_parts(source.shown, "query", "table")[0], target.shown)
        ]
        its_own = reads_table(servers[0], source.statement, servers[1], target.table)
    elif source.statement and source.path == target.path and source.path.is_file():
        its_own = target.table.lower() in tables_read(source.path, source.statement, source.shown)
    if its_own:
        raise UsageError(
            f"{target.shown}: the input reads the table {target.table!r}: what is written into it "
            "would change the rows, and all of them would be asked again",
            remedy="Name another table in output.to.",
        )


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
        folder = sinks.OutputFolder(outputs.folder, root, _edited(outputs, written, token, place))
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
                    data = _fields(row)
                    observed.row(data)
                    own = _own_id(row, data, id_field)
                    if own is not None:
                        observed.row_id(own)
                if row.state == State.DONE and row.value is not None:
                    observed.result(_decoded(row.value))
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


def order_key(level: int, ordinal: int | None, row_id: RowId) -> list[Any]:
    """Where a row stands: among those of its level by the row of the input above it, without one
    by its id."""
    if ordinal is not None:
        return [level, ordinal]
    return [level, isinstance(row_id, str), row_id]


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


def _edited(outputs: Outputs, written: list[WrittenFiles], token: str, place: str) -> list[Path]:
    """Files that are about to be replaced and are not as any run left them. What is not known to
    have been written by a run may be a user's own, or what a store wrote here that is lost; but
    not outputs that came from another place, and no logs of that store."""
    found = []
    told = read_summary(outputs.folder)
    mark = told.store if told is not None else None
    if mark is not None:
        left_here = mark.place == place and mark.id != token
    else:
        left_here = False
    foreign = written or told is None or left_here
    for file in (outputs.folder / name for name in outputs.names):
        stamps = [one.files[file.name] for one in written if file.name in one.files]
        if (
            not (stamps or foreign)
            or not file.is_file()
            or stamp(file) in stamps
            or _left_alone(file)
        ):
            continue
        found += [file] if file.stat().st_size else []
    return found


def _left_alone(file: Path) -> bool:
    """Whether this is one of the two logs, both of which agac writes before it renames either, and
    older than that."""
    logs = {"summary.json": "telemetry.jsonl", "telemetry.jsonl": "summary.json"}
    other = file.with_name(logs.get(file.name, file.name))
    return other != file and other.exists() and file.stat().st_mtime_ns <= other.stat().st_ctime_ns


def place_of_project(root: Path) -> str:
    """Tells this project from its copies."""
    real = root.resolve()
    return place_mark(str(real), real.stat().st_ino)


async def lost_store(
    database: Database | None, workflow: str, root: Path, output: str
) -> tuple[str, str] | None:
    """What happened to the store, and the mark under which that is accepted, where the summary in
    the run's own output folder was written here for this workflow by another store, or by this one
    when it was newer; None where it was not, or where that was accepted. Previews, and what
    another project wrote, have no such mark."""
    told = read_summary(root / output)
    if told is None or told.store is None or (told.workflow, told.output) != (workflow, output):
        return None
    if told.store.place != place_of_project(root):
        return None
    if database is None or told.store.id != await project_token(database):
        what = f"the store that wrote {output} is not there: it was deleted, emptied or replaced"
    else:
        run = await runs.read_run(database, told.run)
        if run is None:
            was_dropped = told.run <= await runs.last_run_number(database)
            if was_dropped:
                return None
        elif run.workflow == workflow and run.revision >= told.store.generation:
            return None
        what = f"the store is an older copy of the one that wrote {output}"
    if database is not None and await runs.store_accepted(database, told.mark):
        return None
    return what, told.mark


def read_summary(folder: Path, name: str = "summary.json") -> WrittenSummary | None:
    """Reads the summary in this folder; None where there is none that agac wrote."""
    try:
        return read_as(WrittenSummary, json.loads((folder / name).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def keep_previous(folder: Path) -> None:
    """Keeps the results in this folder beside those that take their place, unless earlier ones are
    kept already."""
    if read_summary(folder, f"summary.{PREVIOUS}.json") is None:
        for file in sinks.result_files(folder):
            if file.is_file() and not file.is_symlink():
                put_aside(file, PREVIOUS, replace=True)


def is_grouped(stages: Sequence[StageNode], maker: StageNode | None) -> bool:
    """Whether the rows of this maker are groups, or were made of them: no row of the input stands
    behind one."""
    return any(one.makes == "groups" for one in descent(stages, maker))


def _own_id(row: ExportRow, data: Fields, id_field: str | None) -> RowId | None:
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


def _decoded(stored: str) -> JSONValue:
    """The value of stored JSON, which has no white space around it: `json.loads` costs three times
    as much."""
    return _decode(stored)[0]


def _fields(row: ExportRow) -> Fields:
    if row.form is not None:
        return row.form
    return _decoded(row.data) or {}


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
                data = _fields(row)
                result = _decoded(value)
                cells = layout.cells(layout.merger.record(data, result), None, row.sources)
                if self._merge is not None:
                    record = layout.merger.value(data, result)
                else:
                    record = result
                self.rows.append(
                    OutputRow(
                        _own_id(row, data, layout.id_field), cells, record, line=self._line(row)
                    )
                )
                value = encode(record) if self._merge not in PLAIN_MERGES else value
            self.results.append(self._envelope(row, value, None, with_input=self._include_input))
            self.values.append(value)
        elif (failed := row.error) is not None:
            if layout is not None:
                data = _fields(row)
                why = f"{failed.type}: {failed.message}"
                cells = layout.cells(layout.merger.failed(data), why, row.sources)
                self.rows.append(
                    OutputRow(
                        _own_id(row, data, layout.id_field), cells, None, why, self._line(row)
                    )
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
            number = (_decoded(row.data) or {}).get("line_number")
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


def is_shown(run: RunRecord, root: Path, rows: int) -> bool:
    """Whether the files in the output folder are what an export would write: none is missing, cut
    or another's."""
    shown = {name: stamp for name, stamp in run.exported_files.items() if name != PREVIOUS}
    return run.exported_revision == run.revision and shown == Outputs(run, root, rows).stamps()
