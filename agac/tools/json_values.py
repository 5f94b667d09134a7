"""Values of Python as JSON has them: those that functions of the project are given and give back.

What JSON has is taken as it is. If nothing is lost, a value is converted: a tuple to a list, a kind
of dict or list to a plain one, a member of a text or whole-number Enum to its value. All else is
refused, with what to write instead: agac does not guess how a date or a Decimal should look."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, cast

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue
from agac.data.json_formats import MAX_DEPTH

_TOO_LONG = 10**4300
"""The first number that Python does not write as text."""

_REMEDIES: dict[str, str] = {
    **dict.fromkeys(("bytes", "bytearray"), "give text, as value.decode()"),
    **dict.fromkeys(("datetime", "date", "time"), "give text, as value.isoformat()"),
    "timedelta": "give a number, as value.total_seconds()",
    **dict.fromkeys(
        ("Decimal", "Fraction"), "give text or a number, as str(value) or float(value)"
    ),
    "complex": "give its parts, as [value.real, value.imag]",
    **dict.fromkeys(("set", "frozenset"), "give a list, as sorted(value)"),
    "UUID": "give text, as str(value)",
    "generator": "give a list, as list(value)",
    "coroutine": "write the function with async def, or await it",
}
"""What to write instead, by the name of the value's type."""

_BY_ATTRIBUTE: dict[str, str] = {
    "model_dump": "give value.model_dump(mode='json')",
    "__dataclass_fields__": "give dataclasses.asdict(value)",
    "_asdict": "give value._asdict() or list(value)",
    "tolist": "give value.tolist()",
    "__await__": _REMEDIES["coroutine"],
    "__fspath__": "give text, as str(value)",
}
"""What to write instead, by the first of these attributes that the value has."""

_KINDS = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    type(None): "None",
}


class Unfit(Exception):
    """A value that JSON does not hold: what it is, and the remedy."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []
        """The steps that lead to the value, the last one first."""

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.')} {self.args[0]}".strip()


def plain(value: Any, depth: int = 0) -> JSONValue:
    """Copies a value; the copy shares nothing with it. Raises Unfit."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _integer(value)
    if kind is float:
        return _float(value)
    if depth >= MAX_DEPTH:
        raise Unfit(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {_key(key): _inner(inner, f".{key}", depth) for key, inner in value.items()}
    if isinstance(value, list) or kind is tuple:
        return [_inner(inner, f"[{index}]", depth) for index, inner in enumerate(value)]
    if isinstance(value, Enum) and isinstance(value, (str, int)):
        return plain(value.value, depth + 1)
    raise Unfit(f"is {_with_article(kind.__name__)}, which JSON has not; {_remedy_for(value)}")


def _integer(value: int) -> int:
    if not -_TOO_LONG < value < _TOO_LONG:
        raise Unfit("is a number of more than 4,300 digits; give text or a float")
    return value


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise Unfit(f"is {value}, which JSON has not; give None or a finite number")
    return value


def _remedy_for(value: Any) -> str:
    """Says what to write instead of a value that JSON does not hold."""
    remedy = _REMEDIES.get(type(value).__name__)
    if remedy is not None:
        return remedy
    for attribute, remedy in _BY_ATTRIBUTE.items():
        if hasattr(value, attribute):
            return remedy
    return "give text, a number, true, false, None, a list or a dict"


def _inner(value: Any, step: str, depth: int) -> JSONValue:
    """Copies a value inside another one; `step` leads there."""
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
    if isinstance(key, (int, float, bytes, tuple)) or key is None:
        shown = repr(key)
    else:
        shown = "of another kind"
    kind = _with_article(type(key).__name__)
    raise Unfit(f"has the key {shown}, {kind}; keys are text: give str(key)")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        what = (
            "holds half of a surrogate pair, which no UTF-8 text can; give "
            "value.encode('utf-8', 'replace').decode()"
        )
        raise Unfit(what) from None
    return value


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


Record = dict[str, JSONValue]

Returned = Record | list[Record] | None
"""What a function gave for a row: one row, a list of rows, or None; copies."""


def returned(value: Any, named: str) -> Returned | RowError:
    """Returns what `value` means for the row, copied, or a failure. `named` is the function, as
    `tools/clean.py:normalise`."""
    try:
        if value is None or isinstance(value, dict):
            return cast("Returned", plain(value))
        if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
            return [_record(row, f"[{index}]") for index, row in enumerate(value)]
        _close_coroutine(value)
        plain(value)  # says what it is, if it is nothing that JSON has
        raise Unfit(
            f"is {_kind(value)}; give a dict or None; "
            "where the stage has neither explode nor group_by a list of dicts does as well"
        )
    except Unfit as unfit:
        subject = "" if unfit.path else "what it gave "
        return RowError(ErrorType.PYTHON_ERROR, f"{subject}{unfit} ({named})")


def _record(value: Any, step: str) -> Record:
    """Copies one row of a list that a function gave."""
    try:
        copy = plain(value)
        if not isinstance(copy, dict):
            raise Unfit(f"is {_kind(value)}; each row of a list is a dict")
        return copy
    except Unfit as unfit:
        unfit.path.append(step)
        raise


def _close_coroutine(value: Any) -> None:
    """Closes what a function gave to await, which would not be awaited: Python would complain."""
    close = getattr(value, "close", None)
    if hasattr(value, "__await__") and callable(close):
        close()


def _kind(value: Any) -> str:
    return _KINDS.get(type(value)) or type(value).__name__
