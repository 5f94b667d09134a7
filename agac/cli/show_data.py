"""`agac data`: shows an input, its columns with their types, and its first rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.terminal import (
    megabytes,
    print_report,
    table,
    value_text,
)
from agac.core.text import plain
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api.show_data import DataReport


@click.command(
    help="Show an input: its format and size, its columns with their types, its first rows. "
    "INPUT is a file, several, a pattern in quotes, sqlite://DATABASE?table=NAME (or "
    "?query=SELECT …), or - for standard input."
)
@click.argument("inputs", type=click.Path(), metavar="INPUT...", nargs=-1, required=True)
@click.option(
    "--format",
    metavar="NAME",
    help="Read it as csv, tsv, json, jsonl, txt, parquet, xlsx or files.",
)
@click.option(
    "--delimiter", metavar="SIGN", help="The character between the cells of a csv or tsv file."
)
@click.option(
    "--encoding", metavar="NAME", help="How text is written, such as cp1252; UTF-8 if left out."
)
@click.option(
    "--sheet", metavar="SHEET", help="The sheet of an xlsx file: its name, or its number from 1."
)
@click.option(
    "--hive",
    is_flag=True,
    default=None,
    help="Make fields of the folders of parquet files: year=2024.",
)
@click.option(
    "--sql",
    metavar="SELECT",
    help="Show what this statement makes of the rows, which are the table input.",
)
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    show_default=True,
    help="Show the first N rows.",
)
@click.option(
    "--scan-rows", "look_at", type=click.IntRange(1), default=1_000, metavar="N", show_default=True,
    help="Find the types from the first N rows.",
)  # fmt: skip
@main.json_option
@click.pass_obj
def data(settings: main.Globals, /, inputs: tuple[str, ...], as_json: bool, **how: Any) -> None:
    sheet = how.pop("sheet")
    how["sheet"] = int(sheet) if sheet and sheet.isdigit() else sheet
    report = api.show_data(inputs, project=settings.project_dir, **how)
    print_report(report, lambda found: data_lines(found, cut=sys.stdout.isatty()), as_json=as_json)


def data_lines(report: DataReport, *, cut: bool) -> Iterator[str]:
    """Yields the size of an input, a table of its columns, and its first rows. `cut`: cut long
    values off."""
    yield f"{_size_words(report)}\n"
    yield from _column_lines(report)
    if report.rows:
        yield ""
        yield from _first_rows(report, cut)
    if report.hint:
        yield f"\n{plain(report.hint)}"
    if report.unusable:
        some = "" if report.unusable == len(report.problems) else ", the first"
        yield f"\n{counted(report.unusable, 'row')} cannot be used{some}:"
        yield from (f"  {plain(problem)}" for problem in report.problems)


def _size_words(report: DataReport) -> str:
    """`reviews.csv: csv, 12 kB, more than 1,000 rows`."""
    rows = str(counted(report.looked_at, "row"))
    if not report.complete:
        rows = f"more than {rows}"
    facts = [report.format, _bytes_words(report.size), rows]
    if report.files != 1:
        facts.insert(1, counted(report.files, "file"))
    return f"{plain(report.input)}: {', '.join(facts)}"


def _bytes_words(size: int) -> str:
    """`9,999 bytes`, `12 kB`, `3.4 MB` or `1.2 GB`."""
    if size < 10_000:
        return counted(size, "byte")
    if size < 1e6:
        return f"{size / 1e3:,.0f} kB"
    if size < 1e9:
        return megabytes(size)
    return f"{size / 1e9:,.1f} GB"


def _column_lines(report: DataReport) -> Iterator[str]:
    """Yields a table of the columns with their types, and how many values lack."""
    if not report.columns:
        yield "No columns: no row was read."
        return
    over = ""
    if not report.complete:
        over = f", over the first {counted(report.looked_at - report.unusable, 'row')}"
    yield f"Columns{over}:"
    rows = [
        [plain(column.name), column.type, column.nulls, column.empty, column.missing]
        for column in report.columns
    ]
    yield table(["column", "type", "null", "empty", "missing"], rows)


MAX_WIDTH = 100
"""A wider table could not be read: its rows are shown below one another instead."""


def _first_rows(report: DataReport, cut: bool) -> Iterator[str]:
    """Yields the first rows, as a table if it is narrow enough."""
    yield "First row:" if len(report.rows) == 1 else f"First {len(report.rows)} rows:"
    names = [column.name for column in report.columns]
    texts = [[_cell_text(row, name) for name in names] for row in report.rows]
    widths = [max(map(len, column)) + 2 for column in zip(names, *texts, strict=True)]
    has_line_ends = any("\n" in text for text in chain.from_iterable(texts))
    if sum(widths) <= MAX_WIDTH and not has_line_ends:
        yield table([plain(name) for name in names], texts)
        return
    yield from terminal.record_lines(map(_field_texts, report.rows), cut=cut)


def _field_texts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Writes the fields of a row with their names."""
    return [(name, plain(value_text(value))) for name, value in row.items()]


def _cell_text(row: dict[str, Any], name: str) -> str:
    """Writes a field of a row; nothing if the row does not have it."""
    return plain(value_text(row[name])) if name in row else ""
