"""The outputs of a run: its files and its table, where they are, how they are kept with the run."""

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
"""Rows up to which telemetry.jsonl is written without being asked for: beyond, it is a gigabyte
that few look at, and to write it again would be most of what a run costs that finds one changed
cell."""

PREVIEW = "preview"  # folder, inside the output folder, of a run over a selection
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


def is_shown(run: RunRecord, root: Path, rows: int) -> bool:
    """Whether the files in the output folder are what an export would write: none is missing, cut
    or another's."""
    shown = {name: stamp for name, stamp in run.exported_files.items() if name != PREVIOUS}
    return run.exported_revision == run.revision and shown == Outputs(run, root, rows).stamps()
