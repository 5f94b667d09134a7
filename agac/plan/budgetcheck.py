"""What a budget needs to be kept: a bound on every reply, and for dollars a known price of every model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agac.core.errors import Problem, Where
from agac.plan.plan import ResolvedModel
from agac.providers.prices import price_of
from agac.spec.workflow import Budget, Workflow, WrittenStage


def check_budgets(workflow: Workflow, models: Mapping[str, ResolvedModel]) -> list[Problem]:
    """Models whose calls cannot be bounded by the budgets that hold for them. Prices are looked up for dollars only."""
    problems = []
    for stage in workflow.asking:
        budgets = list(_budgets(workflow, stage))
        if stage.name not in models or not budgets:
            continue
        dollars = any(budget.usd is not None for budget in budgets)
        bounded = dollars or any(budget.tokens is not None for budget in budgets)
        model = models[stage.name]
        for key, one in (("model", model), *(("fallback", other) for other in model.fallbacks)):
            place, path = stage.at(key), f"{stage.path}.{key}"
            if bounded and one.params.max_tokens is None:
                problems.append(_without_bound(stage, one))
            if dollars and price_of(one.provider, one.ref.wire, one.params.service_tier) is None:
                problems.append(_without_price(place, path, one))
    return list(dict.fromkeys(problems))


def _budgets(workflow: Workflow, stage: WrittenStage) -> Iterator[Budget]:
    rules = workflow.rules
    found: Iterable[Budget | None] = (rules.project, rules.workflow, rules.row, stage.budget)
    return (budget for budget in found if budget is not None)


def _without_bound(stage: WrittenStage, model: ResolvedModel) -> Problem:
    message = (
        f"a budget in usd or tokens holds for stage {stage.name!r}, so each reply of {model.ref} needs a bound; "
        "add `max_tokens: 1000` (or what a reply may need)"
    )
    return Problem(stage.at(""), message, stage.path)


def _without_price(place: Where, path: str, model: ResolvedModel) -> Problem:
    message = (
        f"a budget in usd holds for this stage, and the price of {model.ref} is not known; add to agac.yml: "
        f"`providers: {{{model.provider.name}: {{prices: {{{model.ref.wire}: {{input: 1.00, output: 2.00}}}}}}}}` "
        "with its dollars per million tokens"
    )
    return Problem(place, message, path)
