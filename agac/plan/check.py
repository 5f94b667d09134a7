"""Checks of a workflow's models against the providers, and of what must be installed. Problems come all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from inspect import signature
from typing import Any

from agac.core.errors import Problem, Where
from agac.core.types import Params
from agac.plan.plan import ResolvedModel
from agac.providers.abilities import of_budget, of_tier, unsendable
from agac.providers.modelref import ModelRef, parse_model
from agac.providers.prices import lacks_tier
from agac.providers.provider import Provider
from agac.spec.workflow import Level, Workflow, WrittenStage

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
        fallbacks, found = _fallbacks(stage, params, providers, aliases, lost)
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
    params: Params,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str] | None,
    lost: Collection[str],
) -> tuple[tuple[ResolvedModel, ...], list[Problem]]:
    """The models after the first: asked with the stage's parameters, and their own string's over them.

    What the first model's string says holds for that model alone.
    """
    found: list[ResolvedModel] = []
    problems: list[Problem] = []
    common = _keys_alone(stage, params)
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


def _keys_alone(stage: WrittenStage, params: Params) -> Params:
    """The stage's parameters as its keys set them at every level, without those of a model string."""
    merged = {key: value for level in _STRONGEST_LAST for key, value in stage.params.get(level, {}).items()}
    known = {f.name for f in fields(params)}
    return Params(**{key: value for key, value in merged.items() if key in known})


def _model_key(stage: WrittenStage) -> str:
    """The stage's model as a key of the file that names it."""
    return stage.key("model", stage.model_level)


def _params(stage: WrittenStage, ref: ModelRef) -> tuple[Params, list[Problem]]:
    """A level's keys, then its model string's; the next level wins over both."""
    merged: dict[str, Any] = {}
    problems: list[Problem] = []
    for level in _STRONGEST_LAST:
        own = stage.params.get(level, {})
        merged |= own
        if stage.model_level == level:
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
    if stage.model_level == "override":
        merged |= ref.params
    known = {f.name for f in fields(Params)}
    return Params(**{key: value for key, value in merged.items() if key in known}), problems


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
