"""OpenAI's chat completions and Responses API: how requests are read, how answers, events and errors are written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agac.simulator.limits import RateLimits
from agac.simulator.replies import (
    COUNT,
    CREATED,
    FINGERPRINT,
    OBJECT,
    TEXT,
    TRUTH,
    AnswerMessage,
    ApiError,
    Event,
    Kind,
    ModelAnswer,
    ModelApi,
    ModelCall,
    between,
    canonical,
    content_digest,
    pieces,
    prompt_tokens,
    prompted_schema,
    read_object,
    wrong_parameters,
)
from agac.simulator.schema_values import word_set

CHAT_PARAMETERS = word_set(
    "model messages stream stream_options response_format max_tokens max_completion_tokens temperature top_p n stop "
    "seed presence_penalty frequency_penalty reasoning_effort service_tier user metadata store logit_bias logprobs "
    "top_logprobs modalities prompt_cache_key prompt_cache_retention safety_identifier verbosity prediction tools "
    "tool_choice parallel_tool_calls"
)
CHAT_UNSUPPORTED: dict[str, Any] = {"n": 1, "tools": [], "logprobs": False, "top_logprobs": 0}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

CHAT_KINDS: dict[str, Kind] = {
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "presence_penalty": between(-2, 2),
    "frequency_penalty": between(-2, 2),
    "max_tokens": COUNT,
    "max_completion_tokens": COUNT,
    "stream": TRUTH,
    "stream_options": OBJECT,
}

RESPONSES_PARAMETERS = word_set(
    "model input instructions stream stream_options text max_output_tokens temperature top_p reasoning service_tier "
    "store metadata user safety_identifier prompt_cache_key prompt_cache_retention include truncation background "
    "parallel_tool_calls tool_choice tools max_tool_calls top_logprobs previous_response_id conversation prompt"
)
RESPONSES_UNSUPPORTED: dict[str, Any] = {
    "tools": [],
    "background": False,
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "top_logprobs": 0,
}
RESPONSES_KINDS: dict[str, Kind] = {
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
ROLES = ("assistant", "developer", "system", "user")
FORMATS = ("text", "json_object", "json_schema")
PARTS = ("input_text", "output_text", "text")
"""Kinds of content in the Responses API that are text: nothing else is simulated."""


def missing(param: str) -> ApiError:
    """A required parameter is missing."""
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def error_object(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    about = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return {"error": about}


def openai_headers(number: int, limits: RateLimits) -> dict[str, str]:
    """A reply's own headers: its number, and what is left of the limits."""
    return {"x-request-id": f"req-sim-{number}"} | limits.headers(time.monotonic())


def check_parameters(
    data: Mapping[str, Any], unsupported: Mapping[str, Any], kinds: Mapping[str, Kind], code: str | None = None
) -> None:
    """Refuses parameters that are not simulated, and values of a wrong kind; the latter with `code`."""
    for name, wanted in wrong_parameters(data, unsupported, kinds):
        if not wanted:
            raise ApiError(400, f"{name} is not supported by the simulator: leave it out.", param=name)
        raise ApiError(400, f"Invalid '{name}': expected {wanted}.", code=code, param=name)


def read_list(data: Mapping[str, Any], name: str) -> list[Any]:
    """A parameter that must be a list with something in it."""
    value = data.get(name)
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"Invalid '{name}': expected an array with at least one element.", param=name)
    return value


def read_text(content: Any, kinds: tuple[str, ...], param: str) -> str:
    """A message's text; parts of a text are joined. Parts of other kinds are not simulated."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise ApiError(400, f"Invalid '{param}.content': expected a string or an array of text parts.", param=param)


class AnswerFormat(NamedTuple):
    """The requested form of an answer. `schema`, `schema_key` and `strict_name` are those of a ModelCall."""

    kind: str
    schema: Any = None
    schema_key: str = ""
    strict_name: str | None = None


def read_format(
    form: Any,
    place: str,
    messages: tuple[tuple[str, str], ...],
    *,
    within: str = "",
    needed: tuple[str, ...] = ("name",),
) -> AnswerFormat:
    """What the parameter `place` requests. A schema is described in it, or in its key `within`, by what is `needed`."""
    if form is None:
        return AnswerFormat("text", *prompted_schema(messages))
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in FORMATS:
        param = f"{place}.type"
        raise ApiError(400, f"Invalid '{param}': expected one of {', '.join(FORMATS)}.", param=param)
    if kind != "json_schema":
        return AnswerFormat(kind, *prompted_schema(messages))
    described, place = (form.get(within), f"{place}.{within}") if within else (form, place)
    for name in needed:
        if not isinstance(described, dict) or described.get(name) is None:
            raise missing(f"{place}.{name}")
    schema = described.get("schema", {})
    strict_name = str(described["name"]) if described.get("strict") else None
    return AnswerFormat(kind, schema, f"{strict_name or ''}:{canonical(schema)}", strict_name)


def model_call(
    data: dict[str, Any], seed: int, messages: tuple[tuple[str, str], ...], form: AnswerFormat, **more: Any
) -> ModelCall:
    """A checked request, `stream` already taken out of its data."""
    return ModelCall(
        model=data["model"],
        messages=messages,
        digest=content_digest(seed, data),
        prompt_tokens=prompt_tokens(messages),
        schema=form.schema,
        schema_key=form.schema_key,
        strict_name=form.strict_name,
        wants_json=form.kind != "text",
        **more,
    )


def read_chat(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a chat completion; raises ApiError as OpenAI would answer it."""
    unknown = sorted(set(data) - CHAT_PARAMETERS)
    if unknown:
        raise ApiError(400, f"Unrecognized request argument supplied: {', '.join(unknown)}", param=unknown[0])
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise ApiError(400, "you must provide a model parameter", param="model")
    check_parameters(data, CHAT_UNSUPPORTED, CHAT_KINDS)
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError(400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream")
    messages = tuple(read_chat_message(index, message) for index, message in enumerate(read_list(data, "messages")))
    stream = data.pop("stream", None) or False
    stream_options = data.pop("stream_options", None) or {}
    return model_call(
        data,
        seed,
        messages,
        read_format(data.get("response_format"), "response_format", messages, within="json_schema"),
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        stop=read_stop(data.get("stop")),
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        extras={"service_tier": data["service_tier"]} if data.get("service_tier") else {},
    )


def read_chat_message(index: int, message: Any) -> tuple[str, str]:
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


def chat_usage(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The charged tokens."""
    written = answer.tokens
    return {
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": written,
        "total_tokens": call.prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def chat_frame(call: ModelCall, kind: str) -> dict[str, Any]:
    """What a completion and each of its chunks have in common."""
    return {
        "id": f"chatcmpl-sim{call.digest.hex()}",
        "object": kind,
        "created": CREATED,
        "model": call.model,
        "system_fingerprint": FINGERPRINT,
        **call.extras,
    }


def chat_completion(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The completion object of an answer."""
    message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return chat_frame(call, "chat.completion") | {"choices": [choice], "usage": chat_usage(call, answer)}


def chat_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """The same completion in chunks: the role, pieces of text, the end, usage if requested, and the last line."""
    name, text = ("content", answer.content) if answer.refusal is None else ("refusal", answer.refusal)
    usage = {"usage": None} if call.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return chat_frame(call, "chat.completion.chunk") | {"choices": [choice]} | usage

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in pieces(text or ""):
        yield chunk({name: piece})
    yield chunk({}, answer.finish)
    if call.include_usage:
        yield chat_frame(call, "chat.completion.chunk") | {"choices": [], "usage": chat_usage(call, answer)}
    yield "[DONE]"


def failing_chat_events(call: ModelCall, answer: ModelAnswer, error: ApiError, as_response: bool) -> Iterator[Event]:
    """A completion until halfway; then an error comes instead of a chunk."""
    events = list(chat_events(call, answer))
    yield from events[: max(1, len(events) // 2)]
    yield error_object(error)


def read_response(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a response; raises ApiError as OpenAI would answer it."""
    for name in sorted(set(data) - RESPONSES_PARAMETERS):
        raise ApiError(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise missing("model")
    check_parameters(data, RESPONSES_UNSUPPORTED, RESPONSES_KINDS, code="invalid_type")
    messages = read_input(data)
    stream = data.pop("stream", None) or False
    data.pop("stream_options", None)
    form = read_format((data.get("text") or {}).get("format"), "text.format", messages, needed=("name", "schema"))
    if form.kind == "json_object":
        check_word(messages[1:] if data.get("instructions") else messages)
    extras = {name: value for name, value in data.items() if name not in ("model", "input")}
    return model_call(
        data, seed, messages, form, max_tokens=data.get("max_output_tokens"), stream=stream, extras=extras
    )


def read_socket_message(message: bytes, seed: int, headers: Mapping[str, str]) -> ModelCall:
    """A message of a WebSocket, which must be a `response.create`: a body without `stream`."""
    data = read_object(message)
    kind = data.pop("type", None)
    if kind != "response.create":
        raise ApiError(400, f"Invalid event type: {kind!r}. Expected 'response.create'.", param="type")
    return read_response(data, seed)


def read_input(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Role and text of each message; the instructions come first, as a system message."""
    leading = (("system", data["instructions"]),) if data.get("instructions") else ()
    if isinstance(data.get("input"), str):
        return (*leading, ("user", data["input"]))
    return (*leading, *(read_item(index, item) for index, item in enumerate(read_list(data, "input"))))


def read_item(index: int, item: Any) -> tuple[str, str]:
    """Role and text of an input item that is a message; others are not simulated."""
    param = f"input[{index}]"
    if not isinstance(item, dict) or item.get("type") not in (None, "message") or item.get("role") not in ROLES:
        known = ", ".join(ROLES)
        raise ApiError(400, f"Invalid '{param}': expected a message whose role is one of {known}.", param=param)
    return item["role"], read_text(item.get("content"), PARTS, param)


def check_word(messages: tuple[tuple[str, str], ...]) -> None:
    """JSON mode requires the word JSON in the input itself."""
    if not any("json" in text.lower() for _, text in messages):
        message = "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
        raise ApiError(400, f"{message}'json_object'.", param="input")


def response(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The response object of an answer."""
    finished = answer.finish == "stop"
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    return response_frame(call, "completed" if finished else "incomplete") | {
        "completed_at": CREATED if finished else None,
        "incomplete_details": None if finished else {"reason": reason},
        "output": [output_item(call, index, message) for index, message in enumerate(answer.messages)],
        "usage": {
            "input_tokens": call.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": call.prompt_tokens + answer.tokens,
        },
    }


def failed_response(call: ModelCall, error: ApiError) -> dict[str, Any]:
    """The response object of a failure."""
    return response_frame(call, "failed") | {"error": {"code": error.code or "server_error", "message": error.message}}


def output_item(call: ModelCall, index: int, message: AnswerMessage) -> dict[str, Any]:
    """A message of the output."""
    return {
        "id": output_item_id(call, index),
        "type": "message",
        "status": "incomplete" if message.cut else "completed",
        "role": "assistant",
        "content": [output_part(message)],
    }


def output_item_id(call: ModelCall, index: int) -> str:
    """The id of a message of the output."""
    return f"msg_sim{call.digest.hex()}{index}"


def output_part(message: AnswerMessage) -> dict[str, Any]:
    """The one part of a message: its text, or a refusal."""
    if message.refusal is not None:
        return {"type": "refusal", "refusal": message.refusal}
    return {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}


def response_frame(call: ModelCall, status: str) -> dict[str, Any]:
    """What every response object has. `system_fingerprint` is not OpenAI's: it marks the simulator, as in chat."""
    given = call.extras
    tier = given.get("service_tier") or "default"
    return {
        "id": f"resp_sim{call.digest.hex()}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": given.get("instructions"),
        "max_output_tokens": call.max_tokens,
        "max_tool_calls": None,
        "model": call.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "default" if tier == "auto" else tier,
        "store": given.get("store") is not False,
        "temperature": 1.0 if given.get("temperature") is None else given["temperature"],
        "text": {"format": (given.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0 if given.get("top_p") is None else given["top_p"],
        "truncation": "disabled",
        "usage": None,
        "user": given.get("user"),
        "metadata": given.get("metadata") or {},
        "system_fingerprint": FINGERPRINT,
    }


def response_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """All events of an answer, its texts in pieces; each event has its number."""
    begun, whole = response_frame(call, "in_progress"), response(call, answer)
    events = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    for index, message in enumerate(answer.messages):
        events += item_events(call, index, message)
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return ({**event, "sequence_number": number} for number, event in enumerate(events))


def item_events(call: ModelCall, index: int, message: AnswerMessage) -> Iterator[Event]:
    """The events of one message."""
    where = {"item_id": output_item_id(call, index), "output_index": index, "content_index": 0}
    kind, name, text = ("response.output_text", "text", message.text)
    if message.refusal is not None:
        kind, name, text = "response.refusal", "refusal", message.refusal
    logprobs: Event = {"logprobs": []} if name == "text" else {}
    done, part = output_item(call, index, message), output_part(message)
    begun = done | {"status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield {"type": "response.content_part.added", **where, "part": part | {name: ""}}
    for piece in pieces(text):
        yield {"type": f"{kind}.delta", **where, "delta": piece, **logprobs}
    yield {"type": f"{kind}.done", **where, name: text, **logprobs}
    yield {"type": "response.content_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": done}


def failing_response_events(
    call: ModelCall, answer: ModelAnswer, error: ApiError, as_response: bool
) -> Iterator[Event]:
    """The same until halfway; then an `error` event, or (`as_response`) a response that failed."""
    events = list(response_events(call, answer))
    events = events[: max(3, len(events) // 2)]
    end: Event = {"type": "response.failed", "response": failed_response(call, error)}
    if not as_response:
        end = {"type": "error", "code": error.code, "message": error.message, "param": None}
    return iter([*events, {**end, "sequence_number": len(events)}])


def socket_error(error: ApiError) -> Event:
    """An error as a WebSocket sends it: there is no status line, so status and headers are within."""
    about = {"type": error.kind, "code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "status": error.status, "error": about | {"headers": error.headers}}


CHAT = ModelApi(
    read=lambda body, seed, headers: read_chat(read_object(body), seed),
    reply=chat_completion,
    events=chat_events,
    failed=lambda call, error: error_object(error),  # its status has been sent by then
    failing_events=failing_chat_events,
    error=error_object,
    headers=openai_headers,
)
RESPONSES = ModelApi(
    read=lambda body, seed, headers: read_response(read_object(body), seed),
    reply=response,
    events=response_events,
    failed=failed_response,
    failing_events=failing_response_events,
    error=error_object,
    headers=openai_headers,
)
