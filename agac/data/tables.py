"""Results as tables: the kind of each column, how rows and results merge, the layout known before
the first row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from struct import pack, unpack
from typing import Any, NamedTuple

from agac.core.errors import AgacError
from agac.core.types import JSONValue, RowId
from agac.spec.data_specs import Merge
from agac.spec.json_schema import resolved

TEXT_BIT, _BOOLEAN, _SMALL, _LONG, _HUGE, _FLOAT, _NESTED = (1 << place for place in range(7))
_EXACT = 1 << 53  # up to here a double holds every integer
_INT64 = 1 << 63
_BITS: dict[type, int] = {
    str: TEXT_BIT,
    bool: _BOOLEAN,
    type(None): 0,
    dict: _NESTED,
    list: _NESTED,
}
_SCHEMA_BITS = {
    "string": TEXT_BIT, "boolean": _BOOLEAN, "integer": _SMALL, "number": _FLOAT,
    "array": _NESTED, "object": _NESTED, "null": 0,
}  # fmt: skip


class Kind(StrEnum):
    """What all values of a column are. MIXED ones have no common type that would keep them as they
    are."""

    NOTHING = "nothing"  # null, as far as anybody knows
    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"  # of 64 bits
    NUMBER = "number"  # a double
    NESTED = "nested"
    MIXED = "mixed"


def bits_of(value: JSONValue) -> int:
    """Returns what one value adds to what is known of its column; a number that JSON cannot hold
    counts as null."""
    found = _BITS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, float):
        return _FLOAT if isfinite(value) else 0
    if -_EXACT <= value <= _EXACT:
        return _SMALL
    return _LONG if -_INT64 <= value < _INT64 else _HUGE


def shortest_real(real: float) -> float:
    """Returns a finite floating point number of 32 bits as it is shown: by the fewest digits that
    tell it from others, so that 0.1 is not 0.10000000149011612."""
    texts = (f"{real:.{digits}g}" for digits in range(1, 10))
    return float(next(text for text in texts if unpack("f", pack("f", float(text)))[0] == real))


def kind_of(bits: int) -> Kind:
    """Returns the kind of a column from all that was added. Integers with floats are numbers unless
    that would change one."""
    if bits & ~(_SMALL | _LONG) == 0:
        return Kind.INTEGER if bits else Kind.NOTHING
    if bits & ~(_SMALL | _FLOAT) == 0:
        return Kind.NUMBER
    return {TEXT_BIT: Kind.TEXT, _BOOLEAN: Kind.BOOLEAN, _NESTED: Kind.NESTED}.get(bits, Kind.MIXED)


def declared_fields(schema: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the fields of the objects that a JSON Schema describes, in its order, with what it
    says of their values."""
    if schema is None:
        return {}
    properties = (resolved(schema, schema) or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _declared(body, schema) for name, body in properties.items()}


def _declared(body: Any, root: Mapping[str, Any], depth: int = 0) -> int:
    """Returns what a schema says about a value, as bits."""
    schema = resolved(root, body) or {}
    types = schema.get("type", [])
    bits = 0
    for name in [types] if isinstance(types, str) else types:
        bits |= _SCHEMA_BITS.get(name, 0)
    if not types:
        for value in schema.get("enum", [schema["const"]] if "const" in schema else []):
            bits |= bits_of(value)
        for other in [*schema.get("anyOf", []), *schema.get("oneOf", [])] if depth < 20 else []:
            bits |= _declared(other, root, depth + 1)
    return bits


SOURCES = "sources"  # the column of the sources of a row's answers
RESULT = "result"  # the field of a result that has no fields: a text, a list
Fields = dict[str, JSONValue]


def result_name(stages: Sequence[str]) -> str:
    """Returns the name of a result that is made of the results of these stages."""
    return stages[0] if len(stages) == 1 else RESULT


class OutputRow(NamedTuple):
    """A settled row on its way into tables and lines."""

    id: RowId | None
    """The row's own id; None if it lacks one, or repeats another's."""
    cells: list[JSONValue]
    """The values in the order of the layout's columns."""
    record: JSONValue
    """Its one value; None if it failed."""
    failure: str | None = None
    """Why it failed."""
    line: int | None = None
    """The line of the text file that it was; None if lines need not correspond."""


def fields_of(value: JSONValue) -> Fields:
    """Returns a result's fields; one that has none is itself the field `result`."""
    return value if isinstance(value, dict) else {RESULT: value}


class Merger:
    """How a row and its result become one record: alike for all rows of a run, whatever fields
    each of them has."""

    def __init__(
        self,
        merge: Merge,
        stage: str,
        row_fields: Iterable[str] = (),
        result_fields: Iterable[str] = (),
    ) -> None:
        """The fields are those of any row and of any result. They decide which names clash."""
        self._merge = merge
        row = dict.fromkeys(row_fields)
        result = dict.fromkeys(result_fields)
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
        """Returns what is written for a row that is done: its result alone under `replace`,
        otherwise a record."""
        if self._merge == "replace":
            return value
        return self.record(data, value)

    def record(self, data: Fields, value: JSONValue) -> Fields:
        """Returns the record of a row that is done. It shares its values with what it was made
        of."""
        if self._merge == "append":
            return {**data, self._stage: value}
        # every stage whose result is written was skipped: all that it would have is null
        if value is None:
            own = {} if self._merge == "replace" else data
            return {**own, **{name: None for name in self.origin if name not in own}}
        if self._merge == "replace":
            return fields_of(value)
        if self._merge == "update":
            return {**data, **fields_of(value)}
        return {
            **data,
            **{self._names.get(field, field): inner for field, inner in fields_of(value).items()},
        }

    def failed(self, data: Fields) -> Fields:
        """Returns the record of a row that failed: what it has of the row itself."""
        return {} if self._merge == "replace" else data


def free_name(field: str, stage: str, taken: Container[str]) -> str:
    """Returns `field`, or `<stage>.<field>` if that is taken already."""
    while field in taken:
        field = f"{stage}.{field}"
    return field


MAX_COLUMNS = 10_000  # beyond this the fields are data (a date, an id a field), and no columns


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    name: str
    kind: Kind
    declared: bool = False
    """True if the schema names it, so that its kind will be the same next time."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a run's tables."""

    columns: tuple[TableColumn, ...]
    """The columns in order; the last one holds errors, and with `has_sources` the one before it
    sources."""
    merger: Merger
    id_field: str | None
    """The row's field that holds its id; None if rows are numbered."""
    id_place: int | None
    """The position of the column with that field; None if no column is the row's."""
    key: TableColumn
    """The column by which a database finds rows."""
    has_sources: bool = False

    def cells(
        self, record: Fields, error: str | None, sources: JSONValue = None
    ) -> list[JSONValue]:
        """Returns the values of a row. A field that it lacks is null, and so are sources if it has
        none."""
        get = record.get
        if self.has_sources:
            return [*[get(column.name) for column in self.columns[:-2]], sources or None, error]
        return [*[get(column.name) for column in self.columns[:-1]], error]


class Observed:
    """What all rows of a run have: fields, in the order in which they were met, and kinds of
    values."""

    def __init__(self, schema: Mapping[str, Any] | None, order: Iterable[str] = ()) -> None:
        """`schema` is the results', None where they have none; `order` its fields, as they are met
        if empty."""
        self._row: dict[str, int] = {}
        declared = declared_fields(schema)
        self._declared = {field: declared[field] for field in order if field in declared} | declared
        self._result = dict(self._declared) if order else {}
        self._whole = 0
        self._ids = 0

    def row_id(self, own: RowId) -> None:
        """Looks at a row's own id."""
        self._ids |= bits_of(own)

    def row(self, data: Fields) -> None:
        """Looks at a row's own fields. Raises AgacError when there are more than a table can
        have."""
        _add(self._row, data)

    def result(self, value: JSONValue) -> None:
        """Looks at a result. Raises as `row` does."""
        self._whole |= bits_of(value)
        _add(self._result, fields_of(value))

    def layout(
        self,
        merge: Merge,
        stage: str,
        id_field: str | None,
        *,
        grouped: bool = False,
        sources: bool = False,
    ) -> TableLayout:
        """Returns the columns under a way of merging, for the results of `stage`.

        Rows made of groups have no `id_field`. `sources`: with a column of those of the
        answers."""
        result = {
            name: self._result.get(name, 0) | self._declared.get(name, 0)
            for name in self._result | self._declared
        }
        result = result or {RESULT: 0}
        id_in_row = None if grouped else id_field
        if id_in_row is not None:
            self._row.setdefault(id_in_row, 0)
        merger = Merger(merge, stage, self._row, result)
        columns = [self._column(name, merge, merger, result) for name in merger.fields]
        taken = set(merger.fields)
        if sources:
            columns.append(TableColumn(free_name(SOURCES, stage, taken), Kind.NESTED))
        columns.append(TableColumn(free_name("error", stage, taken), Kind.TEXT))
        has_row_fields = merge != "replace"
        id_position = None
        if id_in_row is not None and has_row_fields:
            id_position = merger.fields.index(id_in_row)
        key = self._key(
            id_in_row if has_row_fields else None, numbered=id_field is None and not grouped
        )
        return TableLayout((*columns,), merger, id_field, id_position, key, sources)

    def _key(self, id_field: str | None, *, numbered: bool) -> TableColumn:
        """Returns the column by which a database finds rows: their own id if the table has it, or
        one of ours."""
        if numbered:
            return TableColumn("row_number", Kind.INTEGER)
        return TableColumn("id" if id_field is None else id_field, kind_of(self._ids))

    def _column(
        self, name: str, merge: Merge, merger: Merger, result: Mapping[str, int]
    ) -> TableColumn:
        """Makes the column of a field."""
        field = merger.origin.get(name)
        if field is None:
            return TableColumn(name, kind_of(self._row[name]))
        if merge == "append":
            return TableColumn(name, kind_of(self._whole))
        also_of_row = merge == "update" and name in self._row
        bits = result[field] | (self._row[name] if also_of_row else 0)
        return TableColumn(name, kind_of(bits), field in self._declared and not also_of_row)


def _add(seen: dict[str, int], fields: Fields) -> None:
    """Adds the values of a row or a result to what is known of its fields. Raises AgacError if
    there are too many."""
    for name, value in fields.items():
        seen[name] = seen.get(name, 0) | (TEXT_BIT if type(value) is str else bits_of(value))
    if len(seen) > MAX_COLUMNS:
        problem = (
            f"the rows have more than {MAX_COLUMNS:,} different fields, too many for the "
            "columns of a table"
        )
        raise AgacError(
            problem,
            remedy="Remove output.format and output.to: results.jsonl holds rows of any form.",
        )


def distinct(names: Sequence[str], there: Collection[str] = ()) -> list[str]:
    """Returns names for databases, to which `a` and `A` are the same and which refuse an empty one:
    a later one gets a number.

    `there` are the columns of a table that exists: each of several names that differ only by case
    finds the column again that it got before, in whatever order they come now. The first name is
    the key's and stays as it is."""
    plain = [name.replace("\0", "") or "column" for name in names]
    alike = Counter(name.lower() for name in plain)
    many = [name for name in plain[1:] if alike[name.lower()] > 1]
    before = {name: column for name in many if (column := _before(name, there, plain[0]))}
    taken = {column.lower() for column in before.values()}
    found = []
    for name in plain:
        free = before.pop(name, None)
        number = 1
        if free is None:
            free = name
            while free.lower() in taken:
                number += 1
                free = f"{name}_{number}"
            taken.add(free.lower())
        found.append(free)
    return found


def _before(name: str, there: Collection[str], key: str) -> str | None:
    """Returns the column that `distinct` gave to a name when it made a table, if that is
    certain."""
    own = [
        c
        for c in there
        if c == name or (c.startswith(f"{name}_") and c[len(name) + 1 :].isdecimal())
    ]
    return next((column for column in own if column.lower() != key.lower()), None)
