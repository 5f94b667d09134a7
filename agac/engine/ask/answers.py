"""Tasks and their answers: what is asked, what comes of it, and who brings it."""

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
    """A task's result, with its value parsed."""

    result: Result
    value: object


class LocalCall(NamedTuple):
    """A call of a function that is ready to be looked up or made."""

    fingerprint: bytes
    given: FunctionInput


class ReviewTask(NamedTuple):
    """An answer that comes to a review, by its key: what a person sees of it, JSON, and the
    `answer` alone. `why` it is asked about, None: it passes. `sure`: from 0 to 1."""

    fingerprint: bytes
    seen: str
    answer: JSONValue
    why: dict[str, JSONValue] | None
    blind: bool
    sure: float
    view: RowView


class RowRejected(NamedTuple):
    """A result was rejected, and its row leaves; `note` says who said so, JSON."""

    note: str


class Parked(Enum):
    """The end of a task without an answer now: its row stays open, for it may not be asked, or it
    waits."""

    PARKED = "parked"
    ENROLLED = "enrolled"
    REVIEW = "review"


TaskReply = Answer | RowError | Parked | RowRejected
"""What becomes of a task: its answer, the error with which it fails, or why it has none now."""


@dataclass(slots=True)
class TaskRequest:
    """A task of a row, or (`replica`, from 1) one of several for its answer. `is_new`: this
    invocation had to ask."""

    row: ActiveRow
    stage: AnyStage
    task: Prepared | LocalCall | ReviewTask
    fingerprint: bytes
    replica: int = 0
    is_new: bool = False


class AnswerSource(Protocol):
    """Brings the answers of tasks that have none yet: a model, a conversation with tools, a batch,
    a function, or the people of a review."""

    def ask(self, asked: TaskRequest) -> Awaitable[TaskReply]:
        """Asks for the answer. Raises RunStopped when the run stops before there is one."""
        ...


def value_of(answer: Answer) -> JSONValue:
    """The value of an answer, which may not have been read yet."""
    if answer.value is UNPARSED:
        return json.loads(answer.result.value)
    return answer.value


UNPARSED: Any = object()
"""Stands for a value that was not parsed yet."""
