"""Following a JSON Schema to a place in the values that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from agac.core.errors import Path_

_DATA = frozenset({"enum", "const", "default", "examples"})

LOCAL_HOPS = 20
"""More references in a row than this only go round in a circle."""


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


def target(root: Mapping[str, Any], ref: str) -> Any:
    """The part of the schema that a local reference (`#/…`, `#anchor` or `#`) points at, None if there is none."""
    anchor, *parts = unquote(ref.removeprefix("#")).split("/")
    found: Any = root if not anchor else _anchored(root, anchor)
    for part in parts:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _anchored(root: Mapping[str, Any], anchor: str) -> dict[str, Any] | None:
    return next((sub for _, sub in subschemas(root) if anchor in (sub.get("$anchor"), sub.get("$dynamicAnchor"))), None)


def property_names(body: dict[str, Any], path: Iterable[str] = ()) -> frozenset[str] | None:
    """The names that `${stage.<path>.…}` may go on with; None when the schema leaves them open.

    Properties that are listed count as all there are, unless the schema says `additionalProperties` or the like
    itself. An empty set: the value at `path` has no fields (it is a text, say). Numbers in `path` index arrays.
    """
    at = schemas_at(body, path)
    if at is None:
        return None
    names: set[str] = set()
    for schema in at:
        own = _own_names(body, schema)
        if own is None:
            return None
        names |= own
    return frozenset(names)


def schemas_at(body: dict[str, Any], path: Iterable[str]) -> list[Any] | None:
    """The schemas of the value at `path`; None when they are left open."""
    at: list[Any] = [body]
    for part in path:
        stepped = [_step(body, schema, part) for schema in at]
        if any(step is None for step in stepped):
            return None
        at = [schema for step in stepped if step is not None for schema in step]
    return at


def resolved(root: Mapping[str, Any], schema: Any) -> dict[str, Any] | None:
    """The schema that a reference leads to, or the schema itself; None if it leads nowhere or is no mapping."""
    for _ in range(LOCAL_HOPS):
        if not isinstance(schema, dict):
            return None
        if not isinstance(ref := schema.get("$ref"), str):
            return schema
        schema = target(root, ref) if ref.startswith("#") else None
    return None


def alternatives(root: dict[str, Any], schema: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The alternatives of a schema, references followed; None when they cannot be told."""
    found = resolved(root, schema)
    if found is None or depth > LOCAL_HOPS or "allOf" in found or "if" in found:
        return None
    choices = found.get("anyOf") or found.get("oneOf")
    if not isinstance(choices, list) or "properties" in found:
        return [found]
    branches: list[dict[str, Any]] = []
    for alternative in choices:
        inner = alternatives(root, alternative, depth + 1)
        if inner is None:
            return None
        branches += inner
    return branches


def _own_names(root: dict[str, Any], schema: Any) -> frozenset[str] | None:
    branches = alternatives(root, schema)
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
    branches = alternatives(root, schema)
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
