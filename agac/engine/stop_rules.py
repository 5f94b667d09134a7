"""How a run is stopped: by a signal, by `max_errors` and `stop_loss`, by keys that are refused."""

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
    """Why a run ends before its rows do."""

    INTERRUPT = "interrupt"  # Ctrl-C: no new calls, those in flight finish
    FATAL = "fatal"  # every further call would fail too
    INPUT = "input"  # the input cannot be read on
    LIMIT = "limit"  # a budget or max_errors: what is finished is kept and shown
    QUOTE = "quote"  # the first rows are there, and what the rest costs is asked first
    # nearly everything fails alike from the start: nobody pays for a million rows to learn of a
    # typo
    LOSS = "loss"


class RunStopped(Exception):
    """A task is given up because the run stops. Nothing is settled: the next run asks it."""


class StopSignal:
    """The one switch of a run. It is only ever turned on."""

    def __init__(self) -> None:
        self.stop: StopReason | None = None
        self.fault: Fault | None = None
        self.error: AgacError | None = None
        self.reason = ""
        self.asked = False
        """Set by a signal at once, when the event loop may be too busy to call `interrupt`."""
        self._callbacks: list[Callable[[], None]] = []
        self.stopped = asyncio.Event()
        self.forced = asyncio.Event()

    def interrupt(self) -> None:
        """No new calls from now on. When the run is stopping already, calls in flight are given up
        too."""
        if self.stop is not None:
            self.forced.set()
        self.end(StopReason.INTERRUPT)

    def fail(self, fault: Fault) -> None:
        """A fatal fault: the first one is kept and said once."""
        if self.fault is None:
            self.fault = fault
        self.end(StopReason.FATAL)

    def lose_input(self, error: AgacError) -> None:
        """No further row can be read, or asked: what is under way is finished, then the error is
        raised."""
        self.error = error
        self.end(StopReason.INPUT)

    def refuse(self, error: AgacError) -> None:
        """Something is not done before a user says so: what is under way is finished, then the
        error is raised."""
        self.error = self.error or error

    @property
    def why(self) -> str:
        """Why the run stops, in words; empty for a Ctrl-C. A fatal fault that came after the stop
        is added."""
        if self.fault is None or self.stop is StopReason.FATAL:
            return self.fault.message if self.fault else self.reason
        if self.reason:
            return f"{self.reason}; then a call failed for good: {self.fault.message}"
        return ""

    def when_stopped(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, when the run is to stop."""
        self._callbacks.append(callback)

    def end(self, stop: StopReason, reason: str = "") -> None:
        """No new calls from now on; `reason` says which limit is reached, or what fails. The first
        one counts."""
        if self.stop is None:
            self.stop = stop
            self.reason = reason
            for callback in self._callbacks:
                callback()
        self.stopped.set()

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to begin."""
        return self.asked or self.stop is not None

    def check(self) -> None:
        """Raises RunStopped once the run is to stop."""
        if self.stopping:
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
"""Outcomes of a stage that are looked at. A stage that has so many answers already has shown that
it works."""

ALIKE = 17  # more than 80 % of them
MOST_OF_FAILURE = 300  # characters of what a tool said that failed


class StopRules:
    """Counts outcomes of tasks that were asked, and turns the switch. Nothing waits for it."""

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
        self._guards_all = stop_loss
        self._errors = self._elsewhere = 0
        self._proven = {name for name, count in done_before.items() if count >= FIRST_OUTCOMES}
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[tuple[str, ErrorType]] = Counter()
        self._failed: set[tuple[str, bytes]] = set()
        self._tools: Counter[tuple[str, str]] = Counter()
        self._broken_tools: Counter[tuple[str, str]] = Counter()

    def answered(self, stage: str) -> None:
        """A task was asked and has its answer."""
        if self._guards_all and stage not in self._proven:
            self._count(stage)

    def failed(self, stage: str, error: RowError, row_id: RowId, fingerprint: bytes | None) -> None:
        """A task, and so its row, failed in this invocation. Rows with one question count once for
        the stop-loss."""
        self.row_failed()
        if not self._guards_all or stage in self._proven:
            return
        if fingerprint is not None:
            if (stage, fingerprint) in self._failed:
                return
            self._failed.add((stage, fingerprint))
        self._failures[stage, error.type] += 1
        if self._failures[stage, error.type] >= ALIKE:
            self._stop_signal.end(
                StopReason.LOSS,
                f"{ALIKE} of the first {self._outcomes[stage] + 1} outcomes of stage {stage!r} "
                f"are {error.type}; row {row_id!r} for example: {error.message}",
            )
        self._count(stage)

    def tool_called(self, stage: str, tool: str, failure: str | None) -> None:
        """A call of an agent's tool ended; `failure`: what it said when it failed. A tool whose
        first calls of an invocation nearly all fail ends the run: its rows would be answered
        without it."""
        key = stage, tool
        if not self._guards_all or self._tools[key] >= FIRST_OUTCOMES:
            return
        self._tools[key] += 1
        self._broken_tools[key] += failure is not None
        if failure is not None and self._broken_tools[key] >= ALIKE:
            self._stop_signal.end(
                StopReason.LOSS,
                f"{ALIKE} of the first {self._tools[key]} calls of the tool {tool} at stage "
                f"{stage!r} failed, the last one with: {beginning(failure, MOST_OF_FAILURE)}. "
                "Rows that are done were answered without it; --fresh asks them again",
            )

    def row_failed(self) -> None:
        """One more failed row; so many as `max_errors` end the run, and the first one where it is
        0."""
        self._errors += 1
        self._check_errors()

    def failed_elsewhere(self, rows: int) -> None:
        """So many rows failed in the other shards of the run: they count as its own."""
        self._elsewhere = rows
        self._check_errors()

    def _check_errors(self) -> None:
        errors = self._errors + self._elsewhere
        if self._max_errors is not None and errors >= max(1, self._max_errors):
            rows = "1 row" if errors == 1 else f"{errors:,} rows"
            rows += " of all shards" if self._elsewhere else ""
            self._stop_signal.end(
                StopReason.LIMIT, f"{rows} failed, and max_errors is {self._max_errors:,}"
            )

    def _count(self, stage: str) -> None:
        self._outcomes[stage] += 1
        if self._outcomes[stage] >= FIRST_OUTCOMES:
            self._proven.add(stage)


MAX_BLOCKED = 10
"""Calls in a row that are refused with an accepted key until the run stops: then it is not a
single row's text."""


MAX_BLOCKED_FILES = 100
"""The same for files of batches with several requests, which are halved to find the rows that are
refused."""


class AcceptedKeys:
    """Which keys were accepted, in this invocation or before: a refusal that may be about the key
    or about a row's text (`About.UNSURE`) blames the key only where it was never accepted. `known`
    asks the store about a provider's name and account, `keep` remembers one there."""

    def __init__(
        self,
        stop_signal: StopSignal,
        known: Callable[[str, str], Awaitable[bool]],
        keep: Callable[[str, str], None],
    ) -> None:
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
        """While a call is under way: its answer may show that the key is accepted."""
        key = provider.name, provider.account
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._under_way[key] -= 1
            self._changed.set()

    def answered(self, provider: Provider) -> None:
        """A call was answered, so that its key is accepted."""
        key = provider.name, provider.account
        for most in (MAX_BLOCKED, MAX_BLOCKED_FILES):
            self._blocked[key, most] = 0
        self.accepted(provider)

    def accepted(self, provider: Provider) -> None:
        """A request without texts of rows was answered, so that its key is accepted."""
        key = provider.name, provider.account
        if key not in self._accepted:
            self._accepted.add(key)
            self._keep(*key)
            self._changed.set()

    async def judged(self, provider: Provider, fault: Fault, requests: int = 1) -> Fault:
        """A refusal with whoever is to blame: the row (TASK), or the key (FATAL). Where the key
        was never accepted, and other calls with it are under way, their answers decide.
        `requests`: how many were refused together. Raises RunStopped when the run stops meanwhile.
        """
        if fault.about is not About.UNSURE:
            return fault
        key = provider.name, provider.account
        most = MAX_BLOCKED if requests == 1 else MAX_BLOCKED_FILES
        self._blocked[key, most] += 1
        if key not in self._accepted and await self._known(*key):
            self._accepted.add(key)
        while (
            key not in self._accepted and self._under_way[key] and self._blocked[key, most] < most
        ):
            self._stop_signal.check()
            self._changed.clear()
            await self._changed.wait()
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
