"""A JSON Schema in the words that Anthropic holds answers to: part of the language, and every object closed.

Facts: platform.claude.com, Structured outputs, and what the anthropic SDK 2.12 makes of schemas, read November 2026. As
there, a bound that cannot be held is told in a description; the answer is validated against the schema itself anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agac.core.types import JSONValue, Schema
from agac.providers.provider import Provider

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
