"""Tasks, each run once: equal ones wait for the first, stored answers are looked up, replicas
vote."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.types import Outcome
from agac.engine.ask.answers import (
    UNPARSED,
    Answer,
    AnswerSource,
    LocalCall,
    Parked,
    ReviewTask,
    TaskReply,
    TaskRequest,
)
from agac.engine.ask.lookups import LookupBatcher
from agac.engine.ask.retry_policy import RowDeadlineExceeded
from agac.engine.ask.validate import checks_of
from agac.engine.context import InvocationContext
from agac.engine.decide.failures import binding_failure, is_shared, kept_failure, votes_of_replies
from agac.engine.decide.reuse import answers_since, keeps_old_answer, taken_answer
from agac.engine.decide.votes import VoteResult, outcome_of_vote
from agac.engine.stop_rules import RunStopped
from agac.engine.walk.effects import ActiveRow
from agac.plan.render import Prepared
from agac.plan.stage import AnyStage, PlannedStage
from agac.store.decisions import DISCARD, StoredDecision
from agac.store.records import MANUAL, Endpoint, Result, WaitingTask
from agac.store.rows import EarlierResult, Failures, earlier_results, replica_failures

V = TypeVar("V")


class Tasks:
    """Brings the answers of tasks, each run once, and settles those that have one; failures are
    for the caller. `sources` answer the tasks of each stage, by its position. Earlier results are
    taken that were made at or after `since`, seconds since 1970; `newest_before` is the id of the
    last one that this invocation found in the store. Its `look_ups` and `failures` must be
    running."""

    def __init__(
        self,
        context: InvocationContext,
        sources: Mapping[int, AnswerSource],
        *,
        newest_before: int,
        since: float,
    ) -> None:
        self._sources = sources
        self._settler = context.settler
        self._ledger = context.ledger
        self._totals = context.totals
        self._scope = context.work.scope
        self._wall = context.work.clocks.wall
        self._database = context.places.database
        self._fixes = context.fixes
        retry = context.work.retry
        self._discards: float | None
        if retry is not None and retry.discard:
            self._discards = retry.since
        else:
            self._discards = None
        # so that a time-out may be a row's own
        self._timed = context.plan.rules.row_timeout is not None
        self._newest_before = newest_before
        self._since = since
        self._workflow = context.plan.workflow
        self._asking: dict[bytes, asyncio.Future[TaskReply | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()
        self._checks = checks_of(context.plan.stages)
        self._voted: dict[
            bytes, Result
        ] = {}  # put together, and not durable yet: a look-up would not find it
        self.look_ups: LookupBatcher[tuple[float, bytes], EarlierResult] = LookupBatcher(
            self._fetch
        )
        self.failures: LookupBatcher[bytes, Failures] = LookupBatcher(
            partial(replica_failures, self._database)
        )

    async def _fetch(
        self, keys: Sequence[tuple[float, bytes]]
    ) -> dict[tuple[float, bytes], EarlierResult]:
        found = {}
        for since in {since for since, _ in keys}:
            prints = [fingerprint for one, fingerprint in keys if one == since]
            for fingerprint, result in (
                await earlier_results(self._database, prints, since, self._workflow)
            ).items():
                found[since, fingerprint] = result
        return found

    def answer(
        self, active: ActiveRow, stage: AnyStage, task: Prepared | LocalCall | ReviewTask
    ) -> Awaitable[TaskReply]:
        """A task's answer: one that a person set, an earlier one, that of an equal task, or one
        that is asked for. What people are asked about a row is asked for each row by itself."""
        if isinstance(task, ReviewTask):
            asked = TaskRequest(active, stage, task, task.fingerprint)
            return self._sources[stage.index].ask(asked)
        fix = self._fixes.of(stage.name, active.new.row.id, task.fingerprint)
        if fix is not None:
            if self._discards is None or fix.at >= self._discards:
                return self._fixed(active, stage, task.fingerprint, fix)
            discarded = fix._replace(
                choice=DISCARD, value=None, reason="", reviewer="", at=self._discards
            )
            self._ledger.batch.decisions.append(discarded)
        if isinstance(task, Prepared) and task.replicas:
            return self._replicated(active, stage, task)
        return self._one(TaskRequest(active, stage, task, task.fingerprint))

    async def _fixed(
        self, active: ActiveRow, stage: AnyStage, fingerprint: bytes, fix: StoredDecision
    ) -> Answer:
        """The result that a person set. It is stored under the name of the decision: no other row
        finds it."""
        key = fix.key or b""
        value = fix.value or "null"
        earlier = await self.look_ups.get((0.0, key))
        if earlier is not None and earlier.value == value:
            result = Result(key, value, id=earlier.id)
            outcome = Outcome.REUSED
        else:
            endpoint = Endpoint("people", "", fix.reviewer, False)
            outcome = Outcome.DONE
            result = Result(key, value, endpoint, self._wall(), how=MANUAL)
        self._settler.task_done(active, stage, result, outcome, fixed=fingerprint)
        return Answer(result, UNPARSED)

    async def _one(self, asked: TaskRequest) -> TaskReply:
        """The answer of a task, or one of several of which the task's answer will be made."""
        answer: TaskReply | None = self._left(asked.row, asked.stage, asked.fingerprint)
        while answer is None and (leader := self._asking.get(asked.fingerprint)) is not None:
            answer = await self._follow(asked, leader)
        if answer is None:
            answer = self._failed.get(asked.fingerprint)
        if answer is None:
            answer = await self._lead(asked)
        if asked.replica and isinstance(answer, RowError):
            self._settler.failed(
                asked.row, asked.stage, asked.fingerprint, answer, replica=asked.replica
            )
        return answer

    def _left(self, active: ActiveRow, stage: AnyStage, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed before and is not tried again."""
        prior = active.prior.get(stage.index)
        if prior is None or prior.error is None:
            return None
        brought = any(position == stage.index for position, _, _ in active.ready)
        error = kept_failure(
            prior, fingerprint, asks_again=active.forced or brought, row_stays=active.resumed
        )
        self._totals.left_failed += error is not None and not active.resumed
        return error

    async def _follow(
        self, asked: TaskRequest, leader: asyncio.Future[TaskReply | None]
    ) -> TaskReply | None:
        """What became of the same task of another row; None: that row had no time or money left,
        this one may."""
        try:
            answer = await asked.row.deadline.wait(asyncio.shield(leader))
        except RowDeadlineExceeded:
            return RowError(ErrorType.TIMEOUT, str(asked.row.deadline))
        if answer is None:
            raise RunStopped
        if isinstance(answer, Answer):
            # for this row; what it asks itself may be right
            if self._wrong(asked, answer.result) is not None:
                if self._asking.get(asked.fingerprint) is leader:
                    del self._asking[asked.fingerprint]
                return None
            own = bool(answer.result.id) and asked.row.asked_in_batch(
                asked.stage.index, asked.replica, asked.fingerprint
            )
            if not own:
                self._collapsed(asked, answer.result.id)
            self._done(asked, answer.result, Outcome.DONE if own else Outcome.REUSED)
        elif answer is Parked.ENROLLED:
            waiting = WaitingTask(
                asked.row.new, asked.stage.index, asked.replica, asked.fingerprint
            )
            self._ledger.batch.waiting.append(waiting)
        elif isinstance(answer, RowError) and self._is_of_its_row(asked.stage, answer):
            return None
        return answer

    def _wrong(self, asked: TaskRequest, result: Result | EarlierResult) -> RowError | None:
        """What the stage's checks find wrong with an answer that is there, for the row that
        asks."""
        checks = self._checks.get(asked.stage.index)
        if checks is None:
            return None
        return checks.error(asked.row.view, json.loads(result.value))

    def _collapsed(self, asked: TaskRequest, result: int) -> None:
        """Counts a task that another one was asked for; a row counts once, also where it is walked
        again."""
        prior = asked.row.prior.get(asked.stage.index)
        had = prior is not None and bool(result) and prior.result_id == result
        self._totals.collapsed += asked.replica <= 1 and not had

    def _done(self, asked: TaskRequest, result: Result, outcome: Outcome) -> None:
        self._settler.task_done(asked.row, asked.stage, result, outcome, asked.replica)

    async def _lead(self, asked: TaskRequest) -> TaskReply:
        """The first of equal tasks: its answer is looked up, or asked for; the others wait for
        it."""
        row = asked.row
        stage = asked.stage
        fingerprint = asked.fingerprint
        mine: asyncio.Future[TaskReply | None] = asyncio.get_running_loop().create_future()
        self._asking[fingerprint] = mine
        durable = False
        answer: TaskReply | None = None
        try:
            earlier = await self.look_ups.get((self._takes_since(row, stage), fingerprint))
            own = row.asked_in_batch(stage.index, asked.replica, fingerprint)
            wrong = self._wrong(asked, earlier) if earlier is not None else None
            kept = None
            # what a batch brought is newer
            anew = row.forced or (stage.index, asked.replica, fingerprint) in row.ready
            if asked.replica and stage.vote and stage.vote.lead and earlier is None and not anew:
                failed = await self.failures.get(fingerprint) or {}
                kept = binding_failure(stage, row.new.key, self._takes_since(row, stage), failed)
            taken = taken_answer(earlier, wrong, is_of_batch=own)
            if isinstance(taken, EarlierResult):
                answer = Answer(Result(fingerprint, taken.value, id=taken.id), UNPARSED)
                # another row of this invocation asked it
                if taken.id > self._newest_before and not own:
                    self._collapsed(asked, taken.id)
                self._done(asked, answer.result, Outcome.DONE if own else Outcome.REUSED)
            elif taken is not None:
                answer = taken
            elif kept is not None or not self._scope.may_ask(stage.name):
                answer = kept or Parked.PARKED
            else:
                answer = await self._ask(asked)
                durable = isinstance(answer, Answer) or answer is Parked.ENROLLED
                if isinstance(answer, Answer):
                    self._done(asked, answer.result, Outcome.DONE)
                elif isinstance(answer, RowError) and not self._is_of_its_row(stage, answer):
                    self._failed[fingerprint] = answer
                    # 100 bytes each; equal tasks later share the failure
                    if len(self._failed) > 10_000:
                        self._failed.popitem(last=False)
        finally:
            mine.set_result(answer)
            if durable:  # until the commit a look-up would find neither it nor its place in a batch
                self._ledger.batch.on_durable.append(
                    partial(self._forget, self._asking, fingerprint, mine)
                )
            else:
                del self._asking[fingerprint]
        return answer

    async def _ask(self, asked: TaskRequest) -> TaskReply:
        counts = self._totals.stages[asked.stage.name]
        task = asked.task
        if isinstance(task, Prepared):
            refusal = task.refusal
            if refusal is not None:
                return refusal
            counts.requests += 1
            counts.characters += sum(len(message.text) for message in task.messages)
        asked.is_new = True
        counts.in_flight += not asked.replica
        try:
            answer = await self._sources[asked.stage.index].ask(asked)
        finally:
            counts.in_flight -= not asked.replica
        if isinstance(task, LocalCall) and isinstance(answer, Answer):
            return self._wrong(asked, answer.result) or answer
        return answer

    def _takes_since(self, active: ActiveRow, stage: AnyStage) -> float:
        """From when on the stage's earlier results are taken, in seconds since 1970."""
        if stage.max_age is None:
            return active.takes_since(stage.index, self._since)
        waited = active.resumed or bool(active.ready)
        return answers_since(
            stage,
            run_since=self._since,
            now=self._wall(),
            keeps_old=keeps_old_answer(stage, active.prior.get(stage.index), waited=waited),
            again_from=active.again_from,
            again_since=active.since,
        )

    def _is_of_its_row(self, stage: AnyStage, error: RowError) -> bool:
        """The row took too long, spent too much before it came here, or has other values: another
        one has its turn."""
        return not is_shared(stage, error, has_row_timeout=self._timed)

    async def _replicated(self, active: ActiveRow, stage: AnyStage, task: Prepared) -> TaskReply:
        """The answer of a task with replicas; the error of the first of them that failed, or of
        the vote; parked where one may not be asked. Those that are needed are asked at the same
        time, as far as lanes and budgets let them, and each is settled by itself: what one has is
        never asked again, whatever becomes of the others. Raises RunStopped when the run stops
        before all of these have ended."""
        assert isinstance(stage, PlannedStage)
        left = self._left(active, stage, task.fingerprint)
        if left is not None:
            return left
        own = self._totals.stages[stage.name]
        every = [
            TaskRequest(active, stage, task, one, number)
            for number, one in enumerate(task.replicas, 1)
        ]
        asked = every[:0]
        replied = list[TaskReply]()
        answers = list[str | None]()
        while isinstance(voted := outcome_of_vote(answers, stage.vote, len(every)), int):
            own.in_flight += 1
            asked = every[: len(asked) + voted]
            works = [asyncio.ensure_future(self._one(one)) for one in asked[-voted:]]
            try:
                await asyncio.wait(works)
            finally:
                own.in_flight -= 1
                for work in works:
                    work.cancel()
                await asyncio.wait(works)
            if any(isinstance(work.exception(), RunStopped) for work in works):
                raise RunStopped
            replied += [work.result() for work in works]
            parked = next((one for one in replied if isinstance(one, Parked)), None)
            if parked is not None:
                return parked
            ended = [one for one in replied if isinstance(one, Answer | RowError)]
            cast = votes_of_replies(
                [one.result.value if isinstance(one, Answer) else one for one in ended], stage.vote
            )
            if isinstance(cast, RowError):
                return cast
            answers = cast
        if isinstance(voted, RowError):
            return voted
        like = next(
            one.result for one in replied[max(voted.replica, 1) - 1 :] if isinstance(one, Answer)
        )
        anew = any(
            one.is_new or active.asked_in_batch(stage.index, one.replica, one.fingerprint)
            for one in asked
        )
        return await self._voted_answer(active, stage, task.fingerprint, voted, like, anew=anew)

    async def _voted_answer(
        self,
        active: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        voted: VoteResult,
        like: Result,
        *,
        anew: bool,
    ) -> Answer:
        """Settles the task with what came of its replicas; its endpoint is that of the result
        which it is `like`."""
        if voted.share is not None:
            active.view.agreement[stage.name] = voted.share
        earlier = None
        if not anew:
            earlier = await self.look_ups.get((self._takes_since(active, stage), fingerprint))
        if earlier is not None and earlier.value == voted.text:  # made of the same answers before
            result: Result | None = Result(fingerprint, earlier.value, id=earlier.id)
        else:
            # after the look-up: an equal task may have made it meanwhile
            result = self._voted.get(fingerprint)
        if result is None or result.value != voted.text:
            result = Result(fingerprint, voted.text, None, self._wall(), like=like)
            self._voted[fingerprint] = result
            self._ledger.batch.results.append(result)
            self._ledger.batch.on_durable.append(
                partial(self._forget, self._voted, fingerprint, result)
            )
        self._settler.task_done(
            active, stage, result, Outcome.DONE if anew else Outcome.REUSED, voted=voted
        )
        return Answer(result, UNPARSED)

    def _forget(self, known: dict[bytes, V], fingerprint: bytes, value: V) -> None:
        if known.get(fingerprint) is value:
            del known[fingerprint]
