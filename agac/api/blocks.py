"""A workflow as a function of blocks of rows, for Ray Data."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from agac.api.checked_workflow import CheckedWorkflow
from agac.api.prepare import InvocationRequest
from agac.api.project import open_project
from agac.api.report import RunReport
from agac.api.result_rows import ResultRow
from agac.api.run import RunInterface, invoke
from agac.api.run_options import RunOptions
from agac.api.share import pull_in, push_at_end
from agac.api.sync import calling
from agac.core.arguments import typed
from agac.core.errors import AgacError, LeaseHeld, UsageError
from agac.core.types import counted
from agac.data.frames import each_row, frame, library
from agac.data.json_formats import encode
from agac.data.sources import keep_rows
from agac.data.tables import Kind, TableColumn
from agac.spec.inputs import INPUTS
from agac.spec.paths import STORE, project_root, work_dir
from agac.store.packs import KnownAnswers
from agac.store.writer import open_database

_OF_ROWS = ("input", "output", "limit", "offset", "sample", "sql")
_TEXTS = [TableColumn(name, Kind.TEXT) for name in ("id", "result", "error", "message", "input")]
_COLUMNS = [*_TEXTS, TableColumn("row_number", Kind.INTEGER), TableColumn("ok", Kind.BOOLEAN)]


@cache
def _known(root: Path) -> KnownAnswers:
    """Returns what this process knows of a project's remote."""
    return KnownAnswers()


@typed
def ray_map(
    workflow: str, *, project: Path | str | None = None, options: RunOptions | None = None
) -> Callable[[Any], Any]:
    """Makes a function for Ray Data of a workflow: `dataset.map_batches(agac.ray_map("reviews"),
    batch_size=100)`. It returns the columns `id`, `result` (JSON), `error` (its type), `message`,
    `input` (JSON), `row_number` (in its block, from 1) and `ok`. A row that failed is a row too;
    rows that did not end, as at a limit, raise AgacError, and the same call resumes them. The
    workers need the project at the same path as here, and keys in their own environment. Raises
    UsageError for options that no block has, and if pyarrow is missing."""
    library("pyarrow", "agac.ray_map")
    options = options or RunOptions()
    wrong = [name for name in _OF_ROWS if getattr(options, name)]
    if wrong:
        raise UsageError(
            f"agac.ray_map: options.{wrong[0]} is not for blocks",
            remedy="Choose rows in the dataset.",
        )
    return partial(_mapped, workflow, project_root(project), replace(options, executor="local"))


def _mapped(workflow: str, root: Path, options: RunOptions, block: Any) -> Any:
    """Runs a block, a dict of columns or a frame, and returns its final rows as a table of
    pyarrow."""
    if isinstance(block, Mapping):
        block = [dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True)]
    rows = list(each_row(block))
    results: Iterable[ResultRow] = ()
    if rows:
        results = _run_block(workflow, root, options, rows).results()
    return frame("pyarrow", _COLUMNS, list(map(_cells, results)))


def _cells(row: ResultRow) -> list[Any]:
    """Returns the values of a row in the order of the columns."""
    return [
        str(row.id),
        None if row.result is None else encode(row.result),
        row.error and str(row.error.type),
        row.error and row.error.message,
        encode(row.input),
        row.row_number,
        row.ok,
    ]


@calling
async def _run_block(
    workflow: str, root: Path, options: RunOptions, rows: list[dict[str, Any]]
) -> RunReport:
    """Runs these rows, in one store for all processes of this machine."""
    state = work_dir(root / STORE.parent / "ray" / socket.gethostname(), root)
    opened = replace(open_project(root, bare=True, sound=True), state=state)
    known = _known(root)
    options = replace(options, input=await keep_rows(rows, state / INPUTS))
    if opened.spec.file.remote.push == "auto":
        await pull_in(opened, [workflow], options, known)
    while True:
        # another process has a block of the same rows, whose answers will be these
        with suppress(LeaseHeld):
            report = await invoke(
                opened, workflow, options, InvocationRequest(narrow=_of_block), RunInterface()
            )
            break
        await asyncio.sleep(0.5)
    async with open_database(opened.store) as database:
        await push_at_end(database, opened, known)
    if report.rows.open:
        what = (
            f"{counted(report.rows.open, 'row')} of a block did not end: "
            f"{report.stopped or 'batches are open'}"
        )
        raise AgacError(
            what, remedy="Mend that, or raise the limit; the same dataset mapped again resumes."
        )
    return replace(report, project=state, kind=None)


def _of_block(checked: CheckedWorkflow, options: RunOptions) -> CheckedWorkflow:
    """Gives a workflow a name of its own for a block of rows. Raises UsageError for what no block
    can do."""
    flow = checked.workflow
    whole = [stage.name for stage in flow.stages if stage.makes in ("groups", "kept")]
    if whole:
        remedy = "Let a workflow of its own read all rows."
        raise UsageError(
            f"stage {whole[0]!r} has to see all rows, and these come in blocks", remedy=remedy
        )
    of_stages = [stage.settings.budget for stage in flow.asking]
    has_budget = any((flow.rules.project, flow.rules.workflow, *of_stages))
    if options.budget is None and has_budget:
        remedy = "Say what each block may spend: options=agac.RunOptions(budget=0.50)."
        raise UsageError(
            "a budget is that of one run, and each block of rows is one", remedy=remedy
        )
    name = f"{flow.name}~{Path(flow.input.path).stem[-16:]}"
    return replace(checked, workflow=replace(flow, name=name))
