"""Checks of a workflow against its providers: models, extras, batches, budgets. All Problems at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from inspect import signature
from typing import Any

from pydantic_core import PydanticCustomError

from agac.core.errors import Problem, Where
from agac.core.types import Params
from agac.plan.plan import ResolvedModel
from agac.providers.batch import BatchTraits
from agac.providers.dialects import of_budget, of_tier, unsendable
from agac.providers.model_string import ModelRef, parse_model
from agac.providers.prices import lacks_tier, price_of
from agac.providers.provider import Provider
from agac.spec.stages import said
from agac.spec.value_checks import duration
from agac.spec.workflow import Budget, Level, Workflow, WrittenStage

_STRONGEST_LAST: tuple[Level, ...] = ("project", "defaults", "card", "stage")
_NO_MODEL = "stage {name!r} has no model; give it one, or set defaults.model in the workflow or in agac.yml"


def resolve_models(
    workflow: Workflow,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str] | None = None,
    *,
    broken: bool = False,
    lost: Collection[str] = (),
) -> tuple[dict[str, ResolvedModel], list[Problem]]:
    """Each stage's provider, model and parameters, by the stage's name. `aliases` are the project's short names.

    `broken`: some key could not be read, so that a missing model may be that key's fault and is not said. `lost`:
    providers of agac.yml that could not be made, which is said there.
    """
    resolved: dict[str, ResolvedModel] = {}
    problems: list[Problem] = []
    for stage in workflow.asking:
        if stage.model is None:
            if not broken:
                problems.append(Problem(stage.at(""), _NO_MODEL.format(name=stage.name), stage.path))
            continue
        if _names(stage.model, lost):
            continue
        ref, messages = parse_model(stage.model, providers, aliases)
        problems += [Problem(stage.at("model"), message, _model_key(stage)) for message in messages]
        if ref is None:
            continue
        params, found = _params(stage, ref)
        problems += found
        problems += _cannot(ref, params, providers[ref.provider], stage.at("model"), _model_key(stage))
        fallbacks, found = _fallbacks(stage, providers, aliases, lost)
        problems += found
        problems += _seeds(stage, (params, *(other.params for other in fallbacks)))
        resolved[stage.name] = ResolvedModel(_held(providers[ref.provider], ref), ref, params, fallbacks)
    return resolved, problems


def _held(provider: Provider, ref: ModelRef) -> Provider:
    """The provider, held to schemas in the way that the model's string asks for."""
    return provider if ref.schema_mode is None else replace(provider, structured=ref.schema_mode)


def _cannot(ref: ModelRef, params: Params, provider: Provider, where: Where, path: str) -> list[Problem]:
    """What the stage's keys ask of a model that its provider cannot be told, and what its string says in vain."""
    set_by_keys = [f.name for f in fields(params) if getattr(params, f.name) is not None and f.name not in ref.params]
    messages = [f"{ref} cannot be asked with {message}" for message in unsendable(set_by_keys, provider, ref.model)]
    messages += of_budget(params.reasoning, params.max_tokens)
    tier = params.service_tier
    if "service_tier" not in ref.params:  # a card's: what stands in the string is checked with it
        messages += of_tier(tier, provider)
    if tier in ("flex", "priority") and lacks_tier(provider, ref.model, tier):
        messages.append(
            f"service_tier={tier}: {ref} is not offered in that tier, as far as the price library knows; leave it out, "
            f"or add to agac.yml: `providers: {{{provider.name}: {{prices: {{{ref.model}: {{input: 1.00, output: 2.00, "
            f"{tier}: 0.5}}}}}}}}`"
        )
    return [
        *(Problem(where, message, path) for message in messages),
        *(Problem(where, message, path, "warning") for message in ref.warnings),
    ]


def _seeds(stage: WrittenStage, asked_with: Iterable[Params]) -> list[Problem]:
    """Replicas differ by their seeds, so nobody else may set one."""
    seeds = [params.seed for params in asked_with if params.seed is not None]
    if stage.replicas == 1 or not seeds:
        return []
    message = (
        f"replicas gives each call its own seed, from 1 to {stage.replicas}, and the model is given "
        f"seed={seeds[0]} too; remove the seed, or replicas"
    )
    return [Problem(stage.at("replicas"), message, f"{stage.path}.replicas")]


def _names(model: str, providers: Collection[str]) -> bool:
    return any(model.strip().startswith((f"{name}/", f"{name}.")) for name in providers)


def _fallbacks(
    stage: WrittenStage,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str] | None,
    lost: Collection[str],
) -> tuple[tuple[ResolvedModel, ...], list[Problem]]:
    """The models after the first: asked with the stage's parameters, and their own string's over them.

    What the first model's string says holds for that model alone.
    """
    found: list[ResolvedModel] = []
    problems: list[Problem] = []
    common = _keys_alone(stage)
    where, path = stage.at("fallback"), f"{stage.path}.fallback"
    for text in stage.fallback:
        if _names(text, lost):
            continue
        ref, messages = parse_model(text, providers, aliases)
        problems += [Problem(where, message, path) for message in messages]
        if ref is not None:
            own = replace(common, **ref.params)
            problems += _cannot(ref, own, providers[ref.provider], where, path)
            found.append(ResolvedModel(_held(providers[ref.provider], ref), ref, own))
    return tuple(found), problems


def _keys_alone(stage: WrittenStage) -> Params:
    """The stage's parameters as its keys set them at every level, without those of a model string."""
    return _known_params({k: value for level in _STRONGEST_LAST for k, value in stage.params.get(level, {}).items()})


def _known_params(given: Mapping[str, Any]) -> Params:
    return Params(**{f.name: given[f.name] for f in fields(Params) if f.name in given})


def _model_key(stage: WrittenStage) -> str:
    """The stage's model as a key of the file that names it."""
    return stage.key("model", stage.levels.get("model"))


def _params(stage: WrittenStage, ref: ModelRef) -> tuple[Params, list[Problem]]:
    """A level's keys, then its model string's; the next level wins over both."""
    merged: dict[str, Any] = {}
    problems: list[Problem] = []
    for level in _STRONGEST_LAST:
        own = stage.params.get(level, {})
        merged |= own
        if stage.levels.get("model") == level:
            problems += [
                Problem(
                    stage.at("model"),
                    f"{key} is given twice: {own[key]} as a key and {ref.params[key]} in the model; keep one",
                    f"{stage.path}.{key}",
                )
                for key in sorted(own.keys() & ref.params.keys())
                if own[key] != ref.params[key] and level != "card"  # in a card the model string wins by its format
            ]
            merged |= ref.params
    if stage.levels.get("model") == "override":
        merged |= ref.params
    return _known_params(merged), problems


def missing_variables(models: Mapping[str, ResolvedModel], workflow: Workflow) -> list[Problem]:
    """Environment variables that the providers in use need and nobody set: only a run needs them."""
    problems = []
    for stage in workflow.asking:
        model = models[stage.name]
        for key, one in (("model", model), *(("fallback", other) for other in model.fallbacks)):
            problems += [
                Problem(
                    stage.at(key),
                    f"provider {one.provider.name!r} needs the variable {variable}; "
                    f"export it, or write {variable}=… into the project's .env file",
                    _model_key(stage) if key == "model" else f"{stage.path}.fallback",
                )
                for variable in one.provider.missing_variables
            ]
    return list(dict.fromkeys(problems))


def missing_extras(workflow: Workflow) -> list[Problem]:
    """Keys that need a library which is not installed, or only in a version that is too old."""
    stages = [stage for stage in workflow.asking if stage.json_repair]
    lack = _lack_of_json_repair() if stages else None
    message = f"json_repair needs a library that is {lack}: pip install 'agac[json-repair]'"
    found = [Problem(stage.at("json_repair"), message, f"{stage.path}.json_repair") for stage in stages if lack]
    return [*found, *_missing_writers(workflow)]


def _missing_writers(workflow: Workflow) -> list[Problem]:
    if "parquet" not in workflow.output.formats or find_spec("duckdb") is not None:
        return []
    message = "parquet needs a library that is not installed: pip install 'agac[data]'"
    return [Problem(workflow.output.where, message, "output.format")]


def _lack_of_json_repair() -> str | None:
    if find_spec("json_repair") is None:
        return "not installed"
    from json_repair import loads

    return None if "strict" in signature(loads).parameters else "installed in too old a version"


_EXTRAS = {"anthropic": "anthropic"}
"""The libraries that a batch API needs beyond agac's own; the extras have their names."""


def check_batches(workflow: Workflow, models: Mapping[str, ResolvedModel]) -> list[Problem]:
    """Batch stages whose providers cannot do what they are to do, and keys that have no effect on batches. Fallbacks
    without batches are asked by calls."""
    problems: list[Problem] = []
    without: dict[tuple[Where, str, str], list[str]] = {}
    stages = [stage for stage in workflow.asking if stage.run_mode == "batch" and stage.name in models]
    for stage in stages:
        model = models[stage.name]
        if model.provider.batch is None:
            path = stage.key("run_mode", stage.levels.get("run_mode", "stage"))
            without.setdefault((stage.at("run_mode"), path, model.provider.name), []).append(repr(stage.name))
            continue
        problems += _beyond(stage, model, model.provider.batch)
        problems += _unheard(stage, model)
        places = [("model", _model_key(stage))]
        places += [("fallback", f"{stage.path}.fallback")] * len(model.fallbacks)
        for (key, path), one in zip(places, (model, *model.fallbacks), strict=True):
            problems += _unfit(stage.at(key), path, one)
    if stages and len(stages) == len(workflow.asking) and workflow.rules.ttft:
        problems.append(_no_first_token(workflow))
    problems += [_no_batches(*place, names) for place, names in without.items()]
    return list(dict.fromkeys(problems))


def _no_batches(where: Where, path: str, provider: str, stages: list[str]) -> Problem:
    asked = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(stages[:-1])} and {stages[-1]}"
    message = (
        f"provider {provider!r} of {asked} has no batches that agac knows; write `run_mode: sync` there, or, if the "
        f"endpoint speaks OpenAI's Batch API, `providers: {{{provider}: {{batch: openai}}}}` in agac.yml"
    )
    return Problem(where, message, path)


def _beyond(stage: WrittenStage, model: ResolvedModel, traits: BatchTraits) -> Iterator[Problem]:
    """More than the provider takes."""
    rules, name = stage.batch, model.provider.name
    if rules.max_requests is not None and rules.max_requests > traits.max_requests:
        yield said(stage, "max_requests", f"{name} takes at most {traits.max_requests:,} requests in a batch")
    if rules.max_bytes is not None and rules.max_bytes > traits.max_bytes:
        yield said(stage, "max_bytes", f"{name} takes at most {traits.max_bytes:,} bytes in a batch")
    window = rules.completion_window
    if window is not None and window not in traits.windows:
        known = ", ".join(traits.windows)
        yield said(stage, "completion_window", f"{name} has no window {window!r}; write {known}, or leave it out")
        return
    ends = _seconds(window or traits.windows[0])
    if isinstance(rules.deadline, float) and traits.expires and ends is not None and rules.deadline >= ends:
        message = f"{name} gives up after {window or traits.windows[0]} by itself, which is sooner"
        yield said(stage, "deadline", message, warning=True)


def _seconds(window: str) -> float | None:
    try:
        found: float = duration(window)
    except PydanticCustomError:
        return None
    return found


def _unheard(stage: WrittenStage, model: ResolvedModel) -> Iterator[Problem]:
    """What the model's string says of calls, where no call will be made."""
    rules, ref = stage.batch, model.ref
    calls = rules.retry == "sync" or (rules.deadline is not None and rules.on_deadline == "sync")
    if calls or stage.levels.get("run_mode") == "override":
        return
    for key in ("transport", "idle_timeout"):
        if getattr(ref, key) is not None:
            message = f"{key} has no effect in batch mode, where no connection stays open; leave it out"
            yield Problem(stage.at("model"), message, _model_key(stage), "warning")


def _unfit(where: Where, path: str, model: ResolvedModel) -> Iterator[Problem]:
    """Parameters that batches of a model do not take, and the library that they need."""
    traits = model.provider.batch
    if traits is None:
        return
    for name, remedy in traits.unsupported.items():
        if getattr(model.params, name) is not None:
            yield Problem(where, f"{name} cannot be asked for in batches of {model.provider.name}: {remedy}", path)
    library = _EXTRAS.get(traits.api)
    if library is not None and find_spec(library) is None:
        message = (
            f"batches of {model.provider.name} want a library that is not installed: pip install 'agac[{library}]'"
        )
        yield Problem(where, message, path)


def _no_first_token(workflow: Workflow) -> Problem:
    key = "telemetry" if "telemetry" in workflow.rules.where else "project.telemetry"
    place = workflow.rules.where.get(key, Where(workflow.file))
    message = "ttft has no effect in batch mode, in which no answer is streamed; remove it"
    return Problem(place, message, "telemetry.ttft", "warning")


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
