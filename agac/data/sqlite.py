"""SQLite databases: read as an input with one SELECT, and written as a table of results."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from math import isfinite, isinf, isnan
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from agac.core.errors import AgacError, ErrorType, RowError, UsageError, did_you_mean, sentence
from agac.core.types import JSONValue
from agac.data.files import AtomicFile, FileSource, Record, explained
from agac.data.json_formats import BY_AS, encode, refuse_repeated
from agac.data.json_formats import quoted as text_quoted
from agac.data.tables import Kind, OutputRow, TableColumn, TableLayout, distinct

# The database is opened so that nothing can be written, and an authorizer refuses whatever is not
# reading. Integers keep every digit, dates are whatever the database holds, blobs are text in
# UTF-8.

_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_END = re.compile(r"(?:\s|;|--[^\n]*\Z)*\Z")
_REPEATED = re.compile(r"(.+):\d+")
_MISSING = re.compile(r"no such (table|column): (.+)")
TABLES = (
    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE "
    "'sqlite_%' ORDER BY name"
)


class SqliteSource(FileSource):
    """The rows of one statement. Raises UsageError when the database or the statement cannot be
    read."""

    def __init__(self, path: Path, statement: str, shown: str) -> None:
        self._statement = statement
        try:
            super().__init__(path, shown)
            with self.connected() as connection:
                # understood as it stands, and nothing but reading
                connection.execute(f"EXPLAIN {statement}")
                # no row is looked for: what sorts a large table sorts it once, when it is read
                inner = _END.sub("", statement)
                found = connection.execute(f"SELECT * FROM (\n{inner}\n) LIMIT 0")  # noqa: S608 - only reading is possible
                self._columns = tuple(str(column[0]) for column in found.description)
        except AgacError as error:
            raise UsageError(
                error.message, remedy=self._meant(error.message) or error.remedy
            ) from error
        repeated = map(_REPEATED.fullmatch, self._columns)
        named = [
            match[1] if match else name for match, name in zip(repeated, self._columns, strict=True)
        ]
        refuse_repeated(
            f"{shown}: the query gives", [name for name in named if name in self._columns], BY_AS
        )

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._opened(), self.connected() as connection:
            for ordinal, values in enumerate(connection.execute(self._statement), start=1):
                if ordinal > start:
                    yield record_of(self._shown, ordinal, self._columns, values)

    def _meant(self, message: str) -> str | None:
        """Returns the table or column that a name that does not exist may have meant."""
        missing = _MISSING.search(message)
        if missing is None:
            return None
        kind, name = missing.groups()
        with self.connected() as connection:
            tables = [str(table) for (table,) in connection.execute(TABLES)]
            if kind == "table":
                return sentence(did_you_mean(name, tables, "its tables"))
            read = [
                one
                for one in tables
                if re.search(rf"\b{re.escape(one)}\b", self._statement, re.IGNORECASE)
            ]
            found = [
                connection.execute(f"SELECT * FROM {quoted(one)} LIMIT 0").description  # noqa: S608
                for one in read
            ]
        columns = dict.fromkeys(str(column[0]) for columns in found for column in columns)
        return sentence(did_you_mean(name.rpartition(".")[2], columns, "the columns"))

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Opens a connection that can only read, usable from any thread, one at a time."""
        uri = f"file:{quote(str(self._path))}?mode=ro"
        try:
            with closing(
                sqlite3.connect(
                    uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
                )
            ) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
                connection.set_authorizer(_allowed)
                yield connection
        except sqlite3.Error as error:
            problem, remedy = _explained(str(error))
            raise AgacError(f"{self._shown}: {problem}", remedy=remedy) from error


def plain(value: Any, hexed: str = "hex()") -> JSONValue:
    """Returns a value of a database as JSON has it. Raises ValueError with what is wrong with it;
    `hexed` shows any bytes."""
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()
    except UnicodeError:
        raise ValueError(f"holds bytes that are not UTF-8; leave it out, or take {hexed}") from None
    if isinstance(value, float) and isinf(value):
        raise ValueError("holds an infinity, which JSON cannot hold; select null instead")
    if isinstance(value, float) and isnan(value):
        return None
    return value


def record_of(
    shown: str,
    ordinal: int,
    columns: Sequence[str],
    values: Sequence[Any],
    read: Callable[[Any], JSONValue] = plain,
) -> Record:
    """Returns the record of a row that a query of the database `shown` gives; `read` raises
    ValueError as `plain` does."""
    data: dict[str, JSONValue] = {}
    for column, value in zip(columns, values, strict=True):
        kind = type(value)
        try:
            data[column] = (
                value if kind is int or (kind is str and value.isascii()) else read(value)
            )
        except ValueError as error:
            problem = f"{shown}: row {ordinal}: the column {text_quoted(column)} {error}"
            return Record(ordinal, None, RowError(ErrorType.INVALID_ROW, problem))
    return Record(ordinal, data)


def tables_read(path: Path, statement: str, shown: str) -> set[str]:
    """Returns the tables that a statement reads, views followed, in lower case. Raises UsageError
    if it cannot be read."""
    found: set[str] = set()

    def note(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first:
            found.add(first.lower())
        return _allowed(action, first, second)

    with SqliteSource(path, statement, shown).connected() as connection:
        connection.set_authorizer(note)
        connection.execute(f"EXPLAIN {statement}")
    return found


def _allowed(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite asks this about everything that a statement would do."""
    reads = action in _READING and not (
        action == sqlite3.SQLITE_FUNCTION and second == "load_extension"
    )
    # full-text tables ask for their own pragma while they are read
    own = action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None
    if reads or own:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _explained(message: str) -> tuple[str, str]:
    if "not authorized" in message or "prohibited" in message or "readonly" in message:
        return "the query does more than read", "Write one SELECT: a source changes nothing."
    if "one statement" in message:
        return "there is more than one statement", "Write one SELECT."
    if "not a database" in message:
        return "the file is no SQLite database, or it is encrypted", "Check the path."
    if "locked" in message or "busy" in message:
        return "another program is writing to the database", "Wait for it to end, then run again."
    return f"SQLite says: {message}", "Correct the query."


# Whether a table that is there already can take a run's rows; looked at before anything is paid
# for, and again.

OTHER_TABLE = "Name another table in output.to."
NO_NUMBERS = {Kind.TEXT: "text", Kind.NESTED: "JSON text", Kind.MIXED: "values of several types"}
_NUMERIC = "INTEGER, REAL and NUMERIC columns turn '007' into 7"


class Known(NamedTuple):
    """A column of a table that exists."""

    name: str
    type: str
    """Its declared type."""
    computed: bool
    """True if the database computes it."""
    family: str = ""
    """The family of the type, if a server tells it."""
    unique: bool = False
    """True if rows can be found by the column alone, as far as a server tells it."""


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, Known]:
    """Returns the columns of a table by their names in lower case; empty if there is no such
    table."""
    rows = connection.execute(f"PRAGMA table_xinfo({quoted(table)})")
    return {
        name.lower(): Known(name, type_.upper(), hidden > 0)
        for _, name, type_, _, _, _, hidden in rows
    }


def find_column(known: Mapping[str, Known], name: str) -> Known | None:
    """Returns a column of a table by its name, or by that in lower case."""
    return known.get(name) or known.get(name.lower())


def table_columns(layout: TableLayout, there: Collection[str] = ()) -> list[TableColumn]:
    """Returns the columns of a table, the key first, under names that SQLite tells apart; it has
    those `there` already."""
    columns = [column for place, column in enumerate(layout.columns) if place != layout.id_place]
    columns.insert(0, layout.key)
    names = distinct([column.name for column in columns], there)
    return [replace(column, name=name) for name, column in zip(names, columns, strict=True)]


def check_table(
    connection: sqlite3.Connection, table: str, columns: Sequence[TableColumn], shown: str
) -> None:
    """Raises UsageError when the table cannot take these columns, found by the first. A table not
    there yet can."""
    key = columns[0].name
    made = "SELECT type, sql FROM sqlite_master WHERE lower(name) = ? AND type IN ('table', 'view')"
    found = connection.execute(made, (table.lower(),)).fetchone()
    if found is None:
        return
    if found[0] == "view" or (found[1] or "").upper().startswith("CREATE VIRTUAL"):
        raise UsageError(
            f"{shown} is a {'view' if found[0] == 'view' else 'virtual table'}", remedy=OTHER_TABLE
        )
    known = columns_of(connection, table)
    check_key(
        shown,
        quoted(table),
        key,
        known.get(key.lower()),
        lambda: _is_unique(connection, table, key),
    )
    clashes = [
        text for column in columns if (text := _clash(column, known.get(column.name.lower())))
    ]
    if clashes:
        raise UsageError(
            f"{shown}: {'; '.join(clashes)}",
            remedy=f"{OTHER_TABLE} Or change these columns; {_NUMERIC}.",
        )


def check_key(
    shown: str, table: str, key: str, column: object, is_unique: Callable[[], bool]
) -> None:
    """Raises UsageError when rows of a `table`, as SQL names it, cannot be found by the `key`, or
    `column` is None."""
    if column is None:
        remedy = f"{OTHER_TABLE} Or give it that column, with ids that are unique."
        raise UsageError(
            f"{shown} has no column {key!r}, by which its rows would be found", remedy=remedy
        )
    if not is_unique():
        name = quoted(f"{table.replace(chr(34), '')}_{key}")
        index = f"CREATE UNIQUE INDEX {name} ON {table} ({quoted(key)})"
        raise UsageError(
            f"{shown}: the ids in {key!r} are not unique", remedy=f"{OTHER_TABLE} Or run {index};"
        )


def _clash(column: TableColumn, known: Known | None) -> str:
    if known is None:
        return ""
    if known.computed:
        return f"the column {known.name!r} is computed by SQLite"
    # it makes numbers of texts that look like one
    if _affinity(known.type) in _NUMBERS and column.kind in NO_NUMBERS:
        return (
            f"the column {known.name!r} is {known.type}, but {NO_NUMBERS[column.kind]} "
            "would be written into it"
        )
    return ""


Affinity = Literal["integer", "text", "as it is", "real", "numeric"]
_NUMBERS: tuple[Affinity, ...] = ("integer", "real", "numeric")


def _affinity(declared: str) -> Affinity:
    """Returns what a column of this declared type makes of values (sqlite.org/datatype3.html, 3.1,
    read November 2026)."""
    if "INT" in declared:
        return "integer"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if not declared or "BLOB" in declared:
        return "as it is"
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return "real"
    return "numeric"


def _changes(value: int, affinity: Affinity) -> bool:
    """True if a column of this affinity would keep another number than `value`."""
    is_kept_as_double = affinity == "real" or (affinity in _NUMBERS and _is_large(value))
    return is_kept_as_double and not is_double(value)


def _is_large(value: int) -> bool:
    """True if an integer has more than 64 bits."""
    return not -_MAX_INTEGER <= value < _MAX_INTEGER


def is_double(value: int) -> bool:
    """True if a floating point number of 64 bits holds just this integer."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _is_unique(connection: sqlite3.Connection, table: str, key: str) -> bool:
    info = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    if [name.lower() for _, name, _, _, _, place in info if place] == [key.lower()]:
        return True
    for _, index, unique, _, partial in connection.execute(
        f"PRAGMA index_list({quoted(table)})"
    ).fetchall():
        names = [
            (row[2] or "").lower()
            for row in connection.execute(f"PRAGMA index_info({quoted(index)})")
        ]
        if unique and not partial and names == [key.lower()]:
            return True
    return False


def quoted(name: str) -> str:
    """Returns a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def check_target(path: Path, table: str, columns: Sequence[TableColumn], shown: str) -> None:
    """Raises UsageError when rows cannot be written into the table, by the columns that are known:
    the key at least."""
    place = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(place, os.W_OK):
        raise UsageError(
            f"{shown}: {place} cannot be written",
            remedy="Make it writable or choose another output.to.",
        )
    if place != path or not path.stat().st_size:
        return
    with path.open("rb") as file:
        logged = file.read(19)[18:] == b"\x02"
    # looked at without a trace: a database with an empty write-ahead log would get its files
    if logged and not path.with_name(f"{path.name}-wal").exists():
        immutable = "&immutable=1"
    else:
        immutable = ""
    uri = f"file:{quote(str(path))}?mode=ro{immutable}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection:
            check_table(connection, table, columns, f"{shown}: table {table!r}")
    except sqlite3.OperationalError:
        return  # it is locked just now, or something passing: said at the end, when it still stands
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"{shown}: {error}", remedy="Name a SQLite database in output.to."
        ) from error


BUSY_SECONDS = 30.0
_MAX_INTEGER = 1 << 63
_TYPES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "INTEGER",
    Kind.NUMBER: "REAL",
    Kind.NESTED: "TEXT",
    Kind.TEXT: "TEXT",
}


class TableSink:
    """Rows into the `table` of the database at `path`, in one transaction: seen once `commit` was
    called. The table and columns are made where they lack; others' stay. Rows without an id of
    their own are left out."""

    ids = ("TEXT", "INTEGER")
    place = "?{}"
    """The types of ids that are texts and integers, and how a statement names the value of this
    number."""

    _connection: Any = None
    _made = False

    def __init__(
        self, path: Path, table: str, layout: TableLayout, shown: str, *, unshared: bool = False
    ) -> None:
        """`unshared`: no other process sees the database before it is whole, so it needs no
        journal file. Raises AgacError when the database cannot be used, UsageError when the table
        has columns that cannot take rows."""
        self._path = path
        self._table = table
        self._shown = f"{shown}: table {table!r}"
        self._unshared = unshared
        self._begin(quoted(table), layout)

    def _begin(self, table: str, layout: TableLayout) -> None:
        """Makes the table, whose name in SQL this is, as the rows need it."""
        self._id_place = layout.id_place
        try:
            with self._explained():
                self._connect()
                known = self._known()
                columns = table_columns(
                    layout, dict.fromkeys(column.name for column in known.values())
                )
                self._check(columns)
                if not known:
                    key = (
                        f"{quoted(columns[0].name)} "
                        f"{self.ids[columns[0].kind is Kind.INTEGER]} PRIMARY KEY NOT NULL"
                    )
                    body = ", ".join([key, *map(self._definition, columns[1:])])
                    self._connection.execute(f"CREATE TABLE {table} ({body})")
                for column in columns if known else ():
                    if find_column(known, column.name) is None:
                        self._connection.execute(
                            f"ALTER TABLE {table} ADD COLUMN {self._definition(column)}"
                        )
                known = self._known()
        except BaseException:  # also when it is interrupted, the database is not left locked
            self.abort()
            raise
        self._columns = [one for column in columns if (one := find_column(known, column.name))]
        self._affinities = [_affinity(column.type) for column in self._columns]
        key, *others = (quoted(column.name) for column in self._columns)
        places = ", ".join(map(self.place.format, range(1, len(columns) + 1)))
        change = ", ".join(f"{name} = excluded.{name}" for name in others)
        insert = f"INSERT INTO {table} ({', '.join([key, *others])}) VALUES ({places})"  # noqa: S608 - quoted
        self._statement = f"{insert} ON CONFLICT ({key}) DO UPDATE SET {change}"

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Puts rows in, or brings those up to date that are there. Raises AgacError when the
        database refuses one."""
        own = [(row.id, row.cells) for row in rows if row.id is not None]
        values = (
            [id_, *(cell for place, cell in enumerate(cells) if place != self._id_place)]
            for id_, cells in own
        )
        with self._explained():
            self._connection.cursor().executemany(self._statement, [*map(self._storable, values)])

    def finish(self) -> None:
        """Nothing is left to do: what was written waits in the transaction, in the database's own
        files."""

    def commit(self) -> None:
        """Ends the transaction: all rows are seen at once, durably."""
        if self._connection is not None:
            with self._explained():
                self._connection.commit()
            self.abort()

    def abort(self) -> None:
        """Takes back what was written. After `commit` it does nothing."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()  # which takes back what was not committed
        if self._made and self._path.exists() and not self._path.stat().st_size:
            self._path.unlink()

    def _connect(self) -> None:
        with explained(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._made = not self._path.exists()
        connection = self._connection = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None
        )
        if self._unshared:
            connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN IMMEDIATE")

    def _known(self) -> dict[str, Known]:
        return columns_of(self._connection, self._table)

    def _check(self, columns: Sequence[TableColumn]) -> None:
        check_table(self._connection, self._table, columns, self._shown)

    def _definition(self, column: TableColumn) -> str:
        """Without a declared type where the next run may bring other values: then nothing is
        converted."""
        declared = column.declared or column.kind is Kind.TEXT
        return f"{quoted(column.name)} {_TYPES.get(column.kind, '') if declared else ''}".rstrip()

    def _storable(self, values: list[JSONValue]) -> list[JSONValue]:
        """Returns the values as SQLite keeps them. Raises AgacError for a number that the type of
        its column would change."""
        stored = [*map(_storable, values, self._affinities)]
        for column, affinity, value in zip(self._columns, self._affinities, values, strict=True):
            if type(value) is int and _changes(value, affinity):
                what = f"the column {column.name!r} is {column.type}, which would change {value}"
                raise AgacError(
                    f"{self._shown}: {what}", remedy=f"Give it the type TEXT. {OTHER_TABLE}"
                )
        return stored

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise AgacError(f"{self._shown}: {error}", remedy=_remedy(error)) from error


class FreshDatabase(AtomicFile):
    """A database of its own with the one table, made again each time: as a file that appears whole
    or not at all."""

    def __init__(self, path: Path, table: str, layout: TableLayout) -> None:
        super().__init__(path)
        try:
            self._sink = TableSink(self.temporary, table, layout, path.name, unshared=True)
        except BaseException:  # also when it is interrupted, no temporary file stays
            super().abort()
            raise

    def write(self, rows: Sequence[OutputRow]) -> None:
        self._sink.write(rows)

    def finish(self) -> None:
        self._sink.commit()
        super().finish()

    def abort(self) -> None:
        self._sink.abort()
        super().abort()


def _storable(value: JSONValue, affinity: Affinity) -> JSONValue:
    """Returns a value as SQLite keeps it: integers beyond 64 bits, lists and objects as their JSON
    text, and fractions in a column of texts, for which SQLite would write 15 digits."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return encode(value) if affinity == "text" else value
    if isinstance(value, dict | list):
        return encode(value)
    if isinstance(value, int) and _is_large(value):
        return encode(value)
    return value


def _remedy(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "Another program holds the database: let it end."
    if "not a database" in text:
        return "Name a SQLite database, or a file that is not there yet, in output.to."
    if "too many" in text:
        return (
            "SQLite takes 2000 columns: choose output.merge: replace or append, or write "
            "csv or parquet."
        )
    if "full" in text:
        return "Free some space: all results are safe in the store."
    return (
        "Mend the table, or name another one in output.to and run again: all results are "
        "safe in the store."
    )
