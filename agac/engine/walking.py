"""The rows of an invocation on their way: those of the input or of the store, and then what stages made of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress

from agac.engine.again import Stored
from agac.engine.batch.batches import Batches
from agac.engine.batch.openrows import OpenRows
from agac.engine.control import Control, Halted, Stop
from agac.engine.crew import Crew
from agac.engine.flight import Flight
from agac.engine.intake import Intake, scan_ids
from agac.engine.levels import Passing
from agac.engine.window import walk_all
from agac.engine.work import Work
from agac.plan.plan import Plan
from agac.plan.stage import PlannedStage
from agac.store import runs

ENROLLING_WORKERS = 256
"""Rows that walk at a time where tasks are enrolled in batches: as many as one look-up takes."""

DRAIN_SECONDS = 60.0
"""After the first Ctrl-C calls in flight may take so long to finish; then they are given up. After any other stop they
take as long as their own time-outs allow: they are paid for."""


async def walk_rows(
    work: Work, intake: Intake, crew: Crew, passing: Passing, batches: Batches | None, group: asyncio.TaskGroup
) -> None:
    """Takes the rows of the input through their stages, or those of the store that a retry chose or for which a batch
    brought something, and then those that stages made of them, level by level."""
    plan, places, control = work.plan, passing.places, passing.control
    if batches is not None:
        await _ended(group.create_task(batches.take_up()), control)
    if control.stop is not None:
        return None
    if work.batching.retrieves is not None:
        return await _walk_open(crew, passing, group, again=False)
    if work.retry is not None:
        again = Stored(places, passing.ledger, crew.settler, control, passing.totals, work.retry, passing.again_from)
        flights = again.flights()
    else:
        if plan.input.on_duplicate_id == "last" and plan.input.id_field:
            await scan_ids(places, work.rows())
        await runs.note_reading(places.database, places.run, None)
        flights = intake.flights(work.rows())
    await _walk_level(crew, passing, flights, group)
    if not control.stopped.is_set() and work.retry is None:
        await intake.finish()
        await runs.note_reading(places.database, places.run, work.clocks.wall())
    await _walk_made(crew, passing, group)
    return None


async def _walk_open(crew: Crew, passing: Passing, group: asyncio.TaskGroup, *, again: bool, idle: bool = True) -> None:
    """Takes rows of the store through their stages for which batches brought something."""
    rows = OpenRows(
        passing.places, passing.ledger, passing.control, passing.totals, passing.standing,
        again=again, idle=idle, opened=passing.opened,
    )  # fmt: skip
    await _walk_level(crew, passing, rows.flights(), group)
    await _walk_made(crew, passing, group)


async def _walk_level(
    crew: Crew, passing: Passing, flights: AsyncGenerator[list[Flight], None], group: asyncio.TaskGroup
) -> None:
    first = crew.executor(crew.levels.all[0])
    await _ended(group.create_task(walk_all(flights, first, passing.control, passing.workers)), passing.control)


async def _walk_made(crew: Crew, passing: Passing, group: asyncio.TaskGroup) -> None:
    """The rows that stages made: all that are open, whoever looked at them before."""
    if passing.control.stop is None and len(crew.levels.all) > 1:
        passing.totals.made_parked = 0
        await _ended(group.create_task(crew.walk_made(passing)), passing.control)


async def go_on(crew: Crew, passing: Passing, batches: Batches, group: asyncio.TaskGroup) -> None:
    """What was enrolled is submitted; who stays goes on until nothing is open."""

    async def walk() -> None:
        await _walk_open(crew, passing, group, again=True, idle=batches.begin_again())
        batches.close_all()

    batches.close_all()
    with suppress(Halted):
        await _ended(group.create_task(_unhalted(batches.go_on(walk))), passing.control)
    batches.done.any_open = await batches.any_open()
    if passing.control.stop is None and batches.held_back and not batches.done.any_open:
        batches.use_up()


def may_call(stage: PlannedStage) -> bool:
    """Whether tasks of a stage may be called: else nothing is in flight that a kill could lose."""
    batch = stage.batch
    later = (
        batch.retry == "sync" or batch.deadline is not None or any(one.provider.batch is None for one in stage.models)
    )
    return stage.run_mode == "sync" or later


async def _unhalted(work: Coroutine[None, None, None]) -> None:
    """Does it until the run stops."""
    with suppress(Halted):
        await work


def workers_of(plan: Plan) -> int:
    """Rows that walk at a time: where tasks are enrolled nobody waits for a model, only for look-ups."""
    batched = any(stage.run_mode == "batch" for stage in plan.asking)
    return max(plan.concurrency, ENROLLING_WORKERS) if batched else plan.concurrency


async def _ended(walking: asyncio.Task[None], control: Control) -> None:
    """Waits for the rows; after a Ctrl-C only so long, after a second one no longer: calls in flight are given up."""
    stopped = asyncio.ensure_future(control.stopped.wait())
    try:
        await asyncio.wait({walking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not walking.done():
            forced = asyncio.ensure_future(control.forced.wait())
            patience = DRAIN_SECONDS if control.stop is Stop.INTERRUPT else None
            await asyncio.wait({walking, forced}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
        if not walking.done():
            walking.cancel()
            await asyncio.wait({walking})
    finally:
        stopped.cancel()
    if walking.cancelled():
        return
    walking.result()
