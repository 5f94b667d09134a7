"""The earlier run that a plan is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agac.engine.forecast.past_usage import HISTORY_RUNS
from agac.plan.plan import Plan, Selection
from agac.plan.stage import PlannedStage
from agac.store.db import Database
from agac.store.runs import RunRecord, definition_of, newest_run, run_ids, run_record


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """The last run to compare with."""

    record: RunRecord
    """What is stored of it."""
    definition: Mapping[str, Any]
    """Its workflow, as it was."""
    continued: bool
    """True if `agac run` would continue it."""

    @staticmethod
    async def read(database: Database, number: int, *, continued: bool) -> BaselineRun:
        """The run of this number."""
        return BaselineRun(
            await run_record(database, number), await definition_of(database, number), continued
        )

    @staticmethod
    async def of(database: Database, plan: Plan) -> BaselineRun | None:
        """The run that would be continued, else the newest one of the workflow, of the same rows
        if there is one."""
        continued = await newest_run(database, plan.workflow, plan.hash, plan.selection.text())
        if continued is not None:
            return await BaselineRun.read(database, continued, continued=True)
        newest = (await run_ids(database, plan.workflow))[:HISTORY_RUNS]
        found = [await BaselineRun.read(database, number, continued=False) for number in newest]
        alike = (one for one in found if Selection(**one.record.selection) == plan.selection)
        return next(alike, found[0] if found else None)


def meant_before(stage: PlannedStage, definition: Mapping[str, Any]) -> str | None:
    """What the stage's short name stood for in a stored definition, where that is something
    else."""
    alias = next(
        (one.get("alias") for one in definition["stages"] if one["name"] == stage.name), None
    )
    if (
        not alias
        or stage.ref is None
        or alias["written"] != stage.ref.written
        or alias["means"] == stage.ref.meaning
    ):
        return None
    return str(alias["means"])
