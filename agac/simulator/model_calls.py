"""Requests in the simulator's own form, and the reading that all dialects share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from agac.simulator.api_errors import ApiError
from agac.simulator.kinds import JsonObject
from agac.simulator.tool_calls import AskedTool, Messages, OfferedTool

plain_json = json.JSONEncoder(ensure_ascii=False).encode
"""JSON with letters as they are."""
compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""JSON that is the same whatever the order of keys."""

SCHEMA_MARK = "JSON Schema:\n"
"""In a system message, the text after the last of these is the schema of the reply."""


def encoded(value: Any) -> bytes:
    """Returns JSON as providers write results: letters as they are.

    Halves of pairs are escaped, which UTF-8 does not have.
    """
    try:
        return compact_json(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def content_digest(seed: int, content: Any) -> bytes:
    """Returns 16 bytes for a content, whatever the order of its keys."""
    salt = (seed & (2**64 - 1)).to_bytes(8)
    return blake2b(canonical(content).encode(), digest_size=16, salt=salt).digest()


def signature(text: str) -> str:
    """Returns that by which a provider knows what it wrote itself."""
    return content_digest(1, text).hex()


def token_count(text: str) -> int:
    """Returns about how many tokens a text is: four characters each, rounded up."""
    return -(-len(text) // 4)


def read_object(body: bytes) -> JsonObject:
    """Reads a JSON object; raises ApiError."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"We could not parse the JSON body of your request: {error}"
        raise ApiError(400, message) from error
    if not isinstance(data, dict):
        raise ApiError(400, "We expected a JSON object as the body of your request.")
    return data


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form that an answer must have."""

    schema: Any = None
    """what it must conform to; without a schema, `wants_json` means any object"""
    schema_key: str = ""
    """a text that is different for different schemas"""
    strict_name: str | None = None
    """the schema's name, in OpenAI's strict mode"""
    wants_json: bool = False


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of a request."""

    tools: tuple[OfferedTool, ...] = ()
    may_call: bool = True
    """false if the model is told of the tools and may not call them"""
    parallel: bool = True

    @property
    def hosted(self) -> list[OfferedTool]:
        """Those that the provider runs."""
        return [tool for tool in self.tools if tool.kind]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The tokens of a prompt that came from a cache, and those that were written, by lifetime."""

    read: int = 0
    written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request for one reply."""

    model: str
    messages: tuple[tuple[str, str], ...]
    """role and text of each"""
    digest: bytes
    """16 bytes that name seed and whole content: the reply follows from them"""
    prompt_tokens: int
    """an estimate"""
    form: AnswerForm = AnswerForm()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    extras: JsonObject = field(default_factory=dict)
    """parameters that the reply says again"""
    offer: ToolOffer = ToolOffer()
    turns: tuple[tuple[AskedTool, ...], ...] = ()
    """the calls of each turn that asked for some"""
    data: JsonObject = field(default_factory=dict)
    """the body"""
    cache: CacheUse = CacheUse()
    hints: JsonObject = field(default_factory=dict)
    """Dynamo's"""

    @property
    def conversation(self) -> bytes:
        """16 bytes that stay the same in all turns of a conversation."""
        return self._until_answered(0)

    @property
    def question(self) -> bytes:
        """16 bytes that stay the same when this is sent again, with an unusable answer quoted.

        Each turn with tools is a new question.
        """
        results = [index for index, (role, _) in enumerate(self.messages) if role == "tool"]
        return self._until_answered(results[-1] + 1 if results else 0)

    def _until_answered(self, start: int) -> bytes:
        """Names the messages before the first answer that comes at `start` or later."""
        roles = [role for role, _ in self.messages]
        end = roles.index("assistant", start) if "assistant" in roles[start:] else None
        return content_digest(0, [self.model, self.messages[:end]])

    @property
    def has_format(self) -> bool:
        """True if a parameter asks for a form of the answer, and not its prompt alone."""
        formats = [
            self.data.get("response_format"),
            (self.data.get("text") or {}).get("format"),
            (self.data.get("output_config") or {}).get("format"),
        ]
        return any(form is not None and form.get("type") != "text" for form in formats)

    @property
    def user_text(self) -> str:
        """The last text that the model got: the user's message, or the results of its calls."""
        texts = (text for role, text in reversed(self.messages) if role in ("user", "tool"))
        return next(texts, "")


@dataclass(slots=True)
class Conversation:
    """The messages of a request as they are read."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    """role and text of each"""
    turns: list[tuple[AskedTool, ...]] = field(default_factory=list)
    """the calls of each turn that asked for some"""
    open_ids: list[str] = field(default_factory=list)
    """the ids of calls that have no result yet"""

    def say(self, role: str, text: str, calls: Sequence[AskedTool] = ()) -> None:
        """Adds a message, with the calls that it asks for."""
        if calls:
            self.turns.append(tuple(calls))
            self.open_ids += [call.id for call in calls]
        lines = [text, *(f"{call.name}({call.arguments})" for call in calls)]
        self.messages.append((role, "\n".join(lines)))

    def result(self, call_id: Any, text: str, place: str) -> None:
        """Adds what a call came to, to the message with the results before it."""
        if call_id not in self.open_ids:
            message = f"{place}: no tool call found for the result of {call_id!r}."
            raise ApiError(400, message, param=place)
        self.open_ids.remove(call_id)
        if self.messages[-1][0] == "tool":
            text = f"{self.messages.pop()[1]}\n{text}"
        self.messages.append(("tool", text))

    def check(self, place: str) -> None:
        """Refuses a conversation that continues, or ends, without the results of its calls."""
        if self.open_ids:
            missing = ", ".join(self.open_ids)
            message = f"{place}: tool calls must be followed by their results; missing: {missing}."
            raise ApiError(400, message, param=place)


def model_call(data: JsonObject, seed: int, talk: Conversation) -> ModelCall:
    """Makes the call of a checked request; whether it is a stream is no part of its content."""
    stream = data.pop("stream", None) or False
    tokens = max(1, sum(token_count(text) for _, text in talk.messages))
    if data.get("tools"):
        tokens += token_count(canonical(data["tools"]))
    return ModelCall(
        data["model"],
        tuple(talk.messages),
        content_digest(seed, data),
        tokens,
        stream=stream,
        turns=tuple(talk.turns),
        data=data,
    )


def prompted_form(messages: Messages) -> AnswerForm:
    """Returns the form by the schema at the end of a system message, if there is one."""
    for role, text in reversed(messages):
        if role in ("system", "developer") and SCHEMA_MARK in text:
            written = text.rpartition(SCHEMA_MARK)[2].strip()
            with suppress(ValueError):
                schema = json.JSONDecoder().raw_decode(written)[0]
                return AnswerForm(schema, written)
            break
    return AnswerForm()
