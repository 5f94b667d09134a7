"""How long a row may take: `row_timeout`, counted from its first call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Waited = TypeVar("Waited")


class OutOfTime(Exception):
    """A row's time is over, and no call of it is under way."""


class Patience:
    """The time that one row has for all its calls, and for what it waits between them.

    `seconds` None: as long as it takes. `clock` is the event loop's: monotonic seconds.
    """

    __slots__ = ("_clock", "_ends_at", "_seconds")

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._ends_at: float | None = None

    def left(self) -> float | None:
        """Seconds that the call that is sent now may take; the first one starts the time. Raises OutOfTime."""
        if self._seconds is None:
            return None
        now = self._clock()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now >= self._ends_at:
            raise OutOfTime
        return self._ends_at - now

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return not self.outlasts(0.0)

    def outlasts(self, delay: float) -> bool:
        """Whether anything is left after waiting so many seconds."""
        return self._ends_at is None or self._clock() + delay < self._ends_at

    async def wait(self, turn: Coroutine[Any, Any, Waited]) -> Waited:
        """Waits for a turn, which takes as long as it takes before the row's first call. Raises OutOfTime."""
        if self._ends_at is None:
            return await turn
        try:
            async with asyncio.timeout(self._ends_at - self._clock()):
                return await turn
        except TimeoutError:
            raise OutOfTime from None

    def __str__(self) -> str:
        return f"row_timeout: the row had {self._seconds:g} s from its first call on, and they are over"
