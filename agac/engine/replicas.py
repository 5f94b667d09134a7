"""A row asked several times at one stage: its replicas, each a task of its own, and what is made of their answers."""

from __future__ import annotations

import asyncio
from functools import partial

from agac.core.errors import RowError
from agac.core.types import Outcome
from agac.engine.asking import Asker
from agac.engine.call import Answer
from agac.engine.control import Halted
from agac.engine.flight import Flight
from agac.engine.settle import Settler
from agac.engine.tasks import UNPARSED, Parked, Tasks
from agac.plan.prepare import Prepared
from agac.plan.replicas import Voted, outcome_of_vote
from agac.plan.stage import PlannedStage
from agac.store.batch import Result

Replied = Answer | RowError | Parked


class Replicas:
    """Asks all replicas of a row at the same time, as far as lanes and budgets let them, and settles each of them by
    itself: what one has is never asked again, whatever becomes of the others."""

    def __init__(self, tasks: Tasks, asker: Asker, settler: Settler) -> None:
        self._tasks, self._asker, self._settler = tasks, asker, settler
        self._made: dict[bytes, Result] = {}  # put together, and not durable yet: a look-up would not find it

    async def answer(self, flight: Flight, stage: PlannedStage, prepared: Prepared) -> Replied:
        """The task's answer; the error of its first replica that failed; parked where one may not be asked.

        Raises Halted when the run stops before all of them have ended.
        """
        left = self._tasks.left(flight, stage, prepared.fingerprint)
        if left is not None:
            return left
        asked: set[int] = set()
        replied = await self._tasks.counted(stage, partial(self._all, flight, stage, prepared, asked))
        answers = [one for one in replied if isinstance(one, Answer)]
        if len(answers) == len(replied):
            brought = any(flight.asked_in_batch(stage.index, k, one) for k, one in enumerate(prepared.replicas, 1))
            return await self._settled(flight, stage, prepared.fingerprint, answers, anew=bool(asked) or brought)
        parked = next((one for one in replied if isinstance(one, Parked)), None)
        if parked is not None:
            return parked
        replica, error = next((k, one) for k, one in enumerate(replied, 1) if isinstance(one, RowError))
        return RowError(error.type, f"replica {replica}: {error.message}", error.detail)

    async def _all(self, flight: Flight, stage: PlannedStage, prepared: Prepared, asked: set[int]) -> list[Replied]:
        """What every replica came to; the numbers of those that had to be asked are added to `asked`."""
        numbers = range(1, stage.replicas + 1)
        works = [asyncio.ensure_future(self._one(flight, stage, prepared, k, asked)) for k in numbers]
        try:
            await asyncio.wait(works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.wait(works)
        if any(isinstance(work.exception(), Halted) for work in works):
            raise Halted
        return [work.result() for work in works]

    async def _one(
        self, flight: Flight, stage: PlannedStage, prepared: Prepared, replica: int, asked: set[int]
    ) -> Replied:
        fingerprint = prepared.replicas[replica - 1]

        async def ask() -> Replied:
            asked.add(replica)
            return await self._asker.ask(flight, stage, fingerprint, prepared.request, replica)

        def wait() -> None:
            self._asker.wait(flight, stage, fingerprint, replica)

        replied = await self._tasks.answer(flight, stage, fingerprint, ask, replica=replica, wait=wait)
        if isinstance(replied, RowError):
            self._settler.replica_failed(flight, stage, replica, fingerprint, replied)
        return replied

    async def _settled(
        self, flight: Flight, stage: PlannedStage, fingerprint: bytes, answers: list[Answer], *, anew: bool
    ) -> Answer:
        """Makes the task's result of its replicas' and settles it."""
        voted = outcome_of_vote([one.result.value for one in answers], stage.vote)
        result = None if anew else await self._stored(fingerprint, voted, self._tasks.since(flight, stage))
        if result is None:
            result = self._made.get(fingerprint)
        if result is None or result.value != voted.text:
            result = self._keep(fingerprint, voted, answers)
        outcome = Outcome.DONE if anew else Outcome.REUSED
        self._settler.task_done(flight, stage, result, outcome, voted)
        return Answer(result, UNPARSED)

    async def _stored(self, fingerprint: bytes, voted: Voted, since: float) -> Result | None:
        """The same result where it was made of the same answers before."""
        earlier = await self._tasks.find(fingerprint, since)
        if earlier is None or earlier.value != voted.text:
            return None
        return Result(fingerprint, earlier.value, id=earlier.id)

    def _keep(self, fingerprint: bytes, voted: Voted, answers: list[Answer]) -> Result:
        """A new result, which has the endpoint of the answer that was taken, or of the first one."""
        taken = answers[max(voted.replica, 1) - 1].result
        result = self._made[fingerprint] = Result(fingerprint, voted.text, like=taken)
        self._settler.keep_result(result, lambda: self._forget(result))
        return result

    def _forget(self, result: Result) -> None:
        if self._made.get(result.fingerprint) is result:
            del self._made[result.fingerprint]
