"""Parquet files: read some hundred rows at a time, written from spooled lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from agac.core.errors import AgacError, UsageError, lack_of
from agac.core.types import JSONValue
from agac.data.duckdb_files import (
    durations_of,
    literal,
    memory_database,
    no_pattern,
    own_names,
    read_json,
    read_parquet,
)
from agac.data.duckdb_values import TEXT_TYPE, TypedRows
from agac.data.files import AtomicFile, FileSource, Record, explained
from agac.data.json_formats import encode
from agac.data.sqlite import quoted
from agac.data.tables import Kind, OutputRow, TableLayout, distinct

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def hive_fields(shown: str) -> dict[str, JSONValue]:
    """Returns the fields that the folders of a path name: `year=2024/lang=de/x.parquet`. All are
    texts, as nothing says which type they have."""
    fields: dict[str, JSONValue] = {}
    for folder in PurePosixPath(shown).parts[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            fields[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
    return fields


def have_same_types(paths: Sequence[Path]) -> bool:
    """True if the columns of parquet files have the same types in all of them, so that a table of
    them changes no value. Files that duckdb cannot read have not. Raises UsageError for decimals
    that duckdb would round."""
    import duckdb

    first: dict[str, Any] | None = None
    with suppress(duckdb.Error), closing(memory_database()) as connection:
        for path in paths:
            rows = connection.sql(f"FROM {read_parquet(connection, [path], str(path))}")
            types = dict(zip(rows.columns, rows.types, strict=True))
            first = first or types
            if types != first:
                return False
        return True
    return False


class ParquetSource(FileSource):
    """A parquet file."""

    def __init__(self, path: Path, shown: str, hive: bool = False) -> None:
        """Raises UsageError if the file is no parquet, or if duckdb is missing.

        `hive`: folders with names such as `year=2024` are fields of its rows, unless the file has
        fields of these names."""
        super().__init__(path, shown)
        lack = lack_of(f"{shown}: reading parquet", "duckdb")
        if lack:
            raise UsageError(lack, remedy="Or convert the file to csv or jsonl.")
        with self._connected() as connection:
            self._rows = read_parquet(connection, [self._path], shown)
            self._table = TypedRows(
                connection.sql(f"FROM {self._rows}"),
                names=own_names(connection, self._path, shown),
                durations=durations_of(connection, self._path),
            )
        self._folder_fields: dict[str, JSONValue] = {}
        if hive:
            for name, value in hive_fields(shown).items():
                if name not in self._table.columns:
                    self._folder_fields[name] = value
        self._columns = (*self._table.columns, *self._folder_fields)

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._opened(), self._connected() as connection:
            rows = self._table.read(connection, self._rows, start)
            for ordinal, (data, problem) in enumerate(rows, start=start + 1):
                if data is None:
                    yield self._refused(ordinal, None, str(problem))
                else:
                    yield Record(ordinal, data | self._folder_fields)

    @contextmanager
    def _connected(self) -> Iterator[DuckDBPyConnection]:
        """Opens a database in memory that reads the one file. Raises AgacError for what duckdb
        reports."""
        import duckdb

        try:
            with closing(memory_database()) as connection:
                yield connection
        except duckdb.Error as error:
            first = str(error).partition("\n")[0].replace(no_pattern(self._path), self._path.name)
            problem = f"{self._shown}: cannot be read as parquet: {first}"
            raise AgacError(problem, remedy="Get the file again, then run again.") from error


_TYPES = {Kind.BOOLEAN: "BOOLEAN", Kind.INTEGER: "BIGINT", Kind.NUMBER: "DOUBLE"}
"""The types of columns by the kind of their values; others are texts."""
_AS_JSON = (Kind.NESTED, Kind.MIXED)
_OPTIONS = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
_VECTOR = 2048
"""The number of rows that duckdb takes at a time."""
_GROUP = 10 * _VECTOR
"""The number of rows of a group, which is in memory until it is written."""
_GROUP_CHARACTERS = 1 << 26
"""The most characters of a group of so many rows; of longer rows there are fewer."""


class ParquetSink(AtomicFile):
    """Rows as a parquet file, in their order, with one type per column. Lists, objects and mixed
    values are JSON text."""

    def __init__(self, path: Path, layout: TableLayout) -> None:
        """Raises AgacError when duckdb is not installed."""
        self._names = distinct([column.name for column in layout.columns])
        self._kinds = [column.kind for column in layout.columns]
        self._json = [index for index, kind in enumerate(self._kinds) if kind in _AS_JSON]
        lack = lack_of(f"{path}: parquet", "duckdb")
        if lack:
            raise AgacError(lack, remedy="Or remove parquet from output.format.")
        self._connection = memory_database()
        self._longest = 0
        self._characters = 0
        self._rows = 0
        super().__init__(path)
        try:
            self._spool = AtomicFile(path.with_name(f"{path.name}.rows"))
        except AgacError:
            super().abort()
            raise

    def write(self, rows: Sequence[OutputRow]) -> None:
        lines = [self._line(row.cells) for row in rows]
        text = "".join(lines)
        self._rows += len(lines)
        self._characters += len(text)
        self._longest = max([self._longest, *map(len, lines)])
        self._spool.append(text)

    def finish(self) -> None:
        if self._finished:
            return
        self._spool.finish()
        with explained(self.path):
            self._copy()
        self._spool.abort()
        super().finish()

    def _copy(self) -> None:
        """Makes parquet of the spooled lines. Raises OSError, and AgacError for what else duckdb
        reports."""
        import duckdb

        try:
            self._connection.execute(self._statement())
        except duckdb.IOException as error:
            raise OSError(None, str(error).partition("\n")[0]) from error
        except duckdb.Error as error:
            first_line = str(error).partition("\n")[0]
            raise AgacError(
                f"{self.path}: cannot be written: {first_line}",
                remedy="Remove parquet from output.format, then run again: all results are safe "
                "in the store.",
            ) from error

    def _statement(self) -> str:
        """Returns the SQL that copies the spooled lines."""
        columns = ", ".join(f"c{index} AS {quoted(name)}" for index, name in enumerate(self._names))
        types = {f"c{index}": _TYPES.get(kind, TEXT_TYPE) for index, kind in enumerate(self._kinds)}
        rows = read_json(no_pattern(self._spool.temporary), types, self._longest)
        query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - names and paths are quoted
        has_long_rows = self._characters * _GROUP > _GROUP_CHARACTERS * max(self._rows, 1)
        group = _VECTOR if has_long_rows else _GROUP
        target = literal(str(self.temporary))
        return f"COPY ({query}) TO {target} ({_OPTIONS}, ROW_GROUP_SIZE {group})"

    def abort(self) -> None:
        """Forgets what was written; after `commit` it only frees memory."""
        self._connection.close()
        self._spool.abort()
        super().abort()

    def _line(self, cells: list[JSONValue]) -> str:
        values = list(cells)
        for index in self._json:
            value = values[index]
            is_null = value is None or (isinstance(value, float) and not math.isfinite(value))
            values[index] = None if is_null else encode(value)
        fields = {f"c{index}": value for index, value in enumerate(values) if value is not None}
        return encode(fields) + "\n"
