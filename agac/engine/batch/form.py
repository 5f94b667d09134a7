"""How the tasks of a stage are written into batches of one of its models, and how their results are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agac.core.redact import Redactor
from agac.core.types import Fault, Params, Reply, Request
from agac.engine.budget import Amount, WorstCase
from agac.engine.validate import Checker
from agac.plan.batchcuts import most_bytes, most_requests
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.base import Dialect, encode
from agac.providers.batchapis import LINES
from agac.providers.batches import BatchLines, BatchTraits, ResultLine
from agac.providers.dialects import DIALECTS
from agac.providers.prices import BATCH, price_of
from agac.providers.provider import Price, Provider
from agac.spec.rounds import BatchRules
from agac.store.batch import Endpoint

CHARACTERS_A_TOKEN = 4
"""A rough guess, used only against limits on enqueued tokens."""


@dataclass(frozen=True, slots=True)
class Form:
    """A stage and one of its models, `position` among them, as far as its batches go."""

    stage: PlannedStage
    position: int
    model: PlannedModel
    traits: BatchTraits
    dialect: Dialect
    lines: BatchLines
    checker: Checker
    most: WorstCase
    price: Price | None
    redactor: Redactor
    keeps_all: bool

    @property
    def rules(self) -> BatchRules:
        """What the workflow says of the stage's batches."""
        return self.stage.batch

    @property
    def endpoint(self) -> str:
        """The address at which each request of a batch is served, as the provider calls it."""
        return self.traits.endpoint_prefix + self.dialect.path

    @property
    def max_requests(self) -> int:
        """Requests in a batch."""
        return most_requests(self.rules, self.traits)

    @property
    def max_bytes(self) -> int:
        """Bytes of a batch."""
        return most_bytes(self.rules, self.traits)

    def body(self, request: Request) -> bytes:
        """A request in the provider's words: the same as for a call."""
        return encode(self.dialect.build(request, self.model.model, self.model.provider))

    def worst_case(self, body: bytes) -> Amount:
        """What a request can cost at most, at the price of batches."""
        return self.most.of(body)

    def enqueued(self, body: bytes) -> int:
        """The tokens for which a request counts against the account's limit."""
        return len(body) // CHARACTERS_A_TOKEN

    def read(self, line: ResultLine) -> Reply | Fault:
        """What an answered line means: the same as an answer to a call."""
        return self.dialect.parse(
            line.status, {}, line.body,
            provider=self.model.provider, model=self.model.model, redactor=self.redactor,
        )  # fmt: skip

    def clean(self, line: ResultLine) -> ResultLine:
        """The line without secrets: a server may quote what we sent."""
        body, message = self.redactor.clean_bytes(line.body), self.redactor.clean(line.message)
        return line if body is line.body and message == line.message else replace(line, body=body, message=message)

    def endpoint_of(self, reply: Reply | None) -> Endpoint:
        """Who answered, or was asked and did not."""
        provider, shown = self.model.provider, self.redactor.clean(self.model.provider.base_url)
        if reply is None:
            return Endpoint(provider.name, shown, self.model.model, provider.simulated)
        return Endpoint(provider.name, shown, reply.model, reply.simulated or provider.simulated)


def form_for(like: Form, position: int, provider: Provider, model: str) -> Form:
    """The form of a model that the stage of another form was asked of before, and is not any more."""
    assert provider.batch is not None
    planned = PlannedModel(provider, model, Params())
    return replace(
        like,
        position=position,
        model=planned,
        traits=provider.batch,
        dialect=DIALECTS[provider.dialect],
        lines=LINES[provider.batch.api],
        most=WorstCase(planned, in_dollars=True, batch=True),
        price=price_of(provider, model, BATCH),
    )


Forms = Mapping[tuple[int, int], Form]
"""Forms by the stage's position in the run and the model's position among the stage's."""


def forms_of(plan: Plan, redactor: Redactor) -> Forms:
    """The forms of all stages of a plan, batch stages or not: a stage's mode may have been another when its batches
    were made. Models of providers without batches have none."""
    found: dict[tuple[int, int], Form] = {}
    for stage in plan.asking:
        checker = Checker(stage)
        for position, model in enumerate(stage.models):
            traits = model.provider.batch
            if traits is not None:
                found[stage.index, position] = Form(
                    stage=stage,
                    position=position,
                    model=model,
                    traits=traits,
                    dialect=DIALECTS[model.provider.dialect],
                    lines=LINES[traits.api],
                    checker=checker,
                    most=WorstCase(model, in_dollars=True, batch=True),
                    price=price_of(model.provider, model.model, BATCH),
                    redactor=redactor,
                    keeps_all=plan.rules.keep_replies == "all",
                )
    return found
