"""JSON as agac reads and writes it, strict where the standard library is generous; inputs in JSON
Lines and JSON. Refused, because no later part could keep them: NaN and infinities, numbers that
overflow, integers of more than 4300 digits, an object with the same key twice, lone surrogates,
values nested deeper than `MAX_DEPTH`."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import ErrorType, UsageError
from agac.core.types import JSONValue
from agac.data.files import MAX_RECORD_BYTES, FileSource, LineSource, Record, unreadable

MAX_DEPTH = (
    200  # deep enough for any real data; no recursive reader or writer after us can overflow
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


class RefusedValue(ValueError):
    """Well-formed JSON with a value that agac refuses; the message says which and what to write
    instead."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise RefusedValue(f"the key {quoted(twice)} stands twice in one object; keep one of them")
    return found


def _constant(name: str) -> float:
    raise RefusedValue(f"{name} is not a JSON value; write null or a string")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise RefusedValue(f"the number {_cut(text)} is too large; write null or a string")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_indented = json.JSONEncoder(ensure_ascii=False, indent=2, allow_nan=False)


def decode_at(text: str, position: int) -> tuple[JSONValue, int]:
    """Returns the value that begins at `position`, and where it ends. Raises JSONDecodeError,
    RefusedValue."""
    try:
        value, end = _decoder.raw_decode(text, position)
    except (json.JSONDecodeError, RefusedValue):
        raise
    except RecursionError:
        raise RefusedValue(f"the value is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # the interpreter's own limit against quadratic conversion
        raise RefusedValue("an integer has more than 4300 digits; write it as a string") from None
    _refuse_what_cannot_be_kept(text, position, end, value)
    return value, end


def decode(text: str) -> JSONValue:
    """Returns the one value that `text` holds, with white space around it or not. Raises as
    `decode_at` does."""
    value, end = decode_at(text, len(text) - len(text.lstrip(" \t\r\n")))
    if text[end:].strip(" \t\r\n"):
        raise json.JSONDecodeError(
            "Extra data", text, len(text) - len(text[end:].lstrip(" \t\r\n"))
        )
    return value


def _refuse_what_cannot_be_kept(text: str, start: int, end: int, value: JSONValue) -> None:
    # a surrogate can only have come from an escape, and n levels need 2n characters: most records
    # are not walked
    if text.find("\\u", start, end) >= 0:
        field = _field_with_surrogate(value)
        if field is not None:
            raise RefusedValue(
                f"{field} holds half of a surrogate pair, which no UTF-8 text can; replace it"
            )
    if end - start <= 2 * MAX_DEPTH:
        return
    if (
        text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH
        and _depth(value) > MAX_DEPTH
    ):
        raise RefusedValue(f"the value is nested deeper than {MAX_DEPTH} levels")


def _depth(value: JSONValue) -> int:
    depth = -1
    level = [value]
    while level:
        nested = [
            one.values() if isinstance(one, dict) else one
            for one in level
            if isinstance(one, dict | list)
        ]
        depth = depth + 1
        level = list(chain.from_iterable(nested))
    return depth


def _field_with_surrogate(root: JSONValue) -> str | None:
    """Names the part of a value that holds half of a surrogate pair; None: none does."""
    stack: list[tuple[str, JSONValue]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            return f"the field {quoted(path)}" if path else "the value"
        if isinstance(value, dict) and any(_SURROGATE.search(key) for key in value):
            return f"a key of {quoted(path)}" if path else "a key"
        stack.extend(_children(path, value))
    return None


def _children(path: str, value: JSONValue) -> Iterator[tuple[str, JSONValue]]:
    """Yields what is in an object or a list, each with its path."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"{path}.{key}" if path else key, child
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child


def json_column(text: str) -> JSONValue:
    """Returns the value of a cell with JSON, of databases that know more than JSON. Raises
    ValueError with what is wrong."""
    try:
        return decode(text)
    except ValueError as error:
        raise ValueError(f"holds JSON that cannot be read: {error}") from None


def encode(value: JSONValue, *, indent: bool = False) -> str:
    """JSON of `value`: not ASCII-escaped, in one line unless `indent`; a number that JSON cannot
    hold becomes null."""
    encoder = _indented if indent else _compact
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _finite(value: JSONValue) -> JSONValue:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return value


def kind_of(value: JSONValue) -> str:
    """Says what a decoded value is: `a list`, `null`."""
    return _NAMES.get(type(value), "null")


def quoted(text: str) -> str:
    """`text` in double quotes, cut to what fits a message, with surrogates and control characters
    escaped."""
    return json.dumps(_cut(text), ensure_ascii=not text.isprintable())


BY_AS = "Give every column its own name, with AS."


def refuse_repeated(
    what: str, names: Iterable[str], remedy: str = "Give every column its own name."
) -> None:
    """Raises UsageError, whose message begins with `what`, where names of columns stand there
    twice."""
    twice = [quoted(name) for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UsageError(f"{what} {', '.join(twice)} more than once", remedy=remedy)


def _cut(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


class JsonLinesSource(LineSource):
    """A file with one JSON object a line; lines of white space are no records."""

    def record(self, ordinal: int, line: int, text: str) -> Record:
        try:
            value = decode(text)
        except json.JSONDecodeError as error:
            hint = "; write one object a line"
            if not text.endswith("\n"):
                ended = "\r" not in text.strip()
                if ended:
                    hint = "; the file ends inside this line"
                else:
                    hint = "; end lines with LF, not CR alone"
            problem = f"not valid JSON: {error.msg} (character {error.pos + 1}){hint}"
            return self._refused(ordinal, line, problem, ErrorType.INVALID_JSON)
        except RefusedValue as error:
            return self._refused(ordinal, line, str(error))
        if type(value) is dict:
            return Record(ordinal, value, None, line)
        if type(value) is list:
            hint = "; if the file is one JSON array, set format: json"
        else:
            hint = ""
        return self._refused(ordinal, line, f"the line is {kind_of(value)}, not an object{hint}")


# An element is first tried where it stands. Only where that fails (the piece ends inside it, or
# something is wrong with it) are its brackets and quotes followed to its end, once, over as many
# pieces as it takes.

CHUNK = 256 * 1024
MAX_CHUNK = 8 * 1024 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[ \t\r\n,\[\]{}\"]")


class _Text:
    """The part of the file that is not yet read to its end, as text; invalid bytes stand in it as
    lone surrogates."""

    def __init__(self, file: BufferedReader, encoding: str | None = None) -> None:
        self._file = file
        self.encoding = encoding
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._counted = 0
        self._line = 1
        self.text = ""
        self.at = 0
        self.ended = False
        self.dirty = False

    def more(self) -> bool:
        """Drops what lies before `at`, which becomes 0, and appends a piece; False when the file
        has ended. The pieces double with what is kept: a long element is copied a bounded number
        of times."""
        if self.ended:
            return False
        self.line()
        kept = self.text[self.at :]
        chunk = self._file.read(max(CHUNK, min(len(kept), MAX_CHUNK)))
        piece = self._decode(chunk, not chunk)
        self.ended = not chunk
        try:
            piece.encode()
        except UnicodeEncodeError:
            self.dirty = True
        self.text = kept + piece
        self.at = self._counted = 0
        return True

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def peek(self) -> str:
        """Moves `at` to the next character that is not white space and returns it; empty at the end
        of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""


class _Broken(NamedTuple):
    """Why an element gives no value."""

    problem: str
    kind: ErrorType = ErrorType.INVALID_JSON


class JsonSource(FileSource):
    """A file that holds one JSON array of objects, or one object, then `single`. Raises UsageError
    when it begins as neither."""

    def __init__(self, path: Path, shown: str, encoding: str | None = None) -> None:
        super().__init__(path, shown, encoding)
        with self._opened() as file:
            first = _Text(file).peek()
        self.single = first == "{"
        if not first:
            raise UsageError(f"{shown}: is empty", remedy="Write [] for no rows.")
        if first not in "[{":
            problem = (
                f"{shown}: holds neither a JSON array nor an object, it begins with {quoted(first)}"
            )
            raise UsageError(problem, remedy="Write an array of objects.")

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._opened() as file:
            text = _Text(file, self._read_as)
            found = _array(text) if text.peek() == "[" else _single(text)
            for ordinal, (line, value) in enumerate(found, start=1):
                if ordinal <= start:
                    continue
                if type(value) is dict:
                    yield Record(ordinal, value, None, line)
                elif isinstance(value, _Broken):
                    yield self._refused(ordinal, line, *value)
                else:
                    yield self._refused(
                        ordinal, line, f"the element is {kind_of(value)}, not an object"
                    )


def _single(text: _Text) -> Iterator[tuple[int, JSONValue | _Broken]]:
    line = text.line()
    value = _element(text)
    yield line, value
    if not isinstance(value, _Broken) and text.peek():
        problem = (
            "text follows after the end of the object; it is not read; for one object a "
            "line set format: jsonl"
        )
        yield text.line(), _Broken(problem)


def _array(text: _Text) -> Iterator[tuple[int, JSONValue | _Broken]]:
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
                yield text.line(), _Broken("a comma stands before the closing bracket")
        elif following not in ("]", ""):
            break
    # one report is enough: an element that is broken itself has already said where
    if following == "]":
        text.at += 1
        if text.peek():
            yield text.line(), _Broken("text follows after the end of the array; it is not read")
    elif not isinstance(value, _Broken):
        missing = "the file ends inside the array; its closing bracket is missing"
        other = (
            f"expected a comma or the closing bracket, found {quoted(following)}; nothing "
            "after it can be read"
        )
        yield text.line(), _Broken(other if following else missing)


def _element(text: _Text) -> JSONValue | _Broken:
    """Returns the value that begins at `text.at`, which is moved behind it."""
    try:
        value, end = decode_at(text.text, text.at)
    except (RefusedValue, json.JSONDecodeError):
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
        text.at = len(text.text)  # the rest of the file is left unread
        text.ended = True
        if length is None:
            why = "the file ends inside"
        else:
            why = f"there are more than {MAX_RECORD_BYTES} characters in"
        problem = (
            f"{why} the element that begins on line {line} with {quoted(opener)}; nothing "
            "after it can be read"
        )
        return _Broken(problem)
    element = text.text[text.at : text.at + length]
    line = text.line()
    text.at += length
    bad = unreadable(element, "element", text.encoding)
    if bad:
        return _Broken(bad, ErrorType.INVALID_ROW)
    try:
        return decode(element)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, {error.pos + 1} characters into the element"
        return _Broken(f"not valid JSON: {error.msg} ({place})")
    except RefusedValue as error:
        return _Broken(str(error), ErrorType.INVALID_ROW)


def _extent(text: _Text) -> int | None:
    """Returns how many characters the element at `text.at` has, or more than are allowed; None if
    the file ends inside it."""
    if text.text[text.at] not in '"[{':
        return _scalar_extent(text)
    depth = 0
    length = 0
    in_string = False
    while length <= MAX_RECORD_BYTES:
        pattern = _IN_STRING if in_string else _STRUCTURE
        match = pattern.search(text.text, text.at + length)
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


def _scalar_extent(text: _Text) -> int:
    """Returns how many characters a number or a word has, or more than are allowed."""
    length = 1
    while length <= MAX_RECORD_BYTES:
        match = _SCALAR_END.search(text.text, text.at + length)
        if match is not None:
            return match.start() - text.at
        length = max(length, len(text.text) - text.at)
        if not text.more():
            return length
    return length
