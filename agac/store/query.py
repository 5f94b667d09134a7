"""`agac sql`: one statement that reads, the views made for it, and words for a query that is
wrong."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from agac.core.errors import UsageError, did_you_mean, nearest, sentence
from agac.store.db import (
    BUSY_SECONDS,
    migrations,
    reading_uri,
    refuse_other_schemas,
    sql,
    translated,
)

# What SQLite says of a wrong query, with what was probably meant.

EXAMPLE = '`agac sql "SELECT * FROM v_costs WHERE run = 1"`'

_KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "ORDER",
    "BY",
    "HAVING",
    "LIMIT",
    "JOIN",
    "UNION",
    "DISTINCT",
)
_LISTS = "`agac sql` lists the views with their columns."


def what_is_wrong(message: str, query: str, connection: sqlite3.Connection) -> UsageError:
    """Returns the error for a query of which SQLite reports this `message`. `connection` knows the
    tables, views and columns that exist."""
    if "one statement" in message:
        return UsageError(
            "several statements are refused", remedy="Give one; `agac sql` can be called again."
        )
    if "bindings" in message:
        return UsageError(
            "the query has a placeholder, ? or :name", remedy="Write the value itself in its place."
        )
    connection.set_authorizer(None)
    return UsageError(f"wrong query: {message}", remedy=_remedy(message, query, connection))


def _remedy(message: str, query: str, connection: sqlite3.Connection) -> str:
    kind, _, name = message.partition(": ")
    match kind:
        case "no such table":
            hint = did_you_mean(name, _relations(connection), "tables and views")
            return f"{sentence(hint)} {_LISTS}"
        case "no such column":
            return _column_remedy(name, query, connection)
        case "no such function":
            return f"Functions are those of SQLite {sqlite3.sqlite_version}."
        case "ambiguous column name":
            return f"Several have a column of that name: write which one, as in v_results.{name}."
    near = re.match(r'near "(\w+)"', message)
    if near and near[1].upper() not in _KEYWORDS:
        keyword = nearest(near[1], _KEYWORDS)
        if keyword:
            return f"Did you mean {keyword}?"
    if "syntax error" in message or message.startswith(("incomplete", "unrecognized")):
        return f"A query looks like this: {EXAMPLE}."
    return _LISTS


def _column_remedy(name: str, query: str, connection: sqlite3.Connection) -> str:
    """Says what may be meant by a column that does not exist, of the relations in the query."""
    column = re.split(r"[.\s]", name.partition(" - ")[0])[-1].strip('"')
    words = set(re.findall(r"\w+", query.lower()))
    columns = dict.fromkeys(
        existing
        for relation, names in _relations(connection).items()
        if relation in words
        for existing in names
    )
    if nearest(column, columns):
        return f"{sentence(did_you_mean(column, columns))} {_LISTS}"
    if "result" in columns:
        return f"A field of a result is json_extract(result, '$.{column}'). {_LISTS}"
    return _LISTS


def _relations(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Returns the columns of tables and views, by their names."""
    columns: dict[str, list[str]] = {}
    for relation, column in connection.execute(sql("relations")):
        columns.setdefault(relation, []).append(column)
    return columns


# A query of the user's: one statement that reads, run to its end or until nobody wants more of it.

Value = str | int | float | bytes | None

_STEPS = 20_000
_LONGEST = 2_000_000
_WIDEST = 250
"""Steps of SQLite's between two looks at signals: some hundred microseconds. Without them Ctrl-C
would have to wait. Bytes of a value, and columns, of a query whose time is bounded: so many of
both are held at a time."""

_MAY_READ = ("SELECT", "WITH", "VALUES", "EXPLAIN")
_SPACE = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_ABOUT_TABLES = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"}
)
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_WORDS = {
    getattr(sqlite3, f"SQLITE_{word}"): word for word in ("INSERT", "UPDATE", "DELETE", "PRAGMA")
}


class QueryAnswer:
    """The answer to a query: the names of its columns, and its rows, each read when it is
    needed."""

    def __init__(self, query: str, cursor: sqlite3.Cursor) -> None:
        self.columns = [str(column[0]) for column in cursor.description or ()]
        self._query = query
        self._cursor = cursor

    def __iter__(self) -> Iterator[tuple[Value, ...]]:
        with _in_words(self._query, self._cursor.connection):
            for row in self._cursor:  # noqa: UP028 - it would close the cursor, when its connection may be closed
                yield row


def refuse_at_once(query: str) -> None:
    """Raises UsageError for a query that its first word shows to do more than read, or that says
    nothing."""
    rest = _SPACE.sub("", query, count=1)
    first = re.sub("[^a-zA-Z].*", "", rest, flags=re.DOTALL).upper()
    if not rest:
        raise UsageError("the query is empty", remedy=f"Write one, as in {EXAMPLE}.")
    if first not in (*_MAY_READ, "PRAGMA"):  # of PRAGMA some read, too: SQLite asks for each
        raise _refused(first or repr(rest[:20]))


@contextmanager
def answered(path: Path, query: str, *, until: float | None = None) -> Iterator[QueryAnswer]:
    """Opens the answer to `query`, which sees the database at `path` as it is at one moment.
    Nothing can be written: it is opened for reading alone.

    `until`: the moment (`monotonic`) until which it may be at work, for a database of the project's
    that is not one of agac's. Raises UsageError for a statement that is wrong or does more than
    read, KeyboardInterrupt if a Ctrl-C or its time ended it, and StoreError for a database that
    cannot be read."""
    with (
        translated(path),
        closing(sqlite3.connect(reading_uri(path), uri=True, timeout=BUSY_SECONDS)) as connection,
    ):
        if until is None:
            refuse_other_schemas(path, connection)
        else:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            connection.execute("SELECT 1 FROM sqlite_master")  # its own tables may be wider
            connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _WIDEST)
        connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        # SQLite gives way to Python, which sees a Ctrl-C
        connection.set_progress_handler(lambda: until is not None and monotonic() > until, _STEPS)
        denied: list[str] = []
        connection.set_authorizer(partial(_authorised, denied))
        with _in_words(query, connection, denied):
            cursor = connection.execute(query)
        yield QueryAnswer(query, cursor)


def _authorised(
    denied: list[str], action: int, first: str | None, second: str | None, *_: str | None
) -> int:
    """Answers SQLite, which asks for each thing that a statement would do. What is refused is
    noted in `denied`."""
    if _may_do(action, first, second):
        return sqlite3.SQLITE_OK
    subject = second if action == sqlite3.SQLITE_FUNCTION else first
    denied.append(" ".join(filter(None, [_WORDS.get(action), subject])) or "this statement")
    return sqlite3.SQLITE_DENY


def _may_do(action: int, first: str | None, second: str | None) -> bool:
    """True if a statement that only reads may do this."""
    if action in _READING:
        return True
    if action == sqlite3.SQLITE_UPDATE:
        # how SQLite makes functions such as json_each known to itself; it refuses a statement that
        # does this
        return first == "sqlite_master"
    if action == sqlite3.SQLITE_FUNCTION:
        return second != "load_extension"
    return action == sqlite3.SQLITE_PRAGMA and first in _ABOUT_TABLES


def _refused(what: str) -> UsageError:
    return UsageError(
        f"{what} is refused: `agac sql` only reads",
        remedy=(
            f"Write one statement that begins with {', '.join(_MAY_READ[:-1])} or {_MAY_READ[-1]}."
        ),
    )


@contextmanager
def _in_words(
    query: str, connection: sqlite3.Connection, denied: list[str] | None = None
) -> Iterator[None]:
    """Turns what SQLite says of a query into what is wrong with it; what it says of the database
    passes."""
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


# The views that are made for people, with what the migrations say about them.

_VIEW = re.compile(r"((?:^-- [^\n]*\n)+)CREATE VIEW (\w+) AS\n(.*?);\n", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r" AS (\w+),? +-- (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class View:
    """A view: what a line of it is, and its columns in order, each with its meaning."""

    name: str
    meaning: str
    columns: dict[str, str]


def views() -> list[View]:
    """Every documented view, in the order in which the migrations make them; of several with one
    name the last one."""
    found: dict[str, View] = {}
    for _, script in migrations():
        for comment, name, body in _VIEW.findall(script):
            meaning = " ".join(line.removeprefix("-- ") for line in comment.strip().split("\n"))
            found.pop(name, None)
            found[name] = View(name, meaning, dict(_COLUMN.findall(body)))
    return list(found.values())
