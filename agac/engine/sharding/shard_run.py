"""One process at work on a shard: its signs of life, its answers on their way to the remote, and
how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import AgacError, LeaseLost
from agac.core.reading import read_as
from agac.data.sources import InputDigest
from agac.engine.ask.limits import BudgetLimiter
from agac.engine.ask.rate_limiter import Lane
from agac.engine.output.telemetry import calls_of
from agac.engine.sharding.folder import (
    ITS_BATCHES,
    PaidCalls,
    ShardLease,
    ShardManifest,
    ShardStatus,
)
from agac.engine.sharding.leases import SharedLimits
from agac.engine.sharding.row_packs import put_rows
from agac.engine.stage_summary import CallCounts
from agac.engine.stop_rules import RunStopped, StopRules, StopSignal
from agac.engine.summary import RunSummary, added_records
from agac.engine.totals import Totals
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database

EVERY = 2.0  # seconds between looks at what changed
BEAT_SECONDS = 10.0  # between signs of life while things change, and while nothing does
QUIET_SECONDS = 60.0
PUSH_SECONDS = 15.0  # answers stay on this machine alone no longer than that

_log = logging.getLogger("agac.shard")


@dataclass(frozen=True, slots=True)
class WorkingShard:
    """What a shard shares of its invocation while that works."""

    database: Database
    """The shard's own store."""
    run: int
    """The number of the run in that store."""
    totals: Totals
    """The counts of the invocation."""
    budgets: BudgetLimiter | None
    """The budgets that all shards share; None: there are none."""
    stop_signal: StopSignal
    """Stops the invocation."""
    stops: StopRules
    """What makes it stop; failures in other shards count there."""
    lanes: Mapping[str, Lane]
    """The lanes of the invocation, by name."""
    counts_errors: bool
    """True if the run has a bound on failed rows, so that those of all shards are counted."""


class ShardEnd(NamedTuple):
    """How an invocation of a shard ended."""

    run: int
    """The number of the run in the shard's store."""
    rows_failed: int
    """Rows that failed in the invocation."""
    ended: bool
    """True if the invocation did all that it was to do."""
    complete: bool
    """True if the run is complete as well."""
    has_batches: bool
    """True if the workflow has batches."""
    why: str
    """Why it stopped, in words."""
    exit_code: int
    """The exit code of the process."""
    summary: RunSummary
    """The summary of the run."""
    command: str
    """The command that continues it."""


class ShardRun:
    """A shard in one invocation. `read` learns what the whole input is; `push` puts new answers
    into the remote, `go_on` makes the command that resumes a run. `waits`: for what it has to be
    run again; `taken`: the marks of members of groups that came from other shards
    (`group_packs.GroupExchange`)."""

    def __init__(
        self, lease: ShardLease, read: InputDigest, push: Callable[[], Awaitable[None]],
        go_on: Callable[[runs.RunRecord], str],
    ) -> None:  # fmt: skip
        self.lease = lease
        self.folder = lease.folder
        self.shard = lease.shard
        self.read = read
        self._push = push
        self.waits = ""
        self.taken = dict[str, str]()
        self._go_on = go_on
        self.limits: SharedLimits | None = None
        self._paid = ""
        self._elsewhere = list[CallCounts]()

    async def begin(self, working: WorkingShard) -> None:
        """Shares budgets and lanes with all shards from now on."""
        token = await project_token(working.database)
        balances = working.budgets and working.budgets.balances
        self._paid = f"paid/{self.shard.name}/{token}"
        paid = await self.folder.paid(self._paid)
        self._elsewhere = [read_as(CallCounts, calls) for calls in paid]
        about = token, balances or (), working.lanes.values(), working.stop_signal, working.stops
        self.limits = SharedLimits(self.lease, *about)
        await self.limits.begin()
        if working.budgets is not None:
            working.budgets.lender = self.limits

    @property
    def processes(self) -> int:
        """So many shards share what accounts take."""
        if self.limits is not None:
            return self.limits.processes
        return self.shard.of

    async def run(self, working: WorkingShard) -> None:
        """Shows signs of life, pushes answers and hears of the other shards, until cancelled."""
        clock = self.lease.clock
        told = dict[str, Any]()
        beat_at = 0.0
        pushed_at = clock()
        heard_at = 0.0
        command = self._go_on(await runs.run_record(working.database, working.run))
        while True:
            counts = await runs.counters(working.database, working.run)
            facts = self._facts(working.run, counts, working.totals.rows.failed)
            busy = {name: lane.in_flight for name, lane in working.lanes.items()}
            facts |= {"lanes": busy, "waits": self.waits, "command": command}
            try:
                if clock() - beat_at >= (BEAT_SECONDS if facts != told else QUIET_SECONDS):
                    await self.lease.beat(ShardStatus(**self.lease.about(), **facts))
                    told = facts
                    beat_at = clock()
                if self.limits is not None and clock() - heard_at >= BEAT_SECONDS:
                    alive = await self.folder.alive(in_full=working.counts_errors)
                    await self.limits.heard(alive)
                    heard_at = clock()
                if clock() - pushed_at >= PUSH_SECONDS:
                    await self._push()
                    await self._tell_paid(counts)
                    pushed_at = clock()
                pause = EVERY
            except LeaseLost as error:
                working.stop_signal.lose_input(error)
                return
            except AgacError as error:
                _log.warning("shard %s could not tell how it is: %s", self.shard, error.message)
                pause = BEAT_SECONDS
            await asyncio.sleep(pause)

    async def prove(self, stop_signal: StopSignal) -> None:
        """Before something is paid for: proves, after a silence, that the shard is still ours, as
        soon as the remote can be reached. Raises RunStopped where it is another's."""
        while True:
            try:
                return await self.lease.prove()
            except LeaseLost as error:
                stop_signal.lose_input(error)
                raise RunStopped from None
            except AgacError:  # `run` says so
                await stop_signal.sleep(BEAT_SECONDS)

    def _facts(self, run: int, counts: list[runs.Count], errors: int) -> dict[str, Any]:
        calls = added_records([calls_of(counts), *self._elsewhere])
        told = {
            "calls": calls.count,
            "usd": calls.cost.usd,
            "simulated": calls.cost.is_simulated,
            "run": run,
            "input_tokens": calls.tokens.input,
            "output_tokens": calls.tokens.output,
        }
        return {**self.shard._asdict(), **told, "rows": runs.row_counts(counts), "errors": errors}

    async def _tell_paid(self, counts: list[runs.Count]) -> None:
        """Says what the calls came to of which this store knows: its disk may be lost."""
        calls = calls_of(counts)
        told = PaidCalls(**self.lease.about(), calls=calls.as_json())

        def made(last: bytes | None) -> bytes | None:
            if last is not None:
                before = self.folder.believed(PaidCalls, self._paid, last)
            else:
                before = None
            if before is not None and before.calls == told.calls:
                return None
            return told.model_dump_json().encode()

        if self._paid and (calls.count or self._elsewhere):
            await self.folder.append(self._paid, made)

    async def end(self, database: Database, root: Path, end: ShardEnd) -> None:
        """Leaves in the remote how the invocation ended, the command that goes on, and the final
        rows of a shard that is complete. Raises AgacError where it cannot: the same command does
        it again; LeaseLost where the shard is another's by now."""
        await self._push()
        record = await runs.run_record(database, end.run)
        if end.complete:
            packs = await put_rows(database, record, root, self.folder, self.shard.of)
        else:
            packs = {}
        counts = await runs.counters(database, end.run)
        await self._tell_paid(counts)
        await self.lease.prove()  # all that may have taken its time
        stopped = not end.ended or bool(self.waits)
        about = self.lease.about()
        waits = self.waits
        if not (waits or end.complete or not end.ended):
            waits = ITS_BATCHES if end.has_batches else "rows that are left"
        summary = replace(end.summary, calls=added_records([end.summary.calls, *self._elsewhere]))
        status = ShardStatus(
            **about,
            **self._facts(end.run, counts, end.rows_failed),
            waits=waits,
            state="stopped" if stopped else "ended",
            why=end.why,
            command=end.command,
        )

        def made(last: bytes | None) -> bytes:
            if last is not None:
                before = self.folder.believed(ShardManifest, "ended", last)
            else:
                before = None
            read = (self.read.text, self.read.rows)
            taken = dict[str, str]()
            if before is not None:  # what an earlier invocation of the run took is in its groups
                taken = {
                    key: mark for key, mark in before.taken.items() if key.startswith(f"{end.run} ")
                }
            if not (self.read.text or self.read.rows) and before is not None:
                read = before.input, before.input_rows  # it did not read the input
            return (
                ShardManifest(
                    **about,
                    status=status,
                    exit_code=end.exit_code,
                    complete=end.complete,
                    input=read[0],
                    input_rows=read[1],
                    summary=summary.as_json(),
                    packs=packs,
                    taken=taken | self.taken,
                )
                .model_dump_json()
                .encode()
            )

        await self.folder.append(f"ended/{self.shard.name}", made)
        await self.lease.beat(status)  # what accounts take is the others' from now on
