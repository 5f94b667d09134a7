"""OpenAI's chat completions and Responses API: how requests are read, how answers, events and errors are written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agac.simulator import replies
from agac.simulator.batch_store import DAY, Batch, StoredFile
from agac.simulator.replies import COUNT, OBJECT, TEXT, ApiError, Event, Kind, ModelAnswer, ModelApi, ModelCall
from agac.simulator.schema_values import word_set
from agac.simulator.settings import RateLimits

CHAT_PARAMETERS = word_set(
    "model messages stream stream_options response_format max_tokens max_completion_tokens temperature top_p n stop "
    "seed presence_penalty frequency_penalty reasoning_effort service_tier user metadata store logit_bias logprobs "
    "top_logprobs modalities prompt_cache_key prompt_cache_retention safety_identifier verbosity prediction tools "
    "tool_choice parallel_tool_calls"
)
CHAT_UNSUPPORTED: dict[str, Any] = {"n": 1, "tools": [], "logprobs": False, "top_logprobs": 0}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

CHAT_KINDS: dict[str, Kind] = {
    "temperature": replies.between(0, 2), "top_p": replies.between(0, 1), "presence_penalty": replies.between(-2, 2),
    "frequency_penalty": replies.between(-2, 2), "max_tokens": COUNT, "max_completion_tokens": COUNT,
    "stream": replies.TRUTH, "stream_options": OBJECT,
}  # fmt: skip

RESPONSES_PARAMETERS = word_set(
    "model input instructions stream stream_options text max_output_tokens temperature top_p reasoning service_tier "
    "store metadata user safety_identifier prompt_cache_key prompt_cache_retention include truncation background "
    "parallel_tool_calls tool_choice tools max_tool_calls top_logprobs previous_response_id conversation prompt"
)
RESPONSES_UNSUPPORTED: dict[str, Any] = {
    "tools": [], "background": False, "previous_response_id": None, "conversation": None, "prompt": None,
    "top_logprobs": 0,
}  # fmt: skip
RESPONSES_KINDS: dict[str, Kind] = {
    "temperature": replies.between(0, 2), "top_p": replies.between(0, 1), "max_output_tokens": COUNT,
    "stream": replies.TRUTH, "store": replies.TRUTH, "stream_options": OBJECT, "instructions": TEXT,
    "reasoning": OBJECT, "text": OBJECT, "metadata": OBJECT, "service_tier": TEXT,
}  # fmt: skip
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
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def openai_headers(number: int, limits: RateLimits) -> dict[str, str]:
    """A reply's own headers: its number, and what is left of the limits."""
    return {"x-request-id": f"req-sim-{number}"} | limits.headers(time.monotonic())


def check_parameters(
    data: Mapping[str, Any], unsupported: Mapping[str, Any], kinds: Mapping[str, Kind], code: str | None = None
) -> None:
    """Refuses parameters that are not simulated, and values of a wrong kind; the latter with `code`."""
    for name, wanted in replies.wrong_parameters(data, unsupported, kinds):
        if not wanted:
            raise ApiError(400, f"{name} is not supported by the simulator: leave it out.", param=name)
        raise ApiError(400, f"Invalid '{name}': expected {wanted}.", code=code, param=name)


def read_messages(data: Mapping[str, Any], name: str, what: str, kinds: tuple[str, ...]) -> list[tuple[str, str]]:
    """Role and text of each message in a list; parts of these kinds are joined, others are not simulated."""
    listed = data.get(name)
    if not isinstance(listed, list) or not listed:
        raise ApiError(400, f"Invalid '{name}': expected an array with at least one element.", param=name)
    messages = []
    for index, message in enumerate(listed):
        param = f"{name}[{index}]"
        if (
            not isinstance(message, dict)
            or message.get("role") not in ROLES
            or (name == "input" and message.get("type") not in (None, "message"))
        ):
            problem = f"Invalid '{param}': expected {what} whose role is one of {', '.join(ROLES)}."
            raise ApiError(400, problem, param=param)
        role, content = message["role"], message.get("content")
        if content is None and role == "assistant" and name == "messages":
            content = ""
        elif isinstance(content, list) and all(
            isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)
            for part in content
        ):
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            problem = f"Invalid '{param}.content': expected a string or an array of text parts."
            raise ApiError(400, problem, param=param)
        messages.append((role, content))
    return messages


def read_format(
    form: Any, place: str, messages: Sequence[tuple[str, str]], within: str = "", needed: tuple[str, ...] = ("name",)
) -> dict[str, Any]:
    """What the parameter `place` requests, as fields of a ModelCall. A schema is described in it, or in its key
    `within`, by what is `needed`."""
    if form is None:
        return replies.prompted_schema(messages)
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in FORMATS:
        param = f"{place}.type"
        raise ApiError(400, f"Invalid '{param}': expected one of {', '.join(FORMATS)}.", param=param)
    if kind != "json_schema":
        return replies.prompted_schema(messages) | {"wants_json": kind != "text"}
    described, place = (form.get(within), f"{place}.{within}") if within else (form, place)
    for name in needed:
        if not isinstance(described, dict) or described.get(name) is None:
            raise missing(f"{place}.{name}")
    schema = described.get("schema", {})
    strict_name = str(described["name"]) if described.get("strict") else None
    schema_key = f"{strict_name or ''}:{replies.canonical(schema)}"
    return {"schema": schema, "schema_key": schema_key, "strict_name": strict_name, "wants_json": True}


def read_chat(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a chat completion; raises ApiError as OpenAI would answer it."""
    if unknown := sorted(set(data) - CHAT_PARAMETERS):
        raise ApiError(400, f"Unrecognized request argument supplied: {', '.join(unknown)}", param=unknown[0])
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise ApiError(400, "you must provide a model parameter", param="model")
    check_parameters(data, CHAT_UNSUPPORTED, CHAT_KINDS)
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError(400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream")
    messages = read_messages(data, "messages", "an object", ("text",))
    stream_options = data.pop("stream_options", None) or {}
    form = read_format(data.get("response_format"), "response_format", messages, within="json_schema")
    stops = [data["stop"]] if isinstance(data.get("stop"), str) else data.get("stop") or []
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(stop, str) for stop in stops):
        raise ApiError(400, "Invalid 'stop': expected a string or an array of up to 4 strings.", param="stop")
    return replies.model_call(
        data,
        seed,
        messages,
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        stop=tuple(filter(None, stops)),
        include_usage=bool(stream_options.get("include_usage")),
        extras={"service_tier": data["service_tier"]} if data.get("service_tier") else {},
        **form,
    )


def chat_usage(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The charged tokens."""
    written = answer.tokens
    return {
        "prompt_tokens": call.prompt_tokens, "completion_tokens": written, "total_tokens": call.prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def chat_frame(call: ModelCall, kind: str) -> dict[str, Any]:
    """What a completion and each of its chunks have in common."""
    return {
        "id": f"chatcmpl-sim{call.digest.hex()}",
        "object": kind,
        "created": replies.CREATED,
        "model": call.model,
        "system_fingerprint": replies.FINGERPRINT,
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
    for piece in replies.pieces(text or ""):
        yield chunk({name: piece})
    yield chunk({}, answer.finish)
    if call.include_usage:
        yield chat_frame(call, "chat.completion.chunk") | {"choices": [], "usage": chat_usage(call, answer)}
    yield "[DONE]"


def read_response(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a response; raises ApiError as OpenAI would answer it."""
    for name in sorted(set(data) - RESPONSES_PARAMETERS):
        raise ApiError(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise missing("model")
    check_parameters(data, RESPONSES_UNSUPPORTED, RESPONSES_KINDS, code="invalid_type")
    if isinstance(data.get("input"), str):
        messages = [("user", data["input"])]
    else:
        messages = read_messages(data, "input", "a message", PARTS)
    instructions = [("system", data["instructions"])] if data.get("instructions") else []
    data.pop("stream_options", None)
    form = (data.get("text") or {}).get("format")
    asked = read_format(form, "text.format", [*instructions, *messages], needed=("name", "schema"))
    if form and form["type"] == "json_object" and not any("json" in text.lower() for _, text in messages):
        message = "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
        raise ApiError(400, f"{message}'json_object'.", param="input")
    extras = {name: value for name, value in data.items() if name not in ("model", "input", "stream")}
    max_tokens = data.get("max_output_tokens")
    return replies.model_call(data, seed, [*instructions, *messages], max_tokens=max_tokens, extras=extras, **asked)


def read_socket_message(message: bytes, seed: int, headers: Mapping[str, str]) -> ModelCall:
    """A message of a WebSocket, which must be a `response.create`: a body, always answered with events."""
    data = replies.read_object(message)
    kind = data.pop("type", None)
    if kind != "response.create":
        raise ApiError(400, f"Invalid event type: {kind!r}. Expected 'response.create'.", param="type")
    return replace(read_response(data, seed), stream=True)


def response(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The response object of an answer."""
    finished = answer.finish == "stop"
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    output = []
    for index, message in enumerate(answer.messages):
        part: dict[str, Any] = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        if message.refusal is not None:
            part = {"type": "refusal", "refusal": message.refusal}
        item = {"id": f"msg_sim{call.digest.hex()}{index}", "type": "message"}
        status = {"status": "incomplete" if message.cut else "completed"}
        output.append({**item, **status, "role": "assistant", "content": [part]})
    return response_frame(call, "completed" if finished else "incomplete") | {
        "completed_at": replies.CREATED if finished else None,
        "incomplete_details": None if finished else {"reason": reason},
        "output": output,
        "usage": {
            "input_tokens": call.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": call.prompt_tokens + answer.tokens,
        },
    }


def response_frame(call: ModelCall, status: str) -> dict[str, Any]:
    """What every response object has. `system_fingerprint` is not OpenAI's: it marks the simulator, as in chat."""
    given = call.extras
    tier = given.get("service_tier") or "default"
    return {
        "id": f"resp_sim{call.digest.hex()}", "object": "response", "created_at": replies.CREATED, "status": status,
        "background": False, "completed_at": None, "error": None, "incomplete_details": None,
        "instructions": given.get("instructions"), "max_output_tokens": call.max_tokens, "max_tool_calls": None,
        "model": call.model, "output": [], "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "default" if tier == "auto" else tier, "store": given.get("store") is not False,
        "temperature": 1.0 if given.get("temperature") is None else given["temperature"],
        "text": {"format": (given.get("text") or {}).get("format") or {"type": "text"}}, "tool_choice": "auto",
        "tools": [], "top_logprobs": 0, "top_p": 1.0 if given.get("top_p") is None else given["top_p"],
        "truncation": "disabled", "usage": None, "user": given.get("user"), "metadata": given.get("metadata") or {},
        "system_fingerprint": replies.FINGERPRINT,
    }  # fmt: skip


def response_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """All events of an answer, its texts in pieces; each event has its number."""
    begun, whole = response_frame(call, "in_progress"), response(call, answer)
    events: list[Event] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, done in enumerate(whole["output"]):
        part = done["content"][0]
        kind, name = f"response.{part['type']}", "refusal" if part["type"] == "refusal" else "text"
        where = {"item_id": done["id"], "output_index": index, "content_index": 0}
        logprobs: Event = {"logprobs": []} if name == "text" else {}
        item = done | {"status": "in_progress", "content": []}
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": item},
            {"type": "response.content_part.added", **where, "part": part | {name: ""}},
            *({"type": f"{kind}.delta", **where, "delta": piece, **logprobs} for piece in replies.pieces(part[name])),
            {"type": f"{kind}.done", **where, name: part[name], **logprobs},
            {"type": "response.content_part.done", **where, "part": part},
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return ({**event, "sequence_number": number} for number, event in enumerate(events))


def socket_error(error: ApiError) -> Event:
    """An error as a WebSocket sends it: there is no status line, so status and headers are within."""
    about = {"type": error.kind, "code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "status": error.status, "error": about | {"headers": error.headers}}


CHAT = ModelApi(
    read=lambda body, seed, headers: read_chat(replies.read_object(body), seed),
    reply=chat_completion,
    events=chat_events,
    error=error_object,
    headers=openai_headers,
)
RESPONSES = ModelApi(
    read=lambda body, seed, headers: read_response(replies.read_object(body), seed),
    reply=response,
    events=response_events,
    error=error_object,
    headers=openai_headers,
    failed=lambda call, error: (
        response_frame(call, "failed") | {"error": {"code": error.code or "server_error", "message": error.message}}
    ),
    stream_error=lambda error: {"type": "error", "code": error.code, "message": error.message, "param": None},
)
SOCKET_RESPONSES = replace(
    RESPONSES,
    read=read_socket_message,
    error=socket_error,
    stream_error=lambda error: {"type": "error", "error": socket_error(error)["error"]},  # the model was at work
)

OPENAI_ENDPOINTS: dict[str, replies.BatchEndpoint] = {
    "/v1/chat/completions": (read_chat, chat_completion),
    "/v1/responses": (read_response, response),
}
"""What batches of OpenAI and Azure may request."""


class OpenAiBatches:
    """OpenAI's batches, and Azure's: good results and others are in files of their own (not `one_file`).

    Result lines are bytes with their line end: of a request that was answered (`good_line`), got an error with a status
    (`error_line`), got no answer (`failed_line`), or was not done when its batch ended (`unfinished_line`). `body_key`
    is the key of a request's body, `foreign_line` a result line of a request that was never sent.
    """

    one_file = False
    foreign_line = (
        b'{"id":"batch_req_0","custom_id":"nobody-asked-this","response":{"status_code":200,"request_id":"req_0",'
        b'"body":{}},"error":null}\n'
    )
    body_key = "body"

    def endpoint(self, batch: Batch) -> replies.BatchEndpoint:
        """How its requests are read, and their answers are written."""
        return OPENAI_ENDPOINTS.get(batch.endpoint) or OPENAI_ENDPOINTS[f"/v1{batch.endpoint}"]

    def _line(self, batch: Batch, number: int, custom_id: str, response: Any, error: Any = None) -> bytes:
        line = {"id": f"batch_req_{batch.mark(number)}", "custom_id": custom_id, "response": response, "error": error}
        return replies.encoded(line) + b"\n"

    def good_line(self, batch: Batch, number: int, custom_id: str, body: Any, status: int = 200) -> bytes:
        response = {"status_code": status, "request_id": f"req_{batch.mark(number)}", "body": body}
        return self._line(batch, number, custom_id, response)

    def error_line(self, batch: Batch, number: int, custom_id: str, error: ApiError) -> bytes:
        return self.good_line(batch, number, custom_id, error_object(error), error.status)

    def failed_line(self, batch: Batch, number: int, custom_id: str, code: str, message: str) -> bytes:
        return self._line(batch, number, custom_id, None, {"code": code, "message": message})

    def zero_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        """A request about which the result says nothing: OpenAI's batches have had such lines."""
        return self._line(batch, number, custom_id, {"status_code": 0, "request_id": "", "body": {}})

    def unfinished_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        message = "This request could not be executed before the completion window expired."
        if batch.ended != "expired":
            message = "This request was cancelled before it was executed."
        return self.failed_line(batch, number, custom_id, f"batch_{batch.ended}", message)

    def batch_object(self, batch: Batch, now: float, address: str) -> dict[str, Any]:
        """A batch as it is, but for its faults; `address` is where the simulator is served."""
        hidden = bool(batch.masked_status(now))
        usage = {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        }
        ended: dict[str, int | None] = {f"{word}_at": None for word in ("completed", "failed", "expired", "cancelled")}
        if batch.ended and not hidden:
            ended[f"{batch.ended}_at"] = whole(batch.ended_at)
        closed = batch.ended in ("completed", "expired", "cancelled")
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": batch.model or None,
            "errors": {"object": "list", "data": batch.errors} if batch.errors and not hidden else None,
            "input_file_id": batch.input_id,
            "completion_window": batch.window,
            "status": batch.status(now),
            "output_file_id": None if hidden else batch.output_id,
            "error_file_id": None if hidden else batch.error_id,
            "created_at": int(batch.created_at),
            "in_progress_at": int(batch.created_at) if batch.validated and batch.ended != "failed" else None,
            "expires_at": whole(batch.expires_at or batch.created_at + DAY),
            "finalizing_at": whole(batch.ended_at) if closed and not hidden else None,
            **ended,
            "cancelling_at": whole(batch.cancel_at),
            "request_counts": _request_counts(batch),
            "metadata": None if batch.fault("batch_no_metadata") else batch.metadata,
            "usage": usage if batch.ended and not hidden else None,
        }

    def not_found(self, batch_id: str) -> ApiError:
        return ApiError(404, f"No batch found with id '{batch_id}'.", param="id")

    def not_open(self, batch: Batch) -> ApiError:
        return ApiError(400, f"Cannot cancel a batch with status '{batch.ended}'.")


def _request_counts(batch: Batch) -> dict[str, int | None]:
    """How many of its requests are done, as the provider says; Azure says nothing of a batch that it refused."""
    counts: dict[str, int | None] = {"total": batch.total, "completed": batch.good, "failed": batch.bad}
    if batch.ended == "failed" and batch.family == "azure":
        return dict.fromkeys(counts)
    if batch.fault("batch_counts_lie") and batch.ended:
        counts |= {"completed": batch.total, "failed": 0}
    if batch.fault("batch_counts_short"):
        counts["total"] = batch.total * 2 // 3
    return counts


def whole(seconds: float | None) -> int | None:
    """A time as OpenAI writes it."""
    return None if seconds is None else int(seconds)


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file as OpenAI and Azure write it."""
    return {
        "object": "file", "id": file.id, "purpose": file.purpose, "filename": file.name, "bytes": file.bytes,
        "created_at": int(file.created_at), "expires_at": whole(file.expires_at), "status": "processed",
        "status_details": None,
    }  # fmt: skip
