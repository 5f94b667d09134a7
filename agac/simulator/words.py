"""What makes replies look as if somebody had read the prompt: its words, and whether they sound glad or cross."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


READ_CHARACTERS = 4000
"""How much of the user's text is looked at; a longer one costs no more."""

WORD = re.compile(r"[^\W\d_][\w'’-]{0,23}")
FALLBACK = ("a", "simulated", "answer", "made", "of", "plain", "words", "that", "cost", "nothing")
GLAD = names(
    "good great excellent love loved loves perfect amazing happy best nice fast easy recommend wonderful fantastic "
    "awesome works pleased satisfied superb brilliant comfortable beautiful reliable thanks thank glad solid "
    "delightful quick friendly helpful impressed enjoy enjoyed"
)
CROSS = names(
    "bad terrible awful hate hated broken broke worst poor slow disappointed disappointing refund return returned "
    "waste cheap defective useless unhappy angry problem problems failed fails faulty late missing never not "
    "doesn't don't won't can't stopped horrible annoying crash crashes leaks rude damaged wrong unusable"
)
SHADES = {
    1: ("positive", "pos", "good", "happy", "glad", "satisfied", "praise", "promoter", "favorable", "favourable"),
    -1: ("negative", "neg", "bad", "unhappy", "angry", "dissatisfied", "complaint", "detractor", "unfavorable"),
    0: ("neutral", "mixed", "okay", "ok", "average", "unclear", "passive"),
}
"""Names under which an enum offers a mood."""


@dataclass(slots=True)
class Draft:
    """One reply being written: its source of chance, the text it answers, and how much may still be written.

    `left` bounds the values in a reply, so that recursive schemas end.
    """

    random: Random
    text: str
    left: int = 300
    _words: list[str] | None = field(default=None, init=False)
    _mood: int | None = field(default=None, init=False)

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        return int(self.random.random() * count)

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Any of the choices."""
        return choices[self.below(len(choices))]

    @property
    def words(self) -> Sequence[str]:
        """The words of the text, some of our own when it has none."""
        if self._words is None:
            self._words = WORD.findall(self.text[:READ_CHARACTERS])
        return self._words or FALLBACK

    @property
    def mood(self) -> int:
        """1 for a glad text, -1 for a cross one, 0 for neither."""
        if self._mood is None:
            lowered = "\n".join(self.words).lower().replace("’", "'").split("\n")
            score = sum(map(GLAD.__contains__, lowered)) - sum(map(CROSS.__contains__, lowered))
            self._mood = (score > 0) - (score < 0)
        return self._mood

    def phrase(self, least: int, most: int) -> str:
        """So many words of the text in a row."""
        words = self.words
        count = min(len(words), least + self.below(most - least + 1))
        start = self.below(len(words) - count + 1)
        return " ".join(words[start : start + count])

    def sentence(self) -> str:
        """A phrase with a capital and a full stop."""
        phrase = self.phrase(5, 12)
        return f"{phrase[:1].upper()}{phrase[1:]}."

    def choose(self, values: Sequence[Any]) -> Any:
        """The value that fits the text: its mood where moods are offered, else one that the text names, else any."""
        names = [value.lower() if isinstance(value, str) else None for value in values]
        shade = next((i for i, name in enumerate(names) if name in SHADES[self.mood]), None)
        if shade is not None and sum(name in (*SHADES[1], *SHADES[-1]) for name in names) > 1:
            return values[shade]
        lowered = self.text[:READ_CHARACTERS].lower()
        named = [i for i, name in enumerate(names) if name and re.search(rf"\b{re.escape(name)}\b", lowered)]
        if 0 < len(named) < len(values):
            return values[named[0]]
        return self.one_of(values)
