"""One row walks through the stages of its level in one coroutine: guards, prompts, functions,
tasks, outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
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

# What the stages of a level do to a row, and the walk of one row through them.
#
# `LevelStages` is all that a workflow means for a row, without waiting for anything: what a guard
# lets in, what a local stage does, which task a stage has, what an answer changes. `Executor` walks
# one row with it: it awaits the answer of each task, and settles outcomes in the store. `dry_run`
# walks some hundred rows with it: it looks their answers up, and counts outcomes.


class NotReady(NamedTuple):
    """A task that cannot be made yet: what it is about hangs on an answer that is not there, that
    of `need`."""

    need: str


class Unknown(NamedTuple):
    """No answer, as nobody is asked: why the task would have to be run."""

    reason: str


Task = Prepared | LocalCall | ReviewTask | NotReady
TaskResult = Answer | RowError | Parked | Unknown | RowRejected

R = TypeVar("R", bound=RowProgress)
R_contra = TypeVar("R_contra", bound=RowProgress, contravariant=True)


class StageOutcomes(Protocol[R_contra]):
    """Takes the outcomes that need no answer; those of tasks are for whoever answers them."""

    def not_asked(
        self, row: R_contra, stage: AnyStage, outcome: Outcome, note: Callable[[], str] | None
    ) -> None:
        """A stage that asks nothing and keeps nothing is done; or a guard or a filter said no: the
        row goes on without the stage (skipped) or leaves (dropped). `note` makes what the store
        keeps of it."""

    def failed(
        self,
        row: R_contra,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None,
    ) -> None:
        """The stage failed; `reason` is why in the words of a plan, None where the task failed
        before."""

    def undecided(self, row: R_contra, stage: AnyStage) -> None:
        """The stage's guard looks at an answer that is not there yet: the row is taken to be let
        in."""


Settle = Callable[[AnyStage], bool | None]
"""Settles a stage for a row where that needs no waiting: whether those that need it may follow;
None: it takes time."""

Begin = Callable[[AnyStage], Coroutine[None, None, bool]]
"""Takes a row through a stage that takes time: whether those that need it may follow."""


class Branches:
    """How the stages of a level follow each other; what they need of rows before is there. Made
    once for all rows. Of stages that may begin at the same time those that can be settled at once
    come first: a row that leaves there has no task. What was begun comes to its end."""

    def __init__(self, stages: Sequence[AnyStage]) -> None:
        own = {stage.name for stage in stages}
        needs = {stage.name: [need for need in stage.needs if need in own] for stage in stages}
        self.first = [stage for stage in stages if not needs[stage.name]]
        self._open = {name: len(wanted) for name, wanted in needs.items()}
        self._followers: dict[str, list[AnyStage]] = {stage.name: [] for stage in stages}
        for stage in stages:
            for need in needs[stage.name]:
                self._followers[need].append(stage)

    def begin(self) -> dict[str, int]:
        """How many needs of each stage have no outcome yet, for one row."""
        return dict(self._open)

    def ready(
        self, stages: Sequence[AnyStage], left: dict[str, int], settle: Settle
    ) -> list[AnyStage]:
        """The stages that take time, of these and of those that others let begin at once."""
        slow = []
        queue = list(stages)
        while queue:
            stage = queue.pop(0)
            goes_on = settle(stage)
            if goes_on is None:
                slow.append(stage)
            elif goes_on:
                queue += self.freed(stage, left)
        return slow

    def freed(self, stage: AnyStage, left: dict[str, int]) -> list[AnyStage]:
        """The stages that needed this one last."""
        freed = []
        for follower in self._followers[stage.name]:
            left[follower.name] -= 1
            if not left[follower.name]:
                freed.append(follower)
        return freed

    async def walk(self, settle: Settle, begin: Begin, over: Callable[[], bool]) -> None:
        """Begins each stage once all that it needs gave True; none once `over`. Raises RunStopped
        after all ended."""
        left = self.begin()
        working: dict[asyncio.Task[bool], AnyStage] = {}
        ready = self.first
        halted = False
        try:
            while True:
                for stage in [] if halted else self.ready(ready, left, settle):
                    if not over():
                        working[asyncio.ensure_future(begin(stage))] = stage
                if not working:
                    break
                ready = []
                ended, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    stage = working.pop(task)
                    if isinstance(task.exception(), RunStopped):
                        halted = True
                    elif task.result():
                        ready += self.freed(stage, left)
        finally:
            if working:
                for task in working:
                    task.cancel()
                await asyncio.wait(working)
        if halted:
            raise RunStopped


class LevelStages(Generic[R]):
    """The stages of a level, and what each does to a row."""

    def __init__(
        self, plan: Plan, level: Level[AnyStage], preparer: Preparer, outcomes: StageOutcomes[R]
    ) -> None:
        self._preparer = preparer
        self._outcomes = outcomes
        # which waits for all rows
        self.stages = tuple(stage for stage in level.stages if stage.makes != "kept")
        own = {stage.name for stage in self.stages}
        self.walks = frozenset(stage.index for stage in self.stages)
        # the last one counts
        ends = (stage.name for end in plan.ends for stage in giving(end.name, plan.stages))
        self.ends = frozenset(own.intersection(ends))
        self.branches = Branches(self.stages)
        self.in_turn = all(
            len(own.intersection(s.ancestors)) == place for place, s in enumerate(self.stages)
        )
        self._followed = followed(plan.stages)
        self._guards = dict[int, Evaluator]()
        self._filters = dict[int, Evaluator]()
        self._reviews = reviewings(plan)
        self._judged = frozenset(name for one in self._reviews.values() for name in one.sources)
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
        return Evaluator(guard, stages=stage.ancestors, integers=integers_of(schemas, guard.names))

    def settle(self, row: R, stage: AnyStage) -> bool | None:
        """Settles a stage of a row where that takes no answer: whether others may follow; None:
        its task is needed."""
        if stage.rows_of is not None and stage.rows_of not in row.view.forms:
            message = f"the function of {stage.rows_of!r} gave a list, this row has none of it"
            return self.fail(row, stage, ErrorType.INVALID_ROW, message, why.UNFIT)
        amends = stage.amends
        if (
            amends is not None
            and row.view.results.get(amends) is SKIPPED
            and self._stays(row, stage)
        ):
            note = partial(canonical, {"when": f"{amends} != null", "values": {amends: None}})
            return self._refuse(row, stage, note)
        if stage.guard is not None:
            if row.view.unknown and not row.view.is_decided(stage, stage.guard.names):
                self._outcomes.undecided(row, stage)
            else:
                guard = self._guards[stage.index]
                seen = row.view.guard_values(stage)
                try:
                    lets_in = guard.test(seen)
                except GuardFailed as failure:
                    return self.fail(
                        row, stage, ErrorType.GUARD_ERROR, f"when: {failure}", why.GUARD_FAILS
                    )
                if not lets_in:
                    return self._refuse(
                        row, stage, partial(guard_note, stage.guard.text, guard, seen)
                    )
        if stage.index in self._reviews and self._reviews[stage.index].is_skipped(row.view):
            return self._skip(row, stage, None)
        if isinstance(stage, LocalStage) and not stage.is_kept:
            return self._change(row, stage)
        return None

    def _stays(self, row: R, stage: AnyStage) -> bool:
        """Whether what the stage amends is skipped by the time. Another agent that a router chose
        may have answered."""
        chosen = stage.parts and stage.guard is not None and PARTS in stage.guard.names
        return not chosen and row.view.known(stage).get(str(stage.amends)) is SKIPPED

    def task(self, row: R, stage: AnyStage) -> Task | None:
        """The task of a stage that `settle` did not settle; None: the stage failed, as none can be
        made."""
        if row.view.unknown and (need := row.view.unknown_need(stage)) is not None:
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
            given = row.view.function_input(stage)
            return LocalCall(local_fingerprint(stage.prints, given), given)
        prepared = self._preparer.prepare(stage, row.view, row.new.row.id)
        if isinstance(prepared, RowError):
            self._failed(row, stage, None, prepared, why.MISSING_FIELD)
            return None
        return prepared

    def take(self, row: R, stage: AnyStage, task: Task, result: TaskResult) -> bool:
        """What came of a task: whether the stages that need it may follow."""
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
        return self._failed(
            row, stage, None if isinstance(task, NotReady) else task.fingerprint, result, None
        )

    def is_guarded(self, stage: AnyStage) -> bool:
        """Whether a condition is evaluated for the stage, which may take a while."""
        return stage.index in self._guards or stage.index in self._filters

    def lets_in(self, view: RowView, stage: AnyStage) -> bool:
        """Whether the stage's guard would let the row in. One that cannot be decided is settled on
        the way."""
        guard = self._guards.get(stage.index)
        try:
            return guard is None or guard.test(view.guard_values(stage))
        except GuardFailed:
            return False

    def _answered(self, row: R, stage: AnyStage, answer: Answer) -> bool:
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
        """A stage that only looks at the row, or changes its fields. None: it looks at what is not
        known yet."""
        does = stage.operation
        view = row.view
        joined: Sequence[str]
        if isinstance(does, Join):
            joined = [name for _, name in does.results]
        else:
            joined = ()
        if not view.is_decided(stage, does.guard.names if isinstance(does, Filter) else joined):
            return None
        try:
            if isinstance(does, Filter):
                guard = self._filters[stage.index]
                seen = view.guard_values(stage)
                if not guard.test(seen):
                    return self._leave(
                        row, stage, partial(guard_note, does.guard.text, guard, seen)
                    )
            elif isinstance(does, Select | Rename):
                view.set_fields(stage, does.apply(view.data(stage)))
            elif isinstance(does, Join):
                view.results[stage.name] = does.text(view.known(stage))
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
        """The stage's guard said no: the row leaves, or goes on without a result of the stage."""
        if stage.otherwise == "drop":
            return self._leave(row, stage, note)
        return self._skip(row, stage, note)

    def _skip(self, row: R, stage: AnyStage, note: Callable[[], str] | None) -> bool:
        """The row goes on without a result of the stage."""
        self._outcomes.not_asked(row, stage, Outcome.SKIPPED, note)
        row.settled.add(stage.index)
        row.view.mark_skipped(stage)
        self._pass_unknown_on(row, stage)
        return True

    def _pass_unknown_on(self, row: R, stage: AnyStage) -> None:
        """What follows a stage without an answer of its own may see the one that is not there
        yet."""
        need = row.view.unknown_need(stage)
        if need is not None:
            row.view.unknown[stage.name] = row.view.unknown[need]

    def _leave(self, row: R, stage: AnyStage, note: Callable[[], str]) -> bool:
        row.leave(stage)
        self._outcomes.not_asked(row, stage, Outcome.DROPPED, note)
        return False

    def fail(self, row: R, stage: AnyStage, kind: ErrorType, message: str, reason: str) -> bool:
        """The row fails at the stage, which has no task for it."""
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
        """A stage failed: nothing that needs it may follow."""
        self._outcomes.failed(row, stage, fingerprint, error, reason)
        row.fail(stage, error)
        return False


def guard_note(text: str, guard: Evaluator, seen: dict[str, Any]) -> str:
    """Why a guard or a filter kept a row from a stage, JSON: its text, and what it saw."""
    return canonical({"when": text, "values": guard.values(seen)})


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
        self._joins = (
            len(plan.ends) > 1
            or any(not stage.is_kept for stage in plan.ends)
            or not self.does.ends
        )
        self._later = frozenset(stage.index for stage in level.makers if stage.makes == "kept")
        self._makes = bool(level.makers) or any(stage.makes == "rows" for stage in self.does.stages)

    async def walk(self, row: ActiveRow) -> None:
        """Takes a row through all stages and settles it. Raises RunStopped when the run stops on
        the way."""
        does, row.reached = self.does, not self.does.ends
        if self._row_timeout is not None:
            row.deadline = RowDeadline(self._row_timeout, self._clock)
        if self._traces is not None:
            row.notes = self._traces.begin(row)
        if does.in_turn:
            for stage in does.stages:
                goes_on = self._settled(row, stage)
                if goes_on is None:
                    goes_on = await self._answer(row, stage)
                if not goes_on:
                    break
        else:
            settle = partial(self._settled, row)
            begin = partial(self._answer, row)
            await does.branches.walk(settle, begin, lambda: row.dropped)
        self._settle(row)
        if self._traces is not None:
            await self._traces.ended(row)

    def fail(self, row: ActiveRow, stage: AnyStage, error: RowError) -> None:
        """Settles a row that fails at the stage before the stage can have a task. What is made of
        rows is told."""
        self._settler.failed(row, stage, None, error)
        row.fail(stage, error)
        self._settle(row)

    def _settled(self, row: ActiveRow, stage: AnyStage) -> bool | None:
        """`LevelStages.settle`; after a signal no guard is evaluated, and `_answer` then says that
        the run stops."""
        if self._is_too_late(stage):
            return None
        return self.does.settle(row, stage)

    def _is_too_late(self, stage: AnyStage) -> bool:
        # the loop may have rows of all workers to go through before it calls the signal's callback
        return self._stop_signal.asked and self.does.is_guarded(stage)

    async def _answer(self, row: ActiveRow, stage: AnyStage) -> bool:
        """One stage of a row that takes time: whether those that need it may follow."""
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
        """What became of the row: of a failure in one branch and a guard in another that makes it
        leave, it leaves."""
        settler = self._settler
        if row.ready:
            settler.mark_batch_answers_used(row)
        if row.reviews and self._reviews is not None:
            self._reviews.parked(row)
        if row.parked is not None and row.stays_open:
            settler.row_parked(row, row.parked)
            return
        # rows of functions have its results
        in_place = any(index in self._deriver.to_ends for index in row.lists)
        state = State.DONE if row.reached or in_place else State.SKIPPED
        derived = self._derived(row, state) if self._makes else None
        if row.dropped:
            settler.row_ended(row, State.FILTERED, settled=row.settled)
        elif row.failed is not None:
            settler.row_ended(row, State.FAILED, failed=row.failed, settled=row.settled)
        else:
            settled = row.settled | self._later if self._makes else None
            settler.row_ended(
                row, state, None if self._joins or in_place else row.written, settled=settled
            )
        if derived is not None and (
            row.known or row.made or derived.children or derived.groups or derived.alike
        ):
            self._ledger.batch.makings.append(derived)
            if self._on_made is not None:
                self._on_made(derived)

    def _derived(self, row: ActiveRow, state: State) -> DerivedRows:
        """What is made of the row, perhaps nothing in the place of what was; it fails where that
        cannot be made."""
        if not (row.dropped or row.failed):
            lists = {index: rows for index, rows in row.lists.items() if rows is not None}
            try:
                return self._deriver.made(self._level, row.view, row.new, lists, state)
            except DerivationFailed as fault:
                self.does.fail(row, fault.stage, ErrorType.INVALID_ROW, fault.message, why.NOT_MADE)
        lacks = row.failed is not None and not row.dropped
        if lacks:
            return self._deriver.lacking(self._level, row.view, row.new)
        return DerivedRows(row.new)


# The bounded window of rows at work: workers pull rows from their sources, no task object is made
# for a row.

READ_AHEAD = 64
"""Rows that are ready beyond those being worked on, so that no worker waits for the input. The
chunk that is being read comes on top (`input_rows.CHUNK_ROWS`)."""

TURN_SECONDS = 0.05
"""So often the loop is left to others, while rows that wait for nothing would keep it busy."""

Walk = Callable[[ActiveRow], Awaitable[None]]
"""Takes a row to its end. Raises RunStopped when the run stops on the way."""


class RowSource(NamedTuple):
    """Rows of one kind, and what takes them to their end."""

    rows: AsyncGenerator[list[ActiveRow], None]
    walk: Walk


async def run_workers(sources: Sequence[RowSource], stop_signal: StopSignal, workers: int) -> None:
    """Walks every row of all sources, with at most `workers` tasks, which begin when there is a
    row for them; sources with rows to give take turns, row by row. Returns when all have ended, or
    all that was begun has after a stop."""
    ready: asyncio.Queue[tuple[Walk, ActiveRow]] = asyncio.Queue(workers + READ_AHEAD)
    working: list[asyncio.Task[None]] = []
    idle = 0
    loop = asyncio.get_running_loop()
    turned = loop.time()

    async def work() -> None:
        nonlocal idle, turned
        while True:
            idle += 1
            walk, row = await ready.get()
            idle -= 1
            with suppress(RunStopped):
                if not stop_signal.stopping:
                    await walk(row)
            ready.task_done()
            if loop.time() - turned > TURN_SECONDS:
                await asyncio.sleep(0)
                turned = loop.time()

    async def feed(source: RowSource) -> None:
        try:
            async with aclosing(source.rows) as chunks:
                async for rows in chunks:
                    for row in rows:
                        await ready.put((source.walk, row))
                        if len(working) < workers and ready.qsize() > idle:
                            working.append(group.create_task(work()))
        except AgacError as error:  # calls that were sent are paid for: they are not cut off for it
            stop_signal.lose_input(error)

    async def stop_feeding() -> None:
        await stop_signal.stopped.wait()
        for feeder in feeders:
            feeder.cancel()

    async with asyncio.TaskGroup() as group:
        # who waits for room gets it in turn
        feeders = [group.create_task(feed(source)) for source in sources]
        stopper = group.create_task(stop_feeding())
        await asyncio.wait(feeders)
        await ready.join()
        for task in (stopper, *working):
            task.cancel()
