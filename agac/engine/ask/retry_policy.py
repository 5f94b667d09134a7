"""What is done about a fault: a pure function of the fault and the attempt; and the deadline of a
row. The engine owns every retry; the SDKs' and the sender's are off. Delays come from tenacity's
wait strategies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from tenacity import RetryCallState
from tenacity.wait import wait_exponential

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind
from agac.spec.rules import DEFAULT_RETRIES, RetryRules

MAX_RATE_LIMIT_RETRIES = 20
"""Tries after the first for a refusal by rate: nothing was billed, and the server says when to
come back."""

MAX_AMBIGUOUS = 2  # tries after the first when the provider may have done, and billed, the work

MAX_RETRY_DELAY_S = 900.0
"""Seconds. A run does not wait longer, since it would look as if it hung: it stops, and says when
to run it again."""

MAX_ROW_WAIT_S = 3600.0
"""Seconds that one row waits in total between calls of one invocation; then its task fails; the
next run asks again."""

_backoff = wait_exponential(multiplier=1, exp_base=2)  # of the first wait


def backoff(attempt: int) -> float:
    """Seconds after an attempt, counted from 1, until the next one where the first wait takes a
    second."""
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    return float(_backoff(state))


def max_calls(
    repair: int, models: int, attempts: int = DEFAULT_RETRIES.attempts, turns: int = 1
) -> int:
    """The hard cap on the calls of one task in one invocation: each of its models is asked, in so
    many `turns`, and re-asked `repair` times, each sent in so many `attempts`, and again after
    refusals by rate."""
    return models * (turns + repair) * (attempts + MAX_RATE_LIMIT_RETRIES)


def max_billed_calls(repair: int, models: int) -> int:
    """Calls of one task that may be billed in one invocation: answered ones, and ambiguous ones
    before it gives up."""
    return models * (1 + repair + 1 + MAX_AMBIGUOUS)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Ask once more after `delay` seconds; `lane`: everyone in the lane waits that long."""

    delay: float
    lane: bool = False


@dataclass(frozen=True, slots=True)
class FailTask:
    """The task fails with its fault."""


@dataclass(frozen=True, slots=True)
class StopRun:
    """The run stops."""


def decide(
    fault: Fault,
    attempt: int,
    ambiguous: int,
    jitter: float,
    rules: RetryRules = DEFAULT_RETRIES,
    *,
    has_alternative: bool = False,
    waited: float = 0.0,
) -> RetryAfter | FailTask | StopRun:
    """What to do after `attempt` attempts (from 1) that ended in this kind of fault; `ambiguous`
    of all may be billed. `jitter` in [0, 1) keeps calls that failed together from coming back
    together; it is added, so that nobody comes back before the time a server asked for.
    `has_alternative`: the next model can be asked, or a later command can go on, so that too long
    a pause does not stop the run. `waited`: seconds that the row waited before."""
    match fault.kind:
        case FaultKind.FATAL:
            return StopRun()
        case FaultKind.TASK:
            return FailTask()
        case FaultKind.PAUSE | FaultKind.RETRY:
            # which its pool bounds
            many = fault.kind is FaultKind.PAUSE or fault.type is ErrorType.WORKER_LOST
            most = MAX_RATE_LIMIT_RETRIES if many else rules.attempts - 1
            most = most if fault.retries is None else min(most, fault.retries)
            if attempt > most or ambiguous > MAX_AMBIGUOUS:
                return FailTask()
            # what the server asked for, else an exponential back-off: 0.5, 1, 2, … 30 seconds
            delay = fault.delay
            # who says "in 0 seconds", or names a moment that has passed, says nothing
            if not delay:
                delay = min(rules.delay * backoff(attempt), rules.max_delay)
            if delay > MAX_RETRY_DELAY_S:  # all calls in the lane would get the same answer
                if fault.kind is FaultKind.PAUSE and not has_alternative:
                    return StopRun()
                return FailTask()
            if waited + delay > MAX_ROW_WAIT_S:
                return FailTask()
            return RetryAfter(
                delay + jitter * min(delay, 5.0) * 0.25, lane=fault.kind is FaultKind.PAUSE
            )


def with_end_of_pause(fault: Fault, now: float) -> Fault:
    """A fault that stops the run, with the time at which the same command can go on, where the
    server told it. `now` in seconds since 1970."""
    if fault.delay is None or fault.delay <= MAX_RETRY_DELAY_S:
        return fault
    until = datetime.fromtimestamp(now + fault.delay).astimezone()
    pause = (
        f"{fault.delay / 60:,.0f} minutes, until {until:%Y-%m-%d %H:%M %Z}: run the same "
        "command again then"
    )
    return replace(
        fault, message=f"{fault.message.removesuffix('.')}; it asks for a pause of {pause}"
    )


# How long a row may take: `row_timeout`, counted from its first call.

TIMER_SECONDS = 0.005
"""By how much a timer of an event loop may be early at most: uvloop counts in milliseconds."""

Waited = TypeVar("Waited")


class RowDeadlineExceeded(Exception):
    """A row's time is over, and no call of it is under way."""


class RowDeadline:
    """The time a row has for calls and waits. `seconds` None: no limit. `clock` is the loop's:
    monotonic seconds."""

    __slots__ = ("_clock", "_ends_at", "_seconds")

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ends_at: float | None = None

    def left(self) -> float | None:
        """Seconds left for a call that is sent now; the first call starts the time. Raises
        RowDeadlineExceeded."""
        if self._seconds is None:
            return None
        now = self._clock()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now >= self._ends_at:
            raise RowDeadlineExceeded
        return self._ends_at - now

    @property
    def over(self) -> bool:
        """Whether nothing is left: a timer of the loop may end its wait a moment early."""
        return not self.outlasts(TIMER_SECONDS)

    def outlasts(self, delay: float) -> bool:
        """Whether anything is left after waiting so many seconds."""
        return self._ends_at is None or self._clock() + delay < self._ends_at

    async def wait(self, turn: Awaitable[Waited]) -> Waited:
        """Waits for a turn, which takes as long as it takes before the row's first call. Raises
        RowDeadlineExceeded."""
        if self._ends_at is None:
            return await turn
        try:
            async with asyncio.timeout(self._ends_at - self._clock()):
                return await turn
        except TimeoutError:
            raise RowDeadlineExceeded from None

    def __str__(self) -> str:
        return (
            f"row_timeout: the row had {self._seconds:g} s from its first call on, and "
            "they are over"
        )
