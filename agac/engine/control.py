"""How a run is asked to stop, and how its parts learn of it."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from agac.core.types import Fault


class Stop(StrEnum):
    """Why a run ends before its rows do."""

    INTERRUPT = "interrupt"  # Ctrl-C: no new calls, those in flight finish
    FATAL = "fatal"  # every further call would fail too


class Halted(Exception):
    """A task is given up because the run stops. Nothing is settled: the next run asks it."""


class Control:
    """The one switch of a run. It is only ever turned on."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.fault: Fault | None = None
        self.stopped = asyncio.Event()
        self.forced = asyncio.Event()

    def interrupt(self) -> None:
        """The first time: no new calls from now on. The second time: calls in flight are given up too."""
        if self.stop is Stop.INTERRUPT:
            self.forced.set()
        self._end(Stop.INTERRUPT)

    def fail(self, fault: Fault) -> None:
        """A fatal fault: the first one is kept and said once."""
        if self.fault is None:
            self.fault = fault
        self._end(Stop.FATAL)

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
