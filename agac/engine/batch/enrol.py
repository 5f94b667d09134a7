"""Tasks of batch stages become lines of a file that is spooled to disk; their rows wait."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agac.core.errors import ErrorType, RowError, StoreError
from agac.core.keys import custom_id
from agac.core.types import Reply, Request
from agac.engine.batch.lifecycle import BatchContext, BatchFormat, BatchFormats
from agac.engine.budget import NOTHING, Amount, BlockedByBatches, BudgetLimiter
from agac.engine.caller import Answer, Caller
from agac.engine.effects import ActiveRow
from agac.engine.routes import request_for_model
from agac.engine.stop_rules import StopSignal
from agac.engine.tasks import LookupBatcher, Parked
from agac.engine.validate import repair_request
from agac.plan.stage import PlannedStage
from agac.providers.batch import ResultLine
from agac.store.batches import ReadyTask, last_reply, live_tasks
from agac.store.history import reply_bytes
from agac.store.records import Enrolled, WaitingTask
from agac.store.writer import Ledger

BUFFER = 1 << 20


class Spool:
    """A file that grows by lines. Until `finish` it has another name, so that a whole one is known by its name alone:
    a crash leaves a `.part`, which nobody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.lines = 0
        self._part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb", buffering=BUFFER)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error

    def add(self, line: bytes) -> None:
        """One more line, without its line break. Raises StoreError when the disk does not take it."""
        data = line + b"\n"
        try:
            self._file.write(data)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error
        self._hash.update(data)
        self.bytes += len(data)
        self.lines += 1

    def finish(self) -> str:
        """Brings the file to the disk under its own name; gives its sha256. Runs in a thread: it waits for the disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error
        return self._hash.hexdigest()

    def drop(self) -> None:
        """The file is not wanted any more."""
        with suppress(OSError):  # what a full disk did not take is not missed here
            self._file.close()
        self._part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes a rename in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full_or_forbidden(error: OSError, path: Path) -> StoreError:
    """What a disk's refusal means for a user."""
    return StoreError(
        f"{path} cannot be written: {error.strerror or error}",
        remedy="free some space (or fix the folder's permissions), then run the same command again: nothing is lost",
    )


# Tasks of batch stages are not called: they are written into the batch that is being filled, and their rows wait.
#
# What a batch brought back meets its task here again, when its row is walked: a result is found by its fingerprint like
# any other; what failed fails its row; what is to go round again joins the next batch, or is called.

BatchReply = Answer | RowError | Parked


@dataclass(slots=True)
class OpenBatch:
    """A batch that is being filled."""

    batch: int
    intent: str
    form: BatchFormat
    spool: Spool
    most_requests: int
    most_bytes: int
    most_tokens: int | None
    tokens: int = 0
    held: Amount = NOTHING

    def takes(self, line: int, tokens: int) -> bool:
        """Whether one more line of so many bytes fits."""
        if self.spool.lines >= self.most_requests or self.spool.bytes + line + 1 > self.most_bytes:
            return False
        return self.most_tokens is None or not self.spool.lines or self.tokens + tokens <= self.most_tokens


class Planner(Protocol):
    """Opens batches to be filled, and takes those that are full."""

    async def begin(self, form: BatchFormat, first: bytes) -> OpenBatch:
        """A new batch, PLANNED in the store. `first` is the fingerprint of its first task."""

    def close(self, filling: OpenBatch) -> None:
        """It is full: nothing more will be added."""


class Enrolment:
    """Where batch stages ask. `live` finds tasks that are in a batch; `quoting` makes the request that quotes the last
    reply, None where that is not stored. `resume_parked`: tasks that were left for the user are gone on with."""

    def __init__(
        self,
        forms: BatchFormats,
        planner: Planner,
        caller: Caller,
        ledger: Ledger,
        control: StopSignal,
        budget: BudgetLimiter | None,
        *,
        live: Callable[[bytes], Awaitable[bool]],
        quoting: Callable[[BatchFormat, ActiveRow, ReadyTask, Request, int], Awaitable[Request | None]],
        resume_parked: bool,
    ) -> None:
        self._forms, self._planner, self._caller, self._ledger = forms, planner, caller, ledger
        self._control, self._budget, self._live, self._quoting = control, budget, live, quoting
        self._resume_parked = resume_parked
        self._overhead: dict[tuple[int, int], int] = {}
        self._filling: dict[tuple[int, int], OpenBatch] = {}
        self._locks: dict[tuple[int, int], asyncio.Lock] = {}
        self.held_back = 0
        self.enrolled = 0

    async def ask(
        self, flight: ActiveRow, stage: PlannedStage, fingerprint: bytes, request: Request, replica: int = 0
    ) -> BatchReply:
        """The answer where it is called; the error with which the task failed; else its row waits."""
        if await self._live(fingerprint):  # in flight counts as had, also for who would call
            self.wait(flight, stage, fingerprint, replica)  # unless that is its own task, as the store knows
            return Parked.ENROLLED
        ready = flight.ready.get((stage.index, replica, fingerprint))
        if ready is None or (ready.then_do is None and ready.error is None):
            if stage.run_mode == "sync":
                return await self._call(flight, stage, fingerprint, request, replica)
            return await self._enrol(flight, stage, fingerprint, request, replica)
        if ready.then_do is None:
            assert ready.error is not None
            return ready.error
        return await self._go_on(flight, stage, request, ready)

    async def _call(
        self,
        flight: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int,
        *,
        position: int = 0,
        quoted: int = 0,
    ) -> BatchReply:
        """A call's answer; the row stays open where the budget has no room for it beside open batches."""
        try:
            return await self._caller.ask(
                flight, stage, fingerprint, request, replica, position=position, quoted=quoted
            )
        except BlockedByBatches:
            self.held_back += 1
            return Parked.PARKED

    def wait(self, flight: ActiveRow, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """The row waits for an equal task that is in a batch."""
        self._ledger.batch.waiting.append(WaitingTask(flight.new, stage.index, replica, fingerprint))

    async def _go_on(self, flight: ActiveRow, stage: PlannedStage, request: Request, ready: ReadyTask) -> BatchReply:
        """What is next for a task that came back from a batch."""
        then, replica, print_ = ready.then_do, ready.replica, ready.fingerprint
        if then == "run" and not self._resume_parked:
            return Parked.PARKED
        if then == "fallback":
            return await self._ask_next(flight, stage, request, ready)
        position, form = ready.position, self._forms.get((stage.index, ready.position))
        quoted = ready.repairs + (then == "repair")
        if form is not None and quoted:  # also where the batch with a re-ask was lost: the question itself was answered
            quoting = await self._quoting(form, flight, ready, request, replica)
            request, quoted = (request, 0) if quoting is None else (quoting, quoted)
        calls = then == "sync" or (then == "repair" and stage.batch.retry == "sync")
        if calls or form is None or stage.run_mode == "sync":
            return await self._call(
                flight, stage, print_, request, replica, position=position if form is not None else 0, quoted=quoted
            )
        again = ready.round + (then == "batch" and ready.error is not None) if then != "repair" else 1
        return await self._enrol(flight, stage, print_, request, replica, again, position=position, repairs=quoted)

    async def _ask_next(self, flight: ActiveRow, stage: PlannedStage, request: Request, ready: ReadyTask) -> BatchReply:
        """The next model of the fallback chain: in a batch where its provider has them."""
        position, print_ = min(ready.position + 1, len(stage.models) - 1), ready.fingerprint
        if (stage.index, position) in self._forms and stage.run_mode == "batch":
            return await self._enrol(flight, stage, print_, request, ready.replica, position=position)
        return await self._call(flight, stage, print_, request, ready.replica, position=position)

    async def _enrol(
        self,
        flight: ActiveRow,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int,
        number: int = 1,
        *,
        position: int = 0,
        repairs: int = 0,
    ) -> BatchReply:
        """Writes the task into the batch that is being filled."""
        form = self._forms[stage.index, position]
        self._control.check()
        if position or replica:
            request = request_for_model(form.model, request, replica)
        body = form.body(request)
        tokens = form.enqueued(body)
        lock = self._locks.setdefault((stage.index, position), asyncio.Lock())
        async with lock:
            filling = self._filling.get((stage.index, position))
            length = len(body) + self._around(form)
            if (fault := _too_long(form, length)) is not None:
                return fault
            if filling is not None and not filling.takes(length, tokens):
                self._planner.close(filling)
                del self._filling[stage.index, position]
                filling = None
            worst = form.worst_case(body)
            if (held := self._afford(flight, stage, filling, worst)) is not None:
                return held
            if filling is None:
                filling = self._filling[stage.index, position] = await self._planner.begin(form, fingerprint)
            if self._budget is not None and not self._budget.reserve_for_batch(filling.batch, stage.index, worst):
                self.held_back += 1
                return Parked.PARKED
            if flight.budget is not None:
                flight.budget.spent = flight.budget.spent.plus(worst)
            place = filling.spool.lines
            filling.spool.add(form.lines.line(custom_id(filling.intent, place, fingerprint), body, form.address))
            filling.tokens += tokens
            filling.held = filling.held.plus(worst)
        self.enrolled += 1
        asked = (flight.new, stage.index, replica, fingerprint)
        self._ledger.batch.enrolled.append(Enrolled(*asked, filling.batch, place, number, position, repairs))
        return Parked.ENROLLED

    def _afford(
        self, flight: ActiveRow, stage: PlannedStage, filling: OpenBatch | None, worst: Amount
    ) -> RowError | Parked | None:
        """Why a budget has no room for a task; None: it has."""
        if self._budget is None:
            return None
        if flight.budget is None:
            flight.budget = self._budget.row_balance()
        if flight.budget is not None and flight.budget.would_exceed(worst):
            return RowError(ErrorType.BUDGET_EXCEEDED, "row_budget: its request could cost more than the row has left")
        batch = filling.batch if filling is not None else None
        if self._budget.has_room(batch, stage.index, worst):
            return None
        self._budget.note_missed(stage.index, worst)
        self.held_back += 1
        return Parked.PARKED

    def _around(self, form: BatchFormat) -> int:
        """Bytes of a line beyond its body, at most."""
        place = (form.stage.index, form.position)
        if place not in self._overhead:
            longest = custom_id("0" * 16, form.max_requests, bytes(16))
            self._overhead[place] = len(form.lines.line(longest, b"{}", form.address))
        return self._overhead[place]

    def close(self) -> None:
        """Nothing more comes for now: what was begun is full as it is."""
        for filling in self._filling.values():
            self._planner.close(filling)
        self._filling.clear()


def _too_long(form: BatchFormat, length: int) -> RowError | None:
    """Why a task can be in no batch at all."""
    most = min(form.max_bytes, form.traits.max_line_bytes or form.max_bytes)
    if length < most:
        return None
    return RowError(
        ErrorType.INVALID_ROW,
        f"stage {form.stage.name!r}: its request has {length:,} bytes, and a batch of {form.model.lane} takes "
        f"{most:,}; shorten the row's fields or the prompt, or run the stage with `run_mode: sync`",
    )


class BatchedTasks:
    """Looks for tasks that are in a batch already, and for the replies that re-asks quote."""

    def __init__(self, context: BatchContext) -> None:
        self._context = context
        self._gathered: LookupBatcher[bytes, bool] = LookupBatcher(self._fetch)

    async def live(self, fingerprint: bytes) -> bool:
        """Whether the task is in a batch of the workflow that is not ingested."""
        return bool(await self._gathered.get(fingerprint))

    async def run(self) -> None:
        """Answers until cancelled."""
        await self._gathered.run()

    async def _fetch(self, prints: Sequence[bytes]) -> dict[bytes, bool]:
        return dict.fromkeys(await live_tasks(self._context.database, prints, self._context.workflow), True)

    async def quoting(
        self, form: BatchFormat, flight: ActiveRow, ready: ReadyTask, request: Request, replica: int
    ) -> Request | None:
        """The request that quotes what was wrong with the last reply; None where that is not to be had any more."""
        stored = await last_reply(self._context.database, flight.new.key, ready.stage, replica, ready.fingerprint)
        body = reply_bytes(stored[0]) if stored is not None else None
        if body is None:
            return None
        reply = form.read(ResultLine("", "answered", stored[1] or 200, body))
        asked = request_for_model(form.model, request, replica) if form.position or replica else request
        error = RowError(ErrorType.SCHEMA_MISMATCH, stored[2] or "")
        return repair_request(asked, reply, error) if isinstance(reply, Reply) else None
