"""What holds for all stages unless they say otherwise: which model is asked, and how, as one frozen
model for each mapping."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from agac.spec import rules
from agac.spec import validation as check
from agac.spec.file_model import Deadline, Duration, FileModel, NonEmpty, Size, TextOrList, key
from agac.spec.templates import Syntax

_BATCH = rules.DEFAULT_BATCH
_RETRIES = rules.DEFAULT_RETRIES


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
    retry: rules.BatchRetry = key(
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
    on_deadline: rules.AtDeadline = key(
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


Seconds = Annotated[float, Field(gt=0, le=86_400)]


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
    run_mode: rules.RunMode = key(
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
    reuse: rules.ReusePolicy = key(
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
