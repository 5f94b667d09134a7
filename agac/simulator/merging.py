"""Two schemas that must both hold, as one; and references within a document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote


class SchemaError(ValueError):
    """A schema that no reply can be made for: wrong in itself, or beyond the simulator."""


def resolve(document: Any, reference: Any) -> Any:
    """What a reference such as `#/$defs/item` points at."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaError(f"$ref {json.dumps(reference)[:80]} must point into the schema itself, such as #/$defs/item")
    found = document
    for step in reference[2:].split("/") if len(reference) > 1 else []:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError(f"$ref {json.dumps(reference)[:80]} points at nothing")
    if not isinstance(found, dict | bool):
        raise SchemaError(f"$ref {json.dumps(reference)[:80]} points at something that is no schema")
    return found


def merge(one: Any, other: Any) -> Any:
    """A schema that holds where both do, as nearly as keywords allow: its values are validated before use."""
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    if not isinstance(one, dict) or not isinstance(other, dict):
        raise SchemaError("what allOf, anyOf and oneOf list must be schemas")
    merged = dict(one)
    for keyword, value in other.items():
        merged[keyword] = joined(keyword, merged[keyword], value) if keyword in merged else value
    return closed(merged, one, other)


def joined(keyword: str, one: Any, other: Any) -> Any:
    """One keyword that both schemas have."""
    if one == other:
        return one
    join = JOINS.get(keyword)
    if join is None:
        return other
    try:
        return join(one, other)
    except (TypeError, AttributeError) as error:
        raise SchemaError(f"{keyword} has a value that it cannot have") from error


def closed(merged: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Without the optional properties that one of the two does not know and forbids."""
    for schema in (one, other):
        named = merged.get("properties")
        if schema.get("additionalProperties") is False and isinstance(named, dict):
            known = schema.get("properties") or {}
            merged["properties"] = {key: value for key, value in named.items() if key in known}
    return merged


def join_types(one: Any, other: Any) -> list[str]:
    """Types that both allow; an integer is a number."""
    left, right = ([types] if isinstance(types, str) else list(types) for types in (one, other))
    both = [name for name in left if name in right]
    numeric = {"number", "integer"}
    if numeric & set(left) and numeric & set(right) and not numeric & set(both):
        both.append("integer")
    return both


def join_properties(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Properties of both; what both name must satisfy both."""
    joined_ones = {
        key: {"allOf": [one[key], other[key]]} for key in one.keys() & other.keys() if one[key] != other[key]
    }
    return {**one, **other, **joined_ones}


def join_branches(one: list[Any], other: list[Any]) -> list[Any]:
    """Every pair of alternatives."""
    if len(one) * len(other) > 100:
        raise SchemaError("it has too many combinations of alternatives for the simulator")
    return [merge(left, right) for left in one for right in other]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "type": join_types,
    "properties": join_properties,
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "enum": lambda one, other: [value for value in one if value in other],
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
    "items": lambda one, other: {"allOf": [one, other]},
    "additionalProperties": lambda one, other: (one is not False and other is not False) and {"allOf": [one, other]},
    "uniqueItems": lambda one, other: one or other,
    "anyOf": join_branches,
    "oneOf": join_branches,
    "allOf": lambda one, other: [*one, *other],
}
"""How a keyword that stands in both schemas becomes one; the others take the second's value."""
