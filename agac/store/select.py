"""A query of the user's: one statement that reads, run to its end or until nobody wants more of it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from agac.core.errors import UsageError
from agac.store.db import BUSY_SECONDS, reading_uri, refuse_newer, refuse_older, translated
from agac.store.wrongsql import EXAMPLE, what_is_wrong

Value = str | int | float | bytes | None

_STEPS = 20_000
"""Steps of SQLite's between two looks at signals: some hundred microseconds. Without them Ctrl-C would have to wait."""

_MAY_READ = ("SELECT", "WITH", "VALUES", "EXPLAIN")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SPACE = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_ABOUT_TABLES = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"})
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_WORDS = {
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_UPDATE: "UPDATE",
    sqlite3.SQLITE_DELETE: "DELETE",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
}


class QueryAnswer:
    """What a query gives: the names of its columns, and its rows, each read when it is asked for."""

    def __init__(self, query: str, cursor: sqlite3.Cursor) -> None:
        self.columns = [str(column[0]) for column in cursor.description or ()]
        self._query = query
        self._cursor = cursor

    def __iter__(self) -> Iterator[tuple[Value, ...]]:
        with _in_words(self._query, self._cursor.connection):
            for row in self._cursor:  # noqa: UP028 - it would close the cursor, when its connection may be closed
                yield row


def refuse_at_once(query: str) -> None:
    """Raises UsageError for a query that its first word shows to do more than read, or that says nothing."""
    rest = _SPACE.sub("", query, count=1)
    first = rest[: len(rest) - len(rest.lstrip(_LETTERS))].upper()
    if not rest:
        raise UsageError("the query is empty", remedy=f"Write one, as in {EXAMPLE}.")
    if first not in (*_MAY_READ, "PRAGMA"):  # of PRAGMA some read, too: SQLite asks for each
        raise _refused(first or repr(rest[:20]))


@contextmanager
def answered(path: Path, query: str) -> Iterator[QueryAnswer]:
    """The answer to `query`, which sees the database at `path` as it is at one moment.

    Raises UsageError for a statement that is wrong or does more than read, KeyboardInterrupt when a Ctrl-C ended it,
    and StoreError for a database that cannot be read. Nothing can be written: the connection is for reading alone.
    """
    with translated(path), closing(sqlite3.connect(reading_uri(path), uri=True, timeout=BUSY_SECONDS)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        refuse_newer(version, path)
        refuse_older(version, path)
        connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        connection.set_progress_handler(lambda: 0, _STEPS)  # SQLite gives way to Python, which sees a Ctrl-C
        denied: list[str] = []
        connection.set_authorizer(partial(_authorised, denied))
        with _in_words(query, connection, denied):
            cursor = connection.execute(query)
        yield QueryAnswer(query, cursor)


def _authorised(denied: list[str], action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite asks for each thing that a statement would do. What is refused is noted in `denied`."""
    allowed = (
        action in _READING
        # how it makes functions such as json_each known to itself; a statement that does this it refuses
        or (action == sqlite3.SQLITE_UPDATE and first == "sqlite_master")
        or (action == sqlite3.SQLITE_FUNCTION and second != "load_extension")
        or (action == sqlite3.SQLITE_PRAGMA and first in _ABOUT_TABLES)
    )
    if not allowed:
        of_what = second if action == sqlite3.SQLITE_FUNCTION else first
        denied.append(" ".join(filter(None, [_WORDS.get(action), of_what])) or "this statement")
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _refused(what: str) -> UsageError:
    return UsageError(
        f"{what} is refused: `agac sql` only reads",
        remedy=f"Write one statement that begins with {', '.join(_MAY_READ[:-1])} or {_MAY_READ[-1]}.",
    )


@contextmanager
def _in_words(query: str, connection: sqlite3.Connection, denied: list[str] | None = None) -> Iterator[None]:
    """Turns what SQLite says of a query into what is wrong with it; what it says of the database passes."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_INTERRUPT":
            raise KeyboardInterrupt from error
        if denied:
            raise _refused(denied[0]) from error
        if name not in ("SQLITE_ERROR", "SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_RANGE", ""):
            raise
        raise what_is_wrong(str(error), query, connection) from error
    except (sqlite3.Warning, sqlite3.Error) as error:
        raise what_is_wrong(str(error), query, connection) from error
