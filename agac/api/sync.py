"""Functions that wait, called without `await`: `blocking` makes one of a coroutine function, which
also works while a loop runs, and `asynchronous` returns that function again; `iterating` does it
for iterators. Ctrl-C while they wait."""

from __future__ import annotations

import ast
import asyncio
import dis
import linecache
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib import import_module
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any, ParamSpec, Protocol, TypeVar

from agac.core.arguments import typed
from agac.core.errors import UsageError

_LOOK_SECONDS = 0.1
"""Seconds after which a thread that waits looks for a Ctrl-C, which the system may have given to
another thread."""

_INSIST_SECONDS = 0.3
"""How long the event loop may take to notice a Ctrl-C. Work that keeps it busy for longer is
broken off."""

_HASTY_SECONDS = 0.0001
"""After a signal, how long a thread of Python may compute while another waits for its turn. The
event loop waits in one line with functions of the project that compute; with Python's own 5 ms and
20 such threads it took 14 s to end."""

P = ParamSpec("P")
T = TypeVar("T")


class StopSwitch(Protocol):
    """Ends the work of a function in good order."""

    asked: bool
    """Set at once by a signal, also while the event loop is busy: work in pieces looks at it
    before each piece."""

    def interrupt(self) -> None:
        """Ends the work; called on the event loop, as soon as it is free."""


@dataclass(slots=True)
class Interrupts:
    """Handles Ctrl-C while a function that `blocking` made is at work."""

    count: int = 0
    """How often Ctrl-C was pressed."""
    stop: StopSwitch | None = None
    """Ends the work in good order; the work sets it. Without it, the task is cancelled, and the
    second Ctrl-C does not wait for that."""
    task: asyncio.Task[Any] | None = None
    """The work."""
    noticed: bool = False
    """True if the event loop has been free since the first Ctrl-C. If it is too busy, a second one
    is sent."""
    insisting: threading.Timer | None = None
    """Sends the second Ctrl-C."""
    switch_seconds: float | None = None
    """Python's switch interval before `hurry`, which `end` sets again."""

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handles SIGINT, in the thread in which the work is done or waited for."""
        self.hurry()
        self.interrupt()
        if self.count == 1 and self.stop is None and hasattr(signal, "pthread_kill"):
            again = (threading.get_ident(), signal.Signals(number))
            self.insisting = threading.Timer(_INSIST_SECONDS, self._insist, again)
            self.insisting.daemon = True
            self.insisting.start()

    def interrupt(self) -> None:
        """Takes one Ctrl-C, from a signal handler or from the thread that waits."""
        self.count += 1
        if self.count > 1 and self.stop is None:
            raise KeyboardInterrupt
        if self.stop is not None:
            self.stop.asked = True
        if self.task is not None:
            with suppress(RuntimeError):  # it has ended, and its loop is closed
                self.task.get_loop().call_soon_threadsafe(self._notice)

    def _notice(self) -> None:
        """Ends the work; called on the event loop."""
        self.noticed = True
        if self.stop is not None:
            self.stop.interrupt()
        elif self.task is not None:
            self.task.cancel()

    def _insist(self, thread: int, number: signal.Signals) -> None:
        """Sends a second signal if the event loop did not notice the first one."""
        if not self.noticed and self.stop is None:
            signal.pthread_kill(thread, number)

    def hurry(self) -> None:
        """Gives the event loop its turn soon, even while many threads compute."""
        if self.switch_seconds is None:
            self.switch_seconds = sys.getswitchinterval()
            sys.setswitchinterval(_HASTY_SECONDS)

    def end(self) -> None:
        """Sends no signal from now on, and restores Python's switch interval."""
        if self.switch_seconds is not None:
            sys.setswitchinterval(self.switch_seconds)
            self.switch_seconds = None
        if self.insisting is not None:
            self.insisting.cancel()
            self.insisting.join()

    def wait_for(self, call: Callable[[], T]) -> T:
        """Makes the call on this thread, or on another one if a loop runs on this one already, as
        in a notebook."""
        if asyncio._get_running_loop() is None:
            return call()
        with futures.ThreadPoolExecutor(1, "agac") as threads:
            return self.result_of(threads.submit(call))

    def result_of(self, called: futures.Future[T]) -> T:
        """Returns the result of a call in another thread; Ctrl-C does not end the wait."""
        while not called.done():
            try:
                futures.wait([called], _LOOK_SECONDS)
            except KeyboardInterrupt:
                self.interrupt()
        return called.result()


INTERRUPTS: ContextVar[Interrupts] = ContextVar("INTERRUPTS")
"""Those of the function made by `blocking` that is at work."""


def blocking(
    work: Callable[P, Coroutine[Any, Any, T]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Callable[P, T]:
    """Makes an ordinary function of `work`, which runs it to its end on an event loop of its own,
    even if a loop runs already. Ctrl-C ends the work in good order, then KeyboardInterrupt is
    raised; other exceptions are raised as they are. If it is awaited by mistake, or given arguments
    of a wrong type, it raises UsageError before it begins."""
    work = typed(work)

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        _refuse_awaited(work.__name__, sys._getframe(1))
        interrupts = Interrupts()  # a notebook knows its cell by the context
        context = copy_context()

        def finish() -> T:
            INTERRUPTS.set(interrupts)
            with asyncio.Runner(loop_factory=new_loop) as runner:
                interrupts.task = task = runner.get_loop().create_task(work(*args, **kwargs))
                if interrupts.count:  # before there was a task
                    task.cancel()
                return runner.get_loop().run_until_complete(task)

        before = _replaceable_handler()
        if before is not None:
            signal.signal(signal.SIGINT, interrupts.handle)
        try:
            result = interrupts.wait_for(lambda: context.run(finish))
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
        finally:
            try:
                interrupts.end()
            finally:
                if before is not None:
                    signal.signal(signal.SIGINT, before)
        if interrupts.count:
            raise KeyboardInterrupt
        return result

    return call


def _replaceable_handler() -> Any:
    """Returns the handler of SIGINT if it is Python's or asyncio's, which would cancel the caller.
    None if a program has a handler of its own, or this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    if handler is signal.default_int_handler or isinstance(runner, asyncio.Runner):
        return handler
    return None


def _is_awaited(caller: FrameType) -> bool:
    """True if a function awaits what it is calling now, as its next instruction tells."""
    instructions = dis.get_instructions(caller.f_code)
    following = (each for each in instructions if each.offset > caller.f_lasti)
    return next((each.opname == "GET_AWAITABLE" for each in following), False)


_OF_ASYNCIO = {"as_completed", "ensure_future", "gather", "run", "shield", "wait", "wait_for"}
"""Functions of asyncio that await what they are given."""

_OF_LOOPS = {"create_task", "run_until_complete"}
"""Functions and methods of these names await what they are given."""


def _may_use_asyncio(code: CodeType, known: Mapping[str, Any]) -> bool:
    """True if the source has to be read, which takes some milliseconds. In Python 3.11 a
    comprehension has a code of its own, without the names around it."""
    if code.co_name.startswith("<") and code.co_name != "<module>":
        return True
    of_asyncio = _OF_ASYNCIO - {"run"} | _OF_LOOPS
    values = (known.get(name) for name in code.co_names)
    if any(value is asyncio or value is asyncio.run for value in values):
        return True
    return not of_asyncio.isdisjoint(code.co_names)


_COLLECTIONS = (
    ast.Starred,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.ListComp,
    ast.SetComp,
    ast.GeneratorExp,
)
"""Expressions in which a value may be given to a function."""


@lru_cache(64)
def _taker(code: CodeType, at: int) -> ast.expr | None:
    """Returns the function to which the value of the call at `at` in `code` is given at once, also
    in a list. None if it is given to none, or the source is missing."""
    line, _, column, _ = list(code.co_positions())[at // 2]
    source = "".join(linecache.getlines(code.co_filename))
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # it was edited meanwhile
        return None
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset) == (line, column)
    ]
    if not calls:
        return None
    longest = max(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    node = parents.get(longest)
    while isinstance(node, _COLLECTIONS):
        node = parents.get(node)
    return node.func if isinstance(node, ast.Call) else None


def _awaits(taker: ast.expr | None, known: Mapping[str, Any]) -> bool:
    """True if a function awaits what it is given. `known` are the names of its module."""
    if isinstance(taker, ast.Attribute):
        module = taker.value.id if isinstance(taker.value, ast.Name) else ""
        of_asyncio = module == "asyncio" or known.get(module) is asyncio
        return taker.attr in _OF_LOOPS or (of_asyncio and taker.attr in _OF_ASYNCIO)
    function = known.get(taker.id) if isinstance(taker, ast.Name) else None
    names = _OF_ASYNCIO | {"create_task"}
    return any(function is getattr(asyncio, name) for name in names)


def _refuse_awaited(name: str, caller: FrameType) -> None:
    """Raises UsageError if a function that waits by itself is awaited, or given to what awaits it,
    before it does anything that would be lost with its result. Does not notice a result that is
    kept and awaited later."""
    code = caller.f_code
    taker = None
    awaited = asyncio._get_running_loop() is not None and _is_awaited(caller)
    if not awaited and _may_use_asyncio(code, caller.f_globals):
        taker = _taker(code, caller.f_lasti)
    if not awaited and not _awaits(taker, caller.f_globals):
        return
    public = import_module("agac.api").__all__
    twin = name if name.startswith("a") and name[1:] in public else f"a{name}"
    remedy = f"Write `await agac.{twin}(…)`, or leave out `await`."
    if taker is not None:
        remedy = f"Write `{ast.unparse(taker)}(agac.{twin}(…))`."
    raise UsageError(
        f"agac.{twin[1:]} waits by itself, and what it gives cannot be awaited", remedy=remedy
    )


def asynchronous(call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns the coroutine function of which `blocking` made `call`: its async twin."""
    work: Callable[P, Coroutine[Any, Any, T]] = vars(call)["__wrapped__"]
    return work


def calling(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Makes an ordinary function of `work`, on uvloop's loop if that is installed: it takes less
    CPU per call."""
    return blocking(
        work, lambda: import_module("uvloop" if find_spec("uvloop") else "asyncio").new_event_loop()
    )


def iterating(work: Callable[P, AsyncGenerator[T]]) -> Callable[P, Generator[T]]:
    """Makes an ordinary generator function of `work`, whose loop runs in a thread, so that it also
    works while a loop runs. A caller that leaves it early, also by Ctrl-C, waits until it has ended
    in good order."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        interrupts = Interrupts()
        context = copy_context()
        loop = asyncio.new_event_loop()
        context.run(INTERRUPTS.set, interrupts)
        values = work(*args, **kwargs)
        thread = threading.Thread(target=loop.run_forever, name="agac", daemon=True)
        thread.start()

        async def following() -> list[T]:
            return [await anext(values)]

        async def ended() -> list[T]:
            await values.aclose()
            await loop.shutdown_default_executor()
            return []

        def wait_for(step: Coroutine[Any, Any, list[T]]) -> list[T]:
            return interrupts.result_of(context.run(asyncio.run_coroutine_threadsafe, step, loop))

        try:
            with suppress(StopAsyncIteration):
                while not interrupts.count:
                    yield from wait_for(following())
        finally:
            wait_for(ended())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        if interrupts.count:
            raise KeyboardInterrupt

    return call


@contextmanager
def interruptible(stop: StopSwitch, *, signals: bool) -> Iterator[None]:
    """Makes Ctrl-C turn `stop` during the block: the first one ends the work in good order, the
    second one at once. It takes the Ctrl-C of a function made by `blocking`, and with `signals`
    SIGINT and SIGTERM, which only the main thread gets."""
    on_main = threading.current_thread() is threading.main_thread()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM) if signals and on_main else ()
    within = INTERRUPTS.get(None)
    interrupts = within or Interrupts()

    def ask(*_: object) -> None:
        stop.asked = True
        interrupts.hurry()

    for number in numbers:
        # tells of each signal, once the loop is free
        loop.add_signal_handler(number, stop.interrupt)
        signal.signal(number, ask)  # at once, in the place of a handler that does nothing
    interrupts.stop = stop
    try:
        yield
    finally:
        interrupts.stop = None
        for number in numbers:
            loop.remove_signal_handler(number)
        if within is None:
            interrupts.end()
