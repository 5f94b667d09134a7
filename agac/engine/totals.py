"""Counts what an invocation did: its rows, tasks, calls and dollars, while it goes on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from agac.core.errors import RowError
from agac.core.types import Outcome, RowId
from agac.plan.stage import AnyStage
from agac.store.records import Call
from agac.store.rows import State


@dataclass(slots=True)
class Spending:
    """The cost of calls."""

    usd: float = 0.0
    """US dollars of the calls with a known price."""

    unpriced: int = 0
    """Calls whose price is not known."""

    simulated: int = 0
    """Calls that the simulator answered."""

    def count(self, call: Call, cost: float | None) -> None:
        """Counts a call that cost so many US dollars; None: its price is not known."""
        self.usd += cost or 0.0
        self.unpriced += cost is None
        self.simulated += call.endpoint.simulated


@dataclass(slots=True)
class StageTotals:
    """Counts of one stage in an invocation."""

    done: int = 0
    """Tasks that were asked for and have an answer."""

    reused: int = 0
    """Tasks whose answer was stored already."""

    failed: int = 0
    """Tasks that failed."""

    skipped: int = 0
    """Tasks that a guard skipped."""

    dropped: int = 0
    """Tasks at which a guard took the row out."""

    parked: int = 0
    """Tasks of rows that stay open here."""

    in_flight: int = 0
    """Tasks that are asked now."""

    spent: Spending = field(default_factory=Spending)
    """What its calls cost."""

    requests: int = 0
    """Requests that were made of rows, for the estimates of later plans."""

    characters: int = 0
    """The characters of these requests."""

    last_error: tuple[RowError, RowId] | None = None
    """The last error, and the row that has it."""

    @property
    def settled(self) -> int:
        """Tasks that have an outcome."""
        return self.done + self.reused + self.failed + self.skipped + self.dropped

    def count(self, outcome: Outcome) -> None:
        """Counts a task that did not fail. One whose row leaves is counted as dropped alone."""
        self.done += outcome is Outcome.DONE
        self.reused += outcome is Outcome.REUSED
        self.skipped += outcome is Outcome.SKIPPED
        self.dropped += outcome is Outcome.DROPPED


@dataclass(slots=True)
class RowTotals:
    """Counts of the rows of the input in an invocation."""

    seen: int = 0
    """Rows that were read."""

    short: int = 0
    """Those with fewer fields than the header."""

    all_read: bool = False
    """True if these are all rows of the run."""

    expected: int | None = None
    """Rows that the run had when its input was last read to the end; None: it never was."""

    unchanged: int = 0
    """Rows that needed nothing."""

    done: int = 0
    """Rows that ended with a result."""

    failed: int = 0
    """Rows that ended with an error."""

    unusable: int = 0
    """Those that failed before any stage."""

    skipped: int = 0
    """Rows that went through without a result."""

    filtered: int = 0
    """Rows that left because of a guard."""

    dropped: int = 0
    """Rows that left because they repeat an id."""

    parked: int = 0
    """Rows that stay open at a stage that was not to be asked."""

    left_failed: int = 0
    """Rows that had failed and were not tried again."""

    failed_for_good: int = 0
    """Rows that failed and that the next ordinary run will not try again."""

    made_parked: int = 0
    """Rows that stages made and that stay open; they are in no other of these counts."""

    @property
    def settled(self) -> int:
        """Rows of the input that need nothing more in this invocation."""
        walked = self.done + self.skipped + self.filtered
        return self.unchanged + walked + self.failed + self.dropped + self.parked

    def count(self, state: int, by: int) -> None:
        """Counts `by` more rows that came to their end in a state."""
        self.done += by * (state == State.DONE)
        self.failed += by * (state == State.FAILED)
        self.skipped += by * (state == State.SKIPPED)
        self.filtered += by * (state == State.FILTERED)


@dataclass(slots=True)
class TaskTotals:
    """Counts of the tasks of an invocation."""

    done: int = 0
    """Tasks that were asked for and have an answer."""

    reused: int = 0
    """Tasks whose answer was stored already."""

    collapsed: int = 0
    """Tasks that took the answer of another with the same prompt."""


@dataclass(slots=True)
class CallTotals:
    """Counts of the calls of an invocation."""

    count: int = 0
    """Requests that ended, retries and re-asks included."""

    retries: int = 0
    """Requests that were sent again after a fault."""

    repairs: int = 0
    """Requests that asked again for an answer of the right form."""

    fallbacks: int = 0
    """Requests to a fallback model."""

    ambiguous: int = 0
    """Requests without an answer that may have been billed."""

    given_up: int = 0
    """Requests that a second Ctrl-C cut off; they are not in `count`."""

    waiting_for: RowError | None = None
    """Why the last call brought no answer; None: it brought one."""


@dataclass(slots=True)
class PromptTotals:
    """Prompts of calls of which the provider said what its cache had."""

    tokens: int = 0
    """Their tokens."""

    cached: int = 0
    """Those that the cache had."""


@dataclass(slots=True)
class CallSeconds:
    """The time in which calls were in flight."""

    first_at: float = inf
    """When the first one began, in seconds since 1970."""

    last_at: float = 0.0
    """When the last one ended, in seconds since 1970."""

    busy: float = 0.0
    """Seconds that they took together."""


@dataclass(slots=True)
class Totals:
    """Counts of an invocation so far."""

    stages: defaultdict[str, StageTotals] = field(default_factory=lambda: defaultdict(StageTotals))
    """What it did at each stage, in the order of the workflow."""

    rows: RowTotals = field(default_factory=RowTotals)
    """The rows of the input."""

    tasks: TaskTotals = field(default_factory=TaskTotals)
    """The tasks of all stages."""

    calls: CallTotals = field(default_factory=CallTotals)
    """The calls of all stages."""

    spent: Spending = field(default_factory=Spending)
    """What they cost."""

    prompts: PromptTotals = field(default_factory=PromptTotals)
    """How much of their prompts caches had, as far as it is known."""

    seconds: CallSeconds = field(default_factory=CallSeconds)
    """When they were in flight."""

    reviews: int = 0
    """Reviews that wait for people at its end."""

    waits: dict[str, float] = field(default_factory=dict)
    """Until when, in seconds since 1970, no call goes to a model, by lane."""

    last_error: tuple[RowError, RowId] | None = None
    """The last error, and the row that has it."""

    def count_call(self, call: Call, cost: float | None, stage: AnyStage) -> None:
        """Counts a call that cost so many US dollars; None: its price is not known."""
        self.spent.count(call, cost)
        self.stages[stage.name].spent.count(call, cost)
        calls = self.calls
        if call.status is not None and call.status < 500 and not call.refused:
            calls.waiting_for = None
        calls.count += 1
        calls.retries += call.attempt.again
        calls.repairs += call.attempt.purpose == "repair"
        calls.fallbacks += call.attempt.purpose == "fallback" and not call.attempt.again
        calls.ambiguous += call.ambiguous
        self.seconds.busy += call.times.duration
        self.seconds.first_at = min(self.seconds.first_at, call.times.started_at)
        self.seconds.last_at = max(
            self.seconds.last_at, call.times.started_at + call.times.duration
        )
        if call.usage.cached_tokens is not None:
            self.prompts.tokens += call.usage.input_tokens or 0
            self.prompts.cached += call.usage.cached_tokens
