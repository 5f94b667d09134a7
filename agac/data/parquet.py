"""Parquet through duckdb: read some hundred rows at a time, written from spooled lines."""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from agac.core.errors import AgacError, UsageError, lack_of
from agac.core.types import JSONValue
from agac.data.files import AtomicFile, FileSource, Record, explained
from agac.data.json_formats import encode, json_column, refuse_repeated
from agac.data.sqlite import quoted
from agac.data.tables import Kind, OutputRow, TableLayout, distinct

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


# JSON has fewer kinds of values: dates and times become ISO texts, decimals texts with all their
# digits, bytes text (no UTF-8 replaced), NaN null; integers keep every digit, lists and structures
# their shape. An infinity is refused.

_ROWS_AT_A_TIME = 128
_INTEGERS = ("tinyint", "smallint", "integer", "bigint", "hugeint")
_AS_THEY_ARE = frozenset({"boolean", "varchar", *_INTEGERS, *(f"u{name}" for name in _INTEGERS)})
_TEXT = "VARCHAR"


def no_pattern(path: Path) -> str:
    """A path whose stars and brackets are only themselves to duckdb, which reads patterns of
    files."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))


class _ColumnType(NamedTuple):
    """How a column is fetched, and what makes JSON of a value that is not null."""

    type: str
    """The type to which it is cast."""
    convert: Callable[[Any], JSONValue] | None
    entries: Callable[[str], str] | None = None
    """What is selected in the place of a cast, of an expression in SQL: where the column holds a
    map, whose entries duckdb gives one by one. A map as a whole it refuses, and all rows with it,
    where a key comes twice."""

    def select(self, expression: str) -> str:
        """What is selected of an expression in SQL."""
        if self.entries is None:
            return f"CAST({expression} AS {self.type})"
        return self.entries(expression)

    def read(self, value: Any) -> JSONValue:
        if value is None or self.convert is None:
            return value
        return self.convert(value)


Durations = Mapping[str, "int | Durations"]
"""Which columns of integers are durations, and how many of their digits are parts of a second; of
a list, structure or map which parts of it are, by their names in the file."""


class TypedRows:
    """What duckdb gives, as JSON. `json`: JSON texts are their values. `mixed`: columns of doubles
    and integers. `names`: what columns are called that have another name in duckdb, which tells no
    `Name` from `name`. `durations`: where columns of integers are durations."""

    def __init__(
        self,
        found: DuckDBPyRelation,
        *,
        json: bool = False,
        mixed: Collection[str] = (),
        names: Mapping[str, str] = MappingProxyType({}),
        durations: Durations = MappingProxyType({}),
    ) -> None:
        self._selected = tuple(found.columns)
        self.columns = tuple(names.get(name, name) for name in self._selected)
        self._readings = [
            _ColumnType("DOUBLE", _plain_number)
            if selected in mixed and kind.id == "double"
            else _reading(kind, json=json, durations=durations.get(name))
            for selected, name, kind in zip(self._selected, self.columns, found.types, strict=True)
        ]

    def read(
        self, connection: DuckDBPyConnection, rows: str, start: int
    ) -> Iterator[tuple[dict[str, JSONValue] | None, str | None]]:
        """The rows of `rows`, which is SQL, after the first `start`: each its data, or why it has
        none."""
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


_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def hive_fields(shown: str) -> dict[str, JSONValue]:
    """The fields that the folders of a path name: `year=2024/lang=de/x.parquet`. All are texts, as
    nothing says which type they have."""
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
            found = connection.sql(f"FROM {read_parquet(connection, [path], str(path))}")
            types = dict(zip(found.columns, found.types, strict=True))
            first = first or types
            if types != first:
                return False
        return True
    return False


class ParquetSource(FileSource):
    """A parquet file. `hive`: folders named such as `year=2024` are fields of its rows, where the
    file has none of that name. Raises UsageError when it is no parquet, or when duckdb is missing.
    """

    def __init__(self, path: Path, shown: str, hive: bool = False) -> None:
        super().__init__(path, shown)
        lack = lack_of(f"{shown}: reading parquet", "duckdb")
        if lack:
            raise UsageError(lack, remedy="Or convert the file to csv or jsonl.")
        with self._connected() as connection:
            self._rows = read_parquet(connection, [self._path], shown)
            found = connection.sql(f"FROM {self._rows}")
            names = _own_names(connection, self._path, shown)
            self._table = TypedRows(
                found, names=names, durations=_durations(connection, self._path)
            )
        named = hive_fields(shown) if hive else {}
        self._of_folders = {
            name: value for name, value in named.items() if name not in self._table.columns
        }
        self._columns = (*self._table.columns, *self._of_folders)

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._opened(), self._connected() as connection:
            found = self._table.read(connection, self._rows, start)
            for ordinal, (data, problem) in enumerate(found, start=start + 1):
                if data is None:
                    yield self._refused(ordinal, None, str(problem))
                else:
                    yield Record(ordinal, data | self._of_folders)

    @contextmanager
    def _connected(self) -> Iterator[DuckDBPyConnection]:
        """A database in memory that reads the one file. Raises AgacError for what duckdb says."""
        import duckdb

        try:
            with closing(memory_database()) as connection:
                yield connection
        except duckdb.Error as error:
            first = str(error).partition("\n")[0].replace(no_pattern(self._path), self._path.name)
            problem = f"{self._shown}: cannot be read as parquet: {first}"
            raise AgacError(problem, remedy="Get the file again, then run again.") from error


class PandasIndex(NamedTuple):
    """What the index of a pandas frame is in Arrow and parquet. It numbers rows, which are others
    in a frame that was filtered or sorted, so it is no field unless it has a name."""

    hidden: tuple[str, ...] = ()
    """Columns that hold an index without a name."""
    numbers: Mapping[str, range] = MappingProxyType({})
    """Indexes with a name that are described only, by their numbers."""


_NO_NAME = re.compile(r"__index_level_\d+__")


def pandas_index(metadata: bytes | None, rows: int | None) -> PandasIndex:
    """The index that pandas' own metadata describes
    (pandas.pydata.org/docs/development/developer.html, read November 2026). What does not fit the
    number of `rows` was written before they changed, and counts as none."""
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
    return PandasIndex(
        hidden, {name: found for name, found in numbers.items() if len(found) == rows}
    )


def _reading(
    kind: Any, *, json: bool = False, durations: int | Durations | None = None
) -> _ColumnType:
    """Chooses how a column of this duckdb type is read. Types that are not listed are read as the
    text that duckdb makes of them."""
    if kind.id == "bigint" and isinstance(durations, int):
        return _ColumnType("BIGINT", partial(iso_duration, durations))
    if json and str(kind) == "JSON":
        return _ColumnType(_TEXT, json_column)
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
            return _ColumnType(_TEXT, lambda text: _number(float(text)))
        case "blob":
            return _ColumnType("BLOB", lambda raw: bytes(raw).decode(errors="replace"))
    if name.startswith("timestamp"):
        return _ColumnType(_TEXT, iso_moment)
    return _ColumnType(_TEXT, None)


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
    pair = f"struct_pack(k := CAST(x.key AS {_TEXT}), v := {item.select('x.value')})"
    return f"list_transform(map_entries({expression}), lambda x: {pair})"


def _map(item: _ColumnType, entries: Sequence[Mapping[str, Any]]) -> JSONValue:
    """A map as an object. Raises ValueError where a key comes twice, as a writer may have put it
    into a file."""
    found: dict[str, JSONValue] = {}
    for entry in entries:
        if entry["k"] in found:
            raise ValueError(f"holds a map with the key {entry['k']!r} twice")
        found[entry["k"]] = item.read(entry["v"])
    return found


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise ValueError("holds an infinity, which JSON cannot hold; write null")
    return None if math.isnan(value) else value


def _plain_number(value: float) -> float | None:
    return int(value) if value.is_integer() else _number(value)


def iso_moment(text: str) -> str:
    """`2024-05-01 10:00:00+00` as `2024-05-01T10:00:00+00:00`."""
    return text.replace(" ", "T", 1) + (":00" if text[-3:-2] == "+" else "")


# others are texts
_TYPES = {Kind.BOOLEAN: "BOOLEAN", Kind.INTEGER: "BIGINT", Kind.NUMBER: "DOUBLE"}
_AS_JSON = (Kind.NESTED, Kind.MIXED)
_MIN_LINE = 1 << 20
_OPTIONS = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
_VECTOR = 2048  # duckdb takes so many rows at a time
_GROUP = 10 * _VECTOR
_GROUP_CHARACTERS = 1 << 26


class ParquetSink(AtomicFile):
    """Rows as a parquet file, in their order, with a type a column. Lists, objects and mixed
    values are JSON text."""

    def __init__(self, path: Path, layout: TableLayout) -> None:
        """Raises AgacError when duckdb is not installed."""
        self._names = distinct([column.name for column in layout.columns])
        self._kinds = [column.kind for column in layout.columns]
        self._json = [place for place, kind in enumerate(self._kinds) if kind in _AS_JSON]
        lack = lack_of(f"{path}: parquet", "duckdb")
        if lack:
            raise AgacError(lack, remedy="Or remove parquet from output.format.")
        self._connection = memory_database()
        self._longest = self._characters = self._rows = 0
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
            import duckdb

            columns = ", ".join(
                f"c{place} AS {quoted(name)}" for place, name in enumerate(self._names)
            )
            types = {f"c{place}": _TYPES.get(kind, _TEXT) for place, kind in enumerate(self._kinds)}
            rows = read_json(no_pattern(self._spool.temporary), types, self._longest)
            query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - names and paths are quoted
            target = literal(str(self.temporary))
            # so many rows are held in memory until they are written: fewer where they are long
            if self._characters * _GROUP <= _GROUP_CHARACTERS * max(self._rows, 1):
                group = _GROUP
            else:
                group = _VECTOR
            try:
                self._connection.execute(
                    f"COPY ({query}) TO {target} ({_OPTIONS}, ROW_GROUP_SIZE {group})"
                )
            except duckdb.IOException as error:
                raise OSError(None, str(error).partition("\n")[0]) from error
            except duckdb.Error as error:
                remedy = (
                    "Remove parquet from output.format, then run again: all results are "
                    "safe in the store."
                )
                first = str(error).partition("\n")[0]
                raise AgacError(
                    f"{self.path}: cannot be written: {first}", remedy=remedy
                ) from error
        self._spool.abort()
        super().finish()

    def abort(self) -> None:
        """Forgets what was written; after `commit` it does nothing but to let go of memory."""
        self._connection.close()
        self._spool.abort()
        super().abort()

    def _line(self, cells: list[JSONValue]) -> str:
        values = list(cells)
        for place in self._json:
            value = values[place]
            is_null = value is None or (isinstance(value, float) and not math.isfinite(value))
            values[place] = None if is_null else encode(value)
        return (
            encode({f"c{place}": value for place, value in enumerate(values) if value is not None})
            + "\n"
        )


def memory_database() -> DuckDBPyConnection:
    """A database in memory. One thread keeps the memory flat, and nothing is spilled into the
    current folder."""
    import duckdb

    connection = duckdb.connect(
        config={"threads": 1, "temp_directory": "", "autoinstall_known_extensions": "false"}
    )
    with suppress(duckdb.Error):  # a duckdb without time zones knows UTC only
        connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_json(path: str, types: Mapping[str, str], longest: int) -> str:
    """Lines of JSON as duckdb reads them, by fields and their types; `longest` is the most
    characters of a line."""
    columns = ", ".join(f"{field}: '{type_}'" for field, type_ in types.items())
    how = "format = 'newline_delimited', compression = 'none', hive_partitioning = false"
    # the bytes of a character; the reader holds some buffers of this size
    bound = max(_MIN_LINE, 4 * longest)
    return (
        f"read_json({literal(path)}, columns = {{{columns}}}, {how}, maximum_object_size = {bound})"
    )


def read_parquet(connection: DuckDBPyConnection, paths: Sequence[Path], shown: str) -> str:
    """The rows of parquet files for a FROM of duckdb, with the columns of all, and without what
    only numbers the rows of a pandas frame: see `PandasIndex`. duckdb is told to take no columns
    from folders: by itself it makes one of a folder such as `year=2024`, whose value replaces the
    file's own. Raises duckdb.Error for what is no parquet, UsageError for decimals that duckdb
    would round."""
    listed = ", ".join(literal(no_pattern(path)) for path in paths)
    _refuse_wide(connection, listed, shown)
    rows = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
    indexes = _pandas_indexes(connection, listed)
    if any(index.numbers for index in indexes.values()):
        each = (
            _with_index(connection, path, indexes.get(str(path), PandasIndex())) for path in paths
        )
        rows = f"({' UNION ALL BY NAME '.join(each)})"
    hidden = ", ".join(
        sorted({literal(name) for index in indexes.values() for name in index.hidden})
    )
    if hidden:
        return f"(SELECT COLUMNS(lambda c: c NOT IN ({hidden})) FROM {rows})"  # noqa: S608 - quoted
    return rows


def _own_names(connection: DuckDBPyConnection, path: Path, shown: str) -> dict[str, str]:
    """The names of a file's columns that duckdb has renamed, since others differ from them by case
    alone. Raises UsageError where a name comes twice."""
    file = literal(no_pattern(path))
    rows = f"SELECT * FROM read_parquet({file}, hive_partitioning = false)"  # noqa: S608 - quoted
    columns = connection.sql(rows).columns
    schema = f"SELECT name, coalesce(num_children, 0) FROM parquet_schema({file})"  # noqa: S608 - quoted
    found = connection.execute(schema).fetchall()
    names = list[str]()
    inner = 0
    for name, children in found[1:]:  # the first is the root; what is in a column follows it
        if not inner:
            names.append(name)
        inner = max(inner - 1, 0) + children
    refuse_repeated(f"{shown}: the file names", names)
    if len(columns) != len(names):
        return {}
    return {column: name for column, name in zip(columns, names, strict=True) if column != name}


def _durations(connection: DuckDBPyConnection, path: Path) -> Durations:
    """The columns of a file that are durations to Arrow. Parquet has no such type: what writes
    Arrow keeps its own schema beside the file's."""
    found = connection.execute(
        f"SELECT value FROM parquet_kv_metadata({literal(no_pattern(path))}) "  # noqa: S608 - quoted
        "WHERE key = 'ARROW:schema'::BLOB"
    ).fetchone()
    try:
        return _arrow_durations(b64decode(found[0])) if found else {}
    except (
        ValueError,
        LookupError,
        RecursionError,
        struct.error,
    ):
        # another form than the one that is known: then they stay integers
        return {}


_DURATION = 18  # of the union Type
_CHILDREN = 5  # of the table Field
# of seconds, milli-, micro- and nanoseconds, in the order of Arrow's TimeUnit
_DECIMALS = (0, 3, 6, 9)


def _arrow_durations(message: bytes) -> Durations:
    """Of a schema as Arrow writes it, a FlatBuffers message after its length:
    (github.com/apache/arrow, Schema.fbs and Message.fbs, read November 2026). Raises struct.error
    and ValueError for anything else."""
    data = message[8:] if message[:4] == b"\xff\xff\xff\xff" else message[4:]

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, data, at)[0])

    def field(table: int, place: int) -> int | None:
        """Where a field of a table is; None: it has its default."""
        layout = table - number("<i", table)
        slot = 4 + 2 * place
        offset = number("<H", layout + slot) if slot < number("<H", layout) else 0
        return table + offset if offset else None

    def inner(table: int, place: int) -> int:
        """The table, vector or text that a field names. Raises ValueError where there is none."""
        at = field(table, place)
        if at is None:
            raise ValueError("a part of the schema is missing")
        return at + number("<I", at)

    def durations_in(table: int, place: int) -> Durations:
        """What is a duration among the columns that a field names."""
        columns = inner(table, place)
        found = dict[str, int | Durations]()
        for position in range(number("<I", columns)):
            at = columns + 4 + 4 * position
            column = at + number("<I", at)
            kind = field(column, 2)
            text = inner(column, 0)
            name = data[text + 4 : text + 4 + number("<I", text)].decode()
            if kind is not None and number("<B", kind) == _DURATION:
                unit = field(inner(column, 3), 0)
                found[name] = _DECIMALS[1 if unit is None else number("<h", unit)]
            elif field(column, _CHILDREN) is not None and (
                below := durations_in(column, _CHILDREN)
            ):
                found[name] = below
        return found

    return durations_in(inner(number("<I", 0), 2), 1)


def iso_duration(decimals: int, value: int) -> str:
    """`PT90.5S`: ISO 8601 in seconds, of which the value has so many decimals, with every digit
    that is not 0."""
    whole, part = divmod(abs(value), 10**decimals)
    fraction = f".{part:0{decimals}d}".rstrip("0") if part else ""
    return f"{'-' if value < 0 else ''}PT{whole}{fraction}S"


_MAX_DIGITS = 38  # of a decimal of duckdb; it reads others as doubles


def _refuse_wide(connection: DuckDBPyConnection, listed: str, shown: str) -> None:
    """Raises UsageError for columns of decimals with more digits than duckdb reads, within
    structures too."""
    found = connection.execute(
        f"SELECT DISTINCT name, precision FROM parquet_schema([{listed}]) "  # noqa: S608 - quoted
        f"WHERE precision > {_MAX_DIGITS} ORDER BY ALL"
    )
    wide = [f"{name!r} of up to {digits} digits" for name, digits in found.fetchall()]
    if wide:
        problem = (
            f"{shown}: decimals of more than {_MAX_DIGITS} digits cannot be read exactly: "
            f"{', '.join(wide)}"
        )
        raise UsageError(problem, remedy="Write these columns as text.")


def _pandas_indexes(connection: DuckDBPyConnection, listed: str) -> dict[str, PandasIndex]:
    """The indexes of files that were written from frames of pandas, by path."""
    found = connection.execute(
        f"SELECT file_name, value, num_rows FROM parquet_kv_metadata([{listed}]) "  # noqa: S608 - quoted
        f"JOIN parquet_file_metadata([{listed}]) USING (file_name) WHERE key = 'pandas'::BLOB"
    )
    return {name: pandas_index(*about) for name, *about in found.fetchall()}


def _with_index(connection: DuckDBPyConnection, path: Path, index: PandasIndex) -> str:
    """The rows of one file as a SELECT, with the columns of an index that it describes and does
    not hold."""
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
    """A text as duckdb takes it."""
    return "'" + text.replace("'", "''") + "'"
