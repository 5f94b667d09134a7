"""OpenAI's Responses API on the wire: bodies in, responses out. `responseevents` tells them piece by piece."""

from __future__ import annotations

import json
from typing import Any

from agac.simulator.asks import CREATED, FINGERPRINT, Answer, ApiError, Ask, Message, content_digest, token_count
from agac.simulator.openaiwire import (
    COUNT,
    OBJECT,
    ROLES,
    TEXT,
    TRUTH,
    between,
    check_parameters,
    missing,
    read_form,
    read_list,
    read_object,
    read_text,
)
from agac.simulator.words import names

PARAMETERS = names(
    "model input instructions stream stream_options text max_output_tokens temperature top_p reasoning service_tier "
    "store metadata user safety_identifier prompt_cache_key prompt_cache_retention include truncation background "
    "parallel_tool_calls tool_choice tools max_tool_calls top_logprobs previous_response_id conversation prompt"
)
UNSUPPORTED: dict[str, Any] = {
    "tools": [],
    "background": False,
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "top_logprobs": 0,
}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

PARTS = ("input_text", "output_text", "text")
"""Kinds of content that are text: nothing else is simulated."""

KINDS = {
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "max_output_tokens": COUNT,
    "stream": TRUTH,
    "store": TRUTH,
    "stream_options": OBJECT,
    "instructions": TEXT,
    "reasoning": OBJECT,
    "text": OBJECT,
    "metadata": OBJECT,
    "service_tier": TEXT,
}


def read_ask(body: bytes, seed: int) -> Ask:
    """Reads a request body; raises ApiError as OpenAI would answer it."""
    return ask_of(read_object(body), seed)


def read_create(message: bytes, seed: int) -> Ask:
    """Reads a message of a WebSocket, which must be a `response.create`: a body without `stream`."""
    data = read_object(message)
    kind = data.pop("type", None)
    if kind != "response.create":
        raise ApiError(400, f"Invalid event type: {kind!r}. Expected 'response.create'.", param="type")
    return ask_of(data, seed)


def ask_of(data: dict[str, Any], seed: int) -> Ask:
    """What a request's JSON asks."""
    check_values(data)
    messages = read_input(data)
    stream = data.pop("stream", None) or False
    data.pop("stream_options", None)
    form = read_form((data.get("text") or {}).get("format"), "text.format", messages, needed=("name", "schema"))
    if form.kind == "json_object":
        check_word(messages[1:] if data.get("instructions") else messages)
    return Ask(
        model=data["model"],
        messages=messages,
        digest=content_digest(seed, data),
        prompt_tokens=max(1, sum(token_count(text) for _, text in messages)),
        schema=form.schema,
        schema_key=form.schema_key,
        strict_name=form.strict_name,
        wants_json=form.kind != "text",
        max_tokens=data.get("max_output_tokens"),
        stream=stream,
        extras={name: data[name] for name in PARAMETERS if name in data and name not in ("model", "input")},
    )


def check_values(data: dict[str, Any]) -> None:
    """Refuses what OpenAI refuses, and what is not simulated."""
    for name in sorted(set(data) - set(PARAMETERS)):
        raise ApiError(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise missing("model")
    check_parameters(data, UNSUPPORTED, KINDS, code="invalid_type")


def read_input(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Role and text of each message; the instructions come first, as a system message."""
    leading = (("system", data["instructions"]),) if data.get("instructions") else ()
    if isinstance(data.get("input"), str):
        return (*leading, ("user", data["input"]))
    return (*leading, *(read_item(index, item) for index, item in enumerate(read_list(data, "input"))))


def read_item(index: int, item: Any) -> tuple[str, str]:
    """Role and text of an input item that is a message; there are no others here."""
    param = f"input[{index}]"
    if not isinstance(item, dict) or item.get("type") not in (None, "message") or item.get("role") not in ROLES:
        known = ", ".join(ROLES)
        raise ApiError(400, f"Invalid '{param}': expected a message whose role is one of {known}.", param=param)
    return item["role"], read_text(item.get("content"), PARTS, param)


def check_word(messages: tuple[tuple[str, str], ...]) -> None:
    """JSON mode wants to be told of JSON in the input itself."""
    if not any("json" in text.lower() for _, text in messages):
        message = "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
        raise ApiError(400, f"{message}'json_object'.", param="input")


def response_body(ask: Ask, answer: Answer) -> bytes:
    """A whole response."""
    return json.dumps(response(ask, answer)).encode()


def failed_body(ask: Ask, error: ApiError) -> bytes:
    """A response that failed while the model was at work."""
    return json.dumps(failed(ask, error)).encode()


def response(ask: Ask, answer: Answer) -> dict[str, Any]:
    """The response object of an answer."""
    finished = answer.finish == "stop"
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    return frame(ask, "completed" if finished else "incomplete") | {
        "completed_at": CREATED if finished else None,
        "incomplete_details": None if finished else {"reason": reason},
        "output": [item(ask, index, message) for index, message in enumerate(answer.messages)],
        "usage": usage_of(ask, answer),
    }


def failed(ask: Ask, error: ApiError) -> dict[str, Any]:
    """The response object of a failure."""
    return frame(ask, "failed") | {"error": {"code": error.code or "server_error", "message": error.message}}


def item(ask: Ask, index: int, message: Message) -> dict[str, Any]:
    """A message of the output."""
    return {
        "id": item_id(ask, index),
        "type": "message",
        "status": "incomplete" if message.cut else "completed",
        "role": "assistant",
        "content": [part(message)],
    }


def item_id(ask: Ask, index: int) -> str:
    """The name of a message of the output."""
    return f"msg_sim{ask.digest.hex()}{index}"


def part(message: Message) -> dict[str, Any]:
    """The one part of a message: its text, or a refusal."""
    if message.refusal is not None:
        return {"type": "refusal", "refusal": message.refusal}
    return {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}


def usage_of(ask: Ask, answer: Answer) -> dict[str, Any]:
    """What was charged."""
    return {
        "input_tokens": ask.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ask.prompt_tokens + answer.tokens,
    }


def frame(ask: Ask, status: str) -> dict[str, Any]:
    """What every response object says. `system_fingerprint` is not OpenAI's: it marks the simulator, as in chat."""
    said = ask.extras
    tier = said.get("service_tier") or "default"
    return {
        "id": f"resp_sim{ask.digest.hex()}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": said.get("instructions"),
        "max_output_tokens": ask.max_tokens,
        "max_tool_calls": None,
        "model": ask.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": (said.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "default" if tier == "auto" else tier,
        "store": said.get("store") is not False,
        "temperature": 1.0 if said.get("temperature") is None else said["temperature"],
        "text": {"format": (said.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0 if said.get("top_p") is None else said["top_p"],
        "truncation": "disabled",
        "usage": None,
        "user": said.get("user"),
        "metadata": said.get("metadata") or {},
        "system_fingerprint": FINGERPRINT,
    }
