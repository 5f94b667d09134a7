"""Threads in which functions are called, as many as the event loop can bear.

Not `ThreadPoolExecutor`: it wakes the loop once for each call (here: once for all calls that ended
meanwhile), and a call that never returns would keep the whole process from ending. And Python runs
one thread at a time: threads that compute keep the event loop waiting, with 32 of them for a tenth
of a second each time. So there are fewer of them as soon as the loop is late for what they ended,
and more again while it is not; threads that wait cost it nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

MAX_LEFT = 100
"""The most threads with calls that are waited for no longer; beyond, such calls keep their
places."""
MIN_THREADS = 2

LATE = 0.015
"""Seconds until the loop hears of a call's end: above, there are too many threads."""
IN_TIME = 0.004
"""Seconds until the loop hears of a call's end: below, there may be more threads."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call of the function."""

    given: Any
    waiter: asyncio.Future[Any]
    begun: bool = False
    ended: bool = False
    left: bool = False
    """True if the call is waited for no longer; its thread no longer counts."""


class _Ended(NamedTuple):
    """A call that ended, and how."""

    call: _Call
    result: Any
    error: BaseException | None


class Threads:
    """Calls a function in threads. Lives in one event loop."""

    def __init__(self, function: Callable[[Any], Any], most: int) -> None:
        """Makes room for `most` calls at once."""
        self._function = function
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._ended: deque[_Ended] = deque()
        self._delivery_due = False
        self._delivery_at = 0.0
        self._late = 0.0
        """Seconds that the loop is late, smoothed."""
        self._now_most = float(most)
        """The most threads for now."""
        self._lock = threading.Lock()
        """For `_serving`, which threads change too."""
        self._open = 0
        """Calls that are waited for."""
        self._serving = 0
        """Threads that take calls."""
        self._left = 0
        """Threads with a call that is waited for no longer."""

    async def call(self, given: Any) -> Any:
        """Returns what the function gives; raises what it raises."""
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
        """Lets threads end as soon as their calls do, without waiting for them."""
        self._waiting.put(None)

    def _serve(self) -> None:
        """Starts one more thread, if there may be one."""
        with self._lock:
            if self._serving >= min(self._open, int(self._now_most)):
                return
            self._serving += 1
        threading.Thread(target=self._work, name="agac python stage", daemon=True).start()

    def _work(self) -> None:
        """Takes calls, in a thread, as long as there may be as many threads."""
        while (call := self._waiting.get()) is not None:
            call.begun = True
            self._ended.append(self._called(call))
            self._ask_for_delivery()
            with self._lock:
                too_many = not call.left and self._serving > max(self._now_most, MIN_THREADS)
                self._serving -= too_many
            if call.left or too_many:
                return
        self._waiting.put(None)  # for the next thread

    def _called(self, call: _Call) -> _Ended:
        if call.waiter.cancelled():
            return _Ended(call, None, None)
        try:
            return _Ended(call, self._function(call.given), None)
        except BaseException as error:  # noqa: BLE001  (it is raised where the call is awaited)
            return _Ended(call, None, error)

    def _ask_for_delivery(self) -> None:
        """Wakes the loop, unless it was woken and has not come yet."""
        if self._delivery_due:
            return
        self._delivery_due = True
        self._delivery_at = self._loop.time()
        with suppress(RuntimeError):  # the loop was closed: the calls are waited for no longer
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Hands over the results of the calls that ended, in the loop."""
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
        """Sets how many threads there may be, after the loop was `late` seconds late."""
        self._late += (late - self._late) / 4
        if self._late > LATE:
            self._now_most = max(self._now_most * 0.7, MIN_THREADS)
        elif self._late < IN_TIME:
            self._now_most = min(self._now_most + 0.25, self._most)
