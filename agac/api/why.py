"""`agac why`: what a task's fingerprint is made of, and what differs from the last time it was run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.inspect import in_batch
from agac.api.status import blocking, find_rows, position_of, stored_run
from agac.core.keys import digest
from agac.core.types import Message, Moment, Outcome, Report, RowId, iso, texts_of
from agac.engine.replay import RowHistory
from agac.plan.diff import text_diff, value_changes
from agac.plan.stage import RecordedStage, recorded_stages, reuse_salt
from agac.spec.paths import project_root
from agac.spec.templates import VARS, MissingField
from agac.store import history as stored
from agac.store import runs
from agac.store.batches import RowTask
from agac.store.db import Database
from agac.store.history import PastAttempts, StoredTask, TaskRecord

TOO_OLD = "the answer was older than max_age, or is no longer stored"


@dataclass(frozen=True, slots=True)
class PreviousAttempt(Report):
    """The last time that a task's run asked it before: with the `same` question, or with another one, and since when
    it is another: `because` says what is known of that."""

    JSON_KEYS = ("asked_at=at", "same_question=same", "because")

    at: Moment
    same: bool
    because: list[str]


@dataclass(frozen=True, slots=True)
class TaskInputs(Report):
    """One task as it was asked. `messages` None: what was asked cannot be rebuilt, for the reason in `missing`.

    `history` is that of its row, `made` the fingerprint of what would be asked now, `in_batch` where its answer is to
    come from, `guard` that of the stage.
    """

    run: int
    stage: RecordedStage
    task: StoredTask
    history: RowHistory
    messages: tuple[Message, ...] | None
    missing: str | None
    made: bytes | None
    guard: str | None

    @property
    def row_id(self) -> RowId:
        """The id of its row."""
        return self.history.row.id

    @property
    def in_batch(self) -> RowTask | None:
        """The batch that the task is in, or waits for."""
        return next((one for one in self.history.in_batches if one.stage == self.stage.index), None)

    @property
    def passed_over(self) -> dict[str, Any] | None:
        """The guard that kept the row out of the stage, with the values that it looked at; None: it did not."""
        own = self.history.tasks.get(self.stage.index)
        note: dict[str, Any] = json.loads(own.note) if own and own.note else {}
        return note if "values" in note else None

    @property
    def schema(self) -> Any:
        """The JSON Schema of its answer; None: it has none."""
        return self.stage.schema.body if self.stage.schema else None

    def components(self) -> dict[str, Any]:
        """What goes into the fingerprint."""
        stage, schema = self.stage, self.stage.schema
        schema_hash = digest(json.dumps(self.schema, sort_keys=True)).hex()
        return {
            "model": stage.model,
            "params": dict(stage.params),
            "schema": None if schema is None else {"name": schema.name, "hash": schema_hash},
            "messages": None if self.messages is None else texts_of(self.messages),
            "reuse": stage.reuse,
            **({"replicas": stage.replicas, "vote": stage.vote} if stage.replicas > 1 else {}),
            "salt": reuse_salt(stage.reuse, self.row_id, self.run),
        }

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        task = self.task
        found = task.fingerprint or (self.in_batch.fingerprint if self.in_batch else None)
        return {
            "run": self.run,
            "fingerprint": found.hex() if found else None,
            "outcome": task.outcome,
            "in_batch": in_batch(self.in_batch) if self.in_batch else None,
            "error": {"type": task.error_type, "message": task.error_message} if task.error_type else None,
            "passed_over": self.passed_over,
            "settled_at": iso(task.settled_at),
            "answered_at": iso(task.answered_at),
            "answered_by": f"{task.provider}/{task.model}" if task.provider else None,
            "how": task.how or None,
            "made_of": self.components(),
            "cannot_be_rebuilt": self.missing,
        }


@dataclass(frozen=True, slots=True)
class WhyReport(Report):
    """A task, the last one of the same row and stage in an earlier run, and what differs: lines of words and of diffs.

    `again`: when its own run asked it before. `anew`: why it was asked although nothing differs from the earlier run.
    """

    JSON_KEYS = (
        "workflow", "row=row_id", "stage", "**now", "before", "differences", "asked_before_in_this_run=again",
        "asked_anew_because=anew",
    )  # fmt: skip

    workflow: str
    row_id: RowId
    stage: str
    now: TaskInputs
    before: TaskInputs | None
    differences: list[dict[str, Any]]
    again: PreviousAttempt | None = None
    anew: str | None = None


@blocking
async def why(run: int | str, row: str, stage: str, *, project: Path | str | None = None) -> WhyReport:
    """What a row's task at a stage was asked with, and what differs from the last time. Reads the store only."""
    async with stored_run(project_root(project), run) as (database, record):
        definition = await runs.definition_of(database, record.id)
        position = position_of(stage, [body["name"] for body in definition["stages"]], "STAGE")
        ids = [one.id for one in await find_rows(database, record.id, [row])]
        now = await _asked(database, record.id, ids, definition, position)
        assert now is not None
        before = await _before(database, record.id, now.row_id, stage)
        asked = _asked_by_replica(now, position, await stored.past_attempts(database, now.task.row_key))
    present = next((one for one, _ in asked if one is not None), None)
    again = max((previous for _, previous in asked if previous is not None), key=lambda one: one.at, default=None)
    anew = None
    if before is not None and present is not None and now.task.fingerprint == before.task.fingerprint:
        anew = _rerun_reason(present, answered=before.task.outcome != Outcome.FAILED)
        if record.fresh_since is not None and present.retry_from is None:
            anew = "--fresh reuses nothing"
    return WhyReport(record.workflow, now.row_id, stage, now, before, _differences(now, before), again, anew)


async def _before(database: Database, run: int, row_id: RowId, stage: str) -> TaskInputs | None:
    """The row's task at the stage of the same name in the newest earlier run that has one."""
    for number in await stored.runs_before(database, run, row_id):
        definition = await runs.definition_of(database, number)
        names = [body["name"] for body in definition["stages"]]
        if stage in names:
            found = await _asked(database, number, (row_id,), definition, names.index(stage))
            if found is not None and found.task.outcome is not None:
                return found
    return None


async def _asked(
    database: Database, run: int, ids: Sequence[RowId], definition: Mapping[str, Any], position: int
) -> TaskInputs | None:
    stages, guard = recorded_stages(definition), definition["stages"][position].get("when")
    for row_id in ids:
        task = await stored.stored_task(database, run, row_id, position)
        if task is not None:
            rows = {row.key: row for row in await stored.rows_with_ids(database, run, [row_id])}
            history = await RowHistory.read(database, run, stages, rows[task.row_key])
            messages, missing = _messages(history, position)
            made = stages[position].task_prints(messages, row_id, run)[0] if messages is not None else None
            if made is not None and task.fingerprint is not None and made != task.fingerprint:
                messages = None
                missing = "it was asked of an earlier content of the row or of an earlier answer, which is not kept"
            return TaskInputs(run, stages[position], task, history, messages, missing, made, guard)
    return None


def _messages(history: RowHistory, position: int) -> tuple[tuple[Message, ...] | None, str | None]:
    """The messages of a task, or why there are none."""
    stages, seen = history.stages, history.replay
    stage = stages[position]
    if reason := _not_asked(history, stage):
        return None, reason
    for one in stages[:position]:
        seen.learn(one, history.tasks.get(one.index))
    if stage.rows_of is not None and seen.unknown([stage.rows_of]):
        return None, f"stage {stage.rows_of} gave no row yet, so this one was not asked"
    try:
        return seen.messages(stage), None
    except MissingField as missing:
        head = missing.name.partition(".")[0]
        if head in seen.unknown(stage.ancestors):
            return None, f"stage {head} has no answer yet, so this one was not asked"
        return None, str(missing)


def _not_asked(history: RowHistory, stage: RecordedStage) -> str | None:
    """Why a row's outcomes so far kept it from the stage; None: they did not."""
    outcomes = {one.name: history.outcome(one) for one in history.stages}
    upstream = [name for name in outcomes if name in stage.ancestors]
    if outcomes[stage.name] in (Outcome.SKIPPED, Outcome.DROPPED):
        return "the row was passed over, so nothing was asked"
    if left := [name for name in upstream if outcomes[name] == Outcome.DROPPED]:
        return f"stage {left[0]} made the row leave, so this one was not asked"
    if stage.index not in history.tasks:
        if makers := [name for name in history.lists if name in stage.ancestors]:
            return f"stage {makers[0]} gave a list of rows in the place of this one: name one of those"
        if stage.index not in history.own:
            return (
                "this stage is asked of rows that another stage makes: `agac inspect` shows those that were made of "
                "this one"
            )
        if history.row.error_type is not None:
            failed = [name for name in upstream if outcomes[name] == Outcome.FAILED]
            what = f"stage {failed[0]} failed" if failed else f"the row cannot be used ({history.row.error_type})"
            return f"{what}, so this one was not asked"
    return "this stage asks no model" if stage.operation is not None else None


# When the run asked the same task before.

Asked = tuple[PastAttempts | None, PreviousAttempt | None]
"""The asking that a task's outcome comes from, and the last one of the others; None where there is none."""


def _asked_by_replica(now: TaskInputs, position: int, askings: Sequence[PastAttempts]) -> list[Asked]:
    """The askings of a stage as if it were asked once: itself, or each of its replicas in turn. Of other stages with
    replicas the first one stands for all, since all have the same prompt. `askings` are those of the row, by time."""
    stages, tasks, replicas = now.history.stages, now.history.tasks, now.history.replicas
    first = {**tasks, **{stage: one for (stage, number), one in replicas.items() if number == 1}}
    if now.stage.replicas == 1:
        once = [one for one in askings if one.replica < 2]
        return [_asked_before(stages, position, now.task.fingerprint or now.made, first, once)]
    return [
        _asked_before(
            stages,
            position,
            own.fingerprint,
            {**first, position: own},
            [one for one in askings if (one.replica == number if one.stage == position else one.replica < 2)],
        )
        for (stage, number), own in replicas.items()
        if stage == position
    ]


def _asked_before(
    stages: Sequence[RecordedStage],
    position: int,
    fingerprint: bytes | None,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> Asked:
    """`fingerprint` is the present question's, `tasks` the row's by stage."""
    own, task = [one for one in askings if one.stage == position], tasks.get(position)
    present = None
    if task is not None and task.outcome != Outcome.REUSED:
        present = next((one for one in reversed(own) if one.fingerprint == task.fingerprint), None)
    before = next((one for one in reversed(own) if one is not present), None)
    if before is None:
        return present, None
    if before.fingerprint == fingerprint:
        because = [_rerun_reason(present, answered=before.answered)]
    else:
        because = _changed_since(stages, position, before, tasks, askings)
    return present, PreviousAttempt(before.at, before.fingerprint == fingerprint, because)


def _rerun_reason(present: PastAttempts | None, *, answered: bool) -> str:
    """Why the very same question was asked again, after an asking that was `answered` or was not."""
    first = present.retry_from if present is not None else None
    if first is not None:
        return f"`agac retry --from {first}` asks anew"
    return TOO_OLD if answered else "it had no valid answer then"


def _changed_since(
    stages: Sequence[RecordedStage],
    position: int,
    before: PastAttempts,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> list[str]:
    """Within a run the workflow is the same: the row changed, or an answer that the prompt names."""

    def named(stage: RecordedStage) -> set[str]:
        return {placeholder.name.partition(".")[0] for placeholder in stage.prompt.placeholders}

    def asked_otherwise(stage: RecordedStage) -> bool:
        """Whether a stage that sees nothing but the row was asked with another question then."""
        then = [one for one in askings if one.stage == stage.index and one.at <= before.at]
        task = tasks.get(stage.index)
        return bool(not names.intersection(named(stage)) and then and task and then[-1].fingerprint != task.fingerprint)

    upstream = [stage for stage in stages[:position] if stage.name in stages[position].ancestors]
    names, wanted = {stage.name for stage in upstream}, named(stages[position])
    newer = [
        stage.name
        for stage in upstream
        if stage.name in wanted and (task := tasks.get(stage.index)) and task.settled_at > before.at
    ]
    if not newer:
        return ["the row changed"]
    found = [f"the answer of stage {name} changed" for name in newer]
    if not wanted - names - {VARS}:
        return found
    return [*found, "the row changed" if any(map(asked_otherwise, upstream)) else "perhaps the row too"]


def _differences(now: TaskInputs, before: TaskInputs | None) -> list[dict[str, Any]]:
    if before is None:
        return []
    old, new = (
        {**one.components(), "operation": one.stage.operation and one.stage.operation.body(), "when": one.guard}
        for one in (before, now)
    )
    found = value_changes(old, new, ("model", "params", "replicas", "vote", "reuse", "operation", "when"))
    if now.schema != before.schema:
        schemas = (json.dumps(one.schema, indent=2, ensure_ascii=False) for one in (before, now))
        found.append({"what": "schema", "diff": text_diff(*schemas)})
    if before.messages is not None and now.messages is not None:
        for role in ("system", "user", "assistant"):
            old_text, new_text = (
                "\n".join(part.text for message in messages if message.role == role for part in message.parts)
                for messages in (before.messages, now.messages)
            )
            if old_text != new_text:
                found.append({"what": f"{role} message", "diff": text_diff(old_text, new_text)})
    fields = json.loads(before.task.data) or {}, json.loads(now.task.data) or {}
    return [*found, *value_changes(*fields, dict.fromkeys([*fields[0], *fields[1]]), "field {}")]
