"""Every mapping of a workflow file as one frozen model; those of agac.yml are in `project_models`,
those that both have in `rule_models`, those of AgentCards in `card_models`. They are the only
description of the keys: defaults, docs, the JSON Schemas for editors and the words of errors are
made of them. A key that a file does not have is at its default, and `model_fields_set` says which
ones it has. Checks of more than one key or file are the loader's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agac.spec import validation as check
from agac.spec import workflow
from agac.spec.file_model import (
    Deadline,
    Duration,
    FieldPath,
    FieldPaths,
    FileModel,
    NonEmpty,
    Paths,
    Share,
    Size,
    StageNames,
    TextOrList,
    key,
)
from agac.spec.graph import Makes
from agac.spec.operations import (
    CHANGING,
    CHOICES,
    OPERATIONS,
    Choice,
    Incomplete,
    Match,
    OnReject,
    OnTimeout,
    made_by,
)
from agac.spec.rule_models import Budget, RunRulesFile
from agac.spec.templates import Syntax
from agac.spec.tools import DEFAULT_RULES, MAX_CHARS, OnToolFailure, Runtime, ToolScope, ToolsMode

_BATCH = workflow.DEFAULT_BATCH
_RETRIES = workflow.DEFAULT_RETRIES
_PROGRAM = Runtime()


class BatchFile(FileModel):
    """How batches are cut, waited for and ended; what is left out stays as the defaults above it
    say."""

    merges = True

    max_requests: int | None = key(
        "The most requests in a batch; as many as the provider takes when left out.", ge=1
    )
    max_bytes: Size | None = key(
        "The most bytes of a batch's input; as many as the provider takes when left out.",
        ge=1,
        examples=["100MB"],
    )
    completion_window: NonEmpty | None = key(
        "The time that the provider is given, in its own words (`24h`)."
    )
    poll_interval: Duration | None = key(
        "How often a waiting command asks the provider; else after 15 s, then up to 5 min.",
        gt=0,
        le=86_400,
    )
    grace: Duration | None = key(
        "How long a batch whose creation was cut off is looked for before it is created again.",
        ge=0,
        le=86_400,
    )
    retry: workflow.BatchRetry = key(
        "Where a request is asked again that a batch left without a good answer: in the next "
        "`batch`, at once by a call (`sync`), or nowhere (`fail`).",
        default=_BATCH.retry,
    )
    max_rounds: int = key(
        "In how many batches a request may be.", default=_BATCH.max_rounds, ge=1, le=100
    )
    deadline: Deadline | None = key(
        "When a batch is cancelled: a time from its submission, or a time of day.",
        examples=["8h", "07:30"],
    )
    on_deadline: workflow.AtDeadline = key(
        "What becomes of the requests that the deadline left over: calls at full price (`sync`), "
        "or none: it only is said, and the batch goes on (`wait`).",
        default=_BATCH.on_deadline,
    )
    stuck_after: Duration = key(
        "How long a batch may stand still until it is said to be stuck: seconds, or a text.",
        default=_BATCH.stuck_after,
        gt=0,
        json_schema_extra={"default": "6h"},
    )
    linger: Duration = key(
        (
            "Of stages with tools: how long a batch of next turns waits for slow tools; later "
            "turns are in another batch."
        ),
        default=_BATCH.linger,
        ge=0,
        le=86_400,
        json_schema_extra={"default": "30s"},
    )
    tail: float = key(
        "When less than this share of the conversations goes on, these go on by calls.",
        default=_BATCH.tail,
        ge=0,
        le=1,
    )


class RetriesFile(FileModel):
    """How often a request is sent whose call fails and may pass, and how long it waits in
    between."""

    merges = True

    attempts: int = key(
        "How often a request is sent at most where its calls end in a server error, a time-out "
        "or a lost connection; `1`: no retries. Refusals by rate (429, 503) are counted apart; a "
        "re-ask and a fallback begin anew.",
        default=_RETRIES.attempts,
        ge=1,
        le=100,
    )
    delay: Duration = key(
        (
            "The wait before the second attempt, which doubles with each further one; what a "
            "server asks for goes first."
        ),
        default=_RETRIES.delay,
        ge=0,
        le=900,
    )
    max_delay: Duration = key(
        "The longest that such a wait becomes: seconds, or a text as `1m`.",
        default=_RETRIES.max_delay,
        ge=0,
        le=900,
        json_schema_extra={"default": "30s"},
    )


class InputFile(FileModel):
    """Where rows come from."""

    path: Paths | None = key(
        "File with the rows, relative to the project; a pattern as `data/*.csv`, a list of files, "
        "`sqlite://data.db?query=SELECT …`, "
        "`postgres://USER:${PGPASSWORD}@HOST/DATABASE?query=SELECT …`, or `-` for "
        "standard input."
    )
    format: workflow.InputFormat | None = key(
        "Format; by the suffix when left out. `files`: each file is a row."
    )
    id_field: NonEmpty | None = key("Field that holds each row's id; else rows are numbered.")
    on_duplicate_id: workflow.OnDuplicateId = key(
        "What to do with the later of two rows with one id.", default="error"
    )
    delimiter: Annotated[str, AfterValidator(check.csv_delimiter)] | None = key(
        "The character between the cells of a csv or tsv file; a comma or a tab when left out.",
        examples=[";"],
    )
    encoding: Annotated[NonEmpty, AfterValidator(check.text_encoding)] | None = key(
        (
            "How text is written: `cp1252`, `latin-1`, …; UTF-8 when left out, or as a byte order "
            "mark says."
        ),
        examples=["cp1252"],
    )
    on_short_record: workflow.OnShortRecord = key(
        "A csv or tsv record with fewer fields than the header: its row fails if a prompt or "
        "condition needs a missing field (`fail`), or its missing fields are null (`null`).",
        default="fail",
    )
    sql: NonEmpty | None = key(
        (
            "One SELECT over the rows, which are the table `input`: what it gives are the rows of "
            "the workflow."
        ),
        examples=["select id, text from input where length(text) > 20"],
    )
    sheet: NonEmpty | int | None = key(
        "Sheet of an xlsx file, by name or number from 1.", examples=["Prices", 2]
    )
    header_row: int | None = key(
        "Row of the sheet that names the columns; else the first that is not empty.", ge=1
    )
    hive: bool = key(
        "Make fields of the folders of parquet files: `year=2024/lang=de`.", default=False
    )
    allow_empty: bool = key("Let an input that lost all its rows empty the results.", default=False)

    @model_validator(mode="before")
    @classmethod
    def _null_without_quotes(cls, keys: Any) -> Any:
        """`on_short_record: null`, which YAML reads as no value."""
        if isinstance(keys, dict) and keys.get("on_short_record", "fail") is None:
            return keys | {"on_short_record": "null"}
        return keys


_WrittenInput = NonEmpty | list[NonEmpty] | InputFile
Input = Annotated[
    InputFile, BeforeValidator(check.input_mapping, json_schema_input_type=_WrittenInput)
]


class OutputFile(FileModel):
    """Where results go."""

    dir: NonEmpty | None = key("Folder for the results, relative to the project.")
    include_input: bool = key("Put the row's fields beside its result.", default=False)
    format: Annotated[
        list[workflow.OutputFormat],
        BeforeValidator(
            check.formats,
            json_schema_input_type=workflow.OutputFormat | list[workflow.OutputFormat],
        ),
    ] = key(
        "Files to write beside the JSON ones: `csv`, `tsv`, `txt`, `parquet`, or a list.",
        default=[],
    )
    to: NonEmpty | None = key(
        "Table to write rows into: `sqlite://data/out.db?table=NAME`, "
        "`postgres://USER:${PGPASSWORD}@HOST/DB?table=NAME`."
    )
    merge: workflow.Merge | None = key(
        "What a result is written as: `replace` (alone), `extend` (the row's fields, then the "
        "result's), `update` (the "
        "same, the result's win), `append` (the row with the result under the stage's name)."
    )
    stages: StageNames | None = key(
        "Stages whose results are written: several by their names; else those that no stage needs.",
        min_length=1,
    )
    how: bool = key(
        (
            "Put beside each result how people had to do with it, by stage: `auto`, `approved`, "
            "`manual`, `rejected`."
        ),
        default=False,
    )
    sources: bool = key(
        "Put beside each result the pages that providers' own searches found for it, by stage.",
        default=False,
    )
    bom: bool = key(
        "Begin csv and tsv files with a byte order mark, by which Excel knows UTF-8.", default=False
    )
    csv_safe: bool = key(
        "Keep spreadsheets from running cells of csv and tsv files as formulas.", default=False
    )

    def faults(self) -> Iterator[str]:
        for name in ("csv_safe", "bom"):
            if getattr(self, name) and not {"csv", "tsv"} & set(self.format):
                yield f"{name} is for csv and tsv; add format: csv, or remove {name}"


Seconds = Annotated[float, Field(gt=0, le=86_400)]
StageName = Annotated[
    str, AfterValidator(check.stage_name), Field(json_schema_extra=check.STAGE_NAME_FORM)
]


class TimeoutFile(FileModel):
    """Bounds of one call, in seconds."""

    connect: Seconds | None = key("Seconds until the connection stands.")
    first_byte: Seconds | None = key("Seconds from the request to the first byte of the answer.")
    total: Seconds | None = key("Seconds for the whole call.")


Timeout = Annotated[
    TimeoutFile,
    BeforeValidator(check.seconds_or_parts, json_schema_input_type=float | TimeoutFile),
    Field(
        description="Seconds for the whole call, or a mapping with connect, first_byte and total."
    ),
]


ModelChain = Annotated[
    NonEmpty, Field(json_schema_extra={"type": ["string", "array"], "items": {"type": "string"}})
]


class DefaultsFile(FileModel):
    """What holds for every stage that does not say otherwise."""

    model: ModelChain | None = key(
        "Model as `provider/model?key=value`; a list is a model and its fallbacks.",
        examples=["simulator/small", "openai/gpt-5.4-mini?reasoning=low", "gpt-5.4-mini"],
    )
    backend: NonEmpty | None = key(
        "A model server by its address: `vllm://HOST:PORT`, `sglang://HOST:PORT`, "
        "`dynamo://HOST:PORT?version=1.2`, `http://HOST:PORT/v1`, `openai://`, `anthropic://`. "
        "`model` is a model of it, the only one when left out.",
        examples=["vllm://127.0.0.1:8000"],
    )
    run_mode: workflow.RunMode = key(
        "`sync` calls the model for each row as it comes; `batch` hands the requests to the "
        "provider's Batch API, which takes up to a day and costs less.",
        default="sync",
    )
    batch: BatchFile = key(
        "How batches are cut, waited for and ended, in the run mode `batch`.", default=BatchFile()
    )
    temperature: float | None = key("Sampling temperature.", ge=0, le=2)
    max_tokens: int | None = key("The most tokens that a reply may have.", ge=1)
    timeout: Timeout | None = key(
        "Seconds for a call, or {connect, first_byte, total}; of a function, seconds."
    )
    concurrency: int | None = key("The most calls in flight at a time.", ge=1, le=10_000)
    fallback: Annotated[
        list[NonEmpty], BeforeValidator(check.model_or_chain, json_schema_input_type=TextOrList)
    ] = key("Models that are asked in this order when the model gave no valid answer.", default=[])
    repair: int = key("How often a reply of the wrong form is asked again.", default=1, ge=0, le=10)
    retries: RetriesFile = key(
        "How often and when a request is sent again after a fault.", default=RetriesFile()
    )
    json_repair: bool = key("Mend replies that are almost JSON before asking again.", default=False)
    reuse: workflow.ReusePolicy = key(
        "Whose earlier answers are taken: the same prompt's (`content`), row's (`row`), or none.",
        default="content",
    )
    warm_prefix: bool = key(
        "Where a cache keeps what all requests begin with, the first goes alone.", default=True
    )
    max_age: Duration | None = key(
        "Ask again when an answer is older: seconds, or a text as `12h`, `7d`.", gt=0
    )
    syntax: Syntax = key(
        "How prompts, instructions and messages mark what is replaced: `dollar` as `${name}`, "
        "`mustache` as "
        "`{{name}}`, `brace` as `{name}`; `auto` as the first of these that the text holds.",
        default="dollar",
    )

    _chain = model_validator(mode="before")(staticmethod(check.split_chain))


class MessageFile(FileModel):
    """A message that stands before the prompt, as an example of what is asked and answered."""

    role: Annotated[Literal["user", "assistant"], BeforeValidator(check.message_role)] = Field(
        description="Who says it; the two take turns, and the last one is the assistant."
    )
    content: Annotated[Any, AfterValidator(check.message_content)] = Field(
        description="Text with ${placeholders}, or a result as a mapping or a list.",
        json_schema_extra={"type": ["string", "object", "array"]},
    )


class VisibleFile(FileModel):
    """Which of a row's fields a stage may send: those and no others, or all but those. Guards see
    every field."""

    may_be_empty = False

    only: list[NonEmpty] | None = key("The row's fields that may be sent.")
    never: list[NonEmpty] | None = key(
        "Fields of the row, and results of stages, that may not be sent.", min_length=1
    )


class ReduceFile(FileModel):
    """How much of a group one call is given. What is larger is asked in parts, and then of the
    parts' results."""

    may_be_empty = False

    max_rows: int | None = key("The most members, or results of parts, in a call.", ge=2)
    max_tokens: int | None = key(
        "The most tokens that they may have together, as agac estimates them.", ge=1
    )


class ToolFile(FileModel):
    """How a tool is run, and what one that is built in is given."""

    timeout: Duration = key(
        "How long a call may take, as `30s`.", default=DEFAULT_RULES.timeout, gt=0, le=86_400
    )
    cacheable: bool = key("Equal calls of a run share one execution.", default=False)
    cache: Literal["run", "persist"] = key(
        (
            "How long results of a cacheable tool are kept: for the `run`, or in the store "
            "(`persist`)."
        ),
        default="run",
    )
    ttl: Duration | None = key("How long a kept result is taken: seconds, or a text as `1h`.", gt=0)
    side_effects: bool = key(
        "It changes something: no call is repeated unasked. True of servers' tools when left out.",
        default=False,
    )
    rate: float | None = key("The most calls a second.", gt=0)
    retries: int = key("How often a call is tried again that failed.", default=0, ge=0, le=10)
    concurrency: int | None = key("The most calls at a time.", ge=1, le=1_000)
    max_chars: int = key(
        "The most characters of a result; a longer one is cut.", default=MAX_CHARS, ge=200
    )
    scope: ToolScope = key(
        "Who shares results: all rows of a run (`run`), or none (`row`).", default="run"
    )
    root: NonEmpty | None = key("read_file: the folder that it reads; the project when left out.")
    allow: list[NonEmpty] | None = key("http_get: the hosts that it may reach.", min_length=1)
    database: NonEmpty | None = key("run_sql: the SQLite database of the project that it reads.")
    url: Annotated[str, AfterValidator(check.base_url)] | None = key(
        "web_search: the address that is asked."
    )
    api_key: Annotated[NonEmpty, AfterValidator(check.api_key)] | None = key(
        "web_search: the key as `${VARIABLE}`."
    )
    shape: (
        dict[
            Literal["method", "query", "count", "key", "results", "title", "link", "text"], NonEmpty
        ]
        | None
    ) = key(
        "web_search: where it differs from `{method: GET, query: q, count: count, key: "
        "Authorization, results: results, title: title, link: url, text: content}`; a `key` as "
        "`?name` is a parameter."
    )


_Permission = Literal["allow", "deny"]
_named = lambda value: {"name": value} if isinstance(value, str) else value  # noqa: E731


class RuntimeFile(FileModel):
    """A program that runs each task of the stage as an agent of its own, with its own tools."""

    name: Literal["opencode"] = key("The program: OpenCode's command line.", default="opencode")
    command: NonEmpty = key(
        "How it is called: a name, or a path in the project.", default=_PROGRAM.command
    )
    version: NonEmpty | None = key("How its version has to begin, as `1.18`; any when left out.")
    max_agents: int = key(
        "The most of it that run at a time.", default=_PROGRAM.max_agents, ge=1, le=256
    )
    permission: dict[NonEmpty, _Permission | dict[NonEmpty, _Permission]] = key(
        (
            "What its tools may do besides reading files of their folder: `allow` or `deny` by "
            "tool, or by pattern."
        ),
        default={},
        examples=[{"edit": "allow", "bash": {"*": "deny", "pytest *": "allow"}}],
    )
    files: NonEmpty | None = key(
        "A folder of the project; each task works in a copy of it.", examples=["fixtures/app"]
    )
    context: int = key(
        "The most tokens that a request of its may have.", default=_PROGRAM.context, ge=1_000
    )


class LabelFile(FileModel):
    """With what `agac eval` compares the answers of a stage."""

    label: NonEmpty = Field(
        description=(
            "The column of the input with the right answers; no stage, tool or output of "
            "the workflow has it."
        )
    )
    field: Annotated[NonEmpty, AfterValidator(check.field_way)] | None = key(
        "The field of the results that is compared; the whole answer when left out."
    )
    tolerance: float = key(
        "How far a number may lie from its label and still be right.", default=0.0, ge=0
    )


class CheckFile(FileModel):
    """A condition that each result has to meet."""

    check: NonEmpty = Field(
        description=(
            "Condition in CEL over the result, by the name of the stage, and all that its "
            "guard sees."
        )
    )
    message: NonEmpty = Field(
        description="What is wrong where it is not true, for the model and for the row's error."
    )


_OneEach = BeforeValidator(
    check.conditions, json_schema_input_type=list[CheckFile] | dict[str, str]
)


class EscalateFile(FileModel):
    """Which rows are asked once more, with another model, whose answer takes the place of the
    first one's."""

    when: NonEmpty = Field(
        description="Condition in CEL over what a stage after this one sees, its result by its "
        "name: rows for which it is true are asked again. With a `vote`, `agreement` is the "
        "share of the replicas that agree.",
        examples=["classify.confidence < 0.7", "agreement < 1.0"],
    )
    model: NonEmpty = Field(description="The model that is asked, as `provider/model?key=value`.")
    run_mode: workflow.RunMode | None = key("Its run mode; that of the stage when left out.")


ToolsByName = dict[NonEmpty, ToolFile]
Tools = Annotated[
    ToolsByName,
    BeforeValidator(check.named_tools, json_schema_input_type=list[NonEmpty] | ToolsByName),
]


class RedoFile(FileModel):
    """Who decides may have the model answer again, with what is wrong in their words."""

    stage: NonEmpty | None = key(
        "The stage that is asked again: the one whose result is decided on (`edit`)."
    )
    max: int = key("How often an answer may be given again.", default=2, ge=1, le=10)


class ReviewFile(FileModel):
    """Which results wait for a person, what that person is shown, and what becomes of them."""

    when: NonEmpty | None = key(
        "Condition in CEL; rows for which it is true wait for a decision, the others go on. "
        "`agreement` is how far the replicas of the stage `edit` agree, from 0 to 1. Left out: "
        "all rows wait, or the `sample` alone.",
        examples=["classify.confidence < 0.8", "agreement < 1.0"],
    )
    sample: Share = key(
        "A share of the other rows that waits too, drawn by their ids.",
        default=0.0,
        examples=["2%"],
    )
    blind: Share = key(
        "A share of the rows that wait for which the answer is not shown.",
        default=0.0,
        examples=["5%"],
    )
    show: list[FieldPath] = key(
        (
            "What is shown beside the answer: fields of the row, and results; all of the row's "
            "fields when left out."
        ),
        default=[],
    )
    edit: NonEmpty | None = key(
        "The stage whose result is decided on; stages after the review see what came of it. The "
        "only stage in `needs` when left out."
    )
    choices: Annotated[list[Choice], Field(min_length=1), AfterValidator(check.no_repeats)] = key(
        "What may be decided; `redo` where there is a `redo`, too.", default=[*CHOICES]
    )
    redo: RedoFile | None = key(
        "How the choice `redo` has the model answer again, with the comment of who decided."
    )
    on_reject: OnReject = key(
        "What becomes of a row whose result is rejected: it leaves (`drop`), fails (`fail`), or "
        "goes on without the result (`skip`).",
        default="drop",
    )
    reviewers: int = key("How many people have to say the same.", default=1, ge=1, le=2)
    agree: Annotated[NonEmpty, AfterValidator(check.field_way)] | None = key(
        "With two reviewers: the field in which they have to agree; the whole value when left out."
    )
    timeout: Duration | None = key("How long a row waits for people, as `5d`.", gt=0)
    on_timeout: OnTimeout = key(
        "What counts as decided after `timeout`; `wait`: nothing.", default="wait"
    )

    def faults(self) -> Iterator[str]:
        if self.blind and "edit" not in self.choices:
            yield (
                "blind rows come without the answer, so that a value is given; add edit to choices"
            )
        if (
            self.redo is not None
            and "choices" in self.model_fields_set
            and "redo" not in self.choices
        ):
            yield "redo has no effect: it is none of the choices; add it to them, or remove redo"
        if self.choices == ["redo"]:
            yield "an answer is given again only so often; add another choice, such as approve"
        if self.agree is not None and self.reviewers == 1:
            yield (
                "agree says in what two reviewers have to agree; add `reviewers: 2`, or "
                "remove agree"
            )
        if self.on_timeout != "wait" and self.timeout is None:
            yield "on_timeout says what counts after `timeout`; add timeout, or remove on_timeout"


class VoteFile(FileModel):
    """Which of the answers of replicas is taken, and when no more are asked."""

    may_be_empty = False

    field: Annotated[NonEmpty, AfterValidator(check.field_way)] | None = key(
        "The field whose most frequent value is taken; the whole answer when left out.",
        examples=["sentiment"],
    )
    lead: int = key(
        "By how many votes a value has to lead; once it does no more are asked.", default=0, ge=1
    )
    match: Match = key(
        "Which values are the same: as written, as plain words, or as JSON.", default="exact"
    )
    max_length: int | None = key(
        "An answer of more characters has no vote, but counts as asked.", ge=1
    )


Vote = Annotated[VoteFile, BeforeValidator(check.vote, json_schema_input_type=NonEmpty | VoteFile)]


class StageFile(DefaultsFile):
    """One step of a workflow. Its own keys win over its card's, the card's over `defaults`."""

    name: StageName = Field(
        description="Name of the stage; later stages use its result as `${name}`."
    )
    needs: StageNames | None = key(
        "The stages whose results this one follows; the one before when left out. Others run "
        "at the same time."
    )
    enabled: bool = key(
        "false: the stage is passed over, and who needs it needs what it needs.", default=True
    )
    when: NonEmpty | None = key(
        (
            "Condition in CEL over the row's fields and results upstream; only rows for which it "
            "is true are asked."
        ),
        examples=['classify.sentiment == "negative"'],
    )
    otherwise: workflow.Otherwise = key(
        "A row for which `when` is false goes on without this result (`skip`), or leaves (`drop`).",
        default="skip",
    )
    python: NonEmpty | None = key(
        "A function of the project that makes of the row the row from there on; None makes it "
        "leave. "
        "With `group_by` it is given the list of a group's rows, and makes one row of them.",
        examples=["tools/clean.py:normalise"],
    )
    processes: int | None = key(
        "Run the function of `python` in so many processes of its own.", ge=1, le=64
    )
    filter: NonEmpty | None = key(
        "Condition in CEL; rows for which it is not true leave. No model is asked."
    )
    select: list[NonEmpty] | None = key(
        "The fields with which the row goes on. No model is asked.", min_length=1
    )
    rename: dict[NonEmpty, NonEmpty] | None = key(
        "Fields that get another name: `old: new`.", min_length=1
    )
    dedupe: Annotated[FieldPaths, Field(min_length=1)] | None = key(
        (
            "Of rows with the same values of these fields (the row's, or `stage.field`) the first "
            "goes on."
        ),
        examples=[["email"]],
    )
    review: ReviewFile | None = key(
        "Rows wait here for the decision of a person. No model is asked."
    )
    explode: FieldPath | None = key(
        (
            "A list in the row, or in a result: the stage and those after it run for each "
            "`${item}`, with its `${index}`."
        ),
        examples=["plan.questions"],
    )
    group_by: FieldPaths | None = key(
        "Ask once for all rows with the same values of these fields (`[]`: for all rows). The "
        "prompt has these, `${rows_json}`, `${rows_count}` and `${rows_failed}`; a "
        "function (`python`) is given the list of the rows.",
        examples=[["classify.topic"]],
    )
    reduce: ReduceFile | None = key(
        "How groups are cut that are too large for one call; they are not when left out."
    )
    incomplete: Incomplete = key(
        "Of a group of which rows failed: `use` the others, or `fail`.", default="use"
    )
    on_empty: workflow.OnEmpty | None = key(
        "What happens when no row has a result of this stage at the end: a warning, or the "
        "run fails (`error`)."
    )
    agent: NonEmpty | None = key("An AgentCard: its name in the agentcards folder, or a path.")
    tools: Tools | None = key(
        "Tools that the model may call, beside those of its card: functions as "
        "`tools/search.py:web_search`, built-in ones as `read_file`, MCP servers of agac.yml as "
        "`docs` or `docs:search*`. A mapping says how each is run.",
        min_length=1,
        examples=[["tools/search.py:web_search", "read_file"]],
    )
    skills: Annotated[
        list[NonEmpty] | None,
        BeforeValidator(check.paths, json_schema_input_type=str | list[str] | None),
    ] = key(
        "Folders of skills that the model may read; its card then names none.", examples=["skills"]
    )
    runtime: Annotated[
        RuntimeFile | None,
        BeforeValidator(_named, json_schema_input_type=Literal["opencode"] | RuntimeFile),
    ] = key("`opencode`: the OpenCode command line runs each task as an agent of its own.")
    max_turns: int | None = key(
        "The most replies of the model in a conversation with tools.", ge=1, le=1_000
    )
    tools_mode: ToolsMode | None = key(
        "Where tools' results come from: calls (`live`; `record` notes them), `tool_stubs` "
        "(`stub`), a run (`replay`)."
    )
    tool_stubs: Annotated[dict[NonEmpty, Any], Field(min_length=1)] | None = key(
        "Stand-ins for tools in the mode `stub`, by the name of the tool."
    )
    on_tool_failure: OnToolFailure | None = key(
        "What a tool that failed does to its row: the model is told and goes on (`go_on`), or "
        "the row fails (`fail`)."
    )
    reads: list[NonEmpty] | None = key(
        "Patterns of the project's files that tools read: when one changes, rows are asked again.",
        min_length=1,
        examples=[["docs/**/*.md"]],
    )
    instructions: NonEmpty | None = key("System message: text, or a file of the project.")
    prompt: NonEmpty | None = key("Message of each row, with ${placeholders}: text, or a file.")
    template: NonEmpty | None = key("File that holds the prompt; instead of `prompt`.")
    messages: list[MessageFile] | None = key(
        "Examples of questions and answers, before the prompt.", min_length=1
    )
    output_schema: Annotated[Any, AfterValidator(check.schema_form)] = key(
        "What the result looks like: a JSON Schema file, an inline JSON Schema, the shorthand "
        "`{sentiment: "
        '"positive|neutral|negative", reason: string}`, or `python:module.Class`.',
        json_schema_extra={"type": ["string", "object"]},
    )
    output_field: Annotated[NonEmpty, AfterValidator(check.field_name)] | None = key(
        "Makes of a plain reply a result with this one field, which holds its trimmed text."
    )
    reply: workflow.ReplyForm = key(
        "What a reply without a schema is: `text`, or the value of `json`.", default="text"
    )
    visible: VisibleFile | None = key(
        "Which of the row's fields the stage may send; all when left out."
    )
    replicas: int = key(
        "How often each row is asked (at most), with other seeds.", default=1, ge=1, le=100
    )
    vote: Vote | None = key(
        (
            "With replicas: the field by whose most frequent value a result is taken; a list of "
            "all when left out."
        ),
        examples=["sentiment", {"field": "sentiment", "lead": 3}],
    )
    checks: Annotated[list[CheckFile], _OneEach] = key(
        "Conditions that each result has to meet, beside its schema: `{check: CEL, message: "
        "TEXT}`, or a mapping of conditions to messages.",
        default=[],
        examples=[
            {
                "invoice.net + invoice.tax == invoice.total": (
                    "net and tax have to add up to the total"
                )
            }
        ],
    )
    escalate: EscalateFile | None = key(
        (
            "Ask a stronger model about the rows whose answer is in doubt, as a stage "
            "`NAME/escalate` of its own."
        ),
        examples=[{"when": "classify.confidence < 0.7", "model": "openai/gpt-5.4"}],
    )
    budget: Budget | None = key("What this stage may spend at most in a run.")
    expect: LabelFile | None = key(
        (
            "With what `agac eval` compares its answers: a column of labels, which the workflow "
            "does not see."
        ),
        examples=[{"label": "topic_by_hand", "field": "topic"}],
    )

    @property
    def operations(self) -> list[str]:
        """The keys that say what it does in the place of asking a model."""
        return [key for key in OPERATIONS if getattr(self, key) is not None]

    @property
    def makes(self) -> Makes | None:
        """What it makes of rows."""
        return made_by(self.explode, self.group_by, next(iter(self.operations), None))

    @property
    def changes_rows(self) -> bool:
        """Whether rows have other fields after it."""
        return not set(CHANGING).isdisjoint(self.operations)

    def faults(self) -> Iterator[str]:
        if "otherwise" in self.model_fields_set and self.when is None:
            yield "otherwise says what happens when `when` is false; add when, or remove otherwise"
        asks = not self.operations  # else these keys are misplaced, which is said later
        if asks and self.vote is not None and self.replicas == 1:
            yield "vote chooses among several answers; add `replicas: 3`, or remove vote"
        if asks and self.vote is not None and self.vote.lead > self.replicas:
            yield (
                f"nothing leads by {self.vote.lead} votes of {self.replicas}; raise "
                "replicas, or lower the lead"
            )
        if asks and self.expect is not None and self.replicas > 1 and self.vote is None:
            yield "expect compares one answer, and replicas give a list of them; add vote"
        if (
            asks
            and self.expect is not None
            and self.expect.field is None
            and self.output_schema is not None
        ):
            yield "expect compares one field of the results; add `field` to it"
        beside = {"reduce": "how groups are cut", "incomplete": "what becomes of a group"}
        for name, what in beside.items() if self.group_by is None else ():
            if name in self.model_fields_set and (
                asks or (name == "incomplete" and self.python is not None)
            ):
                yield f"{name} says {what}; add group_by, or remove {name}"
        if self.group_by is not None and self.explode is not None:
            yield "explode makes rows and group_by makes groups of rows; make a stage of each"
        if self.output_field is not None and self.output_schema is not None:
            yield "output_field is for plain replies; give either output_field or output_schema"
        if "reply" in self.model_fields_set and self.output_schema is not None:
            yield "reply is for replies without a schema; give either reply or output_schema"
        if self.reply == "json" and self.output_field is not None:
            yield "output_field holds a reply's text; give either output_field or `reply: json`"


class WorkflowFile(RunRulesFile):
    """A workflow: rows in, stages, results out."""

    description: str | None = key("What the workflow is for.")
    input: Input | None = key(
        "Where rows come from; a path, or a list of them, is short for a mapping with `path`."
    )
    inputs: Input | None = key("Another spelling of `input`.")
    run_mode: workflow.RunMode | None = key("Short for `run_mode` in `defaults`.")
    defaults: DefaultsFile = key("What holds for all stages.", default=DefaultsFile())
    vars: dict[Annotated[str, AfterValidator(check.var_name)], Any] = key(
        "Values for `${vars.name}`, which --var can change.", default={}
    )
    stages: list[StageFile] = Field(min_length=1, description="The steps, in order.")
    output: OutputFile = key("Where results go.", default=OutputFile())
