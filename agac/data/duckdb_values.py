"""Values of duckdb as JSON has them.

JSON has fewer kinds of values: dates and times become ISO texts, decimals texts with all their
digits, bytes text (no UTF-8 replaced), NaN null; integers keep every digit, lists and structures
their shape. An infinity is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.core.types import JSONValue
from agac.data.json_formats import json_column
from agac.data.sqlite import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_ROWS_AT_A_TIME = 128
_INTEGERS = ("tinyint", "smallint", "integer", "bigint", "hugeint")
_AS_THEY_ARE = frozenset({"boolean", "varchar", *_INTEGERS, *(f"u{name}" for name in _INTEGERS)})
TEXT_TYPE = "VARCHAR"


class _ColumnType(NamedTuple):
    """How a column is fetched, and what makes JSON of a value that is not null."""

    type: str
    """The type to which it is cast."""
    convert: Callable[[Any], JSONValue] | None
    entries: Callable[[str], str] | None = None
    """Makes, of an expression in SQL, what is selected instead of a cast: for a column that holds
    a map, whose entries duckdb gives one by one. A map as a whole it refuses, and all rows with
    it, if a key comes twice."""

    def select(self, expression: str) -> str:
        """Returns what is selected of an expression in SQL."""
        if self.entries is None:
            return f"CAST({expression} AS {self.type})"
        return self.entries(expression)

    def read(self, value: Any) -> JSONValue:
        if value is None or self.convert is None:
            return value
        return self.convert(value)


Durations = Mapping[str, "int | Durations"]
"""The columns of integers that are durations, with the number of digits that are parts of a
second; of a list, structure or map the parts of it that are, by their names in the file."""


class TypedRows:
    """Rows that duckdb gives, as JSON."""

    def __init__(
        self,
        relation: DuckDBPyRelation,
        *,
        json: bool = False,
        mixed: Collection[str] = (),
        names: Mapping[str, str] = MappingProxyType({}),
        durations: Durations = MappingProxyType({}),
    ) -> None:
        """Chooses how each column is read.

        `json`: JSON texts become their values. `mixed`: columns of doubles and integers. `names`:
        the names of columns that have another name in duckdb, to which `Name` and `name` are the
        same. `durations`: the columns of integers that are durations."""
        self._selected = tuple(relation.columns)
        self.columns = tuple(names.get(name, name) for name in self._selected)
        self._readings = []
        for selected, name, kind in zip(self._selected, self.columns, relation.types, strict=True):
            if selected in mixed and kind.id == "double":
                reading = _ColumnType("DOUBLE", _plain_number)
            else:
                reading = _reading(kind, json=json, durations=durations.get(name))
            self._readings.append(reading)

    def read(
        self, connection: DuckDBPyConnection, rows: str, start: int
    ) -> Iterator[tuple[dict[str, JSONValue] | None, str | None]]:
        """Yields the rows of `rows`, which is SQL, after the first `start`: the data of each, or
        why it has none."""
        readings = list(zip(self.columns, self._readings, strict=True))
        selected = zip(self._selected, self._readings, strict=True)
        wanted = ", ".join(reading.select(quoted(column)) for column, reading in selected)
        cursor = connection.execute(f"SELECT {wanted} FROM {rows} OFFSET {start}")  # noqa: S608 - names are quoted
        for values in chain.from_iterable(iter(partial(cursor.fetchmany, _ROWS_AT_A_TIME), [])):
            data: dict[str, JSONValue] = {}
            try:
                for (column, reading), value in zip(readings, values, strict=True):
                    data[column] = reading.read(value)
            except ValueError as error:
                yield None, f"the column {column!r} {error}"
            else:
                yield data, None


def _reading(
    kind: Any, *, json: bool = False, durations: int | Durations | None = None
) -> _ColumnType:
    """Chooses how a column of this duckdb type is read. Types that are not listed are read as the
    text that duckdb makes of them."""
    if kind.id == "bigint" and isinstance(durations, int):
        return _ColumnType("BIGINT", partial(iso_duration, durations))
    if json and str(kind) == "JSON":
        return _ColumnType(TEXT_TYPE, json_column)
    if kind.id in _AS_THEY_ARE:
        return _ColumnType(str(kind), None)
    inner = durations if isinstance(durations, Mapping) else {}
    match kind.id:
        case "list" | "array":
            return _reading_of_list(kind, json, inner)
        case "struct":
            return _reading_of_struct(kind, json, inner)
        case "map":
            return _reading_of_map(kind, json, inner)
    return _reading_of_value(kind.id)


def _reading_of_value(name: str) -> _ColumnType:
    """Chooses how single values are read that are converted."""
    match name:
        case "double":
            return _ColumnType("DOUBLE", _number)
        case "float":  # by way of its shortest text: 0.1 is not to become 0.10000000149011612
            return _ColumnType(TEXT_TYPE, lambda text: _number(float(text)))
        case "blob":
            return _ColumnType("BLOB", lambda raw: bytes(raw).decode(errors="replace"))
    if name.startswith("timestamp"):
        return _ColumnType(TEXT_TYPE, iso_moment)
    return _ColumnType(TEXT_TYPE, None)


def _reading_of_list(kind: Any, json: bool, durations: Durations) -> _ColumnType:
    """Reads a list, item by item."""
    of_item = next(iter(durations.values()), None)
    item = _reading(dict(kind.children)["child"], json=json, durations=of_item)
    convert = item.convert and partial(_convert_each, item.convert)
    entries = item.entries and partial(_select_list, item)
    return _ColumnType(f"{item.type}[]", convert, entries)


def _reading_of_struct(kind: Any, json: bool, durations: Durations) -> _ColumnType:
    """Reads a struct, field by field."""
    fields = {
        name: _reading(child, json=json, durations=durations.get(name))
        for name, child in kind.children
    }
    types = ", ".join(f"{quoted(name)} {field.type}" for name, field in fields.items())
    has_entries = any(field.entries for field in fields.values())
    return _ColumnType(
        f"STRUCT({types})",
        lambda values: {name: fields[name].read(value) for name, value in values.items()},
        partial(_select_struct, fields) if has_entries else None,
    )


def _reading_of_map(kind: Any, json: bool, durations: Durations) -> _ColumnType:
    """Reads a map. Its keys become texts, as JSON has them."""
    pairs = next(iter(durations.values()), None)
    of_value = pairs.get("value") if isinstance(pairs, Mapping) else None
    item = _reading(dict(kind.children)["value"], json=json, durations=of_value)
    return _ColumnType("", partial(_map, item), partial(_select_map, item))


def _select_list(item: _ColumnType, expression: str) -> str:
    return f"list_transform({expression}, lambda x: {item.select('x')})"


def _convert_each(convert: Callable[[Any], JSONValue], values: Iterable[Any]) -> JSONValue:
    return [None if value is None else convert(value) for value in values]


def _select_struct(fields: Mapping[str, _ColumnType], expression: str) -> str:
    parts = (
        f"{quoted(name)} := {field.select(f'{expression}.{quoted(name)}')}"
        for name, field in fields.items()
    )
    return f"CASE WHEN {expression} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"


def _select_map(item: _ColumnType, expression: str) -> str:
    pair = f"struct_pack(k := CAST(x.key AS {TEXT_TYPE}), v := {item.select('x.value')})"
    return f"list_transform(map_entries({expression}), lambda x: {pair})"


def _map(item: _ColumnType, entries: Sequence[Mapping[str, Any]]) -> JSONValue:
    """Returns a map as an object. Raises ValueError if a key comes twice, as a writer may have put
    it into a file."""
    values: dict[str, JSONValue] = {}
    for entry in entries:
        if entry["k"] in values:
            raise ValueError(f"holds a map with the key {entry['k']!r} twice")
        values[entry["k"]] = item.read(entry["v"])
    return values


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise ValueError("holds an infinity, which JSON cannot hold; write null")
    return None if math.isnan(value) else value


def _plain_number(value: float) -> float | None:
    return int(value) if value.is_integer() else _number(value)


def iso_moment(text: str) -> str:
    """Returns `2024-05-01 10:00:00+00` as `2024-05-01T10:00:00+00:00`."""
    return text.replace(" ", "T", 1) + (":00" if text[-3:-2] == "+" else "")


def iso_duration(decimals: int, value: int) -> str:
    """Returns a duration in ISO 8601, as `PT90.5S`. The value has `decimals` digits that are parts
    of a second; zeros at its end are left out."""
    whole, part = divmod(abs(value), 10**decimals)
    fraction = f".{part:0{decimals}d}".rstrip("0") if part else ""
    return f"{'-' if value < 0 else ''}PT{whole}{fraction}S"
