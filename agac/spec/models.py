"""Every mapping of every file as one frozen model: workflow files, agac.yml and AgentCards.

They are the only description of the keys: defaults, docs, the JSON Schemas for editors and the words of errors are made
of them. A key that a file does not have is at its default, and `model_fields_set` says which ones it has: `merged` lays
what several levels say over each other. Checks that need more than one key, another file or the project are made by the
loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from agac.spec import value_checks as check
from agac.spec.operations import Incomplete
from agac.spec.value_checks import CAMEL_CASE
from agac.spec.workflow import (
    DEFAULT_BATCH,
    AtDeadline,
    BatchRetry,
    InputFormat,
    KeepReplies,
    Merge,
    OnDuplicateId,
    OnEmpty,
    Otherwise,
    OutputFormat,
    ReusePolicy,
    RunMode,
)

NonEmpty = Annotated[str, Field(min_length=1)]
TimeText = Annotated[str, Field(json_schema_extra=check.TIME_FORM)]
Duration = Annotated[float, BeforeValidator(check.duration, json_schema_input_type=TimeText | float)]


class FileModel(BaseModel):
    """A mapping in a file: no unknown keys, no conversions, nothing changes after reading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=False)

    merges: ClassVar[bool] = False
    """Whether a level that sets some of the keys leaves the others as a weaker level has them."""

    @field_validator("*", mode="before")
    @classmethod
    def _has_value(cls, value: Any) -> Any:
        if value is None:
            raise check.refused("has no value; give one or remove the key")
        return value


Keys = TypeVar("Keys", bound=FileModel)


def merged(kind: type[Keys], *levels: FileModel) -> Keys:
    """The keys of `kind` as these levels set them, weakest first; what none of them sets is at its default."""
    found: dict[str, Any] = {}
    for level in levels:
        for name in level.model_fields_set & kind.model_fields.keys():
            value, weaker = getattr(level, name), found.get(name)
            if isinstance(value, FileModel) and value.merges and isinstance(weaker, FileModel):
                value = merged(type(value), weaker, value)
            found[name] = value
    return kind.model_construct(**found)


def set_keys(level: FileModel) -> Iterator[str]:
    """The keys that a level sets; those of a mapping that merges as `batch.deadline` too."""
    for name in sorted(level.model_fields_set):
        yield name
        if isinstance(value := getattr(level, name), FileModel) and value.merges:
            yield from (f"{name}.{inner}" for inner in set_keys(value))


SizeText = Annotated[str, Field(json_schema_extra=check.SIZE_FORM)]
Size = Annotated[int, BeforeValidator(check.size, json_schema_input_type=SizeText | int)]
Deadline = Annotated[Any, AfterValidator(check.deadline), Field(json_schema_extra={"type": ["string", "number"]})]


class BatchFile(FileModel):
    """How batches are cut, waited for and ended. Each key that is given takes the place of the same key of the defaults
    above it; what is left out stays as they say."""

    merges = True

    max_requests: int | None = Field(
        default=None, ge=1, description="The most requests in a batch; as many as the provider takes when left out."
    )
    max_bytes: Size | None = Field(
        default=None,
        ge=1,
        description="The most bytes of a batch's input: a number, or a text as `500kB`, `100MB`; as many as the "
        "provider takes when left out.",
        examples=["100MB"],
    )
    completion_window: NonEmpty | None = Field(
        default=None,
        description="The time that the provider is given, in its own words (`24h`); its own choice when left out.",
    )
    poll_interval: Duration | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="How often a waiting command asks the provider: seconds, or a text as `30s`. When left out, after "
        "15 s at first, and up to 5 min while nothing moves.",
    )
    grace: Duration | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="How long a batch whose creation was cut off is looked for at the provider before it is created "
        "again; as the provider's list needs when left out.",
    )
    retry: BatchRetry = Field(
        default=DEFAULT_BATCH.retry,
        description="Where a request is asked again that a batch left without a good answer: in the next `batch`, at "
        "once by a call (`sync`), or nowhere (`fail`).",
    )
    max_rounds: int = Field(
        default=DEFAULT_BATCH.max_rounds, ge=1, le=100, description="In how many batches one request may be."
    )
    deadline: Deadline | None = Field(
        default=None,
        description="When a batch that is not finished is cancelled: a time from its submission as `8h`, or a time of "
        "day as `07:30`, the next one after it; what was finished is kept.",
        examples=["8h", "07:30"],
    )
    on_deadline: AtDeadline = Field(
        default=DEFAULT_BATCH.on_deadline,
        description="What becomes of the requests that the deadline left over: calls at full price (`sync`), or none: "
        "it only is said, and the batch goes on (`wait`).",
    )
    stuck_after: Duration = Field(
        default=DEFAULT_BATCH.stuck_after,
        gt=0,
        description="How long a batch may stand still until it is said to be stuck: seconds, or a text.",
        json_schema_extra={"default": "6h"},
    )


Paths = Annotated[
    list[NonEmpty], Field(min_length=1), BeforeValidator(check.paths, json_schema_input_type=str | list[str])
]

StageNames = Annotated[list[str], BeforeValidator(check.one_or_many, json_schema_input_type=str | list[str])]


class InputFile(FileModel):
    """Where rows come from."""

    path: Paths | None = Field(
        default=None,
        description="File with the rows, relative to the project; a pattern as `data/*.csv`, a list of files, "
        "`sqlite://data.db?query=SELECT …`, or `-` for standard input.",
    )
    format: InputFormat | None = Field(
        default=None,
        description="Format of the input; by its suffix when left out. `files`: each file is a row "
        "`{path, name, content}`.",
    )
    id_field: NonEmpty | None = Field(
        default=None, description="Field that holds each row's id; else rows are numbered."
    )
    on_duplicate_id: OnDuplicateId = Field(
        default="error", description="What to do with the later of two rows with one id."
    )


class OutputFile(FileModel):
    """Where results go."""

    dir: NonEmpty | None = Field(default=None, description="Folder for the results, relative to the project.")
    include_input: bool = Field(default=False, description="Put the row's fields beside its result.")
    format: Annotated[
        list[OutputFormat],
        BeforeValidator(check.output_formats, json_schema_input_type=OutputFormat | list[OutputFormat]),
    ] = Field(default=[], description="Files to write beside the JSON ones: `csv`, `tsv`, `txt`, `parquet`, or a list.")
    to: NonEmpty | None = Field(
        default=None, description="Table to write rows into, by id: `sqlite://data/out.db?table=results`."
    )
    merge: Merge | None = Field(
        default=None,
        description="What a result is written as: `replace` (alone), `extend` (the row's fields, then the result's), "
        "`update` (the same, the result's win), `append` (the row with the result under the stage's name).",
    )
    stages: StageNames | None = Field(
        default=None,
        min_length=1,
        description="The stages whose results are written: one alone, of several an object by their names; those "
        "that no other stage needs when left out.",
    )
    csv_safe: bool = Field(
        default=False, description="Keep spreadsheets from running cells of csv and tsv files as formulas."
    )

    @model_validator(mode="after")
    def _safe_cells_somewhere(self) -> OutputFile:
        if self.csv_safe and not {"csv", "tsv"} & set(self.format):
            raise check.refused("csv_safe is for csv and tsv; add format: csv, or remove csv_safe")
        return self


Seconds = Annotated[float, Field(gt=0, le=86_400)]
StageName = Annotated[str, AfterValidator(check.stage_name), Field(json_schema_extra=check.STAGE_NAME_FORM)]


class TimeoutFile(FileModel):
    """Bounds of one call, in seconds."""

    connect: Seconds | None = Field(default=None, description="Seconds until the connection stands.")
    first_byte: Seconds | None = Field(
        default=None, description="Seconds from the request to the first byte of the answer."
    )
    total: Seconds | None = Field(default=None, description="Seconds for the whole call.")


Timeout = Annotated[
    TimeoutFile,
    BeforeValidator(check.seconds_or_parts, json_schema_input_type=float | TimeoutFile),
    Field(description="Seconds for the whole call, or a mapping with connect, first_byte and total."),
]


class BudgetFile(FileModel):
    """What may be spent at most. Each bound that is given holds; nothing is begun that could go beyond one."""

    usd: float | None = Field(default=None, gt=0, description="US dollars.")
    tokens: int | None = Field(default=None, ge=1, description="Tokens, of requests and replies together.")
    calls: int | None = Field(default=None, ge=1, description="Calls, retries and re-asks included.")

    @model_validator(mode="after")
    def _bounds_something(self) -> BudgetFile:
        if self.usd is None and self.tokens is None and self.calls is None:
            raise check.refused("is empty; give usd, tokens or calls")
        return self


class ConfirmFile(FileModel):
    """From which estimated cost on a run asks before it begins."""

    usd: float = Field(ge=0, description="US dollars.")


class TelemetryFile(FileModel):
    """What is measured of each call, and told."""

    merges = True

    file: bool | None = Field(
        default=None,
        description="Write telemetry.jsonl, a line a row with each of its calls; left out: for up to 100,000 rows.",
    )
    ttft: bool = Field(
        default=False, description="Stream calls, to learn how long the first token takes, and the answer's."
    )


class RunRulesFile(FileModel):
    """When a run stops by itself, and what it keeps. In agac.yml: for every workflow that does not say otherwise."""

    budget: BudgetFile | None = Field(
        default=None, description="What a run may spend at most, over all its invocations."
    )
    row_budget: BudgetFile | None = Field(default=None, description="What one row may spend at most in an invocation.")
    confirm_above: ConfirmFile | None = Field(
        default=None, description="Ask before a run that is estimated to cost more."
    )
    stop_loss: bool = Field(default=True, description="Stop when over 80 % of a stage's first 20 outcomes fail alike.")
    max_errors: int | None = Field(default=None, ge=0, description="Stop when more rows than this failed.")
    row_timeout: Duration | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="What one row may take from its first call: seconds, or a text as `90s`, `2m`.",
    )
    keep_replies: KeepReplies = Field(default="all", description="Which raw replies stay in the store.")
    telemetry: TelemetryFile = Field(default=TelemetryFile(), description="What is measured of each call, and told.")


ModelChain = Annotated[NonEmpty, WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})]


class DefaultsFile(FileModel):
    """What holds for every stage that does not say otherwise."""

    model: ModelChain | None = Field(
        default=None,
        description="Model as `provider/model?key=value`; a list is a model and its fallbacks.",
        examples=["simulator/small", "openai/gpt-5.4-mini?reasoning=low", "gpt-5.4-mini"],
    )
    run_mode: RunMode = Field(
        default="sync",
        description="`sync` calls the model for each row as it comes; `batch` hands the requests to the provider's "
        "Batch API, which takes up to a day and costs less.",
    )
    batch: BatchFile = Field(
        default=BatchFile(), description="How batches are cut, waited for and ended, where `run_mode` is `batch`."
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="Sampling temperature.")
    max_tokens: int | None = Field(default=None, ge=1, description="The most tokens that a reply may have.")
    timeout: Timeout | None = Field(default=None, description="Seconds for a call, or {connect, first_byte, total}.")
    concurrency: int | None = Field(default=None, ge=1, le=10_000, description="The most calls in flight at a time.")
    fallback: Annotated[
        list[NonEmpty], BeforeValidator(check.model_or_chain, json_schema_input_type=str | list[str])
    ] = Field(default=[], description="Models that are asked in this order when the model gave no valid answer.")
    repair: int = Field(default=1, ge=0, le=10, description="How often a reply of the wrong form is asked again.")
    json_repair: bool = Field(default=False, description="Mend replies that are almost JSON before asking again.")
    reuse: ReusePolicy = Field(
        default="content",
        description="Whose earlier answers are taken: `content` (the same prompt's), `row` (the same row's), `never`.",
    )
    max_age: Duration | None = Field(
        default=None, gt=0, description="Ask again when an answer is older: seconds, or a text as `12h`, `7d`."
    )

    @model_validator(mode="before")
    @classmethod
    def _chain(cls, data: Any) -> Any:
        """`model: [a, b]` is the model a with the fallback b."""
        return check.split_chain(data)


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
    """Which of a row's fields a stage may send: those and no others, or all but those. Guards see every field."""

    only: list[NonEmpty] | None = Field(default=None, description="The row's fields that may be sent.")
    never: list[NonEmpty] | None = Field(
        default=None, min_length=1, description="Fields of the row, and results of stages, that may not be sent."
    )

    @model_validator(mode="after")
    def _says_something(self) -> VisibleFile:
        if self.only is None and self.never is None:
            raise check.refused("is empty; give only or never")
        return self


class ReduceFile(FileModel):
    """How much of a group one call is given. What is larger is asked in parts, and then of the parts' results."""

    max_rows: int | None = Field(default=None, ge=2, description="The most members, or results of parts, in a call.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="The most tokens that they may have together, as agac estimates them."
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> ReduceFile:
        if self.max_rows is None and self.max_tokens is None:
            raise check.refused("is empty; give max_rows or max_tokens")
        return self


FieldPath = Annotated[NonEmpty, AfterValidator(check.field_path)]
FieldPaths = Annotated[
    list[FieldPath],
    BeforeValidator(check.field_or_fields, json_schema_input_type=str | list[str]),
    AfterValidator(check.no_repeats),
]


class StageFile(DefaultsFile):
    """One step of a workflow. Its own keys win over its card's, the card's over `defaults`."""

    name: StageName = Field(description="Name of the stage; later stages use its result as `${name}`.")
    needs: StageNames | None = Field(
        default=None,
        description="The stages whose results this one follows; the stage before when left out, none for `[]`. "
        "Stages that do not need each other run at the same time.",
    )
    enabled: bool = Field(
        default=True, description="false: the stage is passed over, and who needs it needs what it needs."
    )
    when: NonEmpty | None = Field(
        default=None,
        description="Condition in CEL over the row's fields and the results of stages upstream; the stage is only run "
        "for rows for which it is true.",
        examples=['classify.sentiment == "negative"'],
    )
    otherwise: Otherwise = Field(
        default="skip",
        description="What becomes of a row for which `when` is false: `skip` goes on without this result, `drop` "
        "leaves.",
    )
    python: NonEmpty | None = Field(
        default=None,
        description="A function of the project that is given the row; what it gives is the row from there on, and None "
        "makes it leave. No model is asked.",
        examples=["tools/clean.py:normalise"],
    )
    processes: int | None = Field(
        default=None, ge=1, le=64, description="Run the function of `python` in so many processes of its own."
    )
    filter: NonEmpty | None = Field(
        default=None,
        description="Condition in CEL as in `when`; rows for which it is not true leave. No model is asked.",
    )
    select: list[NonEmpty] | None = Field(
        default=None, min_length=1, description="The fields with which the row goes on. No model is asked."
    )
    rename: dict[NonEmpty, NonEmpty] | None = Field(
        default=None, min_length=1, description="Fields that get another name: `old: new`. No model is asked."
    )
    dedupe: Annotated[FieldPaths, Field(min_length=1)] | None = Field(
        default=None,
        description="Of rows with the same values of these fields (the row's own, or `stage.field`) the first goes on, "
        "the others leave. No model is asked.",
        examples=[["email"]],
    )
    explode: FieldPath | None = Field(
        default=None,
        description="A list in the row, or in a result as `plan.questions`: the stage runs once for each item of it, "
        "which it sees as `${item}` with its place `${index}`, and so do those after it.",
        examples=["plan.questions"],
    )
    group_by: FieldPaths | None = Field(
        default=None,
        description="Ask once for all rows with the same values of these fields (the row's own, or `stage.field`; "
        "`[]`: for all rows). The prompt has the group's fields, `${rows_json}`, `${rows_count}` and `${rows_failed}`.",
        examples=[["classify.topic"]],
    )
    reduce: ReduceFile | None = Field(
        default=None, description="How groups are cut that are too large for one call; they are not when left out."
    )
    incomplete: Incomplete = Field(
        default="use",
        description="What becomes of a group of which rows failed before: `use` the others, or `fail`.",
    )
    on_empty: OnEmpty | None = Field(
        default=None,
        description="What happens when no row has a result of this stage at the end of a run: a warning (`warn`), or "
        "the run fails (`error`). Nothing when left out.",
    )
    agent: NonEmpty | None = Field(
        default=None, description="An AgentCard: its name in the agentcards folder, or a path."
    )
    instructions: NonEmpty | None = Field(default=None, description="System message: text, or a file of the project.")
    prompt: NonEmpty | None = Field(
        default=None, description="Message of each row, with ${placeholders}: text, or a file."
    )
    template: NonEmpty | None = Field(default=None, description="File that holds the prompt; instead of `prompt`.")
    messages: list[MessageFile] | None = Field(
        default=None, min_length=1, description="Examples of what is asked and answered, which stand before the prompt."
    )
    output_schema: Annotated[Any, AfterValidator(check.schema_form)] = Field(
        default=None,
        description="What the result looks like: a JSON Schema file, an inline JSON Schema, the shorthand "
        '`{sentiment: "positive|neutral|negative", reason: string}`, or `python:module.Class`.',
        json_schema_extra={"type": ["string", "object"]},
    )
    output_field: Annotated[NonEmpty, AfterValidator(check.field_name)] | None = Field(
        default=None, description="Makes of a plain reply a result with this one field, which holds its trimmed text."
    )
    visible: VisibleFile | None = Field(
        default=None, description="Which of the row's fields the stage may send; all when left out."
    )
    replicas: int = Field(default=1, ge=1, le=100, description="How often each row is asked, with other seeds.")
    vote: Annotated[NonEmpty, AfterValidator(check.field_way)] | None = Field(
        default=None,
        description="With replicas: the field of the result by whose most frequent value one of them is taken; a list "
        "of all when left out.",
        examples=["sentiment"],
    )
    budget: BudgetFile | None = Field(default=None, description="What this stage may spend at most in a run.")

    @model_validator(mode="after")
    def _keys_go_together(self) -> StageFile:
        if "otherwise" in self.model_fields_set and self.when is None:
            raise check.refused("otherwise says what happens when `when` is false; add when, or remove otherwise")
        if self.vote is not None and self.replicas == 1:
            raise check.refused("vote chooses among several answers; add `replicas: 3`, or remove vote")
        beside = {"reduce": "how groups are cut", "incomplete": "what becomes of a group"}
        for key, what in beside.items() if self.group_by is None else ():
            if key in self.model_fields_set:
                raise check.refused(f"{key} says {what}; add group_by, or remove {key}")
        if self.group_by is not None and self.explode is not None:
            raise check.refused("explode makes rows and group_by makes groups of rows; make a stage of each")
        if self.output_field is not None and self.output_schema is not None:
            raise check.refused("output_field is for plain replies; give either output_field or output_schema")
        return self


class WorkflowFile(RunRulesFile):
    """A workflow: rows in, stages, results out."""

    description: str | None = Field(default=None, description="What the workflow is for.")
    input: InputFile | None = Field(default=None, description="Where rows come from.")
    inputs: InputFile | None = Field(default=None, description="Another spelling of `input`.")
    defaults: DefaultsFile = Field(default=DefaultsFile(), description="What holds for all stages.")
    vars: dict[Annotated[str, AfterValidator(check.var_name)], Any] = Field(
        default={}, description="Values for `${vars.name}`, which --var can change."
    )
    stages: list[StageFile] = Field(min_length=1, description="The steps, in order.")
    output: OutputFile = Field(default=OutputFile(), description="Where results go.")


def _camel(value: Any) -> Any:
    """Reads the camelCase spellings that cards may use; both spellings of one key are left for `extra` to refuse."""
    if not isinstance(value, dict):
        return value
    return {key if (snake := CAMEL_CASE.get(key)) is None or snake in value else snake: v for key, v in value.items()}


class RequestParamsFile(FileModel):
    """Sampling and service parameters of a card."""

    max_tokens: int | None = Field(default=None, ge=1, description="The most tokens that a reply may have.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="Sampling temperature.")
    top_p: float | None = Field(default=None, ge=0, le=1, description="Nucleus sampling; also written topP.")
    top_k: int | None = Field(default=None, ge=1, description="Of how many tokens one is chosen; also written topK.")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="How likely a token must be beside the likeliest; also written minP."
    )
    repetition_penalty: float | None = Field(default=None, gt=0, description="Also written repetitionPenalty.")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="Also written presencePenalty.")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, description="Also written frequencyPenalty.")
    stop_sequences: list[NonEmpty] | None = Field(default=None, min_length=1, description="Texts that end a reply.")
    service_tier: Literal["auto", "default", "flex", "priority", "standard_only", "fast"] | None = Field(
        default=None, description="Service tier; `fast` means priority."
    )


_AnyCase = Literal["agent"] | Annotated[str, Field(pattern="^[Aa][Gg][Ee][Nn][Tt]$")]


class CardFile(FileModel):
    """The front matter of an AgentCard of type agent."""

    type: Annotated[Literal["agent"], BeforeValidator(check.in_small_letters, json_schema_input_type=_AnyCase)] = Field(
        default="agent", description="Kind of the card."
    )
    name: NonEmpty | None = Field(default=None, description="Name; the file's name when left out.")
    description: NonEmpty | None = Field(default=None, description="What the agent is for.")
    instruction: NonEmpty | None = Field(default=None, description="System message; instead of the text below.")
    model: NonEmpty | None = Field(default=None, description="Model as `provider/model?key=value`.")
    request_params: Annotated[RequestParamsFile, BeforeValidator(_camel)] = Field(
        default=RequestParamsFile(), description="Sampling and service parameters."
    )
    messages: Paths | None = Field(
        default=None, min_length=1, description="Files of messages that stand before the prompt."
    )
    schema_version: int = Field(default=1, ge=1, le=1, description="Version of the card format.")
    default: bool = Field(default=False, description="No meaning in a workflow: the stage names its card.")
    tool_only: Annotated[bool, AfterValidator(check.not_tool_only)] = Field(default=False, description="Must be false.")
    use_history: bool = Field(default=False, description="Rows share no history; true only warns.")
    human_input: Annotated[bool, AfterValidator(check.nobody_there)] = Field(
        default=False, description="Must be false."
    )


ApiKey = Annotated[NonEmpty, AfterValidator(check.api_key), Field(json_schema_extra=check.API_KEY_FORM)]
HeaderValue = Annotated[NonEmpty, AfterValidator(check.header_value)]


class LimitsFile(FileModel):
    """What a provider lets an account do."""

    concurrency: int | None = Field(default=None, ge=1, le=10_000, description="The most calls in flight at a time.")
    rpm: int | None = Field(default=None, ge=1, description="Requests a minute.")
    tpm: int | None = Field(default=None, ge=1, description="Tokens a minute.")
    enqueued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens that may wait in batches of one model at once; learned from refusals when left out.",
    )


class PriceFile(FileModel):
    """US dollars for a million tokens."""

    input: float = Field(ge=0, description="$ per million input tokens.")
    cached_input: float | None = Field(default=None, ge=0, description="$ per million input tokens that were cached.")
    output: float = Field(ge=0, description="$ per million output tokens.")
    batch: float | None = Field(
        default=None, gt=0, le=1, description="Factor on all prices in batches; the provider's when left out."
    )
    flex: float | None = Field(default=None, gt=0, description="Factor on all prices of the service tier flex.")
    priority: float | None = Field(default=None, gt=0, description="Factor on all prices of the tier priority.")


BatchApiName = Literal["openai", "anthropic", "none"]


class BatchApiFile(FileModel):
    """The batch API that a provider offers, and where it differs from the one that it is like."""

    api: BatchApiName = Field(description="Whose batch API it speaks; `none`: it has no batches.")
    max_requests: int | None = Field(default=None, ge=1, description="The most requests in a batch.")
    max_bytes: Size | None = Field(
        default=None, ge=1, description="The most bytes of a batch's input: a number, or a text as `100MB`."
    )
    windows: Annotated[list[NonEmpty], Field(min_length=1)] | None = Field(
        default=None,
        description="The completion windows that may be asked for, the usual one first.",
        examples=[["24h"]],
    )
    endpoint_prefix: Annotated[str, AfterValidator(check.endpoint_prefix)] | None = Field(
        default=None, description="What stands before the dialect's path in a request's `url`; `/v1` when left out."
    )
    finds_by: Literal["key", "file", "count"] | None = Field(
        default=None,
        description="How a batch is found whose creation was cut off: by our `key`, which the list echoes as "
        "`metadata.agac_intent`, by its input `file`, or by the `count` of its requests.",
    )
    filters: NonEmpty | None = Field(
        default=None,
        description="The parameter by which the list is asked for our key alone, as `metadata[agac_intent]`.",
    )
    pages: bool | None = Field(default=None, description="Whether its lists have pages; true when left out.")
    grace: Duration | None = Field(
        default=None, ge=0, le=86_400, description="How long a new batch may take to show up in the list: `20s`, `10m`."
    )
    results_kept: Duration | None = Field(
        default=None, gt=0, description="How long results can be fetched from the creation of a batch: `30d`."
    )


DialectName = Annotated[Literal["openai-chat", "openai-responses", "anthropic"], BeforeValidator(check.dialect)]
BatchApi = Annotated[BatchApiFile, BeforeValidator(check.batch_api, json_schema_input_type=BatchApiName | BatchApiFile)]


class ProviderSpec(FileModel):
    """A provider as agac.yml tells it. `${VAR}` in texts is looked up in the environment by whoever uses them."""

    dialect: DialectName | None = Field(default=None, description="The API that it speaks.")
    base_url: Annotated[str, AfterValidator(check.base_url)] | None = Field(
        default=None, description="Address up to and with the version, as `http://127.0.0.1:8000/v1`."
    )
    api_key: ApiKey | None = Field(default=None, description="The key as `${VARIABLE}` of the environment or .env.")
    batch: BatchApi | None = Field(
        default=None,
        description="Batch API that it offers: `openai`, `anthropic`, `none`, or a mapping that says where it differs; "
        "when left out what agac knows of it, else sync only.",
    )
    structured: Literal["json_schema", "json_object", "none"] | None = Field(
        default=None, description="What it can be told about the form of an answer."
    )
    seeds: bool | None = Field(
        default=None, description="Whether it can be told a seed, as `replicas` does; true when left out."
    )
    limits: LimitsFile = Field(default=LimitsFile(), description="What the account may do.")
    prices: dict[NonEmpty, PriceFile] = Field(default={}, description="Prices by model.")
    headers: dict[Annotated[str, AfterValidator(check.header_name)], HeaderValue] = Field(
        default={}, description="Headers to send with every request."
    )


class PathsFile(FileModel):
    """The project's folders, relative to its root."""

    workflows: NonEmpty = Field(default="workflows", description="Workflow files.")
    agentcards: NonEmpty = Field(default="agentcards", description="AgentCards.")
    schemas: NonEmpty = Field(default="schemas", description="JSON Schemas.")
    output: NonEmpty = Field(default="output", description="Results of workflows that name no folder.")


class ProjectFile(RunRulesFile):
    """agac.yml; nothing in it is required."""

    providers: dict[Annotated[str, AfterValidator(check.provider_name)], ProviderSpec] = Field(
        default={}, description="Providers on top of the ones that agac knows."
    )
    aliases: dict[NonEmpty, NonEmpty] = Field(
        default={}, description="Short names of models, as `fast: openai/gpt-5.4-mini?reasoning=low`."
    )
    defaults: DefaultsFile = Field(default=DefaultsFile(), description="What holds for all workflows.")
    paths: PathsFile = Field(default=PathsFile(), description="The project's folders.")
