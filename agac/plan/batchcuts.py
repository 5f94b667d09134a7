"""Into how many batches the requests of a stage are cut, and of what size."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from agac.plan.stage import PlannedStage
from agac.providers.batches import BatchTraits
from agac.spec.rounds import BatchRules

AROUND = 400
"""Bytes of a line beside the texts and the schema of its request: its name, its address, the parameters."""


class Cuts(NamedTuple):
    """So many batches, of `requests` at most."""

    batches: int
    requests: int


def most_requests(rules: BatchRules, traits: BatchTraits) -> int:
    """Requests in a batch."""
    return min(traits.max_requests, rules.max_requests or traits.max_requests)


def most_bytes(rules: BatchRules, traits: BatchTraits) -> int:
    """Bytes of a batch. Without a wish of the user's a tenth of what the provider takes is left free."""
    return min(rules.max_bytes or traits.max_bytes * 9 // 10, traits.max_bytes)


def cuts(stage: PlannedStage, requests: int, characters: float | None) -> Cuts:
    """The batches of a stage; none where it asks nothing so. `characters`: of a request, schema included, in the mean;
    None where nothing is known of them."""
    traits = stage.provider.batch
    if stage.run_mode != "batch" or traits is None or not requests:
        return Cuts(0, 0)
    fitting = int(most_bytes(stage.batch, traits) / ((characters or 0.0) + AROUND))
    most = max(min(most_requests(stage.batch, traits), fitting), 1)
    return Cuts(ceil(requests / most), min(most, requests))
