"""JSON Lines: one object a line. Lines end at `\\n` alone, so that U+2028 and its like stay inside their strings."""

from __future__ import annotations

import json

from agac.core.errors import ErrorType
from agac.data.formats.lines import LineSource
from agac.data.jsontext import Unusable, decode, kind_of
from agac.data.records import Record, refused


class JsonLinesSource(LineSource):
    """A file with one JSON object a line; lines of white space are no records."""

    def columns(self) -> None:
        return None

    def record(self, ordinal: int, line: int, raw: bytes) -> Record:
        try:
            value = decode(raw.decode())
        except (Unusable, UnicodeDecodeError, json.JSONDecodeError) as error:
            kind, problem = _refusal(raw, error)
            return refused(ordinal, self._shown, line, kind, problem)
        if type(value) is dict:
            return Record(ordinal, value, None, line)
        hint = "; if the file is one JSON array, set format: json" if type(value) is list else ""
        problem = f"the line is {kind_of(value)}, not an object{hint}"
        return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, problem)


def _refusal(raw: bytes, error: ValueError) -> tuple[ErrorType, str]:
    if isinstance(error, UnicodeDecodeError):
        byte = raw[error.start]
        return (
            ErrorType.INVALID_ROW,
            f"byte 0x{byte:02x} at offset {error.start} of the line is not UTF-8; save the file as UTF-8",
        )
    if isinstance(error, json.JSONDecodeError):
        return ErrorType.INVALID_JSON, f"not valid JSON: {error.msg} (character {error.pos + 1}){_hint(raw)}"
    return ErrorType.INVALID_ROW, str(error)


def _hint(raw: bytes) -> str:
    if not raw.endswith(b"\n"):
        return "; the file ends inside this line" if b"\r" not in raw.strip() else "; end lines with LF, not CR alone"
    return "; write one object a line"
