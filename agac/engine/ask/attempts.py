"""The attempts of one task while it is asked, and the record and the log of each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agac.core.text import beginning
from agac.core.types import JSONValue, Reply, Request
from agac.engine.ask.answers import TaskRequest
from agac.engine.ask.connections import ModelConnection
from agac.engine.ask.limits import Reservation
from agac.plan.stage import PlannedStage
from agac.store.records import Attempt, Call

_log = logging.getLogger("agac.call")


class CapReached(Exception):
    """A task was about to be sent more often than any policy allows."""


@dataclass(slots=True)
class TalkProgress:
    """How far the conversation of a task has come, if the task is one."""

    turns: int = 0
    """The number of its last turn."""
    changed: str = ""
    """A tool call in it that must not be repeated."""
    of: PlannedStage | None = None
    """The stage of the agent that asks, if this is the task of its child: calls are recorded
    there."""
    in_batch: bool = False
    """True if the task is asked in batches, and only its tools are called now."""


@dataclass(slots=True)
class TaskAttempts:
    """The attempts of one task in one invocation."""

    asked: TaskRequest
    """The task, with its row."""
    connection: ModelConnection
    """The model that is asked now."""
    most: int
    """How many attempts may begin."""
    request: Request
    """The request that is sent now."""
    position: int = 0
    """The position of the model among those of the stage."""
    quoted: int = 0
    """Re-asks of this model that were made before, in batches."""
    number: int = 0
    """Attempts that began."""
    ambiguous: int = 0
    """Requests to this model that may have been billed although no answer came."""
    purpose: str = "ask"
    """Why the request is made."""
    reservation: Reservation | None = None
    """The part of the budgets that is reserved for the call under way."""
    last: Call | None = None
    """The last call that ended."""
    given: tuple[int, int] | None = None
    """The line of the call in the store, where a worker has it."""
    talk: TalkProgress = field(default_factory=TalkProgress)
    """The progress of its conversation."""

    @property
    def stage(self) -> PlannedStage:
        """The stage at which its calls are recorded and paid for."""
        return self.talk.of or self.connection.stage

    def attempt(self, *, again: bool = False) -> Attempt:
        """Says which attempt the call under way is. `again`: its request was sent before."""
        asked = self.asked
        return Attempt(
            self.stage.index, asked.fingerprint, asked.replica, self.number, self.purpose, again
        )


@dataclass
class NextTurn(Exception):
    """Raised when a batched conversation needs its next model call."""

    request: Request
    """The request of that call."""
    position: int
    """The position of its model among those of the stage."""
    turns: int
    """How many turns the conversation has."""


MOST_CHARACTERS = 20_000
"""Of each message and of each reply. A longer one is cut, and says by how much: `agac inspect`
shows it whole."""


def fields(**values: JSONValue) -> dict[str, Any]:
    """Returns the `extra` of a log record next to its message: `--log-format json` shows it."""
    return {"fields": values}


def log_call(run: int, attempts: TaskAttempts, call: Call, reply: Reply | None) -> None:
    """Logs a call that ended, at DEBUG. Every text loses its secrets before it is cut: half a key
    is a secret too."""
    connection = attempts.connection
    clean = connection.redactor.clean
    row_id = attempts.asked.row.new.row.id
    attempt = call.attempt
    usage = call.usage
    log_fields: dict[str, JSONValue] = {
        "run": run,
        "row": clean(row_id) if isinstance(row_id, str) else row_id,
        "stage": connection.stage.name,
        **({"replica": attempt.replica} if attempt.replica else {}),
        "attempt": attempt.number,
        "purpose": attempt.purpose,
        "model": connection.model.lane,
        "answered_by": clean(call.endpoint.model),
        "simulated": call.endpoint.simulated,
        "status": call.status,
        "error": call.error.type.value if call.error else None,
        "error_message": clean(call.error.message) if call.error else None,
        "duration_ms": _milliseconds(call.times.duration),
        "ttft_ms": _milliseconds(call.times.ttft),
        "time_to_response_ms": _milliseconds(call.times.time_to_response),
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "service_tier": call.service_tier and clean(call.service_tier),
        "cost_usd": call.cost,
        "request": [
            {"role": message.role, "text": _cut(message.text, clean)}
            for message in attempts.request.messages
        ],
        "reply": _shown_reply(call, reply, clean),
    }
    _log.debug(
        "row %r, stage %s, attempt %d (%s) to %s: status %s in %.0f ms, %s tokens in, %s out, %s",
        log_fields["row"],
        connection.stage.name,
        attempt.number,
        attempt.purpose,
        connection.model.lane,
        call.status,
        call.times.duration * 1000,
        usage.input_tokens,
        usage.output_tokens,
        log_fields["error_message"] or "ok",
        extra=fields(**log_fields, **attempts.asked.row.log_fields),
    )


def _milliseconds(seconds: float | None) -> float | None:
    """Rounds a time for the log. A time of 0 stays as it is."""
    return seconds and round(seconds * 1000, 1)


def _shown_reply(call: Call, reply: Reply | None, clean: Callable[[str], str]) -> str | None:
    """Returns the text of a reply, or the body of a response that is none. None: nothing came."""
    if reply is not None:
        return _cut(reply.text or reply.refusal or "", clean)
    if call.body is None:
        return None
    return _cut(call.body.decode("utf-8", "replace"), clean)


def _cut(text: str, clean: Callable[[str], str]) -> str:
    """Removes secrets from a text, and cuts it to MOST_CHARACTERS."""
    return beginning(clean(text), MOST_CHARACTERS)
