"""Failures that bind: which failed tasks, replicas and rows are not asked again, and until when.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.engine.ask.validate import is_of_row
from agac.spec.operations import Vote
from agac.spec.workflow import Stage
from agac.store.rows import Failures, PriorTask, StoredRow

FURTHER_RUNS = 2
"""Invocations that ask again for an answer that failed as an answer: a nightly run must not pay
forever."""


def was_asked_enough(task: PriorTask) -> bool:
    """True if the answer of a failed task failed in as many runs as are worth paying for."""
    return (
        task.error is not None
        and task.error.type in ANSWER_FAILURES
        and task.failures > FURTHER_RUNS
    )


def kept_failure(
    prior: PriorTask | None, fingerprint: bytes, *, asks_again: bool, row_stays: bool
) -> RowError | None:
    """Returns the error of a task that failed before and is not asked again.

    `asks_again`: a retry chose the row, or a batch brought something for the stage since.
    `row_stays`: whatever failed for the row before is left as it is."""
    if prior is None or prior.error is None or prior.fingerprint != fingerprint:
        return None
    if asks_again:
        return None
    if row_stays or was_asked_enough(prior):
        return prior.error
    return None


def stays_failed(
    row: StoredRow, tasks: Iterable[PriorTask], tries_again: Callable[[str], bool]
) -> bool:
    """True if a failed row is not walked again: people rejected it, the stage at which it failed
    is not tried again, or one of its tasks was asked often enough."""
    if row.error_type == ErrorType.REJECTED:
        return True  # until somebody decides otherwise
    if row.error_stage is not None and not tries_again(row.error_stage):
        return True
    return any(was_asked_enough(task) for task in tasks)


def binding_failure(stage: Stage, row: int, since: float, failures: Failures) -> RowError | None:
    """Returns how a replica failed, if it is not asked again: its reply was no answer, at or after
    `since` (seconds since 1970), for the row with the key `row` or for any. `failures` are those
    of one fingerprint, by rows' keys."""
    for key, (at, error) in failures.items():
        is_for_the_row = key == row or not is_of_row(stage, error)
        if at >= since and error.type in ANSWER_FAILURES and is_for_the_row:
            return error
    return None


def votes_of_replies(
    replies: Iterable[str | RowError], vote: Vote | None
) -> list[str | None] | RowError:
    """Returns the replies of replicas as a vote takes them, None for a reply that was no answer;
    or the error with which the task fails. Only a vote with a `lead` goes on without an answer."""
    counted = ANSWER_FAILURES if vote is not None and vote.lead else frozenset[ErrorType]()
    answers = list[str | None]()
    for number, reply in enumerate(replies, 1):
        if not isinstance(reply, RowError):
            answers.append(reply)
        elif reply.type in counted:
            answers.append(None)
        else:
            return RowError(reply.type, f"replica {number}: {reply.message}", reply.detail)
    return answers


def is_shared(stage: Stage, error: RowError, *, has_row_timeout: bool) -> bool:
    """True if equal tasks of other rows fail as this one did: its row neither ran out of money or
    time, nor has values that checks look at."""
    if error.type is ErrorType.BUDGET_EXCEEDED:
        return False
    if error.type is ErrorType.TIMEOUT and has_row_timeout:
        return False
    return not is_of_row(stage, error)
