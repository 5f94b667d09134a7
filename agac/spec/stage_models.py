"""The mappings inside of a stage of a workflow file, as frozen models: its messages, tools, checks,
votes, reviews and the like. The stage itself is in `models`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import rules
from agac.spec import validation as check
from agac.spec.file_model import (
    Duration,
    FieldPath,
    FileModel,
    NonEmpty,
    Share,
    key,
)
from agac.spec.operations import (
    CHOICES,
    Choice,
    Match,
    OnReject,
    OnTimeout,
)
from agac.spec.tools import DEFAULT_RULES, MAX_CHARS, Runtime, ToolScope

_PROGRAM = Runtime()


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


def named(value: Any) -> Any:
    """Turns the name of a program into a mapping with it."""
    return {"name": value} if isinstance(value, str) else value


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


ONE_EACH = BeforeValidator(
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
