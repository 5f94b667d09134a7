"""Records of what commits write: rows, results, tasks, calls, conversations, reviews."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

from agac.core.errors import RowError
from agac.core.types import Moment, Outcome, Row, RowId, Usage, WebSource
from agac.store.batches import PlacedTask
from agac.store.rows import State, StoredRow


class Endpoint(NamedTuple):
    """The server and the model that gave an answer."""

    provider: str
    """The provider's name."""
    base_url: str
    """The provider's address."""
    model: str
    """The model that answered, which may be more exact than the one that was requested."""
    simulated: bool
    """True if a simulator answered."""


@dataclass(slots=True)
class NewRow:
    """A row that enters the store, or a stored one that is processed again."""

    row: Row
    """The row itself."""
    occurrence: int
    """Which of the rows with the same id it is."""
    hash: bytes
    """The hash of its data."""
    data: str
    """Its data as JSON."""
    state: State
    """The state that it gets."""
    key: int = 0
    """The row's key. A new row gets its key by the commit; 0 until then."""
    origin: int | None = None
    """The position of the stage that made it; None for a row of the input."""

    @staticmethod
    def of(old: StoredRow) -> NewRow:
        """Builds the record for a stored row that is processed again."""
        row = Row(old.id, old.ordinal or 0, json.loads(old.data) if old.origin is None else {})
        return NewRow(row, old.occurrence, old.hash, old.data, State.PENDING, old.key, old.origin)


@dataclass(slots=True)
class Result:
    """A result that will be stored, or that is stored already."""

    fingerprint: bytes
    """The fingerprint of the task that it answers."""
    value: str
    """The answer as JSON."""
    endpoint: Endpoint | None = None
    """Who gave it. None if it is made of another result (`like`) or was stored before."""
    created_at: float = 0.0
    """When it was made, in seconds since 1970."""
    id: int = 0
    """Its number in the store; 0 until its commit."""
    how: str = ""
    """How it came about: "" as the model gave it at once, else some of
    `repair,json_repair,fallback`, and `misformatted` where a text lacks its format."""
    like: Result | None = None
    """One of the results that this one is made of, stored before it. This one has the same endpoint
    and the same sources."""
    sources: tuple[WebSource, ...] = ()
    """Sources of searches that the provider ran. They are not read back for stored results."""


class TaskEnd(NamedTuple):
    """How a task ended."""

    new: NewRow
    """The task's row."""
    stage: int
    """The position of the task's stage."""
    fingerprint: bytes | None
    """The task's fingerprint, if one was made."""
    outcome: Outcome
    """The outcome."""
    result: Result | None
    """The result, if there is one."""
    error: RowError | None
    """Why it failed."""
    failures: int
    """How many of its calls failed."""
    at: float
    """When it ended, in seconds since 1970."""
    note: str | None = None
    """More about the outcome, as JSON."""
    replica: int = 0
    """The number of the task's replica."""


class Attempt(NamedTuple):
    """Which attempt at which task a call is."""

    stage: int
    """The position of the task's stage."""
    fingerprint: bytes
    """The task's fingerprint."""
    replica: int
    """The number of the task's replica; 0 if it has none."""
    number: int
    """The call's number within its task, from 1."""
    purpose: str
    """Why it was sent: `ask`, `repair`, `fallback`, …"""
    again: bool = False
    """True if the same request was sent before and failed. It is not stored."""


Seconds = Annotated[float, partial(round, ndigits=4)]


class CallTiming(NamedTuple):
    """When a call was made, and how long it took."""

    started_at: Moment
    """When it was sent, in seconds since 1970."""
    duration: Seconds
    """How many seconds it took."""
    ttft: Seconds | None = None
    """Seconds until the first token of a streamed call."""
    time_to_response: Seconds | None = None
    """Seconds until the answer itself began, in a streamed call."""


class HeldAmount(NamedTuple):
    """The most that a call may have cost beyond what is known of it."""

    usd: float = 0.0
    """In USD."""
    tokens: int = 0
    """In tokens."""


NOTHING_HELD = HeldAmount()


class Call(NamedTuple):
    """One request that was sent and its outcome: as it is made, stored, and read back."""

    attempt: Attempt
    """Which attempt at which task it is."""
    endpoint: Endpoint
    """The server and the model."""
    times: CallTiming
    """When it was made."""
    status: int | None = None
    """The HTTP status, if a response came."""
    service_tier: str | None = None
    """The service tier that served it, as the provider said."""
    error: RowError | None = None
    """Why it failed."""
    ambiguous: bool = False
    """True if no response came, although the provider may have done the work."""
    usage: Usage = Usage()
    """The tokens that it used."""
    cost: float | None = None
    """The price in USD, or None if it is not known."""
    reply: str | bytes | None = None
    """The body of its response as the store keeps it (see `history.reply_text`), if it does."""
    body: bytes | None = None
    """The response as it came. It is not read back, nor is anything that follows."""
    mended: bool = False
    """True if the answer was JSON only after `json_repair`."""
    refused: bool = False
    """True if the server refused to do it now, whatever the status."""
    held: HeldAmount = NOTHING_HELD
    """What is held of a budget for it."""

    @property
    def answered(self) -> bool:
        """True if the provider answered, well or not. Only such calls count for response times."""
        return self.status is not None and self.status < 400 and not self.refused


class AgentTurn(NamedTuple):
    """A reply within a conversation."""

    new: NewRow
    """The row that the conversation is about."""
    stage: int
    """The position of the task's stage."""
    fingerprint: bytes
    """The task's fingerprint."""
    number: int
    """The turn's number among all turns of the task's conversations, from 1."""
    conversation: int
    """The number of the first turn of this conversation."""
    model: str
    """The model that answered."""
    agent: str
    """The name of the child agent that answered; "" for the stage's own."""
    attempt: int
    """The number of the call that brought the reply."""
    at: float
    """When it came, in seconds since 1970."""
    status: int
    """The HTTP status."""
    reply: str | bytes
    """The body of the response, as in `Call.reply`."""
    ended: str | None
    """How the conversation ended with this turn: done, failed or lost. None if it continues."""


class ToolCallRecord(NamedTuple):
    """A call of a tool, made by a turn."""

    new: NewRow
    """The row that the conversation is about."""
    stage: int
    """The position of the task's stage."""
    fingerprint: bytes
    """The task's fingerprint."""
    turn: int
    """The number of the turn that made the call."""
    place: int
    """Which of the turn's calls it is."""
    call_id: str
    """The model's id of the call."""
    name: str
    """The tool's name."""
    arguments: str
    """The arguments as JSON."""
    state: str
    """intent, done, error, refused, unknown or lost."""
    result: str | None
    """The result for the model."""
    how: str
    """How it was served: "" by the tool, else coalesced, cached, stub or replayed."""
    started_at: float
    """When it began, in seconds since 1970."""
    duration: float | None
    """How many seconds it took, if it ended."""


class RowEnd(NamedTuple):
    """How a row ended."""

    new: NewRow
    """The row."""
    state: State
    """Its last state."""
    result: Result | None
    """The result of the last stage, if the row was done."""
    stage: str | None
    """The stage where it failed."""
    error: RowError | None
    """Why it failed."""


class Child(NamedTuple):
    """A row that a stage makes of another row."""

    id: RowId
    """The child's id."""
    hash: bytes
    """The hash of all that later stages see of it."""
    data: str
    """Its data as JSON."""


class Membership(NamedTuple):
    """A row's membership in a group."""

    group: RowId
    """The group's id."""
    data: str
    """The group's fields as JSON."""
    sort: int
    """The row's position among the members (`keys.member_hash`)."""
    size: int
    """The estimated tokens of the row."""
    failed: bool
    """True if the row failed, so that the group lacks it."""


class DistantMember(NamedTuple):
    """A row of another shard that belongs to a group of this shard."""

    origin: int
    """The position of the stage that makes the group."""
    shard: int
    """The number of the row's shard."""
    id: RowId
    """The row's id."""
    maker: int
    """The position of the stage that made the row; -1 for a row of the input."""
    text: str
    """The row's text in the group's call; "" if the row failed."""
    entry: int
    """The number of the message in which the other shard sent it."""
    place: Membership
    """Its membership."""


class DedupeCandidate(NamedTuple):
    """A row that is kept only if no other row has the same values."""

    hash: bytes
    """The hash of those values."""
    content: bytes
    """The hash of all that later stages see of it."""
    state: State
    """The row's state."""


class DerivedRows(NamedTuple):
    """All that is made of a row at its end, by the position of the stage that makes it. Whatever
    else was made of the row before becomes GONE."""

    row: NewRow
    """The row."""
    children: Mapping[int, Sequence[Child]] = {}
    """Its children."""
    groups: Mapping[int, Membership] = {}
    """Its memberships."""
    alike: Mapping[int, DedupeCandidate] = {}
    """Its values for `dedupe`."""


class Children(NamedTuple):
    """The children that one stage makes of a row."""

    row_key: int
    """The row's key."""
    origin: int
    """The stage's position."""
    children: Sequence[Child]
    """The children."""


class Part(NamedTuple):
    """A part of a large group, which gets a call of its own."""

    group: int
    """The key of the group."""
    origin: int
    """The position of the stage that makes the group."""
    id: str
    """The part's id."""
    height: int
    """The level of the part, from 1: parts of parts are higher."""
    data: str
    """Its members as JSON."""


class Enrolled(NamedTuple):
    """A task that joins a batch."""

    new: NewRow
    """The task's row."""
    stage: int
    """The position of the task's stage."""
    replica: int
    """The number of the task's replica."""
    fingerprint: bytes
    """The task's fingerprint."""
    batch: int
    """The batch's number."""
    place: int
    """Its line in the batch, from 0."""
    round: int
    """As in `batches.ReadyTask`."""
    position: int
    """As in `batches.ReadyTask`."""
    repairs: int
    """As in `batches.ReadyTask`."""


class WaitingTask(NamedTuple):
    """A task that waits for an equal one that is in a batch."""

    new: NewRow
    """The task's row."""
    stage: int
    """The position of the task's stage."""
    replica: int
    """The number of the task's replica."""
    fingerprint: bytes
    """The task's fingerprint."""


class EndedTask(NamedTuple):
    """The outcome of a task in a batch, for all tasks that wait for it."""

    task: PlacedTask
    """The task at its line."""
    then_do: str | None
    """The next step, as in `batches.ReadyTask`. None: it has a result or an `error`."""
    error: RowError | None
    """Why it failed."""


class LaneSample(NamedTuple):
    """The state of a model's lane at one moment."""

    at: float
    """The moment, in seconds since 1970."""
    lane: str
    """The lane's name."""
    in_flight: int
    """Calls in flight."""
    bound: int
    """The bound on calls in flight that was found so far."""
    most: int
    """The most calls in flight that are allowed."""
    waiting: int
    """Calls that wait."""
    held_by: str
    """What they wait for."""
    paused_until: float | None
    """The end of the lane's pause, in seconds since 1970."""
    waited: float
    """Seconds that all calls waited together that were admitted since the last sample."""
    refused: int
    """How many calls were refused by rate since the last sample."""


class NewReview(NamedTuple):
    """An answer that waits for reviewers, or for another one after the decision `last`."""

    key: bytes
    """The review's key."""
    workflow: str
    """The workflow's name."""
    stage: str
    """The name of the review's stage."""
    new: NewRow
    """The row."""
    seen: str
    """What reviewers see, as JSON."""
    why: str
    """Why the answer is reviewed, as JSON."""
    blind: bool
    """True if reviewers do not see the answer."""
    last: int
    """The number of the last decision that counts already."""
    state: str
    """The review's state."""
    sure: float
    """How confident the answer is."""
    due: float | None
    """When the review is due, in seconds since 1970."""
    at: float
    """When it was opened, in seconds since 1970."""


class ReviewEnd(NamedTuple):
    """A review that needs nobody any longer."""

    key: bytes
    """The review's key."""
    new: NewRow
    """The row."""
    last: int
    """The number of the last decision that was applied."""
    state: str
    """`applied`, by the decisions up to `last`; or `stale`, if reviewers are no longer asked."""


CounterKey = tuple[str, str, str, str]
"""Stage ('' for rows), outcome ('call' for attempts), error type or '', provider/model or ''."""

TimingKey = tuple[str, str, int]
"""Stage, measure (`duration`, `ttft`, `time_to_response`), bucket of a histogram."""

AGREEMENT = "agreement"
"""The outcome under which tasks are counted whose replicas voted, by how many of them agreed, as
`2/3`; and those of reviews, by how they were passed: `approved`, `manual` or `auto`."""

MANUAL = "manual"
"""The `Result.how` of results that a person set."""

HOW = "how"
"""The outcome under which answers are counted that did not come at once, by `Result.how`."""

PART = "part"
"""The outcome under which parts of large groups are counted. They are calls of a stage, but no
rows of it."""

TURN = "turn"
FIRST = "first"
TOOL = "tool"
"""The outcomes under which turns of conversations are counted, those that begin one apart and by
the child agent; and calls of tools, by how they were served (`ToolCallRecord.how`, else the state
where it is not done) and the tool, if it is one of the stage's."""

PRESENT: CounterKey = ("", "present", "", "")
"""The roll-up of all rows of the input, whatever their outcome."""
