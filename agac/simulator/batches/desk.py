"""Where the web application meets the state: short work in one thread, the work on batches in another."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from agac.simulator.batches.asking import Model
from agac.simulator.batches.records import listed_files, open_batches
from agac.simulator.batches.rules import BatchFaults
from agac.simulator.batches.state import State
from agac.simulator.batches.working import Work

LOOK_SECONDS = 10.0
"""How long a look at a batch waits for the work that is due; then it tells how far it is."""

P = ParamSpec("P")
T = TypeVar("T")


class Desk:
    """The batches of one simulator. Its threads are started when the first file or batch is."""

    def __init__(self, state: State, model: Model, faults: BatchFaults, seconds: float) -> None:
        self.state, self.faults, self.seconds = state, faults, seconds
        self._stopping = threading.Event()
        self._work = Work(state, model, self._stopping.is_set)
        self._hand = ThreadPoolExecutor(1, "simulator-state")
        self._worker = ThreadPoolExecutor(1, "simulator-batches")
        self._queueing = threading.Lock()
        self._early: Counter[str] = Counter()
        self._queued: dict[str | None, Future[None]] = {}

    async def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function with this state's connection, one such call at a time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._hand, lambda: function(*args, **kwargs))

    async def change(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same in one transaction."""

        def changed() -> T:
            with self.state.write():
                return function(*args, **kwargs)

        return await self.do(changed)

    def start(self, batch_id: str | None = None) -> Future[None]:
        """Sees to it that the work that is due now, in one batch or in all, will be done. What waits in the queue
        already need not be asked for twice."""
        with self._queueing:
            waiting = self._queued.get(batch_id)
            if waiting is None:
                waiting = self._queued[batch_id] = self._worker.submit(self._catch_up, batch_id)
        return waiting

    def _catch_up(self, batch_id: str | None) -> None:
        """What waits in the queue; whoever asks from here on waits for the next time."""
        with self._queueing:
            del self._queued[batch_id]
        self._work.catch_up(None if batch_id is None else {batch_id})

    async def caught_up(self, batch_id: str | None = None) -> bool:
        """Waits for the work that is due now; False when it takes longer than a look may wait."""
        if not self.state.exists:
            return True
        done = asyncio.wrap_future(self.start(batch_id))
        try:
            await asyncio.wait_for(asyncio.shield(done), LOOK_SECONDS)
        except TimeoutError:
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            return False
        return True

    async def count(self, operation: str) -> int:
        """The number of this call among those of its operation, from 1. Looking alone creates no state."""
        if not self.state.exists and operation not in ("create", "upload"):
            self._early[operation] += 1
            return self._early[operation]
        return self._early[operation] + await self.change(self.state.count, f"calls.{operation}")

    async def account(self) -> dict[str, Any]:
        """What was asked of batches, and what they were charged."""
        behind = not await self.caught_up()
        told = await self.do(report, self.state, behind)
        calls = self._early + Counter(told["calls"])
        return told | {"calls": dict(sorted(calls.items()))}

    async def reset(self) -> None:
        """Empties the account, once the work that was due is in it."""
        await self.caught_up()
        self._early.clear()
        await self.do(self.state.reset)

    def stop(self) -> None:
        """Ends the work at the next commit; what is not done is left for the next start."""
        self._stopping.set()

    def close(self) -> None:
        """Stops, and closes the state."""
        self.stop()
        self._hand.shutdown()
        self._worker.shutdown()
        self.state.close()


def report(state: State, behind: bool) -> dict[str, Any]:
    """The account of batches. `behind`: work is due that is not done yet."""
    counters = state.counters()
    calls = {name.removeprefix("calls."): n for name, n in counters.items() if name.startswith("calls.")}
    faults = {name.removeprefix("fault."): n for name, n in counters.items() if name.startswith("fault.")}
    named = ("created", "cancelled", "rejected", "requests", "charged", "duplicates", "prompt_tokens")
    return {
        "posts": calls.get("create", 0),
        **{name: counters.get(name, 0) for name in (*named, "completion_tokens", "files")},
        "kept": len(listed_files(state, "batch", None, -1)),
        "open": len(open_batches(state)),
        "calls": calls,
        "faults": dict(sorted(faults.items())),
        "behind": behind,
    }
