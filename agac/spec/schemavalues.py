"""Which values a result may have at a place, as far as its schema says; words for comparisons that cannot be met."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agac.spec.schemaplaces import alternatives, schemas_at
from agac.spec.suggest import listed, nearest

_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_NUMBERS = frozenset({"integer", "number"})


def values_at(body: dict[str, Any], path: Iterable[str]) -> list[Mapping[str, Any]] | None:
    """The alternatives, references followed, for the value at `path`; None when they are left open."""
    at = schemas_at(body, path)
    if at is None:
        return None
    found: list[Mapping[str, Any]] = []
    for schema in at:
        branches = alternatives(body, schema)
        if branches is None or not all(kinds_of(branch) for branch in branches):
            return None
        found += branches
    return found or None


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema without references allows; none when it allows any."""
    if "const" in schema or "enum" in schema:
        return frozenset(kind_of(value) for value in schema.get("enum", (schema.get("const"),)))
    kinds = schema.get("type")
    return frozenset([kinds] if isinstance(kinds, str) else kinds or ()) & _KINDS.keys()


def kind_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are `integer`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def allows(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value that the schema allows can be equal to `value`, as CEL compares: 1 and 1.0 are the same."""
    if "const" in schema or "enum" in schema:
        return any(
            kind_of(one) == kind_of(value) and one == value for one in schema.get("enum", (schema.get("const"),))
        )
    kind = kind_of(value)
    return kind in kinds_of(schema) or (kind == "integer" and "number" in kinds_of(schema))


def kinds_in_words(kinds: Iterable[str]) -> str:
    """JSON types as they are said: `a number or text`."""
    return " or ".join(_KINDS[kind] for kind in sorted(kinds))


def verdict(sign: str, name: str, schemas: list[Mapping[str, Any]], value: Any) -> str | None:
    """What is wrong with comparing a value of these schemas with `value`, None when it may be met."""
    kinds = frozenset().union(*(kinds_of(one) for one in schemas))
    if sign in ("==", "!=", "in"):
        if any(allows(one, value) for one in schemas):
            return None
        end = (
            "is always true" if sign == "!=" else "names a value that never comes" if sign == "in" else "is never true"
        )
        return f"{end}: {_why(name, schemas, kinds, value)}"
    wanted = _NUMBERS if type(value) in (int, float) else {"string"} if isinstance(value, str) else {"boolean"}
    return None if kinds & wanted else f"cannot be compared: {_why(name, schemas, kinds, value)}"


def _why(name: str, schemas: list[Mapping[str, Any]], kinds: frozenset[str], value: Any) -> str:
    choices = [one for schema in schemas for one in schema.get("enum", ())]
    if choices and all("enum" in schema for schema in schemas):
        texts = [one for one in choices if isinstance(one, str)]
        near = nearest(value, texts) if isinstance(value, str) else None
        meant = f"; did you mean {json.dumps(near, ensure_ascii=False)}?" if near else ""
        return f"{name} is one of {listed(json.dumps(one, ensure_ascii=False) for one in choices)}{meant}"
    remedy = ""
    if kinds == {"string"} and type(value) in (int, float):
        remedy = f"; write `double({name})`"
    elif kinds == {"string"} and isinstance(value, bool):
        remedy = f'; write `{name} == "{json.dumps(value)}"`'
    elif kinds == {"boolean"} and isinstance(value, str):
        remedy = f"; write `{name}` or `!{name}`"
    elif kinds <= _NUMBERS and isinstance(value, str):
        remedy = "; write the number without quotes"
    return f"{name} is {kinds_in_words(kinds) or 'something else'}{remedy}"
