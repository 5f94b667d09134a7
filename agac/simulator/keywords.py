"""Single keywords of a JSON Schema, read strictly: each gives a value of one type or raises SchemaError."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from agac.simulator.merging import SchemaError
from agac.simulator.quantities import Number

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
HINTS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Which type a schema without one most likely means."""


def number(schema: dict[str, Any], *, whole: bool) -> Number:
    """A number, or an integer when `whole`."""
    low, over = bound(schema, "minimum", "exclusiveMinimum", max)
    high, under = bound(schema, "maximum", "exclusiveMaximum", min)
    step = number_of(schema, "multipleOf")
    if step is not None and step <= 0:
        raise SchemaError("multipleOf must be more than 0")
    return Number(whole, low, high, over, under, step)


def bound(
    schema: dict[str, Any], within: str, beyond: str, tighter: Callable[[Fraction, Fraction], Fraction]
) -> tuple[Fraction | None, bool]:
    """The tighter of an inclusive and an exclusive bound, and whether it is the exclusive one."""
    inclusive, exclusive = number_of(schema, within), number_of(schema, beyond)
    if inclusive is None or exclusive is None:
        return (inclusive, False) if exclusive is None else (exclusive, True)
    return (exclusive, True) if tighter(inclusive, exclusive) == exclusive else (inclusive, False)


def number_of(schema: dict[str, Any], keyword: str) -> Fraction | None:
    """A number keyword, exactly as it was written; None when it is not there."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SchemaError(f"{keyword} must be a number")
    return Fraction(repr(value))


def count_of(schema: dict[str, Any], keyword: str, default: float) -> float:
    """A keyword that counts."""
    value = schema.get(keyword)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise SchemaError(f"{keyword} must be a whole number of 0 or more")
    return int(value)


def list_of(schema: dict[str, Any], keyword: str, least: int = 1) -> list[Any]:
    """A keyword that lists."""
    value = schema.get(keyword, [])
    if not isinstance(value, list) or len(value) < least:
        raise SchemaError(f"{keyword} must be a list" + (" with something in it" if least else ""))
    return value


def read_types(schema: dict[str, Any]) -> list[str]:
    """The types a schema allows; without any, the one that its keywords fit, else text."""
    said = schema.get("type")
    if said is None:
        return [next((name for name, keywords in HINTS.items() if keywords & set(schema)), "string")]
    types = said if isinstance(said, list) else [said]
    for name in types:
        if name not in TYPES:
            raise SchemaError(f"type {json.dumps(name)[:40]} does not exist; known: {', '.join(TYPES)}")
    return types


def has_type(value: Any, name: str) -> bool:
    """Whether a JSON value is of a type."""
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return name == "number" or value == int(value)
