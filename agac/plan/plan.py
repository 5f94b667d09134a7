"""A Plan: a workflow with everything resolved that its rows will need, and nothing asked yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash
from agac.core.types import JSONValue, Params
from agac.plan.definition import definition
from agac.plan.steps import AnyStage, LocalStage, PlannedModel, PlannedStage
from agac.plan.timeouts import call_timeout
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
from agac.spec.operations import Operation
from agac.spec.pythonschema import Resolved, resolve_schema
from agac.spec.votes import lacks_field
from agac.spec.workflow import (
    InputSpec,
    OutputSpec,
    PythonSchema,
    RunRules,
    Stage,
    Timeout,
    Workflow,
    shape_of_ends,
)

DEFAULT_CONCURRENCY = 32
"""Calls in flight when nobody says otherwise: busy enough for a hosted model, gentle to a local one."""


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
    stages: tuple[AnyStage, ...]
    vars: Mapping[str, JSONValue]
    selection: Selection
    concurrency: int
    body: dict[str, Any]
    hash: bytes
    rules: RunRules

    @property
    def asking(self) -> tuple[PlannedStage, ...]:
        """The stages that ask a model."""
        return tuple(stage for stage in self.stages if isinstance(stage, PlannedStage))

    @property
    def ends(self) -> tuple[AnyStage, ...]:
        """The stages whose results are a row's result: one alone, of several an object by their names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)

    @property
    def result_shape(self) -> dict[str, Any] | None:
        """The JSON Schema of a row's result; None: nothing is known of it."""
        return shape_of_ends([(stage.name, stage.shape) for stage in self.ends])


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
    stages = tuple(
        _stage(stage, models[stage.name], root) if stage.operation is None else _local(stage, stage.operation)
        for stage in workflow.stages
    )
    body = definition(workflow, stages)
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


def _concurrency(stages: tuple[AnyStage, ...]) -> int:
    """Rows that walk at a time: enough to fill the widest stage."""
    asking = [stage for stage in stages if isinstance(stage, PlannedStage)]
    wanted = [s.concurrency or s.provider.limits.concurrency or DEFAULT_CONCURRENCY for s in asking]
    return max(wanted, default=DEFAULT_CONCURRENCY)


def _local(stage: Stage, operation: Operation) -> LocalStage:
    return LocalStage(
        name=stage.name,
        index=stage.index,
        needs=stage.needs,
        ancestors=stage.ancestors,
        rows_of=stage.rows_of,
        guard=stage.guard,
        otherwise=stage.otherwise,
        explode=stage.explode,
        on_empty=stage.on_empty,
        operation=operation,
        prints=definition_hash(operation.body()),
    )


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
    if stage.vote is not None and schema is not None and (fault := lacks_field(schema.body, stage.vote)):
        raise UsageError(f"{stage.at('vote')}: {stage.path}.vote: {fault}")
    return PlannedStage(
        name=stage.name,
        index=stage.index,
        needs=stage.needs,
        ancestors=stage.ancestors,
        rows_of=stage.rows_of,
        system=stage.instructions,
        prompt=stage.prompt,
        schema=schema,
        extra_check=resolved.validate_extra if resolved else None,
        provider=model.provider,
        model=model.ref.wire,
        params=model.params,
        timeout=call_timeout(stage.timeout, model.params),
        concurrency=stage.concurrency,
        prints=Fingerprinter(
            provider=model.provider.name,
            model=model.ref.wire,
            params=model.params,
            schema=schema,
            output_field=stage.output_field,
        ),
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
        guard=stage.guard,
        otherwise=stage.otherwise,
        visibility=stage.visibility,
        output_field=stage.output_field,
        replicas=stage.replicas,
        vote=stage.vote,
        explode=stage.explode,
        group=stage.group,
        on_empty=stage.on_empty,
        python_schema=stage.schema if isinstance(stage.schema, PythonSchema) else None,
        run_mode=stage.run_mode,
        batch=stage.batch,
    )


def _fallback(other: ResolvedModel, timeout: Timeout | None) -> PlannedModel:
    ref, bounds = other.ref, call_timeout(timeout, other.params)
    return PlannedModel(other.provider, ref.wire, other.params, ref.transport, ref.idle_timeout, bounds, ref)
