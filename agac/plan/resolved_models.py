"""From the strings of models in a workflow to models of providers, with their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from agac.core.errors import Problem, Where
from agac.core.types import Params
from agac.plan.stage import PlannedModel, call_timeout
from agac.providers.abilities import of_budget, of_tier, unsendable
from agac.providers.backend import at_backend, served_model
from agac.providers.known_providers import SHIPPED
from agac.providers.model_string import ModelRef, parse_model
from agac.providers.prices import lacks_tier
from agac.providers.provider import Provider
from agac.spec.paths import Refused
from agac.spec.rules import Level
from agac.spec.workflow import Workflow, WrittenStage

_STRONGEST_LAST: tuple[Level, ...] = ("project", "defaults", "card", "stage")


def resolve_models(
    workflow: Workflow,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str] | None = None,
    *,
    broken: bool = False,
    lost: Collection[str] = (),
    addressed: Mapping[str, Where] | None = None,
) -> tuple[dict[str, tuple[PlannedModel, ...]], list[Problem]]:
    """Returns each stage's models, with their parameters, by the stage's name, and what is wrong
    with them.

    `aliases` are the project's short names. `broken`: some key could not be read, so that a
    missing model may be that key's fault and is not reported. `lost`: providers of agac.yml that
    could not be made, which is reported there. `addressed`: where agac.yml says the address of a
    provider. A server is asked something only for a stage with a `backend` and no model."""
    resolver = _ModelResolver(providers, aliases or {}, lost, addressed or {})
    problems = resolver.problems
    resolved: dict[str, tuple[PlannedModel, ...]] = {}
    for stage in workflow.calling:
        if stage.model is None and stage.backend is None:
            if not broken:
                problems.append(_no_model(stage))
            continue
        models = resolver.models_of(stage)
        if models is None:
            continue
        resolved[stage.name] = models
        problems += _agent_problems(stage, models)
        problems += _seed_problems(stage, models)
    return resolved, problems


def _no_model(stage: WrittenStage) -> Problem:
    message = (
        f"stage {stage.name!r} has no model; name one with --model, or write "
        "`model: PROVIDER/NAME` on the stage, or in `defaults` of the workflow or of agac.yml"
    )
    return Problem(stage.at(""), message)


def _seed_problems(stage: WrittenStage, models: Sequence[PlannedModel]) -> Iterator[Problem]:
    """Yields the seed that replicas, which differ by their seeds, cannot have."""
    seeds = [model.params.seed for model in models if model.params.seed is not None]
    if stage.replicas > 1 and seeds:
        message = (
            f"replicas gives each call its own seed, from 1 to {stage.replicas}, and "
            f"the model is given seed={seeds[0]} too; remove the seed, or replicas"
        )
        yield Problem(stage.at("replicas"), message)


def _agent_problems(stage: WrittenStage, models: Sequence[PlannedModel]) -> Iterator[Problem]:
    """Yields what an agent needs of providers that do not have it."""
    if stage.runtime is not None:
        yield from _runtime_problems(stage, models)
    if stage.agent_spec is not None:
        for model in models:
            if not model.provider.tools:
                yield _no_tools(stage, model.provider.name)
    if stage.card and not stage.is_escalation:
        key = stage.card.keys.api_key
        provider = models[0].provider
        if key is not None and key != f"${{{provider.key_variable}}}":
            name = provider.name
            message = (
                f"is not the variable of the key of {name}; write `providers: {{{name}: "
                f"{{api_key: {key}}}}}` into agac.yml, for all that is asked of it"
            )
            yield stage.card.document.problem(("api_key",), message)


def _no_tools(stage: WrittenStage, provider: str) -> Problem:
    message = (
        f"{provider} offers its models no tools, and the stage {stage.name!r} has some; choose "
        f"another model, or write `providers: {{{provider}: {{tools: true}}}}` into agac.yml, for "
        "all that is asked of it"
    )
    return Problem(stage.at("model"), message)


def _runtime_problems(stage: WrittenStage, models: Sequence[PlannedModel]) -> Iterator[Problem]:
    """Yields what a program that runs tasks as agents cannot do."""
    from agac.providers import opencode  # and what runs programs, where a stage has one

    if stage.settings.run_mode == "batch":
        message = (
            "sessions of OpenCode ask the model themselves, so that no batch can hold "
            f"their requests; write `run_mode: sync` for the stage {stage.name!r}"
        )
        yield Problem(stage.at("run_mode"), message)
    for where, model in with_places(stage, models):
        names = opencode.unsendable(model.params, model.provider)
        if names:
            message = f"OpenCode cannot ask {model.lane} with {', '.join(names)}; leave it out"
            yield Problem(where, message)


def with_places(
    stage: WrittenStage, models: Sequence[PlannedModel]
) -> Iterator[tuple[Where, PlannedModel]]:
    """Yields a stage's models, each with the place of the key that names it."""
    for position, model in enumerate(models):
        yield stage.at("fallback" if position else "model"), model


@dataclass
class _ModelResolver:
    """Makes models of strings."""

    providers: Mapping[str, Provider]
    aliases: Mapping[str, str]
    lost: Collection[str]
    addressed: Mapping[str, Where]
    problems: list[Problem] = field(default_factory=list)
    """What is wrong with the strings so far."""

    def models_of(self, stage: WrittenStage) -> tuple[PlannedModel, ...] | None:
        """Returns the stage's model and its fallbacks; None if the first is none."""
        text = stage.model or ""
        providers = self.providers
        row = None
        if stage.backend is not None:
            try:
                text, row = self._at_backend(stage, stage.backend)
            except Refused as refused:
                self.problems.append(Problem(stage.at("backend"), str(refused)))
                return None
            if row is not None:
                providers = {**providers, row.name: row}
                self._check_batch_address(stage, row)
        where = stage.at("model")
        ref = self._parsed(text, where, providers)
        if ref is None:
            return None
        params = _params(stage, ref, self.problems)
        model = self._planned(stage, ref, params, where, providers)
        model = replace(model, backend=stage.backend if row else None)
        return (model, *self._fallbacks(stage))

    def _fallbacks(self, stage: WrittenStage) -> Iterator[PlannedModel]:
        """Yields the models that are called if the first fails.

        They get the stage's parameters, and those of their own strings over them: those of the
        first model's string are for that model alone."""
        where = stage.at("fallback")
        common: dict[str, Any] = {}
        for level in _STRONGEST_LAST:
            common |= stage.params.get(level, {})
        for text in stage.fallback:
            ref = self._parsed(text, where, self.providers)
            if ref is not None:
                params = _known_params({**common, **ref.params})
                yield self._planned(stage, ref, params, where, self.providers)

    def _check_batch_address(self, stage: WrittenStage, row: Provider) -> None:
        """Reports a backend of a batch stage: batches go to the provider's own address."""
        if stage.settings.run_mode != "batch" or not row.batch:
            return
        if row.base_url == self.providers[row.name].base_url:
            return
        message = (
            "batches go to the provider's own address, and a backend's is for calls; "
            f"write `providers: {{{row.name}: {{base_url: {row.base_url}}}}}` into agac.yml"
        )
        self.problems.append(Problem(stage.at("backend"), message))

    def _parsed(
        self, text: str, where: Where, providers: Mapping[str, Provider]
    ) -> ModelRef | None:
        if any(text.strip().startswith((f"{name}/", f"{name}.")) for name in self.lost):
            return None
        ref, messages = parse_model(text, providers, self.aliases)
        self.problems.extend(Problem(where, message) for message in messages)
        return ref

    def _planned(
        self,
        stage: WrittenStage,
        ref: ModelRef,
        params: Params,
        where: Where,
        providers: Mapping[str, Provider],
    ) -> PlannedModel:
        provider = providers[ref.provider]
        self.problems.extend(_ability_problems(ref, params, provider, where))
        if ref.schema_mode is not None:  # how the provider is held to schemas
            provider = replace(provider, structured=ref.schema_mode)
        return PlannedModel(
            provider,
            ref.wire,
            params,
            transport=ref.transport,
            idle_timeout=ref.idle_timeout or stage.idle_timeout,
            timeout=call_timeout(stage.timeout, params),
            ref=ref,
        )

    def _at_backend(self, stage: WrittenStage, backend: str) -> tuple[str, Provider | None]:
        """Returns the stage's model as a string, and the provider at the backend unless a stronger
        level chose another one.

        A provider's name in the model's string counts if it is said at a stronger level than the
        backend. At the same level it is a part of the model's name, as in `openai/gpt-oss-20b`;
        at a weaker one it was meant for another place. Raises Refused, also if agac.yml has
        another address for the provider."""
        row = at_backend(backend, self.providers)
        self._refuse_second_address(backend, row)
        text = (stage.model or "").strip()
        if not text:
            return f"{row.name}/{served_model(row)}", row
        name = text.partition("?")[0].partition("/")[0]
        names_provider = name in self.providers
        stronger = 0
        if names_provider or parse_model(text, self.providers, self.aliases)[0] is not None:
            stronger = _strength(stage.levels["model"]) - _strength(stage.levels["backend"])
        if name == row.name:
            return text, row
        if stronger < 0:
            return f"{row.name}/{served_model(row)}", row
        if stronger > 0:
            return text, None
        if names_provider and name not in SHIPPED:
            raise Refused(
                f"'{backend}', and {stage.at('model')} names provider '{name}' of agac.yml; "
                "remove one"
            )
        return f"{row.name}/{text}", row

    def _refuse_second_address(self, backend: str, row: Provider) -> None:
        """Raises Refused if agac.yml has another address for the backend's provider."""
        place = self.addressed.get(row.name)
        if place is not None and row.base_url != self.providers[row.name].base_url:
            raise Refused(
                f"'{backend}' is another address than that of provider '{row.name}' at "
                f"{place}; remove one"
            )


def _strength(level: Level) -> int:
    """Returns a number that is higher for stronger levels."""
    return get_args(Level).index(level)


def _ability_problems(
    ref: ModelRef, params: Params, provider: Provider, where: Where
) -> list[Problem]:
    """Returns the keys of the stage that the model's provider does not take, and warnings of parts
    of the model's string without effect."""
    set_by_keys = [
        spec.name
        for spec in fields(params)
        if getattr(params, spec.name) is not None and spec.name not in ref.params
    ]
    messages = [
        f"{ref} cannot be asked with {message}"
        for message in unsendable(set_by_keys, provider, ref.model)
    ]
    messages += of_budget(params.reasoning, params.max_tokens)
    tier = params.service_tier
    if "service_tier" not in ref.params:  # a card's: that of the string is checked with it
        messages += of_tier(tier, provider)
    if tier in ("flex", "priority") and lacks_tier(provider, ref.model, tier):
        messages.append(
            f"service_tier={tier}: {ref} is not offered in that tier, as far as the price library "
            f"knows; leave it out, or add to agac.yml: `providers: {{{provider.name}: {{prices: "
            f"{{{ref.model}: {{input: 1.00, output: 2.00, {tier}: 0.5}}}}}}}}`"
        )
    errors = [Problem(where, message) for message in messages]
    return errors + [Problem(where, warning, "warning") for warning in ref.warnings]


def _params(stage: WrittenStage, ref: ModelRef, problems: list[Problem]) -> Params:
    """Returns the parameters of a stage's first model; what is given twice joins `problems`.

    A level's keys come first, then those of its model string; the next level wins over both."""
    merged: dict[str, Any] = {}
    model_level = stage.levels.get("model")
    for level in _STRONGEST_LAST:
        keys = stage.params.get(level, {})
        merged |= keys
        if level == model_level:
            if level != "card":  # in a card the model string wins by its format
                problems += _given_twice(stage, keys, ref)
            merged |= ref.params
    if model_level == "override":
        merged |= ref.params
    return _known_params(merged)


def _given_twice(stage: WrittenStage, keys: Mapping[str, Any], ref: ModelRef) -> Iterator[Problem]:
    """Yields the parameters that a key and the model string of one level both set."""
    for key in sorted(keys.keys() & ref.params.keys()):
        if keys[key] != ref.params[key]:
            where = replace(stage.at("model"), path=f"{stage.path}.{key}")
            message = (
                f"{key} is given twice: {keys[key]} as a key and {ref.params[key]} "
                "in the model; keep one"
            )
            yield Problem(where, message)


def _known_params(values: Mapping[str, Any]) -> Params:
    return Params(
        **{spec.name: values[spec.name] for spec in fields(Params) if spec.name in values}
    )
