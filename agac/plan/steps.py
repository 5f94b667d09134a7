"""The stages of a plan, ready to be gone through: those that ask a model, and those that do something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agac.core.keys import Fingerprinter
from agac.core.types import JSONValue, Params, Schema
from agac.plan.timeouts import DEFAULT_TIMEOUT
from agac.providers.modelref import ModelRef
from agac.providers.provider import Provider
from agac.spec.grouping import Group
from agac.spec.guards import Guard
from agac.spec.levels import Makes
from agac.spec.operations import CHANGING, Dedupe, Fields, Filter, Operation, Python, formed, made_by
from agac.spec.rounds import DEFAULT_BATCH, BatchRules
from agac.spec.template import Template
from agac.spec.workflow import (
    Budget,
    Example,
    OnEmpty,
    Otherwise,
    PythonSchema,
    ReusePolicy,
    RunMode,
    Timeout,
    Visibility,
    field_shape,
    shape_of_replicas,
)

ExtraCheck = Callable[[JSONValue], list[str]]
"""What a Python schema finds wrong with a value beyond its JSON Schema: messages, empty when it is fine."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a stage and the parameters with which it is asked.

    `transport`: `sse`, `ws` or `auto`; None: one body for one body. `idle_timeout` bounds each silence of a streamed
    answer, in seconds; None: the time-out does. `ref` is what the model's string said.
    """

    provider: Provider
    model: str
    params: Params
    transport: str | None = None
    idle_timeout: float | None = None
    timeout: Timeout = DEFAULT_TIMEOUT
    ref: ModelRef | None = None

    @property
    def lane(self) -> str:
        """The model as users write it."""
        return f"{self.provider.name}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all stages have. `index` is their position as a row meets them, `needs` the stages that they follow,
    `ancestors` all those upstream whose results they see; `rows_of` is the one of these that gave the row the fields
    that it has here. `explode`, `group` and `on_empty` are those of `spec.workflow.Stage`."""

    name: str
    index: int
    needs: tuple[str, ...]
    ancestors: tuple[str, ...]
    rows_of: str | None = None
    guard: Guard | None = None
    otherwise: Otherwise = "skip"
    explode: tuple[str, ...] | None = None
    group: Group | None = None
    on_empty: OnEmpty | None = None

    @property
    def makes(self) -> Makes | None:
        """What it makes of the rows that come to it."""
        return made_by(self.explode, self.group, None)

    @property
    def changes_rows(self) -> bool:
        """Whether rows have other fields from this stage on."""
        return False

    def form(self, data: Fields, value: str | None) -> Fields | None:
        """The row's fields after this stage, of those before it."""
        return data

    @property
    def may_drop(self) -> bool:
        """Whether rows can leave here."""
        return self.guard is not None and self.otherwise == "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStage(Step):
    """A stage that asks no model. `prints` stands for all that its tasks share, where their results are kept."""

    operation: Operation
    prints: bytes = b""

    @property
    def makes(self) -> Makes | None:
        """What it makes of the rows that come to it."""
        return made_by(self.explode, self.group, self.operation.key)

    @property
    def changes_rows(self) -> bool:
        """Whether rows have other fields from this stage on."""
        return self.operation.key in CHANGING

    @property
    def asks(self) -> bool:
        """Whether it asks a model."""
        return False

    @property
    def is_kept(self) -> bool:
        """Whether its results are stored; others are made again for nothing whenever they are wanted."""
        return isinstance(self.operation, Python)

    def form(self, data: Fields, value: str | None) -> Fields | None:
        """The row's fields after this stage, of those before it; `value` is its stored result. None: not known, or
        other rows have them."""
        return formed(self.operation.body(), data, value)

    @property
    def replicas(self) -> int:
        """What it does is done once."""
        return 1

    @property
    def may_drop(self) -> bool:
        """Whether rows can leave here."""
        guarded = self.guard is not None and self.otherwise == "drop"
        return guarded or isinstance(self.operation, Filter | Python | Dedupe)

    @property
    def shape(self) -> dict[str, Any]:
        """Nothing is known of what it gives."""
        return {}

    @property
    def lane(self) -> str:
        """What it does, where others name their model."""
        return self.operation.key


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage(Step):
    """One stage, ready to be asked: its model, its parameters and all texts are known.

    `repair` is how often a reply of the wrong form is asked again; `max_age` is in seconds; `messages` stand between
    `system` and `prompt`; `ref` is what the string of `model` said. It is asked `replicas` times; `vote` is the field
    by whose most frequent value one answer is taken, None: the result is a list of all of them. `run_mode` is that of
    its first model; `batch` says how its batches are made. `python_schema` is what `schema` and `extra_check` were
    made of.
    """

    system: str | None
    prompt: Template
    schema: Schema | None
    extra_check: ExtraCheck | None
    provider: Provider
    model: str
    params: Params
    timeout: Timeout
    concurrency: int | None
    prints: Fingerprinter
    fallbacks: tuple[PlannedModel, ...] = ()
    repair: int = 1
    json_repair: bool = False
    reuse: ReusePolicy = "content"
    max_age: float | None = None
    budget: Budget | None = None
    transport: str | None = None
    idle_timeout: float | None = None
    messages: tuple[Example, ...] = ()
    ref: ModelRef | None = None
    visibility: Visibility | None = None
    output_field: str | None = None
    replicas: int = 1
    vote: str | None = None
    run_mode: RunMode = "sync"
    batch: BatchRules = DEFAULT_BATCH
    python_schema: PythonSchema | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks a model."""
        return True

    @property
    def is_kept(self) -> bool:
        """Whether its results are stored."""
        return True

    @property
    def shape(self) -> dict[str, Any] | None:
        """The JSON Schema of its results; None: plain text."""
        return shape_of_replicas(self.answer_shape, self.replicas, self.vote)

    @property
    def answer_shape(self) -> dict[str, Any] | None:
        """The JSON Schema of one answer; None: plain text."""
        if self.output_field is not None:
            return field_shape(self.output_field)
        return self.schema.body if self.schema else None

    @property
    def lane(self) -> str:
        """The stage's model as users write it."""
        return f"{self.provider.name}/{self.model}"

    @property
    def models(self) -> tuple[PlannedModel, ...]:
        """The stage's model and its fallbacks, in the order in which they are asked."""
        first = PlannedModel(
            self.provider, self.model, self.params, self.transport, self.idle_timeout, self.timeout, self.ref
        )
        return (first, *self.fallbacks)


AnyStage = PlannedStage | LocalStage
