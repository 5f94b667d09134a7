"""Faults at work: answers made unusable, and errors in a provider's words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agac.simulator.asks import Answer, ApiError, Ask, Message
from agac.simulator.faults import Rule
from agac.simulator.latency import Refusal
from agac.simulator.validity import validity


def error_of(rule: Rule, ask: Ask) -> ApiError:
    """The error of a rule whose kind is one."""
    error = ERRORS[rule.kind](rule, ask)
    if rule.message is not None:
        error.message = rule.message
    if rule.retry_after is not None:
        error.headers |= retry_headers(rule.retry_after, in_ms=rule.in_ms)
    return error


def retry_headers(seconds: float, *, in_ms: bool) -> dict[str, str]:
    """When to come again: in whole milliseconds, or in seconds."""
    if in_ms:
        return {"retry-after-ms": str(math.ceil(seconds * 1000))}
    return {"retry-after": f"{seconds:g}"}


def limit_error(refusal: Refusal, ask: Ask) -> ApiError:
    """A request over the simulator's own limits."""
    unit = "RPM" if refusal.unit == "requests" else "TPM"
    told = f"{refusal.unit} per min ({unit}): Limit {refusal.limit}, Used {refusal.used}, Requested {refusal.requested}"
    if math.isinf(refusal.wait):
        message = f"Request too large for {ask.model} on {told}. It must be reduced in order to run successfully."
        return ApiError(429, message, kind=refusal.unit, code="rate_limit_exceeded")
    message = f"Rate limit reached for {ask.model} on {told}. Please try again in {refusal.wait:.3f}s."
    headers = retry_headers(refusal.wait, in_ms=True) | {"retry-after": str(math.ceil(refusal.wait))}
    return ApiError(429, message, kind=refusal.unit, code="rate_limit_exceeded", headers=headers)


def invalid_key() -> ApiError:
    """A key that the provider does not know; the key itself is never repeated."""
    return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")


def unknown_model(model: str) -> ApiError:
    """A model that the provider does not have."""
    message = f"The model `{model}` does not exist or you do not have access to it."
    return ApiError(404, message, code="model_not_found")


def server_error(rule: Rule, ask: Ask) -> ApiError:
    """The provider's own trouble."""
    if rule.status == 503:
        message = "The server is overloaded or not ready yet."
        return ApiError(503, message, kind="server_error", code="server_is_overloaded")
    message = "The server had an error while processing your request. Sorry about that!"
    return ApiError(rule.status, message, kind="server_error")


ERRORS: dict[str, Callable[[Rule, Ask], ApiError]] = {
    "rate_limit": lambda rule, ask: ApiError(
        429,
        f"Rate limit reached for {ask.model}. Please slow down.",
        kind="requests",
        code="rate_limit_exceeded",
    ),
    "quota": lambda rule, ask: ApiError(
        429,
        "You exceeded your current quota, please check your plan and billing details.",
        kind="insufficient_quota",
        code="insufficient_quota",
    ),
    "server_error": server_error,
    "unauthorized": lambda rule, ask: invalid_key(),
    "not_found": lambda rule, ask: unknown_model(ask.model),
    "bad_request": lambda rule, ask: ApiError(400, "The request was not understood.", code=rule.code),
}
"""How each kind of error fault is told."""


def spoiled(rule: Rule, ask: Ask, answer: Answer) -> Answer:
    """The answer as the rule leaves it; unchanged by rules that are not about answers."""
    spoil = SPOILERS.get(rule.kind)
    return answer if spoil is None else spoil(rule, ask, answer)


def broken_json(content: str) -> str:
    """The content without its end, or with a loose one, so that no JSON reader takes it."""
    stripped = content.strip()
    return stripped[:-1] if stripped[-1:] in ("}", "]", '"') and stripped[:1] in '{["' else f'{{"answer": {stripped}'


def wrong_json(ask: Ask, content: str) -> str:
    """JSON that the ask's schema refuses: as near as possible to the right answer."""
    if ask.schema is None:
        return json.dumps({"unexpected": True})
    valid = validity(ask.schema)
    return json.dumps(next((value for value in wrong_values(content) if not valid(value)), {"unexpected": True}))


def wrong_values(content: str) -> list[Any]:
    """Values that are likely to be wrong, the likeliest in life first."""
    try:
        right = json.loads(content)
    except ValueError:
        right = None
    near = []
    if isinstance(right, dict):
        near = [{key: value for key, value in right.items() if key != left_out} for left_out in right]
        near += [{**right, "unexpected": True}]
    return [*near, {"unexpected": True}, [], "unexpected", 17.5, None, True]


def begun_anew(rule: Rule, ask: Ask, answer: Answer) -> Answer:
    """A first message cut in the middle, then the whole answer."""
    content = answer.content or ""
    return replace(answer, earlier=(Message(content[: max(1, len(content) // 2)], cut=rule.marked),))


def stream_error(rule: Rule) -> ApiError:
    """What ends an answer while it is being told."""
    message = rule.message or "The server had an error while processing your request. Sorry about that!"
    return ApiError(500, message, kind="server_error", code=rule.code or "server_error")


def half(rule: Rule, ask: Ask, answer: Answer) -> Answer:
    """Cut in the middle."""
    content = answer.content or ""
    return Answer(content[: len(content) // 2], "length")


SPOILERS: dict[str, Callable[[Rule, Ask, Answer], Answer]] = {
    "malformed_json": lambda rule, ask, answer: Answer(broken_json(answer.content or ""), answer.finish),
    "wrong_schema": lambda rule, ask, answer: Answer(wrong_json(ask, answer.content or ""), answer.finish),
    "length": half,
    "refusal": lambda rule, ask, answer: Answer(None, "stop", rule.message or "I'm sorry, I can't help with that."),
    "filter": lambda rule, ask, answer: Answer("", "content_filter"),
    "empty": lambda rule, ask, answer: Answer("", "stop"),
    "early_cut": begun_anew,
}
"""What each kind of answer fault makes of an answer."""
