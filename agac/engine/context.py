"""What the parts of one invocation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agac.engine.budget import BudgetLimiter
from agac.engine.invocation import InvocationRef, ReopenedRows, Retry, Scope, Totals, Work
from agac.engine.replay import RowViews
from agac.engine.settle import Settler
from agac.engine.stop_rules import StopRules, StopSignal
from agac.plan.plan import Plan
from agac.store.batches import Ready, ready_tasks, waiting_rows
from agac.store.db import Database
from agac.store.writer import Ledger

ENROLLING_WORKERS = 256
"""Rows that walk at a time where tasks are enrolled in batches: as many as one look-up takes."""


class BatchWaits:
    """Looks rows up; where the workflow never had a batch (`active` False) nothing is asked of the store."""

    def __init__(self, database: Database, *, active: bool) -> None:
        self._database, self._active = database, active

    @property
    def active(self) -> bool:
        """Whether rows of the workflow may wait for batches."""
        return self._active

    async def ready(self, keys: Sequence[int]) -> dict[int, Ready]:
        """What came of the tasks of these rows since they were last walked, by their keys."""
        return await ready_tasks(self._database, keys) if self._active and keys else {}

    async def merely_waiting(self, keys: Sequence[int], ready: dict[int, Ready]) -> dict[int, int]:
        """Those of these rows that need not be walked, since all there is to do for them is in batches; with the stage
        at which they wait."""
        if not self._active or not keys:
            return {}
        waiting = await waiting_rows(self._database, keys)
        return {key: stage for key, stage in waiting.items() if key not in ready}


@dataclass(frozen=True, slots=True)
class InvocationContext:
    """What the parts of one invocation share.

    `views` puts together what stored rows show of themselves. `cutoffs`: from when on results are taken, for the stages
    that say so, by position. `again_from`: the position of the stage from which on a retry runs everything again;
    `opened`: how to go on with rows that a retry opened and left. `batch_waits` says which rows wait for batches.
    """

    work: Work
    places: InvocationRef
    ledger: Ledger
    stop_signal: StopSignal
    totals: Totals
    stops: StopRules
    settler: Settler
    budgets: BudgetLimiter | None
    views: RowViews
    cutoffs: Mapping[int, float]
    again_from: int | None
    opened: ReopenedRows | None
    batch_waits: BatchWaits

    @property
    def plan(self) -> Plan:
        """The plan that is at work."""
        return self.work.plan

    @property
    def scope(self) -> Scope:
        """Which stages may be called."""
        return self.work.scope

    @property
    def retry(self) -> Retry | None:
        """The rows that are taken up again; None: those of the input are worked on."""
        return self.work.retry

    @property
    def workers(self) -> int:
        """Rows that walk at a time: where tasks are enrolled nobody waits for a model, only for look-ups."""
        batched = any(stage.run_mode == "batch" for stage in self.plan.asking)
        return max(self.plan.concurrency, ENROLLING_WORKERS) if batched else self.plan.concurrency

    async def ready(self, keys: Sequence[int]) -> dict[int, Ready]:
        """What batches brought for these rows since they were last walked."""
        return await self.batch_waits.ready(keys)
