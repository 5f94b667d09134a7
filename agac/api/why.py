"""`agac why`: what a task's fingerprint is made of, and what differs from the last time it was
run."""

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
    """The last time that a task's run asked it before: with the `same` question or another one,
    `because` of what."""

    asked_at: Moment
    same_question: bool
    because: list[str]


@dataclass(frozen=True, slots=True)
class TaskInputs(Report):
    """One task as it was asked. `messages` None: what was asked cannot be rebuilt, for the reason
    in `missing`. `history` is that of its row, `made` the fingerprint of what would be asked now,
    `guard` that of the stage. `agent` is what its model may call, `turns` those of the row's
    conversations there, with their calls."""

    run: int
    stage: RecordedStage
    history: RowHistory
    messages: tuple[Message, ...] | None
    missing: str | None
    made: bytes | None
    guard: str | None
    agent: Mapping[str, Any]
    turns: list[dict[str, Any]]

    @property
    def task(self) -> TaskRecord | None:
        """The task with its result; None: nothing was settled yet."""
        return self.history.tasks.get(self.stage.index)

    @property
    def fingerprint(self) -> bytes | None:
        """The one that is stored of it."""
        return self.task.fingerprint if self.task else None

    @property
    def outcome(self) -> str | None:
        """What became of it; None: nothing yet."""
        return self.task.outcome if self.task else None

    @property
    def passed_over(self) -> dict[str, Any] | None:
        """The guard that kept the row out of the stage, with the values that it looked at; None:
        it did not."""
        note: dict[str, Any] = json.loads(self.task.note) if self.task and self.task.note else {}
        return note if "values" in note else None

    @property
    def schema(self) -> Any:
        """The JSON Schema of its answer; None: it has none."""
        return self.stage.schema.body if self.stage.schema else None

    def components(self) -> dict[str, Any]:
        """What goes into the fingerprint."""
        stage, schema = self.stage, self.stage.schema
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
        """The value that `--json` prints."""
        batch = next(
            (one for one in self.history.in_batches if one.stage == self.stage.index), None
        )
        found = self.fingerprint or (
            batch.fingerprint if batch else self.made if self.turns else None
        )
        task = self.task
        return {
            "run": self.run,
            "fingerprint": found.hex() if found else None,
            "outcome": self.outcome,
            "in_batch": in_batch(batch) if batch else None,
            "error": error_of(task) if task else None,
            "passed_over": self.passed_over,
            "settled_at": iso(task.settled_at) if task else None,
            "answered_at": iso(task.created_at) if task else None,
            "answered_by": f"{task.provider}/{task.model}" if task and task.provider else None,
            "how": task.how or None if task else None,
            "made_of": self.components(),
            "cannot_be_rebuilt": self.missing,
        }


@dataclass(frozen=True, slots=True)
class WhyReport(Report):
    """A task, the last one of the same row and stage in an earlier run, and what differs: lines of
    words and of diffs. `again`: when its own run asked it before. `anew`: why it was asked
    although nothing differs."""

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
    row_id: RowId
    stage: str
    now: TaskInputs
    before: TaskInputs | None
    differences: list[dict[str, Any]]
    again: PreviousAttempt | None = None
    anew: str | None = None


@blocking
async def why(
    run: int | str, row: int | str, stage: str, *, project: Path | str | None = None
) -> WhyReport:
    """What a row's task at a stage was asked with, and what differs from the last time. Reads the
    store only."""
    async with stored_run(project_root(project), run) as (database, record):
        definition = await runs.definition_of(database, record.id)
        position = position_of(stage, [body["name"] for body in definition["stages"]], "STAGE")
        rows = await find_rows(database, record.id, [row])
        row_id = rows[0].id
        now = await _asked(
            database, record.id, [one for one in rows if one.id == row_id], definition, position
        )
        assert now is not None
        before = await _before(database, record.id, row_id, stage)
        present, again = _asked_before(
            now, await stored.past_attempts(database, now.history.row.key)
        )
    anew = None
    if before is not None and present is not None and now.fingerprint == before.fingerprint:
        anew = _rerun_reason(present, answered=before.outcome != Outcome.FAILED)
        if record.fresh_since is not None and present.retry_from is None:
            anew = "--fresh reuses nothing"
    return WhyReport(
        record.workflow, row_id, stage, now, before, _differences(now, before), again, anew
    )


async def _before(database: Database, run: int, row_id: RowId, stage: str) -> TaskInputs | None:
    """The row's task at the stage of the same name in the newest earlier run that has one."""
    for number in await stored.runs_before(database, run, row_id):
        definition = await runs.definition_of(database, number)
        names = [body["name"] for body in definition["stages"]]
        if stage in names:
            rows = await stored.rows_with_ids(database, number, [row_id])
            found = await _asked(database, number, rows, definition, names.index(stage))
            if found is not None and found.outcome is not None:
                return found
    return None


async def _asked(
    database: Database,
    run: int,
    rows: Sequence[StoredRow],
    definition: Mapping[str, Any],
    position: int,
) -> TaskInputs | None:
    """The task at a stage of the one of these rows that came to it; None where there is no row."""
    stages = recorded_stages(definition)
    histories = [await RowHistory.read(database, run, stages, row) for row in rows]
    if not histories:
        return None
    came = [one for one in histories if position in one.tasks] or histories
    history = min(
        came, key=lambda one: (-1 if one.row.origin is None else one.row.origin, one.row.occurrence)
    )
    stage = stages[position]
    task = history.tasks.get(position)
    messages, made, missing = _messages(history, position)
    if made is not None and task is not None and task.fingerprint not in (None, made):
        messages = None
        missing = (
            "it was asked of an earlier content of the row or of an earlier answer, which "
            "is not kept"
        )
    body = definition["stages"][position]
    if "agent" in body:
        turns = await stored.turns_of_row(database, history.row.key)
    else:
        turns = []
    own = [turn for at, turn in turns if at == position]
    return TaskInputs(
        run, stage, history, messages, missing, made, body.get("when"), body.get("agent") or {}, own
    )


def _messages(
    history: RowHistory, position: int
) -> tuple[tuple[Message, ...] | None, bytes | None, str | None]:
    stage = history.stages[position]
    reason = _not_asked(history, stage)
    if reason:
        return None, None, reason
    for one in history.stages[:position]:
        history.learn(one, history.tasks.get(one.index))
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
    """Why a row's outcomes so far kept it from the stage; None: they did not."""
    outcomes = {one.name: history.outcome(one) for one in history.stages}
    upstream = [name for name in outcomes if name in stage.ancestors]
    if outcomes[stage.name] in (Outcome.SKIPPED, Outcome.DROPPED):
        return "the row was passed over, so nothing was asked"
    left = [name for name in upstream if outcomes[name] == Outcome.DROPPED]
    if left:
        return f"stage {left[0]} made the row leave, so this one was not asked"
    if stage.index not in history.tasks:
        makers = [name for name in history.lists if name in stage.ancestors]
        if makers:
            return (
                f"stage {makers[0]} gave a list of rows in the place of this one: name one of those"
            )
        if stage.name not in history.own:
            return (
                "this stage is asked of rows that another stage makes: `agac inspect` shows "
                "those that were made of this one"
            )
        if history.row.error_type is not None:
            failed = [name for name in upstream if outcomes[name] == Outcome.FAILED]
            if failed:
                what = f"stage {failed[0]} failed"
            else:
                what = f"the row cannot be used ({history.row.error_type})"
            return f"{what}, so this one was not asked"
    if stage.operation is not None:
        return "this stage asks no model"
    return None


# When the run asked the same task before.


def _asked_before(
    now: TaskInputs, tries: Sequence[PastAttempts]
) -> tuple[PastAttempts | None, PreviousAttempt | None]:
    """The attempts that the task's outcome comes from, and the last ones before them; None where
    there are none. A stage with replicas is looked at replica by replica. `tries` are those of the
    row, by time."""
    position = now.stage.index
    own = {
        number: task for (stage, number), task in now.history.replicas.items() if stage == position
    }
    present = None
    previous = []
    for replica, task in own.items() if now.stage.replicas > 1 else [(0, now.task)]:
        past = [
            one
            for one in tries
            if one.stage == position and one.replica in ((replica,) if replica else (0, 1))
        ]
        fingerprint = task.fingerprint if task and task.fingerprint else now.made
        current = None
        if task is not None and task.outcome != Outcome.REUSED:
            current = next(
                (one for one in reversed(past) if one.fingerprint == task.fingerprint), None
            )
        present = present or current
        before = next((one for one in reversed(past) if one is not current), None)
        if before is not None:
            same = before.fingerprint == fingerprint
            reason = _rerun_reason(current, answered=before.answered)
            previous.append(
                PreviousAttempt(
                    before.at, same, [reason] if same else _changed_since(now, before, tries)
                )
            )
    return present, max(previous, key=lambda one: one.asked_at, default=None)


def _rerun_reason(present: PastAttempts | None, *, answered: bool) -> str:
    first = present.retry_from if present is not None else None
    if first is not None:
        return f"`agac retry --from {first}` asks anew"
    return TOO_OLD if answered else "it had no valid answer then"


def _changed_since(
    now: TaskInputs, before: PastAttempts, attempts: Sequence[PastAttempts]
) -> list[str]:
    """Within a run the workflow is the same: the row changed, or an answer that the prompt names.
    Of upstream stages with replicas the first one stands for all, since all have the same prompt.
    """
    history = now.history
    if history.redos.of(now.stage.name, history.row.id, before.fingerprint):
        return [REDO]
    tasks = {
        **history.tasks,
        **{stage: one for (stage, number), one in history.replicas.items() if number == 1},
    }

    def named(stage: RecordedStage) -> set[str]:
        return {placeholder.name.partition(".")[0] for placeholder in stage.prompt.placeholders}

    def asked_otherwise(stage: RecordedStage) -> bool:
        """Whether a stage that sees nothing but the row was asked with another question then."""
        then = [
            one
            for one in attempts
            if one.stage == stage.index and one.replica < 2 and one.at <= before.at
        ]
        task = tasks.get(stage.index)
        return bool(
            not names.intersection(named(stage))
            and then
            and task
            and then[-1].fingerprint != task.fingerprint
        )

    upstream = [
        stage for stage in history.stages[: now.stage.index] if stage.name in now.stage.ancestors
    ]
    names = {stage.name for stage in upstream}
    wanted = named(now.stage)
    asked = [stage for stage in upstream if stage.name in wanted and stage.index in tasks]
    newer = [stage.name for stage in asked if tasks[stage.index].settled_at > before.at]
    if not newer:
        return ["the row changed"]
    found = [f"the answer of stage {name} changed" for name in newer]
    if not wanted - names - {VARS}:
        return found
    return [
        *found,
        "the row changed" if any(map(asked_otherwise, upstream)) else "perhaps the row too",
    ]


def _differences(now: TaskInputs, before: TaskInputs | None) -> list[dict[str, Any]]:
    if before is None:
        return []
    old, new = (
        {
            **one.components(),
            "operation": one.stage.operation and one.stage.operation.body(),
            "when": one.guard,
        }
        for one in (before, now)
    )
    found = value_changes(
        old, new, ("model", "params", "reply", "replicas", "vote", "reuse", "operation", "when")
    )
    for what, was, body in (
        ("tools", before.agent, now.agent),
        ("schema", before.schema, now.schema),
    ):
        if was != body:
            texts = (json.dumps(one, indent=2, ensure_ascii=False) for one in (was, body))
            found.append({"what": what, "diff": text_diff(*texts)})
    if before.messages is not None and now.messages is not None:
        for role in ("system", "user", "assistant"):
            old_text, new_text = (
                "\n".join(message.text for message in messages if message.role == role)
                for messages in (before.messages, now.messages)
            )
            if old_text != new_text:
                found.append({"what": f"{role} message", "diff": text_diff(old_text, new_text)})
    fields = json.loads(before.history.row.data) or {}, json.loads(now.history.row.data) or {}
    return [*found, *value_changes(*fields, dict.fromkeys([*fields[0], *fields[1]]), "field {}")]
