"""Inputs in JSON Lines and JSON, read as a stream."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from agac.core.errors import ErrorType, UsageError
from agac.core.types import JSONValue
from agac.data.json_text import Unusable, decode, decode_at, kind_of, quoted
from agac.data.records import MAX_RECORD_BYTES, FileSource, LineSource, Record, opened, refused


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


# An element is first tried where it stands. Only where that fails (the piece ends inside it, or something is wrong with
# it) are its brackets and quotes followed to its end, once, over as many pieces as it takes.

CHUNK = 256 * 1024
MAX_CHUNK = 8 * 1024 * 1024

_SPACE = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[ \t\r\n,\[\]{}\"]")


class _Text:
    """The part of the file that is not yet read to its end, as text; invalid bytes stand in it as lone surrogates."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._counted = 0
        self._line = 1
        self.text = ""
        self.at = 0
        self.ended = False
        self.dirty = False

    def more(self) -> bool:
        """Drops what lies before `at`, which becomes 0, and appends a piece; False when the file has ended.

        The pieces double with what is kept: a long element is copied a bounded number of times.
        """
        if self.ended:
            return False
        self.line()
        kept = self.text[self.at :]
        chunk = self._file.read(max(CHUNK, min(len(kept), MAX_CHUNK)))
        piece = self._decode(chunk, not chunk)
        self.ended = not chunk
        self.dirty = self.dirty or _has_bad_bytes(piece)
        self.text = kept + piece
        self.at = self._counted = 0
        return True

    def give_up(self) -> None:
        """Leaves the rest of the file unread: from here on it has ended."""
        self.at = len(self.text)
        self.ended = True

    def line(self) -> int:
        """The physical line of `at`."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def peek(self) -> str:
        """The next character that is not white space, `at` placed on it; empty at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""


def _has_bad_bytes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Broken:
    """Why an element gives no value."""

    kind: ErrorType
    problem: str


class JsonSource(FileSource):
    """A file that holds one JSON array of objects, or one object. Raises UsageError when it begins as neither."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(path, shown)
        with opened(path, shown) as file:
            first = _Text(file).peek()
        if not first:
            raise UsageError(f"{shown}: is empty", remedy="Write [] for no rows.")
        if first not in "[{":
            raise UsageError(
                f"{shown}: holds neither a JSON array nor an object, it begins with {quoted(first)}",
                remedy="Write an array of objects.",
            )

    def columns(self) -> None:
        return None

    def records(self, start: int = 0) -> Iterator[Record]:
        with opened(self._path, self._shown) as file:
            text = _Text(file)
            found = self._array(text) if text.peek() == "[" else self._single(text)
            for ordinal, (line, value) in enumerate(found, start=1):
                if ordinal > start:
                    yield self._record(ordinal, line, value)

    def _record(self, ordinal: int, line: int, value: JSONValue | _Broken) -> Record:
        if type(value) is dict:
            return Record(ordinal, value, None, line)
        if isinstance(value, _Broken):
            return refused(ordinal, self._shown, line, value.kind, value.problem)
        problem = f"the element is {kind_of(value)}, not an object"
        return refused(ordinal, self._shown, line, ErrorType.INVALID_ROW, problem)

    def _single(self, text: _Text) -> Iterator[tuple[int, JSONValue | _Broken]]:
        line = text.line()
        value = _element(text)
        yield line, value
        if not isinstance(value, _Broken) and text.peek():
            yield text.line(), _after_the_end("object", "; for one object a line set format: jsonl")

    def _array(self, text: _Text) -> Iterator[tuple[int, JSONValue | _Broken]]:
        text.at += 1
        following = text.peek()
        value: JSONValue | _Broken = None
        while following and following != "]":
            line = text.line()
            value = _element(text)
            yield line, value
            following = text.peek()
            if following == ",":
                text.at += 1
                following = text.peek()
                if following == "]":
                    yield text.line(), _Broken(ErrorType.INVALID_JSON, "a comma stands before the closing bracket")
            elif following not in ("]", ""):
                break
        # one report is enough: an element that is broken itself has already said where
        if following == "]":
            text.at += 1
            if text.peek():
                yield text.line(), _after_the_end("array", "")
        elif not isinstance(value, _Broken):
            yield text.line(), _torn(following)


def _torn(following: str) -> _Broken:
    if not following:
        return _Broken(ErrorType.INVALID_JSON, "the file ends inside the array; its closing bracket is missing")
    problem = f"expected a comma or the closing bracket, found {quoted(following)}; nothing after it can be read"
    return _Broken(ErrorType.INVALID_JSON, problem)


def _after_the_end(what: str, hint: str) -> _Broken:
    return _Broken(ErrorType.INVALID_JSON, f"text follows after the end of the {what}; it is not read{hint}")


def _element(text: _Text) -> JSONValue | _Broken:
    """The value that begins at `text.at`, which is moved behind it."""
    try:
        value, end = decode_at(text.text, text.at)
    except (Unusable, json.JSONDecodeError):
        return _followed(text)
    # a number at the end of the piece may go on in the next one
    if (end == len(text.text) and not text.ended) or text.dirty:
        return _followed(text)
    text.at = end
    return value


def _followed(text: _Text) -> JSONValue | _Broken:
    """As `_element`, by following brackets and quotes to where the element ends."""
    opener = text.text[text.at]
    length = _extent(text)
    if length is None or length > MAX_RECORD_BYTES:
        line = text.line()
        text.give_up()
        why = "the file ends inside" if length is None else f"there are more than {MAX_RECORD_BYTES} characters in"
        problem = f"{why} the element that begins on line {line} with {quoted(opener)}; nothing after it can be read"
        return _Broken(ErrorType.INVALID_JSON, problem)
    element = text.text[text.at : text.at + length]
    line = text.line()
    text.at += length
    try:
        element.encode()
        return decode(element)
    except UnicodeEncodeError as error:
        byte = ord(element[error.start]) & 0xFF
        offset = len(element[: error.start].encode())
        problem = f"byte 0x{byte:02x} at offset {offset} of the element is not UTF-8; save the file as UTF-8"
        return _Broken(ErrorType.INVALID_ROW, problem)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, {error.pos + 1} characters into the element"
        return _Broken(ErrorType.INVALID_JSON, f"not valid JSON: {error.msg} ({place})")
    except Unusable as error:
        return _Broken(ErrorType.INVALID_ROW, str(error))


def _extent(text: _Text) -> int | None:
    """How many characters the element at `text.at` has; None when the file ends inside it.

    More than `MAX_RECORD_BYTES` means: at least that many, its end was not looked for.
    """
    if text.text[text.at] not in '"[{':
        return _scalar_extent(text)
    depth = length = 0
    in_string = False
    while length <= MAX_RECORD_BYTES:
        match = (_IN_STRING if in_string else _STRUCTURE).search(text.text, text.at + length)
        if match is None:
            length = max(length, len(text.text) - text.at)
            if not text.more():
                return None
            continue
        length = match.end() - text.at
        sign = match.group()
        if sign == "\\":
            length += 1
        elif sign == '"':
            in_string = not in_string
        else:
            depth += 1 if sign in "[{" else -1
        if depth == 0 and not in_string:
            return length
    return length


def _scalar_extent(text: _Text) -> int | None:
    length = 1
    while length <= MAX_RECORD_BYTES:
        match = _SCALAR_END.search(text.text, text.at + length)
        if match is not None:
            return match.start() - text.at
        length = len(text.text) - text.at
        if not text.more():
            return length
    return length
