"""JSON as bodies: written, and read where a server sent it, when nothing is sure to have its
shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from agac.core.json_text import json_encoder
from agac.core.types import JSONValue

_compact = json_encoder()
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Encoder:
    """Encodes the bodies of one stage's calls to one model as `encode` does. A member that is the
    same object as in the call before, as the schema is, is not encoded again."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[JSONValue, str]] = {}

    def encode(self, wire: Mapping[str, JSONValue]) -> bytes:
        """Returns the body's bytes."""
        members = []
        for name, value in wire.items():
            kept = self._kept.get(name)
            if kept is None or kept[0] is not value:
                kept = self._kept[name] = (value, f"{_compact(name)}:{_compact(value)}")
            members.append(kept[1])
        try:
            return f"{{{','.join(members)}}}".encode()
        except UnicodeEncodeError:
            return encode(dict(wire))


def encode(wire: JSONValue) -> bytes:
    """Returns JSON as bytes. A lone surrogate, which UTF-8 cannot hold, travels as its JSON
    escape."""
    try:
        return _compact(wire).encode()
    except UnicodeEncodeError:
        return _escaped(wire).encode()


# a count beyond that is none: nothing bills so much, and no database column holds more than 2^63
MAX_COUNT = 1 << 53
_MOST_DIGITS = 16  # of a count that is a text


def loads(body: bytes | str) -> Any:
    """Reads JSON as a server sent it; a number that Python refuses is infinite. Raises ValueError,
    RecursionError."""
    try:
        return json.loads(body)
    except ValueError as problem:
        if isinstance(problem, json.JSONDecodeError):
            raise
        return json.loads(
            body, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits)
        )


def json_of(body: bytes) -> Any:
    """Returns the body's JSON; None when it is none."""
    try:
        # json.loads would guess the encoding, and does where it may be another one
        plain = body[:1] == b"{" and body[1:2] != b"\0"
        return loads(body.decode("utf-8", "surrogatepass") if plain else body)
    except (ValueError, RecursionError):
        return None


def mapping(value: Any) -> dict[str, Any]:
    """Returns an object; an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Returns a list; an empty one in the place of anything else."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """Returns those of a list's items that are objects."""
    return [item for item in items(value) if isinstance(item, dict)]


def text(of: Any, name: str) -> str:
    """Returns a text within an object; an empty one when there is none."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, str) else ""


def count(of: Any, name: str) -> int | None:
    """Returns a number of tokens, bytes or requests within an object; None when it says none, or
    none that can be."""
    return _as_count(of.get(name)) if isinstance(of, dict) else None


def _as_count(value: Any) -> int | None:
    # how languages with one kind of number write them
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value < MAX_COUNT:
        return value
    return None


def count_at(of: Any, paths: Iterable[tuple[str, ...]]) -> int | None:
    """Returns the count at the first of these paths, each the names of objects within objects,
    where there is one. Some servers write it as a text."""
    for *outer, name in paths:
        within = of
        for step in outer:
            within = mapping(within).get(step)
        counted = _as_count(_from_digits(mapping(within).get(name)))
        if counted is not None:
            return counted
    return None


def _from_digits(value: Any) -> Any:
    """Returns a text of digits as a number; anything else as it is."""
    is_number = (
        isinstance(value, str)
        and len(value) <= _MOST_DIGITS
        and value.isascii()
        and value.isdigit()
    )
    return int(value) if is_number else value


def http_status(value: Any, lowest: int) -> int | None:
    """Returns an HTTP status from `lowest` on, written as a number or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    if type(value) is int and lowest <= value < 600:
        return value
    return None


def number(value: Any) -> float | None:
    """Returns the finite number in a text."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def date(value: str) -> float | None:
    """Returns a date of HTTP or of RFC 3339 in seconds since 1970."""
    from email.utils import parsedate_to_datetime  # 12 ms that only a date in a header is worth

    try:
        found: datetime = (
            datetime.fromisoformat(value) if value[:4].isdigit() else parsedate_to_datetime(value)
        )
        # a date without a zone is UTC in HTTP
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


_MILLISECONDS_FROM = 100_000_000_000
"""A number of seconds since 1970 that large is in the year 5138: it counts milliseconds."""


def moment(value: Any) -> float | None:
    """Returns the seconds since 1970 of a number, a text that is one, or a date, until the year
    5138; None for anything else."""
    if isinstance(value, str):
        value = number(value) or date(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 < value < 1000 * _MILLISECONDS_FROM:
        return None
    if value >= _MILLISECONDS_FROM:
        return value / 1000
    return float(value)
