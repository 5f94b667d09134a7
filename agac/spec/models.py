"""A workflow file and its stages as frozen models. The mappings inside of a stage are in
`stage_models`, where rows come from and go in `data_models`, what holds for all stages in
`default_models`, what agac.yml has too in
`rule_models`; the mappings of agac.yml are in `project_models`, those of AgentCards in
`card_models`. The models are the only description of the keys: defaults, docs, the JSON Schemas for
editors and the words of errors are made of them. A key that a file does not have is at its default,
and `model_fields_set` says which ones it has. Checks of more than one key or file are the loader's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import rules
from agac.spec import validation as check
from agac.spec.data_models import Input, OutputFile
from agac.spec.default_models import DefaultsFile
from agac.spec.file_model import (
    FieldPath,
    FieldPaths,
    FileModel,
    NonEmpty,
    StageNames,
    key,
)
from agac.spec.operations import (
    CHANGING,
    OPERATIONS,
    Incomplete,
    Makes,
    made_by,
)
from agac.spec.rule_models import Budget, RunRulesFile
from agac.spec.stage_models import (
    ONE_EACH,
    CheckFile,
    EscalateFile,
    LabelFile,
    MessageFile,
    ReduceFile,
    ReviewFile,
    RuntimeFile,
    Tools,
    VisibleFile,
    Vote,
    named,
)
from agac.spec.tools import OnToolFailure, ToolsMode

StageName = Annotated[
    str, AfterValidator(check.stage_name), Field(json_schema_extra=check.STAGE_NAME_FORM)
]


class FlowKeys(FileModel):
    """Which rows come to a stage, and after what."""

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
    otherwise: rules.Otherwise = key(
        "A row for which `when` is false goes on without this result (`skip`), or leaves (`drop`).",
        default="skip",
    )


class RowKeys(FileModel):
    """What a stage does to rows, instead of or besides asking a model."""

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
    on_empty: rules.OnEmpty | None = key(
        "What happens when no row has a result of this stage at the end: a warning, or the "
        "run fails (`error`)."
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
        """True if rows have other fields after it."""
        return not set(CHANGING).isdisjoint(self.operations)

    def group_faults(self) -> Iterator[str]:
        """Yields keys of groups where there are none, and groups in a stage that makes rows."""
        if self.group_by is not None:
            if self.explode is not None:
                yield "explode makes rows and group_by makes groups of rows; make a stage of each"
            return
        asks = not self.operations
        if "reduce" in self.model_fields_set and asks:
            yield "reduce says how groups are cut; add group_by, or remove reduce"
        if "incomplete" in self.model_fields_set and (asks or self.python is not None):
            yield "incomplete says what becomes of a group; add group_by, or remove incomplete"


class AgentKeys(FileModel):
    """Who answers, and with which tools."""

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
        BeforeValidator(named, json_schema_input_type=Literal["opencode"] | RuntimeFile),
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


class RequestKeys(FileModel):
    """What the model is asked, and what its reply looks like."""

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
    reply: rules.ReplyForm = key(
        "What a reply without a schema is: `text`, or the value of `json`.", default="text"
    )
    visible: VisibleFile | None = key(
        "Which of the row's fields the stage may send; all when left out."
    )

    def reply_faults(self) -> Iterator[str]:
        """Yields keys for plain replies that do not go together, or with a schema."""
        if self.output_schema is not None:
            if self.output_field is not None:
                yield "output_field is for plain replies; give either output_field or output_schema"
            if "reply" in self.model_fields_set:
                yield "reply is for replies without a schema; give either reply or output_schema"
        if self.reply == "json" and self.output_field is not None:
            yield "output_field holds a reply's text; give either output_field or `reply: json`"


class AnswerKeys(FileModel):
    """How an answer is found and judged, and what it may cost."""

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
    checks: Annotated[list[CheckFile], ONE_EACH] = key(
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

    def vote_faults(self) -> Iterator[str]:
        """Yields a vote on a single answer, and a lead that no answer can have."""
        if self.vote is None:
            return
        if self.replicas == 1:
            yield "vote chooses among several answers; add `replicas: 3`, or remove vote"
        if self.vote.lead > self.replicas:
            yield (
                f"nothing leads by {self.vote.lead} votes of {self.replicas}; raise "
                "replicas, or lower the lead"
            )


class StageFile(AnswerKeys, RequestKeys, AgentKeys, RowKeys, FlowKeys, DefaultsFile):
    """One step of a workflow. Its own keys win over its card's, the card's over `defaults`."""

    # the keys of bases further right come first where keys are listed

    def faults(self) -> Iterator[str]:
        if "otherwise" in self.model_fields_set and self.when is None:
            yield "otherwise says what happens when `when` is false; add when, or remove otherwise"
        if not self.operations:  # else these keys are misplaced, which is said later
            yield from self.vote_faults()
            yield from self._label_faults()
        yield from self.group_faults()
        yield from self.reply_faults()

    def _label_faults(self) -> Iterator[str]:
        """Yields labels that cannot be compared with the answers."""
        if self.expect is None:
            return
        if self.replicas > 1 and self.vote is None:
            yield "expect compares one answer, and replicas give a list of them; add vote"
        if self.expect.field is None and self.output_schema is not None:
            yield "expect compares one field of the results; add `field` to it"


class WorkflowFile(RunRulesFile):
    """A workflow: rows in, stages, results out."""

    description: str | None = key("What the workflow is for.")
    input: Input | None = key(
        "Where rows come from; a path, or a list of them, is short for a mapping with `path`."
    )
    inputs: Input | None = key("Another spelling of `input`.")
    run_mode: rules.RunMode | None = key("Short for `run_mode` in `defaults`.")
    defaults: DefaultsFile = key("What holds for all stages.", default=DefaultsFile())
    vars: dict[Annotated[str, AfterValidator(check.var_name)], Any] = key(
        "Values for `${vars.name}`, which --var can change.", default={}
    )
    stages: list[StageFile] = Field(min_length=1, description="The steps, in order.")
    output: OutputFile = key("Where results go.", default=OutputFile())
