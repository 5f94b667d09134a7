"""What all dialects share: the protocol, reading bodies, and how a schema travels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Finish, JSONValue, RateState, Reply, Request, Schema, Usage
from agac.providers.provider import Provider

# A dialect never sends, sleeps, retries or logs; the sender moves its bytes and the engine acts on its Faults.

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Dialect(Protocol):
    """One wire format. Implementations are plain modules without state; `dialects.DIALECTS` lists them."""

    path: str
    """What is put after a provider's base URL."""

    refused: Mapping[str, str]
    """Parameters (fields of `Params`) that it has no word for, each with what to do instead: an error at load."""

    websocket: bool
    """Whether its requests may go over a WebSocket too, where the server has one."""

    def headers(self, provider: Provider) -> dict[str, str]:
        """What identifies us to the provider. Built once a sender, not once a call."""

    def build(self, request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
        """The request as the provider wants its JSON. `encode` makes bytes of it; batches put it into their lines."""

    def parse(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        provider: Provider,
        model: str,
        redactor: Redactor,
    ) -> Reply | Fault:
        """What an answer means. `headers` are looked up in lower case. Never raises for anything a server says."""

    def rates(self, headers: Mapping[str, str]) -> RateState | None:
        """What the headers say about the account's limits; None when they say nothing."""


NO_HEADERS: Mapping[str, str] = {}


class Assembly:
    """One streamed answer being put together, into the body that its dialect's `parse` reads."""

    __slots__ = ("answering", "begun", "done")

    def __init__(self) -> None:
        self.begun = False
        """The first token has come, be it of thinking."""
        self.answering = False
        """The first token of the answer itself has come: of text or of a refusal."""
        self.done = False
        """The end that the protocol promises has come, or an error in its place."""

    def take(self, event: Any) -> None:
        """One event, as JSON. What is no event is left out, and what comes after the end."""
        raise NotImplementedError

    def finish(self) -> bool:
        """No more events will come. Whether the answer is whole."""
        return self.done

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """Status, headers and body, as if they had come without a stream. Only once it is whole."""
        raise NotImplementedError


class Encoder:
    """Encodes the bodies of one stage's calls to one model as `encode` does. A member that is the same object as in the
    call before, as the schema is, is not encoded again."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[JSONValue, str]] = {}

    def encode(self, wire: Mapping[str, JSONValue]) -> bytes:
        """The body's bytes."""
        members = []
        for name, value in wire.items():
            kept = self._kept.get(name)
            if kept is None or kept[0] is not value:
                kept = self._kept[name] = (value, f"{_compact(name)}:{_compact(value)}")
            members.append(kept[1])
        try:
            return f"{{{','.join(members)}}}".encode()
        except UnicodeEncodeError:
            return encode(dict(wire))


def encode(wire: JSONValue) -> bytes:
    """JSON as bytes, once a call. A lone surrogate, which UTF-8 cannot hold, travels as its JSON escape."""
    try:
        return _compact(wire).encode()
    except UnicodeEncodeError:
        return _escaped(wire).encode()


_decode = json.JSONDecoder().decode

MAX_TOKENS = 1 << 53
"""A count beyond that is none: nothing bills so much, and no database column holds more than 2^63."""

SIMULATOR_MARK = "agac-simulator"
"""The `system_fingerprint` by which the simulator marks what it answers."""


def json_of(body: bytes) -> Any:
    """The body's JSON; None when it is none."""
    try:
        # json.loads would guess the encoding, and does where it may be another one
        return (
            _decode(body.decode("utf-8", "surrogatepass"))
            if body[:1] == b"{" and body[1:2] != b"\0"
            else json.loads(body)
        )
    except (ValueError, RecursionError):
        return None


def count(of: Any, name: str) -> int | None:
    """A number of tokens within a usage object; None when it says none, or none that can be."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def unreadable(provider: Provider, status: int, what: str) -> Fault:
    """A good status with something that is neither a reply nor an error: `what` came is said."""
    message = f"{provider.name} answered {status} with {what}"
    return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, status=status, ambiguous=True)


def reply_of(
    data: Mapping[str, Any],
    texts: list[str],
    finish: Finish,
    *,
    usage: Usage,
    refusal: str | None,
    provider: Provider,
    model: str,
) -> Reply:
    """A reply of these messages. A refusal says why the model stopped, but for a filter that cut it off."""
    named, tier = data.get("model"), data.get("service_tier")
    return Reply(
        text=texts[0] if texts else "",
        finish=finish if refusal is None or finish is Finish.FILTER else Finish.REFUSAL,
        usage=usage,
        model=named if isinstance(named, str) and named else model,
        refusal=refusal,
        simulated=provider.simulated or data.get("system_fingerprint") == SIMULATOR_MARK,
        service_tier=tier if isinstance(tier, str) else None,
        others=tuple(texts[1:]),
    )


# Whatever is sent, the answer is validated here afterwards; this only decides how many answers fail that.

INSTRUCTION = """\
Answer with one JSON value that satisfies the JSON Schema below, and with nothing else: no prose, no code fence.

JSON Schema:
"""
"""What a model is told where its provider cannot hold it to a schema; the schema's JSON follows as the last line."""

# platform.openai.com/docs/guides/structured-outputs, read November 2026: what `strict: true` accepts. Other keywords
# are refused with a 400 for every row, so one that the page does not name counts as an obstacle.
_STRICT_KEYWORDS = frozenset((
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "definitions", "description", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum",
    "multipleOf", "pattern", "properties", "required", "title", "type",
))  # fmt: skip
_STRICT_FORMATS = frozenset(("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"))
_STRICT_DEPTH = 10
_STRICT_PROPERTIES = 5000
_STRICT_ENUM_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema adds to a request: a `response_format`, a text ending the system message, both or neither."""

    response_format: dict[str, JSONValue] | None = None
    instruction: str | None = None


_PLAIN = Shape()
_KEPT = 256

Shaping = Callable[[Schema, Provider], dict[str, JSONValue] | None]
"""A schema as a dialect's `response_format`, for a provider that is held to schemas; None: it takes another form."""

_shapes: dict[tuple[int, str, bool, Shaping], tuple[Schema, Shape]] = {}


def openai_format(schema: Schema, provider: Provider) -> dict[str, JSONValue] | None:
    """OpenAI's `response_format`. Both of its modes give objects only."""
    if not _object_root(schema.body):
        return None
    if provider.structured == "json_object":
        return {"type": "json_object"}
    described: dict[str, JSONValue] = {"name": schema.name, "schema": schema.body}
    if provider.strict_schema and not strict_obstacles(schema.body):
        described["strict"] = True
    return {"type": "json_schema", "json_schema": described}


def shape_of(schema: Schema | None, provider: Provider, shaping: Shaping = openai_format) -> Shape:
    """How `schema` is sent to `provider`. Walked once a schema: all tasks of a stage share the Schema value."""
    if schema is None:
        return _PLAIN
    key = (id(schema), provider.structured, provider.strict_schema, shaping)
    if (kept := _shapes.get(key)) is not None:
        return kept[1]
    if len(_shapes) >= _KEPT:
        _shapes.clear()
    shape = _shape(schema, provider, shaping)
    # the schema is kept beside its shape, so that its id cannot be given to another one
    _shapes[key] = (schema, shape)
    return shape


def _shape(schema: Schema, provider: Provider, shaping: Shaping) -> Shape:
    form = None if provider.structured == "none" else shaping(schema, provider)
    if form is not None and form["type"] == "json_schema":
        return Shape(form, None)
    return Shape(form, INSTRUCTION + json.dumps(schema.body, ensure_ascii=False, separators=(",", ":")))


def _object_root(body: Mapping[str, Any]) -> bool:
    return body.get("type") == "object"


def strict_obstacles(schema: Mapping[str, JSONValue]) -> list[str]:
    """What keeps a schema from OpenAI's strict mode, each with its place (`properties.tags: …`); none: nothing."""
    found = [] if _object_root(schema) else ["the root is not an object"]
    if "anyOf" in schema:
        found.append("the root has `anyOf`")
    properties = enum_values = 0
    for place, node, depth in _nodes(schema):
        found += [f"{place}: {obstacle}" if place else obstacle for obstacle in _node_obstacles(node)]
        if depth > _STRICT_DEPTH:
            found.append(f"{place}: deeper than {_STRICT_DEPTH} levels")
            break
        properties += len(_mapping(_mapping(node).get("properties")))
        enum_values += len(_mapping(node).get("enum") or ())
    if properties > _STRICT_PROPERTIES:
        found.append(f"more than {_STRICT_PROPERTIES} properties")
    if enum_values > _STRICT_ENUM_VALUES:
        found.append(f"more than {_STRICT_ENUM_VALUES} enum values")
    return found


def _node_obstacles(node: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        yield f"`{json.dumps(node)}` is no schema with a type"
        return
    yield from (f"`{keyword}` is not in the strict subset" for keyword in node if keyword not in _STRICT_KEYWORDS)
    if not node.keys() & {"type", "anyOf", "$ref"}:
        yield "has no `type`"
    if "$ref" in node and len(node) > 1 and not node.keys() <= {"$ref", "$defs", "definitions"}:
        yield "`$ref` has other keywords beside it"
    if isinstance(name := node.get("format"), str) and name not in _STRICT_FORMATS:
        yield f"format {json.dumps(name)} is not in the strict subset"
    if _is_object(node):
        yield from _object_obstacles(node)


def _object_obstacles(node: dict[str, Any]) -> Iterator[str]:
    if node.get("additionalProperties") is not False:
        yield "`additionalProperties` is not false"
    required = node.get("required")
    optional = [name for name in _mapping(node.get("properties")) if name not in (required or ())]
    if optional:
        yield f"optional properties: {', '.join(optional)}"


def _is_object(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _nodes(root: Any) -> Iterator[tuple[str, Any, int]]:
    """Every schema within a schema: its place, the schema, and how many levels of values it lies below the root."""
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    while waiting:
        place, node, depth = waiting.pop()
        yield place, node, depth
        if not isinstance(node, dict):
            continue
        dot = f"{place}." if place else ""
        below: list[tuple[str, Any, int]] = []
        for keyword, deeper in (("properties", 1), ("$defs", 0), ("definitions", 0)):
            below += [(f"{dot}{keyword}.{n}", sub, depth + deeper) for n, sub in _mapping(node.get(keyword)).items()]
        if "items" in node:
            below.append((f"{dot}items", node["items"], depth + 1))
        if isinstance(node.get("anyOf"), list):
            below += [(f"{dot}anyOf[{i}]", sub, depth) for i, sub in enumerate(node["anyOf"])]
        waiting += reversed(below)
