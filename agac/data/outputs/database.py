"""A table in a SQLite database as an output: rows are put in or brought up to date by id, nothing else is touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path

from agac.core.errors import AgacError
from agac.core.types import JSONValue
from agac.data.atomic import AtomicFile, explained
from agac.data.jsontext import encode
from agac.data.outputs.kinds import Kind
from agac.data.outputs.layout import Column, Layout, distinct
from agac.data.outputs.records import OutputRow
from agac.data.outputs.tablecheck import check_table, columns_of, quoted
from agac.spec.workflow import Merge

BUSY_SECONDS = 30.0
_MAX_INTEGER = 1 << 63

_TYPES = {
    Kind.TEXT: "TEXT", Kind.NESTED: "TEXT", Kind.BOOLEAN: "BOOLEAN", Kind.INTEGER: "INTEGER", Kind.NUMBER: "REAL",
}  # fmt: skip


class TableSink:
    """Rows into the table `table` of the database at `path`, in one transaction.

    The table is made if it is not there, columns that it lacks are added. Rows and columns of others stay. Rows without
    an id of their own are left out. Nothing is seen of it before `commit`.
    """

    def __init__(self, path: Path, table: str, layout: Layout, shown: str, *, unshared: bool = False) -> None:
        """`unshared`: nobody sees the database before it is whole, so it needs no journal beside it.

        Raises AgacError when the database cannot be used, UsageError when the table has columns that cannot take rows.
        """
        self._path, self._table, self._shown = path, table, f"{shown}: table {table!r}"
        self._made, self._unshared = False, unshared
        self._connection: sqlite3.Connection | None = None
        self._id_place = layout.id_place
        columns = _key_first(layout)
        self._key_type = "INTEGER" if layout.id_field is None else "TEXT"
        try:
            with self._explained():
                self._open()
                self._prepare(columns)
        except BaseException:
            self.abort()
            raise
        self._statement = _upsert(table, [column.name for column in columns])

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Puts rows in, or brings those up to date that are there. Raises AgacError when the database refuses one."""
        assert self._connection is not None
        with self._explained():
            self._connection.executemany(self._statement, [self._values(row) for row in rows if row.known])

    def finish(self) -> None:
        """Nothing is left to do: what was written waits in the transaction, in the database's own files."""

    def commit(self) -> None:
        """Ends the transaction: all rows are seen at once, durably."""
        if self._connection is not None:
            with self._explained():
                self._connection.execute("COMMIT")
                self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """Takes back what was written. After `commit` it does nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(sqlite3.Error):
            connection.rollback()
        with suppress(sqlite3.Error):
            connection.close()
        if self._made and self._path.exists() and not self._path.stat().st_size:
            self._path.unlink()

    def _open(self) -> None:
        with explained(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._made = not self._path.exists()
        self._connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        if self._unshared:
            self._connection.execute("PRAGMA journal_mode = MEMORY")
        self._connection.execute("BEGIN IMMEDIATE")

    def _prepare(self, columns: Sequence[Column]) -> None:
        """The table as the rows need it."""
        connection = self._connection
        assert connection is not None
        check_table(connection, self._table, columns[0].name, columns, self._shown)
        known = columns_of(connection, self._table)
        if not known:
            key = f"{quoted(columns[0].name)} {self._key_type} PRIMARY KEY NOT NULL"
            body = ", ".join([key, *map(_definition, columns[1:])])
            connection.execute(f"CREATE TABLE {quoted(self._table)} ({body})")
            return
        for column in columns:
            if column.name.lower() not in known:
                connection.execute(f"ALTER TABLE {quoted(self._table)} ADD COLUMN {_definition(column)}")

    def _values(self, row: OutputRow) -> list[JSONValue]:
        values = [_storable(cell) for cell in row.cells]
        if self._id_place is None:
            return [row.id, *values]
        key = values.pop(self._id_place)
        # an id that agac made unique (`suffix`) is not the one that stands in the row
        return [key if str(key) == row.id else row.id, *values]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise AgacError(f"{self._shown}: {error}", remedy=_remedy(error)) from error


class FreshDatabase:
    """A database of its own with the one table, made anew each time: as a file that appears whole or not at all."""

    def __init__(self, path: Path, table: str, layout: Layout) -> None:
        self._file = AtomicFile(path)
        try:
            self._sink = TableSink(self._file.temporary, table, layout, path.name, unshared=True)
        except BaseException:
            self._file.abort()
            raise

    def write(self, rows: Sequence[OutputRow]) -> None:
        """As `TableSink.write`."""
        self._sink.write(rows)

    def finish(self) -> None:
        """Makes the file durable, without showing it yet."""
        self._sink.commit()
        self._file.finish()

    def commit(self) -> None:
        """Puts the file in its place."""
        self._file.commit()

    def abort(self) -> None:
        """Forgets what was written."""
        self._sink.abort()
        self._file.abort()


def key_name(id_field: str | None, merge: Merge | None) -> str:
    """The column by which rows are found: the row's own where the table has the row's fields, else one of ours."""
    if id_field is None:
        return "row_number"
    return "id" if merge == "replace" else id_field


def _key_first(layout: Layout) -> list[Column]:
    """The columns under names that SQLite tells apart, the one that rows are found by first."""
    columns = list(layout.columns)
    if layout.id_place is not None:
        key = columns.pop(layout.id_place)
    elif layout.id_field is None:
        key = Column(key_name(None, None), Kind.INTEGER)
    else:
        key = Column(key_name(layout.id_field, "replace"), Kind.TEXT)
    columns.insert(0, key)
    names = distinct([column.name for column in columns])
    return [Column(name, column.kind, column.declared) for name, column in zip(names, columns, strict=True)]


def _definition(column: Column) -> str:
    """Without a declared type where the next run may bring other values: then nothing is converted."""
    declared = column.declared or column.kind is Kind.TEXT
    return f"{quoted(column.name)} {_TYPES.get(column.kind, '') if declared else ''}".rstrip()


def _upsert(table: str, names: Sequence[str]) -> str:
    key, *others = map(quoted, names)
    places = ", ".join("?" * len(names))
    change = ", ".join(f"{name} = excluded.{name}" for name in others)
    insert = f"INSERT INTO {quoted(table)} ({', '.join([key, *others])}) VALUES ({places})"  # noqa: S608 - quoted
    return f"{insert} ON CONFLICT ({key}) DO UPDATE SET {change}"


def _storable(value: JSONValue) -> JSONValue:
    """A value as SQLite keeps it: integers beyond 64 bits, lists and objects as their JSON text."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict | list) or (isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER):
        return encode(value)
    return value


def _remedy(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "Another program holds the database: let it end, then run `agac export`."
    if "not a database" in text:
        return "Name a SQLite database, or a file that is not there yet, in output.to."
    if "too many" in text:
        return "SQLite takes 2000 columns: choose output.merge: replace or append, or write csv or parquet."
    if "full" in text:
        return "Free some space, then run `agac export`: all results are safe in the store."
    return "Mend the table or name another one in output.to, then run again: all results are safe in the store."
