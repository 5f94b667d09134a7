"""The batches of an invocation, made of what it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agac.engine.batch.accounts import Accounts
from agac.engine.batch.batches import Batches
from agac.engine.batch.form import Forms, forms_of
from agac.engine.batch.journal import Journal
from agac.engine.batch.scene import Scene, closing
from agac.engine.budget import Purse
from agac.engine.callbook import CallBook
from agac.engine.control import Control
from agac.engine.work import Work
from agac.store.batches import was_batched
from agac.store.db import Database
from agac.store.ledger import Ledger


@asynccontextmanager
async def batches_of(
    work: Work, database: Database, ledger: Ledger, control: Control, purse: Purse | None, book: CallBook, *, run: int,
    event: int,
) -> AsyncIterator[Batches | None]:  # fmt: skip
    """The batches of an invocation's workflow; None where it has no batch stage and never had a batch."""
    plan, batching = work.plan, work.batching
    if not any(stage.run_mode == "batch" for stage in plan.asking) and not await was_batched(database, plan.workflow):
        yield None
        return
    known: dict[int, Forms] = {run: forms_of(plan, work.redactor)}

    async def forms(of_run: int) -> Forms:
        if of_run not in known:
            known[of_run] = forms_of(await batching.recorded(database, of_run), work.redactor)
        return known[of_run]

    accounts = Accounts(batching.providers, batching.open_api, work.redactor.clean)
    async with closing(accounts):
        scene = Scene(
            database=database,
            ledger=ledger,
            journal=Journal(database, ledger, work.clocks.wall),
            control=control,
            accounts=accounts,
            clocks=work.clocks,
            folder=batching.folder,
            workflow=plan.workflow,
            run=run,
            event=event,
            forms=forms,
            stays=batching.stays,
        )
        polls = [stage.batch.poll_interval for stage in plan.asking if stage.batch.poll_interval is not None]
        batches = Batches(
            scene,
            purse,
            book,
            agree=batching.agree,
            only=batching.only,
            poll=min(polls, default=None),
            takes_over=batching.retrieves is None,
        )
        try:
            yield batches
        finally:
            batches.drop()
