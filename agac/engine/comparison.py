"""What would be asked beside what was: why a task is asked, and why one that failed is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agac.engine.policy import is_left
from agac.engine.scope import Scope
from agac.plan import reasons as why
from agac.plan.plan import Plan
from agac.plan.prepare import Sight
from agac.plan.steps import AnyStage, LocalStage
from agac.store.batch import NewRow
from agac.store.rows import PriorTask, StoredRow
from agac.store.runs import RunRecord


@dataclass(frozen=True, slots=True)
class Before:
    """The last run to compare with. `continued`: it is the run that `agac run` would go on with."""

    record: RunRecord
    definition: Mapping[str, Any]
    continued: bool


@dataclass(slots=True)
class WalkedRow:
    """A row on its way through the stages: `pending` are those that would be asked, by why the first of them is;
    `blocked` those that cannot be asked. `gone`: a guard makes the row leave.

    `tasks` are what became of it before, by the stage's position then.
    """

    new: NewRow
    old: StoredRow | None
    tasks: dict[int, PriorTask]
    sight: Sight
    pending: dict[str, str] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    gone: bool = False


class Comparison:
    """A plan beside the last run, if there is one. `now` is in seconds since 1970."""

    def __init__(self, plan: Plan, before: Before | None, *, scope: Scope, fresh: bool, now: float) -> None:
        self._plan, self._before, self._scope, self._fresh, self._now = plan, before, scope, fresh, now
        self.continued = before is not None and before.continued and not fresh
        stages = before.definition["stages"] if before else []
        self._position = {stage["name"]: index for index, stage in enumerate(stages)}
        self._changes = [self._definition_changes(stage) for stage in plan.stages]

    def since(self, stage: AnyStage) -> float:
        """From when on the stage's results are taken."""
        run = self._before.record.fresh_since if self._before and self.continued else None
        oldest = 0.0 if isinstance(stage, LocalStage) or stage.max_age is None else self._now - stage.max_age
        return max(run or 0.0, oldest)

    def left(self, stage: AnyStage, row: WalkedRow, fingerprint: bytes) -> str | None:
        """Why a task that failed is not tried again; None when it is, or did not fail."""
        prior = self._prior(stage, row)
        if not self.continued or prior is None or prior.error is None or prior.fingerprint != fingerprint:
            return None
        if is_left(prior):
            return why.LEFT
        return None if self._scope.tries_again(stage.name) else why.NOT_RETRIED

    def reason(self, stage: AnyStage, row: WalkedRow, fingerprint: bytes) -> str:
        """Why the first asked stage of a row is asked."""
        if self._fresh:
            return why.FRESH
        if row.old is None:
            return why.NEW_ROW
        changes = self._changes[stage.index]
        if changes is None:
            return why.NEW_STAGE
        if changes:
            return ", ".join(changes)
        if row.old.hash != row.new.hash:
            return why.ROW_CHANGED
        return _reason_of_task(stage, self._prior(stage, row), fingerprint)

    def passed_on(self, stage: AnyStage, row: WalkedRow, need: str) -> str:
        """Why a stage after an asked one is asked: it never was, or what it follows may change."""
        reason = row.pending[need]
        if reason in (why.NEW_ROW, why.FRESH, why.NOT_YET):
            return reason
        if self._changes[stage.index] is None:
            return why.NEW_STAGE
        return why.NOT_YET if self._prior(stage, row) is None else why.upstream_changed(need)

    def _prior(self, stage: AnyStage, row: WalkedRow) -> PriorTask | None:
        position = self._position.get(stage.name)
        return None if position is None else row.tasks.get(position)

    def _definition_changes(self, stage: AnyStage) -> list[str] | None:
        """What changed in the stage's definition; None: it is new."""
        if self._before is None:
            return []
        definition = self._before.definition
        if stage.name not in self._position:
            return None
        before, after = definition["stages"][self._position[stage.name]], self._plan.body["stages"][stage.index]
        return why.definition_changes(before, after, (definition["vars"], self._plan.body["vars"]))


def _reason_of_task(stage: AnyStage, prior: PriorTask | None, fingerprint: bytes) -> str:
    if prior is None:
        return why.NOT_YET
    if isinstance(stage, LocalStage):
        return why.FAILED if prior.error is not None else why.DROPPED
    if prior.fingerprint != fingerprint and stage.needs and stage.reuse != "never":
        return why.upstream_changed(", ".join(stage.needs))
    if prior.error is not None:
        return why.FAILED
    return why.TOO_OLD if stage.max_age is not None else why.DROPPED
