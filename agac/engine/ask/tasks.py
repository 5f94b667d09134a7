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

MAX_FAILURES = 10_000
"""How many failures equal tasks can share that come later; each takes about 100 bytes."""


class Tasks:
    """Brings the answers of tasks, each run once, and settles those that have one; failures are
    for the caller. Its `look_ups` and `failures` must be running."""

    def __init__(
        self,
        context: InvocationContext,
        sources: Mapping[int, AnswerSource],
        *,
        newest_before: int,
        since: float,
    ) -> None:
        """`sources` answer the tasks of each stage, by its position. Earlier results count that
        were made at or after `since`, in seconds since 1970; `newest_before` is the id of the last
        one that this invocation found in the store."""
        self._sources = sources
        self._settler = context.settler
        self._ledger = context.ledger
        self._totals = context.totals
        self._scope = context.work.scope
        self._wall = context.work.clocks.wall
        self._database = context.places.database
        self._fixes = context.row_facts.fixes
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
        self._checks = checks_of(context.plan.stages)
        self._asking: dict[bytes, asyncio.Future[TaskReply | None]] = {}
        self._failed: OrderedDict[bytes, RowError] = OrderedDict()
        # results of votes that are not durable yet: a look-up would not find them
        self._voted: dict[bytes, Result] = {}
        self.look_ups: LookupBatcher[tuple[float, bytes], EarlierResult] = LookupBatcher(
            self._fetch
        )
        self.failures: LookupBatcher[bytes, Failures] = LookupBatcher(
            partial(replica_failures, self._database)
        )

    async def _fetch(
        self, keys: Sequence[tuple[float, bytes]]
    ) -> dict[tuple[float, bytes], EarlierResult]:
        """Looks results up by the time from which on they count, and their fingerprints."""
        found = {}
        for since in {since for since, _ in keys}:
            prints = [fingerprint for of_key, fingerprint in keys if of_key == since]
            results = await earlier_results(self._database, prints, since, self._workflow)
            for fingerprint, result in results.items():
                found[since, fingerprint] = result
        return found

    def answer(
        self, active: ActiveRow, stage: AnyStage, task: Prepared | LocalCall | ReviewTask
    ) -> Awaitable[TaskReply]:
        """Gets a task's answer: one that a person set, an earlier one, that of an equal task, or
        one that is asked for. What people are asked about a row is asked for each row by
        itself."""
        asked = TaskRequest(active, stage, task, task.fingerprint)
        if isinstance(task, ReviewTask):
            return self._sources[stage.index].ask(asked)
        fix = self._fixes.of(stage.name, active.new.row.id, task.fingerprint)
        if fix is not None:
            if self._discards is None or fix.at >= self._discards:
                return self._fixed(asked, fix)
            discarded = fix._replace(
                choice=DISCARD, value=None, reason="", reviewer="", at=self._discards
            )
            self._ledger.batch.reviews.decisions.append(discarded)
        if isinstance(task, Prepared) and task.replicas:
            return self._answer_of_replicas(active, stage, task)
        return self._answer_once(asked)

    async def _fixed(self, asked: TaskRequest, fix: StoredDecision) -> Answer:
        """Settles a task with the result that a person set. It is stored under the name of the
        decision: no other row finds it."""
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
        self._settler.task_done(asked.row, asked.stage, result, outcome, fixed=asked.fingerprint)
        return Answer(result, UNPARSED)

    async def _answer_once(self, asked: TaskRequest) -> TaskReply:
        """Answers a task, or one replica of a task. If an equal one is under way, or failed
        before, its end is this one's too."""
        answer: TaskReply | None = self._kept_failure(asked.row, asked.stage, asked.fingerprint)
        while answer is None and (leader := self._asking.get(asked.fingerprint)) is not None:
            answer = await self._follow(asked, leader)
        if answer is None:
            answer = self._failed.get(asked.fingerprint)
        if answer is None:
            answer = await self._look_up_or_ask(asked)
        if asked.replica and isinstance(answer, RowError):
            self._settler.failed(
                asked.row, asked.stage, asked.fingerprint, answer, replica=asked.replica
            )
        return answer

    def _kept_failure(
        self, active: ActiveRow, stage: AnyStage, fingerprint: bytes
    ) -> RowError | None:
        """Returns the error of a task that failed before and is not tried again."""
        prior = active.prior.get(stage.index)
        if prior is None or prior.error is None:
            return None
        brought = any(position == stage.index for position, _, _ in active.ready)
        error = kept_failure(
            prior, fingerprint, asks_again=active.forced or brought, row_stays=active.resumed
        )
        self._totals.rows.left_failed += error is not None and not active.resumed
        return error

    async def _follow(
        self, asked: TaskRequest, leader: asyncio.Future[TaskReply | None]
    ) -> TaskReply | None:
        """Waits for an equal task of another row. None if that row ran out of time or budget, or
        has other values, so that this one should ask itself."""
        try:
            answer = await asked.row.deadline.wait(asyncio.shield(leader))
        except RowDeadlineExceeded:
            return RowError(ErrorType.TIMEOUT, str(asked.row.deadline))
        if answer is None:
            raise RunStopped
        if isinstance(answer, Answer):
            return self._shared(asked, answer, leader)
        if answer is Parked.ENROLLED:
            waiting = WaitingTask(
                asked.row.new, asked.stage.index, asked.replica, asked.fingerprint
            )
            self._ledger.batch.batched.waiting.append(waiting)
        elif isinstance(answer, RowError) and self._is_of_its_row(asked.stage, answer):
            return None
        return answer

    def _shared(
        self, asked: TaskRequest, answer: Answer, leader: asyncio.Future[TaskReply | None]
    ) -> Answer | None:
        """Settles a task with the answer of an equal one. None if that is wrong for this row: what
        it asks itself may be right."""
        result = answer.result
        if self._check_error(asked, result) is not None:
            if self._asking.get(asked.fingerprint) is leader:
                del self._asking[asked.fingerprint]
            return None
        is_of_batch = bool(result.id) and self._is_of_batch(asked)
        if not is_of_batch:
            self._count_collapsed(asked, result.id)
        outcome = Outcome.DONE if is_of_batch else Outcome.REUSED
        self._settler.task_done(asked.row, asked.stage, result, outcome, asked.replica)
        return answer

    def _check_error(self, asked: TaskRequest, result: Result | EarlierResult) -> RowError | None:
        """Returns what the stage's checks find wrong with an answer that is there, for the row
        that asks."""
        checks = self._checks.get(asked.stage.index)
        if checks is None:
            return None
        return checks.error(asked.row.view, json.loads(result.value))

    @staticmethod
    def _is_of_batch(asked: TaskRequest) -> bool:
        """True if a batch brought the task's answer, which the row has not been walked with."""
        row = asked.row
        if not row.ready:
            return False
        return row.asked_in_batch(asked.stage.index, asked.replica, asked.fingerprint)

    def _count_collapsed(self, asked: TaskRequest, result: int) -> None:
        """Counts a task that another one was asked for; a row counts once, also where it is walked
        again."""
        prior = asked.row.prior.get(asked.stage.index)
        had = prior is not None and bool(result) and prior.result_id == result
        self._totals.tasks.collapsed += asked.replica <= 1 and not had

    async def _look_up_or_ask(self, asked: TaskRequest) -> TaskReply:
        """Answers the first of equal tasks from the store, or asks; the others wait for it."""
        fingerprint = asked.fingerprint
        mine: asyncio.Future[TaskReply | None] = asyncio.get_running_loop().create_future()
        self._asking[fingerprint] = mine
        will_be_stored = False
        answer: TaskReply | None = None
        try:
            answer = await self._stored_answer(asked)
            if answer is None:
                answer = await self._ask_source(asked)
                will_be_stored = isinstance(answer, Answer) or answer is Parked.ENROLLED
        finally:
            mine.set_result(answer)
            if will_be_stored:
                # until the commit a look-up would find neither it nor its place in a batch
                forget = partial(self._forget, self._asking, fingerprint, mine)
                self._ledger.batch.on_durable.append(forget)
            else:
                del self._asking[fingerprint]
        return answer

    async def _stored_answer(self, asked: TaskRequest) -> TaskReply | None:
        """Looks a task up: its earlier answer, which settles it, or why it has none now. None: it
        is to be asked."""
        stage = asked.stage
        since = self._counts_since(asked.row, stage)
        earlier = await self.look_ups.get((since, asked.fingerprint))
        if earlier is not None:
            is_of_batch = self._is_of_batch(asked)
            wrong = self._check_error(asked, earlier)
            taken = taken_answer(earlier, wrong, is_of_batch=is_of_batch)
            if isinstance(taken, RowError):
                return taken
            if taken is not None:
                return self._reuse(asked, taken, is_of_batch=is_of_batch)
        elif asked.replica and stage.vote and stage.vote.lead:
            failure = await self._binding_failure(asked, since)
            if failure is not None:
                return failure
        if not self._scope.may_ask(stage.name):
            return Parked.PARKED
        return None

    def _reuse(self, asked: TaskRequest, earlier: EarlierResult, *, is_of_batch: bool) -> Answer:
        """Settles a task with an earlier result."""
        result = Result(asked.fingerprint, earlier.value, id=earlier.id)
        # another row of this invocation asked for it
        if earlier.id > self._newest_before and not is_of_batch:
            self._count_collapsed(asked, earlier.id)
        outcome = Outcome.DONE if is_of_batch else Outcome.REUSED
        self._settler.task_done(asked.row, asked.stage, result, outcome, asked.replica)
        return Answer(result, UNPARSED)

    async def _binding_failure(self, asked: TaskRequest, since: float) -> RowError | None:
        """Returns how a replica failed before, if it is not asked again."""
        row = asked.row
        stage = asked.stage
        # what a batch brought is newer
        if row.forced or (stage.index, asked.replica, asked.fingerprint) in row.ready:
            return None
        failed = await self.failures.get(asked.fingerprint) or {}
        return binding_failure(stage, row.new.key, since, failed)

    async def _ask_source(self, asked: TaskRequest) -> TaskReply:
        """Asks the source of the stage's answers, and settles the task with an answer."""
        stage = asked.stage
        counts = self._totals.stages[stage.name]
        task = asked.task
        if isinstance(task, Prepared):
            refusal = task.refusal
            if refusal is not None:
                return self._failure(asked, refusal)
            counts.requests += 1
            for message in task.messages:
                counts.characters += len(message.text)
        asked.is_new = True
        counts.in_flight += not asked.replica
        try:
            answer = await self._sources[stage.index].ask(asked)
        finally:
            counts.in_flight -= not asked.replica
        if isinstance(task, LocalCall) and isinstance(answer, Answer):
            answer = self._check_error(asked, answer.result) or answer
        if isinstance(answer, RowError):
            return self._failure(asked, answer)
        if isinstance(answer, Answer):
            self._settler.task_done(asked.row, stage, answer.result, Outcome.DONE, asked.replica)
        return answer

    def _failure(self, asked: TaskRequest, error: RowError) -> RowError:
        """Remembers the error of a task that was asked, for equal tasks that come later."""
        if not self._is_of_its_row(asked.stage, error):
            self._failed[asked.fingerprint] = error
            if len(self._failed) > MAX_FAILURES:
                self._failed.popitem(last=False)
        return error

    def _counts_since(self, active: ActiveRow, stage: AnyStage) -> float:
        """Returns from when on the stage's earlier results count, in seconds since 1970."""
        if stage.settings.max_age is None and active.again_from is None:
            return self._since
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
        """True if an equal task of another row may succeed: the row took too long, spent too much
        before it came here, or has other values."""
        return not is_shared(stage, error, has_row_timeout=self._timed)

    async def _answer_of_replicas(
        self, active: ActiveRow, stage: AnyStage, task: Prepared
    ) -> TaskReply:
        """Asks the replicas of a task until their vote is decided. Returns the answer; the error of
        the first of them that failed, or of the vote; or that the task is parked, if one may not be
        asked. Each is settled by itself: what one has is never asked again, whatever becomes of the
        others. Raises RunStopped when the run stops before those under way have ended."""
        assert isinstance(stage, PlannedStage)
        failure = self._kept_failure(active, stage, task.fingerprint)
        if failure is not None:
            return failure
        every = [
            TaskRequest(active, stage, task, fingerprint, number)
            for number, fingerprint in enumerate(task.replicas, 1)
        ]
        replies = list[TaskReply]()
        votes = list[str | None]()
        while isinstance(voted := outcome_of_vote(votes, stage.vote, len(every)), int):
            replies += await self._ask_together(every[len(replies) : len(replies) + voted])
            parked = next((reply for reply in replies if isinstance(reply, Parked)), None)
            if parked is not None:
                return parked
            ended = [reply for reply in replies if isinstance(reply, Answer | RowError)]
            cast = votes_of_replies(
                [reply.result.value if isinstance(reply, Answer) else reply for reply in ended],
                stage.vote,
            )
            if isinstance(cast, RowError):
                return cast
            votes = cast
        if isinstance(voted, RowError):
            return voted
        first = max(voted.replica, 1) - 1
        like = next(reply.result for reply in replies[first:] if isinstance(reply, Answer))
        is_new = any(one.is_new or self._is_of_batch(one) for one in every[: len(replies)])
        return await self._voted_answer(active, stage, task.fingerprint, voted, like, is_new=is_new)

    async def _ask_together(self, replicas: Sequence[TaskRequest]) -> list[TaskReply]:
        """Answers replicas of one task at the same time, as far as lanes and budgets let them."""
        counts = self._totals.stages[replicas[0].stage.name]
        counts.in_flight += 1
        works = [asyncio.ensure_future(self._answer_once(replica)) for replica in replicas]
        try:
            await asyncio.wait(works)
        finally:
            counts.in_flight -= 1
            for work in works:
                work.cancel()
            await asyncio.wait(works)
        if any(isinstance(work.exception(), RunStopped) for work in works):
            raise RunStopped
        return [work.result() for work in works]

    async def _voted_answer(
        self,
        active: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        voted: VoteResult,
        like: Result,
        *,
        is_new: bool,
    ) -> Answer:
        """Settles the task with the result of a vote, which gets the endpoint of the result
        `like`. `is_new`: a replica was asked for it."""
        if voted.share is not None:
            active.view.agreement[stage.name] = voted.share
        earlier = None
        if not is_new:
            earlier = await self.look_ups.get((self._counts_since(active, stage), fingerprint))
        if earlier is not None and earlier.value == voted.text:  # made of the same answers before
            result: Result | None = Result(fingerprint, earlier.value, id=earlier.id)
        else:
            # after the look-up: an equal task may have made it meanwhile
            result = self._voted.get(fingerprint)
        if result is None or result.value != voted.text:
            result = Result(fingerprint, voted.text, None, self._wall(), like=like)
            self._voted[fingerprint] = result
            self._ledger.batch.tasks.results.append(result)
            self._ledger.batch.on_durable.append(
                partial(self._forget, self._voted, fingerprint, result)
            )
        outcome = Outcome.DONE if is_new else Outcome.REUSED
        self._settler.task_done(active, stage, result, outcome, voted=voted)
        return Answer(result, UNPARSED)

    @staticmethod
    def _forget(pending: dict[bytes, V], fingerprint: bytes, value: V) -> None:
        """Removes what became durable, unless another value took its place."""
        if pending.get(fingerprint) is value:
            del pending[fingerprint]
