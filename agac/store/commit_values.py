"""Builds the statements of a commit with their values, from what the commit writes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from agac.core.errors import RowError
from agac.core.types import Outcome
from agac.store import records
from agac.store.write_batch import CounterDelta, WriteBatch

Statement = tuple[str, list[Any]]
"""A statement's name, and the values of each time it is run."""

_OUTCOME_COLUMNS = {outcome.value: column for column, outcome in enumerate(Outcome)}
"""The column of a minute's line in which an outcome is counted."""

MINUTE_COLUMNS = 11
"""Counts of a minute's line: the outcomes, then what calls took."""

MINUTE_BUCKETS = 4
"""Buckets of a run's histogram that are one bucket of a minute's, so that a commit writes few
lines."""


def row_statements(batch: WriteBatch, run: int, event: int) -> Iterator[Statement]:
    """Yields the statements about rows of the input."""
    inserts = [
        (
            new.key,
            run,
            new.row.id,
            new.occurrence,
            new.row.ordinal,
            new.hash,
            new.data,
            new.state,
            *error_values(new.row.error),
            event,
        )
        for new in batch.rows.inserts
    ]
    yield "row_insert", inserts
    changes = [
        (
            changed.row.ordinal,
            changed.hash,
            changed.data,
            changed.state,
            *error_values(changed.row.error),
            event,
            changed.key,
        )
        for changed in batch.rows.changes
    ]
    yield "row_change", changes
    yield "row_place", [(ordinal, event, key) for ordinal, key in batch.rows.places]
    yield "row_leave", [(key,) for key in batch.rows.leaving]


def call_values(
    new: records.NewRow, call: records.Call, event: int, endpoint: int
) -> tuple[Any, ...]:
    """Builds the values of a call's line. `endpoint` is the number of its endpoint's line."""
    attempt = call.attempt
    times = call.times
    usage = call.usage
    request = (
        new.key,
        attempt.stage,
        attempt.replica,
        event,
        attempt.number,
        attempt.fingerprint,
        endpoint,
        attempt.purpose,
    )
    end = (
        times.started_at,
        times.duration,
        call.status,
        *error_values(call.error),
        call.ambiguous,
    )
    amounts = (
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        call.cost,
    )
    served = (call.reply, times.ttft, times.time_to_response, call.service_tier)
    server_tools = json.dumps(usage.server_tools) if usage.server_tools else None
    return (*request, *end, *amounts, *served, usage.cache_write_tokens, server_tools)


def conversation_statements(batch: WriteBatch, workflow: str, event: int) -> Iterator[Statement]:
    """Yields the statements about turns of conversations and calls of tools."""
    turns = [
        (
            workflow,
            turn.fingerprint,
            turn.number,
            turn.conversation,
            turn.model,
            turn.agent,
            turn.new.key,
            turn.stage,
            event,
            turn.attempt,
            turn.at,
            turn.status,
            turn.reply,
            turn.ended,
        )
        for turn in batch.calls.turns
    ]
    yield "turn_put", turns
    yield "turn_ended", [(*end, workflow) for end in batch.calls.turn_ends]
    calls = [
        (
            workflow,
            call.fingerprint,
            call.turn,
            call.place,
            call.new.key,
            call.stage,
            event,
            call.call_id,
            call.name,
            call.arguments,
            call.state,
            call.result,
            call.how,
            call.started_at,
            call.duration,
        )
        for call in batch.calls.tool_calls
    ]
    yield "tool_call_put", calls


def end_statements(batch: WriteBatch) -> Iterator[Statement]:
    """Yields the statements about tasks and rows that ended, and tasks that are forgotten."""
    yield "task_put", [_task_values(task) for task in batch.tasks.ends]
    yield "task_forget", batch.tasks.forgotten
    yield "row_settle", [_row_end_values(end) for end in batch.rows.ends]


def _task_values(task: records.TaskEnd) -> tuple[Any, ...]:
    """Builds the values of a task's line."""
    return (
        task.new.key,
        task.stage,
        task.replica,
        task.fingerprint,
        task.outcome.value,
        task.result.id if task.result else None,
        *error_values(task.error),
        task.failures,
        task.at,
        task.note,
    )


def _row_end_values(end: records.RowEnd) -> tuple[Any, ...]:
    """Builds the values of a row's end. A result without a number was not stored."""
    result = None
    if end.result:
        result = end.result.id or None
    return (end.state, result, end.stage, *error_values(end.error), end.new.key)


def batch_task_statements(batch: WriteBatch, run: int) -> Iterator[Statement]:
    """Yields the statements about tasks in a provider's batches."""
    yield "task_used", [(new.key, stage, replica) for new, stage, replica in batch.batched.used]
    enrolled = [
        (
            run,
            task.batch,
            task.place,
            task.new.key,
            task.stage,
            task.replica,
            task.fingerprint,
            task.round,
            task.position,
            task.repairs,
        )
        for task in batch.batched.enrolled
    ]
    yield "task_enrol", enrolled
    waiting = [
        (run, task.new.key, task.stage, task.replica, task.fingerprint)
        for task in batch.batched.waiting
    ]
    yield "task_wait", waiting
    yield "task_ended", [ended_task(task) for task in batch.batched.ended]


def ended_task(ended: records.EndedTask) -> dict[str, Any]:
    """Builds the values of the statement `task_ended`."""
    error_type, message = error_values(ended.error)
    values: dict[str, Any] = ended.task._asdict()
    return values | {
        "then_do": ended.then_do,
        "error_type": error_type,
        "error_message": message,
    }


def review_statements(batch: WriteBatch, run: int) -> Iterator[Statement]:
    """Yields the statements about reviews and decisions."""
    yield "review_stale", batch.reviews.sent
    yield "review_left", [(key,) for key in (*batch.rows.leaving, *batch.derived.gone)]
    opened = [
        (
            review.key,
            review.workflow,
            review.stage,
            review.new.row.id,
            run,
            review.new.key,
            review.seen,
            review.why,
            review.blind,
            review.last,
            review.state,
            review.sure,
            review.due,
            is_alone,
            review.at,
        )
        for review, is_alone in batch.reviews.opened
    ]
    yield "review_put", opened
    ended = [(end.key, run, end.new.key, end.last, end.state) for end in batch.reviews.ended]
    yield "review_done", ended
    # the second field is the id, which the table gives to it
    yield "decision_put", [(decision.key, *decision[2:]) for decision in batch.reviews.decisions]


def counter_statements(batch: WriteBatch, run: int, minute: int) -> Iterator[Statement]:
    """Yields the statements about the counts of a run, and of the minute (since 1970)."""
    yield (
        "counter_add",
        [(run, *key, *tally.values()) for key, tally in batch.counts.tallies.items()],
    )
    yield "timing_add", [(run, *key, count) for key, count in batch.counts.timings.items()]
    yield "minute_add", [(run, minute, *key, *counts) for key, counts in _minute_counts(batch)]
    times: Counter[tuple[str, int]] = Counter()
    for (stage, measure, bucket), count in batch.counts.timings.items():
        if measure == "duration":
            times[stage, bucket // MINUTE_BUCKETS] += count
    yield "minute_timing_add", [(run, minute, *key, count) for key, count in times.items()]
    yield "lane_sampled", [(run, *sample) for sample in batch.counts.lanes]


def _minute_counts(batch: WriteBatch) -> list[tuple[tuple[str, str], list[float]]]:
    """Sums the tallies of a commit by stage and model, in the columns of a minute's line."""
    counts: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0] * MINUTE_COLUMNS)
    for (stage, outcome, error, model), delta in batch.counts.tallies.items():
        if outcome == "call":
            columns = counts[stage, model]
            for column, value in enumerate(_call_counts(error, delta), len(_OUTCOME_COLUMNS)):
                columns[column] += value
            continue
        outcome_column = _OUTCOME_COLUMNS.get(outcome)
        if delta.tasks and outcome_column is not None:
            counts[stage, ""][outcome_column] += delta.tasks
    return list(counts.items())


def _call_counts(error: str, delta: CounterDelta) -> tuple[float, ...]:
    """Returns what a minute's line counts of calls, in the order of its columns."""
    failed = delta.tasks if error else 0
    return (
        delta.tasks,
        failed,
        delta.input_tokens,
        delta.cached_tokens,
        delta.output_tokens,
        delta.cost,
    )


def changes_rows(batch: WriteBatch) -> bool:
    """True if the commit changes rows, so that earlier outputs of the run are out of date."""
    changes = (
        batch.rows.ends,
        batch.rows.inserts,
        batch.rows.changes,
        batch.rows.places,
        batch.rows.leaving,
        batch.derived.children,
        batch.derived.gone,
        batch.derived.distant,
        batch.derived.reopened,
    )
    return any(changes)


def error_values(error: RowError | None) -> tuple[str | None, str | None]:
    """Returns the type and the message of an error, for the columns of both."""
    if error is None:
        return (None, None)
    return (error.type.value, error.message)
