"""What all work on batches shares in one invocation."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agac.core.types import Fault, FaultKind
from agac.engine.batch.accounts import Account, Accounts
from agac.engine.batch.form import Form, Forms, form_for
from agac.engine.batch.journal import Journal
from agac.engine.control import Control, Halted
from agac.engine.policy import LONGEST_WAIT, Again, GiveUp, decide
from agac.engine.work import Clocks
from agac.store.batches import BatchRecord
from agac.store.db import Database
from agac.store.ledger import Ledger

_log = logging.getLogger("agac.batch")

PATIENCE = 60.0
"""Seconds that a command stays for a provider that asks to be left alone, or for a list that may lag, unless it was
told to wait."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One invocation's work on batches. `folder` holds their files; `forms` gives those of a run; `stays`: it was told
    to wait for what takes longer than `PATIENCE`."""

    database: Database
    ledger: Ledger
    journal: Journal
    control: Control
    accounts: Accounts
    clocks: Clocks
    folder: Path
    workflow: str
    run: int
    event: int
    forms: Callable[[int], Awaitable[Forms]]
    stays: bool

    def account(self, record: BatchRecord) -> Account:
        """The account at which a batch is, or will be."""
        return self.accounts.of(record.provider)

    async def form(self, record: BatchRecord) -> Form | None:
        """How the batch's lines are read: as those of the model that was asked, whatever the stage's fallbacks are by
        now. None where the stage's own provider does no batches any more."""
        forms = await self.forms(record.run_id)
        own = [form for (stage, _), form in forms.items() if stage == record.stage]
        asked = (record.provider, record.model)
        found = next((form for form in own if (form.model.provider.name, form.model.model) == asked), None)
        if found is not None or not own:
            return found
        return form_for(own[0], record.position, self.account(record).provider, record.model)

    def path(self, record: BatchRecord, suffix: str = "") -> Path:
        """The batch's file, or another beside it."""
        return self.folder / (record.file if not suffix else f"{record.intent}{suffix}")

    async def patient(self, fault: Fault, attempt: int, what: str) -> bool:
        """Whether it was waited for another try, after `attempt` of them. Raises Halted when the run stops, which it
        does here for a fault that every further request would meet."""
        if fault.kind is FaultKind.PAUSE and (fault.delay or 0.0) > LONGEST_WAIT:  # another command may come then
            return False
        match decide(fault, attempt, 0, self.clocks.spread()):
            case Again(delay, _) if delay <= PATIENCE or self.stays:
                _log.warning("%s: %s; again in %.1f s", what, fault.message, delay)
                await self.control.sleep(delay)
                return True
            case Again() | GiveUp():
                return False
            case _:
                self.control.fail(fault)
                raise Halted


@asynccontextmanager
async def closing(accounts: Accounts) -> AsyncIterator[Accounts]:
    """The accounts, closed when the block ends."""
    try:
        yield accounts
    finally:
        await accounts.close()
