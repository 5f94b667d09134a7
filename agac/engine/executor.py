"""One row walks through the stages of its level in one coroutine: guards, prompts, functions, tasks, outcomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.keys import canonical, local_fingerprint
from agac.core.types import JSONValue
from agac.engine.caller import Answer
from agac.engine.derived_rows import DerivationFailed, RowDeriver
from agac.engine.effects import ActiveRow, RowProgress, is_leave
from agac.engine.invocation import Work
from agac.engine.retry_policy import RowDeadline
from agac.engine.settle import Settler
from agac.engine.stop_rules import RunStopped, StopSignal
from agac.engine.tasks import AnswerSource, Parked, Replicas, Tasks, value_of
from agac.plan import diff as why
from agac.plan.plan import Plan
from agac.plan.render import Prepared, Preparer, RowView, filters, followed, guards
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.guards import Evaluator, GuardFailed
from agac.spec.levels import Level
from agac.spec.operations import Filter, Python, Rename, Select, UnfitRow
from agac.store.records import DerivedRows, Endpoint, Result
from agac.store.rows import State
from agac.tools.processes import FunctionFailed, Runner

# Functions of the project at work: the one place in the engine that calls them.

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Functions:
    """Calls the functions of stages, by the stages' positions. `clean` takes secrets out of a text."""

    def __init__(self, runners: Mapping[int, Runner], clean: Callable[[str], str], wall: Callable[[], float]) -> None:
        self._runners, self._clean, self._wall = runners, clean, wall

    async def call(self, stage: LocalStage, fingerprint: bytes, given: dict[str, JSONValue]) -> Answer | RowError:
        """What a stage's function gives for a row; an exception of its is the row's failure, with its traceback."""
        try:
            came = await self._runners[stage.index].call(given)
        except FunctionFailed as failed:
            return RowError(ErrorType.PYTHON_ERROR, self._clean(failed.message), self._clean(failed.traceback_text))
        if came.kind == "rows" and stage.makes != "rows":
            message = f"{_named(stage)} gave a list of rows; after explode let it give one row, or None"
            return RowError(ErrorType.PYTHON_ERROR, message)
        value = list(came.rows) if came.kind == "rows" else came.rows[0] if came.rows else None
        endpoint = Endpoint("python", "", _named(stage), False)
        return Answer(Result(fingerprint, _encode(value), endpoint, self._wall()), value)


@asynccontextmanager
async def open_functions(work: Work) -> AsyncIterator[Functions]:
    """The functions of a plan, ready to be called. Raises UsageError when one cannot be imported."""
    async with AsyncExitStack() as stack:
        runners = {}
        for stage in work.plan.stages:
            if isinstance(stage, LocalStage) and isinstance(does := stage.operation, Python):
                runner = Runner(does.function, work.root, does.processes)
                runners[stage.index] = await stack.enter_async_context(runner)
        yield Functions(runners, work.redactor.clean, work.clocks.wall)


def _named(stage: LocalStage) -> str:
    assert isinstance(stage.operation, Python)
    return str(stage.operation.function)


# What the stages of a level do to a row, and the walk of one row through them.
#
# `LevelStages` is all that a workflow means for a row, without waiting for anything: what a guard lets in, what a
# local stage does, which task a stage has, what an answer changes. `Executor` walks one row with it: it awaits the
# answer of each task, and settles outcomes in the store. `dry_run` walks some hundred rows with it: it looks their
# answers up, and counts outcomes.


class LocalCall(NamedTuple):
    """A call of a function that is ready to be looked up or made."""

    fingerprint: bytes
    given: dict[str, JSONValue]


class NotReady(NamedTuple):
    """A task that cannot be made yet: what it is about hangs on an answer that is not there, that of `need`."""

    need: str


class Unknown(NamedTuple):
    """No answer, as nobody is asked: why the task would have to be run."""

    reason: str


Task = Prepared | LocalCall | NotReady
TaskResult = Answer | RowError | Parked | Unknown


class GuardNote(NamedTuple):
    """Why a guard or a filter kept a row from a stage: its text, and what it saw."""

    when: str
    guard: Evaluator
    seen: dict[str, Any]

    def text(self) -> str:
        """The note that the store keeps, JSON."""
        return canonical({"when": self.when, "values": self.guard.values(self.seen)})


R = TypeVar("R", bound=RowProgress)
R_contra = TypeVar("R_contra", bound=RowProgress, contravariant=True)


class StageOutcomes(Protocol[R_contra]):
    """Takes the outcomes that need no answer; those of tasks are for whoever answers them."""

    def done(self, row: R_contra, stage: LocalStage) -> None:
        """A stage that asks nothing and keeps nothing did its work."""

    def skipped(self, row: R_contra, stage: AnyStage, note: GuardNote) -> None:
        """A guard said no: the row goes on without the stage."""

    def dropped(self, row: R_contra, stage: AnyStage, note: GuardNote) -> None:
        """A guard or a filter said no: the row leaves."""

    def failed(
        self, row: R_contra, stage: AnyStage, fingerprint: bytes | None, error: RowError, reason: str | None
    ) -> None:
        """The stage failed; `reason` is why in the words of a plan, None where the task failed before."""

    def undecided(self, row: R_contra, stage: AnyStage) -> None:
        """The stage's guard looks at an answer that is not there yet: the row is taken to be let in."""


Settle = Callable[[AnyStage], bool | None]
"""Settles a stage for a row where that needs no waiting: whether those that need it may follow; None: it takes time."""

Begin = Callable[[AnyStage], Coroutine[None, None, bool]]
"""Takes a row through a stage that takes time: whether those that need it may follow."""


class Branches:
    """How the stages of a level follow each other; what they need of rows before is there. Made once for all rows.

    Of stages that may begin at the same time those that can be settled at once come first: a row that leaves there has
    no task. What was begun comes to its end."""

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

    def ready(self, stages: Sequence[AnyStage], left: dict[str, int], settle: Settle) -> list[AnyStage]:
        """The stages that take time, of these and of those that others let begin at once."""
        slow, queue = [], list(stages)
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
        """Begins each stage once all that it needs gave True; when it is `over`, no more. Raises RunStopped when a
        stage does, after the others have ended."""
        left = self.begin()
        working: dict[asyncio.Task[bool], AnyStage] = {}
        ready, halted = self.first, False
        try:
            while True:
                for stage in [] if halted else self.ready(ready, left, settle):
                    if not over():
                        working[asyncio.ensure_future(begin(stage))] = stage
                if not working:
                    break
                ready = []
                ended, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for stage, goes_on in [(working.pop(task), _said(task)) for task in ended]:
                    halted = halted or goes_on is None
                    if goes_on:
                        ready += self.freed(stage, left)
        finally:
            if working:
                for task in working:
                    task.cancel()
                await asyncio.wait(working)
        if halted:
            raise RunStopped


def _said(task: asyncio.Task[bool]) -> bool | None:
    """What a stage gave; None: the run stops."""
    try:
        return task.result()
    except RunStopped:
        return None


class LevelStages(Generic[R]):
    """The stages of a level, and what each does to a row."""

    def __init__(self, plan: Plan, level: Level[AnyStage], preparer: Preparer, outcomes: StageOutcomes[R]) -> None:
        self._preparer, self._outcomes = preparer, outcomes
        self.level = level
        self.stages = tuple(stage for stage in level.stages if stage.makes != "kept")  # which waits for all rows
        own = {stage.name for stage in self.stages}
        self.ends = frozenset(stage.name for stage in plan.ends if stage.name in own)
        self.branches = Branches(self.stages)
        self.in_turn = all(len(own.intersection(s.ancestors)) == place for place, s in enumerate(self.stages))
        self._followed = followed(plan.stages)
        self._guards, self._filters = guards(self.stages), filters(self.stages)

    def settle(self, row: R, stage: AnyStage) -> bool | None:
        """Settles a stage of a row where that takes no answer: whether those that need it may follow; None: its task is
        needed."""
        if stage.rows_of is not None and stage.rows_of not in row.view.forms:
            text = f"stage {stage.name!r}: the function of {stage.rows_of!r} gave a list, this row has none of it"
            return self._fail(row, stage, None, RowError(ErrorType.INVALID_ROW, text), why.UNFIT)
        if stage.guard is not None and (verdict := self._judge(row, stage)) is not None:
            return verdict
        if isinstance(stage, LocalStage) and not stage.is_kept:
            return self._change(row, stage)
        return None

    def task(self, row: R, stage: AnyStage) -> Task | None:
        """The task of a stage that `settle` did not settle; None: the stage failed, as none can be made."""
        if row.view.unknown and (need := row.view.unknown_need(stage)) is not None:
            return NotReady(need)
        if isinstance(stage, LocalStage):
            given = row.view.function_input(stage)
            return LocalCall(local_fingerprint(stage.prints, given), given)
        prepared = self._preparer.prepare(stage, row.view, row.id)
        if isinstance(prepared, RowError):
            self._fail(row, stage, None, prepared, why.MISSING_FIELD)
            return None
        return prepared

    def take(self, row: R, stage: AnyStage, task: Task, result: TaskResult) -> bool:
        """What came of a task: whether the stages that need it may follow."""
        if isinstance(result, Answer):
            return self._answered(row, stage, result)
        if isinstance(result, Parked):
            row.park(stage, enrolled=result is Parked.ENROLLED)
            return False
        if isinstance(result, Unknown):
            row.await_answer(stage, result.reason)
            return True
        return self._fail(row, stage, None if isinstance(task, NotReady) else task.fingerprint, result, None)

    def lets_in(self, sight: RowView, stage: AnyStage) -> bool:
        """Whether the stage's guard would let the row in. One that cannot be told is settled on the way."""
        guard = self._guards.get(stage.index)
        try:
            return guard is None or guard.test(sight.guard_values(stage))
        except GuardFailed:
            return False

    def fail(self, row: R, stage: AnyStage, error: RowError, reason: str) -> None:
        """The row fails at the stage, for what is made of it there."""
        self._fail(row, stage, None, error, reason)

    def _answered(self, row: R, stage: AnyStage, answer: Answer) -> bool:
        if stage.asks:
            self._reach(row, stage, answer)
            if stage.name in self._followed:
                row.view.results[stage.name] = value_of(answer)
            return True
        if is_leave(stage, answer.result.value):
            row.leave(stage)
            return False
        self._reach(row, stage, answer)
        value: Any = value_of(answer)
        if isinstance(value, list):
            row.list_rows(stage, value)
            return False
        row.view.set_fields(stage, value)
        return True

    def _reach(self, row: R, stage: AnyStage, answer: Answer) -> None:
        row.settled.add(stage.index)
        if stage.name in self.ends:
            row.reached, row.written = True, answer.result

    def _change(self, row: R, stage: LocalStage) -> bool | None:
        """A stage that only looks at the row, or changes its fields. None: it looks at what is not known yet."""
        does, sight = stage.operation, row.view
        names = does.guard.names if isinstance(does, Filter) else ()
        if not sight.is_decided(stage, names):
            return None
        try:
            if isinstance(does, Filter):
                guard, seen = self._filters[stage.index], sight.guard_values(stage)
                if not guard.test(seen):
                    return self._leave(row, stage, GuardNote(does.guard.text, guard, seen))
            elif isinstance(does, Select | Rename):
                sight.set_fields(stage, does.apply(sight.data(stage)))
        except GuardFailed as failure:
            error = RowError(ErrorType.GUARD_ERROR, f"stage {stage.name!r}: {failure}")
            return self._fail(row, stage, None, error, why.UNFIT)
        except UnfitRow as unfit:
            error = RowError(ErrorType.INVALID_ROW, f"stage {stage.name!r}: {unfit}")
            return self._fail(row, stage, None, error, why.UNFIT)
        row.settled.add(stage.index)
        row.reached = row.reached or stage.name in self.ends
        if (need := sight.unknown_need(stage)) is not None:  # what follows may see the answer that is not there yet
            sight.unknown[stage.name] = sight.unknown[need]
        self._outcomes.done(row, stage)
        return True

    def _judge(self, row: R, stage: AnyStage) -> bool | None:
        """What the stage's guard says: None lets the row in; else whether stages that need this one may follow."""
        guard, sight = self._guards[stage.index], row.view
        text = stage.guard.text if stage.guard else ""
        if sight.unknown and stage.guard and not sight.is_decided(stage, stage.guard.names):
            self._outcomes.undecided(row, stage)
            return None
        seen = sight.guard_values(stage)
        try:
            if guard.test(seen):
                return None
        except GuardFailed as failure:
            error = RowError(ErrorType.GUARD_ERROR, f"stage {stage.name!r}: when: {failure}")
            return self._fail(row, stage, None, error, why.GUARD_FAILS)
        note = GuardNote(text, guard, seen)
        if stage.otherwise == "drop":
            return self._leave(row, stage, note)
        self._outcomes.skipped(row, stage, note)
        row.skip(stage)
        return True

    def _leave(self, row: R, stage: AnyStage, note: GuardNote) -> bool:
        row.leave(stage)
        self._outcomes.dropped(row, stage, note)
        return False

    def _fail(self, row: R, stage: AnyStage, fingerprint: bytes | None, error: RowError, reason: str | None) -> bool:
        """A stage failed: nothing that needs it may follow."""
        self._outcomes.failed(row, stage, fingerprint, error, reason)
        row.fail(stage, error)
        return False


@dataclass(slots=True, kw_only=True)
class WorkedRow(RowProgress):
    """A row that is worked on. `known`: something may have been made of it before."""

    flight: ActiveRow
    known: bool


class SettledOutcomes:
    """Settles the outcomes of rows that are worked on."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler

    def done(self, row: WorkedRow, stage: LocalStage) -> None:
        """A stage that asks nothing and keeps nothing did its work."""
        self._settler.local_done(row.flight, stage)

    def skipped(self, row: WorkedRow, stage: AnyStage, note: GuardNote) -> None:
        """A guard said no: the row goes on without the stage."""
        self._settler.task_skipped(row.flight, stage, note.text())

    def dropped(self, row: WorkedRow, stage: AnyStage, note: GuardNote) -> None:
        """A guard or a filter said no: the row leaves."""
        self._settler.task_dropped(row.flight, stage, note.text())

    def failed(
        self, row: WorkedRow, stage: AnyStage, fingerprint: bytes | None, error: RowError, reason: str | None
    ) -> None:
        """The stage failed."""
        self._settler.task_failed(row.flight, stage, fingerprint, error)

    def undecided(self, row: WorkedRow, stage: AnyStage) -> None:
        """Every answer that a guard looks at is there."""
        raise AssertionError(f"the guard of stage {stage.name!r} looks at an answer that is not there")


class Executor:
    """Walks rows of one level through its stages, each in one coroutine."""

    def __init__(
        self,
        plan: Plan,
        level: Level[AnyStage],
        makers: RowDeriver,
        preparer: Preparer,
        asker: AnswerSource,
        functions: Functions,
        tasks: Tasks,
        settler: Settler,
        *,
        clock: Callable[[], float],
        on_made: Callable[[DerivedRows], None] | None = None,
    ) -> None:
        """`clock` gives monotonic seconds, for the plan's `row_timeout`; `on_made` is called with what is made of each
        row, before the row has ended."""
        self._row_timeout, self._clock, self._on_made = plan.rules.row_timeout, clock, on_made
        self._level, self._makers, self._preparer = level, makers, preparer
        self.does = LevelStages(plan, level, preparer, SettledOutcomes(settler))
        self._joins = len(plan.ends) > 1 or any(not stage.is_kept for stage in plan.ends) or not self.does.ends
        self._later = frozenset(stage.index for stage in level.makers if stage.makes == "kept")
        self._makes = bool(level.makers) or any(stage.makes == "rows" for stage in self.does.stages)
        self._asker, self._functions, self._tasks, self._settler = asker, functions, tasks, settler
        self._replicas = Replicas(tasks, asker, settler)

    async def walk(self, flight: ActiveRow) -> None:
        """Takes a row through all stages and settles it. Raises RunStopped when the run stops on the way."""
        sight = flight.view or self._preparer.view(flight.new.row.data)
        known = flight.known or flight.made
        row = WorkedRow(flight.new.row.id, sight, flight=flight, known=known, reached=not self.does.ends)
        if self._row_timeout is not None:
            flight.deadline = RowDeadline(self._row_timeout, self._clock)
        if self.does.in_turn:
            for stage in self.does.stages:
                goes_on = self.does.settle(row, stage)
                if goes_on is None:
                    goes_on = await self._answer(row, stage)
                if not goes_on:
                    break
        else:
            settle, begin = partial(self.does.settle, row), partial(self._answer, row)
            await self.does.branches.walk(settle, begin, lambda: row.dropped)
        self._settle(row)

    async def _answer(self, row: WorkedRow, stage: AnyStage) -> bool:
        """One stage of a row that takes time: whether those that need it may follow."""
        task = self.does.task(row, stage)
        if task is None:
            return False
        return self.does.take(row, stage, task, await self._result(row.flight, stage, task))

    async def _result(self, flight: ActiveRow, stage: AnyStage, task: Task) -> TaskResult:
        if isinstance(task, LocalCall):
            assert isinstance(stage, LocalStage)
            called = partial(self._functions.call, stage, *task)
            return await self._tasks.answer(flight, stage, task.fingerprint, called)
        assert isinstance(stage, PlannedStage)
        assert isinstance(task, Prepared)
        if task.replicas:
            return await self._replicas.answer(flight, stage, task)
        asked = partial(self._asker.ask, flight, stage, task.fingerprint, task.request)
        wait = partial(self._asker.wait, flight, stage, task.fingerprint)
        return await self._tasks.answer(flight, stage, task.fingerprint, asked, wait=wait)

    def _settle(self, row: WorkedRow) -> None:
        """What became of the row: of a failure in one branch and a guard in another that makes it leave, it leaves."""
        flight, settler = row.flight, self._settler
        if flight.ready:
            settler.mark_batch_answers_used(flight, row.held)
        whole = not (row.dropped or row.failed or row.parked)
        made = self._made(row) if self._makes and whole else None
        if row.waits and row.parked is not None:
            settler.row_parked(flight, row.parked)
            return
        if row.dropped:
            settler.row_filtered(flight, row.settled)
        elif row.failed is not None:
            settler.row_failed(flight, *row.failed, row.settled)
        elif row.parked is not None:
            settler.row_parked(flight, row.parked)
            return
        else:
            self._end(row)
        if self._makes:
            self._make(row, made)

    def _end(self, row: WorkedRow) -> None:
        """The row went through."""
        settled = row.settled | self._later if self._makes else None
        if self._reached(row):
            others = self._joins or any(index in self._makers.to_ends for index in row.lists)
            self._settler.row_done(row.flight, None if others else row.written, settled)
        else:
            self._settler.row_skipped(row.flight, settled)

    def _reached(self, row: WorkedRow) -> bool:
        """Whether a stage whose result is the row's has one, here or where functions gave rows in its place."""
        return row.reached or any(index in self._makers.to_ends for index in row.lists)

    def _made(self, row: WorkedRow) -> DerivedRows | None:
        """What is made of a row that went through; None: it fails for that."""
        try:
            state = State.DONE if self._reached(row) else State.SKIPPED
            return self._makers.made(self._level, row.view, row.flight.new, dict(_known_lists(row)), state)
        except DerivationFailed as fault:
            self.does.fail(row, fault.stage, fault.error, why.NOT_MADE)
            return None

    def _make(self, row: WorkedRow, made: DerivedRows | None) -> None:
        """Stores what is made of a row, which may be nothing in the place of what was made before."""
        new = row.flight.new
        if made is None:
            lacking = row.failed is not None and not row.dropped
            made = self._makers.lacking(self._level, row.view, new) if lacking else DerivedRows(new)
        if made.broods or made.groups or made.alike or row.known:
            self._settler.derive_rows(made)
            if self._on_made is not None:
                self._on_made(made)


def _known_lists(row: RowProgress) -> Iterator[tuple[int, list[dict[str, JSONValue]]]]:
    for index, rows in row.lists.items():
        assert rows is not None
        yield index, rows


# The bounded window of rows in flight: workers pull rows from the intake, no task object is made for a row.

READ_AHEAD = 64
"""Rows that are ready beyond those being worked on, so that no worker waits for the input. The chunk that is being read
comes on top (`intake.CHUNK_ROWS`)."""


class RowWorker(Protocol):
    """Takes rows to their end, as `Segment` does. Raises RunStopped when the run stops on the way."""

    async def walk(self, flight: ActiveRow) -> None: ...


class RowSource(NamedTuple):
    """Rows of one kind, and who takes them to their end."""

    flights: AsyncGenerator[list[ActiveRow], None]
    walker: RowWorker


ReadyRows = asyncio.Queue[tuple[RowWorker, ActiveRow] | None]


async def run_workers(
    flights: AsyncGenerator[list[ActiveRow], None], walker: RowWorker, control: StopSignal, workers: int
) -> None:
    """Walks every row, `workers` at a time. Returns when all have ended, or all work in flight has after a stop."""
    await run_sources([RowSource(flights, walker)], control, workers)


async def run_sources(sources: Sequence[RowSource], control: StopSignal, workers: int) -> None:
    """Walks every row of all sources, `workers` at a time; sources with rows to give take turns, row by row. Returns as
    `run_workers` does."""
    ready: ReadyRows = asyncio.Queue(workers + READ_AHEAD)
    async with asyncio.TaskGroup() as group:
        hands = [group.create_task(_work(ready, control)) for _ in range(workers)]
        feeder = group.create_task(_feed_all(sources, ready, control, workers))
        stopper = group.create_task(_end_feeding(control, feeder, ready, workers))
        await asyncio.wait(hands)
        stopper.cancel()
        feeder.cancel()


async def _feed_all(sources: Sequence[RowSource], ready: ReadyRows, control: StopSignal, workers: int) -> None:
    """Feeds from all sources at the same time: those that wait for room in the queue get it in turn."""
    async with asyncio.TaskGroup() as group:
        feeds = [group.create_task(_feed(source, ready, control)) for source in sources]
    if all(feed.result() for feed in feeds):
        for _ in range(workers):
            await ready.put(None)


async def _feed(source: RowSource, ready: ReadyRows, control: StopSignal) -> bool:
    """Whether the source was read to its end."""
    try:
        async with aclosing(source.flights) as flights:
            async for some in flights:
                for flight in some:
                    await ready.put((source.walker, flight))
    except AgacError as error:  # calls in flight are paid for: they are not cut off for it
        control.lose_input(error)
        return False
    return True


async def _end_feeding(control: StopSignal, feeder: asyncio.Task[None], ready: ReadyRows, workers: int) -> None:
    """After a stop nothing that waits is begun: workers find the queue empty but for the word to go home."""
    await control.stopped.wait()
    feeder.cancel()
    await asyncio.wait([feeder])
    while not ready.empty():
        ready.get_nowait()
    for _ in range(workers):
        ready.put_nowait(None)


async def _work(ready: ReadyRows, control: StopSignal) -> None:
    while (found := await ready.get()) is not None:
        if control.stop is not None:
            return
        walker, flight = found
        try:
            await walker.walk(flight)
        except RunStopped:
            return
