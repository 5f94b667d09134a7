"""A row at work, and what an outcome does to it. The walk, the dry run and the replay share these
functions, which are pure: they change the row in memory, and keep and send nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agac.core.errors import RowError
from agac.core.keys import trace_ids
from agac.core.types import JSONValue, Message
from agac.engine.ask.limits import BudgetBalance
from agac.engine.ask.retry_policy import RowDeadline
from agac.engine.decide.reuse import is_answer_of_batch, since_of_retry
from agac.plan.render import RowView
from agac.plan.stage import AnyStage
from agac.spec.operations import Join, Python, changed_row
from agac.spec.templates import REJECTED, SKIPPED
from agac.spec.workflow import Stage
from agac.store.batches import Ready
from agac.store.records import Call, NewReview, NewRow, Result, TaskEnd, ToolCallRecord
from agac.store.rows import PriorTask, StageResult

NO_DEADLINE = RowDeadline(None, float)  # without `row_timeout` all rows share one
Rows = list[dict[str, JSONValue]]


ToolKey = tuple[bytes, int, int]
"""A call of a tool: the fingerprint of its task, the turn, and its position in the turn."""


class TracedCall(NamedTuple):
    """A call for a row, with what only a trace says of it."""

    call: Call
    """The call."""
    asked: str
    """The model that was asked for, which may be named otherwise than the one that answered."""
    finish: str | None = None
    """Why the model stopped."""
    texts: Mapping[str, Sequence[Message]] = {}
    """The messages of its request (`input`) and its reply (`output`), where they are sent."""


@dataclass(slots=True)
class RowNotes:
    """Notes about a row for its trace (`engine.output.otlp`)."""

    begun: float
    """When the row was taken up, in seconds since 1970."""
    identity: tuple[JSONValue, ...]
    """What the ids of its trace are made of."""
    begins: dict[int, float] = field(default_factory=dict)
    """When the row came to each stage, by position, in seconds since 1970."""
    ends: list[TaskEnd] = field(default_factory=list)
    """How its tasks ended."""
    calls: list[TracedCall] = field(default_factory=list)
    """Its calls of models."""
    tools: dict[ToolKey, ToolCallRecord] = field(default_factory=dict)
    """Its calls of tools."""
    callers: dict[bytes, ToolKey] = field(default_factory=dict)
    """The calls of tools that asked child agents, by the tasks of these."""

    @property
    def ids(self) -> tuple[int, int]:
        """The ids of its trace, and of the first span of that."""
        return trace_ids(*self.identity, self.begun)


@dataclass(slots=True)
class RowProgress:
    """A row on its way through the stages of its level: what they see of it, and what became of it
    so far. A run and a plan each add what they know of a row (`ActiveRow`, `ForecastRow`)."""

    new: NewRow
    """The row as the store has it, or will have it."""
    view: RowView
    """What stages see of it."""
    settled: set[int] = field(default_factory=set)
    """The positions of stages with an outcome."""
    reached: bool = False
    """True if a stage whose result is the row's has an outcome."""
    written: Result | None = None
    """The last result of such a stage."""
    failed: tuple[AnyStage, RowError] | None = None
    """The stage that failed, with its error; of several the first in the order of the workflow."""
    dropped: bool = False
    """True if the row leaves."""
    parked: AnyStage | None = None
    """A stage that has no answer in this invocation."""
    waits: bool = False
    """True if a task of the row is in a batch: the row stays open, whatever became of other
    branches."""
    held: frozenset[int] = frozenset()
    """The positions of stages that may not be asked."""
    lists: dict[int, Rows | None] = field(default_factory=dict)
    """The rows that functions gave in the place of this one, by the positions of their stages.
    None: not known yet."""
    reviews: list[NewReview] = field(default_factory=list)
    """The questions that people are asked about it."""
    judged: dict[str, tuple[bytes, Result]] = field(default_factory=dict)
    """The results that people are asked about, by stage, each with the fingerprint of its task."""

    def fail(self, stage: AnyStage, error: RowError) -> None:
        """Records that a stage failed."""
        self.settled.add(stage.index)
        if self.failed is None or stage.index < self.failed[0].index:
            self.failed = (stage, error)

    @property
    def stays_open(self) -> bool:
        """True if it waits for a stage that is not asked in this invocation."""
        if self.parked is None:
            return False
        return self.waits or not (self.dropped or self.failed)

    def leave(self, stage: AnyStage) -> None:
        """Records that the row leaves at a stage."""
        self.settled.add(stage.index)
        self.dropped = True


@dataclass(slots=True)
class RowUsage:
    """What a row used of its bounds in this invocation, earlier turns and calls of tools
    included."""

    budget: BudgetBalance | None = None
    """What it may spend. None before its first call."""
    waited: float = 0.0
    """Seconds that it waited between calls."""
    turns: int = 0
    """The turns of its conversations."""
    tool_calls: int = 0
    """The calls of tools in them."""
    counted: frozenset[int] = frozenset()
    """The positions of stages whose turns and calls of earlier invocations are included."""


@dataclass(slots=True, kw_only=True)
class ActiveRow(RowProgress):
    """A row that a run works on."""

    prior: dict[int, PriorTask] = field(default_factory=dict)
    """What became of its tasks earlier in this run, by the stage's position."""
    ready: Ready = field(default_factory=dict)
    """What batches brought for its tasks since it was walked last."""
    deadline: RowDeadline = NO_DEADLINE
    """The time that it has."""
    used: RowUsage = field(default_factory=RowUsage)
    """What it used of its bounds."""
    known: bool = False
    """True if it was stored before, so that something may have been made of it."""
    part: bool = False
    """True if it is a part of a large group: a call of the group's stage, and no row of it."""
    forced: bool = False
    """True if it is tried again even if its failures are otherwise left alone."""
    again_from: int | None = None
    """Stages at this position and after it are run again: they take only answers made at or after
    `since`."""
    since: float = 0.0
    """In seconds since 1970."""
    resumed: bool = False
    """True if it is continued from where it waited. What failed meanwhile is not asked again."""
    again: bool = False
    """True if this invocation left it where it waited, and has counted what it came to."""
    notes: RowNotes | None = None
    """Notes for its trace, if one may be sent."""

    def asked_in_batch(self, stage: int, replica: int, fingerprint: bytes) -> bool:
        """True if a batch brought the task's answer, which the row has not been walked with."""
        return is_answer_of_batch(self.ready.get((stage, replica, fingerprint)))

    def takes_since(self, stage: int, since: float) -> float:
        """Returns from when on earlier answers of the stage count, in seconds since 1970; `since`
        holds for all rows."""
        return since_of_retry(stage, since, self.again_from, self.since)

    @property
    def log_fields(self) -> dict[str, str]:
        """The ids of its trace for records of the log, if there may be one."""
        if self.notes is None:
            return {}
        trace, span = self.notes.ids
        return {"trace_id": f"{trace:032x}", "span_id": f"{span:016x}"}

    @property
    def made(self) -> bool:
        """True if a stage made the row; else it is the input's."""
        return self.new.origin is not None


def is_leave(stage: AnyStage, value: str) -> bool:
    """True if a result (JSON) is the None of a function: the row leaves."""
    return value == "null" and isinstance(stage.operation, Python)


def replay(view: RowView, stage: Stage, result: StageResult, followed: Collection[str]) -> None:
    """Changes a row's view as the stage did, by its stored result. Only answers of stages in
    `followed` are read."""
    if stage.rows_of not in view.forms:
        return
    if result.skipped:
        view.mark_skipped(stage)
    elif isinstance(stage.operation, Join):
        view.results[stage.name] = stage.operation.text(view.known(stage))
    elif stage.gives_answer:
        if result.value is not None and stage.name in followed:
            view.results[stage.name] = answered(stage, json.loads(result.value))
    elif stage.changes_rows:
        fields = changed_row(stage.operation, view.data(stage), result.value)
        if fields is not None:
            view.set_fields(stage, fields)


def descended(parent: RowView, maker: Stage, fields: Mapping[str, JSONValue]) -> RowView:
    """Makes the first view of a row with these `fields`, which `maker` made of a row whose view
    is `parent`."""
    if maker.makes != "rows":
        # a field's list, which may be long: its children have an item in its place
        path = maker.explode
        own = path is not None and len(path) == 1 and path[0] not in maker.ancestors
        return parent.child(fields, without=path[0] if path and own else None)
    view = parent.child({})
    view.set_fields(maker, dict(fields))
    return view


def answered(stage: Stage, value: JSONValue) -> Any:
    """Returns a stage's answer as other stages see it. A rejected review (None) becomes REJECTED;
    any other answer is itself."""
    return REJECTED if value is None and not stage.asks else value


def plain(value: object) -> JSONValue:
    """Returns a result as JSON has it: one that was skipped or rejected is null."""
    return None if value is SKIPPED or value is REJECTED else value
