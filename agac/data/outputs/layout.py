"""The columns of a table: known before its first row is written, from the schema and from a look at all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agac.core.errors import AgacError
from agac.core.types import JSONValue, RowId
from agac.data.outputs.kinds import TEXT_BIT, Kind, bits_of, declared_fields, kind_of
from agac.data.outputs.records import RESULT, Fields, Merger, fields_of, free_name
from agac.spec.workflow import Merge

MAX_COLUMNS = 10_000
"""Beyond this the fields are data (a date, an id a field) and no columns: nobody could read such a table."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `declared`: the schema names it, so its kind will be the same next time."""

    name: str
    kind: Kind
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a run's tables; the last one holds errors.

    `id_field` is the row's field that holds its id, None where rows are numbered. `id_place` is the column that holds
    it, None where rows are numbered or none of the columns is the row's. `key` is what a database finds rows by.
    """

    columns: tuple[Column, ...]
    merger: Merger
    id_field: str | None
    id_place: int | None
    key: Column

    def cells(self, record: Fields, error: str | None) -> list[JSONValue]:
        """The values of a row. A field that it lacks is null."""
        get = record.get
        found = [get(column.name) for column in self.columns[:-1]]
        found.append(error)
        return found


class Observed:
    """What all rows of a run have: fields, in the order in which they were met, and kinds of values."""

    def __init__(self, schema: Mapping[str, Any] | None, order: Iterable[str] = ()) -> None:
        """`schema` is the results', None where they have none; `order` its fields as far as their order is known."""
        self._row: dict[str, int] = {}
        declared = declared_fields(schema)
        self._declared = {field: declared[field] for field in order if field in declared} | declared
        self._result = dict(self._declared)
        self._whole = 0
        self._ids = 0

    def row_id(self, own: RowId) -> None:
        """Looks at a row's own id."""
        self._ids |= bits_of(own)

    def row(self, data: Fields) -> None:
        """Looks at a row's own fields. Raises AgacError when there are more than a table can have."""
        _add(self._row, data)

    def result(self, value: JSONValue) -> None:
        """Looks at a result. Raises as `row` does."""
        self._whole |= bits_of(value)
        _add(self._result, fields_of(value))

    def layout(self, merge: Merge, stage: str, id_field: str | None) -> Layout:
        """The columns under a way of merging, for the results of `stage`."""
        result = self._result or {RESULT: 0}
        if id_field is not None:
            self._row.setdefault(id_field, 0)
        merger = Merger(merge, stage, self._row, result)
        columns = [self._column(name, merge, merger, result) for name in merger.fields]
        error = free_name("error", stage, set(merger.fields))
        of_row = id_field is not None and merge != "replace"
        id_place = merger.fields.index(id_field) if of_row else None
        key = Column(key_name(id_field, merge), Kind.INTEGER if id_field is None else kind_of(self._ids))
        return Layout((*columns, Column(error, Kind.TEXT)), merger, id_field, id_place, key)

    def _column(self, name: str, merge: Merge, merger: Merger, result: Mapping[str, int]) -> Column:
        field = merger.origin.get(name)
        if field is None:
            return Column(name, kind_of(self._row[name]))
        if merge == "append":
            return Column(name, kind_of(self._whole))
        also_of_row = merge == "update" and name in self._row
        bits = result[field] | (self._row[name] if also_of_row else 0)
        return Column(name, kind_of(bits), field in self._declared and not also_of_row)


def _add(seen: dict[str, int], fields: Fields) -> None:
    for name, value in fields.items():
        seen[name] = seen.get(name, 0) | (TEXT_BIT if type(value) is str else bits_of(value))
    if len(seen) > MAX_COLUMNS:
        raise AgacError(
            f"the rows have more than {MAX_COLUMNS:,} different fields, too many for the columns of a table",
            remedy="Remove output.format and output.to: results.jsonl holds rows of any form.",
        )


def key_name(id_field: str | None, merge: Merge | None) -> str:
    """The column by which rows are found: the row's own where the table has the row's fields, else one of ours."""
    if id_field is None:
        return "row_number"
    return "id" if merge == "replace" else id_field


def distinct(names: Sequence[str], there: Collection[str] = ()) -> list[str]:
    """The names for databases, which tell no `a` from `A` and refuse an empty one: a later one gets a number.

    `there` are the columns of a table that is there: of names that differ only by case each finds the column again
    that it was given before, in whatever order they come now. The first name is the key's and stays as it is.
    """
    plain = [name.replace("\0", "") or "column" for name in names]
    alike = Counter(name.lower() for name in plain)
    many = [name for name in plain[1:] if alike[name.lower()] > 1]
    before = {name: column for name in many if (column := _before(name, there, plain[0]))}
    taken = {column.lower() for column in before.values()}
    found = []
    for name in plain:
        free, number = before.pop(name, None), 1
        if free is None:
            free = name
            while free.lower() in taken:
                number += 1
                free = f"{name}_{number}"
            taken.add(free.lower())
        found.append(free)
    return found


def _before(name: str, there: Collection[str], key: str) -> str | None:
    """The column that `distinct` gave to a name when it made a table, if that is to be seen."""
    own = [c for c in there if c == name or (c.startswith(f"{name}_") and c[len(name) + 1 :].isdecimal())]
    return next((column for column in own if column.lower() != key.lower()), None)
