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
    Finish,
    JSONValue,
    Message,
    Reply,
    Request,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolResult,
    Usage,
)
from agac.providers import dialect
from agac.providers.bodies import count, mapping, objects, text
from agac.providers.citations import CHAT_SOURCES, RESPONSE_SOURCES, sources_of, top_level
from agac.providers.endings import CHAT_ENDINGS, RESPONSE_ENDINGS, AnswerEnd, ending, says_why
from agac.providers.error_bodies import is_error, read_openai_error
from agac.providers.error_tables import OPENAI_RULES
from agac.providers.provider import Provider
from agac.providers.structured import Describing, openai_format, shape_of, strict_obstacle, tools_of
from agac.providers.waits import rate_state


def _headers(provider: Provider) -> dict[str, str]:
    if provider.api_key:
        return {"Authorization": f"Bearer {provider.api_key}"}
    return {}


def _messages(
    instruction: str | None,
    messages: Iterable[Message],
    turn: Callable[[Message], list[dict[str, Any]]],
    provider: Provider,
) -> list[dict[str, Any]]:
    """Messages on the wire, a system message first, with `instruction` at its end. `turn` is given
    those of tools."""
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


def _keep(
    said: list[dict[str, Any]], request: Request, model: str, provider: Provider, kind: str
) -> dict[str, Any]:
    """What asks for the shared prefix to be kept. Where the model wants a mark at its end, the
    last message that takes one gets it, on a part of the type `kind`; an assistant's takes none."""
    prefix = request.prefix
    if prefix is None or provider.cache != "openai":
        return {}
    told = request.messages[0].role != "system" and said[0].get("role") == "system"  # the schema
    shared = [
        at for at in range(prefix.messages + told) if said[at].get("role") in ("system", "user")
    ]
    if shared and provider.marked and re.match(provider.marked, model):
        part = {
            "type": kind,
            "text": said[shared[-1]]["content"],
            "prompt_cache_breakpoint": {"mode": "explicit"},
        }
        said[shared[-1]] = {**said[shared[-1]], "content": [part]}
    return {"prompt_cache_key": prefix.key}


def _said(parts: Any, kind: str) -> tuple[str, str | None]:
    """The text of a message's parts of type `kind`, and its refusal where there is one. Thinking
    belongs to neither."""
    texts: list[str] = []
    refusal: str | None = None
    for part in objects(parts):
        if part.get("type") == kind:
            texts.append(text(part, "text"))
        elif part.get("type") == "refusal":
            refusal = refusal or text(part, "refusal") or None
    return "".join(texts), refusal


def _flat_function(tool: ToolDefinition, provider: Provider) -> dict[str, JSONValue]:
    """A tool: its arguments are held to their schema where that lies inside the strict subset."""
    strict = provider.strict_schema and strict_obstacle(tool.parameters) is None
    told = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": strict,
    }
    return {"type": "function", **told}


def _nested_function(tool: ToolDefinition, provider: Provider) -> dict[str, JSONValue]:
    """The same; `strict` is left out where it is false: a word that look-alikes may not know."""
    flat = _flat_function(tool, provider).items()
    return {
        "type": "function",
        "function": {name: one for name, one in flat if name != "type" and one is not False},
    }


def _offered(request: Request, provider: Provider, describe: Describing) -> dict[str, JSONValue]:
    """The tools of a request, and how they may be used where that is not as usual."""
    if not (request.tools or provider.server_tools) or not (
        tools := tools_of(request, provider, describe)
    ):
        return {}
    said: dict[str, JSONValue] = (
        {} if request.tool_choice == "auto" else {"tool_choice": request.tool_choice}
    )
    return {
        "tools": tools,
        **said,
        **({} if request.parallel_tools else {"parallel_tool_calls": False}),
    }


def _result_text(result: ToolResult) -> str:
    """A result; neither API has a mark for an error."""
    if result.is_error:
        return f"Error: {result.text}"
    return result.text


# Chat completions. Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do
# differently, read November 2026.

_CHAT_PARAMS = (
    *(
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "stop",
        "seed",
        "service_tier",
    ),
    *("top_k", "min_p", "repetition_penalty"),
)


def _build_chat(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    shape = shape_of(request.schema, provider, openai_format, in_words=request.schema_in_words)
    params = request.params
    said = _messages(shape.instruction, request.messages, _chat_turn, provider)
    wire: dict[str, JSONValue] = {
        "model": model,
        "messages": said,
        **_keep(said, request, model, provider, "text"),
    }
    wire |= _offered(request, provider, _nested_function)
    wire |= dialect.set_params(params, _CHAT_PARAMS, provider.renames)
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


def _chat_turn(message: Message) -> list[dict[str, Any]]:
    """A message with calls of tools, or one for each of the results."""
    if isinstance(message, ToolMessage):
        return [
            {"role": "tool", "tool_call_id": one.call_id, "content": _result_text(one)}
            for one in message.results
        ]
    if isinstance(message, AssistantMessage):
        came = mapping(mapping(message.wire).get("message"))
        if came:
            asked = zip(objects(came.get("tool_calls")), message.calls, strict=False)
            return [{**came, "tool_calls": [_chat_call(*one) for one in asked]}]
        if message.calls:
            calls = [_chat_call({}, call) for call in message.calls]
            return [{"role": "assistant", "content": message.text or None, "tool_calls": calls}]
    return [{"role": message.role, "content": message.text}]


def _chat_call(came: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    """A call as it is sent back, with what else came with it (Gemini's signatures), but its place
    in a stream."""
    function = {**mapping(came.get("function")), "name": call.name, "arguments": call.arguments}
    further = {name: value for name, value in came.items() if name != "index"}
    return {**further, "id": call.id, "type": "function", "function": function}


def _read_chat(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    choices = mapping(data).get("choices")
    if not isinstance(choices, list):
        return dialect.unreadable(provider, status, "a body that is no chat completion")
    if not choices:  # neither an answer nor a reason: it is no empty answer
        return replace(
            dialect.unreadable(provider, status, "no choice"),
            usage=dialect.usage_of(data.get("usage")),
        )
    choice = mapping(choices[0])
    # thinking (`reasoning_content`, parts of type thinking) belongs to neither the answer nor the
    # refusal
    message = mapping(choice.get("message"))
    content = message.get("content")
    answer, refusal = (content, None) if isinstance(content, str) else _said(content, "text")
    refusal = text(message, "refusal") or refusal
    end = ending(_finish_word(choice), CHAT_ENDINGS)
    asked = [
        call
        for call in objects(message.get("tool_calls"))
        if isinstance(call.get("function"), dict)
    ]
    calls: tuple[ToolCall, ...] = ()
    wire: JSONValue = None
    if asked:  # what is empty is left out: not all that a server sends it takes, as `audio: null`
        calls = dialect.calls_of(
            (text(one, "id"), text(one["function"], "name"), one["function"].get("arguments"))
            for one in asked
        )
        came = {
            name: value
            for name, value in message.items()
            if value not in (None, [], {}) or name == "content"
        }
        wire = {"message": {**came, "role": "assistant", "tool_calls": asked}}
    return dialect.reply_of(
        data,
        [answer],
        end,
        usage=dialect.usage_of(data.get("usage")),
        refusal=refusal,
        provider=provider,
        model=model,
        calls=calls,
        wire=wire,
        wrote_more=bool(refusal) or _thought(message),
        sources=sources_of(data, CHAT_SOURCES, answer),
    )


def _finish_word(choice: Mapping[str, Any]) -> Any:
    """Why the model stopped; Gemini's compatible API says it under the name of its own now and then
    (github.com/jakobdylanc/llmcord/issues/84)."""
    return choice.get("finish_reason") or choice.get("finishReason")


def _thought(message: Mapping[str, Any]) -> bool:
    """Returns whether a message holds thinking: in a field of its own, or as parts."""
    has_field = any(text(message, name) for name in ("reasoning_content", "reasoning"))
    return has_field or any(
        part.get("type") == "thinking" for part in objects(message.get("content"))
    )


# Facts: platform.openai.com/docs/api-reference/chat-streaming, and what look-alikes do differently,
# read November 2026.

_KEPT = ("id", "created", "model", "system_fingerprint", "service_tier", *top_level(CHAT_SOURCES))


def _usage_in(event: Mapping[str, Any]) -> Any:
    """The counts of tokens of a chunk: its own, those in `x_groq`
    (github.com/vercel/ai/issues/1651), or those of its choice (Moonshot:
    github.com/northes/go-moonshot/issues/17)."""
    choice = next(iter(objects(event.get("choices"))), None)
    return next(
        (
            found
            for one in (event, event.get("x_groq"), choice)
            if (found := mapping(one).get("usage"))
        ),
        None,
    )


def _thoughts_in(content: list[Any]) -> Iterator[str]:
    """The thinking among parts of a text (docs.mistral.ai/capabilities/reasoning)."""
    for part in objects(content):
        thought = part.get("thinking")
        yield _said(thought, "text")[0] if isinstance(thought, list) else text(part, "thinking")


_LISTED = ("annotations", "executed_tools")
"""What deltas bring in lists, a part at a time: the sources of searches that the server ran."""


class ChatAssembly(dialect.Assembly):
    """A completion; without `[DONE]` at its end, the model must have said why it stopped, and so
    it must where nothing came before `[DONE]`. The first choice counts."""

    def __init__(self) -> None:
        self._frame: dict[str, JSONValue] = {}
        # thinking is what look-alikes call reasoning
        self._pieces: dict[str, list[str]] = {
            "content": [],
            "refusal": [],
            "reasoning_content": [],
            "reasoning": [],
        }
        self._calls: list[tuple[dict[str, Any], list[str]]] = []
        self._open: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._finish: JSONValue = None

    def take(self, event: Any) -> None:
        """One chunk; `None` stands for `[DONE]`."""
        if self.done:
            return
        if event is None:
            self.done = True
        elif is_error(event):
            self.done = True
            self._frame = event
        elif isinstance(event, dict):
            self._frame.update((name, event[name]) for name in _KEPT if event.get(name) is not None)
            usage = _usage_in(event)
            known = "usage" in self._frame
            # a later 0/0 takes nothing back
            if usage is not None and (not known or any(dialect.usage_of(usage)[:2])):
                self._frame["usage"] = usage
            for choice in objects(event.get("choices")):
                if choice.get("index") in (0, None):
                    self._choice(choice)

    def is_whole(self) -> bool:
        if self._finish is not None or is_error(self._frame):
            return True
        return self.done and self.answering_at is not None

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        if is_error(self._frame):
            return 200, dialect.NO_HEADERS, self._frame
        thought = {name: "".join(pieces) for name, pieces in self._pieces.items() if pieces}
        content = thought.pop("content", "")
        refusal = thought.pop("refusal", "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not (refusal or self._calls) else None,
            "refusal": refusal or None,
        }
        if self._calls:  # the next request of the conversation holds the thinking too
            message |= thought
            for call, pieces in self._calls:
                call["function"]["arguments"] = "".join(pieces)
            message["tool_calls"] = [call for call, _ in self._calls]
        message |= self._lists
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return (
            200,
            dialect.NO_HEADERS,
            {**self._frame, "object": "chat.completion", "choices": [choice]},
        )

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        # a server that does not stream may send its whole message as an event
        if delta is None and not self.size:
            delta = choice.get("message")
        for name in self._pieces:
            self._piece(name, text(delta, name))
        content = mapping(delta).get("content")
        if isinstance(content, list):
            answer, refusal = _said(content, "text")
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
        if not piece:
            return
        self._pieces[name].append(piece)
        self.size += len(piece)
        answer = name in ("content", "refusal")
        self.token(piece if answer else "", answer=answer)

    def _call(self, piece: dict[str, Any]) -> None:
        """A piece of a call. Some servers leave the index or the id out, give all calls the same
        index, or each piece an id of its own: with a name begins a call."""
        index = str(piece.get("index"))
        function = mapping(piece.get("function"))
        named = text(piece, "id")
        known = self._open.get(index)
        if known is None or not named:
            other = index == "None"
        else:
            other = named != text(known[0], "id")
        if known is None or (other and function.get("name")):
            known = self._open[index] = ({"type": "function", "function": {}}, [])
            self._calls.append(known)
        call, pieces = known
        call |= {name: value for name, value in piece.items() if value and name not in call}
        call["function"] |= {
            name: value for name, value in function.items() if value and name != "arguments"
        }
        pieces.append(dialect.arguments_text(function.get("arguments")))
        self.size += len(repr(piece))
        self.token("", answer=True)


# The Responses API. Facts: developers.openai.com/api/reference/responses and the types of the
# openai SDK 3.52, read November 2026.

_RESPONSES_REFUSED: Mapping[str, str] = dict.fromkeys(
    (
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
        "min_p",
        "repetition_penalty",
    ),
    "the Responses API has no such parameter; leave it out, or ask through chat completions",
)
"""Absent from the API's reference: OpenAI answers them with 400, `unknown_parameter`."""

_RESPONSES_PARAMS = ("temperature", "top_p", "max_tokens", "service_tier")


def _build_response(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /responses. `store` is false: nothing is kept. The first system message is
    `instructions`. But where a schema travels as text it stays an item: JSON mode is refused
    unless `input` itself speaks of JSON (instructions do not count everywhere;
    github.com/miracodeai/mira/pull/267, August 2026)."""
    shape = shape_of(request.schema, provider, openai_format, in_words=request.schema_in_words)
    params = request.params
    wire: dict[str, JSONValue] = {"model": model}
    said = _messages(shape.instruction, request.messages, _items_of_turn, provider)
    wire |= _keep(said, request, model, provider, "input_text")
    separate = shape.instruction is None and len(said) > 1 and said[0].get("role") == "system"
    # without a mark
    if (
        separate
        and isinstance(said[0]["content"], str)
        and (instructions := said.pop(0)["content"])
    ):
        wire["instructions"] = instructions
    # answers given back need their type; where tools are offered all turns of a conversation begin
    # with the same bytes
    typed = bool(request.tools) or any(item.get("role") not in ("system", "user") for item in said)
    wire["input"] = [{"type": "message", **item} for item in said] if typed else said
    wire |= _offered(request, provider, _flat_function)
    if provider.source_list is not None and params.web_search is not None:
        wire["include"] = [provider.source_list]
    wire |= dialect.set_params(
        params, _RESPONSES_PARAMS, {"max_tokens": "max_output_tokens", **provider.renames}
    )
    if params.reasoning is not None:
        wire["reasoning"] = {"effort": params.reasoning}
    written: dict[str, JSONValue] = (
        {} if params.verbosity is None else {"verbosity": params.verbosity}
    )
    form = shape.response_format
    if form is not None:
        # what chat completions nest under `json_schema` is next to the type here
        described = form.get("json_schema")
        written["format"] = (
            {"type": form["type"], **described} if isinstance(described, dict) else dict(form)
        )
    if written:
        wire["text"] = written
    wire["store"] = False
    return wire


def _items_of_turn(message: Message) -> list[dict[str, Any]]:
    """Calls of tools, or results, as items; reasoning goes back with its content, as nothing is
    stored there."""
    if isinstance(message, ToolMessage):
        kind = {"type": "function_call_output"}
        return [
            {**kind, "call_id": one.call_id, "output": _result_text(one)} for one in message.results
        ]
    if isinstance(message, AssistantMessage):
        came = objects(mapping(message.wire).get("output"))
        if came:
            asked = [one for one in came if one.get("type") == "function_call"]
            sent = {
                id(one): _call_item(one, call)
                for one, call in zip(asked, message.calls, strict=False)
            }
            whole = ("encrypted_content", "content")
            kept = [
                one for one in came if one.get("type") != "reasoning" or any(map(one.get, whole))
            ]
            return [sent.get(id(one), one) for one in kept]
        if message.text or not message.calls:
            said = [{"role": "assistant", "content": message.text}]
        else:
            said = []
        return said + [_call_item({}, call) for call in message.calls]
    return [{"role": message.role, "content": message.text}]


def _call_item(came: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    return {
        **came,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _read_response(data: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """A response. Commentary on the way to the answer (`phase`) and items that say nothing are no
    answers; nor is reasoning. The parts of an item belong together: it is one message. A cut one
    counts where none is complete."""
    output = mapping(data).get("output")
    if not isinstance(output, list):
        return dialect.unreadable(provider, status, "a body that is no response")
    stage = str(data.get("status") or "completed").lower()  # look-alikes leave it out
    if stage not in ("completed", "incomplete"):
        return dialect.unreadable(provider, status, f"a response that is {stage[:40]}")
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
    end = AnswerEnd(Finish.LENGTH if cut and not texts else Finish.STOP)
    if stage == "incomplete":
        end = ending(
            mapping(data.get("incomplete_details")).get("reason") or stage, RESPONSE_ENDINGS
        )
    asked = [item for item in objects(output) if item.get("type") == "function_call"]
    calls = dialect.calls_of(
        (text(item, "call_id"), text(item, "name"), item.get("arguments")) for item in asked
    )
    return dialect.reply_of(
        data,
        texts or cut[:1],
        end,
        usage=_response_usage(data),
        refusal=refusal,
        provider=provider,
        model=model,
        calls=calls,
        wire={"output": output} if calls else None,
        wrote_more=bool(refusal)
        or any(item.get("type") == "reasoning" for item in objects(output)),
        sources=sources_of(data, RESPONSE_SOURCES, "".join(texts)),
    )


def _response_usage(data: dict[str, Any]) -> Usage:
    """Tokens, and uses of the provider's own tools as it counts them (xAI:
    docs.x.ai/developers/tools), else the searches among its items: opening a page that was found
    costs nothing."""
    usage = mapping(data.get("usage"))
    found = dialect.usage_of(usage)
    ran = dialect.uses_of(usage.get("server_side_tool_usage_details"), "_calls")
    billed = count(mapping(data.get("tool_usage")).get("web_search"), "num_requests")
    if not ran and billed is None:
        searches = [
            item for item in objects(data.get("output")) if item.get("type") == "web_search_call"
        ]
        billed = sum(text(item.get("action"), "type") in ("", "search") for item in searches)
    if ran or billed:
        return found._replace(server_tools=ran or {"web_search": billed or 0})
    return found


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
        if not isinstance(kind, str):
            if event.get("error"):  # as a gateway says it
                self._failed(event)
        elif kind in _ANSWER or kind in _THOUGHT:
            if event.get("delta"):
                self.token(text(event, "delta") if kind in _SPOKEN else "", answer=kind in _ANSWER)
        elif kind == "response.output_item.done":
            self._items.append(event.get("item"))
            self.size += len(repr(event))
        elif kind == "response.output_text.annotation.added":
            self._annotations.append(event)
            self.size += len(repr(event))
        elif kind in _LAST:
            self.done = True
            response = event.get("response")
            if isinstance(response, dict) and not response.get("output") and self._items:
                response = {**response, "output": self._items}
            self._body = _annotated(response, self._annotations)
        elif kind == "error":
            self._failed(event)

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        return self._status, self._headers, self._body

    def _failed(self, event: dict[str, Any]) -> None:
        """An `error` event: flat over SSE; with `error`, `status` and the headers within over a
        WebSocket."""
        self.done = True
        error = event.get("error")
        if not isinstance(error, dict):
            error = {name: event.get(name) for name in ("code", "message", "param")}
        self._body = {"error": error}
        status = event.get("status")
        said = error.get("headers")
        if type(status) is int and 400 <= status < 600:
            self._status = status
        self._headers = {
            str(name).lower(): value
            for name, value in mapping(said).items()
            if isinstance(value, str)
        }


def _annotated(response: Any, events: Iterable[dict[str, Any]]) -> Any:
    """Returns a response in which parts that came without annotations have those of the stream's
    events."""
    output = objects(mapping(response).get("output"))
    bare: dict[int, tuple[dict[str, Any], list[Any]]] = {}
    for event in events:
        item = count(event, "output_index")
        place = count(event, "content_index")
        if item is not None and item < len(output):
            content = objects(output[item].get("content"))
        else:
            content = []
        if place is not None and place < len(content):
            part = content[place]
        else:
            part = None
        if part is not None and not part.get("annotations"):
            bare.setdefault(id(part), (part, []))[1].append(event.get("annotation"))
    for part, told in bare.values():
        part["annotations"] = told
    return response


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

RESPONSES = replace(
    CHAT, path="/responses", refused=_RESPONSES_REFUSED, build=_build_response, read=_read_response,
    assembly=ResponseAssembly, asks_usage=b"", socket_asks=b'"type":"response.create",',
)  # fmt: skip
