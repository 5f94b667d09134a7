"""The attempts of one task while it is asked, and the record and the log of each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agac.core.errors import RowError, storable
from agac.core.text import beginning
from agac.core.types import FaultKind, JSONValue, Reply, Request, Usage
from agac.engine.ask.connections import CallResult, ModelConnection
from agac.engine.ask.limits import Reservation
from agac.engine.ask.validate import ValidReply
from agac.engine.walk.effects import ActiveRow
from agac.plan.stage import PlannedStage
from agac.providers.prices import cost
from agac.store.records import Call

_log = logging.getLogger("agac.call")


class CapReached(Exception):
    """A task was about to be sent more often than any policy allows."""


@dataclass(slots=True)
class TaskAttempts:
    """The attempts of one task in one invocation."""

    active: ActiveRow
    """The row of the task."""
    fingerprint: bytes
    """What the task asks, hashed."""
    connection: ModelConnection
    """The model that is asked now."""
    most: int
    """How many attempts may begin."""
    request: Request
    """What is asked now."""
    replica: int = 0
    """From 1: which of several answers to the question this is to bring; 0: the only one."""
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
    """What is set aside for the call under way."""
    last: Call | None = None
    """The last call that ended."""
    turns: int = 0
    """The number of the last turn, of a task that is a conversation."""
    changed: str = ""
    """A call of a tool in it that must not be repeated."""
    of: PlannedStage | None = None
    """The stage of the agent that asks, where this is the task of its child: calls are recorded
    there."""
    in_batch: bool = False
    """True if the task is asked in batches, and only its tools are called now."""
    given: tuple[int, int] | None = None
    """The line of the call in the store, where a worker has it."""

    @property
    def stage(self) -> PlannedStage:
        """The stage at which its calls are recorded and paid for."""
        return self.of or self.connection.stage


@dataclass
class NextTurn(Exception):
    """A conversation in batches has come to where its model is asked again, after so many turns."""

    request: Request
    position: int
    turns: int


def call_of(
    connection: ModelConnection,
    sent: CallResult,
    checked: ValidReply | RowError | None,
    number: int,
    purpose: str,
    *,
    again: bool = False,
) -> Call:
    """The record of a call, with what was found of its reply, at the price that the tier that
    served it had then."""
    answer, used = sent.answer, sent.answer.usage
    reply, fault = (answer, None) if isinstance(answer, Reply) else (None, answer)
    if used is not None:
        price = connection.price(reply.service_tier if reply else None, sent.at)
    else:
        price = None
    return Call(
        number=number,
        endpoint=connection.endpoint(reply),
        purpose=purpose,
        started_at=sent.at,
        duration=sent.duration,
        status=sent.status,
        error=checked if isinstance(checked, RowError) else None,
        ambiguous=fault is not None and fault.ambiguous,
        usage=used or Usage(),
        cost=cost(used, price) if used is not None else None,
        body=sent.body,
        again=again,
        mended=isinstance(checked, ValidReply) and checked.mended,
        refused=fault is not None and fault.kind is FaultKind.PAUSE,
        ttft=reply.ttft if reply else None,
        time_to_response=reply.time_to_response if reply else None,
        service_tier=storable(reply.service_tier)
        if reply and reply.service_tier is not None
        else None,
    )


MOST_CHARACTERS = 20_000
"""Of each message and of each reply. A longer one is cut, and says by how much: `agac inspect`
shows it whole."""


def fields(**values: JSONValue) -> dict[str, Any]:
    """The `extra` of a log record next to its message: `--log-format json` shows it."""
    return {"fields": values}


def log_call(run: int, attempts: TaskAttempts, call: Call, reply: Reply | None) -> None:
    """Logs a call that ended, at DEBUG. Every text loses its secrets before it is cut: half a key
    is a secret too."""
    connection = attempts.connection
    row = attempts.active.new.row.id
    clean = connection.redactor.clean
    stage = connection.stage.name
    model = connection.model.lane
    if call.body is not None:
        came = call.body.decode("utf-8", "replace")
    else:
        came = None
    # what is no answer as it came
    said = came if reply is None else reply.text or reply.refusal or ""
    times = {
        "duration": call.duration,
        "ttft": call.ttft,
        "time_to_response": call.time_to_response,
    }
    log_fields: dict[str, JSONValue] = {
        "run": run,
        "row": clean(row) if isinstance(row, str) else row,
        "stage": stage,
        **({"replica": attempts.replica} if attempts.replica else {}),
        "attempt": call.number,
        "purpose": call.purpose,
        "model": model,
        "answered_by": clean(call.endpoint.model),
        "simulated": call.endpoint.simulated,
        "status": call.status,
        "error": call.error.type.value if call.error else None,
        "error_message": clean(call.error.message) if call.error else None,
        **{f"{name}_ms": took and round(took * 1000, 1) for name, took in times.items()},
        **{
            f"{one}_tokens": getattr(call.usage, f"{one}_tokens")
            for one in ("input", "cached", "output", "reasoning")
        },
        "service_tier": call.service_tier and clean(call.service_tier),
        "cost_usd": call.cost,
        "request": [
            {"role": one.role, "text": _cut(one.text, clean)} for one in attempts.request.messages
        ],
        "reply": None if said is None else _cut(said, clean),
    }
    _log.debug(
        "row %r, stage %s, attempt %d (%s) to %s: status %s in %.0f ms, %s tokens in, %s out, %s",
        log_fields["row"],
        stage,
        call.number,
        call.purpose,
        model,
        call.status,
        call.duration * 1000,
        call.usage.input_tokens,
        call.usage.output_tokens,
        log_fields["error_message"] or "ok",
        extra=fields(**log_fields, **attempts.active.log_fields),
    )


def _cut(text: str, clean: Callable[[str], str]) -> str:
    return beginning(clean(text), MOST_CHARACTERS)
