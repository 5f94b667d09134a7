"""JSON values that a schema allows, made of a prompt's words: texts, numbers, lists and objects drawn from a seed."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from random import Random
from typing import Any, NamedTuple
from uuid import UUID


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_CHARACTERS = 4000  # how much of the user's text is looked at; a longer one costs no more
WORD = re.compile(r"[^\W\d_][\w'’-]{0,23}")
FALLBACK = ("a", "simulated", "answer", "made", "of", "plain", "words", "that", "cost", "nothing")
GLAD = word_set(
    "good great excellent love loved loves perfect amazing happy best nice fast easy recommend wonderful fantastic "
    "awesome works pleased satisfied superb brilliant comfortable beautiful reliable thanks thank glad solid "
    "delightful quick friendly helpful impressed enjoy enjoyed"
)
CROSS = word_set(
    "bad terrible awful hate hated broken broke worst poor slow disappointed disappointing refund return returned "
    "waste cheap defective useless unhappy angry problem problems failed fails faulty late missing never not "
    "doesn't don't won't can't stopped horrible annoying crash crashes leaks rude damaged wrong unusable"
)
SHADES = {
    1: (
        "positive",
        "pos",
        "good",
        "happy",
        "glad",
        "satisfied",
        "praise",
        "promoter",
        "favorable",
        "favourable",
    ),
    -1: (
        "negative",
        "neg",
        "bad",
        "unhappy",
        "angry",
        "dissatisfied",
        "complaint",
        "detractor",
        "unfavorable",
    ),
    0: ("neutral", "mixed", "okay", "ok", "average", "unclear", "passive"),
}


@dataclass
class Draft:
    """One reply being written, for a text: `left` bounds the values in it, so that recursive schemas end."""

    random: Random
    text: str
    left: int = 300

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
        lowered = "\n".join(self.words).lower().replace("’", "'").split("\n")
        score = sum(map(GLAD.__contains__, lowered)) - sum(map(CROSS.__contains__, lowered))
        return (score > 0) - (score < 0)

    def phrase(self, least: int, most: int) -> str:
        """So many words of the text in a row."""
        words = self.words
        count = min(len(words), least + self.below(most - least + 1))
        start = self.below(len(words) - count + 1)
        return " ".join(words[start : start + count])

    def sentence(self) -> str:
        phrase = self.phrase(5, 12)
        return f"{phrase[:1].upper()}{phrase[1:]}."

    def choose(self, values: Sequence[Any]) -> Any:
        """The value that fits the text: its mood where moods are offered, else one that the text names, else any."""
        names = [value.lower() if isinstance(value, str) else None for value in values]
        shade = next((i for i, name in enumerate(names) if name in SHADES[self.mood]), None)
        if shade is not None and sum(name in (*SHADES[1], *SHADES[-1]) for name in names) > 1:
            return values[shade]
        lowered = self.text[:READ_CHARACTERS].lower()
        named = [
            i
            for i, name in enumerate(names)
            if name and re.search(rf"\b{re.escape(name)}\b", lowered)
        ]
        if 0 < len(named) < len(values):
            return values[named[0]]
        return self.one_of(values)


SHORT_NAMES = re.compile(
    r"(name|title|label|tag|topic|keyword|categor|product|city|country|type|key|code)", re.I
)
SHARE_NAMES = re.compile(r"confidence|probability|share|ratio|certainty", re.I)
RATING_NAMES = re.compile(r"rating|stars|score|satisfaction", re.I)
SPAN = 100  # how far from its only bound a number is taken
NumberWriter = Callable[[Draft, int, str], int | float]


class NumberRange(NamedTuple):
    """The numbers from `start` to `end`, within bounds if any; one that is not allowed `is_over` or `is_under`."""

    start: Fraction
    end: Fraction
    low: Fraction | None
    high: Fraction | None
    is_over: bool
    is_under: bool

    def share_of(self, draft: Draft, name: str) -> float:
        """How far from the lower end to the upper one: ratings follow the mood."""
        share = draft.random.random()
        if self.low is not None and self.high is not None and RATING_NAMES.search(name):
            return {1: 0.8, 0: 0.4, -1: 0.0}[draft.mood] + share * 0.199
        return share

    def holds(self, value: float) -> bool:
        """Whether the number, as it is written, keeps to the bounds."""
        exact, low, high = Fraction(value), self.low, self.high
        above = low is None or exact > low or (exact == low and not self.is_over)
        return above and (high is None or exact < high or (exact == high and not self.is_under))

    def any_number(self, draft: Draft, depth: int, name: str) -> float:
        """A number of few digits where one is within."""
        share = self.share_of(draft, name)
        if self.low is None and self.high is None and SHARE_NAMES.search(name):
            return round(share, 2)
        exact = self.start + (self.end - self.start) * Fraction(share)
        near = float(exact)
        rounded = (float(round(exact, digits)) for digits in (2, 6, 12))
        beside = (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf))
        return next(filter(self.holds, chain(rounded, beside)), near)

    def multiple(
        self, grid: Fraction, first: int, total: int, draft: Draft, depth: int, name: str
    ) -> int | float:
        """One of `total` multiples of `grid`, from the `first` on."""
        drawn = min(int(self.share_of(draft, name) * total), total - 1)
        for place in range(drawn, drawn + min(total, 200)):
            count = first + place % total
            value = grid * count
            nearest = int(value) if value.denominator == 1 else float(value)
            if (
                grid.denominator == 1 or nearest / float(grid) == count
            ):  # it survives being divided by the step again
                return nearest
        return float(grid * (first + drawn))


def number_writer(
    whole: bool,
    lows: Sequence[Fraction | None],
    highs: Sequence[Fraction | None],
    step: Fraction | None,
) -> NumberWriter | None:
    """Writes multiples of `step`, integers when `whole`; None if there are none. Of each two bounds one is excluded."""
    low = max((bound for bound in lows if bound is not None), default=None)
    high = min((bound for bound in highs if bound is not None), default=None)
    is_over, is_under = low is not None and low == lows[1], high is not None and high == highs[1]
    grid = Fraction(1 if step is None else step.numerator) if whole else step
    known = low if low is not None else high or Fraction(0)
    reach = max(
        Fraction(SPAN), (grid or Fraction(1)) * 4, abs(known) / 10**6
    )  # at 1e300, 100 more is the same
    start = known if low is not None or high is None else known - reach
    end = start + reach if high is None else high
    numbers = NumberRange(start, end, low, high, is_over, is_under)
    if grid is None:
        return (
            None if start > end or (start == end and (is_over or is_under)) else numbers.any_number
        )
    first, last = math.ceil(start / grid), math.floor(end / grid)
    first += is_over and first * grid == start
    last -= is_under and last * grid == end
    return None if first > last else partial(numbers.multiple, grid, first, last - first + 1)


def text_of(draft: Draft, name: str, least: int, most: float) -> str:
    """A text of the prompt's words, of `least` to `most` characters."""
    text = draft.phrase(1, 3) if name and SHORT_NAMES.search(name) else draft.sentence()
    while len(text) < least:
        text = f"{text} {draft.sentence()}"
    if len(text) <= most:
        return text
    cut = text[: int(most)]
    trimmed = cut.rstrip()
    return trimmed if len(trimmed) >= least else cut


def ascii_word(draft: Draft) -> str:
    kept = "".join(
        letter
        for letter in draft.one_of(draft.words).lower()
        if letter.isascii() and letter.isalnum()
    )
    return kept or "answer"


def day(draft: Draft) -> str:
    """A date that exists in every year."""
    return f"{2020 + draft.below(6)}-{1 + draft.below(12):02}-{1 + draft.below(28):02}"


def clock(draft: Draft) -> str:
    return f"{draft.below(24):02}:{draft.below(60):02}:{draft.below(60):02}Z"


FORMATS: dict[str, Callable[[Draft], str]] = {
    "date": day, "time": clock, "date-time": lambda draft: f"{day(draft)}T{clock(draft)}",
    "duration": lambda draft: f"P{1 + draft.below(30)}D", "email": lambda draft: f"{ascii_word(draft)}@example.com",
    "hostname": lambda draft: f"{ascii_word(draft)}.example.com",
    "ipv4": lambda draft: f"192.0.2.{1 + draft.below(254)}", "ipv6": lambda draft: f"2001:db8::{1 + draft.below(9999)}",
    "uri": lambda draft: f"https://example.com/{ascii_word(draft)}",
    "uuid": lambda draft: str(UUID(int=draft.random.getrandbits(128), version=4)),
}  # fmt: skip
"""How a text of each format is made; other formats are plain text."""

TRIES = 60
FEW = 4  # how often something without an upper bound is repeated beyond its lower one

CATEGORIES = {
    "CATEGORY_DIGIT": string.digits, "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_WORD": string.ascii_lowercase + string.digits, "CATEGORY_NOT_WORD": " -.,", "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_lowercase,
}  # fmt: skip
PRINTABLE = string.ascii_letters + string.digits + " -_.,:/"


class NoMatch(ValueError):
    """No text was found that the pattern and the lengths both allow."""


def matching_text(
    compiled: re.Pattern[str], tree: Any, draft: Draft, least: int, most: float
) -> str:
    """A text that the pattern is found in, within the lengths; raises NoMatch."""
    for extra in range(TRIES):
        text = pattern_text(tree, draft, FEW + extra * max(1, least // 8), {})
        if len(text) < least and compiled.search(text + "x" * (least - len(text))):
            text += "x" * (least - len(text))
        if least <= len(text) <= most and compiled.search(text):
            return text
    raise NoMatch(f"no text found for pattern {compiled.pattern!r} of {least} to {most} characters")


def pattern_text(
    tree: Iterable[tuple[Any, Any]], draft: Draft, few: int, groups: dict[int | None, str]
) -> str:
    """A text along a pattern's syntax tree, whose parts have the names that the standard library gives them. Parts that
    take no room (anchors, look-around) give none and are checked at the end; `groups` are kept for references back."""
    text = ""
    for operation, argument in tree:
        match str(operation):
            case "LITERAL":
                text += chr(argument)
            case "NOT_LITERAL" | "ANY" | "IN":
                text += draft.one_of(alphabet(str(operation), argument))
            case "BRANCH":
                text += pattern_text(draft.one_of(argument[1]), draft, few, groups)
            case "SUBPATTERN":
                groups[argument[0]] = pattern_text(argument[-1], draft, few, groups)
                text += groups[argument[0]]
            case "ATOMIC_GROUP":
                text += pattern_text(argument, draft, few, groups)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, inner = argument
                times = int(low) + draft.below(min(int(high) - int(low), few) + 1)
                text += "".join(pattern_text(inner, draft, few, groups) for _ in range(times))
            case "GROUPREF":
                text += groups.get(argument, "")
    return text


def alphabet(kind: str, value: Any) -> str:
    """The characters that a part of a pattern stands for; a range is cut after 512."""
    match kind:
        case "LITERAL":
            return chr(value)
        case "RANGE":
            return "".join(map(chr, range(value[0], min(value[1], value[0] + 511) + 1)))
        case "NOT_LITERAL":
            return PRINTABLE.replace(chr(value), "")
        case "IN" if str(value[0][0]) == "NEGATE":
            excluded = alphabet("IN", value[1:])
            return "".join(letter for letter in PRINTABLE if letter not in excluded) or "\u00b7"
        case "IN":
            return "".join(alphabet(str(inner), one) for inner, one in value)
    return CATEGORIES.get(str(value), PRINTABLE)
