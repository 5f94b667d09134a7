"""Anthropic's Messages API: requests, answers, and the stream put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.types import (
    AssistantMessage,
    Fault,
    Finish,
    JSONValue,
    Message,
    Params,
    Reply,
    Request,
    SharedPrefix,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolResult,
    Usage,
)
from agac.providers.bodies import count, count_at, json_of, mapping, objects, text
from agac.providers.citations import MESSAGE_SOURCES, sources_of
from agac.providers.dialect import (
    NO_HEADERS,
    Answered,
    Assembly,
    Dialect,
    calls_of,
    reply_of,
    sendable,
    set_params,
    unreadable,
    uses_of,
)
from agac.providers.endings import MESSAGE_ENDINGS, ending, says_why
from agac.providers.error_bodies import read_anthropic_error
from agac.providers.error_tables import ANTHROPIC_RULES
from agac.providers.provider import Provider
from agac.providers.structured import anthropic_format, shape_of, tools_of
from agac.providers.waits import dated_rate_state

# Facts: platform.claude.com/docs/en/api/messages and the types of the anthropic SDK 2.12, read
# November 2026.

VERSION = "2023-06-01"
"""The API version. 2026-10-21 has no sampling parameters, also for models that take them; its
answers look the same."""

_NO_WORD = "Anthropic's API has no such parameter; leave it out"

_REFUSED: Mapping[str, str] = dict.fromkeys(
    ("seed", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty", "verbosity"),
    _NO_WORD,
)
"""Absent from the API's reference: Anthropic answers them with 400."""

_PARAMS = ("temperature", "top_p", "top_k", "stop", "service_tier")

_ADAPTIVE: Mapping[str, JSONValue] = {"thinking": {"type": "adaptive"}}


def _headers(provider: Provider) -> dict[str, str]:
    """Returns the key, and the version of the API, which goes with every request."""
    headers = {"x-api-key": provider.api_key} if provider.api_key else {}
    return {**headers, "anthropic-version": VERSION}


def _build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """Returns the body of POST /messages."""
    shape = shape_of(request.schema, provider, anthropic_format, in_words=request.schema_in_words)
    params = request.params
    wire: dict[str, JSONValue] = {"model": model, "max_tokens": _max_tokens(params, provider)}
    system = [message.text for message in request.messages if message.role == "system"]
    if shape.instruction:
        system.append(shape.instruction)
    system_text = "\n\n".join(system)
    if system_text:
        wire["system"] = system_text
    wire["messages"] = _messages(request, provider)
    wire |= _tools(request, provider)
    if request.prefix is not None and provider.cache == "anthropic":
        _mark(wire, request, request.prefix)
    wire |= set_params(params, _PARAMS, {"stop": "stop_sequences", **provider.renames})
    thinking = _thinking(params.reasoning, model, provider)
    wire |= thinking
    if shape.response_format is not None:
        output_config = mapping(thinking.get("output_config"))
        wire["output_config"] = {**output_config, "format": shape.response_format}
    return wire


def _max_tokens(params: Params, provider: Provider) -> int:
    """Returns how long a reply may be, which the API wants to be told: as long as is asked for,
    else the row's number, on top of which comes a number of tokens to think with."""
    if params.max_tokens is not None:
        return params.max_tokens
    if params.reasoning is not None and params.reasoning.isdigit():
        return provider.max_tokens + int(params.reasoning)
    return provider.max_tokens


def _messages(request: Request, provider: Provider) -> list[JSONValue]:
    """Returns the messages of a request but those of the system."""
    wire: list[JSONValue] = []
    for message in sendable(request.messages, provider.call_ids):
        if message.role == "system":
            continue
        if type(message) is Message:
            wire.append({"role": message.role, "content": message.text})
        else:
            wire.append(_turn(message))
    return wire


def _tools(request: Request, provider: Provider) -> dict[str, JSONValue]:
    """Returns the tools of a request, and how they may be used where that is not as usual."""
    tools = tools_of(request, provider, _tool)
    if not tools:
        return {}
    if request.tool_choice == "none":
        return {"tools": tools, "tool_choice": {"type": "none"}}
    if not request.parallel_tools:
        choice: JSONValue = {"type": "auto", "disable_parallel_tool_use": True}
        return {"tools": tools, "tool_choice": choice}
    return {"tools": tools}


def _mark(wire: dict[str, Any], request: Request, prefix: SharedPrefix) -> None:
    """Marks where the shared prefix ends and, in a conversation, its newest message: up to there
    it is kept."""
    kept: dict[str, JSONValue] = {"type": "ephemeral"}
    messages = wire["messages"]
    shared = sum(message.role != "system" for message in request.messages[: prefix.messages])
    if shared:
        messages[shared - 1] = _marked_message(messages[shared - 1], kept)
    elif "system" in wire:
        wire["system"] = _marked(wire["system"], kept)
    elif "tools" in wire:
        wire["tools"] = _marked(wire["tools"], kept)
    has_newer = len(messages) > shared and messages[-1]["role"] == "user"
    if request.tools and has_newer:
        messages[-1] = _marked_message(messages[-1], kept)


def _marked_message(message: dict[str, Any], mark: Mapping[str, JSONValue]) -> dict[str, Any]:
    """Returns a message with a mark at its end."""
    return {**message, "content": _marked(message["content"], mark)}


def _marked(content: Any, mark: Mapping[str, JSONValue]) -> list[dict[str, JSONValue]]:
    """Returns content as blocks, the last one with a mark."""
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    else:
        blocks = content
    return [*blocks[:-1], {**blocks[-1], "cache_control": mark}]


def _tool(tool: ToolDefinition, _provider: Provider) -> dict[str, JSONValue]:
    """Describes a tool."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _turn(message: Message) -> dict[str, JSONValue]:
    """Returns what a model said with its calls of tools, or the results of a turn, which belong
    into one message."""
    if isinstance(message, ToolMessage):
        return {"role": "user", "content": [_result(result) for result in message.results]}
    content: list[dict[str, Any]] = []
    if isinstance(message, AssistantMessage):
        content = [block for block in _blocks_of(message) if _is_taken(block)]
    return {"role": message.role, "content": content or message.text}


def _blocks_of(message: AssistantMessage) -> list[dict[str, Any]]:
    """Returns the blocks of what a model said, its calls in a form that is taken."""
    came = objects(mapping(message.wire).get("content"))
    if not came:
        calls = [_use({}, call) for call in message.calls]
        return [{"type": "text", "text": message.text}, *calls]
    uses = [block for block in came if block.get("type") == "tool_use"]
    pairs = zip(uses, message.calls, strict=False)
    sent = {id(block): _use(block, call) for block, call in pairs}
    return [sent.get(id(block), block) for block in came]


def _use(came: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    """Returns a call as it is sent back, with what else came with it. Its arguments have to be an
    object."""
    arguments = mapping(json_of(call.arguments.encode()))
    return {**came, "type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


_NEEDED = {"thinking": "signature", "redacted_thinking": "data"}


def _is_taken(block: Mapping[str, Any]) -> bool:
    """True if a block may be sent back: a text of white space is refused, and thinking without a
    signature."""
    kind = text(block, "type")
    if kind == "text":
        return bool(text(block, "text").strip())
    return kind not in _NEEDED or bool(text(block, _NEEDED[kind]))


def _result(result: ToolResult) -> dict[str, JSONValue]:
    """Returns the result of a tool as a block."""
    block: dict[str, JSONValue] = {
        "type": "tool_result",
        "tool_use_id": result.call_id,
        "content": result.text,
    }
    return {**block, "is_error": True} if result.is_error else block


def _thinking(value: str | None, model: str, provider: Provider) -> dict[str, JSONValue]:
    """Returns how much the model thinks: an effort, a number of tokens, or its switch turned on or
    off."""
    if value is None:
        return {}
    switch = provider.switch_of(model)
    if value in ("off", "none"):
        off = switch.off if switch else None
        return dict(off or {"thinking": {"type": "disabled"}})
    if value.isdigit():
        return {"thinking": {"type": "enabled", "budget_tokens": int(value)}}
    on = dict(_ADAPTIVE if switch is None else switch.on or {})
    if value == "on":
        return on
    return {**on, "output_config": {"effort": value}}


def _read(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """Returns the reply of a message. Thinking is no part of the answer."""
    content = mapping(data).get("content")
    if not isinstance(content, list):
        return unreadable(provider, status, "a body that is no message")
    blocks = objects(content)
    answer = "".join(text(block, "text") for block in blocks if block.get("type") == "text")
    end = ending(data.get("stop_reason"), MESSAGE_ENDINGS)
    calls = calls_of(
        (text(block, "id"), text(block, "name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    continues = calls or end.meaning is Finish.PAUSED
    usage = data.get("usage")
    answered = Answered(
        texts=[answer],
        end=end,
        usage=_usage(usage),
        refusal=_refusal(data) if end.meaning is Finish.REFUSAL else None,
        calls=calls,
        wire={"content": content} if continues else None,
        wrote_more=any(text(block, "type") in _NEEDED for block in blocks),
        sources=sources_of(data, MESSAGE_SOURCES, answer),
    )
    service_tier = mapping(usage).get("service_tier")
    return reply_of({**data, "service_tier": service_tier}, answered, provider, model)


def _refusal(data: Mapping[str, Any]) -> str | None:
    """Returns why a model refuses, in Anthropic's words, or what its classifiers call it."""
    details = data.get("stop_details")
    explanation = text(details, "explanation")
    if explanation:
        return explanation
    category = text(details, "category")
    return f"category {category}" if category else None


_INPUT = (("input_tokens",), ("prompt_tokens",))
_OUTPUT = (("output_tokens",), ("completion_tokens",))
"""Anthropic's name, and that of the API behind some gateways."""

_BRIEF = (("cache_creation", "ephemeral_5m_input_tokens"),)


def _usage(usage: Any) -> Usage:
    """Returns the counts of tokens. Those read from the cache and written to it are counted apart
    from the others: all three are input."""
    counts = mapping(usage)
    prompt = count_at(usage, _INPUT)
    read = count(usage, "cache_read_input_tokens")
    lasting = count(counts.get("cache_creation"), "ephemeral_1h_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    brief = count_at(usage, _BRIEF)
    if written is None and brief is not None:
        written = brief + (lasting or 0)
    if prompt is not None:
        prompt += (read or 0) + (written or 0)
    thought = count(counts.get("output_tokens_details"), "thinking_tokens")
    uses = uses_of(counts.get("server_tool_use"), "_requests") or None
    return Usage(prompt, count_at(usage, _OUTPUT), read, thought, written, uses, lasting)


# Facts: platform.claude.com/docs/en/build-with-claude/streaming and the `RawMessageStreamEvent` of
# the anthropic SDK 2.12, read November 2026.

_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Where a block keeps what a delta brings: pieces of a call's arguments make its `input`.
Citations come whole."""


class MessageAssembly(Assembly):
    """A message. It ends with `message_stop`, or with an `error` in its place. One without an
    answer is whole only where the model said why it stopped."""

    def __init__(self) -> None:
        self._frame: dict[str, JSONValue] = {}
        self._blocks: dict[int, tuple[dict[str, Any], list[tuple[str, str]]]] = {}
        self._error: JSONValue = None

    def take(self, event: Any) -> None:
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        message = event.get("message")
        if kind == "message_start" and isinstance(message, dict):
            # the first event holds a placeholder: the tokens of the answer are counted at its end
            started = {**mapping(message.get("usage")), "output_tokens": None}
            self._frame = {**message, "usage": started}
        elif kind == "content_block_start":
            self._begin(event.get("index"), event.get("content_block"))
        elif kind == "content_block_delta":
            self._add(event.get("index"), event.get("delta"))
        elif kind == "message_delta":
            self._tell(event.get("delta"), event.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif event.get("error"):  # a gateway may leave the type out
            self.done = True
            self._error = {"type": "error", **event}

    def is_whole(self) -> bool:
        if self._error is not None or says_why(self._frame.get("stop_reason")):
            return self.done
        has_call = any(block.get("type") == "tool_use" for block, _ in self._blocks.values())
        return self.done and (has_call or self.answering_at is not None)

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        if self._error is not None:
            return 200, NO_HEADERS, self._error
        blocks = [_whole(block, pieces) for _, (block, pieces) in sorted(self._blocks.items())]
        return 200, NO_HEADERS, {**self._frame, "content": blocks}

    def _begin(self, index: Any, block: Any) -> None:
        """Begins a block."""
        if type(index) is int and isinstance(block, dict):
            self._blocks[index] = (dict(block), [])
            self.size += len(repr(block))
            for name in ("text", "thinking"):
                self._heard(name, text(block, name))

    def _add(self, index: Any, delta: Any) -> None:
        """Adds a piece to a block."""
        if type(index) is not int or not isinstance(delta, dict):
            return
        if text(delta, "type") == "citations_delta":
            self._cite(index, delta.get("citation"))
        name = _PIECES.get(text(delta, "type"), "")
        piece = text(delta, name)
        if piece:
            # a block that was never begun is one of text, or of thinking
            begun: dict[str, Any] = {"type": "text" if name == "text" else "thinking"}
            self._blocks.setdefault(index, (begun, []))[1].append((name, piece))
            self.size += len(piece)
            self._heard(name, piece)

    def _cite(self, index: int, citation: Any) -> None:
        """Keeps a citation with its text, which goes back with it when the conversation goes on."""
        block, _ = self._blocks.setdefault(index, ({"type": "text"}, []))
        block["citations"] = cited = block.get("citations") or []
        if isinstance(cited, list):
            cited.append(citation)
            self.size += len(repr(citation))

    def _heard(self, name: str, piece: str) -> None:
        """Reports a piece of the answer, or of thinking, as it comes."""
        if piece and name != "signature":
            self.token(piece if name == "text" else "", answer=name != "thinking")

    def _tell(self, delta: Any, usage: Any) -> None:
        """Takes why it stopped, and the counts, which replace those of the beginning."""
        if isinstance(delta, dict):
            # a second delta may have only the usage: its null takes no word back
            self._frame.update((name, value) for name, value in delta.items() if value is not None)
            if delta.get("stop_reason") == "refusal":
                self.token("", answer=True)
        if isinstance(usage, dict):
            self._frame["usage"] = _grown(mapping(self._frame.get("usage")), usage)


def _grown(known: dict[str, Any], usage: dict[str, Any]) -> dict[str, JSONValue]:
    """Returns the counts with newer ones. Counts only grow: a 0 at the end takes nothing back of
    what the beginning said."""
    newer = {
        name: value
        for name, value in usage.items()
        if value or (value == 0 and not known.get(name))
    }
    return {**known, **newer}


def _whole(block: dict[str, Any], pieces: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns a block with the pieces that came for it."""
    for name in dict.fromkeys(name for name, _ in pieces):
        rest = "".join(piece for kind, piece in pieces if kind == name)
        if name == "partial_json":  # what is no JSON was cut
            arguments = json_of(rest.encode("utf-8", "surrogatepass"))
            block = {**block, "input": rest if arguments is None else arguments}
        else:
            block = {**block, name: text(block, name) + rest}
    return block


MESSAGES = Dialect(
    path="/messages",
    refused=_REFUSED,
    headers=_headers,
    build=_build,
    shaping=anthropic_format,
    read=_read,
    read_error=read_anthropic_error,
    rules=ANTHROPIC_RULES,
    rates=dated_rate_state,
    assembly=MessageAssembly,
)
