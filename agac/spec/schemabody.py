"""JSON Schemas as data: whether they are valid, point at nothing outside, and can be compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from agac.spec.schemaplaces import LOCAL_HOPS, subschemas, target
from agac.spec.suggest import did_you_mean, nearest

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

    from agac.core.errors import Path_

_JSON_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_REFS = ("$ref", "$dynamicRef")

Fault: TypeAlias = "tuple[Path_, str]"


def compiled(body: dict[str, Any]) -> Draft202012Validator:
    """The validator of a JSON Schema (draft 2020-12, whatever its `$schema` says): formats are checked, and nothing
    is ever fetched. Raises ValueError for a schema that cannot be compiled."""
    from jsonschema_rs import Draft202012Validator  # costs 0.04 s, and most commands check no schema

    return Draft202012Validator(body, validate_formats=True, offline=True)


def schema_faults(body: dict[str, Any]) -> list[Fault]:
    """Everything wrong with a JSON Schema (draft 2020-12), as (path, sentence). Nothing is ever fetched."""
    faults = _meta_faults(body)
    for path, sub in subschemas(body):
        faults += _reference_faults(body, sub, path)
        faults += _pattern_faults(sub, path)
    return faults or _compile_faults(body)


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
        elif target(root, ref) is None:
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


def _pattern_faults(sub: dict[str, Any], path: Path_) -> Iterator[Fault]:
    if isinstance(pattern := sub.get("pattern"), str) and (fault := _pattern_fault(pattern)):
        yield (*path, "pattern"), fault
    for name in _mapping(sub.get("patternProperties")):
        if fault := _pattern_fault(name):
            yield (*path, "patternProperties", name), fault


def _pattern_fault(pattern: str) -> str | None:
    """Why a pattern cannot be compiled, in Python's words where Python refuses it too."""
    try:
        compiled({"pattern": pattern})
    except ValueError:
        reason = "write it as in JavaScript, whose regular expressions JSON Schema uses"
    else:
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        reason = str(error)
    return f"{pattern!r} is not a regular expression: {reason}"


def _compile_faults(body: dict[str, Any]) -> list[Fault]:
    try:
        compiled(body)
    except ValueError as error:  # jsonschema_rs.ValidationError has the path, its other errors do not
        message = str(getattr(error, "message", error))
        return [(tuple(getattr(error, "instance_path", ())), f"this JSON Schema cannot be compiled: {message}")]
    return []
