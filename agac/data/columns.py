"""What columns hold, learned from the first rows of a source."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from agac.core.types import JSONValue

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "object"}

_LOOKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("integer", re.compile(r"[+-]?\d+")),
    ("number", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")),
    ("boolean", re.compile(r"true|false", re.IGNORECASE)),
    ("date", re.compile(r"\d{4}-\d\d-\d\d")),
    ("date and time", re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?")),
)
"""What texts may be written as, the narrowest first."""


@dataclass(slots=True)
class Column:
    """One field of the rows that were looked at. `kinds` counts values by their JSON type, nulls aside; `looks` are the
    kinds as which every text so far could be read, None before the first."""

    JSON_KEYS = ("name", "type", "types=kinds", "nulls", "empty", "missing")

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    nulls: int = 0
    empty: int = 0
    missing: int = 0
    looks: set[str] | None = None

    @property
    def type(self) -> str:
        """`integer`, `string`, `integer as text`, `string or list`; `null` when there is no value."""
        names = []
        for kind in self.kinds:
            look = self.look if kind == "string" else None
            names.append(f"{look} as text" if look else kind)
        if {"integer", "number"} <= set(names):
            names.remove("integer")
        return " or ".join(names) or "null"

    @property
    def look(self) -> str | None:
        """What all texts of the column could be read as; None for nothing but text."""
        return next((name for name, _ in _LOOKS if name in (self.looks or ())), None)

    def see(self, value: JSONValue) -> None:
        """Counts a value."""
        if value is None:
            self.nulls += 1
            return
        self.kinds[_KINDS[type(value)]] += 1
        if isinstance(value, str):
            if not value.strip():
                self.empty += 1
            elif self.looks is None or self.looks:
                fitting = {name for name, pattern in _LOOKS if pattern.fullmatch(value.strip())}
                self.looks = fitting if self.looks is None else self.looks & fitting


class Columns:
    """The columns of some rows, in the order in which they were first met."""

    def __init__(self, declared: tuple[str, ...] | None) -> None:
        self._columns = {name: Column(name) for name in declared or ()}
        self._rows = 0

    def see(self, data: dict[str, JSONValue]) -> None:
        """Counts a row."""
        for name, value in data.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = Column(name, missing=self._rows)
            column.see(value)
        if len(data) < len(self._columns):
            for name, column in self._columns.items():
                column.missing += name not in data
        self._rows += 1

    def all(self) -> list[Column]:
        """Every column that was met or declared."""
        return list(self._columns.values())
