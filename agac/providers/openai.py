"""OpenAI's two APIs, as OpenAI and compatible servers have them: requests, answers, and the
streams put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agac.core.types import (
    AssistantMessage,
    Fault,
    JSONValue,
    Message,
    Reply,
    Request,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolResult,
)
from agac.providers import dialect
from agac.providers.bodies import mapping, objects, text
from agac.providers.citations import CHAT_SOURCES, sources_of, top_level
from agac.providers.endings import CHAT_ENDINGS, ending, says_why
from agac.providers.error_bodies import is_error, read_openai_error
from agac.providers.error_tables import OPENAI_RULES
from agac.providers.provider import Provider
from agac.providers.structured import Describing, openai_format, shape_of, strict_obstacle, tools_of
from agac.providers.waits import rate_state


def _headers(provider: Provider) -> dict[str, str]:
    """Returns the header with the key, where there is a key."""
    if provider.api_key:
        return {"Authorization": f"Bearer {provider.api_key}"}
    return {}


def wire_messages(
    instruction: str | None,
    messages: Iterable[Message],
    turn: Callable[[Message], list[dict[str, Any]]],
    provider: Provider,
) -> list[dict[str, Any]]:
    """Returns messages as they are sent, a system message first, with `instruction` at its end.
    `turn` writes the messages with calls of tools, and those with their results."""
    wire: list[dict[str, Any]] = []
    for message in dialect.sendable(messages, provider.call_ids):
        if type(message) is Message:
            wire.append({"role": message.role, "content": message.text})
        else:
            wire += turn(message)
    if instruction is None:
        return wire
    if wire and wire[0].get("role") == "system":
        wire[0]["content"] += "\n\n" + instruction
    else:
        wire.insert(0, {"role": "system", "content": instruction})
    return wire


def mark_prefix(
    messages: list[dict[str, Any]], request: Request, model: str, provider: Provider, part_type: str
) -> dict[str, Any]:
    """Returns what asks for the shared prefix to be kept. Where the model wants a mark at its end,
    the last message that takes one gets it, on a part of the type `part_type`; an assistant's
    takes none."""
    prefix = request.prefix
    if prefix is None or provider.cache != "openai":
        return {}
    # a system message that was added for the schema comes before those of the request
    has_schema = request.messages[0].role != "system" and messages[0].get("role") == "system"
    shared = [
        index
        for index in range(prefix.messages + has_schema)
        if messages[index].get("role") in ("system", "user")
    ]
    if shared and provider.marked and re.match(provider.marked, model):
        last = messages[shared[-1]]
        part = {
            "type": part_type,
            "text": last["content"],
            "prompt_cache_breakpoint": {"mode": "explicit"},
        }
        messages[shared[-1]] = {**last, "content": [part]}
    return {"prompt_cache_key": prefix.key}


def text_and_refusal(parts: Any, kind: str) -> tuple[str, str | None]:
    """Returns the text of a message's parts of type `kind`, and its refusal where there is one.
    Thinking belongs to neither."""
    texts: list[str] = []
    refusal: str | None = None
    for part in objects(parts):
        if part.get("type") == kind:
            texts.append(text(part, "text"))
        elif part.get("type") == "refusal":
            refusal = refusal or text(part, "refusal") or None
    return "".join(texts), refusal


def flat_function(tool: ToolDefinition, provider: Provider) -> dict[str, JSONValue]:
    """Describes a tool: its arguments are held to their schema where the strict subset has it."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": provider.strict_schema and strict_obstacle(tool.parameters) is None,
    }


def _nested_function(tool: ToolDefinition, provider: Provider) -> dict[str, JSONValue]:
    """Describes a tool for chat completions. `strict` is left out where it is false: look-alikes
    may not know the word."""
    function = flat_function(tool, provider)
    kind = function.pop("type")
    if not function["strict"]:
        del function["strict"]
    return {"type": kind, "function": function}


def add_tools(
    wire: dict[str, JSONValue], request: Request, provider: Provider, describe: Describing
) -> None:
    """Adds the tools of a request, and how they may be used where that is not as usual."""
    if not request.tools and not provider.server_tools:
        return
    tools = tools_of(request, provider, describe)
    if not tools:
        return
    wire["tools"] = tools
    if request.tool_choice != "auto":
        wire["tool_choice"] = request.tool_choice
    if not request.parallel_tools:
        wire["parallel_tool_calls"] = False


def result_text(result: ToolResult) -> str:
    """Returns the text of a tool's result; neither API has a mark for an error."""
    if result.is_error:
        return f"Error: {result.text}"
    return result.text


# Chat completions. Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do
# differently, read November 2026.

_CHAT_PARAMS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "seed"),
    *("service_tier", "top_k", "min_p", "repetition_penalty"),
)


def _build_chat(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """Returns the body of POST /chat/completions."""
    shape = shape_of(request.schema, provider, openai_format, in_words=request.schema_in_words)
    params = request.params
    messages = wire_messages(shape.instruction, request.messages, _chat_turn, provider)
    kept = mark_prefix(messages, request, model, provider, "text")
    wire: dict[str, JSONValue] = {"model": model, "messages": messages, **kept}
    add_tools(wire, request, provider, _nested_function)
    wire |= dialect.set_params(params, _CHAT_PARAMS, provider.renames)
    if params.max_tokens is not None:
        wire[provider.max_tokens_field] = params.max_tokens
    if params.reasoning is not None:
        wire |= _reasoning(params.reasoning, model, provider)
    if shape.response_format is not None:
        wire["response_format"] = shape.response_format
    return wire


def _reasoning(value: str, model: str, provider: Provider) -> dict[str, Any]:
    """Returns what tells a model to think: an effort, or its switch turned on or off."""
    switch = provider.switch_of(model)
    if switch is None or value not in ("on", "off"):
        return {provider.renames.get("reasoning", "reasoning_effort"): value}
    setting = switch.on if value == "on" else switch.off
    return dict(setting or {})


def _chat_turn(message: Message) -> list[dict[str, Any]]:
    """Returns a message with calls of tools, or a message for each of the results."""
    if isinstance(message, ToolMessage):
        return [
            {"role": "tool", "tool_call_id": result.call_id, "content": result_text(result)}
            for result in message.results
        ]
    if isinstance(message, AssistantMessage):
        came = mapping(mapping(message.wire).get("message"))
        if came:
            pairs = zip(objects(came.get("tool_calls")), message.calls, strict=False)
            calls = [_chat_call(came_call, call) for came_call, call in pairs]
            return [{**came, "tool_calls": calls}]
        if message.calls:
            calls = [_chat_call({}, call) for call in message.calls]
            return [{"role": "assistant", "content": message.text or None, "tool_calls": calls}]
    return [{"role": message.role, "content": message.text}]


def _chat_call(came: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    """Returns a call as it is sent back, with what else came with it (Gemini's signatures), but
    its index in a stream."""
    function = {**mapping(came.get("function")), "name": call.name, "arguments": call.arguments}
    further = {name: value for name, value in came.items() if name != "index"}
    return {**further, "id": call.id, "type": "function", "function": function}


def _read_chat(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """Returns the reply of a chat completion."""
    choices = mapping(data).get("choices")
    if not isinstance(choices, list):
        return dialect.unreadable(provider, status, "a body that is no chat completion")
    usage = dialect.usage_of(data.get("usage"))
    if not choices:  # neither an answer nor a reason: it is no empty answer
        return replace(dialect.unreadable(provider, status, "no choice"), usage=usage)
    choice = mapping(choices[0])
    message = mapping(choice.get("message"))
    answer, refusal = _answer_of(message)
    requested = [
        call
        for call in objects(message.get("tool_calls"))
        if isinstance(call.get("function"), dict)
    ]
    answered = dialect.Answered(
        texts=[answer],
        end=ending(_finish_word(choice), CHAT_ENDINGS),
        usage=usage,
        refusal=refusal,
        calls=_calls_of(requested),
        wire=_kept_message(message, requested) if requested else None,
        wrote_more=bool(refusal) or _has_thinking(message),
        sources=sources_of(data, CHAT_SOURCES, answer),
    )
    return dialect.reply_of(data, answered, provider, model)


def _answer_of(message: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns the text of a message, and its refusal where there is one. Thinking
    (`reasoning_content`, parts of type thinking) belongs to neither."""
    content = message.get("content")
    refusal = text(message, "refusal")
    if isinstance(content, str):
        return content, refusal or None
    answer, refusal_part = text_and_refusal(content, "text")
    return answer, refusal or refusal_part


def _calls_of(requested: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    """Returns the calls of tools that a message has."""
    functions = ((call, call["function"]) for call in requested)
    return dialect.calls_of(
        (text(call, "id"), text(function, "name"), function.get("arguments"))
        for call, function in functions
    )


def _kept_message(message: Mapping[str, Any], requested: list[dict[str, Any]]) -> JSONValue:
    """Returns a message as it goes back with the next request. What is empty is left out: not all
    that a server sends it takes, as `audio: null`."""
    filled = {
        name: value
        for name, value in message.items()
        if value not in (None, [], {}) or name == "content"
    }
    return {"message": {**filled, "role": "assistant", "tool_calls": requested}}


def _finish_word(choice: Mapping[str, Any]) -> Any:
    """Returns why the model stopped. Gemini's compatible API uses the name of its own API now and
    then (github.com/jakobdylanc/llmcord/issues/84)."""
    return choice.get("finish_reason") or choice.get("finishReason")


def _has_thinking(message: Mapping[str, Any]) -> bool:
    """True if a message holds thinking: in a field of its own, or as parts."""
    if text(message, "reasoning_content") or text(message, "reasoning"):
        return True
    parts = objects(message.get("content"))
    return any(part.get("type") == "thinking" for part in parts)


# Facts: platform.openai.com/docs/api-reference/chat-streaming, and what look-alikes do differently,
# read November 2026.

_KEPT = ("id", "created", "model", "system_fingerprint", "service_tier", *top_level(CHAT_SOURCES))


def _usage_in(event: Mapping[str, Any]) -> Any:
    """Returns the counts of tokens of a chunk: its own, those in `x_groq`
    (github.com/vercel/ai/issues/1651), or those of its choice (Moonshot:
    github.com/northes/go-moonshot/issues/17)."""
    choice = next(iter(objects(event.get("choices"))), None)
    for holder in (event, event.get("x_groq"), choice):
        usage = mapping(holder).get("usage")
        if usage:
            return usage
    return None


def _thoughts_in(content: list[Any]) -> Iterator[str]:
    """Yields the thinking among parts of a text (docs.mistral.ai/capabilities/reasoning)."""
    for part in objects(content):
        thought = part.get("thinking")
        if isinstance(thought, list):
            yield text_and_refusal(thought, "text")[0]
        else:
            yield text(part, "thinking")


_LISTED = ("annotations", "executed_tools")
"""What deltas bring in lists, a part at a time: the sources of searches that the server ran."""


class ChatAssembly(dialect.Assembly):
    """A completion; without `[DONE]` at its end, the model must have said why it stopped, and so
    it must where nothing came before `[DONE]`. The first choice counts."""

    def __init__(self) -> None:
        self._frame: dict[str, JSONValue] = {}
        # thinking is what look-alikes call reasoning
        names = ("content", "refusal", "reasoning_content", "reasoning")
        self._pieces: dict[str, list[str]] = {name: [] for name in names}
        self._calls: list[tuple[dict[str, Any], list[str]]] = []
        self._open: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._finish: JSONValue = None

    def take(self, event: Any) -> None:
        """Takes one chunk; `None` stands for `[DONE]`."""
        if self.done:
            return
        if event is None:
            self.done = True
        elif is_error(event):
            self.done = True
            self._frame = event
        elif isinstance(event, dict):
            self._take_chunk(event)

    def _take_chunk(self, event: dict[str, Any]) -> None:
        """Takes a chunk that is neither an error nor the end."""
        self._frame.update((name, event[name]) for name in _KEPT if event.get(name) is not None)
        self._count(_usage_in(event))
        for choice in objects(event.get("choices")):
            if choice.get("index") in (0, None):
                self._choice(choice)

    def _count(self, usage: Any) -> None:
        """Keeps the counts of tokens of a chunk; a later 0/0 takes nothing back."""
        if usage is None:
            return
        if "usage" not in self._frame or any(dialect.usage_of(usage)[:2]):
            self._frame["usage"] = usage

    def is_whole(self) -> bool:
        if self._finish is not None or is_error(self._frame):
            return True
        return self.done and self.answering_at is not None

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        if is_error(self._frame):
            return 200, dialect.NO_HEADERS, self._frame
        choice = {"index": 0, "message": self._message(), "finish_reason": self._finish}
        body = {**self._frame, "object": "chat.completion", "choices": [choice]}
        return 200, dialect.NO_HEADERS, body

    def _message(self) -> dict[str, Any]:
        """Returns the whole message."""
        thought = {name: "".join(pieces) for name, pieces in self._pieces.items() if pieces}
        content = thought.pop("content", "")
        refusal = thought.pop("refusal", "")
        has_more = bool(refusal or self._calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if has_more and not content else content,
            "refusal": refusal or None,
        }
        if self._calls:  # the next request of the conversation holds the thinking too
            message |= thought
            for call, pieces in self._calls:
                call["function"]["arguments"] = "".join(pieces)
            message["tool_calls"] = [call for call, _ in self._calls]
        return message | self._lists

    def _choice(self, choice: dict[str, Any]) -> None:
        """Takes what a chunk says of the first choice."""
        delta = choice.get("delta")
        # a server that does not stream may send its whole message as an event
        if delta is None and not self.size:
            delta = choice.get("message")
        for name in self._pieces:
            self._piece(name, text(delta, name))
        content = mapping(delta).get("content")
        if isinstance(content, list):
            answer, refusal = text_and_refusal(content, "text")
            self._piece("reasoning", "".join(_thoughts_in(content)))
            self._piece("content", answer)
            self._piece("refusal", refusal or "")
        for call in objects(mapping(delta).get("tool_calls")):
            self._call(call)
        for name in _LISTED:
            listed = objects(mapping(delta).get(name))
            if listed:
                self._lists.setdefault(name, []).extend(listed)
                self.size += len(repr(listed))
        word = _finish_word(choice)
        if says_why(word):
            self._finish = word

    def _piece(self, name: str, piece: str) -> None:
        """Takes a piece of a text: of the answer, of its refusal, or of thinking."""
        if not piece:
            return
        self._pieces[name].append(piece)
        self.size += len(piece)
        is_answer = name in ("content", "refusal")
        self.token(piece if is_answer else "", answer=is_answer)

    def _call(self, piece: dict[str, Any]) -> None:
        """Takes a piece of a call. Some servers leave the index or the id out, give all calls the
        same index, or each piece an id of its own: a piece with a name begins a call."""
        function = mapping(piece.get("function"))
        call, pieces = self._call_of(piece, has_name=bool(function.get("name")))
        call |= {name: value for name, value in piece.items() if value and name not in call}
        call["function"] |= {
            name: value for name, value in function.items() if value and name != "arguments"
        }
        pieces.append(dialect.arguments_text(function.get("arguments")))
        self.size += len(repr(piece))
        self.token("", answer=True)

    def _call_of(
        self, piece: dict[str, Any], *, has_name: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the call that a piece belongs to, and the pieces of its arguments so far."""
        index = str(piece.get("index"))
        known = self._open.get(index)
        if known is not None and not (has_name and _begins_another(piece, index, known[0])):
            return known
        begun: tuple[dict[str, Any], list[str]] = ({"type": "function", "function": {}}, [])
        self._open[index] = begun
        self._calls.append(begun)
        return begun


def _begins_another(piece: dict[str, Any], index: str, known: dict[str, Any]) -> bool:
    """True if a piece with a name belongs to another call than the one with the same index."""
    call_id = text(piece, "id")
    if not call_id:
        return index == "None"
    return call_id != text(known, "id")


CHAT = dialect.Dialect(
    path="/chat/completions",
    # what else a look-alike takes is in its row; OpenAI takes all of it
    refused={
        "verbosity": (
            "only the Responses API is asked for it here; write responses/…, or leave it out"
        )
    },
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
