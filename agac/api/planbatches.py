"""What a plan tells of a stage's batches: how many there will be, and how long those of its lane took before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agac.plan.batchcuts import Cuts, cuts
from agac.plan.stage import AnyStage, PlannedStage
from agac.store.batches import LaneTimes, lane_times
from agac.store.db import Database


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of a stage: how many, of what size, in which `window` the provider ends them, and how long those of
    its lane took until now; None: none has ended yet."""

    cuts: Cuts
    window: str
    times: LaneTimes | None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        times = self.times
        return {
            "count": self.cuts.batches,
            "requests_at_most": self.cuts.requests,
            "completion_window": self.window,
            "ended_before": times.batches if times else 0,
            "p50_s": round(times.p50, 3) if times else None,
            "p95_s": round(times.p95, 3) if times else None,
        }


async def planned_batches(
    database: Database | None, stage: AnyStage, requests: int, characters: float | None
) -> PlannedBatches | None:
    """The batches that a stage will ask so many requests in; None for a stage that does not ask in batches."""
    if not isinstance(stage, PlannedStage) or stage.run_mode != "batch" or stage.provider.batch is None:
        return None
    times = None
    if database is not None:
        times = await lane_times(database, stage.provider.name, stage.provider.account, stage.model)
    window = stage.batch.completion_window or stage.provider.batch.windows[0]
    return PlannedBatches(cuts(stage, requests, characters), window, times)
