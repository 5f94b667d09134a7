"""Runs a workflow on rows of a test, without network and keys, on a store that is thrown away.

Used by `agac test` and by the pytest plugin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agac.api.cassettes import SimulatedAnswers
from agac.api.plan import Confirm
from agac.api.prepare import InvocationRequest
from agac.api.project import Project, open_project
from agac.api.report import RunReport
from agac.api.row_report import row_report
from agac.api.run import RunInterface, invoke
from agac.api.run_options import RunOptions
from agac.api.status import find_rows, stored_run
from agac.api.sync import calling
from agac.core.state_files import make_folder
from agac.core.types import Report, RowId
from agac.data.frames import GivenRows
from agac.engine.invocation import Answers
from agac.engine.walk.replay import FinalRows, RowViews
from agac.plan.render import RowView
from agac.plan.stage import recorded_stages
from agac.spec.graph import StageNode, amended_by
from agac.spec.paths import fetch_nothing
from agac.spec.test_files import ReplyFile
from agac.store.db import Database
from agac.store.rows import ExportRow, State
from agac.store.runs import RunRecord, definition_of

_ENDED = (State.DONE, State.SKIPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Failure(Report):
    """What a test expected and what it got."""

    expected: str
    """What the test expected."""

    got: str
    """What came instead."""

    row: RowId | None = None
    """The row that it is about."""

    stage: str | None = None
    """The stage of that row."""

    prompt: str | None = None
    """What the model of that stage was asked."""


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A row as the outputs have it."""

    id: RowId
    """Its id."""

    result: Any
    """Its result; None if it failed or was skipped."""

    error: str | None
    """Why it failed."""

    seen: Mapping[str, Any]
    """What a condition after all stages sees: fields, results by stage, `vars`, and `result`."""

    stage: str | None
    """The stage where it failed, or was asked last."""

    prompts: Mapping[str, str]
    """By stage, what its model was asked."""

    def failure(self, expected: str, got: str, stage: str | None = None) -> Failure:
        """Reports something of this row, at a stage, that was not as expected."""
        stage = stage or self.stage
        return Failure(expected, got, self.id, stage, self.prompts.get(stage or ""))


@dataclass(frozen=True, slots=True)
class TriedRun:
    """A workflow that ran offline."""

    report: RunReport
    """The report of the run."""

    rows: list[TriedRow]
    """The rows of its outputs."""

    calls: int
    """How many replies it got."""


async def try_offline(
    project: Project, workflow: str, rows: GivenRows | Path, state: Path, answers: Answers, *,
    confirm: Confirm | None = None, live: bool = False, **options: Any,
) -> TriedRun:  # fmt: skip
    """Runs a workflow on rows, its state in `state`; unless `live`, without network and keys.
    Raises as `run`."""
    project = replace(project, state=state)
    if not live:
        project = _offline(project)
    make_folder(state)
    rows_or_path = str(rows) if isinstance(rows, Path) else rows
    chosen = RunOptions(input=rows_or_path, run_mode="sync", yes=not live, **options)
    request = InvocationRequest(answers=answers)
    report = await invoke(project, workflow, chosen, request, RunInterface(confirm=confirm))
    async with stored_run(state, report.record.run) as (database, record):
        tried = [row async for row in _tried_rows(database, record)]
    return TriedRun(report, tried, report.record.calls.count)


@calling
async def try_replies(
    root: Any, workflow: str, rows: Any, state: Path, replies: Any = None, **how: Any
) -> TriedRun:
    """Runs `try_offline` for the pytest plugin: `replies` are as files of tests have them."""
    rules = None
    if replies is not None:
        rules = [ReplyFile.model_validate(reply) for reply in replies]
    options = {"tools_mode": "stub", **how}
    project = open_project(root)
    return await try_offline(project, workflow, rows, state, SimulatedAnswers(rules), **options)


def _offline(project: Project) -> Project:
    """Makes a project whose providers need no server and no key, and which fetches nothing."""
    offline: dict[str, Any] = {
        "embedded": False,
        "missing_variables": (),
        "engine": None,
        "offline": True,
    }
    providers = {
        name: replace(provider, base_url=provider.base_url or "http://offline/v1", **offline)
        for name, provider in project.providers.items()
    }
    spec = replace(project.spec, fetch=fetch_nothing)
    return replace(project, providers=providers, spec=spec)


async def _tried_rows(database: Database, record: RunRecord) -> AsyncIterator[TriedRow]:
    """Yields the rows of a run that ended."""
    definition = await definition_of(database, record.id)
    stages = recorded_stages(definition)
    by_name = {stage.name: stage for stage in stages}
    views = RowViews(stages, definition["vars"], database, wanted=by_name)
    names = tuple(by_name)
    after_all = StageNode(
        name="",
        index=len(stages),
        needs=(),
        ancestors=names,
        amended=amended_by(names, by_name),
    )
    async for chunk in FinalRows(definition, inputs=True).rows(database, record.id):
        seen = await views.ended([row.key for row in chunk])
        for row in chunk:
            if row.state not in _ENDED:
                continue
            stored = await find_rows(database, record.id, [row.id])
            same = next(each for each in stored if each.key == row.key)
            inspected = await row_report(database, record.id, stages, same, None)
            yield _tried_row(row, seen[row.key], after_all, definition["vars"], inspected["stages"])


def _tried_row(
    row: ExportRow,
    view: RowView,
    after_all: StageNode,
    variables: Mapping[str, Any],
    stages: list[dict[str, Any]],
) -> TriedRow:
    """Describes a row that ended, with its `stages` as `agac inspect` reports them."""
    prompts = {
        stage["name"]: "\n\n".join(message["text"] for message in stage["prompt"])
        for stage in stages
        if stage["prompt"]
    }
    failed = next((stage["name"] for stage in stages if stage["outcome"] == "failed"), None)
    error = None
    result = None
    if row.error_type:
        error = f"{row.error_type}: {row.error_message}"
    elif row.value is not None:
        result = json.loads(row.value)
    fields = view.forms[None]
    visible = {
        **fields,
        **view.known(after_all),
        "vars": variables,
        "row": fields,
        "result": result,
    }
    asked_last = next(reversed(prompts), None)
    return TriedRow(row.id, result, error, visible, failed or asked_last, prompts)
