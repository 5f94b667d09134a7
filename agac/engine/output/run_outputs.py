"""Says which outputs a run has, its files and its table, and where; and what of that is stored with
the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.keys import canonical
from agac.data import sinks
from agac.data.files import PREVIOUS, PreviousFile, stamp
from agac.data.postgres import PostgresSink, Server
from agac.data.sqlite import FreshDatabase, TableSink
from agac.data.tables import TableLayout, declared_fields
from agac.spec.data_specs import Merge, OutputFormat
from agac.spec.paths import POSTGRES
from agac.spec.workflow import shape_of_ends
from agac.store import runs
from agac.store.runs import RunRecord, WrittenFiles

if TYPE_CHECKING:
    from agac.plan.plan import Plan

TELEMETRY_ROWS = 100_000
"""Rows up to which telemetry.jsonl is written without being asked for. With more it is a gigabyte
that few look at, and most of the cost of a run that finds one changed cell would be to write it
again."""

PREVIEW = "preview"
"""The folder, inside the output folder, of a run over a selection."""

PLAIN_MERGES = (None, "replace")
"""Merges with which the JSON files have only results."""

GROWING = "growing"
"""The name in `exported_files` of the mark of the file that a row run writes row by row."""

Stamps = dict[str, list[int]]
"""What files were when they were written: name → [bytes, mtime in ns]."""


class Outputs:
    """The outputs of a run as its last invocation wanted them. A preview has its table in a
    database of its own."""

    def __init__(self, run: RunRecord, root: Path, rows: int) -> None:
        """`rows` are those of the run's input that are stored."""
        body = run.outputs
        self.root = root
        self.folder = root / run.output_dir
        self.preview = bool(run.selection)
        self.formats: tuple[OutputFormat, ...] = tuple(body.get("formats", ()))
        self.to: dict[str, str] | None = body.get("to")
        """The `table` of a database, and the `path` of that, relative to the project root."""
        self.merge: Merge | None = body.get("merge")
        self.csv_safe: bool = body.get("csv_safe", False)
        self.bom: bool = body.get("bom", False)
        self.how: bool = body.get("how", False)
        self.sources: bool = body.get("sources", False)
        self.one_value: bool = body.get("one_value", False) and rows == 1
        """True if JSON is the only result, and no list."""
        self.fields = tuple(body.get("fields", ()))
        """The result's fields in the order of its schema, as far as it names them: stored
        definitions are sorted."""
        self.telemetry: bool = body.get("telemetry", rows <= TELEMETRY_ROWS)
        self.filtered: bool = body.get("filtered", False)
        self.places: dict[str, Path] | None = None
        """The files of a row run, which writes into no folder; None: it is another run."""
        if "places" in body:
            self.places = {name: root / place for name, place in body["places"].items()}
            self.preview = False
            self.telemetry = sinks.TELEMETRY in self.places
            self.filtered = False
            tables = [name for name in sinks.TABLES if sinks.file_of(name) in self.places]
            self.formats = tuple(tables)  # type: ignore[arg-type]

    def path(self, name: str) -> Path:
        """Returns the path of a file."""
        if self.places is None:
            return self.folder / name
        return self.places[name]

    def previous(self, run: RunRecord, written: Sequence[WrittenFiles]) -> PreviousFile:
        """Returns what keeps the earlier results of a row run; `written` is what runs wrote
        there."""
        results = next(
            (path for name, path in (self.places or {}).items() if name.startswith("results.")),
            None,
        )
        stamps = [stamp for earlier in written for stamp in earlier.files.values()]
        return PreviousFile(results, stamps, run.exported_files.get(GROWING))

    @property
    def tables(self) -> bool:
        """True if anything with columns is written."""
        return bool(self.formats or self.to)

    @property
    def names(self) -> list[str]:
        """The names of the files in the output folder."""
        if self.places is not None:
            return sorted(self.places, key=lambda name: not name.startswith("results."))
        is_wanted = {sinks.TELEMETRY: self.telemetry, sinks.FILTERED: self.filtered}
        names = [name for name in sinks.FILES if is_wanted.get(name, True)]
        names += map(sinks.file_of, self.formats)
        if self.to is not None and self.preview:
            names.append(sinks.PREVIEW_DATABASE)
        return names

    @property
    def database(self) -> Path | None:
        """The user's database that is written to, if there is one and it is a file."""
        if self.to is not None and not self.preview and not self.at_server:
            return self.root / self.to["path"]
        return None

    @property
    def at_server(self) -> bool:
        """True if the table that is written to is in a database of a server."""
        if self.to is None or self.preview:
            return False
        return POSTGRES.match(self.to["path"]) is not None

    def files(self, *, but_table: bool = False) -> list[Path]:
        """Returns every file that is written; `but_table`: without that of the table."""
        files = [self.path(name) for name in self.names]
        if self.database is not None:
            files.append(self.database)
        table = self.database or self.folder / sinks.PREVIEW_DATABASE
        if but_table:
            return [file for file in files if file != table]
        return files

    def open(
        self, out: sinks.OutputFolder, layout: TableLayout, env: Mapping[str, str]
    ) -> tuple[list[sinks.RowSink], sinks.IsolatedSink | None]:
        """Opens the sinks of tables, which end together with the folder's files. Returns them, and
        that of the table in a database among them.

        That one comes first: what cannot be put in place by renaming is done before the rest."""
        opened: list[sinks.RowSink] = []
        table = None
        if self.to is not None:
            table = out.add(sinks.IsolatedSink(partial(self._table, self.to, layout, env)))
            opened.append(table)
        for name in self.formats:
            file = self.path(sinks.file_of(name))
            opened.append(out.add(sinks.TABLES[name](file, layout, self.csv_safe, self.bom)))
        return opened, table

    def _table(
        self, to: dict[str, str], layout: TableLayout, env: Mapping[str, str]
    ) -> sinks.RowSink:
        """Opens the table of a database."""
        if self.at_server:
            return PostgresSink(Server(to["path"], env), to["table"], layout)
        if self.database is None:
            return FreshDatabase(self.folder / sinks.PREVIEW_DATABASE, to["table"], layout)
        return TableSink(self.database, to["table"], layout, to["path"])

    def stamps(self, *, unwritten: bool = False) -> Stamps:
        """Returns what the files are now. Of a database only its existence counts, since others
        write to it.

        `unwritten`: the table could not be written."""
        stamps = {}
        for name in self.names:
            file = self.path(name)
            if file.exists():
                stamps[name] = stamp(file)
        table = sinks.PREVIEW_DATABASE
        if self.to is not None and not self.preview:
            table = f"to:{self.to['path']}"
        if self.at_server or (self.database is not None and self.database.exists()):
            stamps[table] = [0, 0]
        if unwritten:
            stamps[table] = runs.UNWRITTEN
        return stamps


def target_of(plan: Plan) -> Path:
    """Returns the folder with the results of a plan, or the file of a row run."""
    is_preview = plan.selection.partial and plan.output.places is None
    return plan.output.dir / PREVIEW if is_preview else plan.output.dir


def outputs_text(plan: Plan) -> str:
    """Returns what is stored with a run of its outputs besides the JSON files: canonical JSON of
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
    if _may_filter(plan):
        body["filtered"] = True
    if plan.rules.telemetry_file is not None:
        body["telemetry"] = plan.rules.telemetry_file
    return canonical(body)


def _may_filter(plan: Plan) -> bool:
    """True if rows may leave a run, because of a guard or a repeated id."""
    if plan.input.on_duplicate_id in ("first", "last"):
        return True
    return any(stage.may_drop for stage in plan.stages)


def is_shown(run: RunRecord, root: Path, rows: int) -> bool:
    """True if the files in the output folder are what an export would write: none is missing, cut
    or of another run."""
    shown = {name: stamp for name, stamp in run.exported_files.items() if name != PREVIOUS}
    return run.exported_revision == run.revision and shown == Outputs(run, root, rows).stamps()
