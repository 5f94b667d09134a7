"""Functions of the project: imported, called in threads, their prints to standard error; values as
JSON has them."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO, cast
from weakref import WeakSet

from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.types import JSONValue
from agac.data.json_formats import MAX_DEPTH
from agac.spec.python_code import FunctionInput, FunctionRef, as_written, import_file, source_hash

# Taken as they are: what JSON has. Converted, as nothing is lost: a tuple to a list, a kind of dict
# or list to a plain one, a member of a text or whole-number Enum to its value. All else is refused,
# with what to write instead: agac does not guess how a date or a Decimal should look.

_TOO_LONG = 10**4300  # Python writes no longer number as text

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
"""The same by an attribute that the value has, the first that it has."""


class Unfit(Exception):
    """A value that JSON does not hold: what it is, and the remedy. `path` leads to it, its last
    step first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.')} {self.args[0]}".strip()


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
    remedy = _REMEDIES.get(kind.__name__) or next(
        known, "give text, a number, true, false, None, a list or a dict"
    )
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
    if isinstance(key, (int, float, bytes, tuple)) or key is None:
        shown = repr(key)
    else:
        shown = "of another kind"
    raise Unfit(f"has the key {shown}, {_a(type(key).__name__)}; keys are text: give str(key)")


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


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


MOST_MESSAGE = 500  # characters of an exception's text in a message
MOST_TRACEBACK = 20_000  # characters of a traceback; of a longer one the middle is left out
_PACKAGE = str(Path(__file__).parent.parent) + os.sep

Record = dict[str, JSONValue]

Returned = Record | list[Record] | None
"""What a function gave for a row: one row, a list of rows, or None; copies. Else there is a
RowError: its message is a line and ends with the place in the user's file; its detail is the
traceback, if any, from the user's own frame."""


def returned(value: Any, named: str) -> Returned | RowError:
    """What `value` means for the row, copied, or a failure. `named`: the function, as
    `tools/clean.py:normalise`."""
    try:
        if value is None or isinstance(value, dict):
            return cast("Returned", plain(value))
        if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
            return [
                cast("Record", _inner(one, f"[{i}]", -1, row=True)) for i, one in enumerate(value)
            ]
        if hasattr(value, "__await__") and callable(close := getattr(value, "close", None)):
            close()  # nobody will await it: before Python complains about it
        plain(value)  # says what it is, if it is nothing that JSON has
        lists = "where the stage has neither explode nor group_by a list of dicts does as well"
        raise Unfit(f"is {_kind(value)}; give a dict or None; {lists}")
    except Unfit as unfit:
        subject = "" if unfit.path else "what it gave "
        return RowError(ErrorType.PYTHON_ERROR, f"{subject}{unfit} ({named})")


def _kind(value: Any) -> str:
    words = {
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        tuple: "a list",
    }
    return words.get(type(value)) or ("None" if value is None else type(value).__name__)


def failure(error: BaseException, root: Path, named: str) -> RowError:
    """What a user should know of an exception that their function raised. The traceback leaves out
    the frames of agac, of Python's import and those before the user's first, and names the
    project's files from its root."""
    raised = traceback.TracebackException.from_exception(error, compact=True)
    home = str(root.resolve()) + os.sep
    for one in _chain(raised):
        kept = [
            frame
            for frame in one.stack
            if not frame.filename.startswith((_PACKAGE, "<frozen importlib"))
        ]
        first = next((i for i, frame in enumerate(kept) if frame.filename.startswith(home)), 0)
        for frame in kept:
            frame.filename = frame.filename.removeprefix(home)
        one.stack[:] = kept[first:]
    # the innermost line of the project's own files that the exception came through
    place = named
    for frame in raised.stack:
        if frame.filename.endswith(".py") and not Path(frame.filename).is_absolute():
            if "site-packages" in frame.filename:
                place = place
            else:
                place = f"{frame.filename}:{frame.lineno}"
    text = as_written("".join(raised.format()))
    if len(text) > MOST_TRACEBACK:
        half = MOST_TRACEBACK // 2
        text = (
            f"{text[:half]}\n  … {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
        )
    return RowError(ErrorType.PYTHON_ERROR, f"{_one_line(error)} ({place})", text)


def _chain(raised: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, its causes, and the members of groups."""
    waiting: list[traceback.TracebackException | None] = [raised]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(as_written(str(error)).split())
    except Exception:  # noqa: BLE001  (the text of the user's own exception is the user's code)
        text = "(its text cannot be made)"
    if len(text) > MOST_MESSAGE:
        text = text[:MOST_MESSAGE] + "…"
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__


Function = Callable[[Any], Any]  # it is given a `FunctionInput`, and one of a tool its arguments
# a row holds results by stage, and so may be a little deeper than what a function may give
SPARE_DEPTH = -20


def import_function(ref: FunctionRef, root: Path, parameters: str = "…") -> Callable[..., Any]:
    """Imports the file and gives the function. What it prints meanwhile goes to standard error.
    Raises UsageError, the user's exception its cause, the traceback a note: it cannot be imported,
    is no function, or was changed."""
    try:
        with redirect_stdout(sys.stderr):
            module = import_file(ref.file, root)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # the user's code runs here and may raise anything, SystemExit too
        failed = failure(error, root, ref.shown)
        problem = UsageError(
            f"{ref} cannot be imported: {failed.message}", remedy=_remedy(error, ref)
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
    """The same of a function of a row or of a group's rows. Raises UsageError if it does not take
    one argument."""
    function = import_function(ref, root, "row")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        message = f"{ref} cannot be called with one argument, a row or the rows of a group: {error}"
        raise UsageError(
            message, remedy=f"Write def {ref.name}(row), or of groups def {ref.name}(rows)."
        ) from error
    except ValueError:  # written in C, or by a decorator of an unusual kind: the call shows
        pass
    return function


def _remedy(error: BaseException, ref: FunctionRef) -> str:
    if isinstance(error, ModuleNotFoundError):
        name = as_written(error.name or "")
    else:
        name = ""
    if name and (ref.file.parent / f"{name}.py").is_file():
        return (
            f"It stands beside {ref.shown}: write `from . import {name}`, or import it "
            "from the project's root."
        )
    if name:
        return f"Install the package that has {name!r} where agac runs, or correct the import."
    return f"Correct {ref.shown}, and try it: its imports start from the project's root."


def is_awaited(function: Function, ref: FunctionRef) -> bool:
    """Whether calling it gives something to await, also behind a decorator."""
    return ref.is_async or inspect.iscoroutinefunction(function)


_copied = partial(plain, depth=SPARE_DEPTH)
Take = Callable[[Any], Any]
Give = Callable[[Any, str], Any]  # what a function is given of what there is; what its result means


def outcome_of(
    function: Function,
    row: Any,
    root: Path,
    named: str,
    take: Take = _copied,
    give: Give = returned,
) -> Any | RowError:
    """What a function makes of a copy of `row`, whatever it raises."""
    try:
        value = function(take(row))
    except BaseException as error:  # noqa: BLE001  (the user's code may raise anything; SystemExit fails its row too)
        return failure(error, root, named)
    return give(value, named)


async def awaited(function: Function, row: FunctionInput) -> Any:
    """What a function gives that is called in an event loop."""
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
    """What such a function makes of a copy of `row`, here and now."""
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
    except BaseException as error:  # noqa: BLE001  (the user's code may raise anything; SystemExit fails its row)
        return failure(error, root, named)
    return give(value, named)


# Not `ThreadPoolExecutor`: it wakes the loop once for each call (here: once for all calls that
# ended meanwhile), and a call that never returns would keep the whole process from ending. And
# Python runs one thread at a time: threads that compute keep the event loop waiting, with 32 of
# them for a tenth of a second each time. So there are fewer of them as soon as the loop is late for
# what they ended, and more again while it is not; threads that wait cost it nothing.

MAX_LEFT = (
    100  # threads with calls that nobody waits for any more; beyond, such calls keep their places
)
MIN_THREADS = 2

LATE = 0.015  # seconds until the loop hears of a call's end: above, there are too many threads
IN_TIME = 0.004


@dataclass(slots=True, eq=False)
class _Call:
    """`left`: nobody waits for it any more, and its thread no longer counts."""

    given: Any
    waiter: asyncio.Future[Any]
    begun: bool = False
    ended: bool = False
    left: bool = False


class Threads:
    """Calls `function`, at most `most` times at once. Lives in one event loop; `close` waits for
    nobody."""

    def __init__(self, function: Callable[[Any], Any], most: int) -> None:
        self._function = function
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._ended: deque[tuple[_Call, Any, BaseException | None]] = deque()
        self._delivery_due = False
        self._delivery_at = 0.0
        self._late = 0.0  # seconds, smoothed
        self._now_most = float(most)
        self._lock = threading.Lock()  # for `_serving`, which threads change too
        self._open = 0  # calls that somebody waits for
        self._serving = 0  # threads that take calls
        self._left = 0  # threads with a call that nobody waits for

    async def call(self, given: Any) -> Any:
        """What `function` gives; raises what it raises."""
        call = _Call(given, self._loop.create_future())
        self._open += 1
        self._waiting.put(call)
        self._serve()
        try:
            return await call.waiter
        except asyncio.CancelledError:
            # its thread cannot be stopped, so another may take its place
            if call.begun and not call.ended and self._left < MAX_LEFT:
                call.left = True
                self._left += 1
                with self._lock:
                    self._serving -= 1
                self._serve()
            raise
        finally:
            self._open -= 1

    def close(self) -> None:
        """Threads end as soon as their calls do."""
        self._waiting.put(None)

    def _serve(self) -> None:
        with self._lock:
            if self._serving >= min(self._open, int(self._now_most)):
                return
            self._serving += 1
        threading.Thread(target=self._work, name="agac python stage", daemon=True).start()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.begun = True
            result = None
            error = None
            if not call.waiter.cancelled():
                try:
                    result = self._function(call.given)
                except BaseException as raised:  # noqa: BLE001  (it is raised where the call is awaited)
                    error = raised
            self._ended.append((call, result, error))
            if not self._delivery_due:
                self._delivery_due = True
                self._delivery_at = self._loop.time()
                with suppress(RuntimeError):  # the loop was closed: nobody waits
                    self._loop.call_soon_threadsafe(self._deliver)
            with self._lock:
                too_many = not call.left and self._serving > max(self._now_most, MIN_THREADS)
                self._serving -= too_many
            if call.left or too_many:
                return
        self._waiting.put(None)  # for the next thread

    def _deliver(self) -> None:
        self._adapt(self._loop.time() - self._delivery_at)
        self._delivery_due = False  # before the first is taken, so that none is left behind
        while self._ended:
            call, result, error = self._ended.popleft()
            call.ended = True
            self._left -= call.left
            if call.waiter.done():
                continue
            if error is None:
                call.waiter.set_result(result)
            else:
                call.waiter.set_exception(error)

    def _adapt(self, late: float) -> None:
        """How many threads there may be, after the loop was so many seconds late."""
        self._late += (late - self._late) / 4
        if self._late > LATE:
            self._now_most = max(self._now_most * 0.7, MIN_THREADS)
        elif self._late < IN_TIME:
            self._now_most = min(self._now_most + 0.25, self._most)


# Standard output is for results. `sys.stdout` is exchanged while a function is open, and decides at
# each use: what runs in the context of a call, and every thread that was started since, prints to
# standard error.

_in_call: ContextVar[bool] = ContextVar("_in_call", default=False)
_open = 0
_lock = threading.Lock()


class _Switch:
    """Stands for `sys.stdout`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        # not their idents, which the next thread gets again
        self._spared = WeakSet(threading.enumerate())

    def __getattr__(self, name: str) -> Any:
        theirs = _in_call.get() or threading.current_thread() not in self._spared
        return getattr(sys.stderr if theirs else self.stream, name)


@contextmanager
def exchanged() -> Iterator[None]:
    """Within it `user_code` has an effect."""
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
    """Within it, in this task or thread, code of the user's runs."""
    token = _in_call.set(True)
    try:
        yield
    finally:
        _in_call.reset(token)
