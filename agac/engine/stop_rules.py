"""Stops a run: by a signal, by `max_errors` and `stop_loss`, by keys that are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.text import beginning
from agac.core.types import About, Fault, FaultKind, RowId
from agac.providers.error_tables import with_remedy
from agac.providers.provider import Provider


class StopReason(StrEnum):
    """The reason why a run ends before its rows do."""

    INTERRUPT = "interrupt"
    """Ctrl-C: there are no new calls, and those in flight finish."""

    FATAL = "fatal"
    """Every further call would fail too."""

    INPUT = "input"
    """The input cannot be read any further."""

    LIMIT = "limit"
    """A budget or `max_errors` was reached. What is finished is kept and shown."""

    QUOTE = "quote"
    """The first rows are done, and the user is asked about the price of the rest."""

    LOSS = "loss"
    """Nearly everything fails in the same way from the start, as after a typo: a million rows
    would be paid for nothing."""


class RunStopped(Exception):
    """A task is given up because the run stops. It is not settled, so that the next run asks
    it."""


class StopSignal:
    """The one switch that stops a run. It is never turned off."""

    def __init__(self) -> None:
        self.stop: StopReason | None = None
        """Why the run stops; None: it does not."""
        self.fault: Fault | None = None
        """The first fatal fault."""
        self.error: AgacError | None = None
        """The error that is raised once all that was begun has finished."""
        self.reason = ""
        """The reason of the stop in words."""
        self.asked = False
        """True as soon as a signal came, even if the event loop is too busy to call
        `interrupt`."""
        self._callbacks: list[Callable[[], None]] = []
        self.stopped = asyncio.Event()
        """Is set once the run is to stop."""
        self.forced = asyncio.Event()
        """Is set once calls in flight are given up, too."""

    def interrupt(self) -> None:
        """Lets no new call begin. If the run is stopping already, calls in flight are given up,
        too."""
        if self.stop is not None:
            self.forced.set()
        self.end(StopReason.INTERRUPT)

    def fail(self, fault: Fault) -> None:
        """Stops the run for a fatal fault. The first one is kept and reported once."""
        if self.fault is None:
            self.fault = fault
        self.end(StopReason.FATAL)

    def lose_input(self, error: AgacError) -> None:
        """Stops the run since no further row can be read or asked.

        What was begun is finished, then the error is raised."""
        self.error = error
        self.end(StopReason.INPUT)

    def refuse(self, error: AgacError) -> None:
        """Keeps an error that is raised at the end, since something needs the user's consent."""
        self.error = self.error or error

    @property
    def why(self) -> str:
        """The reason of the stop in words, with a fatal fault that came later; empty for a
        Ctrl-C."""
        if self.fault is None:
            return self.reason
        if self.stop is StopReason.FATAL:
            return self.fault.message
        if self.reason:
            return f"{self.reason}; then a call failed for good: {self.fault.message}"
        return ""

    def when_stopped(self, callback: Callable[[], None]) -> None:
        """Has a function called once, when the run is to stop."""
        self._callbacks.append(callback)

    def end(self, stop: StopReason, reason: str = "") -> None:
        """Lets no new call begin. `reason` says which limit is reached, or what fails.

        The first reason counts."""
        if self.stop is None:
            self.stop = stop
            self.reason = reason
            for callback in self._callbacks:
                callback()
        self.stopped.set()

    @property
    def stopping(self) -> bool:
        """True if nothing more is to begin."""
        return self.asked or self.stop is not None

    def check(self) -> None:
        """Raises RunStopped if the run is to stop."""
        if self.stopping:
            raise RunStopped

    async def sleep(self, seconds: float) -> None:
        """Waits. Raises RunStopped as soon as the run is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return
        raise RunStopped


FIRST_OUTCOMES = 20
"""How many outcomes of a stage are looked at. A stage with as many answers has shown that it
works."""

MAX_SAME_FAILURES = 17
"""How many of them may fail in the same way: more than 80 %."""

MAX_FAILURE_TEXT = 300
"""Characters of a tool's failure that are shown."""


class StopRules:
    """Counts outcomes of tasks that were asked, and stops the run if too many failed."""

    def __init__(
        self,
        stop_signal: StopSignal,
        done_before: Mapping[str, int],
        *,
        stop_loss: bool,
        max_errors: int | None,
    ) -> None:
        """`done_before`: how many answers each stage has in this run so far, by name."""
        self._stop_signal = stop_signal
        self._max_errors = max_errors
        self._stop_loss = stop_loss
        self._errors = 0
        self._elsewhere = 0
        self._proven = {name for name, count in done_before.items() if count >= FIRST_OUTCOMES}
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[tuple[str, ErrorType]] = Counter()
        self._failed: set[tuple[str, bytes]] = set()
        self._tools: Counter[tuple[str, str]] = Counter()
        self._broken_tools: Counter[tuple[str, str]] = Counter()

    def answered(self, stage: str) -> None:
        """Counts a task that was asked and has its answer."""
        if self._stop_loss and stage not in self._proven:
            self._count(stage)

    def failed(self, stage: str, error: RowError, row_id: RowId, fingerprint: bytes | None) -> None:
        """Counts a task that failed in this invocation, and its row.

        Rows with the same question count once for the stop-loss."""
        self.row_failed()
        if not self._stop_loss or stage in self._proven:
            return
        if fingerprint is not None:
            if (stage, fingerprint) in self._failed:
                return
            self._failed.add((stage, fingerprint))
        self._failures[stage, error.type] += 1
        if self._failures[stage, error.type] >= MAX_SAME_FAILURES:
            self._stop_signal.end(
                StopReason.LOSS,
                f"{MAX_SAME_FAILURES} of the first {self._outcomes[stage] + 1} outcomes of "
                f"stage {stage!r} "
                f"are {error.type}; row {row_id!r} for example: {error.message}",
            )
        self._count(stage)

    def tool_called(self, stage: str, tool: str, failure: str | None) -> None:
        """Counts a call of an agent's tool. `failure`: what it said if it failed.

        The run stops if nearly all of a tool's first calls of the invocation fail: its rows would
        be answered without the tool."""
        key = stage, tool
        if not self._stop_loss or self._tools[key] >= FIRST_OUTCOMES:
            return
        self._tools[key] += 1
        if failure is None:
            return
        self._broken_tools[key] += 1
        if self._broken_tools[key] >= MAX_SAME_FAILURES:
            self._stop_signal.end(
                StopReason.LOSS,
                f"{MAX_SAME_FAILURES} of the first {self._tools[key]} calls of the tool {tool} at "
                f"stage {stage!r} failed, the last one with: "
                f"{beginning(failure, MAX_FAILURE_TEXT)}. "
                "Rows that are done were answered without it; --fresh asks them again",
            )

    def row_failed(self) -> None:
        """Counts a failed row. The run stops at `max_errors` of them, and at the first one if that
        is 0."""
        self._errors += 1
        self._check_errors()

    def failed_elsewhere(self, rows: int) -> None:
        """Sets how many rows failed in the other shards of the run, which count, too."""
        self._elsewhere = rows
        self._check_errors()

    def _check_errors(self) -> None:
        """Stops the run if too many rows failed."""
        errors = self._errors + self._elsewhere
        if self._max_errors is not None and errors >= max(1, self._max_errors):
            rows = "1 row" if errors == 1 else f"{errors:,} rows"
            rows += " of all shards" if self._elsewhere else ""
            self._stop_signal.end(
                StopReason.LIMIT, f"{rows} failed, and max_errors is {self._max_errors:,}"
            )

    def _count(self, stage: str) -> None:
        """Counts an outcome of a stage."""
        self._outcomes[stage] += 1
        if self._outcomes[stage] >= FIRST_OUTCOMES:
            self._proven.add(stage)


MAX_BLOCKED = 10
"""How many calls in a row may be refused with an accepted key: with more, the text of a row is not
to blame, and the run stops."""


MAX_BLOCKED_FILES = 100
"""The same for files of batches with several requests, which are halved to find the rows that are
refused."""


class AcceptedKeys:
    """Knows which keys were accepted, in this invocation or before.

    A refusal that may be about the key or about a row's text (`About.UNSURE`) is taken to be about
    the key only if it was never accepted."""

    def __init__(
        self,
        stop_signal: StopSignal,
        known: Callable[[str, str], Awaitable[bool]],
        keep: Callable[[str, str], None],
    ) -> None:
        """`known` asks the store about a provider's name and account, `keep` stores them as
        accepted."""
        self._stop_signal = stop_signal
        self._known = known
        self._keep = keep
        self._accepted: set[tuple[str, str]] = set()
        self._blocked = Counter[tuple[tuple[str, str], int]]()
        self._under_way = Counter[tuple[str, str]]()
        self._changed = asyncio.Event()
        stop_signal.when_stopped(self._changed.set)

    @contextmanager
    def sending(self, provider: Provider) -> Iterator[None]:
        """Notes for the block that a call is in flight, whose answer may show that its key is
        accepted."""
        key = provider.name, provider.account
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._under_way[key] -= 1
            self._changed.set()

    def answered(self, provider: Provider) -> None:
        """Notes that a call was answered, so that its key is accepted."""
        key = provider.name, provider.account
        for most in (MAX_BLOCKED, MAX_BLOCKED_FILES):
            self._blocked[key, most] = 0
        self.accepted(provider)

    def accepted(self, provider: Provider) -> None:
        """Notes that a request without texts of rows was answered, so that its key is
        accepted."""
        key = provider.name, provider.account
        if key not in self._accepted:
            self._accepted.add(key)
            self._keep(*key)
            self._changed.set()

    async def judged(self, provider: Provider, fault: Fault, requests: int = 1) -> Fault:
        """Decides whether a refusal is about the row (TASK) or about the key (FATAL).

        If the key was never accepted, and other calls with it are in flight, their answers decide.
        `requests`: how many were refused together. Raises RunStopped if the run stops
        meanwhile."""
        if fault.about is not About.UNSURE:
            return fault
        key = provider.name, provider.account
        most = MAX_BLOCKED if requests == 1 else MAX_BLOCKED_FILES
        self._blocked[key, most] += 1
        if key not in self._accepted and await self._known(*key):
            self._accepted.add(key)
        await self._until_decided(key, most)
        of_account, of_row = fault.remedies
        if key not in self._accepted:
            return replace(
                fault, about=About.ACCOUNT, message=with_remedy(fault.message, of_account)
            )
        if self._blocked[key, most] < most:
            message = with_remedy(fault.message, of_row)
            return replace(fault, kind=FaultKind.TASK, about=About.CONTENT, message=message)
        what = "requests" if requests == 1 else "files of batches"
        message = (
            f"{most} {what} in a row were refused though the key was accepted before: "
            f"{fault.message}"
        )
        return replace(fault, about=About.ACCOUNT, message=with_remedy(message, of_account))

    async def _until_decided(self, key: tuple[str, str], most: int) -> None:
        """Waits while calls in flight may show that a key is accepted. Raises RunStopped."""
        while key not in self._accepted:
            if not self._under_way[key] or self._blocked[key, most] >= most:
                return
            self._stop_signal.check()
            self._changed.clear()
            await self._changed.wait()
