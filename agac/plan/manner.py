"""How a run goes about its definition, so that it can go on without the project's files: batches come back after days.

`manner_of` is what a Plan holds beyond its definition, as JSON; `plan_of` makes the same Plan of both and of the
providers of today. Prompts, schemas, models and rules are those of the day on which the run began; what a definition
keeps in another order (it is sorted) is held here as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from agac.core.keys import params_body, snapshot
from agac.plan.plan import Plan
from agac.plan.restored import AS_THEY_ARE, NO_BOUND, plan_of
from agac.plan.steps import AnyStage, LocalStage, PlannedModel
from agac.providers.modelref import ModelRef
from agac.spec.operations import Python
from agac.spec.workflow import InputSpec, OutputSpec, PythonSchema

__all__ = ["manner_of", "plan_of"]


def manner_of(plan: Plan, root: Path) -> dict[str, Any]:
    """What is kept with a run beside its definition: JSON, without secrets. Paths are relative to `root`."""
    return {
        "vars": snapshot(dict(plan.vars)),
        "selection": asdict(plan.selection),
        "concurrency": plan.concurrency,
        "input": _input_body(plan.input, root),
        "output": _output_body(plan.output, root),
        "rules": _body(plan.rules),
        "stages": [_stage_body(stage) for stage in plan.stages],
    }


def _body(value: Any) -> dict[str, Any]:
    """A dataclass of plain values as JSON, without the places of its keys: those are the files' of another day."""
    return {key: inner for key, inner in asdict(value).items() if key != "where"}


def _stage_body(stage: AnyStage) -> dict[str, Any]:
    if isinstance(stage, LocalStage):
        does = stage.operation
        own = {"processes": does.processes, "is_async": does.function.is_async} if isinstance(does, Python) else {}
        return {"on_empty": stage.on_empty, **own}
    return {
        **{key: getattr(stage, key) for key in AS_THEY_ARE},
        "budget": _body(stage.budget) if stage.budget else None,
        "batch": _body(stage.batch),
        "models": [_model_body(model) for model in stage.models],
        "schema": snapshot(stage.schema.body) if stage.schema else None,
        "python_schema": _schema_body(stage.python_schema),
    }


def _schema_body(spec: PythonSchema | None) -> dict[str, str] | None:
    return {"module": spec.module, "cls": spec.cls, "name": spec.name, "source": spec.source.hex()} if spec else None


def _model_body(one: PlannedModel) -> dict[str, Any]:
    return {
        "provider": one.provider.name,
        "dialect": one.provider.dialect,
        "model": one.model,
        "params": _listed(params_body(one.params)),
        "transport": one.transport,
        "idle_timeout": _finite(one.idle_timeout),
        "timeout": _body(one.timeout),
        "ref": _ref_body(one.ref) if one.ref else None,
    }


def _ref_body(ref: ModelRef) -> dict[str, Any]:
    """What a model's string said. Its warnings were told when it was read."""
    keys = ("provider", "model", "route", "transport", "schema_mode", "written")
    return {
        **{key: getattr(ref, key) for key in keys},
        "params": _listed(ref.params),
        "idle_timeout": _finite(ref.idle_timeout),
    }


def _listed(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in params.items()}


def _finite(seconds: float | None) -> float | str | None:
    """JSON has no infinity, which means no bound at all."""
    return NO_BOUND if seconds == inf else seconds


def _input_body(spec: InputSpec, root: Path) -> dict[str, Any]:
    return {
        "path": _relative(spec.path, root),
        "patterns": list(spec.patterns),
        "skipped": [_relative(path, root) for path in spec.skipped],
        "statement": spec.statement,
        "ordered": spec.ordered,
        "piped": spec.piped,
    }


def _output_body(spec: OutputSpec, root: Path) -> dict[str, Any]:
    to = spec.to
    return {
        "dir": _relative(spec.dir, root),
        "include_input": spec.include_input,
        "formats": list(spec.formats),
        "to": {"path": _relative(to.path, root), "shown": to.shown, "table": to.table} if to else None,
        "merge": spec.merge,
        "csv_safe": spec.csv_safe,
    }


def _relative(path: Path, root: Path) -> str:
    """A path inside the project moves with it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
