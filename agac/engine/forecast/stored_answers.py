"""Where a dry run finds the answers that are stored, here or in the remote."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import Message, Outcome, RowId
from agac.engine.ask.answers import UNPARSED, Answer, LocalCall, Parked, ReviewTask
from agac.engine.ask.review import Known, known_of, reviewings
from agac.engine.ask.validate import checks_of
from agac.engine.decide.failures import (
    binding_failure,
    votes_of_replies,
)
from agac.engine.decide.reuse import (
    failure_of_batch,
    is_answer_of_batch,
    taken_answer,
)
from agac.engine.decide.votes import VoteResult, outcome_of_vote
from agac.engine.forecast.baseline import SAMPLE, Baseline
from agac.engine.forecast.estimate import TEXT, dummy_answer
from agac.engine.forecast.forecast_rows import ForecastRow
from agac.engine.forecast.forecasts import Guess, PlanReport, SamplePrompt, StageForecast
from agac.engine.walk.effects import is_leave
from agac.engine.walk.executor import NotReady, Task, TaskResult, Unknown
from agac.plan import diff as why
from agac.plan.render import Prepared
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.templates import ROWS_JSON
from agac.store import rows as store
from agac.store.batches import ReadyTask, live_tasks
from agac.store.db import slices
from agac.store.decisions import REDO
from agac.store.records import Result
from agac.store.scratch import OF_ANY_STAGE, Scratch


class StoredReplies(NamedTuple):
    """What the store has for tasks, by their fingerprints."""

    results: Mapping[bytes, store.EarlierResult]
    """Results that may be taken."""
    failures: Mapping[bytes, store.Failures]
    """How replicas of a vote failed."""


class LookUpTerms(NamedTuple):
    """Which stored answers count for a row."""

    since: float
    """From when on, in seconds since 1970."""
    is_forced: bool
    """True if a retry tries the row again, whatever failed before."""


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
        self.block(stage, row, reason or known or self.baseline.why.left(stage, row))

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
        decided = await self._decisions(stage, begun)
        results = [self._without_look_up(stage, row, task, decided) for row, task in begun]
        self._shared = set()
        self._asked = []
        wanted: dict[LookUpTerms, list[bytes]] = defaultdict(list)
        for (row, task), result in zip(begun, results, strict=True):
            if result is None and isinstance(task, Prepared | LocalCall):
                wanted[self._terms(stage, row)] += _prints(task)
        replies = {
            terms: await self._replies(stage, prints, terms) for terms, prints in wanted.items()
        }
        lacking = [
            fingerprint
            for terms, prints in wanted.items()
            for fingerprint in prints
            if fingerprint not in replies[terms].results
        ]
        in_batch = await self.in_batch(lacking)
        for place, (row, task) in enumerate(begun):
            if results[place] is None and isinstance(task, Prepared | LocalCall):
                found = replies[self._terms(stage, row)]
                results[place] = self._looked_up(stage, row, task, found, in_batch)
        with self.scratch.at_once():
            self.of(stage).collapsed += len(self._asked) - self.scratch.new(
                OF_ANY_STAGE, self._asked
            )
        return results

    async def _decisions(
        self, stage: AnyStage, begun: Sequence[tuple[ForecastRow, Task]]
    ) -> Mapping[bytes, Known]:
        """Returns what people decided about the answers that these tasks ask them about."""
        database = self.baseline.database
        if stage.index not in self._reviews or database is None:
            return {}
        keys = [task.fingerprint for _, task in begun if isinstance(task, ReviewTask)]
        return await known_of(database, keys)

    def _terms(self, stage: AnyStage, row: ForecastRow) -> LookUpTerms:
        return LookUpTerms(self.baseline.since(stage, row), self.baseline.is_forced(row))

    async def _replies(
        self, stage: AnyStage, prints: Sequence[bytes], terms: LookUpTerms
    ) -> StoredReplies:
        """Looks up what the store has for these fingerprints."""
        return StoredReplies(
            await self.earlier(stage, prints, terms.since),
            await self._failures(stage, prints, is_forced=terms.is_forced),
        )

    def _without_look_up(
        self, stage: AnyStage, row: ForecastRow, task: Task, decided: Mapping[bytes, Known]
    ) -> TaskResult | None:
        """Returns the result of a task that needs no look-up of stored answers, or None."""
        fingerprint = None if isinstance(task, NotReady) else task.fingerprint
        self.baseline.see_change(stage, row, fingerprint)
        if row.waits_for_others and not self.baseline.has_task(stage, row, fingerprint):
            self.block(stage, row, why.OTHERS_WAIT)
            return Parked.PARKED
        if isinstance(task, NotReady):
            return self._not_ready(stage, row, task)
        if isinstance(task, ReviewTask):
            return self._reviewed(stage, row, task, decided.get(task.fingerprint))
        fix = self.baseline.fixes.of(stage.name, row.id, task.fingerprint)
        if fix is not None and fix.at >= self.baseline.discards:
            self.of(stage).reuse += row.times
            return Answer(Result(fix.key or b"", fix.value or "null"), UNPARSED)
        if row.is_waiting:
            return None  # perhaps for this very task
        return self.baseline.left(stage, row, task.fingerprint)

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
        self, stage: AnyStage, prints: Sequence[bytes], since: float
    ) -> dict[bytes, store.EarlierResult]:
        """Returns the stage's results for these fingerprints that were made at or after `since`."""
        found: dict[bytes, store.EarlierResult] = {}
        remote = self.baseline.remote
        database = self.baseline.database
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
        self, stage: AnyStage, prints: Sequence[bytes], *, is_forced: bool
    ) -> dict[bytes, store.Failures]:
        """Returns how replicas failed that are not asked again: those of a vote with a lead,
        unless a retry asks."""
        found: dict[bytes, store.Failures] = {}
        database = self.baseline.database
        if database is None or self.baseline.fresh or not (stage.vote and stage.vote.lead):
            return found
        if is_forced:
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
            self.baseline.why.passed_on(stage, row, task.need, reason),
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
        self,
        stage: AnyStage,
        row: ForecastRow,
        prints: Sequence[bytes],
        replies: StoredReplies,
        in_batch: set[bytes],
    ) -> dict[bytes, str | RowError]:
        """Returns the replies to these fingerprints that the run would take for the row: JSON, or
        how a reply failed that is not asked for again."""
        there: dict[bytes, str | RowError] = {}
        for number, fingerprint in enumerate(prints, 1):
            replica = number if len(prints) > 1 else 0
            ready = row.ready.get((stage.index, replica, fingerprint)) if row.ready else None
            taken = self._taken(stage, row, replies.results.get(fingerprint), ready)
            if taken is None and ready is not None:
                taken = failure_of_batch(stage, ready)
            # what a batch will bring is newer than an earlier failure
            elif taken is None and fingerprint not in replies.results.keys() | in_batch:
                taken = self._binding_failure(stage, row, replies.failures.get(fingerprint, {}))
            if taken is not None:
                there[fingerprint] = taken
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
        since = self.baseline.since(stage, row)
        return binding_failure(stage, key, since, failures)

    def _looked_up(
        self,
        stage: AnyStage,
        row: ForecastRow,
        task: Prepared | LocalCall,
        replies: StoredReplies,
        in_batch: set[bytes],
    ) -> TaskResult | None:
        """Returns the result of a task by what the store has, or why it would be run; None: the
        row left the run before it."""
        prints = _prints(task)
        if row.is_waiting and in_batch.isdisjoint(prints):
            left = self.baseline.left(stage, row, task.fingerprint)
            if left is not None:
                return left
        there = self._there(stage, row, prints, replies, in_batch)
        voted, asked = _vote_of(stage, prints, there)
        if isinstance(voted, RowError):
            return voted
        if voted is not None:
            return self._reused(stage, row, task, voted)
        needed = [one for one in asked if one not in there and one not in in_batch]
        if not needed:
            self.of(stage).in_flight += row.times
            return Unknown(why.NOT_YET)
        if self.baseline.never_began(stage, row):
            row.never_began |= {stage.name}
            return None
        if not self._may_ask(stage, row):
            return Parked.PARKED
        if isinstance(task, Prepared) and (refusal := task.refusal) is not None:
            return refusal
        return self._to_run(stage, row, task, needed, spared=len(prints) - len(asked))

    def _reused(
        self, stage: AnyStage, row: ForecastRow, task: Prepared | LocalCall, voted: VoteResult
    ) -> Answer:
        """Counts a task whose stored answer is taken."""
        found = self.of(stage)
        if voted.share is not None:
            row.view.agreement[stage.name] = voted.share
        leaves = is_leave(stage, voted.text)
        found.dropped += row.times * leaves
        found.reuse += row.times * (not leaves)
        return Answer(Result(task.fingerprint, voted.text), UNPARSED)

    def _to_run(
        self,
        stage: AnyStage,
        row: ForecastRow,
        task: Prepared | LocalCall,
        needed: Sequence[bytes],
        *,
        spared: int,
    ) -> Unknown:
        """Counts a task that would be run. `needed` are the fingerprints that are surely asked;
        `spared` more may be."""
        found = self.of(stage)
        reason = self.baseline.why.reason(stage, row, task.fingerprint)
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
        if stage.index in self.baseline.made.listing:
            row.lists[stage.index] = None
        elif stage.makes == "rows":
            self.of(stage).guess = Guess("rows", stage.name, 1.0, None)


def _vote_of(
    stage: AnyStage, prints: Sequence[bytes], there: Mapping[bytes, str | RowError]
) -> tuple[VoteResult | RowError | None, Sequence[bytes]]:
    """Returns what the replies that are `there` come to, None if others have to be asked; and the
    fingerprints that were to be looked at."""
    answers = list[str | None]()
    asked = prints[:0]
    while isinstance(voted := outcome_of_vote(answers, stage.vote, len(prints)), int):
        asked = prints[: len(answers) + voted]
        if not there.keys() >= {*asked}:
            return None, asked
        cast = votes_of_replies([there[one] for one in asked], stage.vote)
        if isinstance(cast, RowError):
            return cast, asked
        answers = cast
    if isinstance(voted, VoteResult) and len(prints) == 1:
        return VoteResult(answers[0] or ""), asked
    return voted, asked


def _prints(task: Prepared | LocalCall) -> tuple[bytes, ...]:
    if isinstance(task, Prepared) and task.replicas:
        return task.replicas
    return (task.fingerprint,)
