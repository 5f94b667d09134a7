"""Looking at runs and rows: `agac runs` and `agac inspect`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.options import position_of
from agac.api.status import (
    database_bytes,
    database_path,
    find_rows,
    find_run,
    full_report,
    last_invocation,
    refuse_unknown,
    state_of,
    workflow_name,
)
from agac.core.errors import Problem
from agac.core.report import Report, iso, json_form
from agac.engine.telemetry import calls_of
from agac.plan.diff import workflow_changes
from agac.plan.plan import Plan
from agac.plan.stage import PlannedStage
from agac.spec.paths import project_root
from agac.spec.workflow import Workflow
from agac.store import history
from agac.store import runs as store_runs
from agac.store.batches import OpenBatches, open_batches
from agac.store.db import Database, open_for_reading
from agac.store.runs import counters, definition_of, read_run, row_counts


@dataclass(frozen=True, slots=True)
class RunsReport(Report):
    """Runs, the one last worked on first. `total` counts those too that were left out."""

    project: Path
    database_bytes: int
    total: int
    runs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class InspectReport:
    """A run (as `status` gives it, with its definition) and, when a row was named, the rows that have its id."""

    project: Path
    run: dict[str, Any]
    rows: list[dict[str, Any]] | None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        if self.rows is None:
            return {"project": str(self.project), **self.run}
        about = {key: self.run[key] for key in ("workflow", "run", "state")}
        return {"project": str(self.project), **about, "rows": self.rows}


def runs(workflow: str | None = None, *, newest: int | None = None, project: Path | str | None = None) -> RunsReport:
    """The runs of one workflow or of all, with what changed from one to the next. Changes nothing.

    Raises UsageError for a workflow that neither has a file nor was ever run.
    """
    root = project_root(project)
    return asyncio.run(_runs(root, workflow_name(workflow), newest))


async def _runs(root: Path, workflow: str | None, newest: int | None) -> RunsReport:
    path = database_path(root)
    async with open_for_reading(path) as database:
        lines = await history.run_lines(database, None) if database else []
        await refuse_unknown(database, root, workflow)
        wanted = [line for line in lines if workflow in (None, line.workflow)]
        found = []
        if database is not None:
            before, batches = _before(lines), await open_batches(database)
            found = [
                await _line_report(database, line, before.get(line.id), batches.get(line.id))
                for line in wanted[:newest]
            ]
    return RunsReport(root, database_bytes(path), len(wanted), found)


def _before(lines: list[history.RunLine]) -> dict[int, history.RunLine]:
    """The run of the same workflow that was made before each run."""
    last: dict[str, history.RunLine] = {}
    found: dict[int, history.RunLine] = {}
    for line in sorted(lines):
        if line.workflow in last:
            found[line.id] = last[line.workflow]
        last[line.workflow] = line
    return found


async def _line_report(
    database: Database, line: history.RunLine, before: history.RunLine | None, batches: OpenBatches | None
) -> dict[str, Any]:
    record = await read_run(database, line.id)
    assert record is not None
    counts = await counters(database, line.id)
    rows = row_counts(counts)
    return {
        "run": line.id,
        "workflow": line.workflow,
        "state": state_of(record, await last_invocation(database, record), batches),
        "open_batches": json_form(batches),
        "selection": record.selection,
        "rows": {
            "total": rows["present"],
            **{key: rows[key] for key in ("done", "skipped", "failed", "dropped", "open")},
        },
        "calls": calls_of(counts),
        "started_at": iso(record.created_at),
        "last_worked_at": iso(line.last_at),
        "output": record.output_dir,
        "compared_with": before.id if before else None,
        "changes": await _changes(database, before, line) if before else [],
    }


async def _changes(database: Database, before: history.RunLine, after: history.RunLine) -> list[str]:
    fresh = ["--fresh"] if after.fresh_since is not None else []
    if before.definition_hash == after.definition_hash:
        return fresh
    bodies = await history.definitions(database, [before.definition_hash, after.definition_hash])
    return [*workflow_changes(bodies[before.definition_hash], bodies[after.definition_hash]), *fresh]


def inspect(
    run: int | str = "last",
    row: int | str | None = None,
    *,
    stage: str | None = None,
    project: Path | str | None = None,
) -> InspectReport:
    """A run by its number, or the one last worked on; with `row` every stage, attempt, prompt and reply of that row.

    A `row` that reads like a number finds the row numbers of an input without `id_field`, too. Changes nothing. Raises
    UsageError for a run, a row or a stage that does not exist.
    """
    root = project_root(project)
    return asyncio.run(_inspect(root, run, row, stage))


async def _inspect(root: Path, run: int | str, row: int | str | None, stage: str | None) -> InspectReport:
    async with open_for_reading(database_path(root)) as database:
        record = await find_run(database, None, run)
        assert database is not None
        definition = await definition_of(database, record.id)
        if stage is not None:
            position_of(stage, [body["name"] for body in definition["stages"]], "--stage")
        report = await full_report(database, record)
        report["definition"] = definition
        if row is None:
            return InspectReport(root, _of_stage(report, stage), None)
        from agac.api.row_history import row_reports  # rebuilds prompts: loads templates, schemas and providers

        found = await find_rows(database, record.id, [row])
        return InspectReport(root, report, await row_reports(database, record, definition, found, stage))


def _of_stage(report: dict[str, Any], stage: str | None) -> dict[str, Any]:
    """The report with what concerns one stage."""
    if stage is None:
        return report
    definition = report["definition"]
    kept = {
        "stages": [body for body in report["stages"] if body["name"] == stage],
        "errors": [error for error in report["errors"] if error["stage"] == stage],
        "definition": {**definition, "stages": [body for body in definition["stages"] if body["name"] == stage]},
    }
    return {**report, **kept}


# Short names of models that moved: what one meant in a run's definition, and what it means now.


def meant_before(stage: PlannedStage, definition: Mapping[str, Any]) -> str | None:
    """What the stage's short name stood for in a stored definition, where that is something else."""
    if stage.ref is None or stage.ref.written is None:
        return None
    before = next((one for one in definition["stages"] if one["name"] == stage.name), None)
    alias = before.get("alias") if before else None
    if not alias or alias["written"] != stage.ref.written or alias["means"] == stage.ref.meaning:
        return None
    return str(alias["means"])


async def moved_names(database: Database, workflow: Workflow, plan: Plan) -> list[Problem]:
    """A warning for each short name that the workflow's last run understood otherwise: its rows are asked again."""
    if not any(stage.ref and stage.ref.written for stage in plan.asking):
        return []
    last = next(iter(await store_runs.run_ids(database, workflow.name)), None)
    if last is None:
        return []
    definition = await store_runs.definition_of(database, last)
    return [
        Problem(
            spec.at("model"),
            f"{stage.ref.written} meant {meant} in run {last} and means {stage.ref.meaning} now: its rows are run "
            f"again; to keep the answers write {meant}",
            f"{spec.path}.model",
            "warning",
        )
        for spec, stage in zip(workflow.asking, plan.asking, strict=True)
        if stage.ref is not None and (meant := meant_before(stage, definition)) is not None
    ]
