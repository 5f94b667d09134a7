"""Files as duckdb reads them: its database in memory, lines of JSON, and parquet files, with what
these say of indexes of pandas and of durations."""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from agac.core.errors import UsageError
from agac.data.duckdb_values import Durations
from agac.data.json_formats import refuse_repeated
from agac.data.sqlite import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MIN_LINE = 1 << 20
"""The least characters of a line for which duckdb makes room."""


def no_pattern(path: Path) -> str:
    """Returns a path whose stars and brackets are only themselves to duckdb, which reads patterns
    of files."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))


class PandasIndex(NamedTuple):
    """The index of a pandas frame in Arrow and parquet. It numbers rows, which are others in a
    frame that was filtered or sorted, so it is no field unless it has a name."""

    hidden: tuple[str, ...] = ()
    """Columns that hold an index without a name."""
    numbers: Mapping[str, range] = MappingProxyType({})
    """Indexes with a name that are described only, by their numbers."""


_NO_NAME = re.compile(r"__index_level_\d+__")


def pandas_index(metadata: bytes | None, rows: int | None) -> PandasIndex:
    """Returns the index that pandas' own metadata describes
    (pandas.pydata.org/docs/development/developer.html, read November 2026).

    Numbers that do not fit the number of `rows` were written before these changed, and do not
    count."""
    try:
        levels = json.loads(metadata or b"{}")["index_columns"]
        hidden = tuple(
            level for level in levels if isinstance(level, str) and _NO_NAME.fullmatch(level)
        )
        described = [
            level for level in levels if isinstance(level, dict) and level["name"] is not None
        ]
        numbers = {
            str(level["name"]): range(level["start"], level["stop"], level["step"])
            for level in described
        }
    except (ValueError, KeyError, TypeError):
        return PandasIndex()
    fitting = {name: values for name, values in numbers.items() if len(values) == rows}
    return PandasIndex(hidden, fitting)


def memory_database() -> DuckDBPyConnection:
    """Opens a database in memory. One thread keeps the memory flat, and nothing is spilled into
    the current folder."""
    import duckdb

    connection = duckdb.connect(
        config={"threads": 1, "temp_directory": "", "autoinstall_known_extensions": "false"}
    )
    with suppress(duckdb.Error):  # a duckdb without time zones knows UTC only
        connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_json(path: str, types: Mapping[str, str], longest: int) -> str:
    """Returns SQL for lines of JSON, by fields and their types; `longest` is the most characters
    of a line."""
    columns = ", ".join(f"{field}: '{type_}'" for field, type_ in types.items())
    # four bytes for a character; the reader has some buffers of this size
    max_bytes = max(_MIN_LINE, 4 * longest)
    options = (
        "format = 'newline_delimited', compression = 'none', hive_partitioning = false, "
        f"maximum_object_size = {max_bytes}"
    )
    return f"read_json({literal(path)}, columns = {{{columns}}}, {options})"


def read_parquet(connection: DuckDBPyConnection, paths: Sequence[Path], shown: str) -> str:
    """Returns SQL for the rows of parquet files, with the columns of all, and without what only
    numbers the rows of a pandas frame: see `PandasIndex`.

    It takes no columns from folders: by itself duckdb makes one of a folder such as `year=2024`,
    whose value replaces the file's own. Raises duckdb.Error for what is no parquet, UsageError for
    decimals that duckdb would round."""
    listed = ", ".join(literal(no_pattern(path)) for path in paths)
    _refuse_wide(connection, listed, shown)
    rows = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
    indexes = _pandas_indexes(connection, listed)
    if any(index.numbers for index in indexes.values()):
        selects = (
            _with_index(connection, path, indexes.get(str(path), PandasIndex())) for path in paths
        )
        rows = f"({' UNION ALL BY NAME '.join(selects)})"
    hidden_names = {literal(name) for index in indexes.values() for name in index.hidden}
    hidden = ", ".join(sorted(hidden_names))
    if hidden:
        return f"(SELECT COLUMNS(lambda c: c NOT IN ({hidden})) FROM {rows})"  # noqa: S608 - quoted
    return rows


def own_names(connection: DuckDBPyConnection, path: Path, shown: str) -> dict[str, str]:
    """Returns the names of a file's columns that duckdb has renamed, since others differ from them
    by case alone. Raises UsageError if a name comes twice."""
    file = literal(no_pattern(path))
    rows = f"SELECT * FROM read_parquet({file}, hive_partitioning = false)"  # noqa: S608 - quoted
    columns = connection.sql(rows).columns
    schema = f"SELECT name, coalesce(num_children, 0) FROM parquet_schema({file})"  # noqa: S608 - quoted
    parts = connection.execute(schema).fetchall()
    names = list[str]()
    inner = 0
    for name, children in parts[1:]:  # the first is the root; what is in a column follows it
        if not inner:
            names.append(name)
        inner = max(inner - 1, 0) + children
    refuse_repeated(f"{shown}: the file names", names)
    if len(columns) != len(names):
        return {}
    return {column: name for column, name in zip(columns, names, strict=True) if column != name}


def durations_of(connection: DuckDBPyConnection, path: Path) -> Durations:
    """Returns the columns of a file that are durations to Arrow. Parquet has no such type: what
    writes Arrow keeps its own schema along with the file's."""
    schema = connection.execute(
        f"SELECT value FROM parquet_kv_metadata({literal(no_pattern(path))}) "  # noqa: S608 - quoted
        "WHERE key = 'ARROW:schema'::BLOB"
    ).fetchone()
    try:
        return _arrow_durations(b64decode(schema[0])) if schema else {}
    except (ValueError, LookupError, RecursionError, struct.error):
        return {}  # another form than the known one: the columns stay integers


_DURATION = 18
"""The number of a duration in the union Type."""
_NAME = 0
_TYPE = 2
_TYPE_TABLE = 3
_CHILDREN = 5
"""Positions of fields in the table Field."""
_DECIMALS = (0, 3, 6, 9)
"""The decimals of seconds, milli-, micro- and nanoseconds, in the order of Arrow's TimeUnit."""
_DEFAULT_UNIT = 1


def _arrow_durations(message: bytes) -> Durations:
    """Returns the durations of a schema as Arrow writes it, a FlatBuffers message after its length
    (github.com/apache/arrow, Schema.fbs and Message.fbs, read November 2026).

    Raises struct.error and ValueError for anything else."""
    data = message[8:] if message[:4] == b"\xff\xff\xff\xff" else message[4:]
    buffer = _FlatBuffer(data)
    schema = buffer.inner(buffer.number("<I", 0), 2)
    return _durations_in(buffer, schema, 1)


def _durations_in(buffer: _FlatBuffer, table: int, position: int) -> Durations:
    """Returns the durations among the columns that a field of a table lists."""
    columns = buffer.inner(table, position)
    durations = dict[str, int | Durations]()
    for index in range(buffer.number("<I", columns)):
        at = columns + 4 + 4 * index
        column = at + buffer.number("<I", at)
        kind = buffer.field(column, _TYPE)
        name = buffer.text(buffer.inner(column, _NAME))
        if kind is not None and buffer.number("<B", kind) == _DURATION:
            unit = buffer.field(buffer.inner(column, _TYPE_TABLE), 0)
            durations[name] = _DECIMALS[
                _DEFAULT_UNIT if unit is None else buffer.number("<h", unit)
            ]
        elif buffer.field(column, _CHILDREN) is not None:
            below = _durations_in(buffer, column, _CHILDREN)
            if below:
                durations[name] = below
    return durations


class _FlatBuffer:
    """A message of FlatBuffers. Its methods raise struct.error beyond its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def number(self, form: str, at: int) -> int:
        """Reads a number in this form of `struct`."""
        return int(struct.unpack_from(form, self._data, at)[0])

    def field(self, table: int, position: int) -> int | None:
        """Finds a field of a table. Returns None if it has its default."""
        layout = table - self.number("<i", table)
        slot = 4 + 2 * position
        offset = self.number("<H", layout + slot) if slot < self.number("<H", layout) else 0
        return table + offset if offset else None

    def inner(self, table: int, position: int) -> int:
        """Finds the table, vector or text that a field names. Raises ValueError if there is
        none."""
        at = self.field(table, position)
        if at is None:
            raise ValueError("a part of the schema is missing")
        return at + self.number("<I", at)

    def text(self, at: int) -> str:
        """Reads a text."""
        return self._data[at + 4 : at + 4 + self.number("<I", at)].decode()


_MAX_DIGITS = 38
"""The most digits of a decimal of duckdb; it reads others as doubles."""


def _refuse_wide(connection: DuckDBPyConnection, listed: str, shown: str) -> None:
    """Raises UsageError for columns of decimals with more digits than duckdb reads, within
    structures too."""
    columns = connection.execute(
        f"SELECT DISTINCT name, precision FROM parquet_schema([{listed}]) "  # noqa: S608 - quoted
        f"WHERE precision > {_MAX_DIGITS} ORDER BY ALL"
    )
    wide = [f"{name!r} of up to {digits} digits" for name, digits in columns.fetchall()]
    if wide:
        problem = (
            f"{shown}: decimals of more than {_MAX_DIGITS} digits cannot be read exactly: "
            f"{', '.join(wide)}"
        )
        raise UsageError(problem, remedy="Write these columns as text.")


def _pandas_indexes(connection: DuckDBPyConnection, listed: str) -> dict[str, PandasIndex]:
    """Returns the indexes of files that were written from frames of pandas, by path."""
    files = connection.execute(
        f"SELECT file_name, value, num_rows FROM parquet_kv_metadata([{listed}]) "  # noqa: S608 - quoted
        f"JOIN parquet_file_metadata([{listed}]) USING (file_name) WHERE key = 'pandas'::BLOB"
    )
    return {name: pandas_index(metadata, rows) for name, metadata, rows in files.fetchall()}


def _with_index(connection: DuckDBPyConnection, path: Path, index: PandasIndex) -> str:
    """Returns a SELECT of the rows of one file, with the columns of an index that it describes and
    does not hold."""
    file = f"{literal(no_pattern(path))}, hive_partitioning = false"
    columns = connection.sql(f"SELECT * FROM read_parquet({file})").columns  # noqa: S608 - quoted
    added = [
        f"{numbers.start} + {numbers.step} * file_row_number AS {quoted(name)}"
        for name, numbers in index.numbers.items()
        if name not in columns and "file_row_number" not in columns
    ]
    if not added:
        return f"SELECT * FROM read_parquet({file})"  # noqa: S608 - quoted
    rows = f"read_parquet({file}, file_row_number = true)"
    return f"SELECT * EXCLUDE (file_row_number), {', '.join(added)} FROM {rows}"  # noqa: S608 - quoted


def literal(text: str) -> str:
    """Returns a text as duckdb takes it."""
    return "'" + text.replace("'", "''") + "'"
