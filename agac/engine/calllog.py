"""What the log says of a call at DEBUG: who was asked what, what came back, how long it took and what it cost.

Nothing here runs unless DEBUG is on. Every text loses its secrets before it is cut: half a key is a secret too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import JSONValue, Reply, Request, RowId
from agac.store.batch import Call

MOST_CHARACTERS = 20_000
"""Of each message and of each reply. A longer one is cut, and says by how much: `agac inspect` shows it whole."""


def fields(**told: JSONValue) -> dict[str, Any]:
    """What a log record tells beside its message, as `extra` of a logger's methods: `--log-format json` shows it."""
    return {"fields": told}


def log_call(
    log: logging.Logger,
    call: Call,
    request: Request,
    reply: Reply | None,
    *,
    run: int,
    row: RowId,
    stage: str,
    model: str,
    redactor: Redactor,
    replica: int = 0,
) -> None:
    """Logs a call that ended. `model` is the one that was asked, as users write it; `replica`, from 1, which of several
    answers it is for."""
    clean = redactor.clean
    took = call.duration * 1000
    told: dict[str, JSONValue] = {
        "run": run,
        "row": clean(row) if isinstance(row, str) else row,
        "stage": stage,
        **({"replica": replica} if replica else {}),
        "attempt": call.number,
        "purpose": call.purpose,
        "model": model,
        "answered_by": clean(call.endpoint.model),
        "simulated": call.endpoint.simulated,
        "status": call.status,
        "error": call.error.type.value if call.error else None,
        "error_message": clean(call.error.message) if call.error else None,
        "duration_ms": round(took, 1),
        "ttft_ms": _ms(call.ttft),
        "time_to_response_ms": _ms(call.time_to_response),
        "input_tokens": call.usage.input_tokens,
        "cached_tokens": call.usage.cached_tokens,
        "output_tokens": call.usage.output_tokens,
        "reasoning_tokens": call.usage.reasoning_tokens,
        "service_tier": call.service_tier and clean(call.service_tier),
        "cost_usd": call.cost,
        "request": _messages(request, clean),
        "reply": _reply(call, reply, clean),
    }
    log.debug(
        "row %r, stage %s, attempt %d (%s) to %s: status %s in %.0f ms, %s tokens in, %s out, %s",
        told["row"], stage, call.number, call.purpose, model, call.status, took, call.usage.input_tokens,
        call.usage.output_tokens, told["error_message"] or "ok", extra=fields(**told),
    )  # fmt: skip


def _messages(request: Request, clean: Callable[[str], str]) -> list[dict[str, Any]]:
    return [
        {"role": message.role, "text": _cut(clean("".join(part.text for part in message.parts)))}
        for message in request.messages
    ]


def _reply(call: Call, reply: Reply | None, clean: Callable[[str], str]) -> str | None:
    """The answer's text; of what is no answer, the body as it came."""
    if reply is not None:
        return _cut(clean(reply.text or reply.refusal or ""))
    return None if call.body is None else _cut(clean(call.body.decode("utf-8", "replace")))


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}… ({left_out:,} more characters)"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
