"""`python:` stages: one function of the project called for each row, in threads, in the loop or in
processes."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.state_files import make_file
from agac.spec.python_code import FunctionInput, FunctionRef
from agac.tools import functions
from agac.tools.json_values import Returned
from agac.tools.threads import Threads

# Not `ProcessPoolExecutor`: when a process dies, it fails every call and cannot say whose row it
# was; it cannot end one call; and it imports the main script of a program that uses agac as a
# library. Here a process runs `work_off` behind two pipes, in a session of its own: Ctrl-C does not
# reach it, and if it is killed, so is what it started.

MAX_WAIT_S = 5.0  # seconds for an idle process to end by itself, as its `atexit` functions want
# seconds for what an ended process wrote to arrive, where another process keeps its pipe open
_DRAIN = 0.1
_START = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; del "
    "sys.argv[1:]; "
)
_MAIN = "from agac.tools.processes import work_off; work_off(given['work'])"
LENGTH = 8
"""Bytes of the length before each pickle: rows, and back None or a UsageError for the function,
then rows' outcomes."""

# seconds between a process's looks whether agac is still there; a call may take hours after it was
# killed
WATCH = 1.0
THREADS = 32  # calls of a function at once; enough for one that waits for a database
Call = Callable[[FunctionInput], Awaitable[Returned | RowError]]


@asynccontextmanager
async def open_function(
    ref: FunctionRef, root: Path, processes: int | None = None, timeout: float | None = None
) -> AsyncIterator[Call]:
    """Opens a function for many rows: `async with open_function(ref, root) as call: await
    call(row)`.

    One written with `async def` is awaited in the event loop, any other runs in threads, at most
    `THREADS` calls at once. With `processes` calls run in that many processes, each with its own
    copy of the module; one that dies, or is ended as its call takes longer than `timeout` seconds,
    fails the row that it had, and a new one takes its place. A call gets a copy of its row, and may
    be cancelled: in a process it ends then, in a thread it continues without effect.

    Raises UsageError (see `load_function`), later too if a further process finds that the
    function's text was changed."""
    async with AsyncExitStack() as stack:
        if processes is not None:
            workers = Processes(ref, root, processes, timeout)
            stack.push_async_callback(workers.end)
            await workers.start()
            yield workers.call
            return
        stack.enter_context(functions.exchanged())
        function = functions.load_function(ref, root)
        if functions.is_awaited(function, ref):
            yield partial(functions.awaited_outcome, function, root, str(ref))
            return

        def in_thread(row: FunctionInput) -> Returned | RowError:
            with functions.user_code():
                return functions.outcome_of(function, row, root, str(ref))

        threads = Threads(in_thread, THREADS)
        stack.callback(threads.close)
        yield threads.call


def _frame(value: Any) -> bytes:
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH, "big") + body


def work_off(work: str) -> None:
    """Calls the function, in a process, for rows that come in by the pipe, until the pipe ends.
    `work` is the pickle of the parent's id, the project's root and the function, in hexadecimal
    digits."""
    parent, root, ref = pickle.loads(bytes.fromhex(work))  # noqa: S301  (agac's own)
    # Ctrl-C is for agac, which decides what becomes of calls
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rows = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
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
        function = functions.load_function(ref, root)
    except UsageError as error:
        put(error)
        return
    # a function that is awaited has an event loop of its own here, the same for all rows
    loop = asyncio.Runner() if functions.is_awaited(function, ref) else None
    called = function
    if loop is not None:

        def called(row: FunctionInput) -> Any:
            return loop.run(functions.awaited(function, row))

    put(None)
    while len(head := rows.read(LENGTH)) == LENGTH:
        row: FunctionInput = pickle.loads(rows.read(int.from_bytes(head, "big")))  # noqa: S301  (agac's own)
        put(functions.outcome_of(called, row, root, str(ref)))


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(WATCH)
    os._exit(1)


class Processes:
    """At most `most` processes, started as calls need them."""

    def __init__(self, ref: FunctionRef, root: Path, most: int, timeout: float | None) -> None:
        given = {"path": sys.path, "work": pickle.dumps((os.getpid(), root, ref)).hex()}
        self._program = (sys.executable, "-c", _START + _MAIN, json.dumps(given))
        self._ref = ref
        self._timeout = timeout
        self._places = asyncio.Semaphore(most)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def start(self) -> None:
        """Starts the first. Raises UsageError when the function cannot be had."""
        self._idle.append(await self._started())

    async def call(self, row: FunctionInput) -> Returned | RowError:
        """Returns what the function gives for `row`; a failure also if the process dies of it."""
        async with self._places:
            worker = await self._free()
            worker.input.write(_frame(row))
            try:
                async with asyncio.timeout(self._timeout):
                    outcome: Returned | RowError = await worker.answer()
            except TimeoutError:
                message = (
                    f"the call took longer than timeout, {self._timeout:g} s, and was "
                    f"ended ({self._ref})"
                )
                return RowError(ErrorType.TIMEOUT, message)
            except _Died as died:
                return RowError(ErrorType.PYTHON_ERROR, f"{died} ({self._ref})")
            self._idle.append(worker)
        return outcome

    async def _free(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
        self._all = {worker for worker in self._all if not worker.ended.done()}
        return await self._started()

    async def _started(self) -> _Worker:
        loop = asyncio.get_running_loop()
        _, worker = await loop.subprocess_exec(_Worker, *self._program, start_new_session=True)
        self._all.add(worker)
        try:
            refused: UsageError | None = await worker.answer()
        except _Died as died:
            remedy = "See what it printed above; the file is imported by each process."
            raise UsageError(f"{self._ref} cannot be imported: {died}", remedy=remedy) from None
        if refused is not None:
            raise refused
        return worker

    async def end(self) -> None:
        """Idle processes may end by themselves, the others are ended."""
        for worker in self._all:
            if worker in self._idle:
                worker.input.close()
            else:
                worker.kill()
        endings = [worker.ended for worker in self._all]
        if endings:
            _, late = await asyncio.wait(endings, timeout=MAX_WAIT_S)
            for worker in self._all:
                worker.kill()
            if late:
                await asyncio.wait(late, timeout=MAX_WAIT_S)


# Calls in agac's own process: what ends it there (`os._exit`, a crash of a C library) leaves nobody
# to say so. The calls under way are in a file, which outlives it, and a small process of its own
# reads that once its pipe ends.

_CALL = 200  # bytes for a call in that file
_REPORTER = """\
import sys
if not sys.stdin.buffer.read(1):
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        calls = [line.strip() for line in file if line.strip()]
    more = [f"… and {len(calls) - 9} more"] if len(calls) > 9 else []
    if calls:
        sys.stderr.write("\\n  ".join([sys.argv[2], *calls[:9], *more, *sys.argv[3:]]) + "\\n")
"""
_ENDED = "error: agac ended in the middle of functions that it called in its own process:"
_REMEDY = (
    "Unless agac was killed from outside, one of these calls ended it (os._exit, a crash "
    "of a library)."
)
ALONE = "With `processes: 2` at that stage, such a call fails its own row alone."
_AGAIN = "Every answer is stored: run the same command again to resume."


class OpenCalls:
    """The calls under way in this process. `left` has those in the middle of which an earlier one
    ended."""

    def __init__(self, file: Path) -> None:
        if file.exists():
            lines = file.read_text("utf-8", "replace").split("\n")
        else:
            lines = []
        self.left = [line.strip() for line in lines if line.strip()]
        make_file(file)
        self.file = file.open("wb", 0)
        self._free = [0]

    @contextmanager
    def noted(self, call: str) -> Iterator[None]:
        """Within it a call is under way."""
        place = self._free.pop()
        if not self._free:
            self._free.append(place + 1)
        self._note(place, call)
        try:
            yield
        finally:
            self._note(place, "")
            self._free.append(place)

    def _note(self, place: int, call: str) -> None:
        with suppress(OSError):  # a full disk is found by who has more to lose
            self.file.seek(place * _CALL)
            self.file.write(call.encode()[: _CALL - 1].ljust(_CALL - 1) + b"\n")


@asynccontextmanager
async def open_calls(file: Path, workflow: str) -> AsyncIterator[OpenCalls]:
    """Notes the calls of a workflow's functions; if this process ends within the block, they are
    reported on standard error."""
    calls = OpenCalls(file)
    words = (str(file), f"{_ENDED} workflow {workflow}", _REMEDY, ALONE, _AGAIN)
    program = (sys.executable, "-ISE", "-c", _REPORTER, *words)
    reporter = await asyncio.create_subprocess_exec(
        *program, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield calls
    finally:
        calls.file.close()
        await asyncio.shield(reporter.communicate(b"."))
        file.unlink(missing_ok=True)


class _Died(Exception):
    """A process ended without an answer; the text says how."""


class _Worker(asyncio.SubprocessProtocol):
    """Our end of one process."""

    transport: asyncio.SubprocessTransport
    input: asyncio.WriteTransport

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers = asyncio.StreamReader()  # without a limit: it is fed by hand
        self._decode = getincrementaldecoder("utf-8")("replace").decode

    def is_alive(self) -> bool:
        return self.transport.get_returncode() is None

    async def answer(self) -> Any:
        """Returns the next answer of the process; if it is cancelled, the process is ended. Raises
        _Died."""
        try:
            length = int.from_bytes(await self._answers.readexactly(LENGTH), "big")
            return pickle.loads(await self._answers.readexactly(length))  # noqa: S301  (our own worker's)
        except asyncio.IncompleteReadError:
            raise _Died(self._how()) from None
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it, and what it started, in whatever it does."""
        if not self.is_alive():
            return
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self.transport.get_pid(), signal.SIGKILL)
            else:
                self.transport.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.SubprocessTransport", transport)
        self.input = cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Takes a part of an answer, or of what the function prints."""
        if fd == 1:
            self._answers.feed_data(data)
            return
        stream = sys.stderr  # as it is now: a live display may take its place
        if stream is not None:
            stream.write(self._decode(data))

    def process_exited(self) -> None:
        """Closes the pipes a little later: what the process wrote last may still be in them."""
        asyncio.get_running_loop().call_later(_DRAIN, self.connection_lost, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.close()
        self._answers.feed_eof()
        if not self.ended.done():
            self.ended.set_result(None)

    def _how(self) -> str:
        code = self.transport.get_returncode()
        if code is None or code >= 0:
            return f"the process ended with exit status {code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
            more = "; the machine may be out of memory" if name == "SIGKILL" else ""
            return f"the process was killed by {name}{more}"
        return f"the process was killed by signal {-code}"
