"""Defines what the store keeps of an invocation as records.

They are written by `as_json` and read by `core.reading.read_as`. The status of a run prints them,
too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agac.core.types import Report
from agac.engine.stage_summary import cost_of
from agac.engine.totals import Totals


@dataclass(frozen=True, slots=True)
class ServingFacts(Report):
    """The use of caches and slots in an invocation, in pairs that can be added up."""

    known: tuple[int, ...] = (0, 0)
    """Tokens of the prompts of which the provider said what its cache had, and those that it
    had."""

    first_calls: int = 0
    """Calls that went alone to warm a cache."""

    first: tuple[int, ...] = (0, 0)
    """The pair `known` of these calls."""

    slots: int = 0
    """Calls that could be in flight at once."""

    seconds: tuple[float, ...] = (0.0, 0.0)
    """The slots' seconds, and the seconds in which calls were in flight."""

    engines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By the address of a serving engine: the tokens of prompts that it counted, and those that
    its cache had."""

    prefixes: Mapping[str, str] = field(default_factory=dict)
    """By stage: the mark of what all its requests begin with."""


@dataclass(frozen=True, slots=True)
class InvocationStart(Report):
    """The facts that are stored of an invocation when it begins."""

    JSON_KEYS = (
        "concurrency",
        "billed_a_row",
        "lost_calls",
        "given",
        "retry?",
        "retrieves?",
        "accepted?",
    )

    concurrency: int = 0
    """How many calls may be in flight at once; 0: it makes none."""

    billed_a_row: int | None = None
    """How many calls of one row may be paid for and not stored, at most; None in stores that did
    not have it yet."""

    lost_calls: int = 0
    """Calls that a killed invocation before this one may have paid for without an answer."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """What its caller changed, by option."""

    retry: Mapping[str, Any] | None = None
    """What its retry chose, as `Retry.filters` has it; None: it is no retry."""

    retrieves: bool = False
    """True if its rows are those for which batches brought something."""

    accepted: str | None = None
    """The mark of another store in whose place this one is accepted."""


@dataclass(frozen=True, slots=True)
class InvocationCounts(Report):
    """The counts that are stored of an invocation."""

    JSON_KEYS = (
        "rows_seen",
        "rows_short?",
        "rows_done",
        "rows_failed",
        "rows_parked",
        "rows_left_failed",
        "tasks_done",
        "tasks_reused",
        "calls",
        "given_up",
        "retries",
        "cost_usd",
    )

    rows_seen: int = 0
    """Rows of the input that were read."""

    rows_short: int = 0
    """Those with fewer fields than the header."""

    rows_done: int = 0
    """Rows that ended with a result."""

    rows_failed: int = 0
    """Rows that ended with an error."""

    rows_parked: int = 0
    """Rows that stay open."""

    rows_left_failed: int = 0
    """Failed rows that were not tried again, or will not be by the next ordinary run."""

    tasks_done: int = 0
    """Tasks that were asked for and have an answer."""

    tasks_reused: int = 0
    """Tasks whose answer was stored already."""

    calls: int = 0
    """Requests that ended."""

    given_up: int = 0
    """Requests that were cut off."""

    retries: int = 0
    """Requests that were sent again after a fault."""

    cost_usd: float | None = None
    """US dollars of the calls with a known price; None: no call has one."""

    @staticmethod
    def of(totals: Totals) -> InvocationCounts:
        """Returns what is stored of these counts."""
        rows = totals.rows
        return InvocationCounts(
            rows_seen=rows.seen,
            rows_short=rows.short,
            rows_done=rows.done,
            rows_failed=rows.failed,
            rows_parked=rows.parked,
            rows_left_failed=rows.left_failed + rows.failed_for_good,
            tasks_done=totals.tasks.done,
            tasks_reused=totals.tasks.reused,
            calls=totals.calls.count,
            given_up=totals.calls.given_up,
            retries=totals.calls.retries,
            cost_usd=cost_of(totals.spent.usd, totals.spent.unpriced),
        )


@dataclass(frozen=True, slots=True)
class StoredFault(Report):
    """The reason why a call brought no answer."""

    type: str
    """The type of error."""

    message: str
    """What went wrong."""


@dataclass(frozen=True, slots=True)
class StoppedInvocation(Report):
    """The reason why an invocation stopped before its end."""

    JSON_KEYS = ("stop", "stopped", "waiting_for?")

    stop: str = ""
    """The reason, as `stop_rules.StopReason` names it."""

    stopped: str = ""
    """The reason in words."""

    waiting_for: StoredFault | None = None
    """Why its last call brought no answer; None: it brought one."""


@dataclass(frozen=True, slots=True)
class TakenPacks(Report):
    """The packs of groups that a shard took from others."""

    taken: Mapping[str, str] = field(default_factory=dict)
    """The marks of the packs, by run, shard and group."""


@dataclass(frozen=True, slots=True)
class StoredInvocation(Report):
    """All that is stored of an invocation that ended. One that was killed has only its start."""

    JSON_KEYS = (
        "**start",
        "**counts",
        "serving?",
        "wait_for_people?",
        "**packs",
        "**stop",
    )

    start: InvocationStart = field(default_factory=InvocationStart)
    """What was stored when it began."""

    counts: InvocationCounts = InvocationCounts()
    """What it did."""

    serving: ServingFacts | None = None
    """How well caches and slots were used; None: it made no calls."""

    wait_for_people: int = 0
    """Reviews that wait for people."""

    packs: TakenPacks | None = None
    """What it took of other shards; None: its run has none."""

    stop: StoppedInvocation | None = None
    """Why it stopped before its end; None: it did not."""
