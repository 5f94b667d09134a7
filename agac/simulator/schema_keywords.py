"""The keywords of JSON Schema that the simulator knows, and how two schemas become one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from agac.simulator.kinds import (
    LIST,
    OBJECT,
    TEXT,
    Fits,
    JsonObject,
    ValueKind,
    each,
    is_a,
    is_number,
    within,
)
from agac.simulator.schema_values import SchemaError, word_set

MAX_COMBINATIONS = 100


def listed(value: Any) -> list[Any]:
    """Returns a list, or a list of the one thing that is written instead."""
    return value if isinstance(value, list) else [value]


TYPES: dict[str, Fits] = {
    "object": is_a(dict),
    "array": is_a(list),
    "string": is_a(str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: TYPES["number"](value) and value == int(value),
    "boolean": is_a(bool),
    "null": lambda value: value is None,
}


def is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(TYPES["string"], value))


def join_types(one: Any, other: Any) -> list[str]:
    """Returns the types that both allow; an integer is a number."""
    left = listed(one)
    right = listed(other)
    both = [name for name in left if name in right]
    numeric = {"number", "integer"}
    if numeric & set(left) and numeric & set(right) and not numeric & set(both):
        both.append("integer")
    return both


def join_properties(one: JsonObject, other: JsonObject) -> JsonObject:
    """Returns the properties of both; what both name must satisfy both."""
    joined = {**one, **other}
    for key in one.keys() & other.keys():
        if one[key] != other[key]:
            joined[key] = join_schemas(one[key], other[key])
    return joined


def join_schemas(one: Any, other: Any) -> JsonObject:
    return {"allOf": [one, other]}


def join_additional(one: Any, other: Any) -> Any:
    return one is not False and other is not False and join_schemas(one, other)


def join_lists(one: list[Any], other: list[Any]) -> list[Any]:
    return [*one, *other]


def join_names(one: list[str], other: list[str]) -> list[str]:
    return [*one, *(name for name in other if name not in one)]


def join_values(one: list[Any], other: list[Any]) -> list[Any]:
    return [value for value in one if value in other]


def join_branches(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > MAX_COMBINATIONS:
        raise SchemaError("it has too many combinations of alternatives for the simulator")
    return [merge(left, right) for left in one for right in other]


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword, as far as the simulator knows it."""

    hints: str = ""
    """the type that a schema without one most likely means by it"""
    join: Callable[[Any, Any], Any] | None = None
    """how the values of two schemas become one; without it the second's counts"""
    kind: ValueKind | None = None
    """what its value must be"""
    is_sure: bool = True
    """false if every value must be validated before it is used"""


COUNT = ValueKind(
    lambda value: within(0)(value) and value == int(value), "a whole number of 0 or more"
)
NUMBER = ValueKind(is_number, "a number")
BRANCHES = ValueKind(
    lambda value: isinstance(value, list) and value != [], "a list with something in it"
)

KEYWORDS: dict[str, Keyword] = {
    "$ref": Keyword(),
    "type": Keyword(
        join=join_types,
        kind=ValueKind(each(lambda name: name in list(TYPES)), f"of {', '.join(TYPES)}"),
    ),
    "enum": Keyword(join=join_values, kind=LIST),
    "const": Keyword(),
    "anyOf": Keyword(join=join_branches, kind=BRANCHES),
    "oneOf": Keyword(join=join_branches, kind=BRANCHES, is_sure=False),
    "allOf": Keyword(join=join_lists, kind=BRANCHES, is_sure=False),
    "properties": Keyword("object", join_properties, OBJECT),
    "required": Keyword("object", join_names, ValueKind(is_names, "a list of property names")),
    "additionalProperties": Keyword("object", join_additional),
    "minProperties": Keyword("object", max, COUNT),
    "maxProperties": Keyword("object", min, COUNT),
    "items": Keyword("array", join_schemas),
    "prefixItems": Keyword("array", None, LIST),
    "minItems": Keyword("array", max, COUNT),
    "maxItems": Keyword("array", min, COUNT),
    "uniqueItems": Keyword("array", lambda one, other: one or other, is_sure=False),
    "contains": Keyword("array", is_sure=False),
    "minLength": Keyword("string", max, COUNT),
    "maxLength": Keyword("string", min, COUNT),
    "pattern": Keyword("string", None, TEXT),
    "format": Keyword("string"),
    "minimum": Keyword("number", max, NUMBER),
    "maximum": Keyword("number", min, NUMBER),
    "exclusiveMinimum": Keyword("number", max, NUMBER),
    "exclusiveMaximum": Keyword("number", min, NUMBER),
    "multipleOf": Keyword(
        "number", None, ValueKind(lambda value: is_number(value) and value > 0, "more than 0")
    ),
}
"""The keywords that say which values are right. Others make every value be validated."""

ANNOTATIONS = word_set(
    "$schema $id $anchor $comment $defs definitions title description default examples example "
    "deprecated readOnly writeOnly nullable contentEncoding contentMediaType"
)
"""Keywords that say nothing about it. (`nullable` allows null, and need not be used.)"""


def telling(schema: Any) -> JsonObject:
    """Returns a schema without its annotations; raises SchemaError for a wrong one.

    True is a schema that says nothing, false one that nothing satisfies.
    """
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        shown = json.dumps(schema)[:40]
        raise SchemaError(f"{shown} is not a schema; a schema is an object, true or false")
    for name, value in schema.items():
        kind = KEYWORDS[name].kind if name in KEYWORDS else None
        if kind is not None and not kind.fits(value):
            raise SchemaError(f"{name} must be {kind.wanted}")
    return {key: value for key, value in schema.items() if key not in ANNOTATIONS}


def is_sure(names: Iterable[str]) -> bool:
    """True if values of a schema with these keywords need not be validated."""
    return all(name in KEYWORDS and KEYWORDS[name].is_sure for name in names)


def read_types(schema: JsonObject) -> list[str]:
    """Returns the types a schema allows; without any, the one that its keywords fit, else text."""
    if "type" in schema:
        return listed(schema["type"])
    hinted = {KEYWORDS[name].hints for name in schema if name in KEYWORDS}
    likely = (name for name in ("object", "array", "string", "number") if name in hinted)
    return [next(likely, "string")]


def merge(one: Any, other: Any) -> JsonObject:
    """Returns a schema that holds where both do, as nearly as keywords allow.

    Its values are validated before use.
    """
    one = telling(one)
    other = telling(other)
    merged = dict(one)
    for name, value in other.items():
        join = KEYWORDS[name].join if name in KEYWORDS else None
        if name not in one or join is None:
            merged[name] = value
        elif one[name] != value:
            merged[name] = join(one[name], value)
    for schema in (one, other):
        drop_forbidden(merged, schema)
    return merged


def drop_forbidden(merged: JsonObject, part: JsonObject) -> None:
    """Drops the optional properties that a part does not know and forbids."""
    properties = merged.get("properties")
    if part.get("additionalProperties") is False and isinstance(properties, dict):
        known = part.get("properties") or {}
        merged["properties"] = {key: properties[key] for key in properties if key in known}


def resolve(document: Any, reference: Any) -> Any:
    """Returns what a reference such as `#/$defs/item` points at; raises SchemaError."""
    quoted = f"$ref {json.dumps(reference)[:80]}"
    is_inner = isinstance(reference, str) and (reference + "/").startswith("#/")
    if not is_inner:
        raise SchemaError(f"{quoted} must point into the schema itself, such as #/$defs/item")
    target = document
    for step in reference.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            raise SchemaError(f"{quoted} points at nothing")
    if not isinstance(target, dict | bool):
        raise SchemaError(f"{quoted} points at something that is no schema")
    return target


def validity(schema: Any) -> Callable[[Any], bool]:
    """Returns what tells whether a value satisfies a schema, by the reference implementation."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and most schemas do without
    from jsonschema.exceptions import SchemaError as Wrong
    from jsonschema.validators import validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Wrong as error:
        raise SchemaError(error.message) from error
    validator = kind(schema)
    return lambda value: bool(validator.is_valid(value))
