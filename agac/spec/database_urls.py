"""Reads the addresses of databases whose rows are an input: `sqlite://data.db?table=NAME`."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_plus

from agac.core.errors import did_you_mean
from agac.spec import paths
from agac.spec.paths import Refused

SCHEME = "sqlite://"
KEYS = ("query", "table")
FORM = "write sqlite://data.db?query=SELECT … or sqlite://data.db?table=NAME"
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_READS = re.compile(r"(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)
ORDERED = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)


class DatabaseUrl(NamedTuple):
    """An input that is read from a database."""

    path: str
    """The path as it was written."""
    statement: str
    """The one statement that reads it."""
    ordered: bool
    """True if its rows surely keep their order."""


def parse_database(text: str) -> DatabaseUrl:
    """Parses the address of a database. Raises Refused. What follows `?query=` is the statement as
    it is written, to the end: `%` and `&` are its own. Only a statement without any white space
    counts as percent-encoded."""
    server = paths.POSTGRES.match(text)
    if server:
        form = POSTGRES_FORM
        path, key, value = paths.server_parts(text, *KEYS)
    else:
        form = FORM
        path, _, rest = text.removeprefix(SCHEME).partition("?")
        key, equals, value = rest.partition("=")
        key = key if equals else ""
    if not path:
        raise Refused(f"names no database; {form}")
    if not key:
        raise Refused(f"does not say what to read; {form}")
    if key not in KEYS:
        raise Refused(f"unknown parameter {key!r}; {did_you_mean(key, KEYS)}")
    if not any(map(str.isspace, value.strip())):
        value = unquote_plus(value)
    if not value.strip():
        raise Refused(f"{key} is empty; {form}")
    if key == "table":
        name = value.strip()
        table = paths.server_table(name) if server else _quoted(name)
        statement = f"SELECT * FROM {table}"  # noqa: S608 - quoted; or read by rowid
        return DatabaseUrl(path, statement, ordered=not server)
    start = _COMMENTS.match(value)
    if not _READS.match(value, start.end() if start else 0):
        raise Refused("the query is no SELECT; a source only reads: begin it with SELECT or WITH")
    return DatabaseUrl(path, value, ORDERED.search(value) is not None)


def _quoted(name: str) -> str:
    """Returns the name of a table as SQLite quotes it."""
    return '"' + name.replace('"', '""') + '"'


POSTGRES_FORM = "write postgres://USER:${PGPASSWORD}@HOST/DATABASE?query=SELECT … or …?table=NAME"


def named(text: str) -> str:
    """Names an input in a message that refuses it: that of a server without its user and without
    its statement."""
    if paths.POSTGRES.match(text):
        return re.sub("(?s)://.*@", "://…@", text).partition("?")[0]
    return text
