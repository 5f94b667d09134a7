"""What one commit writes: collected by the engine without waiting, written by the writer all at
once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from agac.core.types import RowId, Usage
from agac.store.decisions import StoredDecision
from agac.store.records import (
    AgentTurn,
    Call,
    Children,
    CounterKey,
    DerivedRows,
    DistantMember,
    EndedTask,
    Enrolled,
    LaneSample,
    NewReview,
    NewRow,
    Part,
    Result,
    ReviewEnd,
    RowEnd,
    TaskEnd,
    TimingKey,
    ToolCallRecord,
    WaitingTask,
)


@dataclass(slots=True)
class CounterDelta:
    """The values of one roll-up, or what a commit adds to them."""

    tasks: int = 0
    """How many tasks, rows or calls."""
    input_tokens: int = 0
    """Tokens of the requests."""
    cached_tokens: int = 0
    """Input tokens that were read from a provider's cache."""
    output_tokens: int = 0
    """Tokens of the answers."""
    reasoning_tokens: int = 0
    """Output tokens that were spent on reasoning."""
    cost: float = 0.0
    """The price in USD."""
    unpriced: int = 0
    """Calls whose price is not known."""
    simulated: int = 0
    """Calls that a simulator answered."""
    held_cost: float = 0.0
    """The most that calls without an answer may have cost, in USD."""
    held_tokens: int = 0
    """The most tokens that calls without an answer may have used."""
    cache_write_tokens: int = 0
    """Input tokens that were written to a provider's cache."""
    server_tools: int = 0
    """How often tools of the providers were used."""

    def add_call(self, usage: Usage, cost: float | None, simulated: bool) -> None:
        """Counts one call. A call without usage and without a price is counted as unpriced, never
        as free."""
        self.tasks += 1
        self.input_tokens += usage.input_tokens or 0
        self.cached_tokens += usage.cached_tokens or 0
        self.output_tokens += usage.output_tokens or 0
        self.reasoning_tokens += usage.reasoning_tokens or 0
        self.cache_write_tokens += usage.cache_write_tokens or 0
        self.server_tools += sum(usage.server_tools.values()) if usage.server_tools else 0
        self.cost += cost or 0.0
        self.unpriced += cost is None
        self.simulated += simulated

    def values(self) -> tuple[float, ...]:
        """Returns the columns, in the order of the table."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class RowWrites:
    """Rows of the input, and rows that ended."""

    inserts: list[NewRow] = field(default_factory=list)
    """New rows."""
    changes: list[NewRow] = field(default_factory=list)
    """Stored rows that came back with other content, or that are tried again."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """Positions in the input, each with the key of the row that is there now."""
    leaving: list[int] = field(default_factory=list)
    """Keys of rows that left the input."""
    ends: list[RowEnd] = field(default_factory=list)
    """Rows that ended, derived ones too."""


@dataclass(slots=True)
class DerivedRowWrites:
    """Rows that stages make."""

    makings: list[DerivedRows] = field(default_factory=list)
    """All that is made of rows."""
    children: list[Children] = field(default_factory=list)
    """The children that single stages make of rows."""
    distant: list[DistantMember] = field(default_factory=list)
    """Members of groups that are in other shards."""
    parts: list[Part] = field(default_factory=list)
    """Parts of large groups."""
    cut: list[int] = field(default_factory=list)
    """Keys of groups all of whose parts are written."""
    gone: list[int] = field(default_factory=list)
    """Keys of rows that are no longer made."""
    reopened: list[int] = field(default_factory=list)
    """Keys of derived rows that are processed again."""


@dataclass(slots=True)
class TaskWrites:
    """Tasks and their results."""

    results: list[Result] = field(default_factory=list)
    """New results."""
    ends: list[TaskEnd] = field(default_factory=list)
    """Tasks that ended."""
    forgotten: list[tuple[int, int, int]] = field(default_factory=list)
    """Tasks to delete: row key, stage, and the first replica of those that go."""


@dataclass(slots=True)
class CallWrites:
    """Calls of models and of tools."""

    attempts: list[tuple[NewRow, Call]] = field(default_factory=list)
    """Calls of models, each with the row that it was made for."""
    turns: list[AgentTurn] = field(default_factory=list)
    """Turns of conversations."""
    turn_ends: list[tuple[str, bytes, int]] = field(default_factory=list)
    """How turns end their conversations: how, fingerprint, number."""
    tool_calls: list[ToolCallRecord] = field(default_factory=list)
    """Calls of tools."""
    given: list[tuple[int, str, str, int, NewRow, int, bytes, bytes, float]] = field(
        default_factory=list
    )
    """Calls that workers get: number, chunk, worker, stage, row, replica, fingerprint, mark of the
    request, time."""
    answered: list[tuple[int, int]] = field(default_factory=list)
    """Invocation and number of calls of workers whose end is stored."""
    count: int = 0
    """How many calls become durable with this commit. They count against concurrency until then."""


@dataclass(slots=True)
class BatchTaskWrites:
    """Tasks in batches of providers."""

    used: list[tuple[NewRow, int, int]] = field(default_factory=list)
    """Rows, stages and replicas whose tasks need their batches no longer."""
    enrolled: list[Enrolled] = field(default_factory=list)
    """Tasks that join batches."""
    waiting: list[WaitingTask] = field(default_factory=list)
    """Tasks that wait for equal ones in batches."""
    ended: list[EndedTask] = field(default_factory=list)
    """Tasks in batches that ended."""


@dataclass(slots=True)
class ReviewWrites:
    """Reviews and decisions."""

    opened: list[tuple[NewReview, bool]] = field(default_factory=list)
    """Reviews to open, each with True if its row waits for nothing else."""
    ended: list[ReviewEnd] = field(default_factory=list)
    """Reviews that ended."""
    sent: list[tuple[str, str, RowId, bytes]] = field(default_factory=list)
    """Workflow, stage and row of answers that were sent to review, with the review's key: other
    reviews of the row become stale."""
    decisions: list[StoredDecision] = field(default_factory=list)
    """Decisions to store."""


@dataclass(slots=True)
class CountWrites:
    """Roll-ups, histograms and samples."""

    tallies: defaultdict[CounterKey, CounterDelta] = field(
        default_factory=lambda: defaultdict(CounterDelta)
    )
    """Additions to roll-ups."""
    timings: Counter[TimingKey] = field(default_factory=Counter)
    """Additions to histograms."""
    lanes: list[LaneSample] = field(default_factory=list)
    """Samples of lanes."""


@dataclass(slots=True)
class WriteBatch:
    """Everything that waits for the next commit."""

    rows: RowWrites = field(default_factory=RowWrites)
    """Rows of the input, and rows that ended."""
    derived: DerivedRowWrites = field(default_factory=DerivedRowWrites)
    """Rows that stages make."""
    tasks: TaskWrites = field(default_factory=TaskWrites)
    """Tasks and their results."""
    calls: CallWrites = field(default_factory=CallWrites)
    """Calls of models and of tools."""
    batched: BatchTaskWrites = field(default_factory=BatchTaskWrites)
    """Tasks in batches of providers."""
    reviews: ReviewWrites = field(default_factory=ReviewWrites)
    """Reviews and decisions."""
    counts: CountWrites = field(default_factory=CountWrites)
    """Roll-ups, histograms and samples."""
    accepted: list[tuple[str, str, float]] = field(default_factory=list)
    """Provider and account of keys that were accepted, with the time (seconds since 1970)."""
    waits: str | None = None
    """JSON that says until when no calls are sent to some models, for the invocation's record."""
    on_durable: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call after the commit."""

    def tally(self, key: CounterKey) -> CounterDelta:
        """Returns the roll-up for a key. Makes it when it is first needed."""
        return self.counts.tallies[key]
