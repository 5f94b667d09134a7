"""`agac fix`: sets the result of a row by hand. And who it is that decides."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agac.api.project import environment, open_project
from agac.api.row_report import STATES
from agac.api.status import database_path, find_rows, find_run, go_on, position_of
from agac.api.stored_plan import recorded_plan
from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.keys import review_key
from agac.core.types import Finish, JSONValue, Reply, Report, RowId, Usage
from agac.engine.ask.validate import Checker, ResultChecks, ValidReply, parsed
from agac.engine.walk.replay import RowHistory
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, PlannedStage, recorded_stages
from agac.spec.git import user_name
from agac.spec.paths import project_root
from agac.store.db import Database, change
from agac.store.decisions import FIX, StoredDecision, put_decision
from agac.store.lease import holder_of
from agac.store.rows import State, StoredRow
from agac.store.runs import RunRecord, definition_of
from agac.store.writer import open_database


@typed
def reviewer(named: str | None = None, *, project: Path | str | None = None) -> str:
    """Finds out who decides: the name that is given, else AGAC_REVIEWER, else git's user.name.
    Raises UsageError if there is none."""
    root = project_root(project)
    env = environment(root)[0]
    name = named or env.get("AGAC_REVIEWER") or user_name(root, env) or ""
    name = " ".join(name.split())
    if not name:
        raise UsageError(
            "it is not known who decides",
            remedy="Name yourself: --reviewer NAME, or set AGAC_REVIEWER.",
        )
    return name


@dataclass(frozen=True, slots=True)
class FixReport(Report):
    """A result that was set by hand. The row has it after the next run."""

    workflow: str
    """The workflow of the run."""

    run: int
    """The run whose row it is."""

    row: RowId
    """The id of the row."""

    stage: str
    """The stage whose result it is."""

    value: JSONValue
    """The result."""

    reviewer: str
    """Who set it."""

    go_on: str
    """The command of the next run."""


@blocking
async def fix(
    run: int | str,
    row: int | str,
    stage: str,
    value: str,
    *,
    reason: str = "",
    who: str | None = None,
    project: Path | str | None = None,
) -> FixReport:
    """Sets the result that a stage has for a row, from the text that a model would have answered
    (JSON if the stage has a schema).

    It holds for this row and this question of the stage. Raises UsageError for what the stage would
    not accept as an answer, and while a process or a batch works on the row."""
    opened = open_project(project_root(project), bare=True)
    who = reviewer(who, project=opened.root)
    async with open_database(database_path(opened.root)) as database:
        record = await find_run(database, None, run)
        stages = recorded_stages(await definition_of(database, record.id))
        position = position_of(stage, [each.name for each in stages], "--stage")
        stored = (await find_rows(database, record.id, [row]))[0]
        history = await RowHistory.read(database, record.id, stages, stored)
        task = history.tasks.get(position)
        if task is None or task.fingerprint is None or stage in history.lists:
            raise _no_result(record, stored, stage)
        await _refuse_at_work(database, record, stored, history)
        plan = await recorded_plan(opened, opened.providers, database, record.id, functions=False)
        for earlier in stages[:position]:  # what the stage's checks see of the row
            history.learn(earlier, history.tasks.get(earlier.index))
        checked = _checked(plan.stages[position], value, history.view)
        decision = StoredDecision(
            review_key(record.workflow, stage, stored.id, task.fingerprint, FIX),
            0,
            record.workflow,
            stage,
            stored.id,
            "edit",
            checked.text,
            reason,
            who,
            time.time(),
            FIX,
        )
        await change(database, lambda writer: put_decision(writer, decision))
    return FixReport(
        record.workflow, record.id, stored.id, stage, checked.value, who, go_on(record)
    )


def _no_result(record: RunRecord, row: StoredRow, stage: str) -> UsageError:
    """Makes the error for a row that has no result of a stage."""
    return UsageError(
        f"row {row.id!r} of run {record.id} has no result of stage {stage!r} that could be set: "
        f"it is {STATES[State(row.state)]}",
        remedy=f"`agac inspect {record.id} {row.id}` shows what it came to.",
    )


async def _refuse_at_work(
    database: Database, record: RunRecord, row: StoredRow, history: RowHistory
) -> None:
    """Raises UsageError while a batch or a process works on a row."""
    shown = f"row {row.id!r} of run {record.id}"
    if history.in_batches:
        raise UsageError(
            f"{shown} has requests in a batch",
            remedy="Take them in with `agac batch retrieve`, or cancel them with "
            "`agac batch cancel`.",
        )
    if row.state != State.PENDING:
        return
    holder = await holder_of(database, record.workflow)
    if holder is not None:
        raise UsageError(
            f"{shown} is at work: {holder} has the workflow",
            remedy="Wait until that run has ended.",
        )


def _checked(stage: AnyStage, text: str, view: RowView) -> ValidReply:
    """Checks a result with the schema and the checks of its stage. Raises UsageError."""
    if isinstance(stage, PlannedStage):
        reply = text if stage.wants_json else text.removesuffix("\n")
        checked = Checker(stage).check(Reply(reply, Finish.STOP, Usage(), ""), view=view)
    else:
        checked = _checked_fields(stage, text, view)
    if isinstance(checked, RowError):
        raise UsageError(f"--value: {checked.message}", remedy="Correct it; nothing was set.")
    return checked


def _checked_fields(stage: AnyStage, text: str, view: RowView) -> ValidReply | RowError:
    """Checks the result of a stage that asks no model: a JSON object."""
    with suppress(ValueError):
        encoded, value = parsed(text)
        if isinstance(value, dict):
            error = ResultChecks(stage).error(view, value)
            return error or ValidReply(encoded, value)
    return RowError(ErrorType.INVALID_ROW, "it is no row: give its fields as a JSON object")
