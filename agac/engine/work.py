"""What an invocation is about, and where time and chance come from."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agac.core.redact import Redactor
from agac.core.types import Row
from agac.engine.batch.standing import Standing
from agac.engine.budget import Purse
from agac.engine.control import Control
from agac.engine.repeats import Places
from agac.engine.replay import RowViews
from agac.engine.scope import Opened, Retry, Scope
from agac.engine.settle import Settler
from agac.engine.stops import StopRules
from agac.engine.totals import Totals
from agac.plan.plan import Plan
from agac.providers.batches import BatchApi
from agac.providers.provider import Provider
from agac.store.batches import BatchRecord, Ready
from agac.store.db import Database
from agac.store.ledger import Ledger

ENROLLING_WORKERS = 256
"""Rows that walk at a time where tasks are enrolled in batches: as many as one look-up takes."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time and chance come from: wall and monotonic seconds, a number in [0, 1)."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    spread: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Batching:
    """What batches need of whoever makes an invocation. `providers` are the project's as they are now; `open_api` gives
    the batches of an account, `recorded` the plan of a run as it was stored; `folder` holds batches' files. `stays`: it
    waits until all is done. `agree` says whether anything may be submitted beside stale batches. `only` is the one
    batch that is taken in; None: all that have ended. `retrieves`: a run's rows are taken from the store, not from its
    input."""

    providers: Mapping[str, Provider]
    open_api: Callable[[Provider], BatchApi]
    recorded: Callable[[Database, int], Awaitable[Plan]]
    folder: Path
    agree: Callable[[list[tuple[BatchRecord, int]]], Awaitable[bool]]
    stays: bool = False
    only: int | None = None
    retrieves: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What an invocation is about. `rows` gives a fresh reading of the selected rows each time it is called; a `retry`
    takes its rows from the store instead, as `batching` may. `place` names a row of the last reading by its ordinal,
    for messages."""

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


@dataclass(frozen=True, slots=True)
class InvocationContext:
    """What the parts of one invocation share.

    `views` puts together what stored rows show of themselves. `cutoffs`: from when on results are taken, for the stages
    that say so, by position. `again_from`: the position of the stage from which on a retry runs everything again;
    `opened`: how to go on with rows that a retry opened and left. `standing` says which rows wait for batches.
    """

    work: Work
    places: Places
    ledger: Ledger
    control: Control
    totals: Totals
    stops: StopRules
    settler: Settler
    purse: Purse | None
    views: RowViews
    cutoffs: Mapping[int, float]
    again_from: int | None
    opened: Opened | None
    standing: Standing

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
        return await self.standing.ready(keys)
