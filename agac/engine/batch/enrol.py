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

FEWER = 97
"""Batches of one lane that only their size tells apart differ by less than this in size."""


def writing(path: Path) -> AbstractContextManager[None]:
    """Raises StoreError if the disk does not take what is written to `path`."""
    remedy = (
        "free some space (or fix the folder's permissions), then run the same command "
        "again: nothing is lost"
    )
    return explained(path, remedy, StoreError)


class Spool:
    """A file that grows by lines.

    Until `finish` its name ends in `.part`, so that a complete file is known by its name: what a
    crash leaves is never read. All methods but `drop` raise StoreError if the disk does not take
    what is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.lines = 0
        self._part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        with writing(self._part):
            make_folder(path.parent)
            # `finish` closes it
            self._file = open(self._part, "wb", buffering=BUFFER, opener=opener)  # noqa: SIM115

    def add(self, line: bytes) -> None:
        """Appends a line, which is given without its line break."""
        data = line + b"\n"
        with writing(self._part):
            self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        self.lines += 1

    def finish(self) -> str:
        """Writes the file to the disk under its final name and returns its sha256.

        It waits for the disk: call it in a thread."""
        with writing(self._part):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
            sync_folder(self.path.parent)
        return self._hash.hexdigest()

    def drop(self) -> None:
        """Removes the file if it is not complete."""
        with suppress(OSError):  # what a full disk did not take is not needed any more
            self._file.close()
        self._part.unlink(missing_ok=True)


# Tasks of batch stages are not called: they are written into the batch that is being filled, and
# their rows wait.
#
# When the row is walked again, its task finds here what a batch brought: a result is found by its
# fingerprint like any other; an error fails the row; a task that is to be asked again joins the
# next batch, or is called.


@dataclass(slots=True)
class OpenBatch:
    """A batch that is being filled."""

    record: BatchRecord
    """The batch in the store."""

    form: BatchFormat
    """How its lines are written."""

    spool: Spool
    """Its file."""

    most_requests: int
    """Lines that it may have."""

    most_bytes: int
    """Bytes that its file may have."""

    most_tokens: int | None
    """Tokens of requests that it may have; None: as many as it likes."""

    tokens: int = 0
    """Tokens of the requests in it."""

    held: Amount = NOTHING
    """What its requests cost at most."""

    def takes(self, line: int, tokens: int) -> bool:
        """True if the batch has room for a line of `line` bytes and `tokens` tokens."""
        if self.spool.lines >= self.most_requests:
            return False
        if not self.spool.lines:
            return True
        if self.spool.bytes + line + 1 > self.most_bytes:
            return False
        return self.most_tokens is None or self.tokens + tokens <= self.most_tokens


class Question(NamedTuple):
    """A task with the model and the way by which it is asked."""

    request: Request
    """What is asked."""

    position: int = 0
    """The position of the model among those of the stage."""

    quoted: int = 0
    """Re-asks whose answers the request quotes; of a conversation, its turns so far."""

    round: int = 1
    """How many batches this is with the task, at this model."""

    calls: bool = False
    """True if the task is called and does not go into a batch."""

    refused_with: int = 0
    """Bytes of the file with which the task was refused, so that it goes into smaller ones; 0: it
    was not."""


class ModelOfStage(NamedTuple):
    """One of the models of a stage."""

    stage: int
    """The index of the stage."""
    position: int
    """The position of the model among those of the stage."""


class BatchKey(NamedTuple):
    """Tasks with the same key go into the same batches."""

    model: ModelOfStage
    """The model that the batches ask."""

    refused_with: int
    """Bytes of the file with which the tasks were refused before; 0: they were not."""


class LineToAdd(NamedTuple):
    """A request that is to become a line of a batch."""

    key: BatchKey
    """The key of its batch."""

    form: BatchFormat
    """How the line is written."""

    length: int
    """Its bytes, about."""

    tokens: int
    """Tokens of the request, about."""

    worst: Amount
    """What it costs at most."""


class Enrolment:
    """Writes tasks of batch stages into batches.

    `agac run`, which walks the input, continues tasks that were left for the user."""

    def __init__(self, context: BatchContext, caller: Caller, agents: Agents | None) -> None:
        """`agents` ask stages with tools, if there are any."""
        self._context = context
        self._caller = caller
        self._agents = agents
        self.look_ups: LookupBatcher[bytes, LiveTask] = LookupBatcher(
            lambda prints: live_tasks(context.database, prints, context.workflow)
        )
        """Which tasks are in batches; it must be running."""
        self._filling: dict[BatchKey, OpenBatch] = {}
        self._locks: dict[BatchKey, asyncio.Lock] = {}
        self._spools: list[Spool] = []
        self._few_left: dict[int, bool] = {}
        """By the index of a stage: whether few of its conversations are left."""
        self.full: asyncio.Queue[OpenBatch] = asyncio.Queue()
        """The batches to which nothing more is added."""
        self.held_back = 0
        """Tasks for which a budget had no room."""
        self.wanted_lines: dict[int, bytearray] = {}
        """The batches that an earlier invocation did not send, with a bit for each line that a row
        asked for in this one."""

    def begin_again(self) -> bool:
        """Prepares another walk of the rows. Returns True if a budget had no room for some tasks
        the last time."""
        held_back = self.held_back
        self.held_back = 0
        self._few_left.clear()
        return held_back > 0

    async def ask(self, task: TaskRequest) -> Answer | RowError | Parked:
        """Writes a task into a batch, or calls its model.

        Returns the answer of a call, or the error with which the task failed; else its row waits
        for a batch, or stays open because a budget has no room next to open batches."""
        row = task.row
        stage = task.stage
        assert isinstance(stage, PlannedStage)
        assert isinstance(task.task, Prepared)
        live = await self.look_ups.get(task.fingerprint)
        if live is not None:
            return self._wait_for(live, task)
        ready = row.ready.get((stage.index, task.replica, task.fingerprint))
        failed = failure_of_batch(stage, ready) or await self._failure_of_replica(task, ready)
        if failed is not None:
            return failed
        question = Question(task.task.request, calls=stage.settings.run_mode == "sync")
        if ready is not None and ready.then_do is not None:
            if ready.then_do == "run" and self._context.batching.resume_run is not None:
                return Parked.PARKED
            question = await self._after(ready, row, stage, question)
        if stage.agent_spec is None and not question.calls:
            return await self._enrol(task, stage, question)
        return await self._call(task, stage, question)

    def _wait_for(self, live: LiveTask, task: TaskRequest) -> Parked:
        """Lets the row wait for a task that is in a batch, even if its stage is called by now."""
        wanted = self.wanted_lines.get(live.batch)
        if wanted is not None:
            wanted[live.place // 8] |= 1 << live.place % 8
        # the store leaves out a row that waits for its own task
        waiting = WaitingTask(task.row.new, task.stage.index, task.replica, task.fingerprint)
        self._context.ledger.batch.batched.waiting.append(waiting)
        return Parked.ENROLLED

    async def _failure_of_replica(
        self, task: TaskRequest, ready: ReadyTask | None
    ) -> RowError | None:
        """Returns the error with which a replica failed while another was in a batch.

        The row waited for that other one, and does not ask this one again."""
        row = task.row
        if not task.replica or ready is not None or row.forced:
            return None
        if not (row.ready or row.resumed):
            return None
        failures = await replica_failures(self._context.database, [task.fingerprint])
        failure = failures.get(task.fingerprint, {}).get(row.new.key)
        return None if failure is None else failure[1]

    async def _call(
        self, task: TaskRequest, stage: PlannedStage, question: Question
    ) -> Answer | RowError | Parked:
        """Asks the model of a stage by a call; a turn of a conversation may go into a batch."""
        attempts = self._caller.begin(
            task, question.request, position=question.position, quoted=question.quoted
        )
        attempts.talk.in_batch = not question.calls
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
            next_turn = question._replace(
                request=due.request, position=due.position, quoted=due.turns
            )
            return await self._enrol(task, stage, next_turn)

    async def _after(
        self, ready: ReadyTask, row: ActiveRow, stage: PlannedStage, first: Question
    ) -> Question:
        """Returns how a task is asked again after what came of it in a batch.

        `first` is how it is asked the first time."""
        if ready.then_do == "fallback":
            question = await self._to_next_model(ready, stage, first)
        else:
            question = await self._again(ready, row, stage, first)
        if not ready.refused_with:
            return question
        # tasks that were refused in files of about the same size are filled into the same batches
        return question._replace(refused_with=1 << ready.refused_with.bit_length() - 1)

    async def _to_next_model(
        self, ready: ReadyTask, stage: PlannedStage, first: Question
    ) -> Question:
        """Returns how a task is asked of the next model of its stage."""
        forms = await self._context.formats(self._context.run)
        position = min(ready.position + 1, len(stage.models) - 1)
        has_batches = (stage.index, position) in forms
        return first._replace(position=position, calls=first.calls or not has_batches)

    async def _again(
        self, ready: ReadyTask, row: ActiveRow, stage: PlannedStage, first: Question
    ) -> Question:
        """Returns how a task is asked of the same model again."""
        then = ready.then_do
        failed = then == "batch" and ready.error is not None
        number = 1 if then in ("repair", "turn", "answer") else ready.round + failed
        calls = first.calls or await self._is_called(ready, stage)
        question = first._replace(round=number, calls=calls)
        repairs = 0 if stage.agent_spec is not None else ready.repairs + (then == "repair")
        form = (await self._context.formats(self._context.run)).get((stage.index, ready.position))
        if form is None:  # its model has no batches any more: the first one is called
            return question._replace(quoted=repairs)
        question = question._replace(position=ready.position)
        # even if the batch with a re-ask was lost: the question itself was answered
        quoting = await self._quoting(form, row, ready, first.request) if repairs else None
        if quoting is None:
            return question
        return question._replace(request=quoting, quoted=repairs)

    async def _is_called(self, ready: ReadyTask, stage: PlannedStage) -> bool:
        """True if a task of a batch stage is called now, and goes into no further batch."""
        then = ready.then_do
        forms = await self._context.formats(self._context.run)
        if (stage.index, ready.position) not in forms or then == "sync":
            return True
        if then == "repair" and stage.settings.batch.retry == "sync":
            return True
        return then == "turn" and await self._few_are_left(stage)

    async def _few_are_left(self, stage: PlannedStage) -> bool:
        """True if so few conversations of the stage are left that another batch for them is not
        worth its wait."""
        if stage.index not in self._few_left:
            left, every = await conversations_left(
                self._context.database, self._context.run, stage.index
            )
            self._few_left[stage.index] = left < stage.settings.batch.tail * every
        return self._few_left[stage.index]

    async def _quoting(
        self, form: BatchFormat, row: ActiveRow, ready: ReadyTask, first: Request
    ) -> Request | None:
        """Makes the request that quotes what was wrong with the last reply.

        None if that reply is not stored any more."""
        database = self._context.database
        replica = ready.replica
        stored = await last_reply(database, row.new.key, ready.stage, replica, ready.fingerprint)
        body = reply_bytes(stored[0]) if stored is not None else None
        if body is None:
            return None
        reply = form.read(ResultLine("", "answered", stored[1] or 200, body))
        if not isinstance(reply, Reply):
            return None
        request = request_for_model(form.model, first, form.position, replica)
        error = RowError(ErrorType(stored[2]), stored[3] or "")
        judged = form.check(reply, row.view)
        if judged == error:  # the store holds the problems in one text, this has them one by one
            error = judged
        return repair_request(request, reply, error, wants_json=form.stage.wants_json)

    async def _enrol(
        self, task: TaskRequest, stage: PlannedStage, question: Question
    ) -> RowError | Parked:
        """Writes the task into the batch that is being filled."""
        context = self._context
        key = BatchKey(ModelOfStage(stage.index, question.position), question.refused_with)
        form = (await context.formats(context.run)).get(key.model)
        if form is None:
            # its provider has no batches any more: `retrieve` does not pay the price of calls
            return Parked.PARKED
        context.stop_signal.check()
        async with self._locks.setdefault(key, asyncio.Lock()):
            body = form.body(
                request_for_model(form.model, question.request, question.position, task.replica)
            )
            length = len(body) + form.overhead
            if length >= form.max_bytes:
                return _too_long(stage, form, length)
            worst = form.worst_case(body)
            # tokens count against the account's limit
            line = LineToAdd(key, form, length, len(body) // CHARACTERS_A_TOKEN, worst)
            filling = await self._batch_for(line, task, stage, question)
            if not isinstance(filling, OpenBatch):
                return filling
            position_in_batch = filling.spool.lines
            name = custom_id(filling.record.intent, position_in_batch, task.fingerprint)
            filling.spool.add(form.lines.line(name, body, form.address))
            filling.tokens += line.tokens
            filling.held = filling.held.plus(worst)
        context.ledger.batch.batched.enrolled.append(
            Enrolled(
                task.row.new,
                stage.index,
                task.replica,
                task.fingerprint,
                filling.record.id,
                position_in_batch,
                question.round,
                question.position,
                question.quoted,
            )
        )
        return Parked.ENROLLED

    async def _batch_for(
        self, line: LineToAdd, task: TaskRequest, stage: PlannedStage, question: Question
    ) -> OpenBatch | RowError | Parked:
        """Returns the batch that takes a line, for which the budgets have reserved what it costs at
        most; or why there is none."""
        filling = self._filling.get(line.key)
        if filling is not None and not filling.takes(line.length, line.tokens):
            self._close(line.key, filling)
            filling = None
        too_much = await self._exceeds_budget(task.row, stage, line.worst)
        if too_much is not None:
            return too_much
        if filling is None:
            filling = await self._begin(line.form, line.key, task.fingerprint)
            self._filling[line.key] = filling
            # other conversations may wait for a slow tool for long
            if stage.agent_spec is not None and question.quoted:
                asyncio.get_running_loop().call_later(
                    stage.settings.batch.linger, self._close, line.key, filling
                )
        # another task may have taken the room while the batch was begun
        budget = self._context.budget
        if budget is not None:
            if not budget.has_room(stage.name, line.worst):
                self.held_back += 1
                return Parked.PARKED
            budget.load(filling.record.id, stage.name, line.worst)
        if task.row.used.budget is not None:
            task.row.used.budget.spent = task.row.used.budget.spent.plus(line.worst)
        return filling

    async def _exceeds_budget(
        self, row: ActiveRow, stage: PlannedStage, worst: Amount
    ) -> RowError | Parked | None:
        """Returns what happens to a row if a budget has no room for its task; None: they have."""
        budget = self._context.budget
        if budget is None:
            return None
        if row.used.budget is None:
            row.used.budget = budget.row_balance()
        if row.used.budget is not None and row.used.budget.would_exceed(worst):
            return RowError(
                ErrorType.BUDGET_EXCEEDED,
                "row_budget: its request could cost more than the row has left",
            )
        if budget.has_room(stage.name, worst) or await budget.borrow(stage.name, worst):
            return None
        self.held_back += 1
        return Parked.PARKED

    async def _begin(self, form: BatchFormat, key: BatchKey, first: bytes) -> OpenBatch:
        """Begins a batch, PLANNED in the store. `first` is the fingerprint of its first task."""
        context = self._context
        account = self._context.account(form.model.provider.name)
        await context.prove_writable()
        record = await context.journal.plan(form, first, run=context.run, event=context.event)
        most_tokens = (await context.lane_load(record)).cap
        most = most_requests(form.stage.settings.batch, form.traits)
        if account.traits.finds_by == "count" and most > 10 * FEWER:
            most -= record.id % FEWER
        spool = Spool(context.path(record))
        self._spools.append(spool)
        most_bytes = await context.most_bytes(form, key.refused_with)
        return OpenBatch(record, form, spool, most, most_bytes, most_tokens)

    def close(self) -> None:
        """Closes all batches that are being filled, since no task comes for now."""
        for key, filling in list(self._filling.items()):
            self._close(key, filling)

    def _close(self, key: BatchKey, filling: OpenBatch) -> None:
        """Closes a batch, unless another task closed it already."""
        if self._filling.get(key) is filling:
            self.full.put_nowait(self._filling.pop(key))

    def drop(self) -> None:
        """Removes the incomplete files; the next invocation enrols their tasks again."""
        for spool in self._spools:
            spool.drop()


def _too_long(stage: PlannedStage, form: BatchFormat, length: int) -> RowError:
    """Makes the error of a request of `length` bytes, which no batch of its lane takes."""
    return RowError(
        ErrorType.INVALID_ROW,
        f"stage {stage.name!r}: its request has {length:,} bytes, and a batch of "
        f"{form.model.lane} takes {form.max_bytes:,}; shorten the row's fields or the "
        "prompt, or run the stage with `run_mode: sync`",
    )
