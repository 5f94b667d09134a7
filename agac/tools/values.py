"""What a function is given and may return: values that JSON holds without loss, and why a call failed."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from agac.core.types import JSONValue
from agac.data.json_formats import MAX_DEPTH
from agac.spec.python_code import as_written

# Taken as they are: text, numbers, true, false, None, dict with text keys, list. Converted, as nothing is lost: a tuple
# to a list, a kind of dict or list to a plain one, a member of a text or whole-number Enum to its value. All else is
# refused by name, with what to write instead: agac does not guess how a date or a Decimal should look.

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
"""What to write instead, by the name of the value's type."""

_BY_ATTRIBUTE: dict[str, str] = {
    "model_dump": "give value.model_dump(mode='json')",
    "__dataclass_fields__": "give dataclasses.asdict(value)",
    "_asdict": "give value._asdict() or list(value)",
    "tolist": "give value.tolist()",
    "__await__": _REMEDIES["coroutine"],
    "__fspath__": "give text, as str(value)",
}
"""The same by an attribute that the value has, the first that it has."""


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
        if not -_TOO_LONG < value < _TOO_LONG:
            raise Unfit("is a number of more than 4,300 digits; give text or a float")
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise Unfit(f"is {value}, which JSON has not; give None or a finite number")
    if depth >= MAX_DEPTH:
        raise Unfit(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {_key(key): _inner(inner, f".{key}", depth) for key, inner in value.items()}
    if isinstance(value, list) or kind is tuple:
        return [_inner(inner, f"[{i}]", depth) for i, inner in enumerate(value)]
    if isinstance(value, Enum) and isinstance(value, (str, int)):
        return plain(value.value, depth + 1)
    known = (remedy for attribute, remedy in _BY_ATTRIBUTE.items() if hasattr(value, attribute))
    remedy = _REMEDIES.get(kind.__name__) or next(known, "give text, a number, true, false, None, a list or a dict")
    raise Unfit(f"is {_a(kind.__name__)}, which JSON has not; {remedy}")


def _inner(value: Any, step: str, depth: int, *, row: bool = False) -> JSONValue:
    try:
        copy = plain(value, depth + 1)
        if row and not isinstance(copy, dict):
            raise Unfit(f"is {_kind(value)}; each row of a list is a dict")
        return copy
    except Unfit as unfit:
        unfit.path.append(step)
        raise


def _key(key: Any) -> str:
    if type(key) is str:
        return key if key.isascii() else _text(key)
    if isinstance(key, Enum) and isinstance(key, str) and type(key.value) is str:
        return _text(key.value)
    shown = repr(key) if isinstance(key, (int, float, bytes, tuple)) or key is None else "of another kind"
    raise Unfit(f"has the key {shown}, {_a(type(key).__name__)}; keys are text: give str(key)")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        what = "holds half of a surrogate pair, which no UTF-8 text can; give value.encode('utf-8', 'replace').decode()"
        raise Unfit(what) from None
    return value


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


MOST_MESSAGE = 500
"""Characters of an exception's text in a message."""

MOST_TRACEBACK = 20_000
"""Characters of a traceback; of a longer one the middle is left out."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep

Record = dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class Returned:
    """What a function gave for a row: one row, a list of rows (perhaps empty), or None. `rows` are copies."""

    kind: Literal["row", "rows", "none"]
    rows: tuple[Record, ...]


class FunctionFailed(Exception):
    """A function gave no result for a row. `message` is one line and ends with the place in the user's file;
    `traceback_text` begins at the user's own frame, and is empty where no exception was raised."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message, traceback_text)  # both, so that it can be pickled
        self.message = message
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        return self.message


def returned(value: Any, named: str) -> Returned | FunctionFailed:
    """What `value` means for the row, copied; a failure for what is no row, no list of rows and not None.

    `named` is the function as the workflow names it: `tools/clean.py:normalise`.
    """
    if value is None:
        return Returned("none", ())
    try:
        if isinstance(value, dict):
            return Returned("row", (plain(value),))
        if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
            return Returned("rows", tuple(_inner(one, f"[{i}]", -1, row=True) for i, one in enumerate(value)))
        if hasattr(value, "__await__") and callable(close := getattr(value, "close", None)):
            close()  # nobody will await it: before Python complains about it
        plain(value)  # says what it is, if it is nothing that JSON has
        raise Unfit(f"is {_kind(value)}; give a dict, a list of dicts, or None")
    except Unfit as unfit:
        subject = "" if unfit.path else "what it gave "
        return FunctionFailed(f"{subject}{unfit} ({named})")


def _kind(value: Any) -> str:
    words = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", tuple: "a list"}
    return words.get(type(value)) or ("None" if value is None else type(value).__name__)


def failure(error: BaseException, root: Path, named: str) -> FunctionFailed:
    """What a user should know of an exception that their function raised. The traceback leaves out the frames of agac,
    of Python's import and those before the user's first, and names the project's files from its root."""
    raised = traceback.TracebackException.from_exception(error, compact=True)
    home = str(root.resolve()) + os.sep
    for one in _chain(raised):
        kept = [frame for frame in one.stack if not frame.filename.startswith((_PACKAGE, "<frozen importlib"))]
        first = next((i for i, frame in enumerate(kept) if frame.filename.startswith(home)), 0)
        for frame in kept:
            frame.filename = frame.filename.removeprefix(home)
        one.stack[:] = kept[first:]
    # the innermost line of the project's own files that the exception came through
    place = named
    for frame in raised.stack:
        if frame.filename.endswith(".py") and not Path(frame.filename).is_absolute():
            place = place if "site-packages" in frame.filename else f"{frame.filename}:{frame.lineno}"
    text = as_written("".join(raised.format()))
    if len(text) > MOST_TRACEBACK:
        half = MOST_TRACEBACK // 2
        text = f"{text[:half]}\n  … {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
    return FunctionFailed(f"{_one_line(error)} ({place})", text)


def _chain(raised: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, its causes, and the members of groups."""
    waiting: list[traceback.TracebackException | None] = [raised]
    while waiting:
        if (one := waiting.pop()) is not None:
            yield one
            waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(as_written(str(error)).split())
    except Exception:  # noqa: BLE001  (the text of the user's own exception is the user's code)
        text = "(its text cannot be made)"
    if len(text) > MOST_MESSAGE:
        text = text[:MOST_MESSAGE] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
