"""Anthropic's Messages API: `build`, `parse`, the stream put together, and the JSON Schema that it accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, Finish, JSONValue, Message, Params, Reply, Request, Schema, Usage
from agac.providers.error_tables import ANTHROPIC_RULES, dated_rate_state, fault_of, is_error, read_anthropic_error
from agac.providers.openai_chat import told
from agac.providers.provider import Provider
from agac.providers.wire import NO_HEADERS, Assembly, count, json_of, reply_of, shape_of, unreadable

# A JSON Schema in the words that Anthropic holds answers to: part of the language, and every object closed.
#
# Facts: platform.claude.com, Structured outputs, and what the anthropic SDK 2.12 makes of schemas, read November
# 2026. As there, a bound that cannot be held is told in a description; the answer is validated against the schema
# itself anyway.

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_KEPT = ("type", "enum", "const", "title", "description", "required")
_TOLD = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("format", "minItems", "maxItems", "uniqueItems", "minProperties"),
)
"""Bounds of a value, in the order in which a description tells of them."""

_IDLE = ("$schema", "$id", "$comment", "default", "deprecated", "examples", "readOnly", "writeOnly")
_NESTED = ("properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "$ref")
_KNOWN = frozenset((*_KEPT, *_TOLD, *_IDLE, *_NESTED))
_DEFINED = ("$defs", "definitions")
_KINDS = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
_MOST_OPTIONAL = 24
_MOST_UNIONS = 16


class _Beyond(Exception):
    """The schema says what Anthropic's part of the language cannot."""


def anthropic_format(schema: Schema, provider: Provider) -> dict[str, JSONValue] | None:
    """`output_config.format`; None where the schema has to be told in words."""
    if provider.structured != "json_schema" or schema.body.get("type") != "object":
        return None
    try:
        return {"type": "json_schema", "schema": _root(schema.body)}
    except (_Beyond, RecursionError):
        return None


def _root(body: Mapping[str, Any]) -> dict[str, JSONValue]:
    """The whole schema. Raises _Beyond, also for one that is larger than Anthropic compiles."""
    named = {f"#/{kind}/{name}": part for kind in _DEFINED for name, part in (body.get(kind) or {}).items()}
    _must_end(body, named)
    closed = _node({name: value for name, value in body.items() if name not in _DEFINED})
    for kind in _DEFINED:
        if kind in body:
            closed[kind] = {name: _node(part) for name, part in body[kind].items()}
    nodes = [node for node in _dicts(closed) if "type" in node or "anyOf" in node]
    optional = sum(len(set(n["properties"]) - set(n.get("required") or ())) for n in nodes if "properties" in n)
    unions = sum("anyOf" in node or isinstance(node["type"], list) for node in nodes)
    if optional > _MOST_OPTIONAL or unions > _MOST_UNIONS:
        raise _Beyond
    return closed


def _must_end(body: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """References must name definitions, and never come back to where they stand. Raises _Beyond."""
    leads = {name: {str(n["$ref"]) for n in _dicts(part) if "$ref" in n} for name, part in named.items()}
    if not {str(node["$ref"]) for node in _dicts(body) if "$ref" in node} <= named.keys():
        raise _Beyond
    while leads:
        ended = {name for name, others in leads.items() if not others & leads.keys()}
        if not ended:
            raise _Beyond
        leads = {name: others for name, others in leads.items() if name not in ended}


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping within a value, itself included."""
    if isinstance(value, dict):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _dicts(part)


def _node(node: Any) -> dict[str, JSONValue]:
    """A schema within it."""
    if not isinstance(node, dict) or not node.keys() <= _KNOWN or not node.keys() & _KINDS:
        raise _Beyond
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    if any(isinstance(value, (dict, list)) for value in (*(node.get("enum") or ()), node.get("const"))):
        raise _Beyond
    closed: dict[str, JSONValue] = {name: node[name] for name in _KEPT if name in node}
    kinds = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    if "object" in kinds or "properties" in node:
        closed |= _object(node)
    if "array" in kinds or "items" in node:
        closed["items"] = _node(node.get("items"))
    return closed | _branches(node) | _bounds(node)


def _object(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """An object that says nothing of other properties is closed; one that asks for others cannot be told."""
    properties = node.get("properties")
    if not properties or node.get("additionalProperties", False) is not False:
        raise _Beyond
    return {"properties": {name: _node(part) for name, part in properties.items()}, "additionalProperties": False}


def _branches(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """`oneOf` is widened to `anyOf`. What `allOf` joins must not be closed apart, nor be a reference."""
    if "allOf" in node or {"anyOf", "oneOf"} <= node.keys():
        raise _Beyond
    parts = node.get("anyOf", node.get("oneOf"))
    return {} if parts is None else {"anyOf": [_node(part) for part in parts]}


def _bounds(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """Bounds that can be held, and the others in the description."""
    bounds = {name: node[name] for name in _TOLD if name in node}
    held: dict[str, JSONValue] = {}
    if bounds.get("format") in _FORMATS:
        held["format"] = bounds.pop("format")
    if bounds.get("minItems") in (0, 1):
        held["minItems"] = bounds.pop("minItems")
    if bounds:
        words = "{" + ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in bounds.items())
        held["description"] = f"{node['description']}\n\n{words}}}" if node.get("description") else words + "}"
    return held


# Facts: platform.claude.com/docs/en/api/messages and the types of the anthropic SDK 2.12, read November 2026.

path = "/messages"

websocket = False

VERSION = "2023-06-01"
"""The API version. The one of 2026-10-21 has no sampling parameters any more, also for models that take them; what
answers look like is the same."""

_NO_WORD = "Anthropic's API has no such parameter; leave it out"

refused: Mapping[str, str] = dict.fromkeys(
    ("seed", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty", "verbosity"), _NO_WORD
)
"""Absent from the API's reference: Anthropic answers them with 400."""

rates = dated_rate_state

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stop", "stop_sequences"),
    ("service_tier", "service_tier"),
)

_FINISH = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSAL,
}
"""`tool_use` and `pause_turn` cannot happen here, and are OTHER like all that is new."""

_ADAPTIVE: Mapping[str, JSONValue] = {"thinking": {"type": "adaptive"}}


def headers(provider: Provider) -> dict[str, str]:
    """The key, and the version of the API, which goes with every request."""
    return ({"x-api-key": provider.api_key} if provider.api_key else {}) | {"anthropic-version": VERSION}


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /messages. The API wants to be told how long a reply may be."""
    shape, params = shape_of(request.schema, provider, anthropic_format), request.params
    wire: dict[str, JSONValue] = {"model": model, "max_tokens": _max_tokens(params, provider)}
    if system := _system(request.messages, shape.instruction):
        wire["system"] = system
    wire["messages"] = [{"role": m.role, "content": _text(m)} for m in request.messages if m.role != "system"]
    wire |= told(params, _PARAMS, provider)
    thinking = _thinking(params.reasoning, model, provider)
    wire |= thinking
    if shape.response_format is not None:
        wire["output_config"] = {**thinking.get("output_config", {}), "format": shape.response_format}
    return wire


def _max_tokens(params: Params, provider: Provider) -> int:
    """What is asked for, else the row's number; a number of tokens to think with comes on top of that."""
    if params.max_tokens is not None:
        return params.max_tokens
    thought = int(params.reasoning) if params.reasoning is not None and params.reasoning.isdigit() else 0
    return provider.max_tokens + thought


def _text(message: Message) -> str:
    return "".join([part.text for part in message.parts])


def _system(messages: tuple[Message, ...], instruction: str | None) -> str:
    """The system prompt: what the system messages say, and how to write the answer where that is told in words."""
    texts = [_text(message) for message in messages if message.role == "system"]
    return "\n\n".join([*texts, instruction] if instruction else texts)


def _thinking(value: str | None, model: str, provider: Provider) -> dict[str, JSONValue]:
    """How much the model thinks: an effort, a number of tokens, or its switch turned on or off."""
    if value is None:
        return {}
    switch = provider.switch_of(model)
    if value in ("off", "none"):
        return dict((switch.off if switch else None) or {"thinking": {"type": "disabled"}})
    if value.isdigit():
        return {"thinking": {"type": "enabled", "budget_tokens": int(value)}}
    on = dict(_ADAPTIVE if switch is None else switch.on or {})
    return on if value == "on" else {**on, "output_config": {"effort": value}}


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A message, or why there is none. A 2xx whose body holds an `error` is read as that error."""
    data = json_of(body)
    if not 200 <= status < 300 or is_error(data):
        error = read_anthropic_error(data)
        return fault_of(
            error, ANTHROPIC_RULES, status, headers, body, provider=provider, model=model, redactor=redactor
        )
    content = data.get("content") if isinstance(data, dict) else None
    if not isinstance(content, list):
        return unreadable(provider, status, "a body that is no message")
    reason = data.get("stop_reason")
    finish = _FINISH.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    usage = data.get("usage")
    tier = usage.get("service_tier") if isinstance(usage, dict) else None
    return reply_of(
        {**data, "service_tier": tier},
        [_answer(content)],
        finish,
        usage=_usage(usage),
        refusal=_refusal(data.get("stop_details")) if finish is Finish.REFUSAL else None,
        provider=provider,
        model=model,
    )


def _answer(content: list[Any]) -> str:
    """The text of the blocks that are text. Thinking is none."""
    blocks = (block for block in content if isinstance(block, dict) and block.get("type") == "text")
    return "".join(text for block in blocks if isinstance(text := block.get("text"), str))


def _refusal(details: Any) -> str | None:
    """Why it was refused, in Anthropic's words, or what its classifiers call it."""
    if not isinstance(details, dict):
        return None
    words, category = details.get("explanation"), details.get("category")
    if isinstance(words, str) and words:
        return words
    return f"category {category}" if isinstance(category, str) and category else None


def _usage(usage: Any) -> Usage:
    """Tokens read from the cache and written to it are counted apart from the others: all three are input."""
    given, read = count(usage, "input_tokens"), count(usage, "cache_read_input_tokens")
    if given is not None:
        given += (read or 0) + (count(usage, "cache_creation_input_tokens") or 0)
    details = usage.get("output_tokens_details") if isinstance(usage, dict) else None
    return Usage(given, count(usage, "output_tokens"), read, count(details, "thinking_tokens"))


# Facts: platform.claude.com/docs/en/build-with-claude/streaming and the `RawMessageStreamEvent` of the anthropic SDK
# 2.12, read November 2026.

_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Where a block keeps what a delta brings. Others belong to tools and citations, which are not asked for."""


class MessageAssembly(Assembly):
    """A message. It ends with `message_stop`, or with an `error` in its place."""

    __slots__ = ("_blocks", "_error", "_frame")

    def __init__(self) -> None:
        super().__init__()
        self._frame: dict[str, JSONValue] = {}
        self._blocks: dict[int, tuple[dict[str, Any], list[tuple[str, str]]]] = {}
        self._error: JSONValue = None

    def take(self, event: Any) -> None:
        """One event."""
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        if kind == "message_start" and isinstance(message := event.get("message"), dict):
            self._frame = dict(message)
        elif kind == "content_block_start":
            self._begin(event.get("index"), event.get("content_block"))
        elif kind == "content_block_delta":
            self._add(event.get("index"), event.get("delta"))
        elif kind == "message_delta":
            self._tell(event.get("delta"), event.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif event.get("error"):  # a gateway may leave the type out
            self.done, self._error = True, {"type": "error", **event}

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The message, or the error that came in its place."""
        if self._error is not None:
            return 200, NO_HEADERS, self._error
        blocks = [_whole(block, pieces) for _, (block, pieces) in sorted(self._blocks.items())]
        return 200, NO_HEADERS, {**self._frame, "content": blocks}

    def _begin(self, index: Any, block: Any) -> None:
        if type(index) is int and isinstance(block, dict):
            self._blocks[index] = (dict(block), [])
            for name in ("text", "thinking"):
                self._heard(name, block.get(name))

    def _add(self, index: Any, delta: Any) -> None:
        if type(index) is not int or not isinstance(delta, dict):
            return
        kind = delta.get("type")
        name = _PIECES.get(kind) if isinstance(kind, str) else None
        piece = delta.get(name) if name else None
        if name and isinstance(piece, str) and piece:
            # a block that was never begun is one of text, or of thinking
            begun: dict[str, Any] = {"type": "text" if name == "text" else "thinking"}
            self._blocks.setdefault(index, (begun, []))[1].append((name, piece))
            self._heard(name, piece)

    def _heard(self, name: str, piece: Any) -> None:
        """Notes that a token came."""
        if isinstance(piece, str) and piece and name != "signature":
            self.begun = True
            self.answering = self.answering or name == "text"

    def _tell(self, delta: Any, usage: Any) -> None:
        """Why it stopped, and the counts, which replace those of the beginning."""
        if isinstance(delta, dict):
            self._frame |= delta
            if delta.get("stop_reason") == "refusal":
                self.begun = self.answering = True
        if isinstance(usage, dict):
            before = self._frame.get("usage")
            counts = {name: value for name, value in usage.items() if value is not None}
            self._frame["usage"] = {**(before if isinstance(before, dict) else {}), **counts}


def _whole(block: dict[str, Any], pieces: list[tuple[str, str]]) -> dict[str, Any]:
    """A block with all its pieces."""
    for name in dict.fromkeys(name for name, _ in pieces):
        begun = block.get(name)
        rest = "".join(piece for kind, piece in pieces if kind == name)
        block = {**block, name: (begun if isinstance(begun, str) else "") + rest}
    return block
