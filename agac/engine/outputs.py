"""What a run writes beside the JSON files: which formats, into which table, under which names; what it left there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.errors import UsageError
from agac.core.keys import canonical
from agac.data.formats.sqlite import tables_read
from agac.data.outputs.database import FreshDatabase, TableSink, key_name
from agac.data.outputs.kinds import Kind, declared_fields
from agac.data.outputs.layout import Column, Layout
from agac.data.outputs.tablecheck import check_target
from agac.data.outputs.tables import PREVIEW_DATABASE, TABLES, RowSink, file_of
from agac.data.sinks import FILES, TELEMETRY, OutputFolder, check_folder
from agac.spec.workflow import Merge, OutputFormat, TableTarget
from agac.store.runs import RunRecord

if TYPE_CHECKING:
    from agac.plan.plan import Plan

TELEMETRY_ROWS = 100_000
"""Rows up to which telemetry.jsonl is written without being asked for: beyond, it is a gigabyte that few look at, and
to write it again would be most of what a run costs that finds one changed cell."""

_TEXTS = ("csv", "tsv", "txt", "files")
"""Formats whose ids are always text."""

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
        always = [name for name in FILES if self.telemetry or name != TELEMETRY]
        return [*always, *map(file_of, self.formats), *database]

    def database(self, root: Path) -> Path | None:
        """The user's database that is written to, if there is one."""
        return root / self.to.path if self.to is not None and not self.preview else None

    def files(self, root: Path) -> list[Path]:
        """Every file that is written."""
        database = self.database(root)
        return [*(self.folder / name for name in self.names), *([database] if database else [])]

    def open(self, out: OutputFolder, root: Path, layout: Layout) -> list[RowSink]:
        """The sinks of tables and lines, which end together with the folder's files. The database comes first: what
        cannot be put in place by renaming is done before anything is."""
        sinks: list[RowSink] = []
        if self.to is not None:
            database = self.database(root)
            if database is None:
                sinks.append(out.add(FreshDatabase(self.folder / PREVIEW_DATABASE, self.to.name, layout)))
            else:
                sinks.append(out.add(TableSink(database, self.to.name, layout, self.to.path)))
        folder, safe = self.folder, self.csv_safe
        sinks.extend(out.add(TABLES[name](folder / file_of(name), layout, safe)) for name in self.formats)
        return sinks

    def stamps(self, root: Path) -> Stamps:
        """What the files are now. A database is only there or not: others write into it too."""
        found = {file.name: _stamp(file) for name in self.names if (file := self.folder / name).exists()}
        database = self.database(root)
        if self.to is not None and database is not None and database.exists():
            found[f"to:{self.to.path}"] = [0, 0]
        return found

    def remove_stale(self, written: Iterable[Stamps]) -> None:
        """Removes files of formats that are not wanted any longer, where they are as a run in this folder left them."""
        known = [*map(file_of, TABLES), PREVIEW_DATABASE, TELEMETRY]
        stamps = list(written)
        for name in set(known) - set(self.names):
            file = self.folder / name
            if file.is_file() and not file.is_symlink() and _stamp(file) in [stamp.get(name) for stamp in stamps]:
                file.unlink()


def outputs_text(plan: Plan) -> str:
    """What is written beside the JSON files and how, as it is kept with a run: canonical JSON of what is set."""
    spec, schema = plan.output, plan.stages[-1].schema
    body: dict[str, object] = {}
    if spec.formats:
        body["formats"] = sorted(spec.formats)
    if spec.to is not None:
        body["to"] = {"path": spec.to.shown, "table": spec.to.table}
    if spec.merge is not None:
        body["merge"] = spec.merge
    if spec.csv_safe:
        body["csv_safe"] = True
    if body and schema is not None:
        body["fields"] = list(declared_fields(schema.body))
    if plan.rules.telemetry_file is not None:
        body["telemetry"] = plan.rules.telemetry_file
    return canonical(body)


def check_outputs(plan: Plan, folder: Path, root: Path) -> None:
    """Raises UsageError for what would be in the way of the results: found before they are paid for."""
    spec, preview = plan.output, plan.selection.partial
    names = list(map(file_of, spec.formats))
    if spec.to is not None and preview:
        names.append(PREVIEW_DATABASE)
    check_folder(folder, root, names)
    if spec.to is not None and not preview:
        key = key_name(plan.input.id_field, spec.merge)
        texts = plan.input.id_field is not None and (plan.input.format in _TEXTS or spec.merge == "replace")
        ids = [Column(key, Kind.TEXT)] if texts else []  # of other inputs the end shows what their ids are
        check_target(spec.to.path, spec.to.table, key, spec.to.shown, ids)
        _refuse_own_input(plan, spec.to)


def _refuse_own_input(plan: Plan, target: TableTarget) -> None:
    """A table that the input reads, perhaps by way of a view: what is written would change every row."""
    source = plan.input
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
