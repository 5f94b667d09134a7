"""Defines what a stage of a run did as records: the parts of a summary that stages have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agac.core.types import Report, usd


@dataclass(frozen=True, slots=True)
class TokenCounts(Report):
    """Tokens, as providers counted them."""

    JSON_KEYS = (
        "input_tokens=input",
        "cached_tokens=cached",
        "output_tokens=output",
        "reasoning_tokens=reasoning",
        "cache_write_tokens=cache_write",
    )

    input: int = 0
    """Tokens of prompts."""

    cached: int = 0
    """Those of them that a cache had."""

    output: int = 0
    """Tokens of replies."""

    reasoning: int = 0
    """Those of them that are reasoning."""

    cache_write: int = 0
    """Tokens of prompts that were written into a cache; 0 in summaries that did not have it."""


@dataclass(frozen=True, slots=True)
class CallCost(Report):
    """The cost of calls."""

    JSON_KEYS = ("cost_usd=usd", "cost_is_simulated=is_simulated", "calls_without_price=unpriced")

    usd: float | None = None
    """US dollars of the calls with a known price; None: no call has one."""

    is_simulated: bool = False
    """True if the simulator answered one of them: nothing was paid for it."""

    unpriced: int = 0
    """Calls whose price is not known."""


def cost_of(known: float, unpriced: int) -> float | None:
    """Returns the US dollars of calls: None if they all lack a price, and there are some.

    `known` is what those with a known price cost, `unpriced` how many have none."""
    return usd(known) if known or not unpriced else None


@dataclass(frozen=True, slots=True)
class CallCounts(Report):
    """The calls of a run, or of one of its stages."""

    JSON_KEYS = ("count", "failed", "simulated", "**tokens", "server_tools", "**cost")

    count: int = 0
    """Requests that ended, retries and re-asks included."""

    failed: int = 0
    """Those of them that brought no answer."""

    simulated: int = 0
    """Those of them that the simulator answered."""

    tokens: TokenCounts = TokenCounts()
    """What they took and brought."""

    server_tools: int = 0
    """Uses of tools that providers run; 0 in summaries that did not have it yet."""

    cost: CallCost = CallCost()
    """What they cost."""


@dataclass(frozen=True, slots=True)
class TimeQuantiles(Report):
    """Quantiles of the time of calls, in milliseconds."""

    count: int = 0
    """Calls that were measured."""

    p50: float | None = None
    """Half of them took no longer; None without calls, and of several shards."""

    p95: float | None = None
    """95 % of them took no longer; None likewise."""


@dataclass(frozen=True, slots=True)
class CallTimes(Report):
    """The times of answered calls."""

    duration: TimeQuantiles = TimeQuantiles()
    """From the request to the end of the reply."""

    ttft: TimeQuantiles = TimeQuantiles()
    """From the request to the first token, of calls that were streamed."""

    time_to_response: TimeQuantiles = TimeQuantiles()
    """From the request to the first token that is no reasoning."""


@dataclass(frozen=True, slots=True)
class TaskOutcomes(Report):
    """The tasks of a stage by outcome, as `core.types.Outcome` names them."""

    done: int = 0
    """Tasks that were run and have an answer."""

    reused: int = 0
    """Tasks whose answer was stored already."""

    failed: int = 0
    """Tasks that ended with an error."""

    skipped: int = 0
    """Tasks that a guard skipped: their rows went on without them."""

    dropped: int = 0
    """Tasks at which a guard took the row out."""


@dataclass(frozen=True, slots=True)
class MendedAnswers(Report):
    """Answers of a stage that did not come at once."""

    JSON_KEYS = ("repaired", "json_repaired", "by_fallback", "misformatted?")

    repaired: int = 0
    """Answers that came after the model was asked again."""

    json_repaired: int = 0
    """Answers whose JSON agac repaired."""

    by_fallback: int = 0
    """Answers of a fallback model."""

    misformatted: int = 0
    """Answers that were taken although they lack the form; the JSON has it only above 0."""


@dataclass(frozen=True, slots=True)
class EarlyVotes(Report):
    """Votes that end as soon as one answer leads."""

    asked: float | None = None
    """Replicas that were asked, on average; None: no row has voted yet."""


@dataclass(frozen=True, slots=True)
class VoteAgreement(Report):
    """The agreement of the replicas of a stage."""

    JSON_KEYS = ("rows", "mean", "unanimous", "**early")

    rows: int = 0
    """Rows that voted."""

    mean: float | None = None
    """The part of the replicas that gave the answer that won, on average; None: no row voted."""

    unanimous: float | None = None
    """The part of the rows whose replicas all agreed; None: no row voted."""

    early: EarlyVotes | None = None
    """About votes that end early; None where all replicas are asked."""


@dataclass(frozen=True, slots=True)
class ToolCallCounts(Report):
    """The calls of tools in conversations, by what served them."""

    requested: int = 0
    """All calls that models asked for."""

    executed: int = 0
    """Calls that ran the tool."""

    coalesced: int = 0
    """Calls that shared the run of an equal call at the same time."""

    cached: int = 0
    """Calls that an earlier result answered."""

    stub: int = 0
    """Calls that `tool_stubs` answered."""

    replayed: int = 0
    """Calls that a recorded result answered."""

    error: int = 0
    """Calls that ran and failed."""

    refused: int = 0
    """Calls that were not allowed."""

    unknown: int = 0
    """Calls that `--skip-calls` left out, since nothing says whether they were made before."""


@dataclass(frozen=True, slots=True)
class ConversationCounts(Report):
    """The conversations of an agent stage."""

    JSON_KEYS = ("conversations", "turns", "tool_calls", "failing_tools?", "dedup")

    conversations: int = 0
    """Conversations, without those of child agents."""

    turns: int = 0
    """Replies of models, child agents included."""

    tool_calls: ToolCallCounts = ToolCallCounts()
    """Calls of tools, child agents included."""

    failing_tools: Mapping[str, int] | None = None
    """The tools of which no call worked, with how many failed; the JSON has it only with some."""

    dedup: float | None = None
    """Calls that one run of a tool served, on average; None: no tool ran."""


@dataclass(frozen=True, slots=True)
class ReviewCounts(Report):
    """Counts of the rows at a stage at which people decide."""

    waiting: int = 0
    """Rows that wait for a decision."""

    auto: int = 0
    """Rows that passed without a person."""

    approved: int = 0
    """Rows whose answer a person approved."""

    manual: int = 0
    """Rows whose answer a person wrote."""

    rejected: int = 0
    """Rows whose answer a person rejected."""


@dataclass(frozen=True, slots=True)
class StageDetails(Report):
    """Further facts about a stage in the status of one run."""

    errors: Mapping[str, int]
    """Failed tasks by type of error."""

    calls: CallCounts
    """The calls of the stage."""


@dataclass(frozen=True, slots=True)
class StageSummary(Report):
    """The summary of a stage of a run."""

    JSON_KEYS = (
        "name",
        "model",
        "alias",
        "answered_by",
        "**tasks",
        "**mended",
        "timing_ms",
        "agreement?",
        "agent?",
        "review?",
        "**details",
    )

    name: str
    """The name of the stage."""

    model: str = ""
    """Its model with the provider; of a stage that asks none, what it does."""

    alias: Mapping[str, str | None] | None = None
    """What was `written` for the model and what that `means`; None: the model was written."""

    answered_by: tuple[str, ...] = ()
    """The models that answered, fallbacks included, sorted."""

    tasks: TaskOutcomes = TaskOutcomes()
    """Its tasks by outcome."""

    mended: MendedAnswers = MendedAnswers()
    """Answers that did not come at once."""

    timing_ms: CallTimes = CallTimes()
    """How long its calls took, in milliseconds."""

    agreement: VoteAgreement | None = None
    """How far replicas agreed; None without a vote."""

    agent: ConversationCounts | None = None
    """Its conversations; None where it has none."""

    review: ReviewCounts | None = None
    """How people decided; None where no person does."""

    details: StageDetails | None = None
    """What the status of one run adds; None in a summary."""
