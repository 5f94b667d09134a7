"""The errors of a value that does not fit a JSON Schema, unless making them would take long: the
library cannot be stopped, and makes those of all alternatives before it gives the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from agac.spec.json_schema import SchemaCost

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

MAX_WORK = 100_000_000
"""Visits of all values of a reply, which take about a second."""

ALL_ERRORS = 200_000
FIRST_ERROR = 5_000_000
"""Up to so many visits of values all errors are made, or the first alone; beyond none, since an
error of alternatives holds those of each alternative, and a copy of the value."""

MOST_VALUES = 10_000
"""Of a value with more parts the first error alone is made: a million errors take 1 GB."""

MAX_ALTERNATIVES = 5_000
"""Alternatives inside one another whose errors are made."""

TOO_MANY = (
    "the value does not fit the schema; the place is not searched for, because the schema has "
    "too many alternatives or the value is too large"
)


def some_errors(
    validator: Draft202012Validator, cost: SchemaCost, value: Any, most: int
) -> Sequence[ValidationError] | None:
    """Returns the first errors of a value that does not fit, at most `most`; None where making
    them would take too long."""
    from jsonschema_rs import ValidationError

    values, depth = size_of(value)
    if (
        cost.branches > 1
        and depth * (cost.branches.bit_length() - 1) > MAX_ALTERNATIVES.bit_length()
    ):
        return None
    if cost.visits > MAX_ALTERNATIVES:
        return None
    work = values * (cost.visits + cost.choices)
    if work <= ALL_ERRORS and values <= MOST_VALUES:
        return list(islice(validator.iter_errors(value), most))
    if work > FIRST_ERROR:
        return None
    try:
        validator.validate(value)
    except ValidationError as first:
        return [first]
    return []


def size_of(value: Any) -> tuple[int, int]:
    """Counts the values in a JSON value, itself included, and how deep they are nested."""
    count = depth = 0
    level = [value]
    while level:
        count += len(level)
        depth += 1
        level = [
            part for outer in level if isinstance(outer, dict | list) for part in _parts(outer)
        ]
    return count, depth


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
