"""Two texts compared word by word, for people."""

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
_MOST = 5_000
"""Words of a text that are compared; of longer ones lines are, as the time grows with the square of their number."""

_AROUND = 60
"""Characters of what is the same that are shown on each side of what differs."""


_MAX_STEPS = 20_000_000
"""Pairs of equal words that one comparison may look at, which takes about a second. Texts in which a few words repeat
take the cube of their length."""


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
    """What two texts share and what differs, in order: the first is all but what is `added`, the second `removed`. Long
    texts are compared by lines, and those that would take too long only at their beginnings and ends."""
    old, new = _WORD.findall(before), _WORD.findall(now)
    if max(len(old), len(new)) <= _MOST:
        with suppress(_TooManySteps):
            return _compared(old, new)
    old, new = split_lines(before, ends=True), split_lines(now, ends=True)
    with suppress(_TooManySteps):
        return _compared(old, new)
    first = _shared(old, new)
    last = _shared(old[first:][::-1], new[first:][::-1])
    spans: list[Span] = [
        ("same", "".join(old[:first])),
        ("removed", "".join(old[first : len(old) - last])),
        ("added", "".join(new[first : len(new) - last])),
        ("same", "".join(old[len(old) - last :])),
    ]
    return [(how, text) for how, text in spans if text]


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """How many pieces two texts begin with alike."""
    return sum(1 for _ in takewhile(bool, map(eq, old, new)))


def _compared(old: Sequence[str], new: Sequence[str]) -> list[Span]:
    """Raises _TooManySteps."""
    found: list[Span] = []
    for how, start, end, first, last in _Comparison(old, new).get_opcodes():
        removed, added = "".join(old[start:end]), "".join(new[first:last])
        if how == "equal":
            found.append(("same", removed))
        else:
            found += [("removed", removed)] if removed else []
            found += [("added", added)] if added else []
    return found


# A difference says exactly what differs: in it every character that people would not see is an escape, those of emoji
# and of joining scripts, too, and a part that is white space alone says which.


def as_text(spans: Iterable[Span], *, width: int | None = None) -> str:
    """`[-old-] {+new+}`, in at most `width` cells; of long parts that are the same the middle is left out."""
    text = _written(spans, plain, ("[-{}-]", "{{+{}+}}"))
    return text if width is None else cropped(" ".join(text.split()), width)


def as_markdown(spans: Iterable[Span]) -> str:
    """`~~old~~ **new**` on the lines that they have; what a forge would read or link in the texts is escaped."""
    return _written(spans, escaped, ("~~{}~~", "**{}**"))


def as_html(spans: Iterable[Span]) -> str:
    """`<del>old</del> <ins>new</ins>`, everything else escaped."""
    return _written(
        spans, lambda text: html.escape(plain(text)), ("<del>{}</del>", "<ins>{}</ins>")
    )


def value_diff(
    before: Any,
    now: Any,
    differing: Callable[[list[Span]], str],
    shown: Callable[[str], str],
    most: int | None = None,
) -> str:
    """Two JSON values: of texts with several words, and of long lists and objects, the words that differ; others as
    `before → now`. `most`: of each so many characters only, from shortly before the first that differs; it is said how
    many of `now`, or of `before` where that has more, come after them."""
    texts = [
        one if isinstance(one, str) else "none" if one is None else json.dumps(one)
        for one in (before, now)
    ]
    more = ""
    if most is not None and max(map(len, texts)) > most:
        start = max(0, sum(1 for _ in takewhile(bool, map(eq, *texts))) - _AROUND)
        left = max(len(one) - start - most for one in texts)
        more = f" ({left:,} more characters are not compared here)" if left > 0 else ""
        texts = [one[start : start + most] for one in texts]
    wordy = isinstance(before, str) and isinstance(now, str) and " " in before + now
    if wordy or (
        isinstance(now, list | dict) and before is not None and max(map(len, texts)) > 100
    ):
        return differing(word_diff(*texts)) + shown(more)
    return shown(
        " → ".join(cropped(exposed(one), _SHORT) for one in _from_difference(texts)) + more
    )


_SHORT = 100
"""Cells of a value that stands before or after an arrow."""


def _from_difference(texts: list[str]) -> list[str]:
    """The texts, of which a long one begins shortly before the first character that differs."""
    if max(map(len, texts)) <= _SHORT:
        return texts
    same = sum(1 for _ in takewhile(bool, map(eq, *texts)))
    start = max(0, same - _AROUND)
    return [f"…{one[start:]}" for one in texts] if start else texts


def _written(spans: Iterable[Span], shown: Callable[[str], str], marks: tuple[str, str]) -> str:
    parts, found = list(spans), ""
    for place, (how, text) in enumerate(parts):
        if how == "same":
            start, end = (
                text[:_AROUND] if place else "",
                text[-_AROUND:] if place + 1 < len(parts) else "",
            )
            cut = f"{shown(start)} … {shown(end)}".strip()
            found += shown(text) if len(text) <= 2 * _AROUND else cut
            continue
        mark = marks[how == "added"]
        if not text.strip(" \t\n"):
            blanks = text.replace(" ", r"\x20").replace("\t", r"\t").replace("\n", r"\n")
            found += mark.format(shown(blanks)) + "\n" * (how == "added" and "\n" in text)
            continue
        for part in re.split(
            r"(\s*\n\s*|^\s+|\s+$)", exposed(text)
        ):  # a mark holds no line end, and touches the word
            found += mark.format(shown(part)) if part.strip() else part
    return found
