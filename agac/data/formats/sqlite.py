"""A SQLite database: one SELECT, read-only. Rows come in the order of the query, as they are read.

The database is opened so that nothing can be written, and an authorizer refuses whatever is not reading. Integers keep
every digit, dates are whatever the database holds, blobs are text in UTF-8.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from agac.core.errors import AgacError, ErrorType, UsageError
from agac.core.types import JSONValue
from agac.data.jsontext import quoted
from agac.data.records import Record, opened, refused
from agac.spec.suggest import did_you_mean, sentence

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_OWN_PRAGMA = "data_version"
"""Full-text tables ask for it while they are read."""

_END = re.compile(r"(?:\s|;|--[^\n]*\Z)*\Z")
_REPEATED = re.compile(r"(.+):\d+")
_BUSY_SECONDS = 5.0

_MISSING = re.compile(r"no such (table|column): (.+)")
_TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"


class SqliteSource:
    """The rows of one statement. Raises UsageError when the database or the statement cannot be read."""

    def __init__(self, path: Path, statement: str, shown: str) -> None:
        self._path = path
        self._statement = statement
        self._shown = shown
        try:
            with opened(path, shown), self.connected() as connection:
                connection.execute(f"EXPLAIN {statement}")  # understood as it stands, and nothing but reading
                # no row is looked for: what sorts a large table sorts it once, when it is read
                inner = _END.sub("", statement)
                found = connection.execute(f"SELECT * FROM (\n{inner}\n) LIMIT 0")  # noqa: S608 - only reading is possible
                self._columns = tuple(str(column[0]) for column in found.description)
        except AgacError as error:
            raise UsageError(error.message, remedy=self._meant(error.message) or error.remedy) from error
        self._refuse_repeated()

    def columns(self) -> tuple[str, ...]:
        return self._columns

    def describe(self) -> str:
        return self._shown

    def records(self, start: int = 0) -> Iterator[Record]:
        with opened(self._path, self._shown), self.connected() as connection:
            for ordinal, values in enumerate(connection.execute(self._statement), start=1):
                if ordinal > start:
                    yield self._record(ordinal, values)

    def _record(self, ordinal: int, values: tuple[JSONValue, ...]) -> Record:
        data: dict[str, JSONValue] = {}
        for column, value in zip(self._columns, values, strict=True):
            kind = type(value)
            if kind is str and not value.isascii() and (problem := _bad_text(value)):
                return self._refused(ordinal, column, problem)
            if kind is bytes:
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    return self._refused(ordinal, column, "holds bytes that are not UTF-8; leave it out, or take hex()")
            elif kind is float and math.isinf(value):
                return self._refused(ordinal, column, "holds an infinity, which JSON cannot hold; select null instead")
            data[column] = value
        return Record(ordinal, data)

    def _refused(self, ordinal: int, column: str, problem: str) -> Record:
        return refused(ordinal, self._shown, None, ErrorType.INVALID_ROW, f"the column {quoted(column)} {problem}")

    def _meant(self, message: str) -> str | None:
        """Which table or column a name that does not exist may have meant."""
        if (missing := _MISSING.search(message)) is None:
            return None
        kind, name = missing.groups()
        with self.connected() as connection:
            tables = [str(table) for (table,) in connection.execute(_TABLES)]
            if kind == "table":
                return sentence(did_you_mean(name, tables, "its tables"))
            read = [one for one in tables if re.search(rf"\b{re.escape(one)}\b", self._statement, re.IGNORECASE)]
            quoted_names = ['"' + one.replace('"', '""') + '"' for one in read]
            found = [connection.execute(f"SELECT * FROM {one} LIMIT 0").description for one in quoted_names]  # noqa: S608 - quoted
        columns = dict.fromkeys(str(column[0]) for columns in found for column in columns)
        return sentence(did_you_mean(name.rpartition(".")[2], columns, "the columns"))

    def _refuse_repeated(self) -> None:
        named = [match[1] if (match := _REPEATED.fullmatch(name)) else name for name in self._columns]
        twice = [quoted(name) for name, count in Counter(named).items() if count > 1 and name in self._columns]
        if twice:
            raise UsageError(
                f"{self._shown}: the query gives {', '.join(twice)} more than once",
                remedy="Give every column its own name, with AS.",
            )

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read, usable from any thread, one at a time."""
        uri = f"file:{quote(str(self._path))}?mode=ro"
        try:
            with closing(
                sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            ) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
                connection.set_authorizer(_allowed)
                yield connection
        except sqlite3.Error as error:
            problem, remedy = _explained(str(error))
            raise AgacError(f"{self._shown}: {problem}", remedy=remedy) from error


def tables_read(path: Path, statement: str, shown: str) -> set[str]:
    """The tables that a statement reads, views followed, in lower case. Raises UsageError when it cannot be read."""
    found: set[str] = set()

    def note(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first:
            found.add(first.lower())
        return _allowed(action, first, second, database, trigger)

    source = SqliteSource(path, statement, shown)
    with source.connected() as connection:
        connection.set_authorizer(note)
        connection.execute(f"EXPLAIN {statement}")
    return found


def _allowed(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """SQLite asks this about everything that a statement would do."""
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    if action in _READING or (action == sqlite3.SQLITE_PRAGMA and first == _OWN_PRAGMA and second is None):
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


def _bad_text(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds text that is not UTF-8; select it as a blob, or take hex()"
    return None
