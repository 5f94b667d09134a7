"""`agac why`: shows what a task's fingerprint is made of, and what differs from the last time it
was run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.row_report import error_of, in_batch
from agac.api.status import find_rows, position_of, stored_run
from agac.api.sync import blocking
from agac.core.keys import digest, reuse_salt
from agac.core.types import Message, Moment, Outcome, Report, RowId, iso, json_form
from agac.engine.walk.replay import RowHistory
from agac.plan.diff import REDO, text_diff, value_changes
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.paths import project_root
from agac.spec.templates import VARS, MissingField
from agac.store import history as stored
from agac.store import runs
from agac.store.db import Database
from agac.store.history import PastAttempts, TaskRecord
from agac.store.rows import StoredRow

TOO_OLD = "the answer was older than max_age, or is no longer stored"


@dataclass(frozen=True, slots=True)
class PreviousAttempt(Report):
    """The last time that a task's run asked it before."""

    asked_at: Moment
    """When it was asked."""
    same_question: bool
    """True if the question was the same."""
    because: list[str]
    """Why it was asked again."""


@dataclass(frozen=True, slots=True)
class TaskInputs(Report):
    """One task as it was asked."""

    run: int
    """The run's number."""
    stage: RecordedStage
    """The stage."""
    history: RowHistory
    """The history of its row."""
    messages: tuple[Message, ...] | None
    """What it was asked; None: that cannot be rebuilt."""
    missing: str | None
    """Why it cannot be rebuilt."""
    made: bytes | None
    """The fingerprint of what would be asked now."""
    guard: str | None
    """The condition of the stage."""
    agent: Mapping[str, Any]
    """What its model may call."""
    turns: list[dict[str, Any]]
    """The turns of the row's conversations at the stage, with their calls."""

    @property
    def task(self) -> TaskRecord | None:
        """The task with its result; None: it has none yet."""
        return self.history.tasks.get(self.stage.index)

    @property
    def fingerprint(self) -> bytes | None:
        """The stored fingerprint."""
        return self.task.fingerprint if self.task else None

    @property
    def outcome(self) -> str | None:
        """The outcome; None: it has none yet."""
        return self.task.outcome if self.task else None

    @property
    def passed_over(self) -> dict[str, Any] | None:
        """The guard that kept the row out of the stage, with the values that it looked at; None:
        the row came in."""
        note: dict[str, Any] = json.loads(self.task.note) if self.task and self.task.note else {}
        return note if "values" in note else None

    @property
    def schema(self) -> Any:
        """The JSON Schema of its answer, if there is one."""
        return self.stage.schema.body if self.stage.schema else None

    def components(self) -> dict[str, Any]:
        """Returns the parts of the fingerprint."""
        stage = self.stage
        schema = stage.schema
        vote = stage.vote.body() if stage.vote is not None else None
        schema_hash = digest(json.dumps(self.schema, sort_keys=True)).hex()
        return {
            "model": stage.model,
            "params": dict(stage.params),
            "schema": None if schema is None else {"name": schema.name, "hash": schema_hash},
            **({} if stage.reply == "text" else {"reply": stage.reply}),
            "messages": json_form(self.messages),
            "reuse": stage.reuse,
            **({"replicas": stage.replicas, "vote": vote} if stage.replicas > 1 else {}),
            "salt": reuse_salt(stage.reuse, self.history.row.id, self.run),
        }

    def as_json(self) -> dict[str, Any]:
        """Returns the value that `--json` prints."""
        of_stage = (task for task in self.history.in_batches if task.stage == self.stage.index)
        batch = next(of_stage, None)
        fingerprint = self.fingerprint
        if not fingerprint and batch:
            fingerprint = batch.fingerprint
        elif not fingerprint and self.turns:
            fingerprint = self.made
        return {
            "run": self.run,
            "fingerprint": fingerprint.hex() if fingerprint else None,
            "outcome": self.outcome,
            "in_batch": in_batch(batch) if batch else None,
            **self._result(),
            "made_of": self.components(),
            "cannot_be_rebuilt": self.missing,
        }

    def _result(self) -> dict[str, Any]:
        """Describes what came of the task, by whom and when."""
        task = self.task
        if task is None:
            names = ("error", "passed_over", "settled_at", "answered_at", "answered_by", "how")
            return dict.fromkeys(names)
        return {
            "error": error_of(task),
            "passed_over": self.passed_over,
            "settled_at": iso(task.settled_at),
            "answered_at": iso(task.created_at),
            "answered_by": f"{task.provider}/{task.model}" if task.provider else None,
            "how": task.how or None,
        }


@dataclass(frozen=True, slots=True)
class WhyReport(Report):
    """A task, the last one of the same row and stage in an earlier run, and what differs."""

    JSON_KEYS = (
        "workflow",
        "row=row_id",
        "stage",
        "**now",
        "before",
        "differences",
        "asked_before_in_this_run=again",
        "asked_anew_because=anew",
    )

    workflow: str
    """The workflow's name."""
    row_id: RowId
    """The row's id."""
    stage: str
    """The stage's name."""
    now: TaskInputs
    """The task."""
    before: TaskInputs | None
    """The task in an earlier run."""
    differences: list[dict[str, Any]]
    """What differs between them, in words and as diffs."""
    again: PreviousAttempt | None = None
    """When its own run asked it before."""
    anew: str | None = None
    """Why it was asked although nothing differs."""


@blocking
async def why(
    run: int | str, row: int | str, stage: str, *, project: Path | str | None = None
) -> WhyReport:
    """Shows what a row's task at a stage was asked, and what differs from the last time. Reads only
    the store."""
    async with stored_run(project_root(project), run) as (database, record):
        definition = await runs.definition_of(database, record.id)
        position = position_of(stage, [body["name"] for body in definition["stages"]], "STAGE")
        named = await find_rows(database, record.id, [row])
        row_id = named[0].id
        rows = [each for each in named if each.id == row_id]
        now = await _asked(database, record.id, rows, definition, position)
        assert now is not None
        before = await _before(database, record.id, row_id, stage)
        past = await stored.past_attempts(database, now.history.row.key)
        present, again = _asked_before(now, past)
    return WhyReport(
        workflow=record.workflow,
        row_id=row_id,
        stage=stage,
        now=now,
        before=before,
        differences=_differences(now, before),
        again=again,
        anew=_why_without_difference(record, now, before, present),
    )


def _why_without_difference(
    record: runs.RunRecord,
    now: TaskInputs,
    before: TaskInputs | None,
    present: PastAttempts | None,
) -> str | None:
    """Tells why a task was asked again although it is the same as in the earlier run. None if it
    was not, or differs."""
    if before is None or present is None or now.fingerprint != before.fingerprint:
        return None
    if record.fresh_since is not None and present.retry_from is None:
        return "--fresh reuses nothing"
    return _rerun_reason(present, answered=before.outcome != Outcome.FAILED)


async def _before(database: Database, run: int, row_id: RowId, stage: str) -> TaskInputs | None:
    """Returns the row's task at the stage of the same name in the newest earlier run that has
    one."""
    for number in await stored.runs_before(database, run, row_id):
        definition = await runs.definition_of(database, number)
        names = [body["name"] for body in definition["stages"]]
        if stage in names:
            rows = await stored.rows_with_ids(database, number, [row_id])
            task = await _asked(database, number, rows, definition, names.index(stage))
            if task is not None and task.outcome is not None:
                return task
    return None


async def _asked(
    database: Database,
    run: int,
    rows: Sequence[StoredRow],
    definition: Mapping[str, Any],
    position: int,
) -> TaskInputs | None:
    """Returns the task at a stage of the one of these rows that came to it; None if there is no
    row."""
    stages = recorded_stages(definition)
    histories = [await RowHistory.read(database, run, stages, row) for row in rows]
    if not histories:
        return None
    came = [history for history in histories if position in history.tasks] or histories
    history = min(came, key=_order)
    task = history.tasks.get(position)
    messages, made, missing = _messages(history, position)
    if made is not None and task is not None and task.fingerprint not in (None, made):
        messages = None
        missing = (
            "it was asked of an earlier content of the row or of an earlier answer, which "
            "is not kept"
        )
    body = definition["stages"][position]
    turns = await stored.turns_of_row(database, history.row.key) if "agent" in body else []
    return TaskInputs(
        run=run,
        stage=stages[position],
        history=history,
        messages=messages,
        missing=missing,
        made=made,
        guard=body.get("when"),
        agent=body.get("agent") or {},
        turns=[turn for at, turn in turns if at == position],
    )


def _order(history: RowHistory) -> tuple[int, int]:
    """Returns the order of rows with one id: those of the input first, then by the stages that made
    them, then as they were repeated."""
    origin = history.row.origin
    return (-1 if origin is None else origin), history.row.occurrence


def _messages(
    history: RowHistory, position: int
) -> tuple[tuple[Message, ...] | None, bytes | None, str | None]:
    """Rebuilds what a task was asked, with its fingerprint; or returns why that is not possible."""
    stage = history.stages[position]
    reason = _not_asked(history, stage)
    if reason:
        return None, None, reason
    for before in history.stages[:position]:
        history.learn(before, history.tasks.get(before.index))
    if stage.rows_of is not None and history.unknown([stage.rows_of]):
        return None, None, f"stage {stage.rows_of} gave no row yet, so this one was not asked"
    try:
        messages, (made, _) = history.asked(stage)
        return messages, made, None
    except MissingField as missing:
        head = missing.name.partition(".")[0]
        if head in history.unknown(stage.ancestors):
            return None, None, f"stage {head} has no answer yet, so this one was not asked"
        return None, None, str(missing)


def _not_asked(history: RowHistory, stage: RecordedStage) -> str | None:
    """Tells why a row's outcomes so far kept it from the stage; None if they did not."""
    outcomes = {each.name: history.outcome(each) for each in history.stages}
    if outcomes[stage.name] in (Outcome.SKIPPED, Outcome.DROPPED):
        return "the row was passed over, so nothing was asked"
    upstream = [name for name in outcomes if name in stage.ancestors]
    dropping = [name for name in upstream if outcomes[name] == Outcome.DROPPED]
    if dropping:
        return f"stage {dropping[0]} made the row leave, so this one was not asked"
    if stage.index not in history.tasks:
        failed = [name for name in upstream if outcomes[name] == Outcome.FAILED]
        reason = _never_came(history, stage, failed)
        if reason:
            return reason
    if stage.operation is not None:
        return "this stage asks no model"
    return None


def _never_came(history: RowHistory, stage: RecordedStage, failed: Sequence[str]) -> str | None:
    """Tells why a row has no task at a stage: it is not asked of such rows, or stages before it
    `failed`. None if there is another reason."""
    list_makers = [name for name in history.lists if name in stage.ancestors]
    if list_makers:
        return (
            f"stage {list_makers[0]} gave a list of rows in the place of this one: name one "
            "of those"
        )
    if stage.name not in history.own:
        return (
            "this stage is asked of rows that another stage makes: `agac inspect` shows "
            "those that were made of this one"
        )
    if history.row.error_type is None:
        return None
    what = f"the row cannot be used ({history.row.error_type})"
    if failed:
        what = f"stage {failed[0]} failed"
    return f"{what}, so this one was not asked"


# When the run asked the same task before.


def _asked_before(
    now: TaskInputs, tries: Sequence[PastAttempts]
) -> tuple[PastAttempts | None, PreviousAttempt | None]:
    """Returns the attempts that the task's outcome comes from, and the last ones before them, as
    far as there are any. A stage with replicas is looked at replica by replica. `tries` are those
    of the row, by time."""
    position = now.stage.index
    asked: list[tuple[int, TaskRecord | None]] = [(0, now.task)]
    if now.stage.replicas > 1:
        replicas = now.history.replicas.items()
        asked = [(number, task) for (stage, number), task in replicas if stage == position]
    present = None
    previous = []
    for replica, task in asked:
        numbers = (replica,) if replica else (0, 1)
        past = [each for each in tries if each.stage == position and each.replica in numbers]
        current = _attempts_of(task, past)
        present = present or current
        earlier = [each for each in past if each is not current]
        if earlier:
            fingerprint = task.fingerprint if task and task.fingerprint else now.made
            previous.append(_previous(now, earlier[-1], current, fingerprint, tries))
    return present, max(previous, key=lambda attempt: attempt.asked_at, default=None)


def _attempts_of(task: TaskRecord | None, past: Sequence[PastAttempts]) -> PastAttempts | None:
    """Returns the attempts that a task's own answer comes from, if any."""
    if task is None or task.outcome == Outcome.REUSED:
        return None
    return next((each for each in reversed(past) if each.fingerprint == task.fingerprint), None)


def _previous(
    now: TaskInputs,
    before: PastAttempts,
    current: PastAttempts | None,
    fingerprint: bytes | None,
    tries: Sequence[PastAttempts],
) -> PreviousAttempt:
    """Describes the attempts before the current ones, and why the task was asked again."""
    if before.fingerprint == fingerprint:
        reason = _rerun_reason(current, answered=before.answered)
        return PreviousAttempt(before.at, True, [reason])
    return PreviousAttempt(before.at, False, _changed_since(now, before, tries))


def _rerun_reason(present: PastAttempts | None, *, answered: bool) -> str:
    """Tells why the same question was asked again. `answered`: it had an answer before."""
    first = present.retry_from if present is not None else None
    if first is not None:
        return f"`agac retry --from {first}` asks anew"
    return TOO_OLD if answered else "it had no valid answer then"


def _changed_since(
    now: TaskInputs, before: PastAttempts, attempts: Sequence[PastAttempts]
) -> list[str]:
    """Tells what changed within a run, in which the workflow stays the same: the row, or an answer
    that the prompt names."""
    history = now.history
    if history.redos.of(now.stage.name, history.row.id, before.fingerprint):
        return [REDO]
    tasks = _first_tasks(history)
    upstream = [
        stage for stage in history.stages[: now.stage.index] if stage.name in now.stage.ancestors
    ]
    names = {stage.name for stage in upstream}
    named = _named_in_prompt(now.stage)
    asked = [stage for stage in upstream if stage.name in named and stage.index in tasks]
    newer = [stage.name for stage in asked if tasks[stage.index].settled_at > before.at]
    if not newer:
        return ["the row changed"]
    changes = [f"the answer of stage {name} changed" for name in newer]
    if not named - names - {VARS}:
        return changes
    # stages that see nothing but the row tell if it changed
    of_row_alone = [stage for stage in upstream if not names & _named_in_prompt(stage)]
    earlier = [each for each in attempts if each.replica < 2 and each.at <= before.at]
    if any(_was_asked_otherwise(stage, tasks, earlier) for stage in of_row_alone):
        return [*changes, "the row changed"]
    return [*changes, "perhaps the row too"]


def _first_tasks(history: RowHistory) -> dict[int, TaskRecord]:
    """Returns the tasks of a row by stage. For a stage with replicas it is the first replica's,
    since all have the same prompt."""
    first_replicas = {
        stage: task for (stage, number), task in history.replicas.items() if number == 1
    }
    return {**history.tasks, **first_replicas}


def _named_in_prompt(stage: RecordedStage) -> set[str]:
    """Returns the fields and stages that a prompt names."""
    return {placeholder.name.partition(".")[0] for placeholder in stage.prompt.placeholders}


def _was_asked_otherwise(
    stage: RecordedStage, tasks: Mapping[int, TaskRecord], earlier: Sequence[PastAttempts]
) -> bool:
    """True if the last of the `earlier` attempts at a stage asked another question."""
    attempts = [each for each in earlier if each.stage == stage.index]
    task = tasks.get(stage.index)
    if not attempts or task is None:
        return False
    return attempts[-1].fingerprint != task.fingerprint


_COMPARED = ("model", "params", "reply", "replicas", "vote", "reuse", "operation", "when")
"""The parts of a task that are compared as values."""


def _differences(now: TaskInputs, before: TaskInputs | None) -> list[dict[str, Any]]:
    """Returns what differs between a task and an earlier one: values, schemas, messages, fields."""
    if before is None:
        return []
    differences = value_changes(_compared(before), _compared(now), _COMPARED)
    for what, earlier, present in (
        ("tools", before.agent, now.agent),
        ("schema", before.schema, now.schema),
    ):
        if earlier != present:
            texts = [json.dumps(body, indent=2, ensure_ascii=False) for body in (earlier, present)]
            differences.append({"what": what, "diff": text_diff(*texts)})
    if before.messages is not None and now.messages is not None:
        for role in ("system", "user", "assistant"):
            earlier_text = _text_of(before.messages, role)
            text = _text_of(now.messages, role)
            if earlier_text != text:
                diff = text_diff(earlier_text, text)
                differences.append({"what": f"{role} message", "diff": diff})
    earlier_fields = json.loads(before.history.row.data) or {}
    fields = json.loads(now.history.row.data) or {}
    names = dict.fromkeys([*earlier_fields, *fields])
    return [*differences, *value_changes(earlier_fields, fields, names, "field {}")]


def _compared(task: TaskInputs) -> dict[str, Any]:
    """Returns the parts of a task that are compared as values."""
    operation = task.stage.operation
    return {
        **task.components(),
        "operation": operation and operation.body(),
        "when": task.guard,
    }


def _text_of(messages: Sequence[Message], role: str) -> str:
    """Returns the texts of all messages of a role."""
    return "\n".join(message.text for message in messages if message.role == role)
