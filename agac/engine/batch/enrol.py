"""Tasks of batch stages become lines of a file that is spooled to disk; their rows wait."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError, StoreError
from agac.core.keys import custom_id
from agac.core.state_files import make_folder, opener
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import Reply, Request
from agac.data.files import explained, sync_folder
from agac.engine.ask.agent import Agents
from agac.engine.ask.answers import Answer, Parked, TaskRequest
from agac.engine.ask.attempts import NextTurn
from agac.engine.ask.caller import Caller
from agac.engine.ask.connections import request_for_model
from agac.engine.ask.limits import NOTHING, Amount, BlockedByBatches
from agac.engine.ask.lookups import LookupBatcher
from agac.engine.ask.validate import repair_request
from agac.engine.batch.lifecycle import BatchContext, BatchFormat
from agac.engine.decide.reuse import failure_of_batch
from agac.engine.forecast.planned_batches import most_requests
from agac.engine.walk.effects import ActiveRow
from agac.plan.render import Prepared
from agac.plan.stage import PlannedStage
from agac.providers.batch import ResultLine
from agac.store.batches import (
    BatchRecord,
    LiveTask,
    ReadyTask,
    conversations_left,
    last_reply,
    live_tasks,
)
from agac.store.history import reply_bytes
from agac.store.records import Enrolled, WaitingTask
from agac.store.rows import replica_failures

BUFFER = 1 << 20

# where only their size tells batches apart, those of one lane get sizes that differ by less than
# this
FEWER = 97


def writing(path: Path) -> AbstractContextManager[None]:
    """Raises StoreError where the disk refuses to take what is written."""
    remedy = (
        "free some space (or fix the folder's permissions), then run the same command "
        "again: nothing is lost"
    )
    return explained(path, remedy, StoreError)


class Spool:
    """A file that grows by lines. Until `finish` it has another name, so that a whole one is known
    by its name alone: a crash leaves a `.part`, which is never read. Every method raises
    StoreError when the disk does not take it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.lines = 0
        self._part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        with writing(self._part):
            make_folder(path.parent)
            self._file = open(self._part, "wb", buffering=BUFFER, opener=opener)  # noqa: SIM115 - closed by `finish`

    def add(self, line: bytes) -> None:
        """One more line, without its line break."""
        data = line + b"\n"
        with writing(self._part):
            self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        self.lines += 1

    def finish(self) -> str:
        """Brings the file to the disk under its own name; gives its sha256. Runs in a thread: it
        waits for the disk."""
        with writing(self._part):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
            sync_folder(self.path.parent)
        return self._hash.hexdigest()

    def drop(self) -> None:
        """Removes the file if it is not whole."""
        with suppress(OSError):  # what a full disk did not take is not missed here
            self._file.close()
        self._part.unlink(missing_ok=True)


# Tasks of batch stages are not called: they are written into the batch that is being filled, and
# their rows wait.
#
# What a batch brought back meets its task here again, when its row is walked: a result is found by
# its fingerprint like any other; what failed fails its row; what is to go round again joins the
# next batch, or is called.


@dataclass(slots=True)
class OpenBatch:
    """A batch that is being filled."""

    record: BatchRecord
    form: BatchFormat
    spool: Spool
    most_requests: int
    most_bytes: int
    most_tokens: int | None
    tokens: int = 0
    held: Amount = NOTHING

    def takes(self, line: int, tokens: int) -> bool:
        """Whether one more line of so many bytes fits."""
        if self.spool.lines >= self.most_requests:
            return False
        if self.spool.lines and self.spool.bytes + line + 1 > self.most_bytes:
            return False
        return (
            self.most_tokens is None
            or not self.spool.lines
            or self.tokens + tokens <= self.most_tokens
        )


class Question(NamedTuple):
    """How a task is asked: of the stage's model at `position`, quoting answers to `quoted` re-asks
    (of a conversation, after so many turns); in a batch, for the `round`-th time, unless it
    `calls`. It was refused with a file of so many bytes before, `refused_with`, and goes into
    smaller ones; 0: it was not."""

    request: Request
    position: int = 0
    quoted: int = 0
    round: int = 1
    calls: bool = False
    refused_with: int = 0


class ModelOfStage(NamedTuple):
    """One of the models of a stage."""

    stage: int
    """The index of the stage."""
    position: int
    """The position of the model among those of the stage."""


class BatchKey(NamedTuple):
    """What goes into the same batches."""

    model: ModelOfStage
    """Whom the batches ask."""
    refused_with: int
    """Bytes of the file with which the tasks were refused before; 0: they were not."""


class Enrolment:
    """Where batch stages ask. `full` are the batches to which nothing more is added; `held_back`
    counts tasks for which a budget had no room. `asked` has batches that an earlier invocation did
    not send, with a bit for each line that a row asked for in this one. Tasks that were left for
    the user are continued by `agac run`, which walks the input. Its `look_ups`, of which tasks are
    in batches, must be running."""

    def __init__(self, context: BatchContext, caller: Caller, agents: Agents | None) -> None:
        """`agents` ask stages with tools, where there are any."""
        self._context = context
        self._caller = caller
        self._agents = agents
        self.look_ups: LookupBatcher[bytes, LiveTask] = LookupBatcher(
            lambda prints: live_tasks(context.database, prints, context.workflow)
        )
        self._filling: dict[BatchKey, OpenBatch] = {}
        self._locks: dict[BatchKey, asyncio.Lock] = {}
        self._spools: list[Spool] = []
        self._left: dict[int, bool] = {}
        self.full: asyncio.Queue[OpenBatch] = asyncio.Queue()
        self.held_back = 0
        self.asked: dict[int, bytearray] = {}

    def begin_again(self) -> bool:
        """Rows are walked once more: whether for some tasks a budget had no room the last time."""
        held_back, self.held_back = self.held_back, 0
        self._left.clear()
        return held_back > 0

    async def ask(self, asked: TaskRequest) -> Answer | RowError | Parked:
        """The answer where it is called; the error with which the task failed; else its row waits,
        or stays open where a budget has no room next to open batches."""
        active = asked.row
        stage = asked.stage
        fingerprint = asked.fingerprint
        replica = asked.replica
        assert isinstance(stage, PlannedStage)
        assert isinstance(asked.task, Prepared)
        live = await self.look_ups.get(fingerprint)
        if live is not None:  # what is in a batch counts as answered, also for who would call
            seen = self.asked.get(live.batch)
            if seen is not None:
                seen[live.place // 8] |= 1 << live.place % 8
            # the store leaves its own task out
            waiting = WaitingTask(active.new, stage.index, replica, fingerprint)
            self._context.ledger.batch.waiting.append(waiting)
            return Parked.ENROLLED
        ready = active.ready.get((stage.index, replica, fingerprint))
        question = Question(asked.task.request, calls=stage.run_mode == "sync")
        failed = failure_of_batch(stage, ready)
        if failed is not None:
            return failed
        if replica and ready is None and (active.ready or active.resumed) and not active.forced:
            # it failed while another replica was in a batch: the row, which waited for that, asks
            # it no more
            known = await replica_failures(self._context.database, [fingerprint])
            own = known.get(fingerprint, {}).get(active.new.key)
            if own is not None:
                return own[1]
        if ready is not None and ready.then_do is not None:
            if ready.then_do == "run" and self._context.batching.resume_run is not None:
                return Parked.PARKED
            question = await self._after(ready, active, stage, question)
            if ready.refused_with:  # files of about one size are filled together
                question = question._replace(refused_with=1 << ready.refused_with.bit_length() - 1)
        if stage.agent_spec is None and not question.calls:
            return await self._enrol(active, stage, fingerprint, question, replica)
        request, position, quoted, _, calls, _ = question
        attempts = self._caller.begin(asked, request, position=position, quoted=quoted)
        attempts.in_batch = not calls
        models: Caller | Agents = self._caller
        if stage.agent_spec is not None:
            assert self._agents is not None
            models = self._agents
        try:
            return await models.answer(attempts)
        except BlockedByBatches:
            self.held_back += 1
            return Parked.PARKED
        except NextTurn as due:
            question = question._replace(
                request=due.request, position=due.position, quoted=due.turns
            )
            return await self._enrol(active, stage, fingerprint, question, replica)

    async def _after(
        self, ready: ReadyTask, active: ActiveRow, stage: PlannedStage, first: Question
    ) -> Question:
        """How a task is asked again after what came of it in a batch; `first` is how it would be
        the first time."""
        then = ready.then_do
        forms = await self._context.formats(self._context.run)
        if then == "fallback":
            position = min(ready.position + 1, len(stage.models) - 1)
            return first._replace(
                position=position, calls=first.calls or (stage.index, position) not in forms
            )
        form = forms.get((stage.index, ready.position))
        request = first.request
        position = 0
        if stage.agent_spec is not None:
            quoted = 0
        else:
            quoted = ready.repairs + (then == "repair")
        if form is not None:
            position = ready.position
            # also where the batch with a re-ask was lost: the question itself was answered
            if quoted:
                quoting = await self._quoting(form, active, ready, request)
                request, quoted = (request, 0) if quoting is None else (quoting, quoted)
        by_call = (
            form is None or then == "sync" or (then == "repair" and stage.batch.retry == "sync")
        )
        by_call = by_call or (then == "turn" and await self._few_are_left(stage))
        failed = then == "batch" and ready.error is not None
        number = 1 if then in ("repair", "turn", "answer") else ready.round + failed
        return Question(request, position, quoted, number, first.calls or by_call)

    async def _few_are_left(self, stage: PlannedStage) -> bool:
        """Whether so few conversations of the stage go on that another batch for them is not worth
        its wait."""
        if stage.index not in self._left:
            left, every = await conversations_left(
                self._context.database, self._context.run, stage.index
            )
            self._left[stage.index] = left < stage.batch.tail * every
        return self._left[stage.index]

    async def _quoting(
        self, form: BatchFormat, active: ActiveRow, ready: ReadyTask, first: Request
    ) -> Request | None:
        """The request that quotes what was wrong with the last reply; None where that is not
        stored any more."""
        database = self._context.database
        replica = ready.replica
        stored = await last_reply(database, active.new.key, ready.stage, replica, ready.fingerprint)
        body = reply_bytes(stored[0]) if stored is not None else None
        if body is None:
            return None
        reply = form.read(ResultLine("", "answered", stored[1] or 200, body))
        asked = request_for_model(form.model, first, form.position, replica)
        error = RowError(ErrorType(stored[2]), stored[3] or "")
        if not isinstance(reply, Reply):
            return None
        judged = form.check(reply, active.view)  # the store holds the problems in one text
        if judged == error:
            error = judged
        return repair_request(asked, reply, error, wants_json=form.stage.wants_json)

    async def _enrol(
        self,
        active: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        question: Question,
        replica: int,
    ) -> RowError | Parked:
        """Writes the task into the batch that is being filled."""
        request, position, repairs, number, _, refused_with = question
        context = self._context
        budget = self._context.budget
        key = BatchKey(ModelOfStage(stage.index, position), refused_with)
        form = (await context.formats(context.run)).get(key.model)
        if form is None:
            # its provider has no batches any more: who retrieves does not pay the price of calls
            # for it
            return Parked.PARKED
        context.stop_signal.check()
        async with self._locks.setdefault(key, asyncio.Lock()):
            body = form.body(request_for_model(form.model, request, position, replica))
            tokens = len(body) // CHARACTERS_A_TOKEN  # which count against the account's limit
            filling = self._filling.get(key)
            length = len(body) + form.overhead
            if length >= form.max_bytes:
                return RowError(
                    ErrorType.INVALID_ROW,
                    f"stage {stage.name!r}: its request has {length:,} bytes, and a batch of "
                    f"{form.model.lane} takes {form.max_bytes:,}; shorten the row's fields or the "
                    "prompt, or run the stage with `run_mode: sync`",
                )
            if filling is not None and not filling.takes(length, tokens):
                self._close(key, filling)
                filling = None
            worst = form.worst_case(body)
            held = await self._afford(active, stage, worst)
            if held is not None:
                return held
            if filling is None:
                filling = self._filling[key] = await self._begin(form, key, fingerprint)
                # others may wait for a slow tool for long
                if stage.agent_spec is not None and repairs:
                    asyncio.get_running_loop().call_later(
                        stage.batch.linger, self._close, key, filling
                    )
            if budget is not None and not budget.has_room(stage.name, worst):
                self.held_back += 1
                return Parked.PARKED
            if budget is not None:
                budget.load(filling.record.id, stage.name, worst)
            if active.budget is not None:
                active.budget.spent = active.budget.spent.plus(worst)
            place = filling.spool.lines
            name = custom_id(filling.record.intent, place, fingerprint)
            filling.spool.add(form.lines.line(name, body, form.address))
            filling.tokens += tokens
            filling.held = filling.held.plus(worst)
        asked = (active.new, stage.index, replica, fingerprint)
        context.ledger.batch.enrolled.append(
            Enrolled(*asked, filling.record.id, place, number, position, repairs)
        )
        return Parked.ENROLLED

    async def _afford(
        self, active: ActiveRow, stage: PlannedStage, worst: Amount
    ) -> RowError | Parked | None:
        """Why a budget has no room for a task; None: it has."""
        budget = self._context.budget
        if budget is None:
            return None
        if active.budget is None:
            active.budget = budget.row_balance()
        if active.budget is not None and active.budget.would_exceed(worst):
            return RowError(
                ErrorType.BUDGET_EXCEEDED,
                "row_budget: its request could cost more than the row has left",
            )
        if budget.has_room(stage.name, worst) or await budget.borrow(stage.name, worst):
            return None
        self.held_back += 1
        return Parked.PARKED

    async def _begin(self, form: BatchFormat, key: BatchKey, first: bytes) -> OpenBatch:
        """A new batch, PLANNED in the store. `first` is the fingerprint of its first task."""
        context = self._context
        account = self._context.account(form.model.provider.name)
        await context.prove_writable()
        record = await context.journal.plan(form, first, run=context.run, event=context.event)
        cap = (await context.lane_load(record)).cap
        most = most_requests(form.stage.batch, form.traits)
        if account.traits.finds_by == "count" and most > 10 * FEWER:
            most -= record.id % FEWER
        self._spools.append(Spool(context.path(record)))
        return OpenBatch(
            record,
            form,
            self._spools[-1],
            most,
            await context.most_bytes(form, key.refused_with),
            cap,
        )

    def close(self) -> None:
        """Nothing more comes for now: what was begun is full as it is."""
        for key, filling in list(self._filling.items()):
            self._close(key, filling)

    def _close(self, key: BatchKey, filling: OpenBatch) -> None:
        """A batch is full as it is; unless it is no longer filled."""
        if self._filling.get(key) is filling:
            self.full.put_nowait(self._filling.pop(key))

    def drop(self) -> None:
        """What is half filled when an invocation stops is enrolled again by the next one."""
        for spool in self._spools:
            spool.drop()
