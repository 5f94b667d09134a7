"""What schemas say of the places in a value: fields, kinds of values, and whole numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

from agac.core.errors import Path_
from agac.core.types import Schema
from agac.spec.json_schema import (
    LOCAL_HOPS,
    OpenShape,
    alternatives,
    mapping_of,
    own_names,
    resolved,
    step,
    subschemas,
)

_KINDS = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip
NUMBERS = frozenset({"integer", "number"})


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the JSON types that a schema without references allows; none when it allows any."""
    values = _choices(schema)
    if values is not None:
        return frozenset(map(kind_of, values))
    kinds = schema.get("type")
    return frozenset([kinds] if isinstance(kinds, str) else kinds or ()) & _KINDS.keys()


def _choices(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """Returns the values that a schema lists, None when it lists none."""
    values: Sequence[Any] | None = schema.get(
        "enum", [schema["const"]] if "const" in schema else None
    )
    return values


def kind_of(value: Any) -> str:
    """Returns the JSON type of a value; whole numbers are `integer`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
    return "object" if isinstance(value, Mapping) else "array"


def allows(schema: Mapping[str, Any], value: Any) -> bool:
    """True if a value that the schema allows can be equal to `value`, as CEL compares: 1 and 1.0
    are the same."""
    kind = kind_of(value)
    values = _choices(schema)
    if values is not None:
        return any(kind_of(one) == kind and one == value for one in values)
    return kind in kinds_of(schema) or (kind == "integer" and "number" in kinds_of(schema))


def kinds_in_words(kinds: Iterable[str]) -> str:
    """JSON types as they are said: `a number or text`."""
    return " or ".join(_KINDS[kind] for kind in sorted(kinds))


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What is known of a place in values that a schema describes."""

    body: Mapping[str, Any]
    """The schema of the whole value."""
    path: tuple[str, ...] = ()
    """The way to the place; numbers are positions in lists."""
    only: tuple[tuple[str, ...], ...] | None = None
    """The only ways in it; None: all that the schema has."""

    def names(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """Returns the names that a way may go on with after `rest`: none when it ends there, None
        when they are not known. Listed properties count as all there are, unless the schema says
        `additionalProperties` or the like itself."""
        way = tuple(rest)
        below = [
            one[len(way)]
            for one in self.only or ()
            if len(one) > len(way) and one[: len(way)] == way
        ]
        if below:
            return frozenset(below)
        try:
            return frozenset().union(
                *(own_names(self.body, schema) for schema in self._schemas(way))
            )
        except OpenShape:
            return None

    def _schemas(self, rest: Iterable[str]) -> list[Any]:
        """Returns the schemas of what stands at the end of the way `rest`. Raises OpenShape."""
        at: list[Any] = [self.body]
        for part in (*self.path, *rest):
            at = [inner for schema in at for inner in step(self.body, schema, part)]
        return at

    def missing(self, rest: Sequence[str | int]) -> tuple[int, frozenset[str]] | None:
        """Returns which part of the way `rest` is a name that does not exist, and the names that
        do; None: none is known to be missing. Positions in lists are not judged."""
        way = [str(part) for part in rest]
        for depth, part in enumerate(rest):
            if isinstance(part, int):
                continue
            names = self.names(way[:depth])
            if names is None or part not in names:
                return None if names is None else (depth, names)
        return None

    def optional(self, rest: Sequence[str]) -> int | None:
        """Returns which part of the way `rest` is a name that values may lack, as far as it is
        known: a field that a schema lists and does not require, or one of what may be something
        else than an object, such as null."""
        for depth, part in enumerate(rest):
            values = self.values(rest[:depth])
            if values is None:
                return None
            objects = [one for one in values if part in one.get("properties", {})]
            if any(part not in one.get("required", ()) for one in objects):
                return depth
            if objects and any("null" in kinds_of(one) for one in values):
                return depth
        return None

    def values(self, rest: Iterable[str] = ()) -> Sequence[Mapping[str, Any]] | None:
        """Returns what may be at the end of the way `rest`; None if that is unknown."""
        try:
            found = [
                branch
                for schema in self._schemas(rest)
                for branch in alternatives(self.body, schema)
            ]
        except OpenShape:
            return None
        return found if found and all(map(kinds_of, found)) else None

    def kinds(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """Returns the JSON types of what may stand there; None when they are not known."""
        values = self.values(rest)
        if values is None:
            return None
        return frozenset().union(*map(kinds_of, values))

    def inside(self, rest: Iterable[str]) -> FieldShape:
        """Returns the shape at the end of the way `rest`."""
        return FieldShape(self.body, (*self.path, *rest))

    def limited(self, ways: Iterable[tuple[str, ...]]) -> FieldShape:
        """Returns the same where only these ways into it are there."""
        only = tuple(ways)
        return self if () in only else replace(self, only=only)


UNKNOWN = FieldShape({})
TEXT = FieldShape({"type": "string"})
WHOLE_NUMBER = FieldShape({"type": "integer"})
SINGLE = FieldShape({"type": ["string", "number", "integer", "boolean", "null"]})
"""A cell of a table that holds no structures."""


# Whole numbers. To JSON Schema 2.0 is an integer as 2 is; to CEL, Python and databases it is
# another kind of number.

_MOST_KNOWN = 10_000
_EXACT = 2**63
"""From here on a whole number is no longer one to CEL."""


class WholeNumbers:
    """Where a schema says that a value is an integer."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._root = body
        nodes = [sub for _, sub in subschemas(body)]
        self._has_integers = any("integer" in kinds_of(sub) for sub in nodes)
        # places of a list from this one on have the same schema
        self._most_places = max((len(sub.get("prefixItems") or ()) for sub in nodes), default=0)
        self._known: dict[Path_, bool] = {}

    def of(self, value: Any) -> Any:
        """Returns the valid value, with 2 for a 2.0 that the schema calls an integer; the same
        object where nothing changes."""
        try:
            return self._written(value, ()) if self._has_integers else value
        except RecursionError:  # nested more deeply than anybody looks
            return value

    def _written(self, value: Any, at: Path_) -> Any:
        if isinstance(value, float):
            is_whole = value.is_integer() and abs(value) < _EXACT and self._is_integer(at)
            return int(value) if is_whole else value
        if isinstance(value, dict):
            fields = {name: self._written(inner, (*at, name)) for name, inner in value.items()}
            if any(fields[name] is not value[name] for name in fields):
                return fields
            return value
        if isinstance(value, list):
            items = [
                self._written(inner, (*at, min(n, self._most_places)))
                for n, inner in enumerate(value)
            ]
            return items if any(map(is_not, items, value)) else value
        return value

    def _is_integer(self, at: Path_) -> bool:
        if at not in self._known:
            if len(self._known) >= _MOST_KNOWN:  # an object may have other names in each row
                self._known.clear()
            self._known[at] = self._says_integer(self._root, at, 0)
        return self._known[at]

    def _says_integer(self, schema: Any, way: Path_, depth: int) -> bool:
        """True if what is at the end of the way is an integer in every value that the schema
        allows there, if it is a number."""
        found = resolved(self._root, schema)
        if found is None or depth > LOCAL_HOPS:
            return False
        if way:
            inner = _members_at(found, way[0])
            if inner and all(self._says_integer(one, way[1:], depth) for one in inner):
                return True
        elif kinds_of(found) & NUMBERS == {"integer"}:
            return True
        if any(self._says_integer(one, way, depth + 1) for one in found.get("allOf") or ()):
            return True
        holds: Set[str]
        if not way:
            holds = NUMBERS
        elif isinstance(way[0], str):
            holds = {"object"}
        else:
            holds = {"array"}
        return any(
            self._each_says_integer(found.get(word) or (), way, depth, holds)
            for word in ("anyOf", "oneOf")
        )

    def _each_says_integer(
        self, choices: Sequence[Any], way: Path_, depth: int, holds: Collection[str]
    ) -> bool:
        """The same of every alternative that may be meant; False when none may."""
        resolved_choices = [resolved(self._root, one) or {} for one in choices]
        meant = [
            one
            for one in resolved_choices
            if not kinds_of(one) or not kinds_of(one).isdisjoint(holds)
        ]
        return bool(meant) and all(self._says_integer(one, way, depth + 1) for one in meant)


def integers_of(
    schemas: Mapping[str, Schema | None], names: Iterable[str]
) -> dict[str, WholeNumbers]:
    """Returns where the schemas of these names have integers."""
    named = ((name, schemas.get(name)) for name in names)
    return {name: WholeNumbers(schema.body) for name, schema in named if schema is not None}


def _members_at(schema: Mapping[str, Any], part: str | int) -> list[Any]:
    """Returns the schemas of which one is that of the member of an object, or of the element of a
    list."""
    if isinstance(part, int):
        first = schema.get("prefixItems") or ()
        return [first[part] if part < len(first) else schema.get("items")]
    properties = mapping_of(schema.get("properties"))
    if part in properties:
        return [properties[part]]
    others = [
        *mapping_of(schema.get("patternProperties")).values(),
        schema.get("additionalProperties"),
    ]
    return [one for one in others if one is not False]
