"""How a stage's batches are cut, waited for and ended, with every default resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BatchRetry = Literal["batch", "sync", "fail"]
AtDeadline = Literal["wait", "sync"]


@dataclass(frozen=True, slots=True)
class DayTime:
    """A time of day where the program runs."""

    hour: int
    minute: int

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02}"


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How a stage's batches are cut, waited for and ended. Bytes and seconds; None: as the provider's row says, or as
    agac's default is.

    `retry`: where a request is asked again that a batch left without a good answer; `max_rounds` in how many batches it
    may be. A `deadline` in seconds counts from the submission of a batch, one of a day is the next after it; None: only
    the provider ends it. `stuck_after` is how long nothing may move.
    """

    max_requests: int | None = None
    max_bytes: int | None = None
    completion_window: str | None = None
    poll_interval: float | None = None
    grace: float | None = None
    retry: BatchRetry = "batch"
    max_rounds: int = 3
    deadline: float | DayTime | None = None
    on_deadline: AtDeadline = "sync"
    stuck_after: float = 6 * 3600.0


DEFAULT_BATCH = BatchRules()
"""The rules of a stage that says nothing."""
