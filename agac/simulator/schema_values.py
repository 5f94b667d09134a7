"""JSON values that a schema allows, made of a prompt's words: texts, numbers, lists and objects drawn from a seed.

`schema_compiler` turns a schema into the shapes of this module once; a shape then writes any number of values.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


ENDLESS = math.inf
"""The height of a shape that has no finite value."""

READ_CHARACTERS = 4000
"""How much of the user's text is looked at; a longer one costs no more."""

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


SPAN = 100
"""How far from its only bound a number is taken."""

SHARE_NAMES = re.compile(r"confidence|probability|share|ratio|certainty", re.I)
RATING_NAMES = re.compile(r"rating|stars|score|satisfaction", re.I)


class ValueShape:
    """What a schema was compiled to: it writes values. Its height is how deep its smallest value nests."""

    __slots__ = ()

    def height(self) -> float:
        """How deep the smallest value nests; `ENDLESS` if there is none."""
        return 0

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        """A value for the property `name` ("" for none); only called if the height is finite."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Number(ValueShape):
    """A number: bounds are inclusive unless said otherwise; `step` is what it must be a multiple of."""

    whole: bool
    low: Fraction | None = None
    high: Fraction | None = None
    over: bool = False
    under: bool = False
    step: Fraction | None = None

    def grid(self) -> Fraction | None:
        """The distance between possible values, None where there is none."""
        if self.step is None:
            return Fraction(1) if self.whole else None
        return Fraction(self.step.numerator) if self.whole else self.step

    def ends(self) -> tuple[Fraction, Fraction]:
        """From where to where values are taken."""
        grid = self.grid() or Fraction(1)
        low, high = self.low, self.high
        known = low if low is not None else high or Fraction(0)
        reach = max(Fraction(SPAN), grid * 4, abs(known) / 10**6)  # at 1e300, a hundred more is the same float
        if low is None and high is None:
            return Fraction(0), reach
        if low is None:
            assert high is not None
            return high - reach, high
        return low, low + reach if high is None else high

    def counts(self, grid: Fraction) -> tuple[int, int]:
        """The smallest and the largest number of grid steps within the ends."""
        low, high = self.ends()
        first, last = math.ceil(low / grid), math.floor(high / grid)
        first += self.over and self.low is not None and first * grid == low
        last -= self.under and self.high is not None and last * grid == high
        return first, last

    def height(self) -> float:
        grid = self.grid()
        if grid is not None:
            first, last = self.counts(grid)
            return 0 if first <= last else ENDLESS
        low, high = self.ends()
        open_ended = (self.over and self.low is not None) or (self.under and self.high is not None)
        return ENDLESS if low > high or (low == high and open_ended) else 0

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        share = draft.random.random()
        if self.low is not None and self.high is not None and RATING_NAMES.search(name):
            share = {1: 0.8, 0: 0.4, -1: 0.0}[draft.mood] + share * 0.199
        grid = self.grid()
        if grid is not None:
            return self.stepped(grid, share)
        if self.low is None and self.high is None and SHARE_NAMES.search(name):
            return round(share, 2)
        return self.between(share)

    def stepped(self, grid: Fraction, share: float) -> int | float:
        """A multiple of the grid; of floats, one that survives being divided by the step again."""
        first, last = self.counts(grid)
        start = first + min(int(share * (last - first + 1)), last - first)
        for distance in range(min(last - first + 1, 200)):
            count = first + (start - first + distance) % (last - first + 1)
            value = grid * count
            nearest = int(value) if value.denominator == 1 else float(value)
            if grid.denominator == 1 or nearest / float(grid) == count:
                return nearest
        return float(grid * start)

    def between(self, share: float) -> float:
        """A number between the ends, with two decimals where they fit."""
        low, high = self.ends()
        exact = low + (high - low) * Fraction(share)
        for digits in (2, 6, 12):
            rounded = round(exact, digits)
            if self.holds(Fraction(float(rounded))):
                return float(rounded)
        nearest = float(exact)
        candidates = (nearest, math.nextafter(nearest, ENDLESS), math.nextafter(nearest, -ENDLESS))
        return next((value for value in candidates if self.holds(Fraction(value))), nearest)

    def holds(self, value: Fraction) -> bool:
        """Whether the value is within the bounds."""
        above = self.low is None or (value > self.low if self.over else value >= self.low)
        below = self.high is None or (value < self.high if self.under else value <= self.high)
        return above and below


def ascii_word(draft: Draft) -> str:
    """A word for addresses: plain small letters."""
    kept = "".join(letter for letter in draft.one_of(draft.words).lower() if letter.isascii() and letter.isalnum())
    return kept or "answer"


def day(draft: Draft) -> str:
    """A date that exists in every year."""
    return f"{2020 + draft.below(6)}-{1 + draft.below(12):02}-{1 + draft.below(28):02}"


def clock(draft: Draft) -> str:
    """A time of day."""
    return f"{draft.below(24):02}:{draft.below(60):02}:{draft.below(60):02}Z"


def hexadecimal(draft: Draft, count: int) -> str:
    """So many hexadecimal digits."""
    return "".join(draft.one_of("0123456789abcdef") for _ in range(count))


def uuid_text(draft: Draft) -> str:
    """A UUID of version 4."""
    tail = f"{draft.one_of('89ab')}{hexadecimal(draft, 3)}-{hexadecimal(draft, 12)}"
    return f"{hexadecimal(draft, 8)}-{hexadecimal(draft, 4)}-4{hexadecimal(draft, 3)}-{tail}"


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
    "uuid": uuid_text,
}
"""How a text of each format is made; other formats are plain text."""


TRIES = 60
FEW = 4
"""How often something without an upper bound is repeated beyond its lower one."""

CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_WORD": string.ascii_lowercase + string.digits,
    "CATEGORY_NOT_WORD": " -.,",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_lowercase,
}
PRINTABLE = string.ascii_letters + string.digits + " -_.,:/"


class NoMatch(ValueError):
    """No text was found that the pattern and the lengths both allow."""


def parse_pattern(pattern: str) -> tuple[re.Pattern[str], Any]:
    """The compiled pattern and its syntax tree; raises ValueError when it is no regular expression."""
    parser: Any = importlib.import_module("re._parser")  # the tree is nowhere public
    try:
        return re.compile(pattern), parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error


def matching_text(compiled: re.Pattern[str], tree: Any, draft: Draft, least: int, most: float) -> str:
    """A text that the pattern is found in, within the lengths; raises NoMatch."""
    for extra in range(TRIES):
        text = PatternWriter(draft, FEW + extra * max(1, least // 8)).tree(tree)
        if len(text) < least and compiled.search(text + "x" * (least - len(text))):
            text += "x" * (least - len(text))
        if least <= len(text) <= most and compiled.search(text):
            return text
    raise NoMatch(f"no text found for pattern {compiled.pattern!r} of {least} to {most} characters")


class PatternWriter:
    """One text being written along a pattern's tree."""

    def __init__(self, draft: Draft, few: int) -> None:
        self.draft = draft
        self.few = few
        self.groups: dict[int, str] = {}

    def tree(self, tree: Iterable[tuple[Any, Any]]) -> str:
        """A text for a sequence of parts."""
        return "".join(self.part(str(operation), argument) for operation, argument in tree)

    def part(self, operation: str, argument: Any) -> str:
        """A text for one part; parts that take no room (anchors, look-around) give none and are checked at the end."""
        write = WRITERS.get(operation)
        return "" if write is None else write(self, argument)

    def repeat(self, argument: Any) -> str:
        """Something, so many times."""
        low, high, inner = argument
        ceiling = min(int(high), int(low) + self.few)
        return "".join(self.tree(inner) for _ in range(int(low) + self.draft.below(ceiling - int(low) + 1)))

    def group(self, argument: Any) -> str:
        """A group in parentheses, kept for references back to it."""
        number, _, _, inner = argument
        text = self.tree(inner)
        if number is not None:
            self.groups[number] = text
        return text

    def among(self, argument: Any) -> str:
        """One character of a class."""
        negated = str(argument[0][0]) == "NEGATE"
        members = [member for member in argument if str(member[0]) != "NEGATE"]
        if negated:
            excluded = set("".join(alphabet(str(kind), value) for kind, value in members))
            allowed = [letter for letter in PRINTABLE if letter not in excluded]
            return str(self.draft.one_of(allowed)) if allowed else "\u00b7"
        kind, value = self.draft.one_of(members)
        if str(kind) == "RANGE":
            return chr(value[0] + self.draft.below(value[1] - value[0] + 1))
        return str(self.draft.one_of(alphabet(str(kind), value)))


def alphabet(kind: str, value: Any) -> str:
    """The characters of one member of a class; a range is cut after 512."""
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return "".join(chr(code) for code in range(value[0], min(value[1], value[0] + 511) + 1))
    return CATEGORIES.get(str(value), PRINTABLE)


WRITERS: dict[str, Callable[[PatternWriter, Any], str]] = {
    "LITERAL": lambda writing, code: chr(code),
    "NOT_LITERAL": lambda writing, code: str(writing.draft.one_of([c for c in PRINTABLE if ord(c) != code])),
    "ANY": lambda writing, _: str(writing.draft.one_of(PRINTABLE)),
    "IN": PatternWriter.among,
    "BRANCH": lambda writing, argument: writing.tree(writing.draft.one_of(argument[1])),
    "SUBPATTERN": PatternWriter.group,
    "ATOMIC_GROUP": PatternWriter.tree,
    "MAX_REPEAT": PatternWriter.repeat,
    "MIN_REPEAT": PatternWriter.repeat,
    "POSSESSIVE_REPEAT": PatternWriter.repeat,
    "GROUPREF": lambda writing, number: writing.groups.get(number, ""),
}
"""How each kind of part is written, by the name the standard library gives it."""


FLAT = 4
"""Below this depth only what must be is written."""

SHORT_NAMES = re.compile(r"(name|title|label|tag|topic|keyword|categor|product|city|country|type|key|code)", re.I)


@dataclass(slots=True)
class ShapeLink(ValueShape):
    """A place for a shape, so that schemas can refer to themselves. `known` is its height as far as known."""

    target: ValueShape | None = None
    known: float = ENDLESS

    def height(self) -> float:
        return self.known

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        assert self.target is not None
        draft.left -= 1
        return self.target.write(draft, depth, name)


@dataclass(frozen=True, slots=True)
class OneOf(ValueShape):
    """One of some fixed values; without any, there is no value at all."""

    values: tuple[Any, ...]

    def height(self) -> float:
        return 0 if self.values else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return draft.choose(self.values)


@dataclass(frozen=True, slots=True)
class AnyOf(ValueShape):
    """One of some shapes; `null` is taken seldom when there is anything else."""

    branches: tuple[ShapeLink, ...]

    def height(self) -> float:
        return min((branch.height() for branch in self.branches), default=ENDLESS)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        possible = [branch for branch in self.branches if branch.height() < ENDLESS]
        if depth >= FLAT or draft.left <= 0:
            return min(possible, key=ShapeLink.height).write(draft, depth, name)
        telling = [branch for branch in possible if not is_null(branch)]
        if telling and draft.random.random() < 0.9:
            possible = telling
        return draft.one_of(possible).write(draft, depth, name)


def is_null(link: ShapeLink) -> bool:
    """Whether nothing but null comes from there."""
    return isinstance(link.target, OneOf) and link.target.values == (None,)


@dataclass(frozen=True, slots=True)
class Truth(ValueShape):
    """True or false."""

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return draft.random.random() < 0.5


@dataclass(frozen=True, slots=True)
class Words(ValueShape):
    """A text of the prompt's words, of `least` to `most` characters."""

    least: int = 0
    most: float = math.inf

    def height(self) -> float:
        return 0 if self.least <= self.most else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        text = draft.phrase(1, 3) if name and SHORT_NAMES.search(name) else draft.sentence()
        while len(text) < self.least:
            text = f"{text} {draft.sentence()}"
        if len(text) <= self.most:
            return text
        cut = text[: int(self.most)]
        trimmed = cut.rstrip()
        return trimmed if len(trimmed) >= self.least else cut


@dataclass(frozen=True, slots=True)
class Patterned(ValueShape):
    """A text that a regular expression is found in."""

    compiled: re.Pattern[str]
    tree: Any
    least: int = 0
    most: float = math.inf

    def height(self) -> float:
        return 0 if self.least <= self.most else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return matching_text(self.compiled, self.tree, draft, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Formatted(ValueShape):
    """A text in one of the formats of JSON Schema."""

    make: Callable[[Draft], str]

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return self.make(draft)


@dataclass(frozen=True, slots=True)
class Items(ValueShape):
    """A list: `first` by place, then `rest` for every further one."""

    first: tuple[ShapeLink, ...]
    rest: ShapeLink
    least: float
    most: float
    unique: bool

    def longest(self) -> float:
        """The largest possible number of items."""
        for place, link in enumerate(self.first):
            if link.height() == ENDLESS:
                return min(self.most, place)
        return min(self.most, len(self.first)) if self.rest.height() == ENDLESS else self.most

    def height(self) -> float:
        if self.least > self.longest():
            return ENDLESS
        links = [*self.first[: int(self.least)]]
        if self.least > len(self.first):
            links.append(self.rest)
        return 1 + max((link.height() for link in links), default=0)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        wanted = self.least
        if depth < FLAT and draft.left > 0:
            wanted = max(wanted, len(self.first), 1 + draft.below(max(1, 3 - depth)))
        values: list[Any] = []
        seen: set[str] = set()
        for place in range(int(min(wanted, self.longest()))):
            link = self.first[place] if place < len(self.first) else self.rest
            for _ in range(20 if self.unique else 1):
                value = link.write(draft, depth + 1, name)
                key = json.dumps(value, sort_keys=True) if self.unique else ""
                if not self.unique or key not in seen:
                    seen.add(key)
                    values.append(value)
                    break
        return values


@dataclass(frozen=True, slots=True)
class Properties(ValueShape):
    """An object: its named properties, and `others` for every further key. `invents`: a map, so have some keys."""

    named: dict[str, ShapeLink]
    required: tuple[str, ...]
    others: ShapeLink
    least: float = 0
    most: float = math.inf
    invents: bool = False

    def possible(self) -> list[str]:
        """Named properties that can have a value at all."""
        return [key for key, link in self.named.items() if link.height() < ENDLESS]

    def height(self) -> float:
        needed = [self.named.get(key, self.others).height() for key in self.required]
        missing = int(self.least) - len(needed)
        if len(needed) > self.most or self.least > self.most:
            return ENDLESS
        spare = sorted(link.height() for key, link in self.named.items() if key not in self.required)
        if missing > 0 and self.others.height() < ENDLESS:
            spare = sorted([*spare, *[self.others.height()] * missing])
        if len(spare) < missing:
            return ENDLESS
        return 1 + max((*needed, *spare[: max(0, missing)]), default=0)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return {key: self.named.get(key, self.others).write(draft, depth + 1, key) for key in self.keys(draft, depth)}

    def keys(self, draft: Draft, depth: int) -> list[str]:
        """The keys of one object, named ones in the schema's order."""
        chosen = set(self.required)
        generous = depth < FLAT and draft.left > 0
        optional = [key for key in self.possible() if key not in chosen]
        optional.sort(key=lambda key: self.named[key].height())
        for key in optional:
            if len(chosen) < self.most and (len(chosen) < self.least or (generous and draft.random.random() < 0.8)):
                chosen.add(key)
        keys = [key for key in self.named if key in chosen] + [key for key in self.required if key not in self.named]
        few = 2 if generous and self.invents and not self.named else 0
        return keys + self.invented(draft, keys, max(int(self.least) - len(keys), few))

    def invented(self, draft: Draft, keys: list[str], wanted: int) -> list[str]:
        """Keys that the schema does not name."""
        if self.others.height() == ENDLESS:
            return []
        made: list[str] = []
        while len(made) < min(wanted, self.most - len(keys)):
            word = draft.one_of(draft.words).lower()
            taken = word in keys or word in made or word in self.named
            made.append(f"{word}_{len(made) + 1}" if taken else word)
        return made
