"""OpenAI's chat completions on the wire: bodies in, completions, chunks and errors out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from agac.simulator.asks import Answer, ApiError, Ask, canonical, content_digest, token_count
from agac.simulator.words import names

FINGERPRINT = "agac-simulator"
"""The `system_fingerprint` by which a client sees that a reply was simulated."""

CREATED = 1_735_689_600
"""Every reply says that it was made then: a reply depends on seed and content, not on time."""

SCHEMA_MARK = "JSON Schema:\n"
"""In a system message, the text after the last of these is the schema that the reply must conform to."""

ROLES = ("assistant", "developer", "system", "user")
PARAMETERS = names(
    "model messages stream stream_options response_format max_tokens max_completion_tokens temperature top_p n stop "
    "seed presence_penalty frequency_penalty reasoning_effort service_tier user metadata store logit_bias logprobs "
    "top_logprobs modalities prompt_cache_key prompt_cache_retention safety_identifier verbosity prediction tools "
    "tool_choice parallel_tool_calls"
)
UNSUPPORTED: dict[str, Any] = {"n": 1, "tools": [], "logprobs": False, "top_logprobs": 0}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""


def read_ask(body: bytes, seed: int) -> Ask:
    """Reads a request body; raises ApiError as OpenAI would answer it."""
    data = read_object(body)
    unknown = sorted(set(data) - PARAMETERS)
    if unknown:
        raise ApiError(400, f"Unrecognized request argument supplied: {', '.join(unknown)}", param=unknown[0])
    check_values(data)
    messages = tuple(read_message(index, message) for index, message in enumerate(read_list(data, "messages")))
    stream = data.pop("stream", None) or False
    stream_options = data.pop("stream_options", None) or {}
    form = data.get("response_format")
    schema, key = read_schema(form, messages)
    return Ask(
        model=data["model"],
        messages=messages,
        digest=content_digest(seed, data),
        prompt_tokens=max(1, sum(token_count(text) for _, text in messages)),
        schema=schema,
        schema_key=key,
        strict_name=strict_name(form),
        wants_json=form is not None and form["type"] != "text",
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        stop=read_stop(data.get("stop")),
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        extras={"service_tier": data["service_tier"]} if data.get("service_tier") else {},
    )


def read_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(400, "We expected a JSON object as the body of your request.")
    return data


def check_values(data: dict[str, Any]) -> None:
    """Refuses values that OpenAI refuses, and parameters that are not simulated."""
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "you must provide a model parameter", param="model")
    for name, harmless in UNSUPPORTED.items():
        if data.get(name) not in (None, harmless):
            raise ApiError(400, f"{name} is not supported by the simulator: leave it out.", param=name)
    for name, (fits, wanted) in VALUES.items():
        if data.get(name) is not None and not fits(data[name]):
            raise ApiError(400, f"Invalid '{name}': expected {wanted}.", param=name)
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError(400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream")


def between(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    """What a number parameter must be."""
    return lambda value: is_number(value) and low <= value <= high, f"a number from {low} to {high}"


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "presence_penalty": between(-2, 2),
    "frequency_penalty": between(-2, 2),
    "max_tokens": (is_count, "an integer of at least 1"),
    "max_completion_tokens": (is_count, "an integer of at least 1"),
    "stream": (lambda value: isinstance(value, bool), "true or false"),
    "stream_options": (lambda value: isinstance(value, dict), "an object"),
}
"""What a parameter must be when it is there, and the words for it."""


def read_list(data: dict[str, Any], name: str) -> list[Any]:
    """A parameter that must be a list with something in it."""
    value = data.get(name)
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"Invalid '{name}': expected an array with at least one element.", param=name)
    return value


def read_message(index: int, message: Any) -> tuple[str, str]:
    """Role and text of a message; parts of a text are joined."""
    param = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        known = ", ".join(ROLES)
        raise ApiError(400, f"Invalid '{param}': expected an object whose role is one of {known}.", param=param)
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return "assistant", ""
    if isinstance(content, str):
        return message["role"], content
    if isinstance(content, list) and all(is_text_part(part) for part in content):
        return message["role"], "".join(part["text"] for part in content)
    raise ApiError(400, f"Invalid '{param}.content': expected a string or an array of text parts.", param=param)


def is_text_part(part: Any) -> bool:
    """Whether a part of a message is text: nothing else is simulated."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def read_stop(value: Any) -> tuple[str, ...]:
    """The texts before which a reply ends."""
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(stop, str) for stop in stops):
        raise ApiError(400, "Invalid 'stop': expected a string or an array of up to 4 strings.", param="stop")
    return tuple(stop for stop in stops if stop)


def strict_name(form: Any) -> str | None:
    """The name of a schema that is to be held to strict mode; of a form that was read already."""
    asked = form is not None and form["type"] == "json_schema" and form["json_schema"].get("strict")
    return str(form["json_schema"]["name"]) if asked else None


def read_schema(form: Any, messages: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """The schema that the reply must conform to and a text that names it; (None, "") when there is none."""
    if form is None:
        return prompted_schema(messages)
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise ApiError(
            400,
            "Invalid 'response_format.type': expected one of text, json_object, json_schema.",
            param="response_format.type",
        )
    if kind != "json_schema":
        return prompted_schema(messages)
    named = form.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise ApiError(
            400,
            "Missing required parameter: 'response_format.json_schema.name'.",
            code="missing_required_parameter",
            param="response_format.json_schema.name",
        )
    schema = named.get("schema", {})
    return schema, f"{strict_name(form)}:{canonical(schema)}"


def prompted_schema(messages: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """The schema that a system message ends with, where there is one."""
    for role, text in reversed(messages):
        if role in ("system", "developer") and SCHEMA_MARK in text:
            written = text.rpartition(SCHEMA_MARK)[2].strip()
            try:
                return json.JSONDecoder().raw_decode(written)[0], written
            except ValueError:
                return None, ""
    return None, ""


def error_body(error: ApiError) -> bytes:
    """An error as OpenAI writes it."""
    about = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return json.dumps({"error": about}).encode()


def failed_body(ask: Ask, answer: Answer, error: ApiError) -> bytes:
    """An error with which a completion ends while the model is at work: its status has been told by then."""
    return error_body(error)


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
    message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return json.dumps(frame(ask, "chat.completion") | {"choices": [choice], "usage": usage_of(ask, answer)}).encode()


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
