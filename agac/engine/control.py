"""How a run is asked to stop, and how its parts learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

from agac.core.errors import AgacError
from agac.core.types import Fault


class Stop(StrEnum):
    """Why a run ends before its rows do."""

    INTERRUPT = "interrupt"  # Ctrl-C: no new calls, those in flight finish
    FATAL = "fatal"  # every further call would fail too
    INPUT = "input"  # the input cannot be read on
    LIMIT = "limit"  # a budget or max_errors: what is finished is kept and shown
    LOSS = "loss"  # nearly everything fails alike from the start


class Halted(Exception):
    """A task is given up because the run stops. Nothing is settled: the next run asks it."""


class Control:
    """The one switch of a run. It is only ever turned on."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.fault: Fault | None = None
        self.error: AgacError | None = None
        self.reason = ""
        self._tell: list[Callable[[], None]] = []
        self.stopped = asyncio.Event()
        self.forced = asyncio.Event()

    def interrupt(self) -> None:
        """No new calls from now on. When the run is stopping already, calls in flight are given up too."""
        if self.stop is not None:
            self.forced.set()
        self._end(Stop.INTERRUPT)

    def fail(self, fault: Fault) -> None:
        """A fatal fault: the first one is kept and said once."""
        if self.fault is None:
            self.fault = fault
        self._end(Stop.FATAL)

    def lose_input(self, error: AgacError) -> None:
        """No further row can be read: those at work are finished, then the error is raised."""
        self.error = error
        self._end(Stop.INPUT)

    def refuse(self, error: AgacError) -> None:
        """Something is not done before a user says so: what is under way is finished, then the error is raised."""
        self.error = self.error or error

    def reach_limit(self, reason: str) -> None:
        """A limit that the user set is reached; `reason` says which."""
        self._end(Stop.LIMIT, reason)

    def stop_loss(self, reason: str) -> None:
        """Nobody pays for a million rows to learn of a typo; `reason` says what fails."""
        self._end(Stop.LOSS, reason)

    @property
    def why(self) -> str:
        """Why the run stops, in words; empty for a Ctrl-C. A fatal fault that came after the stop is told with it."""
        if self.fault is None or self.stop is Stop.FATAL:
            return self.fault.message if self.fault else self.reason
        return f"{self.reason}; then a call failed for good: {self.fault.message}" if self.reason else ""

    def when_stopped(self, tell: Callable[[], None]) -> None:
        """`tell` is called once, when the run is to stop."""
        self._tell.append(tell)

    def _end(self, stop: Stop, reason: str = "") -> None:
        if self.stop is None:
            self.stop, self.reason = stop, reason
            for tell in self._tell:
                tell()
        self.stopped.set()

    def check(self) -> None:
        """Raises Halted once the run is to stop."""
        if self.stop is not None:
            raise Halted

    async def sleep(self, seconds: float) -> None:
        """Waits, but no longer than until the run is to stop; then raises Halted."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return
        raise Halted
