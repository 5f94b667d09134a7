"""One row walks through the stages of its level in one coroutine: guards, prompts, functions,
tasks, outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.keys import canonical, local_fingerprint
from agac.core.types import Outcome, Schema
from agac.engine.ask.answers import Answer, LocalCall, Parked, ReviewTask, RowRejected, value_of
from agac.engine.ask.retry_policy import RowDeadline
from agac.engine.ask.review import reviewings
from agac.engine.ask.tasks import Tasks
from agac.engine.context import InvocationContext
from agac.engine.stop_rules import RunStopped, StopSignal
from agac.engine.walk.branches import Branches
from agac.engine.walk.derived_rows import DerivationFailed
from agac.engine.walk.effects import ActiveRow, RowProgress, answered, is_leave
from agac.plan import diff as why
from agac.plan.plan import Plan
from agac.plan.render import Prepared, Preparer, RowView, followed
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.field_shapes import integers_of
from agac.spec.graph import PARTS, Level, giving
from agac.spec.guards import Evaluator, Guard, GuardFailed
from agac.spec.operations import Filter, Join, Rename, Select, UnfitRow
from agac.spec.templates import SKIPPED
from agac.store.records import DerivedRows
from agac.store.rows import State

# `LevelStages` is all that a workflow means for a row, without waiting for anything: what a guard
# lets in, what a local stage does, which task a stage has, what an answer changes. `Executor` walks
# one row with it: it awaits the answer of each task, and settles outcomes in the store. `dry_run`
# walks some hundred rows with it: it looks their answers up, and counts outcomes.


class NotReady(NamedTuple):
    """A task that cannot be made yet, because it depends on an answer that is not there."""

    need: str
    """The stage whose answer is missing."""


class Unknown(NamedTuple):
    """No answer, because a dry run asks nobody."""

    reason: str
    """Why the task would have to be run."""


Task = Prepared | LocalCall | ReviewTask | NotReady
TaskResult = Answer | RowError | Parked | Unknown | RowRejected

R = TypeVar("R", bound=RowProgress)
R_contra = TypeVar("R_contra", bound=RowProgress, contravariant=True)


class StageOutcomes(Protocol[R_contra]):
    """Takes the outcomes that need no answer; those of tasks go to the source of their answers."""

    def not_asked(
        self, row: R_contra, stage: AnyStage, outcome: Outcome, note: Callable[[], str] | None
    ) -> None:
        """Takes the outcome of a stage without a task.

        Done: the stage asks nothing and keeps nothing. Skipped: a guard let the row continue
        without the stage. Dropped: a guard or a filter took the row out. `note` makes what the
        store keeps of it."""

    def failed(
        self,
        row: R_contra,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None,
    ) -> None:
        """Takes the failure of a stage. `reason` says why in the words of a plan; None: its task
        failed before."""

    def undecided(self, row: R_contra, stage: AnyStage) -> None:
        """Notes that the stage's guard looks at an answer that is not there yet. The row is taken
        to be let in."""


class LevelStages(Generic[R]):
    """The stages of a level, and what each does to a row."""

    def __init__(
        self, plan: Plan, level: Level[AnyStage], preparer: Preparer, outcomes: StageOutcomes[R]
    ) -> None:
        self._preparer = preparer
        self._outcomes = outcomes
        # a stage that keeps some of the rows (`dedupe`) waits for all of them
        self.stages = tuple(stage for stage in level.stages if stage.makes != "kept")
        """The stages through which rows walk."""
        names = {stage.name for stage in self.stages}
        self.walks = frozenset(stage.index for stage in self.stages)
        """The indexes of these stages."""
        # of several stages that give a result the last one counts
        ends = (stage.name for end in plan.ends for stage in giving(end.name, plan.stages))
        self.ends = frozenset(names.intersection(ends))
        """The names of those whose results are written."""
        self.branches = Branches(self.stages)
        """Their order, if they do not simply follow one another."""
        self.in_turn = all(
            len(names.intersection(stage.ancestors)) == number
            for number, stage in enumerate(self.stages)
        )
        """True if each stage needs all that come before it."""
        self._followed = followed(plan.stages)
        self._reviews = reviewings(plan)
        self._judged = frozenset(
            name for review in self._reviews.values() for name in review.sources
        )
        self._guards = dict[int, Evaluator]()
        self._filters = dict[int, Evaluator]()
        schemas = {stage.name: stage.schema for stage in plan.stages}
        for stage in self.stages:
            if stage.guard is not None:
                self._guards[stage.index] = self._evaluator(stage.guard, stage, schemas)
            if isinstance(stage, LocalStage) and isinstance(stage.operation, Filter):
                self._filters[stage.index] = self._evaluator(stage.operation.guard, stage, schemas)

    @staticmethod
    def _evaluator(
        guard: Guard, stage: AnyStage, schemas: Mapping[str, Schema | None]
    ) -> Evaluator:
        """Makes what evaluates a guard of a stage."""
        return Evaluator(guard, stages=stage.ancestors, integers=integers_of(schemas, guard.names))

    def settle(self, row: R, stage: AnyStage) -> bool | None:
        """Settles a stage of a row if that takes no answer: True if others may follow.

        None: its task is needed."""
        if stage.rows_of is not None and stage.rows_of not in row.view.forms:
            message = f"the function of {stage.rows_of!r} gave a list, this row has none of it"
            return self.fail(row, stage, ErrorType.INVALID_ROW, message, why.UNFIT)
        if self._amends_nothing(row, stage):
            amended = stage.amends
            note = partial(canonical, {"when": f"{amended} != null", "values": {amended: None}})
            return self._refuse(row, stage, note)
        if stage.guard is not None:
            lets_in = self._guard(row, stage, stage.guard)
            if lets_in is not None:
                return lets_in
        if stage.index in self._reviews and self._reviews[stage.index].is_skipped(row.view):
            return self._skip(row, stage, None)
        if isinstance(stage, LocalStage) and not stage.is_kept:
            return self._change(row, stage)
        return None

    def _guard(self, row: R, stage: AnyStage, condition: Guard) -> bool | None:
        """Settles a row that the stage's guard does not let in, or that fails at it: True if
        others may follow. None: the row is let in."""
        if row.view.unknown and not row.view.is_decided(stage, condition.names):
            self._outcomes.undecided(row, stage)
            return None
        guard = self._guards[stage.index]
        values = row.view.guard_values(stage)
        try:
            lets_in = guard.test(values)
        except GuardFailed as failure:
            message = f"when: {failure}"
            return self.fail(row, stage, ErrorType.GUARD_ERROR, message, why.GUARD_FAILS)
        if lets_in:
            return None
        return self._refuse(row, stage, partial(guard_note, condition.text, guard, values))

    def _amends_nothing(self, row: R, stage: AnyStage) -> bool:
        """True if the stage that this one amends was skipped, and no other agent that a router
        chose may have answered."""
        if stage.amends is None or row.view.results.get(stage.amends) is not SKIPPED:
            return False
        if stage.parts and stage.guard is not None and PARTS in stage.guard.names:
            return False
        return row.view.known(stage).get(stage.amends) is SKIPPED

    def task(self, row: R, stage: AnyStage) -> Task | None:
        """Makes the task of a stage that `settle` did not settle; None: that is not possible, and
        the stage failed."""
        if row.view.unknown:
            need = row.view.unknown_need(stage)
            if need is not None:
                return NotReady(need)
        review = self._reviews.get(stage.index)
        if review is not None:
            try:
                return review.task(row.view, row.new.row.id)
            except GuardFailed as failure:
                self.fail(
                    row, stage, ErrorType.GUARD_ERROR, f"review.when: {failure}", why.GUARD_FAILS
                )
                return None
        if isinstance(stage, LocalStage):
            arguments = row.view.function_input(stage)
            return LocalCall(local_fingerprint(stage.prints, arguments), arguments)
        prepared = self._preparer.prepare(stage, row.view, row.new.row.id)
        if isinstance(prepared, RowError):
            self._failed(row, stage, None, prepared, why.MISSING_FIELD)
            return None
        return prepared

    def take(self, row: R, stage: AnyStage, task: Task, result: TaskResult) -> bool:
        """Does to a row what came of a task. Returns True if the stages that need it may
        follow."""
        match result:
            case Answer():
                if stage.name in self._judged and not isinstance(task, NotReady):
                    row.judged[stage.name] = task.fingerprint, result.result
                return self._answered(row, stage, result)
            case Parked():
                # no answer in this invocation: the task is in a batch or waits for one, or may not
                # be asked
                if result is Parked.ENROLLED:
                    row.waits = True
                elif result is Parked.PARKED:
                    row.held |= {stage.index}
                row.parked = row.parked or stage
                return False
            case Unknown():
                row.settled.add(stage.index)
                row.view.unknown[stage.name] = result.reason
                return True
            case RowRejected():
                return self._leave(row, stage, lambda: result.note)
        fingerprint = None if isinstance(task, NotReady) else task.fingerprint
        return self._failed(row, stage, fingerprint, result, None)

    def is_guarded(self, stage: AnyStage) -> bool:
        """True if a condition is evaluated for the stage, which may take a while."""
        return stage.index in self._guards or stage.index in self._filters

    def lets_in(self, view: RowView, stage: AnyStage) -> bool:
        """True if the stage's guard would let the row in. A guard that fails is settled when the
        row walks."""
        guard = self._guards.get(stage.index)
        try:
            return guard is None or guard.test(view.guard_values(stage))
        except GuardFailed:
            return False

    def _answered(self, row: R, stage: AnyStage, answer: Answer) -> bool:
        """Does to a row what a stage answered: True if the stages that need it may follow."""
        if is_leave(stage, answer.result.value):
            row.leave(stage)
            return False
        row.settled.add(stage.index)
        if stage.name in self.ends:
            row.reached = True
            row.written = answer.result
        if stage.gives_answer:
            if stage.name in self._followed:
                row.view.results[stage.name] = answered(stage, value_of(answer))
            return True
        value: Any = value_of(answer)
        # a function gave rows in the place of this one: what follows is done for each
        if isinstance(value, list):
            row.view.results.pop(stage.name, None)
            row.lists[stage.index] = value
            return False
        row.view.set_fields(stage, value)
        return True

    def _change(self, row: R, stage: LocalStage) -> bool | None:
        """Does what a stage does that only looks at the row or changes its fields: True if others
        may follow. None: it looks at an answer that is not there yet."""
        operation = stage.operation
        if not row.view.is_decided(stage, _read_names(operation)):
            return None
        try:
            if isinstance(operation, Filter):
                guard = self._filters[stage.index]
                values = row.view.guard_values(stage)
                if not guard.test(values):
                    note = partial(guard_note, operation.guard.text, guard, values)
                    return self._leave(row, stage, note)
            elif isinstance(operation, Select | Rename):
                row.view.set_fields(stage, operation.apply(row.view.data(stage)))
            elif isinstance(operation, Join):
                row.view.results[stage.name] = operation.text(row.view.known(stage))
        except GuardFailed as failure:
            return self.fail(row, stage, ErrorType.GUARD_ERROR, str(failure), why.UNFIT)
        except UnfitRow as unfit:
            return self.fail(row, stage, ErrorType.INVALID_ROW, str(unfit), why.UNFIT)
        row.settled.add(stage.index)
        row.reached = row.reached or stage.name in self.ends
        self._pass_unknown_on(row, stage)
        self._outcomes.not_asked(row, stage, Outcome.DONE, None)
        return True

    def _refuse(self, row: R, stage: AnyStage, note: Callable[[], str]) -> bool:
        """Takes out a row that the stage's guard does not let in, or lets it continue without the
        stage."""
        if stage.otherwise == "drop":
            return self._leave(row, stage, note)
        return self._skip(row, stage, note)

    def _skip(self, row: R, stage: AnyStage, note: Callable[[], str] | None) -> bool:
        """Lets the row continue without a result of the stage."""
        self._outcomes.not_asked(row, stage, Outcome.SKIPPED, note)
        row.settled.add(stage.index)
        row.view.mark_skipped(stage)
        self._pass_unknown_on(row, stage)
        return True

    def _pass_unknown_on(self, row: R, stage: AnyStage) -> None:
        """Marks a stage without an answer of its own as unknown if it sees one that is not there
        yet."""
        need = row.view.unknown_need(stage)
        if need is not None:
            row.view.unknown[stage.name] = row.view.unknown[need]

    def _leave(self, row: R, stage: AnyStage, note: Callable[[], str]) -> bool:
        """Takes the row out at the stage."""
        row.leave(stage)
        self._outcomes.not_asked(row, stage, Outcome.DROPPED, note)
        return False

    def fail(self, row: R, stage: AnyStage, kind: ErrorType, message: str, reason: str) -> bool:
        """Fails the row at the stage, which has no task for it."""
        return self._failed(
            row, stage, None, RowError(kind, f"stage {stage.name!r}: {message}"), reason
        )

    def _failed(
        self,
        row: R,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None,
    ) -> bool:
        """Fails the row at the stage, so that nothing that needs it may follow."""
        self._outcomes.failed(row, stage, fingerprint, error, reason)
        row.fail(stage, error)
        return False


def _read_names(operation: object) -> Collection[str]:
    """Returns the names that an operation of a local stage reads."""
    if isinstance(operation, Filter):
        return operation.guard.names
    if isinstance(operation, Join):
        return [name for _, name in operation.results]
    return ()


def guard_note(text: str, guard: Evaluator, values: dict[str, Any]) -> str:
    """Says as JSON why a guard or a filter kept a row from a stage: its text, and what it saw."""
    return canonical({"when": text, "values": guard.values(values)})


class Executor:
    """Walks rows of one level through its stages, each in one coroutine."""

    def __init__(
        self,
        context: InvocationContext,
        level: Level[AnyStage],
        tasks: Tasks,
        on_made: Callable[[DerivedRows], None] | None = None,
    ) -> None:
        """`on_made` is called with what is made of each row, before the row has ended."""
        plan = context.plan
        self._row_timeout = plan.rules.row_timeout
        self._clock = context.work.clocks.monotonic
        self._on_made = on_made
        self._level = level
        self._deriver = context.deriver
        self._tasks = tasks
        self._settler = context.settler
        self._ledger = context.ledger
        self._reviews = context.reviews
        self._traces = context.traces
        self._wall = context.work.clocks.wall
        self._stop_signal = context.stop_signal
        self.does: LevelStages[ActiveRow] = LevelStages(
            plan, level, context.preparer, context.settler
        )
        """What each stage does to a row."""
        has_kept_end = len(plan.ends) == 1 and plan.ends[0].is_kept
        self._one_result = has_kept_end and bool(self.does.ends)
        self._later = frozenset(stage.index for stage in level.makers if stage.makes == "kept")
        self._makes = bool(level.makers) or any(stage.makes == "rows" for stage in self.does.stages)

    async def walk(self, row: ActiveRow) -> None:
        """Takes a row through all stages and settles it. Raises RunStopped if the run stops on the
        way."""
        does = self.does
        row.reached = not does.ends
        if self._row_timeout is not None:
            row.deadline = RowDeadline(self._row_timeout, self._clock)
        if self._traces is not None:
            row.notes = self._traces.begin(row)
        if does.in_turn:
            for stage in does.stages:
                others_may_follow = self._settled(row, stage)
                if others_may_follow is None:
                    others_may_follow = await self._answer(row, stage)
                if not others_may_follow:
                    break
        else:
            settle = partial(self._settled, row)
            begin = partial(self._answer, row)
            await does.branches.walk(settle, begin, lambda: row.dropped)
        self._settle(row)
        if self._traces is not None:
            await self._traces.ended(row)

    def fail(self, row: ActiveRow, stage: AnyStage, error: RowError) -> None:
        """Settles a row that fails at the stage before the stage can have a task."""
        self._settler.failed(row, stage, None, error)
        row.fail(stage, error)
        self._settle(row)

    def _settled(self, row: ActiveRow, stage: AnyStage) -> bool | None:
        """Calls `LevelStages.settle`. After a signal no guard is evaluated: it returns None, and
        `_answer` then raises RunStopped."""
        if self._is_too_late(stage):
            return None
        return self.does.settle(row, stage)

    def _is_too_late(self, stage: AnyStage) -> bool:
        """True if the user asked the run to stop and a guard would be evaluated."""
        # the loop may have rows of all workers to go through before it calls the signal's callback
        return self._stop_signal.asked and self.does.is_guarded(stage)

    async def _answer(self, row: ActiveRow, stage: AnyStage) -> bool:
        """Takes a row through a stage that takes time: True if the stages that need it may
        follow."""
        if self._is_too_late(stage):
            raise RunStopped
        if row.notes is not None:
            row.notes.begins[stage.index] = self._wall()
        task = self.does.task(row, stage)
        if task is None:
            return False
        assert not isinstance(task, NotReady)
        return self.does.take(row, stage, task, await self._tasks.answer(row, stage, task))

    def _settle(self, row: ActiveRow) -> None:
        """Settles a row that came to the end of its stages, or waits."""
        if row.ready:
            self._settler.mark_batch_answers_used(row)
        if row.reviews and self._reviews is not None:
            self._reviews.parked(row)
        if row.parked is not None and row.stays_open:
            self._settler.row_parked(row, row.parked)
            return
        # the rows of a list that a function gave have the results in the place of this one
        in_place = any(index in self._deriver.to_ends for index in row.lists)
        state = State.DONE if row.reached or in_place else State.SKIPPED
        derived = self._derived(row, state) if self._makes else None
        self._end(row, state, in_place=in_place)
        if derived is not None and (row.known or row.made or _is_any(derived)):
            self._ledger.batch.derived.makings.append(derived)
            if self._on_made is not None:
                self._on_made(derived)

    def _end(self, row: ActiveRow, state: State, *, in_place: bool) -> None:
        """Settles the end of a row. If one branch failed and a guard of another takes the row out,
        it leaves."""
        if row.dropped:
            self._settler.row_ended(row, State.FILTERED, settled=row.settled)
            return
        if row.failed is not None:
            self._settler.row_ended(row, State.FAILED, failed=row.failed, settled=row.settled)
            return
        result = row.written if self._one_result and not in_place else None
        settled = row.settled | self._later if self._makes else None
        self._settler.row_ended(row, state, result, settled=settled)

    def _derived(self, row: ActiveRow, state: State) -> DerivedRows:
        """Makes what is made of the row, perhaps nothing in the place of what was. The row fails
        if that is not possible."""
        if not row.dropped and not row.failed:
            lists = {index: rows for index, rows in row.lists.items() if rows is not None}
            try:
                return self._deriver.made(self._level, row.view, row.new, lists, state)
            except DerivationFailed as fault:
                self.does.fail(row, fault.stage, ErrorType.INVALID_ROW, fault.message, why.NOT_MADE)
        if row.failed is not None and not row.dropped:
            return self._deriver.lacking(self._level, row.view, row.new)
        return DerivedRows(row.new)


def _is_any(derived: DerivedRows) -> bool:
    """True if something is made of a row."""
    return bool(derived.children or derived.groups or derived.alike)


# The bounded window of rows at work: workers pull rows from their sources, no task object is made
# for a row.

READ_AHEAD = 64
"""Rows that are ready beyond those being worked on, so that no worker waits for the input. The
chunk that is being read comes on top (`input_rows.CHUNK_ROWS`)."""

TURN_SECONDS = 0.05
"""How often, in seconds, the loop is left to others while rows that wait for nothing keep it
busy."""

Walk = Callable[[ActiveRow], Awaitable[None]]
"""Takes a row to its end. Raises RunStopped if the run stops on the way."""


class RowSource(NamedTuple):
    """Rows of one kind, and what takes them to their end."""

    rows: AsyncGenerator[list[ActiveRow], None]
    """The rows, some hundred at a time."""

    walk: Walk
    """Takes one of them to its end."""


async def run_workers(sources: Sequence[RowSource], stop_signal: StopSignal, workers: int) -> None:
    """Walks every row of all sources with at most `workers` tasks, which begin when there is a row
    for them.

    Sources with rows to give take turns, row by row. Returns when all rows have ended, or, after a
    stop, all that were begun."""
    await _Workers(stop_signal, workers).run(sources)


class _Workers:
    """The tasks that walk the rows of some sources, and the rows that wait for them."""

    def __init__(self, stop_signal: StopSignal, most: int) -> None:
        self._stop_signal = stop_signal
        self._most = most
        self._ready: asyncio.Queue[tuple[Walk, ActiveRow]] = asyncio.Queue(most + READ_AHEAD)
        self._working: list[asyncio.Task[None]] = []
        self._idle = 0
        self._loop = asyncio.get_running_loop()
        self._turned = self._loop.time()

    async def run(self, sources: Sequence[RowSource]) -> None:
        """Walks every row of these sources."""
        async with asyncio.TaskGroup() as group:
            # sources that wait for room get it in turn
            feeders = [group.create_task(self._feed(source, group)) for source in sources]
            stopper = group.create_task(self._stop(feeders))
            await asyncio.wait(feeders)
            await self._ready.join()
            for task in (stopper, *self._working):
                task.cancel()

    async def _work(self) -> None:
        """Walks one row after the other, until it is cancelled."""
        while True:
            self._idle += 1
            walk, row = await self._ready.get()
            self._idle -= 1
            with suppress(RunStopped):
                if not self._stop_signal.stopping:
                    await walk(row)
            self._ready.task_done()
            if self._loop.time() - self._turned > TURN_SECONDS:
                await asyncio.sleep(0)
                self._turned = self._loop.time()

    async def _feed(self, source: RowSource, group: asyncio.TaskGroup) -> None:
        """Reads the rows of a source, and begins a worker if none is idle."""
        try:
            async with aclosing(source.rows) as chunks:
                async for rows in chunks:
                    for row in rows:
                        await self._ready.put((source.walk, row))
                        if len(self._working) < self._most and self._ready.qsize() > self._idle:
                            self._working.append(group.create_task(self._work()))
        except AgacError as error:  # calls that were sent are paid for: they are not cut off
            self._stop_signal.lose_input(error)

    async def _stop(self, feeders: Sequence[asyncio.Task[None]]) -> None:
        """Reads no more rows once the run stops."""
        await self._stop_signal.stopped.wait()
        for feeder in feeders:
            feeder.cancel()
