"""`agac data` as lines of text: what the input is, a table of its columns, its first rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agac.cli.shown.layout import shortened, table
from agac.cli.shown.words import counted, plain

if TYPE_CHECKING:
    from agac.api.previewing import DataReport
    from agac.core.types import JSONValue

WIDE = 100
"""A table of rows that would be wider is shown as one row below the other instead: wide tables cannot be read."""


def data_lines(report: DataReport, *, cut: bool) -> list[str]:
    """`cut`: long values are shown by their beginning."""
    lines = [_head(report), "", *_columns(report)]
    if report.rows:
        lines += ["", *_rows(report, cut)]
    if report.unusable:
        some = "" if report.unusable == len(report.problems) else ", the first"
        lines += ["", f"{counted(report.unusable, 'row')} cannot be used{some}:"]
        lines += [f"  {plain(problem)}" for problem in report.problems]
    return lines


def _head(report: DataReport) -> str:
    files = f"{counted(report.files, 'file')}, " if report.files != 1 else ""
    rows = counted(report.looked_at, "row") if report.complete else f"more than {counted(report.looked_at, 'row')}"
    return f"{plain(report.input)}: {report.format}, {files}{_size(report.size)}, {rows}"


def _size(size: int) -> str:
    if size < 10_000:
        return counted(size, "byte")
    return f"{size / 1e3:,.0f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def _columns(report: DataReport) -> list[str]:
    if not report.columns:
        return ["No columns: no row was read."]
    usable = report.looked_at - report.unusable
    known = [[plain(c.name), c.type, c.nulls, c.empty, c.missing] for c in report.columns]
    over = "" if report.complete else f", over the first {counted(usable, 'row')}"
    return [f"Columns{over}:", table(["column", "type", "null", "empty", "missing"], known)]


def _rows(report: DataReport, cut: bool) -> list[str]:
    names = [column.name for column in report.columns]
    cells = [[_text(row[name]) if name in row else "" for name in names] for row in report.rows]
    head = "First row:" if len(cells) == 1 else f"First {len(cells)} rows:"
    widths = [max(map(len, column)) + 2 for column in zip(names, *cells, strict=True)]
    if sum(widths) <= WIDE and not any("\n" in cell for line in cells for cell in line):
        return [head, table([plain(name) for name in names], cells)]
    lines = [head]
    for number, row in enumerate(report.rows, start=1):
        lines.append(f"row {number}")
        lines += [f"  {plain(name)}: {shortened(_text(value), cut=cut)}" for name, value in row.items()]
    return lines


def _text(value: JSONValue) -> str:
    return plain(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
