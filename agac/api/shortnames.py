"""Short names of models that moved: what one meant in a run's definition, and what it means now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.errors import Problem
from agac.plan.plan import Plan
from agac.plan.stage import PlannedStage
from agac.spec.workflow import Workflow
from agac.store import runs
from agac.store.db import Database


def meant_before(stage: PlannedStage, definition: Mapping[str, Any]) -> str | None:
    """What the stage's short name stood for in a stored definition, where that is something else."""
    if stage.ref is None or stage.ref.written is None:
        return None
    before = next((one for one in definition["stages"] if one["name"] == stage.name), None)
    alias = before.get("alias") if before else None
    if not alias or alias["written"] != stage.ref.written or alias["means"] == stage.ref.meaning:
        return None
    return str(alias["means"])


async def moved_names(database: Database, workflow: Workflow, plan: Plan) -> list[Problem]:
    """A warning for each short name that the workflow's last run understood otherwise: its rows are asked again."""
    if not any(stage.ref and stage.ref.written for stage in plan.asking):
        return []
    last = next(iter(await runs.run_ids(database, workflow.name)), None)
    if last is None:
        return []
    definition = await runs.definition_of(database, last)
    return [
        Problem(
            spec.at("model"),
            f"{stage.ref.written} meant {meant} in run {last} and means {stage.ref.meaning} now: its rows are asked "
            f"again; to keep the answers write {meant}",
            f"{spec.path}.model",
            "warning",
        )
        for spec, stage in zip(workflow.asking, plan.asking, strict=True)
        if stage.ref is not None and (meant := meant_before(stage, definition)) is not None
    ]
