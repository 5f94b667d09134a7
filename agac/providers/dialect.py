"""What all dialects share: what a dialect is, streams put together, and replies."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import count as count_from
from typing import Any

from agac.core.errors import ErrorType, storable
from agac.core.json_text import json_encoder, strict_json
from agac.core.redact import Redactor
from agac.core.text import quoted_beginning
from agac.core.types import (
    AssistantMessage,
    Fault,
    FaultKind,
    Finish,
    JSONValue,
    Message,
    Params,
    RateState,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    Usage,
    WebSource,
)
from agac.providers.bodies import count, count_at, encode, json_of, mapping, text
from agac.providers.citations import moved
from agac.providers.endings import AGAIN, AnswerEnd
from agac.providers.error_bodies import ErrorBody, is_error
from agac.providers.error_rules import Rule
from agac.providers.error_tables import ErrorAnswer, fault_of
from agac.providers.provider import Provider
from agac.providers.structured import Shaping
from agac.providers.thinking import LeadingThinking, without_thinking

NO_HEADERS: Mapping[str, str] = {}
Heard = Callable[[str], None] | None  # is given each piece of a streamed answer as it comes
Begins = Callable[[], None] | None  # is called when the first token of a streamed answer comes


class Assembly:
    """One streamed answer, put together into the body that its dialect reads. Times are
    `time.monotonic()` seconds."""

    done = False
    """True if the end that the protocol promises has come, or an error in its place."""
    begun_at: float | None = None
    """When the first token came, be it of thinking."""
    answering_at: float | None = None
    """When the first token of the answer itself came: of text or of a refusal."""
    size = 0
    """Characters of the answer that are held, about."""
    heard: Heard = None
    """Gets the pieces of the answer."""
    begins: Begins = None
    """Is called once, with the first token."""

    _leading: LeadingThinking | None = None

    def token(self, piece: str, *, answer: bool) -> None:
        """Takes a token that came now: of the answer, or of thinking, be it in the text of the
        answer."""
        if answer and piece:
            self._leading = self._leading or LeadingThinking()
            piece = self._leading.answer_in(piece)
            answer = bool(piece)
        self._came(piece, answer=answer)

    def _came(self, piece: str, *, answer: bool) -> None:
        if self.answering_at is None:
            now = time.monotonic()
            if self.begun_at is None and self.begins is not None:
                self.begins()
            self.begun_at = self.begun_at or now
            self.answering_at = now if answer else None
        if answer and piece and self.heard is not None:
            self.heard(piece)

    def take(self, event: Any) -> None:
        """Takes one event, as JSON. What is no event is left out, and what comes after the end."""
        raise NotImplementedError

    def finish(self) -> bool:
        """Takes note that no more events will come. True if the answer is whole."""
        if self._leading is not None:
            left = self._leading.left()
            if left:
                self._came(left, answer=True)
        return self.is_whole()

    def is_whole(self) -> bool:
        """True if the answer has all its parts, once no more events will come."""
        return self.done

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """Returns status, headers and body, as if they had come without a stream. Only once it is
        whole."""
        raise NotImplementedError


STREAMED = b'"stream":true,'  # asks for a stream: see `asking`


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format; `table.DIALECTS` lists them. It never sends, sleeps, retries or logs: the
    sender moves its bytes and the engine acts on its Faults."""

    path: str
    """Put after a provider's base URL."""
    refused: Mapping[str, str]
    """Parameters (fields of `Params`) that it has no word for, each with what to do instead: an
    error at load."""
    headers: Callable[[Provider], dict[str, str]]
    """Returns what identifies us to the provider. Called once a sender, not once a call."""
    build: Callable[[Request, str, Provider], dict[str, JSONValue]]
    """Returns the request to a model as the provider wants its JSON. `encode` makes bytes; batches
    put it into their lines."""
    shaping: Shaping
    """Writes a schema as a `response_format`."""
    read: Callable[[Any, int, Provider, str], Reply | Fault]
    """Returns what an answer's JSON means that is no error, with its status, the provider and the
    model that was asked. Never raises for anything a server says."""
    read_error: Callable[[Any], ErrorBody]
    """Returns the error within an answer's JSON."""
    rules: Sequence[Rule]
    """The rules of errors; the first that one meets counts."""
    rates: Callable[[Mapping[str, str]], RateState | None]
    """Returns what the headers say about the account's limits; None when they say nothing."""
    assembly: Callable[[], Assembly]
    """Makes what puts a stream together."""
    asks_usage: bytes = b""
    """Asks for the tokens of a stream to be counted, where a provider has to be told."""
    socket_asks: bytes | None = None
    """Asks for an answer over a WebSocket, in the place of STREAMED; None: it has no WebSockets."""

    def parse(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        provider: Provider,
        model: str,
        redactor: Redactor,
    ) -> Reply | Fault:
        """Returns what an answer means; a 2xx whose body holds an error is read as that error.
        `headers` are looked up in lower case. Never raises for anything a server says."""
        data = json_of(body)
        if 200 <= status < 300 and not is_error(data):
            read = self.read(data, status, provider, model)
            if isinstance(read, Reply):
                return read
            return _explained(read, status, body, data, redactor)
        answer = ErrorAnswer(status, headers, body)
        return fault_of(
            self.read_error(data),
            self.rules,
            answer,
            provider=provider,
            model=model,
            redactor=redactor,
        )


def _explained(fault: Fault, status: int, body: bytes, data: Any, redactor: Redactor) -> Fault:
    """Returns the fault of a good status, with the beginning of a body that is not JSON."""
    begins = beginning_of(body, redactor) if data is None else ""
    return replace(fault, message=fault.message + begins, status=fault.status or status)


def beginning_of(body: bytes, redactor: Redactor) -> str:
    """Returns how a body begins, as the end of a message; an empty text where there is nothing in
    it."""
    # a secret is never cut before it is removed
    begins = redactor.clean(body[:4096].decode("utf-8", "replace"))
    return quoted_beginning(begins)


def asking(wire: bytes, how: bytes) -> bytes:
    """Returns the body of a request, a JSON object that is not empty, with `how` at its
    beginning."""
    return b"{" + how + wire[1:]


def set_params(
    params: Params, names: Iterable[str], renames: Mapping[str, str]
) -> dict[str, JSONValue]:
    """Returns those of the parameters that are set, by their names on the wire. `renames` has the
    names that differ from the fields."""
    wire: dict[str, JSONValue] = {}
    for name in names:
        value = getattr(params, name)
        if value is not None:
            wire[renames.get(name, name)] = list(value) if isinstance(value, tuple) else value
    return wire


_INPUT = (("prompt_tokens",), ("input_tokens",))
_OUTPUT = (("completion_tokens",), ("output_tokens",))
"""Each API's own name, and the other's: mlx-vlm and some gateways have the names of the API that
they are made of (github.com/earendil-works/pi/pull/2325)."""

_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI: chat completions
    ("input_tokens_details", "cached_tokens"),  # OpenAI: responses
    ("prompt_cache_hit_tokens",),  # DeepSeek: api-docs.deepseek.com/api/create-chat-completion
    ("cached_tokens",),  # Moonshot: platform.kimi.ai/docs/api/chat
    ("num_cached_tokens",),  # Mistral: docs.mistral.ai/api; vLLM's own name
)
_WRITTEN = (
    ("prompt_tokens_details", "cache_write_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
)
_THOUGHT = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
)


def usage_of(usage: Any) -> Usage:
    """Returns the counts of tokens, by any of the names that servers with OpenAI's APIs have."""
    counts = Usage(
        input_tokens=count_at(usage, _INPUT),
        output_tokens=count_at(usage, _OUTPUT),
        cached_tokens=count_at(usage, _CACHED),
        reasoning_tokens=count_at(usage, _THOUGHT),
        cache_write_tokens=count_at(usage, _WRITTEN),
    )
    return _with_separate_thinking(counts, count_at(usage, (("total_tokens",),)))


def _with_separate_thinking(usage: Usage, total: int | None) -> Usage:
    """Returns the usage with the thinking that only the total counts among the output's tokens:
    xAI names it apart (docs.x.ai/docs/api-reference), Gemini does not name it
    (github.com/Clarifai/clarifai-python/pull/978). It is paid as output."""
    prompt = usage.input_tokens
    output = usage.output_tokens
    if total is None or not prompt or output is None:
        return usage
    uncounted = total - prompt - output
    if uncounted <= 0:
        return usage
    is_cache = uncounted == (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)
    is_unnamed_thinking = usage.reasoning_tokens is None and not is_cache
    if usage.reasoning_tokens == uncounted or is_unnamed_thinking:
        return usage._replace(output_tokens=output + uncounted)
    return usage


def believable(usage: Usage, *, wrote: bool) -> Usage:
    """Returns the usage with None for each count that cannot be true: some servers fill in 0 where
    they did not count.

    A request has at least one token, cached or not, and an answer in which the model `wrote`
    something has one too. The tokens of the cache are among the input's, and those of thinking
    among the output's."""
    prompt = usage.input_tokens
    if prompt is not None and prompt < max(usage.cached_tokens or 0, 1):
        usage = usage._replace(input_tokens=None, cached_tokens=None)
    output = usage.output_tokens
    if output is not None and output < max(usage.reasoning_tokens or 0, wrote):
        usage = usage._replace(output_tokens=None, reasoning_tokens=None)
    return usage


def uses_of(counts: Any, suffix: str) -> dict[str, int]:
    """Counts how often each of the provider's own tools ran, by the names that end in `suffix`."""
    uses = {
        name.removesuffix(suffix): count(counts, name)
        for name in mapping(counts)
        if name.endswith(suffix)
    }
    return {name: times for name, times in uses.items() if times}


SIMULATOR_MARK = "agac-simulator"
"""The `system_fingerprint` by which the simulator marks what it answers."""


def unreadable(provider: Provider, status: int, what: str) -> Fault:
    """Returns the fault for a good status with something that is neither a reply nor an error:
    `what` describes it."""
    message = f"{provider.name} answered {status} with {what}"
    return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, status=status, ambiguous=True)


def too_large(provider: Provider, remedy: str = "ask for a shorter answer") -> Fault:
    """Returns the fault for a reply of more bytes than are read. It was paid for, and the next
    would be as large."""
    message = (
        f"{provider.name} sent a reply of more than {provider.limits.reply_mb} MB; {remedy}, or "
        f"raise `limits: {{reply_mb}}` of {provider.name} in agac.yml"
    )
    return Fault(FaultKind.TASK, ErrorType.REPLY_TOO_LARGE, message, ambiguous=True)


def calls_of(requested: Iterable[tuple[str, str, Any]]) -> tuple[ToolCall, ...]:
    """Returns calls of tools, made of id, name and arguments each. A missing or repeated id
    becomes one of our own."""
    calls: dict[str, ToolCall] = {}
    for call_id, name, arguments in requested:
        call_id = storable(call_id)
        if not call_id or call_id in calls:
            call_id = f"call_{len(calls)}"
        calls[call_id] = ToolCall(
            call_id, storable(name), storable(arguments_text(arguments) or "{}")
        )
    return tuple(calls.values())


# What a model said goes back to its server with the next request of the conversation. Servers parse
# it more strictly than models write it, and answer 400 to the whole conversation.

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_MOST_VALUES = 1_000_000
_MOST_LEVELS = 100  # of nested JSON: some parsers stop at 128 (serde_json)
_LARGEST = 1e308  # a number beyond it is none in most languages
_finite_json = json_encoder(allow_nan=False)
_as_json = json_encoder()


def sendable(messages: Iterable[Message], call_ids: str) -> Iterator[Message]:
    """Yields the messages of a request, in which what a model said has a form that every server
    takes: calls have arguments that are an object, names in the characters of tools, and ids that
    are unique in the conversation and match the pattern `call_ids`; half characters are replaced.
    All else is as it came."""
    ids = set[str]()
    is_taken = re.compile(call_ids).fullmatch
    renamed: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            renamed = {call.id: _sendable_id(call.id, ids, is_taken) for call in message.calls}
            calls = tuple(_sendable_call(call, renamed[call.id]) for call in message.calls)
            yield replace(
                message,
                text=storable(message.text),
                calls=calls,
                wire=_whole_characters(message.wire),
            )
        elif isinstance(message, ToolMessage):
            results = (
                replace(result, call_id=renamed.get(result.call_id, result.call_id))
                for result in message.results
            )
            yield replace(message, results=tuple(results))
        elif message.role == "assistant":
            yield replace(message, text=storable(message.text))
        else:
            yield message


def _sendable_id(call_id: str, ids: set[str], is_taken: Callable[[str], object]) -> str:
    """Returns an id that the server takes and that no earlier call of the conversation has, and
    adds it to `ids`.

    Some servers count from 0 in each reply. The id of a call is the same in every request of its
    conversation, so that the server finds the beginning in its cache."""
    for number in count_from(1):
        counted = call_id if number == 1 else f"{call_id}_{number}"
        for candidate in (counted, _short_id(counted)):
            if candidate not in ids and is_taken(candidate):
                ids.add(candidate)
                return candidate
    raise AssertionError("no number is left")


_ID_LENGTH = 9  # characters of an id that every server takes: Mistral takes no other length
_ID_CHARACTERS = string.ascii_letters + string.digits


def _short_id(call_id: str) -> str:
    """Returns an id of letters and digits in the place of one that a server refuses; always the
    same one for the same id."""
    number = int.from_bytes(sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    characters = list[str]()
    for _ in range(_ID_LENGTH):
        number, index = divmod(number, len(_ID_CHARACTERS))
        characters.append(_ID_CHARACTERS[index])
    return "".join(characters)


def _sendable_call(call: ToolCall, call_id: str) -> ToolCall:
    """Returns a call with an id, a name and arguments that every server takes."""
    name = call.name
    if not _NAME.fullmatch(name):  # no tool has such a name
        name = _NOT_IN_NAMES.sub("_", name[:64]) or "unnamed"
    return ToolCall(call_id, name, _object_text(call.arguments))


@lru_cache(maxsize=512)
def _object_text(arguments: str) -> str:
    """Returns arguments as the model wrote them where they are an object that every JSON parser
    reads; else an empty object."""
    try:
        value = strict_json(arguments, _MOST_VALUES)
        _finite_json(value).encode()
    except (ValueError, RecursionError):
        return "{}"
    if isinstance(value, dict) and _is_portable(value):
        return arguments
    return "{}"


def _is_portable(value: JSONValue) -> bool:
    """True if parsers with bounds on levels and numbers read it, too."""
    level: list[JSONValue] = [value]
    for _ in range(_MOST_LEVELS):
        if any(type(item) is int and abs(item) > _LARGEST for item in level):
            return False
        level = [inner for outer in level for inner in _items_within(outer)]
        if not level:
            return True
    return False


def _items_within(value: JSONValue) -> Iterable[JSONValue]:
    """Returns the values directly within an object or a list."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole_characters(value: Any) -> Any:
    """Returns a message as it came, with a replacement for each half of a character, which many
    parsers refuse."""
    try:
        _as_json(value).encode()
    except UnicodeEncodeError:
        return _without_halves(value)
    except RecursionError:  # nothing can write it: its text and calls are sent instead
        return None
    return value


def _without_halves(value: Any) -> Any:
    """Returns JSON whose texts hold no half of a character."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): _without_halves(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_halves(inner) for inner in value]
    return value


def arguments_text(arguments: Any) -> str:
    """Returns arguments as the text that they are, or that of the object that they came as
    (SGLang, Anthropic)."""
    try:
        if isinstance(arguments, str):
            return arguments
        if arguments:
            return encode(arguments).decode()
        return ""
    except RecursionError:  # nested more deeply than can be written
        return ""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a model said, as its dialect read it."""

    texts: list[str]
    """The texts of its messages: the answer, then any others. Thinking may be within them."""
    end: AnswerEnd
    """Why the answer ended."""
    usage: Usage
    """The counts of tokens."""
    refusal: str | None = None
    """Why the model refuses, in its own words."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of tools that it asks for."""
    wire: JSONValue = None
    """The message as it came, where the conversation continues from it."""
    wrote_more: bool = False
    """True if it wrote something that is in none of the texts, such as thinking."""
    sources: tuple[WebSource, ...] = ()
    """The sources of searches that the provider ran."""


def reply_of(
    data: Mapping[str, Any], answered: Answered, provider: Provider, model: str
) -> Reply | Fault:
    """Returns the reply of an answer; a fault where the server broke the answer off, which was
    perhaps billed. Thinking in a text is no part of the answer."""
    texts = answered.texts
    wrote = answered.wrote_more or any(texts) or bool(answered.calls)
    usage = believable(answered.usage, wrote=wrote)
    word = answered.end.word
    if not isinstance(answered.end.meaning, Finish):
        message = f"{provider.name} broke the answer off: it ended with {word!r}"
        return Fault(
            AGAIN, ErrorType.PROVIDER_ERROR, message, ambiguous=True, code=word, usage=usage
        )
    is_cut = answered.end.meaning is Finish.LENGTH
    answers = [without_thinking(written, cut=is_cut) for written in texts]
    answers = [answer for answer in answers if answer] or [""]
    sources = answered.sources
    if sources and texts:
        sources = moved(sources, texts[0], answers[0])
    service_tier = data.get("service_tier")
    return Reply(
        text=answers[0],
        finish=_finish_of(answered, answered.end.meaning),
        usage=usage,
        model=text(data, "model") or model,
        refusal=answered.refusal,
        simulated=provider.simulated or data.get("system_fingerprint") == SIMULATOR_MARK,
        service_tier=service_tier if isinstance(service_tier, str) else None,
        others=tuple(answers[1:]),
        calls=answered.calls,
        wire=answered.wire,
        ended_with=word,
        sources=sources,
    )


def _finish_of(answered: Answered, finish: Finish) -> Finish:
    """Returns why the model stopped. A refusal says it, but for a filter that cut it off; calls of
    tools do too, whatever a server calls it."""
    if answered.refusal is not None and finish is not Finish.FILTER:
        return Finish.REFUSAL
    if answered.calls and finish is Finish.STOP:
        return Finish.TOOLS
    if not answered.calls and finish is Finish.TOOLS:
        return Finish.OTHER
    return finish
