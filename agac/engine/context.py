"""What the parts of one invocation share: its work, its ledger, its limits, and what is known of
rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.errors import ErrorType
from agac.data.files import prove_writable
from agac.engine.ask.limits import BudgetLimiter
from agac.engine.decide.failures import stays_failed
from agac.engine.invocation import InvocationRef, ReopenedRows, Work
from agac.engine.notify import Notifier
from agac.engine.settle import Settler
from agac.engine.stop_rules import AcceptedKeys, StopRules, StopSignal
from agac.engine.totals import Totals
from agac.engine.walk.derived_rows import RowDeriver
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.replay import RowViews
from agac.engine.walk.waiting import WaitingRows
from agac.plan.plan import Plan
from agac.plan.render import Preparer, RowView
from agac.plan.stage import AnyStage
from agac.spec.graph import Levels, levels_of
from agac.store.batches import Ready, key_accepted, ready_tasks
from agac.store.db import Database
from agac.store.decisions import Fixes
from agac.store.records import NewRow
from agac.store.rows import PriorTask, StoredRow, prior_tasks
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.ask.review import Reviews
    from agac.engine.output.otlp import Traces


@dataclass(slots=True)
class WriteProof:
    """Proves, before an invocation pays for anything, that its results can be kept: by real writes
    into the store and into the folders."""

    ledger: Ledger
    """Writes into the store."""
    folders: tuple[Path, ...]
    """The folders that the invocation writes into."""
    body: str
    """The invocation's record from then on (JSON). An invocation that is killed before has lost no
    call."""
    made: bool = False
    """True once it is proved."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def make(self) -> None:
        """Proves it once. Raises AgacError."""
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
    """Makes the record of accepted keys, which the store keeps; `now` returns seconds since
    1970."""

    def keep(provider: str, account: str) -> None:
        """Remembers a key in the store."""
        ledger.batch.accepted.append((provider, account, now()))

    return AcceptedKeys(stop_signal, partial(key_accepted, database), keep)


TasksOfRows = tuple[dict[int, dict[int, PriorTask]], dict[int, Ready]]
"""What became of rows' tasks earlier in this run, and what batches brought for them since, by the
keys of the rows."""

ROWS_OF_BATCHES = 256
"""How many rows are at work at a time if tasks are enrolled in batches."""


@dataclass(frozen=True)
class RowFacts:
    """What is known of a run's rows before an invocation works on them."""

    cutoffs: Mapping[int, float]
    """From when on results count, for the stages that say so, by position; in seconds since 1970.
    """
    opened: ReopenedRows | None
    """Rows that a retry opened and left, and how they are continued."""
    batched: bool
    """True if rows of the workflow may wait for batches."""
    fixes: Fixes
    """The results that people set by hand."""
    redos: Fixes
    """The answers that people wanted to have given again."""


@dataclass(frozen=True)
class InvocationContext:
    """What the parts of one invocation share."""

    work: Work
    """What it works on."""
    places: InvocationRef
    """Which run and which invocation it is, in which database."""
    ledger: Ledger
    """Commits what it does."""
    stop_signal: StopSignal
    """Stops it."""
    totals: Totals
    """Counts what it does."""
    stops: StopRules
    """Stops it when too much fails."""
    settler: Settler
    """Writes outcomes and counts them."""
    proof: WriteProof
    """Proves that its results can be kept."""
    budgets: BudgetLimiter | None
    """Keeps its budgets; None: it has none."""
    views: RowViews
    """Makes the views of stored rows."""
    row_facts: RowFacts
    """What is known of rows before it works on them."""
    reviews: Reviews | None = None
    """Asks people; None: there are no reviews."""
    traces: Traces | None = None
    """Sends traces and metrics; None: none are sent."""
    notifier: Notifier | None = None
    """Makes messages of what it does."""

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
        retry = self.work.retry
        return None if retry is None else retry.position(self.plan)

    @cached_property
    def levels(self) -> Levels[AnyStage]:
        """The levels of the workflow, whose rows go through the same stages."""
        return levels_of(self.plan.stages)

    @cached_property
    def preparer(self) -> Preparer:
        """Makes the views of rows and the requests of tasks."""
        return Preparer(self.plan.stages, self.plan.vars, self.places.run, self.row_facts.redos)

    @cached_property
    def deriver(self) -> RowDeriver:
        """Makes the rows that stages derive from others."""
        return RowDeriver(self.levels, self.plan.output.stages)

    @cached_property
    def workers(self) -> int:
        """How many rows are at work at a time. A row whose task is enrolled in a batch waits only
        for look-ups, which take many at once. A row whose tools are at work makes room for
        others."""
        calls = self.plan.concurrency
        workers = calls
        if any(stage.settings.run_mode == "batch" for stage in self.plan.asking):
            workers = max(workers, ROWS_OF_BATCHES)
        if any(stage.agent_spec for stage in self.plan.asking):
            workers = max(workers, self.plan.rules.max_open_rows or 4 * calls)
        return workers

    async def tasks_of(self, keys: Sequence[int]) -> TasksOfRows:
        """Reads the tasks of these rows."""
        database = self.places.database
        prior = await prior_tasks(database, keys)
        if not self.row_facts.batched or not keys:
            return prior, {}
        return prior, await ready_tasks(database, keys)

    @cached_property
    def waiting(self) -> WaitingRows:
        """Finds rows that wait for batches or people."""
        return WaitingRows(
            self.places.database,
            {stage.name: stage.index for stage in self.plan.stages},
            self.row_facts.batched,
            self.reviews is not None,
            self.row_facts.fixes.rows,
        )

    async def merely_waiting(self, keys: Sequence[int]) -> dict[int, int]:
        """Those of these rows that need not be walked: see `WaitingRows.merely_waiting`. Of what
        an earlier invocation left unsent it is seen whether rows still ask for it."""
        return await self.waiting.merely_waiting(
            keys, event=self.places.event, now=self.work.clocks.wall()
        )

    async def decided_rows(self, keys: Sequence[int]) -> set[int]:
        """Those of these rows about which people decided something that no run has taken up."""
        return await self.waiting.decided(keys)

    def taken_up(
        self, new: NewRow, view: RowView, tasks: TasksOfRows, *, resumed: bool = False
    ) -> ActiveRow:
        """Makes a row at work of a stored row with its `tasks`."""
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
        """Makes a row be tried again, if this retry chose it (`seen` None). An open one that a
        retry opened, in the invocation `seen` or before, is finished as that would have done."""
        opened = self.row_facts.opened
        if opened is None or (seen is not None and seen < opened.first):
            return
        row.forced = seen is None or not row.resumed
        row.again_from = opened.again_from
        row.since = opened.since

    def leaves_failed(self, row: StoredRow, tasks: Mapping[int, PriorTask]) -> bool:
        """True if a failed row is not tried again: it may not be, or was refused often enough.
        Counts it then."""
        left = stays_failed(row, tasks.values(), self.work.scope.tries_again)
        # a rejection is nobody's failure
        self.totals.rows.left_failed += left and row.error_type != ErrorType.REJECTED
        return left
