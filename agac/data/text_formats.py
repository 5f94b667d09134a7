"""Text, read and written: CSV and TSV, lines, and (read alone) whole files."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agac.core.errors import AgacError, ErrorType, RowError, UsageError, sentence
from agac.core.types import JSONValue
from agac.data import files
from agac.data.files import MAX_RECORD_BYTES, AtomicFile, FileSource, LineSource, Record, unreadable
from agac.data.json_formats import encode, quoted, refuse_repeated
from agac.data.tables import OutputRow, TableLayout
from agac.spec.data_specs import InputSpec, OnShortRecord
from agac.spec.paths import Refused, Unmatchable, matching_rows
from agac.spec.project_files import descriptor_of

if TYPE_CHECKING:
    from _csv import Reader


# CSV and TSV: a header that declares the columns, then one record after another, as RFC 4180 has
# them. Cells are strings, an empty cell is `""`. A short record lacks its last columns, as a JSON
# record may lack a field, or they are None (`on_short_record: null`). Header names are taken
# without the spaces around them. Blank lines are no records. A record whose quoting is broken is
# refused: guessing would move text.

MAX_CELL = 32 * 1024 * 1024  # characters, four bytes each: what bounds an unclosed quote's memory
_LOOK_AHEAD = 64 * 1024
_SIGNS = {",": "a comma", "\t": "a tab"}
_ENDLESS = "line without an end"
_TOO_LARGE = "field larger"


class _Lines:
    """The lines of a file, as text. Bytes that are not UTF-8 stay in it as lone surrogates, and
    `dirty` says once there were any: looking for them costs more than reading. Raises csv.Error
    before a line has filled the memory."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.dirty = False

    def __iter__(self) -> Iterator[str]:
        # Only a file of old, whose first line ends with CR alone, is cut at a CR by itself:
        # elsewhere one in an unquoted value would quietly make two records of one.
        head = self._file.peek(_LOOK_AHEAD)[:_LOOK_AHEAD]
        feed = head.find(b"\n")
        carriage = head.find(b"\r")
        is_old = carriage >= 0 and (feed < 0 or feed > carriage + 1)
        for raw in (
            self._old_lines()
            if is_old
            else iter(partial(self._file.readline, MAX_RECORD_BYTES + 1), b"")
        ):
            if len(raw) > MAX_RECORD_BYTES:
                raise csv.Error(_ENDLESS)
            try:
                yield raw.decode()
            except UnicodeDecodeError:
                self.dirty = True
                yield raw.decode(errors="surrogateescape")

    def _old_lines(self) -> Iterator[bytes]:
        """Lines that end with CR, LF or both."""
        rest = b""
        while (piece := self._file.read(_LOOK_AHEAD)) and len(rest) <= MAX_RECORD_BYTES:
            # of bytes, which splitlines() cuts at CR and LF alone; the last line may go on, if only
            # with its LF
            *lines, rest = (rest + piece).splitlines(keepends=True)
            yield from lines
        yield from [rest] if rest else []


class DelimitedSource(FileSource):
    """A csv or tsv file. Raises UsageError when it has no header or one that cannot name the
    fields."""

    def __init__(
        self,
        path: Path,
        shown: str,
        delimiter: str,
        encoding: str | None = None,
        on_short_record: OnShortRecord | None = None,
    ) -> None:
        super().__init__(path, shown, encoding)
        self._delimiter = delimiter
        self._on_short_record = on_short_record
        # a setting of the whole process: only ever raised
        csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
        with self._reader() as (reader, _):
            self._columns = self._header(reader)

    def records(self, start: int = 0) -> Iterator[Record]:
        columns = self._columns
        width = len(columns)
        with self._reader() as (reader, lines):
            if self._header(reader) != columns:
                raise AgacError(
                    f"{self._shown}: the header has changed since it was read", remedy="Run again."
                )
            ordinal = 0
            line = reader.line_num + 1
            while True:
                try:
                    for cells in reader:
                        # of one column an empty line is an empty value, and no space between
                        if cells or width == 1:
                            cells = cells or [""]
                            ordinal += 1
                            if ordinal > start:
                                if len(cells) == width and not lines.dirty:
                                    yield Record(
                                        ordinal, dict(zip(columns, cells, strict=True)), None, line
                                    )
                                else:
                                    yield self._unusual(ordinal, line, cells)
                        line = reader.line_num + 1
                    return
                except csv.Error as error:
                    ordinal += 1
                    if ordinal > start:
                        yield self._refused(ordinal, line, _quoting(str(error), line, columns))
                    if str(error).startswith((_ENDLESS, _TOO_LARGE)):
                        return  # reading on would only find the rest of what was too long
                    line = reader.line_num + 1

    @contextmanager
    def _reader(self) -> Iterator[tuple[Reader, _Lines]]:
        with self._opened() as file:
            lines = _Lines(file)
            yield csv.reader(lines, delimiter=self._delimiter, strict=True), lines

    def _header(self, reader: Reader) -> tuple[str, ...]:
        try:
            cells = next((cells for cells in reader if cells), None)
        except csv.Error as error:
            with self._opened() as file:
                after_quotes = re.findall(
                    rb'"([;|\t,])', file.peek(_LOOK_AHEAD).partition(b"\n")[0]
                )
            signs = b"".join(after_quotes).decode().replace(self._delimiter, "")
            remedy = (
                "Fix the header line, or name the sign: `delimiter` in the input, "
                "--delimiter of `agac data`."
            )
            raise UsageError(
                f"{self._shown}:1: {_quoting(str(error), 1, [signs])}", remedy=remedy
            ) from error
        if cells is None:
            raise UsageError(
                f"{self._shown}:1: there is no header",
                remedy="Write the column names in the first line.",
            )
        names = tuple(cell.strip() for cell in cells)
        problem = ""
        remedy = sentence(files.OTHER_ENCODING)
        bad = self._first_unreadable(names, "name")
        if bad:
            # by its number: the name itself is what cannot be shown
            problem, _, todo = bad[1].partition("; ")
            problem = f"the header's column {bad[0] + 1}: {problem}"
            remedy = sentence(todo)
        elif any("\0" in name for name in names):
            problem = "the header holds NUL characters, as UTF-16 has them"
        elif blank := [str(place) for place, name in enumerate(names, start=1) if not name]:
            problem = f"the header has no name for column {', '.join(blank)}"
            remedy = "Give every column a name."
        place = f"{self._shown}:{max(reader.line_num, 1)}:"
        if problem:
            raise UsageError(f"{place} {problem}", remedy=remedy)
        refuse_repeated(f"{place} the header names", names)
        return names

    def _unusual(self, ordinal: int, line: int, cells: list[str]) -> Record:
        columns = self._columns
        missing = len(columns) - len(cells)
        bad = self._first_unreadable(cells, "value")
        if bad:
            name = quoted(columns[bad[0]]) if bad[0] < len(columns) else str(bad[0] + 1)
            return self._refused(ordinal, line, f"column {name}: {bad[1]}")
        if missing < 0:
            sign = _SIGNS.get(self._delimiter, f"'{self._delimiter}'")
            remedy = separator_hint(columns) or f"put quotes around a value that contains {sign}"
            problem = f"the record has {len(cells)} fields, the header {len(columns)}; {remedy}"
            return self._refused(ordinal, line, problem)
        data: dict[str, JSONValue] = dict(zip(columns, cells, strict=False))
        if self._on_short_record == "null":
            data.update(dict.fromkeys(columns[len(cells) :]))
        return Record(ordinal, data, None, line, short=missing > 0)

    def _first_unreadable(self, cells: Sequence[str], what: str) -> tuple[int, str] | None:
        """Returns the position from 0 of the first cell with a byte that cannot be read, and which
        byte it is."""
        found = ((place, unreadable(cell, what, self._read_as)) for place, cell in enumerate(cells))
        return next(((place, problem) for place, problem in found if problem), None)


def separator_hint(columns: Sequence[str]) -> str:
    """Returns a question and its answer if the one column looks like a header that was not taken
    apart."""
    if len(columns) == 1:
        found = next((sign for sign in (";", "\t", "|", ",") if sign in columns[0]), None)
    else:
        found = None
    if found is None:
        return ""
    name, written = ("tabs", r"\t") if found == "\t" else (f"'{found}'", found)
    option = f"(`agac process`: --read 'delimiter={written}')"
    return f'is the file separated by {name}? Say `delimiter: "{written}"` in the input {option}'


def _quoting(error: str, line: int, columns: Sequence[str]) -> str:
    if error.startswith("unexpected end of data"):
        return (
            f"a quote that is opened in the record on line {line} is never closed; the "
            "file ends inside it"
        )
    if error.startswith("new-line character"):
        return "a carriage return stands in a value without quotes; put quotes around the value"
    if error == _ENDLESS:
        return f"the line is longer than {MAX_RECORD_BYTES} bytes; nothing after it is read"
    if error.startswith(_TOO_LARGE):
        return (
            f"a value is longer than {MAX_CELL} characters; is its closing quote missing? "
            "Nothing after it is read"
        )
    how = separator_hint(columns) or 'write a quote inside a quoted value as ""'
    return f"the quoting is broken ({error}); {how}"


class TextSource(LineSource):
    """A text file. Lines end at `\\n`, with or without a `\\r` before it."""

    _columns = ("line_number", "content")

    def known(self, line: int) -> dict[str, JSONValue]:
        return {"line_number": line}

    def record(self, ordinal: int, line: int, text: str) -> Record:
        content = text.removesuffix("\n").removesuffix("\r")
        return Record(ordinal, {"line_number": line, "content": content}, None, line)


class WholeFiles:
    """The files that an input's patterns match, each a row: `path` (relative, the row's id),
    `name` and `content`. One that cannot be read is a row with an error that keeps its path, so
    that it is the same row once it is mended."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec

    def columns(self) -> tuple[str, ...]:
        return ("path", "name", "content")

    def describe(self) -> str:
        return self._spec.shown

    def records(self, start: int = 0) -> Iterator[Record]:
        for ordinal, relative in enumerate(matched_files(self._spec), start=1):
            if ordinal > start:
                yield _record(ordinal, self._spec.path, relative, self._spec.encoding)


def matched_files(spec: InputSpec) -> Iterator[str]:
    """Yields the paths that an input matches, relative to its folder. Raises AgacError if a folder
    cannot be read."""
    try:
        yield from matching_rows(spec.path, spec.patterns, spec.skipped)
    except Unmatchable as error:
        raise AgacError(f"{spec.shown}: {error}", remedy="Fix it, then run again.") from error


def _record(ordinal: int, root: Path, relative: str, encoding: str | None) -> Record:
    content, problem = _text(root / relative, encoding)
    shown = relative.encode(errors="surrogateescape").decode(errors="replace")
    if shown != relative:
        content = None
        problem = "the file's name is not UTF-8; rename it"
    data: dict[str, JSONValue] = {
        "path": shown,
        "name": PurePosixPath(shown).name,
        "content": content,
    }
    if problem:
        error = RowError(ErrorType.INVALID_ROW, f"{shown}: {problem}")
    else:
        error = None
    return Record(ordinal, data, error, None, shown)


def _text(path: Path, encoding: str | None) -> tuple[str | None, str | None]:
    try:
        with os.fdopen(descriptor_of(path, None), "rb") as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
    except Refused as error:
        return None, str(error)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if len(raw) > MAX_RECORD_BYTES:
        return None, f"is larger than {MAX_RECORD_BYTES} bytes"
    encoding = files.encoding_of(raw, encoding)
    text = raw.removeprefix(files.BOM).decode(
        encoding or "utf-8", files.KEPT if encoding else "surrogateescape"
    )
    problem = unreadable(text, "file", encoding)
    if problem:
        return None, f"{problem}, or name text files only"
    return text, None


# for the csv module, which quotes a cell that holds a character of its line end, and no other
_END = "\r\n"
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")


def cell_text(value: JSONValue) -> str:
    """Returns a value as the text of a cell: null is empty, true and numbers as in JSON, lists and
    objects as JSON."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    return encode(value)


def safe_cell_text(value: JSONValue) -> str:
    """Returns the same, as no spreadsheet takes it for a formula. A plain number is none, also with
    a sign."""
    if isinstance(value, str) and _FORMULA.match(value) and not _PLAIN_NUMBER.match(value):
        return f"'{value}"
    return cell_text(value)


class DelimitedSink(AtomicFile):
    """Rows with a header line, quoted as RFC 4180 says, lines ended by `\\n`, in UTF-8. `bom`:
    after its mark."""

    def __init__(
        self, path: Path, layout: TableLayout, delimiter: str, *, safe: bool, bom: bool
    ) -> None:
        super().__init__(path)
        self.append(files.BOM.decode() if bom else "")
        self._lines = _Written()
        self._writer = csv.writer(self._lines, delimiter=delimiter, lineterminator=_END)
        self._text = safe_cell_text if safe else cell_text
        self._writer.writerow([self._text(column.name) for column in layout.columns])

    def write(self, rows: Sequence[OutputRow]) -> None:
        text = self._text
        self._writer.writerows([[text(cell) for cell in row.cells] for row in rows])
        self._flush()

    def finish(self) -> None:
        self._flush()
        super().finish()

    def _flush(self) -> None:
        self.append("".join(self._lines))
        self._lines.clear()


class _Written(list[str]):
    """Takes the csv module's lines, one a call, and ends them as text files end theirs."""

    def write(self, line: str) -> None:
        self.append(line[: -len(_END)] + "\n")


FAILED = "[failed] "
"""How the line of a row begins that failed; what follows says why."""


class TextSink(AtomicFile):
    """One result a line, in the order of the rows; the line of a row that failed is marked, and
    says why. A line end within a result is written as `\\n` or `\\r`; a result that is no text is
    written as JSON. Rows that were lines of a text file stand at the same lines: between them are
    empty ones, for blank lines and for rows without a result."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._line = 0  # of the input, as the row before told

    def write(self, rows: Sequence[OutputRow]) -> None:
        self.append("".join(map(self._written, rows)))

    def _written(self, row: OutputRow) -> str:
        if row.failure is None:
            text = cell_text(row.record)
        else:
            text = f"{FAILED}{row.failure}"
        blank = 0
        if row.line is not None:
            before = self._line if row.line >= self._line else 0  # else the next file begins
            blank = max(row.line - before - 1, 0)
            self._line = row.line
        return "\n" * blank + text.replace("\r", "\\r").replace("\n", "\\n") + "\n"
