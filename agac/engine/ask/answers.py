"""Tasks and their answers, and the sources that bring them."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from agac.core.errors import RowError
from agac.core.types import JSONValue
from agac.engine.walk.effects import ActiveRow
from agac.plan.render import Prepared, RowView
from agac.plan.stage import AnyStage
from agac.spec.python_code import FunctionInput
from agac.store.records import Result


class Answer(NamedTuple):
    """A task's result, with its value."""

    result: Result
    """The result as it is stored."""
    value: object
    """Its value; UNPARSED if it was not read yet (see `value_of`)."""


class LocalCall(NamedTuple):
    """A call of a function that is ready to be looked up or made."""

    fingerprint: bytes
    """The fingerprint of the task."""
    given: FunctionInput
    """The function's input."""


class ReviewTask(NamedTuple):
    """An answer that comes to a review."""

    fingerprint: bytes
    """The key of the review."""
    seen: str
    """What reviewers see of it, as JSON."""
    answer: JSONValue
    """The answer alone."""
    why: dict[str, JSONValue] | None
    """Why people are asked about it; None: it passes."""
    blind: bool
    """True if reviewers do not see the answer."""
    sure: float
    """How confident the answer is, from 0 to 1."""
    view: RowView
    """What the stage sees of the row."""


class RowRejected(NamedTuple):
    """A result was rejected, and its row leaves."""

    note: str
    """Who rejected it, as JSON."""


class Parked(Enum):
    """Why a task has no answer yet; its row stays open."""

    PARKED = "parked"
    """It may not be asked in this invocation."""
    ENROLLED = "enrolled"
    """It is in a batch, or waits for an equal one that is."""
    REVIEW = "review"
    """It waits for people."""


TaskReply = Answer | RowError | Parked | RowRejected
"""The end of a task for now: its answer, the error with which it fails, or why it has neither."""


@dataclass(slots=True)
class TaskRequest:
    """A task of a row, or one of its replicas."""

    row: ActiveRow
    """The row."""
    stage: AnyStage
    """The stage."""
    task: Prepared | LocalCall | ReviewTask
    """The task."""
    fingerprint: bytes
    """Its fingerprint, or that of the replica."""
    replica: int = 0
    """The number of the replica, from 1; 0 if the task has none."""
    is_new: bool = False
    """True once this invocation had to ask for the answer."""


class AnswerSource(Protocol):
    """Brings the answers of tasks that have none yet: a model, a conversation with tools, a batch,
    a function, or the people of a review."""

    def ask(self, asked: TaskRequest) -> Awaitable[TaskReply]:
        """Asks for the answer. Raises RunStopped when the run stops before there is one."""
        ...


def value_of(answer: Answer) -> JSONValue:
    """Returns the value of an answer, and reads it if it was not read yet."""
    if answer.value is UNPARSED:
        return json.loads(answer.result.value)
    return answer.value


UNPARSED: Any = object()
"""The value of an answer that was not read yet."""
