"""The lease: one process at a time works on a workflow, by a row with a heartbeat and a fencing
token. A dead holder is taken over at once when it ran on this machine and its process is gone,
else once its heartbeat is older than `STALE_SECONDS`. One that slept through that finds its token
outdated in its next commit, and writes nothing."""

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

from agac.core.errors import LeaseHeld, LeaseLost, StoreError
from agac.store.db import Database, change, select, sql, to_the_end, write

BEAT_SECONDS = 5.0  # a lease whose holder commits nothing shows a sign of life so often
STALE_SECONDS = (
    60.0  # without a sign of life for so long a holder of a lease counts as gone, wherever it is
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was ours when it was taken; every commit proves again that it still is."""

    workflow: str
    token: int

    def prove(self, writer: sqlite3.Connection, now: float, lost: str, remedy: str) -> None:
        """Shows a sign of life inside a commit. Raises LeaseLost, in these words, when another
        process has it."""
        if writer.execute(sql("lease_beat"), (now, self.workflow, self.token)).rowcount == 0:
            raise LeaseLost(
                f"another process took over workflow {self.workflow!r}{lost}", remedy=remedy
            )


@asynccontextmanager
async def lease_held(
    database: Database, workflow: str, clock: Callable[[], float]
) -> AsyncIterator[Lease]:
    """Takes the workflow for this process during the block. Raises LeaseHeld if another live
    process has it.

    However the block is left, and also if the wait for the lease is cancelled, the lease is given
    back: one that stayed with a living process would keep all others out for a minute."""
    taking = asyncio.ensure_future(change(database, partial(_take, workflow, clock())))

    async def give_back() -> None:
        await asyncio.wait({taking})
        if not taking.cancelled() and taking.exception() is None:
            # one that cannot be given back is taken over once this process has ended
            with suppress(StoreError):
                await write(database, "lease_free", workflow, taking.result().token)

    try:
        yield await asyncio.shield(taking)
    finally:
        await to_the_end(give_back())


def _take(workflow: str, now: float, writer: sqlite3.Connection) -> Lease:
    for held, holder, heartbeat_at in writer.execute(sql("leases")).fetchall():
        age = now - heartbeat_at
        if held == workflow and is_alive(holder, age):
            if holder == this_process():
                who = "this process already"
            else:
                who = "another process"
            raise LeaseHeld(
                f"workflow {workflow!r} is being run by {who} ({shown(holder)}, "
                f"last sign of life {max(age, 0):.0f} s ago)",
                remedy="wait for it to end, or stop it; if it hangs it is taken over "
                f"{STALE_SECONDS:.0f} s after its last sign of life",
            )
    values = {"workflow": workflow, "holder": this_process(), "now": now}
    (token,) = writer.execute(sql("lease_take"), values).fetchone()
    return Lease(workflow, int(token))


async def holder_of(database: Database, workflow: str) -> str | None:
    """Returns the live process that works on a workflow, in words; None if there is none."""
    held = await select(database, "leases", tuple[str, str, float])
    return next(
        (shown(holder) for one, holder, _ in held if one == workflow and not is_dead(holder)), None
    )


def is_alive(holder: str, age: float) -> bool:
    """True if a live process holds a lease whose last sign of life is `age` seconds old. A clock
    that was set back makes the age negative: that is no proof of death, so it counts as fresh."""
    return age < STALE_SECONDS and not is_dead(holder)


def this_process() -> str:
    """Names this process so that another one on the same machine can tell whether it still
    lives."""
    return (
        f"{socket.gethostname()} {_boot_id()}/{_pid_namespace()} {os.getpid()} "
        f"{_state_and_start(os.getpid())[1]}"
    )


def is_dead(holder: str) -> bool:
    """True if the holder surely no longer runs. Unknown (another machine) counts as alive."""
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
    state, now = _state_and_start(int(pid))
    # the number was given to another process, or nobody has fetched its end
    return now != started or state == "Z"


def is_dead_here(holder: str) -> bool:
    """True if a holder ran on this machine since it was started, and no longer runs; another one
    may have its name."""
    return f" {_boot_id()}/" in holder and is_dead(holder)


def _state_and_start(pid: int) -> tuple[str, str]:
    with suppress(OSError, IndexError):
        found = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        # proc(5): the state is field 3, the start time field 22; 3 is the first after ")"
        return found[0], found[19]
    return "-", "-"


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return "-"


def _pid_namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return "-"


def shown(holder: str) -> str:
    """Describes a holder in words."""
    parts = holder.split(" ")
    if len(parts) == 4:
        return f"process {parts[2]} on {parts[0]}"
    return holder
