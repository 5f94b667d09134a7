"""Runs, their invocations and their roll-ups; and the lease: one process at a time works on a workflow, by a row with a
heartbeat and a fencing token.

A dead holder is taken over at once when it ran on this machine and its process is gone, else once its heartbeat is
older than `STALE_SECONDS`. A holder that slept through that finds its token outdated in its next commit, and writes
nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from agac.core.errors import LeaseHeld, LeaseLost, StoreError
from agac.core.keys import canonical, snapshot
from agac.store.db import (
    STALE_SECONDS,
    Database,
    Reads,
    change,
    first,
    is_alive,
    is_dead,
    reads,
    select,
    shown,
    sql,
    this_process,
    to_the_end,
    write,
)

KILLED = 137
"""The exit code that is noted for an invocation that could not say one: 128 + SIGKILL."""


UNWRITTEN = [-1, -1]
"""In `exported_files` a table that could not be written: no file ever is so, so that the next run tries again."""


class InvocationRecord(NamedTuple):
    """One call of `agac run`. `ended_at` is None while it runs, and for ever when it was killed."""

    id: int
    at: float
    ended_at: float | None
    exit_code: int | None
    body: dict[str, Any]


class LastInvocation(NamedTuple):
    """An invocation with the run that it was about."""

    run: int
    invocation: InvocationRecord


class RunRecord(NamedTuple):
    """A run as it is stored. Times in seconds since 1970, UTC.

    `outputs` is what is written beside the JSON files, and how. `exported_files` is what the output files were when
    they showed `exported_revision`: name → [bytes, mtime in ns].
    """

    id: int
    workflow: str
    selection: dict[str, Any]
    output_dir: str
    include_input: bool
    outputs: dict[str, Any]
    fresh_since: float | None
    created_at: float
    finished_at: float | None
    revision: int
    exported_revision: int | None
    exported_files: dict[str, list[int]]
    invocation: InvocationRecord | None


class Count(NamedTuple):
    """One roll-up: how many tasks (or rows, or calls) ended in this way, and what they took."""

    stage: str
    outcome: str
    error_type: str
    model: str
    tasks: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: float
    unpriced: int
    simulated: int
    held_cost: float
    held_tokens: int


class RunIdentity(NamedTuple):
    """What makes two invocations the same run."""

    workflow: str
    definition_hash: bytes
    selection: str


class OutputPlace(NamedTuple):
    """Where and how a run's outputs are written; no part of its identity. `outputs` is canonical JSON."""

    output_dir: str
    include_input: bool
    outputs: str


class WrittenFiles(NamedTuple):
    """What a run left in its output folder, as `RunRecord.exported_files` has it. `shown`: no run wrote there since."""

    run: int
    shown: bool
    files: dict[str, list[int]]


# By a run's number, if no other argument is named.
read_run: Reads[[int], RunRecord | None] = reads("run_read", RunRecord, first)
definition_of: Reads[[int], dict[str, Any]] = reads("definition_body", dict[str, Any], first)
run_settings_of: Reads[[int], dict[str, Any] | None] = reads("run_manner_read", dict[str, Any], first)
counters: Reads[[int], list[Count]] = reads("counters", Count)
was_read: Reads[[int], bool] = reads("run_was_read", int, bool)
input_read_at: Reads[[int], float | None] = reads("run_read_at", float, first)
"""In seconds since 1970; None: the input was not read to its end, or is being read."""

newest_run: Reads[[str, bytes, str], int | None] = reads("run_newest", int, first)  # workflow, hash, selection
run_ids: Reads[[str | None], list[int]] = reads("run_ids", int)
last_invocation: Reads[[str], LastInvocation | None] = reads("invocation_last", LastInvocation, first)
files_written: Reads[[str], list[WrittenFiles]] = reads("run_files", WrittenFiles)
lost_calls: Reads[[int, int], int] = reads("lost_calls", int, lambda found: found[0] or 0)  # run, but one event


async def waiting_for(database: Database, event: int) -> dict[str, str] | None:
    """Why the last call of an invocation brought no answer; None when it did, or when others made many since."""
    for unanswered, kind, message in await select(database, "call_last", tuple[bool, str, str], event):
        return {"type": kind, "message": message} if unanswered else None
    return None


async def keep_definition(database: Database, identity: RunIdentity, body: str, now: float) -> None:
    """Stores the resolved workflow, once for all runs that share it."""
    await write(database, "definition_keep", identity.definition_hash, identity.workflow, body, now)


async def make_run(database: Database, identity: RunIdentity, where: OutputPlace, *, fresh: bool, now: float) -> int:
    """A new run; `fresh`: only results made from now on are reused in it."""
    return await write(database, "run_make", *identity, *where, now if fresh else None, now)


async def retarget_run(database: Database, run: int, where: OutputPlace) -> None:
    """Notes where this invocation wants its outputs, and how."""
    values = {"dir": where.output_dir, "include": where.include_input, "outputs": where.outputs, "run": run}
    await write(database, "run_retarget", **values)


async def store_run_settings(database: Database, run: int, settings: dict[str, Any]) -> None:
    """Notes how a run goes about its definition (`plan.run_settings`)."""
    await write(database, "run_manner", snapshot(settings), run)


async def begin_invocation(database: Database, run: int, body: dict[str, Any], now: float) -> int:
    """Records that an invocation begins, and gives its number."""
    return await write(database, "event_make", run, "invocation", now, canonical(body))


async def end_invocation(database: Database, event: int, exit_code: int, body: dict[str, Any], now: float) -> None:
    """Records how an invocation ended."""
    await write(database, "event_end", now, exit_code, canonical(body), event)


async def note_reading(database: Database, run: int, at: float | None) -> None:
    """A pass over the input begins (`at` None), or came to its end."""
    await write(database, "run_reading", at, run)


def row_counts(counts: Iterable[Count]) -> dict[str, int]:
    """Rows by outcome; `present` is all of them that stand in the input, `open` those without an outcome."""
    found = dict.fromkeys(("present", "done", "skipped", "failed", "dropped"), 0)
    for count in counts:
        if count.stage == "":
            found[count.outcome] += count.tasks
    return found | {"open": 2 * found["present"] - sum(found.values())}


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
