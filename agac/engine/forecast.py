"""A run without asking: what would be asked, what would be reused, and why. Writes nothing, asks nobody.

Memory does not grow with the rows: they come in chunks, and for each chunk a stage takes one look-up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from agac.core.errors import RowError
from agac.core.keys import local_fingerprint
from agac.core.types import Request, RowId
from agac.engine.comparison import Before, Comparison, WalkedRow
from agac.engine.judging import Rows, judged_chunks
from agac.engine.scope import Scope
from agac.engine.settle import is_leave
from agac.plan import reasons as why
from agac.plan.distinct import Distinct
from agac.plan.judging import filters, guards
from agac.plan.plan import Plan
from agac.plan.prepare import Preparer
from agac.plan.standin import stand_in
from agac.plan.steps import AnyStage, LocalStage
from agac.spec.guardvalues import GuardFailed
from agac.spec.operations import Filter, Python, UnfitRow
from agac.store.batch import NewRow
from agac.store.db import Database
from agac.store.results import earlier_results
from agac.store.rows import WALKED, State, StoredRow, aged_rows, prior_tasks, rows_by_id

SAMPLE = 200
"""Rendered requests of a stage that are measured."""


@dataclass(slots=True)
class Reason:
    """How many tasks for this reason, and a row for example."""

    count: int
    example: RowId


@dataclass(slots=True)
class StageForecast:
    """What would become of a stage's tasks. `run` are asked, at most: one after a new answer may turn out the same, and
    `undecided` of them have a guard that looks at an answer which is not there yet.
    """

    name: str
    run: int = 0
    reuse: int = 0
    blocked: int = 0
    skipped: int = 0
    dropped: int = 0
    undecided: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)
    blocked_reasons: dict[str, Reason] = field(default_factory=dict)
    sampled: int = 0
    characters: int = 0
    different: Distinct = field(default_factory=Distinct)
    known: int = 0

    def asked(self, reason: str, row_id: RowId) -> None:
        """One more that would be asked."""
        self.run += 1
        _add(self.reasons, reason, row_id)

    def block(self, reason: str, row_id: RowId) -> None:
        """One more that cannot be asked."""
        self.blocked += 1
        _add(self.blocked_reasons, reason, row_id)

    @property
    def collapsed(self) -> int:
        """Tasks, of those whose prompt is known, that would take the answer of an equal one."""
        return max(self.known - self.different.count(), 0)


def _add(reasons: dict[str, Reason], name: str, row_id: RowId) -> None:
    found = reasons.get(name)
    if found is None:
        reasons[name] = Reason(1, row_id)
    else:
        found.count += 1


class Task(NamedTuple):
    """A task as it would be looked up; `request` None: it asks no model."""

    fingerprint: bytes
    request: Request | None


class Prompt(NamedTuple):
    """A rendered request that would be sent."""

    row_id: RowId
    stage: str
    request: Request


@dataclass(slots=True)
class Forecast:
    """What a run would do. `unusable` rows are never asked, `dropped` ones repeat an id."""

    stages: list[StageForecast]
    rows: int = 0
    unusable: int = 0
    dropped: int = 0
    prompts: list[Prompt] = field(default_factory=list)


class Forecaster:
    """Makes a Forecast. `now` is in seconds since 1970; `show` rendered prompts are kept."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        before: Before | None,
        *,
        scope: Scope,
        fresh: bool,
        now: float,
        show: int,
    ) -> None:
        self._plan, self._db, self._before = plan, database, before
        self._scope, self._fresh, self._now, self._show = scope, fresh, now, show
        self._comparison = Comparison(plan, before, scope=scope, fresh=fresh, now=now)
        run = before.record.id if before and self._comparison.continued else 0
        self._preparer = Preparer(plan.stages, plan.vars, run)
        self._guards, self._filters = guards(plan), filters(plan)
        self._followed = frozenset(name for stage in plan.stages for name in stage.ancestors)
        self._judges = bool(self._guards) or len(plan.asking) < len(plan.stages)
        self._by_name = {stage.name: stage for stage in plan.stages}
        self._found = Forecast([StageForecast(stage.name) for stage in plan.stages])

    async def forecast(self, rows: Rows) -> Forecast:
        """Reads the input once, or twice where an id's last record counts."""
        async with aclosing(judged_chunks(rows, self._plan.input)) as chunks:
            async for chunk, dropped in chunks:
                self._found.rows += dropped
                self._found.dropped += dropped
                await self._place(chunk)
        return self._found

    async def _place(self, chunk: list[NewRow]) -> None:
        """One chunk: rows that stand as they are need no look, the others go through the stages together."""
        self._found.rows += len(chunk)
        usable = [new for new in chunk if new.state is State.PENDING]
        self._found.unusable += len(chunk) - len(usable)
        stored = await self._stored(usable)
        rows = []
        finished = await self._finished(usable, stored)
        for new in usable:
            old = stored.get(new.row.id)
            if old is not None and old.key in finished and old.hash == new.hash:
                self._reuse_all()
                continue
            rows.append(WalkedRow(new, old, {}, self._preparer.sight(new.row.data)))
        await self._learn_tasks(rows)
        for stage in self._plan.stages:
            await self._stage(stage, rows)

    def _reuse_all(self) -> None:
        for found in self._found.stages:
            found.reuse += 1

    async def _stored(self, chunk: Sequence[NewRow]) -> dict[RowId, StoredRow]:
        if self._db is None or self._before is None or not chunk:
            return {}
        found = await rows_by_id(self._db, self._before.record.id, [new.row.id for new in chunk])
        return {row_id: min(rows, key=lambda old: old.occurrence) for row_id, rows in found.items()}

    async def _finished(self, chunk: Sequence[NewRow], stored: Mapping[RowId, StoredRow]) -> set[int]:
        """The keys of done rows of the run that would be continued, but for those with answers that are too old."""
        if not self._comparison.continued or self._db is None or self._judges:
            return set()  # its tasks say what became of each stage of such a row
        done = {old.key for new in chunk if (old := stored.get(new.row.id)) and old.state in WALKED}
        cutoffs = {s.index: self._now - s.max_age for s in self._plan.asking if s.max_age is not None}
        return done - await aged_rows(self._db, list(done), cutoffs) if cutoffs and done else done

    async def _learn_tasks(self, rows: list[WalkedRow]) -> None:
        keys = [row.old.key for row in rows if row.old is not None]
        if self._db is None or not keys:
            return
        tasks = await prior_tasks(self._db, keys)
        for row in rows:
            if row.old is not None:
                row.tasks = tasks.get(row.old.key, {})

    async def _stage(self, stage: AnyStage, rows: list[WalkedRow]) -> None:
        """What becomes of a stage's tasks: of those whose row was asked before, of those that are left, of the rest."""
        found = self._found.stages[stage.index]
        tasks = [(row, self._task(stage, row, found)) for row in rows if not row.gone]
        await self._ask_or_reuse(stage, [(row, task) for row, task in tasks if task is not None], found)

    def _task(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> Task | None:
        """The task of a row for which all that it needs is known; None when its fate is known without it."""
        blocked = next((need for need in stage.needs if need in row.blocked), None)
        pending = next((need for need in stage.needs if need in row.pending), None)
        if blocked is not None:
            self._block(stage, row, found, why.upstream_blocked(blocked))
        elif not self._let_in(stage, row, found):
            return None
        elif pending is not None:
            if self._may_ask(stage, row, found):
                found.asked(self._comparison.passed_on(stage, row, pending), row.new.row.id)
                row.pending[stage.name] = row.pending[pending]
                self._guess(stage, found, row)
        elif isinstance(stage, LocalStage) and not stage.is_kept:
            self._do(stage, row, found)
        else:
            task = self._known(stage, row)
            if task is None:
                self._block(stage, row, found, why.MISSING_FIELD)
            elif left := self._comparison.left(stage, row, task.fingerprint):
                self._block(stage, row, found, left)
            else:
                return task
        return None

    def _known(self, stage: AnyStage, row: WalkedRow) -> Task | None:
        """A task as it would be looked up; None when its prompt cannot be rendered."""
        if isinstance(stage, LocalStage):
            return Task(local_fingerprint(stage.prints, row.sight.given(stage)), None)
        prepared = self._preparer.prepare(stage, row.sight, row.new.row.id)
        return None if isinstance(prepared, RowError) else Task(prepared.fingerprint, prepared.request)

    def _do(self, stage: LocalStage, row: WalkedRow, found: StageForecast) -> None:
        """A stage that asks nothing is as good as done."""
        does = stage.operation
        try:
            if isinstance(does, Filter):
                row.gone = not self._filters[stage.index].test(row.sight.judged(stage))
            elif not isinstance(does, Python):
                row.sight.become(stage, does.apply(row.sight.data(stage)))
        except (GuardFailed, UnfitRow):
            self._block(stage, row, found, why.UNFIT)
            return
        found.dropped += row.gone
        found.reuse += not row.gone

    def _let_in(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> bool:
        """Whether the stage's guard lets the row in, or may do so once what it looks at is there."""
        if stage.guard is None:
            return True
        guard = self._guards[stage.index]
        if stage.rows_of in row.pending or any(name in row.pending for name in stage.guard.names):
            found.undecided += 1
            return True
        try:
            passes = guard.test(row.sight.judged(stage))
        except GuardFailed:
            self._block(stage, row, found, why.GUARD_FAILS)
            return False
        if not passes and stage.otherwise == "drop":
            found.dropped += 1
            row.gone = True
        elif not passes:
            found.skipped += 1
            row.sight.pass_over(stage)
        return passes

    async def _ask_or_reuse(self, stage: AnyStage, wanted: list[tuple[WalkedRow, Task]], found: StageForecast) -> None:
        """The tasks whose prompt is known: one look-up for all of them."""
        since = self._comparison.since(stage)
        prints = [prepared.fingerprint for _, prepared in wanted]
        earlier = await earlier_results(self._db, prints, since) if self._db and prints and not self._fresh else {}
        for row, prepared in wanted:
            result = earlier.get(prepared.fingerprint)
            if result is not None:
                self._reuse(stage, row, result.value, found)
            elif self._may_ask(stage, row, found):
                reason = row.pending[stage.name] = self._comparison.reason(stage, row, prepared.fingerprint)
                found.asked(reason, row.new.row.id)
                if prepared.request is not None:
                    self._look_at(stage, found, row, prepared.fingerprint, prepared.request)
                else:
                    row.sight.become(stage, row.sight.data(stage))

    def _reuse(self, stage: AnyStage, row: WalkedRow, value: str, found: StageForecast) -> None:
        """An earlier result, JSON: read only where a stage follows that may look at it."""
        if is_leave(stage, value):
            found.dropped += 1
            row.gone = True
            return
        found.reuse += 1
        if stage.name in self._followed:
            result = json.loads(value)
            row.sight.results[stage.name] = result
            if not stage.asks:
                row.sight.become(stage, result)

    def _guess(self, stage: AnyStage, found: StageForecast, row: WalkedRow) -> None:
        """Measures a prompt that names an answer which is not there yet, as if that were of the usual size. A function
        is taken to leave the row as it is."""
        if isinstance(stage, LocalStage):
            row.sight.become(stage, row.sight.data(stage))
            return
        if found.sampled >= SAMPLE:
            return
        for name in stage.ancestors:
            if name not in row.sight.results:
                row.sight.results[name] = stand_in(self._by_name[name])
        prepared = self._preparer.prepare(stage, row.sight, row.new.row.id)
        if not isinstance(prepared, RowError):
            found.sampled += 1
            found.characters += _characters(prepared.request)

    def _may_ask(self, stage: AnyStage, row: WalkedRow, found: StageForecast) -> bool:
        if self._scope.may_ask(stage.name):
            return True
        self._block(stage, row, found, why.NOT_IN_SCOPE)
        return False

    def _block(self, stage: AnyStage, row: WalkedRow, found: StageForecast, reason: str) -> None:
        """The row's task cannot be asked, and neither can those that need it."""
        row.blocked.add(stage.name)
        found.block(reason if self._scope.may_ask(stage.name) else why.NOT_IN_SCOPE, row.new.row.id)

    def _look_at(
        self, stage: AnyStage, found: StageForecast, row: WalkedRow, fingerprint: bytes, request: Request
    ) -> None:
        found.known += 1
        found.different.add(fingerprint)
        if found.sampled < SAMPLE:
            found.sampled += 1
            found.characters += _characters(request)
        if len(self._found.prompts) < self._show:
            self._found.prompts.append(Prompt(row.new.row.id, stage.name, request))


def _characters(request: Request) -> int:
    return sum(len(part.text) for message in request.messages for part in message.parts)
