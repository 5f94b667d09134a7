"""One row of a run with every task: its prompts rebuilt from definition and row, its parents, children and groups."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agac.core.errors import ErrorType
from agac.core.keys import definition_hash, local_fingerprint
from agac.core.report import iso
from agac.core.types import Message, Outcome, RowId
from agac.engine.derived_rows import MemberView
from agac.engine.groups import Contents, array
from agac.engine.input_rows import InvocationRef
from agac.engine.replay import Lineage
from agac.engine.validate import complaint
from agac.plan.definition import RecordedStage, recorded_stages
from agac.plan.render import RowView, share, votes
from agac.spec.levels import levels_of
from agac.spec.templates import ROWS_COUNT, ROWS_FAILED, ROWS_JSON, MissingField
from agac.store import history
from agac.store.batches import RowTask, tasks_of_row
from agac.store.db import Database
from agac.store.history import (
    AttemptRecord,
    Origin,
    RowRecord,
    TaskRecord,
    groups_of_row,
    member_ids,
    parts_of,
    rows_above,
    rows_below,
)
from agac.store.rows import GroupSize, StageResult, State, group_sizes
from agac.store.runs import RunRecord

# What a stored row was made of, what was made of it, and the groups that it is in, each by its id.

STATES = {
    State.PENDING: "open",
    State.DONE: "done",
    State.FAILED: "failed",
    State.DROPPED: "dropped",
    State.FILTERED: "dropped",
    State.SKIPPED: "skipped",
}

MAX_IDS = 1000
"""Ids of children, parts or members that are told of each stage."""

_CHILDREN = {"items": "child", "rows": "child", "kept": "kept", "groups": "group"}


async def relatives(database: Database, stages: Sequence[RecordedStage], row: RowRecord) -> dict[str, Any]:
    """How the row came to be: `relation` is input, child, kept, group or part, `made_by` the stage; `parents` are the
    nearest first. `children` and `groups` are what was made of it, `members` what a group is made of (else None)."""
    above = await rows_above(database, row.key)
    below, groups = await rows_below(database, row.key, MAX_IDS), await groups_of_row(database, row.key)
    root = above[-1] if above else row
    return {
        **_made(stages, row),
        "row_number": root.ordinal,
        "place": row.place if _relation(stages, row) == "child" else None,
        "parents": [{"id": one.id, **_made(stages, one)} for one in above],
        "children": [
            {
                "made_by": stages[one.origin].name,
                "relation": "part" if one.parts else _CHILDREN[stages[one.origin].makes or "items"],
                "count": sum(one.states.values()),
                "states": _by_word(one.states),
                "ids": one.ids,
            }
            for one in below
        ],
        "members": await _members(database, row) if _relation(stages, row) == "group" else None,
        "groups": [{"id": name, "made_by": stages[origin].name} for origin, name in groups],
    }


def is_list(stage: RecordedStage, value: str | None) -> bool:
    """Whether a function gave a list of rows in the place of a row; `value` is its stored result."""
    return stage.makes == "rows" and value is not None and isinstance(json.loads(value), list)


def _made(stages: Sequence[RecordedStage], row: RowRecord) -> dict[str, Any]:
    made_by = None if row.origin is None else stages[row.origin].name
    return {"relation": _relation(stages, row), "made_by": made_by}


def _relation(stages: Sequence[RecordedStage], row: RowRecord) -> str:
    if row.origin is None:
        return "input"
    return "part" if row.place is not None and row.place < 0 else _CHILDREN[stages[row.origin].makes or "items"]


def _by_word(states: Mapping[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for state, count in states.items():
        word = STATES[State(state)]
        found[word] = found.get(word, 0) + count
    return found


async def _members(database: Database, group: RowRecord) -> dict[str, Any]:
    """Of how many rows a group is made, and of how many it lacks, since they failed before they came to it."""
    size = (await group_sizes(database, [group.key])).get(group.key)
    return {
        "count": size.rows if size else 0,
        "failed": size.failed if size else 0,
        "ids": await member_ids(database, group.key, MAX_IDS, failed=False),
        "failed_ids": await member_ids(database, group.key, MAX_IDS, failed=True),
    }


# What the stages of a stored row saw of it: the fields that it had there, and the results upstream; of a row that a
# stage made also what those saw of which it was made.


def walked(stages: Sequence[RecordedStage], origin: int | None) -> tuple[RecordedStage, ...]:
    """The stages that rows go through which the stage at `origin` made; None: rows of the input."""
    return levels_of(stages).by_origin[origin].stages


async def rebuilt(database: Database, run: int, stages: Sequence[RecordedStage], row: RowRecord) -> Rebuilt:
    """The row as its first stage saw it."""
    lineage = Lineage(stages, stages[0].variables, database)
    own = frozenset(stage.name for stage in walked(stages, row.origin))
    if row.origin is None:
        return Rebuilt(lineage, lineage.begun(row.data, None, None), own, is_readable=json.loads(row.data) is not None)
    maker = stages[row.origin]
    if maker.group is None:
        assert row.parent_key is not None
        parents = await lineage.ended([row.parent_key])
        return Rebuilt(lineage, lineage.begun(row.data, row.origin, parents[row.parent_key]), own)
    member = MemberView.of(maker, {stage.name: stage for stage in stages})
    contents = Contents(InvocationRef(database, run, 0), lineage, member, maker.index)
    group, texts = row, None
    if row.parent_key is not None:
        (group,) = await rows_above(database, row.key)
        texts = await contents.of_part(group.key, row.data)
        size = GroupSize(len(texts or ()), 0, 0)
    else:
        size = (await group_sizes(database, [row.key])).get(row.key, GroupSize(0, 0, 0))
        if maker.group.fits(size.rows, size.tokens):
            texts = await contents.of_members(row.key)
        else:
            texts = await contents.of_parts(await _highest_parts(database, row.key))
    sight = lineage.begun(group.data, None, None)
    sight.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
    if texts is not None:
        sight.own[ROWS_JSON] = array(texts)
    return Rebuilt(lineage, sight, own)


async def _highest_parts(database: Database, group: int) -> list[str]:
    """The parts of a large group that are parts of no other one, in the order of what they hold."""
    bodies = {part.id: json.loads(part.data) for part in await parts_of(database, group)}
    below = {name for body in bodies.values() for name in body["parts"]}
    highest = [(body["low"], body["after"], str(name)) for name, body in bodies.items() if name not in below]
    return [name for _, _, name in sorted(highest)]


class Rebuilt:
    """One row, stage after stage: `learn` what became of each before the next is asked about. `sight` is what its first
    stage saw, `own` are the names of the stages that it goes through: of others upstream it was made."""

    def __init__(self, lineage: Lineage, sight: RowView, own: frozenset[str], *, is_readable: bool = True) -> None:
        self.is_readable = is_readable
        self._lineage, self._sight, self._own = lineage, sight, own
        self._passed: set[str] = set()

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """What became of a stage: `task` None when nothing did, or when what did is of an earlier row."""
        if task is not None and task.outcome in (Outcome.SKIPPED, Outcome.DONE, Outcome.REUSED):
            self._passed.add(stage.name)
            self._lineage.replay(self._sight, stage, StageResult(task.value, task.outcome == Outcome.SKIPPED))

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of these stages did not let the row through, as far as it is known."""
        return [name for name in names if name in self._own and name not in self._passed]

    def lacking(self, stage: RecordedStage) -> str | None:
        """The first stage upstream of which nothing is known."""
        return next(iter(self.unknown(stage.ancestors)), None)

    def messages(self, stage: RecordedStage) -> tuple[Message, ...]:
        """What the stage asks of the row. Raises MissingField."""
        return stage.messages(self._sight)

    def fingerprint(self, stage: RecordedStage, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes | None:
        """The fingerprint of a stage that was asked with these messages; None of one that has none."""
        if stage.operation is None:
            return stage.fingerprint(messages, row_id, run)
        if not stage.is_kept:
            return None
        return local_fingerprint(definition_hash(stage.operation.body()), self._sight.given(stage))


# One row of a run with everything that was asked of it: prompts are rebuilt from the run's definition and the row.

STALE = "the row, or an answer before this one, changed since; the next run runs it again"


class RowHistory(NamedTuple):
    """A row's tasks and attempts by stage, its replicas by stage and number, where the results come from that were not
    asked for it, and those tasks that are in batches."""

    row: RowRecord
    tasks: Mapping[int, TaskRecord]
    replicas: Mapping[tuple[int, int], TaskRecord]
    attempts: Mapping[int, list[AttemptRecord]]
    origins: Mapping[int, Origin]
    in_batches: Sequence[RowTask] = ()


class ShownPrompt(NamedTuple):
    """A stage's prompt for a row and its fingerprint, and those of its `replicas` where it has some; without messages
    `note` says why there are none."""

    messages: tuple[Message, ...] | None
    fingerprint: bytes | None
    note: str | None
    replicas: tuple[bytes, ...] = ()

    def print_of(self, replica: int) -> bytes | None:
        """The fingerprint of a replica, counted from 1; of 0 the task's own."""
        return self.replicas[replica - 1] if 0 < replica <= len(self.replicas) else self.fingerprint


async def row_reports(
    database: Database, run: RunRecord, definition: Mapping[str, Any], rows: Sequence[RowRecord], stage: str | None
) -> list[dict[str, Any]]:
    """Each of the rows with its stages; or those that came to the one called `stage` with that, all where none did."""
    stages = recorded_stages(definition)
    found = []
    for row in rows:
        seen = await rebuilt(database, run.id, stages, row)
        report = _row_report(run, stages, await _asked(database, row), seen, stage)
        found.append({**report, **await relatives(database, stages, row)})
    return found if stage is None else [report for report in found if report["stages"]] or found


async def _asked(database: Database, row: RowRecord) -> RowHistory:
    found = await history.tasks_of_row(database, row.key)
    tasks = {task.stage: task for task in found if not task.replica}
    replicas = {(task.stage, task.replica): task for task in found if task.replica}
    attempts: dict[int, list[AttemptRecord]] = {}
    for attempt in await history.attempts_of_row(database, row.key):
        attempts.setdefault(attempt.stage, []).append(attempt)
    reused = [task.result_id for task in found if task.outcome == Outcome.REUSED and task.result_id is not None]
    in_batches = await tasks_of_row(database, row.key)
    return RowHistory(row, tasks, replicas, attempts, await history.origins(database, reused), in_batches)


def _row_report(
    run: RunRecord, stages: tuple[RecordedStage, ...], asked: RowHistory, seen: Rebuilt, only: str | None
) -> dict[str, Any]:
    row = asked.row
    found: list[dict[str, Any]] = []
    left = {stage.name for stage in stages if _outcome(asked, stage) == Outcome.DROPPED}
    for stage in _stages_of(stages, asked):
        prompt = _prompt(run, stage, row, seen, left)
        task = asked.tasks.get(stage.index)
        found.append(_stage_report(stage, prompt, task, asked))
        seen.learn(stage, task if task and task.fingerprint in (None, prompt.fingerprint) else None)
    return {
        "id": row.id,
        "occurrence": max(row.occurrence, 0),
        "row_number": row.ordinal,
        "in_input": row.ordinal is not None,
        "state": STATES[State(row.state)],
        "error": _error(row.error_type, row.error_message, row.error_stage),
        "fields": json.loads(row.data),
        "stages": [report for report in found if only in (None, report["name"])],
    }


def _stages_of(stages: tuple[RecordedStage, ...], asked: RowHistory) -> list[RecordedStage]:
    """The stages that the row goes through, and those at which it turned out that nothing can be made of it. Where a
    function gave a list, its rows go through those that follow, and not this one."""
    row = asked.row
    if row.place is not None and row.place < 0 and row.origin is not None:
        return [stages[row.origin]]
    own = {stage.index for stage in walked(stages, row.origin)}
    lists = {stages[position].name for position, task in asked.tasks.items() if is_list(stages[position], task.value)}
    return [
        stage
        for stage in stages
        if stage.index in asked.tasks or (stage.index in own and not lists.intersection(stage.ancestors))
    ]


def _outcome(asked: RowHistory, stage: RecordedStage) -> str | None:
    task = asked.tasks.get(stage.index)
    return task.outcome if task else None


def _prompt(run: RunRecord, stage: RecordedStage, row: RowRecord, seen: Rebuilt, left: Collection[str]) -> ShownPrompt:
    """`left` are the stages that made the row leave."""
    if not seen.is_readable:
        return ShownPrompt(None, None, "this record of the input could not be read")
    lacking = seen.lacking(stage)
    if lacking is not None:
        why = "made the row leave" if lacking in left else "has no answer"
        return ShownPrompt(None, None, f"stage {lacking!r}, upstream of this one, {why}")
    try:
        messages = seen.messages(stage) if stage.operation is None else ()
    except MissingField as missing:
        return ShownPrompt(None, None, str(missing))
    replicas = stage.replica_prints(messages, row.id, run.id)
    return ShownPrompt(messages, seen.fingerprint(stage, messages, row.id, run.id), None, replicas)


def _stage_report(
    stage: RecordedStage, rebuilt: ShownPrompt, task: TaskRecord | None, asked: RowHistory
) -> dict[str, Any]:
    stale = bool(task and task.fingerprint and task.fingerprint != rebuilt.fingerprint)
    note = json.loads(task.note) if task and task.note else {}
    passed_over = note if "values" in note else None
    prompt = None if stale or passed_over else rebuilt.messages
    return {
        "name": stage.name,
        "model": stage.model,
        "alias": dict(stage.alias) if stage.alias else None,
        "params": dict(stage.params),
        "outcome": task.outcome if task else "open",
        "stale": stale,
        "passed_over": passed_over,
        "operation": stage.operation.body() if stage.operation else None,
        "traceback": note.get("traceback"),
        **(_task_report(task, asked) if task else {}),
        "in_batches": [in_batch(one) for one in asked.in_batches if one.stage == stage.index],
        **_replica_reports(stage, rebuilt, task, asked),
        "prompt": [{"role": m.role, "text": "".join(part.text for part in m.parts)} for m in prompt]
        if prompt
        else None,
        "prompt_note": STALE if stale else None if passed_over else rebuilt.note,
        "attempts": _attempts(stage, rebuilt, asked.attempts.get(stage.index, [])),
    }


def in_batch(task: RowTask) -> dict[str, Any]:
    """The batch that a task is in, or (`waits`) that an equal one is in whose answer it takes."""
    return {
        **({"replica": task.replica} if task.replica else {}),
        "fingerprint": task.fingerprint.hex(),
        "waits": task.waits,
        "round": task.round,
        "batch": task.batch,
        "run": task.run,
        "provider_id": task.provider_id,
        "step": task.step,
        "submitted_at": iso(task.submitted_at) if task.provider_id is not None else None,
    }


def _replica_reports(
    stage: RecordedStage, rebuilt: ShownPrompt, task: TaskRecord | None, asked: RowHistory
) -> dict[str, list[dict[str, Any]] | dict[str, Any] | None]:
    """What each replica of a stage came to, and how they voted; nothing of a stage that is asked once."""
    if stage.replicas == 1:
        return {}
    known = {number: asked.replicas.get((stage.index, number)) for number in range(1, stage.replicas + 1)}
    told = [
        {
            "replica": number,
            "outcome": one.outcome if one else "open",
            "stale": bool(one and one.fingerprint != rebuilt.print_of(number)),
            **(_task_report(one, asked) if one else {}),
        }
        for number, one in known.items()
    ]
    return {"vote": _vote(stage.vote, task, list(known.values())), "replicas": told}


def _vote(field: str | None, task: TaskRecord | None, replicas: Sequence[TaskRecord | None]) -> dict[str, Any] | None:
    """How replicas voted; None where they did not, or not yet."""
    note = json.loads(task.note) if task and task.note else {}
    answers = [one.value for one in replicas if one is not None and one.value is not None]
    if field is None or "agreement" not in note or len(answers) < len(replicas):
        return None
    said: dict[str, list[int]] = {}
    for number, value in enumerate(votes(answers, field), 1):
        said.setdefault(value, []).append(number)
    ordered = sorted(said.items(), key=lambda one: -len(one[1]))
    return {
        "field": field,
        "agreement": round(share(note["agreement"]), 4),
        "taken": note["replica"],
        "values": [{"value": json.loads(value), "replicas": numbers} for value, numbers in ordered],
    }


def _attempts(stage: RecordedStage, rebuilt: ShownPrompt, attempts: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """Each attempt, replica by replica; a re-ask with what it said of the last reply, which it quoted after the
    prompt."""
    found: list[dict[str, Any]] = []
    wrong: AttemptRecord | None = None
    for attempt in sorted(attempts, key=lambda one: one.replica):
        said = None
        asked = (attempt.invocation, attempt.replica)
        if attempt.purpose == "repair" and wrong is not None and (wrong.invocation, wrong.replica) == asked:
            said = complaint(wrong.error_message or "", wants_json=stage.schema is not None)
        found.append(_attempt_report(attempt, rebuilt.print_of(attempt.replica), said))
        if attempt.error_type == ErrorType.SCHEMA_MISMATCH:
            wrong = attempt
    return found


def _task_report(task: TaskRecord, asked: RowHistory) -> dict[str, Any]:
    return {
        "fingerprint": task.fingerprint.hex() if task.fingerprint else None,
        "settled_at": iso(task.settled_at),
        "result": json.loads(task.value) if task.value is not None else None,
        "error": _error(task.error_type, task.error_message),
        "failures": task.failures,
        "answered_by": _endpoint(task) if task.provider is not None else None,
        "how": task.how.split(",") if task.how else [],
        "reused_from": _reused_from(task, asked) if task.outcome == Outcome.REUSED else None,
    }


def _reused_from(task: TaskRecord, asked: RowHistory) -> dict[str, Any]:
    """Where a result was asked; without a run when the row that asked it changed since or is gone."""
    origin = asked.origins.get(task.result_id or 0)
    return {
        "run": origin.run if origin else None,
        "row": origin.row_id if origin else None,
        "answered_at": iso(task.created_at),
    }


def _endpoint(record: TaskRecord | AttemptRecord) -> dict[str, Any]:
    return {
        "provider": record.provider,
        "model": record.model,
        "base_url": record.base_url,
        "simulated": bool(record.simulated),
    }


def _attempt_report(attempt: AttemptRecord, fingerprint: bytes | None, said: str | None) -> dict[str, Any]:
    return {
        **({"replica": attempt.replica} if attempt.replica else {}),
        "number": attempt.number,
        "invocation": attempt.invocation,
        "purpose": attempt.purpose,
        "asked_again_with": said,
        "of_earlier_content": attempt.fingerprint != fingerprint,
        "fingerprint": attempt.fingerprint.hex(),
        **_endpoint(attempt),
        "started_at": iso(attempt.started_at),
        "duration_s": round(attempt.duration, 4),
        "ttft_s": _rounded(attempt.ttft),
        "time_to_response_s": _rounded(attempt.time_to_response),
        "http_status": attempt.status,
        "service_tier": attempt.service_tier,
        "input_tokens": attempt.input_tokens,
        "cached_tokens": attempt.cached_tokens,
        "output_tokens": attempt.output_tokens,
        "reasoning_tokens": attempt.reasoning_tokens,
        "cost_usd": attempt.cost,
        "perhaps_billed": bool(attempt.ambiguous),
        "error": _error(attempt.error_type, attempt.error_message),
        "reply": history.reply_text(attempt.reply),
        "reply_kept": attempt.reply is not None,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _error(error_type: str | None, message: str | None, stage: str | None = None) -> dict[str, Any] | None:
    if error_type is None:
        return None
    return {"type": error_type, "message": message, **({"stage": stage} if stage else {})}
