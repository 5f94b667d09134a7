"""Takes the rows of an invocation through their stages: rows of the input or of the store, and then
those that stages made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from dataclasses import dataclass

from agac.engine.ask.tasks import Tasks
from agac.engine.batch.coordinator import Batches
from agac.engine.context import InvocationContext
from agac.engine.stop_rules import RunStopped, StopReason
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.executor import Executor, RowSource, run_workers
from agac.engine.walk.groups import Deduplicator, Groups
from agac.engine.walk.input_rows import InputRows
from agac.engine.walk.stored_rows import ChildFeeds, LevelPass, has_work, open_rows, retried_rows
from agac.store.db import write

DRAIN_SECONDS = 60.0
"""How long calls in flight may take to finish after the first Ctrl-C; then they are given up. After
any other stop they take as long as their own time-outs allow: they are paid for."""


@dataclass(frozen=True)
class RowWalk:
    """Takes all rows of an invocation through their stages, level by level."""

    context: InvocationContext
    """What the parts of the invocation share."""
    tasks: Tasks
    """Runs each fingerprint once."""
    group: asyncio.TaskGroup
    """What the walks are tasks of."""
    calls: int
    """How many calls may be in flight, at most."""

    async def all_rows(self, input_rows: InputRows, batches: Batches | None) -> None:
        """Processes the input rows (or a retry's, or a finished batch's), then the rows derived
        from them."""
        context = self.context
        work = context.work
        stop_signal = context.stop_signal
        if batches is not None:
            await self._expect_calls(0)
            await self.until_stopped(batches.recover())
            await self._expect_calls(self.calls)
        if stop_signal.stop is not None:
            return
        if work.batching.resume_run is not None:
            await self.open_rows(again=False)
            return
        if work.retry is not None:
            await self._from(retried_rows(context, work.retry))
        else:
            await self._from(input_rows.active_rows())
            if work.reading.first is not None and not context.totals.rows.all_read:
                stop_signal.end(
                    StopReason.QUOTE,
                    "its first rows are done, and what the rest costs was to be asked",
                )
        await self._derived_rows()

    async def open_rows(self, *, again: bool, idle: bool = True) -> None:
        """Processes rows of the store for which batches brought something."""
        await self._from(open_rows(self.context, again=again, idle=idle))
        await self._derived_rows()

    async def go_on(self, batches: Batches) -> None:
        """Submits what was enrolled, and continues rows that wait, until no batch is open."""
        stop_signal = self.context.stop_signal

        async def walk() -> None:
            await self._expect_calls(self.calls)
            await self.open_rows(again=True, idle=batches.enrolment.begin_again())
            batches.enrolment.close()
            await self._expect_calls(0)

        async def complete() -> None:
            with suppress(RunStopped):
                await batches.complete(walk)

        batches.enrolment.close()
        await self._expect_calls(0)
        with suppress(RunStopped):
            await self.until_stopped(complete())
        batches.done.any_open = await batches.any_open()
        # nothing that could make room is open
        held_back = batches.enrolment.held_back and not batches.done.any_open
        if stop_signal.stop is None and self.context.budgets is not None and held_back:
            self.context.budgets.stop_at_limit("batch")

    async def _expect_calls(self, calls: int) -> None:
        """Records how many calls may be in flight from now on: a kill while only batches are at
        work loses none."""
        if self.calls:
            await self.context.ledger.durable()
            await write(
                self.context.places.database,
                "event_say",
                "$.concurrency",
                calls,
                self.context.places.event,
            )

    async def _from(self, rows: AsyncGenerator[list[ActiveRow], None]) -> None:
        """Processes input rows and their child rows at the same time."""
        context = self.context
        feeds = ChildFeeds(context)
        sources = feeds.sources(
            rows, lambda level: Executor(context, level, self.tasks, feeds.add).walk
        )
        await self.until_stopped(run_workers(sources, context.stop_signal, context.workers))

    async def _derived_rows(self) -> None:
        """Processes open derived rows, then rows that a reviewer sent back."""
        context = self.context
        reviews = context.reviews
        if context.stop_signal.stop is None and len(context.levels.all) > 1:
            context.totals.rows.made_parked = 0
            if context.work.sharding is not None:
                context.work.sharding.waits = ""
            await self.until_stopped(self._levels())
        if reviews is not None and reviews.redo and context.stop_signal.stop is None:
            reviews.redo = False
            await self.open_rows(again=True)

    async def _levels(self) -> None:
        """Processes derived rows level by level, each level after those whose rows it is made
        of."""
        context = self.context
        stop_signal = context.stop_signal
        for level in context.levels.all[1:]:
            if stop_signal.stop is not None or not await has_work(context, level):
                continue
            assert level.maker is not None
            executor = Executor(context, level, self.tasks)
            if level.maker.makes == "groups":
                await Groups(context, level, executor, self.tasks).walk()
                continue
            if level.maker.makes == "kept":
                await Deduplicator(context, level.maker).decide()
            rows = RowSource(LevelPass(context, level).all_rows(), executor.walk)
            await run_workers([rows], stop_signal, context.workers)

    async def until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Waits for the rows. After a Ctrl-C it waits for DRAIN_SECONDS only; after a second one it
        gives up the calls in flight."""
        stop_signal = self.context.stop_signal
        walking = self.group.create_task(work)

        async def give_up() -> None:
            await stop_signal.stopped.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    DRAIN_SECONDS if stop_signal.stop is StopReason.INTERRUPT else None
                ):
                    await stop_signal.forced.wait()
            walking.cancel()

        giving_up = self.group.create_task(give_up())
        await asyncio.wait({walking})
        giving_up.cancel()
        if not walking.cancelled():
            walking.result()
