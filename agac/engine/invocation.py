"""What an invocation works on, and what it may run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from agac.core.arguments import refuse_fields
from agac.core.redact import Redactor
from agac.core.text import on_one_line, plain
from agac.core.types import Request, Row, RowId
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.provider import Provider
from agac.store.batches import BatchRecord
from agac.store.db import Database
from agac.store.rows import RowChoice
from agac.store.write_batch import WriteBatch

if TYPE_CHECKING:
    from agac.data.remote import RemoteContents
    from agac.engine.batch.control import Control
    from agac.engine.output.telemetry import OtelSettings
    from agac.engine.sharding.shard_run import ShardRun
    from agac.engine.workers.pool import RunExecutor
    from agac.spec.rules import Timeout


UnknownCalls = Literal["ask", "repeat", "skip"]
"""What to do about tool calls that may or may not have happened. `ask`: fail the row until the user
decides."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which stages an invocation may ask."""

    stages: frozenset[str] | None = None
    """The names of the stages that may be asked; None: all. Rows stay open at others."""
    retry_failed: bool = True
    """False if rows that failed stay failed."""

    def may_ask(self, stage: str) -> bool:
        """True if the stage's tasks may be asked."""
        return self.stages is None or stage in self.stages

    def tries_again(self, stage: str) -> bool:
        """True if rows that failed at the stage are tried again."""
        return self.retry_failed and self.may_ask(stage)


@dataclass(frozen=True, slots=True)
class Retry(RowChoice):
    """Rows of a run that are tried again, from the store: those that failed, even if they are
    otherwise left alone. With `from_stage` that stage and those after it are run again: only
    answers made at or after `since` are taken."""

    run: int = 0
    """The number of the run."""
    calls: UnknownCalls = "ask"
    """What becomes of tool calls that must not be repeated and may have happened."""
    discard: bool = False
    """True if what people decided about the rows before `since` does not count any more."""

    def __post_init__(self) -> None:
        refuse_fields(self)

    def filters(self) -> dict[str, Any]:
        """Returns what was chosen, as an invocation remembers it."""
        own = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        return {
            key: value
            for key, value in own.items()
            if (key, value) not in (("calls", "ask"), ("discard", False))
        }

    def same_choice(self, filters: dict[str, Any]) -> bool:
        """True if an earlier retry chose the same rows and stages."""
        own = self.filters()
        return all(filters.get(key) == own[key] for key in own if key not in ("since", "run"))

    def chooses_made(
        self,
        row_id: RowId,
        error_stage: str | None,
        error_type: str | None,
        *,
        failed: bool,
        again: bool,
    ) -> bool:
        """True if a row that a stage made is tried again: it, or the row that it was made of, was
        named; it failed so, or (`again`) its stages are run again."""
        if self.rows and not any(
            row_id == one or str(row_id).startswith(f"{one}/") for one in self.rows
        ):
            return False
        if not failed:
            return again and self.stage is None and self.error is None
        return self.stage in (None, error_stage) and self.error in (None, error_type)

    def position(self, plan: Plan) -> int | None:
        """Returns the position of `from_stage`."""
        return next((stage.index for stage in plan.stages if stage.name == self.from_stage), None)


class ReopenedRows(NamedTuple):
    """Rows that a retry opened and left open."""

    first: int
    """The first invocation that may have opened them."""
    again_from: int | None
    """The position from which on their stages are run again."""
    since: float
    """From when on answers of these stages count, in seconds since 1970."""


class InvocationRef(NamedTuple):
    """Which run and which invocation in a database."""

    database: Database
    """The database."""
    run: int
    """The number of the run."""
    event: int
    """The number of the invocation."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time and chance come from."""

    wall: Callable[[], float] = time.time
    """Returns the time, in seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds that never go back."""
    jitter: Callable[[], float] = random.random  # noqa: S311 - no secret
    """Returns a number in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Batch settings of one invocation."""

    providers: Mapping[str, Provider]
    """The project's providers as they are now, by name."""
    recorded: Callable[[Database, int], Awaitable[Plan]]
    """Makes the plan of a run as it was stored."""
    folder: Path
    """The folder with the files of batches."""
    confirm_stale: Callable[[list[tuple[BatchRecord, int]]], Awaitable[bool]]
    """Decides whether anything may be submitted next to stale batches."""
    wait: bool = False
    """True to wait until all batches are done."""
    only_batch: int | None = None
    """The one batch to ingest; None: all that have ended."""
    resume_run: int | None = None
    """The run whose rows are taken from the store, not from its input."""
    only_takes: bool = False
    """True if what has ended is stored, and nothing is submitted."""
    control: Control | None = None
    """Tells the remote of each step."""
    sharding: ShardRun | None = None
    """The shard whose batches they are."""


class CommitWatcher(Protocol):
    """Follows what an invocation commits. What it raises stops the run."""

    async def began(self, database: Database, run: int) -> None:
        """Is called when the run is known, and no row was touched yet."""

    async def committed(self, batch: WriteBatch) -> None:
        """Is called when these rows, tasks and calls are durable."""


class OutgoingCall(NamedTuple):
    """A call of a model that is about to be sent."""

    stage: PlannedStage
    """The stage whose model is called."""
    model: PlannedModel
    """The model that is called."""
    row_id: RowId
    """The row that it is made for."""
    request: Request
    """What is asked."""


class Answers(Protocol):
    """Stands between tasks and providers in workflow tests."""

    calls: Path | None
    """The file in which results of tools are noted, if they are."""
    goes_out: bool
    """True if a call that it has no answer for is sent; else nothing is started for calls."""

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Any:
        """Returns what comes back for a call, an HttpReply or a Fault; `real` sends it, with the
        same arguments."""
        ...


class ShownReplies:
    """Shows replies while they are written, one after the other, each below a line that says what
    it is for."""

    def __init__(self, show: Callable[[str], None], redactor: Redactor) -> None:
        """`show` prints one piece of text and must not raise."""
        self._show = show
        self._clean = redactor.clean_piece
        self._head = ""
        self._held = ""
        self.turn = asyncio.Lock()
        self._open = False

    def begin(self, call: str) -> None:
        """Names the call whose reply comes next."""
        self._head = f"--- {on_one_line(call, 'utf-8')}\n"
        self._held = ""

    def piece(self, text: str) -> None:
        """Shows more of the reply. Its end, in which a secret may begin, is shown with what
        follows."""
        ready, self._held = self._clean(self._held + text)
        self._show(self._head + plain(ready))
        self._head = ""
        self._open = True

    def ended(self, text: str, error: str) -> None:
        """Ends a reply, with why it is no result, if it is none. One that did not come in pieces
        is shown now."""
        end = "\n" if text or not self._head else ""
        if self._head:
            self.piece(text)
        if self._open:
            why = f"[{on_one_line(error, 'utf-8')}]\n" if error else ""
            self._show(plain(self._held) + end + why)
        self._open = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How an invocation reads its input."""

    rows: Callable[[], Iterator[Row]]
    """Gives a fresh reading of the selected rows each time it is called. A retry takes its rows
    from the store instead, as `Batching` may."""
    place: Callable[[int], str]
    """Names a row of the last reading by its ordinal, for messages."""
    first: int | None = None
    """How many rows are done; the others wait, and the run stops. None: all are."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the tools of agents need of an invocation."""

    web: RemoteContents | None = None
    """Fetches pages for them."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The functions of a program, by the source of their tools."""
    refresh: bool = False
    """True if no result is taken that an earlier run kept."""
    unknown_calls: UnknownCalls = "ask"
    """What becomes of calls that may or may not have happened; a `Retry` has a choice of its
    own."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What follows the calls and commits of an invocation, or takes the place of senders."""

    watcher: CommitWatcher | None = None
    """Is told of each commit."""
    replies: ShownReplies | None = None
    """Shows replies: one call is made at a time, and streamed to it."""
    answers: Answers | None = None
    """Answers calls in the place of providers, in tests of workflows."""
    otel: OtelSettings | None = None
    """Which traces and metrics are sent."""
    executor: RunExecutor | None = None
    """Makes calls and calls functions elsewhere."""


@dataclass(frozen=True, slots=True)
class Work:
    """Everything one invocation works on."""

    plan: Plan
    """The plan of the workflow."""
    reading: Reading
    """How it reads its input."""
    output_dir: str
    """Where its outputs go, as it is shown."""
    fresh: bool
    """True if answers from before it do not count."""
    scope: Scope
    """Which stages it may ask."""
    retry: Retry | None
    """The retry that it is."""
    root: Path
    """The folder of the project."""
    redactor: Redactor
    """Removes secrets from texts."""
    clocks: Clocks
    """Where time and chance come from."""
    env: Mapping[str, str]
    """The variables of the environment, with those of the project's files."""
    batching: Batching
    """Its settings for batches."""
    tools: ToolUse = field(default_factory=ToolUse)
    """What the tools of agents need."""
    hooks: Hooks = field(default_factory=Hooks)
    """What follows it, or answers in the place of providers."""
    discards: bool = False
    """True if what people decided before does not count any more."""

    @property
    def sharding(self) -> ShardRun | None:
        """The shard that it works on, if it is one of several."""
        return self.batching.sharding
