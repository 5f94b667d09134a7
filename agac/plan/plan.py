"""A Plan: a workflow with everything resolved that its rows will need, and nothing asked yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash, params_body
from agac.core.types import JSONValue, Params, Schema
from agac.plan.timeouts import DEFAULT_TIMEOUT, call_timeout
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
from agac.spec.pythonschema import Resolved, resolve_schema
from agac.spec.template import Template
from agac.spec.workflow import Budget, Example, InputSpec, OutputSpec, ReusePolicy, RunRules, Stage, Timeout, Workflow

DEFAULT_CONCURRENCY = 32
"""Calls in flight when nobody says otherwise: busy enough for a hosted model, gentle to a local one."""

ExtraCheck = Callable[[JSONValue], list[str]]
"""What a Python schema finds wrong with a value beyond its JSON Schema: messages, empty when it is fine."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a stage and the parameters with which it is asked.

    `transport`: `sse`, `ws` or `auto`; None: one body for one body. `idle_timeout` bounds each silence of a streamed
    answer, in seconds; None: the time-out does. `ref` is what the model's string said.
    """

    provider: Provider
    model: str
    params: Params
    transport: str | None = None
    idle_timeout: float | None = None
    timeout: Timeout = DEFAULT_TIMEOUT
    ref: ModelRef | None = None

    @property
    def lane(self) -> str:
        """The model as users write it."""
        return f"{self.provider.name}/{self.model}"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage, ready to be asked: its model, its parameters and all texts are known.

    `repair` is how often a reply of the wrong form is asked again; `max_age` is in seconds; `messages` stand between
    `system` and `prompt`; `ref` is what the string of `model` said.
    """

    name: str
    index: int
    upstream: str | None
    system: str | None
    prompt: Template
    schema: Schema | None
    extra_check: ExtraCheck | None
    provider: Provider
    model: str
    params: Params
    timeout: Timeout
    concurrency: int | None
    prints: Fingerprinter
    fallbacks: tuple[PlannedModel, ...] = ()
    repair: int = 1
    json_repair: bool = False
    reuse: ReusePolicy = "content"
    max_age: float | None = None
    budget: Budget | None = None
    transport: str | None = None
    idle_timeout: float | None = None
    messages: tuple[Example, ...] = ()
    ref: ModelRef | None = None

    @property
    def lane(self) -> str:
        """The stage's model as users write it."""
        return f"{self.provider.name}/{self.model}"

    @property
    def models(self) -> tuple[PlannedModel, ...]:
        """The stage's model and its fallbacks, in the order in which they are asked."""
        first = PlannedModel(
            self.provider, self.model, self.params, self.transport, self.idle_timeout, self.timeout, self.ref
        )
        return (first, *self.fallbacks)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the input take part; None: all. `offset` counts records from 0.

    First `offset` rows are skipped, then `sample` of the others are drawn with `seed`, then the first `limit` taken.
    """

    limit: int | None = None
    offset: int = 0
    sample: int | None = None
    seed: int = 0

    @staticmethod
    def of(stored: Mapping[str, Any]) -> Selection:
        """The selection that a run was stored with."""
        seed = stored.get("seed") or 0
        return Selection(stored.get("limit"), stored.get("offset", 0), stored.get("sample"), seed)

    @property
    def partial(self) -> bool:
        """Whether rows may be left out: such a run writes to a preview folder."""
        return self.limit is not None or self.offset > 0 or self.sample is not None

    def taken(self, rows: int) -> int:
        """How many of so many rows take part, `offset` not counted."""
        return min(bound for bound in (rows, self.sample, self.limit) if bound is not None)

    def text(self) -> str:
        """Canonical JSON: part of a run's identity."""
        drawn = {} if self.sample is None else {"sample": self.sample, "seed": self.seed}
        return canonical({"limit": self.limit, "offset": self.offset, **drawn} if self.partial else {})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do. `body` is the resolved definition, `hash` what stands for it in the run's identity."""

    workflow: str
    input: InputSpec
    output: OutputSpec
    stages: tuple[PlannedStage, ...]
    vars: Mapping[str, JSONValue]
    selection: Selection
    concurrency: int
    body: dict[str, Any]
    hash: bytes
    rules: RunRules


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A stage's model after all levels had their say, and the models that are asked after it."""

    provider: Provider
    ref: ModelRef
    params: Params
    fallbacks: tuple[ResolvedModel, ...] = ()


def make_plan(
    workflow: Workflow, models: Mapping[str, ResolvedModel], root: Path, selection: Selection, concurrency: int | None
) -> Plan:
    """The plan of a workflow that was checked. Imports Python schemas of the project, so only a run may call it.

    `models` holds each stage's model by the stage's name; `concurrency` is the command line's wish.
    """
    stages = tuple(_stage(stage, models[stage.name], root) for stage in workflow.stages)
    body = _definition(workflow, stages)
    return Plan(
        workflow=workflow.name,
        input=workflow.input,
        output=workflow.output,
        stages=stages,
        vars=workflow.vars,
        selection=selection,
        concurrency=concurrency or _concurrency(stages),
        body=body,
        hash=definition_hash(body),
        rules=workflow.rules,
    )


def _concurrency(stages: tuple[PlannedStage, ...]) -> int:
    """Rows that walk at a time: enough to fill the widest stage."""
    return max(s.concurrency or s.provider.limits.concurrency or DEFAULT_CONCURRENCY for s in stages)


def _resolved_schema(stage: Stage, root: Path) -> Resolved | None:
    if stage.schema is None:
        return None
    try:
        return resolve_schema(stage.schema, root)
    except UsageError as error:
        place = f"{stage.at('output_schema')}: {stage.path}.output_schema"
        raise UsageError(f"{place}: {error.message}", remedy=error.remedy) from error


def _stage(stage: Stage, model: ResolvedModel, root: Path) -> PlannedStage:
    resolved = _resolved_schema(stage, root)
    schema = resolved.schema if resolved else None
    return PlannedStage(
        name=stage.name,
        index=stage.index,
        upstream=stage.upstream,
        system=stage.instructions,
        prompt=stage.prompt,
        schema=schema,
        extra_check=resolved.validate_extra if resolved else None,
        provider=model.provider,
        model=model.ref.wire,
        params=model.params,
        timeout=call_timeout(stage.timeout, model.params),
        concurrency=stage.concurrency,
        prints=Fingerprinter(provider=model.provider.name, model=model.ref.wire, params=model.params, schema=schema),
        fallbacks=tuple(_fallback(other, stage.timeout) for other in model.fallbacks),
        repair=stage.repair,
        json_repair=stage.json_repair,
        reuse=stage.reuse,
        max_age=stage.max_age,
        budget=stage.budget,
        transport=model.ref.transport,
        idle_timeout=model.ref.idle_timeout,
        messages=stage.messages,
        ref=model.ref,
    )


def _fallback(other: ResolvedModel, timeout: Timeout | None) -> PlannedModel:
    ref, bounds = other.ref, call_timeout(timeout, other.params)
    return PlannedModel(other.provider, ref.wire, other.params, ref.transport, ref.idle_timeout, bounds, ref)


def _definition(workflow: Workflow, stages: tuple[PlannedStage, ...]) -> dict[str, Any]:
    """Everything that decides what is asked. Not in it: time-outs, repairs, fallbacks, limits, where results go."""
    spec = workflow.input
    return {
        "workflow": workflow.name,
        "input": {
            "path": spec.shown,
            "format": spec.format,
            "id_field": spec.id_field,
            "on_duplicate_id": spec.on_duplicate_id,
        },
        "vars": dict(workflow.vars),
        "stages": [
            {
                "name": stage.name,
                "needs": stage.upstream,
                "system": stage.system,
                "prompt": stage.prompt.text,
                **_messages(stage),
                "model": stage.lane,
                **_alias(stage),
                "params": params_body(stage.params),
                "schema": {"name": stage.schema.name, "body": stage.schema.body} if stage.schema else None,
                **({"reuse": stage.reuse} if stage.reuse != "content" else {}),
            }
            for stage in stages
        ],
    }


def _messages(stage: PlannedStage) -> dict[str, Any]:
    """A definition without examples stays what it was before there were any."""
    if not stage.messages:
        return {}
    return {"messages": [{"role": one.role, "content": one.content.text} for one in stage.messages]}


def _alias(stage: PlannedStage) -> dict[str, Any]:
    """The short name that was written, and what it meant then."""
    if stage.ref is None or stage.ref.written is None:
        return {}
    return {"alias": {"written": stage.ref.written, "means": stage.ref.meaning}}
