"""Plain text: each line a row, with its number in the file. Lines of white space are no rows."""

from __future__ import annotations

from agac.core.errors import ErrorType
from agac.data.formats.lines import LineSource
from agac.data.records import Record, refused


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
