"""Anthropic's Messages API: one `build`, one `parse`.

Facts: platform.claude.com/docs/en/api/messages and the types of the anthropic SDK 2.12, read November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, Finish, JSONValue, Message, Params, Reply, Request, Usage
from agac.providers.anthropic_errors import RULES, read_error
from agac.providers.anthropic_schemas import anthropic_format
from agac.providers.errorrules import fault_of
from agac.providers.openai_errors import is_error
from agac.providers.openai_wire import told
from agac.providers.provider import Provider
from agac.providers.ratelimits import dated_rate_state
from agac.providers.reading import count, json_of, reply_of, unreadable
from agac.providers.structured import shape_of

path = "/messages"

websocket = False

VERSION = "2023-06-01"
"""The API version. The one of 2026-10-21 has no sampling parameters any more, also for models that take them; what
answers look like is the same."""

_NO_WORD = "Anthropic's API has no such parameter; leave it out"

refused: Mapping[str, str] = dict.fromkeys(
    ("seed", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty", "verbosity"), _NO_WORD
)
"""Absent from the API's reference: Anthropic answers them with 400."""

rates = dated_rate_state

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stop", "stop_sequences"),
    ("service_tier", "service_tier"),
)

_FINISH = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSAL,
}
"""`tool_use` and `pause_turn` cannot happen here, and are OTHER like all that is new."""

_ADAPTIVE: Mapping[str, JSONValue] = {"thinking": {"type": "adaptive"}}


def headers(provider: Provider) -> dict[str, str]:
    """The key, and the version of the API, which goes with every request."""
    return ({"x-api-key": provider.api_key} if provider.api_key else {}) | {"anthropic-version": VERSION}


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /messages. The API wants to be told how long a reply may be."""
    shape, params = shape_of(request.schema, provider, anthropic_format), request.params
    wire: dict[str, JSONValue] = {"model": model, "max_tokens": _max_tokens(params, provider)}
    if system := _system(request.messages, shape.instruction):
        wire["system"] = system
    wire["messages"] = [{"role": m.role, "content": _text(m)} for m in request.messages if m.role != "system"]
    wire |= told(params, _PARAMS, provider)
    thinking = _thinking(params.reasoning, model, provider)
    wire |= thinking
    if shape.response_format is not None:
        wire["output_config"] = {**thinking.get("output_config", {}), "format": shape.response_format}
    return wire


def _max_tokens(params: Params, provider: Provider) -> int:
    """What is asked for, else the row's number; a number of tokens to think with comes on top of that."""
    if params.max_tokens is not None:
        return params.max_tokens
    thought = int(params.reasoning) if params.reasoning is not None and params.reasoning.isdigit() else 0
    return provider.max_tokens + thought


def _text(message: Message) -> str:
    return "".join([part.text for part in message.parts])


def _system(messages: tuple[Message, ...], instruction: str | None) -> str:
    """The system prompt: what the system messages say, and how to write the answer where that is told in words."""
    texts = [_text(message) for message in messages if message.role == "system"]
    return "\n\n".join([*texts, instruction] if instruction else texts)


def _thinking(value: str | None, model: str, provider: Provider) -> dict[str, JSONValue]:
    """How much the model thinks: an effort, a number of tokens, or its switch turned on or off."""
    if value is None:
        return {}
    switch = provider.switch_of(model)
    if value in ("off", "none"):
        return dict((switch.off if switch else None) or {"thinking": {"type": "disabled"}})
    if value.isdigit():
        return {"thinking": {"type": "enabled", "budget_tokens": int(value)}}
    on = dict(_ADAPTIVE if switch is None else switch.on or {})
    return on if value == "on" else {**on, "output_config": {"effort": value}}


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A message, or why there is none. A 2xx whose body holds an `error` is read as that error."""
    data = json_of(body)
    if not 200 <= status < 300 or is_error(data):
        error = read_error(data)
        return fault_of(error, RULES, status, headers, body, provider=provider, model=model, redactor=redactor)
    content = data.get("content") if isinstance(data, dict) else None
    if not isinstance(content, list):
        return unreadable(provider, status, "a body that is no message")
    reason = data.get("stop_reason")
    finish = _FINISH.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    usage = data.get("usage")
    tier = usage.get("service_tier") if isinstance(usage, dict) else None
    return reply_of(
        {**data, "service_tier": tier},
        [_answer(content)],
        finish,
        usage=_usage(usage),
        refusal=_refusal(data.get("stop_details")) if finish is Finish.REFUSAL else None,
        provider=provider,
        model=model,
    )


def _answer(content: list[Any]) -> str:
    """The text of the blocks that are text. Thinking is none."""
    blocks = (block for block in content if isinstance(block, dict) and block.get("type") == "text")
    return "".join(text for block in blocks if isinstance(text := block.get("text"), str))


def _refusal(details: Any) -> str | None:
    """Why it was refused, in Anthropic's words, or what its classifiers call it."""
    if not isinstance(details, dict):
        return None
    words, category = details.get("explanation"), details.get("category")
    if isinstance(words, str) and words:
        return words
    return f"category {category}" if isinstance(category, str) and category else None


def _usage(usage: Any) -> Usage:
    """Tokens read from the cache and written to it are counted apart from the others: all three are input."""
    given, read = count(usage, "input_tokens"), count(usage, "cache_read_input_tokens")
    if given is not None:
        given += (read or 0) + (count(usage, "cache_creation_input_tokens") or 0)
    details = usage.get("output_tokens_details") if isinstance(usage, dict) else None
    return Usage(given, count(usage, "output_tokens"), read, count(details, "thinking_tokens"))
