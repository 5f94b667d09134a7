"""The keys of workflow files, and of what agac.yml says for all of them. `projectmodels` has agac.yml's other keys and
`cardmodels` those of AgentCards: they are the only description; docs and the JSON Schemas for editors are made of it.

What needs more than one key, another file or the project around it is checked where the file is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agac.spec import modelchecks as check
from agac.spec.batchmodels import BatchFile
from agac.spec.filemodel import Duration, FileModel, NonEmpty
from agac.spec.grouping import Incomplete
from agac.spec.inoutmodels import InputFile, OutputFile
from agac.spec.workflow import OnEmpty, ReusePolicy, RunMode

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
            raise PydanticCustomError("no_bound", "is empty; give usd, tokens or calls")
        return self


class ConfirmFile(FileModel):
    """From which estimated cost on a run asks before it begins."""

    usd: float = Field(ge=0, description="US dollars.")


class TelemetryFile(FileModel):
    """What is measured of each call, and told."""

    file: bool | None = Field(
        default=None,
        description="Write telemetry.jsonl, a line a row with each of its calls; left out: for up to 100,000 rows.",
    )
    ttft: bool | None = Field(
        default=None,
        description="Stream calls, to learn how long the first token takes, and the answer's; false when left out.",
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
    stop_loss: bool | None = Field(
        default=None, description="Stop when over 80 % of a stage's first 20 outcomes fail alike; true when left out."
    )
    max_errors: int | None = Field(default=None, ge=0, description="Stop when more rows than this failed.")
    row_timeout: Duration | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="What one row may take from its first call: seconds, or a text as `90s`, `2m`.",
    )
    keep_replies: Literal["all", "failed"] | None = Field(
        default=None, description="Which raw replies stay in the store; all when left out."
    )
    telemetry: TelemetryFile | None = Field(default=None, description="What is measured of each call, and told.")


class DefaultsFile(FileModel):
    """What holds for every stage that does not say otherwise."""

    model: Annotated[NonEmpty, WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})] | None = (
        Field(
            default=None,
            description="Model as `provider/model?key=value`; a list is a model and its fallbacks.",
            examples=["simulator/small", "openai/gpt-5.4-mini?reasoning=low", "gpt-5.4-mini"],
        )
    )
    run_mode: RunMode | None = Field(
        default=None,
        description="`sync` calls the model for each row as it comes; `batch` hands the requests to the provider's "
        "Batch API, which takes up to a day and costs less. `sync` when left out.",
    )
    batch: BatchFile | None = Field(
        default=None, description="How batches are cut, waited for and ended, where `run_mode` is `batch`."
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="Sampling temperature.")
    max_tokens: int | None = Field(default=None, ge=1, description="The most tokens that a reply may have.")
    timeout: Timeout | None = Field(default=None, description="Seconds for a call, or {connect, first_byte, total}.")
    concurrency: int | None = Field(default=None, ge=1, le=10_000, description="The most calls in flight at a time.")
    fallback: (
        Annotated[list[NonEmpty], BeforeValidator(check.model_or_chain, json_schema_input_type=str | list[str])] | None
    ) = Field(default=None, description="Models that are asked in this order when the model gave no valid answer.")
    repair: int | None = Field(
        default=None, ge=0, le=10, description="How often a reply of the wrong form is asked again; 1 when left out."
    )
    json_repair: bool | None = Field(
        default=None, description="Mend replies that are almost JSON before asking again; false when left out."
    )
    reuse: ReusePolicy | None = Field(
        default=None,
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
            raise PydanticCustomError("nothing", "is empty; give only or never")
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
            raise PydanticCustomError("no_bound", "is empty; give max_rows or max_tokens")
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
    needs: Annotated[list[str], BeforeValidator(check.one_or_many, json_schema_input_type=str | list[str])] | None = (
        Field(
            default=None,
            description="The stages whose results this one follows; the stage before when left out, none for `[]`. "
            "Stages that do not need each other run at the same time.",
        )
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
    otherwise: Literal["skip", "drop"] | None = Field(
        default=None,
        description="What becomes of a row for which `when` is false: `skip` goes on without this result (when left "
        "out), `drop` leaves.",
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
    incomplete: Incomplete | None = Field(
        default=None,
        description="What becomes of a group of which rows failed before: `use` the others (when left out), or `fail`.",
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
    replicas: int | None = Field(
        default=None, ge=1, le=100, description="How often each row is asked, with other seeds; 1 when left out."
    )
    vote: Annotated[NonEmpty, AfterValidator(check.field_way)] | None = Field(
        default=None,
        description="With replicas: the field of the result by whose most frequent value one of them is taken; a list "
        "of all when left out.",
        examples=["sentiment"],
    )
    budget: BudgetFile | None = Field(default=None, description="What this stage may spend at most in a run.")

    @model_validator(mode="after")
    def _otherwise_of_what(self) -> StageFile:
        if self.otherwise is not None and self.when is None:
            raise PydanticCustomError(
                "no_guard", "otherwise says what happens when `when` is false; add when, or remove otherwise"
            )
        return self

    @model_validator(mode="after")
    def _vote_of_several(self) -> StageFile:
        if self.vote is not None and (self.replicas or 1) == 1:
            raise PydanticCustomError(
                "no_replicas", "vote chooses among several answers; add `replicas: 3`, or remove vote"
            )
        return self

    @model_validator(mode="after")
    def _beside_group_by(self) -> StageFile:
        if self.group_by is None and (self.reduce is not None or self.incomplete is not None):
            key, what = ("reduce", "how groups are cut") if self.reduce else ("incomplete", "what becomes of a group")
            raise PydanticCustomError("no_group", f"{key} says {what}; add group_by, or remove {key}")
        if self.group_by is not None and self.explode is not None:
            message = "explode makes rows and group_by makes groups of rows; make a stage of each"
            raise PydanticCustomError("two_levels", message)
        return self

    @model_validator(mode="after")
    def _one_form(self) -> StageFile:
        if self.output_field is not None and self.output_schema is not None:
            raise PydanticCustomError(
                "two_forms", "output_field is for plain replies; give either output_field or output_schema"
            )
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
