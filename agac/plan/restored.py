"""The Plan of a run, made again of its stored definition and of the `manner` that was kept beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from agac.core.errors import UsageError, Where
from agac.core.keys import Fingerprinter, definition_hash
from agac.core.types import Params, Schema
from agac.plan.plan import Plan, Selection
from agac.plan.recorded import RecordedStage, ends_of, recorded_stages
from agac.plan.steps import AnyStage, LocalStage, PlannedModel, PlannedStage
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
from agac.spec.functions import FunctionRef, same_function
from agac.spec.guards import Guard, compile_guard
from agac.spec.operations import Dedupe, Filter, Operation, Python, Rename, Select
from agac.spec.pythonschema import Resolved, resolve_schema, same_schema
from agac.spec.rounds import BatchRules, DayTime
from agac.spec.workflow import Budget, InputSpec, OutputSpec, PythonSchema, RunRules, TableTarget, Timeout

Made = TypeVar("Made")

_STORED = Where("the stored definition")
AS_THEY_ARE = ("concurrency", "repair", "json_repair", "max_age", "on_empty", "run_mode")
"""Fields of an asking stage that are JSON already and that no definition holds."""

NO_BOUND = "none"
"""An endless time-out: JSON has no infinity."""


def plan_of(
    workflow: str,
    definition: dict[str, Any],
    manner: Mapping[str, Any],
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
    told = {**definition, "vars": json.loads(manner["vars"])}
    stages = tuple(
        _stage(recorded, body, how, providers, root, functions=functions)
        for recorded, body, how in zip(recorded_stages(told), told["stages"], manner["stages"], strict=True)
    )
    names = tuple(stages[place].name for place in ends_of(definition))
    return Plan(
        workflow=workflow,
        input=_input(definition["input"], manner["input"], root),
        output=_output(manner["output"], names, definition.get("rows"), root),
        stages=stages,
        vars=told["vars"],
        selection=_made(Selection, manner["selection"]),
        concurrency=manner["concurrency"],
        body=definition,
        hash=definition_hash(definition),
        rules=_rules(manner["rules"]),
    )


def _made(kind: type[Made], body: Mapping[str, Any]) -> Made:
    """A dataclass of plain values; what nobody knew when it was stored is as it is by default."""
    return kind(**body)


def _input(definition: Mapping[str, Any], manner: Mapping[str, Any], root: Path) -> InputSpec:
    return InputSpec(
        path=root / manner["path"],
        shown=definition["path"],
        format=definition["format"],
        id_field=definition["id_field"],
        on_duplicate_id=definition["on_duplicate_id"],
        where=_STORED,
        patterns=tuple(manner["patterns"]),
        skipped=tuple(root / path for path in manner["skipped"]),
        statement=manner["statement"],
        ordered=manner["ordered"],
        piped=manner["piped"],
    )


def _output(manner: Mapping[str, Any], stages: tuple[str, ...], rows: str | None, root: Path) -> OutputSpec:
    to = manner["to"]
    return OutputSpec(
        dir=root / manner["dir"],
        include_input=manner["include_input"],
        formats=tuple(manner["formats"]),
        to=TableTarget(root / to["path"], to["shown"], to["table"], _STORED) if to else None,
        merge=manner["merge"],
        csv_safe=manner["csv_safe"],
        stages=stages,
        rows=rows,
    )


def _rules(body: Mapping[str, Any]) -> RunRules:
    budgets = {key: _made(Budget, body[key]) for key in ("project", "workflow", "row") if body.get(key)}
    return _made(RunRules, {**body, **budgets})


def _batch(body: Mapping[str, Any]) -> BatchRules:
    deadline = body.get("deadline")
    return _made(BatchRules, {**body, "deadline": DayTime(**deadline)} if isinstance(deadline, dict) else body)


def _stage(
    recorded: RecordedStage,
    body: Mapping[str, Any],
    how: Mapping[str, Any],
    providers: Mapping[str, Provider],
    root: Path,
    *,
    functions: bool,
) -> AnyStage:
    common: dict[str, Any] = {
        "name": recorded.name,
        "index": recorded.index,
        "needs": recorded.needs,
        "ancestors": recorded.ancestors,
        "rows_of": recorded.rows_of,
        "guard": _guard(body["when"]) if "when" in body else None,
        "otherwise": body.get("otherwise", "skip"),
        "explode": recorded.explode,
        "on_empty": how["on_empty"],
    }
    if recorded.operation is not None:
        called = "python" in recorded.operation
        does = Select(()) if called and not functions else _operation(recorded.operation, how, root)
        return LocalStage(**common, operation=does, prints=definition_hash(does.body()))
    first, *others = (_model(one, recorded.name, providers) for one in how["models"])
    schema = _schema(recorded, how, root)
    return PlannedStage(
        **{**common, **{key: how[key] for key in AS_THEY_ARE}},
        system=recorded.system,
        prompt=recorded.prompt,
        schema=schema.schema if schema else None,
        extra_check=schema.validate_extra if schema else None,
        python_schema=_python_schema(how["python_schema"]),
        provider=first.provider,
        model=first.model,
        params=first.params,
        timeout=first.timeout,
        transport=first.transport,
        idle_timeout=first.idle_timeout,
        ref=first.ref,
        fallbacks=tuple(others),
        prints=Fingerprinter(
            provider=first.provider.name,
            model=first.model,
            params=first.params,
            schema=schema.schema if schema else None,
            output_field=recorded.output_field,
        ),
        reuse=recorded.reuse,
        budget=_made(Budget, how["budget"]) if how["budget"] else None,
        batch=_batch(how["batch"]),
        messages=recorded.examples,
        visibility=recorded.visibility,
        output_field=recorded.output_field,
        replicas=recorded.replicas,
        vote=recorded.vote,
        group=recorded.group,
    )


def _guard(text: str) -> Guard:
    guard, _ = compile_guard(text, _STORED, "")
    assert guard is not None, "only a guard without problems is stored"
    return guard


def _operation(body: Mapping[str, Any], how: Mapping[str, Any], root: Path) -> Operation:
    if "python" in body:
        shown, _, name = body["python"].rpartition(":")
        source = bytes.fromhex(body["source"])
        function = FunctionRef(root / shown, shown, name, how["is_async"], source)
        same_function(function, root)
        return Python(function, how["processes"])
    if "filter" in body:
        return Filter(_guard(body["filter"]))
    if "select" in body:
        return Select(tuple(body["select"]))
    if "rename" in body:
        return Rename(body["rename"])
    return Dedupe(tuple(tuple(field.split(".")) for field in body["dedupe"]))


def _python_schema(body: Mapping[str, str] | None) -> PythonSchema | None:
    if body is None:
        return None
    return PythonSchema(body["module"], body["cls"], body["name"], bytes.fromhex(body["source"]))


def _schema(recorded: RecordedStage, how: Mapping[str, Any], root: Path) -> Resolved | None:
    """The schema as it was sent, its fields in their order; with what a class of the project checks beyond it."""
    if recorded.schema is None:
        return None
    spec = _python_schema(how["python_schema"])
    if spec is None:
        return Resolved(Schema(recorded.schema.name, json.loads(how["schema"])))
    same_schema(spec, root)
    return resolve_schema(spec, root)


def _model(body: Mapping[str, Any], stage: str, providers: Mapping[str, Provider]) -> PlannedModel:
    ref = _ref(body["ref"]) if body["ref"] else None
    provider = _provider(body, stage, providers)
    if ref is not None and ref.schema_mode is not None:
        provider = replace(provider, structured=ref.schema_mode)
    return PlannedModel(
        provider=provider,
        model=body["model"],
        params=Params(**_tupled(body["params"])),
        transport=body["transport"],
        idle_timeout=_seconds(body["idle_timeout"]),
        timeout=_made(Timeout, body["timeout"]),
        ref=ref,
    )


def _ref(body: Mapping[str, Any]) -> ModelRef:
    own = {**body, "params": _tupled(body["params"]), "idle_timeout": _seconds(body["idle_timeout"])}
    return ModelRef(**own)


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


def _tupled(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}


def _seconds(stored: float | str | None) -> float | None:
    return inf if isinstance(stored, str) else stored
