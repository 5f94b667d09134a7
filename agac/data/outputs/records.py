"""Rows with their results as one record each: which fields it has, and under which names."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from agac.core.types import JSONValue, RowId
from agac.spec.workflow import Merge

RESULT = "result"
"""The field of a result that has no fields: a text, a list."""

Fields = dict[str, JSONValue]


def result_name(stages: Sequence[str]) -> str:
    """What a result is called that is made of the results of these stages."""
    return stages[0] if len(stages) == 1 else RESULT


class OutputRow(NamedTuple):
    """A settled row on its way into tables and lines.

    `id` is the row's own, an integer where the row has one; None for a row that lacks its id, or repeats another's.
    `cells` are the values of the layout's columns, in their order; `record` is what is written of it as one value,
    None for a row that failed.
    """

    id: RowId | None
    cells: list[JSONValue]
    record: JSONValue


def fields_of(value: JSONValue) -> Fields:
    """A result's fields; one that has none is itself the field `result`."""
    return value if isinstance(value, dict) else {RESULT: value}


class Merger:
    """How a row and its result become one record: alike for all rows of a run, whatever fields each of them has."""

    def __init__(
        self, merge: Merge, stage: str, row_fields: Iterable[str] = (), result_fields: Iterable[str] = ()
    ) -> None:
        """The fields are those of any row and of any result. They decide which names clash."""
        self._merge = merge
        row, result = dict.fromkeys(row_fields), dict.fromkeys(result_fields)
        written = [stage] if merge == "append" else list(result)
        taken = set(row) if merge in ("extend", "append") else set()
        self._names: dict[str, str] = {}
        for field in written:
            self._names[field] = name = free_name(field, stage, taken)
            taken.add(name)
        self._stage = self._names.get(stage, stage)
        kept = () if merge == "replace" else row
        self.fields = tuple(dict.fromkeys([*kept, *self._names.values()]))
        """Every field that a record may have, in order."""
        self.origin = {name: field for field, name in self._names.items()}
        """The result's field behind a field of the record, by the record's name for it."""

    def value(self, data: Fields, value: JSONValue) -> JSONValue:
        """What is written for a row that is done: its result alone under `replace`, else a record."""
        return value if self._merge == "replace" else self.record(data, value)

    def record(self, data: Fields, value: JSONValue) -> Fields:
        """The record of a row that is done. It shares its values with what it was made of."""
        if self._merge == "append":
            return {**data, self._stage: value}
        if self._merge == "replace":
            return fields_of(value)
        if self._merge == "update":
            return {**data, **fields_of(value)}
        return {**data, **{self._names.get(field, field): inner for field, inner in fields_of(value).items()}}

    def failed(self, data: Fields) -> Fields:
        """The record of a row that failed: what it has of the row itself."""
        return {} if self._merge == "replace" else data


def free_name(field: str, stage: str, taken: Container[str]) -> str:
    """`field`, or `<stage>.<field>` where that is taken already."""
    while field in taken:
        field = f"{stage}.{field}"
    return field
