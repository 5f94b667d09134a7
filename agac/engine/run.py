"""One invocation of a run: the lease, the rows, the end. What it leaves behind is in the store after every line."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from agac.core.errors import AgacError, ExitCode
from agac.core.keys import canonical
from agac.core.redact import Redactor
from agac.core.types import Row
from agac.engine.call import Caller, Line
from agac.engine.control import Control, Stop
from agac.engine.intake import Intake, Places, scan_ids
from agac.engine.limits import Exposure, Lane, Slots
from agac.engine.lookup import Lookup
from agac.engine.segment import Segment
from agac.engine.settle import Settler
from agac.engine.totals import Totals
from agac.engine.validate import Checker
from agac.engine.window import walk_all
from agac.plan.plan import Plan, PlannedStage
from agac.providers.dialects import DIALECTS
from agac.providers.http import Sender
from agac.providers.prices import price_of
from agac.providers.table import Price
from agac.store import runs
from agac.store.db import Database
from agac.store.lease import free_lease, take_lease
from agac.store.ledger import Ledger
from agac.store.results import newest_result
from agac.store.rows import count_rows

_log = logging.getLogger("agac.run")

DRAIN_SECONDS = 60.0
"""After the first Ctrl-C calls in flight may take so long to finish; then they are given up."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time and chance come from: wall and monotonic seconds, a number in [0, 1)."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    spread: Callable[[], float] = random.random


@dataclass(slots=True)
class Invocation:
    """One invocation while it goes on and after it: what to show, and how it ended.

    `lost_calls` is the most calls that a killed invocation before this one may have paid for without a stored answer.
    `given` is what its caller changed, by option: what it takes to ask for the same run again.
    """

    given: dict[str, Any] = field(default_factory=dict)
    run: int = 0
    continued: bool = False
    lost_calls: int = 0
    concurrency: int = 0
    totals: Totals = field(default_factory=Totals)
    control: Control = field(default_factory=Control)
    complete: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """What the process says when this is all that happened."""
        if self.control.stop is Stop.INTERRUPT:
            return ExitCode.INTERRUPTED
        if self.control.stop is Stop.FATAL:
            return ExitCode.FAILED
        return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class Work:
    """What an invocation is about. `rows` gives a fresh reading of the selected rows each time it is called."""

    plan: Plan
    rows: Callable[[], Iterator[Row]]
    output_dir: str
    fresh: bool
    redactor: Redactor
    clocks: Clocks
    env: Mapping[str, str]


async def run_once(database: Database, work: Work, invocation: Invocation) -> None:
    """Does what is left of a run. Raises AgacError when the store or a provider's setup cannot be used.

    A crash at any point leaves a database from which the same command goes on: rows are stored before they are worked
    on, every answer is stored in one transaction with its outcome, and the lease of a dead process is taken over.
    """
    plan, now = work.plan, work.clocks.wall
    lease = await take_lease(database, plan.workflow, now())
    try:
        await _find_run(database, work, invocation)
        _log.info("%s run %d", "going on with" if invocation.continued else "beginning", invocation.run)
        event = await runs.begin_invocation(database, invocation.run, _about(invocation), now())
        exposure = Exposure(2 * plan.concurrency)
        ledger = Ledger(
            database, lease, run=invocation.run, event=event, urge=max(1, plan.concurrency // 2),
            clock=now, released=exposure.leave,
        )  # fmt: skip
        code: int = ExitCode.FAILED
        try:
            await _work(database, work, invocation, ledger, exposure, event)
            code = invocation.exit_code
        finally:
            await _end(database, invocation, event, code, now())
    finally:
        with suppress(AgacError):  # a lease that cannot be given back is taken over by the next process
            await free_lease(database, lease)


async def _find_run(database: Database, work: Work, invocation: Invocation) -> None:
    plan, now = work.plan, work.clocks.wall()
    invocation.lost_calls = await _bury_killed(database, work)
    identity = runs.RunIdentity(plan.workflow, plan.hash, plan.selection.text())
    await runs.keep_definition(database, identity, canonical(plan.body), now)
    found = None if work.fresh else await runs.newest_run(database, identity)
    where = {"output_dir": work.output_dir, "include_input": plan.output.include_input}
    invocation.concurrency = plan.concurrency
    if found is None:
        invocation.run = await runs.make_run(database, identity, fresh=work.fresh, now=now, **where)  # type: ignore[arg-type]
        return
    invocation.run, invocation.continued = found, True
    await runs.retarget_run(database, found, **where)  # type: ignore[arg-type]


async def _bury_killed(database: Database, work: Work) -> int:
    """Ends the workflow's last invocation if it was killed; gives how many calls may have been lost with it.

    The bound is twice its concurrency (`Exposure`), and no more than the tasks of rows without an outcome.
    """
    newest = await runs.run_ids(database, work.plan.workflow)
    record = await runs.read_run(database, newest[0]) if newest else None
    last = record.invocation if record else None
    if record is None or last is None or last.ended_at is not None:
        return 0
    pending = await count_rows(database, "rows_pending", record.id)
    stages = len((await runs.definition_of(database, record.id))["stages"])
    lost = min(2 * int(last.body["concurrency"]), pending * stages)
    await runs.end_invocation(database, last.id, runs.KILLED, {**last.body, "lost_after": lost}, work.clocks.wall())
    return lost


def _about(invocation: Invocation) -> dict[str, Any]:
    return {"concurrency": invocation.concurrency, "lost_calls": invocation.lost_calls, "given": invocation.given}


async def _end(database: Database, invocation: Invocation, event: int, code: int, now: float) -> None:
    totals = invocation.totals
    _log.info("run %d ended with exit code %d", invocation.run, code)
    body = _about(invocation) | {
        "rows_seen": totals.seen,
        "rows_done": totals.rows_done,
        "rows_failed": totals.rows_failed,
        "tasks_done": totals.tasks_done,
        "tasks_reused": totals.tasks_reused,
        "calls": totals.calls,
        "given_up": totals.given_up,
        "retries": totals.retries,
        "cost_usd": totals.cost,
    }
    await runs.end_invocation(database, event, code, body, now)
    idle = invocation.complete and totals.settled == totals.unchanged
    at = now if invocation.complete else None
    await runs.write(database, "run_finish", {"idle": idle, "at": at, "run": invocation.run})


async def _work(
    database: Database, work: Work, invocation: Invocation, ledger: Ledger, exposure: Exposure, event: int
) -> None:
    plan, totals, control = work.plan, invocation.totals, invocation.control
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    newest = await newest_result(database)
    lookup = Lookup(database, record.fresh_since or 0.0)
    settler = Settler(ledger, totals, plan.stages, work.clocks.wall)
    places = Places(database, invocation.run, event)
    intake = Intake(
        places, ledger, control, totals,
        on_duplicate=plan.input.on_duplicate_id, numbered=plan.input.id_field is None,
    )  # fmt: skip
    async with _lines(work, control) as lines, asyncio.TaskGroup() as group:
        background = [group.create_task(ledger.run()), group.create_task(lookup.run())]
        caller = Caller(lines, settler, exposure, control, wall=work.clocks.wall, spread=work.clocks.spread)
        segment = Segment(plan.stages, dict(plan.vars), caller, settler, ledger, lookup, totals, newest)
        if plan.input.on_duplicate_id == "last" and plan.input.id_field:
            await scan_ids(places, work.rows())
        walking = group.create_task(walk_all(intake.flights(work.rows()), segment, control, plan.concurrency))
        await _ended(walking, control)
        if control.stop is None:
            await intake.finish()
        await ledger.drained()
        for task in background:
            task.cancel()
    invocation.complete = control.stop is None
    _assert_accounted(totals, control)


async def _ended(walking: asyncio.Task[None], control: Control) -> None:
    """Waits for the rows; after a stop only so long, then calls in flight are given up."""
    stopped = asyncio.ensure_future(control.stopped.wait())
    try:
        await asyncio.wait({walking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not walking.done():
            forced = asyncio.ensure_future(control.forced.wait())
            await asyncio.wait({walking, forced}, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
        if not walking.done():
            walking.cancel()
            await asyncio.wait({walking})
    finally:
        stopped.cancel()
    if walking.cancelled():
        return
    walking.result()


def _assert_accounted(totals: Totals, control: Control) -> None:
    """No row ever vanishes: rows in are the sum of outcomes."""
    if control.stop is None and totals.seen != totals.settled:
        raise AssertionError(f"{totals.seen} rows were read and {totals.settled} have an outcome")


@asynccontextmanager
async def _lines(work: Work, control: Control) -> AsyncIterator[dict[int, Line]]:
    """What each stage needs to be asked. Stages on one model share the lane, on one provider the connections."""
    async with AsyncExitStack() as stack:
        senders: dict[str, Sender] = {}
        lanes: dict[str, Lane] = {}
        lines: dict[int, Line] = {}
        for stage in work.plan.stages:
            provider = stage.provider
            if provider.name not in senders:
                sender = Sender(provider, work.redactor, limit=0, env=work.env)
                senders[provider.name] = await stack.enter_async_context(sender)
            if stage.lane not in lanes:
                limits = provider.limits
                lanes[stage.lane] = Lane(
                    limits.concurrency or work.plan.concurrency,
                    rpm=limits.rpm,
                    tpm=limits.tpm,
                    clock=work.clocks.monotonic,
                    control=control,
                )
            lines[stage.index] = Line(
                stage, DIALECTS[provider.dialect], senders[provider.name], lanes[stage.lane],
                _own_slots(stage, work.plan), Checker(stage),
                _price(stage), work.redactor,
            )  # fmt: skip
        yield lines


def _own_slots(stage: PlannedStage, plan: Plan) -> Slots | None:
    """A stage's own bound, where it is tighter than the number of rows that walk at a time."""
    return Slots(stage.concurrency) if stage.concurrency and stage.concurrency < plan.concurrency else None


def _price(stage: PlannedStage) -> Callable[[str | None], Price | None]:
    """The stage's price, looked up with the first reply: the price library takes a third of a second to load."""
    known: dict[str | None, Price | None] = {}

    def price(tier: str | None) -> Price | None:
        if tier not in known:
            known[tier] = price_of(stage.provider, stage.model, tier)
        return known[tier]

    return price
