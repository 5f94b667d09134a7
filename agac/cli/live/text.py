"""Text as a terminal takes it: so many cells wide, in characters that it has, and without any that command it."""

from __future__ import annotations

import re
from unicodedata import combining, east_asian_width

_COMMANDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that change the direction of writing."""

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def is_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding has every character."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def harmless(text: str) -> str:
    """The text with characters that would command the terminal escaped; colours stay."""
    if not _COMMANDING.search(text):
        return text
    pieces = _COLOUR.split(text)
    pieces[::2] = [_COMMANDING.sub(_escaped, piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_one_line(text: str, encoding: str | None) -> str:
    """The text on one line, with nothing in it that the stream or the terminal would stumble over."""
    line = _COMMANDING.sub(_escaped, text.replace("\t", "\\t").replace("\n", "\\n"))
    if is_unicode(encoding):
        return line.encode("utf-8", "backslashreplace").decode("utf-8")
    try:
        return line.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    except LookupError:
        return ascii(line)[1:-1]


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def cropped(text: str, most: int, mark: str = "…") -> str:
    """The text in at most so many cells; what is missing is marked."""
    if cells(text) <= most:
        return text
    kept, used = [], len(mark)
    for sign in text:
        used += cells(sign)
        if used > most:
            break
        kept.append(sign)
    return ("".join(kept) + mark)[:most] if most > 0 else ""


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text with blanks up to so many cells, after it or, for the `right` side of a column, before it."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks
