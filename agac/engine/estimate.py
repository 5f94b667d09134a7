"""What tasks will take: tokens, dollars and batches, and what one call costs at most."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, NamedTuple

from agac.core.types import JSONValue, Report, Usage, Usd
from agac.engine.limits import Amount
from agac.plan.stage import AnyStage, PlannedModel, PlannedStage
from agac.providers.batch import BatchTraits
from agac.providers.provider import BATCH, Price, cost, price_of
from agac.spec.workflow import BatchRules
from agac.store.runs import Count

CHARACTERS_A_TOKEN = 4
"""What English text comes to with common tokenizers."""

WITHOUT_SCHEMA = 250
"""Tokens of a free answer whose length nothing tells."""

COMPLAINT = 300
"""Tokens of what a re-ask says beside the prompt and the last reply."""

Basis = Literal["history", "sample", "guess", "local"]


@dataclass(frozen=True, slots=True)
class History:
    """What calls of one stage with one model took before, in the mean. `calls_a_task` is 1 when none was repeated."""

    input_tokens: float
    output_tokens: float
    calls_a_task: float


@dataclass(frozen=True, slots=True)
class CostEstimate(Report):
    """What the tasks of a stage will take. `usd` None: the price is not known; `usd_at_most` needs max_tokens too."""

    calls: int
    input_tokens: int
    output_tokens: int
    usd: Usd | None
    usd_at_most: Usd | None
    basis: Basis


LOCAL = CostEstimate(0, 0, 0, 0.0, 0.0, "local")
"""Of a stage that asks no model."""


def history(counts: Iterable[Count], stage: str, lane: str) -> History | None:
    """A stage's history among the roll-ups of earlier runs; None when none of its calls was answered by the model."""
    own = [c for c in counts if c.stage == stage]
    calls_made = (c for c in own if c.outcome == "call" and c.output_tokens)
    answered = [c for c in calls_made if c.model == lane or c.model.startswith(f"{lane}-")]  # by a more exact name
    calls = sum(c.tasks for c in answered)
    if not calls:
        return None
    # answers that held, in all their number: the tasks that stand as done are fewer where rows changed since
    held = sum(c.tasks for c in answered if not c.error_type)
    ended = held + sum(c.tasks for c in own if c.outcome == "failed") or calls
    return History(
        sum(c.input_tokens for c in answered) / calls,
        sum(c.output_tokens for c in answered) / calls,
        max(calls / ended, 1.0),
    )


def estimate(
    stage: PlannedStage, tasks: int, characters: float | None, past: History | None, *, same_prompt: bool
) -> CostEstimate:
    """What `tasks` will take, each replica of one being one. `characters`: of a request, in the mean of a sample; None
    when nothing could be rendered.

    The history's input counts while the prompt is the same (`same_prompt`), or nothing could be rendered.
    """
    most = stage.params.max_tokens
    basis: Basis = "history" if past is not None else "guess"
    if past is not None:
        made = past.output_tokens
    else:  # a rough size of an answer of this shape: its names and a short value each
        fields = 0 if stage.schema is None else json.dumps(stage.schema.body).count('"type"')
        guess = WITHOUT_SCHEMA if stage.schema is None else 10 + 15 * fields
        made = min(guess, most) if most else guess
    use_past = past is not None and (same_prompt or characters is None)
    given = past.input_tokens if past and use_past else (characters or 0.0) / CHARACTERS_A_TOKEN
    calls = round(tasks * (past.calls_a_task if past else 1.0))
    return CostEstimate(
        calls=calls,
        input_tokens=round(calls * given),
        output_tokens=round(calls * made),
        usd=_dollars(stage.models[0], calls, given, made, batch=stage.run_mode == "batch"),
        usd_at_most=_at_most(stage, tasks, given),
        basis=basis,
    )


def _at_most(stage: PlannedStage, tasks: int, given: float) -> float | None:
    """Dollars when every model is asked, every re-ask is needed, and every reply is as long as it may be. Where calls
    take over what batches leave, they cost what calls do."""
    costs = []
    rules = stage.batch
    batch = stage.run_mode == "batch" and (rules.deadline is None or rules.on_deadline == "wait")
    again = batch and rules.retry != "sync"
    for position, model in enumerate(stage.models):
        most = model.params.max_tokens
        if most is not None:
            costs.append(_dollars(model, tasks, given, most, batch=again if position else batch))
            costs.append(_dollars(model, tasks * stage.repair, given + most + COMPLAINT, most, batch=again))
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == 2 * len(stage.models) else None


def _dollars(model: PlannedModel, calls: int, given: float, made: float, *, batch: bool) -> float | None:
    if not calls:
        return 0.0
    tier = BATCH if batch and model.provider.batch is not None else model.params.service_tier
    price = price_of(model.provider, model.model, tier)
    one = cost(Usage(round(given), round(made)), price)
    return None if one is None else one * calls


TEXT = "x" * 60
"""A field of text: a dozen words."""

FREE = "x" * 1000
"""An answer without a schema."""


def dummy_answer(stage: AnyStage) -> JSONValue:
    """What the stage might answer."""
    return FREE if stage.shape is None else _of_shape(stage.shape, 0)


def _of_shape(body: Any, depth: int) -> JSONValue:
    if not isinstance(body, dict) or depth > 8:
        return TEXT
    if body.get("enum"):
        return body["enum"][0]
    if isinstance(body.get("properties"), dict):
        return {name: _of_shape(inner, depth + 1) for name, inner in body["properties"].items()}
    match body.get("type"):
        case "array":
            return [_of_shape(body.get("items"), depth + 1)] * max(1, body.get("minItems", 1) if depth == 0 else 1)
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return TEXT


# Into how many batches the requests of a stage are cut, and of what size.

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


# What one call costs at most: what a budget sets aside before it is sent.


class WorstCase:
    """What a call to one model can cost at most, or a request in a `batch`. Made once a model; the price library is
    only asked for dollars."""

    def __init__(self, model: PlannedModel, *, in_dollars: bool, batch: bool = False) -> None:
        self._max_tokens = model.params.max_tokens or 0
        # of all tiers that may serve it: the one asked for, the ordinary one, and `priority` where the choice is left
        # to the settings of an account; a batch is a tier of its own
        wanted = model.params.service_tier
        tiers = {BATCH} if batch else {None, wanted} | ({"priority"} if wanted in (None, "auto") else set())
        prices = (price_of(model.provider, model.model, tier) for tier in tiers) if in_dollars else ()
        self._steps = max_price_steps(price for price in prices if price is not None)

    def of(self, body: bytes) -> Amount:
        """The worst case of sending `body`.

        Its bytes bound its tokens: byte-level tokenizers make no more tokens than bytes, and the JSON around a message
        is longer than the few marks that a chat template puts in its place. Nothing is taken as cached.
        """
        size = len(body)
        usd = 0.0
        for start, given, made in self._steps:
            if size >= start:
                usd = (size * given + self._max_tokens * made) / 1_000_000
        return Amount(usd, size + self._max_tokens, 1)


def max_price_steps(prices: Iterable[Price]) -> tuple[tuple[int, float, float], ...]:
    """For calls of up to so many input tokens: what a token costs at most, given and made, in $ per million.

    A call may turn out smaller than it could be, so a step that is cheaper does not count.
    """
    columns = sorted(
        (start, max(price.input, price.cached_input or 0.0), price.output)
        for one in prices
        for start, price in ((0, one), *one.above)
    )
    steps = []
    given = made = 0.0
    for start, input_price, output_price in columns:
        given, made = max(given, input_price), max(made, output_price)
        steps.append((start, given, made))
    return tuple(steps)
