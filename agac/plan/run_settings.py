"""How a run goes about its definition, so that it can go on without the project's files: batches come back after days.

`run_settings` is what a Plan holds beyond its definition, as JSON; `restored_plan` makes the same Plan of both and of
the providers of today. Prompts, schemas, models and rules are those of the day on which the run began; what a
definition keeps in another order (it is sorted) is held here as text. What is stored is made of the fields themselves:
a key that is new is stored and read without a line here, and one that an older run did not store is at its default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agac.core.errors import UsageError
from agac.core.keys import definition_hash, params_body, snapshot
from agac.core.types import JSONValue, Params, Schema
from agac.plan.definition import RecordedStage, ends_of, recorded_stages, stored_fields, tupled
from agac.plan.plan import Plan, Selection, local_stage, planned_stage
from agac.plan.stage import AnyStage, LocalStage, PlannedModel
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
from agac.spec.functions import same_function
from agac.spec.guards import Guard, compile_guard
from agac.spec.operations import STORED, Filter, Operation, Python, Select
from agac.spec.pythonschema import Resolved, resolve_schema, same_schema
from agac.spec.workflow import InputSpec, OutputSpec, PythonSchema, RunRules, Stage, Timeout

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
        _stage(stage, how, providers, root, functions=functions)
        for stage, how in zip(recorded, settings["stages"], strict=True)
    )
    told = definition["input"]
    ends = [stages[place].name for place in ends_of(definition)]
    source = {**told, "shown": told["path"], **settings["input"]}
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


def _stage(
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
    models = [_model(one, recorded.name, providers, root) for one in how["models"]]
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


def _model(body: Mapping[str, Any], stage: str, providers: Mapping[str, Provider], root: Path) -> PlannedModel:
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
