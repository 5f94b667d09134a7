"""One process at a time works on a workflow: a lease row with a heartbeat and a fencing token.

A dead holder is taken over at once when it ran on this machine and its process is gone, else once its heartbeat is
older than `STALE_SECONDS`. A holder that slept through that finds its token outdated in its next commit, and writes
nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agac.core.errors import LeaseHeld, StoreError
from agac.store.db import Database, translated
from agac.store.shielded import to_the_end
from agac.store.sql import sql

STALE_SECONDS = 60.0
BEAT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was ours when it was taken; every commit proves again that it still is."""

    workflow: str
    token: int


def this_process() -> str:
    """Names this process so that another one on the same machine can tell whether it still lives."""
    return f"{socket.gethostname()} {_boot_id()}/{_pid_namespace()} {os.getpid()} {_started(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Whether the holder surely no longer runs. Unknown (another machine) counts as alive."""
    parts = holder.split(" ")
    if len(parts) != 4 or parts[0] != socket.gethostname():
        return False
    _, machine, pid, started = parts
    boot, _, namespace = machine.partition("/")
    if boot != _boot_id():
        return True  # the machine was started again since
    if namespace != _pid_namespace():
        return False  # another container: its process numbers mean nothing here
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # alive, another user's
    return _started(int(pid)) != started or _is_zombie(int(pid))  # the number was given to another process


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else "-"  # proc(5): starttime is field 22, the third after the name is 3


def _is_zombie(pid: int) -> bool:
    return _stat_fields(pid)[:1] == ["Z"]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "-"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


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
    if holder and age < STALE_SECONDS and not is_dead(holder):
        raise LeaseHeld(
            f"workflow {workflow!r} is being run by another process ({_shown(holder)}, "
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
    return _shown(rows[0][1])


def _shown(holder: str) -> str:
    parts = holder.split(" ")
    return f"process {parts[2]} on {parts[0]}" if len(parts) == 4 else holder
