"""What a dry run knows of the run before: which rows a run takes up, and which of their answers and
failures count. It decides with `engine/decide`, as a run does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agac.core.errors import RowError
from agac.core.types import Outcome
from agac.engine.ask.review import reviewings
from agac.engine.decide.failures import kept_failure, stays_failed
from agac.engine.decide.reuse import answers_since, failure_of_batch, keeps_old_answer
from agac.engine.decide.unfinished import is_resumed, is_retried, is_taken_up
from agac.engine.forecast.baseline_run import BaselineRun, meant_before
from agac.engine.forecast.forecast_rows import ForecastRow
from agac.engine.forecast.made_before import MadeBefore
from agac.engine.forecast.why_run import WhyRun
from agac.engine.invocation import Retry, Scope
from agac.engine.walk.waiting import WaitingRows
from agac.plan.plan import Plan
from agac.plan.render import Preparer
from agac.plan.stage import AnyStage, PlannedStage
from agac.store import rows as store
from agac.store.batches import ready_tasks, was_batched
from agac.store.db import Database, grouped
from agac.store.decisions import Fixes, discarded_at, fixes_of, redos_of
from agac.store.rows import WALKED, State

SAMPLE = 200
"""Requests of a stage that are rendered to be measured, if what they are made of is not there
yet."""

NO_EVENT = 1 << 62
"""The number of an invocation after all that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationChoice:
    """What is chosen for the invocation that is planned."""

    scope: Scope
    """The stages that may be asked."""
    fresh: bool = False
    """True if no stored answer is taken."""
    retry: Retry | None = None
    """The rows of a stored run that are taken up again."""
    run: int | None = None
    """The run that is continued; None: the one of the same workflow and rows."""
    open_alone: bool = False
    """True if open rows of the store are taken up, and no others of the input."""


class RemoteAnswers(Protocol):
    """Answers that other machines share."""

    async def take(
        self, stage: PlannedStage, prints: Sequence[bytes], since: float
    ) -> Mapping[bytes, store.EarlierResult | None]:
        """The stage's answers to these since `since`, from now on in the store; None: one is not
        pulled."""


class Baseline:
    """A plan and the run before it, if there is one."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        before: BaselineRun | None,
        choice: InvocationChoice,
        *,
        now: float,
        remote: RemoteAnswers | None = None,
    ) -> None:
        """`now` is in seconds since 1970."""
        retry = choice.retry
        self.remote = remote
        self.plan = plan
        self.database = database
        self.before = before
        self.scope = choice.scope
        self.fresh = choice.fresh
        self.now = now
        self.retry = retry
        self.continued = before is not None and before.continued and not choice.fresh
        self.preparer = Preparer(plan.stages, plan.vars, self._continued_run)
        self.why = WhyRun(plan, before, fresh=choice.fresh)
        """Why tasks are run, or are not."""
        self.made = MadeBefore(plan)
        """How many rows stages made in the run before."""
        self.fixes = Fixes()
        """Results that people set by hand."""
        self.discards = retry.since if retry is not None and retry.discard else 0.0
        """Decisions before this moment do not count for rows that a retry chooses."""
        self.decided_since = 0.0
        """Decisions before this moment were discarded."""
        self._open_alone = choice.open_alone
        self._again_from = retry.position(plan) if retry is not None else None
        self._waiting: WaitingRows | None = None

    @property
    def _continued_run(self) -> int:
        """The number of the run that is continued, 0 if none is."""
        return self.before.record.id if self.before is not None and self.continued else 0

    async def read(self) -> None:
        """Reads from the store what people decided, and how many rows stages made before."""
        database = self.database
        if database is None:
            return
        workflow = self.plan.workflow
        names = [stage.name for stage in self.plan.stages]
        self.decided_since = await discarded_at(database, workflow)
        self.preparer.redos = await redos_of(database, workflow, self.discards)
        self.fixes = await fixes_of(database, workflow, self._continued_run, names)
        if self.continued:
            self._waiting = await self._waiting_rows(database)
        if self.before is not None:
            await self.made.count(database, self.before.record.id, self.why.positions)

    async def _waiting_rows(self, database: Database) -> WaitingRows:
        """Finds rows that wait for batches or people, in the run that would be continued."""
        stages = self.plan.stages
        is_batched = any(stage.settings.run_mode == "batch" for stage in self.plan.asking)
        return WaitingRows(
            database,
            {stage.name: stage.index for stage in stages},
            is_batched or await was_batched(database, self.plan.workflow),
            bool(reviewings(self.plan)),
            self.fixes.rows,
        )

    async def learn(self, rows: Sequence[ForecastRow]) -> None:
        """Looks up what became of these rows and of their tasks, and how a run takes them up: one
        look-up for the rows of each maker."""
        if self.database is None or self.before is None:
            return
        for row in rows:
            row.learned = True
        by_maker = grouped(rows, lambda row: row.level.maker.name if row.level.maker else None)
        for maker, made in by_maker.items():
            position = self.why.positions.get(maker) if maker is not None else None
            if position is not None:
                await self._find_made_rows(self.database, self.before, position, made)
        stored = {row.old.key: row for row in rows if row.old is not None}
        if stored:
            await self._read_tasks(self.database, stored)

    async def _read_tasks(self, database: Database, stored: Mapping[int, ForecastRow]) -> None:
        """Reads what became of the tasks of rows, which are given by their keys."""
        for key, tasks in (await store.prior_tasks(database, list(stored))).items():
            stored[key].tasks = tasks
        if self._waiting is None:
            return
        if self._waiting.batched:
            for key, ready in (await ready_tasks(database, list(stored))).items():
                stored[key].ready = ready
        await self._see_what_stays(database, self._waiting, stored)

    async def _find_made_rows(
        self, database: Database, before: BaselineRun, position: int, rows: Sequence[ForecastRow]
    ) -> None:
        """Finds the stored rows of those that the stage at a position makes."""
        stored = await store.made_by_id(
            database, before.record.id, position, [row.id for row in rows]
        )
        for row in rows:
            row.old = stored.get(row.id)
            row.chosen = self._chooses(row)

    async def _see_what_stays(
        self, database: Database, waiting: WaitingRows, stored: Mapping[int, ForecastRow]
    ) -> None:
        """Decides which of these rows the run leaves as they are, and with which it goes on from
        where they waited. Of a group it is seen at its task whether its members changed."""
        waits = await waiting.merely_waiting(list(stored), event=NO_EVENT, now=self.now)
        decided = await waiting.decided(list(stored))
        aged = await self._aged(database, stored)
        for key, row in stored.items():
            if row.waits_for_others:
                row.stays = True
            elif self.retry is not None:
                row.stays = not row.chosen
            elif self._is_same(row):
                row.resumed = self._is_resumed(
                    row, is_decided=key in decided, is_batched=waiting.batched
                )
                row.is_waiting = key in waits
                row.stays = self._stays(
                    row, is_waiting=key in waits, is_reopened=key in decided or key in aged
                )

    def _is_same(self, row: ForecastRow) -> bool:
        """True if the content of the row did not change, as far as it is known of a group."""
        return row.old is not None and (row.is_group or row.old.hash == row.new.hash)

    def _is_resumed(self, row: ForecastRow, *, is_decided: bool, is_batched: bool) -> bool:
        """True if the run goes on with an unchanged row from where it waited."""
        assert row.old is not None
        is_made = row.level.maker is not None
        if self._open_alone and not is_made:
            return True
        return is_resumed(row.old, is_made=is_made, is_decided=is_decided, is_batched=is_batched)

    def _stays(self, row: ForecastRow, *, is_waiting: bool, is_reopened: bool) -> bool:
        """True if the run leaves an unchanged row as it is."""
        assert row.old is not None
        if row.old.state == State.PENDING:
            return is_waiting
        still_failed = partial(stays_failed, row.old, row.tasks.values(), self.scope.tries_again)
        return not is_taken_up(
            row.old, is_chosen=None, is_reopened=is_reopened, stays_failed=still_failed
        )

    async def _aged(self, database: Database, stored: Mapping[int, ForecastRow]) -> set[int]:
        """Finds which of these rows have an answer that is too old: at any stage of a row of the
        input, at a stage of its level of one that a stage made."""
        cutoffs = {
            stage.index: self.now - stage.settings.max_age
            for stage in self.plan.asking
            if stage.settings.max_age is not None
        }
        aged = set[int]()
        by_level = grouped(stored.items(), lambda item: item[1].level.origin)
        for origin, rows in by_level.items() if cutoffs else ():
            walked = [key for key, row in rows if row.old is not None and row.old.state in WALKED]
            own = cutoffs
            if origin is not None:
                indexes = {stage.index for stage in rows[0][1].level.stages}
                own = {index: since for index, since in cutoffs.items() if index in indexes}
            if walked and own:
                aged |= await store.aged_rows(database, walked, own)
        return aged

    def see_change(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes | None) -> None:
        """Notes at the task of a group whether it is about other members than before."""
        prior = self.why.prior(stage, row)
        if row.is_group and (prior is None or prior.fingerprint != fingerprint):
            row.stays = False

    def _chooses(self, row: ForecastRow) -> bool:
        """Whether a row that a stage makes is worked on: one that a retry did not choose has to be
        new or changed."""
        retry = self.retry
        old = row.old
        if retry is None or old is None or row.view.unknown:
            return True
        failed = old.state == State.FAILED
        again = self._again_from is not None
        is_chosen = retry.chooses_made(
            row.id, old.error_stage, old.error_type, failed=failed, again=again
        )
        is_changed = old.hash != row.new.hash and not row.is_group
        return is_retried(old, is_chosen=is_chosen, is_changed=is_changed)

    def since(self, stage: AnyStage, row: ForecastRow) -> float:
        """Returns from when on the stage's stored answers count for a row."""
        fresh_since = self.before.record.fresh_since if self.before and self.continued else None
        waited = row.resumed or bool(row.ready)
        keeps_old = row.stays or keeps_old_answer(stage, self.why.prior(stage, row), waited=waited)
        return answers_since(
            stage,
            run_since=fresh_since or 0.0,
            now=self.now,
            keeps_old=keeps_old,
            again_from=self._again_from if row.chosen else None,
            again_since=self.retry.since if self.retry is not None else 0.0,
        )

    def is_forced(self, row: ForecastRow) -> bool:
        """True if a retry tries the row again, whatever failed for it."""
        return self.retry is not None and row.chosen

    def short_names(self, stage: PlannedStage) -> tuple[dict[str, str | None], ...]:
        """The short names of the stage's models, and what they mean."""
        definition = self.before.definition if self.before else {"stages": []}
        return tuple(
            {
                "written": model.ref.written,
                "means": model.ref.meaning,
                "meant": meant_before(stage, definition) if model.ref is stage.ref else None,
            }
            for model in stage.models
            if model.ref is not None and model.ref.written is not None
        )

    def never_began(self, stage: AnyStage, row: ForecastRow) -> bool:
        """True if the row stays as it is, and never came to the stage: it left before, in another
        branch."""
        return row.stays and self.retry is None and self.why.prior(stage, row) is None

    def left(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed and is not tried again; None when it is, or did not
        fail."""
        if row.ready:
            failed = failure_of_batch(stage, row.ready.get((stage.index, 0, fingerprint)))
            if failed is not None:
                return failed
        prior = self.why.prior(stage, row) if self.continued else None
        forced = self.is_forced(row)
        brought = any(position == stage.index for position, _, _ in row.ready)
        return kept_failure(
            prior,
            fingerprint,
            asks_again=forced or brought,
            row_stays=not forced and (row.stays or row.resumed),
        )

    def outcome_before(self, stage: AnyStage, row: ForecastRow) -> Outcome | None:
        """What the run that would be continued came to for the row at the stage."""
        prior = self.why.prior(stage, row) if self.continued else None
        return prior.outcome if prior is not None else None

    def has_task(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes | None) -> bool:
        """True if the run compared with has the same task of the row, with an end."""
        prior = self.why.prior(stage, row)
        return self.continued and prior is not None and prior.fingerprint == fingerprint

    def answered(self, stage: AnyStage, row: ForecastRow) -> bool:
        """True if the run compared with answered this row at the stage, whatever was asked then."""
        prior = self.why.prior(stage, row)
        return prior is not None and prior.outcome in (Outcome.DONE, Outcome.REUSED)
