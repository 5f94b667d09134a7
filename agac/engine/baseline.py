"""A row of a dry run, the earlier run that it is compared with, and where its answers come from:
what the store has is reused, everything else is unknown. All outcomes are counted in a
`StageForecast` (`engine/forecasts`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agac.core.errors import ErrorType, RowError
from agac.core.types import Message, Outcome, RowId
from agac.engine.answers import UNPARSED, Answer, LocalCall, Parked, ReviewTask
from agac.engine.decide.failures import (
    binding_failure,
    kept_failure,
    stays_failed,
    votes_of_replies,
    was_asked_enough,
)
from agac.engine.decide.reuse import (
    answers_since,
    failure_of_batch,
    is_answer_of_batch,
    taken_answer,
)
from agac.engine.decide.unfinished import is_retried
from agac.engine.decide.votes import VoteResult, outcome_of_vote
from agac.engine.effects import RowProgress, is_leave
from agac.engine.estimate import TEXT, dummy_answer
from agac.engine.executor import NotReady, Task, TaskResult, Unknown
from agac.engine.forecasts import Guess, PlanReport, SamplePrompt, StageForecast
from agac.engine.invocation import Retry, Scope
from agac.engine.past_usage import HISTORY_RUNS
from agac.engine.review import Known, known_of, reviewings
from agac.engine.validate import checks_of
from agac.plan import diff as why
from agac.plan.plan import Plan, Selection
from agac.plan.render import Prepared, Preparer
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.graph import Level
from agac.spec.operations import Python
from agac.spec.templates import ROWS_JSON
from agac.store import rows as store
from agac.store.batches import Ready, ReadyTask, live_tasks, ready_tasks
from agac.store.db import Database, grouped, slices
from agac.store.decisions import REDO, Fixes, discarded_at, fixes_of, redos_of
from agac.store.records import DerivedRows, Result
from agac.store.rows import State, StoredRow
from agac.store.runs import RunRecord, counters, definition_of, newest_run, run_ids, run_record
from agac.store.scratch import OF_ANY_STAGE, Scratch

# requests of a stage that are rendered to be measured, where what they are made of is not there yet
SAMPLE = 200


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
        *,
        scope: Scope,
        now: float,
        fresh: bool = False,
        retry: Retry | None = None,
        remote: RemoteAnswers | None = None,
    ) -> None:
        self.remote = remote
        self.plan = plan
        self.database = database
        self.before = before
        self.scope = scope
        self.fresh = fresh
        self.now = now
        self.retry = retry
        self._again_from = retry.position(plan) if retry is not None else None
        self.continued = before is not None and before.continued and not fresh
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

    async def learn(self, rows: Sequence[ForecastRow]) -> None:
        """Looks up what became of these rows and of their tasks: one look-up for the rows of each
        maker."""
        if self.database is None or self.before is None:
            return
        for row in rows:
            row.learned = True
        for maker, own in grouped(
            rows, lambda row: row.level.maker.name if row.level.maker else None
        ).items():
            position = self._position.get(maker) if maker is not None else None
            if position is not None:
                stored = await store.made_by_id(
                    self.database, self.before.record.id, position, [row.id for row in own]
                )
                for row in own:
                    row.old = stored.get(row.id)
                    row.chosen = self._chooses(row)
        keys = {row.old.key: row for row in rows if row.old is not None}
        for key, found in (
            (await store.prior_tasks(self.database, list(keys))).items() if keys else ()
        ):
            keys[key].tasks = found
        if keys and self.continued and any(stage.run_mode == "batch" for stage in self.plan.asking):
            for key, ready in (await ready_tasks(self.database, list(keys))).items():
                keys[key].ready = ready

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

    def since(self, stage: AnyStage, *, chosen: bool) -> float:
        """From when on the stage's results are taken, for rows that are `chosen` or not."""
        fresh_since = self.before.record.fresh_since if self.before and self.continued else None
        return answers_since(
            stage,
            run_since=fresh_since or 0.0,
            now=self.now,
            keeps_old=False,
            again_from=self._again_from if chosen else None,
            again_since=self.retry.since if self.retry is not None else 0.0,
        )

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
        """Whether the row, as it still is, left the run before this stage of another branch
        began."""
        old = row.old
        left = (
            self.continued
            and old is not None
            and old.state == State.FILTERED
            and old.hash == row.new.hash
        )
        return left and self._prior(stage, row) is None

    def left(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed and is not tried again; None when it is, or did not
        fail."""
        if row.ready:
            failed = failure_of_batch(stage, row.ready.get((stage.index, 0, fingerprint)))
            if failed is not None:
                return failed
        prior = self._prior(stage, row) if self.continued else None
        if prior is None or prior.error is None:
            return None
        forced = self.retry is not None and row.chosen
        brought = any(position == stage.index for position, _, _ in row.ready)
        return kept_failure(
            prior,
            fingerprint,
            asks_again=forced or brought,
            row_stays=not forced and self._stays_failed(row),
        )

    def _stays_failed(self, row: ForecastRow) -> bool:
        """True if the row failed and is not walked again."""
        old = row.old
        if self.retry is not None:
            return not row.chosen
        if old is None or old.state != State.FAILED:
            return False
        if old.hash != row.new.hash and not row.is_group:
            return False
        return stays_failed(old, row.tasks.values(), self.scope.tries_again)

    def left_reason(self, stage: AnyStage, row: ForecastRow) -> str:
        """Why a task that is `left` is not tried again."""
        prior = self._prior(stage, row)
        if prior is None or prior.error is None:
            return why.FAILED_IN_BATCH
        # one of its tasks that was asked often enough keeps the whole row
        if any(was_asked_enough(task) for task in row.tasks.values()):
            return why.LEFT
        return why.NOT_RETRIED

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
        return why.TOO_OLD if stage.max_age is not None else why.DROPPED

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


class StoredReplies(NamedTuple):
    """What the store has for tasks, by their fingerprints."""

    results: Mapping[bytes, store.EarlierResult]
    """Results that may be taken."""
    failures: Mapping[bytes, store.Failures]
    """How replicas of a vote failed."""


class StoredAnswers:
    """Answers the tasks of a dry run: with what the store has, else that the answer is unknown.
    Nobody is called. All outcomes are counted in `found`, where `show` prompts are kept.
    `in_batches`: batches of the project are open."""

    def __init__(
        self,
        baseline: Baseline,
        found: PlanReport,
        scratch: Scratch,
        *,
        show: int,
        in_batches: bool,
    ) -> None:
        self.baseline = baseline
        self.found = found
        self.scratch = scratch
        self._show = show
        self._in_batches = in_batches
        self._shared = set[bytes]()  # of the last look-up: to be pulled, to be asked
        self._asked = list[bytes]()
        self._by_name = {stage.name: stage for stage in baseline.plan.stages}
        self._after: dict[str, list[StageForecast]] = {}
        self._reviews = reviewings(baseline.plan)
        self._checks = checks_of(baseline.plan.stages)
        # of each stage the functions upstream that may give lists of rows, also where it groups
        # what comes of them
        self._functions: dict[str, set[str]] = {}
        for stage in baseline.plan.stages:
            own = {need for need in stage.needs if self._by_name[need].makes == "rows"}
            self._functions[stage.name] = own.union(
                *(self._functions[need] for need in stage.needs)
            )

    def of(self, stage: AnyStage) -> StageForecast:
        """What was found of a stage so far."""
        return self.found.stages[stage.index]

    def unsure_after(self, maker: AnyStage) -> list[StageForecast]:
        """Notes that it is a guess which rows come to the stages after one of which nobody knows
        what rows it makes; and gives what was found of those."""
        if maker.name not in self._after:
            met = {maker.name}
            for stage in self.baseline.plan.stages:
                if not met.isdisjoint(stage.needs):
                    met.add(stage.name)
            self._after[maker.name] = [
                one for one in self.found.stages if one.name in met - {maker.name}
            ]
            for one in self._after[maker.name]:
                one.exact = False
        return self._after[maker.name]

    def is_guess(self, row: ForecastRow, stage: AnyStage) -> bool:
        """Whether it is a guess that the row, or one of it, comes to the stage: a function may
        give more or less."""
        return row.guessed or not self._functions[stage.name].isdisjoint(row.view.unknown)

    def not_asked(
        self, row: ForecastRow, stage: AnyStage, outcome: Outcome, note: Callable[[], str] | None
    ) -> None:
        """A stage that asks nothing is as good as done; or a guard said no."""
        found = self.of(stage)
        found.reuse += row.times * (outcome is Outcome.DONE)
        found.skipped += row.times * (outcome is Outcome.SKIPPED)
        found.dropped += row.times * (outcome is Outcome.DROPPED)

    def undecided(self, row: ForecastRow, stage: AnyStage) -> None:
        """The stage's guard looks at an answer that is not there yet."""
        self.of(stage).undecided += row.times

    def failed(
        self,
        row: ForecastRow,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None,
    ) -> None:
        """The stage failed, or failed before and is left so."""
        known = {ErrorType.NO_CONSENSUS: why.NO_LEAD, ErrorType.EMPTY_PROMPT: why.EMPTY_PROMPT}.get(
            error.type
        )
        self.block(stage, row, reason or known or self.baseline.left_reason(stage, row))

    def block(self, stage: AnyStage, row: ForecastRow, reason: str) -> None:
        """The row's task cannot be run, and neither can those that need it."""
        row.blocked |= {stage.name}
        if self.baseline.scope.may_ask(stage.name):
            shown = reason
        else:
            shown = why.NOT_IN_SCOPE
        self.of(stage).block(shown, row.id, row.times)

    def _may_ask(self, stage: AnyStage, row: ForecastRow) -> bool:
        """Whether the row's task may be run; else it is blocked."""
        if self.baseline.scope.may_ask(stage.name) and (row.chosen or row.view.unknown):
            return True  # what changes upstream changes also a row that is not chosen
        self.block(stage, row, why.NOT_IN_SCOPE)
        return False

    def prompt(self, stage: PlannedStage, row: ForecastRow) -> Prepared | None:
        """The task of a row; None when its prompt cannot be rendered."""
        prepared = self.baseline.preparer.prepare(stage, row.view, row.id)
        return None if isinstance(prepared, RowError) else prepared

    def measure(self, stage: PlannedStage, row: ForecastRow, further: int = 0) -> None:
        """Takes a prompt into the sample, with so many characters that are not there yet."""
        self.of(stage).rough = True
        if self.of(stage).sampled < SAMPLE:
            prepared = self.prompt(stage, row)
            if prepared is None:  # it names fields that are not there yet
                further += (
                    len(stage.system or "")
                    + len(stage.prompt.text)
                    + len(TEXT) * len(stage.prompt.placeholders)
                )
            self._sample(stage, prepared.messages if prepared else (), further)

    def _sample(self, stage: AnyStage, messages: Sequence[Message], further: int = 0) -> None:
        found = self.of(stage)
        found.sampled += 1
        found.characters += further + sum(len(one.text) for one in messages)

    def show(self, stage: AnyStage, row_id: RowId, messages: tuple[Message, ...]) -> None:
        """A prompt that would be sent."""
        self._sample(stage, messages)
        if len(self.found.prompts) < self._show:
            self.found.prompts.append(SamplePrompt(row_id, stage.name, messages))

    async def answer(
        self, stage: AnyStage, begun: Sequence[tuple[ForecastRow, Task]]
    ) -> list[TaskResult | None]:
        """The results of a stage's tasks, with one look-up for all; None: the row left the run
        before it."""
        known: list[TaskResult | None] = []
        wanted: dict[bool, list[bytes]] = {True: [], False: []}
        decided: Mapping[bytes, Known] = {}
        if stage.index in self._reviews and (database := self.baseline.database) is not None:
            decided = await known_of(
                database, [task.fingerprint for _, task in begun if isinstance(task, ReviewTask)]
            )
        for row, task in begun:
            if isinstance(task, NotReady):
                known.append(self._not_ready(stage, row, task))
                continue
            if isinstance(task, ReviewTask):
                known.append(self._reviewed(stage, row, task, decided.get(task.fingerprint)))
                continue
            fix = self.baseline.fixes.of(stage.name, row.id, task.fingerprint)
            fix = fix if fix is None or fix.at >= self.baseline.discards else None
            known.append(None if fix else self.baseline.left(stage, row, task.fingerprint))
            if fix:
                self.of(stage).reuse += row.times
                known[-1] = Answer(Result(fix.key or b"", fix.value or "null"), UNPARSED)
            if known[-1] is None:
                wanted[row.chosen] += _prints(task)
        self._shared = set()
        self._asked = []
        replies: dict[bool, StoredReplies] = {}
        for chosen, prints in wanted.items():
            results = await self.earlier(stage, prints, chosen=chosen)
            failures = await self._failures(stage, prints, chosen=chosen)
            replies[chosen] = StoredReplies(results, failures)
        in_batch = await self.in_batch(
            [one for one in wanted[True] if one not in replies[True].results]
        )
        for place, (row, task) in enumerate(begun):
            if known[place] is None and not isinstance(task, NotReady | ReviewTask):
                known[place] = self._looked_up(stage, row, task, replies[row.chosen], in_batch)
        with self.scratch.at_once():
            self.of(stage).collapsed += len(self._asked) - self.scratch.new(
                OF_ANY_STAGE, self._asked
            )
        return known

    def _reviewed(
        self, stage: AnyStage, row: ForecastRow, task: ReviewTask, known: Known | None
    ) -> TaskResult:
        """What people decided about an answer; where they have not, the row would wait."""
        own = self._reviews[stage.index]
        retry = self.baseline.retry
        now = self.baseline.now
        if retry is not None and retry.discard and row.chosen:
            since = retry.since
        else:
            since = self.baseline.decided_since
        verdict = own.verdict(task, own.standing(task, row.id, known, since=since, now=now))
        if verdict.how == REDO:
            source = next(one for one in own.asked if one.name in row.judged)
            self.of(source).asked(why.REDO, row.id, source.replicas, row.times)
            self.of(source).sure += row.times
            self.of(source).reuse -= row.times
            self.measure(source, row)
        if verdict.how in ("waiting", REDO):
            self.block(stage, row, why.PEOPLE)
            return Parked.REVIEW
        if verdict.how == "rejected" and (refused := own.rejection(verdict)) is not None:
            return refused
        self.of(stage).reuse += row.times
        return Answer(Result(task.fingerprint, verdict.value), UNPARSED)

    async def earlier(
        self, stage: AnyStage, prints: Sequence[bytes], *, chosen: bool = True
    ) -> dict[bytes, store.EarlierResult]:
        """Returns the stage's results for these fingerprints that `chosen` rows, or others, would
        take."""
        found: dict[bytes, store.EarlierResult] = {}
        remote = self.baseline.remote
        database = self.baseline.database
        since = self.baseline.since(stage, chosen=chosen)
        for some in slices(prints) if not self.baseline.fresh else ():
            if database is not None:
                found |= await store.earlier_results(
                    database, some, since, self.baseline.plan.workflow
                )
            if (
                remote is not None
                and isinstance(stage, PlannedStage)
                and (lacking := set(some) - found.keys())
            ):
                taken = await remote.take(stage, list(lacking), since)
                found |= {one: result for one, result in taken.items() if result is not None}
                self._shared |= {one for one, result in taken.items() if result is None}
        return found

    async def _failures(
        self, stage: AnyStage, prints: Sequence[bytes], *, chosen: bool
    ) -> dict[bytes, store.Failures]:
        """Returns how replicas failed that are not asked again: those of a vote with a lead,
        unless a retry asks."""
        found: dict[bytes, store.Failures] = {}
        database = self.baseline.database
        if database is None or self.baseline.fresh or not (stage.vote and stage.vote.lead):
            return found
        if chosen and self.baseline.retry is not None:
            return found
        for some in slices(prints):
            found |= await store.replica_failures(database, some)
        return found

    async def in_batch(self, prints: Sequence[bytes]) -> set[bytes]:
        """Those of these fingerprints that are in a batch, or wait for one."""
        found: set[bytes] = set()
        if self.baseline.database is not None and self._in_batches:
            for some in slices(prints):
                found.update(
                    await live_tasks(self.baseline.database, some, self.baseline.plan.workflow)
                )
        return found

    def _not_ready(self, stage: AnyStage, row: ForecastRow, task: NotReady) -> TaskResult:
        """The result of a task that is about an answer which is not there yet."""
        if not self._may_ask(stage, row):
            return Parked.PARKED
        found = self.of(stage)
        reason = row.view.unknown[task.need]
        if stage.index in self._reviews:  # who has to wait is known once there is an answer
            found.undecided += row.times
            return Unknown(reason)
        if task.need == ROWS_JSON and row.is_group:
            found.asked(reason, row.id, stage.replicas + row.parts, row.times)
            found.parts += row.parts * row.times
            found.in_flight += row.in_batch * row.times
            if isinstance(stage, PlannedStage):
                self.measure(stage, row, row.characters)
            else:
                self._not_called(stage, row)
            del row.view.unknown[ROWS_JSON]
            return Unknown(reason)
        found.asked(
            self.baseline.passed_on(stage, row, task.need, reason),
            row.id,
            stage.replicas,
            row.times,
        )
        if isinstance(stage, LocalStage):
            self._not_called(stage, row)
        elif found.sampled < SAMPLE:  # measured as if what is not there yet were of the usual size
            for name in stage.ancestors:
                if name not in row.view.results:
                    row.view.results[name] = dummy_answer(self._by_name[name].shape)
            self.measure(stage, row)
        return Unknown(reason)

    def _there(
        self, stage: AnyStage, row: ForecastRow, prints: Sequence[bytes], replies: StoredReplies
    ) -> dict[bytes, str | RowError]:
        """Returns the replies to these fingerprints that the run would take for the row: JSON, or
        how a reply failed that is not asked for again."""
        there: dict[bytes, str | RowError] = {}
        for number, one in enumerate(prints, 1):
            replica = number if len(prints) > 1 else 0
            ready = row.ready.get((stage.index, replica, one)) if row.ready else None
            taken = self._taken(stage, row, replies.results.get(one), ready)
            if taken is None and ready is not None:
                taken = failure_of_batch(stage, ready)
            elif taken is None and one not in replies.results:
                taken = self._binding_failure(stage, row, replies.failures.get(one, {}))
            if taken is not None:
                there[one] = taken
        return there

    def _taken(
        self,
        stage: AnyStage,
        row: ForecastRow,
        stored: store.EarlierResult | None,
        ready: ReadyTask | None,
    ) -> str | RowError | None:
        """Returns the stored answer that the row takes, JSON, or the failure that it is."""
        checks = self._checks.get(stage.index)
        if checks is None or stored is None:
            wrong = None
        else:
            wrong = checks.error(row.view, json.loads(stored.value))
        taken = taken_answer(stored, wrong, is_of_batch=is_answer_of_batch(ready))
        return taken.value if isinstance(taken, store.EarlierResult) else taken

    def _binding_failure(
        self, stage: AnyStage, row: ForecastRow, failures: store.Failures
    ) -> RowError | None:
        if not failures:
            return None
        key = row.old.key if row.old is not None and self.baseline.continued else 0
        since = self.baseline.since(stage, chosen=row.chosen)
        return binding_failure(stage, key, since, failures)

    def _looked_up(
        self,
        stage: AnyStage,
        row: ForecastRow,
        task: Prepared | LocalCall,
        replies: StoredReplies,
        in_batch: set[bytes],
    ) -> TaskResult | None:
        prints = _prints(task)
        found = self.of(stage)
        there = self._there(stage, row, prints, replies)
        answers = list[str | None]()
        while isinstance(voted := outcome_of_vote(answers, stage.vote, len(prints)), int):
            asked = prints[: len(answers) + voted]
            if not there.keys() >= {*asked}:
                break
            cast = votes_of_replies([there[one] for one in asked], stage.vote)
            if isinstance(cast, RowError):
                return cast
            answers = cast
        if isinstance(voted, RowError):
            return voted
        if isinstance(voted, VoteResult):
            value = voted.text if len(prints) > 1 else answers[0] or ""
            if voted.share is not None:
                row.view.agreement[stage.name] = voted.share
            leaves = is_leave(stage, value)
            found.dropped += row.times * leaves
            found.reuse += row.times * (not leaves)
            return Answer(Result(task.fingerprint, value), UNPARSED)
        needed = [one for one in asked if one not in there and one not in in_batch]
        if not needed:
            found.in_flight += row.times
            return Unknown(why.NOT_YET)
        if self.baseline.never_began(stage, row):
            row.never_began |= {stage.name}
            return None
        if not self._may_ask(stage, row):
            return Parked.PARKED
        if isinstance(task, Prepared) and (refusal := task.refusal) is not None:
            return refusal
        reason = self.baseline.reason(stage, row, task.fingerprint)
        spared = len(prints) - len(asked)
        found.asked(reason, row.id, len(needed) + spared, row.times, spared)
        found.answered += row.times * self.baseline.answered(stage, row)
        found.remote += row.times * self._shared.issuperset(needed)
        found.sure += row.times * (not row.view.unknown and not row.guessed)
        if isinstance(task, LocalCall):
            self._not_called(stage, row)
        else:
            self._asked.append(task.fingerprint)
            self.show(stage, row.id, task.messages)
        return Unknown(reason)

    def _not_called(self, stage: AnyStage, row: ForecastRow) -> None:
        """A function is taken to leave the row as it is, unless it gave lists before."""
        row.view.set_fields(stage, row.view.data(stage))
        if stage.index in self.baseline.listing:
            row.lists[stage.index] = None
        elif stage.makes == "rows":
            self.of(stage).guess = Guess("rows", stage.name, 1.0, None)


def _prints(task: Prepared | LocalCall) -> tuple[bytes, ...]:
    if isinstance(task, Prepared) and task.replicas:
        return task.replicas
    return (task.fingerprint,)
