"""Answers in the simulator's own form, and their writer.

An answer is the same for the same seed and content, and conforms to a schema where one is given.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from agac.simulator.api_errors import ApiError
from agac.simulator.kinds import Headers, JsonObject, Texts
from agac.simulator.model_calls import (
    AnswerForm,
    ModelCall,
    canonical,
    content_digest,
    plain_json,
    prompted_form,
    read_object,
    token_count,
)
from agac.simulator.schema_compiler import SchemaCompiler
from agac.simulator.schema_rules import strict_problem
from agac.simulator.schema_values import Draft, NoMatch, SchemaError
from agac.simulator.settings import RateLimits
from agac.simulator.tool_calls import (
    AskedTool,
    HostedUse,
    OfferedTool,
    ScriptRule,
    TurnCalls,
    asked_turns,
)

FINGERPRINT = "agac-simulator"
"""The `system_fingerprint` by which a client sees that a reply was simulated."""
MARK = {"x-agac-simulated": "true"}
CREATED = 1_735_689_600
"""The creation time of every reply: a reply depends on seed and content, not on time."""
MAX_SCHEMAS = 256
TRIES = 40  # how many values are tried where validating alone tells whether one is right
PIECE = 24  # characters in one event of a stream
ECHO = "echo"  # the model, and the property, that repeat the user's text
MOODS = ("Awful:", "Lovely:", "So:")
Event = Any
"""One event of a stream: a JSON object, or the text that ends a stream of chat completions."""


def zeroed(counts: JsonObject) -> JsonObject:
    """Returns the same counts with 0 for each number, nested ones included."""
    zero: JsonObject = {}
    for name, value in counts.items():
        if isinstance(value, dict):
            zero[name] = zeroed(value)
        else:
            zero[name] = 0 if isinstance(value, int) else value
    return zero


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """One message of an answer: its text, or a refusal."""

    text: str = ""
    refusal: str | None = None
    cut: bool = False
    """true if it says of itself that it ended early"""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model's answer: a content, a refusal, or calls of tools."""

    content: str | None
    finish: Literal["stop", "length", "content_filter", "tool_calls", "pause"] = "stop"
    refusal: str | None = None
    earlier: tuple[AnswerMessage, ...] = ()
    """messages before that, where an API has them"""
    calls: tuple[AskedTool, ...] = ()
    hosted: tuple[HostedUse, ...] = ()
    """the provider's own tools that it used on the way"""
    counts_nothing: bool = False
    """true if its usage says 0 tokens"""
    has_word: bool = False
    """true if it ends with `word`, whatever the API calls such an end"""
    word: str | None = None

    def ended_with(self, usual: str | None) -> str | None:
        """Returns the word that says why it ended, for which the API has a `usual` one."""
        return self.word if self.has_word else usual

    def usage(self, counts: JsonObject) -> JsonObject:
        """Returns the counts of tokens as the API tells them."""
        return zeroed(counts) if self.counts_nothing else counts

    @property
    def tokens(self) -> int:
        """An estimate of what it cost to write."""
        texts = [self.content or self.refusal or ""]
        texts += [message.text for message in self.earlier]
        texts += [call.name + call.arguments for call in self.calls]
        return sum(map(token_count, texts))

    @property
    def messages(self) -> tuple[AnswerMessage, ...]:
        if self.calls and self.content is None:
            return self.earlier
        last = AnswerMessage(self.content or "", self.refusal, cut=self.finish != "stop")
        return (*self.earlier, last)


@dataclass(frozen=True, slots=True)
class ModelApi:
    """One API: how it reads requests, and writes answers and errors."""

    read_data: Callable[[JsonObject, int], ModelCall]
    """reads a body with the seed; raises ApiError"""
    reply: Callable[[ModelCall, ModelAnswer], JsonObject]
    events: Callable[[ModelCall, ModelAnswer], Iterator[Event]]
    error: Callable[[ApiError], JsonObject]
    headers: Callable[[int, RateLimits], Texts]
    """makes those of the n-th reply"""
    failed: Callable[[ModelCall, ApiError], JsonObject] | None = None
    """writes a response that failed, where an API has those"""
    stream_error: Callable[[ApiError], JsonObject] | None = None
    check_headers: Callable[[Headers], None] = lambda headers: None
    """raises ApiError for a request without a header that it needs"""

    def read(self, body: bytes, seed: int, headers: Headers) -> ModelCall:
        """Reads a request; raises ApiError as the provider would answer it."""
        self.check_headers(headers)
        return self.read_data(read_object(body), seed)

    def body(self, call: ModelCall, answer: ModelAnswer) -> bytes:
        return json.dumps(self.reply(call, answer)).encode()

    def failing_events(
        self, call: ModelCall, answer: ModelAnswer, error: ApiError, *, as_response: bool
    ) -> list[Event]:
        """Returns the events of an answer until halfway, and an error.

        With `as_response` it is a response that failed.
        """
        events = list(self.events(call, answer))
        middle = len(events) // 2
        if self.failed is None or self.stream_error is None:
            return [*events[: max(1, middle)], self.error(error)]
        begun = events[: max(3, middle)]
        last = self.stream_error(error)
        if as_response:
            last = {"type": "response.failed", "response": self.failed(call, error)}
        return [*begun, last | {"sequence_number": len(begun)}]


def server_sent(event: Event) -> bytes:
    """Returns one event on the wire of HTTP; those of chat completions have no names."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def as_written(value: Any) -> str:
    return value if isinstance(value, str) else plain_json(value)


@dataclass(slots=True)
class AnswerWriter:
    """Writes answers."""

    tool_turns: int = 1
    """turns that ask for tools where a request offers some, unless the user's text says which"""
    tool_calls: int = 1
    """calls in such a turn"""
    script: Sequence[ScriptRule] = ()
    """goes before all that"""
    tools_with_schema: str = "taken"
    """one of TOOLS_WITH_SCHEMA"""
    kept: OrderedDict[str, SchemaCompiler] = field(default_factory=OrderedDict)
    """the schemas it met last"""

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Returns the model's answer, cut where the request says so.

        Raises ApiError for a schema that nothing satisfies, and for one beside tools where that is
        refused.
        """
        if call.offer.tools and call.has_format and self.tools_with_schema != "taken":
            call = self.without_format(call)
        rule = next((rule for rule in self.script if rule.applies(call.messages)), None)
        hosted = hosted_uses(call)
        calls = self.calls(call, rule)
        if calls:
            return ModelAnswer(None, "tool_calls", calls=calls, hosted=hosted)
        content = self.content(call) if rule is None else as_written(rule.reply)
        answer = ModelAnswer(content, hosted=hosted)
        if call.max_tokens is None or answer.tokens <= call.max_tokens:
            return answer
        return ModelAnswer(content[: call.max_tokens * 4], "length", hosted=hosted)

    def content(self, call: ModelCall) -> str:
        """Returns what the model says, in the form that the request wants."""
        if call.form.schema is not None:
            return plain_json(self.value(call))
        if call.form.wants_json:
            return plain_json({ECHO if call.model == ECHO else "answer": self.text(call)})
        content = self.text(call)
        for stop in call.stop:
            content = content.partition(stop)[0]
        return content

    def without_format(self, call: ModelCall) -> ModelCall:
        """Returns a request with tools as a model sees it that is not told of a response format.

        It knows the form of an answer from its prompt alone.
        """
        if self.tools_with_schema == "refused":
            message = "A response format cannot be combined with tools: leave one of them out."
            raise ApiError(400, message, param="response_format")
        return replace(call, form=prompted_form(call.messages))

    def calls(self, call: ModelCall, rule: ScriptRule | None) -> tuple[AskedTool, ...]:
        """Returns the tools that the model asks for now; none when it is to answer."""
        if rule is not None:
            asked = [(item["name"], as_written(item.get("arguments", {}))) for item in rule.calls]
        else:
            asked = self.next_calls(call)
        prefix = f"call_sim{call.digest.hex()[:16]}"
        return tuple(
            AskedTool(f"{prefix}{index}", name, arguments)
            for index, (name, arguments) in enumerate(asked)
        )

    def next_calls(self, call: ModelCall) -> TurnCalls:
        """Returns names and arguments of the calls that the conversation asks for now.

        Where it says nothing, the settings do.
        """
        tools = [tool for tool in call.offer.tools if not tool.kind]
        if not tools or not call.offer.may_call:
            return []
        turns = asked_turns(call.messages, self.tool_turns)
        if not call.offer.parallel and any(turns):
            turns = [[asked] for turn in turns for asked in turn]
        number = len(call.turns)
        if number >= len(turns):
            return []
        if turns[number]:
            return turns[number]
        count = self.tool_calls if call.offer.parallel else 1
        asked = []
        for index in range(number * count, (number + 1) * count):
            tool = tools[index % len(tools)]
            asked.append((tool.name, self.arguments(call, tool, index)))
        return asked

    def arguments(self, call: ModelCall, tool: OfferedTool, index: int) -> str:
        """Returns arguments that a tool's schema allows, made of the conversation's words.

        `index` counts all calls.
        """
        schema = {"type": "object"} if tool.parameters is None else tool.parameters
        strict_name = tool.name if tool.strict else None
        key = canonical({"schema": schema, "strict_name": strict_name})
        form = replace(call.form, schema=schema, schema_key=key, strict_name=strict_name)
        digest = content_digest(index, call.digest.hex())
        try:
            return plain_json(self.value(replace(call, form=form, digest=digest)))
        except ApiError as error:
            reason = error.message.partition(": ")[2]
            message = f"Invalid schema for function '{tool.name}': {reason}"
            raise ApiError(
                400, message, code="invalid_function_parameters", param="tools"
            ) from error

    def second_answer(self, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
        """Returns the answer after one that is as good and says something else.

        It says the same twice if there is no other.
        """
        for mood in MOODS:
            told = replace(call, messages=(("user", f"{mood} {call.user_text}"),))
            for index in range(8):
                digest = content_digest(index, call.digest.hex())
                first = self.answer(replace(told, digest=digest)).content or ""
                if first != answer.content:
                    return replace(answer, earlier=(AnswerMessage(first),))
        return replace(answer, earlier=(AnswerMessage(answer.content or ""),))

    def text(self, call: ModelCall) -> str:
        if call.model == ECHO:
            return call.user_text
        draft = draft_for(call, 0)
        return " ".join(draft.sentence() for _ in range(1 + draft.below(3)))

    def value(self, call: ModelCall) -> Any:
        """Returns a value of the call's schema; raises ApiError if none is found."""
        compiled = self.compiled(call.form)
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

    def compiled(self, form: AnswerForm) -> SchemaCompiler:
        """Returns the schema, compiled once; raises ApiError for one that is wrong."""
        compiled = self.kept.get(form.schema_key)
        if compiled is None:
            compiled = compile_form(form)
            self.kept[form.schema_key] = compiled
            if len(self.kept) > MAX_SCHEMAS:
                self.kept.popitem(last=False)
        return compiled


def compile_form(form: AnswerForm) -> SchemaCompiler:
    """Compiles the schema of a form; raises ApiError for one that is wrong."""
    try:
        if form.strict_name is not None:
            problem = strict_problem(form.schema)
            if problem is not None:
                raise schema_refused(problem, f" '{form.strict_name}'")
        compiled = SchemaCompiler(form.schema)
        if compiled.unsure:
            compiled.valid(None)
    except (SchemaError, RecursionError) as error:
        raise schema_refused(str(error)) from error
    return compiled


def schema_refused(reason: str, name: str = "") -> ApiError:
    message = f"Invalid schema for response_format{name}: {reason}."
    return ApiError(400, message, code="invalid_json_schema", param="response_format")


def hosted_uses(call: ModelCall) -> tuple[HostedUse, ...]:
    """Returns the uses of the provider's own tools, once a reply."""
    if not call.offer.may_call or not call.offer.hosted:
        return ()
    draft = draft_for(call, 0)
    return tuple(HostedUse(tool.kind, draft.phrase(2, 5)) for tool in call.offer.hosted)


def draft_for(call: ModelCall, attempt: int) -> Draft:
    """Returns a draft whose random choices follow from seed and content alone."""
    seed = int.from_bytes(call.digest) + attempt
    return Draft(Random(seed), call.user_text)  # noqa: S311 (nothing to guess)
