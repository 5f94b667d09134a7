"""OpenAI's chat completions on the wire: bodies in, completions, chunks and errors out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agac.simulator.asks import CREATED, FINGERPRINT, Answer, ApiError, Ask, content_digest, token_count
from agac.simulator.openaiwire import (
    COUNT,
    OBJECT,
    ROLES,
    TRUTH,
    between,
    check_parameters,
    error_body,
    read_form,
    read_list,
    read_object,
    read_text,
)
from agac.simulator.words import names

PARAMETERS = names(
    "model messages stream stream_options response_format max_tokens max_completion_tokens temperature top_p n stop "
    "seed presence_penalty frequency_penalty reasoning_effort service_tier user metadata store logit_bias logprobs "
    "top_logprobs modalities prompt_cache_key prompt_cache_retention safety_identifier verbosity prediction tools "
    "tool_choice parallel_tool_calls"
)
UNSUPPORTED: dict[str, Any] = {"n": 1, "tools": [], "logprobs": False, "top_logprobs": 0}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

KINDS = {
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "presence_penalty": between(-2, 2),
    "frequency_penalty": between(-2, 2),
    "max_tokens": COUNT,
    "max_completion_tokens": COUNT,
    "stream": TRUTH,
    "stream_options": OBJECT,
}


def read_ask(body: bytes, seed: int) -> Ask:
    """Reads a request body; raises ApiError as OpenAI would answer it."""
    return ask_of(read_object(body), seed)


def ask_of(data: dict[str, Any], seed: int) -> Ask:
    """What a request's JSON asks."""
    check_values(data)
    messages = tuple(read_message(index, message) for index, message in enumerate(read_list(data, "messages")))
    stream = data.pop("stream", None) or False
    stream_options = data.pop("stream_options", None) or {}
    form = read_form(data.get("response_format"), "response_format", messages, within="json_schema")
    return Ask(
        model=data["model"],
        messages=messages,
        digest=content_digest(seed, data),
        prompt_tokens=max(1, sum(token_count(text) for _, text in messages)),
        schema=form.schema,
        schema_key=form.schema_key,
        strict_name=form.strict_name,
        wants_json=form.kind != "text",
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        stop=read_stop(data.get("stop")),
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        extras={"service_tier": data["service_tier"]} if data.get("service_tier") else {},
    )


def check_values(data: dict[str, Any]) -> None:
    """Refuses values that OpenAI refuses, and parameters that are not simulated."""
    unknown = sorted(set(data) - PARAMETERS)
    if unknown:
        raise ApiError(400, f"Unrecognized request argument supplied: {', '.join(unknown)}", param=unknown[0])
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "you must provide a model parameter", param="model")
    check_parameters(data, UNSUPPORTED, KINDS)
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError(400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream")


def read_message(index: int, message: Any) -> tuple[str, str]:
    """Role and text of a message."""
    param = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        known = ", ".join(ROLES)
        raise ApiError(400, f"Invalid '{param}': expected an object whose role is one of {known}.", param=param)
    if message.get("content") is None and message["role"] == "assistant":
        return "assistant", ""
    return message["role"], read_text(message.get("content"), ("text",), param)


def read_stop(value: Any) -> tuple[str, ...]:
    """The texts before which a reply ends."""
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(stop, str) for stop in stops):
        raise ApiError(400, "Invalid 'stop': expected a string or an array of up to 4 strings.", param="stop")
    return tuple(stop for stop in stops if stop)


def failing_chunks(ask: Ask, answer: Answer, error: ApiError) -> Iterator[bytes]:
    """A completion piece by piece, until halfway an error comes instead of a chunk."""
    chunks = list(completion_chunks(ask, answer))
    yield from chunks[: max(1, len(chunks) // 2)]
    yield b"data: " + error_body(error) + b"\n\n"


def usage_of(ask: Ask, answer: Answer) -> dict[str, Any]:
    """What was charged."""
    return {
        "prompt_tokens": ask.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": ask.prompt_tokens + answer.tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def completion_body(ask: Ask, answer: Answer) -> bytes:
    """A whole completion."""
    return json.dumps(completion(ask, answer)).encode()


def completion(ask: Ask, answer: Answer) -> dict[str, Any]:
    """The completion object of an answer."""
    message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return frame(ask, "chat.completion") | {"choices": [choice], "usage": usage_of(ask, answer)}


def frame(ask: Ask, kind: str) -> dict[str, Any]:
    """What a completion and each of its chunks have in common."""
    return {
        "id": f"chatcmpl-sim{ask.digest.hex()}",
        "object": kind,
        "created": CREATED,
        "model": ask.model,
        "system_fingerprint": FINGERPRINT,
        **ask.extras,
    }


def completion_chunks(ask: Ask, answer: Answer, size: int = 24) -> Iterator[bytes]:
    """The same completion as server-sent events: the role, pieces of `size` characters, the end, usage if asked for."""
    field, text = ("content", answer.content) if answer.refusal is None else ("refusal", answer.refusal)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{field: (text or "")[start : start + size]} for start in range(0, len(text or ""), size)]
    usage = {"usage": None} if ask.include_usage else {}
    for delta in deltas:
        yield event(ask, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], usage)
    yield event(ask, [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": answer.finish}], usage)
    if ask.include_usage:
        yield event(ask, [], {"usage": usage_of(ask, answer)})
    yield b"data: [DONE]\n\n"


def event(ask: Ask, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    """One chunk as an event."""
    data = frame(ask, "chat.completion.chunk") | {"choices": choices} | usage
    return b"data: " + json.dumps(data).encode() + b"\n\n"
