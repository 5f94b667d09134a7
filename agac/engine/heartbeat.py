"""Notes how the lanes of an invocation are while it works, and does what the monitor asks of it.

Requests are in the `inbox`, to which any process may add without the lease. Each is applied in the
commit that says so. There batches are decided on; a stop follows it, in this process, unless the
process is killed before."""

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

EVERY = 2.0
"""Seconds between two looks. A lease shows a sign of life every five."""


class Heartbeat:
    """Notes how lanes are, and reads the inbox, in one invocation."""

    def __init__(
        self,
        context: InvocationContext,
        connections: Mapping[int, Sequence[ModelConnection]],
        batches: Batches | None,
    ) -> None:
        """`connections` are by stage. `batches` are those of the invocation, if it has any."""
        self._context = context
        self._batches = batches
        self.lanes = dict[str, Lane]()
        """The lanes at work, by name."""
        # a model that is asked at several addresses has a lane for each
        for connection in chain.from_iterable(connections.values()):
            name = connection.model.lane
            if self.lanes.setdefault(name, connection.lane) is not connection.lane:
                self.lanes[f"{name} @{connection.model.provider.base_url}"] = connection.lane

    async def run(self) -> None:
        """Looks at the lanes and the inbox every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            now = self._context.work.clocks.wall()
            samples = [one for name, lane in self.lanes.items() if (one := lane.sample(name, now))]
            if samples:
                self._context.ledger.batch.counts.lanes += samples
            await self.obey()

    async def obey(self) -> None:
        """Does what was asked since the last look. A request to an earlier invocation is void."""
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
        """Applies the requests in a commit. Returns whether this invocation is to stop, and the
        batches whose end was decided."""
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
                outcome = "void: it had ended, or wants a decision"
                if writer.execute(sql("inbox_cancel"), values).rowcount > 0:
                    ended.append(batch)
                    outcome = "decided: what it finished is kept"
            elif event == self._context.places.event:
                stops = True
                outcome = "applied: no new calls, those in flight end"
            writer.execute(sql("inbox_applied"), (now, outcome, number))
        return stops, ended
