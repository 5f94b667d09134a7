"""What every source gives, and what all sources share: opening, refusing, numbering lines, sampling."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from agac.core.errors import AgacError, ErrorType, RowError, UsageError
from agac.core.types import JSONValue
from agac.data.files import BUFFER, unpacked

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""A record that is longer is refused, so that one missing quote or bracket cannot pull a whole file into memory."""

BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Record(NamedTuple):
    """One record of a source, before it has an id.

    `ordinal` counts records from 1, `line` is the physical line on which the record begins, None where there are no
    lines. Where the record cannot be used `error` says why, and `data` is what is known of it, mostly None. `file` is
    the name of the file, where a source has several. A tuple, not a dataclass: a million of them are made, and this one
    costs a third.
    """

    ordinal: int
    data: dict[str, JSONValue] | None
    error: RowError | None = None
    line: int | None = None
    file: str | None = None

    def place(self, shown: str) -> str:
        """The record's place, as messages begin; `shown` is the source's name."""
        where = self.file or shown
        return f"{where}: row {self.ordinal}" if self.line is None else f"{where}:{self.line}"


class Source(Protocol):
    """Where rows come from. Opening one has already refused what no record of it can mend."""

    def columns(self) -> tuple[str, ...] | None:
        """The declared fields, in order; None where each record brings its own."""
        ...

    def records(self, start: int = 0) -> Iterator[Record]:
        """Every record after the first `start`, in order, streamed; each call reads from the beginning again.

        Trouble inside the data becomes a record with an error, never an exception and never a gap in the ordinals.
        Raises AgacError when the file itself can no longer be read.
        """
        ...

    def describe(self) -> str:
        """The input as messages name it: its path as the user wrote it."""
        ...


def refused(ordinal: int, shown: str, line: int | None, kind: ErrorType, problem: str) -> Record:
    """A record that cannot be used; its message begins with file and line, or with file and row."""
    place = Record(ordinal, None, None, line).place(shown)
    return Record(ordinal, None, RowError(kind, f"{place}: {problem}"), line)


@contextmanager
def opened(path: Path, shown: str) -> Iterator[BufferedReader]:
    """The file, for reading bytes, unpacked when it is compressed, placed after a UTF-8 byte order mark.

    The next 64 KB or more can be peeked at. Raises UsageError when it is missing, not a file, not readable or in
    UTF-16; AgacError when reading it fails later.
    """
    try:
        if not path.is_file():
            raise _not_a_file(path, shown)
        with BufferedReader(FileIO(path), BUFFER) as packed, unpacked(packed, path, shown) as file:
            _after_bom(file, shown)
            yield file
    except PermissionError as error:
        raise UsageError(f"{shown}: permission denied", remedy="Give the file read permission.") from error
    except OSError as error:
        raise AgacError(
            f"{shown}: reading failed: {error.strerror or error}", remedy="Check the disk, then run again."
        ) from error


def _after_bom(file: BufferedReader, shown: str) -> None:
    head = file.peek(3)[:3]
    encoding = _OTHER_BOMS.get(head[:2])
    if encoding is not None:
        raise UsageError(f"{shown}: the file is {encoding}, agac reads UTF-8", remedy="Save the file as UTF-8.")
    if head == BOM:
        file.read(3)


def _not_a_file(path: Path, shown: str) -> UsageError:
    if path.is_dir():
        return UsageError(f"{shown}: is a folder, not a file", remedy="Name a file in it.")
    if path.exists():
        return UsageError(
            f"{shown}: is not a regular file", remedy="Write the rows to a file first: a run reads its input again."
        )
    return UsageError(f"{shown}: no such file", remedy=_nearest_file(path, shown))


def _nearest_file(path: Path, shown: str) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(path.parent) if entry.is_file())
    except OSError:
        return f"There is no folder {Path(shown).parent}."
    near = get_close_matches(path.name, names, n=1)
    return f"Did you mean {Path(shown).with_name(near[0])}?" if near else "Check the path of the input."


class FileSource:
    """A source that is one file; `shown` is its name in messages."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path, self._shown = path, shown

    def describe(self) -> str:
        return self._shown


class LineSource(FileSource, ABC):
    """A file with one record a line. Lines end at `\\n` alone, so that U+2028 and its like stay inside; lines of white
    space are no records. Subclasses say what a line is."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(path, shown)
        with opened(path, shown):
            pass

    def records(self, start: int = 0) -> Iterator[Record]:
        with opened(self._path, self._shown) as file:
            ordinal = 0
            for line, raw in enumerate(iter(partial(next_line, file), b""), start=1):
                if raw.isspace():
                    continue
                ordinal += 1
                if ordinal <= start:
                    continue
                if len(raw) > MAX_RECORD_BYTES:
                    problem = f"the line is longer than {MAX_RECORD_BYTES} bytes"
                    yield refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, problem)
                else:
                    yield self.record(ordinal, line, raw)

    @abstractmethod
    def record(self, ordinal: int, line: int, raw: bytes) -> Record:
        """The record in a line, or what is wrong with it."""


def next_line(file: BufferedReader) -> bytes:
    """The next line; of one that is too long only the beginning, which still shows that it is."""
    raw = file.readline(MAX_RECORD_BYTES + 1)
    if len(raw) > MAX_RECORD_BYTES:
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(1 << 20)
    return raw


def sampled(ordinals: Iterable[int], size: int, seed: int) -> list[int]:
    """At most `size` of the numbers, each as likely as any other, in ascending order; holds no more than it gives.

    The same numbers and seed give the same sample on every machine. Numbers added at the end change it only where one
    of them is taken. (Vitter's algorithm R; only `random()` is promised to stay the same over versions of Python.)
    """
    draw = Random(seed).random  # noqa: S311 - chance, not secrecy
    taken: list[int] = []
    for count, ordinal in enumerate(ordinals):
        if count < size:
            taken.append(ordinal)
        elif (place := int(draw() * (count + 1))) < size:
            taken[place] = ordinal
    return sorted(taken)
