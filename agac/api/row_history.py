"""One row of a run with every task: its prompts rebuilt from definition and row, its parents, children and groups."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agac.core.errors import ErrorType
from agac.core.report import iso
from agac.core.types import Message, Outcome, texts_of
from agac.engine.replay import RowHistory
from agac.engine.validate import complaint
from agac.plan.render import share, votes
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.templates import MissingField
from agac.store import history
from agac.store.batches import RowTask
from agac.store.db import Database
from agac.store.history import (
    AttemptRecord,
    Origin,
    TaskRecord,
    groups_of_row,
    member_ids,
    rows_above,
    rows_below,
)
from agac.store.rows import RowRecord, State, group_sizes
from agac.store.runs import RunRecord

STATES = {
    State.PENDING: "open",
    State.DONE: "done",
    State.FAILED: "failed",
    State.DROPPED: "dropped",
    State.FILTERED: "dropped",
    State.SKIPPED: "skipped",
}

MAX_IDS = 1000
"""Ids of children, parts or members that are listed for each stage."""

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
        "ids": await member_ids(database, group.key, False, MAX_IDS),
        "failed_ids": await member_ids(database, group.key, True, MAX_IDS),
    }


STALE = "the row, or an answer before this one, changed since; the next run runs it again"


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


class CalledRow(NamedTuple):
    """A row's history with its attempts by stage, and where the results come from that were not asked for it."""

    history: RowHistory
    attempts: Mapping[int, list[AttemptRecord]]
    origins: Mapping[int, Origin]


async def _read(database: Database, run: RunRecord, stages: Sequence[RecordedStage], row: RowRecord) -> CalledRow:
    found = await RowHistory.read(database, run.id, stages, row)
    attempts: dict[int, list[AttemptRecord]] = {}
    for attempt in await history.attempts_of_row(database, row.key):
        attempts.setdefault(attempt.stage, []).append(attempt)
    tasks = [*found.tasks.values(), *found.replicas.values()]
    reused = [task.result_id for task in tasks if task.outcome == Outcome.REUSED and task.result_id is not None]
    return CalledRow(found, attempts, await history.origins(database, reused))


async def row_reports(
    database: Database, run: RunRecord, definition: Mapping[str, Any], rows: Sequence[RowRecord], stage: str | None
) -> list[dict[str, Any]]:
    """Each of the rows with its stages; or those that came to the one called `stage` with that, all where none did."""
    stages = recorded_stages(definition)
    found = []
    for row in rows:
        called = await _read(database, run, stages, row)
        found.append({**_row_report(called, stage), **await relatives(database, stages, row)})
    return found if stage is None else [report for report in found if report["stages"]] or found


def _row_report(called: CalledRow, only: str | None) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    known, row = called.history, called.history.row
    for stage in known.stages_met():
        prompt = _prompt(known, stage)
        task = known.tasks.get(stage.index)
        found.append(_stage_report(stage, prompt, task, called))
        known.replay.learn(stage, task if task and task.fingerprint in (None, prompt.fingerprint) else None)
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


def _prompt(known: RowHistory, stage: RecordedStage) -> ShownPrompt:
    seen, row = known.replay, known.row
    if not seen.is_readable:
        return ShownPrompt(None, None, "this record of the input could not be read")
    lacking = seen.lacking(stage)
    if lacking is not None:
        left = any(one.name == lacking and known.outcome(one) == Outcome.DROPPED for one in known.stages)
        why = "made the row leave" if left else "has no answer"
        return ShownPrompt(None, None, f"stage {lacking!r}, upstream of this one, {why}")
    try:
        messages = seen.messages(stage) if stage.operation is None else ()
    except MissingField as missing:
        return ShownPrompt(None, None, str(missing))
    _, replicas = stage.task_prints(messages, row.id, known.run)
    return ShownPrompt(messages, seen.fingerprint(stage, messages, row.id, known.run), None, replicas)


def _stage_report(
    stage: RecordedStage, rebuilt: ShownPrompt, task: TaskRecord | None, called: CalledRow
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
        **(_task_report(task, called) if task else {}),
        "in_batches": [in_batch(one) for one in called.history.in_batches if one.stage == stage.index],
        **_replica_reports(stage, rebuilt, task, called),
        "prompt": texts_of(prompt) if prompt else None,
        "prompt_note": STALE if stale else None if passed_over else rebuilt.note,
        "attempts": _attempts(stage, rebuilt, called.attempts.get(stage.index, [])),
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
    stage: RecordedStage, rebuilt: ShownPrompt, task: TaskRecord | None, called: CalledRow
) -> dict[str, list[dict[str, Any]] | dict[str, Any] | None]:
    """What each replica of a stage came to, and how they voted; nothing of a stage that is asked once."""
    if stage.replicas == 1:
        return {}
    known = {number: called.history.replicas.get((stage.index, number)) for number in range(1, stage.replicas + 1)}
    reports = [
        {
            "replica": number,
            "outcome": one.outcome if one else "open",
            "stale": bool(one and one.fingerprint != rebuilt.print_of(number)),
            **(_task_report(one, called) if one else {}),
        }
        for number, one in known.items()
    ]
    return {"vote": _vote(stage.vote, task, list(known.values())), "replicas": reports}


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


def _task_report(task: TaskRecord, called: CalledRow) -> dict[str, Any]:
    return {
        "fingerprint": task.fingerprint.hex() if task.fingerprint else None,
        "settled_at": iso(task.settled_at),
        "result": json.loads(task.value) if task.value is not None else None,
        "error": _error(task.error_type, task.error_message),
        "failures": task.failures,
        "answered_by": _endpoint(task) if task.provider is not None else None,
        "how": task.how.split(",") if task.how else [],
        "reused_from": _reused_from(task, called) if task.outcome == Outcome.REUSED else None,
    }


def _reused_from(task: TaskRecord, called: CalledRow) -> dict[str, Any]:
    """Where a result was asked; without a run when the row that asked it changed since or is gone."""
    origin = called.origins.get(task.result_id or 0)
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
