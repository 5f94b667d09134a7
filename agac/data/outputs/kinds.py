"""What the values of a column are, seen from the values themselves and from the schema that they satisfy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Any

from agac.core.types import JSONValue
from agac.spec.schemaplaces import resolved

TEXT_BIT, _BOOLEAN, _SMALL, _LONG, _HUGE, _FLOAT, _NESTED = (1 << place for place in range(7))
_EXACT = 1 << 53  # up to here a double holds every integer
_INT64 = 1 << 63

_BITS: dict[type, int] = {str: TEXT_BIT, bool: _BOOLEAN, type(None): 0, dict: _NESTED, list: _NESTED}
_SCHEMA_BITS = {
    "string": TEXT_BIT, "boolean": _BOOLEAN, "integer": _SMALL, "number": _FLOAT,
    "array": _NESTED, "object": _NESTED, "null": 0,
}  # fmt: skip


class Kind(StrEnum):
    """What all values of a column are. MIXED ones have no common type that would keep them as they are."""

    NOTHING = "nothing"  # null, as far as anybody knows
    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"  # of 64 bits
    NUMBER = "number"  # a double
    NESTED = "nested"
    MIXED = "mixed"


def bits_of(value: JSONValue) -> int:
    """What one value adds to what is known of its column; a number that JSON cannot hold counts as null."""
    found = _BITS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, float):
        return _FLOAT if isfinite(value) else 0
    if -_EXACT <= value <= _EXACT:
        return _SMALL
    return _LONG if -_INT64 <= value < _INT64 else _HUGE


def kind_of(bits: int) -> Kind:
    """The kind of a column from all that was added. Integers with floats are numbers unless that would change one."""
    if bits & ~(_SMALL | _LONG) == 0:
        return Kind.INTEGER if bits else Kind.NOTHING
    if bits & ~(_SMALL | _FLOAT) == 0:
        return Kind.NUMBER
    return {TEXT_BIT: Kind.TEXT, _BOOLEAN: Kind.BOOLEAN, _NESTED: Kind.NESTED}.get(bits, Kind.MIXED)


def declared_fields(schema: Mapping[str, Any] | None) -> dict[str, int]:
    """The fields of the objects that a JSON Schema describes, in its order, with what it says of their values.

    Empty where it describes no object, or says nothing of its fields.
    """
    if schema is None:
        return {}
    properties = (resolved(schema, schema) or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _declared(body, schema) for name, body in properties.items()}


def _declared(body: Any, root: Mapping[str, Any], depth: int = 0) -> int:
    schema = resolved(root, body) or {}
    types = schema.get("type", [])
    bits = 0
    for name in [types] if isinstance(types, str) else types:
        bits |= _SCHEMA_BITS.get(name, 0)
    if not types:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        for value in choices:
            bits |= bits_of(value)
        for other in [*schema.get("anyOf", []), *schema.get("oneOf", [])] if depth < 20 else []:
            bits |= _declared(other, root, depth + 1)
    return bits
