"""`agac runs`, `agac inspect` and `agac show`: the runs of a project; one run with its definition;
rows of a run with every task and prompt, or with their results only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.row_report import row_report
from agac.api.status import (
    database_bytes,
    database_path,
    find_rows,
    full_report,
    position_of,
    refuse_unknown,
    runs_in_shards,
    state_of,
    stored_run,
    this_shard,
    workflow_name,
)
from agac.api.sync import blocking
from agac.core.types import Report, iso, json_form
from agac.engine.output.output_lines import Lines
from agac.engine.output.run_summary import calls_of, output_of
from agac.engine.walk.replay import FinalRows
from agac.plan.changes import changes_of
from agac.plan.stage import recorded_stages
from agac.spec.paths import project_root
from agac.store import history
from agac.store.batches import OpenBatches, open_batches
from agac.store.db import Database, open_for_reading
from agac.store.history import RunLine
from agac.store.rows import ExportRow, StoredRow
from agac.store.runs import (
    RunRecord,
    counters,
    definition_of,
    row_counts,
    run_record,
    run_settings_of,
)


@dataclass(frozen=True, slots=True)
class RunsReport(Report):
    """Runs of a project, the one last worked on first."""

    project: Path
    """The project's folder."""
    database_bytes: int
    """The size of its database."""
    total: int
    """The number of runs, with those that were left out."""
    runs: list[dict[str, Any]]
    """The newest runs."""
    sharded: list[dict[str, Any]] = field(default_factory=list)
    """Runs whose shards have stores in this folder, as `runs_in_shards` returns them."""


@blocking
async def runs(
    workflow: str | None = None, *, newest: int | None = None, project: Path | str | None = None
) -> RunsReport:
    """Lists runs of one workflow or all, with what changed between them. Raises UsageError if there
    is no such workflow."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    async with open_for_reading(path) as database:
        await refuse_unknown(database, root, workflow)
        sharded = await runs_in_shards(root, workflow) if this_shard() is None else []
        if database is None:
            return RunsReport(root, database_bytes(path), 0, [], sharded)
        lines = await history.run_lines(database, None)
        batches = await open_batches(database)
        previous = _previous_runs(lines)
        chosen = [line for line in lines if workflow in (None, line.workflow)]
        reports = [
            await _line_report(database, line, previous[line.id], batches.get(line.id))
            for line in chosen[:newest]
        ]
    return RunsReport(root, database_bytes(path), len(chosen), reports, sharded)


def _previous_runs(lines: list[RunLine]) -> dict[int, RunLine | None]:
    """Returns for each run the one before it of the same workflow."""
    previous = dict[int, RunLine | None]()
    last = dict[str, RunLine]()
    for line in sorted(lines):
        previous[line.id] = last.get(line.workflow)
        last[line.workflow] = line
    return previous


async def _line_report(
    database: Database, line: RunLine, previous: RunLine | None, batches: OpenBatches | None
) -> dict[str, Any]:
    """Describes one run, with what changed since the `previous` one."""
    record, _, state = await state_of(database, await run_record(database, line.id), batches)
    counts = await counters(database, line.id)
    changes = list[str]()
    if previous is not None:
        changes = await _changes_between(database, previous, line)
        if line.fresh_since is not None:
            changes.append("--fresh")
    return {
        "run": line.id,
        "workflow": line.workflow,
        "state": state,
        "open_batches": json_form(batches),
        "selection": record.selection,
        "rows": row_counts(counts),
        "calls": calls_of(counts).as_json(),
        "started_at": iso(record.created_at),
        "last_worked_at": iso(line.last_at),
        "output": output_of(record),
        "compared_with": previous.id if previous else None,
        "changes": changes,
    }


async def _changes_between(database: Database, before: RunLine, after: RunLine) -> list[str]:
    """Describes how the definitions of two runs differ."""
    if before.definition_hash == after.definition_hash:
        return []
    bodies = await history.definitions(database, [before.definition_hash, after.definition_hash])
    changes = changes_of(bodies[before.definition_hash], bodies[after.definition_hash])
    return [change.text for change in changes]


@dataclass(frozen=True, slots=True)
class InspectReport(Report):
    """A run, and rows of it if one was named."""

    project: Path
    """The project's folder."""
    run: dict[str, Any]
    """The run as `status` describes it, with its definition."""
    rows: list[dict[str, Any]] | None
    """The rows that have the named id; None if none was named."""

    def as_json(self) -> dict[str, Any]:
        """Returns the value that `--json` prints."""
        if self.rows is None:
            return {"project": str(self.project), **self.run}
        about = {key: self.run[key] for key in ("workflow", "run", "state")}
        return {"project": str(self.project), **about, "rows": self.rows}


@blocking
async def inspect(
    run: int | str = "last",
    row: int | str | None = None,
    *,
    stage: str | None = None,
    project: Path | str | None = None,
) -> InspectReport:
    """Describes a run by its number, or the one last worked on; with `row` every stage, attempt,
    prompt and reply of that row. A `row` that reads like a number also finds the row numbers of an
    input without `id_field`. Changes nothing. Raises UsageError for a run, a row or a stage that
    does not exist."""
    root = project_root(project)
    async with stored_run(root, run) as (database, record):
        definition = await definition_of(database, record.id)
        if stage is not None:
            position_of(stage, [body["name"] for body in definition["stages"]], "--stage")
        report = {**await full_report(database, record), "definition": definition}
        remote = (await run_settings_of(database, record.id) or {}).get("remote")
        if remote:
            report["remote"] = remote
        if row is not None:
            rows = await _inspected_rows(database, record, definition, row, stage)
            return InspectReport(root, report, rows)
    if stage is not None:
        report |= _only_stage(report, stage)
    return InspectReport(root, report, None)


async def _inspected_rows(
    database: Database,
    record: RunRecord,
    definition: dict[str, Any],
    row: int | str,
    stage: str | None,
) -> list[dict[str, Any]]:
    """Describes the rows that are called `row`. If a stage is named, those that came to it, or all
    if none did."""
    stages = recorded_stages(definition)
    named = await find_rows(database, record.id, [row])
    reports = [await row_report(database, record.id, stages, each, stage) for each in named]
    if stage is None:
        return reports
    return [report for report in reports if report["stages"]] or reports


def _only_stage(report: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Returns the parts of a run's report that concern one stage."""
    definition = report["definition"]
    stages = [body for body in definition["stages"] if body["name"] == stage]
    return {
        "stages": [body for body in report["stages"] if body["name"] == stage],
        "errors": [error for error in report["errors"] if error["stage"] == stage],
        "definition": {**definition, "stages": stages},
    }


@blocking
async def show(
    run: int | str = "last",
    workflow: str | None = None,
    *,
    row: int | str | None = None,
    head: int = 20,
    project: Path | str | None = None,
) -> InspectReport:
    """Reads the first `head` results of a run in the order of its outputs, finished or not, as
    `results.jsonl` has them. With `row` it reads those of the row with this id, or of the rows
    that were made of it, with their input and the sources of their answers. Changes nothing, and
    reads no more of the store than it shows, and open rows before that. Raises UsageError for a
    run or a row that does not exist."""
    root = project_root(project)
    async with stored_run(root, run, workflow) as (database, record):
        report = await full_report(database, record)
        definition = await definition_of(database, record.id)
        if row is None:
            sources = bool(record.outputs.get("sources"))
            final = FinalRows(definition, inputs=False, sources=sources)
            lines = await _first_lines(database, record, final, head)
        else:
            final = FinalRows(definition, inputs=True, sources=True)
            named = await find_rows(database, record.id, [row])
            lines = await _lines_of_rows(database, record, final, named, head)
    return InspectReport(root, report, [json.loads(line) for line in lines[:head]])


async def _first_lines(
    database: Database, record: RunRecord, final: FinalRows, head: int
) -> list[str]:
    """Reads result lines of a run until there are `head` of them."""
    lines = list[str]()
    async for rows in final.rows(database, record.id, top=None):
        lines += Lines(rows, False).results
        if len(lines) >= head:
            return lines
    return lines


async def _lines_of_rows(
    database: Database,
    record: RunRecord,
    final: FinalRows,
    named: list[StoredRow],
    head: int,
) -> list[str]:
    """Reads result lines of the `named` rows and of the rows made of them, until there are `head`
    of them."""
    keys = {row.key for row in named}
    tops = [(await history.rows_above(database, row) or [row])[-1].key for row in named]
    lines = list[str]()
    for top in dict.fromkeys(tops):
        async for rows in final.rows(database, record.id, top=top):
            shown = [_with_sources(row) for row in rows if top in keys or row.key in keys]
            lines += Lines(shown, True).results
            if len(lines) >= head:
                return lines
    return lines


def _with_sources(row: ExportRow) -> ExportRow:
    """Leaves the sources of a row out if it has none."""
    return row._replace(sources=row.sources or None)
