"""What a project's files mean once every default is resolved: nothing below asks again where a value came from.

Times are seconds. Paths are absolute with links followed; what is shown to users is relative to the project root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agac.core.errors import Where
from agac.core.types import JSONValue, Schema
from agac.spec.grouping import Group
from agac.spec.guards import Guard
from agac.spec.levels import Makes
from agac.spec.operations import CHANGING, Operation, made_by
from agac.spec.rounds import DEFAULT_BATCH, BatchRules
from agac.spec.template import NO_TEXT, Template

if TYPE_CHECKING:
    from agac.spec.models import DefaultsFile, RunRulesFile
    from agac.spec.projectmodels import ProviderSpec

Level = Literal["project", "defaults", "card", "stage", "override"]
"""Who said it, weakest first: agac.yml's defaults, the workflow's defaults, the card, the stage, the command line."""

RunMode = Literal["sync", "batch"]
InputFormat = Literal["csv", "tsv", "json", "jsonl", "txt", "parquet", "files", "sqlite"]
OnDuplicateId = Literal["error", "first", "last", "suffix"]
ReusePolicy = Literal["content", "row", "never"]
KeepReplies = Literal["all", "failed"]
OutputFormat = Literal["csv", "tsv", "txt", "parquet"]
Otherwise = Literal["skip", "drop"]
OnEmpty = Literal["warn", "error"]
Merge = Literal["replace", "extend", "update", "append"]


@dataclass(frozen=True, slots=True)
class Timeout:
    """Bounds of one call in seconds; None means that agac's default holds."""

    connect: float | None = None
    first_byte: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent at most; None: not limited. `tokens` are those of requests and replies together."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class RunRules:
    """When a run stops by itself, and what it keeps.

    `project`, `workflow`: both bound what a run spends over all its invocations; `row` what one row spends in one.
    `confirm_above` is in US dollars, `max_errors` counts failed rows of an invocation, `row_timeout` is in seconds from
    a row's first call. `telemetry_file`: telemetry.jsonl is written; None: for runs that are not too large.
    `ttft`: calls are streamed, to learn how long the first token takes.
    """

    project: Budget | None = None
    workflow: Budget | None = None
    row: Budget | None = None
    confirm_above: float | None = None
    stop_loss: bool = True
    max_errors: int | None = None
    row_timeout: float | None = None
    keep_replies: KeepReplies = "all"
    telemetry_file: bool | None = None
    ttft: bool = False
    where: Mapping[str, Where] = field(default_factory=dict)
    """Where each key stands that is set, by its name; `project.budget` is agac.yml's."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A result schema that is known from files alone."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class PythonSchema:
    """A pydantic model of the project, imported only when the workflow runs. `name` is what providers are told;
    `source` (16 bytes) stands for the text of its module and of those of the project that it imports."""

    module: str
    cls: str
    name: str
    source: bytes = b""


SchemaSpec = JsonSchema | PythonSchema


Speaker = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Example:
    """One message before the prompt. `path` is its place among the keys of its file, empty in a file of its own."""

    role: Speaker
    content: Template
    path: str


@dataclass(frozen=True, slots=True)
class CardInfo:
    """An AgentCard as a stage uses it. `instruction` is filled: no placeholder is left in it."""

    name: str
    file: str
    description: str | None
    instruction: str | None
    model: str | None
    params: Mapping[str, Any]
    messages: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where rows come from. `shown` is the path as its author wrote it.

    `path` is the file; where there are `patterns`, the folder that they are relative to; of the folders `skipped`
    nothing is taken. `statement` is what reads a database; `ordered`: its rows keep their order. `piped`: rows come
    from standard input, which nobody has read yet; `path` is the folder in which it will be kept, and `format` may be
    None, for what it begins with to tell.
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


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table in a SQLite database, which may hold other tables. `shown` is the database relative to the project."""

    path: Path
    shown: str
    table: str
    where: Where = field(default=Where(""), compare=False)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where results go. `dir` lies inside the project and holds none of the project's own files. `stages` are those
    whose results are written, in the order in which a row meets them; `rows` is the stage that made the rows that have
    them, None: they are the input's.

    `formats` are written beside the JSON files. `merge` None: results alone in the JSON files, the row's columns with
    the result's in tables. `where` is where `format` stands, or the output.
    """

    dir: Path
    include_input: bool
    formats: tuple[OutputFormat, ...] = ()
    to: TableTarget | None = None
    merge: Merge | None = None
    csv_safe: bool = False
    where: Where = field(default=Where(""), compare=False)
    stages: tuple[str, ...] = ()
    rows: str | None = None


def field_shape(field: str) -> dict[str, Any]:
    """The JSON Schema of a result that holds one text."""
    return {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}


def shape_of_replicas(shape: dict[str, Any] | None, replicas: int, vote: str | None) -> dict[str, Any] | None:
    """The JSON Schema of what is made of a stage's answers, each of which has `shape` (None: plain text): one of them
    where they vote, else a list of all."""
    if replicas == 1 or vote is not None:
        return shape
    answer = {"type": "string"} if shape is None else shape
    shared = {key: answer[key] for key in ("$defs", "definitions") if key in answer}  # references begin at the root
    return {"type": "array", "items": answer, "minItems": replicas, "maxItems": replicas, **shared}


def shape_of_ends(ends: Sequence[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    """The JSON Schema of a row's result, made of the results of the stages `ends`, by their names; None: plain text."""
    if len(ends) == 1:
        return ends[0][1]
    return {"type": "object", "properties": {name: shape or {} for name, shape in ends}}


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which of a row's fields a stage may send: `only` those (None: all), and `never` these, results included."""

    only: frozenset[str] | None
    never: frozenset[str]

    def hides(self, name: str) -> bool:
        """Whether a field of the row may not be sent."""
        return name in self.never or (self.only is not None and name not in self.only)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a workflow.

    `needs` names the stages whose results it follows, `ancestors` all stages upstream of it; `rows_of` is the one of
    those after which the row has the fields that this stage sees, None: the input's. With an `operation` it asks no
    model, and what says how one is asked is not used. `params` holds, for each level, the fields of `Params` that it
    sets, weakest level first. `where` says where each key stands that the stage uses, wherever it
    was given (`model` may point into a card); `""` is the stage itself. `index` counts stages from 0 as a row meets
    them, `path` is the stage's place in its file (`stages[1]`), which may be another. `fallback` are the models
    asked after `model`; `messages` stand before the prompt; `repair` is how often a reply of the wrong form is asked
    again; `max_age` is in seconds. It is asked `replicas` times, and `vote` is the field whose most frequent value
    decides which answer is taken; None: all of them are, as a list. `explode` is the way to the list of whose items it
    makes rows, by its parts; `group` how it makes groups; `on_empty` what happens when no row has a result of it.
    `batch` says how its batches are made, whichever its `run_mode` is; `mode_levels` who said `run_mode` and each key
    of `batch` (as `batch.deadline`), where anybody did.
    """

    name: str
    index: int
    needs: tuple[str, ...]
    ancestors: tuple[str, ...]
    where: Mapping[str, Where]
    instructions: str | None = None
    prompt: Template = NO_TEXT
    schema: SchemaSpec | None = None
    model: str | None = None
    model_level: Level | None = None
    params: Mapping[Level, Mapping[str, Any]] = field(default_factory=dict)
    timeout: Timeout | None = None
    concurrency: int | None = None
    run_mode: RunMode = "sync"
    card: CardInfo | None = None
    path: str = ""
    fallback: tuple[str, ...] = ()
    repair: int = 1
    json_repair: bool = False
    reuse: ReusePolicy = "content"
    max_age: float | None = None
    budget: Budget | None = None
    messages: tuple[Example, ...] = ()
    guard: Guard | None = None
    otherwise: Otherwise = "skip"
    visibility: Visibility | None = None
    output_field: str | None = None
    operation: Operation | None = None
    rows_of: str | None = None
    replicas: int = 1
    vote: str | None = None
    explode: tuple[str, ...] | None = None
    group: Group | None = None
    on_empty: OnEmpty | None = None
    batch: BatchRules = DEFAULT_BATCH
    mode_levels: Mapping[str, Level] = field(default_factory=dict)

    @property
    def makes(self) -> Makes | None:
        """What it makes of the rows that come to it."""
        return made_by(self.explode, self.group, self.operation.key if self.operation else None)

    @property
    def changes_rows(self) -> bool:
        """Whether rows have other fields from this stage on."""
        return self.operation is not None and self.operation.key in CHANGING

    @property
    def shape(self) -> dict[str, Any] | None:
        """The JSON Schema of its results as far as files tell, `{}` when nothing is known of them; None: plain text."""
        return shape_of_replicas(self.answer_shape, self.replicas, self.vote)

    @property
    def answer_shape(self) -> dict[str, Any] | None:
        """The same of one answer, where it is asked several times."""
        if self.operation is not None or isinstance(self.schema, PythonSchema):
            return {}
        if self.output_field is not None:
            return field_shape(self.output_field)
        return self.schema.schema.body if isinstance(self.schema, JsonSchema) else None

    def at(self, key: str) -> Where:
        """The place of `key`, or of the stage when the key is written nowhere."""
        return self.where.get(key) or self.where[""]

    def key(self, key: str, level: Level | None) -> str:
        """`key` as the file of that level has it; empty for the command line, which is a place by itself."""
        keys = {"project": f"defaults.{key}", "defaults": f"defaults.{key}", "card": key, "override": ""}
        return keys.get(str(level), f"{self.path}.{key}")


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow file with everything that it names. `stages` are in the order in which a row walks through them;
    `disabled` names those that are not enabled."""

    name: str
    file: str
    description: str | None
    input: InputSpec
    stages: tuple[Stage, ...]
    vars: Mapping[str, JSONValue]
    output: OutputSpec
    rules: RunRules = RunRules()
    disabled: tuple[str, ...] = ()

    @property
    def asking(self) -> tuple[Stage, ...]:
        """The stages that ask a model."""
        return tuple(stage for stage in self.stages if stage.operation is None)

    @property
    def ends(self) -> tuple[Stage, ...]:
        """The stages whose results are a row's result: one alone, of several an object by their names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)


@dataclass(frozen=True, slots=True)
class ProjectPaths:
    """The project's folders, absolute; they need not exist."""

    workflows: Path
    agentcards: Path
    schemas: Path
    output: Path


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """What `agac.yml` says. `env` is what `${VAR}` is looked up in: it holds secrets, so it is never shown.

    `aliases` are the project's short names of models.
    """

    root: Path
    file: str
    providers: Mapping[str, ProviderSpec]
    defaults: DefaultsFile
    rules: RunRulesFile
    paths: ProjectPaths
    where: Mapping[str, Where]
    env: Mapping[str, str] = field(repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def shown(self, path: Path) -> str:
        """`path` as users see it: relative to the project root where it lies inside."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line changes for one invocation. `input` may be any path, pattern or database, or `-`: the user
    typed it. `output` is a folder of which no rows are read. `budget` takes the place of the project's and the
    workflow's."""

    vars: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    concurrency: int | None = None
    input: Path | str | None = None
    output: str | None = None
    budget: Budget | None = None
    max_errors: int | None = None
    run_mode: RunMode | None = None
