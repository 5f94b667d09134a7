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
from agac.plan.plan import Plan
from agac.plan.render import Preparer, RowView
from agac.plan.stage import AnyStage
from agac.spec.graph import Levels, levels_of
from agac.store.batches import Ready, key_accepted, ready_tasks, waiting_rows
from agac.store.db import Database
from agac.store.decisions import Fixes, rows_decided, rows_waiting
from agac.store.records import NewRow
from agac.store.rows import PriorTask, StoredRow, prior_tasks
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.ask.review import Reviews
    from agac.engine.output.otlp import Traces


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
        left = stays_failed(row, tasks.values(), self.work.scope.tries_again)
        # a rejection is nobody's failure
        self.totals.rows.left_failed += left and row.error_type != ErrorType.REJECTED
        return left
