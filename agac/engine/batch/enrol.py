"""Tasks of batch stages are not called: they are written into the batch that is being filled, and their rows wait.

What a batch brought back meets its task here again, when its row is walked: a result is found by its fingerprint like
any other; what failed fails its row; what is to go round again joins the next batch, or is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from agac.core.errors import ErrorType, RowError
from agac.core.keys import custom_id
from agac.core.types import Request
from agac.engine.batch.form import Form, Forms
from agac.engine.batch.spool import Spool
from agac.engine.budget import NOTHING, Amount, HeldBack, Purse
from agac.engine.call import Answer, Caller, put_to
from agac.engine.control import Control
from agac.engine.flight import Flight
from agac.engine.tasks import Parked
from agac.plan.stage import PlannedStage
from agac.store.batch import Enrolled, WaitingTask
from agac.store.batches import ReadyTask
from agac.store.ledger import Ledger

Replied = Answer | RowError | Parked


@dataclass(slots=True)
class Filling:
    """A batch that is being filled."""

    batch: int
    intent: str
    form: Form
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

    async def begin(self, form: Form, first: bytes) -> Filling:
        """A new batch, PLANNED in the store. `first` is the fingerprint of its first task."""

    def close(self, filling: Filling) -> None:
        """It is full: nothing more will be added."""


class Enrolment:
    """Where batch stages ask. `live` finds tasks that are in a batch; `quoting` makes the request that quotes the last
    reply, None where that is not stored. `takes_up`: tasks that were left for the user are gone on with."""

    def __init__(
        self,
        forms: Forms,
        planner: Planner,
        caller: Caller,
        ledger: Ledger,
        control: Control,
        purse: Purse | None,
        *,
        live: Callable[[bytes], Awaitable[bool]],
        quoting: Callable[[Form, Flight, ReadyTask, Request, int], Awaitable[Request | None]],
        takes_up: bool,
    ) -> None:
        self._forms, self._planner, self._caller, self._ledger = forms, planner, caller, ledger
        self._control, self._purse, self._live, self._quoting = control, purse, live, quoting
        self._takes_up = takes_up
        self._overhead: dict[tuple[int, int], int] = {}
        self._filling: dict[tuple[int, int], Filling] = {}
        self._locks: dict[tuple[int, int], asyncio.Lock] = {}
        self.held_back = 0
        self.enrolled = 0

    async def ask(
        self, flight: Flight, stage: PlannedStage, fingerprint: bytes, request: Request, replica: int = 0
    ) -> Replied:
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
        flight: Flight,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int,
        *,
        position: int = 0,
        quoted: int = 0,
    ) -> Replied:
        """A call's answer; the row stays open where the budget has no room for it beside open batches."""
        try:
            return await self._caller.ask(
                flight, stage, fingerprint, request, replica, position=position, quoted=quoted
            )
        except HeldBack:
            self.held_back += 1
            return Parked.PARKED

    def wait(self, flight: Flight, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """The row waits for an equal task that is in a batch."""
        self._ledger.batch.waiting.append(WaitingTask(flight.new, stage.index, replica, fingerprint))

    async def _go_on(self, flight: Flight, stage: PlannedStage, request: Request, ready: ReadyTask) -> Replied:
        """What is next for a task that came back from a batch."""
        then, replica, print_ = ready.then_do, ready.replica, ready.fingerprint
        if then == "run" and not self._takes_up:
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

    async def _ask_next(self, flight: Flight, stage: PlannedStage, request: Request, ready: ReadyTask) -> Replied:
        """The next model of the fallback chain: in a batch where its provider has them."""
        position, print_ = min(ready.position + 1, len(stage.models) - 1), ready.fingerprint
        if (stage.index, position) in self._forms and stage.run_mode == "batch":
            return await self._enrol(flight, stage, print_, request, ready.replica, position=position)
        return await self._call(flight, stage, print_, request, ready.replica, position=position)

    async def _enrol(
        self,
        flight: Flight,
        stage: PlannedStage,
        fingerprint: bytes,
        request: Request,
        replica: int,
        number: int = 1,
        *,
        position: int = 0,
        repairs: int = 0,
    ) -> Replied:
        """Writes the task into the batch that is being filled."""
        form = self._forms[stage.index, position]
        self._control.check()
        if position or replica:
            request = put_to(form.model, request, replica)
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
            if self._purse is not None and not self._purse.set_aside(filling.batch, stage.index, worst):
                self.held_back += 1
                return Parked.PARKED
            if flight.purse is not None:
                flight.purse.spent = flight.purse.spent.plus(worst)
            place = filling.spool.lines
            filling.spool.add(form.lines.line(custom_id(filling.intent, place, fingerprint), body, form.endpoint))
            filling.tokens += tokens
            filling.held = filling.held.plus(worst)
        self.enrolled += 1
        asked = (flight.new, stage.index, replica, fingerprint)
        self._ledger.batch.enrolled.append(Enrolled(*asked, filling.batch, place, number, position, repairs))
        return Parked.ENROLLED

    def _afford(
        self, flight: Flight, stage: PlannedStage, filling: Filling | None, worst: Amount
    ) -> RowError | Parked | None:
        """Why a budget has no room for a task; None: it has."""
        if self._purse is None:
            return None
        if flight.purse is None:
            flight.purse = self._purse.row_pot()
        if flight.purse is not None and flight.purse.lacks(worst):
            return RowError(ErrorType.BUDGET_EXCEEDED, "row_budget: its request could cost more than the row has left")
        batch = filling.batch if filling is not None else None
        if self._purse.has_room(batch, stage.index, worst):
            return None
        self._purse.note_missed(stage.index, worst)
        self.held_back += 1
        return Parked.PARKED

    def _around(self, form: Form) -> int:
        """Bytes of a line beyond its body, at most."""
        place = (form.stage.index, form.position)
        if place not in self._overhead:
            longest = custom_id("0" * 16, form.max_requests, bytes(16))
            self._overhead[place] = len(form.lines.line(longest, b"{}", form.endpoint))
        return self._overhead[place]

    def close(self) -> None:
        """Nothing more comes for now: what was begun is full as it is."""
        for filling in self._filling.values():
            self._planner.close(filling)
        self._filling.clear()


def _too_long(form: Form, length: int) -> RowError | None:
    """Why a task can be in no batch at all."""
    most = min(form.max_bytes, form.traits.max_line_bytes or form.max_bytes)
    if length < most:
        return None
    return RowError(
        ErrorType.INVALID_ROW,
        f"stage {form.stage.name!r}: its request has {length:,} bytes, and a batch of {form.model.lane} takes "
        f"{most:,}; shorten the row's fields or the prompt, or run the stage with `run_mode: sync`",
    )
