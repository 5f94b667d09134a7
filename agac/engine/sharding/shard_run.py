"""Works on a shard in one process: shows signs of life, puts its answers into the remote, and says
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
from agac.engine.output.run_summary import calls_of
from agac.engine.sharding.folder import ITS_BATCHES, PaidCalls, ShardManifest, ShardStatus
from agac.engine.sharding.leases import SharedLimits
from agac.engine.sharding.row_packs import put_rows
from agac.engine.sharding.shard_lease import ShardLease
from agac.engine.stage_summary import CallCounts
from agac.engine.stop_rules import RunStopped, StopRules, StopSignal
from agac.engine.summary import RunSummary, added_records
from agac.engine.totals import Totals
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database

EVERY = 2.0
"""Seconds between looks at what changed."""

BEAT_SECONDS = 10.0
"""Seconds between signs of life while something changes."""

QUIET_SECONDS = 60.0
"""Seconds between signs of life while nothing changes."""

PUSH_SECONDS = 15.0
"""Seconds for which answers are on this machine alone, at most."""

_log = logging.getLogger("agac.shard")


@dataclass(frozen=True, slots=True)
class WorkingShard:
    """The parts of an invocation that its shard uses."""

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
    """The end of an invocation of a shard."""

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
    """A shard in one invocation."""

    def __init__(
        self,
        lease: ShardLease,
        read: InputDigest,
        push: Callable[[], Awaitable[None]],
        go_on: Callable[[runs.RunRecord], str],
    ) -> None:
        """`read` learns what the whole input is. `push` puts new answers into the remote. `go_on`
        makes the command that resumes a run."""
        self.lease = lease
        self.folder = lease.folder
        self.shard = lease.shard
        self.read = read
        self._push = push
        self._go_on = go_on
        self.waits = ""
        """What it waits for, so that it has to be run again."""
        self.taken = dict[str, str]()
        """The marks of members of groups that came from other shards
        (`group_packs.GroupExchange`)."""
        self.limits: SharedLimits | None = None
        """What it shares with the other shards, once it has begun."""
        self._paid = ""
        self._elsewhere = list[CallCounts]()
        """The calls that other stores of the shard know of."""

    async def begin(self, working: WorkingShard) -> None:
        """Begins to share budgets and lanes with all shards."""
        token = await project_token(working.database)
        self._paid = f"paid/{self.shard.name}/{token}"
        paid = await self.folder.paid(self._paid)
        self._elsewhere = [read_as(CallCounts, calls) for calls in paid]
        self.limits = SharedLimits(
            self.lease,
            token,
            working.budgets.balances if working.budgets is not None else (),
            working.lanes.values(),
            working.stop_signal,
            working.stops,
        )
        await self.limits.begin()
        if working.budgets is not None:
            working.budgets.lender = self.limits

    @property
    def processes(self) -> int:
        """How many shards share what accounts take."""
        if self.limits is not None:
            return self.limits.processes
        return self.shard.of

    async def run(self, working: WorkingShard) -> None:
        """Shows signs of life, pushes answers and hears of the other shards, until cancelled."""
        clock = self.lease.clock
        shown = dict[str, Any]()
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
                if clock() - beat_at >= (BEAT_SECONDS if facts != shown else QUIET_SECONDS):
                    await self.lease.beat(ShardStatus(**self.lease.about(), **facts))
                    shown = facts
                    beat_at = clock()
                if self.limits is not None and clock() - heard_at >= BEAT_SECONDS:
                    alive = await self.folder.alive(in_full=working.counts_errors)
                    await self.limits.heard(alive)
                    heard_at = clock()
                if clock() - pushed_at >= PUSH_SECONDS:
                    await self._push()
                    await self._put_paid(counts)
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
        """Proves after a silence that this process still holds the shard, before it pays for
        something.

        Waits until the remote can be reached. Raises RunStopped if another process holds it."""
        while True:
            try:
                return await self.lease.prove()
            except LeaseLost as error:
                stop_signal.lose_input(error)
                raise RunStopped from None
            except AgacError:  # `run` logs it
                await stop_signal.sleep(BEAT_SECONDS)

    def _facts(self, run: int, counts: list[runs.Count], errors: int) -> dict[str, Any]:
        """Returns what a status says of the shard's rows and calls."""
        calls = added_records([calls_of(counts), *self._elsewhere])
        return {
            **self.shard._asdict(),
            "run": run,
            "rows": runs.row_counts(counts),
            "calls": calls.count,
            "input_tokens": calls.tokens.input,
            "output_tokens": calls.tokens.output,
            "usd": calls.cost.usd,
            "simulated": calls.cost.is_simulated,
            "errors": errors,
        }

    async def _put_paid(self, counts: list[runs.Count]) -> None:
        """Puts the calls that this store knows of into the remote, since its disk may be lost."""
        calls = calls_of(counts)
        paid = PaidCalls(**self.lease.about(), calls=calls.as_json())

        def entry(last: bytes | None) -> bytes | None:
            before = None
            if last is not None:
                before = self.folder.believed(PaidCalls, self._paid, last)
            if before is not None and before.calls == paid.calls:
                return None
            return paid.model_dump_json().encode()

        if self._paid and (calls.count or self._elsewhere):
            await self.folder.append(self._paid, entry)

    async def end(self, database: Database, root: Path, end: ShardEnd) -> None:
        """Leaves in the remote how the invocation ended, the command that continues it, and the
        final rows of a complete shard.

        Raises AgacError if it cannot, and then the same command does it again; LeaseLost if
        another process holds the shard."""
        await self._push()
        record = await runs.run_record(database, end.run)
        packs = {}
        if end.complete:
            packs = await put_rows(database, record, root, self.folder, self.shard.of)
        counts = await runs.counters(database, end.run)
        await self._put_paid(counts)
        await self.lease.prove()  # all that may have taken its time
        about = self.lease.about()
        stopped = not end.ended or bool(self.waits)
        status = ShardStatus(
            **about,
            **self._facts(end.run, counts, end.rows_failed),
            waits=self._waits_after(end),
            state="stopped" if stopped else "ended",
            why=end.why,
            command=end.command,
        )
        summary = replace(end.summary, calls=added_records([end.summary.calls, *self._elsewhere]))
        manifest = ShardManifest(
            **about,
            status=status,
            exit_code=end.exit_code,
            complete=end.complete,
            input=self.read.text,
            input_rows=self.read.rows,
            summary=summary.as_json(),
            packs=packs,
            taken=self.taken,
        )

        def entry(last: bytes | None) -> bytes:
            before = None
            if last is not None:
                before = self.folder.believed(ShardManifest, "ended", last)
            return self._following(manifest, before).model_dump_json().encode()

        await self.folder.append(f"ended/{self.shard.name}", entry)
        await self.lease.beat(status)  # the others share what accounts take from now on

    def _waits_after(self, end: ShardEnd) -> str:
        """Returns what the shard waits for after its invocation; empty: nothing."""
        if self.waits or end.complete or not end.ended:
            return self.waits
        return ITS_BATCHES if end.has_batches else "rows that are left"

    def _following(self, manifest: ShardManifest, before: ShardManifest | None) -> ShardManifest:
        """Returns a manifest with what an earlier invocation of the shard says, too."""
        if before is None:
            return manifest
        # what an earlier invocation of the run took is in its groups
        run = f"{manifest.status.run} "
        taken = {key: mark for key, mark in before.taken.items() if key.startswith(run)}
        changes: dict[str, Any] = {"taken": taken | self.taken}
        if not self.read.text and not self.read.rows:  # this one did not read the input
            changes |= {"input": before.input, "input_rows": before.input_rows}
        return manifest.model_copy(update=changes)
