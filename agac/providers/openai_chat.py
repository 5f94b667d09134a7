"""OpenAI chat completions, as OpenAI and everyone who looks alike serves it: one `build`, one `parse`.

Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do differently, read November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, Finish, JSONValue, Reply, Request, Usage
from agac.providers.openai_wire import body_of, headers, messages_with, said, told
from agac.providers.provider import Provider
from agac.providers.ratelimits import rate_state
from agac.providers.reading import count, reply_of, unreadable
from agac.providers.structured import shape_of

__all__ = ["build", "headers", "parse", "path", "rates", "refused", "websocket"]

path = "/chat/completions"

websocket = False

refused: Mapping[str, str] = {
    "verbosity": "only the Responses API is asked for it here; write responses/…, or leave it out"
}
"""What else a look-alike takes stands in its row; OpenAI takes all of it."""

rates = rate_state

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


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /chat/completions."""
    shape, params = shape_of(request.schema, provider), request.params
    wire: dict[str, JSONValue] = {"model": model, "messages": messages_with(shape.instruction, request.messages)}
    wire |= told(params, _PARAMS, provider)
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
        return (switch.on if value == "on" else switch.off) or {}
    return {provider.renames.get("reasoning", "reasoning_effort"): value}


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A chat completion, or why there is none. A 2xx whose body holds an `error` is read as that error."""
    data = body_of(status, headers, body, provider=provider, model=model, redactor=redactor)
    if isinstance(data, Fault):
        return data
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list):
        return unreadable(provider, status, "a body that is no chat completion")
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}
    text, refusal = _answer(choice.get("message"))
    reason = choice.get("finish_reason")
    finish = _FINISH.get(reason.lower(), Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    usage = _usage(data.get("usage"))
    return reply_of(data, [text], finish, usage=usage, refusal=refusal, provider=provider, model=model)


def _answer(message: Any) -> tuple[str, str | None]:
    """The answer's text and the refusal. Thinking (`reasoning_content`, parts of type thinking) belongs to neither."""
    if not isinstance(message, dict):
        return "", None
    content, refusal = message.get("content"), message.get("refusal")
    text, refused_with = (content, None) if isinstance(content, str) else said(content, "text")
    return text, refusal if isinstance(refusal, str) and refusal else refused_with


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
