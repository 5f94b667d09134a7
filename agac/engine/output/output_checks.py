"""Finds what is in the way of a workflow's outputs before its results are paid for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from agac.core.errors import AgacError, Problem, UsageError
from agac.data import sinks
from agac.data.postgres import Server, reads_table
from agac.data.postgres import check_target as check_server
from agac.data.sqlite import check_target, table_columns, tables_read
from agac.data.tables import Observed, TableColumn, result_name
from agac.engine.output.output_lines import is_grouped
from agac.engine.output.run_outputs import PREVIEW
from agac.spec.data_specs import InputSpec, TableTarget
from agac.spec.paths import server_parts
from agac.spec.workflow import Workflow, shape_of_ends

TEXT_FORMATS = ("csv", "tsv", "files")
"""Formats whose fields are always text."""


def refusals(
    workflow: Workflow,
    columns: tuple[str, ...] | None,
    root: Path,
    env: Mapping[str, str],
    *,
    preview: bool,
) -> list[Problem]:
    """Returns what would be in the way of the results, before they are paid for, without opening
    anything for writing.

    `columns` are the input's; None: it declares none. `env` has the variables of addresses."""
    output = workflow.output
    to = output.to
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
    """Returns the columns of the table that are certain before a row is read: the key, which is
    the first, the row's, and those of the result's schema.

    Problems with other columns are found at the end of a run."""
    source = workflow.input
    ends = workflow.ends
    output = workflow.output
    merge = output.merge or "extend"
    maker = next((stage for stage in workflow.stages if stage.name == output.rows), None)
    grouped = is_grouped(workflow.stages, maker)
    columns = None if grouped else columns
    is_text = source.format in TEXT_FORMATS
    observed = Observed(shape_of_ends(ends))
    if is_text or grouped:
        observed.row_id("")
    observed.row(dict.fromkeys(columns or (), "" if is_text else None))
    name = result_name([stage.name for stage in ends])
    layout = observed.layout(merge, name, source.id_field, grouped=grouped)
    if columns is None and merge != "replace":
        return [layout.key]  # it is unknown which of the result's names are the row's, too
    kept = table_columns(replace(layout, columns=layout.columns[:-1]))
    return [kept[0], *(column for column in kept[1:] if column.name in layout.merger.fields)]


def _check_table(
    target: TableTarget, columns: Sequence[TableColumn], env: Mapping[str, str]
) -> None:
    """Raises AgacError if the table cannot be written."""
    if target.path is None:
        check_server(Server(target.shown, env), target.table, columns)
    else:
        check_target(target.path, target.table, columns, target.shown)


def _refuse_own_input(source: InputSpec, target: TableTarget, env: Mapping[str, str]) -> None:
    """Raises UsageError for a table that the input reads, perhaps through a view: the results
    would change every row."""
    if not _is_read(source, target, env):
        return
    raise UsageError(
        f"{target.shown}: the input reads the table {target.table!r}: what is written into it "
        "would change the rows, and all of them would be asked again",
        remedy="Name another table in output.to.",
    )


def _is_read(source: InputSpec, target: TableTarget, env: Mapping[str, str]) -> bool:
    """True if the input reads a table."""
    if not source.statement:
        return False
    if source.format == "postgres" and target.path is None:
        address, *_ = server_parts(source.shown, "query", "table")
        read_from = Server(address, env)
        written_to = Server(target.shown, env)
        return reads_table(read_from, source.statement, written_to, target.table)
    if source.path == target.path and source.path.is_file():
        return target.table.lower() in tables_read(source.path, source.statement, source.shown)
    return False
