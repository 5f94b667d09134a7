"""OpenAI's Responses API: one `build`, one `parse`.

Facts: developers.openai.com/api/reference/responses and the types of the openai SDK 3.52, read November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Finish, JSONValue, Message, RateState, Reply, Request, Usage
from agac.providers.openai_chat import SIMULATOR_MARK, count, headers
from agac.providers.openai_errors import fault_of, is_error
from agac.providers.ratelimits import rate_state
from agac.providers.structured import Shape, shape_of
from agac.providers.table import Provider

__all__ = ["build", "headers", "parse", "path", "rates", "refused", "websocket"]

path = "/responses"

websocket = True

_NO_WORD = "the Responses API has no such parameter; leave it out, or ask through chat completions"

refused: Mapping[str, str] = dict.fromkeys(
    ("stop", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"), _NO_WORD
)
"""Absent from the API's reference: OpenAI answers them with 400, `unknown_parameter`."""

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("max_tokens", "max_output_tokens"),
    ("service_tier", "service_tier"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
)

_INCOMPLETE = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.FILTER}
"""Why a response ended early; `steered` and `max_messages` cannot happen here, and are OTHER like all that is new."""


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /responses. Nothing is kept at the provider: `store` is false."""
    shape = shape_of(request.schema, provider)
    instructions, items = _input(request.messages, shape)
    wire: dict[str, JSONValue] = {"model": model}
    if instructions:
        wire["instructions"] = instructions
    wire["input"] = items
    params = request.params
    for name, wire_name in _PARAMS:
        if (value := getattr(params, name)) is not None:
            wire[provider.renames.get(name, wire_name)] = value
    if params.reasoning is not None:
        wire["reasoning"] = {"effort": params.reasoning}
    if text := _text(shape, params.verbosity):
        wire["text"] = text
    wire["store"] = False
    return wire


def _text(shape: Shape, verbosity: str | None) -> dict[str, JSONValue]:
    """`text`: how long, and its format, where what chat completions nest under `json_schema` stands beside the type."""
    text: dict[str, JSONValue] = {} if verbosity is None else {"verbosity": verbosity}
    form = shape.response_format
    if form is not None:
        described = form.get("json_schema")
        text["format"] = {"type": form["type"], **described} if isinstance(described, dict) else dict(form)
    return text


def _input(messages: tuple[Message, ...], shape: Shape) -> tuple[str, list[dict[str, str]]]:
    """`instructions` and the input items. The first system message becomes the instructions.

    But where a schema travels as text it stays an item: JSON mode is refused unless `input` itself speaks of JSON
    (instructions do not count everywhere; github.com/miracodeai/mira/pull/267, August 2026).
    """
    items = [{"role": m.role, "content": "".join([p.text for p in m.parts])} for m in messages]
    leads = bool(items) and items[0]["role"] == "system"
    if shape.instruction is not None:
        if leads:
            items[0]["content"] += "\n\n" + shape.instruction
        else:
            items.insert(0, {"role": "system", "content": shape.instruction})
        return "", items
    return (items[0]["content"], items[1:]) if leads and len(items) > 1 else ("", items)


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A response, or why there is none. One that failed is read as its error, whatever the status."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not 200 <= status < 300 or is_error(data):
        return fault_of(status, headers, body, data, provider=provider, model=model, redactor=redactor)
    output = data.get("output") if isinstance(data, dict) else None
    if not isinstance(output, list):
        return _unreadable(provider, status, "a body that is no response")
    stage = data.get("status") or "completed"  # look-alikes leave it out
    if stage not in ("completed", "incomplete"):
        return _unreadable(provider, status, f"a response that is {str(stage)[:40]}")
    return _reply(data, output, model, simulated=provider.simulated, whole=stage == "completed")


def rates(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's `x-ratelimit-*` headers."""
    return rate_state(headers)


def _unreadable(provider: Provider, status: int, what: str) -> Fault:
    message = f"{provider.name} answered {status} with {what}"
    return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, status=status, ambiguous=True)


def _reply(data: dict[str, Any], output: list[Any], model: str, *, simulated: bool, whole: bool) -> Reply:
    texts, cut, refusal = _messages(output)
    finish = Finish.STOP
    if not whole:
        details = data.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        finish = _INCOMPLETE.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    elif cut and not texts:
        finish = Finish.LENGTH
    if refusal is not None and finish is not Finish.FILTER:
        finish = Finish.REFUSAL
    shown = texts or cut[:1]
    named, tier = data.get("model"), data.get("service_tier")
    return Reply(
        text=shown[0] if shown else "",
        finish=finish,
        usage=_usage(data.get("usage")),
        model=named if isinstance(named, str) and named else model,
        refusal=refusal,
        simulated=simulated or data.get("system_fingerprint") == SIMULATOR_MARK,
        service_tier=tier if isinstance(tier, str) else None,
        others=tuple(shown[1:]),
    )


def _messages(output: list[Any]) -> tuple[list[str], list[str], str | None]:
    """The texts of complete message items, those of items that were cut, and the refusal where there is one.

    Commentary on the way to the answer (`phase`) and items that say nothing are no answers; nor is reasoning.
    """
    texts: list[str] = []
    cut: list[str] = []
    refusal: str | None = None
    for item in output:
        if not isinstance(item, dict) or item.get("type") != "message" or item.get("phase") == "commentary":
            continue
        text, refused_with = _content(item.get("content"))
        refusal = refusal or refused_with
        if text.strip():
            (texts if item.get("status") in (None, "completed") else cut).append(text)
    return texts, cut, refusal


def _content(content: Any) -> tuple[str, str | None]:
    """An item's text and its refusal: an item is one message, so its parts belong together."""
    texts: list[str] = []
    refusal: str | None = None
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "output_text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refusal = refusal or part["refusal"] or None
    return "".join(texts), refusal


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        count(usage.get("input_tokens_details"), "cached_tokens"),
        count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )
