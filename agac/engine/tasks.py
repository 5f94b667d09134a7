"""Tasks, each run once: equal ones wait for the first, stored answers are looked up, replicas vote."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Outcome, Request
from agac.engine.caller import Answer
from agac.engine.context import InvocationContext
from agac.engine.effects import ActiveRow
from agac.engine.retry_policy import RowDeadlineExceeded, is_left
from agac.engine.settle import Settler
from agac.engine.stop_rules import RunStopped
from agac.plan.render import Prepared, VoteResult, outcome_of_vote
from agac.plan.stage import AnyStage, PlannedStage
from agac.store.db import Database
from agac.store.records import Result
from agac.store.rows import EarlierResult, earlier_results

MAX_KEYS = 512
"""Keys in one look-up."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LookupBatcher(Generic[K, V]):
    """Looks keys up many at a time with `fetch`: keys that come during a look-up share the next one. Its `run` must be
    going."""

    def __init__(self, fetch: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._fetch = fetch
        self._wanted: dict[K, asyncio.Future[V | None]] = {}
        self._work = asyncio.Event()

    async def get(self, key: K) -> V | None:
        """What belongs to the key."""
        found = self._wanted.get(key)
        if found is not None:  # somebody else asked just before
            return await asyncio.shield(found)
        found = self._wanted[key] = asyncio.get_running_loop().create_future()
        self._work.set()
        return await found

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._wanted:
                some = [self._wanted.popitem() for _ in range(min(MAX_KEYS, len(self._wanted)))]
                fetched = await self._fetch([key for key, _ in some])
                for key, found in some:
                    if not found.done():
                        found.set_result(fetched.get(key))


class Lookup:
    """Finds earlier results made at or after `since`, seconds since 1970. Its `run` must be going."""

    def __init__(self, database: Database, since: float) -> None:
        self._database, self._since = database, since
        self._gathered: LookupBatcher[tuple[float, bytes], EarlierResult] = LookupBatcher(self._fetch)

    async def find(self, fingerprint: bytes, since: float = 0.0) -> EarlierResult | None:
        """The newest earlier result, made at or after `since` too."""
        return await self._gathered.get((max(since, self._since), fingerprint))

    async def run(self) -> None:
        """Answers until cancelled."""
        await self._gathered.run()

    async def _fetch(self, keys: Sequence[tuple[float, bytes]]) -> dict[tuple[float, bytes], EarlierResult]:
        found = {}
        for since in {since for since, _ in keys}:
            prints = [fingerprint for one, fingerprint in keys if one == since]
            for fingerprint, result in (await earlier_results(self._database, prints, since)).items():
                found[since, fingerprint] = result
        return found


T = TypeVar("T")

Ask = Callable[[], Awaitable["Answer | RowError | Parked"]]
"""Brings a task's answer, which is not there yet, or enrols it in a batch."""

Wait = Callable[[], None]
"""Has a row wait for an equal task that is in a batch."""

REMEMBERED_FAILURES = 10_000
"""Failed fingerprints kept in memory, so that equal tasks later in the run share the failure. 100 bytes each."""


class Parked(Enum):
    """The end of a task that has no answer in this invocation: its row stays open. It may not be asked; or it is in a
    batch, or waits for one."""

    PARKED = "parked"
    ENROLLED = "enrolled"


PARKED = Parked.PARKED


class Tasks:
    """Brings the answers of tasks, each run once, and settles those that have one; failures are for the caller.

    `newest_before` is the id of the last result that this invocation found in the store.
    """

    def __init__(self, context: InvocationContext, lookup: Lookup, newest_before: int) -> None:
        self._settler, self._ledger, self._totals = context.settler, context.ledger, context.totals
        self._scope, self._wall = context.scope, context.work.clocks.wall
        self._timed = context.plan.rules.row_timeout is not None  # so that a time-out may be a row's own
        self.lookup, self._newest_before = lookup, newest_before
        self._asking: dict[bytes, asyncio.Future[Answer | RowError | Parked | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()

    async def answer(
        self,
        active: ActiveRow,
        stage: AnyStage,
        fingerprint: bytes,
        ask: Ask,
        *,
        replica: int = 0,
        wait: Wait | None = None,
    ) -> Answer | RowError | Parked:
        """A task's answer: an earlier one, that of an equal task, or the one that `ask` brings. `replica`, from 1: it
        is one of several of which the task's answer will be made. `wait`: called when an equal task has just been
        enrolled in a batch."""
        left = self.left(active, stage, fingerprint)
        if left is not None:
            return left
        while (leader := self._asking.get(fingerprint)) is not None:
            answer = await self._follow(active, stage, leader, replica)
            if answer is Parked.ENROLLED and wait is not None:
                wait()
            if answer is not None:
                return answer
        known = self._failed.get(fingerprint)
        return known if known is not None else await self._lead(active, stage, fingerprint, ask, replica)

    def left(self, active: ActiveRow, stage: AnyStage, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed before and is not tried again."""
        prior = active.prior.get(stage.index)
        if prior is None or prior.error is None or prior.fingerprint != fingerprint or active.forced:
            return None
        if active.resumed and not any(one[0] == stage.index for one in active.ready):
            return prior.error
        if is_left(prior):
            self._totals.left_failed += 1
            return prior.error
        return None

    async def _follow(
        self,
        active: ActiveRow,
        stage: AnyStage,
        leader: asyncio.Future[Answer | RowError | Parked | None],
        replica: int,
    ) -> Answer | RowError | Parked | None:
        """What became of the same task of another row; None: that row had no time or money left, this one may."""
        try:
            answer = await active.deadline.wait(asyncio.shield(leader))
        except RowDeadlineExceeded:
            return RowError(ErrorType.TIMEOUT, str(active.deadline))
        if answer is None:
            raise RunStopped
        if isinstance(answer, Answer):
            self._collapsed(active, stage, answer.result.id, replica)
            self._settled(active, stage, answer.result, Outcome.REUSED, replica)
        elif isinstance(answer, RowError) and self._is_of_its_row(answer):
            return None
        return answer

    def _collapsed(self, active: ActiveRow, stage: AnyStage, result: int, replica: int) -> None:
        """Counts a task that another one was asked for; a row counts once, also where it is walked again."""
        prior = active.prior.get(stage.index)
        had = prior is not None and bool(result) and prior.result_id == result
        self._totals.collapsed += replica <= 1 and not had

    def _settled(self, active: ActiveRow, stage: AnyStage, result: Result, outcome: Outcome, replica: int) -> None:
        if replica:
            self._settler.replica_done(active, stage, replica, result, outcome)
        else:
            self._settler.task_done(active, stage, result, outcome)

    async def _lead(
        self, active: ActiveRow, stage: AnyStage, fingerprint: bytes, ask: Ask, replica: int
    ) -> Answer | RowError | Parked:
        mine: asyncio.Future[Answer | RowError | Parked | None] = asyncio.get_running_loop().create_future()
        self._asking[fingerprint] = mine
        durable = False
        answer: Answer | RowError | Parked | None = None
        try:
            earlier = await self.lookup.find(fingerprint, self.since(active, stage))
            if earlier is not None:
                answer = Answer(Result(fingerprint, earlier.value, id=earlier.id), UNPARSED)
                # another row of this invocation asked it
                own = active.asked_in_batch(stage.index, replica, fingerprint)
                if earlier.id > self._newest_before and not own:
                    self._collapsed(active, stage, earlier.id, replica)
                self._settled(active, stage, answer.result, Outcome.DONE if own else Outcome.REUSED, replica)
            elif not self._scope.may_ask(stage.name):
                answer = PARKED
            else:
                answer = await (ask() if replica else self.counted(stage, ask))
                if isinstance(answer, Answer):
                    durable = True
                    self._settled(active, stage, answer.result, Outcome.DONE, replica)
                elif isinstance(answer, Parked):
                    durable = answer is Parked.ENROLLED
                else:
                    self._remember(fingerprint, answer)
        finally:
            mine.set_result(answer)
            if durable:  # until the commit a look-up would find neither it nor its place in a batch
                self._ledger.batch.on_durable.append(lambda: self._forget(fingerprint))
            else:
                del self._asking[fingerprint]
        return answer

    async def counted(self, stage: AnyStage, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` brings, shown as a task in flight meanwhile."""
        own = self._totals.stage(stage.name)
        own.in_flight += 1
        try:
            return await ask()
        finally:
            own.in_flight -= 1

    def since(self, active: ActiveRow, stage: AnyStage) -> float:
        """From when on the stage's earlier results are taken, in seconds since 1970."""
        max_age = stage.max_age if isinstance(stage, PlannedStage) and not _has_had(active, stage) else None
        if max_age is None and active.again_from is None:
            return 0.0
        oldest = 0.0 if max_age is None else self._wall() - max_age
        return max(oldest, active.takes_since(stage.index))

    def _forget(self, fingerprint: bytes) -> None:
        self._asking.pop(fingerprint, None)

    def _is_of_its_row(self, error: RowError) -> bool:
        """The row took too long, or spent too much, before it came here: another one may have its turn."""
        return error.type is ErrorType.BUDGET_EXCEEDED or (error.type is ErrorType.TIMEOUT and self._timed)

    def _remember(self, fingerprint: bytes, error: RowError) -> None:
        if self._is_of_its_row(error):
            return
        self._failed[fingerprint] = error
        if len(self._failed) > REMEMBERED_FAILURES:
            self._failed.popitem(last=False)


def _has_had(active: ActiveRow, stage: AnyStage) -> bool:
    """Whether the row goes on after a batch with what the stage gave it before: that grew old while the row waited."""
    if not (active.resumed or active.ready):
        return False
    prior = active.prior.get(stage.index)
    return stage.replicas > 1 or (prior is not None and prior.outcome in (Outcome.DONE, Outcome.REUSED))


def value_of(answer: Answer) -> JSONValue:
    """The value of an answer, which may not have been read yet."""
    return json.loads(answer.result.value) if answer.value is UNPARSED else answer.value


class _Unparsed:
    """Stands for a value that was not parsed yet."""


UNPARSED: Any = _Unparsed()


class AnswerSource(Protocol):
    """Brings the answers of tasks that have none yet: by calls, or by batches."""

    async def ask(
        self, active: ActiveRow, stage: PlannedStage, fingerprint: bytes, request: Request, replica: int = 0
    ) -> Answer | RowError | Parked:
        """The answer, the error with which the task fails, or that it was enrolled in a batch.

        Raises RunStopped when the run stops before any of these."""

    def wait(self, active: ActiveRow, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """An equal task has just been enrolled: this one waits for it."""


ReplicaReply = Answer | RowError | Parked


class Replicas:
    """Asks all replicas of a row at the same time, as far as lanes and budgets let them, and settles each of them by
    itself: what one has is never asked again, whatever becomes of the others."""

    def __init__(self, tasks: Tasks, asker: AnswerSource, settler: Settler) -> None:
        self._tasks, self._asker, self._settler = tasks, asker, settler
        self._made: dict[bytes, Result] = {}  # put together, and not durable yet: a look-up would not find it

    async def answer(self, active: ActiveRow, stage: PlannedStage, prepared: Prepared) -> ReplicaReply:
        """The task's answer; the error of its first replica that failed; parked where one may not be asked.

        Raises RunStopped when the run stops before all of them have ended.
        """
        left = self._tasks.left(active, stage, prepared.fingerprint)
        if left is not None:
            return left
        asked: set[int] = set()
        replied = await self._tasks.counted(stage, partial(self._all, active, stage, prepared, asked))
        answers = [one for one in replied if isinstance(one, Answer)]
        if len(answers) == len(replied):
            brought = any(active.asked_in_batch(stage.index, k, one) for k, one in enumerate(prepared.replicas, 1))
            return await self._settled(active, stage, prepared.fingerprint, answers, anew=bool(asked) or brought)
        parked = next((one for one in replied if isinstance(one, Parked)), None)
        if parked is not None:
            return parked
        replica, error = next((k, one) for k, one in enumerate(replied, 1) if isinstance(one, RowError))
        return RowError(error.type, f"replica {replica}: {error.message}", error.detail)

    async def _all(
        self, active: ActiveRow, stage: PlannedStage, prepared: Prepared, asked: set[int]
    ) -> list[ReplicaReply]:
        """What every replica came to; the numbers of those that had to be asked are added to `asked`."""
        numbers = range(1, stage.replicas + 1)
        works = [asyncio.ensure_future(self._one(active, stage, prepared, k, asked)) for k in numbers]
        try:
            await asyncio.wait(works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.wait(works)
        if any(isinstance(work.exception(), RunStopped) for work in works):
            raise RunStopped
        return [work.result() for work in works]

    async def _one(
        self, active: ActiveRow, stage: PlannedStage, prepared: Prepared, replica: int, asked: set[int]
    ) -> ReplicaReply:
        fingerprint = prepared.replicas[replica - 1]

        async def ask() -> ReplicaReply:
            asked.add(replica)
            return await self._asker.ask(active, stage, fingerprint, prepared.request, replica)

        def wait() -> None:
            self._asker.wait(active, stage, fingerprint, replica)

        replied = await self._tasks.answer(active, stage, fingerprint, ask, replica=replica, wait=wait)
        if isinstance(replied, RowError):
            self._settler.replica_failed(active, stage, replica, fingerprint, replied)
        return replied

    async def _settled(
        self, active: ActiveRow, stage: PlannedStage, fingerprint: bytes, answers: list[Answer], *, anew: bool
    ) -> Answer:
        """Makes the task's result of its replicas' and settles it."""
        voted = outcome_of_vote([one.result.value for one in answers], stage.vote)
        earlier = None if anew else await self._tasks.lookup.find(fingerprint, self._tasks.since(active, stage))
        if earlier is not None and earlier.value == voted.text:  # made of the same answers before
            result: Result | None = Result(fingerprint, earlier.value, id=earlier.id)
        else:
            result = self._made.get(fingerprint)  # after the look-up: an equal task may have made it meanwhile
        if result is None or result.value != voted.text:
            result = self._keep(fingerprint, voted, answers)
        outcome = Outcome.DONE if anew else Outcome.REUSED
        self._settler.task_done(active, stage, result, outcome, voted)
        return Answer(result, UNPARSED)

    def _keep(self, fingerprint: bytes, voted: VoteResult, answers: list[Answer]) -> Result:
        """A new result, which has the endpoint of the answer that was taken, or of the first one."""
        taken = answers[max(voted.replica, 1) - 1].result
        result = self._made[fingerprint] = Result(fingerprint, voted.text, like=taken)
        self._settler.keep_result(result, lambda: self._forget(result))
        return result

    def _forget(self, result: Result) -> None:
        if self._made.get(result.fingerprint) is result:
            del self._made[result.fingerprint]
