"""Work on batches without a run: ending them, and finding out what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agac.core.redact import Redactor
from agac.engine.batch.accounts import Accounts
from agac.engine.batch.collect import Collector
from agac.engine.batch.form import Forms, forms_of
from agac.engine.batch.ingest import Ingester
from agac.engine.batch.journal import Journal
from agac.engine.batch.scene import Scene, closing
from agac.engine.batch.submit import Submitter
from agac.engine.callbook import CallBook
from agac.engine.control import Control
from agac.engine.totals import Totals
from agac.engine.work import Batching, Clocks
from agac.store.db import Database
from agac.store.lease import lease_held
from agac.store.ledger import Ledger

NO_RUN = 0


@dataclass(frozen=True, slots=True)
class Tending:
    """A workflow's batches, and who works on them, under its lease."""

    scene: Scene
    submitter: Submitter
    collector: Collector
    ingester: Ingester


@asynccontextmanager
async def tending(
    database: Database, workflow: str, batching: Batching, redactor: Redactor, clocks: Clocks
) -> AsyncIterator[Tending]:
    """The workflow's batches, for the block. Raises LeaseHeld when another process works on the workflow."""
    known: dict[int, Forms] = {}

    async def forms(run: int) -> Forms:
        if run not in known:
            known[run] = forms_of(await batching.recorded(database, run), redactor)
        return known[run]

    accounts = Accounts(batching.providers, batching.open_api, redactor.clean)
    async with lease_held(database, workflow, clocks.wall) as lease, closing(accounts):
        ledger = Ledger(
            database, lease, run=NO_RUN, event=NO_RUN, urge=1, clock=clocks.wall, released=lambda _calls: None
        )  # fmt: skip
        scene = Scene(
            database=database,
            ledger=ledger,
            journal=Journal(database, ledger, clocks.wall),
            control=Control(),
            accounts=accounts,
            clocks=clocks,
            folder=batching.folder,
            workflow=workflow,
            run=NO_RUN,
            event=NO_RUN,
            forms=forms,
            stays=False,
        )
        submitter = Submitter(scene)
        ingester = Ingester(scene, None, CallBook(ledger, Totals(), "all"))
        beating = asyncio.ensure_future(ledger.run())  # signs of life, while a provider takes its time
        try:
            yield Tending(scene, submitter, Collector(scene, submitter, ingester), ingester)
        finally:
            beating.cancel()
            await asyncio.wait({beating})
