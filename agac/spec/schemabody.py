"""JSON Schemas as data: are they valid, do they stay at home, and which fields do they declare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from agac.spec.suggest import did_you_mean, nearest
from agac.spec.yamlfile import Path_

_JSON_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_DATA = frozenset({"enum", "const", "default", "examples"})
_REFS = ("$ref", "$dynamicRef")
_LOCAL_HOPS = 20
"""More references in a row than this only go round in a circle."""

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
        elif (ref.startswith("#/") or ref == "#") and _target(root, ref) is None:
            yield (*path, key), f"{ref!r} does not exist; {_near_ref(root, ref)}"
        elif _circle(root, sub):
            yield (*path, key), f"{ref!r} leads back to itself"


def _circle(root: dict[str, Any], sub: Any) -> bool:
    for _ in range(_LOCAL_HOPS):
        if not isinstance(sub, dict) or not isinstance(ref := sub.get("$ref"), str):
            return False
        sub = _target(root, ref)
    return True


def _near_ref(root: dict[str, Any], ref: str) -> str:
    known = [f"#/{home}/{name}" for home in ("$defs", "definitions") for name in _mapping(root.get(home))]
    match = nearest(ref, known)
    return f"did you mean {match!r}?" if match else f"there is: {', '.join(known) or 'no $defs'}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _target(root: dict[str, Any], ref: str) -> Any:
    """What a local reference points at, None when there is nothing."""
    found: Any = root
    for part in ref.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _pattern_fault(pattern: str, path: Path_) -> list[Fault]:
    try:
        re.compile(pattern)
    except re.error as error:
        return [(path, f"{pattern!r} is not a regular expression: {error}")]
    return []


def property_names(body: dict[str, Any], path: Iterable[str] = ()) -> frozenset[str] | None:
    """The names that `${stage.<path>.…}` may go on with; None when the schema leaves them open.

    Properties that are listed count as all there are, unless the schema says `additionalProperties` or the like
    itself. An empty set: the value at `path` has no fields (it is a text, say). Numbers in `path` index arrays.
    """
    at: list[Any] = [body]
    for part in path:
        stepped = [_step(body, schema, part) for schema in at]
        if any(step is None for step in stepped):
            return None
        at = [schema for step in stepped if step is not None for schema in step]
    names: set[str] = set()
    for schema in at:
        own = _own_names(body, schema)
        if own is None:
            return None
        names |= own
    return frozenset(names)


def _resolved(root: dict[str, Any], schema: Any) -> dict[str, Any] | None:
    for _ in range(_LOCAL_HOPS):
        if not isinstance(schema, dict):
            return None
        if not isinstance(ref := schema.get("$ref"), str):
            return schema
        schema = _target(root, ref) if ref.startswith("#") else None
    return None


def _branches(root: dict[str, Any], schema: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The alternatives of a schema, references followed; None when they cannot be told."""
    found = _resolved(root, schema)
    if found is None or depth > _LOCAL_HOPS or "allOf" in found or "if" in found:
        return None
    alternatives = found.get("anyOf") or found.get("oneOf")
    if not isinstance(alternatives, list) or "properties" in found:
        return [found]
    branches: list[dict[str, Any]] = []
    for alternative in alternatives:
        inner = _branches(root, alternative, depth + 1)
        if inner is None:
            return None
        branches += inner
    return branches


def _own_names(root: dict[str, Any], schema: Any) -> frozenset[str] | None:
    branches = _branches(root, schema)
    if branches is None:
        return None
    names: set[str] = set()
    for branch in branches:
        if "properties" in branch:
            if branch.get("additionalProperties") not in (None, False) or branch.get("patternProperties"):
                return None
            names |= branch["properties"].keys()
        elif _may_hold(branch, "object") or _may_hold(branch, "array"):
            return None
    return frozenset(names)


def _step(root: dict[str, Any], schema: Any, part: str) -> list[Any] | None:
    """The schemas of the member `part`, none when there is no such member, None when that is left open."""
    branches = _branches(root, schema)
    if branches is None:
        return None
    found: list[Any] = []
    for branch in branches:
        properties = branch.get("properties", {})
        if part in properties:
            found.append(properties[part])
        elif part.isdecimal() and _may_hold(branch, "array"):
            found.append(branch.get("items", True))
        elif _own_names(root, branch) is None:
            return None
    return found


def _may_hold(schema: dict[str, Any], kind: str) -> bool:
    if "enum" in schema or "const" in schema:
        return False
    kinds = schema.get("type")
    return kinds is None or kind == kinds or (isinstance(kinds, list) and kind in kinds)
