"""Compares two texts word by word, for people."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import Match, SequenceMatcher
from itertools import takewhile
from operator import eq
from typing import Any, Literal

from agac.core.text import cropped, escaped, exposed, plain, split_lines

Span = tuple[Literal["same", "removed", "added"], str]

_WORD = re.compile(r"\w+|\s+|[^\w\s]")

_MAX_WORDS = 5_000
"""Words of a text that are compared. Longer texts are compared by lines, as the time grows with the
square of the number of pieces."""

_AROUND = 60
"""Characters of equal text that are shown on each side of a difference."""

_MAX_STEPS = 20_000_000
"""Pairs of equal words that one comparison may look at, which takes about a second. Texts in which
a few words repeat take the cube of their length."""

_MAX_CELLS = 100
"""Cells of a value that are shown before or after an arrow."""


class _TooManySteps(Exception):
    """A comparison was given up."""


class _Comparison(SequenceMatcher[str]):
    """Compares two lists of words, and counts the pairs that it looks at."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._left = _MAX_STEPS
        self._old = old
        self._times = Counter(new)
        super().__init__(None, old, new, autojunk=False)

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        self._left -= sum(self._times[word] for word in self._old[alo:ahi])
        if self._left < 0:
            raise _TooManySteps
        return super().find_longest_match(alo, ahi, blo, bhi)


def word_diff(before: str, now: str) -> list[Span]:
    """Splits two texts into what they share and what differs, in order.

    All spans but the added ones make the first text, all but the removed ones the second. Long
    texts are compared by lines. Those that would take too long are compared only at their
    beginnings and ends."""
    old_words = _WORD.findall(before)
    new_words = _WORD.findall(now)
    if max(len(old_words), len(new_words)) <= _MAX_WORDS:
        with suppress(_TooManySteps):
            return _compared(old_words, new_words)
    old_lines = split_lines(before, ends=True)
    new_lines = split_lines(now, ends=True)
    with suppress(_TooManySteps):
        return _compared(old_lines, new_lines)
    return _compared_at_ends(old_lines, new_lines)


def _compared_at_ends(old: Sequence[str], new: Sequence[str]) -> list[Span]:
    """Compares two texts only at their beginnings and ends: all between them differs."""
    first = _shared(old, new)
    last = _shared(old[first:][::-1], new[first:][::-1])
    spans: list[Span] = [
        ("same", "".join(old[:first])),
        ("removed", "".join(old[first : len(old) - last])),
        ("added", "".join(new[first : len(new) - last])),
        ("same", "".join(old[len(old) - last :])),
    ]
    return [(change, text) for change, text in spans if text]


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """Counts the pieces (words, lines or characters) that two texts have in common at the start."""
    return sum(1 for _ in takewhile(bool, map(eq, old, new)))


def _compared(old: Sequence[str], new: Sequence[str]) -> list[Span]:
    """Compares two lists of pieces. Raises _TooManySteps."""
    spans: list[Span] = []
    for change, old_start, old_end, new_start, new_end in _Comparison(old, new).get_opcodes():
        removed = "".join(old[old_start:old_end])
        added = "".join(new[new_start:new_end])
        if change == "equal":
            spans.append(("same", removed))
            continue
        if removed:
            spans.append(("removed", removed))
        if added:
            spans.append(("added", added))
    return spans


# A difference says exactly what differs: in it every character that people would not see is an
# escape, even those of emoji and of joining scripts, and a part that is only white space says
# which.


def as_text(spans: Iterable[Span], *, width: int | None = None) -> str:
    """Writes `[-old-] {+new+}`, in at most `width` cells; long equal parts lose their middle."""
    text = _written(spans, plain, ("[-{}-]", "{{+{}+}}"))
    return text if width is None else cropped(" ".join(text.split()), width)


def as_markdown(spans: Iterable[Span]) -> str:
    """Writes `~~old~~ **new**` on the lines that they have.

    What a forge would read or link in the texts is escaped."""
    return _written(spans, escaped, ("~~{}~~", "**{}**"))


def as_html(spans: Iterable[Span]) -> str:
    """Writes `<del>old</del> <ins>new</ins>`, with everything else escaped."""

    def shown(text: str) -> str:
        return html.escape(plain(text))

    return _written(spans, shown, ("<del>{}</del>", "<ins>{}</ins>"))


def value_diff(
    before: Any,
    now: Any,
    differing: Callable[[list[Span]], str],
    shown: Callable[[str], str],
    most: int | None = None,
) -> str:
    """Shows how two JSON values differ.

    Texts with several words, and long lists and objects, are compared word by word and written by
    `differing`; other values are `before → now`, written by `shown`. `most`: only so many
    characters of each are compared, from shortly before the first that differs; the number of
    characters after them is added, of the value that has more."""
    old = _value_text(before)
    new = _value_text(now)
    note = ""
    if most is not None and max(len(old), len(new)) > most:
        start = max(0, _shared(old, new) - _AROUND)
        end = start + most
        left = max(len(old), len(new)) - end
        if left > 0:
            note = f" ({left:,} more characters are not compared here)"
        old = old[start:end]
        new = new[start:end]
    if _has_words(before, now) or _is_long_structure(before, now, old, new):
        return differing(word_diff(old, new)) + shown(note)
    ends = [cropped(exposed(text), _MAX_CELLS) for text in _from_difference(old, new)]
    return shown(" → ".join(ends) + note)


def _value_text(value: Any) -> str:
    """Writes a JSON value as it is compared."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value)


def _has_words(before: Any, now: Any) -> bool:
    """True if both values are texts and one of them has several words."""
    return isinstance(before, str) and isinstance(now, str) and " " in before + now


def _is_long_structure(before: Any, now: Any, old: str, new: str) -> bool:
    """True if a list or an object replaced another value, and the text of one of them is long."""
    if before is None or not isinstance(now, list | dict):
        return False
    return max(len(old), len(new)) > _MAX_CELLS


def _from_difference(old: str, new: str) -> list[str]:
    """Cuts two texts, if one is long, so that they begin shortly before their first difference."""
    if max(len(old), len(new)) <= _MAX_CELLS:
        return [old, new]
    start = max(0, _shared(old, new) - _AROUND)
    if start == 0:
        return [old, new]
    return [f"…{text[start:]}" for text in (old, new)]


def _written(spans: Iterable[Span], shown: Callable[[str], str], marks: tuple[str, str]) -> str:
    """Writes spans with the `marks` of removed and of added text."""
    parts = list(spans)
    written = ""
    for index, (change, text) in enumerate(parts):
        if change == "same":
            is_last = index + 1 == len(parts)
            written += _same_text(text, shown, is_first=index == 0, is_last=is_last)
        else:
            written += _marked(text, shown, marks[change == "added"], is_added=change == "added")
    return written


def _same_text(text: str, shown: Callable[[str], str], *, is_first: bool, is_last: bool) -> str:
    """Writes equal text; of a long one only what is next to a difference."""
    if len(text) <= 2 * _AROUND:
        return shown(text)
    start = "" if is_first else text[:_AROUND]
    end = "" if is_last else text[-_AROUND:]
    return f"{shown(start)} … {shown(end)}".strip()


def _marked(text: str, shown: Callable[[str], str], mark: str, *, is_added: bool) -> str:
    """Writes removed or added text in its mark. White space alone is written as escapes."""
    if not text.strip(" \t\n"):
        blanks = text.replace(" ", r"\x20").replace("\t", r"\t").replace("\n", r"\n")
        line_end = "\n" if is_added and "\n" in text else ""
        return mark.format(shown(blanks)) + line_end
    # a mark holds no line end, and touches the word
    pieces = re.split(r"(\s*\n\s*|^\s+|\s+$)", exposed(text))
    return "".join(mark.format(shown(piece)) if piece.strip() else piece for piece in pieces)
