"""The route of a stage's requests to one of its models, the same for a call and for a line of a batch: how a request is
written, what an answer to it means, who gave it, what it may cost, and what is recorded of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agac.core.errors import storable
from agac.core.redact import Redactor
from agac.core.types import Fault, Reply, Request
from agac.engine.budget import NOTHING, Amount, WorstCase
from agac.engine.validate import Checker
from agac.plan.replicas import seeded
from agac.plan.stage import AnyStage, PlannedModel, PlannedStage
from agac.providers.base import Dialect, encode
from agac.providers.prices import price_of
from agac.providers.provider import Price
from agac.store.batch import Attempt, Call, Endpoint, NewRow, WriteBatch

CHARACTERS_A_TOKEN = 4
"""A rough guess, used only against limits on tokens per minute and on enqueued tokens."""

COMPRESS_FROM = 1024
"""Bytes. Shorter replies are stored as they came: deflating them costs time and saves nothing."""


@dataclass(frozen=True, slots=True)
class Route:
    """A stage and one of its models. `most` knows what a request can cost, where there is a budget; `price` looks a
    price up by service tier, None when it is unknown; `base_url` is the provider's as it may be shown and stored."""

    stage: PlannedStage
    model: PlannedModel
    dialect: Dialect
    checker: Checker
    most: WorstCase | None
    price: Callable[[str | None], Price | None]
    redactor: Redactor
    base_url: str

    def body(self, request: Request) -> bytes:
        """The request in the provider's words: the same bytes for a call and for a line of a batch."""
        return encode(self.dialect.build(request, self.model.model, self.model.provider))

    def worst_case(self, body: bytes) -> Amount:
        """What sending a request can cost at most."""
        return self.most.of(body) if self.most else NOTHING

    def parse(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply | Fault:
        """What an answer means."""
        model = self.model
        return self.dialect.parse(
            status, headers, body, provider=model.provider, model=model.model, redactor=self.redactor
        )

    def endpoint(self, reply: Reply | None) -> Endpoint:
        """Who answered, or who was asked and did not."""
        provider = self.model.provider
        if reply is None:
            return Endpoint(provider.name, self.base_url, self.model.model, provider.simulated)
        return Endpoint(provider.name, self.base_url, storable(reply.model), reply.simulated or provider.simulated)


def request_for_model(model: PlannedModel, request: Request, replica: int) -> Request:
    """The request as a model gets it: with its own parameters, and the seed of a replica."""
    return replace(request, params=seeded(model.params, model.provider, replica))


def price_by_tier(model: PlannedModel) -> Callable[[str | None], Price | None]:
    """The model's price, looked up with the first reply: the price library takes a third of a second to load."""
    known: dict[str | None, Price | None] = {}

    def price(tier: str | None) -> Price | None:
        if tier not in known:
            known[tier] = price_of(model.provider, model.model, tier)
        return known[tier]

    return price


def record_call(
    write: WriteBatch, row: NewRow, stage: AnyStage, fingerprint: bytes, call: Call, replica: int, *, keep_all: bool
) -> float | None:
    """Adds to a commit what one call, or one line of a batch, brought and cost. `keep_all`: whether replies are stored
    that were right at once. Returns what was spent in USD, None where the price is not known."""
    kept = call.body if keep_all or call.error or call.mended else None
    write.attempts.append(Attempt(row, stage.index, fingerprint, call, stored_reply(kept), replica))
    spent = 0.0 if call.free else call.cost
    error = call.error.type.value if call.error else ""
    delta = write.tally((stage.name, "call", error, f"{call.endpoint.provider}/{call.endpoint.model}"))
    delta.add_call(call.usage, spent, call.endpoint.simulated)
    delta.held_cost += call.held_usd
    delta.held_tokens += call.held_tokens
    return spent


def stored_reply(body: bytes | None) -> str | bytes | None:
    """A reply as the store keeps it: text while that is short, deflated when that is smaller."""
    if body is None:
        return None
    if len(body) >= COMPRESS_FROM:
        return zlib.compress(body, 1)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body, 1)
