"""The batches of an invocation, made of what it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agac.engine.batch.accounts import Accounts
from agac.engine.batch.batches import Batches
from agac.engine.batch.form import Forms, forms_of
from agac.engine.batch.journal import Journal
from agac.engine.batch.scene import Scene, closing
from agac.engine.work import InvocationContext
from agac.plan.plan import Plan
from agac.store.batches import was_batched
from agac.store.db import Database


async def has_batches(database: Database, plan: Plan) -> bool:
    """Whether a workflow has a batch stage, or ever had a batch."""
    return any(stage.run_mode == "batch" for stage in plan.asking) or await was_batched(database, plan.workflow)


@asynccontextmanager
async def batches_of(context: InvocationContext) -> AsyncIterator[Batches | None]:
    """The batches of an invocation's workflow; None where rows cannot wait for any."""
    if not context.standing.active:
        yield None
        return
    work, plan, batching, (database, run, event) = context.work, context.plan, context.work.batching, context.places
    known: dict[int, Forms] = {run: forms_of(plan, work.redactor)}

    async def forms(of_run: int) -> Forms:
        if of_run not in known:
            known[of_run] = forms_of(await batching.recorded(database, of_run), work.redactor)
        return known[of_run]

    accounts = Accounts(batching.providers, batching.open_api, work.redactor.clean)
    async with closing(accounts):
        scene = Scene(
            database=database,
            ledger=context.ledger,
            journal=Journal(database, context.ledger, work.clocks.wall),
            control=context.control,
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
            context.purse,
            context.settler.book,
            agree=batching.agree,
            only=batching.only,
            poll=min(polls, default=None),
            takes_over=batching.retrieves is None,
        )
        try:
            yield batches
        finally:
            batches.drop()
