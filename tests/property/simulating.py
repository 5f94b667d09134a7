"""Simulators within this process, one for each example: started and stopped in milliseconds, looked into afterwards."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar

from aiohttp import web

from agac.simulator.app import Simulator
from agac.simulator.batch_state import Batch
from agac.simulator.batch_store import read_batch
from agac.simulator.server import listen
from agac.simulator.settings import Settings

T = TypeVar("T")


class Loop:
    """A thread in which simulators live."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        Thread(target=self.loop.run_forever, daemon=True).start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


class Running:
    """A simulator that answers at `address`, such as `http://127.0.0.1:40123`."""

    def __init__(self, loop: Loop, simulator: Simulator) -> None:
        self._loop, self._simulator = loop, simulator
        self.address = ""

    async def start(self) -> None:
        self._runner = web.AppRunner(self._simulator.app(), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self.address = (await listen(self._runner, self._simulator.settings)).removesuffix("/v1")

    async def stop(self) -> None:
        await self._runner.cleanup()

    def account(self) -> dict[str, Any]:
        """What was charged in calls and in batches together; `batches` tells more of those."""
        calls = self._simulator.account.report()
        batches = self._loop.do(self._simulator.batches.account())
        found = {name: calls[name] + batches[name] for name in ("charged", "duplicates")}
        return found | {"batches": batches, "calls": calls["charged"]}

    def advance(self, seconds: float) -> None:
        """Moves the clock of its batches."""
        self._simulator.batches.store.advance(seconds)

    def hurry(self) -> None:
        """From here on batches are done at once, and those that are there soon are."""
        self._simulator.batches.seconds = 0.0
        self.advance(1000)

    def batches(self) -> list[Batch]:
        """All that were created."""
        return [read_batch(batch) for (batch,) in self._simulator.batches.store.rows("SELECT told FROM batch")]


@contextmanager
def simulating(loop: Loop, rules: list[dict[str, Any]], seconds: float = 0.0) -> Iterator[Running]:
    """A simulator with these faults for the block; its batches take so long."""
    with TemporaryDirectory(prefix="agac-simulated-") as folder:
        faults = Path(folder, "faults.json")
        faults.write_text(json.dumps(rules), encoding="utf-8")
        running = Running(loop, Simulator(Settings(faults=faults, batch_seconds=seconds, state=Path(folder, "state"))))
        loop.do(running.start())
        try:
            yield running
        finally:
            loop.do(running.stop())
