"""A message told piece by piece, in Anthropic's events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agac.simulator.anthropicwire import error_object
from agac.simulator.asks import Answer, ApiError, Ask
from agac.simulator.messages import frame, stopped, usage_of

Event = dict[str, Any]


def message_chunks(ask: Ask, answer: Answer) -> Iterator[bytes]:
    """All events of an answer on the wire."""
    return map(as_sse, events(ask, answer))


def failing_chunks(ask: Ask, answer: Answer, error: ApiError) -> Iterator[bytes]:
    """The same, but halfway an `error` comes, and nothing after it."""
    told = list(events(ask, answer))
    return map(as_sse, [*told[: max(1, len(told) // 2)], error_object(error)])


def as_sse(event: Event) -> bytes:
    """One event on the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def events(ask: Ask, answer: Answer, size: int = 24) -> Iterator[Event]:
    """All events of an answer, its text in pieces of `size` characters."""
    usage = usage_of(ask, answer)
    yield {"type": "message_start", "message": frame(ask) | {"usage": usage | {"output_tokens": 1}}}
    yield {"type": "ping"}
    text = answer.content or ""
    if text:
        block = {"type": "text", "text": "", "citations": None}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        for start in range(0, len(text), size):
            delta = {"type": "text_delta", "text": text[start : start + size]}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": stopped(answer), "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}
