"""The values that travel between the parts of agac: rows in, requests out, replies back, outcomes kept.

All are frozen and slotted. Units: times in seconds, costs in US dollars, tokens as counted by the provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from agac.core.errors import ErrorType, RowError

JSONValue = Any
"""Anything that `json.loads` gives: a value at an edge, never a stand-in for a type of ours."""

RowId = str | int
"""`1` and `"1"` are different ids: integers are fallback row numbers, strings come from `id_field`."""


class Row(NamedTuple):
    """One record in flight.

    `ordinal` counts records from 1 in every format. `data` holds the input's fields; it is None, and `error` set, for a
    record that cannot be used (unparsable, with too many fields, without its id): such a row is accounted for, never
    dropped. A tuple, because one is made for each of a million records.
    """

    id: RowId
    ordinal: int
    data: dict[str, JSONValue] | None
    error: RowError | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text in a message. Images, documents and audio will stand beside it."""

    text: str
    kind: Literal["text"] = "text"


Part = Text
"""A typed piece of a message's content; a union once there is a second kind."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request: who speaks, and the parts of what is said."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @staticmethod
    def of(role: Literal["system", "user", "assistant"], text: str) -> Message:
        """A message that holds one text."""
        return Message(role, (Text(text),))


def texts_of(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Messages as `--json` prints them, each with its `role` and its whole `text`."""
    return [{"role": one.role, "text": "".join(part.text for part in one.parts)} for one in messages]


@dataclass(frozen=True, slots=True)
class Params:
    """Sampling and service parameters; None means that nothing is sent and the provider's default holds.

    All of them enter the fingerprint. The names are those of model strings and of cards' `request_params`.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    reasoning: str | None = None
    service_tier: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    verbosity: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema that a result must satisfy, and the name under which a provider is told of it."""

    name: str
    body: dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks, in agac's own neutral form: nothing of any provider is in it."""

    messages: tuple[Message, ...]
    schema: Schema | None = None
    params: Params = field(default_factory=Params)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the provider counted them; `cached_tokens` is the part of `input_tokens` read from a cache,
    `reasoning_tokens` the part of `output_tokens` spent on thinking. None: the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    FILTER = "filter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request. `text` is the answer as it was written; `refusal` the reason when there is one.

    A reply is not yet a result: one that was cut, refused, filtered or empty never becomes one.
    Only of a reply that was streamed: `ttft` is the time from sending to its first token, of thinking too;
    `time_to_response` the time to the first token of the answer itself, where it is known. Both in seconds.
    `others` are the texts of further messages, where a reply holds several that are complete: which of them is meant is
    for whoever validates them, and never simply the first.
    """

    text: str
    finish: Finish
    usage: Usage
    model: str
    refusal: str | None = None
    simulated: bool = False
    service_tier: str | None = None
    ttft: float | None = None
    time_to_response: float | None = None
    others: tuple[str, ...] = ()


class FaultKind(StrEnum):
    """What the engine does about a fault (STYLE: adapters classify, the engine decides)."""

    RETRY = "retry"
    PAUSE = "pause"  # a rate or a quota: everyone in the lane waits
    FATAL = "fatal"  # every further call fails too: stop the run
    TASK = "task"  # this task fails, the others go on


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a call gave no reply, in the words that the engine acts on.

    `delay` is what the server asked for, in seconds, None when it asked for nothing. `status` is the HTTP status, None
    when no response came. `ambiguous`: the provider may have done (and billed) the work although nothing came back.
    `retries`: how often at most this fault is worth another try, None for the policy's default. `code` is the
    provider's own name for the error, empty where it has none.
    """

    kind: FaultKind
    type: ErrorType
    message: str
    delay: float | None = None
    status: int | None = None
    ambiguous: bool = False
    retries: int | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class RateState:
    """What a response's headers said about the account's limits. `reset` is seconds from now."""

    remaining_requests: int | None = None
    reset_requests: float | None = None
    remaining_tokens: int | None = None
    reset_tokens: float | None = None


class Outcome(StrEnum):
    """What became of a task."""

    DONE = "done"
    REUSED = "reused"
    FAILED = "failed"
    SKIPPED = "skipped"  # a guard said no: the row goes on without this result
    DROPPED = "dropped"  # a guard said no: the row leaves


Visible = Mapping[str, JSONValue]
"""What a template may see: a row's fields, results by stage name, `vars`."""
