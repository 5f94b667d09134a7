"""Why a task would be run, or is not tried again, in the words of a plan."""

from __future__ import annotations

from agac.core.errors import ErrorType
from agac.engine.decide.failures import was_asked_enough
from agac.engine.forecast.baseline_run import BaselineRun
from agac.engine.forecast.forecast_rows import ForecastRow
from agac.plan import diff as why
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage, LocalStage
from agac.store.rows import PriorTask


class WhyRun:
    """Compares the stages of a plan, and tasks of rows, with the run before."""

    def __init__(self, plan: Plan, before: BaselineRun | None, *, fresh: bool) -> None:
        self._before = before
        self._fresh = fresh
        definition = before.definition if before else {"stages": [], "vars": {}}
        self.positions: dict[str, int] = {
            stage["name"]: index for index, stage in enumerate(definition["stages"])
        }
        """The positions that stages had in the run before, by name."""
        self._changes: dict[str, list[str]] = {}
        for stage in plan.stages:
            position = self.positions.get(stage.name)
            if position is not None:
                self._changes[stage.name] = why.stage_changes(
                    definition["stages"][position],
                    plan.body["stages"][stage.index],
                    (definition["vars"], plan.body["vars"]),
                )

    def prior(self, stage: AnyStage, row: ForecastRow) -> PriorTask | None:
        """What became of the row's task at the stage in the run before."""
        return row.tasks.get(self.positions.get(stage.name, -1))

    def reason(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> str:
        """Why the first stage of a row that has to be run is run."""
        if self._fresh:
            return why.FRESH
        if row.old is None:
            return why.NEW_ROW
        if self._is_new(stage):
            return why.NEW_STAGE
        changes = self._changes.get(stage.name)
        if changes:
            return ", ".join(changes)
        if row.old.hash != row.new.hash:
            return why.ROW_CHANGED
        prior = self.prior(stage, row)
        if prior is None:
            return why.NOT_YET
        return _reason_of_same(stage, prior, fingerprint)

    def passed_on(self, stage: AnyStage, row: ForecastRow, need: str, reason: str) -> str:
        """Why a stage is run after the stage `need`, which is run for this reason: it never was,
        or what it follows may change."""
        if reason in (why.NEW_ROW, why.FRESH, why.NOT_YET):
            return reason
        if self._is_new(stage):
            return why.NEW_STAGE
        if self.prior(stage, row) is None:
            return why.NOT_YET
        return why.upstream_changed(need)

    def left(self, stage: AnyStage, row: ForecastRow) -> str:
        """Why a task that failed is not tried again."""
        prior = self.prior(stage, row)
        if prior is None or prior.error is None:
            return why.FAILED_IN_BATCH
        if row.old is not None and row.old.error_type == ErrorType.REJECTED:
            return why.REJECTED
        # one of its tasks that was asked often enough keeps the whole row
        if any(was_asked_enough(task) for task in row.tasks.values()):
            return why.LEFT
        if row.resumed:
            return why.FAILED
        return why.NOT_RETRIED

    def _is_new(self, stage: AnyStage) -> bool:
        return self._before is not None and stage.name not in self.positions


def _reason_of_same(stage: AnyStage, prior: PriorTask, fingerprint: bytes) -> str:
    """Why a stage that did not change is run for a row that did not change either."""
    is_same = prior.fingerprint == fingerprint
    if not is_same and stage.makes == "groups":
        return why.MEMBERS_CHANGED
    if isinstance(stage, LocalStage):
        return why.FAILED if prior.error is not None else why.DROPPED
    if not is_same and stage.needs and stage.reuse != "never":
        return why.upstream_changed(", ".join(stage.needs))
    if prior.error is not None:
        return why.FAILED
    return why.TOO_OLD if stage.settings.max_age is not None else why.DROPPED
