"""One row of a run with all that is known of it: each stage with its task, its prompt as it is
rebuilt, its attempts, replicas and turns; and the rows it was made of and those made of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.status import find_rows, stored_run
from agac.api.sync import blocking
from agac.core.errors import REPAIRED, RowError
from agac.core.types import Message, Outcome, RowId, iso, json_form
from agac.engine.ask.validate import complaint, stored_failure
from agac.engine.decide.votes import votes
from agac.engine.output.run_summary import share
from agac.engine.walk.replay import RowHistory
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.operations import Vote
from agac.spec.paths import project_root
from agac.spec.templates import MissingField
from agac.store import history
from agac.store.batches import RowTask
from agac.store.db import Database, grouped
from agac.store.history import CallRecord, Origin, TaskRecord
from agac.store.rows import State, StoredRow, group_sizes, kept_rows
from agac.store.runs import RunRecord, definition_of

STATES = {
    State.PENDING: "open", State.DONE: "done", State.FAILED: "failed", State.DROPPED: "dropped",
    State.FILTERED: "dropped", State.SKIPPED: "skipped",
}  # fmt: skip
"""The words for the states of rows."""

MAX_IDS = 1000
"""Ids of children, parts or members that are listed for each stage."""

MAX_SPANS = 1000
"""Calls of a row that are shown by their times."""

MAX_SAME = 20
"""Rows of one id that are shown on a page."""

STALE = "the row, or an answer before this one, changed since; the next run runs it again"

_CHILDREN = {"items": "child", "rows": "child", "kept": "kept", "groups": "group"}
"""What a row is to the row it was made of, by what its stage makes."""


class ShownPrompt(NamedTuple):
    """The prompt of a stage for one row, as it is rebuilt."""

    messages: tuple[Message, ...] | None
    """The messages; None if there are none."""
    note: str | None
    """Why there are none."""
    prints: tuple[bytes | None, ...] = (None,)
    """The fingerprint of the task, then those of its replicas."""

    def print_of(self, replica: int) -> bytes | None:
        """Returns the fingerprint of a replica, counted from 1, or for 0 that of the task."""
        return self.prints[replica if replica < len(self.prints) else 0]


async def row_report(
    database: Database,
    run: int,
    stages: Sequence[RecordedStage],
    row: StoredRow,
    only: str | None,
    *,
    asked: bool = True,
) -> dict[str, Any]:
    """Describes a row with all its stages, or `only` one. `asked`: also tell where reused answers
    were asked for, which reads all tasks."""
    known = await RowHistory.read(database, run, stages, row)
    kept = {}
    if row.state == State.DROPPED:
        kept = {"kept_row": (await kept_rows(database, run, [row.id]))[row.id]}
    return {
        "id": row.id,
        "occurrence": max(row.occurrence, 0),
        "row_number": row.ordinal,
        "in_input": row.ordinal is not None,
        "state": STATES[State(row.state)],
        **kept,
        "error": error_of(row),
        "fields": json.loads(row.data),
        "stages": await _stage_reports(database, known, only, with_origins=asked),
        **await _relatives(database, stages, row),
    }


async def _stage_reports(
    database: Database, known: RowHistory, only: str | None, *, with_origins: bool
) -> list[dict[str, Any]]:
    """Describes the stages that a row came to, or `only` one of them."""
    key = known.row.key
    calls = await history.calls_of_row(database, key)
    attempts = grouped(calls, lambda record: record.call.attempt.stage)
    turns: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for position, turn in await history.turns_of_row(database, key):
        turns[position].append(turn)
    reused = _reused_results(known) if with_origins else []
    origins = await history.origins(database, reused)
    reports = list[dict[str, Any]]()
    for stage in known.stages_met():
        prompt = _prompt(known, stage)
        if only in (None, stage.name):
            report = _stage_report(known, stage, prompt, attempts.get(stage.index, ()), origins)
            if stage.index in turns:
                report["turns"] = turns[stage.index]
            reports.append(report)
        task = known.tasks.get(stage.index)
        is_current = task is not None and task.fingerprint in (None, prompt.prints[0])
        known.learn(stage, task if is_current else None)
    return reports


def _reused_results(known: RowHistory) -> list[int]:
    """Returns the ids of results that tasks of a row reused."""
    tasks = [*known.tasks.values(), *known.replicas.values()]
    return [
        task.result_id
        for task in tasks
        if task.outcome == Outcome.REUSED and task.result_id is not None
    ]


@blocking
async def row_page(
    run: int | str, row: RowId, *, project: Path | str | None = None
) -> tuple[RunRecord, list[dict[str, Any]]]:
    """Reads a run, and at most MAX_SAME rows with an id: each as `inspect` describes it, without
    where reused answers were asked for, and with the first MAX_SPANS calls of models and tools by
    their time as its `trace`. Raises UsageError."""
    async with stored_run(project_root(project), run) as (database, record):
        stages = recorded_stages(await definition_of(database, record.id))
        reports = []
        for stored in (await find_rows(database, record.id, [row]))[:MAX_SAME]:
            report = await row_report(database, record.id, stages, stored, None, asked=False)
            report["trace"] = await history.spans_of_row(database, stored.key, MAX_SPANS)
            reports.append(report)
        return record, reports


# Rows that a row was made of, and those made of it.


async def _relatives(
    database: Database, stages: Sequence[RecordedStage], row: StoredRow
) -> dict[str, Any]:
    """Describes how a row came to be: its `relation` to the row before it (input, child, kept,
    group or part), the stage that made it, and its `parents`, the nearest first. `children` and
    `groups` are the rows made of it; `members` those that a group was made of, else None."""
    origin = _origin_of(row, stages)
    above = await history.rows_above(database, row)
    children = await _children(database, stages, row)
    members = await _members(database, row) if origin["relation"] == "group" else None
    groups = await history.groups_of_row(database, row.key)
    return {
        **origin,
        "row_number": (above[-1] if above else row).ordinal,
        "place": row.place if origin["relation"] == "child" else None,
        "parents": [{"id": parent.id, **_origin_of(parent, stages)} for parent in above],
        "children": children,
        "members": members,
        "groups": [{"id": name, "made_by": stages[stage].name} for stage, name in groups],
    }


def _origin_of(row: StoredRow, stages: Sequence[RecordedStage]) -> dict[str, Any]:
    """Returns what a row is to the row before it, and the stage that made it."""
    if row.origin is None:
        return {"relation": "input", "made_by": None}
    maker = stages[row.origin]
    is_part = row.place is not None and row.place < 0
    relation = "part" if is_part else _CHILDREN[maker.makes or "items"]
    return {"relation": relation, "made_by": maker.name}


async def _children(
    database: Database, stages: Sequence[RecordedStage], row: StoredRow
) -> list[dict[str, Any]]:
    """Describes the rows made of a row, by the stage that made them."""
    children = []
    for below in await history.rows_below(database, row.key, MAX_IDS):
        maker = stages[below.origin]
        counts = Counter[str]()
        for state, count in below.states.items():
            counts[STATES[State(state)]] += count
        children.append(
            {
                "made_by": maker.name,
                "relation": "part" if below.parts else _CHILDREN[maker.makes or "items"],
                "count": counts.total(),
                "states": dict(counts),
                "ids": below.ids,
            }
        )
    return children


async def _members(database: Database, group: StoredRow) -> dict[str, Any]:
    """Counts and names the rows that a group is made of, and those that it lacks because they
    failed before they came to it."""
    size = (await group_sizes(database, [group.key])).get(group.key)
    return {
        "count": size.rows if size else 0,
        "failed": size.failed if size else 0,
        "ids": await history.member_ids(database, group.key, False, MAX_IDS),
        "failed_ids": await history.member_ids(database, group.key, True, MAX_IDS),
    }


# One stage of a row.


def _prompt(known: RowHistory, stage: RecordedStage) -> ShownPrompt:
    """Rebuilds the prompt of a stage, as far as answers before it are known."""
    if known.row.origin is None and json.loads(known.row.data) is None:
        return ShownPrompt(None, "this record of the input could not be read")
    unknown = known.unknown(stage.ancestors)
    if unknown:
        has_dropped = any(
            before.name == unknown[0] and known.outcome(before) == Outcome.DROPPED
            for before in known.stages
        )
        why = "made the row leave" if has_dropped else "has no answer"
        return ShownPrompt(None, f"stage {unknown[0]!r}, upstream of this one, {why}")
    try:
        if stage.operation is not None:
            return ShownPrompt((), None, (known.fingerprint(stage),))
        messages, (of_task, of_replicas) = known.asked(stage)
    except MissingField as missing:
        return ShownPrompt(None, str(missing))
    return ShownPrompt(messages, None, (of_task, *of_replicas))


def _stage_report(
    known: RowHistory,
    stage: RecordedStage,
    rebuilt: ShownPrompt,
    attempts: Sequence[CallRecord],
    origins: Mapping[int, Origin],
) -> dict[str, Any]:
    """Describes a stage with its attempts; if it has replicas with the answer of each, and with
    the vote on them."""
    task = known.tasks.get(stage.index)
    stale = _is_stale(task, rebuilt)
    note = json.loads(task.note) if task and task.note else {}
    passed_over = note if "values" in note else None
    report: dict[str, Any] = {
        "name": stage.name,
        "model": stage.model,
        "alias": dict(stage.alias) if stage.alias else None,
        "params": dict(stage.params),
        "outcome": task.outcome if task else "open",
        "stale": stale,
        "passed_over": passed_over,
        "operation": stage.operation.body() if stage.operation else None,
        "traceback": note.get("traceback"),
    }
    if task:
        report |= _task_report(task, origins)
    if stage.operation and stage.operation.key == "review":
        report["decided"] = note.get("review")
    report["in_batches"] = [
        in_batch(each) for each in known.in_batches if each.stage == stage.index
    ]
    if stage.replicas > 1:
        report |= _replicas_report(known, stage, rebuilt, note, origins, stale=stale)
    if "review" in note:
        report["reviewed"] = note["review"]
    return {
        **report,
        **_prompt_report(rebuilt, stale=stale, passed_over=bool(passed_over)),
        "attempts": _attempts(stage, rebuilt, attempts),
    }


def _is_stale(task: TaskRecord | None, rebuilt: ShownPrompt) -> bool:
    """True if a task was asked with another prompt than the one that is rebuilt."""
    if task is None or not task.fingerprint:
        return False
    return task.fingerprint != rebuilt.prints[0]


def _prompt_report(rebuilt: ShownPrompt, *, stale: bool, passed_over: bool) -> dict[str, Any]:
    """Returns the prompt of a stage, or why none is shown."""
    if stale:
        return {"prompt": None, "prompt_note": STALE}
    if passed_over:
        return {"prompt": None, "prompt_note": None}
    prompt = json_form(rebuilt.messages) if rebuilt.messages else None
    return {"prompt": prompt, "prompt_note": rebuilt.note}


def _replicas_report(
    known: RowHistory,
    stage: RecordedStage,
    rebuilt: ShownPrompt,
    note: Mapping[str, Any],
    origins: Mapping[int, Origin],
    *,
    stale: bool,
) -> dict[str, Any]:
    """Describes each replica of a stage, and how they voted. Those that are as `stale` as the task
    have a vote."""
    replicas = {
        number: known.replicas.get((stage.index, number)) for number in range(1, stage.replicas + 1)
    }
    if stage.vote is not None and stage.vote.lead:  # those that were asked
        replicas = {number: task for number, task in replicas.items() if task is not None}
    reports = []
    voting = []
    for number, task in replicas.items():
        is_stale = task is not None and task.fingerprint != rebuilt.print_of(number)
        if is_stale == stale:
            voting.append(task)
        report: dict[str, Any] = {
            "replica": number,
            "outcome": task.outcome if task else "open",
            "stale": is_stale,
        }
        reports.append(report | (_task_report(task, origins) if task else {}))
    return {"vote": _vote(stage.vote, note, voting), "replicas": reports}


def in_batch(task: RowTask) -> dict[str, Any]:
    """Describes the batch that a task is in, or (`waits`) the one with an equal task, whose answer
    it takes."""
    names = ("waits", "round", "batch", "run", "provider_id", "step")
    return {
        **({"replica": task.replica} if task.replica else {}),
        "fingerprint": task.fingerprint.hex(),
        **{name: getattr(task, name) for name in names},
        "submitted_at": iso(task.submitted_at) if task.provider_id is not None else None,
    }


def _vote(
    vote: Vote | None, note: Mapping[str, Any], replicas: Sequence[TaskRecord | None]
) -> dict[str, Any] | None:
    """Describes how replicas voted, as the task's note says, and which have no vote. Returns None
    if they did not vote, or did not agree."""
    if vote is None or "agreement" not in note or not all(replicas):
        return None
    numbers: dict[str | None, list[int]] = defaultdict(list)
    values = votes([task and task.value for task in replicas], vote)
    for number, value in enumerate(values, 1):
        numbers[value].append(number)
    without = numbers.pop(None, [])
    by_votes = sorted(numbers.items(), key=lambda item: -len(item[1]))
    return {
        "field": vote.field,
        "agreement": round(share(note["agreement"]), 4),
        "taken": note["replica"],
        **({"lead": vote.lead, "without": without} if vote.lead else {}),
        "values": [{"value": json.loads(value or ""), "replicas": of} for value, of in by_votes],
    }


def _attempts(
    stage: RecordedStage, rebuilt: ShownPrompt, records: Sequence[CallRecord]
) -> list[dict[str, Any]]:
    """Describes each attempt, replica by replica. A re-ask comes with what it said about the
    previous reply, which it quoted."""
    reports = list[dict[str, Any]]()
    last_wrong: CallRecord | None = None
    for record in sorted(records, key=lambda record: record.call.attempt.replica):
        call = record.call
        attempt = call.attempt
        is_child = attempt.purpose == "child"
        is_current = attempt.fingerprint == rebuilt.print_of(attempt.replica)
        reports.append(
            {
                **({"replica": attempt.replica} if attempt.replica else {}),
                "number": attempt.number,
                "invocation": record.invocation,
                "purpose": attempt.purpose,
                "asked_again_with": _complaint(stage, record, last_wrong),
                "of_earlier_content": not is_child and not is_current,
                **record.as_json(),
                "error": _call_error(call.error),
                "reply": history.reply_text(call.reply),
                "reply_kept": call.reply is not None,
            }
        )
        if call.error is not None and call.error.type in REPAIRED:
            last_wrong = record
    return reports


def _complaint(stage: RecordedStage, record: CallRecord, wrong: CallRecord | None) -> str | None:
    """Rebuilds what a re-ask said about the reply of the `wrong` call. None: it is no re-ask of
    that."""
    attempt = record.call.attempt
    if attempt.purpose != "repair" or wrong is None or wrong.call.error is None:
        return None
    of_wrong = (wrong.invocation, wrong.call.attempt.replica)
    if of_wrong != (record.invocation, attempt.replica):
        return None
    error = stored_failure(wrong.call.error.type, wrong.call.error.message, stage.checks)
    return complaint(error, wants_json=stage.wants_json)


def _call_error(error: RowError | None) -> dict[str, str] | None:
    """Reports the error of a call; None: it has none."""
    if error is None:
        return None
    return {"type": error.type.value, "message": error.message}


def _task_report(task: TaskRecord, origins: Mapping[int, Origin]) -> dict[str, Any]:
    """Describes how a task ended. A reused result has no run if the row that asked for it changed
    since or is gone."""
    answered_by = None
    if task.provider is not None:
        names = ("provider", "model", "base_url", "simulated")
        answered_by = {key: getattr(task, key) for key in names}
    return {
        "fingerprint": task.fingerprint.hex() if task.fingerprint else None,
        "settled_at": iso(task.settled_at),
        "result": json.loads(task.value) if task.value is not None else None,
        "error": error_of(task),
        "failures": task.failures,
        "answered_by": answered_by,
        "how": task.how.split(",") if task.how else [],
        **({"sources": json.loads(task.sources)} if task.sources else {}),
        "reused_from": _reused_from(task, origins),
    }


def _reused_from(task: TaskRecord, origins: Mapping[int, Origin]) -> dict[str, Any] | None:
    """Returns where a reused result was asked for; None if the task's result is its own, or was
    adopted."""
    if task.outcome != Outcome.REUSED or task.how == "adopted":
        return None
    origin = origins.get(task.result_id or 0)
    return {
        "run": origin.run if origin else None,
        "row": origin.row_id if origin else None,
        "answered_at": iso(task.created_at),
    }


def error_of(record: TaskRecord | StoredRow) -> dict[str, Any] | None:
    """Returns the error of a task or a row, or None."""
    if record.error_type is None:
        return None
    error = {"type": record.error_type, "message": record.error_message}
    if isinstance(record, StoredRow) and record.error_stage:
        error["stage"] = record.error_stage
    return error
