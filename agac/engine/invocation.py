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
"""What becomes of calls of tools of which nobody knows whether they happened: their rows fail
until somebody says."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`stages`: names that may be asked, None: all; other rows stay open. `retry_failed` False:
    failed rows stay."""

    stages: frozenset[str] | None = None
    retry_failed: bool = True

    def may_ask(self, stage: str) -> bool:
        """Whether the stage's tasks may be asked."""
        return self.stages is None or stage in self.stages

    def tries_again(self, stage: str) -> bool:
        """Whether rows that failed at the stage are tried again."""
        return self.retry_failed and self.may_ask(stage)


@dataclass(frozen=True, slots=True)
class Retry(RowChoice):
    """Rows of a run that are taken up again, from the store: those that failed, also where that is
    left alone else. With `from_stage` that stage and those after it are run again: only answers
    made at or after `since` are taken. `calls` says what becomes of calls of tools that must not
    be repeated and of which nobody knows what came. With `discard` what people decided about them
    before `since` does not count any more."""

    run: int = 0
    calls: UnknownCalls = "ask"
    discard: bool = False

    def __post_init__(self) -> None:
        refuse_fields(self)

    def filters(self) -> dict[str, Any]:
        """What was chosen, as an invocation remembers it."""
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
        """Whether an earlier retry chose the same rows and stages."""
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
        """Whether a row that a stage made is taken up again: it, or the row that it was made of,
        was named; it failed so, or (`again`) its stages are run again."""
        if self.rows and not any(
            row_id == one or str(row_id).startswith(f"{one}/") for one in self.rows
        ):
            return False
        if not failed:
            return again and self.stage is None and self.error is None
        return self.stage in (None, error_stage) and self.error in (None, error_type)

    def position(self, plan: Plan) -> int | None:
        """The position of `from_stage`."""
        return next((stage.index for stage in plan.stages if stage.name == self.from_stage), None)


class ReopenedRows(NamedTuple):
    """Rows that a broken retry opened, from invocation `first` on; from `again_from` on answers
    made since `since`."""

    first: int
    again_from: int | None
    since: float


class InvocationRef(NamedTuple):
    """Which run and which invocation rows are placed for."""

    database: Database
    run: int
    event: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time and chance come from: wall and monotonic seconds, a number in [0, 1)."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Batching:
    """What batches need of whoever makes an invocation. `providers` are the project's as they are
    now; `recorded` gives the plan of a run as it was stored; `folder` holds batches' files.
    `wait`: whether to wait until all is done. `confirm_stale` says whether anything may be
    submitted next to stale batches. `only_batch`: the one batch to ingest, None: all that have
    ended. `resume_run`: the run whose rows are taken from the store, not from its input.
    `only_takes`: what has ended is stored, and nothing is submitted. `control` tells the remote of
    each step; `sharding`: they are those of a shard."""

    providers: Mapping[str, Provider]
    recorded: Callable[[Database, int], Awaitable[Plan]]
    folder: Path
    confirm_stale: Callable[[list[tuple[BatchRecord, int]]], Awaitable[bool]]
    wait: bool = False
    only_batch: int | None = None
    resume_run: int | None = None
    only_takes: bool = False
    control: Control | None = None
    sharding: ShardRun | None = None


class CommitWatcher(Protocol):
    """Follows what an invocation commits. What it raises stops the run."""

    async def began(self, database: Database, run: int) -> None:
        """The run is known, and no row was touched yet."""

    async def committed(self, batch: WriteBatch) -> None:
        """These rows, tasks and calls are durable now."""


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
    """Where results of tools are noted, if at all."""
    goes_out: bool
    """Whether a call that it has no answer for is sent; else nothing is started for calls."""

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Any:
        """What comes back for a call, an HttpReply or a Fault; `real` sends it, with the same
        arguments."""
        ...


class ShownReplies:
    """Replies shown while they are written, one after the other: each below a line that says for
    whom."""

    def __init__(self, show: Callable[[str], None], redactor: Redactor) -> None:
        """`show` is given text as it is to be printed; it may not raise."""
        self._show = show
        self._clean = redactor.clean_piece
        self._head = ""
        self._held = ""
        self.turn = asyncio.Lock()
        self._open = False

    def begin(self, call: str) -> None:
        """What comes next is for this."""
        self._head = f"--- {on_one_line(call, 'utf-8')}\n"
        self._held = ""

    def piece(self, text: str) -> None:
        """More of the reply. Its end, where a secret may have begun, is shown with what follows."""
        ready, self._held = self._clean(self._held + text)
        self._show(self._head + plain(ready))
        self._head = ""
        self._open = True

    def ended(self, text: str, error: str) -> None:
        """The reply is whole, or why it is no result; one that did not come in pieces is shown
        now."""
        end = "\n" if text or not self._head else ""
        if self._head:
            self.piece(text)
        if self._open:
            self._show(
                plain(self._held) + end + (f"[{on_one_line(error, 'utf-8')}]\n" if error else "")
            )
        self._open = False


@dataclass(frozen=True, slots=True)
class Work:
    """What an invocation is about. `rows` gives a fresh reading of the selected rows each time it
    is called; a `retry` takes its rows from the store instead, as `batching` may. `place` names a
    row of the last reading by its ordinal, for messages. `watcher` is told of each commit; with
    `replies` one call is made at a time, and streamed to it. Of more than `first` rows the others
    wait, and the run stops. `web` is for tools, and `functions` are those of a program, by the
    source of their tools; with `refresh_tools` no result is taken that an earlier run kept.
    `calls` is as in Retry; `answers` stands in the way of each call; `otel`: what is sent of
    traces and metrics; `discards`: what people decided before counts no more; `executor`: who
    carries out calls and functions elsewhere; `sharding`: it works on one shard."""

    plan: Plan
    rows: Callable[[], Iterator[Row]]
    place: Callable[[int], str]
    output_dir: str
    fresh: bool
    scope: Scope
    retry: Retry | None
    root: Path
    redactor: Redactor
    clocks: Clocks
    env: Mapping[str, str]
    batching: Batching
    watcher: CommitWatcher | None = None
    replies: ShownReplies | None = None
    first: int | None = None
    web: RemoteContents | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    refresh_tools: bool = False
    calls: UnknownCalls = "ask"
    answers: Answers | None = None
    otel: OtelSettings | None = None
    discards: bool = False
    executor: RunExecutor | None = None
    sharding: ShardRun | None = None
