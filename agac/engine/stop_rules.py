"""How a run is asked to stop, and how its parts learn of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import Fault, RowId


class StopReason(StrEnum):
    """Why a run ends before its rows do."""

    INTERRUPT = "interrupt"  # Ctrl-C: no new calls, those in flight finish
    FATAL = "fatal"  # every further call would fail too
    INPUT = "input"  # the input cannot be read on
    LIMIT = "limit"  # a budget or max_errors: what is finished is kept and shown
    LOSS = "loss"  # nearly everything fails alike from the start


class RunStopped(Exception):
    """A task is given up because the run stops. Nothing is settled: the next run asks it."""


class StopSignal:
    """The one switch of a run. It is only ever turned on."""

    def __init__(self) -> None:
        self.stop: StopReason | None = None
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
        self._end(StopReason.INTERRUPT)

    def fail(self, fault: Fault) -> None:
        """A fatal fault: the first one is kept and said once."""
        if self.fault is None:
            self.fault = fault
        self._end(StopReason.FATAL)

    def lose_input(self, error: AgacError) -> None:
        """No further row can be read: those at work are finished, then the error is raised."""
        self.error = error
        self._end(StopReason.INPUT)

    def refuse(self, error: AgacError) -> None:
        """Something is not done before a user says so: what is under way is finished, then the error is raised."""
        self.error = self.error or error

    def reach_limit(self, reason: str) -> None:
        """A limit that the user set is reached; `reason` says which."""
        self._end(StopReason.LIMIT, reason)

    def stop_loss(self, reason: str) -> None:
        """Nobody pays for a million rows to learn of a typo; `reason` says what fails."""
        self._end(StopReason.LOSS, reason)

    @property
    def why(self) -> str:
        """Why the run stops, in words; empty for a Ctrl-C. A fatal fault that came after the stop is added."""
        if self.fault is None or self.stop is StopReason.FATAL:
            return self.fault.message if self.fault else self.reason
        return f"{self.reason}; then a call failed for good: {self.fault.message}" if self.reason else ""

    def when_stopped(self, tell: Callable[[], None]) -> None:
        """`tell` is called once, when the run is to stop."""
        self._tell.append(tell)

    def _end(self, stop: StopReason, reason: str = "") -> None:
        if self.stop is None:
            self.stop, self.reason = stop, reason
            for tell in self._tell:
                tell()
        self.stopped.set()

    def check(self) -> None:
        """Raises RunStopped once the run is to stop."""
        if self.stop is not None:
            raise RunStopped

    async def sleep(self, seconds: float) -> None:
        """Waits, but no longer than until the run is to stop; then raises RunStopped."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return
        raise RunStopped


FIRST_OUTCOMES = 20
"""Outcomes of a stage that are looked at. A stage that has so many answers already has shown that it works."""

ALIKE = 17
"""More than 80 % of them."""


class StopRules:
    """Counts outcomes of tasks that were asked, and turns the switch. Nothing waits for it."""

    def __init__(
        self, stop_signal: StopSignal, done_before: Mapping[str, int], *, stop_loss: bool, max_errors: int | None
    ) -> None:
        """`done_before`: how many answers each stage has in this run so far, by name."""
        self._stop_signal, self._max_errors, self._guards_all = stop_signal, max_errors, stop_loss
        self._errors = 0
        self._proven = {name for name, count in done_before.items() if count >= FIRST_OUTCOMES}
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[tuple[str, ErrorType]] = Counter()
        self._failed: set[tuple[str, bytes]] = set()

    def answered(self, stage: str) -> None:
        """A task was asked and has its answer."""
        if self._guards_all and stage not in self._proven:
            self._count(stage)

    def failed(self, stage: str, error: RowError, row_id: RowId, fingerprint: bytes | None) -> None:
        """A task failed in this invocation, and with it its row. Rows with the same question count once for the
        stop-loss: it was asked once."""
        self.row_failed()
        if not self._guards_all or stage in self._proven:
            return
        if fingerprint is not None:
            if (stage, fingerprint) in self._failed:
                return
            self._failed.add((stage, fingerprint))
        self._failures[stage, error.type] += 1
        if self._failures[stage, error.type] >= ALIKE:
            self._stop_signal.stop_loss(
                f"{ALIKE} of the first {self._outcomes[stage] + 1} outcomes of stage {stage!r} are {error.type}; "
                f"row {row_id!r} for example: {error.message}"
            )
        self._count(stage)

    def row_failed(self) -> None:
        """One more failed row; more than `max_errors` end the run."""
        self._errors += 1
        if self._max_errors is not None and self._errors > self._max_errors:
            rows = "1 row" if self._errors == 1 else f"{self._errors:,} rows"
            self._stop_signal.reach_limit(f"{rows} failed, and max_errors is {self._max_errors:,}")

    def _count(self, stage: str) -> None:
        self._outcomes[stage] += 1
        if self._outcomes[stage] >= FIRST_OUTCOMES:
            self._proven.add(stage)
