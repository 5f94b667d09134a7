"""The white space of a YAML file made regular, for `agac fmt`: indentation, single spaces after `-` and `key:`, blank
lines, the ends of lines. Nothing else is written: words, quotes, comments, anchors and the order of keys stay."""

from __future__ import annotations

import re
from typing import Any

import yaml

from agac.core.errors import AgacError, SpecError
from agac.spec.yaml import LOADER, parse_yaml

_CARD = re.compile(r"(?ms)\A(\s*?^---[ \t]*\n)(.*?)(^---[ \t]*$.*)")
_NO_WIDTH = ("<stream start>", "<stream end>", "<block mapping start>", "<block sequence start>", "<block end>")


def formatted(text: str, shown: str, *, card: bool = False) -> str:
    """A file with regular white space, of a card in its front matter alone; formatted text stays as it is. Every level
    is indented by two spaces. Raises SpecError for what cannot be read."""
    head, inner, rest = "", text, ""
    if card:
        if (match := _CARD.match(text)) is None:
            return text
        head, inner, rest = match.groups()
    document = parse_yaml(inner, shown, first_line=1 + head.count("\n"))
    if document.problems:
        raise SpecError(document.problems)
    regular = _Layout(inner).written()
    if parse_yaml(regular, shown).data != document.data:
        what = f"{shown}: other white space would change what the file says; it stays as it is"
        raise AgacError(what, remedy="This is a bug of agac: please report it with the file.")
    return head + regular + rest


class _Layout:
    """What the tokens say of the lines. `new` has the columns that lines get, and `old` those that lines with a key or
    an item have; lines `inside` a text begin within it. A mapping or list that is written as lines is a block: the
    column of its keys or dashes, and the one that they get. What else is in a block moves as far as it does."""

    def __init__(self, text: str) -> None:
        self.lines, self.ended = text.removesuffix("\n").split("\n"), text.endswith("\n")
        self.new: dict[int, int] = {}
        self.old: dict[int, int] = {}
        self.inside: set[int] = set()
        self.blocks: dict[int, list[tuple[int, int]]] = {}  # those that are open after a line
        self._gaps: dict[int, list[tuple[int, int, str]]] = {}
        self._open: list[tuple[int, int]] = []
        self._brackets, self._last = 0, yaml.StreamEndToken(None, yaml.Mark("", 0, -1, 0, None, 0))
        for token in yaml.scan(text, Loader=LOADER):
            self._take(token)

    def written(self) -> str:
        """The lines as they should be."""
        written: list[str] = []
        for number, line in enumerate(self.lines):
            if number not in self.inside and not line.strip():
                if written and written[-1]:  # one blank line, and none at the beginning
                    written.append("")
                continue
            for start, end, between in reversed(self._gaps.get(number, [])):
                line = line[:start] + between + line[end:]
            line = " " * self._column(number) + line.lstrip(" ")
            written.append(line if {number, number + 1} & self.inside else line.rstrip(" \t"))
        in_text = len(self.lines) - 1 in self.inside  # its last lines, and the end of its line, may be a part of it
        while written and not written[-1] and not in_text:
            written.pop()
        return "\n".join(written) + ("\n" if written and (self.ended or not in_text) else "")

    def _column(self, number: int) -> int:
        """The column of a line. A comment goes with what follows it, or with the block it ends, if indented more."""
        if number in self.new:
            return self.new[number]
        column = _indent(self.lines[number])
        below = next((n for n in range(number, len(self.lines)) if n in self.new), -1)
        if below in self.new and column <= self.old.get(below, column):
            return self.new[below]
        blocks = next((self.blocks[n] for n in range(number, -1, -1) if n in self.blocks), [])
        return max([self.new.get(below, 0), *(new for old, new in blocks if old <= column)])

    def _take(self, token: Any) -> None:
        start, end = token.start_mark, token.end_mark
        if token.id in ("<block mapping start>", "<block sequence start>"):
            self._open.append((start.column, self._open[-1][1] + 2 if self._open else 0))
        elif token.id == "<block end>":
            self._open.pop()
        if token.id in _NO_WIDTH:
            return
        old, new = self._open[-1] if self._open else (0, 0)
        if start.line not in self.new:
            is_entry = token.id in "?:-" and not self._brackets  # a key, what follows it, or an item
            self.new[start.line] = new if is_entry else max(start.column + new - old, new)
            self.old |= {start.line: start.column} if is_entry else {}
        if start.index != end.index:  # the scanner notes a key ahead of its text
            after, beside = self._last, not self._brackets and self._last.end_mark.line == start.line
            if after.id in "?:-" and beside and after.end_mark.column < start.column:
                self._gaps.setdefault(start.line, []).append((after.end_mark.column, start.column, " "))
            self._last = token
        self._brackets += (token.id in "[{") - (token.id in "]}")
        below = range(start.line + 1, end.line + (end.column > 0)) if token.id == "<scalar>" else range(0)
        if token.id == "<scalar>" and token.style in ("|", ">"):
            header = self.lines[start.line][start.column :][:3]
            told = re.search("[1-9]", header)
            lines = [_indent(self.lines[number]) for number in below if self.lines[number].strip()]
            base = old + int(told[0]) if told else min(lines, default=0)
            while below and "+" not in header and not (self.lines[below[-1]].strip() or self.lines[below[-1]][base:]):
                below = below[:-1]  # empty lines at its end do not count
        for number in below:
            self.inside.add(number)
            self.new[number] = max(_indent(self.lines[number]) + new - old, 0) if self.lines[number] else 0
        self.blocks[start.line] = self.blocks[end.line] = list(self._open)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
