"""Replies that are almost JSON, mended to what they surely mean: `json_repair: true`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, SupportsIndex

from agac.core.types import (
    JSONValue,
)

_BLOCK = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_OPEN_FENCE = re.compile(r"\A```(?:json|JSON)?[ \t]*\r?\n")
_decode = json.JSONDecoder().raw_decode


MAX_READS = 1_000_000
"""Characters that the repair may read, which takes about 0.5 s. A sound guess reads each one a few
times; on some texts the library reads the rest again for each quote."""


class _TooManyReads(Exception):
    """Raised when the repair of a reply is given up."""


class _CountedText(str):
    """A text that can be read MAX_READS times, counted in `reads` together with the texts that are
    cut out of it."""

    __slots__ = ("reads",)
    reads: list[int]

    def __new__(cls, text: str, reads: list[int]) -> _CountedText:
        counted = super().__new__(cls, text)
        counted.reads = reads
        return counted

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        part = super().__getitem__(place)
        self.reads[0] += len(part)
        if self.reads[0] > MAX_READS:
            raise _TooManyReads
        if isinstance(place, slice):
            return _CountedText(part, self.reads)
        return part

    def __add__(self, other: str) -> str:
        return _CountedText(super().__add__(other), self.reads)


def mended_json(text: str) -> str | None:
    """The object or array that `text` is, as JSON: a comma too many, other quotes, a missing end,
    comments. None when it does not begin as JSON does, alone or as the one fenced block, and when
    the value would lack something that the reply says, or say more than it: nothing is made out of
    prose, filled in or left out. None also where the repair would take too long. Needs the package
    json-repair."""
    bare = text.strip()
    if not bare.startswith(("{", "[")):
        blocks: list[str] = _BLOCK.findall(bare) or [_OPEN_FENCE.sub("", bare)]
        bare = blocks[0].strip() if len(blocks) == 1 else ""
    if not bare.startswith(("{", "[")):
        return None
    try:
        try:
            _, end = _decode(bare)
        except json.JSONDecodeError:
            return _repaired(bare)
    except (ValueError, RecursionError, _TooManyReads):
        return None
    return bare[:end] if _is_only_marks(bare, end) else None


def _repaired(bare: str) -> str | None:
    """What the library reads, as JSON, if it is all that the reply says. Raises ValueError,
    RecursionError and _TooManyReads."""
    from json_repair import loads

    value = loads(_CountedText(bare, [0]), skip_json_loads=True, strict=True)
    if not value or not isinstance(value, dict if bare.startswith("{") else list):
        return None
    if not _is_all_of(_CountedText(bare, [0]), value):
        return None
    # escaped, so that the two halves of a character outside of 16 bits become one
    return json.dumps(value, allow_nan=False)


# Whether a mended value is what the reply says. The library leaves out what it cannot place (`5
# 000` is 5 to it), moves what it cannot nest, and guesses where a text ends. So the brackets, keys,
# texts, numbers and empty lists of the value are looked for in the reply, one after the other.
# Between two of them only other marks of JSON and comments may be.

_MARKS = frozenset(",:;\"'\u201c\u201d\\")
_CLOSING = frozenset("}]")
_QUOTES = frozenset("\"'\u201c\u201d")
_CURLY = frozenset("\u201c\u201d")
_COMMENT = re.compile(r"/\*.*?\*/|(?<=[\s{}\[\],\"'])(?://|#(?=\s))[^\n]*\n", re.DOTALL)
"""Without one that has no end, as a text without quotes may look like it: `#1` or `http://…`."""

_EMPTY = re.compile(r"\[\s*(?:\]|\Z)|\{\s*(?:\}|\Z)")
_SIGNS = {
    "{": re.compile(r"\{"),
    "}": re.compile(r"\}"),
    "[": re.compile(r"\[(?!\s*[,;])"),
    "]": re.compile(r"\]"),
    ",": re.compile(r"[,;](?!\s*[,;])"),
}
"""The signs of a value in a reply: no item of a list is missing after them."""

_NUMBER = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+|(?!\Z)))?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.\"'\u201c\u201d\\])"
)
_WORDS = {
    word: re.compile(rf"(?:{spellings})(?![\w\"'\u201c\u201d\\])", re.IGNORECASE)
    for word, spellings in ((True, "true"), (False, "false"), (None, "null|none"))
}
_NOT_VALUES = re.compile(r"[+-]?(?:nan|inf(?:inity)?)|undefined|nil|nat", re.IGNORECASE)
"""What programs write where there is no value. The library takes one without quotes for a text."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|([\"'\\/]))")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_ESCAPED = re.compile(r"\\.", re.DOTALL)


class _Sign(NamedTuple):
    """A bracket of a value, or what parts two items of a list."""

    char: str
    """`{`, `}`, `[`, `]` or `,`."""


def _is_all_of(reply: str, value: JSONValue) -> bool:
    """True if the reply says this value and nothing more. At its end brackets may be missing or too
    many. Raises _TooManyReads."""
    at = 0
    parts = _parts(value)
    for part in parts:
        end = _end_of_part(reply, at, part)
        if end is None:
            is_end = all(map(_closes, (part, *parts)))
            # after a comma more would come
            return is_end and "," not in reply[at:] and _is_only_marks(reply, at)
        at = end
    return _is_only_marks(reply, at)


def _closes(part: JSONValue | _Sign) -> bool:
    """True if this closes an object or a list."""
    return isinstance(part, _Sign) and part.char in _CLOSING


def _parts(value: JSONValue) -> Iterator[JSONValue | _Sign]:
    """Yields the brackets, keys, texts, numbers, words and empty lists and objects of a value, in
    their order."""
    if isinstance(value, dict) and value:
        yield _Sign("{")
        for key, inner in value.items():
            yield key
            yield from _parts(inner)
        yield _Sign("}")
    elif isinstance(value, list) and value:
        yield _Sign("[")
        for index, inner in enumerate(value):
            if index:
                yield _Sign(",")
            yield from _parts(inner)
        yield _Sign("]")
    else:
        yield value


def _end_of_part(reply: str, at: int, part: JSONValue | _Sign) -> int | None:
    """Returns the end of a part that comes next in the reply, or None if something else comes
    next."""
    start = at
    while True:
        if isinstance(part, _Sign):
            end = _end_of_sign(reply, at, part)
        else:
            end = _end_of_match(reply, at, part)
        if end is not None:
            return end
        after = _after_mark(reply, at)
        if after is None or (reply[at] in ",;" and part == _Sign(",")):
            if part == _Sign(",") and _is_parted(reply, start, at):
                return start
            return None
        at = after


def _end_of_sign(reply: str, at: int, sign: _Sign) -> int | None:
    """Returns the end of the sign that is at this place, or None if something else is there."""
    match = _SIGNS[sign.char].match(reply, at)
    return match.end() if match else None


def _is_parted(reply: str, end: int, begin: int) -> bool:
    """True if a bracket separates two items of a list: the first ends, or the second begins, with
    one."""
    return reply[end - 1 : end] in _CLOSING or reply[begin : begin + 1] in ("{", "[")


def _end_of_match(reply: str, at: int, leaf: JSONValue) -> int | None:
    """Returns the end of the key, text, number, word or empty list that begins at this place, or
    None if none does."""
    if isinstance(leaf, dict | list):
        empty = _EMPTY.match(reply, at)
        if empty and empty[0].startswith("{" if isinstance(leaf, dict) else "["):
            return empty.end()
        return None
    if isinstance(leaf, str):
        return _end_of_text(reply, at, leaf)
    if leaf is None or isinstance(leaf, bool):
        word = _WORDS[leaf].match(reply, at)
        return word.end() if word else None
    number = _NUMBER.match(reply, at)
    if number is None or _goes_on_with(reply, at):
        return None
    is_whole = number[0].lstrip("+-").isdigit()
    value = int(number[0]) if is_whole else float(number[0])
    return number.end() if value == leaf else None


def _goes_on_with(reply: str, at: int) -> bool:
    """True if only white space is between the digits that begin here and digits before: `1 200` is
    one number."""
    before = at - 1
    while before >= 0 and reply[before].isspace():
        before -= 1
    return 0 <= before < at and (reply[before].isdecimal() or reply[before] == ".")


def _end_of_text(reply: str, at: int, text: str) -> int | None:
    """Returns the end of a key or text that begins at this place, with its closing quote. None if
    another thing begins, where a quote is not closed, and where nobody knows whether one in the
    text ends it."""
    if not text:
        if reply[at : at + 1] in _QUOTES and reply[at + 1 : at + 2] in _QUOTES:
            return at + 2
        return None
    end = _end_of_characters(reply, at, text)
    if end is None:
        return None
    quote = reply[at - 1 : at]
    if quote not in _QUOTES:
        if end == len(reply) or _NOT_VALUES.fullmatch(text):
            return None
        return end
    is_closed = reply[end : end + 1] in _QUOTES
    if is_closed and _quotes_in_pairs(reply[at:end], quote):
        return end + 1
    return None


def _end_of_characters(reply: str, at: int, text: str) -> int | None:
    """Returns the end of the characters of a text that begin at this place, whatever their escapes.
    Quotes and backslashes among them that the library left out do not count."""
    if reply.startswith(text, at):
        return at + len(text)
    start = at
    for char in text:
        piece, end = _character(reply, at)
        while piece != char and at > start and (piece in _QUOTES or piece == "\\"):
            at = end
            piece, end = _character(reply, at)
        if piece != char:
            return None
        at = end
    return at


def _quotes_in_pairs(text: str, quote: str) -> bool:
    """True if the quotes in a text, of the kind around it, open and close in turn: `he said "hi"
    to me`. One that closes first, as in `x" or "y`, may be where the text ends."""
    plain = f" {_ESCAPED.sub('xx', text)} "
    same = "[\u201c\u201d]" if quote in _CURLY else quote
    is_open = False
    for match in re.finditer(same, plain):
        before = plain[match.start() - 1]
        after = plain[match.end()]
        if match[0] == "'" and before.isalpha() and after.isalpha():  # an apostrophe
            continue
        outside, inside = (after, before) if is_open else (before, after)
        if outside.isalnum() or inside.isspace():
            return False
        is_open = not is_open
    return not is_open


def _character(reply: str, at: int) -> tuple[str, int]:
    """Returns the character at a place, with its escape read, and the place of the next one; "" at
    the end."""
    escape = _ESCAPE.match(reply, at) if reply[at : at + 1] == "\\" else None
    if escape is None:
        return reply[at : at + 1], at + 1
    four, two, control, itself = escape.groups()
    code = four or two
    return chr(int(code, 16)) if code else _CONTROLS.get(control, itself), escape.end()


def _after_mark(reply: str, at: int) -> int | None:
    """Returns the place after a mark of JSON that is no bracket, white space or a comment, or None
    if something else or the end is there."""
    char = reply[at : at + 1]
    if char in _MARKS or char.isspace():
        return at + 1
    comment = _COMMENT.match(reply, at)
    return comment.end() if comment else None


def _is_only_marks(reply: str, at: int) -> bool:
    """True if no letter, digit, sign or opening bracket comes after this place, outside of
    comments."""
    while at < len(reply):
        after = at + 1 if reply[at] in _CLOSING else _after_mark(reply, at)
        if after is None:
            return False
        at = after
    return True
