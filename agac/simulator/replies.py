"""What is requested and what is answered, in the simulator's own form, and the writer of answers. An answer is the same
for the same seed and content, and conforms to a schema where one is given."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from random import Random
from typing import Any, Literal

from agac.simulator.schema_compiler import SchemaCompiler
from agac.simulator.schema_keywords import SchemaError
from agac.simulator.schema_rules import strict_problem
from agac.simulator.schema_values import Draft, NoMatch, word_set
from agac.simulator.settings import RateLimits, Refusal, is_number
from agac.simulator.tool_calls import AskedTool, HostedUse, OfferedTool, ScriptRule, asked_turns

FINGERPRINT = (
    "agac-simulator"  # the `system_fingerprint` by which a client sees that a reply was simulated
)
MARK = {"x-agac-simulated": "true"}
CREATED = 1_735_689_600  # the creation time of every reply: a reply depends on seed and content, not on time
KEPT_SCHEMAS = 256
TRIES = 40  # how many values are tried where only validating tells whether one is right
PIECE = 24  # characters in one event of a stream
ECHO = "echo"  # the model, and the property, that repeat the user's text
Event = (
    Any  # one event of a stream: a JSON object, or the text that ends a stream of chat completions
)


@dataclass(eq=False)
class ApiError(Exception):
    """A request that gets an error instead of a reply, in the words of OpenAI's error object."""

    status: int
    message: str
    _: KW_ONLY
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    page: bytes | None = None
    """A page of HTML that comes in the place of the error: something before the API sent it."""


SERVER_ERROR = "The server had an error while processing your request. Sorry about that!"
STATUS_ERRORS = {
    400: ("invalid_request_error", None, "The request was not understood."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You may not use this."),
    404: ("invalid_request_error", None, "There is no such thing."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please slow down."),
    503: ("server_error", "server_is_overloaded", "The server is overloaded or not ready yet."),
}
"""Type, code and message of each status, where a rule says nothing else; other statuses are server errors."""

QUOTA_CODES = word_set(
    "credit_balance_exhausted organization_spend_limit_exceeded project_spend_limit_exceeded "
    "organization_usage_limit_exceeded insufficient_quota"
)
"""Codes whose type is `insufficient_quota`."""


def status_error(
    status: int, *, kind: str | None = None, code: str | None = None, message: str | None = None
) -> ApiError:
    """The error of a status, with what OpenAI says about it where nothing is given."""
    usual_kind, usual_code, usual_message = STATUS_ERRORS.get(
        status, ("server_error", None, SERVER_ERROR)
    )
    if code in QUOTA_CODES:
        usual_kind, usual_code = "insufficient_quota", code
    return ApiError(
        status, message or usual_message, kind=kind or usual_kind, code=code or usual_code
    )


def unknown_model(model: str) -> ApiError:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return ApiError(404, message, code="model_not_found")


PAGE = b"<html><head><title>%s</title></head><body>%s</body></html>"
"""A page in the place of an API's answer, with a title and a text."""


def blocked_page(status: int = 403) -> ApiError:
    """What a firewall before the API answers, to whatever it takes for an attack."""
    title = f"{status} {'Forbidden' if status == 403 else 'Request refused'}".encode()
    return ApiError(status, "Request blocked.", page=PAGE % (title, b"Request blocked."))


def too_large(model: str, limit: int = 30_000, requested: int = 47_522) -> ApiError:
    """The refusal of a request that needs more tokens than an account has in a whole minute."""
    message = (
        f"Request too large for {model} on tokens per min (TPM): Limit {limit}, Requested {requested}. The input or "
        "output tokens must be reduced in order to run successfully."
    )
    return ApiError(429, message, kind="tokens", code="rate_limit_exceeded")


def limit_error(refusal: Refusal, model: str) -> ApiError:
    unit = "RPM" if refusal.unit == "requests" else "TPM"
    used = f"{refusal.unit} per min ({unit}): Limit {refusal.limit}, Used {refusal.used}, Requested {refusal.requested}"
    if math.isinf(refusal.wait):
        message = f"Request too large for {model} on {used}. It must be reduced in order to run successfully."
        return ApiError(429, message, kind=refusal.unit, code="rate_limit_exceeded")
    message = f"Rate limit reached for {model} on {used}. Please try again in {refusal.wait:.3f}s."
    headers = retry_headers(refusal.wait, in_ms=True) | {
        "retry-after": str(math.ceil(refusal.wait))
    }
    return ApiError(429, message, kind=refusal.unit, code="rate_limit_exceeded", headers=headers)


def retry_headers(seconds: float, *, in_ms: bool) -> dict[str, str]:
    """When to try again: in whole milliseconds, or in seconds."""
    if in_ms:
        return {"retry-after-ms": str(math.ceil(seconds * 1000))}
    return {"retry-after": f"{seconds:g}"}


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request for one reply, which follows from `digest` (16 bytes): it names seed and whole content. `schema` is
    what the reply must conform to, `schema_key` a text that is different for different schemas, `strict_name` is set in
    OpenAI's strict mode; no schema with `wants_json` is any object. `prompt_tokens` is an estimate. `may_call`: the
    `tools` are not only told, they may be called; `turns` are the calls of each turn that asked for some.
    `cached_tokens` of the prompt came from a cache, `cache_written` are by lifetime. `hints` are Dynamo's."""

    model: str
    messages: tuple[tuple[str, str], ...]
    digest: bytes
    prompt_tokens: int
    schema: Any = None
    schema_key: str = ""
    strict_name: str | None = None
    wants_json: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    extras: dict[str, Any] = field(default_factory=dict)
    tools: tuple[OfferedTool, ...] = ()
    may_call: bool = True
    parallel: bool = True
    turns: tuple[tuple[AskedTool, ...], ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    cached_tokens: int = 0
    cache_written: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conversation(self) -> bytes:
        """16 bytes that stay the same in all turns of a conversation."""
        return self._until_answered(0)

    @property
    def question(self) -> bytes:
        """The same when this is sent again, also with an unusable answer quoted; each turn with tools is a new one."""
        roles = [role for role, _ in self.messages]
        return self._until_answered(
            len(roles) - roles[::-1].index("tool") if "tool" in roles else 0
        )

    def _until_answered(self, start: int) -> bytes:
        said = next(
            (i for i, (role, _) in enumerate(self.messages) if i >= start and role == "assistant"),
            None,
        )
        return content_digest(0, [self.model, self.messages[:said]])

    @property
    def has_format(self) -> bool:
        """Whether a parameter asks for a form of the answer, not only its prompt."""
        nested = (self.data.get("text") or {}, self.data.get("output_config") or {})
        given = (self.data.get("response_format"), *(one.get("format") for one in nested))
        return any(one is not None and one.get("type") != "text" for one in given)

    @property
    def user_text(self) -> str:
        """What the model was told last: the user's message, or the results of its calls."""
        return next(
            (text for role, text in reversed(self.messages) if role in ("user", "tool")), ""
        )


def zeroed(counts: dict[str, Any]) -> dict[str, Any]:
    """Returns the same counts with 0 for each number, nested ones included."""
    zero: dict[str, Any] = {}
    for name, value in counts.items():
        if isinstance(value, dict):
            zero[name] = zeroed(value)
        else:
            zero[name] = 0 if isinstance(value, int) else value
    return zero


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """One message of an answer: its text, or a refusal. `cut`: whether it says of itself that it ended early."""

    text: str = ""
    refusal: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model's `content`, or None and a `refusal` or `calls` of tools. `earlier`: messages before that, where an API
    has them; `hosted`: the provider's own tools that it used on the way. `counts_nothing`: its usage says 0 tokens.
    `has_word`: it ends with this `word` (None: null), whatever the API calls such an end."""

    content: str | None
    finish: Literal["stop", "length", "content_filter", "tool_calls", "pause"] = "stop"
    refusal: str | None = None
    earlier: tuple[AnswerMessage, ...] = ()
    calls: tuple[AskedTool, ...] = ()
    hosted: tuple[HostedUse, ...] = ()
    counts_nothing: bool = False
    has_word: bool = False
    word: str | None = None

    def ended_with(self, usual: str | None) -> str | None:
        """Returns the word that says why the answer ended, which the API has a `usual` one for."""
        return self.word if self.has_word else usual

    def usage(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Returns the counts of tokens as the API tells them: all of them 0 where it counts nothing."""
        return zeroed(counts) if self.counts_nothing else counts

    @property
    def tokens(self) -> int:
        """An estimate of what it cost to write."""
        called = sum(token_count(call.name + call.arguments) for call in self.calls)
        return (
            token_count(self.content or self.refusal or "")
            + sum(token_count(m.text) for m in self.earlier)
            + called
        )

    @property
    def messages(self) -> tuple[AnswerMessage, ...]:
        if self.calls and self.content is None:
            return self.earlier
        return (
            *self.earlier,
            AnswerMessage(self.content or "", self.refusal, cut=self.finish != "stop"),
        )


@dataclass(frozen=True, slots=True)
class ModelApi:
    """One API: how it reads a body (its bytes, the seed, the headers), how it writes an answer, whole or as events, and
    an error. `headers` are those of the n-th reply. The Responses API also says how a response has `failed`."""

    read: Callable[[bytes, int, Mapping[str, str]], ModelCall]
    reply: Callable[[ModelCall, ModelAnswer], dict[str, Any]]
    events: Callable[[ModelCall, ModelAnswer], Iterator[Event]]
    error: Callable[[ApiError], dict[str, Any]]
    headers: Callable[[int, RateLimits], dict[str, str]]
    failed: Callable[[ModelCall, ApiError], dict[str, Any]] | None = None
    stream_error: Callable[[ApiError], dict[str, Any]] | None = None

    def body(self, call: ModelCall, answer: ModelAnswer) -> bytes:
        return json.dumps(self.reply(call, answer)).encode()

    def failing_events(
        self, call: ModelCall, answer: ModelAnswer, error: ApiError, *, as_response: bool
    ) -> list[Event]:
        """The events of an answer until halfway, and an error, or (`as_response`) a response that failed."""
        events = list(self.events(call, answer))
        begun = events[: max(3 if self.failed else 1, len(events) // 2)]
        if self.failed is None or self.stream_error is None:
            return [*begun, self.error(error)]
        failed = {"type": "response.failed", "response": self.failed(call, error)}
        return [
            *begun,
            (failed if as_response else self.stream_error(error)) | {"sequence_number": len(begun)},
        ]


@dataclass(slots=True)
class Conversation:
    """The messages of a request as they are read: role and text of each, the calls of each turn that asked for some,
    and the ids of calls that have no result yet."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    turns: list[tuple[AskedTool, ...]] = field(default_factory=list)
    open_ids: list[str] = field(default_factory=list)

    def say(self, role: str, text: str, calls: Sequence[AskedTool] = ()) -> None:
        if calls:
            self.turns.append(tuple(calls))
            self.open_ids += [call.id for call in calls]
        self.messages.append(
            (role, text + "".join(f"\n{call.name}({call.arguments})" for call in calls))
        )

    def result(self, call_id: Any, text: str, place: str) -> None:
        """What a call came to, one message with the results before it."""
        if call_id not in self.open_ids:
            raise ApiError(
                400, f"{place}: no tool call found for the result of {call_id!r}.", param=place
            )
        self.open_ids.remove(call_id)
        if self.messages[-1][0] == "tool":
            text = f"{self.messages.pop()[1]}\n{text}"
        self.messages.append(("tool", text))

    def check(self, place: str) -> None:
        """Refuses a conversation that goes on, or ends, without the results of its calls."""
        if self.open_ids:
            message = f"{place}: tool calls must be followed by their results; missing: {', '.join(self.open_ids)}."
            raise ApiError(400, message, param=place)


BatchEndpoint = tuple[
    Callable[[dict[str, Any], int], ModelCall], Callable[[ModelCall, ModelAnswer], dict[str, Any]]
]
"""An API whose requests a batch may hold: how a body is read, how an answer is written."""


def server_sent(event: Event) -> bytes:
    """One event on the wire of HTTP; those of chat completions have no names."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


plain_json = json.JSONEncoder(ensure_ascii=False).encode  # JSON with letters as they are
compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""JSON that is the same whatever the order of keys."""


def encoded(value: Any) -> bytes:
    """JSON as providers write results: letters as they are, but for halves of pairs, which UTF-8 does not have."""
    try:
        return compact_json(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def content_digest(seed: int, content: Any) -> bytes:
    """16 bytes for a content, whatever the order of its keys."""
    return blake2b(
        canonical(content).encode(), digest_size=16, salt=(seed & (2**64 - 1)).to_bytes(8)
    ).digest()


def as_written(value: Any) -> str:
    return value if isinstance(value, str) else plain_json(value)


def signature(text: str) -> str:
    """By which a provider knows what it wrote itself."""
    return content_digest(1, text).hex()


def token_count(text: str) -> int:
    """About how many tokens a text is: four characters each, rounded up."""
    return -(-len(text) // 4)


def model_call(data: dict[str, Any], seed: int, talk: Conversation, **more: Any) -> ModelCall:
    """A checked request; whether it is a stream is no part of its content."""
    stream = data.pop("stream", None) or False
    tokens = max(1, sum(token_count(text) for _, text in talk.messages))
    tokens += token_count(canonical(data["tools"])) if data.get("tools") else 0
    digest = content_digest(seed, data)
    about: Any = {
        "prompt_tokens": tokens,
        "stream": stream,
        "turns": tuple(talk.turns),
        "data": data,
    }
    return ModelCall(data["model"], tuple(talk.messages), digest, **about, **more)


Kind = tuple[
    Callable[[Any], bool], str
]  # what a parameter must be when it is given, and the words for it


def between(low: float, high: float) -> Kind:
    return (
        lambda value: is_number(value) and low <= value <= high,
        f"a number from {low} to {high}",
    )


COUNT: Kind = (lambda value: is_number(value, int) and value >= 1, "an integer of at least 1")
TRUTH: Kind = (lambda value: isinstance(value, bool), "true or false")
TEXT: Kind = (lambda value: isinstance(value, str), "a string")
OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")


def wrong_parameters(
    data: Mapping[str, Any], unsupported: Mapping[str, Any], kinds: Mapping[str, Kind]
) -> Iterator[tuple[str, str]]:
    """Parameters that are wrong, each with what it must be; "" for those that are not simulated."""
    for name, harmless in unsupported.items():
        if data.get(name) not in (None, harmless):
            yield name, ""
    for name, (fits, wanted) in kinds.items():
        if data.get(name) is not None and not fits(data[name]):
            yield name, wanted


def read_object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(400, "We expected a JSON object as the body of your request.")
    return data


SCHEMA_MARK = "JSON Schema:\n"
"""In a system message, the text after the last of these is the schema that the reply must conform to."""


def prompted_schema(messages: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The schema at the end of a system message and its text, as fields of a ModelCall; empty if there is none."""
    for role, text in reversed(messages):
        if role in ("system", "developer") and SCHEMA_MARK in text:
            written = text.rpartition(SCHEMA_MARK)[2].strip()
            with suppress(ValueError):
                return {"schema": json.JSONDecoder().raw_decode(written)[0], "schema_key": written}
            break
    return {}


@dataclass(slots=True)
class AnswerWriter:
    """Writes answers; keeps the schemas it met last. Where a request offers tools, `tool_turns` turns ask for
    `tool_calls` calls each, unless the user's text says which. A `script` goes before all that.
    `tools_with_schema` is one of TOOLS_WITH_SCHEMA."""

    tool_turns: int = 1
    tool_calls: int = 1
    script: Sequence[ScriptRule] = ()
    tools_with_schema: str = "taken"
    kept: OrderedDict[str, SchemaCompiler] = field(default_factory=OrderedDict)

    def answer(self, call: ModelCall) -> ModelAnswer:
        """The model's answer, cut where the request says so; raises ApiError for a schema that nothing satisfies, and
        for one beside tools where that is refused."""
        if call.tools and call.has_format and self.tools_with_schema != "taken":
            call = self.without_format(call)
        rule = next((rule for rule in self.script if rule.applies(call.messages)), None)
        hosted: tuple[HostedUse, ...] = ()
        if call.may_call and any(tool.kind for tool in call.tools):
            draft = draft_for(call, 0)
            hosted = tuple(
                HostedUse(tool.kind, draft.phrase(2, 5)) for tool in call.tools if tool.kind
            )
        if calls := self.calls(call, rule):
            return ModelAnswer(None, "tool_calls", calls=calls, hosted=hosted)
        if rule is not None:
            content = as_written(rule.reply)
        elif call.schema is not None:
            content = plain_json(self.value(call))
        elif call.wants_json:
            content = plain_json({ECHO if call.model == ECHO else "answer": self.text(call)})
        else:
            content = self.text(call)
            for stop in call.stop:
                content = content.partition(stop)[0]
        answer = ModelAnswer(content, hosted=hosted)
        if call.max_tokens is None or answer.tokens <= call.max_tokens:
            return answer
        return ModelAnswer(content[: call.max_tokens * 4], "length", hosted=hosted)

    def without_format(self, call: ModelCall) -> ModelCall:
        """A request with tools as a model sees it that knows the form of an answer from its prompt alone."""
        if self.tools_with_schema == "refused":
            message = "A response format cannot be combined with tools: leave one of them out."
            raise ApiError(400, message, param="response_format")
        known = {"schema": None, "schema_key": "", "strict_name": None, "wants_json": False}
        return replace(call, **{**known, **prompted_schema(call.messages)})

    def calls(self, call: ModelCall, rule: ScriptRule | None) -> tuple[AskedTool, ...]:
        """The tools that the model asks for now; none when it is to answer."""
        tools, asked = [tool for tool in call.tools if not tool.kind], list[tuple[str, str]]()
        if rule is not None:
            asked = [(one["name"], as_written(one.get("arguments", {}))) for one in rule.calls]
        elif tools and call.may_call:
            asked = self.next_calls(call, tools)
        return tuple(
            AskedTool(f"call_sim{call.digest.hex()[:16]}{index}", *one)
            for index, one in enumerate(asked)
        )

    def next_calls(self, call: ModelCall, tools: list[OfferedTool]) -> list[tuple[str, str]]:
        """Names and arguments of the calls that the conversation asks for now, or else of those that settings do."""
        turns, number = asked_turns(call.messages, self.tool_turns), len(call.turns)
        if not call.parallel and any(turns):
            turns = [[one] for turn in turns for one in turn]
        if number >= len(turns):
            return []
        if turns[number]:
            return turns[number]
        count = self.tool_calls if call.parallel else 1
        chosen = [
            (tools[place % len(tools)], place)
            for place in range(number * count, (number + 1) * count)
        ]
        return [(tool.name, self.arguments(call, tool, place)) for tool, place in chosen]

    def arguments(self, call: ModelCall, tool: OfferedTool, number: int) -> str:
        """Arguments that a tool's schema allows, made of the conversation's words, for the n-th call of all."""
        schema = {"type": "object"} if tool.parameters is None else tool.parameters
        about: dict[str, Any] = {
            "schema": schema,
            "strict_name": tool.name if tool.strict else None,
        }
        digest = content_digest(number, call.digest.hex())
        try:
            return plain_json(
                self.value(replace(call, schema_key=canonical(about), digest=digest, **about))
            )
        except ApiError as error:
            message = (
                f"Invalid schema for function '{tool.name}': {error.message.partition(': ')[2]}"
            )
            raise ApiError(
                400, message, code="invalid_function_parameters", param="tools"
            ) from error

    def second_answer(self, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
        """The answer after one that is as good and says something else; the same twice if there is only one."""
        texts = (f"{mood} {call.user_text}" for mood in ("Awful:", "Lovely:", "So:"))
        calls = (replace(call, messages=(("user", text),)) for text in texts)
        drawn = (
            replace(one, digest=content_digest(index, call.digest.hex()))
            for one in calls
            for index in range(8)
        )
        others = (self.answer(other).content or "" for other in drawn)
        first = next((text for text in others if text != answer.content), answer.content or "")
        return replace(answer, earlier=(AnswerMessage(first),))

    def text(self, call: ModelCall) -> str:
        if call.model == ECHO:
            return call.user_text
        draft = draft_for(call, 0)
        return " ".join(draft.sentence() for _ in range(1 + draft.below(3)))

    def value(self, call: ModelCall) -> Any:
        compiled = self.compiled(call)
        for attempt in range(TRIES):
            try:
                value = compiled.root.write(draft_for(call, attempt), 0, "")
            except NoMatch:
                continue
            if call.model == ECHO and compiled.has_property(ECHO):
                changed = {**value, ECHO: call.user_text}
                with suppress(SchemaError):  # a part of it that no value needs is wrong
                    value = changed if compiled.valid(changed) else value
            if not compiled.unsure or compiled.valid(value):
                return value
        raise schema_refused("the simulator found no value that satisfies it")

    def compiled(self, call: ModelCall) -> SchemaCompiler:
        """The call's schema, compiled once; raises ApiError for one that is wrong."""
        found = self.kept.get(call.schema_key)
        if found is None:
            try:
                if (
                    call.strict_name is not None
                    and (problem := strict_problem(call.schema)) is not None
                ):
                    raise schema_refused(problem, f" '{call.strict_name}'")
                found = SchemaCompiler(call.schema)
                if found.unsure:
                    found.valid(None)
            except (SchemaError, RecursionError) as error:
                raise schema_refused(str(error)) from error
            self.kept[call.schema_key] = found
            if len(self.kept) > KEPT_SCHEMAS:
                self.kept.popitem(last=False)
        return found


def schema_refused(reason: str, name: str = "") -> ApiError:
    message = f"Invalid schema for response_format{name}: {reason}."
    return ApiError(400, message, code="invalid_json_schema", param="response_format")


def draft_for(call: ModelCall, attempt: int) -> Draft:
    """A draft whose random choices follow from seed and content alone."""
    return Draft(Random(int.from_bytes(call.digest) + attempt), call.user_text)  # noqa: S311 (nothing to guess)
