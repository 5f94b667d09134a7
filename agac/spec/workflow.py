"""The resolved Workflow and its Stages: every default is filled in; nothing below looks
elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from agac.core.arguments import refuse_fields
from agac.core.errors import Where
from agac.core.types import DayTime, JSONValue, Schema
from agac.spec.graph import StageNode
from agac.spec.guards import STORED, Check, Guard
from agac.spec.json_schema import field_shape
from agac.spec.notify import NotifyTarget
from agac.spec.operations import CHANGING, Group, Join, Operation, Vote, made_by, read_operation
from agac.spec.paths import Fetch, ProjectPaths, RemoteContent, fetch_nothing
from agac.spec.templates import NO_TEXT, VARS, PlacedText, Syntax, Template, sound_template
from agac.spec.tools import NO_TOOLS, AgentSpec, NamedTool, Runtime, ToolSettings, ToolsMode

if TYPE_CHECKING:
    from agac.spec.agent_cards import Card
    from agac.spec.models import LabelFile
    from agac.spec.project_models import ProjectFile
    from agac.spec.yaml import Document

BatchRetry = Literal["batch", "sync", "fail"]
AtDeadline = Literal["wait", "sync"]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How a stage's batches are cut, waited for and ended. Bytes, seconds; None: the provider's,
    or agac's default. `retry`: where a request is asked again that a batch left without a good
    answer; `max_rounds` in how many batches it may be. A `deadline` in seconds counts from the
    submission of a batch, one of a day is the next after it; None: only the provider ends it.
    `stuck_after` is how long nothing may move. Of conversations: `linger` is how long a batch
    waits for slow tools, and with less than the share `tail` of them left these are called."""

    max_requests: int | None = None
    max_bytes: int | None = None
    completion_window: str | None = None
    poll_interval: float | None = None
    grace: float | None = None
    retry: BatchRetry = "batch"
    max_rounds: int = 3
    deadline: float | DayTime | None = None
    on_deadline: AtDeadline = "sync"
    stuck_after: float = 6 * 3600.0
    linger: float = 30.0
    tail: float = 0.01


DEFAULT_BATCH = BatchRules()  # the rules of a stage that says nothing


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How often a request is sent whose call fails and may pass, and how long it waits in between,
    in seconds. `attempts` counts the first time, and is each request's own: a model's, a re-ask's,
    a fallback's. Refusals by rate are counted apart, by the engine. The wait is `delay` at first
    and doubles, up to `max_delay`."""

    attempts: int = 6
    delay: float = 0.5
    max_delay: float = 30.0


DEFAULT_RETRIES = RetryRules()  # the rules of a stage that says nothing

# Times are seconds. Paths are absolute with links followed; what is shown to users is relative to
# the project root.

Level = Literal["project", "defaults", "card", "stage", "override"]
"""Who said it, weakest first: agac.yml's defaults, the workflow's defaults, the card, the stage,
the command line."""

RunMode = Literal["sync", "batch"]
InputFormat = Literal[
    "csv", "tsv", "json", "jsonl", "txt", "parquet", "xlsx", "files", "sqlite", "postgres"
]
OnDuplicateId = Literal["error", "first", "last", "suffix"]
OnShortRecord = Literal["fail", "null"]
ReusePolicy = Literal["content", "row", "never"]
KeepReplies = Literal["all", "failed"]
OutputFormat = Literal["csv", "tsv", "txt", "parquet"]
Otherwise = Literal["skip", "drop"]
OnEmpty = Literal["warn", "error"]
Merge = Literal["replace", "extend", "update", "append"]
ReplyForm = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Timeout:
    """Bounds of one call in seconds; None means that agac's default holds."""

    connect: float | None = None
    first_byte: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent at most; None: not limited. `tokens` are those of requests and replies
    together."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class RowBudget(Budget):
    """What one row may spend at most: also how many `turns` of its conversations with tools, and
    calls of tools."""

    turns: int | None = None
    tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class RunRules:
    """When a run stops by itself, and what it keeps.

    `project`, `workflow`: both bound what a run spends over all its invocations; `row` what one
    row spends in one. `confirm_above` is in US dollars, `max_errors` counts failed rows of an
    invocation, `row_timeout` is in seconds from a row's first call. `max_open_rows` are under way
    at a time where stages have tools; None: four times the calls. `telemetry_file`:
    telemetry.jsonl is written; None: for runs that are not too large. `ttft`, which stands at
    `where`: calls are streamed, to learn how long the first token takes. `otel…`: whether traces
    are sent, of which share of the rows that did not fail, and with texts; None: as the
    environment says. `notify`: who is told of it."""

    project: Budget | None = None
    workflow: Budget | None = None
    row: RowBudget | None = None
    confirm_above: float | None = None
    stop_loss: bool = True
    max_errors: int | None = None
    max_open_rows: int | None = None
    row_timeout: float | None = None
    keep_replies: KeepReplies = "all"
    telemetry_file: bool | None = None
    ttft: bool = False
    otel: bool | None = None
    otel_sample: float = 0.01
    otel_prompts: bool = False
    notify: tuple[NotifyTarget, ...] = ()
    where: Where = field(default=Where(""), compare=False)


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
Speaker = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Example:
    """One message before the prompt. `path` is its place among the keys of its file, empty in a
    file of its own."""

    role: Speaker
    content: Template
    path: str


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where rows come from. `shown` is the path as its author wrote it.

    `path` is the file; where there are `patterns`, the folder that they are relative to; of the
    folders `skipped` nothing is taken. `statement` is what reads a database; `ordered`: its rows
    keep their order. `piped`: rows come from standard input, which nobody has read yet; `path` is
    the folder in which it will be kept, and `format` may be None, for what it begins with to tell.
    `delimiter` and `encoding` say how text is written, None: as its format is, in UTF-8 or as a
    byte order mark tells. `on_short_record`: what a csv record does that lacks fields, None:
    `fail`. `allow_empty`: it may lose all its rows. `sql` is a statement over the rows, written at
    `sql_at`, and `scratch` where it keeps them; `sheet` and `header_row` say where in an xlsx file
    they are. `hive` True: folders of parquet files are fields; else None.
    """

    path: Path
    shown: str
    format: InputFormat | None
    id_field: str | None
    on_duplicate_id: OnDuplicateId
    where: Where
    patterns: tuple[str, ...] = ()
    skipped: tuple[Path, ...] = ()
    statement: str | None = None
    ordered: bool = True
    piped: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    allow_empty: bool = False
    sql: str | None = None
    sql_at: Where = field(default=Where("--sql"), compare=False)
    scratch: Path | None = field(default=None, compare=False)
    sheet: str | int | None = None
    header_row: int | None = None
    on_short_record: OnShortRecord | None = None
    hive: bool | None = None


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table in a database. `shown` is a SQLite file in the project, or a PostgreSQL address,
    which has no `path`."""

    path: Path | None
    shown: str
    table: str
    where: Where = field(default=Where(""), compare=False)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where results go. `dir` lies inside the project and holds none of the project's own files.
    `stages` are those whose results are written, in the order in which a row meets them; `rows` is
    the stage that made the rows that have them, None: they are the input's.

    `formats` are written beside the JSON files. `merge` None: results alone in the JSON files, the
    row's columns with the result's in tables. `bom`: csv and tsv files begin with a byte order
    mark. `where` is where `format` stands, or the output. `places` are the only files that a row
    run writes, by their names in an output folder, relative to the project where they are inside;
    its `dir` is the file with the results, or stands for standard output. `how`: with each result
    stands how people had to do with it. `sources`: with each result stand the sources of searches
    that providers ran for it. `one_value`: a row run's JSON file holds the one result and no list,
    as its input holds one object and no list."""

    dir: Path
    include_input: bool
    formats: tuple[OutputFormat, ...] = ()
    to: TableTarget | None = None
    merge: Merge | None = None
    csv_safe: bool = False
    bom: bool = False
    where: Where = field(default=Where(""), compare=False)
    stages: tuple[str, ...] = ()
    rows: str | None = None
    places: Mapping[str, str] | None = None
    how: bool = False
    one_value: bool = False
    sources: bool = False


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
    """How a field of a Stage is kept with a run: in the definition, which says what is the same,
    or beside it. In the definition it stands under `key`, or spread among its keys where `key` is
    empty; left out at its default, unless `always` is the kind of stage that has it (`all`, or
    `asks`: those that ask a model), or the field named `beside` is set. What stands beside it goes
    by `always` alone: where that is empty, of stages that ask a model and have it set. `write` and
    `read` turn the value into JSON and back."""

    key: str = ""
    always: Literal["all", "asks", ""] = ""
    beside: str = ""
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value
    decides: bool = True


def decides(key: str, default: Any = None, **how: Any) -> Any:
    """A field that decides answers: it is a part of the definition, and so of the identity of a
    run."""
    return field(default=default, metadata={"stored": StoredModel(key, **how)})


def setting(default: Any = None, always: Literal["all", "asks", ""] = "asks") -> Any:
    """A field that says how answers are got: it is kept beside the definition. One that came later
    is `always` empty: what is stored where it is at its default is what it was."""
    return field(default=default, metadata={"stored": StoredModel(always=always, decides=False)})


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
    concurrency: int | None = setting()
    repair: int = setting(1)
    retries: RetryRules = setting(DEFAULT_RETRIES, always="")
    json_repair: bool = setting(False)
    max_age: float | None = setting()
    on_empty: OnEmpty | None = setting(always="all")
    run_mode: RunMode = setting("sync")
    budget: Budget | None = setting()
    batch: BatchRules = setting(DEFAULT_BATCH)
    warm_prefix: bool = setting(True, always="")
    agent_spec: AgentSpec | None = decides("agent", write=_body, read=AgentSpec.of)
    runtime: Runtime | None = decides("runtime", write=_body, read=Runtime.of)
    tooling: ToolSettings = setting(NO_TOOLS, always="")
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
            return self.tooling.max_turns + 1
        if self.agent_spec is None:
            return 1
        return self.tooling.max_turns + 1 + self.may_ask_form_apart

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
    rules: RunRules = RunRules()
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


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """What `agac.yml` says. `file` has its keys, in which variables are filled in where they are
    no secrets. `env` is what `${VAR}` is looked up in: it holds secrets, so it is never shown.
    `fetch` gets what lies elsewhere. `functions` are tools that a program gave, by their source.
    `rows_root` has the inputs that another version's root lacks. `read` is what was read of files,
    by what was asked of them; None: nothing is kept."""

    root: Path
    file: ProjectFile
    paths: ProjectPaths
    document: Document
    env: Mapping[str, str] = field(repr=False)
    fetch: Fetch = field(default=fetch_nothing, repr=False)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    rows_root: Path | None = None
    read: dict[Hashable, Any] | None = field(default=None, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives: it is called once for this key while a workflow is loaded, or several
        by one command."""
        if self.read is None:
            return make()
        if key not in self.read:
            self.read[key] = make()
        return cast("T", self.read[key])

    def reading_once(self) -> ProjectSpec:
        """The same for what reads files while nobody is expected to change them: each is read
        once."""
        return self if self.read is not None else replace(self, read={})

    def noting(self) -> tuple[ProjectSpec, list[RemoteContent]]:
        """The same for one workflow to be loaded, and where what it fetches from other machines is
        noted."""
        noted: list[RemoteContent] = []

        def fetch(reference: str, what: str) -> tuple[RemoteContent, ...]:
            found = tuple(replace(one, what=what) for one in self.fetch(reference, what))
            noted.extend(one for one in found if one.hash)
            return found

        return replace(self.reading_once(), fetch=fetch), noted

    def elsewhere(self) -> ProjectSpec | None:
        """The same where the inputs are that the root lacks."""
        root = self.rows_root
        if root is None:
            return None
        names = ("workflows", "agentcards", "schemas", "output")
        folders = {name: root / getattr(self.paths, name).relative_to(self.root) for name in names}
        return replace(self, root=root, paths=ProjectPaths(**folders), rows_root=None)

    def shown(self, path: Path) -> str:
        """`path` as users see it: relative to the project root where it lies inside."""
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return str(path)


class StageChange(NamedTuple):
    """What is tried of one stage in place of what the files say: another model, another prompt."""

    stage: str
    model: str | None
    prompt: PlacedText | None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line changes for one invocation. `input` may be any path, pattern or
    database, or `-`: the user typed it. `output` is a folder of which no rows are read. `budget`
    replaces the project's and the workflow's. `tool_stubs` are stand-ins by tool, or a file of
    them; `replay` is the run whose results of tools are taken. `dry`: nothing is asked, so that
    what servers offer may be unknown."""

    vars: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    concurrency: int | None = None
    input: Path | str | None = None
    sql: str | None = None
    output: str | None = None
    budget: Budget | None = None
    max_errors: int | None = None
    run_mode: RunMode | None = None
    backend: str | None = None
    tools_mode: ToolsMode | None = None
    tool_stubs: Mapping[str, Any] | str | None = None
    replay: int | None = None
    max_turns: int | None = None
    trust_card: bool = False
    change: StageChange | None = None
    dry: bool = False
