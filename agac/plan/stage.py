"""Stages with all that they need: to be run, and to be stored with a run and read back. What a run
keeps of its stages is two projections of their fields (`spec.workflow.StoredModel`): the
definition, which says what is the same and whose hash is a run's identity, and the settings beside
it (`plan.run_settings`). A definition is read back as `RecordedStage`s, from which prompts and
fingerprints are rebuilt for a row. Loads no pydantic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from agac.core.keys import Fingerprinter, params_body, replicas_fingerprint, reuse_salt
from agac.core.types import JSONValue, Message, Params, RowId, Schema, Visible
from agac.providers.backend import parse_backend
from agac.providers.model_string import ModelRef
from agac.providers.provider import SERVER_TOOLS, Provider
from agac.spec.graph import amended_by, seen_after
from agac.spec.operations import Operation
from agac.spec.rules import Timeout
from agac.spec.workflow import PythonSchema, Stage, StoredModel, Workflow

ExtraCheck = Callable[[JSONValue], list[str]]
"""What a Python schema finds wrong with a value beyond its JSON Schema: messages, empty when it is
fine."""

DEFAULT_TIMEOUT = Timeout(connect=10.0, first_byte=None, total=600.0)
"""Seconds. No bound on the first byte: an answer that is not streamed sends its first byte when it
is finished."""

FLEX_FACTOR = 1.5
"""How much longer a call of the tier flex may take: OpenAI advises 15 minutes in place of its
SDKs' 10 (developers.openai.com/api/docs/guides/flex-processing, read November 2026), which are our
default too."""


def call_timeout(written: Timeout | None, params: Params) -> Timeout:
    """The bounds of a call: the stage's over the defaults, and longer for flex, which waits for
    room."""
    wanted = written or DEFAULT_TIMEOUT
    factor = FLEX_FACTOR if params.service_tier == "flex" else 1.0
    return Timeout(
        connect=wanted.connect or DEFAULT_TIMEOUT.connect,
        first_byte=None if wanted.first_byte is None else wanted.first_byte * factor,
        total=(wanted.total or DEFAULT_TIMEOUT.total or 0.0) * factor,
    )


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a stage and the parameters with which it is called. `transport`: `sse`, `ws` or
    `auto`; None: one body for one body. `idle_timeout` bounds each silence of a streamed answer,
    in seconds; None: the time-out does. `ref` is what the model's string said. `backend` is what
    said where the provider is."""

    provider: Provider
    model: str
    params: Params
    backend: str | None = None
    transport: str | None = None
    idle_timeout: float | None = None
    timeout: Timeout = DEFAULT_TIMEOUT
    ref: ModelRef | None = None

    @property
    def server_tools(self) -> list[str]:
        """Tools that its provider is asked to run."""
        return [name for name in SERVER_TOOLS if getattr(self.params, name)]

    def at(self, providers: Mapping[str, Provider]) -> PlannedModel:
        """The same at the address that its provider has among these, unless a backend says
        another."""
        address = self.backend and parse_backend(self.backend)[1]
        if address:
            return replace(self, provider=replace(self.provider, base_url=address))
        row = providers[self.provider.name]
        return replace(
            self, provider=replace(self.provider, base_url=row.base_url, headers=row.headers)
        )

    @property
    def lane(self) -> str:
        """The model as users write it."""
        return f"{self.provider.name}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStage(Stage):
    """A stage that calls no model. `prints` is a hash of all that its tasks share, where their
    results are kept."""

    operation: Operation
    prints: bytes = b""

    @property
    def lane(self) -> str:
        """What it does, where others name their model."""
        return self.operation.key


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage(Stage):
    """A stage that is ready to be run: its `models`, in the order in which they are called, and
    all texts are known. `python_schema` is what `schema` and `extra_check` were made of, `model`
    the class itself. `judge`: answers are held to this in place of `schema`, with which they were
    asked for."""

    judge: Schema | None = None
    extra_check: ExtraCheck | None = None
    model: type | None = None
    python_schema: PythonSchema | None = None
    children: tuple[PlannedStage, ...] = ()
    models: tuple[PlannedModel, ...]
    prints: Fingerprinter

    @property
    def provider(self) -> Provider:
        """The provider of its first model."""
        return self.models[0].provider

    @property
    def params(self) -> Params:
        """With what its first model is called."""
        return self.models[0].params

    @property
    def ref(self) -> ModelRef | None:
        """What the string of `model` said."""
        return self.models[0].ref

    @property
    def may_ask_form_apart(self) -> bool:
        """Whether a conversation with one of its models may take a call more, for the form of its
        answer."""
        return self.defers_form or any(map(self.says_schema_in_words, self.models))

    def says_schema_in_words(self, model: PlannedModel) -> bool:
        """Whether a model of its is told the schema as instructions alone: its provider takes no
        response format in a request with tools."""
        spec = self.agent_spec
        if spec is None or not spec.tools or self.schema is None:
            return False
        return spec.structured == "auto" and not model.provider.tools_with_schema

    @property
    def lane(self) -> str:
        """The stage's model as users write it."""
        return self.models[0].lane


AnyStage = PlannedStage | LocalStage


def opening(stage: Stage, visible: Visible) -> tuple[Message, ...]:
    """What stands before the prompt: the instructions, and the examples. Raises MissingField."""
    system = (Message("system", stage.system),) if stage.system else ()
    return (*system, *(Message(one.role, one.content.render(visible)) for one in stage.examples))


def agent_body(stage: Stage) -> dict[str, JSONValue] | None:
    """What its fingerprints hold of an agent: not the name of its card. Of a runtime all that
    decides answers."""
    if stage.runtime is not None:
        return {"runtime": stage.runtime.body()}
    if stage.agent_spec:
        return {key: value for key, value in stage.agent_spec.body().items() if key != "card"}
    return None


def task_prints(
    stage: Stage, prints: Fingerprinter, messages: tuple[Message, ...], row_id: RowId, run: int
) -> tuple[bytes, tuple[bytes, ...]]:
    """The fingerprint of a task, and those of its replicas, which are counted from 1; none where
    it is run once."""
    salt = reuse_salt(stage.reuse, row_id, run)
    if stage.replicas == 1 and stage.vote is None:
        return prints.fingerprint(messages, salt=salt), ()
    replicas = tuple(
        prints.fingerprint(messages, replica=k, salt=salt) for k in range(1, stage.replicas + 1)
    )
    return replicas_fingerprint(replicas, stage.vote and stage.vote.body()), replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStage(Stage):
    """A stage of a stored definition. `model` is `provider/model`, of a stage that calls none what
    it does; `params` holds only what is set; `alias` the short name that was `written`, and what
    it `means`."""

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    alias: Mapping[str, str] | None = None
    variables: Mapping[str, JSONValue] = field(default_factory=dict)
    children: tuple[RecordedStage, ...] = ()

    def messages(self, visible: Visible) -> tuple[Message, ...]:
        """The request of a row of which this is visible. Raises MissingField."""
        return (*opening(self, visible), Message("user", self.prompt.render(visible)))

    def task_prints(
        self, messages: tuple[Message, ...], row_id: RowId, run: int
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """The fingerprints that the engine gave this task and its replicas."""
        provider, _, model = self.model.partition("/")
        params = Params(**tupled(self.params))
        prints = Fingerprinter(
            provider, model, params, self.schema, self.output_field, self.reply, agent_body(self)
        )
        return task_prints(self, prints, messages, row_id, run)


CHOOSING_ROWS = ("sql", "sheet", "header_row", "hive")
"""Keys of an input that say which of its rows are meant. They came later: where they are not set
nothing is stored."""


def definition(workflow: Workflow, stages: Sequence[AnyStage]) -> dict[str, Any]:
    """Everything that decides requests. Not in it: time-outs, repairs, fallbacks, limits, where
    results go."""
    spec = workflow.input
    ends = workflow.output.stages
    return {
        "workflow": workflow.name,
        "input": {
            "path": spec.shown,
            "format": spec.format,
            "id_field": spec.id_field,
            "on_duplicate_id": spec.on_duplicate_id,
            **{key: value for key in CHOOSING_ROWS if (value := getattr(spec, key)) is not None},
        },
        "vars": dict(workflow.vars),
        "stages": [stage_body(stage) for stage in stages],
        # where they are not simply the last stage's results, and not of the input's rows
        **({} if ends == (workflow.stages[-1].name,) else {"results": list(ends)}),
        **({"rows": workflow.output.rows} if workflow.output.rows is not None else {}),
    }


def defined_fields() -> Iterator[tuple[Field[Any], StoredModel]]:
    """Yields the fields of a Stage that are in its definition, and how each of them is."""
    for stage_field in fields(Stage):
        how = stage_field.metadata.get("stored")
        if how is not None:
            yield stage_field, how


def stage_body(stage: Stage) -> dict[str, Any]:
    """A stage in the definition. What is new is left out at its default, so that older definitions
    stay the same."""
    found: dict[str, Any] = {}
    for one, how in defined_fields():
        value = getattr(stage, one.name)
        always = how.always == "all" or (how.always == "asks" and stage.asks)
        if always or (
            value != one.default if not how.beside else getattr(stage, how.beside) is not None
        ):
            written = how.write(value)
            found |= {how.key: written} if how.key else written
    if isinstance(stage, PlannedStage):
        found |= {"model": stage.lane, "params": params_body(stage.params)}
        if stage.ref is not None and stage.ref.written is not None:
            found["alias"] = {"written": stage.ref.written, "means": stage.ref.meaning}
    return found | (
        {"children": [stage_body(child) for child in stage.children]} if stage.children else {}
    )


def read_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Stage that its definition holds, by name; those that it leaves out are at
    their defaults."""
    there = [(one.name, how) for one, how in defined_fields() if not how.key or how.key in body]
    return {name: how.read(body[how.key] if how.key else body) for name, how in there}


def recorded_stages(body: Mapping[str, Any]) -> tuple[RecordedStage, ...]:
    """The stages of a definition as `store.runs.definition_of` gives it, in the order in which a
    row meets them."""
    stages: dict[str, RecordedStage] = {}
    for one in body["stages"]:
        read = read_body(one)
        seen = seen_after([stages[need] for need in read["needs"]], stages, one["name"])
        ancestors, rows_of = ((), None) if read["group"] is not None else seen
        place = {"index": len(stages), "ancestors": ancestors, "rows_of": rows_of}
        stages[one["name"]] = _recorded(
            one, body["vars"], **place, amended=amended_by(ancestors, stages)
        )
    return tuple(stages.values())


def _recorded(
    body: Mapping[str, Any], variables: Mapping[str, JSONValue], **place: Any
) -> RecordedStage:
    """A stage of a definition, with the agents that it may call."""
    return RecordedStage(
        **read_body(body),
        **place,
        model=model_of(body),
        params=body.get("params", {}),
        alias=body.get("alias"),
        variables=variables,
        children=tuple(_recorded(one, variables, index=0) for one in body.get("children", ())),
    )


def tupled(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they were before JSON, which has no tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in params.items()
    }


def ends_of(body: Mapping[str, Any]) -> list[int]:
    """The positions of the stages whose results are a row's result, in a stored definition."""
    names = [one["name"] for one in body["stages"]]
    return [names.index(name) for name in body.get("results", names[-1:])]


def written_of(body: Mapping[str, Any]) -> int | None:
    """The position of the stage that made the rows that are written, in a stored definition; None:
    the input's are."""
    names = [one["name"] for one in body["stages"]]
    return names.index(body["rows"]) if body.get("rows") else None


def model_of(body: Mapping[str, Any]) -> str:
    """The model of a stage of a stored definition; of one that calls none what it does."""
    if "model" in body:
        return str(body["model"])
    return str(next(iter(body["operation"])))
