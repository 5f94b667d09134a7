"""Answers that come piece by piece: each dialect's events, put together into the body that its `parse` reads.

So there is one `parse`, whatever the transport, and what is stored of a reply is the same, streamed or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agac.core.types import JSONValue
from agac.providers import anthropic_stream, openai_chat_stream, openai_responses_stream


class Assembly(Protocol):
    """One answer being put together."""

    begun: bool
    """The first token has come, be it of thinking."""

    answering: bool
    """The first token of the answer itself has come: of text or of a refusal."""

    done: bool
    """The end that the protocol promises has come, or an error in its place."""

    def take(self, event: Any) -> None:
        """One event, as JSON. What is no event is left out, and what comes after the end."""

    def finish(self) -> bool:
        """No more events will come. Whether the answer is whole."""

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """Status, headers and body, as if they had come without a stream. Only once it is whole."""


class Watched:
    """An answer being put together, and when it began. Times are `time.monotonic()` seconds."""

    __slots__ = ("answering_at", "assembly", "begun_at")

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.begun_at: float | None = None
        self.answering_at: float | None = None

    def take(self, event: Any) -> None:
        """One event, now."""
        self.assembly.take(event)
        if self.answering_at is None and self.assembly.begun:
            now = time.monotonic()
            self.begun_at = self.begun_at or now
            if self.assembly.answering:
                self.answering_at = now


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a dialect streams. `asks` is put into a body behind its `{` to ask for a stream; `assembly` begins an answer.

    `asks_usage` goes with `asks` where a provider has to be told to count the tokens of a stream. `socket_asks` is put
    there instead for a WebSocket; None: the dialect has none.
    """

    asks: bytes
    assembly: Callable[[], Assembly]
    asks_usage: bytes = b""
    socket_asks: bytes | None = None


STREAMS: dict[str, Streaming] = {
    "openai-chat": Streaming(
        asks=b'"stream":true,',
        asks_usage=b'"stream_options":{"include_usage":true},',
        assembly=openai_chat_stream.ChatAssembly,
    ),
    "openai-responses": Streaming(
        asks=b'"stream":true,',
        assembly=openai_responses_stream.ResponseAssembly,
        socket_asks=b'"type":"response.create",',
    ),
    "anthropic": Streaming(asks=b'"stream":true,', assembly=anthropic_stream.MessageAssembly),
}
"""How each dialect streams, by its name in `DIALECTS`."""


def asking(wire: bytes, how: bytes) -> bytes:
    """The body of a request, which is a JSON object that is not empty, with `how` at its beginning."""
    return b"{" + how + wire[1:]
