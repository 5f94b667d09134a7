"""Whether a table that is there already can take a run's rows; looked at before anything is paid for, and again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from agac.core.errors import UsageError
from agac.data.outputs.kinds import Kind
from agac.data.outputs.layout import Column, Layout, distinct

_OTHER = "Name another table in output.to."
_NUMERIC = "INTEGER, REAL and NUMERIC columns turn '007' into 7"


class Known(NamedTuple):
    """A column of a table that is there: its declared type, and whether SQLite computes it."""

    name: str
    type: str
    computed: bool


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, Known]:
    """The columns of a table by their names in lower case; empty when there is no such table."""
    rows = connection.execute(f"PRAGMA table_xinfo({quoted(table)})")
    return {name.lower(): Known(name, type_.upper(), hidden > 0) for _, name, type_, _, _, _, hidden in rows}


def table_columns(layout: Layout, there: Collection[str] = ()) -> list[Column]:
    """The columns of a table under names that SQLite tells apart, the one that rows are found by first. `there` are
    the names that the table has already."""
    columns = [column for place, column in enumerate(layout.columns) if place != layout.id_place]
    columns.insert(0, layout.key)
    names = distinct([column.name for column in columns], there)
    return [replace(column, name=name) for name, column in zip(names, columns, strict=True)]


def check_table(connection: sqlite3.Connection, table: str, columns: Sequence[Column], shown: str) -> None:
    """Raises UsageError when the table cannot take these columns, found by the first. A table not there yet can."""
    key = columns[0].name
    found = connection.execute(
        "SELECT type, sql FROM sqlite_master WHERE lower(name) = ? AND type IN ('table', 'view')", (table.lower(),)
    ).fetchone()
    if found is None:
        return
    if found[0] == "view" or (found[1] or "").upper().startswith("CREATE VIRTUAL"):
        raise UsageError(f"{shown} is a {'view' if found[0] == 'view' else 'virtual table'}", remedy=_OTHER)
    known = columns_of(connection, table)
    if key.lower() not in known:
        raise UsageError(
            f"{shown} has no column {key!r}, by which its rows would be found",
            remedy=f"{_OTHER} Or give it that column, with ids that are unique.",
        )
    if not _is_unique(connection, table, key):
        index = f"CREATE UNIQUE INDEX {quoted(f'{table}_{key}')} ON {quoted(table)} ({quoted(key)})"
        raise UsageError(f"{shown}: the ids in {key!r} are not unique", remedy=f"{_OTHER} Or run {index};")
    clashes = [text for column in columns if (text := _clash(column, known.get(column.name.lower())))]
    if clashes:
        raise UsageError(f"{shown}: {'; '.join(clashes)}", remedy=f"{_OTHER} Or change these columns; {_NUMERIC}.")


def _clash(column: Column, known: Known | None) -> str:
    """Why the values of a column cannot go where they should, if so."""
    if known is None:
        return ""
    if known.computed:
        return f"the column {known.name!r} is computed by SQLite"
    if column.kind in (Kind.TEXT, Kind.NESTED, Kind.MIXED) and _converts(known.type):
        return f"the column {known.name!r} is {known.type}, but {_WORDS[column.kind]} would be written into it"
    return ""


_WORDS = {Kind.TEXT: "text", Kind.NESTED: "JSON text", Kind.MIXED: "values of several types"}


def _converts(declared: str) -> bool:
    """Whether a column makes numbers of texts that look like one (SQLite's rules of type affinity)."""
    if "INT" in declared:
        return True
    return bool(declared) and not any(word in declared for word in ("CHAR", "CLOB", "TEXT", "BLOB"))


def _is_unique(connection: sqlite3.Connection, table: str, key: str) -> bool:
    info = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    primary = [name.lower() for _, name, _, _, _, place in info if place]
    if primary == [key.lower()]:
        return True
    for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        names = [(row[2] or "").lower() for row in connection.execute(f"PRAGMA index_info({quoted(index)})")]
        if unique and not partial and names == [key.lower()]:
            return True
    return False


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _reading(path: Path) -> str:
    """A database to be looked at without a trace: one with a write-ahead log, which lies empty, would get its files."""
    with path.open("rb") as file:
        logged = file.read(19)[18:] == b"\x02"
    immutable = "&immutable=1" if logged and not path.with_name(f"{path.name}-wal").exists() else ""
    return f"file:{quote(str(path))}?mode=ro{immutable}"


def check_target(path: Path, table: str, columns: Sequence[Column], shown: str) -> None:
    """Raises UsageError when rows cannot be written into the table, as far as their columns are known: the first, by
    which they are found, at least. Changes nothing."""
    place = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(place, os.W_OK):
        raise UsageError(f"{shown}: {place} cannot be written", remedy="Make it writable or choose another output.to.")
    if place != path or not path.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(_reading(path), uri=True, timeout=5.0)) as connection:
            check_table(connection, table, columns, f"{shown}: table {table!r}")
    except sqlite3.OperationalError:
        return  # it is locked just now, or something passing: said at the end, when it still stands
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{shown}: {error}", remedy="Name a SQLite database in output.to.") from error
