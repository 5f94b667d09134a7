"""What a run keeps next to its definition, so that it can be resumed without the project's files.

Batches come back after days. `run_settings` writes what a Plan holds beyond its definition as JSON;
`restored_plan` makes the same Plan of both and of the providers of today. Prompts, schemas, models
and rules are those of the day on which the run began. A definition is sorted; what it keeps in
another order is held here as text.

Everything is written field by field: a new key is stored and read without a line here, and one
that an older run did not store gets its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from agac.core.keys import params_body, snapshot
from agac.core.types import Params
from agac.plan.plan import Plan
from agac.plan.stage import (
    CHOOSING_ROWS,
    AnyStage,
    LocalStage,
    PlannedModel,
    tupled,
)
from agac.providers.provider import Provider
from agac.spec.data_specs import InputSpec
from agac.spec.guards import STORED
from agac.spec.operations import Python
from agac.spec.paths import RemoteContent
from agac.spec.workflow import StageSettings

_NO_BOUND = "none"
"""An endless time-out: JSON has no infinity."""

_DEFINED = ("shown", "format", "id_field", "on_duplicate_id", "stages", "rows", *CHOOSING_ROWS)
"""Fields of the input and the output that are in the definition."""

_KEPT_WHERE_SET = (
    "delimiter",
    "encoding",
    "on_short_record",
    "bom",
    "places",
    "turns",
    "tool_calls",
    "max_open_rows",
    "linger",
    "tail",
    "files",
    "otel",
    "otel_sample",
    "otel_prompts",
    "notify",
    "how",
    "one_value",
    "program",
    "shard",
    "backend",
    "on_failure",
    "sources",
)
"""Keys that came later: if they are not set, what is stored is what it was before them."""

_NOT_KEPT = ("where", "warnings", "allow_empty", "sql_at", "scratch")
"""Places are of the files of another day, warnings were shown, and a run that is resumed does not
read the input."""

type_hints = cache(get_type_hints)


def run_settings(plan: Plan, root: Path) -> dict[str, Any]:
    """Returns what is kept with a run next to its definition: JSON, without secrets. Paths are
    relative to `root`."""
    settings = {
        "vars": snapshot(dict(plan.vars)),
        "selection": _plain(plan.selection, root),
        "concurrency": plan.concurrency,
        "input": _undefined(plan.input, root),
        "output": _undefined(plan.output, root),
        "rules": _plain(plan.rules, root),
        "stages": [_stage_settings(stage, root) for stage in plan.stages],
    }
    if plan.remote:
        settings["remote"] = _plain(plan.remote, root)
    return settings


def _undefined(spec: Any, root: Path) -> dict[str, Any]:
    """Returns the fields of an input or an output that the definition does not have."""
    return {key: value for key, value in _plain(spec, root).items() if key not in _DEFINED}


def _stage_settings(stage: AnyStage, root: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for spec in fields(StageSettings):
        kept = spec.metadata["kept"]
        value = getattr(stage.settings, spec.name)
        if kept == "all" or (stage.asks and (kept == "asks" or value != spec.default)):
            settings[spec.name] = _plain(value, root)
    if isinstance(stage, LocalStage):
        return settings | _function_settings(stage)
    settings["models"] = [_model_settings(model, root) for model in stage.models]
    settings["schema"] = snapshot(stage.schema.body) if stage.schema else None
    settings["python_schema"] = _plain(stage.python_schema, root)
    if stage.children:
        settings["children"] = [_stage_settings(child, root) for child in stage.children]
    return settings


def _function_settings(stage: LocalStage) -> dict[str, Any]:
    """Returns how a stage's function is run, if it has one."""
    operation = stage.operation
    if not isinstance(operation, Python):
        return {}
    settings: dict[str, Any] = {
        "processes": operation.processes,
        "is_async": operation.function.is_async,
    }
    if operation.timeout is not None:
        settings["function_timeout"] = operation.timeout
    return settings


def _model_settings(model: PlannedModel, root: Path) -> dict[str, Any]:
    settings = {
        "provider": model.provider.name,
        "dialect": model.provider.dialect,
        **_plain(model, root),
    }
    ref = settings["ref"]
    if ref:
        for key in ("params", "idle_timeout"):  # last, which is the order in which runs have them
            ref[key] = ref.pop(key)
    return settings


def _plain(value: Any, root: Path) -> Any:
    """Returns a value as JSON: a dataclass by its fields, parameters by those that are set, a
    provider by its name."""
    match value:
        case Path():
            return _plain_path(value, root)
        case bytes():
            return value.hex()
        case Mapping():
            return {key: _plain(inner, root) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner, root) for inner in value]
        case Provider():
            return value.name
        case Params():
            return _plain(params_body(value), root)
    if is_dataclass(value):
        return _plain_record(value, root)
    return _NO_BOUND if value == inf else value


def _plain_path(path: Path, root: Path) -> str:
    """Returns a path as text; one inside the project moves with it."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return str(path)


def _plain_record(record: Any, root: Path) -> dict[str, Any]:
    settings = {}
    for spec in fields(record):
        if spec.name in _NOT_KEPT:
            continue
        value = getattr(record, spec.name)
        if spec.name in _KEPT_WHERE_SET and value in (spec.default, {}):
            continue
        settings[spec.name] = _plain(value, root)
    return settings


def remote_of(settings: Mapping[str, Any] | None, root: Path) -> tuple[RemoteContent, ...]:
    """Returns what was fetched for a run, from its settings."""
    bodies = (settings or {}).get("remote", ())
    return tuple(read_setting(RemoteContent, body, root) for body in bodies)


def read_setting(hint: Any, body: Any, root: Path) -> Any:
    """Returns the value of type `hint` that was written as `body`. Fields that were unknown when
    it was stored get their defaults."""
    if get_origin(hint) in (Union, UnionType):
        if body is None:
            return None
        hint = _member(hint, body)
    if isinstance(body, Provider):  # that of today
        return body
    if is_dataclass(hint):
        return _read_record(hint, body, root)
    origin = get_origin(hint)
    if origin is tuple:
        return tuple(read_setting(get_args(hint)[0], inner, root) for inner in body)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(get_args(hint)[1], body, root)
    if hint is Path:
        return root / body
    if hint is bytes:
        return bytes.fromhex(body)
    return inf if hint is float and body == _NO_BOUND else body


def _member(union: Any, body: Any) -> Any:
    """Returns the member of a union of types that a value was of: a record if it is a mapping."""
    members = [member for member in get_args(union) if member is not NoneType]
    alike = (member for member in members if is_dataclass(member) == isinstance(body, Mapping))
    return next(alike, members[0])


def _read_record(record_type: Any, body: Mapping[str, Any], root: Path) -> Any:
    hints = type_hints(cast("Any", record_type))
    values = {
        spec.name: read_setting(hints[spec.name], body[spec.name], root)
        for spec in fields(record_type)
        if spec.name in body
    }
    if record_type is InputSpec:
        values["where"] = STORED
    return record_type(**values)


def _read_mapping(value_type: Any, body: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    if is_dataclass(value_type):
        return {key: read_setting(value_type, value, root) for key, value in body.items()}
    return tupled(body)
