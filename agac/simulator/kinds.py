"""Kinds of values, and the words for them: of parameters, of keys of files, of keywords."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

JsonObject = dict[str, Any]
Texts = dict[str, str]
Headers = Mapping[str, str]
"""Those of a request, whatever the case of their names."""

Fits = Callable[[Any], bool]


def is_number(value: Any, kind: type[float] = float) -> TypeGuard[float]:
    """True for a finite number, or a whole one (`kind` int); true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        return False
    return abs(value) < math.inf


def as_object(value: Any) -> JsonObject:
    """Returns an object as it is, an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


class ValueKind(NamedTuple):
    """A kind of value: what tells whether a value is one, and the words for it."""

    fits: Fits
    wanted: str


def within(low: float, high: float = math.inf, kind: type[float] = float) -> Fits:
    """Returns what tells whether a value is a number within bounds, or a whole one."""
    return lambda value: is_number(value, kind) and low <= value <= high


def each(fits: Fits) -> Fits:
    """Returns what tells whether a value, or each of a list of them, fits."""
    return lambda value: all(map(fits, value if isinstance(value, list) else [value]))


def or_null(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def is_a(kind: type) -> Fits:
    return lambda value: isinstance(value, kind)


def between(low: float, high: float) -> ValueKind:
    return ValueKind(within(low, high), f"a number from {low} to {high}")


def one_of(*choices: str) -> ValueKind:
    return ValueKind(lambda value: value in choices, f"one of {', '.join(choices)}")


COUNT = ValueKind(within(1, kind=int), "an integer of at least 1")
TRUTH = ValueKind(is_a(bool), "true or false")
TEXT = ValueKind(is_a(str), "a string")
OBJECT = ValueKind(is_a(dict), "an object")
LIST = ValueKind(is_a(list), "a list")


ANYTHING = ValueKind(lambda value: True, "anything")


def anything(names: str) -> dict[str, ValueKind]:
    return dict.fromkeys(names.split(), ANYTHING)


def only(*harmless: Any) -> ValueKind:
    """Returns the kind of a parameter that is not simulated, but for values that change nothing."""
    return ValueKind(lambda value: value in harmless, "")


def wrong_parameters(data: JsonObject, kinds: dict[str, ValueKind]) -> Iterator[tuple[str, str]]:
    """Gives parameters that are wrong, each with what it must be: "" if it is not simulated."""
    for name, kind in kinds.items():
        if data.get(name) is not None and not kind.fits(data[name]):
            yield name, kind.wanted
