"""Functions of the project: imported, called in threads beside the event loop; their prints go to standard error."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TextIO, TypeVar, cast
from weakref import WeakSet

from agac.core.errors import UsageError
from agac.spec.python_code import FunctionRef, as_written, import_file, source_hash
from agac.tools.values import FunctionFailed, Record, Returned, failure, plain, returned

Function = Callable[[Record], Any]

SPARE_DEPTH = -20
"""A row holds results by stage, and so may be a little deeper than what a function may give."""


def load_function(ref: FunctionRef, root: Path) -> Function:
    """Imports the file and gives the function. What it prints meanwhile goes to standard error.

    Raises UsageError, with the user's exception as its cause and its traceback as a note: it cannot be imported, is no
    function of one row, or its text is not the one that `ref` was made of.
    """
    try:
        with redirect_stdout(sys.stderr):
            module = import_file(ref.file, root)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code runs here and may raise anything, SystemExit too
        failed = failure(error, root, ref.shown)
        problem = UsageError(f"{ref} cannot be imported: {failed.message}", remedy=_remedy(error, ref))
        problem.add_note(failed.traceback_text)
        raise problem from error
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


# Not `ThreadPoolExecutor`: it wakes the loop once for each call (here: once for all calls that ended meanwhile), and a
# call that never returns would keep the whole process from ending. And Python runs one thread at a time: threads that
# compute keep the event loop waiting, with 32 of them for a tenth of a second each time. So there are fewer of them as
# soon as the loop is late for what they ended, and more again while it is not; threads that wait cost it nothing.

_Given = TypeVar("_Given")
_Got = TypeVar("_Got")

MAX_LEFT = 100
"""Threads that may be left alone with calls that nobody waits for any more; beyond, such calls keep their places."""

MIN_THREADS = 2

LATE, IN_TIME = 0.015, 0.004
"""Seconds that the loop takes to hear of a call's end: above, there are too many threads; below, not."""


class _Call(Generic[_Given]):
    __slots__ = ("begun", "ended", "given", "left", "waiter")

    def __init__(self, given: _Given, waiter: asyncio.Future[Any]) -> None:
        self.given, self.waiter = given, waiter
        self.begun = self.ended = False
        self.left = False  # by whoever waited for it


class Threads(Generic[_Given, _Got]):
    """Calls `function`, at most `most` times at once. Lives in one event loop; `close` waits for nobody."""

    def __init__(self, function: Callable[[_Given], _Got], most: int) -> None:
        self._function, self._most = function, most
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[_Call[_Given] | None] = SimpleQueue()
        self._ended: deque[tuple[_Call[_Given], _Got | None, BaseException | None]] = deque()
        self._delivery_due = False
        self._delivery_at = 0.0
        self._late = 0.0  # seconds, smoothed
        self._now_most = float(most)
        self._lock = threading.Lock()  # for `_serving`, which threads change too
        self._open = 0  # calls that somebody waits for
        self._serving = 0  # threads that take calls
        self._left = 0  # threads with a call that nobody waits for

    async def call(self, given: _Given) -> _Got:
        """What `function` gives; raises what it raises."""
        call = _Call(given, self._loop.create_future())
        self._open += 1
        self._waiting.put(call)
        self._serve()
        try:
            result: _Got = await call.waiter
            return result
        except asyncio.CancelledError:
            self._leave(call)
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

    def _leave(self, call: _Call[_Given]) -> None:
        """A call that was cancelled: its thread cannot be stopped, so another may take its place."""
        if call.begun and not call.ended and self._left < MAX_LEFT:
            call.left = True
            self._left += 1
            with self._lock:
                self._serving -= 1
            self._serve()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.begun = True
            result, error = None, None
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


# Standard output is for results: what functions of the user's print goes to standard error.
#
# `sys.stdout` is exchanged while a Runner is open, and decides at each use: what runs in the context of a call, and
# every thread that was started since, prints to standard error; all others print where they did.

_in_call: ContextVar[bool] = ContextVar("_in_call", default=False)
_open = 0
_lock = threading.Lock()


class _Switch:
    """Stands for `sys.stdout`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._spared = WeakSet(threading.enumerate())  # not their idents, which the next thread gets again

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
