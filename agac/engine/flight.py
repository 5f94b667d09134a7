"""A row at work: what is known of it before its stages, and how it had ended before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from agac.engine.budget import Pot
from agac.engine.patience import Patience
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage, LocalStage
from agac.store.batch import NewRow
from agac.store.batches import Ready
from agac.store.rows import PriorTask

UNHURRIED = Patience(None, float)
"""Without `row_timeout` all rows share one."""


@dataclass(slots=True)
class Flight:
    """A row at work. `prior` holds what became of its tasks earlier in this run, by stage index; `purse` what it may
    spend in this invocation, from its first call on.

    `known`: it was stored before, and something may have been made of it. `forced`: tried again also where failures
    are left alone else. Stages at and after the position `again_from` take only answers made at or after `since`.
    `sight` is what a row that a stage made sees before its own stages; a `part` of a large group is a call of the
    group's stage, and no row of it.
    """

    new: NewRow
    prior: dict[int, PriorTask] = field(default_factory=dict)
    patience: Patience = UNHURRIED
    purse: Pot | None = None
    known: bool = False
    forced: bool = False
    again_from: int | None = None
    since: float = 0.0
    sight: Sight | None = None
    part: bool = False
    resumed: bool = False
    """Walked on from where it waited: what failed meanwhile is not asked again."""
    ready: Ready = field(default_factory=dict)
    """What came of its tasks in batches since it was last walked."""

    def asked_in_batch(self, stage: int, replica: int, fingerprint: bytes) -> bool:
        """Whether a batch brought the task's answer, which the row has not been walked with."""
        ready = self.ready.get((stage, replica, fingerprint))
        return ready is not None and ready.enrolled and ready.then_do is None and ready.error is None

    @property
    def made(self) -> bool:
        """Whether a stage made the row; else it is the input's."""
        return self.new.origin is not None

    def takes_since(self, stage: int) -> float:
        """From when on earlier answers are taken for the stage, in seconds since 1970."""
        return self.since if self.again_from is not None and stage >= self.again_from else 0.0


def told_of(stage: AnyStage) -> str:
    """What a local stage does, in its own words."""
    assert isinstance(stage, LocalStage)
    return str(next(iter(stage.operation.body().values())))


class Stood(Protocol):
    """A stored row with how it had ended."""

    @property
    def state(self) -> int: ...
    @property
    def result_id(self) -> int | None: ...
    @property
    def error_type(self) -> str | None: ...
    @property
    def error_message(self) -> str | None: ...
    @property
    def error_stage(self) -> str | None: ...
