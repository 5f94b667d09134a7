"""What a run writes beside the JSON files: which formats, into which table, under which names; what it left there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.errors import AgacError, Problem, UsageError
from agac.core.keys import canonical
from agac.data.formats.sqlite import tables_read
from agac.data.outputs.database import FreshDatabase, TableSink
from agac.data.outputs.kinds import declared_fields
from agac.data.outputs.layout import Column, Layout, Observed
from agac.data.outputs.records import result_name
from agac.data.outputs.tablecheck import check_target, table_columns
from agac.data.outputs.tables import PREVIEW_DATABASE, TABLES, Apart, RowSink, file_of
from agac.data.sinks import FILES, FILTERED, OPTIONAL, TELEMETRY, OutputFolder, check_folder
from agac.spec.workflow import InputSpec, Merge, OutputFormat, TableTarget, Workflow, shape_of_ends
from agac.store.runs import UNWRITTEN, RunRecord

if TYPE_CHECKING:
    from agac.plan.plan import Plan

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

    def open(self, out: OutputFolder, root: Path, layout: Layout) -> tuple[list[RowSink], Apart | None]:
        """The sinks of tables and lines, which end together with the folder's files, and that of the table in a
        database among them. It comes first: what cannot be put in place by renaming is done before anything is."""
        folder, safe = self.folder, self.csv_safe
        table = None if self.to is None else out.add(Apart(partial(self._table, self.to.name, root, layout)))
        others = [out.add(TABLES[name](folder / file_of(name), layout, safe)) for name in self.formats]
        return [*([table] if table else []), *others], table

    def _table(self, name: str, root: Path, layout: Layout) -> RowSink:
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


def _known_columns(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Column]:
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
