"""Tables and results as lines of text: csv, tsv and txt."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

from agac.core.types import JSONValue
from agac.data.atomic import AtomicFile
from agac.data.jsontext import encode
from agac.data.outputs.layout import Layout
from agac.data.outputs.records import OutputRow

_END = "\r\n"  # as the csv module is told: it quotes a cell that holds a character of its line end, and no other
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")


def cell_text(value: JSONValue) -> str:
    """A value as the text of a cell: null is empty, true and numbers as in JSON, lists and objects as JSON."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    return encode(value)


def safe_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula. A plain number is none, also with a sign."""
    if _FORMULA.match(text) and not _PLAIN_NUMBER.match(text):
        return f"'{text}"
    return text


class DelimitedSink:
    """Rows with a header line, quoted as RFC 4180 says, lines ended by `\\n`, in UTF-8 without a byte order mark."""

    def __init__(self, path: Path, layout: Layout, delimiter: str, *, safe: bool) -> None:
        self._file = AtomicFile(path)
        self._written: list[str] = []
        self._writer = csv.writer(_LineEnds(self._written.append), delimiter=delimiter, lineterminator=_END)
        self._text: Callable[[JSONValue], str] = _safe_text if safe else cell_text
        self._writer.writerow([self._text(column.name) for column in layout.columns])

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Appends rows. Raises AgacError, with a remedy, when the disk refuses them."""
        text = self._text
        self._writer.writerows([[text(cell) for cell in row.cells] for row in rows])
        self._flush()

    def finish(self) -> None:
        """Makes what was written durable, without showing it yet."""
        self._flush()
        self._file.finish()

    def commit(self) -> None:
        """Puts the file in its place."""
        self._file.commit()

    def abort(self) -> None:
        """Forgets what was written."""
        self._file.abort()

    def _flush(self) -> None:
        self._file.write("".join(self._written))
        self._written.clear()


def _safe_text(value: JSONValue) -> str:
    return safe_cell(value) if isinstance(value, str) else cell_text(value)


class _LineEnds:
    """Takes the csv module's lines, one a call, and ends them as text files end theirs."""

    def __init__(self, add: Callable[[str], None]) -> None:
        self._add = add

    def write(self, line: str) -> None:
        self._add(line[: -len(_END)] + "\n")


class TextSink:
    """One result a line, in the order of the rows; a row that failed is an empty line.

    A line end within a result is written as `\\n` or `\\r`; a result that is no text is written as JSON.
    """

    def __init__(self, path: Path) -> None:
        self._file = AtomicFile(path)

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Appends results. Raises AgacError, with a remedy, when the disk refuses them."""
        self._file.write("".join([f"{_one_line(cell_text(row.record))}\n" for row in rows]))

    def finish(self) -> None:
        """Makes what was written durable, without showing it yet."""
        self._file.finish()

    def commit(self) -> None:
        """Puts the file in its place."""
        self._file.commit()

    def abort(self) -> None:
        """Forgets what was written."""
        self._file.abort()


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
