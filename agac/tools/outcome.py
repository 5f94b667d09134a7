"""One call of a function of the user's: what it gave, or why it failed, in the same words wherever it ran."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agac.core.types import JSONValue
from agac.spec.projectmodules import as_written
from agac.tools.plain import Unfit, plain

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
            return Returned("rows", tuple(_member(i, one) for i, one in enumerate(value)))
        _discard(value)
        plain(value)  # says what it is, if it is nothing that JSON has
        raise Unfit(f"is {_kind(value)}; give a dict, a list of dicts, or None")
    except Unfit as unfit:
        subject = "" if unfit.path else "what it gave "
        return FunctionFailed(f"{subject}{unfit} ({named})")


def _member(i: int, value: Any) -> Record:
    try:
        copy: JSONValue = plain(value)
        if not isinstance(copy, dict):
            raise Unfit(f"is {_kind(value)}; each row of a list is a dict")
    except Unfit as unfit:
        unfit.path.append(f"[{i}]")
        raise
    return copy


def _kind(value: Any) -> str:
    words = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", tuple: "a list"}
    return words.get(type(value)) or ("None" if value is None else type(value).__name__)


def _discard(value: Any) -> None:
    """Ends a coroutine that nobody will await, before Python complains about it."""
    close = getattr(value, "close", None)
    if hasattr(value, "__await__") and callable(close):
        close()


def failure(error: BaseException, root: Path, named: str) -> FunctionFailed:
    """What a user should know of an exception that their function raised."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    for one in _chain(told):
        _trim(one, root)
    return FunctionFailed(f"{_one_line(error)} ({_place(told, named)})", _bounded(as_written("".join(told.format()))))


def _place(told: traceback.TracebackException, named: str) -> str:
    """The innermost line of the project's own files that the exception came through."""
    for frame in reversed(told.stack):
        name = frame.filename
        if name.endswith(".py") and not Path(name).is_absolute() and "site-packages" not in name:
            return f"{name}:{frame.lineno}"
    return named


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, its causes, and the members of groups."""
    waiting: list[traceback.TracebackException | None] = [told]
    while waiting:
        if (one := waiting.pop()) is not None:
            yield one
            waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _trim(told: traceback.TracebackException, root: Path) -> None:
    """Leaves out the frames of agac, of Python's import and those before the user's first, and names the project's
    files from its root."""
    kept = [f for f in told.stack if not f.filename.startswith((_PACKAGE, "<frozen importlib"))]
    home = str(root.resolve()) + os.sep
    first = next((i for i, frame in enumerate(kept) if frame.filename.startswith(home)), 0)
    for frame in kept:
        frame.filename = frame.filename.removeprefix(home)
    told.stack[:] = kept[first:]


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(as_written(str(error)).split())
    except Exception:  # noqa: BLE001  (the text of the user's own exception is the user's code)
        text = "(its text cannot be made)"
    if len(text) > MOST_MESSAGE:
        text = text[:MOST_MESSAGE] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bounded(text: str) -> str:
    if len(text) <= MOST_TRACEBACK:
        return text
    half = MOST_TRACEBACK // 2
    return f"{text[:half]}\n  … {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
