"""The values that travel between the parts of agac: rows in, requests out, replies back, outcomes
kept, reports shown. None of them changes; what is made for every call is a tuple, which is made
faster than a dataclass. Units: times in seconds, costs in US dollars, tokens as counted by the
provider."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cache, partial, reduce
from operator import add
from pathlib import PurePath
from reprlib import Repr
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from agac.core.errors import ErrorType, RowError

JSONValue = Any
"""Anything that `json.loads` gives: a value at an edge, never a stand-in for a type of agac's."""


CLOCKS_APART = 3600.0
"""Seconds by which the clock of a provider, or of another machine, may differ from ours."""


RowId = str | int
"""`1` and `"1"` are different ids: integers are fallback row numbers, texts come from
`id_field`."""


def inside(value: JSONValue, way: Iterable[str]) -> JSONValue:
    """Gives the value at a path of keys into `value`; None if there is none."""
    for key in way:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Shard(NamedTuple):
    """One of `of` parts of a run's rows, by the hash of their ids; `number` counts from 1.

    As text: `3/16`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def name(self) -> str:
        """The shard in names of folders and objects: `3-of-16`."""
        return f"{self.number}-of-{self.of}"

    @staticmethod
    def read(text: str, sign: str = "/") -> Shard | None:
        """Reads the shard that a text names, with `sign` between its numbers, if any."""
        number, _, of = text.partition(sign)
        if not (_is_short_number(number) and _is_short_number(of)):
            return None
        shard = Shard(int(number), int(of))
        return shard if 1 <= shard.number <= shard.of else None


def _is_short_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


@dataclass(frozen=True, slots=True)
class DayTime:
    """A time of day where the program runs."""

    hour: int
    minute: int

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02}"


class Row(NamedTuple):
    """One record of the input. A tuple, because one is made for each of a million records."""

    id: RowId
    ordinal: int
    """The number of the record, from 1 in every format."""
    data: dict[str, JSONValue] | None
    """The input's fields; None for a record that cannot be used."""
    error: RowError | None = None
    """Why the record cannot be used (unparsable, too many fields, no id). Such a row is accounted
    for, never dropped."""
    short: bool = False
    """True if the record has fewer fields than the header of its file."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it is offered to a model."""

    name: str
    description: str
    parameters: Mapping[str, JSONValue]
    """A JSON Schema of type object."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that a model asks for."""

    id: str
    """The provider's id of the call."""
    name: str
    arguments: str
    """JSON as the model wrote it, perhaps invalid."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a model is sent about one of its calls: the result, or an error, as text."""

    call_id: str
    text: str
    is_error: bool = False
    by_tool: bool = False
    """True if the tool itself failed. Other errors are of calls that were never made."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request: who speaks, and what is said."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage(Message):
    """The message of an assistant in a conversation."""

    calls: tuple[ToolCall, ...] = ()
    """The tools that it asks for."""
    wire: JSONValue = None
    """The message as its provider sent it (with reasoning, signatures, calls of the provider's own
    tools): its dialect sends it back as it came."""


@dataclass(frozen=True, slots=True)
class ToolMessage(Message):
    """What its calls came to, in their order. Its role is `tool`, and its text empty."""

    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Params:
    """Sampling and service parameters; None: nothing is sent, and the provider's default holds.

    All of them enter the fingerprint. The names are those of model strings and of cards'
    `request_params`."""

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
    web_search: str | None = None
    """A tool that the provider runs, like the next two: `on`, or how often at most."""
    x_search: str | None = None
    web_fetch: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema that a result must satisfy, and its name in requests to a provider."""

    name: str
    body: dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The beginning that a stage's requests share, for a provider's cache."""

    messages: int
    """How many opening messages belong to it, after the tools."""
    key: str
    """Brings requests of one key to the same cache (OpenAI)."""


@dataclass(frozen=True, slots=True)
class Request:
    """The question of a task in agac's own neutral form, without anything of a provider."""

    messages: tuple[Message, ...]
    schema: Schema | None = None
    params: Params = field(default_factory=Params)
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that are offered: the same tuple in all requests of a stage."""
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tools: bool = True
    """True if a model may ask for several tools at once."""
    prefix: SharedPrefix | None = None
    """The beginning for the provider's cache; None: no cache is asked for."""
    session: str | None = None
    """The session of an agent program which continues with the last message."""
    schema_in_words: bool = False
    """True if the schema is sent only as instructions: the provider takes no response format
    together with tools."""


class Usage(NamedTuple):
    """Tokens of one call as the provider counted them. None: it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that was read from a cache."""
    reasoning_tokens: int | None = None
    """The part of `output_tokens` that was spent on thinking."""
    cache_write_tokens: int | None = None
    """The part of `input_tokens` that was written to a cache."""
    server_tools: Mapping[str, int] | None = None
    """How often each of the provider's own tools ran."""
    cache_write_1h_tokens: int | None = None
    """The part of `cache_write_tokens` that is kept for an hour."""


class WebSource(NamedTuple):
    """A page that a provider's own search found for an answer."""

    url: str
    """Its address as the provider gave it: a text, and not always that of a web page."""
    title: str
    """Its title on one line; empty if the provider gave none."""
    cited: bool
    """True if the answer refers to it. If not, it was only found."""
    quote: str | None = None
    """The text of the page that was quoted; None if the provider gave none."""
    start: int | None = None
    """The offset of the part of the answer's text that refers to it, as the provider counts; None:
    unknown."""
    end: int | None = None
    """The offset after that part."""


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    FILTER = "filter"
    TOOLS = "tools"
    """It asks for tools, and continues with their results."""
    PAUSED = "paused"
    """The provider's own tools take long: it continues when its message is sent back."""
    OTHER = "other"


class Reply(NamedTuple):
    """The reply to a request. It is not yet a result: one that was cut, refused, filtered or empty
    never becomes one."""

    text: str
    """The answer as it was written."""
    finish: Finish
    usage: Usage
    model: str
    refusal: str | None = None
    """The reason of a refusal, if the provider gave one."""
    simulated: bool = False
    service_tier: str | None = None
    ttft: float | None = None
    """Seconds from sending to the first token, of thinking too; None if it was not streamed."""
    time_to_response: float | None = None
    """Seconds to the first token of the answer itself, if they are known; only of a stream."""
    others: tuple[str, ...] = ()
    """Texts of further complete messages in the reply. Validation decides which one is meant."""
    calls: tuple[ToolCall, ...] = ()
    """The tools that it asks for."""
    wire: JSONValue = None
    """The message as it came, if it has to be sent back so (`AssistantMessage.wire`)."""
    session: str | None = None
    """The session of the agent program that replied."""
    ended_with: str = ""
    """The server's own word for how it ended."""
    sources: tuple[WebSource, ...] = ()
    """Pages from searches that the provider ran, the cited ones first."""

    @property
    def goes_on(self) -> bool:
        """True if a conversation continues after it: it asks for tools, or is not finished."""
        if self.finish is Finish.PAUSED:
            return True
        return bool(self.calls) and self.finish in (Finish.TOOLS, Finish.STOP)

    def message(self) -> AssistantMessage:
        """Makes the message that continues its conversation in the next request."""
        return AssistantMessage("assistant", self.text, self.calls, self.wire)


class FaultKind(StrEnum):
    """What the engine does about a fault: adapters classify, the engine decides."""

    RETRY = "retry"
    PAUSE = "pause"
    """A rate or a quota: all calls in the lane wait."""
    FATAL = "fatal"
    """Every further call fails too: the run stops."""
    TASK = "task"
    """This task fails, the others continue."""


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
    """The reason why a call gave no reply, for the engine."""

    kind: FaultKind
    type: ErrorType
    message: str
    delay: float | None = None
    """Seconds that the server asked to wait; None if it asked for nothing."""
    status: int | None = None
    """The HTTP status; None if no response came."""
    ambiguous: bool = False
    """True if the provider may have done (and billed) the work although nothing came back."""
    retries: int | None = None
    """How often at most the call is tried again; None for the policy's default."""
    code: str = ""
    """The provider's own name for the error; empty if it has none."""
    usage: Usage | None = None
    """The usage that is known although the call failed."""
    about: About | None = None
    """What a refusal is about; None if the provider did not refuse."""
    remedies: tuple[str, str] = ("", "")
    """What to do if the account is to blame, and if the request is, for a refusal that leaves this
    open."""


@dataclass(frozen=True, slots=True)
class RateState:
    """The account's limits, as the headers of a response gave them. `reset` is seconds from now."""

    remaining_requests: int | None = None
    reset_requests: float | None = None
    remaining_tokens: int | None = None
    reset_tokens: float | None = None


class Outcome(StrEnum):
    """How a task ended."""

    DONE = "done"
    REUSED = "reused"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A guard said no: the row continues without this result."""
    DROPPED = "dropped"
    """A guard said no: the row leaves."""


Visible = Mapping[str, JSONValue]
"""What a template may see: a row's fields, results by stage name, `vars`."""


def waits_left(waits: Mapping[str, float], now: float) -> dict[str, str]:
    """Gives the moments until which lanes wait, by lane, without those that have passed."""
    return {lane: iso(until) or "" for lane, until in waits.items() if until > now}


def iso(seconds: float | None) -> str | None:
    """Writes seconds since 1970 as text in UTC: `2026-11-22T10:00:00Z`."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def usd(amount: float | None) -> float | None:
    """Rounds an amount in USD to the millionth: the same in whichever order it was summed up."""
    return None if amount is None else round(round(amount, 12), 6)


def dollars(
    amount: float, digits: int | None = 4, *, simulated: bool = False, about: str = ""
) -> str:
    """Writes an amount as `$12.4000` or `simulated ~$0.0103`.

    `digits` None: two, or four if it is less than ten cents."""
    if digits is None:
        digits = 2 if amount >= 0.095 or not amount else 4
    return f"{'simulated ' if simulated else ''}{about}${amount:,.{digits}f}"


def counted(count: int, what: str, plural: str = "") -> str:
    """Writes `1 row` or `2 rows`; `plural` if an `s` is not enough."""
    name = what if count == 1 else plural or f"{what}s"
    return f"{count:,} {name}"


def first_repeated(names: Iterable[str]) -> str | None:
    """Gives the first of these names that is there a second time; None if there is none."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


Moment = Annotated[float, iso]
"""Seconds since 1970, printed as text."""

Usd = Annotated[float, usd]
"""An amount of money, rounded when it is printed."""

_SHORT = Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 80
_SHORT.maxother = 80


def dollars_in_all(amounts: Iterable[float]) -> float:
    """Adds the amounts one after the other.

    From Python 3.12 on `sum` makes up for rounding, and its result differs."""
    return reduce(add, amounts, 0)


class Report:
    """A dataclass that `--json` prints as an object of its fields.

    They come in their order, unless JSON_KEYS lists the keys. Each of these is the name of a field
    or property, or `key=name` if the two differ; `name` may be a path, as in `key=run.id`. The
    keys of the record in a field `name` replace `**name`; there are none if it is None. `name?` is
    left out while its value is None, 0 or empty. A type `Annotated[…, convert]` prints what
    `convert` makes of the value."""

    __slots__ = ()
    JSON_KEYS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        # otherwise dataclass makes a __repr__, which prints pages in a notebook
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        record: Any = self
        names = [each.name for each in fields(record) if each.repr]
        shown = [f"{name}={_SHORT.repr(getattr(self, name))}" for name in names]
        return f"{type(self).__name__}({', '.join(shown)})"

    def as_json(self) -> dict[str, Any]:
        """Gives the value that `--json` prints."""
        return _object(self)


def json_form(value: Any) -> Any:
    """Makes JSON of a value: records are objects, paths texts, members of enums their values."""
    if isinstance(value, Report):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _object(value)
    if isinstance(value, Mapping):
        return {key: json_form(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(item) for item in value]
    return value


def _object(value: Any) -> dict[str, Any]:
    """Makes a JSON object of a record."""
    kind: Any = type(value)
    members: dict[str, Any] = {}
    for key, read, convert in _members(kind):
        member = read(value)
        if key.startswith("**"):
            members |= json_form(member) or {}
        elif key.endswith("?"):
            if member:
                members[key[:-1]] = json_form(member)
        elif convert is None or member is None:
            members[key] = json_form(member)
        else:
            members[key] = convert(member)
    return members


_Member = tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]
"""A key, the function that reads its value, and the one that makes JSON of it, if any."""


@cache
def _members(kind: Any) -> list[_Member]:
    """Lists the keys of a record in the order in which they are printed."""
    members: list[_Member] = []
    for entry in getattr(kind, "JSON_KEYS", ()) or _field_names(kind):
        key, _, name = entry.partition("=")
        name = name or key.removeprefix("**").removesuffix("?")
        members.append((key, partial(_read, name), _converter(_hint_of(kind, name))))
    return members


def _field_names(kind: Any) -> Iterable[str]:
    """Lists the fields of a dataclass or a named tuple; none for other classes."""
    if is_dataclass(kind):
        return [each.name for each in fields(kind)]
    names: Iterable[str] = getattr(kind, "_fields", ())
    return names


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Finds the first `convert` of an `Annotated[…, convert]`, in a hint or one of its parts."""
    for part in (hint, *get_args(hint)):
        for convert in getattr(part, "__metadata__", ()):
            return convert  # type: ignore[no-any-return]
    return None


def _read(path: str, value: Any) -> Any:
    """Reads a field, or one of a record in it (`run.id`); None if that record is missing."""
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value


def _hint_of(kind: Any, path: str) -> Any:
    """Finds the declared type of a field or a property, or of one in it (`run.id`)."""
    name, _, further = path.partition(".")
    declared = getattr(kind, name, None)
    getter = declared.fget if isinstance(declared, property) else None
    hints = get_type_hints(getter or kind, include_extras=True)
    hint = hints.get("return" if getter else name)
    if not further:
        return hint
    # the record in `RunRecord | None`
    inner = [part for part in get_args(hint) if is_dataclass(part) or hasattr(part, "_fields")]
    return _hint_of(inner[0] if inner else hint, further)
