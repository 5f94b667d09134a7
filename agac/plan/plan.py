"""A Plan: a workflow with everything resolved that its rows will need, made from files or from a stored run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash, params_body, snapshot
from agac.core.types import JSONValue, Params, Schema
from agac.plan.definition import RecordedStage, definition, ends_of, recorded_stages, stored_fields, tupled
from agac.plan.stage import AnyStage, LocalStage, PlannedModel, PlannedStage, call_timeout, shared
from agac.providers.model_string import ModelRef
from agac.providers.provider import Provider
from agac.spec.guards import Guard, compile_guard
from agac.spec.operations import STORED, Filter, Operation, Python, Select
from agac.spec.output_schema import Resolved, lacks_field, resolve_schema, same_schema
from agac.spec.python_code import same_function
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


# How a run is resumed without the project's files: batches come back after days.
#
# `run_settings` is what a Plan holds beyond its definition, as JSON; `restored_plan` makes the same Plan of both and
# of the providers of today. Prompts, schemas, models and rules are those of the day on which the run began; what a
# definition keeps in another order (it is sorted) is held here as text. What is stored is made of the fields
# themselves: a key that is new is stored and read without a line here, and one that an older run did not store is at
# its default.

Value = TypeVar("Value")

_NO_BOUND = "none"
"""An endless time-out: JSON has no infinity."""

_DEFINED = ("shown", "format", "id_field", "on_duplicate_id", "stages", "rows")
"""Fields of the input and the output that are in the definition."""

_NOT_KEPT = ("where", "warnings")
"""Places are those of the files of another day; warnings were told when a model's string was read."""


def run_settings(plan: Plan, root: Path) -> dict[str, Any]:
    """What is kept with a run beside its definition: JSON, without secrets. Paths are relative to `root`."""
    return {
        "vars": snapshot(dict(plan.vars)),
        "selection": _plain(plan.selection, root),
        "concurrency": plan.concurrency,
        "input": _beside_definition(plan.input, root),
        "output": _beside_definition(plan.output, root),
        "rules": _plain(plan.rules, root),
        "stages": [_stage_settings(stage, root) for stage in plan.stages],
    }


def _beside_definition(value: InputSpec | OutputSpec, root: Path) -> dict[str, Any]:
    return {key: inner for key, inner in _plain(value, root).items() if key not in _DEFINED}


def _stage_settings(stage: AnyStage, root: Path) -> dict[str, Any]:
    own = {
        one.name: _plain(getattr(stage, one.name), root)
        for one, how in stored_fields(decides=False)
        if how.always == "all" or stage.asks
    }
    if isinstance(stage, LocalStage):
        does = stage.operation
        called = {"processes": does.processes, "is_async": does.function.is_async} if isinstance(does, Python) else {}
        return own | called
    return own | {
        "models": [_model_body(model, root) for model in stage.models],
        "schema": snapshot(stage.schema.body) if stage.schema else None,
        "python_schema": _plain(stage.python_schema, root),
    }


def _model_body(one: PlannedModel, root: Path) -> dict[str, Any]:
    ref = _plain(one.ref, root) or {}
    return {
        "provider": one.provider.name,
        "dialect": one.provider.dialect,
        "model": one.model,
        "params": _plain(params_body(one.params), root),
        **{key: _plain(getattr(one, key), root) for key in ("transport", "idle_timeout", "timeout")},
        # in the order in which runs have it
        "ref": {key: ref[key] for key in sorted(ref, key=("params", "idle_timeout").__contains__)} or None,
    }


def _plain(value: Any, root: Path) -> JSONValue:
    """A value as JSON: a dataclass by its fields."""
    if isinstance(value, Path):  # one inside the project moves with it
        return value.relative_to(root).as_posix() if value.is_relative_to(root) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _plain(inner, root) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, root) for inner in value]
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name), root) for one in fields(value) if one.name not in _NOT_KEPT}
    return _NO_BOUND if value == inf else value


def _read(hint: type[Value], body: JSONValue, root: Path) -> Value:
    """The value that `_plain` wrote; what was not known when it was stored is at its default."""
    return cast("Value", _of_hint(hint, body, root))


def _of_hint(hint: Any, body: JSONValue, root: Path) -> Any:
    if get_origin(hint) in (Union, UnionType):
        if body is None:
            return None
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        hint = next((kind for kind in kinds if is_dataclass(kind) == isinstance(body, Mapping)), kinds[0])
    origin = get_origin(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        read = {one.name: _of_hint(hints[one.name], body[one.name], root) for one in fields(hint) if one.name in body}
        place = {"where": STORED} if hint is InputSpec else {}
        return cast("Any", hint)(**read, **place)
    if origin is tuple:
        return tuple(_of_hint(get_args(hint)[0], inner, root) for inner in body)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return tupled(body)
    if hint is Path:
        return root / body
    if hint is bytes:
        return bytes.fromhex(body)
    return inf if hint is float and body == _NO_BOUND else body


def restored_plan(
    workflow: str,
    definition: dict[str, Any],
    settings: Mapping[str, Any],
    providers: Mapping[str, Provider],
    root: Path,
    *,
    functions: bool = True,
) -> Plan:
    """The Plan that a run was made with. Imports Python schemas of the project. Without `functions` it is only good for
    reading answers: whatever became of functions of the project is not looked at.

    Raises UsageError when a provider is gone or speaks another dialect, and when a function or a schema in Python is
    no longer what it was.
    """
    variables = json.loads(settings["vars"])
    recorded = recorded_stages({**definition, "vars": variables})
    stages = tuple(
        _run_settings_stage(stage, how, providers, root, functions=functions)
        for stage, how in zip(recorded, settings["stages"], strict=True)
    )
    ends = [stages[place].name for place in ends_of(definition)]
    source = {**definition["input"], "shown": definition["input"]["path"], **settings["input"]}
    target = {**settings["output"], "stages": ends, "rows": definition.get("rows")}
    return Plan(
        workflow=workflow,
        input=_read(InputSpec, source, root),
        output=_read(OutputSpec, target, root),
        stages=stages,
        vars=variables,
        selection=_read(Selection, settings["selection"], root),
        concurrency=settings["concurrency"],
        body=definition,
        hash=definition_hash(definition),
        rules=_read(RunRules, settings["rules"], root),
    )


def _run_settings_stage(
    recorded: RecordedStage, how: Mapping[str, Any], providers: Mapping[str, Provider], root: Path, *, functions: bool
) -> AnyStage:
    hints = get_type_hints(Stage)
    own: dict[str, Any] = {
        one.name: _of_hint(hints[one.name], how[one.name], root)
        for one, _ in stored_fields(decides=False)
        if one.name in how
    }
    guard = _guard(recorded.guard.text) if recorded.guard else None
    stage = replace(recorded, **own, guard=guard)
    if stage.operation is not None:
        return local_stage(replace(stage, operation=_operation(stage.operation, how, root, functions=functions)))
    models = [_run_settings_model(one, recorded.name, providers, root) for one in how["models"]]
    python_schema = _of_hint(PythonSchema | None, how["python_schema"], root)
    return planned_stage(stage, models, _schema(recorded, python_schema, how, root), python_schema)


def _guard(text: str) -> Guard:
    guard, _ = compile_guard(text, STORED, "")
    assert guard is not None, "only a guard without problems is stored"
    return guard


def _operation(does: Operation, how: Mapping[str, Any], root: Path, *, functions: bool) -> Operation:
    if isinstance(does, Filter):
        return Filter(_guard(does.guard.text))
    if not isinstance(does, Python):
        return does
    if not functions:
        return Select(())
    function = replace(does.function, file=root / does.function.shown, is_async=how["is_async"])
    same_function(function, root)
    return Python(function, how["processes"])


def _schema(recorded: RecordedStage, spec: PythonSchema | None, how: Mapping[str, Any], root: Path) -> Resolved | None:
    """The schema as it was sent, its fields in their order; with what a class of the project checks beyond it."""
    if recorded.schema is None:
        return None
    if spec is None:
        return Resolved(Schema(recorded.schema.name, json.loads(how["schema"])))
    same_schema(spec, root)
    return resolve_schema(spec, root)


def _run_settings_model(
    body: Mapping[str, Any], stage: str, providers: Mapping[str, Provider], root: Path
) -> PlannedModel:
    ref = _of_hint(ModelRef | None, body["ref"], root)
    provider = _provider(body, stage, providers)
    if ref is not None and ref.schema_mode is not None:
        provider = replace(provider, structured=ref.schema_mode)
    return PlannedModel(
        provider=provider,
        model=body["model"],
        params=_read(Params, body["params"], root),
        transport=body["transport"],
        idle_timeout=_of_hint(float | None, body["idle_timeout"], root),
        timeout=_read(Timeout, body["timeout"], root),
        ref=ref,
    )


def _provider(body: Mapping[str, Any], stage: str, providers: Mapping[str, Provider]) -> Provider:
    name, dialect = body["provider"], body["dialect"]
    if name not in providers:
        raise UsageError(
            f"stage {stage!r} of this run asks {name}/{body['model']}, and there is no provider {name!r} any more",
            remedy=f"Put `providers: {{{name}: …}}` back into agac.yml.",
        )
    found = providers[name]
    if found.dialect != dialect:
        raise UsageError(
            f"stage {stage!r} of this run asks {name}/{body['model']} in the dialect {dialect}, and the provider's is "
            f"{found.dialect} now",
            remedy=f"Write `dialect: {dialect}` for it in agac.yml until the run is finished.",
        )
    return found
