"""Kinds of values, and the words for them: of parameters, of keys of files, of keywords."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard


def is_number(value: Any, kind: type[float] = float) -> TypeGuard[float]:
    """True for a finite number, or a whole one (`kind` int); true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        return False
    return abs(value) < math.inf


class ValueKind(NamedTuple):
    """A kind of value: what tells whether a value is one, and the words for it."""

    fits: Callable[[Any], bool]
    wanted: str


def between(low: float, high: float) -> ValueKind:
    def fits(value: Any) -> bool:
        return is_number(value) and low <= value <= high

    return ValueKind(fits, f"a number from {low} to {high}")


def one_of(choices: tuple[str, ...]) -> ValueKind:
    return ValueKind(lambda value: value in choices, f"one of {', '.join(choices)}")


COUNT = ValueKind(lambda value: is_number(value, int) and value >= 1, "an integer of at least 1")
TRUTH = ValueKind(lambda value: isinstance(value, bool), "true or false")
TEXT = ValueKind(lambda value: isinstance(value, str), "a string")
OBJECT = ValueKind(lambda value: isinstance(value, dict), "an object")
LIST = ValueKind(lambda value: isinstance(value, list), "a list")


def wrong_parameters(
    data: Mapping[str, Any], unsupported: Mapping[str, Any], kinds: Mapping[str, ValueKind]
) -> Iterator[tuple[str, str]]:
    """Gives parameters that are wrong, each with what it must be.

    That is "" for those that are not simulated: `unsupported` has the one value of each that
    changes nothing.
    """
    for name, harmless in unsupported.items():
        if data.get(name) not in (None, harmless):
            yield name, ""
    for name, kind in kinds.items():
        if data.get(name) is not None and not kind.fits(data[name]):
            yield name, kind.wanted
