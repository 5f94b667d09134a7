"""How a stage that is asked once a group makes groups of rows: what stands beside `group_by`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Incomplete = Literal["use", "fail"]


class Seen(Protocol):
    """A stage as far as it matters for what those see that follow it."""

    @property
    def name(self) -> str: ...
    @property
    def ancestors(self) -> tuple[str, ...]: ...
    @property
    def rows_of(self) -> str | None: ...
    @property
    def changes_rows(self) -> bool: ...


def seen_after(needs: Sequence[Seen], stages: Mapping[str, Seen]) -> tuple[tuple[str, ...], str | None]:
    """What is seen after the stages `needs` of one level, by a group of its members too: the stages upstream, in the
    order of `stages` (those that a row meets before, by name), and the one of them that changed the row's fields last.
    """
    upstream = {name for need in needs for name in (*need.ancestors, need.name)}
    forms = {need.name if need.changes_rows else need.rows_of for need in needs}
    last = max(forms, key=lambda name: len(stages[name].ancestors) + 1 if name else 0, default=None)
    return tuple(name for name in stages if name in upstream), last


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
