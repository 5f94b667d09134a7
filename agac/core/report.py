"""How values are printed: one encoder for every `--json`, and times and money in one form each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, get_args, get_type_hints


def iso(seconds: float | None) -> str | None:
    """Seconds since 1970 as text, UTC: `2026-11-22T10:00:00Z`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def usd(amount: float | None) -> float | None:
    """An amount of money in USD, to the millionth."""
    return None if amount is None else round(amount, 6)


def dollars(amount: float, digits: int | None = 4, *, simulated: bool = False, about: str = "") -> str:
    """`$12.4000`, `simulated ~$0.0103`; `digits` None: two, or four of less than ten cents."""
    if digits is None:
        digits = 2 if amount >= 0.095 or not amount else 4
    return f"{'simulated ' if simulated else ''}{about}${amount:,.{digits}f}"


Moment = Annotated[float, iso]
"""Seconds since 1970, printed as text."""

Usd = Annotated[float, usd]
"""An amount of money, rounded where it is printed."""


class Report:
    """A dataclass that `--json` prints as an object of its fields, in their order unless JSON_KEYS says otherwise.

    JSON_KEYS are the keys in their order; each is the name of a field or property, or `key=name` (which may be a path,
    as `key=run.id`) where the two differ; in the place of `**name` are the keys of what that holds. A type
    `Annotated[…, convert]` prints what `convert` makes of the value.
    """

    __slots__ = ()
    JSON_KEYS: ClassVar[tuple[str, ...]] = ()

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return _object(self)


def json_form(value: Any) -> Any:
    """A value as JSON has it: records are objects, paths are texts, members of enums their values."""
    if isinstance(value, Report):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _object(value)
    if isinstance(value, Mapping):
        return {key: json_form(one) for key, one in value.items()}
    return [json_form(one) for one in value] if isinstance(value, list | tuple) else value


def _object(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    found: dict[str, Any] = {}
    for key, read, convert in _members(kind):
        one = read(value)
        if key.startswith("**"):
            found |= json_form(one)
        else:
            found[key] = json_form(one) if convert is None or one is None else convert(one)
    return found


@cache
def _members(kind: Any) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]]:
    """The keys of a record, each with what reads its value and, where its type names one, what makes JSON of that."""
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", ())
    hints = get_type_hints(kind, include_extras=True)
    found: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]] = []
    for entry in getattr(kind, "JSON_KEYS", ()) or names:
        key, _, name = entry.partition("=")
        name = name or key.removeprefix("**")
        declared = getattr(kind, name, None)
        getter = declared.fget if isinstance(declared, property) else None
        hint = get_type_hints(getter, include_extras=True).get("return") if getter else hints.get(name)
        convert = next((one for part in (hint, *get_args(hint)) for one in getattr(part, "__metadata__", ())), None)
        found.append((key, attrgetter(name), convert))
    return found
