"""What is asked and what is answered, in the simulator's own form: each API reads into it and writes from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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

    `digest` (16 bytes) names seed and whole content: the reply follows from it. `question` is the same for a retry and
    for a re-ask that quotes an unusable answer. `schema` is what the reply must conform to; None with `wants_json`
    is any object. `user_text` is the last message of the user, `prompt_tokens` an estimate.
    """

    model: str
    messages: tuple[tuple[str, str], ...]
    digest: bytes
    question: bytes
    prompt_tokens: int
    schema: Any = None
    schema_key: str = ""
    wants_json: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def user_text(self) -> str:
        """What the user said last."""
        return next((text for role, text in reversed(self.messages) if role == "user"), "")

    @property
    def all_text(self) -> str:
        """Every message, one after the other."""
        return "\n".join(text for _, text in self.messages)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said: `content`, or None and a `refusal`."""

    content: str | None
    finish: Finish = "stop"
    refusal: str | None = None

    @property
    def tokens(self) -> int:
        """An estimate of what it cost to write."""
        return token_count(self.content or self.refusal or "")


def token_count(text: str) -> int:
    """About how many tokens a text is: four characters each, rounded up."""
    return -(-len(text) // 4)
