"""How a stage that is asked once a group makes groups of rows: what stands beside `group_by`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Incomplete = Literal["use", "fail"]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with the same values of `fields` are one group; without fields all are.

    Each field is a way, by its parts: a field of the row, or a stage upstream and fields of its result. A group of more
    than `max_rows` members, or of more than `max_tokens` tokens of them, is asked in parts, and then of the parts'
    results; None: not bounded. `incomplete` says what becomes of a group with failed members.
    """

    fields: tuple[tuple[str, ...], ...]
    max_rows: int | None = None
    max_tokens: int | None = None
    incomplete: Incomplete = "use"

    @property
    def reduces(self) -> bool:
        """Whether groups may be cut into parts."""
        return self.max_rows is not None or self.max_tokens is not None

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether one call holds so many members, of so many tokens."""
        fits = self.max_rows is None or rows <= self.max_rows
        return fits and (self.max_tokens is None or tokens <= self.max_tokens or rows == 1)

    def body(self) -> dict[str, Any]:
        """What decides its results, for the definition."""
        bounds = {"max_rows": self.max_rows, "max_tokens": self.max_tokens}
        reduce = {key: value for key, value in bounds.items() if value is not None}
        return {
            "group_by": [".".join(field) for field in self.fields],
            **({"reduce": reduce} if reduce else {}),
            **({"incomplete": self.incomplete} if self.incomplete != "use" else {}),
        }

    @staticmethod
    def of(body: Mapping[str, Any]) -> Group | None:
        """The groups of a stage of a stored definition; None: it makes none."""
        if "group_by" not in body:
            return None
        reduce = body.get("reduce", {})
        fields = tuple(tuple(field.split(".")) for field in body["group_by"])
        return Group(fields, reduce.get("max_rows"), reduce.get("max_tokens"), body.get("incomplete", "use"))
