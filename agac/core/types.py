"""The values that travel between the parts of agac: rows in, requests out, replies back, outcomes kept, reports shown.
None of them changes; what every call makes anew is a tuple, which is made faster than a dataclass. Units: times in
seconds, costs in US dollars, tokens as counted by the provider."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cache, partial, reduce
from json import encoder
from math import isfinite
from operator import add
from pathlib import PurePath
from reprlib import Repr
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from agac.core.errors import ErrorType, RowError

JSONValue = (
    Any  # anything that `json.loads` gives: a value at an edge, never a stand-in for a type of ours
)


def json_encoder(*, sort_keys: bool = False, allow_nan: bool = True) -> Callable[[JSONValue], str]:
    """Writes JSON without spaces, not ASCII-escaped, as `json.JSONEncoder(…).encode` does. That one makes itself anew
    in each call, which takes longer than writing a prompt. A value that holds itself is a RecursionError."""
    plain = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=allow_nan
    )
    if (make := getattr(encoder, "c_make_encoder", None)) is None:  # Python without its C modules
        return plain.encode
    pieces = make(
        None, plain.default, encoder.encode_basestring, None, ":", ",", sort_keys, False, allow_nan
    )
    return lambda value: "".join(pieces(value, 0))


def unique_keys(pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
    """A JSON object of these pairs, as an `object_pairs_hook`: which of two values counts, no two readers agree on."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = first_repeated(name for name, _ in pairs) or ""
        raise ValueError(f"a key is given twice in one object: {twice[:80]!r}")
    return found


def refuse_constant(name: str) -> None:
    """As a `parse_constant`: `NaN` and the like."""
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    found = float(digits)
    if not isfinite(found):
        raise ValueError("a number is larger than any that can be stored")
    return found


_strict_decode = json.JSONDecoder(
    parse_float=_finite, parse_constant=refuse_constant, object_pairs_hook=unique_keys
).decode


_TEXT_IN_JSON = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def has_more_values(json_text: str, most: int) -> bool:
    """Whether JSON has more values than so many, which is seen before they are in memory: each takes some 60 bytes."""
    signs = ",[{"
    if sum(map(json_text.count, signs)) <= most:
        return False
    outside = _TEXT_IN_JSON.sub("", json_text)
    return sum(map(outside.count, signs)) > most


def strict_json(content: str | bytes, most: int) -> JSONValue:
    """What JSON from elsewhere holds, of at most so many values. Raises ValueError for what is none, holds a key twice
    in an object or a number that is not finite, is too long or is nested too deeply."""
    text = content if isinstance(content, str) else content.decode()
    if has_more_values(text, most):
        raise ValueError(f"it has more than {most:,} values")
    try:
        return _strict_decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


RowId = (
    str | int
)  # `1` and `"1"` are different ids: integers are fallback row numbers, strings come from `id_field`


def inside(value: JSONValue, way: Iterable[str]) -> JSONValue:
    """What stands at a way into a value, by its parts; None where nothing does."""
    return reduce(lambda one, part: one.get(part) if isinstance(one, Mapping) else None, way, value)


class Shard(NamedTuple):
    """One of `of` parts of a run's rows, by the hash of their ids; `number` counts from 1. As text: `3/16`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def name(self) -> str:
        """As it stands in names of folders and objects."""
        return f"{self.number}-of-{self.of}"

    @staticmethod
    def read(text: str, sign: str = "/") -> Shard | None:
        """The shard that a text names, its numbers parted by this sign; None: it names none."""
        number, _, of = text.partition(sign)
        digits = all(part.isascii() and part.isdigit() and len(part) < 6 for part in (number, of))
        return Shard(int(number), int(of)) if digits and 1 <= int(number) <= int(of) else None


@dataclass(frozen=True, slots=True)
class DayTime:
    """A time of day where the program runs."""

    hour: int
    minute: int

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02}"


class Row(NamedTuple):
    """One record in flight. `ordinal` counts records from 1 in every format. `data` holds the input's fields; it is
    None, and `error` set, for a record that cannot be used (unparsable, with too many fields, without its id): such a
    row is accounted for, never dropped. `short`: its record has fewer fields than the header of its file. A tuple,
    because one is made for each of a million records."""

    id: RowId
    ordinal: int
    data: dict[str, JSONValue] | None
    error: RowError | None = None
    short: bool = False


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What a model is told of a tool: `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, JSONValue]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that a model asks for. `id` is the provider's, `arguments` JSON as the model wrote it, perhaps invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a model is told of one of its calls: the result, or an error, as text."""

    call_id: str
    text: str
    is_error: bool = False
    by_tool: bool = False
    """Whether the tool itself failed. Other errors are of calls that were never made."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request: who speaks, and what is said."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage(Message):
    """What an assistant said in a conversation, with the tools that it asks for. `wire` is the message as its provider
    sent it (with reasoning, signatures, calls of the provider's own tools): its dialect sends it back as it came."""

    calls: tuple[ToolCall, ...] = ()
    wire: JSONValue = None


@dataclass(frozen=True, slots=True)
class ToolMessage(Message):
    """What its calls came to, in their order. Its role is `tool`, and its text empty."""

    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Params:
    """Sampling and service parameters; None means that nothing is sent and the provider's default holds. All of them
    enter the fingerprint. The names are those of model strings and of cards' `request_params`."""

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
    web_search: str | None = None  # these are run by the provider: `on`, or how often at most
    x_search: str | None = None
    web_fetch: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema that a result must satisfy, and the name under which a provider is told of it."""

    name: str
    body: dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """What a stage's requests begin with, for a provider's cache: its tools and so many opening `messages`. `key`
    brings requests of one key to the same cache (OpenAI), `ttl` is how long it is kept (Anthropic)."""

    messages: int
    key: str
    ttl: Literal["5m", "1h"] = "5m"


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks, in agac's own neutral form: nothing of any provider is in it. `tools` are the same tuple in all
    requests of a stage; `parallel_tools`: a model may ask for several at once. `prefix` None: no cache is asked for.
    `session`: that of an agent program which goes on with the last message."""

    messages: tuple[Message, ...]
    schema: Schema | None = None
    params: Params = field(default_factory=Params)
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tools: bool = True
    prefix: SharedPrefix | None = None
    session: str | None = None
    schema_in_words: bool = False
    """Whether the schema is sent as instructions alone: the provider takes no response format beside tools."""


class Usage(NamedTuple):
    """Tokens of one call as the provider counted them; `cached_tokens` is the part of `input_tokens` read from a cache,
    `cache_write_tokens` that written to one (`cache_write_1h_tokens` of it for an hour), `reasoning_tokens` the part of
    `output_tokens` spent on thinking. `server_tools`: how often each of its own tools ran. None: it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    server_tools: Mapping[str, int] | None = None
    cache_write_1h_tokens: int | None = None


class WebSource(NamedTuple):
    """A page that a provider's own search found for an answer."""

    url: str
    """Its address as the provider gave it: a text, and not always that of a web page."""
    title: str
    """Its title on one line; empty where the provider gave none."""
    cited: bool
    """Whether the answer refers to it. If not, it was only found."""
    quote: str | None = None
    """The text of the page that was quoted; None where the provider told none."""
    start: int | None = None
    """The offset of the part of the answer's text that refers to it, as the provider counts; None: unknown."""
    end: int | None = None
    """The offset after that part."""


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    FILTER = "filter"
    TOOLS = "tools"  # it asks for tools, and goes on with their results
    PAUSED = (
        "paused"  # the provider's own tools take long: it goes on when its message is sent back
    )
    OTHER = "other"


class Reply(NamedTuple):
    """What came back for a request. `text` is the answer as it was written; `refusal` the reason when there is one. A
    reply is not yet a result: one that was cut, refused, filtered or empty never becomes one. Only of a reply that was
    streamed: `ttft` is the time from sending to its first token, of thinking too; `time_to_response` the time to the
    first token of the answer itself, where it is known. Both in seconds. `others` are the texts of further messages,
    where a reply holds several that are complete: whoever validates them finds which is meant. `calls` are the tools
    that it asks for; `wire` is the message as it came, where it has to be sent back so (`AssistantMessage.wire`).
    `session` is that of the agent program which said it. `ended_with` is the server's own word for how it ended.
    `sources` are those of searches that the provider ran, the cited ones first."""

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
    calls: tuple[ToolCall, ...] = ()
    wire: JSONValue = None
    session: str | None = None
    ended_with: str = ""
    sources: tuple[WebSource, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether a conversation goes on after it: it asks for tools, or is not finished."""
        return self.finish is Finish.PAUSED or (
            bool(self.calls) and self.finish in (Finish.TOOLS, Finish.STOP)
        )

    def message(self) -> AssistantMessage:
        """The message that it is in the request with which its conversation goes on."""
        return AssistantMessage("assistant", self.text, self.calls, self.wire)


class FaultKind(StrEnum):
    """What the engine does about a fault (STYLE: adapters classify, the engine decides)."""

    RETRY = "retry"
    PAUSE = "pause"  # a rate or a quota: everyone in the lane waits
    FATAL = "fatal"  # every further call fails too: stop the run
    TASK = "task"  # this task fails, the others go on


class About(StrEnum):
    """What a refusal is about: what has to change before the same request can succeed."""

    REQUEST = "request"  # what this request holds: the others continue
    SIZE = "size"  # too large for whatever took it: a call fails, the file of a batch is halved
    CONTENT = "content"  # what the requests say: a call fails, the file of a batch is halved
    LANE = "lane"  # a rate, or a server that is busy: all calls to the model wait
    QUEUE = "queue"  # too many tokens wait in batches: there is room when some of them end
    INPUT = "input"  # the input of a batch is not there, or not yet
    SERVER = "server"  # trouble that may pass
    ACCOUNT = "account"  # the key, its rights, money
    FRAME = "frame"  # the address, the model, parameters, the schema, tools: the same for every row
    UNSURE = "unsure"  # the account or the request: whether the key was accepted before decides


KIND_OF: Mapping[About, FaultKind] = {
    About.REQUEST: FaultKind.TASK,
    About.SIZE: FaultKind.TASK,
    About.CONTENT: FaultKind.TASK,
    About.LANE: FaultKind.PAUSE,
    About.QUEUE: FaultKind.PAUSE,
    About.INPUT: FaultKind.RETRY,
    About.SERVER: FaultKind.RETRY,
    About.ACCOUNT: FaultKind.FATAL,
    About.FRAME: FaultKind.FATAL,
    About.UNSURE: FaultKind.FATAL,
}
"""What is done about a refusal, by what it is about."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a call gave no reply, for the engine. `delay` is what the server asked for, in seconds, None when it asked
    for nothing. `status` is the HTTP status, None when no response came. `ambiguous`: the provider may have done (and
    billed) the work although nothing came back. `retries`: how often at most this fault is worth another try, None for
    the policy's default. `code` is the provider's own name for the error, empty where it has none; `usage` what is
    known to be used up all the same. `about`: what a refusal is about, None where nobody refused. `remedies`: what to
    do where the account is to blame, and where the request is, for a refusal that leaves this open."""

    kind: FaultKind
    type: ErrorType
    message: str
    delay: float | None = None
    status: int | None = None
    ambiguous: bool = False
    retries: int | None = None
    code: str = ""
    usage: Usage | None = None
    about: About | None = None
    remedies: tuple[str, str] = ("", "")


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


Visible = Mapping[
    str, JSONValue
]  # what a template may see: a row's fields, results by stage name, `vars`


def waits_left(waits: Mapping[str, float], now: float) -> dict[str, str]:
    """Until when no call goes to a model, as moments, by lane: those that have not passed."""
    return {lane: iso(until) or "" for lane, until in waits.items() if until > now}


def iso(seconds: float | None) -> str | None:
    """Seconds since 1970 as text, UTC: `2026-11-22T10:00:00Z`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def usd(amount: float | None) -> float | None:
    """An amount of money in USD, to the millionth: the same in whichever order it was summed up."""
    return None if amount is None else round(round(amount, 12), 6)


def dollars(
    amount: float, digits: int | None = 4, *, simulated: bool = False, about: str = ""
) -> str:
    """`$12.4000`, `simulated ~$0.0103`; `digits` None: two, or four of less than ten cents."""
    if digits is None:
        digits = 2 if amount >= 0.095 or not amount else 4
    return f"{'simulated ' if simulated else ''}{about}${amount:,.{digits}f}"


def counted(count: int, what: str, plural: str = "") -> str:
    """`1 row`, `2 rows`; `plural` where an `s` is not enough."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def first_repeated(names: Iterable[str]) -> str | None:
    """The first of these names that stands there a second time."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


Moment = Annotated[float, iso]  # seconds since 1970, printed as text
Usd = Annotated[float, usd]  # an amount of money, rounded where it is printed

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


def dollars_in_all(amounts: Iterable[float]) -> float:
    """Their sum, one after the other: from Python 3.12 on `sum` makes up for rounding, and ends elsewhere."""
    return reduce(add, amounts, 0)


class Report:
    """A dataclass that `--json` prints as an object of its fields, in their order unless JSON_KEYS says otherwise.
    JSON_KEYS are the keys in their order; each is the name of a field or property, or `key=name` (which may be a path,
    as `key=run.id`) where the two differ; in the place of `**name` are the keys of what that holds. A type
    `Annotated[…, convert]` prints what `convert` makes of the value."""

    __slots__ = ()
    JSON_KEYS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # else dataclass makes one, of pages in a notebook

    def __repr__(self) -> str:
        shown = (
            f"{one.name}={_SHORT.repr(getattr(self, one.name))}" for one in fields(self) if one.repr
        )  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return _object(self)


def json_form(value: Any) -> Any:
    """A value as JSON has it: records are objects, paths are texts, members of enums their values."""
    if isinstance(value, Report):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _object(value)
    if isinstance(value, Mapping):
        return {key: json_form(one) for key, one in value.items()}
    return [json_form(one) for one in value] if isinstance(value, list | tuple) else value


def _object(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    found: dict[str, Any] = {}
    for key, read, convert in _members(kind):
        one = read(value)
        if key.startswith("**"):
            found |= json_form(one)
        else:
            found[key] = json_form(one) if convert is None or one is None else convert(one)
    return found


@cache
def _members(kind: Any) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]]:
    """The keys of a record, each with what reads its value and, where its type names one, what makes JSON of that."""
    names = (
        [one.name for one in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", ())
    )
    found: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]] = []
    for entry in getattr(kind, "JSON_KEYS", ()) or names:
        key, _, name = entry.partition("=")
        name = name or key.removeprefix("**")
        hint = _hint_of(kind, name)
        convert = next(
            (one for part in (hint, *get_args(hint)) for one in getattr(part, "__metadata__", ())),
            None,
        )
        found.append((key, partial(_read, name), convert))
    return found


def _read(path: str, value: Any) -> Any:
    """A field, or one of a record in it (`run.id`); None where that record is missing."""
    return reduce(
        lambda one, name: None if one is None else getattr(one, name), path.split("."), value
    )


def _hint_of(kind: Any, path: str) -> Any:
    """The type that a record declares for a field or a property, or for one of a record in it (`run.id`)."""
    name, _, further = path.partition(".")
    declared = getattr(kind, name, None)
    getter = declared.fget if isinstance(declared, property) else None
    hint = get_type_hints(getter or kind, include_extras=True).get("return" if getter else name)
    if not further:
        return hint
    inner = [
        one for one in get_args(hint) if is_dataclass(one) or hasattr(one, "_fields")
    ]  # `RunRecord | None`
    return _hint_of(inner[0] if inner else hint, further)
