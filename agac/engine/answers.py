"""Tasks and their answers: what is asked, what comes of it, and who brings it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from agac.core.errors import RowError
from agac.core.types import JSONValue, Request
from agac.engine.effects import ActiveRow
from agac.plan.render import Prepared
from agac.plan.stage import AnyStage, PlannedStage
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


class Parked(Enum):
    """The end of a task without an answer now: its row stays open, for it may not be asked, or it
    waits."""

    PARKED = "parked"
    ENROLLED = "enrolled"
    REVIEW = "review"


TaskReply = Answer | RowError | Parked


@dataclass(slots=True)
class TaskRequest:
    """A task of a row, or (`replica`, from 1) one of several for its answer. `is_new`: this
    invocation had to ask."""

    row: ActiveRow
    stage: AnyStage
    task: Prepared | LocalCall
    fingerprint: bytes
    replica: int = 0
    is_new: bool = False


class AnswerSource(Protocol):
    """Brings the answers of tasks that have none yet: by calls, or by batches."""

    async def ask(
        self,
        active: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int = 0,
    ) -> TaskReply:
        """The answer, the error with which it fails, or that a batch has it. Raises RunStopped
        before any of these."""


def value_of(answer: Answer) -> JSONValue:
    """The value of an answer, which may not have been read yet."""
    if answer.value is UNPARSED:
        return json.loads(answer.result.value)
    return answer.value


UNPARSED: Any = object()
"""Stands for a value that was not parsed yet."""
