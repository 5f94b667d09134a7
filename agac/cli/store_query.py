"""`agac sql`: prints what one SELECT finds in the store, or which views there are."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import terminal
from agac.cli.main import Globals
from agac.core.errors import UsageError
from agac.core.text import cells, is_unicode

if TYPE_CHECKING:
    from agac.store.query import View


@click.command(help="Run one SELECT on the store. Without QUERY, list the views.")
@click.argument("words", metavar="[QUERY]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, one object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), metavar="N", help="Print the first N rows at most."
)
@click.pass_obj
def sql(
    settings: Globals, words: tuple[str, ...], as_json: bool, as_csv: bool, limit: int | None
) -> None:
    if len(words) > 1:
        raise click.UsageError(
            "put the query in quotes: agac sql 'SELECT …'", click.get_current_context()
        )
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude one another", click.get_current_context())
    if not words:
        _print_views(as_json=as_json)
        return
    with api.sql(words[0], project=settings.project_dir) as answer:
        values = iter(answer)
        _print_rows(answer.columns, islice(values, limit), as_json=as_json, as_csv=as_csv)
        has_more = limit is not None and next(values, None) is not None
    if has_more and not settings.quiet:
        terminal.say(f"Only the first {limit:,}: there are more.")


Rows = Iterable[tuple[Any, ...]]

BLOCK_ROWS = 1_000
"""Rows from which a table takes the widths of its columns; no more are kept in memory."""


def _print_views(*, as_json: bool) -> None:
    """Prints the views of the store, with their columns."""
    views = api.views()
    if not as_json:
        terminal.print_lines(views_lines(views))
        return
    terminal.print_json(
        [{"name": view.name, "meaning": view.meaning, "columns": view.columns} for view in views]
    )


def _print_rows(columns: Sequence[str], rows: Rows, *, as_json: bool, as_csv: bool) -> None:
    """Prints the rows of an answer as they are read."""
    if as_json:
        lines = json_lines(columns, rows, only_ascii=not is_unicode(sys.stdout.encoding))
        terminal.print_data(lines, is_json=True)
    elif as_csv:
        terminal.print_data(csv_lines(columns, rows))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        terminal.print_lines(text_lines(columns, rows, width=width))


def json_lines(columns: Sequence[str], rows: Rows, *, only_ascii: bool) -> Iterator[str]:
    """Yields one JSON array, one object per line. Raises UsageError if two columns have the same
    name."""
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        what = f"several columns are called {twice[0]}, and a JSON object has each name once"
        raise UsageError(
            what, remedy=f"Name them apart, as in `SELECT … AS other_{twice[0]}`, or use --csv."
        )
    last = None
    for row in rows:
        yield "[" if last is None else f"{last},"
        values = dict(zip(columns, map(_json_value, row), strict=True))
        last = "  " + json.dumps(values, ensure_ascii=only_ascii, allow_nan=False)
    if last is None:
        yield "[]"
    else:
        yield from [last, "]"]


def _json_value(value: Any) -> Any:
    """Makes a value that JSON has."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def csv_lines(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yields a header, then one line per row, as in RFC 4180; null is empty."""
    # its line end makes it quote every line end in a value
    writer: Any = csv.writer(SimpleNamespace(write=str))
    for row in chain([columns], rows):
        yield writer.writerow(map(_json_value, row)).removesuffix("\r\n")


def text_lines(columns: Sequence[str], rows: Rows, *, width: int | None) -> Iterator[str]:
    """Yields a table. On a terminal of `width` columns that is too narrow for it, the values of
    each row are printed below one another."""
    values = iter(rows)
    first = list(islice(values, BLOCK_ROWS))
    if width is not None and first and _width(columns, first) > width:
        texts = (zip(columns, map(_text_value, row), strict=True) for row in chain(first, values))
        yield from terminal.record_lines(texts, cut=True)
        return
    blocks = chain([first], iter(lambda: list(islice(values, BLOCK_ROWS)), []))
    yield from terminal.table_lines(columns, blocks, _text_value)


def _width(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
    """Computes the width of a table of these rows."""
    return max(map(cells, terminal.table_lines(columns, [rows], _text_value)))


def _text_value(value: object) -> str:
    """Writes a value for a table."""
    if value is None:
        return ""
    if isinstance(value, float) and 1e-12 < abs(value) < 1:
        return format(Decimal(repr(value)), "f")  # not 8.6e-05: amounts are compared at a glance
    return str(_json_value(value))


def views_lines(views: Sequence[View]) -> Iterator[str]:
    """Yields what the views of the store hold."""
    for view in views:
        yield f"{view.name}: {view.meaning}"
        yield ""
        columns = terminal.table(["column", "meaning"], list(view.columns.items()))
        yield from (f"  {line}" for line in columns.split("\n"))
        yield ""
    yield 'For example: agac sql "SELECT stage, model, calls, cost_usd FROM v_costs WHERE run = 1"'
