"""JSON values made of a prompt's words: texts and numbers drawn from a seed."""

from __future__ import annotations

import importlib
import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from random import Random
from typing import Any
from uuid import UUID

from agac.simulator.kinds import JsonObject


class SchemaError(ValueError):
    """A schema that no reply can be made for: wrong in itself, or beyond the simulator."""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_CHARACTERS = 4000  # how much of the user's text is looked at; a longer one costs no more
WORD = re.compile(r"[^\W\d_][\w'’-]{0,23}")
FALLBACK = ("a", "simulated", "answer", "made", "of", "plain", "words", "that", "cost", "nothing")
GLAD = word_set(
    "good great excellent love loved loves perfect amazing happy best nice fast easy recommend "
    "wonderful fantastic awesome works pleased satisfied superb brilliant comfortable beautiful "
    "reliable thanks thank glad solid delightful quick friendly helpful impressed enjoy enjoyed"
)
CROSS = word_set(
    "bad terrible awful hate hated broken broke worst poor slow disappointed disappointing refund "
    "return returned waste cheap defective useless unhappy angry problem problems failed fails "
    "faulty late missing never not doesn't don't won't can't stopped horrible annoying crash "
    "crashes leaks rude damaged wrong unusable"
)
SHADES = {
    1: word_set("positive pos good happy glad satisfied praise promoter favorable favourable"),
    -1: word_set("negative neg bad unhappy angry dissatisfied complaint detractor unfavorable"),
    0: word_set("neutral mixed okay ok average unclear passive"),
}


@dataclass
class Draft:
    """One reply being written, for a text."""

    random: Random
    text: str
    left: int = 300
    """how many more values it may hold, so that recursive schemas end"""

    def below(self, count: int) -> int:
        return int(self.random.random() * count)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    @cached_property
    def words(self) -> Sequence[str]:
        """The words of the text, some of our own when it has none."""
        return WORD.findall(self.text[:READ_CHARACTERS]) or FALLBACK

    @cached_property
    def mood(self) -> int:
        """1 for a glad text, -1 for a cross one, 0 for neither."""
        lowered = [word.lower().replace("’", "'") for word in self.words]
        score = sum(word in GLAD for word in lowered) - sum(word in CROSS for word in lowered)
        return (score > 0) - (score < 0)

    def phrase(self, min_words: int, max_words: int) -> str:
        """Returns so many words of the text in a row."""
        words = self.words
        count = min(len(words), min_words + self.below(max_words - min_words + 1))
        start = self.below(len(words) - count + 1)
        return " ".join(words[start : start + count])

    def sentence(self) -> str:
        phrase = self.phrase(5, 12)
        return f"{phrase[:1].upper()}{phrase[1:]}."

    def choose(self, values: Sequence[Any]) -> Any:
        """Returns the value that fits the text.

        That is its mood where moods are offered, else one that the text names, else any.
        """
        names = [value.lower() if isinstance(value, str) else "" for value in values]
        moods = [name for name in names if name in SHADES[1] | SHADES[-1]]
        if len(moods) > 1:
            for name, value in zip(names, values, strict=True):
                if name in SHADES[self.mood]:
                    return value
        lowered = self.text[:READ_CHARACTERS].lower()
        named = [
            value
            for name, value in zip(names, values, strict=True)
            if name and re.search(rf"\b{re.escape(name)}\b", lowered)
        ]
        if 0 < len(named) < len(values):
            return named[0]
        return self.one_of(values)


SHORT_NAMES = re.compile(
    r"(name|title|label|tag|topic|keyword|categor|product|city|country|type|key|code)", re.I
)
SHARE_NAMES = re.compile(r"confidence|probability|share|ratio|certainty", re.I)
RATING_NAMES = re.compile(r"rating|stars|score|satisfaction", re.I)
RATINGS = {1: 0.8, 0: 0.4, -1: 0.0}
"""The lower end of a rating within its range, by the mood."""

SPAN = 100  # how far from its only bound a number is taken
MULTIPLE_TRIES = 200


NUMERIC = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")


class NumberRange:
    """The numbers within bounds, that are multiples of a step, if there is one."""

    def __init__(self, schema: JsonObject, *, whole: bool) -> None:
        bounds = {key: Fraction(repr(schema[key])) for key in NUMERIC if key in schema}
        lows = [bounds[key] for key in NUMERIC[:2] if key in bounds]
        highs = [bounds[key] for key in NUMERIC[2:4] if key in bounds]
        self.low = max(lows, default=None)
        self.high = min(highs, default=None)
        self.excludes_low = bool(lows) and self.low == bounds.get("exclusiveMinimum")
        self.excludes_high = bool(highs) and self.high == bounds.get("exclusiveMaximum")
        self.grid = bounds.get("multipleOf")
        """the step, where there is one; integers have one"""
        if whole:
            self.grid = Fraction(1 if self.grid is None else self.grid.numerator)
        self.start, self.end = self._ends()

    def _ends(self) -> tuple[Fraction, Fraction]:
        """Returns from where to where numbers are taken."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        known = self.low if self.low is not None else self.high or Fraction(0)
        # at 1e300, 100 more is the same
        reach = max(Fraction(SPAN), (self.grid or Fraction(1)) * 4, abs(known) / 10**6)
        if self.high is None:
            return known, known + reach
        return known - reach, known

    def _multiples(self, grid: Fraction) -> tuple[int, int]:
        """Returns how many times the step the first number is, and how many numbers there are."""
        first = math.ceil(self.start / grid)
        last = math.floor(self.end / grid)
        first += self.excludes_low and first * grid == self.start
        last -= self.excludes_high and last * grid == self.end
        return first, max(0, last - first + 1)

    @property
    def is_empty(self) -> bool:
        if self.grid is not None:
            return self._multiples(self.grid)[1] == 0
        if self.start == self.end:
            return self.excludes_low or self.excludes_high
        return self.start > self.end

    def draw(self, draft: Draft, name: str) -> int | float:
        """Returns a number for a property."""
        if self.grid is not None:
            return self._multiple(self.grid, draft, name)
        share = self._share(draft, name)
        if self.low is None and self.high is None and SHARE_NAMES.search(name):
            return round(share, 2)
        exact = self.start + (self.end - self.start) * Fraction(share)
        nearest = float(exact)
        candidates = [float(round(exact, digits)) for digits in (2, 6, 12)]  # of few digits
        candidates += [nearest, math.nextafter(nearest, math.inf)]
        candidates += [math.nextafter(nearest, -math.inf)]
        return next(filter(self._holds, candidates), nearest)

    def _share(self, draft: Draft, name: str) -> float:
        """Returns how far from the lower end to the upper one: ratings follow the mood."""
        share = draft.random.random()
        if self.low is not None and self.high is not None and RATING_NAMES.search(name):
            return RATINGS[draft.mood] + share * 0.199
        return share

    def _holds(self, value: float) -> bool:
        """True if the number, as it is written, is within the bounds."""
        exact = Fraction(value)
        if self.low is not None and (exact < self.low or (exact == self.low and self.excludes_low)):
            return False
        if self.high is None or exact < self.high:
            return True
        return exact == self.high and not self.excludes_high

    def _multiple(self, grid: Fraction, draft: Draft, name: str) -> int | float:
        first, total = self._multiples(grid)
        drawn = min(int(self._share(draft, name) * total), total - 1)
        for index in range(drawn, drawn + min(total, MULTIPLE_TRIES)):
            count = first + index % total
            exact = grid * count
            value = int(exact) if exact.denominator == 1 else float(exact)
            # it survives being divided by the step again
            if grid.denominator == 1 or value / float(grid) == count:
                return value
        return float(grid * (first + drawn))


def text_of(draft: Draft, name: str, min_length: int, max_length: float) -> str:
    """Returns a text of the prompt's words, of `min_length` to `max_length` characters."""
    is_short = name and SHORT_NAMES.search(name)
    text = draft.phrase(1, 3) if is_short else draft.sentence()
    while len(text) < min_length:
        text = f"{text} {draft.sentence()}"
    if len(text) <= max_length:
        return text
    cut = text[: int(max_length)]
    trimmed = cut.rstrip()
    return trimmed if len(trimmed) >= min_length else cut


def ascii_word(draft: Draft) -> str:
    word = draft.one_of(draft.words).lower()
    return "".join(filter(lambda letter: letter.isascii() and letter.isalnum(), word)) or "answer"


def day(draft: Draft) -> str:
    """Returns a date that exists in every year."""
    return f"{2020 + draft.below(6)}-{1 + draft.below(12):02}-{1 + draft.below(28):02}"


def clock(draft: Draft) -> str:
    return f"{draft.below(24):02}:{draft.below(60):02}:{draft.below(60):02}Z"


FORMATS: dict[str, Callable[[Draft], str]] = {
    "date": day,
    "time": clock,
    "date-time": lambda draft: f"{day(draft)}T{clock(draft)}",
    "duration": lambda draft: f"P{1 + draft.below(30)}D",
    "email": lambda draft: f"{ascii_word(draft)}@example.com",
    "hostname": lambda draft: f"{ascii_word(draft)}.example.com",
    "ipv4": lambda draft: f"192.0.2.{1 + draft.below(254)}",
    "ipv6": lambda draft: f"2001:db8::{1 + draft.below(9999)}",
    "uri": lambda draft: f"https://example.com/{ascii_word(draft)}",
    "uuid": lambda draft: str(UUID(int=draft.random.getrandbits(128), version=4)),
}
"""The maker of texts of each format; other formats are plain text."""

PATTERN_TRIES = 60
MORE_REPEATS = 4  # how often something without an upper bound is repeated beyond its lower one

CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_WORD": string.ascii_lowercase + string.digits,
    "CATEGORY_NOT_WORD": " -.,",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_lowercase,
}
PRINTABLE = string.ascii_letters + string.digits + " -_.,:/"
MAX_RANGE = 512


class NoMatch(ValueError):
    """No text was found that the pattern and the lengths both allow."""


class TextPattern:
    """The texts that a regular expression is found in."""

    def __init__(self, pattern: str) -> None:
        parser: Any = importlib.import_module("re._parser")  # the tree is nowhere public
        try:
            self.compiled = re.compile(pattern)
            self.tree = parser.parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            problem = f"pattern {pattern!r} is no regular expression: {error}"
            raise SchemaError(problem) from error

    def text(self, draft: Draft, name: str, min_length: int, max_length: float) -> str:
        """Returns a text of a length that the pattern is found in; raises NoMatch."""
        for attempt in range(PATTERN_TRIES):
            more_repeats = MORE_REPEATS + attempt * max(1, min_length // 8)
            text = pattern_text(self.tree, draft, more_repeats, {})
            padded = text + "x" * (min_length - len(text))
            if self.compiled.search(padded):
                text = padded
            if min_length <= len(text) <= max_length and self.compiled.search(text):
                return text
        raise NoMatch


def pattern_text(
    tree: Iterable[tuple[Any, Any]],
    draft: Draft,
    more_repeats: int,
    groups: dict[int | None, str],
) -> str:
    """Returns a text along a pattern's syntax tree.

    Its parts have the names that the standard library gives them. Parts that take no room
    (anchors, look-around) give none and are checked at the end. `groups` are kept for references
    back.
    """

    def text_along(part: Any) -> str:
        return pattern_text(part, draft, more_repeats, groups)

    text = ""
    for operation, argument in tree:
        match str(operation):
            case "LITERAL":
                text += chr(argument)
            case "NOT_LITERAL" | "ANY" | "IN":
                text += draft.one_of(alphabet(str(operation), argument))
            case "BRANCH":
                text += text_along(draft.one_of(argument[1]))
            case "SUBPATTERN":
                groups[argument[0]] = text_along(argument[-1])
                text += groups[argument[0]]
            case "ATOMIC_GROUP":
                text += text_along(argument)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, part = argument
                times = int(low) + draft.below(min(int(high) - int(low), more_repeats) + 1)
                text += "".join(text_along(part) for _ in range(times))
            case "GROUPREF":
                text += groups.get(argument, "")
    return text


def alphabet(kind: str, value: Any) -> str:
    """Returns the characters that a part of a pattern stands for; a long range is cut."""
    match kind:
        case "LITERAL":
            return chr(value)
        case "RANGE":
            last = min(value[1], value[0] + MAX_RANGE - 1)
            return "".join(map(chr, range(value[0], last + 1)))
        case "NOT_LITERAL":
            return PRINTABLE.replace(chr(value), "")
        case "IN" if str(value[0][0]) == "NEGATE":
            excluded = alphabet("IN", value[1:])
            return "".join(letter for letter in PRINTABLE if letter not in excluded) or "\u00b7"
        case "IN":
            return "".join(alphabet(str(part), argument) for part, argument in value)
    return CATEGORIES.get(str(value), PRINTABLE)
