"""OpenAI chat completions, as OpenAI and everyone who looks alike serves it: one `build`, one `parse`.

Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do differently, read November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import (
    Fault,
    FaultKind,
    Finish,
    JSONValue,
    Message,
    RateState,
    Reply,
    Request,
    Usage,
)
from agac.providers.openai_errors import fault_of, is_error
from agac.providers.ratelimits import rate_state
from agac.providers.structured import Shape, shape_of
from agac.providers.table import Provider

path = "/chat/completions"

websocket = False

refused: Mapping[str, str] = {
    "verbosity": "only the Responses API is asked for it here; write responses/…, or leave it out"
}
"""What else a look-alike takes stands in its row; OpenAI takes all of it."""

SIMULATOR_MARK = "agac-simulator"
"""The `system_fingerprint` by which the simulator marks what it answers."""

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("stop", "stop"),
    ("seed", "seed"),
    ("service_tier", "service_tier"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
)

_FINISH = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "content_filter": Finish.FILTER,
    "safety": Finish.FILTER,
    "recitation": Finish.FILTER,
    "prohibited_content": Finish.FILTER,
    "refusal": Finish.REFUSAL,
}
"""What servers call the end of an answer; names beyond OpenAI's five are look-alikes'. Anything else is OTHER."""


MOST_TOKENS = 1 << 53
"""A count beyond that is none: nothing bills so much, and no database column holds more than 2^63."""


def headers(provider: Provider) -> dict[str, str]:
    """The key as a bearer token."""
    return {"Authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /chat/completions."""
    shape = shape_of(request.schema, provider)
    wire: dict[str, JSONValue] = {"model": model, "messages": _messages(request.messages, shape)}
    params = request.params
    for name, wire_name in _PARAMS:
        if (value := getattr(params, name)) is not None:
            wire[provider.renames.get(name, wire_name)] = list(value) if name == "stop" else value
    if params.max_tokens is not None:
        wire[provider.max_tokens_field] = params.max_tokens
    wire |= _reasoning(params.reasoning, model, provider)
    if shape.response_format is not None:
        wire["response_format"] = shape.response_format
    return wire


def _reasoning(value: str | None, model: str, provider: Provider) -> Mapping[str, JSONValue]:
    """How much the model thinks: an effort, or its switch turned on or off."""
    if value is None:
        return {}
    switch = provider.switch_of(model)
    if switch is not None and value in ("on", "off"):
        return switch.on if value == "on" else switch.off
    return {provider.renames.get("reasoning", "reasoning_effort"): value}


def _messages(messages: tuple[Message, ...], shape: Shape) -> list[dict[str, str]]:
    wire = [{"role": m.role, "content": "".join([p.text for p in m.parts])} for m in messages]
    if shape.instruction is not None:
        if wire and wire[0]["role"] == "system":
            wire[0]["content"] += "\n\n" + shape.instruction
        else:
            wire.insert(0, {"role": "system", "content": shape.instruction})
    return wire


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A chat completion, or why there is none. A 2xx whose body holds an `error` is read as that error."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not 200 <= status < 300 or is_error(data):
        return fault_of(status, headers, body, data, provider=provider, model=model, redactor=redactor)
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list):
        return _unreadable(provider, status)
    return _reply(data, choices, model, simulated=provider.simulated)


def rates(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's `x-ratelimit-*` headers, which most look-alikes send too."""
    return rate_state(headers)


def _unreadable(provider: Provider, status: int) -> Fault:
    message = f"{provider.name} answered {status} with a body that is no chat completion"
    return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, status=status, ambiguous=True)


def _reply(data: dict[str, Any], choices: list[Any], model: str, *, simulated: bool) -> Reply:
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {}
    text, refusal = _content(message)
    reason = choice.get("finish_reason")
    finish = _FINISH.get(reason.lower(), Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    if refusal is not None and finish is not Finish.FILTER:
        finish = Finish.REFUSAL
    named = data.get("model")
    tier = data.get("service_tier")
    return Reply(
        text=text,
        finish=finish,
        usage=_usage(data.get("usage")),
        model=named if isinstance(named, str) and named else model,
        refusal=refusal,
        simulated=simulated or data.get("system_fingerprint") == SIMULATOR_MARK,
        service_tier=tier if isinstance(tier, str) else None,
    )


def _content(message: dict[str, Any]) -> tuple[str, str | None]:
    """The answer's text and the refusal. Thinking (`reasoning_content`, parts of type thinking) belongs to neither."""
    content, refusal = message.get("content"), message.get("refusal")
    refused = refusal if isinstance(refusal, str) and refusal else None
    if isinstance(content, str):
        return content, refused
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refused = refused or part["refusal"]
    return "".join(texts), refused


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    given = count(usage, "prompt_tokens")
    made = count(usage, "completion_tokens")
    cached = count(usage.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:  # DeepSeek's name for it
        cached = count(usage, "prompt_cache_hit_tokens")
    thought = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if thought and given is not None and made is not None and usage.get("total_tokens") == given + made + thought:
        made += thought  # xAI counts thinking beside the completion, not within it
    return Usage(given, made, cached, thought)


def count(of: Any, name: str) -> int | None:
    """A number of tokens within a usage object; None when it says none, or none that can be."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None
