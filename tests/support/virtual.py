"""An event loop whose time jumps to whatever happens next: hours of waiting in milliseconds, the same every time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jumping(selectors.SelectSelector):
    """Never blocks: what would have been waited for is added to the time."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everyone waits, and for nothing that will ever happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time()` begins at 1000 and passes only while everyone waits."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(test: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` in virtual time. Whoever would wait for ever fails."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(test)


def loop_time() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()
