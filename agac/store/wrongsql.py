"""What SQLite says of a wrong query, with what was probably meant."""

from __future__ import annotations

import re
import sqlite3

from agac.core.errors import UsageError
from agac.spec.suggest import did_you_mean, nearest
from agac.store.sql import sql

EXAMPLE = '`agac sql "SELECT * FROM v_costs WHERE run = 1"`'

_KEYWORDS = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN", "UNION", "DISTINCT")
_LISTS = "`agac sql` lists the views with their columns."


def what_is_wrong(said: str, query: str, connection: sqlite3.Connection) -> UsageError:
    """The error for a query of which SQLite `said` this. `connection` knows the tables, views and columns there are."""
    if "one statement" in said:
        return UsageError("several statements are refused", remedy="Give one; `agac sql` can be called again.")
    if "bindings" in said:
        return UsageError("the query has a placeholder, ? or :name", remedy="Write the value itself in its place.")
    connection.set_authorizer(None)
    return UsageError(f"wrong query: {said}", remedy=_remedy(said, query, connection))


def _remedy(said: str, query: str, connection: sqlite3.Connection) -> str:
    kind, _, name = said.partition(": ")
    if kind == "no such table":
        return f"{_sentence(did_you_mean(name, _relations(connection), 'tables and views'))} {_LISTS}"
    if kind == "no such column":
        return _column_remedy(re.split(r"[.\s]", name.partition(" - ")[0])[-1].strip('"'), query, connection)
    if kind == "no such function":
        return f"Functions are those of SQLite {sqlite3.sqlite_version}."
    if kind == "ambiguous column name":
        return f"Several have a column of that name: write which one, as in v_results.{name}."
    near = re.match(r'near "(\w+)"', said)
    if near and near[1].upper() not in _KEYWORDS and (meant := nearest(near[1], _KEYWORDS)):
        return f"Did you mean {meant}?"
    if "syntax error" in said or said.startswith(("incomplete", "unrecognized")):
        return f"A query looks like this: {EXAMPLE}."
    return _LISTS


def _column_remedy(name: str, query: str, connection: sqlite3.Connection) -> str:
    relations = _relations(connection)
    words = set(re.findall(r"\w+", query.lower()))
    columns = {column: None for relation, own in relations.items() if relation in words for column in own}
    if nearest(name, columns):
        return f"{_sentence(did_you_mean(name, columns))} {_LISTS}"
    if "result" in columns:
        return f"A field of a result is json_extract(result, '$.{name}'). {_LISTS}"
    return _LISTS


def _relations(connection: sqlite3.Connection) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for relation, column in connection.execute(sql("relations")):
        found.setdefault(relation, []).append(column)
    return found


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")
