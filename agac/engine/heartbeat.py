"""Beside its work an invocation notes how its lanes are, and reads what the monitor asks of it.
What is asked stands in the `inbox`, which everybody may add to without the lease. Each line is
applied in the commit that says so: batches are decided on there, and who is stopped after it is
stopped by that one process, or was killed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain

from agac.engine.ask.connections import ModelConnection
from agac.engine.ask.rate_limiter import Lane
from agac.engine.batch.coordinator import Batches
from agac.engine.batch.submit import UNSURE
from agac.engine.context import InvocationContext
from agac.engine.stop_rules import StopReason
from agac.store.db import fetch, select, sql

EVERY = 2.0  # seconds; a lease shows a sign of life every five


class Heartbeat:
    """Of one invocation, with its `connections` by stage, and its `batches`, if it has any.
    `lanes` are by name."""

    def __init__(
        self,
        context: InvocationContext,
        connections: Mapping[int, Sequence[ModelConnection]],
        batches: Batches | None,
    ) -> None:
        self._context = context
        self._batches = batches
        self.lanes = dict[str, Lane]()
        # a model asked at several addresses has a lane for each
        for one in chain.from_iterable(connections.values()):
            name = one.model.lane
            if self.lanes.setdefault(name, one.lane) is not one.lane:
                self.lanes[f"{name} @{one.model.provider.base_url}"] = one.lane

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            now = self._context.work.clocks.wall()
            samples = [one for name, lane in self.lanes.items() if (one := lane.sample(name, now))]
            if samples:
                self._context.ledger.batch.counts.lanes += samples
            await self.obey()

    async def obey(self) -> None:
        """Does what was asked since. A wish that an earlier invocation stop is void."""
        database, _, _ = self._context.places
        if not await select(database, "inbox_waiting", int, self._context.plan.workflow):
            return
        stops, ended = await self._context.ledger.change(self._apply)
        if self._batches is not None and ended:
            await self._batches.ask_for_ends(ended)
        if stops:
            self._context.stop_signal.end(
                StopReason.INTERRUPT, "it was asked to stop, from the monitor"
            )

    def _apply(self, writer: sqlite3.Connection) -> tuple[bool, list[int]]:
        """In a commit: whether this invocation is to stop, and the batches for which the end was
        decided."""
        workflow = self._context.plan.workflow
        now = self._context.work.clocks.wall()
        stops = False
        ended = []
        for number, event, kind, body in fetch(
            writer, "inbox_waiting", tuple[int, int | None, str, str], workflow
        ):
            outcome = "void: what it was to stop had ended"
            if kind == "cancel_batch":
                batch = json.loads(body)["batch"]
                values = {"batch": batch, "now": now, "workflow": workflow, "unsure": UNSURE}
                decided = writer.execute(sql("inbox_cancel"), values).rowcount > 0
                ended += [batch] if decided else []
                if decided:
                    outcome = "decided: what it finished is kept"
                else:
                    outcome = "void: it had ended, or wants a decision"
            elif event == self._context.places.event:
                stops = True
                outcome = "applied: no new calls, those in flight end"
            writer.execute(sql("inbox_applied"), (now, outcome, number))
        return stops, ended
