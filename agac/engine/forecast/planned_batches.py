"""Into how many batches and rounds the requests of a stage are cut, and of what size."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from agac.core.types import Report, Usage, Usd
from agac.engine.forecast.estimate import CostEstimate
from agac.plan.stage import PlannedStage
from agac.providers.prices import cost, dearest_price
from agac.providers.provider import BatchTraits
from agac.spec.rules import BatchRules
from agac.store.batches import LaneTimes

# Into how many batches the requests of a stage are cut, and of what size.

# bytes of a line beside the texts and the schema of its request: its name, its address, the
# parameters
AROUND = 400


@dataclass(frozen=True, slots=True)
class PlannedBatches(Report):
    """The batches of a stage."""

    count: int
    """How many there are."""
    requests_at_most: int
    """Requests of the largest one."""
    completion_window: str
    """The window in which the provider ends them."""
    ended_before: int = 0
    """Batches of its lane that ended earlier."""
    p50_s: float | None = None
    """Seconds that half of those took at most."""
    p95_s: float | None = None
    """Seconds that 95 % of those took at most."""


def most_requests(rules: BatchRules, traits: BatchTraits) -> int:
    """Requests in a batch."""
    return min(traits.max_requests, rules.max_requests or traits.max_requests)


def most_bytes(rules: BatchRules, traits: BatchTraits) -> int:
    """Bytes of a batch. Without a wish of the user's a tenth of what the provider takes is left
    free."""
    return min(rules.max_bytes or traits.max_bytes * 9 // 10, traits.max_bytes)


def planned_batches(
    stage: PlannedStage,
    requests: int,
    characters: float | None,
    times: LaneTimes | None,
) -> PlannedBatches | None:
    """The batches of a stage; None where it is not asked so. `characters`: of a request, schema
    included, in the mean; None where nothing is known of them. `times` are those of earlier
    batches of its lane."""
    traits = stage.provider.batch
    if stage.settings.run_mode != "batch" or traits is None:
        return None
    fitting = int(most_bytes(stage.settings.batch, traits) / ((characters or 0.0) + AROUND))
    most = max(min(most_requests(stage.settings.batch, traits), fitting), 1)
    took: tuple[Any, ...]
    if times:
        took = (times.batches, round(times.p50_s, 3), round(times.p95_s, 3))
    else:
        took = ()
    window = stage.settings.batch.completion_window or traits.windows[0]
    return PlannedBatches(ceil(requests / most), min(most, requests), window, *took)


@dataclass(frozen=True, slots=True)
class PlannedRounds(Report):
    """The conversations of a stage in batches: each turn is a round. Dollars are None if a price,
    or a tier, is not known."""

    expected: float
    """Rounds in the mean."""
    at_most: int
    """Rounds of the longest conversation."""
    wait_s: float | None
    """How long they take if batches take as long as earlier ones, in seconds."""
    batch_usd: Usd | None
    """Dollars in batches, which read little from caches."""
    sync_usd: Usd | None
    """Dollars by calls that read each turn's beginning from a cache."""
    flex_usd: Usd | None
    """Dollars by such calls with service_tier=flex."""


def planned_rounds(
    stage: PlannedStage, tasks: int, found: CostEstimate, times: LaneTimes | None
) -> PlannedRounds:
    """The rounds of a stage with tools that is asked in batches."""
    provider = stage.provider
    model = stage.models[0].model
    calls = max(found.calls, 1)
    turns = found.calls / tasks
    given = found.input_tokens / calls
    made = found.output_tokens / calls
    if provider.cache != "none":
        again = given * (1 - 1 / max(turns, 1.0)) * 2 / 3
    else:
        again = 0.0
    usage = Usage(round(given), round(made), round(again))
    usd = {tier: cost(usage, dearest_price(provider, model, tier)) for tier in (None, "flex")}
    by_calls, flex = (None if one is None else one * calls for one in usd.values())
    wait = times.p50_s * turns if times else None
    flex = flex if flex != by_calls else None
    return PlannedRounds(round(turns, 1), stage.most_turns, wait, found.usd, by_calls, flex)
