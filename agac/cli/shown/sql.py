"""`agac sql` as lines: a table, CSV or JSON of whatever many rows, of which a thousand are kept at most."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from agac.cli.live.text import cells
from agac.cli.shown.layout import shortened, table, table_lines
from agac.cli.shown.words import plain
from agac.core.errors import UsageError

if TYPE_CHECKING:
    from agac.store.select import QueryAnswer
    from agac.store.views import View

_BLOCK = 1_000
"""Rows over which a table finds out how wide its columns are."""


class Rows:
    """The rows of an answer, `limit` at most. `more`: it has others, which were left out."""

    def __init__(self, answer: QueryAnswer, limit: int | None) -> None:
        self.columns = answer.columns
        self.more = False
        self._rows = iter(answer)
        self._limit = limit

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        yield from islice(self._rows, self._limit)
        if self._limit is not None:
            self.more = next(self._rows, None) is not None


def json_lines(rows: Rows, *, only_ascii: bool) -> Iterator[str]:
    """One JSON array, an object a line. Raises UsageError where two columns have one name."""
    twice = [name for name, count in Counter(rows.columns).items() if count > 1]
    if twice:
        raise UsageError(
            f"several columns are called {twice[0]}, and an object has each name once",
            remedy=f"Name them apart, as in `SELECT … AS other_{twice[0]}`, or take --csv.",
        )
    last = None
    for row in rows:
        yield "[" if last is None else f"{last},"
        found = dict(zip(rows.columns, map(_json, row), strict=True))
        last = "  " + json.dumps(found, ensure_ascii=only_ascii, allow_nan=False)
    yield from ["[]"] if last is None else [last, "]"]


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class _Line:
    """A file that gives back what is written to it."""

    def write(self, text: str) -> str:
        return text


def csv_lines(rows: Rows) -> Iterator[str]:
    """A header, then a line a row, as RFC 4180 says; null is empty."""
    writer = csv.writer(_Line())  # its own line end makes it quote every line end in a value
    for row in chain([rows.columns], rows):
        yield str(writer.writerow(map(_json, row))).removesuffix("\r\n")


def text_lines(rows: Rows, width: int | None) -> Iterator[str]:
    """A table. On a terminal of `width` columns in which it has no room, the values of each row below one another."""
    values = iter(rows)
    first = list(islice(values, _BLOCK))
    if width is not None and first and _widest(rows.columns, first) > width:
        return _records(rows.columns, chain(first, values))
    return table_lines(rows.columns, _blocks(first, values), _text)


def _widest(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
    return max(map(cells, table_lines(columns, [rows], _text)))


def _blocks(first: list[tuple[Any, ...]], rest: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    yield first
    while block := list(islice(rest, _BLOCK)):
        yield block


def _records(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        yield f"row {number}"
        for name, value in zip(columns, row, strict=True):
            yield f"  {plain(name)}: {shortened(_text(value), cut=True)}"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and 1e-12 < abs(value) < 1:
        return format(Decimal(repr(value)), "f")  # not 8.6e-05: amounts are compared at a glance
    return str(_json(value))


def views_lines(views: Sequence[View]) -> Iterator[str]:
    """The views, each with its columns, and how to ask."""
    for view in views:
        yield f"{view.name}: {view.meaning}"
        yield ""
        yield from (f"  {line}" for line in table(["column", "meaning"], list(view.columns.items())).split("\n"))
        yield ""
    yield 'Ask as in: agac sql "SELECT stage, model, calls, cost_usd FROM v_costs WHERE run = 1"'
