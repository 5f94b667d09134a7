"""Where a dry run finds the answers that are stored, here or in the remote."""

from __future__ import annotations

import json
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
from agac.engine.forecast.baseline import SAMPLE, Baseline, ForecastRow
from agac.engine.forecast.estimate import TEXT, dummy_answer
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
