"""Who brings the answers of tasks: calls, or batches."""

from __future__ import annotations

from typing import Protocol

from agac.core.errors import RowError
from agac.core.types import Request
from agac.engine.call import Answer, Caller
from agac.engine.flight import Flight
from agac.engine.tasks import Parked
from agac.plan.stage import PlannedStage


class Asker(Protocol):
    """Asks a task that nobody has asked."""

    async def ask(
        self, flight: Flight, stage: PlannedStage, fingerprint: bytes, request: Request, replica: int = 0
    ) -> Answer | RowError | Parked:
        """The answer, the error with which the task fails, or that it was enrolled in a batch. Raises Halted when the
        run stops before any of these."""

    def wait(self, flight: Flight, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """An equal task has just been enrolled: this one waits for it."""


class Calls:
    """Calls a model for each task."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def ask(
        self, flight: Flight, stage: PlannedStage, fingerprint: bytes, request: Request, replica: int = 0
    ) -> Answer | RowError:
        """The answer, or the error with which the task fails."""
        return await self._caller.ask(flight, stage, fingerprint, request, replica)

    def wait(self, flight: Flight, stage: PlannedStage, fingerprint: bytes, replica: int = 0) -> None:
        """Nothing is enrolled."""
        raise AssertionError("a task waits for a batch, and there is none")
