"""A function of the project: imported, looked at, and called once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from agac.core.errors import UsageError
from agac.spec.functions import FunctionRef
from agac.spec.importing import source_hash
from agac.spec.projectmodules import as_written, import_file
from agac.tools.outcome import FunctionFailed, Record, Returned, failure, returned
from agac.tools.plain import plain

Function = Callable[[Record], Any]

SPARE_DEPTH = -20
"""A row holds results by stage, and so may be a little deeper than what a function may give."""


def load_function(ref: FunctionRef, root: Path) -> Function:
    """Imports the file and gives the function. What it prints meanwhile goes to standard error.

    Raises UsageError, with the user's exception as its cause and its traceback as a note: it cannot be imported, is no
    function of one row, or its text is not the one that `ref` was made of.
    """
    with redirect_stdout(sys.stderr):
        module = _imported(ref, root)
    if source_hash(ref.file, root)[0] != ref.source_hash:
        raise UsageError(
            f"{ref.shown}, or a file that it imports, was changed meanwhile", remedy="Run the command again."
        )
    function: Function | None = getattr(module, ref.name, None)
    if not callable(function):
        raise UsageError(f"{ref} is no function once the file is imported", remedy=f"Write def {ref.name}(row).")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise UsageError(
            f"{ref} cannot be called with one row: {error}", remedy=f"Write def {ref.name}(row)."
        ) from error
    except ValueError:  # written in C, or by a decorator of an unusual kind: the call shows
        pass
    return function


def _imported(ref: FunctionRef, root: Path) -> ModuleType:
    try:
        return import_file(ref.file, root)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code runs here and may raise anything, SystemExit too
        told = failure(error, root, ref.shown)
        problem = UsageError(f"{ref} cannot be imported: {told.message}", remedy=_remedy(error, ref))
        problem.add_note(told.traceback_text)
        raise problem from error


def _remedy(error: BaseException, ref: FunctionRef) -> str:
    name = as_written(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name and (ref.file.parent / f"{name}.py").is_file():
        return f"It stands beside {ref.shown}: write `from . import {name}`, or import it from the project's root."
    if name:
        return f"Install the package that has {name!r} where agac runs, or correct the import."
    return (
        f"Correct {ref.shown}, and try it: agac runs it with the project's root as the place that imports start from."
    )


def is_awaited(function: Function, ref: FunctionRef) -> bool:
    """Whether calling it gives something to await, also behind a decorator."""
    return ref.is_async or inspect.iscoroutinefunction(function)


def outcome_of(function: Function, row: Record, root: Path, named: str) -> Returned | FunctionFailed:
    """What a function makes of a copy of `row`, whatever it raises."""
    try:
        value = function(plain(row, SPARE_DEPTH))
    except BaseException as error:  # noqa: BLE001  (the user's code may raise anything; SystemExit fails its row too)
        return failure(error, root, named)
    return returned(value, named)
