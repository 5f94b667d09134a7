"""`python:` stages: one function of the project called for each row, in threads, in the loop or in processes."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import signal
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from agac.core.errors import UsageError
from agac.spec.python_code import FunctionRef
from agac.tools.functions import (
    SPARE_DEPTH,
    Function,
    FunctionFailed,
    Record,
    Returned,
    Threads,
    exchanged,
    failure,
    is_awaited,
    load_function,
    outcome_of,
    plain,
    returned,
    user_code,
)

# Not `ProcessPoolExecutor`: when a process dies, it fails every call and cannot say whose row it was; it cannot end
# one call; and it imports the main script of whoever uses agac as a library. Here a process runs `work_off` behind two
# pipes, in a session of its own: Ctrl-C does not reach it, and where it is killed, so is what it started.

MAX_WAIT_S = 5.0
"""Seconds for an idle process to end by itself, as its `atexit` functions want."""

_DRAIN = 0.1
"""Seconds for what an ended process wrote to arrive, where another process keeps its pipe open."""

_START = "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; del sys.argv[1:]; "
_MAIN = "from agac.tools.processes import work_off; work_off(given['work'])"

LENGTH = 8
"""Bytes of the length before each pickle. To a process: rows. Back: `True` when the function is there, then for each
row a `Returned` or a `FunctionFailed`; a UsageError's parts instead when the function cannot be had."""

WATCH = 1.0
"""Seconds between a process's looks whether agac is still there; a call may take hours after it was killed."""


def _frame(value: Any) -> bytes:
    """A value as it goes through a pipe."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH, "big") + body


def work_off(work: str) -> None:
    """The process: calls the function for rows that come in by the pipe, until the pipe ends. `work` is the pickle of
    the parent's id, the project's root and the function, in hexadecimal digits."""
    parent, root, ref = pickle.loads(bytes.fromhex(work))  # noqa: S301  (agac's own)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for agac, which decides what becomes of calls
    rows, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed, by C libraries and child processes too
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()

    def put(value: Any) -> None:
        try:
            answers.write(_frame(value))
            answers.flush()
        except BrokenPipeError:  # agac is gone
            os._exit(1)

    try:
        function = load_function(ref, root)
    except UsageError as error:
        put((error.message, error.remedy, getattr(error, "__notes__", [])))
        return

    async def awaited(row: Record) -> Any:
        value = function(row)
        return await value if inspect.isawaitable(value) else value

    # a function that is awaited has an event loop of its own here, the same for all rows
    loop = asyncio.Runner() if is_awaited(function, ref) else None
    called = function if loop is None else lambda row: loop.run(awaited(row))
    put(True)
    while len(head := rows.read(LENGTH)) == LENGTH:
        row: Record = pickle.loads(rows.read(int.from_bytes(head, "big")))  # noqa: S301  (agac's own)
        put(outcome_of(called, row, root, str(ref)))


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(WATCH)
    os._exit(1)


class Processes:
    """At most `most` processes, started as calls need them."""

    def __init__(self, ref: FunctionRef, root: Path, most: int) -> None:
        self._ref, self._root = ref, root
        self._places = asyncio.Semaphore(most)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def __aenter__(self) -> Processes:
        """Starts the first. Raises UsageError when the function cannot be had."""
        try:
            self._idle.append(await self._started())
        except BaseException:  # also when it is cancelled, no process stays
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def call(self, row: Record) -> Returned | FunctionFailed:
        """What the function gives for `row`; a failure also where the process dies of it."""
        async with self._places:
            worker = await self._free()
            try:
                answer: Returned | FunctionFailed = await worker.ask(row)
            except asyncio.CancelledError:
                worker.kill()
                raise
            except _Died as died:
                return FunctionFailed(f"{died} ({self._ref})")
            self._idle.append(worker)
        return answer

    async def _free(self) -> _Worker:
        while self._idle:
            if (worker := self._idle.pop()).is_alive():
                return worker
        self._all = {worker for worker in self._all if not worker.ended.done()}
        return await self._started()

    async def _started(self) -> _Worker:
        given = {"path": sys.path, "work": pickle.dumps((os.getpid(), self._root, self._ref)).hex()}
        program = (sys.executable, "-c", _START + _MAIN, json.dumps(given))
        worker = _Worker()
        self._all.add(worker)
        loop = asyncio.get_running_loop()
        try:
            await loop.subprocess_exec(lambda: worker, *program, start_new_session=True)
            ready = await worker.answer()
        except asyncio.CancelledError:
            worker.kill()
            raise
        except _Died as died:
            remedy = "See what it printed above; the file is imported by each process."
            raise UsageError(f"{self._ref} cannot be imported: {died}", remedy=remedy) from None
        if ready is not True:
            message, remedy, notes = ready
            error = UsageError(message, remedy=remedy)
            for note in notes:
                error.add_note(note)
            raise error
        return worker

    async def _end(self) -> None:
        for worker in self._all:
            worker.stop() if worker in self._idle else worker.kill()
        endings = [worker.ended for worker in self._all if worker.transport is not None]
        if endings:
            _, late = await asyncio.wait(endings, timeout=MAX_WAIT_S)
            for worker in self._all:
                worker.kill()
            if late:
                await asyncio.wait(late, timeout=MAX_WAIT_S)


class _Died(Exception):
    """A process ended without an answer; the text says how."""


class _Worker(asyncio.SubprocessProtocol):
    """Our end of one process."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.SubprocessTransport | None = None
        self._came = bytearray()
        self._waiter: asyncio.Future[Any] | None = None
        self._answers: list[Any] = []
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._exited = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return not self._exited and not self.ended.done()

    async def ask(self, row: Record) -> Any:
        """The answer to a row. Raises _Died."""
        self._input().write(_frame(row))
        return await self.answer()

    async def answer(self) -> Any:
        """What it says next. Raises _Died."""
        if self._answers:
            return self._answers.pop(0)
        if self.ended.done():
            raise _Died(self._how())
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def stop(self) -> None:
        """Lets it end: there are no more rows."""
        if self.is_alive():
            self._input().close()

    def kill(self) -> None:
        """Ends it, and what it started, in whatever it does."""
        if self.transport is None or self._exited:
            return
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self.transport.get_pid(), signal.SIGKILL)
            else:
                self.transport.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process was started."""
        self.transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """A part of an answer, or of what the function prints."""
        if fd != 1:
            if (stream := sys.stderr) is not None:  # as it is now: a live display may stand in for it
                stream.write(self._decode(data))
            return
        self._came += data
        while len(self._came) >= LENGTH:
            end = LENGTH + int.from_bytes(self._came[:LENGTH], "big")
            if len(self._came) < end:
                return
            answer = pickle.loads(memoryview(self._came)[LENGTH:end].tobytes())  # noqa: S301  (our own worker's)
            del self._came[:end]
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(answer)
            else:
                self._answers.append(answer)

    def process_exited(self) -> None:
        """Its last words may still be in the pipe."""
        self._exited = True
        self._loop.call_later(_DRAIN, self._over)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and so have its pipes."""
        self._over()

    def _over(self) -> None:
        if self.transport is not None:
            self.transport.close()
        if not self.ended.done():
            self.ended.set_result(None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(_Died(self._how()))

    def _how(self) -> str:
        code = self.transport.get_returncode() if self.transport is not None else None
        if code is None or code >= 0:
            return f"the process ended with exit status {code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
            more = "; the machine may be out of memory" if name == "SIGKILL" else ""
            return f"the process was killed by {name}{more}"
        return f"the process was killed by signal {-code}"

    def _input(self) -> asyncio.WriteTransport:
        assert self.transport is not None
        return cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))


__all__ = ["FunctionFailed", "Returned", "Runner", "load_function"]

THREADS = 32
"""Calls of a function at once, in threads; further ones wait. Enough for a function that waits for a database."""


class Runner:
    """Calls one function for many rows: `async with Runner(ref, root) as runner: await runner.call(row)`.

    A function written with `async def` is awaited in the event loop. Any other runs in threads, at most `THREADS` calls
    at once. With `processes`, calls run in that many processes, each with its own copy of the module; a process that
    dies fails the row that it had, and a new one takes its place. Entering raises UsageError (see `load_function`).
    """

    def __init__(self, ref: FunctionRef, root: Path, processes: int | None = None) -> None:
        self._ref, self._root, self._processes = ref, root, processes
        self._stack = AsyncExitStack()
        self._ask: Callable[[Record], Awaitable[Returned | FunctionFailed]]
        self._function: Function

    async def __aenter__(self) -> Runner:
        async with AsyncExitStack() as stack:
            if self._processes is not None:
                processes = await stack.enter_async_context(Processes(self._ref, self._root, self._processes))
                self._ask = processes.call
            else:
                stack.enter_context(exchanged())
                self._function = load_function(self._ref, self._root)
                self._ask = self._awaited
                if not is_awaited(self._function, self._ref):
                    threads = Threads(self._outcome, THREADS)
                    stack.callback(threads.close)
                    self._ask = threads.call
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def call(self, row: Record) -> Returned:
        """What the function gives for a copy of `row`. Raises FunctionFailed; UsageError when a further process finds
        that the function's text was changed.

        It may be cancelled. What a function does in a process ends then, as the process does; what it does in a thread
        goes on, and its result is thrown away.
        """
        outcome = await self._ask(row)
        if isinstance(outcome, FunctionFailed):
            raise outcome
        return outcome

    def _outcome(self, row: Record) -> Returned | FunctionFailed:
        """In a thread."""
        with user_code():
            return outcome_of(self._function, row, self._root, str(self._ref))

    async def _awaited(self, row: Record) -> Returned | FunctionFailed:
        try:
            with user_code():
                value = self._function(plain(row, SPARE_DEPTH))
                if inspect.isawaitable(value):
                    value = await value
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failure(error, self._root, str(self._ref))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  (the user's code may raise anything; SystemExit fails its row)
            return failure(error, self._root, str(self._ref))
        return returned(value, str(self._ref))
