"""Inputs that are text: CSV and TSV, lines, and whole files."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agac.core.errors import AgacError, ErrorType, RowError, UsageError
from agac.data.json_text import quoted
from agac.data.records import BOM, MAX_RECORD_BYTES, FileSource, LineSource, Record, opened, refused
from agac.spec.paths import Unmatchable, matching
from agac.spec.workflow import InputSpec

if TYPE_CHECKING:
    from _csv import Reader


# CSV and TSV: a header that declares the columns, then one record after another, as RFC 4180 has them.
#
# Cells are strings, an empty cell is `""`, a column that a short record lacks is None. Header names are taken without
# the spaces around them. Blank lines are no records. Quotes are read strictly: a record whose quoting is broken is
# refused, because guessing would move text between columns.

MAX_CELL = 32 * 1024 * 1024
"""Characters. The csv module keeps four bytes for each, so that this is what bounds an unclosed quote's memory."""

_LOOK_AHEAD = 64 * 1024
_SIGNS = {",": "a comma", "\t": "a tab"}
_ENDLESS = "line without an end"
_NEVER_CLOSED = "unexpected end of data"


class _Watched(io.BufferedIOBase):
    """Bytes on their way to the text layer; notices whether any of them so far were not UTF-8.

    The text layer keeps such bytes as lone surrogates, so that one bad record costs one record. Looking for them in
    every record would cost more than reading it; looking only once this says `dirty` costs nothing.
    Raises csv.Error before a line without an end has filled the memory.
    """

    def __init__(self, file: io.BufferedReader, line_end: bytes) -> None:
        self._file = file
        self._line_end = line_end
        self._unbroken = 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self.dirty = False

    @property
    def name(self) -> str:
        return str(self._file.name)

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        chunk = self._file.read(size)
        if not self.dirty:
            try:
                self._decode(chunk, not chunk)
            except UnicodeDecodeError:
                self.dirty = True
        last = chunk.rfind(self._line_end)
        self._unbroken = len(chunk) - last - 1 if last >= 0 else self._unbroken + len(chunk)
        if self._unbroken > MAX_RECORD_BYTES:
            raise csv.Error(_ENDLESS)
        return chunk


def _line_end(file: io.BufferedReader) -> bytes:
    """What ends the file's first line. Only a file of old, where that is CR alone, is cut at a CR by itself:
    elsewhere one that stands in an unquoted value would quietly make two records of one."""
    head = file.peek(_LOOK_AHEAD)[:_LOOK_AHEAD]
    feed, carriage = head.find(b"\n"), head.find(b"\r")
    return b"\r" if carriage >= 0 and (feed < 0 or feed > carriage + 1) else b"\n"


class DelimitedSource(FileSource):
    """A csv or tsv file. Raises UsageError when it has no header or one that cannot name the fields."""

    def __init__(self, path: Path, shown: str, delimiter: str) -> None:
        super().__init__(path, shown)
        self._delimiter = delimiter
        # a setting of the whole process: only ever raised
        csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
        with self._reader() as (reader, _):
            self._columns = self._header(reader)

    def columns(self) -> tuple[str, ...]:
        return self._columns

    def records(self, start: int = 0) -> Iterator[Record]:
        columns = self._columns
        width = len(columns)
        with self._reader() as (reader, watched):
            if self._header(reader) != columns:
                raise AgacError(f"{self._shown}: the header has changed since it was read", remedy="Run again.")
            ordinal, line = 0, reader.line_num + 1
            while True:
                try:
                    for cells in reader:
                        if cells:
                            ordinal += 1
                            if ordinal > start:
                                if len(cells) == width and not watched.dirty:
                                    yield Record(ordinal, dict(zip(columns, cells, strict=True)), None, line)
                                else:
                                    yield self._unusual(ordinal, line, cells)
                        line = reader.line_num + 1
                    return
                except csv.Error as error:
                    ordinal += 1
                    if ordinal > start:
                        yield refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, _quoting(str(error), line))
                    if _is_lost(str(error)):
                        return
                    line = reader.line_num + 1

    @contextmanager
    def _reader(self) -> Iterator[tuple[Reader, _Watched]]:
        with opened(self._path, self._shown) as file:
            line_end = _line_end(file)
            watched = _Watched(file, line_end)
            newline = "" if line_end == b"\r" else "\n"
            text = io.TextIOWrapper(watched, encoding="utf-8", errors="surrogateescape", newline=newline)
            yield csv.reader(text, delimiter=self._delimiter, strict=True), watched

    def _header(self, reader: Reader) -> tuple[str, ...]:
        try:
            cells = next((cells for cells in reader if cells), None)
        except csv.Error as error:
            raise UsageError(f"{self._shown}:1: {_quoting(str(error), 1)}", remedy="Mend the header line.") from error
        if cells is None:
            raise UsageError(f"{self._shown}:1: there is no header", remedy="Write the column names in the first line.")
        names = tuple(cell.strip() for cell in cells)
        trouble = _header_trouble(names)
        if trouble:
            problem, remedy = trouble
            raise UsageError(f"{self._shown}:{max(reader.line_num, 1)}: {problem}", remedy=remedy)
        return names

    def _unusual(self, ordinal: int, line: int, cells: list[str]) -> Record:
        problem = _bad_bytes(self._columns, cells)
        missing = len(self._columns) - len(cells)
        if problem is None and missing < 0:
            problem = (
                f"the record has {len(cells)} fields, the header {len(self._columns)}; "
                f"put quotes around a value that contains {_SIGNS[self._delimiter]}"
            )
        if problem is not None:
            return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, problem)
        return Record(ordinal, dict(zip(self._columns, [*cells, *[None] * missing], strict=True)), None, line)


def _is_lost(error: str) -> bool:
    """Whether reading on would only find the rest of what was too long."""
    return error == _ENDLESS or error.startswith("field larger")


def _quoting(error: str, line: int) -> str:
    if error.startswith(_NEVER_CLOSED):
        return f"a quote that is opened in the record on line {line} is never closed; the file ends inside it"
    if error.startswith("new-line character"):
        return "a carriage return stands in a value without quotes; put quotes around the value"
    if error == _ENDLESS:
        return f"the line is longer than {MAX_RECORD_BYTES} bytes; nothing after it is read"
    if _is_lost(error):
        return f"a value is longer than {MAX_CELL} characters; is its closing quote missing? Nothing after it is read"
    return f'the quoting is broken ({error}); write a quote inside a quoted value as ""'


def _bad_bytes(columns: tuple[str, ...], cells: list[str]) -> str | None:
    bad = _first_bad_byte(cells)
    if bad is None:
        return None
    place, byte, offset = bad
    name = quoted(columns[place]) if place < len(columns) else str(place + 1)
    return f"column {name}: byte 0x{byte:02x} at offset {offset} of the value is not UTF-8; save the file as UTF-8"


def _first_bad_byte(cells: Sequence[str]) -> tuple[int, int, int] | None:
    """The first byte that is not UTF-8: the place of its cell from 0, the byte, its offset in the cell."""
    for place, cell in enumerate(cells):
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            return place, ord(cell[error.start]) & 0xFF, len(cell[: error.start].encode())
    return None


def _header_trouble(names: tuple[str, ...]) -> tuple[str, str] | None:
    """What keeps a header from naming the fields, and the remedy."""
    bad = _first_bad_byte(names)
    if bad is not None:
        # by its number: the name itself is what cannot be shown
        return f"the header's column {bad[0] + 1}: byte 0x{bad[1]:02x} is not UTF-8", "Save the file as UTF-8."
    if any("\0" in name for name in names):
        return "the header holds NUL characters, as UTF-16 has them", "Save the file as UTF-8."
    blank = [str(place) for place, name in enumerate(names, start=1) if not name]
    if blank:
        return f"the header has no name for column {', '.join(blank)}", "Give every column a name."
    twice = [quoted(name) for name, count in Counter(names).items() if count > 1]
    if twice:
        return f"the header names {', '.join(twice)} more than once", "Give every column its own name."
    return None


class TextSource(LineSource):
    """A text file. Lines end at `\\n`, with or without a `\\r` before it."""

    def columns(self) -> tuple[str, ...]:
        return ("line_number", "content")

    def record(self, ordinal: int, line: int, raw: bytes) -> Record:
        try:
            content = raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            problem = f"byte 0x{raw[error.start]:02x} at offset {error.start} of the line is not UTF-8"
            return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, f"{problem}; save the file as UTF-8")
        return Record(ordinal, {"line_number": line, "content": content}, None, line)


# Each file a row: `path` (relative, and the row's id), `name` and `content`.


class WholeFiles:
    """The files that an input's patterns match, found and read one after the other.

    A file that cannot be read is a row with an error that keeps its path, so that it is the same row once it is mended.
    """

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec

    def columns(self) -> tuple[str, ...]:
        return ("path", "name", "content")

    def describe(self) -> str:
        return self._spec.shown

    def records(self, start: int = 0) -> Iterator[Record]:
        for ordinal, relative in enumerate(matched_files(self._spec), start=1):
            if ordinal > start:
                yield _record(ordinal, self._spec.path, relative)


def matched_files(spec: InputSpec) -> Iterator[str]:
    """The paths that an input matches, relative to its folder. Raises AgacError when a folder cannot be read."""
    try:
        yield from matching(spec.path, spec.patterns, spec.skipped)
    except Unmatchable as error:
        raise AgacError(f"{spec.shown}: {error}", remedy="Fix it, then run again.") from error


def _record(ordinal: int, root: Path, relative: str) -> Record:
    content, problem = _text(root / relative)
    shown = relative.encode(errors="surrogateescape").decode(errors="replace")
    if shown != relative:
        content, problem = None, "the file's name is not UTF-8; rename it"
    data = {"path": shown, "name": PurePosixPath(shown).name, "content": content}
    error = RowError(ErrorType.INVALID_ROW, f"{shown}: {problem}") if problem else None
    return Record(ordinal, data, error, None, shown)


def _text(path: Path) -> tuple[str | None, str | None]:
    """The text of a file, or what is wrong with it."""
    try:
        if not path.is_file():
            return None, "is gone, or no regular file"
        with path.open("rb") as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if len(raw) > MAX_RECORD_BYTES:
        return None, f"is larger than {MAX_RECORD_BYTES} bytes"
    try:
        return raw.removeprefix(BOM).decode(), None
    except UnicodeDecodeError as error:
        return None, f"byte 0x{raw[error.start]:02x} at offset {error.start} is not UTF-8; name text files only"
