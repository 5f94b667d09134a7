"""The lease: one process at a time works on a workflow, by a row with a heartbeat and a fencing token.

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

from agac.core.errors import LeaseHeld, LeaseLost, StoreError
from agac.store.db import (
    STALE_SECONDS,
    Database,
    change,
    is_alive,
    is_dead,
    select,
    shown,
    sql,
    this_process,
    to_the_end,
    write,
)

BEAT_SECONDS = 5.0
"""A lease whose holder commits nothing shows a sign of life so often."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was ours when it was taken; every commit proves again that it still is."""

    workflow: str
    token: int

    def prove(self, writer: sqlite3.Connection, now: float, lost: str, remedy: str) -> None:
        """Shows a sign of life inside a commit. Raises LeaseLost, in these words, when another process has it."""
        if writer.execute(sql("lease_beat"), (now, self.workflow, self.token)).rowcount == 0:
            raise LeaseLost(f"another process took over workflow {self.workflow!r}{lost}", remedy=remedy)


@asynccontextmanager
async def lease_held(database: Database, workflow: str, clock: Callable[[], float]) -> AsyncIterator[Lease]:
    """The workflow is this process's for the block. Raises LeaseHeld when another live process has it.

    However the block is left, and also when the wait for the lease is cancelled, the lease is given back: one that
    stayed with a living process would keep everybody out for a minute.
    """
    taking = asyncio.ensure_future(change(database, partial(_take, workflow, clock())))

    async def give_back() -> None:
        await asyncio.wait({taking})
        if not taking.cancelled() and taking.exception() is None:
            with suppress(StoreError):  # one that cannot be given back is taken over once this process has ended
                await write(database, "lease_free", workflow, taking.result().token)

    try:
        yield await asyncio.shield(taking)
    finally:
        await to_the_end(give_back())


def _take(workflow: str, now: float, writer: sqlite3.Connection) -> Lease:
    for _, holder, heartbeat_at in writer.execute(sql("lease_read"), (workflow,)).fetchall():
        age = now - heartbeat_at
        if is_alive(holder, age):
            raise LeaseHeld(
                f"workflow {workflow!r} is being run by another process ({shown(holder)}, "
                f"last sign of life {max(age, 0):.0f} s ago)",
                remedy="wait for it to end, or stop it; if it hangs it is taken over "
                f"{STALE_SECONDS:.0f} s after its last sign of life",
            )
    values = {"workflow": workflow, "holder": this_process(), "now": now}
    (token,) = writer.execute(sql("lease_take"), values).fetchone()
    return Lease(workflow, int(token))


async def holder_of(database: Database, workflow: str) -> str | None:
    """The live process that works on a workflow, in words; None when there is none."""
    for _, holder, _ in await select(database, "lease_read", tuple[int, str, float], workflow):
        if holder and not is_dead(holder):
            return shown(holder)
    return None
