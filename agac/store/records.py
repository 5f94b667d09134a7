"""What one commit writes: collected by the engine without waiting, written by the writer all at
once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agac.core.errors import RowError
from agac.core.types import Outcome, Row, RowId, Usage, WebSource
from agac.store.batches import PlacedTask
from agac.store.decisions import StoredDecision
from agac.store.rows import State, StoredRow


class Endpoint(NamedTuple):
    """Who gave an answer. `model` is the one that answered, which may be more exact than the one
    asked for."""

    provider: str
    base_url: str
    model: str
    simulated: bool


@dataclass(slots=True)
class NewRow:
    """A row that enters the store; `key` is given by the commit."""

    row: Row
    occurrence: int
    hash: bytes
    data: str
    state: State
    key: int = 0
    origin: int | None = None  # the position of the stage that made it; None: it is the input's

    @staticmethod
    def of(old: StoredRow) -> NewRow:
        """A stored row that is worked on again."""
        row = Row(old.id, old.ordinal or 0, json.loads(old.data) if old.origin is None else {})
        return NewRow(row, old.occurrence, old.hash, old.data, State.PENDING, old.key, old.origin)


@dataclass(slots=True)
class Result:
    """A result on its way into the store, or already there; `id` is 0 until its commit. `value` is
    JSON text. `how` it came about: "" as the model gave it at once, else some of
    `repair,json_repair,fallback`, and `misformatted` where a text lacks its format. One made of
    other results has the endpoint of one of them, `like`, stored before it, and its sources.
    `sources` are those of searches that the provider ran; of one that is in the store they are not
    read."""

    fingerprint: bytes
    value: str
    endpoint: Endpoint | None = None
    created_at: float = 0.0
    id: int = 0
    how: str = ""
    like: Result | None = None
    sources: tuple[WebSource, ...] = ()


class TaskEnd(NamedTuple):
    """What became of a task."""

    new: NewRow
    stage: int
    fingerprint: bytes | None
    outcome: Outcome
    result: Result | None
    error: RowError | None
    failures: int
    at: float
    note: str | None = None
    replica: int = 0


class Call(NamedTuple):
    """One request that was sent and what came of it. Times in seconds, `cost` in USD, None when it
    is not known. `ambiguous`: nothing came back, yet the provider may have done the work. `body`
    is the answer as it came. `again`: the same was sent before, and a fault came of it. `mended`:
    its answer was JSON only after `json_repair`. `held_…`: what an ambiguous call may have cost at
    most. `refused`: the server would not do it now, whatever the status. `ttft`,
    `time_to_response`: of a streamed call, in seconds. `service_tier`: that which served it."""

    number: int
    endpoint: Endpoint
    purpose: str
    started_at: float
    duration: float
    status: int | None = None
    error: RowError | None = None
    ambiguous: bool = False
    usage: Usage = Usage()
    cost: float | None = None
    body: bytes | None = None
    again: bool = False
    mended: bool = False
    held_usd: float = 0.0
    held_tokens: int = 0
    refused: bool = False
    ttft: float | None = None
    time_to_response: float | None = None
    service_tier: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the provider answered, well or not: what such calls took is what its users wait
        for."""
        return self.status is not None and self.status < 400 and not self.refused


class Attempt(NamedTuple):
    """A call as the store keeps it; `reply` is its body, deflated when that is smaller."""

    new: NewRow
    stage: int
    fingerprint: bytes
    call: Call
    reply: str | bytes | None
    replica: int = 0


class AgentTurn(NamedTuple):
    """A reply within a conversation; `reply` as `Attempt.reply`. `number` counts the turns of the
    task's conversations from 1, `conversation` is the number of the first of this one. `ended`:
    done, failed or lost; None: it goes on. `agent` is the name of the child agent that was asked,
    "" for the stage's own."""

    new: NewRow
    stage: int
    fingerprint: bytes
    number: int
    conversation: int
    model: str
    agent: str
    attempt: int
    at: float
    status: int
    reply: str | bytes
    ended: str | None


class ToolCallRecord(NamedTuple):
    """A turn's call of a tool. `state`: intent, done, error, refused, unknown or lost; `result`:
    for the model."""

    new: NewRow
    stage: int
    fingerprint: bytes
    turn: int
    place: int
    call_id: str
    name: str
    arguments: str
    state: str
    result: str | None
    how: str
    started_at: float
    duration: float | None


class RowEnd(NamedTuple):
    """A row that reached its end: `result` of the last stage, or the error and the stage where it
    failed."""

    new: NewRow
    state: State
    result: Result | None
    stage: str | None
    error: RowError | None


class Child(NamedTuple):
    """A row that a stage makes of another one. `hash` stands for all that the stages after it see
    of it."""

    id: RowId
    hash: bytes
    data: str


class Membership(NamedTuple):
    """A row's place in a group: `group` and `data` are the group's id and fields, `sort` where the
    row stands among the members (`keys.member_hash`), `size` the tokens that it is taken to come
    to. `failed`: the group lacks it."""

    group: RowId
    data: str
    sort: int
    size: int
    failed: bool


class DistantMember(NamedTuple):
    """A row of another shard, with its place in a group that is in this one. `maker` is the
    position of the stage that made the row, -1: it is the input's. `text` is what stands for it in
    a call, "" where it failed. `entry` is the number under which its shard told of it."""

    origin: int
    shard: int
    id: RowId
    maker: int
    text: str
    entry: int
    place: Membership


class DedupeCandidate(NamedTuple):
    """A row that goes on where none has these values: their `hash`, the `content` later stages
    see, its `state`."""

    hash: bytes
    content: bytes
    state: State


class DerivedRows(NamedTuple):
    """All that is made of a row at its end, by the stage's position; what else was made of it
    before no longer is."""

    row: NewRow
    children: Mapping[int, Sequence[Child]] = {}
    groups: Mapping[int, Membership] = {}
    alike: Mapping[int, DedupeCandidate] = {}


class Children(NamedTuple):
    """The children that a stage makes of a row, whatever else is made of it."""

    row_key: int
    origin: int
    children: Sequence[Child]


class Part(NamedTuple):
    """A part of a large group, to be asked in a call of its own; `height` counts from 1."""

    group: int
    origin: int
    id: str
    height: int
    data: str


class Enrolled(NamedTuple):
    """A task that joins a batch; `round`, `position` and `repairs` are those of
    `batches.ReadyTask`."""

    new: NewRow
    stage: int
    replica: int
    fingerprint: bytes
    batch: int
    place: int
    round: int
    position: int
    repairs: int


class WaitingTask(NamedTuple):
    """A task that waits for an equal one that is in a batch."""

    new: NewRow
    stage: int
    replica: int
    fingerprint: bytes


class EndedTask(NamedTuple):
    """What came of a task in a batch, and of all that wait for it; `then_do` None: a result, or
    `error`."""

    task: PlacedTask
    then_do: str | None
    error: RowError | None


class LaneSample(NamedTuple):
    """How the lane of a model is at a moment (`at`, as `paused_until` in seconds since 1970):
    calls in flight, the `bound` that was found for them and the `most` there may be, calls that
    wait and for what (`held_by`), seconds that calls let in since the last sample `waited`
    together, and how many were `refused` by rate since then."""

    at: float
    lane: str
    in_flight: int
    bound: int
    most: int
    waiting: int
    held_by: str
    paused_until: float | None
    waited: float
    refused: int


class NewReview(NamedTuple):
    """An answer that waits for people, or for a word after the decision `last`. `seen` and `why`
    are JSON."""

    key: bytes
    workflow: str
    stage: str
    new: NewRow
    seen: str
    why: str
    blind: bool
    last: int
    state: str
    sure: float
    due: float | None
    at: float


class ReviewEnd(NamedTuple):
    """A review that is `applied`, by the decisions up to `last`; or `stale`, as nobody is asked
    any more."""

    key: bytes
    new: NewRow
    last: int
    state: str


CounterKey = tuple[str, str, str, str]
"""Stage ('' for rows), outcome ('call' for attempts), error type or '', provider/model or ''."""

# stage, measure (`duration`, `ttft`, `time_to_response`), bucket of a histogram
TimingKey = tuple[str, str, int]

AGREEMENT = "agreement"
"""The outcome under which tasks are counted whose replicas voted, by how many of them agreed, as
`2/3`; and those of reviews, by how they were passed: `approved`, `manual` or `auto`."""

MANUAL = "manual"  # the `Result.how` of results that a person set
HOW = (
    "how"  # the outcome under which answers are counted that did not come at once, by `Result.how`
)
# the outcome under which parts of large groups are counted: they are calls of a stage, and no rows
# of it
PART = "part"

TURN = "turn"
FIRST = "first"
TOOL = "tool"
"""The outcomes under which turns of conversations are counted, those that begin one apart and by
the child agent; and calls of tools, by how they were served (`ToolCallRecord.how`, else the state
where it is not done) and the tool, if it is one of the stage's."""

PRESENT: CounterKey = ("", "present", "", "")
"""The roll-up of all rows that stand in the input, whatever became of them."""


@dataclass(slots=True)
class CounterDelta:
    """What one roll-up says, or a commit adds to it: how many `tasks` (or rows, or calls), and
    what they took. `held_…`: the most that calls without an answer may have cost."""

    tasks: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    held_cost: float = 0.0
    held_tokens: int = 0
    cache_write_tokens: int = 0
    server_tools: int = 0

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
        """The columns, in the order of the table."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class WriteBatch:
    """Everything that waits for the next commit."""

    inserts: list[NewRow] = field(default_factory=list)
    changes: list[NewRow] = field(default_factory=list)
    """Stored rows that came back with other content, or that are tried again."""
    places: list[tuple[int, int]] = field(default_factory=list)  # (ordinal, key)
    leaving: list[int] = field(default_factory=list)  # keys
    results: list[Result] = field(default_factory=list)
    tasks: list[TaskEnd] = field(default_factory=list)
    # (row key, stage, the first replica of it)
    forgotten: list[tuple[int, int, int]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    turns: list[AgentTurn] = field(default_factory=list)
    # (how, fingerprint, number)
    turn_ends: list[tuple[str, bytes, int]] = field(default_factory=list)
    tool_calls: list[ToolCallRecord] = field(default_factory=list)
    ends: list[RowEnd] = field(default_factory=list)
    makings: list[DerivedRows] = field(default_factory=list)
    children: list[Children] = field(default_factory=list)
    distant: list[DistantMember] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)  # keys of groups all of whose parts are written
    gone: list[int] = field(default_factory=list)  # keys of rows that are no longer made
    reopened: list[int] = field(default_factory=list)  # keys of made rows that are taken up again
    used: list[tuple[NewRow, int, int]] = field(default_factory=list)
    """Rows, stages and replicas whose tasks are done with, as far as their batches go."""
    enrolled: list[Enrolled] = field(default_factory=list)
    waiting: list[WaitingTask] = field(default_factory=list)
    ended: list[EndedTask] = field(default_factory=list)
    # whether its row waits for nothing else
    reviews: list[tuple[NewReview, bool]] = field(default_factory=list)
    review_ends: list[ReviewEnd] = field(default_factory=list)
    reviewed: list[tuple[str, str, RowId, bytes]] = field(default_factory=list)
    """Workflow, stage and row of answers that came to a review, with its key: other ones of the
    row are stale."""
    decisions: list[StoredDecision] = field(default_factory=list)
    tallies: defaultdict[CounterKey, CounterDelta] = field(
        default_factory=lambda: defaultdict(CounterDelta)
    )
    timings: Counter[TimingKey] = field(default_factory=Counter)
    lanes: list[LaneSample] = field(default_factory=list)
    given: list[tuple[int, str, str, int, NewRow, int, bytes, bytes, float]] = field(
        default_factory=list
    )
    """Calls that workers get: number, chunk, worker, stage, row, replica, fingerprint, mark of the
    request, time."""
    # invocation and number of calls whose end is stored
    answered: list[tuple[int, int]] = field(default_factory=list)
    accepted: list[tuple[str, str, float]] = field(default_factory=list)
    """Provider and account of keys that were accepted, with the time (seconds since 1970)."""
    waits: str | None = (
        None  # until when no call goes to some models, as the record of the invocation has it: JSON
    )
    calls: int = (
        0  # calls that become durable with this commit: they stop counting against concurrency
    )
    on_durable: list[Callable[[], None]] = field(default_factory=list)

    def tally(self, key: CounterKey) -> CounterDelta:
        """The roll-up for a key, made when it is first needed."""
        return self.tallies[key]
