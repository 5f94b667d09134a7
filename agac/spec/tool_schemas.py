"""What models are told of tools: names and schemas that every provider takes, and arguments mapped
back to the tool's.

Sources, November 2026:
- platform.openai.com/docs/guides/function-calling: "object schema missing properties", "array
  schema missing items",
  names of `^[a-zA-Z0-9_-]{1,64}$`
- platform.claude.com/docs/en/agents-and-tools/tool-use: the same names for properties
- ai.google.dev/gemini-api/docs/function-calling: "items: missing field"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from agac.core.errors import Path_, key_path
from agac.core.keys import digest
from agac.core.types import JSONValue

MAX_NAME = 64  # characters of a tool's or a property's name that every provider takes

_TAKEN = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME}}}\Z")
_MARK = 9  # characters of a mark that keeps names apart, with its `_`

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
"""Keywords whose values hold schemas: by name, in a list, or one."""


class SentParameters(NamedTuple):
    """The schema of a tool's arguments as models are told it."""

    schema: Mapping[str, JSONValue]
    """The tool's own where all providers take it."""
    own_names: Mapping[str, str]
    """The tool's own names of properties by those that models are told, where they differ."""
    changes: tuple[str, ...]
    """What differs, in words."""

    def restored(self, value: JSONValue) -> Any:
        """Arguments of a model with the tool's own names of properties."""
        if not self.own_names:
            return value
        if isinstance(value, list):
            return [self.restored(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {self.own_names.get(name, name): self.restored(one) for name, one in value.items()}


def safe_name(name: str) -> str:
    """Returns a name of letters, digits, `_` and `-`, as providers want it."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
    if len(safe) <= MAX_NAME:
        return safe
    return f"{safe[: MAX_NAME - _MARK]}{mark_of(name)}"


def sent_name(name: str) -> str:
    """Returns the name of a tool as models are told it: two tools never get the same one."""
    return name if _TAKEN.match(name) else marked_name(name)


def marked_name(name: str) -> str:
    """Returns a safe name with a mark that no other name has."""
    return f"{safe_name(name)[: MAX_NAME - _MARK]}{mark_of(name)}"


def mark_of(name: str) -> str:
    """Returns what distinguishes a name from others that look alike: `_` and eight digits."""
    return f"_{digest(name).hex()[:8]}"


def sent_parameters(schema: Mapping[str, JSONValue]) -> SentParameters:
    """Returns a schema of arguments as models are told it: an object has `properties`, an array
    `items`, and names of properties are within what every provider takes."""
    told = _told_names(schema)
    changes = [f"the property {name!r} as {other}" for name, other in told.items()]
    try:
        made = _sent(schema, told, (), changes.append)
    except RecursionError:  # nested more deeply than can be walked
        return SentParameters(schema, {}, ())
    if not changes:
        return SentParameters(schema, {}, ())
    return SentParameters(made, {other: name for name, other in told.items()}, tuple(changes))


def _told_names(schema: Mapping[str, JSONValue]) -> dict[str, str]:
    """Returns what models are given instead of each name of a property that not every provider
    takes."""
    try:
        nodes = list(_nodes(schema))
    except RecursionError:
        return {}
    if any("/properties/" in str(node.get("$ref", "")) for node in nodes):
        return {}  # a pointer names a property by its own name
    names = {name: None for node in nodes for name in _mapping(node.get("properties"))}
    told: dict[str, str] = {}
    for name in names:
        if not _TAKEN.match(name):
            plain = safe_name(name)
            is_free = plain not in names and plain not in told.values()
            told[name] = plain if is_free else marked_name(name)
    return told


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields a schema and all within it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in _MAPS:
        for one in _mapping(schema.get(key)).values():
            yield from _nodes(one)
    for key in _LISTS:
        for one in schema[key] if isinstance(schema.get(key), list) else ():
            yield from _nodes(one)
    for key in _SINGLE:
        yield from _nodes(schema.get(key))


def _sent(node: Any, told: Mapping[str, str], at: Path_, note: Callable[[str], object]) -> Any:
    """One schema as models are told it. `at`: where it is; `note` is told what is filled in."""
    if not isinstance(node, dict):
        return node
    made = dict(node)
    for key in _MAPS:
        if isinstance(node.get(key), dict):
            renamed = told if key == "properties" else {}
            made[key] = {
                renamed.get(name, name): _sent(one, told, (*at, key, name), note)
                for name, one in node[key].items()
            }
    for key in _LISTS:
        if isinstance(node.get(key), list):
            made[key] = [
                _sent(one, told, (*at, key, index), note) for index, one in enumerate(node[key])
            ]
    for key in _SINGLE:
        if isinstance(node.get(key), dict):
            made[key] = _sent(node[key], told, (*at, key), note)
    _rename_required(made, told)
    return _filled(made, at, note)


def _rename_required(made: dict[str, Any], told: Mapping[str, str]) -> None:
    required = made.get("required")
    if isinstance(required, list):
        made["required"] = [
            told.get(name, name) if isinstance(name, str) else name for name in required
        ]
    dependent = made.get("dependentRequired")
    if isinstance(dependent, dict):
        made["dependentRequired"] = {
            told.get(name, name): [told.get(one, one) for one in others]
            for name, others in dependent.items()
        }


def _filled(made: dict[str, Any], at: Path_, note: Callable[[str], object]) -> dict[str, Any]:
    """With the keywords that say nothing and that some providers want."""
    if isinstance(made.get("type"), list):
        kinds = made["type"]
    else:
        kinds = [made.get("type")]
    where = key_path(at) or "the arguments"
    if "object" in kinds and not isinstance(made.get("properties"), dict):
        note(f"{where} with empty `properties`")
        made["properties"] = {}
    if (
        "array" in kinds
        and not isinstance(made.get("items"), (dict, list))
        and made.get("items") is not False
    ):
        note(f"{where} with `items` of any kind")
        made["items"] = {}
    return made


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
