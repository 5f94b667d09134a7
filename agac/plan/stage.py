"""A Stage with what it needs to be run: its models with their providers, its schema and its fingerprinter.

What a run keeps of its stages is two projections of their fields (`spec.workflow.StoredModel`): the definition, which
says what is the same and whose hash is a run's identity (`plan.definition`), and the settings beside it
(`plan.run_settings`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from agac.core.keys import Fingerprinter
from agac.core.types import JSONValue, Params
from agac.providers.model_string import ModelRef
from agac.providers.provider import Provider
from agac.spec.operations import Operation
from agac.spec.workflow import PythonSchema, Stage, Timeout

ExtraCheck = Callable[[JSONValue], list[str]]
"""What a Python schema finds wrong with a value beyond its JSON Schema: messages, empty when it is fine."""

DEFAULT_TIMEOUT = Timeout(connect=10.0, first_byte=None, total=600.0)
"""Seconds. No bound on the first byte: an answer that is not streamed sends its first byte when it is finished."""

FLEX_FACTOR = 1.5
"""How much longer a call of the tier flex may take: OpenAI advises 15 minutes in place of its SDKs' 10
(developers.openai.com/api/docs/guides/flex-processing, read November 2026), which are our default too."""


def call_timeout(written: Timeout | None, params: Params) -> Timeout:
    """The bounds of a call: the stage's over the defaults, and longer for flex, which waits for room."""
    wanted = written or DEFAULT_TIMEOUT
    factor = FLEX_FACTOR if params.service_tier == "flex" else 1.0
    return Timeout(
        connect=wanted.connect or DEFAULT_TIMEOUT.connect,
        first_byte=None if wanted.first_byte is None else wanted.first_byte * factor,
        total=(wanted.total or DEFAULT_TIMEOUT.total or 0.0) * factor,
    )


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
class LocalStage(Stage):
    """A stage that asks no model. `prints` stands for all that its tasks share, where their results are kept."""

    operation: Operation
    prints: bytes = b""

    @property
    def lane(self) -> str:
        """What it does, where others name their model."""
        return self.operation.key


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage(Stage):
    """A stage that is ready to be asked: its model, its parameters and all texts are known.

    `ref` is what the string of `model` said. `python_schema` is what `schema` and `extra_check` were made of.
    """

    extra_check: ExtraCheck | None = None
    python_schema: PythonSchema | None = None
    provider: Provider
    model: str
    params: Params
    timeout: Timeout
    transport: str | None = None
    idle_timeout: float | None = None
    ref: ModelRef | None = None
    fallbacks: tuple[PlannedModel, ...] = ()
    prints: Fingerprinter

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


def shared(stage: Stage) -> dict[str, Any]:
    """The fields that every kind of stage has, by name."""
    return {one.name: getattr(stage, one.name) for one in fields(Stage)}
