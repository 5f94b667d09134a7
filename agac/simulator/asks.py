"""What is asked and what is answered, in the simulator's own form: each API reads into it and writes from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

FINGERPRINT = "agac-simulator"
"""The `system_fingerprint` by which a client sees that a reply was simulated."""

CREATED = 1_735_689_600
"""Every reply says that it was made then: a reply depends on seed and content, not on time."""

Finish = Literal["stop", "length", "content_filter"]


class ApiError(Exception):
    """A request that gets an error instead of a reply, in the words of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for one reply.

    `digest` (16 bytes) names seed and whole content: the reply follows from it. `schema` is what the reply must conform
    to, `schema_key` a text that is different for different schemas, `strict_name` set where OpenAI's strict mode was
    asked for; no schema with `wants_json` is any object. `prompt_tokens` is an estimate.
    """

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

    @property
    def question(self) -> bytes:
        """16 bytes that stay the same when this is asked again, be it with an unusable answer quoted."""
        roles = [role for role, _ in self.messages]
        told = self.messages[: roles.index("assistant")] if "assistant" in roles else self.messages
        return content_digest(0, [self.model, told])

    @property
    def user_text(self) -> str:
        """What the user said last."""
        return next((text for role, text in reversed(self.messages) if role == "user"), "")

    @property
    def all_text(self) -> str:
        """Every message, one after the other."""
        return "\n".join(text for _, text in self.messages)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an answer: its text, or a refusal. `cut`: it says of itself that it ended early."""

    text: str = ""
    refusal: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said: `content`, or None and a `refusal`. `earlier` are messages before that, where an API has
    them: the model began, and began anew."""

    content: str | None
    finish: Finish = "stop"
    refusal: str | None = None
    earlier: tuple[Message, ...] = ()

    @property
    def tokens(self) -> int:
        """An estimate of what it cost to write."""
        return token_count(self.content or self.refusal or "") + sum(token_count(m.text) for m in self.earlier)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message, in the order in which they were written."""
        return (*self.earlier, Message(self.content or "", self.refusal, cut=self.finish != "stop"))


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""JSON that is the same whatever the order of keys."""


def content_digest(seed: int, content: Any) -> bytes:
    """16 bytes for a content, whatever the order of its keys."""
    return blake2b(canonical(content).encode(), digest_size=16, salt=(seed & (2**64 - 1)).to_bytes(8)).digest()


def token_count(text: str) -> int:
    """About how many tokens a text is: four characters each, rounded up."""
    return -(-len(text) // 4)
