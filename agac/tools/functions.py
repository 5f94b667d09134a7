"""Functions of the project: imported, called, and what they raise; their prints go to standard
error."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast
from weakref import WeakSet

from agac.core.errors import ErrorType, RowError, UsageError
from agac.spec.python_code import FunctionInput, FunctionRef, as_written, import_file, source_hash
from agac.tools.json_values import plain, returned

MAX_MESSAGE = 500
"""The most characters of an exception's text in a message."""
MAX_TRACEBACK = 20_000
"""The most characters of a traceback; of a longer one the middle is left out."""
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def failure(error: BaseException, root: Path, named: str) -> RowError:
    """Returns what a user should know of an exception that their function raised.

    The message is a line that ends with the place in the user's file. The detail is the traceback
    without the frames of agac, of Python's import and those before the user's first; it names the
    project's files from its root."""
    raised = traceback.TracebackException.from_exception(error, compact=True)
    home = str(root.resolve()) + os.sep
    for exception in _chain(raised):
        exception.stack[:] = _own_frames(exception.stack, home)
    text = as_written("".join(raised.format()))
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        left_out = f"  … {len(text) - 2 * half:,} characters are left out …"
        text = f"{text[:half]}\n{left_out}\n{text[-half:]}"
    message = f"{_one_line(error)} ({_place(raised.stack) or named})"
    return RowError(ErrorType.PYTHON_ERROR, message, text)


def _own_frames(stack: traceback.StackSummary, home: str) -> list[traceback.FrameSummary]:
    """Returns the frames from the first of the user's on, their files named from the root."""
    frames = [
        frame for frame in stack if not frame.filename.startswith((_PACKAGE, "<frozen importlib"))
    ]
    in_project = (index for index, frame in enumerate(frames) if frame.filename.startswith(home))
    first = next(in_project, 0)
    for frame in frames:
        frame.filename = frame.filename.removeprefix(home)
    return frames[first:]


def _place(stack: traceback.StackSummary) -> str | None:
    """Returns the innermost line of the project's own files that an exception came through."""
    for frame in reversed(stack):
        is_own = frame.filename.endswith(".py") and not Path(frame.filename).is_absolute()
        if is_own and "site-packages" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return None


def _chain(raised: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yields an exception, its causes, and the members of groups."""
    waiting: list[traceback.TracebackException | None] = [raised]
    while waiting:
        exception = waiting.pop()
        if exception is not None:
            yield exception
            members = getattr(exception, "exceptions", None) or ()
            waiting += [exception.__cause__, exception.__context__, *members]


def _one_line(error: BaseException) -> str:
    """Returns the name and the text of an exception on one line."""
    try:
        text = " ".join(as_written(str(error)).split())
    except Exception:  # noqa: BLE001  (the text of the user's own exception is the user's code)
        text = "(its text cannot be made)"
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE] + "…"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


Function = Callable[[Any], Any]
"""A function that is called with a `FunctionInput`, or, as a tool, with its arguments."""

SPARE_DEPTH = -20
"""How deep a row may be: it holds results by stage, and so may be a little deeper than what a
function may give."""


def import_function(ref: FunctionRef, root: Path, parameters: str = "…") -> Callable[..., Any]:
    """Imports the file and returns the function. What it prints meanwhile goes to standard error.

    Raises UsageError if it cannot be imported, is no function, or was changed; the user's
    exception is its cause, the traceback a note."""
    try:
        with redirect_stdout(sys.stderr):
            module = import_file(ref.file, root)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything, SystemExit too
        failed = failure(error, root, ref.shown)
        problem = UsageError(
            f"{ref} cannot be imported: {failed.message}", remedy=_import_remedy(error, ref)
        )
        problem.add_note(failed.detail)
        raise problem from error
    if source_hash(ref.file, root)[0] != ref.source_hash:
        message = f"{ref.shown}, or a file that it imports, was changed meanwhile"
        raise UsageError(message, remedy="Run the command again.")
    function: Callable[..., Any] | None = getattr(module, ref.name, None)
    if not callable(function):
        remedy = f"Write def {ref.name}({parameters})."
        raise UsageError(f"{ref} is no function once the file is imported", remedy=remedy)
    return function


def load_function(ref: FunctionRef, root: Path) -> Function:
    """Imports the function of a row or of a group's rows. Raises UsageError, also if it does not
    take one argument."""
    function = import_function(ref, root, "row")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        message = f"{ref} cannot be called with one argument, a row or the rows of a group: {error}"
        remedy = f"Write def {ref.name}(row), or of groups def {ref.name}(rows)."
        raise UsageError(message, remedy=remedy) from error
    except ValueError:  # written in C, or by a decorator of an unusual kind: the call shows
        pass
    return function


def _import_remedy(error: BaseException, ref: FunctionRef) -> str:
    name = ""
    if isinstance(error, ModuleNotFoundError):
        name = as_written(error.name or "")
    if name and (ref.file.parent / f"{name}.py").is_file():
        return (
            f"It stands beside {ref.shown}: write `from . import {name}`, or import it "
            "from the project's root."
        )
    if name:
        return f"Install the package that has {name!r} where agac runs, or correct the import."
    return f"Correct {ref.shown}, and try it: its imports start from the project's root."


def is_awaited(function: Function, ref: FunctionRef) -> bool:
    """True if calling the function gives something to await, also behind a decorator."""
    return ref.is_async or inspect.iscoroutinefunction(function)


_copied = partial(plain, depth=SPARE_DEPTH)
Take = Callable[[Any], Any]
"""Makes what a function is called with."""
Give = Callable[[Any, str], Any]
"""Makes the outcome of what a function gave; the text names the function."""


def outcome_of(
    function: Function,
    row: Any,
    root: Path,
    named: str,
    take: Take = _copied,
    give: Give = returned,
) -> Any | RowError:
    """Returns what a function makes of a copy of `row`, whatever it raises."""
    try:
        value = function(take(row))
    except BaseException as error:  # noqa: BLE001  (the user's code may raise anything)
        return failure(error, root, named)  # of SystemExit, too: it fails its row
    return give(value, named)


async def awaited(function: Function, row: FunctionInput) -> Any:
    """Returns what a function gives that is called in an event loop."""
    value = function(row)
    return await value if inspect.isawaitable(value) else value


async def awaited_outcome(
    function: Function,
    root: Path,
    named: str,
    row: Any,
    take: Take = _copied,
    give: Give = returned,
) -> Any | RowError:
    """Returns what such a function makes of a copy of `row`, in this task."""
    try:
        with user_code():
            value = await awaited(function, take(row))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return failure(error, root, named)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  (the user's code may raise anything)
        return failure(error, root, named)  # of SystemExit, too: it fails its row
    return give(value, named)


# Standard output is for results. `sys.stdout` is exchanged while a function is open, and decides at
# each use: what runs in the context of a call, and every thread that was started since, prints to
# standard error.

_in_call: ContextVar[bool] = ContextVar("_in_call", default=False)
_open = 0
_lock = threading.Lock()


class _Switch:
    """Takes the place of `sys.stdout`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        # not their idents, which the next thread gets again
        self._spared = WeakSet(threading.enumerate())

    def __getattr__(self, name: str) -> Any:
        is_users = _in_call.get() or threading.current_thread() not in self._spared
        return getattr(sys.stderr if is_users else self.stream, name)


@contextmanager
def exchanged() -> Iterator[None]:
    """Lets `user_code` have an effect within it."""
    global _open
    with _lock:
        _open += 1
        if _open == 1 and sys.stdout is not None:
            sys.stdout = cast("TextIO", _Switch(sys.stdout))
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0 and isinstance(sys.stdout, _Switch):
                sys.stdout = sys.stdout.stream


@contextmanager
def user_code() -> Iterator[None]:
    """Marks this task or thread as one in which the user's code runs."""
    token = _in_call.set(True)
    try:
        yield
    finally:
        _in_call.reset(token)
