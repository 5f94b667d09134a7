"""Findings of `agac lint` that need models and their prices."""

from __future__ import annotations

from collections.abc import Iterator

from agac.core.errors import Where
from agac.plan.plan import Models
from agac.plan.stage import PlannedModel
from agac.providers.prices import dated_versions, dearest_price
from agac.spec.lint import LintFinding, Readers
from agac.spec.workflow import Workflow, WrittenStage

_EXPENSIVE = 5.0
"""Dollars per million output tokens: small models cost less."""


def lint_models(
    workflow: Workflow, models: Models, readers: Readers, stages: Where
) -> Iterator[LintFinding]:
    """Yields findings about a workflow's models; `stages` is where its stages begin.

    Prices are looked up of paid models alone: to import them takes a third of a second."""
    paid = [
        (stage, position, model)
        for stage in workflow.calling
        for position, model in enumerate(models[stage.name])
        if _is_paid(model)
    ]
    if paid and not _is_bounded(workflow):
        names = ", ".join(sorted({model.provider.name for *_, model in paid}))
        message = (
            f"{names} costs money, and nothing limits a run; write `budget: {{usd: 5}}` "
            "into the file"
        )
        yield LintFinding(stages, message, rule="missing-budget")
    for stage, position, model in paid:
        yield from _expensive_filter(stage, model, readers)
        yield from _unpinned(stage, "fallback" if position else "model", model)


def _is_bounded(workflow: Workflow) -> bool:
    """True if a budget or a confirmation limits what a run costs."""
    rules = workflow.rules
    bounds = (
        rules.project,
        rules.workflow,
        rules.confirm_above,
        *(stage.settings.budget for stage in workflow.asking),
    )
    return any(bound is not None for bound in bounds)


def _expensive_filter(
    stage: WrittenStage, model: PlannedModel, readers: Readers
) -> Iterator[LintFinding]:
    """Yields an expensive model whose answers only guards use."""
    price = dearest_price(model.provider, model.model)
    if price is None or price.output <= _EXPENSIVE:
        return
    users = readers.of(stage.name)
    if users and users <= {"when", "filter"}:
        message = (
            f"only guards use {stage.name!r}, and {model.lane} costs ${price.output:g} per "
            "million output tokens; compare a smaller model"
        )
        yield LintFinding(stage.at("model"), message, rule="expensive-model-on-filter")


def _unpinned(stage: WrittenStage, key: str, model: PlannedModel) -> Iterator[LintFinding]:
    """Yields a model behind whose name its maker may put another one."""
    dated = dated_versions(model.provider, model.model)
    if not dated and not model.model.endswith("latest"):
        return
    example = f", such as {model.provider.name}/{dated[-1]}" if dated else ""
    message = (
        f"the maker of {model.lane} may put another model behind this name; name a "
        f"dated version{example}"
    )
    yield LintFinding(stage.at(key), message, rule="unpinned-model")


def _is_paid(model: PlannedModel) -> bool:
    """True if calls of the model cost money, as far as that is known without its price."""
    provider = model.provider
    if provider.simulated:
        return False
    price = provider.prices.get(model.model) or provider.prices.get("*")
    if price is None:
        return provider.price_id is not None
    return bool(price.input or price.output)
