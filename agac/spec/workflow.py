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
    from agac.spec.models import LabelFile


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A result schema that is known from files alone, or made of the Pydantic `model` that a
    program gave."""

    schema: Schema
    model: type | None = None


@dataclass(frozen=True, slots=True)
class PythonSchema:
    """A pydantic model of the project, imported only when the workflow runs. `name` is what
    providers are told; `source` (16 bytes) stands for the text of its module and of those of the
    project that it imports."""

    module: str
    cls: str
    name: str
    source: bytes = b""


SchemaSpec = JsonSchema | PythonSchema


def shape_of_ends(ends: Sequence[Stage]) -> dict[str, Any] | None:
    """The JSON Schema of a row's result, made of those of the stages `ends`, by name; None:
    unknown, or plain text."""
    if len(ends) == 1:
        return ends[0].shape
    return {"type": "object", "properties": {stage.name: stage.shape or {} for stage in ends}}


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which of a row's fields a stage may send: `only` those (None: all), and `never` these,
    results included."""

    only: frozenset[str] | None
    never: frozenset[str]

    @staticmethod
    def of(only: Iterable[str] | None, never: Iterable[str] | None) -> Visibility:
        """What these lists say, as files and stored definitions have them."""
        return Visibility(None if only is None else frozenset(only), frozenset(never or ()))

    def body(self) -> dict[str, JSONValue]:
        """The same as a definition stores it."""
        return {
            "only": None if self.only is None else sorted(self.only),
            "never": sorted(self.never),
        }

    def hides(self, name: str) -> bool:
        """Whether a field of the row may not be sent."""
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
    """As it was written before a stage could need several: a name, or nothing."""
    if len(needs) < 2:
        return needs[0] if needs else None
    return list(needs)


def read_needs(needs: list[str] | str | None) -> tuple[str, ...]:
    """The stages that one of a stored definition needs: None, one name, or several."""
    if isinstance(needs, list):
        return tuple(needs)
    if needs:
        return (needs,)
    return ()


def _stored_text(text: str) -> Template:
    return sound_template(text, STORED)


_body = methodcaller("body")
_text = attrgetter("text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(StageNode):
    """One step of a workflow with every default resolved, whoever looks at it: the checks of its
    files, a run, or a command that reads what a run stored.

    With an `operation` it asks no model, and what says how one is asked is not used. `examples`
    stand between `system` and `prompt`; `schema` is None for plain text, and where files do not
    tell it. `repair` is how often a reply of the wrong form is asked again; `max_age` is in
    seconds. It is asked `replicas` times, or fewer as `vote` says, by which one of the answers is
    taken; None: all are, as a list. `explode` is the way to the list of whose items it makes rows,
    by its parts; `group` how it makes groups; `on_empty` what happens when no row has a result of
    it. `run_mode` is that of its first model; `batch` says how its batches are made.
    `warm_prefix`: its first call goes alone where a cache profits. With an `agent_spec` its tasks
    are conversations with tools, which are run as `tooling` says; with a `runtime` a program runs
    each as an agent. `children` are the agents that it may call, as stages to which no row walks:
    each is called `stage/card`, and its prompt sees the arguments of a call as a row."""

    name: str = decides("name", MISSING, always="all")
    needs: tuple[str, ...] = decides(
        "needs", MISSING, always="all", write=_write_needs, read=read_needs
    )
    amends: str | None = decides("amends")
    operation: Operation | None = decides("operation", write=_body, read=read_operation)
    system: str | None = decides("system", always="asks")
    prompt: Template = decides("prompt", NO_TEXT, always="asks", write=_text, read=_stored_text)
    examples: tuple[Example, ...] = decides(
        "messages",
        (),
        write=lambda examples: [
            {"role": one.role, "content": one.content.text} for one in examples
        ],
        read=lambda body: tuple(
            Example(one["role"], _stored_text(one["content"]), "") for one in body
        ),
    )
    schema: Schema | None = decides(
        "schema",
        always="asks",
        write=lambda schema: schema and {"name": schema.name, "body": schema.body},
        read=lambda body: body and Schema(**body),
    )
    output_field: str | None = decides("output_field")
    reply: ReplyForm = decides("reply", "text")
    visibility: Visibility | None = decides(
        "visible", write=_body, read=lambda body: Visibility.of(**body)
    )
    reuse: ReusePolicy = decides("reuse", "content")
    # of a stored one the text alone: whoever tests it compiles it
    guard: Guard | None = decides("when", write=_text, read=lambda text: Guard(text, (), STORED))
    checks: tuple[Check, ...] = decides("checks", (), write=Check.bodies, read=Check.of)
    otherwise: Otherwise = decides("otherwise", "skip", beside="guard")
    replicas: int = decides("replicas", 1)
    vote: Vote | None = decides("vote", write=_body, read=Vote.of)
    explode: tuple[str, ...] | None = decides(
        "explode", write=".".join, read=lambda way: tuple(way.split("."))
    )
    group: Group | None = decides("", write=_body, read=Group.of)
    agent_spec: AgentSpec | None = decides("agent", write=_body, read=AgentSpec.of)
    runtime: Runtime | None = decides("runtime", write=_body, read=Runtime.of)
    settings: StageSettings = DEFAULT_SETTINGS
    children: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        does = self.operation.key if self.operation else None
        object.__setattr__(self, "makes", made_by(self.explode, self.group, does))
        object.__setattr__(self, "changes_rows", does in CHANGING)

    @property
    def asks(self) -> bool:
        """Whether it asks a model."""
        return self.operation is None

    @property
    def gives_answer(self) -> bool:
        """Whether its result is an answer, and not what the row is from there on."""
        return self.operation is None or self.operation.gives_answer

    @property
    def most_turns(self) -> int:
        """Calls of a model for an answer at most, those of `repair` apart: `max_turns`, one that
        may call no tools, and one for the answer's form where that may take one more."""
        if self.runtime is not None:
            return self.settings.tooling.max_turns + 1
        if self.agent_spec is None:
            return 1
        return self.settings.tooling.max_turns + 1 + self.may_ask_form_apart

    @property
    def may_ask_form_apart(self) -> bool:
        """Whether a conversation may take a call more, for the form of its answer. Its models may
        say no."""
        spec = self.agent_spec
        return self.schema is not None and spec is not None and spec.structured in ("auto", "defer")

    @property
    def defers_form(self) -> bool:
        """Whether an agent is told the form of its answer in a turn of its own, after it has
        answered."""
        spec = self.agent_spec
        return (
            self.schema is not None
            and spec is not None
            and spec.structured == "defer"
            and bool(spec.tools)
        )

    @property
    def wants_json(self) -> bool:
        """Whether its replies have to be JSON."""
        return self.schema is not None or self.reply == "json"

    @property
    def is_kept(self) -> bool:
        """Whether its results are stored; others are made again for nothing whenever they are
        wanted."""
        return self.operation is None or self.operation.is_kept

    @property
    def may_drop(self) -> bool:
        """Whether rows can leave here."""
        guarded = self.guard is not None and self.otherwise == "drop"
        return guarded or (self.operation is not None and self.operation.may_drop)

    @property
    def shape(self) -> dict[str, Any] | None:
        """The JSON Schema of its results as far as it is known, `{}` when nothing is; None: plain
        text. Of replicas that do not vote it is a list of all answers."""
        answer = self.answer_shape
        if self.replicas == 1 or self.vote is not None:
            return answer
        answer = {"type": "string"} if answer is None else answer
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
        """The same of one answer, where it is asked several times."""
        if isinstance(self.operation, Join):
            return None
        if self.operation is not None or self.reply == "json":
            return {}
        if self.output_field is not None:
            return field_shape(self.output_field)
        return self.schema.body if self.schema else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenStage(Stage):
    """A stage as its files have it, for checks and for choosing its model. `model` and `fallback`,
    the models asked after it, and `backend` are strings; `params` holds, for each level, the
    fields of `Params` that it sets, weakest level first. `where` says where each key stands that
    the stage uses, wherever it was given (`model` may point into a card); `""` is the stage
    itself. `path` is the stage's place in its file (`stages[1]`). `levels` has who said each key
    that several may say (one of `batch` as `batch.deadline`). `named_tools` are its tools."""

    where: Mapping[str, Where]
    path: str = ""
    model: str | None = None
    backend: str | None = None
    params: Mapping[Level, Mapping[str, Any]] = field(default_factory=dict)
    timeout: Timeout | None = None
    fallback: tuple[str, ...] = ()
    output_schema: SchemaSpec | None = None
    levels: Mapping[str, Level] = field(default_factory=dict)
    children: tuple[WrittenStage, ...] = ()
    named_tools: tuple[NamedTool, ...] = ()
    card: Card | None = None
    idle_timeout: float | None = None
    expect: LabelFile | None = None
    syntax: Syntax | None = None
    """How the stage or a level below says that its texts mark what is replaced; None: none of them
    says it."""

    @property
    def answer_shape(self) -> dict[str, Any] | None:
        """The JSON Schema of one answer; `{}` where only a class of the project tells it."""
        if isinstance(self.output_schema, PythonSchema):
            return {}
        return super(WrittenStage, self).answer_shape

    @property
    def asks_all_alike(self) -> bool:
        """True if a model is asked, and the prompt and its examples name nothing but variables:
        for each row the same text is sent."""
        texts = (self.prompt, *(one.content for one in self.examples))
        names = (placeholder.name for text in texts for placeholder in text.placeholders)
        return self.operation is None and all(name.partition(".")[0] == VARS for name in names)

    def at(self, key: str) -> Where:
        """The place of `key`, or of the stage when the key is written nowhere."""
        return self.where.get(key) or self.where[""]


T = TypeVar("T")
AnyAgent = TypeVar("AnyAgent", bound=Stage)


def family(stage: AnyAgent) -> Iterator[AnyAgent]:
    """A stage, the agents that it may call, those that they may, and so on."""
    yield stage
    for child in stage.children:
        yield from family(cast("AnyAgent", child))


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow file with everything that it names. `stages` are in the order in which a row
    walks through them; `disabled` names those that are not enabled. `whole`: none is missing
    because of a problem. `remote` was fetched. `labels` are columns of the input that its rows do
    not have."""

    name: str
    file: str
    description: str | None
    input: InputSpec
    stages: tuple[WrittenStage, ...]
    vars: Mapping[str, JSONValue]
    output: OutputSpec
    rules: RunRules = DEFAULT_RUN_RULES
    disabled: tuple[str, ...] = ()
    whole: bool = True
    remote: tuple[RemoteContent, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def asking(self) -> tuple[WrittenStage, ...]:
        """The stages that ask a model."""
        return tuple(stage for stage in self.stages if stage.operation is None)

    @property
    def calling(self) -> tuple[WrittenStage, ...]:
        """The stages that ask a model, each with the agents that it may call."""
        return tuple(one for stage in self.asking for one in family(stage))

    @property
    def ends(self) -> tuple[WrittenStage, ...]:
        """The stages whose results are a row's result: one alone, of several an object by their
        names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)
