"""A response told piece by piece, in OpenAI's events: as server-sent events or as messages of a WebSocket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agac.simulator.asks import Answer, ApiError, Ask, Message
from agac.simulator.responses import failed, frame, item, item_id, part, response

Event = dict[str, Any]

_ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}


def events(ask: Ask, answer: Answer, size: int = 24) -> Iterator[Event]:
    """All events of an answer, its texts in pieces of `size` characters."""
    return numbered(_told(ask, answer, size))


def failing_events(ask: Ask, answer: Answer, error: ApiError, *, as_response: bool) -> Iterator[Event]:
    """The same, but halfway something goes wrong: an `error` event, or a response that failed."""
    told = list(_told(ask, answer, 24))
    end: Event = {"type": "response.failed", "response": failed(ask, error)}
    if not as_response:
        end = {"type": "error", "code": error.code, "message": error.message, "param": None}
    return numbered([*told[: max(3, len(told) // 2)], end])


def numbered(told: Any) -> Iterator[Event]:
    """Each event with its `sequence_number`."""
    for number, event in enumerate(told):
        yield {**event, "sequence_number": number}


def as_sse(event: Event) -> bytes:
    """An event on the wire of HTTP."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def socket_error(error: ApiError) -> Event:
    """An error as a WebSocket tells it: there is no status line, so status and headers are within."""
    about = {"type": error.kind, "code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "status": error.status, "error": about | {"headers": error.headers}}


def _told(ask: Ask, answer: Answer, size: int) -> Iterator[Event]:
    begun = frame(ask, "in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, message in enumerate(answer.messages):
        yield from _item_events(ask, index, message, size)
    whole = response(ask, answer)
    yield {"type": _ENDS[whole["status"]], "response": whole}


def _item_events(ask: Ask, index: int, message: Message, size: int) -> Iterator[Event]:
    where = {"item_id": item_id(ask, index), "output_index": index, "content_index": 0}
    kind, field, text = ("response.output_text", "text", message.text)
    if message.refusal is not None:
        kind, field, text = "response.refusal", "refusal", message.refusal
    logprobs: Event = {"logprobs": []} if field == "text" else {}
    done = item(ask, index, message)
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": done | {"status": "in_progress", "content": []},
    }
    yield {"type": "response.content_part.added", **where, "part": part(message) | {field: ""}}
    for start in range(0, len(text), size):
        yield {"type": f"{kind}.delta", **where, "delta": text[start : start + size], **logprobs}
    yield {"type": f"{kind}.done", **where, field: text, **logprobs}
    yield {"type": "response.content_part.done", **where, "part": part(message)}
    yield {"type": "response.output_item.done", "output_index": index, "item": done}
