"""Batches as part of the simulator: their routes, their clock, their part of the account."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from aiohttp import web

from agac.simulator.asks import ApiError
from agac.simulator.batches.asking import Model
from agac.simulator.batches.desk import Desk
from agac.simulator.batches.messagesapi import MessageBatches
from agac.simulator.batches.openaiapi import OpenAiBatches
from agac.simulator.batches.rules import BatchFaults, BatchRule
from agac.simulator.batches.state import State, short
from agac.simulator.faults import FaultPlan
from agac.simulator.ledger import Ledger
from agac.simulator.settings import Settings

Respond = Callable[[Any, int], web.Response]


class BatchSite:
    """What a simulator serves about files and batches. `check` refuses keys; `respond` and `refuse` write responses."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        plan: FaultPlan,
        rules: list[BatchRule],
        ledger: Ledger,
        respond: Respond,
        check: Callable[[web.Request], None],
        refuse: Callable[[ApiError], web.Response],
    ) -> None:
        self.respond = respond
        model = Model(settings.seed, plan, lambda digest: digest in ledger.contents)
        self.desk = Desk(state, model, BatchFaults(rules, settings.seed), settings.batch_seconds)
        self.families = [
            OpenAiBatches(self.desk, "openai", check, respond, refuse),
            OpenAiBatches(self.desk, "azure", check, respond, refuse),
        ]
        self.messages = MessageBatches(self.desk, check, respond)
        ledger.elsewhere = self.was_charged

    def add_routes(self, app: web.Application) -> None:
        """The routes of every provider, and the clock."""
        openai, azure = self.families
        openai.add_routes(app.router, "/v1")
        azure.add_routes(app.router, "/openai/v1")
        azure.add_routes(app.router, "/openai")
        self.messages.add_routes(app.router)
        app.router.add_post("/account/clock", self.clock)

    def was_charged(self, digest: bytes) -> bool:
        """Whether a batch was charged for this content."""
        return self.desk.state.has(short(digest))

    async def account(self) -> dict[str, Any]:
        """The part of the account that is about batches."""
        return await self.desk.account()

    async def reset(self) -> None:
        """Empties that part; files and batches stay."""
        await self.desk.reset()

    async def clock(self, request: web.Request) -> web.Response:
        """POST /account/clock: `{"advance": SECONDS}` moves the clock forward; answers with the time it shows."""
        try:
            asked = json.loads(await request.read())
        except ValueError:
            asked = None
        seconds = asked.get("advance") if isinstance(asked, dict) else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
            seconds = -1
        if seconds < 0:
            told = 'the clock is moved by a JSON object such as {"advance": 3600}, in seconds; it never goes back'
            return self.respond({"error": {"message": told}}, 400)
        now = await self.desk.do(self.desk.state.advance, seconds)
        return self.respond({"now": now}, 200)

    def stop(self) -> None:
        """Lets go of whoever waits for work to be done."""
        self.desk.stop()

    def close(self) -> None:
        """Leaves what is not done for the next start."""
        self.desk.close()
