"""The Plan of a stored run, made of its definition, its settings and the providers of today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from agac.core.errors import UsageError
from agac.core.keys import definition_hash
from agac.core.types import Schema
from agac.plan.agent_tools import same_files
from agac.plan.plan import Plan, Selection, local_stage, numbered, planned_stage
from agac.plan.run_settings import read_setting, remote_of, type_hints
from agac.plan.stage import (
    AnyStage,
    PlannedModel,
    PlannedStage,
    RecordedStage,
    ends_of,
    recorded_stages,
)
from agac.providers.backend import at_backend
from agac.providers.provider import Provider
from agac.spec.data_specs import InputSpec, OutputSpec
from agac.spec.guards import STORED, Guard, compile_guard
from agac.spec.operations import Filter, Operation, Python, Review, Select
from agac.spec.output_schema import Resolved, resolve_schema, same_schema
from agac.spec.python_code import same_function
from agac.spec.rules import RunRules
from agac.spec.workflow import PythonSchema, StageSettings


def restored_plan(
    workflow: str,
    definition: dict[str, Any],
    settings: Mapping[str, Any],
    providers: Mapping[str, Provider],
    root: Path,
    *,
    functions: bool = True,
) -> Plan:
    """Makes the Plan that a run was made with. Imports Python schemas of the project.

    Without `functions` it is only good for reading answers: changes of functions of the project
    are not looked for. Raises UsageError if a provider is gone or speaks another dialect, or if a
    function, a schema in Python or a file of an agent has changed."""
    variables = json.loads(settings["vars"])
    recorded = recorded_stages({**definition, "vars": variables})
    today = _Today(providers, root, functions)
    pairs = zip(recorded, settings["stages"], strict=True)
    stages = numbered(today.stage(stage, how) for stage, how in pairs)
    source = {**definition["input"], "shown": definition["input"]["path"], **settings["input"]}
    target = {
        **settings["output"],
        "stages": [stages[position].name for position in ends_of(definition)],
        "rows": definition.get("rows"),
    }
    return Plan(
        workflow=workflow,
        input=read_setting(InputSpec, source, root),
        output=read_setting(OutputSpec, target, root),
        stages=stages,
        vars=variables,
        selection=read_setting(Selection, settings["selection"], root),
        concurrency=settings["concurrency"],
        body=definition,
        hash=definition_hash(definition),
        rules=read_setting(RunRules, settings["rules"], root),
        remote=remote_of(settings, root),
    )


@dataclass(frozen=True, slots=True)
class _Today:
    """What a stored stage is restored with. Its methods raise UsageError as `restored_plan`
    does."""

    providers: Mapping[str, Provider]
    root: Path
    functions: bool
    """True if the stages are to be run, so that their functions have to be the same."""

    def stage(self, recorded: RecordedStage, settings: Mapping[str, Any]) -> AnyStage:
        """Restores a stage with the agents that it may call."""
        stage = replace(
            recorded,
            settings=self._settings(settings),
            checks=tuple(replace(check, guard=_compiled(check.guard)) for check in recorded.checks),
            guard=_compiled(recorded.guard) if recorded.guard else None,
        )
        if stage.operation is not None:
            return local_stage(replace(stage, operation=self._operation(stage.operation, settings)))
        if self.functions:
            same_files(stage, self.root)
        models = [self._model(body, recorded.name) for body in settings["models"]]
        python_schema = read_setting(PythonSchema | None, settings["python_schema"], self.root)
        resolved = self._resolved(recorded, settings, python_schema)
        pairs = zip(recorded.children, settings.get("children", ()), strict=True)
        children = tuple(cast("PlannedStage", self.stage(child, inner)) for child, inner in pairs)
        return replace(planned_stage(stage, models, resolved, python_schema), children=children)

    def _settings(self, stored: Mapping[str, Any]) -> StageSettings:
        """Reads the settings of a stage; those that are not stored have their defaults."""
        hints = type_hints(StageSettings)
        names = [name for name in hints if name in stored]
        return StageSettings(
            **{name: read_setting(hints[name], stored[name], self.root) for name in names}
        )

    def _operation(self, operation: Operation, settings: Mapping[str, Any]) -> Operation:
        match operation:
            case Filter(guard):
                return Filter(_compiled(guard))
            case Review(when=guard) if guard is not None:
                return replace(operation, when=_compiled(guard))
            case Python():
                return self._function(operation, settings)
        return operation

    def _function(self, operation: Python, settings: Mapping[str, Any]) -> Operation:
        if not self.functions:
            return Select(())
        function = replace(
            operation.function,
            file=self.root / operation.function.shown,
            is_async=settings["is_async"],
        )
        same_function(function, self.root)
        return Python(function, settings["processes"], settings.get("function_timeout"))

    def _resolved(
        self,
        recorded: RecordedStage,
        settings: Mapping[str, Any],
        python_schema: PythonSchema | None,
    ) -> Resolved | None:
        """Returns the schema of a stage's answers."""
        if recorded.schema is None:
            return None
        if python_schema is None:  # as it was sent, its fields in their order
            return Resolved(Schema(recorded.schema.name, json.loads(settings["schema"])))
        same_schema(python_schema, self.root)  # with what a class of the project checks beyond it
        return resolve_schema(python_schema, self.root)

    def _model(self, body: Mapping[str, Any], stage: str) -> PlannedModel:
        provider = self._provider(body, stage)
        fields = {**body, "provider": provider}
        model: PlannedModel = read_setting(PlannedModel, fields, self.root)
        if model.backend:
            provider = at_backend(model.backend, self.providers)
        if model.ref is not None and model.ref.schema_mode is not None:
            provider = replace(provider, structured=model.ref.schema_mode)
        return replace(model, provider=provider)

    def _provider(self, body: Mapping[str, Any], stage: str) -> Provider:
        """Returns the provider of a model by the name that it had."""
        name = body["provider"]
        dialect = body["dialect"]
        model = f"{name}/{body['model']}"
        if name not in self.providers:
            raise UsageError(
                f"stage {stage!r} of this run asks {model}, and there is no provider {name!r} any "
                "more",
                remedy=f"Put `providers: {{{name}: …}}` back into agac.yml.",
            )
        provider = self.providers[name]
        if provider.dialect != dialect:
            raise UsageError(
                f"stage {stage!r} of this run asks {model} in the dialect {dialect}, and the "
                f"provider's is {provider.dialect} now",
                remedy=f"Write `dialect: {dialect}` for it in agac.yml until the run is finished.",
            )
        return provider


def _compiled(stored: Guard) -> Guard:
    """Compiles a condition that was stored as text."""
    guard, _ = compile_guard(stored.text, STORED)
    assert guard is not None, "only a guard without problems is stored"
    return guard
