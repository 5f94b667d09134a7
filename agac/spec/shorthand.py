"""The short way to say what a result looks like: `{sentiment: "positive|neutral|negative", tags: "string[]?"}`.

A type is `string`, `integer`, `number`, `boolean`, `object` or `array`; `a|b|c` is a choice of texts; `T[]` a list,
`(a|b)[]` a list of choices; a trailing `?` makes the field optional. A mapping is an object, a list of one an array.
"""

from __future__ import annotations

from typing import Any

from agac.core.errors import Path_
from agac.core.types import JSONValue
from agac.spec.suggest import nearest

TYPES = ("string", "integer", "number", "boolean", "object", "array")
_ALIASES = {"str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean"}
_ALIASES |= {"dict": "object", "map": "object", "list": "array", "date": "string", "enum": "a|b|c"}
# fmt: off
_KEYWORDS = frozenset({
    "$schema", "$id", "$ref", "$defs", "$comment", "$anchor", "$dynamicRef", "definitions", "type",
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "enum", "const",
    "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "title", "description", "default", "examples",
    "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "deprecated", "readOnly", "writeOnly", "dependentRequired", "dependentSchemas",
    "unevaluatedProperties", "unevaluatedItems", "minContains", "maxContains",
})
# fmt: on

Fault = tuple[Path_, str]
"""What is wrong at a path within the shorthand."""


def is_json_schema(body: dict[str, Any]) -> bool:
    """Whether a mapping is JSON Schema rather than shorthand, where `type` may also be the name of a field."""
    if isinstance(body.get("properties"), dict) or isinstance(body.get("$ref"), str) or "$schema" in body:
        return True
    if any(isinstance(body.get(key), list) for key in ("anyOf", "oneOf", "allOf", "enum")):
        return True
    kind = body.get("type")
    names = kind if isinstance(kind, list) else [kind]
    return all(name in (*TYPES, "null") for name in names) and body.keys() <= _KEYWORDS


def expand_shorthand(body: dict[str, Any], path: Path_ = ()) -> tuple[dict[str, JSONValue], list[Fault]]:
    """The JSON Schema of an object with these fields: closed, and with every field required that has no `?`."""
    faults: list[Fault] = []
    properties: dict[str, JSONValue] = {}
    required: list[str] = []
    for name, value in body.items():
        text = value.strip() if isinstance(value, str) else value
        if name.endswith("?"):
            faults.append(((*path, name), _optional_key(name, text)))
            continue
        optional = isinstance(text, str) and text.endswith("?")
        if not optional:
            required.append(name)
        properties[name] = _field(text[:-1] if optional else text, (*path, name), faults)
    schema: dict[str, JSONValue] = {"type": "object", "properties": properties}
    return {**schema, "required": required, "additionalProperties": False}, faults


def _optional_key(name: str, value: Any) -> str:
    meant = name.rstrip("? ")
    if isinstance(value, str):
        return f'the ? of an optional field stands after its type; write {meant}: "{value.rstrip("?")}?"'
    return f"a ? is not part of a field's name; make the whole a JSON Schema and leave {meant!r} out of required"


def _schema_inside(value: dict[str, Any], path: Path_) -> str | None:
    """A sentence when the mapping of a field reads as JSON Schema: the shorthand has no such words."""
    kind = value.get("type")
    if kind not in TYPES or not value.keys() <= _KEYWORDS:
        return None
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    field = f"[{kind}]" if path[-1:] == (0,) else kind
    says_it_all = len(value) == 1 or (kind not in ("object", "array") and "enum" not in value)
    short = f"write {name}: {field}, or " if says_it_all else ""
    return (
        f"this is the shorthand, in which {name!r} would be an object with a field 'type'; "
        f"{short}make the whole a JSON Schema with type: object and properties"
    )


def _field(value: Any, path: Path_, faults: list[Fault]) -> JSONValue:
    if isinstance(value, str):
        return _type(value.strip(), path, faults)
    if isinstance(value, dict) and value:
        if (fault := _schema_inside(value, path)) is not None:
            faults.append((path, fault))
            return {}
        inner, inner_faults = expand_shorthand(value, path)
        faults += inner_faults
        return inner
    if isinstance(value, list) and len(value) == 1:
        return {"type": "array", "items": _field(value[0], (*path, 0), faults)}
    faults.append((path, 'expected a type such as string, "a|b|c", "string[]", or a mapping of fields'))
    return {}


def _type(text: str, path: Path_, faults: list[Fault]) -> JSONValue:
    if text.endswith("[]"):
        return {"type": "array", "items": _type(text[:-2].strip(), path, faults)}
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if "|" in text:
        return _choice(text, path, faults)
    if text in TYPES:
        return {"type": text}
    meant = _ALIASES.get(text.lower()) or nearest(text, TYPES)
    remedy = f"did you mean {meant!r}?" if meant else f"types: {', '.join(TYPES)}; a choice is written a|b|c"
    faults.append((path, f"unknown type {text!r}; {remedy}" if text else f"has no type; {remedy}"))
    return {}


def _choice(text: str, path: Path_, faults: list[Fault]) -> JSONValue:
    choices = [choice.strip() for choice in text.split("|")]
    if not all(choices):
        faults.append((path, f"{text!r} has an empty choice; write the choices as a|b|c"))
    if mixed := [choice for choice in choices if choice in (*TYPES, "null") or choice.endswith(("[]", "?"))]:
        remedy = f"write an optional field as '{choices[0]}?'" if "null" in mixed else "write a JSON Schema with anyOf"
        faults.append((path, f"{text!r} mixes texts to choose from with the type {mixed[0]!r}; {remedy}"))
    twice = next((choice for choice in choices if choices.count(choice) > 1), None)
    if twice:
        faults.append((path, f"{text!r} names {twice!r} twice"))
    return {"type": "string", "enum": choices}
