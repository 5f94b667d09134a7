"""A Plan: a workflow with everything resolved that its rows will need.

It is made of files here, and of a stored run by `plan/restored_plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash
from agac.core.types import JSONValue, Shard
from agac.plan.agent_tools import with_tools
from agac.plan.stage import (
    AnyStage,
    LocalStage,
    PlannedModel,
    PlannedStage,
    agent_body,
    definition,
)
from agac.spec.data_specs import InputSpec, OutputSpec
from agac.spec.output_schema import Resolved, lacks_field, resolve_schema
from agac.spec.paths import RemoteContent
from agac.spec.rules import RunRules
from agac.spec.workflow import PythonSchema, Stage, Workflow, WrittenStage

DEFAULT_CONCURRENCY = 32
"""Calls in flight where no file or option says otherwise: busy enough for a hosted model, gentle
to a local one."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the input take part: first `offset` rows are skipped, then `sample` of the
    others are drawn, then the first `limit` of those are taken, and of these one `shard`."""

    limit: int | None = None
    """The most rows; None: all."""
    offset: int = 0
    """The number of records that are skipped."""
    sample: int | None = None
    """The number of rows that are drawn; None: all."""
    seed: int = 0
    """The seed of the sample."""
    shard: Shard | None = None
    """The part of the rows that a machine takes; None: all."""

    def __post_init__(self) -> None:
        if self.shard is not None:  # JSON has a list
            object.__setattr__(self, "shard", Shard(*self.shard))

    @property
    def partial(self) -> bool:
        """True if rows may be left out: such a run writes to a preview folder."""
        bounds = (self.limit, self.sample, self.shard)
        return self.offset > 0 or any(bound is not None for bound in bounds)

    def taken(self, rows: int) -> int:
        """Returns how many of this many rows take part, without regard to `offset`; of a shard
        about how many."""
        most = min(bound for bound in (rows, self.sample, self.limit) if bound is not None)
        return most if self.shard is None else most // self.shard.of

    def text(self) -> str:
        """Returns canonical JSON, which is a part of a run's identity."""
        body: dict[str, object] = {}
        if self.partial:
            body |= {"limit": self.limit, "offset": self.offset}
        if self.sample is not None:
            body |= {"sample": self.sample, "seed": self.seed}
        if self.shard is not None:
            body["shard"] = self.shard
        return canonical(body)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do."""

    workflow: str
    """The name of the workflow."""
    input: InputSpec
    output: OutputSpec
    stages: tuple[AnyStage, ...]
    """All stages, in the order in which a row meets them."""
    vars: Mapping[str, JSONValue]
    """The values of the workflow's variables."""
    selection: Selection
    concurrency: int
    """The number of rows that are processed at the same time."""
    body: dict[str, Any]
    """The resolved definition."""
    hash: bytes
    """The hash of the definition, a part of the run's identity."""
    rules: RunRules
    remote: tuple[RemoteContent, ...] = ()
    """What was fetched from elsewhere for the workflow."""

    @property
    def asking(self) -> tuple[PlannedStage, ...]:
        """The stages that call a model."""
        return tuple(stage for stage in self.stages if isinstance(stage, PlannedStage))

    @property
    def ends(self) -> tuple[AnyStage, ...]:
        """The stages whose results are a row's result: one alone, of several an object by their
        names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)


Models = Mapping[str, tuple[PlannedModel, ...]]
"""The models that each stage calls one after the other, by its name."""


def make_plan(
    workflow: Workflow,
    models: Models,
    root: Path,
    selection: Selection,
    concurrency: int | None,
    *,
    untrusted: bool = False,
) -> Plan:
    """Makes the plan of a workflow that was checked.

    Imports Python of the project, unless that is `untrusted`: then the plan is only good for
    looking at. `concurrency` is the command line's."""
    stages = numbered(
        _planned(stage, models, root, untrusted) if stage.asks else local_stage(stage)
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
        concurrency=concurrency or _widest(stages),
        body=body,
        hash=definition_hash(body),
        rules=workflow.rules,
        remote=workflow.remote,
    )


def _widest(stages: Iterable[AnyStage]) -> int:
    """Returns how many rows fill the stage with the most calls in flight."""
    calls = (
        stage.settings.concurrency or stage.provider.limits.concurrency or DEFAULT_CONCURRENCY
        for stage in stages
        if isinstance(stage, PlannedStage)
    )
    return max(calls, default=DEFAULT_CONCURRENCY)


def local_stage(stage: Stage) -> LocalStage:
    """Makes a stage that calls no model ready to be run."""
    assert stage.operation is not None
    return LocalStage(**_fields_of(stage), prints=definition_hash(stage.operation.body()))


def planned_stage(
    stage: Stage,
    models: Sequence[PlannedModel],
    resolved: Resolved | None,
    python_schema: PythonSchema | None,
) -> PlannedStage:
    """Makes a stage that calls these models one after the other ready to be run; `resolved` is the
    schema of its answers."""
    first = models[0]
    schema = resolved.schema if resolved else None
    return PlannedStage(
        **{**_fields_of(stage), "schema": schema},
        models=tuple(models),
        extra_check=resolved.validate_extra if resolved else None,
        model=resolved.model if resolved else None,
        python_schema=python_schema,
        prints=Fingerprinter(
            first.provider.name,
            first.model,
            first.params,
            schema,
            stage.output_field,
            stage.reply,
            agent_body(stage),
        ),
    )


def _fields_of(stage: Stage) -> dict[str, Any]:
    """Returns the fields that every kind of stage has, by name."""
    return {spec.name: getattr(stage, spec.name) for spec in fields(Stage)}


def numbered(stages: Iterable[AnyStage]) -> tuple[AnyStage, ...]:
    """Returns the stages, with the agents that they call numbered after all of them."""
    outer = tuple(stages)
    numbers = count(len(outer))

    def with_numbers(stage: PlannedStage) -> PlannedStage:
        if not stage.children:
            return stage
        children = (replace(child, index=next(numbers)) for child in stage.children)
        return replace(stage, children=tuple(map(with_numbers, children)))

    return tuple(
        with_numbers(stage) if isinstance(stage, PlannedStage) else stage for stage in outer
    )


def _planned(stage: WrittenStage, models: Models, root: Path, untrusted: bool) -> PlannedStage:
    """Plans a stage that calls a model, with the agents that it may call."""
    children = tuple(_planned(child, models, root, untrusted) for child in stage.children)
    agent_spec, tooling = with_tools(stage, children, root, untrusted=untrusted)
    settings = replace(stage.settings, tooling=tooling)
    stage = replace(stage, agent_spec=agent_spec, settings=settings)
    resolved = _resolved(stage, root, untrusted)
    if resolved and stage.vote and stage.vote.field:
        fault = lacks_field(resolved.schema.body, stage.vote.field)
        if fault:
            raise UsageError(f"{stage.at('vote')}: {stage.path}.vote: {fault}")
    written = stage.output_schema
    python_schema = written if isinstance(written, PythonSchema) else None
    planned = planned_stage(stage, models[stage.name], resolved, python_schema)
    return replace(planned, children=children)


def _resolved(stage: WrittenStage, root: Path, untrusted: bool) -> Resolved | None:
    """Reads the schema of a stage's answers, if it has one. Raises UsageError."""
    if stage.output_schema is None:
        return None
    try:
        return resolve_schema(stage.output_schema, root, untrusted=untrusted)
    except UsageError as error:
        place = f"{stage.at('output_schema')}: {stage.path}.output_schema"
        raise UsageError(f"{place}: {error.message}", remedy=error.remedy) from error
