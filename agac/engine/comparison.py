"""What would be asked beside what was: why a task is asked, and why one that failed is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agac.core.types import JSONValue, RowId
from agac.engine.policy import is_left
from agac.engine.scope import Scope
from agac.plan import reasons as why
from agac.plan.diff import stage_changes
from agac.plan.plan import Plan
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.levels import Level
from agac.store.batch import NewRow
from agac.store.rows import PriorTask, State, StoredRow
from agac.store.runs import RunRecord


@dataclass(frozen=True, slots=True)
class Before:
    """The last run to compare with. `continued`: it is the run that `agac run` would go on with."""

    record: RunRecord
    definition: Mapping[str, Any]
    continued: bool


@dataclass(slots=True)
class WalkedRow:
    """A row on its way through the stages of its level: `pending` are those that would be asked, by why the first of
    them is; `blocked` those that cannot be asked. `gone`: a guard makes the row leave. `failed`: a stage of it or of
    what it is made of fails, `parked`: one is not to be asked; `absent`: what it is made of fails, so it will not be.

    `tasks` are what became of it before, by the stage's position then. `times`: it stands for so many rows of which
    nothing else is known (`guessed`). `lists` are what functions gave in its place, by their stages' positions, None:
    they were not called yet; `walked`: it came to its end.
    """

    new: NewRow
    old: StoredRow | None
    tasks: dict[int, PriorTask]
    sight: Sight
    level: Level[AnyStage]
    pending: dict[str, str] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    gone: bool = False
    failed: bool = False
    parked: bool = False
    absent: bool = False
    times: int = 1
    guessed: bool = False
    lists: dict[int, list[dict[str, JSONValue]] | None] = field(default_factory=dict)
    learned: bool = False
    walked: bool = False
    lot: Lot | None = None
    never_began: set[str] = field(default_factory=set)

    @property
    def id(self) -> RowId:
        """The row's id."""
        return self.new.row.id


@dataclass(slots=True)
class Lot:
    """What is known of the task of a row at the stage that made it, before it is looked up. `refused`: why it cannot be
    asked. `reason`: why it would be, as what it is asked about is not there yet; `characters` are what that comes to.
    `parts` would be asked before it, and `in_flight` others are in batches."""

    refused: str | None = None
    reason: str | None = None
    characters: int = 0
    parts: int = 0
    in_flight: int = 0


class Comparison:
    """A plan beside the last run, if there is one. `now` is in seconds since 1970."""

    def __init__(self, plan: Plan, before: Before | None, *, scope: Scope, fresh: bool, now: float) -> None:
        self._plan, self._before, self._scope, self._fresh, self._now = plan, before, scope, fresh, now
        self.continued = before is not None and before.continued and not fresh
        stages = before.definition["stages"] if before else []
        self.position = {stage["name"]: index for index, stage in enumerate(stages)}
        """Where the stages stood in the run compared with, by name."""
        self._changes = [self._definition_changes(stage) for stage in plan.stages]

    def since(self, stage: AnyStage) -> float:
        """From when on the stage's results are taken."""
        run = self._before.record.fresh_since if self._before and self.continued else None
        oldest = 0.0 if isinstance(stage, LocalStage) or stage.max_age is None else self._now - stage.max_age
        return max(run or 0.0, oldest)

    def never_began(self, stage: AnyStage, row: WalkedRow) -> bool:
        """Whether the row, as it still is, left the run before this stage of another branch began."""
        old = row.old
        left = self.continued and old is not None and old.state == State.FILTERED and old.hash == row.new.hash
        return left and self._prior(stage, row) is None

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

    def passed_on(self, stage: AnyStage, row: WalkedRow, need: str, reason: str) -> str:
        """Why a stage is asked after one that is asked for this reason: it never was, or what it follows may change."""
        if reason in (why.NEW_ROW, why.FRESH, why.NOT_YET):
            return reason
        if self._changes[stage.index] is None:
            return why.NEW_STAGE
        return why.NOT_YET if self._prior(stage, row) is None else why.upstream_changed(need)

    def _prior(self, stage: AnyStage, row: WalkedRow) -> PriorTask | None:
        position = self.position.get(stage.name)
        return None if position is None else row.tasks.get(position)

    def _definition_changes(self, stage: AnyStage) -> list[str] | None:
        """What changed in the stage's definition; None: it is new."""
        if self._before is None:
            return []
        definition = self._before.definition
        if stage.name not in self.position:
            return None
        before, after = definition["stages"][self.position[stage.name]], self._plan.body["stages"][stage.index]
        return stage_changes(before, after, (definition["vars"], self._plan.body["vars"]))


def _reason_of_task(stage: AnyStage, prior: PriorTask | None, fingerprint: bytes) -> str:
    if prior is None:
        return why.NOT_YET
    if isinstance(stage, LocalStage):
        return why.FAILED if prior.error is not None else why.DROPPED
    if prior.fingerprint != fingerprint and stage.makes == "groups":
        return why.MEMBERS_CHANGED
    if prior.fingerprint != fingerprint and stage.needs and stage.reuse != "never":
        return why.upstream_changed(", ".join(stage.needs))
    if prior.error is not None:
        return why.FAILED
    return why.TOO_OLD if stage.max_age is not None else why.DROPPED
