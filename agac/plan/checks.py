"""Checks of a workflow against its providers: models, extras, batches, budgets. All Problems at
once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from agac.core.errors import Problem, UsageError, Where, lack_of
from agac.core.types import Params, Schema
from agac.plan.plan import Models
from agac.plan.stage import PlannedModel, call_timeout
from agac.providers.abilities import of_budget, of_tier, unsendable
from agac.providers.backend import at_backend, served_model
from agac.providers.known_providers import SHIPPED
from agac.providers.model_string import ModelRef, parse_model
from agac.providers.prices import dated_versions, dearest_price, lacks_tier
from agac.providers.provider import BatchTraits, Provider
from agac.providers.structured import unenforced
from agac.providers.table import DIALECTS
from agac.spec.lint import LintFinding, Readers
from agac.spec.mcp_lock import connection
from agac.spec.paths import Refused
from agac.spec.rules import Level
from agac.spec.stage_checks import batch_problem
from agac.spec.validation import duration
from agac.spec.workflow import Workflow, WrittenStage, family
from agac.spec.yaml import expand

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
    """Each stage's models, with their parameters, by the stage's name. `aliases` are the project's
    short names. `broken`: some key could not be read, so that a missing model may be that key's
    fault and is not reported. `lost`: providers of agac.yml that could not be made, which is
    reported there. `addressed`: where agac.yml says the address of a provider. A stage with a
    `backend` and no model is the one case in which a server is asked something."""
    found = _Resolving(providers, aliases or {}, lost, addressed or {})
    resolved: dict[str, tuple[PlannedModel, ...]] = {}
    for stage in workflow.calling:
        if stage.model is None and stage.backend is None:
            if not broken:
                message = (
                    f"stage {stage.name!r} has no model; name one with --model, or write "
                    "`model: PROVIDER/NAME`"
                )
                where = "on the stage, or in `defaults` of the workflow or of agac.yml"
                found.problems.append(Problem(stage.at(""), f"{message} {where}"))
            continue
        models = found.models_of(stage)
        if models is None:
            continue
        resolved[stage.name] = models
        found.problems += _of_agent(stage, models)
        seeds = [one.params.seed for one in models if one.params.seed is not None]
        if stage.replicas > 1 and seeds:  # replicas differ by their seeds
            message = (
                f"replicas gives each call its own seed, from 1 to {stage.replicas}, and "
                "the model is given seed="
            )
            message = f"{message}{seeds[0]} too; remove the seed, or replicas"
            found.problems.append(Problem(stage.at("replicas"), message))
    return resolved, found.problems


def _of_agent(stage: WrittenStage, models: Sequence[PlannedModel]) -> Iterator[Problem]:
    """What an agent asks of providers that have it not."""
    if stage.runtime is not None:
        yield from _of_runtime(stage, models)
    key = stage.card.keys.api_key if stage.card else None
    add = "into agac.yml, for all that is asked of it"
    for one in models:
        if stage.agent_spec is not None and not one.provider.tools:
            name = one.provider.name
            message = (
                f"{name} offers its models no tools, and the stage {stage.name!r} has "
                "some; choose another model"
            )
            yield Problem(
                stage.at("model"),
                f"{message}, or write `providers: {{{name}: {{tools: true}}}}` {add}",
            )
    first = models[0].provider
    if (
        stage.card
        and not stage.is_escalation
        and key is not None
        and key != f"${{{first.key_variable}}}"
    ):
        remedy = f"write `providers: {{{first.name}: {{api_key: {key}}}}}` {add}"
        yield stage.card.document.problem(
            ("api_key",), f"is not the variable of the key of {first.name}; {remedy}"
        )


def _of_runtime(stage: WrittenStage, models: Sequence[PlannedModel]) -> Iterator[Problem]:
    """What a program that runs tasks as agents cannot do."""
    from agac.providers import opencode  # and what runs programs, where a stage has one

    if stage.settings.run_mode == "batch":
        message = (
            "sessions of OpenCode ask the model themselves, so that no batch can hold "
            "their requests"
        )
        yield Problem(
            stage.at("run_mode"), f"{message}; write `run_mode: sync` for the stage {stage.name!r}"
        )
    for where, one in zip(
        [stage.at("model"), *[stage.at("fallback")] * len(models)], models, strict=False
    ):
        names = opencode.unsendable(one.params, one.provider)
        if names:
            yield Problem(
                where, f"OpenCode cannot ask {one.lane} with {', '.join(names)}; leave it out"
            )


@dataclass
class _Resolving:
    """Strings of models become models; what is wrong with them joins `problems`."""

    providers: Mapping[str, Provider]
    aliases: Mapping[str, str]
    lost: Collection[str]
    addressed: Mapping[str, Where]
    problems: list[Problem] = field(default_factory=list)

    def models_of(self, stage: WrittenStage) -> tuple[PlannedModel, ...] | None:
        """The stage's model and its fallbacks; None where the first is none."""
        known = self.providers
        where = stage.at("model")
        text = stage.model or ""
        row = None
        if stage.backend is not None:
            try:
                text, row = self._at_backend(stage, stage.backend)
            except Refused as refused:
                self.problems.append(Problem(stage.at("backend"), str(refused)))
                return None
            known = {**known, row.name: row} if row else known
            if (
                row
                and row.batch
                and stage.settings.run_mode == "batch"
                and row.base_url != self.providers[row.name].base_url
            ):
                named = (
                    f"write `providers: {{{row.name}: {{base_url: {row.base_url}}}}}` into agac.yml"
                )
                message = (
                    "batches go to the provider's own address, and a backend's is for "
                    f"calls; {named}"
                )
                self.problems.append(Problem(stage.at("backend"), message))
        first = self._parsed(text, where, known)
        if first is None:
            return None
        model = self._planned(stage, first, _params(stage, first, self.problems), where, known)
        model = replace(model, backend=stage.backend if row else None)
        # a fallback is called with the stage's parameters, and its own string's over them: those of
        # the first model's string hold for that model alone
        common = {
            key: value
            for level in _STRONGEST_LAST
            for key, value in stage.params.get(level, {}).items()
        }
        where = stage.at("fallback")
        fallbacks = tuple(
            self._planned(
                stage, ref, _known_params({**common, **ref.params}), where, self.providers
            )
            for text in stage.fallback
            if (ref := self._parsed(text, where, self.providers)) is not None
        )
        return (model, *fallbacks)

    def _parsed(self, text: str, where: Where, known: Mapping[str, Provider]) -> ModelRef | None:
        if any(text.strip().startswith((f"{name}/", f"{name}.")) for name in self.lost):
            return None
        ref, messages = parse_model(text, known, self.aliases)
        self.problems.extend(Problem(where, message) for message in messages)
        return ref

    def _planned(
        self,
        stage: WrittenStage,
        ref: ModelRef,
        params: Params,
        where: Where,
        known: Mapping[str, Provider],
    ) -> PlannedModel:
        provider = known[ref.provider]
        self.problems.extend(_cannot(ref, params, provider, where))
        if ref.schema_mode is not None:  # how the provider is held to schemas
            provider = replace(provider, structured=ref.schema_mode)
        silence = ref.idle_timeout or stage.idle_timeout
        bounds = call_timeout(stage.timeout, params)
        return PlannedModel(provider, ref.wire, params, None, ref.transport, silence, bounds, ref)

    def _at_backend(self, stage: WrittenStage, backend: str) -> tuple[str, Provider | None]:
        """The stage's model as a string, and the provider at the backend unless a stronger level
        chose another one. A name of a provider in the model's string counts where it is said at a
        stronger level than the backend; at the same level it is a part of the model's name, as in
        `openai/gpt-oss-20b`; what is weaker was meant for another place. Raises Refused, also
        where agac.yml has another address for the provider."""
        row = at_backend(backend, self.providers)
        place = self.addressed.get(row.name)
        text = (stage.model or "").strip()
        if place is not None and row.base_url != self.providers[row.name].base_url:
            raise Refused(
                f"'{backend}' is another address than that of provider '{row.name}' at "
                f"{place}; remove one"
            )
        name = text.partition("?")[0].partition("/")[0]
        order = [*_STRONGEST_LAST, "override"].index
        elsewhere = (
            name in self.providers or parse_model(text, self.providers, self.aliases)[0] is not None
        )
        if text and elsewhere:
            stronger = order(stage.levels["model"]) - order(stage.levels["backend"])
        else:
            stronger = 0
        if not text or (stronger < 0 and name != row.name):
            return f"{row.name}/{served_model(row)}", row
        if name == row.name or stronger > 0:
            return text, row if name == row.name else None
        if elsewhere and name in self.providers and name not in SHIPPED:
            raise Refused(
                f"'{backend}', and {stage.at('model')} names provider '{name}' of agac.yml; "
                "remove one"
            )
        return f"{row.name}/{text}", row


def _cannot(ref: ModelRef, params: Params, provider: Provider, where: Where) -> list[Problem]:
    """Keys of the stage that the model's provider does not take, and parts of the model's string
    without effect."""
    set_by_keys = [
        f.name
        for f in fields(params)
        if getattr(params, f.name) is not None and f.name not in ref.params
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
    return [Problem(where, text) for text in messages] + [
        Problem(where, text, "warning") for text in ref.warnings
    ]


def _params(stage: WrittenStage, ref: ModelRef, problems: list[Problem]) -> Params:
    """A level's keys, then its model string's; the next level wins over both. What is given twice
    joins `problems`."""
    merged: dict[str, Any] = {}
    of_model = stage.levels.get("model")
    for level in _STRONGEST_LAST:
        own = stage.params.get(level, {})
        merged |= own
        if of_model == level:
            for key in sorted(own.keys() & ref.params.keys()):
                # in a card the model string wins by its format
                if own[key] != ref.params[key] and level != "card":
                    message = (
                        f"{key} is given twice: {own[key]} as a key and {ref.params[key]} "
                        "in the model; keep one"
                    )
                    problems.append(
                        Problem(replace(stage.at("model"), path=f"{stage.path}.{key}"), message)
                    )
            merged |= ref.params
    if of_model == "override":
        merged |= ref.params
    return _known_params(merged)


def _known_params(given: Mapping[str, Any]) -> Params:
    return Params(**{f.name: given[f.name] for f in fields(Params) if f.name in given})


def _models_of(stage: WrittenStage, models: Models) -> Iterator[tuple[Where, PlannedModel]]:
    for position, one in enumerate(models[stage.name]):
        yield stage.at("fallback" if position else "model"), one


def missing_variables(models: Models, workflow: Workflow) -> list[Problem]:
    """Environment variables that the providers in use need and nobody set: only a run needs
    them."""
    needs = (
        "provider {!r} needs the variable {}; export it, or write {}=… into the project's .env file"
    )
    problems = [
        Problem(where, needs.format(one.provider.name, variable, variable))
        for stage in workflow.calling
        for where, one in _models_of(stage, models)
        for variable in one.provider.missing_variables
    ]
    return list(dict.fromkeys(problems))


def missing_parts(workflow: Workflow, root: Path, env: Mapping[str, str]) -> list[Problem]:
    """Keys that need a library which is not installed, or only in a version that is too old; as
    warnings variables without which somebody is not told of the run, and MCP servers that need
    what is not there, such as a variable: a run that may call them ends before its first call."""
    wants = [
        (stage.at("json_repair"), "json_repair", "json-repair")
        for stage in workflow.asking
        if stage.settings.json_repair
    ]
    if "parquet" in workflow.output.formats:
        wants.append((workflow.output.where, "parquet", "duckdb"))
    wants += [
        (one.where, "notify: apprise", "apprise") for one in workflow.rules.notify if one.apprise
    ]
    found = [
        Problem(where, lack) for where, what, library in wants if (lack := lack_of(what, library))
    ]
    for target in workflow.rules.notify:
        texts = filter(None, (target.webhook, target.secret, target.apprise, target.heartbeat))
        for name in dict.fromkeys(name for text in texts for name in expand(text, env)[1]):
            what = (
                f"notify needs the variable {name}; export it, or write {name}=… into the "
                "project's .env file"
            )
            found.append(Problem(target.where, what, "warning"))
    for one in (one for stage in workflow.asking for one in family(stage)):
        program = one.settings.tooling.program
        if program is not None:
            from agac.providers.opencode import find_program  # as above

            try:
                find_program(program.command, root, env)
            except UsageError as error:
                found.append(
                    Problem(one.at("runtime"), f"{error.message}. {error.remedy}", "warning")
                )
        for server in (
            one.settings.tooling.servers if one.agent_spec and one.agent_spec.mode == "live" else ()
        ):
            try:
                connection(server, root, env)
            except UsageError as error:
                own = (
                    tool.where
                    for tool in one.named_tools
                    if tool.source.startswith(f"{server.name}:")
                )
                found.append(
                    Problem(next(own, one.at("")), f"{error.message}. {error.remedy}", "warning")
                )
    return found


def outside_strict(
    workflow: Workflow, models: Models, schemas: Mapping[str, Schema | None]
) -> list[Problem]:
    """Schemas of stages, by name, to which a provider that can be is not held; the simulator
    stands for any."""
    found = [
        Problem(
            stage.at("output_schema"), _UNHELD.format(name=one.provider.name, why=why), "warning"
        )
        for stage in workflow.asking
        if (schema := schemas.get(stage.name)) is not None
        for one in models.get(stage.name, ())  # none where its string is wrong
        if not one.provider.simulated
        and (why := unenforced(schema, one.provider, DIALECTS[one.provider.dialect].shaping))
        is not None
    ]
    return list(dict.fromkeys(found))


_UNHELD = (
    "{name} is not held to this schema: {why}; answers are checked all the same, and more "
    "of them may fail"
)


def check_batches(workflow: Workflow, models: Models) -> list[Problem]:
    """Batch stages whose providers cannot do what they are to do, and keys that have no effect on
    batches."""
    problems: list[Problem] = []
    without: dict[tuple[Where, str, str], list[str]] = {}
    stages = [
        stage
        for stage in workflow.asking
        if stage.settings.run_mode == "batch" and stage.name in models
    ]
    for stage in stages:
        model = models[stage.name][0]
        if model.provider.batch is None:
            lacking = (stage.at("run_mode"), model.provider.name, model.provider.without_batches)
            without.setdefault(lacking, []).append(repr(stage.name))
            continue
        problems += _beyond(stage, model, model.provider.batch)
        for server in stage.settings.tooling.servers:
            if server.state:
                message = (
                    f"batches end a session with each turn, and server {server.name!r} "
                    "keeps a state in it"
                )
                problems.append(
                    Problem(
                        stage.at("run_mode"), f"{message}; write `run_mode: sync` for the stage"
                    )
                )
        rules = stage.settings.batch
        calls = rules.retry == "sync" or (
            rules.deadline is not None and rules.on_deadline == "sync"
        )
        if not calls and stage.levels.get("run_mode") != "override":
            without_effect = (
                "{} has no effect in batch mode, where no connection stays open; leave it out"
            )
            problems += [
                Problem(stage.at("model"), without_effect.format(key), "warning")
                for key in ("transport", "idle_timeout")
                if getattr(model, key) is not None
            ]
        for place in _models_of(stage, models):
            problems += _unfit(*place)
    if stages and len(stages) == len(workflow.asking) and workflow.rules.ttft:
        message = "ttft has no effect in batch mode, in which no answer is streamed; remove it"
        problems.append(Problem(workflow.rules.where, message, "warning"))
    for (where, provider, remedy), names in without.items():
        if len(names) == 1:
            asked = f"stage {names[0]}"
        else:
            asked = f"stages {', '.join(names[:-1])} and {names[-1]}"
        problems.append(
            Problem(
                where, f"provider {provider!r} of {asked} has no batches that agac knows; {remedy}"
            )
        )
    return list(dict.fromkeys(problems))


def _beyond(stage: WrittenStage, model: PlannedModel, traits: BatchTraits) -> Iterator[Problem]:
    rules = stage.settings.batch
    name = model.provider.name
    for key in ("max_requests", "max_bytes"):
        own = getattr(rules, key)
        most = getattr(traits, key)
        if own is not None and own > most:
            yield batch_problem(stage, key, f"{name} takes at most {most:,} {key[4:]} in a batch")
    window = rules.completion_window
    if window is not None and window not in traits.windows:
        known = ", ".join(traits.windows)
        yield batch_problem(
            stage,
            "completion_window",
            f"{name} has no window {window!r}; write {known}, or leave it out",
        )
        return
    window = window or traits.windows[0]
    ends = None
    with suppress(PydanticCustomError):
        ends = duration(window)
    if (
        isinstance(rules.deadline, float)
        and traits.expires
        and ends is not None
        and rules.deadline >= ends
    ):
        yield batch_problem(
            stage,
            "deadline",
            f"{name} gives up after {window} by itself, which is sooner",
            warning=True,
        )


def _unfit(where: Where, model: PlannedModel) -> Iterator[Problem]:
    """Parameters that batches of a model do not take, and the library that they need."""
    traits = model.provider.batch
    if traits is None:
        return
    for name, remedy in traits.unsupported.items():
        if getattr(model.params, name) is not None:
            yield Problem(
                where, f"{name} cannot be asked for in batches of {model.provider.name}: {remedy}"
            )
    if traits.api == "anthropic" and (
        lack := lack_of(f"batch mode of {model.provider.name}", "anthropic")
    ):
        yield Problem(where, lack)


def check_budgets(workflow: Workflow, models: Models) -> list[Problem]:
    """Models whose calls cannot be bounded by the budgets that hold for them. Prices are looked up
    for dollars only."""
    problems = []
    rules = workflow.rules
    for stage in workflow.calling:
        budgets = [
            one
            for one in (rules.project, rules.workflow, rules.row, stage.settings.budget)
            if one is not None
        ]
        if stage.name not in models or not budgets:
            continue
        if stage.runtime and rules.row and (rules.row.turns, rules.row.tool_calls) != (None, None):
            message = (
                "row_budget counts no turns and tool_calls within sessions of OpenCode; "
                "bound them by `max_turns`"
            )
            problems.append(Problem(stage.at("runtime"), message))
        dollars = any(budget.usd is not None for budget in budgets)
        bounded = dollars or any(budget.tokens is not None for budget in budgets)
        for where, one in _models_of(stage, models):
            if bounded and one.params.max_tokens is None:
                message = (
                    f"a budget in usd or tokens holds for stage {stage.name!r}, so each reply of "
                    f"{one.ref} needs a bound; add `max_tokens: 1000` or, to the model, "
                    "`?max_tokens=1000` (what a reply may need)"
                )
                problems.append(Problem(stage.at(""), message))
            if bounded and one.server_tools:
                message = (
                    f"what {' and '.join(one.server_tools)} of {one.ref} finds and costs is not "
                    "known before a call: a budget in usd or tokens counts it afterwards, and is "
                    "exceeded by that of calls under way at most"
                )
                problems.append(Problem(where, message, "warning"))
            if dollars and dearest_price(one.provider, one.model, one.params.service_tier) is None:
                price = f"{{{one.model}: {{input: 1.00, output: 2.00}}}}"
                message = (
                    f"a budget in usd holds for this stage, and the price of {one.ref} is not "
                    f"known; add to agac.yml: `providers: {{{one.provider.name}: {{prices: "
                    f"{price}}}}}` with its dollars per million tokens"
                )
                problems.append(Problem(where, message))
    return list(dict.fromkeys(problems))


# Findings of `agac lint` that need models and prices.

_DEAR = 5.0  # dollars per million output tokens: small models cost less


def lint_models(
    workflow: Workflow, models: Models, readers: Readers, stages: Where
) -> Iterator[LintFinding]:
    """What is found of a workflow's models; `stages` is where its stages begin. Prices are looked
    up of paid ones alone: to import them takes a third of a second."""
    rules = workflow.rules
    paid = [
        (stage, n, one)
        for stage in workflow.calling
        for n, one in enumerate(models[stage.name])
        if _is_paid(one)
    ]
    bounds = (
        rules.project,
        rules.workflow,
        rules.confirm_above,
        *(stage.settings.budget for stage in workflow.asking),
    )
    if paid and all(bound is None for bound in bounds):
        names = ", ".join(sorted({one.provider.name for *_, one in paid}))
        message = (
            f"{names} costs money, and nothing limits a run; write `budget: {{usd: 5}}` "
            "into the file"
        )
        yield LintFinding(stages, message, rule="missing-budget")
    for stage, number, one in paid:
        named = f"{one.provider.name}/{one.model}"
        price = dearest_price(one.provider, one.model)
        users = readers.of(stage.name)
        if price is not None and price.output > _DEAR and users and users <= {"when", "filter"}:
            message = (
                f"only guards use {stage.name!r}, and {named} costs ${price.output:g} per "
                "million output tokens; "
            )
            yield LintFinding(
                stage.at("model"),
                message + "compare a smaller model",
                rule="expensive-model-on-filter",
            )
        dated = dated_versions(one.provider, one.model)
        if dated or one.model.endswith("latest"):
            remedy = f", such as {one.provider.name}/{dated[-1]}" if dated else ""
            message = (
                f"the maker of {named} may put another model behind this name; name a "
                f"dated version{remedy}"
            )
            yield LintFinding(
                stage.at("fallback" if number else "model"), message, rule="unpinned-model"
            )


def _is_paid(model: PlannedModel) -> bool:
    """Whether its calls cost money, as far as is known without its price."""
    own = model.provider.prices.get(model.model) or model.provider.prices.get("*")
    if own is None:
        listed = model.provider.price_id is not None
    else:
        listed = bool(own.input or own.output)
    return listed and not model.provider.simulated
