"""What a function of the user's is given, and what it may give back: values that JSON holds without loss.

Taken as they are: text, numbers, true, false, None, dict with text keys, list. Converted, as nothing is lost: a tuple
to a list, a kind of dict or list to a plain one, a member of a text or whole-number Enum to its value. All else is
refused by name, with what to write instead: agac does not guess how a date or a Decimal should look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

from agac.core.types import JSONValue
from agac.data.jsontext import MAX_DEPTH

_TOO_LONG = 10**4300
"""Python writes no longer number as text."""

_REMEDIES: dict[str, str] = {
    "bytes": "give text, as value.decode()",
    "bytearray": "give text, as value.decode()",
    "datetime": "give text, as value.isoformat()",
    "date": "give text, as value.isoformat()",
    "time": "give text, as value.isoformat()",
    "timedelta": "give a number, as value.total_seconds()",
    "Decimal": "give text or a number, as str(value) or float(value)",
    "Fraction": "give text or a number, as str(value) or float(value)",
    "complex": "give its parts, as [value.real, value.imag]",
    "set": "give a list, as sorted(value)",
    "frozenset": "give a list, as sorted(value)",
    "UUID": "give text, as str(value)",
    "generator": "give a list, as list(value)",
    "coroutine": "write the function with async def, or await it",
}


class Unfit(Exception):
    """A value that JSON does not hold. `path` leads to it from the outside, `what` says what it is and the remedy."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.')} {self.what}".strip()


def plain(value: Any, depth: int = 0) -> JSONValue:
    """A copy of `value` that shares nothing with it. Raises Unfit."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _whole(value)
    if kind is float:
        if math.isfinite(value):
            return value
        raise Unfit(f"is {value}, which JSON has not; give None or a finite number")
    return _composed(value, kind, depth)


def _composed(value: Any, kind: type, depth: int) -> JSONValue:
    if depth >= MAX_DEPTH:
        raise Unfit(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {_key(key): _inner(inner, f".{key}", depth) for key, inner in value.items()}
    if isinstance(value, list) or kind is tuple:
        return [_inner(inner, f"[{i}]", depth) for i, inner in enumerate(value)]
    if isinstance(value, Enum) and isinstance(value, (str, int)):
        return plain(value.value, depth + 1)
    raise Unfit(f"is {_a(kind.__name__)}, which JSON has not; {_remedy(value, kind)}")


def _inner(value: Any, step: str, depth: int) -> JSONValue:
    try:
        return plain(value, depth + 1)
    except Unfit as unfit:
        unfit.path.append(step)
        raise


def _key(key: Any) -> str:
    if type(key) is str:
        return key if key.isascii() else _text(key)
    if isinstance(key, Enum) and isinstance(key, str) and type(key.value) is str:
        return _text(key.value)
    raise Unfit(f"has the key {_shown(key)}, {_a(type(key).__name__)}; keys are text: give str(key)")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        what = "holds half of a surrogate pair, which no UTF-8 text can; give value.encode('utf-8', 'replace').decode()"
        raise Unfit(what) from None
    return value


def _whole(value: int) -> int:
    if not -_TOO_LONG < value < _TOO_LONG:
        raise Unfit("is a number of more than 4,300 digits; give text or a float")
    return value


def _remedy(value: Any, kind: type) -> str:
    checks: tuple[tuple[Callable[[Any], bool], str], ...] = (
        (lambda v: hasattr(v, "model_dump"), "give value.model_dump(mode='json')"),
        (lambda v: hasattr(v, "__dataclass_fields__"), "give dataclasses.asdict(value)"),
        (lambda v: hasattr(v, "_asdict"), "give value._asdict() or list(value)"),
        (lambda v: hasattr(v, "tolist"), "give value.tolist()"),
        (lambda v: hasattr(v, "__await__"), _REMEDIES["coroutine"]),
        (lambda v: hasattr(v, "__fspath__"), "give text, as str(value)"),
    )
    if kind.__name__ in _REMEDIES:
        return _REMEDIES[kind.__name__]
    known = (remedy for fits, remedy in checks if fits(value))
    return next(known, "give text, a number, true, false, None, a list or a dict")


def _shown(key: Any) -> str:
    return repr(key) if isinstance(key, (int, float, bytes, tuple)) or key is None else "of another kind"


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
