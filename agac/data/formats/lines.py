"""What a source has in common with another whose records are lines: how they are numbered, and which are too long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path

from agac.core.errors import ErrorType
from agac.data.records import MAX_RECORD_BYTES, Record, opened, refused


class LineSource(ABC):
    """A file with one record a line. Lines end at `\\n` alone, so that U+2028 and its like stay inside; lines of white
    space are no records. Subclasses say what a line is."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self._shown = shown
        with opened(path, shown):
            pass

    def describe(self) -> str:
        return self._shown

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
