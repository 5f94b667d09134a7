"""How the tasks of a stage are written into batches of one of its models, and how their results are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agac.core.redact import Redactor
from agac.core.types import Fault, Params, Reply
from agac.engine.budget import WorstCase
from agac.engine.routes import CHARACTERS_A_TOKEN, Route, price_by_tier
from agac.engine.validate import Checker
from agac.plan.batchcuts import most_bytes, most_requests
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel
from agac.providers.batchapis import LINES
from agac.providers.batches import BatchLines, BatchTraits, ResultLine
from agac.providers.dialects import DIALECTS
from agac.providers.provider import Provider
from agac.spec.rounds import BatchRules


@dataclass(frozen=True, slots=True)
class Form(Route):
    """A stage and one of its models, `position` among them, as far as its batches go."""

    position: int
    traits: BatchTraits
    lines: BatchLines
    keeps_all: bool

    @property
    def rules(self) -> BatchRules:
        """What the workflow says of the stage's batches."""
        return self.stage.batch

    @property
    def address(self) -> str:
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

    def enqueued(self, body: bytes) -> int:
        """The tokens for which a request counts against the account's limit."""
        return len(body) // CHARACTERS_A_TOKEN

    def read(self, line: ResultLine) -> Reply | Fault:
        """What an answered line means: the same as an answer to a call."""
        return self.parse(line.status, {}, line.body)

    def clean(self, line: ResultLine) -> ResultLine:
        """The line without secrets: a server may quote what we sent."""
        body, message = self.redactor.clean_bytes(line.body), self.redactor.clean(line.message)
        return line if body is line.body and message == line.message else replace(line, body=body, message=message)


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
        price=price_by_tier(planned),
        base_url=like.redactor.clean(provider.base_url),
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
                    price=price_by_tier(model),
                    redactor=redactor,
                    base_url=redactor.clean(model.provider.base_url),
                    keeps_all=plan.rules.keep_replies == "all",
                )
    return found
