"""A Plan: a workflow with everything resolved that its rows will need, and nothing asked yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash
from agac.core.types import JSONValue, Params
from agac.plan.definition import definition
from agac.plan.stage import AnyStage, LocalStage, PlannedModel, PlannedStage, call_timeout, shared
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
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
    WrittenStage,
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
        _stage(stage, models[stage.name], root) if stage.operation is None else local_stage(stage)
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


def local_stage(stage: Stage) -> LocalStage:
    """A stage that asks no model, ready to be run."""
    assert stage.operation is not None
    return LocalStage(**shared(stage), prints=definition_hash(stage.operation.body()))


def planned_stage(
    stage: Stage, models: Sequence[PlannedModel], resolved: Resolved | None, python_schema: PythonSchema | None
) -> PlannedStage:
    """A stage that asks these models one after the other, ready to be run; `resolved` is the schema of its answers."""
    first, *others = models
    schema = resolved.schema if resolved else None
    return PlannedStage(
        **{**shared(stage), "schema": schema},
        **{one.name: getattr(first, one.name) for one in fields(first)},
        fallbacks=tuple(others),
        extra_check=resolved.validate_extra if resolved else None,
        python_schema=python_schema,
        prints=Fingerprinter(
            provider=first.provider.name,
            model=first.model,
            params=first.params,
            schema=schema,
            output_field=stage.output_field,
        ),
    )


def _resolved_schema(stage: WrittenStage, root: Path) -> Resolved | None:
    if stage.output_schema is None:
        return None
    try:
        return resolve_schema(stage.output_schema, root)
    except UsageError as error:
        place = f"{stage.at('output_schema')}: {stage.path}.output_schema"
        raise UsageError(f"{place}: {error.message}", remedy=error.remedy) from error


def _stage(stage: WrittenStage, model: ResolvedModel, root: Path) -> PlannedStage:
    resolved = _resolved_schema(stage, root)
    schema = resolved.schema if resolved else None
    if stage.vote is not None and schema is not None and (fault := lacks_field(schema.body, stage.vote)):
        raise UsageError(f"{stage.at('vote')}: {stage.path}.vote: {fault}")
    models = [_model(one, stage.timeout) for one in (model, *model.fallbacks)]
    python_schema = stage.output_schema if isinstance(stage.output_schema, PythonSchema) else None
    return planned_stage(stage, models, resolved, python_schema)


def _model(one: ResolvedModel, timeout: Timeout | None) -> PlannedModel:
    ref, bounds = one.ref, call_timeout(timeout, one.params)
    return PlannedModel(one.provider, ref.wire, one.params, ref.transport, ref.idle_timeout, bounds, ref)
