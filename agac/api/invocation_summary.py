"""What one invocation of a run did, as records: `report.invocation` in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agac.core.types import Report


@dataclass(frozen=True, slots=True)
class InvocationRows(Report):
    """The rows of the input in one invocation."""

    JSON_KEYS = (
        "rows_read=read",
        "rows_unchanged=unchanged",
        "rows_done=done",
        "rows_failed=failed",
        "rows_skipped=skipped",
        "rows_dropped=dropped",
        "rows_left_failed=left_failed",
        "rows_parked=parked",
    )

    read: int = 0
    """Rows that were read."""

    unchanged: int = 0
    """Rows that needed nothing: they had ended, and are as they were."""

    done: int = 0
    """Rows that ended with a result."""

    failed: int = 0
    """Rows that ended with an error."""

    skipped: int = 0
    """Rows that went through without a result."""

    dropped: int = 0
    """Rows that left because of a guard or a repeated id."""

    left_failed: int = 0
    """Failed rows that were not tried again, or will not be by the next ordinary run."""

    parked: int = 0
    """Rows that stay open at a stage that was not to be asked, or for people or batches."""


@dataclass(frozen=True, slots=True)
class InvocationTasks(Report):
    """The tasks of one invocation."""

    JSON_KEYS = ("tasks_asked=asked", "tasks_reused=reused", "tasks_collapsed=collapsed")

    asked: int = 0
    """Tasks that were run."""

    reused: int = 0
    """Tasks whose answer was stored already."""

    collapsed: int = 0
    """Tasks with the prompt of another task, whose answer they took."""


@dataclass(frozen=True, slots=True)
class InvocationCalls(Report):
    """The calls of one invocation."""

    JSON_KEYS = ("calls=count", "retries", "repairs", "fallbacks")

    count: int = 0
    """Requests that ended, retries and re-asks included."""

    retries: int = 0
    """Requests that were sent again after a fault."""

    repairs: int = 0
    """Requests that asked again for an answer of the right form."""

    fallbacks: int = 0
    """Requests to a fallback model."""


@dataclass(frozen=True, slots=True)
class UnansweredCalls(Report):
    """Calls of one invocation that may be billed although no answer came."""

    JSON_KEYS = (
        "calls_given_up=given_up",
        "calls_perhaps_billed_without_answer=perhaps_billed",
    )

    given_up: int = 0
    """Calls that a second Ctrl-C cut off."""

    perhaps_billed: int = 0
    """All of them."""


@dataclass(frozen=True, slots=True)
class LastFault(Report):
    """Why the last call brought no answer."""

    type: str
    """The type of error."""

    message: str
    """What went wrong."""


@dataclass(frozen=True, slots=True)
class BatchFacts(Report):
    """Facts of a batch that was submitted, waits, or needs a decision. The JSON has more
    keys, those of `api.batches.BatchLine`."""

    id: int
    """agac's number of the batch."""

    provider_id: str | None
    """The provider's name of it; None: the provider has not got it."""

    model: str
    """The model with its provider."""

    step: str
    """The step, as `store.batches.BatchStep` names it."""

    requests: int
    """Its requests."""

    number: int | None
    """Its number among the batches of its stage that were made together, from 1."""

    of: int | None
    """How many these are."""

    held_usd: float | None
    """US dollars that its answers can cost at most; None: no price is known."""

    simulated: bool
    """True if the simulator has it: nothing is paid."""

    waits: str | None = None
    """Why it was not submitted yet; None: it was."""

    note: str | None = None
    """What is to be known of it, if anything."""

    remedy: str | None = None
    """What can be done, if anything."""

    try_at: str | None = None
    """UTC, in ISO 8601: it is submitted no sooner; None: at any time."""


@dataclass(frozen=True, slots=True)
class StaleBatch(Report):
    """A batch with requests that are no longer needed."""

    batch: int
    """agac's number of the batch."""

    provider_id: str | None
    """The provider's name of it."""

    requests: int
    """Requests that are no longer needed."""

    held_usd: float | None
    """US dollars that these can cost at most; None: no price is known."""

    simulated: bool = False
    """True if the simulator has it: nothing is paid."""


@dataclass(frozen=True, slots=True)
class InvocationBatches(Report):
    """Batches in one invocation, and the open ones of its run."""

    JSON_KEYS = (
        "batches=submitted",
        "waiting_batches=waiting",
        "undecided_batches=undecided",
        "stale",
        "ingested",
        "open_batches=open",
        "next_try_at",
        "rows_in_batches",
        "waits_for",
        "tasks_held_back",
    )

    submitted: tuple[Mapping[str, Any], ...] = ()
    """Batches that it submitted, as `BatchLine` has them; see `BatchFacts`."""

    waiting: tuple[Mapping[str, Any], ...] = ()
    """Batches that could not be submitted yet, likewise."""

    undecided: tuple[Mapping[str, Any], ...] = ()
    """Batches that need a decision of the user, likewise."""

    stale: tuple[StaleBatch, ...] = ()
    """Batches with requests that are no longer needed."""

    ingested: tuple[Mapping[str, Any], ...] = ()
    """Batches whose results it took: the name of each, and its requests by how they ended."""

    open: Mapping[str, Any] | None = None
    """The open batches of the run, counted; None: there are none."""

    next_try_at: str | None = None
    """UTC, in ISO 8601: when a waiting batch is submitted at the earliest."""

    rows_in_batches: int = 0
    """Rows that wait for batches."""

    waits_for: tuple[Mapping[str, Any], ...] = ()
    """Batches of earlier runs with the same requests, for which rows wait."""

    tasks_held_back: int = 0
    """Tasks that fit into the budget only once open batches have been taken."""


@dataclass(frozen=True, slots=True)
class SelectedRows(Report):
    """The number of selected rows, if not all of them were read."""

    rows: int
    """How many."""

    exact: bool
    """True if they were counted, False if that is an estimate."""


@dataclass(frozen=True, slots=True)
class WrittenLines(Report):
    """The part of the results that was written at a limit."""

    lines_written: int
    """Rows in the results."""


@dataclass(frozen=True, slots=True)
class UnsentMessages(Report):
    """Messages that were not sent at the end."""

    left: int
    """How many."""

    error: str | None
    """Why the last one was not; None: there was no time."""


@dataclass(frozen=True, slots=True)
class InvocationNotes(Report):
    """Further facts at the end of an invocation. The JSON only has the keys of those there are."""

    JSON_KEYS = (
        "not_recorded?",
        "rows_selected?",
        "**written",
        "notifications?",
        "dropped_messages?",
    )

    not_recorded: str = ""
    """Which calls of tools were not recorded, in a sentence."""

    rows_selected: SelectedRows | None = None
    """How many rows are selected, where not all of them were read."""

    written: WrittenLines | None = None
    """How much of the results was written at a limit; None: the run met none."""

    notifications: UnsentMessages | None = None
    """Messages that were not sent; None: all were."""

    dropped_messages: tuple[str, ...] = ()
    """Messages that could not be kept, each as a sentence."""


@dataclass(frozen=True, slots=True)
class InvocationSummary(Report):
    """A summary of one invocation of a run."""

    JSON_KEYS = (
        "continued",
        "complete",
        "lost_calls_at_most",
        "**rows",
        "**tasks",
        "**calls",
        "waiting_for",
        "**unanswered",
        "stopped_at_limit",
        "cost_usd",
        "budgets",
        "waits_for_shards?",
        "**batches",
        "**notes",
    )

    continued: bool = False
    """True if it resumed a run."""

    complete: bool = False
    """True if every row has an outcome now."""

    lost_calls_at_most: int = 0
    """Calls of the invocation before, which did not end, that may be billed without an answer."""

    rows: InvocationRows = InvocationRows()
    """The rows of the input."""

    tasks: InvocationTasks = InvocationTasks()
    """The tasks."""

    calls: InvocationCalls = InvocationCalls()
    """The calls."""

    waiting_for: LastFault | None = None
    """Why the last call brought no answer; None: it brought one."""

    unanswered: UnansweredCalls = UnansweredCalls()
    """Calls that may be billed although no answer came."""

    stopped_at_limit: bool = False
    """True if a budget or `max_errors` ended it."""

    cost_usd: float | None = None
    """US dollars of the calls with a known price; None: no call has one."""

    budgets: tuple[Mapping[str, Any], ...] = ()
    """What was spent of each budget, by its name and unit."""

    waits_for_shards: str = ""
    """What of other shards the run waits for; empty: nothing."""

    batches: InvocationBatches = InvocationBatches()
    """Its batches."""

    notes: InvocationNotes = field(default_factory=InvocationNotes)
    """Further facts at its end."""
