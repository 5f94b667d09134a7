"""The outcomes of a dry run: what the store has is reused, everything else is unknown, and both are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agac.core.errors import RowError
from agac.core.types import Request, RowId
from agac.engine.caller import Answer
from agac.engine.effects import is_leave
from agac.engine.estimate import TEXT, dummy_answer
from agac.engine.executor import GuardNote, LocalCall, NotReady, Task, TaskResult, Unknown
from agac.engine.forecast import SAMPLE, Baseline, Forecast, ForecastRow, Guess, SamplePrompt, StageForecast
from agac.engine.invocation import Scope
from agac.engine.tasks import MAX_KEYS, PARKED, UNPARSED
from agac.plan import diff as why
from agac.plan.plan import Plan
from agac.plan.render import Prepared, Preparer, RowView, outcome_of_vote
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.templates import ROWS_JSON
from agac.store.batches import live_tasks
from agac.store.db import Database
from agac.store.records import Result
from agac.store.rows import EarlierResult, earlier_results


class CountedOutcomes:
    """Counts the outcomes of rows that would be worked on."""

    def __init__(self, plan: Plan, found: Forecast, baseline: Baseline, scope: Scope) -> None:
        self.found, self._baseline, self._scope = found, baseline, scope
        self._functions = _functions_upstream(plan.stages)

    def of(self, stage: AnyStage) -> StageForecast:
        """What was found of a stage so far."""
        return self.found.stages[stage.index]

    def is_guess(self, row: ForecastRow, stage: AnyStage) -> bool:
        """Whether it is a guess that the row, or one of it, comes to the stage: a function may give more or less."""
        unknown = row.view.unknown
        return row.guessed or bool(unknown and any(name in unknown for name in self._functions[stage.index]))

    def done(self, row: ForecastRow, stage: LocalStage) -> None:
        """A stage that asks nothing is as good as done."""
        self.of(stage).reuse += row.times

    def skipped(self, row: ForecastRow, stage: AnyStage, note: GuardNote) -> None:
        """A guard said no: the row goes on without the stage."""
        self.of(stage).skipped += row.times

    def dropped(self, row: ForecastRow, stage: AnyStage, note: GuardNote) -> None:
        """A guard or a filter said no: the row leaves."""
        self.of(stage).dropped += row.times

    def undecided(self, row: ForecastRow, stage: AnyStage) -> None:
        """The stage's guard looks at an answer that is not there yet."""
        self.of(stage).undecided += row.times

    def failed(
        self, row: ForecastRow, stage: AnyStage, fingerprint: bytes | None, error: RowError, reason: str | None
    ) -> None:
        """The stage failed, or failed before and is left so."""
        self.block(stage, row, reason or self._baseline.left_reason(stage, row))

    def may_ask(self, stage: AnyStage, row: ForecastRow) -> bool:
        """Whether the row's task may be run; else it is blocked."""
        if self._scope.may_ask(stage.name) and (row.chosen or row.view.unknown):  # what changes upstream changes it
            return True
        self.block(stage, row, why.NOT_IN_SCOPE)
        return False

    def block(self, stage: AnyStage, row: ForecastRow, reason: str) -> None:
        """The row's task cannot be run, and neither can those that need it."""
        row.blocked.add(stage.name)
        shown = reason if self._scope.may_ask(stage.name) else why.NOT_IN_SCOPE
        self.of(stage).block(shown, row.id, row.times)


def _functions_upstream(stages: Sequence[AnyStage]) -> list[tuple[str, ...]]:
    """Of each stage the functions upstream that may give lists of rows, also where it groups what comes of them."""
    makes = {stage.name: stage.makes for stage in stages}
    found: dict[str, dict[str, None]] = {}
    for stage in stages:
        found[stage.name] = {name: None for need in stage.needs for name in found[need]}
        found[stage.name] |= {need: None for need in stage.needs if makes[need] == "rows"}
    return [tuple(found[stage.name]) for stage in stages]


class Prompts:
    """The prompts of a dry run: measured, and `show` of them kept in the forecast."""

    def __init__(self, preparer: Preparer, found: Forecast, show: int) -> None:
        self._preparer, self._found, self._show = preparer, found, show

    def known(self, stage: PlannedStage, view: RowView, row_id: RowId) -> Prepared | None:
        """The task of a row that sees this; None when its prompt cannot be rendered."""
        prepared = self._preparer.prepare(stage, view, row_id)
        return None if isinstance(prepared, RowError) else prepared

    def measure(self, stage: PlannedStage, view: RowView, row_id: RowId, further: int = 0) -> None:
        """Takes a prompt into the sample, with so many characters that are not there yet."""
        found = self._found.stages[stage.index]
        if found.sampled >= SAMPLE:
            return
        prepared = self._preparer.prepare(stage, view, row_id)
        if isinstance(prepared, RowError):  # it names fields that are not there yet
            blank = len(stage.system or "") + len(stage.prompt.text) + len(TEXT) * len(stage.prompt.placeholders)
            found.sampled += 1
            found.characters += blank + further
        else:
            found.measure(prepared.request, further)

    def show(self, stage: AnyStage, row_id: RowId, request: Request) -> None:
        """A prompt that would be sent."""
        found = self._found.stages[stage.index]
        if found.sampled < SAMPLE:
            found.measure(request)
        if len(self._found.prompts) < self._show:
            self._found.prompts.append(SamplePrompt(row_id, stage.name, request))


class StoredAnswers:
    """Answers the tasks of a dry run: with what the store has, else that the answer is unknown. Nobody is called.

    `listing` are the positions of stages whose functions gave lists of rows before; `in_batches`: batches of the
    project are open."""

    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        baseline: Baseline,
        outcomes: CountedOutcomes,
        prompts: Prompts,
        *,
        fresh: bool,
        listing: frozenset[int],
        in_batches: bool,
    ) -> None:
        self._db, self._baseline, self._outcomes, self.prompts = database, baseline, outcomes, prompts
        self._workflow, self._fresh, self._listing, self._in_batches = plan.workflow, fresh, listing, in_batches
        self._by_name = {stage.name: stage for stage in plan.stages}

    async def answer(self, stage: AnyStage, begun: Sequence[tuple[ForecastRow, Task]]) -> list[TaskResult | None]:
        """The results of one stage's tasks, with one look-up for all of them; None: the row left the run before the
        stage began."""
        early = [self._without_look(stage, row, task) for row, task in begun]
        open_tasks = [one for one, known in zip(begun, early, strict=True) if known is None]
        chosen = [one for row, task in open_tasks if row.chosen for one in _prints(task)]
        others = [one for row, task in open_tasks if not row.chosen for one in _prints(task)]
        earlier = await self.earlier(stage, chosen)
        left = await self.earlier(stage, others, chosen=False) if others else {}
        in_batch = await self.in_batch([one for one in chosen if one not in earlier])
        return [
            self._looked_up(stage, row, task, earlier if row.chosen else left, in_batch) if known is None else known
            for (row, task), known in zip(begun, early, strict=True)
        ]

    async def earlier(
        self, stage: AnyStage, prints: Sequence[bytes], *, chosen: bool = True
    ) -> dict[bytes, EarlierResult]:
        """The results of the stage that are there for these fingerprints, and that would be taken for rows that are
        `chosen` or not."""
        found: dict[bytes, EarlierResult] = {}
        if self._db is not None and not self._fresh:
            since = self._baseline.since(stage, chosen=chosen)
            for start in range(0, len(prints), MAX_KEYS):
                found |= await earlier_results(self._db, prints[start : start + MAX_KEYS], since)
        return found

    async def in_batch(self, prints: Sequence[bytes]) -> set[bytes]:
        """Those of these fingerprints that are in a batch, or wait for one."""
        found: set[bytes] = set()
        if self._db is not None and self._in_batches:
            for start in range(0, len(prints), MAX_KEYS):
                found |= await live_tasks(self._db, prints[start : start + MAX_KEYS], self._workflow)
        return found

    def _without_look(self, stage: AnyStage, row: ForecastRow, task: Task) -> TaskResult | None:
        """The result of a task of which it is known without looking it up; None: of others."""
        if not isinstance(task, NotReady):
            return self._baseline.left(stage, row, task.fingerprint)
        if not self._outcomes.may_ask(stage, row):
            return PARKED
        found, reason = self._outcomes.of(stage), row.view.unknown[task.need]
        if task.need == ROWS_JSON and row.group is not None:
            assert isinstance(stage, PlannedStage)
            found.asked(reason, row.id, stage.replicas + row.group.parts, row.times)
            found.parts += row.group.parts * row.times
            found.in_flight += row.group.in_batch * row.times
            self.prompts.measure(stage, row.view, row.id, row.group.characters)
            del row.view.unknown[ROWS_JSON]
        else:
            first = self._baseline.passed_on(stage, row, task.need, reason)
            found.asked(first, row.id, stage.replicas, row.times)
            self._measure(stage, row)
        return Unknown(reason)

    def _looked_up(
        self,
        stage: AnyStage,
        row: ForecastRow,
        task: Task,
        earlier: Mapping[bytes, EarlierResult],
        in_batch: set[bytes],
    ) -> TaskResult | None:
        assert not isinstance(task, NotReady)
        prints, found = _prints(task), self._outcomes.of(stage)
        there = [earlier[one].value for one in prints if one in earlier]
        if len(there) == len(prints):
            value = there[0] if len(prints) == 1 else outcome_of_vote(there, _vote(stage)).text
            leaves = is_leave(stage, value)
            found.dropped += row.times * leaves
            found.reuse += row.times * (not leaves)
            return Answer(Result(task.fingerprint, value), UNPARSED)
        lacking = sum(one not in earlier and one not in in_batch for one in prints)
        if not lacking:
            found.in_flight += row.times
            return Unknown(why.NOT_YET)
        if self._baseline.never_began(stage, row):
            row.never_began.add(stage.name)
            return None
        if not self._outcomes.may_ask(stage, row):
            return PARKED
        reason = self._baseline.reason(stage, row, task.fingerprint)
        found.asked(reason, row.id, lacking, row.times)
        if isinstance(task, LocalCall):
            self._not_called(stage, row)
        else:
            found.known += 1
            found.different.add(task.fingerprint)
            self.prompts.show(stage, row.id, task.request)
        return Unknown(reason)

    def _not_called(self, stage: AnyStage, row: ForecastRow) -> None:
        """A function is taken to leave the row as it is, unless it gave lists before."""
        row.view.set_fields(stage, row.view.data(stage))
        if stage.index in self._listing:
            row.lists[stage.index] = None
        elif stage.makes == "rows":
            self._outcomes.of(stage).guess = Guess("rows", stage.name, 1.0, None)

    def _measure(self, stage: AnyStage, row: ForecastRow) -> None:
        """Measures a prompt that names an answer which is not there yet, as if that were of the usual size."""
        if isinstance(stage, LocalStage):
            self._not_called(stage, row)
            return
        if self._outcomes.of(stage).sampled >= SAMPLE:
            return
        for name in stage.ancestors:
            if name not in row.view.results:
                row.view.results[name] = dummy_answer(self._by_name[name])
        self.prompts.measure(stage, row.view, row.id)


def _prints(task: Task) -> tuple[bytes, ...]:
    """What is looked up of a task."""
    if isinstance(task, NotReady):
        return ()
    return task.replicas if isinstance(task, Prepared) and task.replicas else (task.fingerprint,)


def _vote(stage: AnyStage) -> str | None:
    return stage.vote if isinstance(stage, PlannedStage) else None
