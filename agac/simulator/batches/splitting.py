"""The array of a large JSON body, one element after the other: no more of it in memory than the longest needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

PIECE = 2**20
BLANK = " \t\r\n"
NEAR_END = 16
"""An error so close to the end of what was read so far may be no error, once more is read."""


class Splitter:
    """Reads a JSON object from a text file, element by element where one of its values is an array."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder()

    def elements(self, name: str) -> Iterator[tuple[str, Any]]:
        """The elements of the array `name` of the object, as written and as read; what else the object says is passed
        over. Raises ValueError for what is no such object."""
        self._take("{")
        if self._peek() != "}":
            while True:
                key, _ = self._value()
                self._take(":")
                if key == name:
                    yield from self._array()
                else:
                    self._value()
                if self._peek() != ",":
                    break
                self._take(",")
        self._take("}")
        if self._peek():
            raise ValueError("there is more after the object")

    def _array(self) -> Iterator[tuple[str, Any]]:
        self._take("[")
        if self._peek() != "]":
            while True:
                value, written = self._value()
                yield written, value
                if self._peek() != ",":
                    break
                self._take(",")
        self._take("]")

    def _value(self) -> tuple[Any, str]:
        """The next value, and how it is written."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos > len(self._text) - NEAR_END
                if self._ended or not unfinished:
                    raise
            else:
                if end < len(self._text) or self._ended:
                    break
            self._more()
        written, self._at = self._text[self._at : end], end
        return value, written

    def _peek(self) -> str:
        """The next character that is not blank, empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in BLANK:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more()

    def _take(self, expected: str) -> None:
        found = self._peek()
        if found != expected:
            raise ValueError(f"expected {expected!r}, not {found!r}" if found else f"expected {expected!r} at its end")
        self._at += 1

    def _more(self) -> None:
        """Reads on, twice as much as is held, so that long elements are not read again too often."""
        rest = self._text[self._at :]
        piece = self._file.read(max(PIECE, len(rest)))
        self._ended = not piece
        self._text, self._at = rest + piece, 0
