"""Rows that a program gives: dicts, or a frame of pandas, polars or Arrow, as lines of JSON;
results as such frames. Frames are known by their methods, so that none of the libraries is needed
but by who uses it."""

from __future__ import annotations

import json
from asyncio import sleep
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from importlib import import_module
from math import isfinite
from pathlib import PurePath
from time import monotonic
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

from agac.core.errors import UsageError, lack_of
from agac.data.duckdb_files import PandasIndex, pandas_index
from agac.data.duckdb_values import iso_duration
from agac.data.json_formats import encode
from agac.data.tables import Kind, TableColumn, shortest_real
from agac.spec.inputs import GIVEN


@runtime_checkable
class Frame(Protocol):
    """A table of pandas, polars, Arrow or another library that gives Arrow streams
    (arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html, read November 2026)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Gives its rows."""


GivenRows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]] | Frame
"""Rows as a program gives them: each a mapping of its fields, or a frame's."""

_PIECE = 1_000  # so many rows of a frame are turned into dicts at a time
_TURN_SECONDS = 0.05  # so long rows are read before others, and Ctrl-C, get their turn


def library(name: str, what: str) -> Any:
    """Imports a library that agac itself can do without. Raises UsageError, which names it, if it
    is not installed."""
    lack = lack_of(what, name)
    if lack:
        raise UsageError(lack)
    return import_module(name)


async def lines_of(rows: GivenRows) -> AsyncIterator[str]:
    """Yields the rows as lines of JSON: the same as in a JSON Lines file of these rows. Raises
    UsageError for what is no row."""
    number = 0
    turn = monotonic()
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield _line(row, number := number + 1)
    else:
        for row in each_row(rows):
            yield _line(row, number := number + 1)
            if monotonic() - turn > _TURN_SECONDS:
                await sleep(0)
                turn = monotonic()
    if not number and isinstance(rows, Iterator | AsyncIterator):
        remedy = "Give a new one each time, or a list: an empty list is an input without rows."
        raise UsageError(
            f"{GIVEN}: the iterator has nothing left; it was read before", remedy=remedy
        )


def each_row(rows: Any) -> Iterator[Any]:
    """Yields the rows of a frame, as dicts, or what an iterable gives."""
    if hasattr(rows, "iter_slices"):  # polars
        return _polars_rows(rows)
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas
        return _pandas_rows(rows)
    is_arrow = hasattr(rows, "__arrow_c_stream__")
    if is_arrow:
        arrow = library("pyarrow", "reading an Arrow stream")
        with suppress(arrow.ArrowInvalid):  # a column alone
            stream = arrow.RecordBatchReader.from_stream(rows)
            metadata = (stream.schema.metadata or {}).get(b"pandas")
            index = pandas_index(metadata, getattr(rows, "num_rows", None))
            return _arrow_rows(stream, index)
    if is_arrow or isinstance(rows, Mapping | bytes | str) or not isinstance(rows, Iterable):
        remedy = (
            "Give an iterable of dicts, a frame of pandas, polars or Arrow, or the path of a file."
        )
        raise UsageError(f"the input is no rows, but of type {type(rows).__name__}", remedy=remedy)
    return iter(rows)


def _polars_rows(frame: Any) -> Iterator[dict[str, Any]]:
    reals = [name for name, kind in frame.schema.items() if str(kind) == "Float32"]
    rows = (row for piece in frame.iter_slices(_PIECE) for row in piece.to_dicts())
    return _shown(reals, rows)


def _pandas_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of a frame, with those levels of its index that have a name of their own."""
    if not frame.columns.is_unique:
        raise UsageError(f"{GIVEN}: two columns have the same name", remedy="Rename one of them.")
    levels = [
        name for name in frame.index.names if isinstance(name, str) and name not in frame.columns
    ]
    named = {name: frame.index.get_level_values(name) for name in levels if levels.count(name) == 1}
    if named:
        frame = frame.assign(**named)
    pieces = (frame.iloc[at : at + _PIECE] for at in range(0, len(frame), _PIECE))
    reals = [name for name, kind in frame.dtypes.items() if str(kind).lower() == "float32"]
    return _shown(reals, (row for piece in pieces for row in piece.to_dict("records")))


def _shown(reals: Sequence[str], rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows, with floating point numbers of 32 bits as they are shown: a library makes
    doubles of them."""
    for row in rows:
        for name in reals:
            value = row[name]
            if isinstance(value, float) and isfinite(value):
                row[name] = shortest_real(value)
        yield row


def _arrow_rows(stream: Any, index: PandasIndex) -> Iterator[dict[str, Any]]:
    """Yields the rows of an Arrow stream, with the index of a pandas frame as its names say."""
    numbers = {
        name: iter(found)
        for name, found in index.numbers.items()
        if name not in stream.schema.names
    }
    reals = [column.name for column in stream.schema if str(column.type) == "float"]
    for batch in stream:
        for row in _shown(reals, batch.to_pylist()):
            kept = {name: value for name, value in row.items() if name not in index.hidden}
            yield kept | {name: next(found) for name, found in numbers.items()}


def _line(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        raise UsageError(
            f"{GIVEN}: row {number} is of type {type(row).__name__}",
            remedy="Give each row as a dict.",
        )
    try:
        return json.dumps(_plain(row), ensure_ascii=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        remedy = (
            "Rows hold texts, numbers, dates, lists and dicts; turn other values into one of these."
        )
        raise UsageError(f"{GIVEN}: row {number}: {error}", remedy=remedy) from None


def _plain(value: Any) -> Any:
    """Converts a value to what JSON holds. Values that mean null become None; an infinity stays,
    for the reader to refuse. Raises TypeError."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if _means_null(value):
        return None
    if isinstance(value, float):
        return value
    if isinstance(value, timedelta):
        microseconds = value // timedelta(microseconds=1)
        return iso_duration(9, microseconds * 1000 + getattr(value, "nanoseconds", 0))
    if isinstance(value, Decimal | UUID | PurePath):
        return str(value)
    return _plain_object(value)


def _means_null(value: Any) -> bool:
    """True for None, for the missing values of pandas, and for NaN."""
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return True
    return isinstance(value, float | Decimal) and value != value


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Converts the values of a mapping. Raises TypeError if a name is no text."""
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"the name {key!r} of a field is no text")
    return {key: _plain(inner) for key, inner in value.items()}


def _plain_object(value: Any) -> Any:
    """Converts dates, times and the values of numpy. Raises TypeError for anything else."""
    kind = str(getattr(value, "dtype", ""))
    if kind in ("datetime64[ns]", "timedelta64[ns]"):
        # `tolist` would give numbers
        value = value.astype(kind.replace("ns", "us"))
    for method in ("isoformat", "tolist"):
        if hasattr(value, method):
            return _plain(getattr(value, method)())
    raise TypeError(f"JSON cannot hold {value!r:.40}, a {type(value).__name__}")


_KINDS = {
    Kind.INTEGER: "Int64",
    Kind.NUMBER: "Float64",
    Kind.BOOLEAN: "boolean",
    Kind.TEXT: "string",
}
"""What a column is in pandas; polars and Arrow call it nearly so. Others hold objects there, JSON
texts here."""


def frame(
    name: Literal["pandas", "polars", "pyarrow"],
    columns: Sequence[TableColumn],
    rows: list[list[Any]],
) -> Any:
    """Returns a table of this library. Raises UsageError if it is not installed."""
    made = library(name, "this frame")
    found = dict[str, Any]()
    for place, column in enumerate(columns):
        values = [row[place] for row in rows]
        kind = _KINDS.get(column.kind, "object")
        if kind == "object" and name != "pandas":
            values = [None if value is None else encode(value) for value in values]
            kind = "string"
        if name == "pyarrow":
            found[column.name] = made.array(
                values, getattr(made, {"boolean": "bool_"}.get(kind, kind.lower()))()
            )
        elif name == "polars":
            found[column.name] = made.Series(
                values, dtype=getattr(made, kind.capitalize()), strict=False
            )
        else:
            found[column.name] = made.Series(values, dtype=kind)
    if name == "pyarrow":
        return made.table(found)
    return made.DataFrame(found)
