"""The rules of runs, stages and batches as values: budgets, time limits, retries, and the words
that keys may have. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agac.core.arguments import refuse_fields
from agac.core.errors import Where
from agac.core.types import DayTime
from agac.spec.notify import NotifyTarget

Level = Literal["project", "defaults", "card", "stage", "override"]
"""Where a key was set, weakest first: in agac.yml's defaults, the workflow's defaults, the card,
the stage, or on the command line."""

RunMode = Literal["sync", "batch"]
ReusePolicy = Literal["content", "row", "never"]
KeepReplies = Literal["all", "failed"]
Otherwise = Literal["skip", "drop"]
OnEmpty = Literal["warn", "error"]
ReplyForm = Literal["text", "json"]
BatchRetry = Literal["batch", "sync", "fail"]
AtDeadline = Literal["wait", "sync"]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How a stage's batches are cut, waited for and ended. For the first five fields None means
    the provider's limit, or agac's default."""

    max_requests: int | None = None
    """The most requests of a batch."""
    max_bytes: int | None = None
    """The most bytes of a batch's input."""
    completion_window: str | None = None
    """The time that the provider is given, in its own words."""
    poll_interval: float | None = None
    """Seconds between two questions to the provider."""
    grace: float | None = None
    """Seconds for which a batch whose creation was cut off is looked for."""
    retry: BatchRetry = "batch"
    """Where a request is asked again that a batch left without a good answer."""
    max_rounds: int = 3
    """In how many batches a request may be."""
    deadline: float | DayTime | None = None
    """When a batch is cancelled: seconds after it was submitted, or the next such time of day.
    None: only the provider ends it."""
    on_deadline: AtDeadline = "sync"
    """What happens to the requests that the deadline left over."""
    stuck_after: float = 6 * 3600.0
    """Seconds without any progress after which a batch is reported as stuck."""
    linger: float = 30.0
    """Seconds for which a batch of conversations waits for slow tools."""
    tail: float = 0.01
    """The share of conversations below which the remaining ones are continued by calls."""


DEFAULT_BATCH = BatchRules()  # the rules of a stage that sets none


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How often a request is sent whose call failed and may succeed later, and the wait between
    two attempts."""

    attempts: int = 6
    """The most attempts, the first one included. Each request has its own: a model's, a re-ask's,
    a fallback's. Refusals by rate are not counted here, but by the engine."""
    delay: float = 0.5
    """The first wait in seconds; it doubles with each further attempt."""
    max_delay: float = 30.0
    """The longest wait in seconds."""


DEFAULT_RETRIES = RetryRules()  # the rules of a stage that sets none


@dataclass(frozen=True, slots=True)
class Timeout:
    """Limits of one call in seconds; None means agac's default."""

    connect: float | None = None
    first_byte: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent; None means no limit."""

    usd: float | None = None
    tokens: int | None = None
    """Tokens of requests and replies together."""
    calls: int | None = None

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class RowBudget(Budget):
    """The most that one row may spend."""

    turns: int | None = None
    """Turns of its conversations with tools."""
    tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class RunRules:
    """When a run stops by itself, and what it keeps."""

    project: Budget | None = None
    """The project's limit for what a run spends over all its invocations."""
    workflow: Budget | None = None
    """The workflow's limit for the same; both hold."""
    row: RowBudget | None = None
    """The limit for what one row spends in one invocation."""
    confirm_above: float | None = None
    """US dollars above which a person has to confirm the run."""
    stop_loss: bool = True
    max_errors: int | None = None
    """The most failed rows of an invocation."""
    max_open_rows: int | None = None
    """The most rows in progress where stages have tools; None: four times the calls."""
    row_timeout: float | None = None
    """Seconds that a row may take from its first call."""
    keep_replies: KeepReplies = "all"
    telemetry_file: bool | None = None
    """True if telemetry.jsonl is written; None: if the run is not too large."""
    ttft: bool = False
    """True if calls are streamed to measure the time to the first token."""
    otel: bool | None = None
    """True if traces are sent; None: as the environment says."""
    otel_sample: float = 0.01
    """The share of traces sent of rows that did not fail."""
    otel_prompts: bool = False
    """True if traces hold texts."""
    notify: tuple[NotifyTarget, ...] = ()
    where: Where = field(default=Where(""), compare=False)
    """The place of `ttft`."""


DEFAULT_RUN_RULES = RunRules()  # the rules of a workflow that sets none
