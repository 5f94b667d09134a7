"""Decides what follows an error of a task in a batch: another batch, a re-ask, the next model, a
call, or the end."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agac.core.errors import REPAIRED, ErrorType, RowError
from agac.spec.rules import BatchRules

Then = Literal["batch", "repair", "turn", "answer", "fallback", "sync", "run"]
"""The next step of a task: another batch, one that quotes what was wrong, the next turn of its
conversation or the answer that this turn is, the next model, a call, or the user's next run."""

MissingAnswer = Literal["expired", "cancelled", "unanswered", "missing", "malformed"]
"""Why there is no answer: the batch ran out of time, was cancelled, the provider failed, the
results have no line for the task, or one that cannot be read."""

_MISSING: dict[MissingAnswer, tuple[ErrorType, str]] = {
    "expired": (ErrorType.TIMEOUT, "the batch expired before this request was processed"),
    "cancelled": (ErrorType.BATCH_LOST, "the provider cancelled it"),
    "unanswered": (ErrorType.PROVIDER_ERROR, "the provider failed without an answer"),
    "missing": (ErrorType.BATCH_LOST, "the batch results have no line for this request"),
    "malformed": (ErrorType.BATCH_LOST, "its line in the results cannot be read"),
}


class AttemptCounts(NamedTuple):
    """Counts of what was tried for a task, and of what is left."""

    round: int
    """How often its question was asked of this model."""

    models_left: int
    """The models that follow this one."""

    repairs_left: int
    """The re-asks that may still quote an error."""


class NextStep(NamedTuple):
    """The next step of a task."""

    then: Then | None
    """The step; None: the task fails."""

    error: RowError
    """The error that led to it, with which the task fails if there is no step."""


def next_step(
    error: RowError, attempts: AttemptCounts, rules: BatchRules, *, may_pass: bool = False
) -> NextStep:
    """Returns what follows an error.

    An error that may pass (`may_pass`), such as a missing answer, is asked again: it is not
    billed, unless its line was lost. A reply of the wrong form is quoted to its model, which was
    paid for it."""
    next_model: Then | None = "fallback" if attempts.models_left > 0 else None
    if rules.retry == "fail":
        return NextStep(next_model, error)
    if not may_pass:
        is_quoted = error.type in REPAIRED and attempts.repairs_left > 0
        return NextStep("repair" if is_quoted else next_model, error)
    if attempts.round < rules.max_rounds:
        return NextStep(rules.retry, error)
    rounds = f"{attempts.round} rounds" if attempts.round > 1 else "1 round"
    return NextStep(next_model, RowError(error.type, f"{error.message} (after {rounds})"))


def missing_error(missing: MissingAnswer, message: str = "") -> RowError:
    """Makes the error of a task that was not answered, with the provider's message if any."""
    kind, words = _MISSING[missing]
    return RowError(kind, f"{words}: {message}" if message else words)
