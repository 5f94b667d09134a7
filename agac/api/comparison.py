"""Compares two answers: `relation` says how the second relates to the first, and a `ComparedAnswer`
is one line of the table that commands count and print.

Each command that compares answers has three parts. It selects the two sides: two stored runs
(`agac compare`), an earlier version and a trial (`agac try`), labels and a model (`agac eval`), a
model and its reviewers (`agac calibrate`), two versions of the files (`agac diff`). It compares
them, here. It counts what came of it; the figures of answers that are JSON are here too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import eq
from typing import Any, NamedTuple, TypeVar

from agac.core.types import JSONValue, Report, RowId
from agac.engine.output.histograms import log_bucket, quantile

Key = TypeVar("Key")


class NoAnswer(Enum):
    """Takes the place of an answer that does not exist. An answer may be `null`, which exists."""

    MISSING = "missing"
    """The task was not run, or keeps nothing."""

    FAILED = "failed"
    """The task was run, and failed."""


class Relation(Enum):
    """How the second answer relates to the first."""

    EQUAL = "equal"
    CHANGED = "changed"
    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"

    FAILED = "failed"
    """The second was asked for, and failed."""

    NEITHER = "neither"
    """Both are missing."""


IN_BOTH = frozenset((Relation.EQUAL, Relation.CHANGED))
"""The relations of two answers that exist."""


def relation(
    first: JSONValue,
    second: JSONValue,
    alike: Callable[[Any, Any], bool] = eq,
) -> Relation:
    """Decides how two answers relate. `alike` says whether two that exist are the same answer; by
    default they have to be the same JSON value, with keys in any order."""
    if not isinstance(first, NoAnswer) and not isinstance(second, NoAnswer):
        return Relation.EQUAL if alike(first, second) else Relation.CHANGED
    if second is NoAnswer.FAILED:
        return Relation.FAILED
    if not isinstance(second, NoAnswer):
        return Relation.ONLY_SECOND
    return Relation.NEITHER if isinstance(first, NoAnswer) else Relation.ONLY_FIRST


def relations(
    first: Mapping[Key, JSONValue],
    second: Mapping[Key, JSONValue],
) -> Iterator[tuple[Key, Relation]]:
    """Compares the values of two mappings key by key: those of the first in its order, then those
    that only the second has."""
    for key, value in first.items():
        yield key, relation(value, second.get(key, NoAnswer.MISSING))
    for key in second:
        if key not in first:
            yield key, Relation.ONLY_SECOND


class ComparedAnswer(NamedTuple):
    """One line of a comparison: two answers of a stage for a row."""

    row: RowId
    """The id of the row, or its number in the input if ids may repeat."""

    stage: str
    """The stage that gave both."""

    first: JSONValue
    """JSON, or `NoAnswer`."""

    second: JSONValue
    relation: Relation


def compared(
    row: RowId,
    stage: str,
    first: JSONValue,
    second: JSONValue,
    alike: Callable[[Any, Any], bool] = eq,
) -> ComparedAnswer:
    """Compares two answers of a stage for a row, as `relation` does."""
    return ComparedAnswer(row, stage, first, second, relation(first, second, alike))


# The figures of answers that are JSON.

MAX_FIELDS = 100
"""Fields of answers that have figures of their own. A difference in another field is reported as a
difference of the whole answer."""

_LARGEST = 1e300  # a larger number is no measurement, and not every float can hold it
_NO_DISTANCE = -1_000_000  # a bucket so low that its value is 0.0


@dataclass(slots=True)
class Agreement(Report):
    """How far answers agree."""

    JSON_KEYS = ("rows", "equal", "share", "alone", "numbers", "drift", "p95", "fields")

    rows: int = 0
    """Rows with two answers."""

    equal: int = 0
    """Rows whose two answers are equal."""

    alone: int = 0
    """Rows with one answer."""

    numbers: int = 0
    """Rows whose two answers are numbers."""

    drift: float | None = None
    """By how much the second number exceeds the first, in the mean."""

    fields: dict[str, Agreement] = field(default_factory=dict)
    """The same for each field of answers that are objects."""

    distances: Counter[int] = field(default_factory=Counter)
    """A histogram of the distances between numbers."""

    def add(self, first: JSONValue, second: JSONValue) -> list[str | None]:
        """Compares and counts two answers. Returns the fields that differ, None for the whole
        answer."""
        return self.count(first, second, relation(first, second))

    def count(self, first: JSONValue, second: JSONValue, how: Relation) -> list[str | None]:
        """Counts two answers whose relation is known, and returns what `add` returns."""
        if how is Relation.NEITHER:
            return []
        if how not in IN_BOTH:
            self.alone += 1
            return [None]
        self.rows += 1
        self.equal += how is Relation.EQUAL
        differing: list[str | None] = []
        if isinstance(first, dict) and isinstance(second, dict):
            differing = self._count_fields(first, second)
        elif _is_measurement(first) and _is_measurement(second):
            self._count_distance(float(second) - float(first))
        if how is Relation.EQUAL or differing:
            return differing
        return [None]

    def _count_fields(
        self, first: dict[str, JSONValue], second: dict[str, JSONValue]
    ) -> list[str | None]:
        """Counts each field of two objects, and returns those that differ."""
        differing: list[str | None] = []
        for name in {**first, **second}:
            agreement = self.fields.get(name)
            if agreement is None:
                if len(self.fields) >= MAX_FIELDS:
                    continue
                agreement = self.fields[name] = Agreement()
            if agreement.add(first.get(name), second.get(name)):
                differing.append(name)
        return differing

    def _count_distance(self, apart: float) -> None:
        """Counts two numbers that lie so far apart."""
        drift = self.drift or 0.0
        self.numbers += 1
        self.drift = drift + (apart - drift) / self.numbers
        self.distances[log_bucket(abs(apart)) if apart else _NO_DISTANCE] += 1

    @property
    def share(self) -> float | None:
        """The share of rows with two answers whose answers are equal."""
        return round(self.equal / self.rows, 4) if self.rows else None

    @property
    def p95(self) -> float | None:
        """The distance that 95 % of the pairs of numbers do not exceed, to 2 % of it."""
        return quantile(self.distances, 0.95)


def _is_measurement(value: JSONValue) -> bool:
    """True if the value is a number with which a distance can be computed."""
    return type(value) in (int, float) and abs(value) < _LARGEST
