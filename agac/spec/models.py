"""The mappings of a workflow file as frozen models: stages and their parts. Where rows come from
and go is in `data_models`, what holds for all stages in `default_models`, what agac.yml has too in
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
    Duration,
    FieldPath,
    FieldPaths,
    FileModel,
    NonEmpty,
    Share,
    StageNames,
    key,
)
from agac.spec.operations import (
    CHANGING,
    CHOICES,
    OPERATIONS,
    Choice,
    Incomplete,
    Makes,
    Match,
    OnReject,
    OnTimeout,
    made_by,
)
from agac.spec.rule_models import Budget, RunRulesFile
from agac.spec.tools import DEFAULT_RULES, MAX_CHARS, OnToolFailure, Runtime, ToolScope, ToolsMode

_PROGRAM = Runtime()


StageName = Annotated[
    str, AfterValidator(check.stage_name), Field(json_schema_extra=check.STAGE_NAME_FORM)
]


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
    run_mode: rules.RunMode | None = key("Its run mode; that of the stage when left out.")


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
        chooses = "choices" in self.model_fields_set
        if self.redo is not None and chooses and "redo" not in self.choices:
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
    otherwise: rules.Otherwise = key(
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
    on_empty: rules.OnEmpty | None = key(
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
    reply: rules.ReplyForm = key(
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
        if not self.operations:  # else these keys are misplaced, which is said later
            yield from self._vote_faults()
            yield from self._label_faults()
        yield from self._group_faults()
        yield from self._reply_faults()

    def _vote_faults(self) -> Iterator[str]:
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

    def _label_faults(self) -> Iterator[str]:
        """Yields labels that cannot be compared with the answers."""
        if self.expect is None:
            return
        if self.replicas > 1 and self.vote is None:
            yield "expect compares one answer, and replicas give a list of them; add vote"
        if self.expect.field is None and self.output_schema is not None:
            yield "expect compares one field of the results; add `field` to it"

    def _group_faults(self) -> Iterator[str]:
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

    def _reply_faults(self) -> Iterator[str]:
        """Yields keys for plain replies that do not go together, or with a schema."""
        if self.output_schema is not None:
            if self.output_field is not None:
                yield "output_field is for plain replies; give either output_field or output_schema"
            if "reply" in self.model_fields_set:
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
    run_mode: rules.RunMode | None = key("Short for `run_mode` in `defaults`.")
    defaults: DefaultsFile = key("What holds for all stages.", default=DefaultsFile())
    vars: dict[Annotated[str, AfterValidator(check.var_name)], Any] = key(
        "Values for `${vars.name}`, which --var can change.", default={}
    )
    stages: list[StageFile] = Field(min_length=1, description="The steps, in order.")
    output: OutputFile = key("Where results go.", default=OutputFile())
