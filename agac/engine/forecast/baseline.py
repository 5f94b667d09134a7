"""A row of a dry run, and the earlier run that it is compared with. All outcomes are counted in a
`StageForecast` (`engine/forecast/forecasts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from agac.core.errors import ErrorType, RowError
from agac.core.types import Outcome, RowId
from agac.engine.ask.review import reviewings
from agac.engine.decide.failures import (
    kept_failure,
    stays_failed,
    was_asked_enough,
)
from agac.engine.decide.reuse import answers_since, failure_of_batch, keeps_old_answer
from agac.engine.decide.unfinished import is_resumed, is_retried, is_taken_up
from agac.engine.forecast.past_usage import HISTORY_RUNS
from agac.engine.invocation import Retry, Scope
from agac.engine.walk.effects import RowProgress
from agac.engine.walk.waiting import WaitingRows
from agac.plan import diff as why
from agac.plan.plan import Plan, Selection
from agac.plan.render import Preparer
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.graph import Level
from agac.spec.operations import Python
from agac.store import rows as store
from agac.store.batches import Ready, ready_tasks, was_batched
from agac.store.db import Database, grouped
from agac.store.decisions import Fixes, discarded_at, fixes_of, redos_of
from agac.store.records import DerivedRows
from agac.store.rows import WALKED, State, StoredRow
from agac.store.runs import RunRecord, counters, definition_of, newest_run, run_ids, run_record

# requests of a stage that are rendered to be measured, where what they are made of is not there yet
SAMPLE = 200

NO_EVENT = 1 << 62
"""The number of an invocation after all that there are."""


@dataclass(slots=True, kw_only=True)
class ForecastRow(RowProgress):
    """A row of a dry run. `old` is the same row in the run compared with, `tasks` are what became
    of its tasks there, by the stage's position then; `ready` what came of them in batches, which
    the run that goes on takes. All of that is known once it is `learned`.

    `blocked` are the stages that cannot be run for it; where it is not `chosen` it is left as it
    is. `absent`: what it is made of fails, so that it will not be. `times`: it stands for so many
    rows of which nothing else is known (`guessed`). `ended`: it went through its stages. Where the
    stages of its level are not one chain, `begun` are the positions of those whose tasks began,
    and `open_needs` how many needs of each have no outcome yet. `never_began` are the stages that
    a row which left the run before never came to. `making` is what is made of it; it fails at
    `unmade`, of which nothing can be made.

    Of a task at the stage that made the row (`is_group`) it is known before it is looked up why it
    cannot be run (`refused`). Where what it is about is not there yet, `characters` are what that
    comes to. `parts` would be run before it, and `in_batch` others are in batches."""

    level: Level[AnyStage]
    old: StoredRow | None = None
    tasks: dict[int, store.PriorTask] = field(default_factory=dict)
    ready: Ready = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    absent: bool = False
    times: int = 1
    guessed: bool = False
    learned: bool = False
    ended: bool = False
    is_group: bool = False
    refused: str | None = None
    characters: int = 0
    parts: int = 0
    in_batch: int = 0
    begun: frozenset[int] = frozenset()
    open_needs: dict[str, int] = field(default_factory=dict)
    never_began: frozenset[str] = frozenset()
    making: DerivedRows | None = None
    unmade: AnyStage | None = None
    chosen: bool = True
    stays: bool = False
    """The run leaves the row as it is stored, with what came of its tasks."""
    resumed: bool = False
    """The run goes on with it from where it waited."""
    waits_for_others: bool = False
    """The run does not come to the row: rows before it stay open."""

    @property
    def id(self) -> RowId:
        """The row's id."""
        return self.new.row.id

    @property
    def lost(self) -> bool:
        """Whether nothing is made of the row in this run: a stage of it, or of what it is made of,
        fails or waits."""
        return self.failed is not None or self.parked is not None


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """The last run to compare with. `continued`: it is the run that `agac run` would continue."""

    record: RunRecord
    definition: Mapping[str, Any]
    continued: bool

    @staticmethod
    async def read(database: Database, number: int, *, continued: bool) -> BaselineRun:
        """The run of this number."""
        return BaselineRun(
            await run_record(database, number), await definition_of(database, number), continued
        )

    @staticmethod
    async def of(database: Database, plan: Plan) -> BaselineRun | None:
        """The run that would be continued, else the newest one of the workflow, of the same rows
        if there is one."""
        continued = await newest_run(database, plan.workflow, plan.hash, plan.selection.text())
        if continued is not None:
            return await BaselineRun.read(database, continued, continued=True)
        newest = (await run_ids(database, plan.workflow))[:HISTORY_RUNS]
        found = [await BaselineRun.read(database, number, continued=False) for number in newest]
        alike = (one for one in found if Selection(**one.record.selection) == plan.selection)
        return next(alike, found[0] if found else None)


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
    """A plan beside the last run, if there is one: what became of its rows, and what differs.
    `now` is in seconds since 1970; with a `retry` only the rows that it chooses are worked on.
    Once it is `counted`, it knows for what a dry run cannot know how many rows stages made: `each`
    by the name of the stage, of each row that came to it; of groups, how many there are in all.
    `listing` are the positions of the stages whose functions gave lists, or say that they do.
    `run` None: nothing is known."""

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
        retry = choice.retry
        self.remote = remote
        self.plan = plan
        self.database = database
        self.before = before
        self.scope = choice.scope
        self.fresh = choice.fresh
        self.now = now
        self.retry = retry
        self._open_alone = choice.open_alone
        self._again_from = retry.position(plan) if retry is not None else None
        self.continued = before is not None and before.continued and not choice.fresh
        self.preparer = Preparer(
            plan.stages, plan.vars, before.record.id if before and self.continued else 0
        )
        definition = before.definition if before else {"stages": [], "vars": {}}
        self._position = {stage["name"]: index for index, stage in enumerate(definition["stages"])}
        self._changes: dict[
            str, list[str]
        ] = {}  # what changed in the definitions of stages that are not new
        for stage in plan.stages:
            position = self._position.get(stage.name)
            if position is not None:
                old = definition["stages"][position]
                new = plan.body["stages"][stage.index]
                self._changes[stage.name] = why.stage_changes(
                    old, new, (definition["vars"], plan.body["vars"])
                )
        self.fixes = Fixes()
        self.discards = retry.since if retry is not None and retry.discard else 0.0
        self.run: int | None = None
        self.each: dict[str, float] = {}
        self.decided_since = 0.0
        self._waiting: WaitingRows | None = None
        does = ((s.index, s.operation) for s in plan.stages if isinstance(s, LocalStage))
        self.listing = {
            index for index, one in does if isinstance(one, Python) and one.function.gives_lists
        }

    async def counted(self) -> None:
        """Counts what the run compared with made, and reads which results people set by hand."""
        if self.database is not None:
            self.decided_since = await discarded_at(self.database, self.plan.workflow)
            run = self.before.record.id if self.before and self.continued else 0
            self.preparer.redos = await redos_of(self.database, self.plan.workflow, self.discards)
            self.fixes = await fixes_of(
                self.database, self.plan.workflow, run, [one.name for one in self.plan.stages]
            )
            if self.continued:
                self._waiting = await self._waiting_rows(self.database)
        makers = [stage for stage in self.plan.stages if stage.makes is not None]
        if self.database is None or self.before is None or not makers:
            return
        self.run = self.before.record.id
        made = await store.made_counts(self.database, self.run)
        counts = await counters(self.database, self.run)

        def tasks(stage: str, *outcomes: str) -> int:
            return sum(
                count.tasks
                for count in counts
                if count.stage == stage and count.outcome in outcomes
            )

        for stage in makers:
            position = self._position.get(stage.name)
            number = made_some = sum(one.rows for one in made if one.origin == position)
            if stage.makes == "groups":
                if number:
                    self.each[stage.name] = float(number)
                continue
            if position is not None and stage.makes == "rows" and number:
                # rows that the function left in their places count as well
                self.listing.add(stage.index)
                in_place = tasks(stage.name, "done", "reused")
                number += in_place - await store.parent_count(self.database, self.run, position)
            source = source_of(stage)
            if source is not None:
                outcomes: tuple[str, ...]
                if source == stage.name:
                    outcomes = ("done", "reused", "dropped")
                else:
                    outcomes = ("done", "reused")
                came = tasks(source, *outcomes)
                if came:
                    self.each[stage.name] = number / came
                    self.listing -= set() if made_some else {stage.index}

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
            position = self._position.get(maker) if maker is not None else None
            if position is not None:
                await self._find_made_rows(self.database, self.before, position, made)
        stored = {row.old.key: row for row in rows if row.old is not None}
        if not stored:
            return
        for key, tasks in (await store.prior_tasks(self.database, list(stored))).items():
            stored[key].tasks = tasks
        if self._waiting is None:
            return
        if self._waiting.batched:
            for key, ready in (await ready_tasks(self.database, list(stored))).items():
                stored[key].ready = ready
        await self._see_what_stays(self.database, self._waiting, stored)

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
            old = row.old
            assert old is not None
            is_made = row.level.maker is not None
            if row.waits_for_others:
                row.stays = True
                continue
            if self.retry is not None:
                row.stays = not row.chosen
                continue
            if old.hash != row.new.hash and not row.is_group:
                continue
            row.resumed = is_resumed(
                old, is_made=is_made, is_decided=key in decided, is_batched=waiting.batched
            )
            if self._open_alone and not is_made:
                row.resumed = True
            if old.state == State.PENDING:
                row.stays = key in waits
                continue
            row.stays = not is_taken_up(
                old,
                is_chosen=None,
                is_reopened=key in decided or key in aged,
                stays_failed=partial(stays_failed, old, row.tasks.values(), self.scope.tries_again),
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
        prior = self._prior(stage, row)
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
        keeps_old = row.stays or keeps_old_answer(stage, self._prior(stage, row), waited=waited)
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
        return row.stays and self.retry is None and self._prior(stage, row) is None

    def left(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed and is not tried again; None when it is, or did not
        fail."""
        if row.ready:
            failed = failure_of_batch(stage, row.ready.get((stage.index, 0, fingerprint)))
            if failed is not None:
                return failed
        prior = self._prior(stage, row) if self.continued else None
        forced = self.is_forced(row)
        brought = any(position == stage.index for position, _, _ in row.ready)
        return kept_failure(
            prior,
            fingerprint,
            asks_again=forced or brought,
            row_stays=not forced and (row.stays or row.resumed),
        )

    def left_reason(self, stage: AnyStage, row: ForecastRow) -> str:
        """Why a task that is `left` is not tried again."""
        prior = self._prior(stage, row)
        if prior is None or prior.error is None:
            return why.FAILED_IN_BATCH
        if row.old is not None and row.old.error_type == ErrorType.REJECTED:
            return why.REJECTED
        # one of its tasks that was asked often enough keeps the whole row
        if any(was_asked_enough(task) for task in row.tasks.values()):
            return why.LEFT
        if row.resumed:
            return why.FAILED
        return why.NOT_RETRIED

    def outcome_before(self, stage: AnyStage, row: ForecastRow) -> Outcome | None:
        """What the run that would be continued came to for the row at the stage."""
        prior = self._prior(stage, row) if self.continued else None
        return prior.outcome if prior is not None else None

    def has_task(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes | None) -> bool:
        """True if the run compared with has the same task of the row, with an end."""
        prior = self._prior(stage, row)
        return self.continued and prior is not None and prior.fingerprint == fingerprint

    def reason(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> str:
        """Why the first stage of a row that has to be run is run."""
        if self.fresh:
            return why.FRESH
        if row.old is None:
            return why.NEW_ROW
        if self._is_new(stage):
            return why.NEW_STAGE
        changes = self._changes.get(stage.name)
        if changes:
            return ", ".join(changes)
        if row.old.hash != row.new.hash:
            return why.ROW_CHANGED
        prior = self._prior(stage, row)
        if prior is None:
            return why.NOT_YET
        if prior.fingerprint != fingerprint and stage.makes == "groups":
            return why.MEMBERS_CHANGED
        if isinstance(stage, LocalStage):
            return why.FAILED if prior.error is not None else why.DROPPED
        if prior.fingerprint != fingerprint and stage.needs and stage.reuse != "never":
            return why.upstream_changed(", ".join(stage.needs))
        if prior.error is not None:
            return why.FAILED
        return why.TOO_OLD if stage.settings.max_age is not None else why.DROPPED

    def answered(self, stage: AnyStage, row: ForecastRow) -> bool:
        """True if the run compared with answered this row at the stage, whatever was asked then."""
        prior = self._prior(stage, row)
        return prior is not None and prior.outcome in (Outcome.DONE, Outcome.REUSED)

    def passed_on(self, stage: AnyStage, row: ForecastRow, need: str, reason: str) -> str:
        """Why a stage is run after one that is run for this reason: it never was, or what it
        follows may change."""
        if reason in (why.NEW_ROW, why.FRESH, why.NOT_YET):
            return reason
        if self._is_new(stage):
            return why.NEW_STAGE
        if self._prior(stage, row) is None:
            return why.NOT_YET
        return why.upstream_changed(need)

    def _is_new(self, stage: AnyStage) -> bool:
        return self.before is not None and stage.name not in self._position

    def _prior(self, stage: AnyStage, row: ForecastRow) -> store.PriorTask | None:
        return row.tasks.get(self._position.get(stage.name, -1))


def meant_before(stage: PlannedStage, definition: Mapping[str, Any]) -> str | None:
    """What the stage's short name stood for in a stored definition, where that is something
    else."""
    alias = next(
        (one.get("alias") for one in definition["stages"] if one["name"] == stage.name), None
    )
    if (
        not alias
        or stage.ref is None
        or alias["written"] != stage.ref.written
        or alias["means"] == stage.ref.meaning
    ):
        return None
    return str(alias["means"])


def source_of(stage: AnyStage) -> str | None:
    """The stage upstream that gives what this one makes its rows of."""
    if stage.explode is not None:
        if stage.explode[0] in stage.ancestors:
            return stage.explode[0]
        return stage.rows_of
    return stage.name if stage.makes in ("rows", "kept") else None
