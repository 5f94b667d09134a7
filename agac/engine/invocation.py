"""What an invocation works on, what it may run, and what its parts share."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from agac.core.arguments import refuse_fields
from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.text import on_one_line, plain
from agac.core.types import Row, RowId
from agac.data.files import prove_writable
from agac.engine.derived_rows import RowDeriver
from agac.engine.effects import ActiveRow
from agac.engine.limits import AcceptedKeys, BudgetLimiter, StopRules, StopSignal
from agac.engine.notify import Notifier
from agac.engine.replay import RowViews
from agac.engine.retry_policy import is_left
from agac.engine.settle import Settler, Totals
from agac.plan.plan import Plan
from agac.plan.render import Preparer, RowView
from agac.plan.stage import AnyStage
from agac.providers.provider import Provider
from agac.spec.graph import Levels, levels_of
from agac.store.batches import BatchRecord, Ready, key_accepted, ready_tasks, waiting_rows
from agac.store.db import Database
from agac.store.decisions import Fixes, rows_decided, rows_waiting
from agac.store.records import NewRow, WriteBatch
from agac.store.rows import PriorTask, RowChoice, StoredRow, prior_tasks
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.data.remote import RemoteContents
    from agac.engine.batch.control import Control
    from agac.engine.caller import TaskAttempts
    from agac.engine.otlp import Traces
    from agac.engine.review import Reviews
    from agac.engine.sharding.shard_run import ShardRun
    from agac.engine.telemetry import OtelSettings
    from agac.engine.workers.pool import RunExecutor
    from agac.spec.workflow import Timeout


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


class Answers(Protocol):
    """Stands between tasks and providers in workflow tests."""

    calls: Path | None
    """Where results of tools are noted, if at all."""
    goes_out: bool
    """Whether a call that it has no answer for is sent; else nothing is started for calls."""

    async def send(
        self, attempts: TaskAttempts, real: Any, wire: bytes, timeout: Timeout, **how: Any
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


@dataclass(slots=True)
class WriteProof:
    """Proves, before an invocation pays for anything, that what comes of it can be kept: by real
    writes into the store and into each of the `folders`. `body` is its record from then on: one
    killed before that has lost no call."""

    ledger: Ledger
    folders: tuple[Path, ...]
    body: str
    made: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def make(self) -> None:
        """Does so, once. Raises AgacError."""
        async with self._lock:
            if self.made:
                return
            for folder in self.folders:
                await asyncio.to_thread(prove_writable, folder, _NOT_WRITABLE)
            await self.ledger.prove_room(self.body)
            self.made = True


_NOT_WRITABLE = (
    "Free some space, or make the folder writable (another one for results: output.dir), then "
    "run the same command again. Nothing was sent."
)


def accepted_keys(
    database: Database, ledger: Ledger, stop_signal: StopSignal, now: Callable[[], float]
) -> AcceptedKeys:
    """Which keys were accepted, as the store knows and will know; `now` gives seconds since
    1970."""

    def keep(provider: str, account: str) -> None:
        ledger.batch.accepted.append((provider, account, now()))

    return AcceptedKeys(stop_signal, partial(key_accepted, database), keep)


TasksOfRows = tuple[dict[int, dict[int, PriorTask]], dict[int, Ready]]
"""What became of rows' tasks earlier in this run, and what batches brought for them since, by the
rows' keys."""


@dataclass(frozen=True)
class InvocationContext:
    """What the parts of one invocation share. `views` puts together what stored rows show of
    themselves. `cutoffs`: from when on results are taken, for the stages that say so, by position.
    `again_from`: the position of the stage from which on a retry runs everything again; `opened`:
    how to go on with rows that a retry opened and left. `batched`: rows of the workflow may wait
    for batches. `fixes` are the results that people set by hand, `redos` the answers that they
    wanted to have given again. `reviews`: there are stages at which rows wait for people."""

    work: Work
    places: InvocationRef
    ledger: Ledger
    stop_signal: StopSignal
    totals: Totals
    stops: StopRules
    settler: Settler
    proof: WriteProof
    budgets: BudgetLimiter | None
    views: RowViews
    cutoffs: Mapping[int, float]
    opened: ReopenedRows | None
    batched: bool
    fixes: Fixes
    redos: Fixes
    reviews: Reviews | None = None
    traces: Traces | None = None
    notifier: Notifier | None = None

    @cached_property
    def plan(self) -> Plan:
        """The plan that is at work."""
        return self.work.plan

    @cached_property
    def keys(self) -> AcceptedKeys:
        """Which keys were accepted."""
        return accepted_keys(
            self.places.database, self.ledger, self.stop_signal, self.work.clocks.wall
        )

    @cached_property
    def again_from(self) -> int | None:
        """The position of the stage from which on a retry runs everything again."""
        if self.work.retry:
            return self.work.retry.position(self.plan)
        return None

    @cached_property
    def levels(self) -> Levels[AnyStage]:
        """The rows that walk alike."""
        return levels_of(self.plan.stages)

    @cached_property
    def preparer(self) -> Preparer:
        """Makes the views of rows and the requests of tasks."""
        return Preparer(self.plan.stages, self.plan.vars, self.places.run, self.redos)

    @cached_property
    def deriver(self) -> RowDeriver:
        """What the stages make of rows."""
        return RowDeriver(self.levels, self.plan.output.stages)

    @cached_property
    def workers(self) -> int:
        """Rows that walk at a time: where tasks are enrolled nobody waits for a model, only for
        look-ups, each of which takes as many; one whose tools are at work leaves its place to
        others."""
        asking = self.plan.asking
        calls = self.plan.concurrency
        batched = any(stage.run_mode == "batch" for stage in asking)
        open_rows = any(stage.agent_spec for stage in asking) and (
            self.plan.rules.max_open_rows or 4 * calls
        )
        return max(calls, 256 if batched else 0, open_rows)

    async def tasks_of(self, keys: Sequence[int]) -> TasksOfRows:
        """The tasks of these rows."""
        database = self.places.database
        return await prior_tasks(database, keys), await ready_tasks(
            database, keys
        ) if self.batched and keys else {}

    async def merely_waiting(self, keys: Sequence[int]) -> dict[int, int]:
        """Those of these rows that need not be walked, since all there is to do for them is in
        batches, or up to people who have not decided; with the stage at which they wait. Of what
        an earlier invocation left unsent it is seen whether rows still ask for it."""
        database = self.places.database
        waiting = dict[int, int]()
        if self.batched and keys:
            waiting = await waiting_rows(database, keys, self.places.event)
            ready = await ready_tasks(database, keys)
            decided = await self.decided_rows(keys)
            waiting = {
                key: stage
                for key, stage in waiting.items()
                if key not in ready and key not in decided
            }
        if self.reviews is not None and keys:
            places = {stage.name: stage.index for stage in self.plan.stages}
            people = await rows_waiting(database, keys, self.work.clocks.wall())
            waiting |= {
                k: places[name]
                for k, name in people.items()
                if name in places and k not in self.fixes.rows
            }
        return waiting

    async def decided_rows(self, keys: Sequence[int]) -> set[int]:
        """Those of these rows of which something was decided, or set by hand, that no run has
        taken up."""
        if self.reviews is not None and keys:
            found = await rows_decided(self.places.database, keys)
        else:
            found = set[int]()
        return found | self.fixes.rows.intersection(keys)

    def taken_up(
        self, new: NewRow, view: RowView, tasks: TasksOfRows, *, resumed: bool = False
    ) -> ActiveRow:
        """A stored row at work, with its `tasks`."""
        prior, ready = tasks
        return ActiveRow(
            new,
            view,
            prior=prior.get(new.key, {}),
            ready=ready.get(new.key, {}),
            known=True,
            resumed=resumed,
        )

    def go_on_as_retry(self, row: ActiveRow, seen: int | None) -> None:
        """A row that this retry chose (`seen` None) is tried again. An open one that a retry
        opened, in the invocation `seen` or before, is finished as that would have done."""
        if self.opened is not None and (seen is None or seen >= self.opened.first):
            row.forced = seen is None or not row.resumed
            row.again_from = self.opened.again_from
            row.since = self.opened.since

    def leaves_failed(self, row: StoredRow, tasks: Mapping[int, PriorTask]) -> bool:
        """Whether a failed row is not tried again, which is counted: it may not be, or was refused
        often enough."""
        if row.error_type == ErrorType.REJECTED:  # until somebody decides otherwise
            return True
        tried = row.error_stage is None or self.work.scope.tries_again(row.error_stage)
        left = not tried or any(is_left(task) for task in tasks.values())
        self.totals.left_failed += left
        return left
