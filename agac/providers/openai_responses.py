"""OpenAI's Responses API, as OpenAI and compatible servers have it: requests, answers, and the
streams put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from agac.core.types import (
    AssistantMessage,
    Fault,
    Finish,
    JSONValue,
    Message,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    Usage,
)
from agac.providers import dialect
from agac.providers.bodies import count, mapping, objects, text
from agac.providers.citations import RESPONSE_SOURCES, sources_of
from agac.providers.endings import RESPONSE_ENDINGS, AnswerEnd, ending
from agac.providers.openai import (
    CHAT,
    add_tools,
    flat_function,
    mark_prefix,
    result_text,
    text_and_refusal,
    wire_messages,
)
from agac.providers.provider import Provider
from agac.providers.structured import openai_format, shape_of

# The Responses API. Facts: developers.openai.com/api/reference/responses and the types of the
# openai SDK 3.52, read November 2026.

_NOT_IN_RESPONSES = (
    *("stop", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty"),
)
"""Absent from the API's reference: OpenAI answers them with 400, `unknown_parameter`."""

_RESPONSES_REFUSED: Mapping[str, str] = dict.fromkeys(
    _NOT_IN_RESPONSES,
    "the Responses API has no such parameter; leave it out, or ask through chat completions",
)

_RESPONSES_PARAMS = ("temperature", "top_p", "max_tokens", "service_tier")


def _build_response(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """Returns the body of POST /responses. `store` is false: nothing is kept."""
    shape = shape_of(request.schema, provider, openai_format, in_words=request.schema_in_words)
    params = request.params
    wire: dict[str, JSONValue] = {"model": model}
    messages = wire_messages(shape.instruction, request.messages, _items_of_turn, provider)
    wire |= mark_prefix(messages, request, model, provider, "input_text")
    if shape.instruction is None:
        instructions = _take_instructions(messages)
        if instructions:
            wire["instructions"] = instructions
    wire["input"] = _typed(messages, has_tools=bool(request.tools))
    add_tools(wire, request, provider, flat_function)
    if provider.source_list is not None and params.web_search is not None:
        wire["include"] = [provider.source_list]
    renames = {"max_tokens": "max_output_tokens", **provider.renames}
    wire |= dialect.set_params(params, _RESPONSES_PARAMS, renames)
    if params.reasoning is not None:
        wire["reasoning"] = {"effort": params.reasoning}
    written = _text_options(params.verbosity, shape.response_format)
    if written:
        wire["text"] = written
    wire["store"] = False
    return wire


def _take_instructions(messages: list[dict[str, Any]]) -> str:
    """Removes the first system message and returns its text, which is sent as `instructions`;
    empty where there is none to be sent so.

    Where a schema travels as text it stays an item, and this is not called: JSON mode is refused
    unless `input` itself speaks of JSON (instructions do not count everywhere;
    github.com/miracodeai/mira/pull/267, August 2026)."""
    if len(messages) < 2 or messages[0].get("role") != "system":
        return ""
    if not isinstance(messages[0]["content"], str):  # it has the mark of a prefix
        return ""
    instructions: str = messages.pop(0)["content"]
    return instructions


def _typed(messages: list[dict[str, Any]], *, has_tools: bool) -> list[dict[str, Any]]:
    """Returns messages with their type where it is needed: answers given back need it, and where
    tools are offered all turns of a conversation begin with the same bytes."""
    if has_tools or any(message.get("role") not in ("system", "user") for message in messages):
        return [{"type": "message", **message} for message in messages]
    return messages


def _text_options(
    verbosity: str | None, response_format: dict[str, JSONValue] | None
) -> dict[str, JSONValue]:
    """Returns what is said of the text of the answer: how long it should be, and its format."""
    options: dict[str, JSONValue] = {}
    if verbosity is not None:
        options["verbosity"] = verbosity
    if response_format is not None:
        # what chat completions nest under `json_schema` is next to the type here
        described = response_format.get("json_schema")
        if isinstance(described, dict):
            options["format"] = {"type": response_format["type"], **described}
        else:
            options["format"] = dict(response_format)
    return options


def _items_of_turn(message: Message) -> list[dict[str, Any]]:
    """Returns calls of tools, or results, as items."""
    if isinstance(message, ToolMessage):
        return [
            {
                "type": "function_call_output",
                "call_id": result.call_id,
                "output": result_text(result),
            }
            for result in message.results
        ]
    if not isinstance(message, AssistantMessage):
        return [{"role": message.role, "content": message.text}]
    came = objects(mapping(message.wire).get("output"))
    if came:
        return _items_sent_back(came, message.calls)
    items: list[dict[str, Any]] = []
    if message.text or not message.calls:
        items.append({"role": "assistant", "content": message.text})
    return items + [_call_item({}, call) for call in message.calls]


def _items_sent_back(came: list[dict[str, Any]], calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    """Returns the items that a model said, its calls in a form that every server takes. Reasoning
    goes back with its content, as nothing is stored there."""
    requested = [item for item in came if item.get("type") == "function_call"]
    sent = {id(item): _call_item(item, call) for item, call in zip(requested, calls, strict=False)}
    return [sent.get(id(item), item) for item in came if _can_be_sent_back(item)]


def _can_be_sent_back(item: Mapping[str, Any]) -> bool:
    """False for reasoning without its content."""
    if item.get("type") != "reasoning":
        return True
    return bool(item.get("encrypted_content") or item.get("content"))


def _call_item(came: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    """Returns a call as it is sent back, with what else came with it."""
    return {
        **came,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _read_response(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """Returns the reply of a response."""
    output = mapping(data).get("output")
    if not isinstance(output, list):
        return dialect.unreadable(provider, status, "a body that is no response")
    state = str(data.get("status") or "completed").lower()  # look-alikes leave it out
    if state not in ("completed", "incomplete"):
        return dialect.unreadable(provider, status, f"a response that is {state[:40]}")
    items = objects(output)
    answers = _answers_in(items)
    calls = dialect.calls_of(
        (text(item, "call_id"), text(item, "name"), item.get("arguments"))
        for item in items
        if item.get("type") == "function_call"
    )
    has_thinking = any(item.get("type") == "reasoning" for item in items)
    answered = dialect.Answered(
        texts=answers.texts,
        end=_end_of(data, state, answers),
        usage=_response_usage(data),
        refusal=answers.refusal,
        calls=calls,
        wire={"output": output} if calls else None,
        wrote_more=bool(answers.refusal) or has_thinking,
        sources=sources_of(data, RESPONSE_SOURCES, "".join(answers.whole)),
    )
    return dialect.reply_of(data, answered, provider, model)


class _Answers(NamedTuple):
    """The answers among the items of a response."""

    whole: list[str]
    """The texts of messages that are complete."""
    cut: list[str]
    """The texts of messages that are not."""
    refusal: str | None
    """Why the model refuses, in its own words."""

    @property
    def texts(self) -> list[str]:
        """The complete answers; the first that was cut where none is complete."""
        return self.whole or self.cut[:1]


def _answers_in(items: list[dict[str, Any]]) -> _Answers:
    """Returns the answers among items. Commentary on the way to the answer (`phase`) and items
    that say nothing are no answers; nor is reasoning. The parts of an item are one message."""
    whole: list[str] = []
    cut: list[str] = []
    refusal: str | None = None
    for item in items:
        if item.get("type") != "message" or item.get("phase") == "commentary":
            continue
        message, refusal_part = text_and_refusal(item.get("content"), "output_text")
        refusal = refusal or refusal_part
        if not message.strip():
            continue
        if item.get("status") in (None, "completed"):
            whole.append(message)
        else:
            cut.append(message)
    return _Answers(whole, cut, refusal)


def _end_of(data: Mapping[str, Any], state: str, answers: _Answers) -> AnswerEnd:
    """Returns why a response ended: by its own word, or because its only message was cut."""
    if state == "incomplete":
        reason = mapping(data.get("incomplete_details")).get("reason")
        return ending(reason or state, RESPONSE_ENDINGS)
    if answers.cut and not answers.whole:
        return AnswerEnd(Finish.LENGTH)
    return AnswerEnd(Finish.STOP)


def _response_usage(data: dict[str, Any]) -> Usage:
    """Returns the tokens, and the uses of the provider's own tools as it counts them (xAI:
    docs.x.ai/developers/tools), else the searches among its items."""
    counts = mapping(data.get("usage"))
    usage = dialect.usage_of(counts)
    uses = dialect.uses_of(counts.get("server_side_tool_usage_details"), "_calls")
    if uses:
        return usage._replace(server_tools=uses)
    searches = count(mapping(data.get("tool_usage")).get("web_search"), "num_requests")
    if searches is None:
        searches = _searches_in(objects(data.get("output")))
    if searches:
        return usage._replace(server_tools={"web_search": searches})
    return usage


def _searches_in(items: list[dict[str, Any]]) -> int:
    """Counts the searches among items: opening a page that was found costs nothing."""
    actions = [item.get("action") for item in items if item.get("type") == "web_search_call"]
    return sum(text(action, "type") in ("", "search") for action in actions)


# Facts: the openai SDK 3.52's `ResponseStreamEvent` and `ResponsesServerEvent`, read November 2026.

_SPOKEN = frozenset(("response.output_text.delta", "response.refusal.delta"))
_ANSWER = _SPOKEN | {"response.function_call_arguments.delta"}
_THOUGHT = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))
_LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))


class ResponseAssembly(dialect.Assembly):
    """A response: its last event has it whole. Some servers leave `output` empty there; items' own
    events fill it."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._annotations: list[dict[str, Any]] = []
        self._status = 200
        self._headers = dialect.NO_HEADERS
        self._body: JSONValue = None

    def take(self, event: Any) -> None:
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        if kind == "error":
            self._failed(event)
        elif not isinstance(kind, str):
            if event.get("error"):  # as a gateway says it
                self._failed(event)
        elif kind in _ANSWER or kind in _THOUGHT:
            self._take_delta(kind, event)
        elif kind == "response.output_item.done":
            self._items.append(event.get("item"))
            self.size += len(repr(event))
        elif kind == "response.output_text.annotation.added":
            self._annotations.append(event)
            self.size += len(repr(event))
        elif kind in _LAST:
            self._end(event.get("response"))

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        return self._status, self._headers, self._body

    def _take_delta(self, kind: str, event: dict[str, Any]) -> None:
        """Takes a piece of the answer, or of thinking."""
        if event.get("delta"):
            spoken = text(event, "delta") if kind in _SPOKEN else ""
            self.token(spoken, answer=kind in _ANSWER)

    def _end(self, response: Any) -> None:
        """Takes the last event's response."""
        self.done = True
        if isinstance(response, dict) and not response.get("output") and self._items:
            response = {**response, "output": self._items}
        self._body = _annotated(response, self._annotations)

    def _failed(self, event: dict[str, Any]) -> None:
        """Takes an `error` event: flat over SSE; with `error`, `status` and the headers within
        over a WebSocket."""
        self.done = True
        error = event.get("error")
        if not isinstance(error, dict):
            error = {name: event.get(name) for name in ("code", "message", "param")}
        self._body = {"error": error}
        status = event.get("status")
        if type(status) is int and 400 <= status < 600:
            self._status = status
        self._headers = {
            str(name).lower(): value
            for name, value in mapping(error.get("headers")).items()
            if isinstance(value, str)
        }


def _annotated(response: Any, events: Iterable[dict[str, Any]]) -> Any:
    """Returns a response in which parts that came without annotations have those of the stream's
    events."""
    items = objects(mapping(response).get("output"))
    bare: dict[int, tuple[dict[str, Any], list[Any]]] = {}
    for event in events:
        part = _part_of(event, items)
        if part is not None and not part.get("annotations"):
            bare.setdefault(id(part), (part, []))[1].append(event.get("annotation"))
    for part, listed in bare.values():
        part["annotations"] = listed
    return response


def _part_of(event: Mapping[str, Any], items: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the part of the output that an annotation is about; None: there is no such part."""
    item_index = count(event, "output_index")
    part_index = count(event, "content_index")
    if item_index is None or item_index >= len(items):
        return None
    content = objects(items[item_index].get("content"))
    if part_index is None or part_index >= len(content):
        return None
    return content[part_index]


RESPONSES = replace(
    CHAT,
    path="/responses",
    refused=_RESPONSES_REFUSED,
    build=_build_response,
    read=_read_response,
    assembly=ResponseAssembly,
    asks_usage=b"",
    socket_asks=b'"type":"response.create",',
)
