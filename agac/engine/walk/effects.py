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


ToolKey = tuple[bytes, int, int]  # of a call of a tool: its task, the turn and the place in it


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
    """What is noted of a row where traces are sent (`engine.otlp`). In seconds since 1970: when it
    was taken up, and (`begins`) by each stage, by position. `callers` are the calls of tools that
    asked child agents, by their tasks. `identity` is what the ids of its trace are made of."""

    begun: float
    identity: tuple[JSONValue, ...]
    begins: dict[int, float] = field(default_factory=dict)
    ends: list[TaskEnd] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    tools: dict[ToolKey, ToolCallRecord] = field(default_factory=dict)
    callers: dict[bytes, ToolKey] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, int]:
        """The ids of its trace, and of the first span of that."""
        return trace_ids(*self.identity, self.begun)


@dataclass(slots=True)
class RowProgress:
    """A row on its way through the stages of its level: what they see of it, and what became of it
    so far. `settled` are the positions of stages with an outcome. `reached`: a stage whose result
    is the row's has one; `written` is the last of these. `failed` is the first stage, in the order
    of the workflow, of those that failed. `dropped`: the row leaves. `waits`: a task of the row is
    in a batch, so that the row stays open whatever became of other branches. `held` are stages
    that could not be called, `reviews` what is asked of people, `judged` the results that they are
    asked about, by stage, each with its task's fingerprint. `lists` are the rows that functions
    gave in the place of this one, by the stages' positions; None where they are not known yet."""

    new: NewRow
    view: RowView
    settled: set[int] = field(default_factory=set)
    reached: bool = False
    written: Result | None = None
    failed: tuple[AnyStage, RowError] | None = None
    dropped: bool = False
    parked: AnyStage | None = None
    waits: bool = False
    held: frozenset[int] = frozenset()
    lists: dict[int, Rows | None] = field(default_factory=dict)
    reviews: list[NewReview] = field(default_factory=list)
    judged: dict[str, tuple[bytes, Result]] = field(default_factory=dict)

    def fail(self, stage: AnyStage, error: RowError) -> None:
        """One more stage failed."""
        self.settled.add(stage.index)
        if self.failed is None or stage.index < self.failed[0].index:
            self.failed = (stage, error)

    @property
    def stays_open(self) -> bool:
        """Whether it waits for a stage that is not asked in this invocation."""
        return self.parked is not None and (self.waits or not (self.dropped or self.failed))

    def leave(self, stage: AnyStage) -> None:
        """The row leaves at the stage."""
        self.settled.add(stage.index)
        self.dropped = True


@dataclass(slots=True, kw_only=True)
class ActiveRow(RowProgress):
    """A row at work. `prior` holds what became of its tasks earlier in this run, by stage index;
    `budget` what it may spend in this invocation, from its first call on; `waited`: the seconds
    that it waited between calls. `turns` and `tool_calls` are those of its conversations,
    `counted` the stages whose earlier ones are among them.

    `known`: it was stored before, and something may have been made of it. `forced`: tried again
    also where failures are left alone else. Stages at and after the position `again_from` take
    only answers made at or after `since`. A `part` of a large group is a call of the group's
    stage, and no row of it. `resumed`: walked on from where it waited, so that what failed
    meanwhile is not asked again, and `again` if this invocation left it there, and has counted
    what it came to; `ready` is what came of its tasks in batches since it was last walked."""

    prior: dict[int, PriorTask] = field(default_factory=dict)
    deadline: RowDeadline = NO_DEADLINE
    budget: BudgetBalance | None = None
    waited: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    counted: frozenset[int] = frozenset()
    known: bool = False
    forced: bool = False
    again_from: int | None = None
    since: float = 0.0
    part: bool = False
    resumed: bool = False
    again: bool = False
    ready: Ready = field(default_factory=dict)
    notes: RowNotes | None = None

    def asked_in_batch(self, stage: int, replica: int, fingerprint: bytes) -> bool:
        """Whether a batch brought the task's answer, which the row has not been walked with."""
        return is_answer_of_batch(self.ready.get((stage, replica, fingerprint)))

    def takes_since(self, stage: int, since: float) -> float:
        """From when on earlier answers of the stage are taken, in seconds since 1970; `since`
        holds for all rows."""
        return since_of_retry(stage, since, self.again_from, self.since)

    @property
    def log_fields(self) -> dict[str, str]:
        """What records of the log say of its trace, where there may be one."""
        if self.notes is None:
            return {}
        trace, span = self.notes.ids
        return {"trace_id": f"{trace:032x}", "span_id": f"{span:016x}"}

    @property
    def made(self) -> bool:
        """Whether a stage made the row; else it is the input's."""
        return self.new.origin is not None


def is_leave(stage: AnyStage, value: str) -> bool:
    """Whether a result, JSON, is the None of a function: the row leaves."""
    return value == "null" and isinstance(stage.operation, Python)


def replay(view: RowView, stage: Stage, result: StageResult, followed: Collection[str]) -> None:
    """Does to a row's view what the stage did, by its stored result; answers are read of stages
    `followed`."""
    if stage.rows_of not in view.forms:
        return
    if result.skipped:
        view.mark_skipped(stage)
    elif isinstance(stage.operation, Join):
        view.results[stage.name] = stage.operation.text(view.known(stage))
    elif stage.gives_answer:
        if result.value is not None and stage.name in followed:
            view.results[stage.name] = answered(stage, json.loads(result.value))
    elif (
        stage.changes_rows
        and (form := changed_row(stage.operation, view.data(stage), result.value)) is not None
    ):
        view.set_fields(stage, form)


def descended(parent: RowView, maker: Stage, fields: Mapping[str, JSONValue]) -> RowView:
    """What a row sees before its own stages that `maker` made of one that saw `parent`; `fields`
    are its own."""
    if maker.makes != "rows":
        # a field's list, which may be long: its children have an item in its place
        path = maker.explode
        own = path is not None and len(path) == 1 and path[0] not in maker.ancestors
        return parent.child(fields, without=path[0] if path and own else None)
    view = parent.child({})
    view.set_fields(maker, dict(fields))
    return view


def answered(stage: Stage, value: JSONValue) -> Any:
    """A stage's answer as others see it: of a review nothing stands for what was rejected."""
    return REJECTED if value is None and not stage.asks else value


def plain(value: object) -> JSONValue:
    """A result as JSON has it: one that was skipped or rejected is null."""
    return None if value is SKIPPED or value is REJECTED else value
