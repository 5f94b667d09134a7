"""What an invocation works on: plan, clocks, the stages and rows that it may run, and what it has done so far."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import RowError
from agac.core.redact import Redactor
from agac.core.types import Outcome, Row, RowId
from agac.plan.plan import Plan
from agac.providers.batch import BatchApi
from agac.providers.provider import Provider
from agac.store.batches import BatchRecord
from agac.store.db import Database


@dataclass(frozen=True, slots=True)
class Scope:
    """`stages` are the names of those that may be asked, None: all. What others lack keeps a row open.

    Without `retry_failed` rows that failed at a stage stay as they are.
    """

    stages: frozenset[str] | None = None
    retry_failed: bool = True

    def may_ask(self, stage: str) -> bool:
        """Whether the stage's tasks may be asked."""
        return self.stages is None or stage in self.stages

    def tries_again(self, stage: str) -> bool:
        """Whether rows that failed at the stage are tried again."""
        return self.retry_failed and self.may_ask(stage)


@dataclass(frozen=True, slots=True)
class Retry:
    """Rows of a run that are taken up again, from the store: those that failed, also where that is left alone else.

    `rows`, `stage`, `error` choose among them. With `from_stage` that stage and those after it are run again, of done
    rows too: only answers made at or after `since`, seconds since 1970, are taken.
    """

    rows: tuple[RowId, ...] = ()
    stage: str | None = None
    error: str | None = None
    from_stage: str | None = None
    since: float = 0.0
    run: int = 0

    def filters(self) -> dict[str, Any]:
        """What was chosen, as an invocation remembers it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @staticmethod
    def of_filters(filters: dict[str, Any]) -> Retry:
        """The retry that `filters` was made of."""
        return Retry(**{**filters, "rows": tuple(filters["rows"])})

    def same_choice(self, filters: dict[str, Any]) -> bool:
        """Whether an earlier retry chose the same rows and stages."""
        own = self.filters()
        return all(filters.get(key) == own[key] for key in own if key not in ("since", "run"))


class ReopenedRows(NamedTuple):
    """Rows that a retry opened before it was broken off: those placed from the invocation `first` on. From the stage at
    `again_from` on they take only answers made at or after `since`."""

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
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Batching:
    """What batches need of whoever makes an invocation. `providers` are the project's as they are now; `open_api` gives
    the batches of an account, `recorded` the plan of a run as it was stored; `folder` holds batches' files. `wait`:
    whether to wait until all is done. `confirm_stale` says whether anything may be submitted next to stale batches.
    `only_batch`: the one batch to ingest, None: all that have ended. `resume_run`: the run whose rows are taken from
    the store, not from its input."""

    providers: Mapping[str, Provider]
    open_api: Callable[[Provider], BatchApi]
    recorded: Callable[[Database, int], Awaitable[Plan]]
    folder: Path
    confirm_stale: Callable[[list[tuple[BatchRecord, int]]], Awaitable[bool]]
    wait: bool = False
    only_batch: int | None = None
    resume_run: int | None = None


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


@dataclass(slots=True)
class StageTotals:
    """Counts of one stage in this invocation. Tasks: asked and `done`, `reused`, `failed`, `skipped` or `dropped` by
    the stage's guard; `parked` are those of rows that stay open here, `in_flight` those being asked now.

    `cost` is in USD, of the calls whose price is known; `unpriced` and `simulated` count calls.
    """

    done: int = 0
    reused: int = 0
    failed: int = 0
    skipped: int = 0
    dropped: int = 0
    parked: int = 0
    in_flight: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Tasks that have an outcome."""
        return self.done + self.reused + self.failed + self.skipped + self.dropped


@dataclass(slots=True)
class Totals:
    """Counts of this invocation. Rows: `seen` in the input, `unchanged` of them needed nothing, `rows_skipped` went
    through without a result, `rows_filtered` left because of a guard, `rows_dropped` repeat an id, `rows_parked`
    stay open at a stage that was not to be asked (of rows that stages made: `made`, `made_parked`);
    `left_failed` were not tried again, `failed_for_good` will not be by the next ordinary run.

    `calls` counts requests that ended, retries and re-asks included; `given_up` those that a second Ctrl-C cut off.
    `cost` is in USD, of the calls whose price is known. `stages` are in the order of the workflow; `unusable` counts
    rows that failed before any stage. `expected` is how many rows the run had when it was last read to its end;
    `all_read`: `seen` is all of them. `waiting_for` is why the last call brought no answer.
    """

    stages: dict[str, StageTotals] = field(default_factory=dict)
    expected: int | None = None
    all_read: bool = False
    unusable: int = 0
    seen: int = 0
    unchanged: int = 0
    rows_done: int = 0
    rows_failed: int = 0
    rows_skipped: int = 0
    rows_filtered: int = 0
    rows_dropped: int = 0
    left_failed: int = 0
    failed_for_good: int = 0
    rows_parked: int = 0
    made: Counter[Outcome] = field(default_factory=Counter)
    made_parked: int = 0
    tasks_done: int = 0
    tasks_reused: int = 0
    collapsed: int = 0
    calls: int = 0
    retries: int = 0
    repairs: int = 0
    fallbacks: int = 0
    ambiguous: int = 0
    given_up: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    waiting_for: RowError | None = None
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Rows of the input that need nothing more in this invocation."""
        walked = self.rows_done + self.rows_skipped + self.rows_filtered
        return self.unchanged + walked + self.rows_failed + self.rows_dropped + self.rows_parked

    def stage(self, name: str) -> StageTotals:
        """The counts of a stage."""
        return self.stages.setdefault(name, StageTotals())
