"""`sqlite://data.db?query=SELECT …` and `sqlite://data.db?table=name`: a database file and what is read of it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_plus

from agac.spec.suggest import did_you_mean

SCHEME = "sqlite://"
KEYS = ("query", "table")
FORM = "write sqlite://data.db?query=SELECT … or sqlite://data.db?table=NAME"
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_READS = re.compile(r"(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)
_ORDERED = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)


class DatabaseUrl(NamedTuple):
    """The path as it was written, the one statement that reads it, and whether its rows surely keep their order."""

    path: str
    statement: str
    ordered: bool


class NoDatabase(ValueError):
    """What stands after `sqlite://` cannot be used; the message says why and what to write instead."""


def parse_database(text: str) -> DatabaseUrl:
    """The parts of `text`. Raises NoDatabase.

    What follows `?query=` is the statement as it stands, to the end: `%` and `&` are its own. Only one without any
    white space is taken to be percent-encoded.
    """
    path, sign, rest = text.removeprefix(SCHEME).partition("?")
    key, equals, value = rest.partition("=")
    if not path:
        raise NoDatabase(f"names no database; {FORM}")
    if not sign or not equals:
        raise NoDatabase(f"does not say what to read; {FORM}")
    if key not in KEYS:
        raise NoDatabase(f"unknown parameter {key!r}; {did_you_mean(key, KEYS)}")
    if not any(map(str.isspace, value.strip())):
        value = unquote_plus(value)
    if not value.strip():
        raise NoDatabase(f"{key} is empty; {FORM}")
    if key == "table":
        name = value.strip().replace('"', '""')
        return DatabaseUrl(path, f'SELECT * FROM "{name}"', ordered=True)  # noqa: S608 - quoted; read by rowid
    start = _COMMENTS.match(value)
    if not _READS.match(value, start.end() if start else 0):
        raise NoDatabase("the query is no SELECT; a source only reads: begin it with SELECT or WITH")
    return DatabaseUrl(path, value, _ORDERED.search(value) is not None)
