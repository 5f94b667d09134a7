"""One row of a run with everything that was asked of it: prompts are rebuilt from the run's definition and the row."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from agac.api.rebuilding import Rebuilt
from agac.core.errors import ErrorType
from agac.core.types import Message, Outcome
from agac.engine.summary import iso
from agac.engine.validate import complaint
from agac.plan.recorded import RecordedStage, recorded_stages
from agac.spec.template import MissingField
from agac.store import history
from agac.store.db import Database
from agac.store.history import AttemptRecord, Origin, RowRecord, TaskRecord
from agac.store.rows import State
from agac.store.runs import RunRecord

_STATES = {
    State.PENDING: "open",
    State.DONE: "done",
    State.FAILED: "failed",
    State.DROPPED: "dropped",
    State.FILTERED: "dropped",
    State.SKIPPED: "skipped",
}

STALE = "the row, or an answer before this one, changed since; it is asked again by the next run"


class Asked(NamedTuple):
    """A row's tasks and attempts by stage, and where the results come from that were not asked for it."""

    row: RowRecord
    tasks: Mapping[int, TaskRecord]
    attempts: Mapping[int, list[AttemptRecord]]
    origins: Mapping[int, Origin]


class Prompt(NamedTuple):
    """A stage's prompt for a row and its fingerprint; without messages `note` says why there are none."""

    messages: tuple[Message, ...] | None
    fingerprint: bytes | None
    note: str | None


async def row_reports(
    database: Database, run: RunRecord, definition: Mapping[str, Any], rows: Sequence[RowRecord], stage: str | None
) -> list[dict[str, Any]]:
    """Each of the rows with its stages, or with the one called `stage`."""
    stages = recorded_stages(definition)
    return [_row_report(run, stages, await _asked(database, row), stage) for row in rows]


async def _asked(database: Database, row: RowRecord) -> Asked:
    tasks = {task.stage: task for task in await history.tasks_of_row(database, row.key)}
    attempts: dict[int, list[AttemptRecord]] = {}
    for attempt in await history.attempts_of_row(database, row.key):
        attempts.setdefault(attempt.stage, []).append(attempt)
    reused = [t.result_id for t in tasks.values() if t.outcome == Outcome.REUSED and t.result_id is not None]
    return Asked(row, tasks, attempts, await history.origins(database, reused))


def _row_report(run: RunRecord, stages: tuple[RecordedStage, ...], asked: Asked, only: str | None) -> dict[str, Any]:
    row = asked.row
    data = json.loads(row.data)
    found: list[dict[str, Any]] = []
    seen = Rebuilt(data, stages[0].variables)
    left = {stage.name for stage in stages if _outcome(asked, stage) == Outcome.DROPPED}
    for stage in stages:
        prompt = _prompt(run, stage, row, seen, left)
        task = asked.tasks.get(stage.index)
        found.append(_stage_report(stage, prompt, task, asked))
        seen.learn(stage, task if task and task.fingerprint in (None, prompt.fingerprint) else None)
    return {
        "id": row.id,
        "occurrence": row.occurrence,
        "row_number": row.ordinal,
        "in_input": row.ordinal is not None,
        "state": _STATES[State(row.state)],
        "error": _error(row.error_type, row.error_message, row.error_stage),
        "fields": data,
        "stages": [report for report in found if only in (None, report["name"])],
    }


def _outcome(asked: Asked, stage: RecordedStage) -> str | None:
    task = asked.tasks.get(stage.index)
    return task.outcome if task else None


def _prompt(run: RunRecord, stage: RecordedStage, row: RowRecord, seen: Rebuilt, left: Collection[str]) -> Prompt:
    """`left` are the stages that made the row leave."""
    if not seen.is_readable:
        return Prompt(None, None, "this record of the input could not be read")
    lacking = seen.lacking(stage)
    if lacking is not None:
        why = "made the row leave" if lacking in left else "has no answer"
        return Prompt(None, None, f"stage {lacking!r}, upstream of this one, {why}")
    try:
        messages = seen.messages(stage) if stage.operation is None else ()
    except MissingField as missing:
        return Prompt(None, None, str(missing))
    return Prompt(messages, seen.fingerprint(stage, messages, row.id, run.id), None)


def _stage_report(stage: RecordedStage, rebuilt: Prompt, task: TaskRecord | None, asked: Asked) -> dict[str, Any]:
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
        "operation": dict(stage.operation) if stage.operation else None,
        "traceback": note.get("traceback"),
        **(_task_report(task, asked) if task else {}),
        "prompt": [{"role": m.role, "text": "".join(part.text for part in m.parts)} for m in prompt]
        if prompt
        else None,
        "prompt_note": STALE if stale else None if passed_over else rebuilt.note,
        "attempts": _attempts(stage, rebuilt.fingerprint, asked.attempts.get(stage.index, [])),
    }


def _attempts(
    stage: RecordedStage, fingerprint: bytes | None, attempts: Sequence[AttemptRecord]
) -> list[dict[str, Any]]:
    """Each attempt; a re-ask with what it said of the last reply, which it quoted after the prompt."""
    found, wrong = [], None
    for attempt in attempts:
        said = None
        if attempt.purpose == "repair" and wrong is not None and wrong.invocation == attempt.invocation:
            said = complaint(wrong.error_message or "", wants_json=stage.schema is not None)
        found.append(_attempt_report(attempt, fingerprint, said))
        if attempt.error_type == ErrorType.SCHEMA_MISMATCH:
            wrong = attempt
    return found


def _task_report(task: TaskRecord, asked: Asked) -> dict[str, Any]:
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


def _reused_from(task: TaskRecord, asked: Asked) -> dict[str, Any]:
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
