"""How a JSON Schema is sent to each dialect's providers. Whatever is sent, the answer is validated
here afterwards; this only decides how many answers fail that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from agac.core.types import JSONValue, Request, Schema, ToolDefinition
from agac.providers.bodies import items, mapping
from agac.providers.provider import Provider

INSTRUCTION = """\
Answer with one JSON value that satisfies the JSON Schema below, and with nothing else: no prose, no code fence.

JSON Schema:
"""  # noqa: E501
"""What a model is asked where its provider cannot hold it to a schema; the schema's JSON follows
as the last line."""

INSTRUCTION_BESIDE_TOOLS = """\
You may call tools first. Give your final answer as one JSON value that satisfies the JSON Schema below, and nothing
else: no prose, no code fence.

JSON Schema:
"""  # noqa: E501
"""The same for a model that may call tools before it answers. It is in each request of the
conversation."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema adds to a request: one of these, both or neither."""

    response_format: dict[str, JSONValue] | None = None
    """The format that the provider holds its answer to."""
    instruction: str | None = None
    """What the model is asked in words, with the schema."""


_PLAIN = Shape()
_MOST_SHAPES = 256

Shaping = Callable[[Schema, Provider], dict[str, JSONValue] | None]
"""A schema as a dialect's `response_format`, for a provider that is held to schemas; None: it
takes another form."""

_shapes: dict[tuple[int, str, bool, Shaping, bool], tuple[Schema, Shape]] = {}


def shape_of(
    schema: Schema | None, provider: Provider, shaping: Shaping, *, in_words: bool = False
) -> Shape:
    """Returns how `schema` is sent to `provider`. It is walked once a schema: all tasks of a stage
    share the Schema value. `in_words`: as an instruction alone, in addition to tools
    (`Request.schema_in_words`)."""
    if schema is None:
        return _PLAIN
    key = (id(schema), provider.structured, provider.strict_schema, shaping, in_words)
    kept = _shapes.get(key)
    if kept is not None:
        return kept[1]
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    form = None
    if not in_words and provider.structured != "none":
        form = shaping(schema, provider)
    shape = Shape(form)
    if form is None or form["type"] != "json_schema":
        text = json.dumps(schema.body, ensure_ascii=False, separators=(",", ":"))
        shape = Shape(form, (INSTRUCTION_BESIDE_TOOLS if in_words else INSTRUCTION) + text)
    # the schema is kept with its shape, so that its id cannot be given to another one
    _shapes[key] = (schema, shape)
    return shape


Describing = Callable[[ToolDefinition, Provider], dict[str, JSONValue]]

_tools: dict[
    tuple[int, bool, Describing], tuple[tuple[ToolDefinition, ...], list[dict[str, JSONValue]]]
] = {}


def tools_of(
    request: Request, provider: Provider, describe: Describing
) -> list[dict[str, JSONValue]]:
    """Returns the tools that a model is told of, those that the provider runs first. The stage's
    own are described once where all of its requests hold the same tuple."""
    ran = _server_tools(request, provider)
    key = (id(request.tools), provider.strict_schema, describe)
    kept = _tools.get(key)
    if kept is None:
        if len(_tools) >= _MOST_SHAPES:
            _tools.clear()
        kept = _tools[key] = (request.tools, [describe(tool, provider) for tool in request.tools])
    return ran + kept[1] if ran else kept[1]


def _server_tools(request: Request, provider: Provider) -> list[dict[str, JSONValue]]:
    """Returns the provider's own tools that a request asks for, with the bound on their uses."""
    entries = list[dict[str, JSONValue]]()
    for name, entry in provider.server_tools.items():
        uses = getattr(request.params, name)
        if not uses:
            continue
        if provider.uses_bound and uses != "on":
            entries.append({**entry, provider.uses_bound: int(uses)})
        else:
            entries.append({**entry})
    return entries


# OpenAI. platform.openai.com/docs/guides/structured-outputs, read November 2026: what `strict:
# true` accepts. Other keywords are refused with a 400 for every row, so one that the page does not
# name counts as an obstacle.

_STRICT_KEYWORDS = frozenset(
    (
        *("$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "definitions"),
        *("description", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items"),
        *("maxItems", "maximum", "minItems", "minimum", "multipleOf", "pattern", "properties"),
        *("required", "title", "type"),
    )
)
_STRICT_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid")
)
_DEFINED = ("$defs", "definitions")
_STRICT_DEPTH = 10
_STRICT_PROPERTIES = 5000
_STRICT_ENUM_VALUES = 1000
_STRICT_CHARACTERS = 120_000
"""Of the names of properties and definitions, and of the values of enums and consts."""
_STRICT_LARGE_ENUM = 250  # values; the texts of one with more have a bound of their own
_STRICT_LARGE_ENUM_CHARACTERS = 15_000


def openai_format(schema: Schema, provider: Provider) -> dict[str, JSONValue] | None:
    """Returns OpenAI's `response_format`. Both of its modes give objects only."""
    if schema.body.get("type") != "object":
        return None
    if provider.structured == "json_object":
        return {"type": "json_object"}
    described: dict[str, JSONValue] = {"name": schema.name, "schema": schema.body}
    if provider.strict_schema and strict_obstacle(schema.body) is None:
        described["strict"] = True
    return {"type": "json_schema", "json_schema": described}


def is_enforced(schema: Schema, provider: Provider, shaping: Shaping) -> bool:
    """True if a provider holds its answers to the schema: it is sent in a form in which it is
    kept."""
    form = shape_of(schema, provider, shaping).response_format or {}
    return "schema" in form or bool(mapping(form.get("json_schema")).get("strict"))


_SIMPLEST = Schema(
    "simplest", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
)
_SIMPLEST.body["additionalProperties"] = False


def unenforced(schema: Schema, provider: Provider, shaping: Shaping) -> str | None:
    """Returns why a provider that can hold its answers to schemas does not to this one; None: it
    does, or never can."""
    if is_enforced(schema, provider, shaping) or not is_enforced(_SIMPLEST, provider, shaping):
        return None
    obstacle = strict_obstacle(schema.body) if provider.strict_schema else None
    return obstacle or "it says more than the provider understands"


def strict_obstacle(schema: Mapping[str, JSONValue]) -> str | None:
    """Returns why a schema is not within the subset of OpenAI's strict mode; None when it is."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return "its root is not a plain object"
    size = _StrictSize()
    waiting = [_Inner(schema, 0, "")]
    while waiting:
        inner = waiting.pop()
        if inner.depth > _STRICT_DEPTH:
            why: str | None = f"more than {_STRICT_DEPTH} levels are nested"
        else:
            why = _node_obstacle(inner.node)
        if why:
            return f"{why} (at {inner.path})" if inner.path else why
        size.add(inner.node, mapping(inner.node.get("properties")))
        waiting += _schemas_within(inner)
    return size.obstacle()


class _Inner(NamedTuple):
    """A schema within a schema."""

    node: Any
    """The schema."""
    depth: int
    """How many levels of values are above it."""
    path: str
    """Where it is, in words for a message; empty at the root."""


def _schemas_within(outer: _Inner) -> Iterator[_Inner]:
    """Yields the schemas directly within a schema."""
    node = outer.node
    depth = outer.depth
    path = f"{outer.path}." if outer.path else ""
    for name, part in mapping(node.get("properties")).items():
        yield _Inner(part, depth + 1, f"{path}{name}")
    for kind in _DEFINED:
        for name, part in mapping(node.get(kind)).items():
            yield _Inner(part, depth, f"{kind}.{name}")
    if "items" in node:
        yield _Inner(node["items"], depth + 1, f"{path}items")
    for part in items(node.get("anyOf")):
        yield _Inner(part, depth, f"{path}anyOf")


@dataclass(slots=True)
class _StrictSize:
    """What counts against the bounds of OpenAI's strict mode in a whole schema."""

    properties: int = 0
    """The number of properties."""
    enum_values: int = 0
    """The number of values of enums."""
    characters: int = 0
    """Characters of names and of values: a bound on all of them together."""
    large_enum: int = 0
    """The most characters that the texts of one enum have which has many values."""

    def add(self, node: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
        """Counts one schema within the whole, with its properties."""
        values = node.get("enum") or []
        texts = sum(len(value) for value in values if isinstance(value, str))
        names = [*properties, *(name for kind in _DEFINED for name in mapping(node.get(kind)))]
        self.properties += len(properties)
        self.enum_values += len(values)
        self.characters += sum(map(len, names)) + texts
        const = node.get("const")
        if isinstance(const, str):
            self.characters += len(const)
        if len(values) > _STRICT_LARGE_ENUM:
            self.large_enum = max(self.large_enum, texts)

    def obstacle(self) -> str | None:
        """Returns which bound is exceeded; None: none is."""
        if self.properties > _STRICT_PROPERTIES or self.enum_values > _STRICT_ENUM_VALUES:
            return "it has too many properties or values of enums"
        if self.large_enum > _STRICT_LARGE_ENUM_CHARACTERS:
            return (
                f"an enum of over {_STRICT_LARGE_ENUM} values has {self.large_enum:,} characters, "
                f"and {_STRICT_LARGE_ENUM_CHARACTERS:,} are taken"
            )
        if self.characters > _STRICT_CHARACTERS:
            return (
                f"its names and values have {self.characters:,} characters, and "
                f"{_STRICT_CHARACTERS:,} are taken"
            )
        return None


def _node_obstacle(node: Any) -> str | None:
    """Returns why one schema, without those within it, is not in the strict subset."""
    if not isinstance(node, dict):
        return "true and false are no schemas there"
    others = sorted(node.keys() - _STRICT_KEYWORDS)
    if others:
        return f"`{others[0]}` is not known there"
    if not node.keys() & {"type", "anyOf", "$ref"}:
        return "a value has no type"
    if "$ref" in node and len(node) > 1 and not node.keys() <= {"$ref", *_DEFINED}:
        return "a `$ref` stands beside other keywords"
    name = node.get("format")
    if isinstance(name, str) and name not in _STRICT_FORMATS:
        return f"the format {name!r} is not known there"
    if "object" in _kinds(node) or "properties" in node:
        return _object_obstacle(node)
    return None


def _object_obstacle(node: Mapping[str, Any]) -> str | None:
    """Returns why the schema of an object is not in the strict subset."""
    if node.get("additionalProperties") is not False:
        return "an object lacks `additionalProperties: false`"
    required = frozenset(node.get("required") or ())
    for name in mapping(node.get("properties")):
        if name not in required:
            return f"{name!r} is not in `required`"
    return None


def _kinds(node: Mapping[str, Any]) -> list[Any]:
    """Returns the types that a schema allows."""
    kinds = node.get("type")
    return kinds if isinstance(kinds, list) else [kinds]


# Anthropic holds answers to part of the language, with every object closed. Facts:
# platform.claude.com, Structured outputs, and what the anthropic SDK 2.12 makes of schemas, read
# November 2026. As there, a bound that cannot be held is written into a description.

_FORMATS = (
    *("date-time", "time", "date", "duration", "email"),
    *("hostname", "uri", "ipv4", "ipv6", "uuid"),
)
_KEPT_AS_THEY_ARE = ("type", "enum", "const", "title", "description", "required")
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minItems", "maxItems", "uniqueItems", "minProperties"),
)
"""Bounds of a value, in the order in which a description names them."""

_IDLE = ("$schema", "$id", "$comment", "default", "deprecated", "examples", "readOnly", "writeOnly")
_NESTED = ("properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "$ref")
_KNOWN = frozenset((*_KEPT_AS_THEY_ARE, *_BOUNDS, *_IDLE, *_NESTED))
_KINDS = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
_MOST_OPTIONAL = 24
_MOST_UNIONS = 16


class _Beyond(ValueError):
    """The schema says what Anthropic's part of the language cannot."""


def anthropic_format(schema: Schema, provider: Provider) -> dict[str, JSONValue] | None:
    """`output_config.format`; None where the schema has to be sent in words."""
    if provider.structured != "json_schema" or schema.body.get("type") != "object":
        return None
    try:
        return {"type": "json_schema", "schema": _closed_root(schema.body)}
    except (ValueError, RecursionError):
        return None


def _closed_root(body: Mapping[str, Any]) -> dict[str, JSONValue]:
    """Returns the whole schema. Raises ValueError, also for one that is larger than Anthropic
    compiles."""
    _check_references(body)
    closed = _closed({name: value for name, value in body.items() if name not in _DEFINED})
    for kind in _DEFINED:
        if kind in body:
            closed[kind] = {name: _closed(part) for name, part in body[kind].items()}
    if _is_too_large(closed):
        raise _Beyond
    return closed


def _check_references(body: Mapping[str, Any]) -> None:
    """Raises ValueError where a reference names no definition, or comes back to itself."""
    named: dict[str, Any] = {}
    for kind in _DEFINED:
        named |= {f"#/{kind}/{name}": part for name, part in (body.get(kind) or {}).items()}
    if not _references(body) <= named.keys():
        raise _Beyond
    TopologicalSorter({name: _references(part) for name, part in named.items()}).prepare()


def _is_too_large(closed: dict[str, JSONValue]) -> bool:
    """True if a schema has more optional properties or unions than Anthropic compiles."""
    optional = 0
    unions = 0
    for node in _dicts(closed):
        if "anyOf" in node:
            unions += 1
        elif "type" not in node:
            continue
        elif isinstance(node["type"], list):
            unions += 1
        if "properties" in node:
            optional += len(set(node["properties"]) - set(node.get("required") or ()))
    return optional > _MOST_OPTIONAL or unions > _MOST_UNIONS


def _references(schema: Any) -> set[str]:
    """Returns the targets of the references in a schema."""
    return {str(node["$ref"]) for node in _dicts(schema) if "$ref" in node}


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yields every object within a value, the value itself included."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _dicts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _dicts(part)


def _closed(node: Any) -> dict[str, JSONValue]:
    """Returns a schema with every object closed. Raises _Beyond for one that cannot be sent."""
    if not isinstance(node, dict) or not node.keys() <= _KNOWN or not node.keys() & _KINDS:
        raise _Beyond
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    if _has_composite_constants(node):
        raise _Beyond
    closed: dict[str, JSONValue] = {name: node[name] for name in _KEPT_AS_THEY_ARE if name in node}
    kinds = _kinds(node)
    if "object" in kinds or "properties" in node:
        closed |= _closed_object(node)
    if "array" in kinds or "items" in node:
        closed["items"] = _closed(node.get("items"))
    return closed | _closed_union(node) | _bounds(node)


def _has_composite_constants(node: Mapping[str, Any]) -> bool:
    """True if a value of an enum, or the const, is an object or a list."""
    constants = (*(node.get("enum") or ()), node.get("const"))
    return any(isinstance(value, (dict, list)) for value in constants)


def _closed_object(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """Returns the properties of an object. One that says nothing of other properties is closed;
    one that asks for others cannot be sent."""
    properties = node.get("properties")
    if not properties or node.get("additionalProperties", False) is not False:
        raise _Beyond
    return {
        "properties": {name: _closed(part) for name, part in properties.items()},
        "additionalProperties": False,
    }


def _closed_union(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """Returns the alternatives of a schema. `oneOf` is widened to `anyOf`; what `allOf` joins must
    not be closed apart, nor be a reference."""
    if "allOf" in node or {"anyOf", "oneOf"} <= node.keys():
        raise _Beyond
    parts = node.get("anyOf", node.get("oneOf"))
    if parts is None:
        return {}
    return {"anyOf": [_closed(part) for part in parts]}


def _bounds(node: Mapping[str, Any]) -> dict[str, JSONValue]:
    """Returns bounds that can be held, and the others in the description."""
    bounds = {name: node[name] for name in _BOUNDS if name in node}
    held: dict[str, JSONValue] = {}
    if bounds.get("format") in _FORMATS:
        held["format"] = bounds.pop("format")
    if bounds.get("minItems") in (0, 1):
        held["minItems"] = bounds.pop("minItems")
    if bounds:
        written = [
            f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in bounds.items()
        ]
        words = f"{{{', '.join(written)}}}"
        description = node.get("description")
        held["description"] = f"{description}\n\n{words}" if description else words
    return held
