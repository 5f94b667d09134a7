"""JSON Schemas as data: are they valid, and do they stay at home."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agac.spec.schemaplaces import LOCAL_HOPS, target
from agac.spec.suggest import did_you_mean, nearest
from agac.spec.yamlfile import Path_

_JSON_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_DATA = frozenset({"enum", "const", "default", "examples"})
_REFS = ("$ref", "$dynamicRef")

Fault = tuple[Path_, str]


def schema_faults(body: dict[str, Any]) -> list[Fault]:
    """Everything wrong with a JSON Schema (draft 2020-12), as (path, sentence). Nothing is ever fetched."""
    faults = _meta_faults(body)
    for path, sub in subschemas(body):
        faults += _reference_faults(body, sub, path)
        if isinstance(pattern := sub.get("pattern"), str):
            faults += _pattern_fault(pattern, (*path, "pattern"))
    return faults


def subschemas(schema: Any, path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every mapping of a schema that can hold keywords, itself first; data such as `enum` and `default` is left out."""
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key not in _DATA or (path and path[-1] in ("properties", "$defs", "definitions")):
                yield from subschemas(value, (*path, key))
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from subschemas(value, (*path, index))


def _meta_faults(body: dict[str, Any]) -> list[Fault]:
    from jsonschema import Draft202012Validator  # costs 0.1 s, and most commands check no schema

    validator = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    faults: dict[Path_, str] = {}
    for error in validator.iter_errors(body):
        path = tuple(error.absolute_path)
        faults.setdefault(path, _meta_sentence(path, error.instance, error.message))
    return list(faults.items())


def _meta_sentence(path: Path_, value: Any, message: str) -> str:
    if path[-1:] == ("type",) and isinstance(value, str):
        return f"unknown type {value!r}; {did_you_mean(value, _JSON_TYPES, 'types')}"
    short = message if len(message) <= 160 else message[:159] + "…"
    return f"not a valid JSON Schema: {short}"


def _reference_faults(root: dict[str, Any], sub: dict[str, Any], path: Path_) -> Iterator[Fault]:
    for key in _REFS:
        ref = sub.get(key)
        if not isinstance(ref, str):
            continue
        if not ref.startswith("#"):
            yield (*path, key), f"{ref!r} points outside this schema; only #/… is followed, nothing is ever fetched"
        elif (ref.startswith("#/") or ref == "#") and target(root, ref) is None:
            yield (*path, key), f"{ref!r} does not exist; {_near_ref(root, ref)}"
        elif _circle(root, sub):
            yield (*path, key), f"{ref!r} leads back to itself"


def _circle(root: dict[str, Any], sub: Any) -> bool:
    for _ in range(LOCAL_HOPS):
        if not isinstance(sub, dict) or not isinstance(ref := sub.get("$ref"), str):
            return False
        sub = target(root, ref)
    return True


def _near_ref(root: dict[str, Any], ref: str) -> str:
    known = [f"#/{home}/{name}" for home in ("$defs", "definitions") for name in _mapping(root.get(home))]
    match = nearest(ref, known)
    return f"did you mean {match!r}?" if match else f"there is: {', '.join(known) or 'no $defs'}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pattern_fault(pattern: str, path: Path_) -> list[Fault]:
    try:
        re.compile(pattern)
    except re.error as error:
        return [(path, f"{pattern!r} is not a regular expression: {error}")]
    return []
