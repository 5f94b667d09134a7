"""What is known of a field of the row: a place in values that a JSON Schema describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agac.spec.schemaplaces import property_names
from agac.spec.schemavalues import kinds_of, values_at


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What stands at `path` in values that `body` describes; numbers in a path are places in lists. `only`: of that no
    more than these ways into it are there."""

    body: Mapping[str, Any]
    path: tuple[str, ...] = ()
    only: tuple[tuple[str, ...], ...] | None = None

    def names(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The names that a way may go on with after `rest`: none when it ends there, None when they are not known."""
        way = tuple(rest)
        below = [one[len(way)] for one in self.only or () if len(one) > len(way) and one[: len(way)] == way]
        return frozenset(below) or property_names(dict(self.body), (*self.path, *way))

    def values(self, rest: Iterable[str] = ()) -> list[Mapping[str, Any]] | None:
        """What may stand at the end of the way `rest`; None when that is not known."""
        return values_at(dict(self.body), (*self.path, *rest))

    def kinds(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The JSON types of what may stand there; None when they are not known."""
        values = self.values(rest)
        return None if values is None else frozenset().union(*map(kinds_of, values))

    def inside(self, rest: Iterable[str]) -> FieldShape:
        """What is known at the end of the way `rest`."""
        return FieldShape(self.body, (*self.path, *rest))

    def limited(self, ways: Iterable[tuple[str, ...]]) -> FieldShape:
        """The same where only these ways into it are there."""
        only = tuple(ways)
        return self if () in only else replace(self, only=only)


UNKNOWN = FieldShape({})
TEXT = FieldShape({"type": "string"})
WHOLE_NUMBER = FieldShape({"type": "integer"})
SINGLE = FieldShape({"type": ["string", "number", "integer", "boolean", "null"]})
"""A cell of a table that holds no structures."""
