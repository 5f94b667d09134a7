"""The bounded window of rows in flight: workers pull rows from the intake, no task object is made for a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from agac.core.errors import AgacError
from agac.engine.control import Control, Halted
from agac.engine.flight import Flight

READ_AHEAD = 64
"""Rows that are ready beyond those being worked on, so that no worker waits for the input. The chunk that is being read
comes on top (`intake.CHUNK_ROWS`)."""


class Walker(Protocol):
    """Takes rows to their end, as `Segment` does. Raises Halted when the run stops on the way."""

    async def walk(self, flight: Flight) -> None: ...


async def walk_all(flights: AsyncGenerator[list[Flight], None], walker: Walker, control: Control, workers: int) -> None:
    """Walks every row, `workers` at a time. Returns when all have ended, or all work in flight has after a stop."""
    ready: asyncio.Queue[Flight | None] = asyncio.Queue(workers + READ_AHEAD)
    async with asyncio.TaskGroup() as group:
        hands = [group.create_task(_work(ready, walker, control)) for _ in range(workers)]
        feeder = group.create_task(_feed(flights, ready, control, workers))
        stopper = group.create_task(_end_feeding(control, feeder, ready, workers))
        await asyncio.wait(hands)
        stopper.cancel()
        feeder.cancel()


async def _feed(
    flights: AsyncGenerator[list[Flight], None], ready: asyncio.Queue[Flight | None], control: Control, workers: int
) -> None:
    try:
        async with aclosing(flights):
            async for some in flights:
                for flight in some:
                    await ready.put(flight)
    except AgacError as error:  # calls in flight are paid for: they are not cut off for it
        control.lose_input(error)
        return
    for _ in range(workers):
        await ready.put(None)


async def _end_feeding(
    control: Control, feeder: asyncio.Task[None], ready: asyncio.Queue[Flight | None], workers: int
) -> None:
    """After a stop nothing that waits is begun: workers find the queue empty but for the word to go home."""
    await control.stopped.wait()
    feeder.cancel()
    await asyncio.wait([feeder])
    while not ready.empty():
        ready.get_nowait()
    for _ in range(workers):
        ready.put_nowait(None)


async def _work(ready: asyncio.Queue[Flight | None], walker: Walker, control: Control) -> None:
    while (flight := await ready.get()) is not None:
        if control.stop is not None:
            return
        try:
            await walker.walk(flight)
        except Halted:
            return
