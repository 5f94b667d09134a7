"""Plain text: each line a row, with its number in the file. Lines of white space are no rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from agac.core.errors import ErrorType
from agac.data.formats.jsonl import next_line
from agac.data.records import MAX_RECORD_BYTES, Record, opened, refused


class TextSource:
    """A text file. Lines end at `\\n`, with or without a `\\r` before it."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self._shown = shown
        with opened(path, shown):
            pass

    def columns(self) -> tuple[str, ...]:
        return ("line_number", "content")

    def describe(self) -> str:
        return self._shown

    def records(self, start: int = 0) -> Iterator[Record]:
        with opened(self._path, self._shown) as file:
            ordinal = 0
            for line, raw in enumerate(iter(partial(next_line, file), b""), start=1):
                if raw.isspace():
                    continue
                ordinal += 1
                if ordinal > start:
                    yield self._record(ordinal, line, raw)

    def _record(self, ordinal: int, line: int, raw: bytes) -> Record:
        if len(raw) > MAX_RECORD_BYTES:
            problem = f"the line is longer than {MAX_RECORD_BYTES} bytes"
            return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, problem)
        try:
            content = raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            problem = f"byte 0x{raw[error.start]:02x} at offset {error.start} of the line is not UTF-8"
            return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, f"{problem}; save the file as UTF-8")
        return Record(ordinal, {"line_number": line, "content": content}, None, line)
