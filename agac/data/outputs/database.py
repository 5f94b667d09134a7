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
from agac.data.outputs.layout import Column, Layout
from agac.data.outputs.records import OutputRow
from agac.data.outputs.tablecheck import check_table, columns_of, quoted, table_columns

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
        try:
            with self._explained():
                self._open()
                columns = self._prepare(layout)
        except BaseException:
            self.abort()
            raise
        self._statement = _upsert(table, [column.name for column in columns])

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Puts rows in, or brings those up to date that are there. Raises AgacError when the database refuses one."""
        assert self._connection is not None
        with self._explained():
            self._connection.executemany(self._statement, [self._values(row) for row in rows if row.id is not None])

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

    def _prepare(self, layout: Layout) -> list[Column]:
        """The table as the rows need it; gives the columns that are written, the key first."""
        connection = self._connection
        assert connection is not None
        known = columns_of(connection, self._table)
        columns = table_columns(layout, [column.name for column in known.values()])
        check_table(connection, self._table, columns, self._shown)
        if not known:
            ids = "INTEGER" if columns[0].kind is Kind.INTEGER else "TEXT"
            key = f"{quoted(columns[0].name)} {ids} PRIMARY KEY NOT NULL"
            body = ", ".join([key, *map(_definition, columns[1:])])
            connection.execute(f"CREATE TABLE {quoted(self._table)} ({body})")
            return columns
        for column in columns:
            if column.name.lower() not in known:
                connection.execute(f"ALTER TABLE {quoted(self._table)} ADD COLUMN {_definition(column)}")
        return columns

    def _values(self, row: OutputRow) -> list[JSONValue]:
        values = [_storable(cell) for cell in row.cells]
        if self._id_place is not None:
            values.pop(self._id_place)
        return [_storable(row.id), *values]

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
        return "Another program holds the database: let it end."
    if "not a database" in text:
        return "Name a SQLite database, or a file that is not there yet, in output.to."
    if "too many" in text:
        return "SQLite takes 2000 columns: choose output.merge: replace or append, or write csv or parquet."
    if "full" in text:
        return "Free some space: all results are safe in the store."
    return "Mend the table, or name another one in output.to and run again: all results are safe in the store."
