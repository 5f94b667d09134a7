"""OpenAI's Responses API: `build`, `parse`, and the stream put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, Finish, JSONValue, Message, Reply, Request, Usage
from agac.providers.error_tables import rate_state
from agac.providers.openai_chat import body_of, headers, messages_with, said, told
from agac.providers.provider import Provider
from agac.providers.wire import NO_HEADERS, Assembly, Shape, count, reply_of, shape_of, unreadable

# Facts: developers.openai.com/api/reference/responses and the types of the openai SDK 3.52, read November 2026.

__all__ = ["build", "headers", "parse", "path", "rates", "refused", "websocket"]

path = "/responses"

websocket = True

_NO_WORD = "the Responses API has no such parameter; leave it out, or ask through chat completions"

refused: Mapping[str, str] = dict.fromkeys(
    ("stop", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"), _NO_WORD
)
"""Absent from the API's reference: OpenAI answers them with 400, `unknown_parameter`."""

rates = rate_state

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("max_tokens", "max_output_tokens"),
    ("service_tier", "service_tier"),
)

_INCOMPLETE = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.FILTER}
"""Why a response ended early; `steered` and `max_messages` cannot happen here, and are OTHER like all that is new."""


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /responses. Nothing is kept at the provider: `store` is false."""
    shape, params = shape_of(request.schema, provider), request.params
    instructions, items = _input(request.messages, shape)
    wire: dict[str, JSONValue] = {"model": model}
    if instructions:
        wire["instructions"] = instructions
    wire["input"] = items
    wire |= told(params, _PARAMS, provider)
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
    items = messages_with(shape.instruction, messages)
    if shape.instruction is None and len(items) > 1 and items[0]["role"] == "system":
        return items[0]["content"], items[1:]
    return "", items


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A response, or why there is none. One that failed is read as its error, whatever the status."""
    data = body_of(status, headers, body, provider=provider, model=model, redactor=redactor)
    if isinstance(data, Fault):
        return data
    output = data.get("output") if isinstance(data, dict) else None
    if not isinstance(output, list):
        return unreadable(provider, status, "a body that is no response")
    stage = data.get("status") or "completed"  # look-alikes leave it out
    if stage not in ("completed", "incomplete"):
        return unreadable(provider, status, f"a response that is {str(stage)[:40]}")
    texts, cut, refusal = _messages(output)
    finish = Finish.LENGTH if cut and not texts else Finish.STOP
    if stage == "incomplete":
        finish = _why_incomplete(data.get("incomplete_details"))
    usage = _usage(data.get("usage"))
    return reply_of(data, texts or cut[:1], finish, usage=usage, refusal=refusal, provider=provider, model=model)


def _why_incomplete(details: Any) -> Finish:
    reason = details.get("reason") if isinstance(details, dict) else None
    return _INCOMPLETE.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER


def _messages(output: list[Any]) -> tuple[list[str], list[str], str | None]:
    """The texts of complete message items, those of items that were cut, and the refusal where there is one.

    Commentary on the way to the answer (`phase`) and items that say nothing are no answers; nor is reasoning. The parts
    of an item belong together: it is one message.
    """
    texts: list[str] = []
    cut: list[str] = []
    refusal: str | None = None
    for item in output:
        if not isinstance(item, dict) or item.get("type") != "message" or item.get("phase") == "commentary":
            continue
        text, refused_with = said(item.get("content"), "output_text")
        refusal = refusal or refused_with
        if text.strip():
            (texts if item.get("status") in (None, "completed") else cut).append(text)
    return texts, cut, refusal


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        count(usage.get("input_tokens_details"), "cached_tokens"),
        count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


# Facts: the openai SDK 3.52's `ResponseStreamEvent` and `ResponsesServerEvent`, read November 2026.

_ANSWER = frozenset(("response.output_text.delta", "response.refusal.delta"))
_THOUGHT = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))
_LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))


class ResponseAssembly(Assembly):
    """A response: its last event carries it whole. Some servers leave `output` empty there; then the items' own events
    fill it."""

    __slots__ = ("_body", "_headers", "_items", "_status")

    def __init__(self) -> None:
        super().__init__()
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
        elif kind in _ANSWER:
            self.answering = self.answering or bool(event.get("delta"))
            self.begun = self.begun or self.answering
        elif kind in _THOUGHT:
            self.begun = self.begun or bool(event.get("delta"))
        elif kind == "response.output_item.done":
            self._items.append(event.get("item"))
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
        if isinstance(said, dict):
            self._headers = {str(name).lower(): value for name, value in said.items() if isinstance(value, str)}
