"""The conditions of a plan, made ready for many rows."""

from __future__ import annotations

from collections.abc import Sequence

from agac.plan.stage import AnyStage, LocalStage
from agac.spec.guardvalues import Evaluator
from agac.spec.operations import Filter


def guards(stages: Sequence[AnyStage]) -> dict[int, Evaluator]:
    """The stages' guards, by position."""
    return {stage.index: Evaluator(stage.guard, stages=stage.ancestors) for stage in stages if stage.guard}


def filters(stages: Sequence[AnyStage]) -> dict[int, Evaluator]:
    """The conditions of stages that do nothing but filter, by position."""
    return {
        stage.index: Evaluator(stage.operation.guard, stages=stage.ancestors)
        for stage in stages
        if isinstance(stage, LocalStage) and isinstance(stage.operation, Filter)
    }
