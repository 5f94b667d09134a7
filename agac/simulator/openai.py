"""OpenAI's Responses API, read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agac.simulator import chat, replies
from agac.simulator.api_errors import ApiError, missing
from agac.simulator.kinds import (
    COUNT,
    OBJECT,
    TEXT,
    TRUTH,
    JsonObject,
    ValueKind,
    anything,
    as_object,
    between,
    only,
)
from agac.simulator.model_calls import (
    AnswerForm,
    Conversation,
    ModelCall,
    model_call,
    plain_json,
    signature,
)
from agac.simulator.replies import AnswerMessage, Event, ModelAnswer
from agac.simulator.tool_calls import AskedTool, HostedUse

RESPONSES_PARAMETERS: dict[str, ValueKind] = {
    "background": only(False),
    "top_logprobs": only(0),
    "previous_response_id": only(),
    "conversation": only(),
    "prompt": only(),
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "max_output_tokens": COUNT,
    "stream": TRUTH,
    "store": TRUTH,
    "parallel_tool_calls": TRUTH,
    "stream_options": OBJECT,
    "reasoning": OBJECT,
    "text": OBJECT,
    "metadata": OBJECT,
    "instructions": TEXT,
    "service_tier": TEXT,
    **anything(
        "model input user safety_identifier prompt_cache_key prompt_cache_retention include "
        "truncation tool_choice tools max_tool_calls"
    ),
}
HOSTED_ITEMS = ("web_search_call", "custom_tool_call")
SEARCH_STEPS = ("in_progress", "searching", "completed")
THOUGHT_OUT = "fc_simr"
"""The beginning of the id of a call that must be sent back with the thought before it."""

PARTS = ("input_text", "output_text", "text")
"""Kinds of content that are text: nothing else is simulated."""


def read_response(data: JsonObject, seed: int) -> ModelCall:
    """Reads a request for a response; raises ApiError as OpenAI would answer it."""
    for name in sorted(data.keys() - RESPONSES_PARAMETERS.keys()):
        message = f"Unknown parameter: '{name}'."
        raise ApiError(400, message, code="unknown_parameter", param=name)
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise missing("model")
    chat.check_parameters(data, RESPONSES_PARAMETERS, code="invalid_type")
    talk = read_input(data)
    data.pop("stream_options", None)
    form = read_text_format(data, talk)
    offer = chat.read_tools(data)
    extras = {key: data[key] for key in data if key not in ("model", "input", "stream")}
    return replace(
        model_call(data, seed, talk),
        form=form,
        offer=offer,
        max_tokens=data.get("max_output_tokens"),
        extras=extras,
    )


def read_input(data: JsonObject) -> Conversation:
    talk = Conversation()
    if data.get("instructions"):
        talk.say("system", data["instructions"])
    if isinstance(data.get("input"), str):
        talk.say("user", data["input"])
    else:
        items = chat.read_list(data, "input")
        ItemReader(talk, stored=data.get("store") is not False).read(items)
    return talk


def read_text_format(data: JsonObject, talk: Conversation) -> AnswerForm:
    form = (data.get("text") or {}).get("format")
    read = chat.read_format(form, "text.format", talk.messages, needed=("name", "schema"))
    messages = talk.messages[1 if data.get("instructions") else 0 :]
    says_json = any("json" in text.lower() for _, text in messages)
    if form and form["type"] == "json_object" and not says_json:
        message = (
            "Response input messages must contain the word 'json' in some form to use "
            "'text.format' of type 'json_object'."
        )
        raise ApiError(400, message, param="input")
    return read


class ItemReader:
    """Reads messages, calls, results, and what models think, into a conversation."""

    def __init__(self, talk: Conversation, *, stored: bool) -> None:
        self.talk = talk
        self.stored = stored
        """true if OpenAI keeps what it thought, and knows it by its id"""
        self.calls: list[AskedTool] = []
        """those that follow each other: they are one turn"""
        self.thoughts: set[str] = set()
        """ids of what the model thought, without their prefix"""

    def read(self, items: Sequence[Any]) -> None:
        for index, item in enumerate(items):
            fields = as_object(item)
            kind = fields.get("type") or "message"
            param = f"input[{index}]"
            if kind == "function_call":
                self.read_call(fields, param)
                continue
            self.end_turn()
            if kind == "function_call_output":
                text = chat.read_text(fields.get("output"), PARTS, f"{param}.output")
                self.talk.result(fields.get("call_id"), text, param)
            elif kind == "reasoning":
                self.read_thought(fields, param)
            elif kind not in HOSTED_ITEMS:
                role = chat.read_role(item if kind == "message" else None, param)
                text = chat.read_text(fields.get("content"), PARTS, f"{param}.content")
                self.talk.say(role, text)
        self.end_turn()
        self.talk.check("input")

    def end_turn(self) -> None:
        """Ends a turn of calls, if one has begun."""
        if self.calls:
            self.talk.say("assistant", "", self.calls)
            self.calls = []

    def read_call(self, item: JsonObject, param: str) -> None:
        item_id = str(item.get("id"))
        thought = item_id.removeprefix(THOUGHT_OUT)[:32]
        if item_id.startswith(THOUGHT_OUT) and thought not in self.thoughts:
            message = f"Item '{item_id}' was provided without its 'reasoning' item."
            raise ApiError(400, message, param=param)
        self.calls.append(chat.read_call(item, "call_id", "", param))

    def read_thought(self, item: JsonObject, param: str) -> None:
        item_id = str(item.get("id"))
        encrypted = item.get("encrypted_content")
        if encrypted is None and not self.stored:
            message = (
                f"Item with id '{item_id}' not found: `store` is false, "
                "and it has no `encrypted_content`."
            )
            raise ApiError(404, message)
        if item.get("id") is not None and encrypted not in (None, signature(item_id)):
            message = f"The encrypted content for item {item_id} could not be verified."
            raise ApiError(400, message, code="invalid_encrypted_content")
        self.thoughts.add(item_id.removeprefix("rs_"))


def read_socket_message(data: JsonObject, seed: int) -> ModelCall:
    """Reads a message of a WebSocket: a `response.create`, always answered with events."""
    kind = data.pop("type", None)
    if kind != "response.create":
        problem = f"Invalid event type: {kind!r}. Expected 'response.create'."
        raise ApiError(400, problem, param="type")
    return replace(read_response(data, seed), stream=True)


def response(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    is_finished = answer.finish in ("stop", "tool_calls")
    if answer.has_word:
        is_finished = answer.word is None
    usual = "content_filter" if answer.finish == "content_filter" else "max_output_tokens"
    details = None if is_finished else {"reason": answer.ended_with(usual)}
    return response_frame(call, "completed" if is_finished else "incomplete") | {
        "completed_at": replies.CREATED if is_finished else None,
        "incomplete_details": details,
        "output": response_items(call, answer),
        "usage": answer.usage(response_usage(call, answer)),
    }


def response_usage(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    usage: JsonObject = {
        "input_tokens": call.prompt_tokens,
        "input_tokens_details": {"cached_tokens": call.cache.read, "cache_write_tokens": 0},
        "output_tokens": answer.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": call.prompt_tokens + answer.tokens,
    }
    if any(tool.kind == "x_search" for tool in call.offer.tools):
        # this is xAI's, which counts the uses of its tools
        uses = Counter(f"{use.kind}_calls" for use in answer.hosted)
        usage["num_server_side_tools_used"] = uses.total()
        usage["server_side_tool_usage_details"] = dict(uses)
    return usage


def response_items(call: ModelCall, answer: ModelAnswer) -> list[JsonObject]:
    """Returns what a response holds: thoughts, uses of hosted tools, messages, calls."""
    digest = call.digest.hex()
    items: list[JsonObject] = []
    effort = (call.extras.get("reasoning") or {}).get("effort")
    is_thinking = bool(call.offer.tools) and effort not in (None, "none")
    if is_thinking:
        items.append(
            {
                "id": f"rs_{digest}",
                "type": "reasoning",
                "summary": [],
                "encrypted_content": signature(f"rs_{digest}"),
            }
        )
    for index, use in enumerate(answer.hosted):
        items.append(hosted_item(call, use, f"ws_sim{digest}{index}"))
    last = len(answer.messages) - 1
    for index, message in enumerate(answer.messages):
        citations = chat.url_citations(answer, message.text) if index == last else []
        items.append(message_item(message, citations, f"msg_sim{digest}{index}"))
    prefix = THOUGHT_OUT if is_thinking else "fc_sim"
    for index, asked in enumerate(answer.calls):
        items.append(
            {
                "id": f"{prefix}{digest}{index}",
                "type": "function_call",
                "status": "completed",
                "call_id": asked.id,
                "name": asked.name,
                "arguments": asked.arguments,
            }
        )
    return items


def message_item(message: AnswerMessage, citations: list[JsonObject], item_id: str) -> JsonObject:
    part: JsonObject = {"type": "refusal", "refusal": message.refusal}
    if message.refusal is None:
        part = {
            "type": "output_text",
            "text": message.text,
            "annotations": [{"type": "url_citation", **citation} for citation in citations],
            "logprobs": [],
        }
    return {
        "id": item_id,
        "type": "message",
        "status": "incomplete" if message.cut else "completed",
        "role": "assistant",
        "content": [part],
    }


def hosted_item(call: ModelCall, use: HostedUse, item_id: str) -> JsonObject:
    """Returns the use of one of the provider's own tools."""
    about: JsonObject = {"id": item_id, "status": "completed"}
    if use.kind == "x_search":
        return about | {
            "type": "custom_tool_call",
            "call_id": item_id,
            "name": "x_keyword_search",
            "input": plain_json({"query": use.query}),
        }
    action: JsonObject = {"type": "search", "query": use.query}
    if "web_search_call.action.sources" in (call.extras.get("include") or ()):
        action["sources"] = [{"type": "url", "url": page.url} for page in use.pages]
    return about | {"type": "web_search_call", "action": action}


def response_frame(call: ModelCall, status: str) -> JsonObject:
    """Returns what every response object has.

    `system_fingerprint` is not OpenAI's: it marks the simulator, as in chat.
    """
    given = call.extras

    def or_default(name: str, default: Any) -> Any:
        return default if given.get(name) is None else given[name]

    tier = given.get("service_tier") or "default"
    return {
        "id": f"resp_sim{call.digest.hex()}",
        "object": "response",
        "created_at": replies.CREATED,
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
        "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "default" if tier == "auto" else tier,
        "store": given.get("store") is not False,
        "temperature": or_default("temperature", 1.0),
        "text": {"format": (given.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": given.get("tools") or [],
        "top_logprobs": 0,
        "top_p": or_default("top_p", 1.0),
        "truncation": "disabled",
        "usage": None,
        "user": given.get("user"),
        "metadata": given.get("metadata") or {},
        "system_fingerprint": replies.FINGERPRINT,
    }


def response_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """Gives all events of an answer, its texts in pieces; each event has its number."""
    for number, event in enumerate(unnumbered_events(call, answer)):
        yield {**event, "sequence_number": number}


def unnumbered_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    begun = response_frame(call, "in_progress")
    whole = response(call, answer)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, done in enumerate(whole["output"]):
        steps = list(item_steps(done, {"item_id": done["id"], "output_index": index}))
        item = begun_item(done, has_steps=bool(steps))
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        yield from steps
        yield {"type": "response.output_item.done", "output_index": index, "item": done}
    yield {"type": f"response.{whole['status']}", "response": whole}


def begun_item(done: JsonObject, *, has_steps: bool) -> JsonObject:
    """Returns an item as it is before its steps."""
    begun = dict(done)
    if "status" in done:
        begun["status"] = "in_progress"
    for name in ("content", "arguments"):
        if has_steps and name in done:
            begun[name] = type(done[name])()
    return begun


def item_steps(item: JsonObject, where: JsonObject) -> Iterator[Event]:
    """Gives the events of an item between its beginning and its end."""
    if item["type"] == "function_call":
        name = "response.function_call_arguments"
        for piece in replies.pieces(item["arguments"]):
            yield {"type": f"{name}.delta", **where, "delta": piece}
        whole = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": f"{name}.done", **where, **whole}
    elif item["type"] == "web_search_call":
        for step in SEARCH_STEPS:
            yield {"type": f"response.web_search_call.{step}", **where}
    elif item["type"] == "message":
        yield from part_steps(item["content"][0], {**where, "content_index": 0})


def part_steps(part: JsonObject, where: JsonObject) -> Iterator[Event]:
    """Gives the events of a text or of a refusal."""
    kind = f"response.{part['type']}"
    if part["type"] == "refusal":
        name = "refusal"
        logprobs: Event = {}
        empty = part | {"refusal": ""}
    else:
        name = "text"
        logprobs = {"logprobs": []}
        empty = part | {"text": "", "annotations": []}
    yield {"type": "response.content_part.added", **where, "part": empty}
    for piece in replies.pieces(part[name]):
        yield {"type": f"{kind}.delta", **where, "delta": piece, **logprobs}
    yield {"type": f"{kind}.done", **where, name: part[name], **logprobs}
    for number, annotation in enumerate(part.get("annotations", ())):
        added = {"annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.annotation.added", **where, **added}
    yield {"type": "response.content_part.done", **where, "part": part}


def failed_response(call: ModelCall, error: ApiError) -> JsonObject:
    about = {"code": error.code or "server_error", "message": error.message}
    return response_frame(call, "failed") | {"error": about}


def stream_error(error: ApiError) -> Event:
    return {"type": "error", "code": error.code, "message": error.message, "param": None}


def socket_error(error: ApiError) -> Event:
    """Returns an error as a WebSocket sends it, which has no status line and no headers."""
    about = {
        "type": error.kind,
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "headers": error.headers,
    }
    return {"type": "error", "status": error.status, "error": about}


def socket_stream_error(error: ApiError) -> Event:
    """Returns an error that came while the model was at work."""
    return {"type": "error", "error": socket_error(error)["error"]}


RESPONSES = replace(
    chat.CHAT,
    read_data=read_response,
    reply=response,
    events=response_events,
    failed=failed_response,
    stream_error=stream_error,
)
SOCKET_RESPONSES = replace(
    RESPONSES, read_data=read_socket_message, error=socket_error, stream_error=socket_stream_error
)
