"""`agac why`: what a task's fingerprint is made of, and what differs from the last time it was run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.options import position_of
from agac.api.row_history import in_batch
from agac.api.status import database_path, find_rows, find_run
from agac.core.keys import digest
from agac.core.report import Moment, Report, iso
from agac.core.types import Message, Outcome, RowId, texts_of
from agac.engine.replay import RowHistory
from agac.plan.diff import text_diff, value_changes
from agac.plan.stage import RecordedStage, recorded_stages, reuse_salt
from agac.spec.paths import project_root
from agac.spec.templates import VARS, MissingField
from agac.store import runs
from agac.store.batches import RowTask
from agac.store.db import Database, open_for_reading
from agac.store.history import (
    PastAttempts,
    StoredTask,
    TaskRecord,
    past_attempts,
    rows_with_ids,
    runs_before,
    stored_task,
)
from agac.store.runs import RunRecord

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
class AttemptHistory:
    """What a run tells of a task: `present` is the asking that its outcome comes from, None when there is none, and
    `before` the last one of the others."""

    present: PastAttempts | None
    before: PastAttempts | None


def attempt_history(askings: Sequence[PastAttempts], position: int, task: TaskRecord | None) -> AttemptHistory:
    """The askings of a stage of a row, of all of that row in the order of time."""
    own = [one for one in askings if one.stage == position]
    ended = task is not None and task.outcome != Outcome.REUSED
    present = next((one for one in reversed(own) if ended and task and one.fingerprint == task.fingerprint), None)
    return AttemptHistory(present, next((one for one in reversed(own) if one is not present), None))


def previous_attempts(
    stages: Sequence[RecordedStage],
    position: int,
    fingerprint: bytes | None,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> PreviousAttempt | None:
    """The last time before. `fingerprint` is the present question's, `tasks` the row's by stage."""
    found = attempt_history(askings, position, tasks.get(position))
    before = found.before
    if before is None:
        return None
    if before.fingerprint != fingerprint:
        return PreviousAttempt(before.at, same=False, because=_changed_since(stages, position, before, tasks, askings))
    return PreviousAttempt(before.at, same=True, because=[rerun_reason(found.present, answered=before.answered)])


Way = tuple[Sequence[RecordedStage], int, bytes | None, Mapping[int, TaskRecord], Sequence[PastAttempts]]
"""What `again` takes."""


def by_replica(
    stages: Sequence[RecordedStage],
    position: int,
    fingerprint: bytes | None,
    tasks: Mapping[int, TaskRecord],
    replicas: Mapping[tuple[int, int], TaskRecord],
    askings: Sequence[PastAttempts],
) -> Iterator[Way]:
    """The askings of a stage as if it were asked once: itself, or each of its replicas in turn. Of other stages with
    replicas the first one stands for all, since all have the same prompt."""
    first = {**tasks, **{stage: one for (stage, number), one in replicas.items() if number == 1}}
    elsewhere = [one for one in askings if one.stage != position and one.replica < 2]
    if stages[position].replicas == 1:
        yield stages, position, fingerprint, first, [one for one in askings if one.replica < 2]
        return
    for (stage, number), own in replicas.items():
        if stage == position:
            wanted = [one for one in askings if one.stage == position and one.replica == number]
            yield stages, position, own.fingerprint, {**first, position: own}, [*elsewhere, *wanted]


def rerun_reason(present: PastAttempts | None, *, answered: bool) -> str:
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
    names = [placeholder.name.partition(".")[0] for placeholder in stages[position].prompt.placeholders]
    before_it = [stage for stage in stages[:position] if stage.name in stages[position].ancestors]
    upstream = [stage for stage in before_it if stage.name in names]
    newer = [stage.name for stage in upstream if (task := tasks.get(stage.index)) and task.settled_at > before.at]
    found = [f"the answer of stage {name} changed" for name in newer]
    if not newer:
        return ["the row changed"]
    if not set(names) - {stage.name for stage in before_it} - {VARS}:
        return found
    return [
        *found,
        "the row changed" if _other_row(before_it, before, tasks, askings) else "perhaps the row too",
    ]


def _other_row(
    earlier: Sequence[RecordedStage],
    before: PastAttempts,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> bool:
    """Whether a stage that sees nothing but the row was asked with another question then."""
    others = {stage.name for stage in earlier}
    for stage in earlier:
        alone = not others & {placeholder.name.partition(".")[0] for placeholder in stage.prompt.placeholders}
        then = [one for one in askings if one.stage == stage.index and one.at <= before.at]
        task = tasks.get(stage.index)
        if alone and then and task is not None and then[-1].fingerprint != task.fingerprint:
            return True
    return False


def _hash(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True)).hex()


@dataclass(frozen=True, slots=True)
class TaskInputs:
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

    def components(self) -> dict[str, Any]:
        """What goes into the fingerprint."""
        schema = self.stage.schema
        return {
            "model": self.stage.model,
            "params": dict(self.stage.params),
            "schema": None if schema is None else {"name": schema.name, "hash": _hash(schema.body)},
            "messages": None if self.messages is None else texts_of(self.messages),
            "reuse": self.stage.reuse,
            **({"replicas": self.stage.replicas, "vote": self.stage.vote} if self.stage.replicas > 1 else {}),
            "salt": reuse_salt(self.stage.reuse, self.row_id, self.run),
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


def _messages(history: RowHistory, position: int) -> tuple[tuple[Message, ...] | None, str | None]:
    """The messages of a task, or why there are none."""
    stages, tasks, seen, row = history.stages, history.tasks, history.replay, history.row
    stage = stages[position]
    upstream = stage.ancestors
    outcomes = {one.name: outcome for one in stages if (outcome := history.outcome(one)) is not None}
    if outcomes.get(stage.name) in (Outcome.SKIPPED, Outcome.DROPPED):
        return None, "the row was passed over, so nothing was asked"
    left = [name for name in outcomes if name in upstream and outcomes[name] == Outcome.DROPPED]
    if left:
        return None, f"stage {left[0]} made the row leave, so this one was not asked"
    if position not in tasks and (elsewhere := _elsewhere(history, stage)):
        return None, elsewhere
    for one in stages[:position]:
        seen.learn(one, tasks.get(one.index))
    if position not in tasks and row.error_type is not None:
        failed = [name for name in outcomes if name in upstream and outcomes[name] == Outcome.FAILED]
        what = f"stage {failed[0]} failed" if failed else f"the row cannot be used ({row.error_type})"
        return None, f"{what}, so this one was not asked"
    try:
        if stage.operation is not None:
            return None, "this stage asks no model"
        if stage.rows_of is not None and seen.unknown([stage.rows_of]):
            return None, f"stage {stage.rows_of} gave no row yet, so this one was not asked"
        return seen.messages(stage), None
    except MissingField as missing:
        head = missing.name.partition(".")[0]
        if head in upstream and head in seen.unknown(upstream):
            return None, f"stage {head} has no answer yet, so this one was not asked"
        return None, str(missing)


@dataclass(frozen=True, slots=True)
class WhyReport:
    """A task, the last one of the same row and stage in an earlier run, and what differs: lines of words and of diffs.

    `again`: when its own run asked it before. `anew`: why it was asked although nothing differs from the earlier run.
    """

    workflow: str
    row_id: RowId
    stage: str
    now: TaskInputs
    before: TaskInputs | None
    differences: list[dict[str, Any]]
    again: PreviousAttempt | None = None
    anew: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return {
            "workflow": self.workflow,
            "row": self.row_id,
            "stage": self.stage,
            **self.now.as_json(),
            "before": self.before.as_json() if self.before else None,
            "differences": self.differences,
            "asked_before_in_this_run": self.again.as_json() if self.again else None,
            "asked_anew_because": self.anew,
        }


def why(run: int | str, row: str, stage: str, *, project: Path | str | None = None) -> WhyReport:
    """What a row's task at a stage was asked with, and what differs from the last time. Reads the store only."""
    root = project_root(project)
    return asyncio.run(_why(root, run, row, stage))


async def _why(root: Path, run: int | str, row: str, stage: str) -> WhyReport:
    async with open_for_reading(database_path(root)) as database:
        record = await find_run(database, None, run)
        assert database is not None
        definition = await runs.definition_of(database, record.id)
        stages = recorded_stages(definition)
        position = position_of(stage, [one.name for one in stages], "STAGE")
        found = await find_rows(database, record.id, [row])
        now = await _asked(database, record.id, [one.id for one in found], definition, position)
        assert now is not None
        before = await _before(database, record.id, now.row_id, stage)
        askings = await past_attempts(database, now.task.row_key)
    fingerprint = now.task.fingerprint or now.made
    ways = list(by_replica(stages, position, fingerprint, now.history.tasks, now.history.replicas, askings))
    earlier = max(filter(None, (previous_attempts(*way) for way in ways)), key=lambda one: one.at, default=None)
    asked_now = [attempt_history(own, position, tasks.get(position)).present for _, _, _, tasks, own in ways]
    anew = _anew(record, now, before, next(filter(None, asked_now), None))
    return WhyReport(record.workflow, now.row_id, stage, now, before, _differences(now, before), earlier, anew)


def _anew(record: RunRecord, now: TaskInputs, before: TaskInputs | None, present: PastAttempts | None) -> str | None:
    """Why a question was asked that an earlier run had asked already; None when it was not."""
    if before is None or present is None or now.task.fingerprint != before.task.fingerprint:
        return None
    if record.fresh_since is not None and present.retry_from is None:
        return "--fresh reuses nothing"
    return rerun_reason(present, answered=before.task.outcome != Outcome.FAILED)


async def _before(database: Database, run: int, row_id: RowId, stage: str) -> TaskInputs | None:
    """The row's task at the stage of the same name in the newest earlier run that has one."""
    for number in await runs_before(database, run, row_id):
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
        task = await stored_task(database, run, row_id, position)
        if task is not None:
            rows = {row.key: row for row in await rows_with_ids(database, run, [row_id])}
            history = await RowHistory.read(database, run, stages, rows[task.row_key])
            messages, missing = _messages(history, position)
            made = stages[position].task_prints(messages, row_id, run)[0] if messages is not None else None
            if made is not None and task.fingerprint is not None and made != task.fingerprint:
                messages = None
                missing = "it was asked of an earlier content of the row or of an earlier answer, which is not kept"
            return TaskInputs(run, stages[position], task, history, messages, missing, made, guard)
    return None


def _elsewhere(history: RowHistory, stage: RecordedStage) -> str | None:
    """Why the stage is not asked of this row, but of others; None: it may be."""
    if maker := next((name for name in history.lists if name in stage.ancestors), None):
        return f"stage {maker} gave a list of rows in the place of this one: name one of those"
    if stage.index in history.own:
        return None
    return "this stage is asked of rows that another stage makes: `agac inspect` shows those that were made of this one"


def _differences(now: TaskInputs, before: TaskInputs | None) -> list[dict[str, Any]]:
    if before is None:
        return []
    new, old = (
        {**one.components(), "operation": one.stage.operation and one.stage.operation.body(), "when": one.guard}
        for one in (now, before)
    )
    found = value_changes(old, new, ("model", "params", "replicas", "vote", "reuse", "operation", "when"))
    if _schema(now) != _schema(before):
        found.append({"what": "schema", "diff": text_diff(_pretty(_schema(before)), _pretty(_schema(now)))})
    for role in ("system", "user", "assistant"):
        texts = _text(before, role), _text(now, role)
        if None not in texts and texts[0] != texts[1]:
            found.append({"what": f"{role} message", "diff": text_diff(texts[0] or "", texts[1] or "")})
    fields = json.loads(before.task.data) or {}, json.loads(now.task.data) or {}
    return [*found, *value_changes(*fields, dict.fromkeys([*fields[0], *fields[1]]), "field {}")]


def _schema(asked: TaskInputs) -> Any:
    return asked.stage.schema.body if asked.stage.schema else None


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(asked: TaskInputs, role: str) -> str | None:
    if asked.messages is None:
        return None
    return "\n".join(p.text for m in asked.messages if m.role == role for p in m.parts)
