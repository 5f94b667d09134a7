"""Decides what follows a fault: a pure function of the fault and the attempt; and the deadline of a
row. The engine makes every retry; those of SDKs and of the sender are off. Delays come from
tenacity's wait strategies."""

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

MAX_AMBIGUOUS = 2
"""Tries after the first if the provider may have done, and billed, the work."""

MAX_RETRY_DELAY_S = 900.0
"""Seconds. A run does not wait longer, since it would seem to hang: it stops, and says when to run
it again."""

MAX_ROW_WAIT_S = 3600.0
"""Seconds that one row waits in total between calls of one invocation. Then its task fails, and the
next run asks again."""

_backoff = wait_exponential(multiplier=1, exp_base=2)  # of the first wait


def backoff(attempt: int) -> float:
    """Returns the seconds between an attempt (counted from 1) and the next, if the first wait
    takes one second."""
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    return float(_backoff(state))


def max_calls(
    repair: int, models: int, attempts: int = DEFAULT_RETRIES.attempts, turns: int = 1
) -> int:
    """Returns the hard cap on the calls of one task in one invocation: models * (turns + repairs)
    requests, each with its retries and rate-limit retries."""
    return models * (turns + repair) * (attempts + MAX_RATE_LIMIT_RETRIES)


def max_billed_calls(repair: int, models: int) -> int:
    """Returns how many calls of one task may be billed in one invocation: answered ones, and
    ambiguous ones before it gives up."""
    return models * (1 + repair + 1 + MAX_AMBIGUOUS)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Ask once more."""

    delay: float
    """After so many seconds."""
    lane: bool = False
    """True if all calls of the lane wait that long."""


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
    """Decides what to do after `attempt` attempts (from 1) that ended in this kind of fault;
    `ambiguous` of all attempts may be billed.

    `jitter` in [0, 1) keeps calls that failed together from coming back together; it is added, so
    that none comes back before the time that a server asked for. `has_alternative`: the next model
    can be asked, or a later command can continue, so that a pause that is too long does not stop
    the run. `waited`: seconds that the row waited before."""
    match fault.kind:
        case FaultKind.FATAL:
            return StopRun()
        case FaultKind.TASK:
            return FailTask()
        case FaultKind.PAUSE | FaultKind.RETRY:
            if attempt > _max_retries(fault, rules) or ambiguous > MAX_AMBIGUOUS:
                return FailTask()
            delay = _delay(fault, attempt, rules)
            if delay > MAX_RETRY_DELAY_S:  # all calls in the lane would get the same answer
                if fault.kind is FaultKind.PAUSE and not has_alternative:
                    return StopRun()
                return FailTask()
            if waited + delay > MAX_ROW_WAIT_S:
                return FailTask()
            delay += jitter * min(delay, 5.0) * 0.25
            return RetryAfter(delay, lane=fault.kind is FaultKind.PAUSE)


def _max_retries(fault: Fault, rules: RetryRules) -> int:
    """Returns how often a request is sent again after faults of this kind. Retries of calls that
    were lost with a worker are bounded by the pool of workers."""
    if fault.kind is FaultKind.PAUSE or fault.type is ErrorType.WORKER_LOST:
        most = MAX_RATE_LIMIT_RETRIES
    else:
        most = rules.attempts - 1
    return most if fault.retries is None else min(most, fault.retries)


def _delay(fault: Fault, attempt: int, rules: RetryRules) -> float:
    """Returns the seconds that the server asked for, else an exponential back-off: 0.5, 1, 2, … 30
    seconds. A server that asks for 0 seconds, or names a moment that has passed, asks for
    nothing."""
    if fault.delay:
        return fault.delay
    return min(rules.delay * backoff(attempt), rules.max_delay)


def with_end_of_pause(fault: Fault, now: float) -> Fault:
    """Adds to a fault that stops the run when the same command can continue, if the server said
    so. `now` is in seconds since 1970."""
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
"""The most by which a timer of an event loop may be early: uvloop counts in milliseconds."""

Waited = TypeVar("Waited")


class RowDeadlineExceeded(Exception):
    """A row's time is over, and no call of it is in flight."""


class RowDeadline:
    """The time that a row has for calls and waits. `seconds` None: no limit. `clock` is the
    loop's: monotonic seconds."""

    __slots__ = ("_clock", "_ends_at", "_seconds")

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ends_at: float | None = None

    def left(self) -> float | None:
        """Returns the seconds left for a call that is sent now; the first call starts the time.
        Raises RowDeadlineExceeded."""
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
        """True if no time is left: a timer of the loop may end its wait a moment early."""
        return not self.outlasts(TIMER_SECONDS)

    def outlasts(self, delay: float) -> bool:
        """True if time is left after waiting so many seconds."""
        return self._ends_at is None or self._clock() + delay < self._ends_at

    async def wait(self, turn: Awaitable[Waited]) -> Waited:
        """Waits for a turn, for any time before the row's first call. Raises
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
