"""The resolved Workflow and its Stages: every default is filled in; nothing below looks
elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from agac.core.errors import Where
from agac.core.types import JSONValue, Schema
from agac.spec.card_examples import Example
from agac.spec.data_specs import InputSpec, OutputSpec
from agac.spec.graph import StageNode
from agac.spec.guards import STORED, Check, Guard
from agac.spec.json_schema import field_shape
from agac.spec.operations import CHANGING, Group, Join, Operation, Vote, made_by, read_operation
from agac.spec.paths import RemoteContent
from agac.spec.rules import (
    DEFAULT_BATCH,
    DEFAULT_RETRIES,
    DEFAULT_RUN_RULES,
    BatchRules,
    Budget,
    Level,
    OnEmpty,
    Otherwise,
    ReplyForm,
    RetryRules,
    ReusePolicy,
    RunMode,
    RunRules,
    Timeout,
)
from agac.spec.templates import NO_TEXT, VARS, Syntax, Template, sound_template
from agac.spec.tools import NO_TOOLS, AgentSpec, NamedTool, Runtime, ToolSettings

if TYPE_CHECKING:
    from agac.spec.agent_cards import Card
    from agac.spec.stage_models import LabelFile


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A result schema that is known from files alone, or made of the Pydantic `model` that a
    program gave."""

    schema: Schema
    model: type | None = None


@dataclass(frozen=True, slots=True)
class PythonSchema:
    """A pydantic model of the project, imported only when the workflow runs."""

    module: str
    cls: str
    name: str
    """The name that providers are given."""
    source: bytes = b""
    """A hash (16 bytes) of its module and of those of the project that it imports."""


SchemaSpec = JsonSchema | PythonSchema


def shape_of_ends(ends: Sequence[Stage]) -> dict[str, Any] | None:
    """Returns the JSON Schema of a row's result, made of those of the stages `ends`; None if it is
    unknown, or plain text."""
    if len(ends) == 1:
        return ends[0].shape
    return {"type": "object", "properties": {stage.name: stage.shape or {} for stage in ends}}


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which of a row's fields a stage may send."""

    only: frozenset[str] | None
    """The fields that it may send; None: all."""
    never: frozenset[str]
    """The fields and results that it may not send."""

    @staticmethod
    def of(only: Iterable[str] | None, never: Iterable[str] | None) -> Visibility:
        """Returns the visibility that these lists mean, in files and in stored definitions."""
        return Visibility(None if only is None else frozenset(only), frozenset(never or ()))

    def body(self) -> dict[str, JSONValue]:
        """Returns what a definition stores."""
        return {
            "only": None if self.only is None else sorted(self.only),
            "never": sorted(self.never),
        }

    def hides(self, name: str) -> bool:
        """True if a field of the row may not be sent."""
        return name in self.never or (self.only is not None and name not in self.only)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """How a field of a Stage stands in the definition of a run, which says what is the same."""

    key: str = ""
    """Its key; where it is empty, the keys of its value are keys of the stage."""
    always: Literal["all", "asks", ""] = ""
    """The stages that have it even at its default: all, or those that ask a model."""
    beside: str = ""
    """The field with which it is stored whenever that one is set; "": left out at its default."""
    write: Callable[[Any], Any] = lambda value: value
    """Turns the value into JSON."""
    read: Callable[[Any], Any] = lambda value: value
    """Turns JSON into the value."""


def decides(key: str, default: Any = None, **how: Any) -> Any:
    """Declares a field that decides answers: it is a part of the definition, and so of a run's
    identity."""
    return field(default=default, metadata={"stored": StoredModel(key, **how)})


Kept = Literal["all", "asks", "set"]
"""The stages with which a setting is stored: all, those that ask a model, or those of them that
set it."""


def setting(default: Any = None, kept: Kept = "asks") -> Any:
    """Declares a setting. One that came later is `kept` where it is set: what is stored where it is
    not is what it was."""
    return field(default=default, metadata={"kept": kept})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """How the answers of a stage are obtained. A run keeps it next to the definition: no setting
    decides what is the same."""

    concurrency: int | None = setting()
    """The most calls at a time."""
    repair: int = setting(1)
    """How often a reply of the wrong form is asked again."""
    retries: RetryRules = setting(DEFAULT_RETRIES, "set")
    json_repair: bool = setting(False)
    """True if replies that are almost JSON are mended before they are asked again."""
    max_age: float | None = setting()
    """The oldest answer that is taken, in seconds."""
    on_empty: OnEmpty | None = setting(kept="all")
    """What happens if no row has a result of the stage in the end."""
    run_mode: RunMode = setting("sync")
    """The run mode of the first model."""
    budget: Budget | None = setting()
    batch: BatchRules = setting(DEFAULT_BATCH)
    warm_prefix: bool = setting(True, "set")
    """True if the first call goes alone where a cache keeps what all requests begin with."""
    tooling: ToolSettings = setting(NO_TOOLS, "set")
    """How the tools of conversations are run."""


DEFAULT_SETTINGS = StageSettings()  # the settings of a stage that sets none


def _write_needs(needs: tuple[str, ...]) -> str | list[str] | None:
    """Writes a single need as a name, as it was before a stage could need several."""
    if len(needs) < 2:
        return needs[0] if needs else None
    return list(needs)


def read_needs(needs: list[str] | str | None) -> tuple[str, ...]:
    """Reads the needs of a stage of a stored definition: None, one name, or several."""
    if isinstance(needs, list):
        return tuple(needs)
    if needs:
        return (needs,)
    return ()


def _stored_text(text: str) -> Template:
    return sound_template(text, STORED)


def _write_examples(examples: Iterable[Example]) -> list[dict[str, str]]:
    return [{"role": example.role, "content": example.content.text} for example in examples]


def _read_examples(body: Iterable[Mapping[str, Any]]) -> tuple[Example, ...]:
    return tuple(Example(message["role"], _stored_text(message["content"]), "") for message in body)


def _write_schema(schema: Schema | None) -> dict[str, Any] | None:
    return {"name": schema.name, "body": schema.body} if schema else None


def _read_schema(body: Mapping[str, Any] | None) -> Schema | None:
    return Schema(**body) if body else None


_body = methodcaller("body")
_text = attrgetter("text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(StageNode):
    """One step of a workflow with every default resolved, whoever looks at it: the checks of its
    files, a run, or a command that reads what a run stored. A stage with an `operation` asks no
    model; its fields about requests are not used."""

    name: str = decides("name", MISSING, always="all")
    needs: tuple[str, ...] = decides(
        "needs", MISSING, always="all", write=_write_needs, read=read_needs
    )
    amends: str | None = decides("amends")
    operation: Operation | None = decides("operation", write=_body, read=read_operation)
    system: str | None = decides("system", always="asks")
    """The system message."""
    prompt: Template = decides("prompt", NO_TEXT, always="asks", write=_text, read=_stored_text)
    examples: tuple[Example, ...] = decides(
        "messages", (), write=_write_examples, read=_read_examples
    )
    """The messages between `system` and `prompt`."""
    schema: Schema | None = decides("schema", always="asks", write=_write_schema, read=_read_schema)
    """What its results look like; None: plain text, or what files alone do not tell."""
    output_field: str | None = decides("output_field")
    """The field of the result that holds the text of a plain reply."""
    reply: ReplyForm = decides("reply", "text")
    """What a reply without a schema is."""
    visibility: Visibility | None = decides(
        "visible", write=_body, read=lambda body: Visibility.of(**body)
    )
    reuse: ReusePolicy = decides("reuse", "content")
    guard: Guard | None = decides("when", write=_text, read=lambda text: Guard(text, (), STORED))
    """Its condition. That of a stored stage is a text alone: whoever tests it compiles it."""
    checks: tuple[Check, ...] = decides("checks", (), write=Check.bodies, read=Check.of)
    """The conditions that each result has to meet."""
    otherwise: Otherwise = decides("otherwise", "skip", beside="guard")
    """What happens to a row for which the guard is false."""
    replicas: int = decides("replicas", 1)
    """How often it is asked, or at most with a `vote`."""
    vote: Vote | None = decides("vote", write=_body, read=Vote.of)
    """How one of the replicas' answers is chosen; None: the result is a list of all."""
    explode: tuple[str, ...] | None = decides(
        "explode", write=".".join, read=lambda way: tuple(way.split("."))
    )
    """The way, by its parts, to the list whose items it makes rows of."""
    group: Group | None = decides("", write=_body, read=Group.of)
    """How it makes groups."""
    agent_spec: AgentSpec | None = decides("agent", write=_body, read=AgentSpec.of)
    """The tools of its model: with it, tasks are conversations."""
    runtime: Runtime | None = decides("runtime", write=_body, read=Runtime.of)
    """The program that runs each task as an agent of its own."""
    settings: StageSettings = DEFAULT_SETTINGS
    children: tuple[Stage, ...] = ()
    """The agents that it may call, each called `stage/card`. No row walks to them: the prompt sees
    the arguments of a call as a row."""

    def __post_init__(self) -> None:
        does = self.operation.key if self.operation else None
        object.__setattr__(self, "makes", made_by(self.explode, self.group, does))
        object.__setattr__(self, "changes_rows", does in CHANGING)

    @property
    def asks(self) -> bool:
        """True if it asks a model."""
        return self.operation is None

    @property
    def gives_answer(self) -> bool:
        """True if its result is an answer, and not what the row is from there on."""
        return self.operation is None or self.operation.gives_answer

    @property
    def most_turns(self) -> int:
        """The most calls of a model for an answer, without those of `repair`: `max_turns`, one that
        may call no tools, and one for the answer's form if that may take one more."""
        if self.runtime is not None:
            return self.settings.tooling.max_turns + 1
        if self.agent_spec is None:
            return 1
        return self.settings.tooling.max_turns + 1 + self.may_ask_form_apart

    @property
    def may_ask_form_apart(self) -> bool:
        """True if a conversation may take one more call, for the form of its answer. Its models may
        not need it."""
        if self.schema is None or self.agent_spec is None:
            return False
        return self.agent_spec.structured in ("auto", "defer")

    @property
    def defers_form(self) -> bool:
        """True if an agent is told the form of its answer in a turn of its own, after it has
        answered."""
        if self.schema is None or self.agent_spec is None:
            return False
        return self.agent_spec.structured == "defer" and bool(self.agent_spec.tools)

    @property
    def wants_json(self) -> bool:
        """True if its replies have to be JSON."""
        return self.schema is not None or self.reply == "json"

    @property
    def is_kept(self) -> bool:
        """True if its results are stored; others cost nothing to make again."""
        return self.operation is None or self.operation.is_kept

    @property
    def may_drop(self) -> bool:
        """True if rows can leave here."""
        guarded = self.guard is not None and self.otherwise == "drop"
        return guarded or (self.operation is not None and self.operation.may_drop)

    @property
    def shape(self) -> dict[str, Any] | None:
        """The JSON Schema of its results as far as it is known, `{}` when nothing is; None: plain
        text. The result of replicas that do not vote is a list of all answers."""
        answer = self.answer_shape
        if self.replicas == 1 or self.vote is not None:
            return answer
        if answer is None:
            answer = {"type": "string"}
        homes = ("$defs", "definitions")  # references begin at the root
        shared: dict[str, Any] = {key: answer[key] for key in homes if key in answer}
        return {
            "type": "array",
            "items": answer,
            "minItems": self.replicas,
            "maxItems": self.replicas,
            **shared,
        }

    @property
    def answer_shape(self) -> dict[str, Any] | None:
        """The JSON Schema of one answer, as in `shape`."""
        if isinstance(self.operation, Join):
            return None
        if self.operation is not None or self.reply == "json":
            return {}
        if self.output_field is not None:
            return field_shape(self.output_field)
        return self.schema.body if self.schema else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenStage(Stage):
    """A stage as its files have it, for checks and for choosing its model."""

    where: Mapping[str, Where]
    """The place of each key that the stage uses, wherever it is written: that of `model` may be in
    a card. The key `""` is the stage itself."""
    path: str = ""
    """The place of the stage in its file, as `stages[1]`."""
    model: str | None = None
    """The string that names its model."""
    backend: str | None = None
    """The string that says where its model is."""
    params: Mapping[Level, Mapping[str, Any]] = field(default_factory=dict)
    """The fields of `Params` that each level sets, weakest level first."""
    timeout: Timeout | None = None
    fallback: tuple[str, ...] = ()
    """The models that are asked after the first one."""
    output_schema: SchemaSpec | None = None
    levels: Mapping[str, Level] = field(default_factory=dict)
    """The level that set each key, as `batch.deadline` for one of `batch`."""
    children: tuple[WrittenStage, ...] = ()
    named_tools: tuple[NamedTool, ...] = ()
    """The tools that its model may call."""
    card: Card | None = None
    idle_timeout: float | None = None
    expect: LabelFile | None = None
    syntax: Syntax | None = None
    """The syntax of its placeholders, if the stage or a weaker level sets it."""

    @property
    def answer_shape(self) -> dict[str, Any] | None:
        """The JSON Schema of one answer; `{}` if only a class of the project tells it."""
        if isinstance(self.output_schema, PythonSchema):
            return {}
        return super(WrittenStage, self).answer_shape

    @property
    def asks_all_alike(self) -> bool:
        """True if a model is asked, and the prompt and its examples name nothing but variables: the
        same text is sent for each row."""
        texts = (self.prompt, *(example.content for example in self.examples))
        names = (placeholder.name for text in texts for placeholder in text.placeholders)
        return self.operation is None and all(name.partition(".")[0] == VARS for name in names)

    def at(self, key: str) -> Where:
        """Returns the place of `key`, or of the stage if the key is written nowhere."""
        return self.where.get(key) or self.where[""]


T = TypeVar("T")
AnyAgent = TypeVar("AnyAgent", bound=Stage)


def family(stage: AnyAgent) -> Iterator[AnyAgent]:
    """Yields a stage, the agents that it may call, those that they may call, and so on."""
    yield stage
    for child in stage.children:
        yield from family(cast("AnyAgent", child))


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow file with everything that it names."""

    name: str
    file: str
    description: str | None
    input: InputSpec
    stages: tuple[WrittenStage, ...]
    """The stages in the order in which a row walks through them."""
    vars: Mapping[str, JSONValue]
    output: OutputSpec
    rules: RunRules = DEFAULT_RUN_RULES
    disabled: tuple[str, ...] = ()
    """The names of the stages that are not enabled."""
    whole: bool = True
    """True if no stage is missing because of a problem."""
    remote: tuple[RemoteContent, ...] = ()
    """What was fetched from other machines."""
    labels: tuple[str, ...] = ()
    """Columns of the input that its rows do not have."""

    @property
    def asking(self) -> tuple[WrittenStage, ...]:
        """The stages that ask a model."""
        return tuple(stage for stage in self.stages if stage.operation is None)

    @property
    def calling(self) -> tuple[WrittenStage, ...]:
        """The stages that ask a model, each with the agents that it may call."""
        return tuple(agent for stage in self.asking for agent in family(stage))

    @property
    def ends(self) -> tuple[WrittenStage, ...]:
        """The stages whose results are a row's result; that of several is an object by their
        names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)
