"""How a run is asked to stop, and how its parts learn of it."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from agac.core.errors import AgacError
from agac.core.types import Fault


class Stop(StrEnum):
    """Why a run ends before its rows do."""

    INTERRUPT = "interrupt"  # Ctrl-C: no new calls, those in flight finish
    FATAL = "fatal"  # every further call would fail too
    INPUT = "input"  # the input cannot be read on


class Halted(Exception):
    """A task is given up because the run stops. Nothing is settled: the next run asks it."""


class Control:
    """The one switch of a run. It is only ever turned on."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.fault: Fault | None = None
        self.error: AgacError | None = None
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

    def _end(self, reason: Stop) -> None:
        if self.stop is None:
            self.stop = reason
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
