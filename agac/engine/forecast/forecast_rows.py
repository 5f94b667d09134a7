"""A row of a dry run."""

from __future__ import annotations

from dataclasses import dataclass, field

from agac.core.types import RowId
from agac.engine.walk.effects import RowProgress
from agac.plan.stage import AnyStage
from agac.spec.graph import Level
from agac.store.batches import Ready
from agac.store.records import DerivedRows
from agac.store.rows import PriorTask, StoredRow


@dataclass(slots=True, kw_only=True)
class ForecastRow(RowProgress):
    """A row on its way through a dry run."""

    level: Level[AnyStage]
    """The stages that it goes through."""
    times: int = 1
    """How many rows it stands for."""
    guessed: bool = False
    """True if nothing is known of the rows that it stands for, but about how many there are."""

    # what is stored of it, once it is `learned`
    learned: bool = False
    """True if it was looked up in the run compared with."""
    old: StoredRow | None = None
    """The same row in the run compared with."""
    tasks: dict[int, PriorTask] = field(default_factory=dict)
    """What became of its tasks there, by the positions that the stages had then."""
    ready: Ready = field(default_factory=dict)
    """What batches brought for its tasks since, which the run that is continued takes."""

    # how the run takes it up
    chosen: bool = True
    """False if a retry does not choose it."""
    stays: bool = False
    """True if the run leaves it as it is stored, with what came of its tasks."""
    is_waiting: bool = False
    """True if all that is to be done for it is in batches or up to people."""
    resumed: bool = False
    """True if the run goes on with it from where it waited."""
    waits_for_others: bool = False
    """True if the run does not come to it, since rows before it stay open."""

    # how far it came
    ended: bool = False
    """True if it went through its stages."""
    begun: frozenset[int] = frozenset()
    """The positions of stages whose tasks began; only if the stages of its level are no chain."""
    open_needs: dict[str, int] = field(default_factory=dict)
    """How many needs of each stage have no outcome yet; only if they are no chain."""
    blocked: frozenset[str] = frozenset()
    """The stages that cannot be run for it."""
    never_began: frozenset[str] = frozenset()
    """The stages to which it never came, as it left before."""
    absent: bool = False
    """True if it will not be made, since what it is made of fails."""
    making: DerivedRows | None = None
    """What is made of it."""
    unmade: AnyStage | None = None
    """The stage at which it fails, since that can make nothing of it."""

    # a group, at the stage that made it
    is_group: bool = False
    """True if its first task is about many rows."""
    refused: str | None = None
    """Why that task cannot be run, if it is known before it is looked up."""
    characters: int = 0
    """Characters of what that task is about, if it is not there yet."""
    parts: int = 0
    """Parts of the group that would be run before it."""
    in_batch: int = 0
    """Parts of the group that are in batches."""

    @property
    def id(self) -> RowId:
        """The row's id."""
        return self.new.row.id

    @property
    def lost(self) -> bool:
        """True if nothing is made of the row in this run: a stage of it, or of what it is made of,
        fails or waits."""
        return self.failed is not None or self.parked is not None
