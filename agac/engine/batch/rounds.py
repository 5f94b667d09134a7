"""What becomes of a task whose line brought no result: one pure function, tested as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agac.core.errors import ErrorType, RowError
from agac.core.types import Fault, FaultKind
from agac.spec.rounds import BatchRules

Then = Literal["batch", "repair", "fallback", "sync", "run"]
"""What is next for a task: another batch, a batch that quotes what was wrong, the next model, a call, or nothing before
the user runs the workflow again."""

Lack = Literal["expired", "cancelled", "unanswered", "missing", "malformed"]
"""Why there is no answer: the batch ran out of time; it was cancelled; the provider failed at it; no line told of it;
its line could not be read."""

_LACKING: dict[Lack, tuple[ErrorType, str]] = {
    "expired": (ErrorType.TIMEOUT, "the batch expired before this request was processed"),
    "cancelled": (ErrorType.BATCH_LOST, "the provider cancelled it"),
    "unanswered": (ErrorType.PROVIDER_ERROR, "the provider failed without an answer"),
    "missing": (ErrorType.BATCH_LOST, "the batch results have no line for this request"),
    "malformed": (ErrorType.BATCH_LOST, "its line in the results cannot be read"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """How often a task was asked so far: rounds of its question at this model, re-asks that quoted errors; `models`
    left to ask after this one; `repairs_left`."""

    round: int
    models_left: int
    repairs_left: int


@dataclass(frozen=True, slots=True)
class Next:
    """What is next; or, where `then` is None, the error with which the task fails."""

    then: Then | None
    error: RowError


def after_lack(lack: Lack, asked: Asked, rules: BatchRules, said: str = "") -> Next:
    """A task that was not answered, which is not billed unless its line was lost."""
    kind, words = _LACKING[lack]
    return _again(RowError(kind, f"{words}: {said}" if said else words), asked, rules)


def after_fault(fault: Fault, asked: Asked, rules: BatchRules) -> Next:
    """A line that holds an error: what may pass is asked again, what may not is not."""
    error = RowError(fault.type, fault.message)
    if fault.kind in (FaultKind.RETRY, FaultKind.PAUSE):
        return _again(error, asked, rules)
    return _other_model(error, asked)


def after_check(error: RowError, asked: Asked, rules: BatchRules) -> Next:
    """A reply that is no result. One of the wrong form is quoted to its model, which has been paid for then."""
    if error.type is ErrorType.SCHEMA_MISMATCH and asked.repairs_left > 0 and rules.retry != "fail":
        return Next("repair", error)
    return _other_model(error, asked)


def _again(error: RowError, asked: Asked, rules: BatchRules) -> Next:
    if rules.retry == "fail":
        return _other_model(error, asked)
    if asked.round >= rules.max_rounds:
        rounds = f"{asked.round} rounds" if asked.round > 1 else "1 round"
        return _other_model(RowError(error.type, f"{error.message} (after {rounds})"), asked)
    return Next(rules.retry, error)


def _other_model(error: RowError, asked: Asked) -> Next:
    return Next("fallback" if asked.models_left > 0 else None, error)
