"""OpenAI's two APIs, as OpenAI and compatible servers have them: requests, answers, and the streams put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agac.core.types import Fault, Finish, JSONValue, Message, Reply, Request, Usage
from agac.providers.bodies import count, mapping, objects, text
from agac.providers.dialect import NO_HEADERS, Assembly, Dialect, reply_of, set_params, unreadable, usage_of
from agac.providers.error_tables import OPENAI_RULES, is_error, rate_state, read_openai_error
from agac.providers.provider import Provider
from agac.providers.structured import openai_format, shape_of


def _headers(provider: Provider) -> dict[str, str]:
    """The key as a bearer token."""
    return {"Authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}


def _messages(instruction: str | None, messages: Iterable[Message]) -> list[dict[str, str]]:
    """Messages on the wire, the first one, a system message, ending with `instruction`, where there is one."""
    wire = [{"role": m.role, "content": m.text} for m in messages]
    if instruction is None:
        return wire
    if wire and wire[0]["role"] == "system":
        wire[0]["content"] += "\n\n" + instruction
    else:
        wire.insert(0, {"role": "system", "content": instruction})
    return wire


def _said(parts: Any, kind: str) -> tuple[str, str | None]:
    """The text of a message's parts of type `kind`, and its refusal where there is one. Thinking belongs to neither."""
    texts: list[str] = []
    refusal: str | None = None
    for part in objects(parts):
        if part.get("type") == kind:
            texts.append(text(part, "text"))
        elif part.get("type") == "refusal":
            refusal = refusal or text(part, "refusal") or None
    return "".join(texts), refusal


# Chat completions. Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do differently, read
# November 2026.

_CHAT_PARAMS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "seed", "service_tier"),
    *("top_k", "min_p", "repetition_penalty"),
)

_FINISH = {
    **dict.fromkeys(("stop", "eos", "end_turn", "stop_sequence"), Finish.STOP),
    **dict.fromkeys(("length", "max_tokens", "model_length"), Finish.LENGTH),
    **dict.fromkeys(("content_filter", "safety", "recitation", "prohibited_content"), Finish.FILTER),
    "refusal": Finish.REFUSAL,
}
"""What servers call the end of an answer; names beyond OpenAI's five are look-alikes'. Anything else is OTHER."""


def _build_chat(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /chat/completions."""
    shape, params = shape_of(request.schema, provider, openai_format), request.params
    wire: dict[str, JSONValue] = {"model": model, "messages": _messages(shape.instruction, request.messages)}
    wire |= set_params(params, _CHAT_PARAMS, provider.renames)
    if params.max_tokens is not None:
        wire[provider.max_tokens_field] = params.max_tokens
    if params.reasoning is not None:  # an effort, or the model's switch turned on or off
        switch = provider.switch_of(model)
        if switch is not None and params.reasoning in ("on", "off"):
            wire |= (switch.on if params.reasoning == "on" else switch.off) or {}
        else:
            wire[provider.renames.get("reasoning", "reasoning_effort")] = params.reasoning
    if shape.response_format is not None:
        wire["response_format"] = shape.response_format
    return wire


def _read_chat(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """A chat completion."""
    choices = mapping(data).get("choices")
    if not isinstance(choices, list):
        return unreadable(provider, status, "a body that is no chat completion")
    choice = mapping(choices[0]) if choices else {}
    # thinking (`reasoning_content`, parts of type thinking) belongs to neither the answer nor the refusal
    message = mapping(choice.get("message"))
    content = message.get("content")
    answer, refusal = (content, None) if isinstance(content, str) else _said(content, "text")
    refusal = text(message, "refusal") or refusal
    finish = _FINISH.get(text(choice, "finish_reason").lower(), Finish.OTHER)
    usage = _chat_usage(data.get("usage"))
    return reply_of(data, [answer], finish, usage=usage, refusal=refusal, provider=provider, model=model)


def _chat_usage(usage: Any) -> Usage:
    usage = mapping(usage)
    details = ("prompt_tokens_details", "cached_tokens"), ("completion_tokens_details", "reasoning_tokens")
    found = usage_of(usage, "prompt_tokens", "completion_tokens", *details)
    if found.cached_tokens is None:  # DeepSeek's name for it
        found = replace(found, cached_tokens=count(usage, "prompt_cache_hit_tokens"))
    given, made, thought = found.input_tokens, found.output_tokens, found.reasoning_tokens
    if thought and given is not None and made is not None and usage.get("total_tokens") == given + made + thought:
        return replace(found, output_tokens=made + thought)  # xAI counts thinking beside the completion, not within it
    return found


# Facts: platform.openai.com/docs/api-reference/chat-streaming, and what look-alikes do differently, read November 2026.

_KEPT = ("id", "created", "model", "system_fingerprint", "service_tier", "usage")


class ChatAssembly(Assembly):
    """A completion. It ends with `[DONE]`; a server that leaves this out must have said why the model stopped.

    The first choice counts, as it does where nothing is streamed.
    """

    def __init__(self) -> None:
        self._frame: dict[str, JSONValue] = {}
        self._pieces: dict[str, list[str]] = {"content": [], "refusal": []}
        self._finish: JSONValue = None

    def take(self, event: Any) -> None:
        """One chunk; `None` stands for `[DONE]`."""
        if self.done:
            return
        if event is None:
            self.done = True
        elif is_error(event):
            self.done = True
            self._frame = {"error": event["error"]} if isinstance(event, dict) and event.get("error") else event
        elif isinstance(event, dict):
            self._frame.update((name, event[name]) for name in _KEPT if event.get(name) is not None)
            for choice in objects(event.get("choices")):
                if choice.get("index") in (0, None):
                    self._choice(choice)

    def finish(self) -> bool:
        """Whether the answer is whole: its end was said."""
        return self.done or self._finish is not None

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The completion, or the error that came in its place."""
        if is_error(self._frame):
            return 200, NO_HEADERS, self._frame
        content, refusal = map("".join, self._pieces.values())
        message = {
            "role": "assistant",
            "content": content if content or not refusal else None,
            "refusal": refusal or None,
        }
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return 200, NO_HEADERS, {**self._frame, "object": "chat.completion", "choices": [choice]}

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        for name, pieces in self._pieces.items():
            if piece := text(delta, name):
                pieces.append(piece)
                self.size += len(piece)
                self.token(piece, answer=True)
        if any(text(delta, name) for name in ("reasoning_content", "reasoning")):  # as look-alikes call it
            self.token("", answer=False)
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]


# The Responses API. Facts: developers.openai.com/api/reference/responses and the types of the openai SDK 3.52, read
# November 2026.

_RESPONSES_REFUSED: Mapping[str, str] = dict.fromkeys(
    ("stop", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"),
    "the Responses API has no such parameter; leave it out, or ask through chat completions",
)
"""Absent from the API's reference: OpenAI answers them with 400, `unknown_parameter`."""

_RESPONSES_PARAMS = ("temperature", "top_p", "max_tokens", "service_tier")

_INCOMPLETE = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.FILTER}
"""Why a response ended early; `steered` and `max_messages` cannot happen here, and are OTHER like all that is new."""


def _build_response(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /responses. `store` is false: nothing is kept. The first system message is `instructions`.

    But where a schema travels as text it stays an item: JSON mode is refused unless `input` itself speaks of JSON
    (instructions do not count everywhere; github.com/miracodeai/mira/pull/267, August 2026).
    """
    shape, params = shape_of(request.schema, provider, openai_format), request.params
    wire: dict[str, JSONValue] = {"model": model}
    items = _messages(shape.instruction, request.messages)
    separate = shape.instruction is None and len(items) > 1 and items[0]["role"] == "system"
    if separate and (instructions := items.pop(0)["content"]):
        wire["instructions"] = instructions
    asks_again = any(item["role"] == "assistant" for item in items)  # answers given back need their type
    wire["input"] = [{"type": "message", **item} for item in items] if asks_again else items
    wire |= set_params(params, _RESPONSES_PARAMS, {"max_tokens": "max_output_tokens", **provider.renames})
    if params.reasoning is not None:
        wire["reasoning"] = {"effort": params.reasoning}
    written: dict[str, JSONValue] = {} if params.verbosity is None else {"verbosity": params.verbosity}
    if (form := shape.response_format) is not None:
        # what chat completions nest under `json_schema` is next to the type here
        described = form.get("json_schema")
        written["format"] = {"type": form["type"], **described} if isinstance(described, dict) else dict(form)
    if written:
        wire["text"] = written
    wire["store"] = False
    return wire


def _read_response(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """A response.

    Commentary on the way to the answer (`phase`) and items that say nothing are no answers; nor is reasoning. The parts
    of an item belong together: it is one message. One that was cut counts where no other is complete.
    """
    output = mapping(data).get("output")
    if not isinstance(output, list):
        return unreadable(provider, status, "a body that is no response")
    stage = data.get("status") or "completed"  # look-alikes leave it out
    if stage not in ("completed", "incomplete"):
        return unreadable(provider, status, f"a response that is {str(stage)[:40]}")
    texts: list[str] = []
    cut: list[str] = []
    refusal: str | None = None
    for item in objects(output):
        if item.get("type") != "message" or item.get("phase") == "commentary":
            continue
        message, refused_with = _said(item.get("content"), "output_text")
        refusal = refusal or refused_with
        if message.strip():
            (texts if item.get("status") in (None, "completed") else cut).append(message)
    finish = Finish.LENGTH if cut and not texts else Finish.STOP
    if stage == "incomplete":
        finish = _INCOMPLETE.get(text(data.get("incomplete_details"), "reason"), Finish.OTHER)
    details = ("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")
    usage = usage_of(data.get("usage"), "input_tokens", "output_tokens", *details)
    return reply_of(data, texts or cut[:1], finish, usage=usage, refusal=refusal, provider=provider, model=model)


# Facts: the openai SDK 3.52's `ResponseStreamEvent` and `ResponsesServerEvent`, read November 2026.

_ANSWER = frozenset(("response.output_text.delta", "response.refusal.delta"))
_THOUGHT = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))
_LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))


class ResponseAssembly(Assembly):
    """A response: its last event has it whole. Some servers leave `output` empty there; items' own events fill it."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._status = 200
        self._headers = NO_HEADERS
        self._body: JSONValue = None

    def take(self, event: Any) -> None:
        """One event."""
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        if not isinstance(kind, str):
            if event.get("error"):  # as a gateway says it
                self._failed(event)
        elif kind in _ANSWER or kind in _THOUGHT:
            if event.get("delta"):
                self.token(text(event, "delta"), answer=kind in _ANSWER)
        elif kind == "response.output_item.done":
            self._items.append(event.get("item"))
            self.size += len(repr(event))
        elif kind in _LAST:
            self._ended(event.get("response"))
        elif kind == "error":
            self._failed(event)

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The response, or the error that came in its place."""
        return self._status, self._headers, self._body

    def _ended(self, response: Any) -> None:
        self.done = True
        if isinstance(response, dict) and not response.get("output") and self._items:
            response = {**response, "output": self._items}
        self._body = response

    def _failed(self, event: dict[str, Any]) -> None:
        """An `error` event: flat over SSE; with `error`, `status` and the headers within over a WebSocket."""
        self.done = True
        error = event.get("error")
        if not isinstance(error, dict):
            error = {name: event.get(name) for name in ("code", "message", "param")}
        self._body = {"error": error}
        status, said = event.get("status"), error.get("headers")
        if type(status) is int and 400 <= status < 600:
            self._status = status
        self._headers = {str(name).lower(): value for name, value in mapping(said).items() if isinstance(value, str)}


CHAT = Dialect(
    path="/chat/completions",
    # what else a look-alike takes is in its row; OpenAI takes all of it
    refused={"verbosity": "only the Responses API is asked for it here; write responses/…, or leave it out"},
    headers=_headers,
    build=_build_chat,
    shaping=openai_format,
    read=_read_chat,
    read_error=read_openai_error,
    rules=OPENAI_RULES,
    rates=rate_state,
    assembly=ChatAssembly,
    asks_usage=b'"stream_options":{"include_usage":true},',
)

RESPONSES = replace(
    CHAT, path="/responses", refused=_RESPONSES_REFUSED, build=_build_response, read=_read_response,
    assembly=ResponseAssembly, asks_usage=b"", socket_asks=b'"type":"response.create",',
)  # fmt: skip
