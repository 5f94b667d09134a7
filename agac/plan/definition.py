"""The definition of a workflow: everything that decides what is asked, as it is stored with its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agac.core.keys import params_body
from agac.plan.steps import AnyStage, LocalStage, PlannedStage, Step
from agac.spec.workflow import Workflow


def definition(workflow: Workflow, stages: Sequence[AnyStage]) -> dict[str, Any]:
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
        "stages": [_stage_body(stage) for stage in stages],
        **_written(workflow),
    }


def _stage_body(stage: AnyStage) -> dict[str, Any]:
    if isinstance(stage, LocalStage):
        own = {"name": stage.name, "needs": _needs(stage), "operation": stage.operation.body()}
        return {**own, **_guarded(stage), **_levels(stage)}
    return {
        "name": stage.name,
        "needs": _needs(stage),
        "system": stage.system,
        "prompt": stage.prompt.text,
        **_messages(stage),
        "model": stage.lane,
        **_alias(stage),
        "params": params_body(stage.params),
        "schema": {"name": stage.schema.name, "body": stage.schema.body} if stage.schema else None,
        **({"reuse": stage.reuse} if stage.reuse != "content" else {}),
        **_guarded(stage),
        **_scoped(stage),
        **_replicated(stage),
        **_levels(stage),
    }


def _needs(stage: Step) -> str | list[str] | None:
    """As it was written before a stage could need several: a name, or nothing."""
    return (stage.needs[0] if stage.needs else None) if len(stage.needs) < 2 else list(stage.needs)


def _guarded(stage: Step) -> dict[str, Any]:
    return {"when": stage.guard.text, "otherwise": stage.otherwise} if stage.guard else {}


def _levels(stage: Step) -> dict[str, Any]:
    """Which rows it makes. What is done when there are none decides no answer."""
    return {
        **({"explode": ".".join(stage.explode)} if stage.explode else {}),
        **(stage.group.body() if stage.group else {}),
    }


def _scoped(stage: PlannedStage) -> dict[str, Any]:
    """What is sent of a row, and what is made of the reply."""
    found: dict[str, Any] = {"output_field": stage.output_field} if stage.output_field else {}
    if stage.visibility is not None:
        only = stage.visibility.only
        found["visible"] = {"only": None if only is None else sorted(only), "never": sorted(stage.visibility.never)}
    return found


def _replicated(stage: PlannedStage) -> dict[str, Any]:
    if stage.replicas == 1:
        return {}
    return {"replicas": stage.replicas, **({"vote": stage.vote} if stage.vote else {})}


def _written(workflow: Workflow) -> dict[str, Any]:
    """The stages whose results are a row's result, where that is not simply the last one's, and the stage that made the
    rows that have it, where they are not the input's."""
    ends, rows = workflow.output.stages, workflow.output.rows
    return {
        **({} if ends == (workflow.stages[-1].name,) else {"results": list(ends)}),
        **({"rows": rows} if rows is not None else {}),
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
