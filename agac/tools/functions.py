"""`python:` stages at work: one function of the project, called for one row after the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from agac.spec.functions import FunctionRef
from agac.tools.loading import SPARE_DEPTH, Function, is_awaited, load_function, outcome_of
from agac.tools.outcome import FunctionFailed, Record, Returned, failure, returned
from agac.tools.plain import plain
from agac.tools.processes import Processes
from agac.tools.stdout import exchanged, user_code
from agac.tools.threads import Threads

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
                self._ask = self._awaited if is_awaited(self._function, self._ref) else self._threads(stack).call
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

    def _threads(self, stack: AsyncExitStack) -> Threads[Record, Returned | FunctionFailed]:
        threads = Threads(self._outcome, THREADS)
        stack.callback(threads.close)
        return threads

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
