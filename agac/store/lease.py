"""One process at a time works on a workflow: a lease row with a heartbeat and a fencing token.

A dead holder is taken over at once when it ran on this machine and its process is gone, else once its heartbeat is
older than `STALE_SECONDS`. A holder that slept through that finds its token outdated in its next commit, and writes
nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from agac.core.errors import LeaseHeld, StoreError
from agac.store.db import Database, translated
from agac.store.holders import STALE_SECONDS, is_alive, is_dead, shown, this_process
from agac.store.shielded import to_the_end
from agac.store.sql import sql

BEAT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was ours when it was taken; every commit proves again that it still is."""

    workflow: str
    token: int


@asynccontextmanager
async def lease_held(database: Database, workflow: str, clock: Callable[[], float]) -> AsyncIterator[Lease]:
    """The workflow is this process's for the block. Raises LeaseHeld when another live process has it.

    However the block is left, and also when the wait for the lease is cancelled, the lease is given back: one that
    stayed with a living process would keep everybody out for a minute.
    """
    taking = asyncio.ensure_future(take_lease(database, workflow, clock()))
    try:
        yield await asyncio.shield(taking)
    finally:
        await to_the_end(_give_back(database, taking))


async def _give_back(database: Database, taking: asyncio.Task[Lease]) -> None:
    await asyncio.wait({taking})
    if not taking.cancelled() and taking.exception() is None:
        with suppress(StoreError):  # one that cannot be given back is taken over once this process has ended
            await free_lease(database, taking.result())


async def take_lease(database: Database, workflow: str, now: float) -> Lease:
    """Takes the workflow for this process. Raises LeaseHeld when another live process has it."""
    assert database.writer is not None
    with translated(database.path):
        return await database.writer.at_once(partial(_take, workflow, now))


def _take(workflow: str, now: float, writer: sqlite3.Connection) -> Lease:
    writer.execute("BEGIN IMMEDIATE")
    try:
        found = writer.execute(sql("lease_read"), (workflow,)).fetchone()
        if found:
            _refuse_living(workflow, holder=found[1], age=now - found[2])
        parameters = {"workflow": workflow, "holder": this_process(), "now": now}
        (token,) = writer.execute(sql("lease_take"), parameters).fetchone()
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        raise
    return Lease(workflow, int(token))


def _refuse_living(workflow: str, *, holder: str, age: float) -> None:
    """A clock that was set back makes the age negative: that is no proof of death, so it counts as fresh."""
    if is_alive(holder, age):
        raise LeaseHeld(
            f"workflow {workflow!r} is being run by another process ({shown(holder)}, "
            f"last sign of life {max(age, 0):.0f} s ago)",
            remedy="wait for it to end, or stop it; if it hangs it is taken over "
            f"{STALE_SECONDS:.0f} s after its last sign of life",
        )


async def free_lease(database: Database, lease: Lease) -> None:
    """Gives the lease back; does nothing when it is no longer ours."""
    assert database.writer is not None
    with translated(database.path):
        await database.writer.execute(sql("lease_free"), (lease.workflow, lease.token))


async def holder_of(database: Database, workflow: str) -> str | None:
    """The live process that works on a workflow, in words; None when there is none."""
    with translated(database.path):
        rows = list(await database.reader.execute_fetchall(sql("lease_read"), (workflow,)))
    if not rows or not rows[0][1] or is_dead(rows[0][1]):
        return None
    return shown(rows[0][1])
