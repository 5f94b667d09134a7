"""Calls that may block, in threads beside the event loop.

Not `ThreadPoolExecutor`: it wakes the loop once for each call (here: once for all calls that ended meanwhile), and a
call that never returns would keep the whole process from ending. And Python runs one thread at a time: threads that
compute keep the event loop waiting, with 32 of them for a tenth of a second each time. So there are fewer of them as
soon as the loop is late for what they ended, and more again while it is not; threads that wait cost it nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_Given = TypeVar("_Given")
_Got = TypeVar("_Got")

MOST_LEFT = 100
"""Threads that may be left alone with calls that nobody waits for any more; beyond, such calls keep their places."""

FEWEST = 2

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
        self._told = False
        self._told_at = 0.0
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
        if call.begun and not call.ended and self._left < MOST_LEFT:
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
            self._tell()
            if call.left or self._is_one_too_many():
                return
        self._waiting.put(None)  # for the next thread

    def _is_one_too_many(self) -> bool:
        with self._lock:
            if self._serving <= max(self._now_most, FEWEST):
                return False
            self._serving -= 1
            return True

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._told_at = self._loop.time()
            with suppress(RuntimeError):  # the loop was closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._adapt(self._loop.time() - self._told_at)
        self._told = False  # before the first is taken, so that none is left behind
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
            self._now_most = max(self._now_most * 0.7, FEWEST)
        elif self._late < IN_TIME:
            self._now_most = min(self._now_most + 0.25, self._most)
