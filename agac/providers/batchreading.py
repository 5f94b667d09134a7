"""What every batch API's JSON is read with: lines of results, moments, counts. Nothing that comes is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agac.providers.batches import BatchState, UnreadableLine

_BOM = b"\xef\xbb\xbf"
_MILLISECONDS_FROM = 100_000_000_000
"""A number of seconds since 1970 that large lies in the year 5138: it counts milliseconds."""

STATES: Mapping[str, tuple[BatchState, bool]] = {
    **{state.value: (state, True) for state in BatchState},
    "canceling": (BatchState.CANCELLING, True),
    "canceled": (BatchState.CANCELLED, True),
}
"""What the words of providers mean, in lower case, and whether they are known."""

UNKNOWN = (BatchState.IN_PROGRESS, False)
"""A word that nobody knows is no end: the batch is asked for again."""


def object_of(line: bytes) -> tuple[str, dict[str, Any]]:
    """A line of results as an object, and its custom_id. Raises UnreadableLine."""
    try:
        data = json.loads(line.removeprefix(_BOM).decode())
    except UnicodeDecodeError:
        raise UnreadableLine("it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise UnreadableLine("it is not JSON" if line.strip() else "it is empty") from None
    if not isinstance(data, dict):
        raise UnreadableLine(f"it is {_kind(data)}, not an object")
    custom_id = data.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise UnreadableLine("it has no custom_id" if custom_id in (None, "") else "its custom_id is no text")
    return custom_id, data


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a text", bool: "a truth value"}.get(type(value), "a number")


def moment(value: Any) -> float | None:
    """Seconds since 1970 of a number, of a text that is one, or of a date of RFC 3339; None for anything else."""
    if isinstance(value, str):
        value = _number(value) or _date(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        return None
    return value / 1000 if value >= _MILLISECONDS_FROM else float(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def count_of(of: Any, name: str) -> int | None:
    """A count within an object; None when it is not told."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if type(value) is int and value >= 0 else None


def text_of(of: Any, name: str) -> str | None:
    """A text within an object; None when there is none, or an empty one."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, str) and value else None
