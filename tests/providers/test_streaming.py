"""A sender that streams, against real servers on loopback: events to one body, and what a broken stream is named."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from wire_servers import Answer, Seen, always, chat_body, http, serving

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers import http as sending
from agac.providers.http import HttpReply, Sender
from agac.providers.provider import Provider
from agac.providers.table import SHIPPED
from agac.spec.workflow import Timeout

WIRE = b'{"model":"m"}'
BYE = b"0\r\n\r\n"


def sender(port: int, dialect: str = "openai-chat", **options: Any) -> Sender:
    provider = Provider(name="local", dialect=dialect, base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-1234567890")
    return Sender(provider, Redactor([]), env={}, stream=True, **options)


def chunk(delta: dict[str, Any] | None = None, **more: Any) -> bytes:
    event: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [], **more}
    if delta is not None:
        event["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: " + json.dumps(event).encode() + b"\n\n"


STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(*pieces: bytes, end: bytes = BYE, keep: bool = True) -> Answer:
    return always(HEAD + b"".join(map(piece, pieces)) + end, keep=keep)


async def asked(answer: Answer, times: int = 1, **options: Any) -> tuple[list[HttpReply | Fault], list[Seen], int]:
    async with serving(answer) as server, sender(server.port, **options) as one:
        replies = [await one.send(WIRE) for _ in range(times)]
    return replies, server.seen, server.connections


def the_reply(answer: Answer, **options: Any) -> HttpReply:
    [reply], _, _ = asyncio.run(asked(answer, **options))
    assert isinstance(reply, HttpReply), reply
    return reply


def the_fault(answer: Answer, **options: Any) -> Fault:
    [fault], _, _ = asyncio.run(asked(answer, **options))
    assert isinstance(fault, Fault), fault
    return fault


def test_a_stream_is_asked_for_and_put_together_as_one_body() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    answer = stream(chunk({"role": "assistant"}), chunk({"content": "Hel"}), chunk({"content": "lo"}) + STOP,
                    chunk(usage=usage) + DONE)  # fmt: skip
    [reply], [seen], _ = asyncio.run(asked(answer))
    assert isinstance(reply, HttpReply)
    assert json.loads(seen.body) == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert seen.headers["accept"] == "text/event-stream, application/json"
    body = json.loads(reply.body)
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert (body["choices"][0]["finish_reason"], body["usage"], body["model"]) == ("stop", usage, "m")
    assert reply.ttft is not None
    assert reply.ttft == reply.time_to_response
    assert 0 <= reply.ttft <= reply.ended - reply.started


async def test_a_provider_that_refuses_to_be_told_to_count_is_not_told() -> None:
    async with serving(stream(STOP, DONE)) as server:
        row = replace(SHIPPED["mistral"], base_url=f"http://127.0.0.1:{server.port}/v1")
        async with Sender(row, Redactor([]), env={}, stream=True) as one:
            await one.send(WIRE)
    assert json.loads(server.seen[0].body) == {"model": "m", "stream": True}


def test_the_connection_is_kept_for_the_next_stream() -> None:
    replies, _, connections = asyncio.run(asked(stream(chunk({"content": "a"}), STOP, DONE), times=3))
    assert all(isinstance(reply, HttpReply) for reply in replies)
    assert connections == 1


def test_a_server_that_does_not_hang_up_after_its_last_event_costs_only_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agac.providers.http.LAST_BYTES", 0.01)
    replies, _, connections = asyncio.run(asked(stream(chunk({"content": "a"}), STOP, DONE, end=b""), times=2))
    assert all(isinstance(reply, HttpReply) for reply in replies)
    assert connections == 2


def test_thinking_counts_for_the_first_token_and_not_for_the_answer() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD + piece(chunk({"reasoning_content": "Hm."})))
        await writer.drain()
        await asyncio.sleep(0.02)  # the times that are to differ
        writer.write(piece(chunk({"content": "42"}) + STOP + DONE) + BYE)
        return True

    reply = the_reply(answer)
    assert reply.ttft is not None
    assert reply.time_to_response is not None
    assert reply.ttft < reply.time_to_response


def test_a_server_that_does_not_stream_is_understood() -> None:
    reply = the_reply(always(http(chat_body("whole"))))
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "whole"
    assert (reply.ttft, reply.time_to_response) == (None, None)


def test_an_error_status_is_an_answer() -> None:
    reply = the_reply(always(http(b'{"error": {}}', "429 Too Many Requests", Retry_After="2")))
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")


def test_a_stream_without_its_last_event_is_whole_once_the_model_said_why_it_stopped() -> None:
    assert json.loads(the_reply(stream(chunk({"content": "a"}), STOP)).body)["choices"][0]["finish_reason"] == "stop"


BROKEN: dict[str, tuple[Answer, str]] = {
    "cut between two events": (stream(chunk({"content": "half"})), "lost before the answer was complete"),
    "cut in the middle of one": (stream(chunk({"content": "half"})[:20]), "lost before the answer was complete"),
    "cut without a goodbye": (stream(chunk({"content": "a"}), end=b"", keep=False), "lost before the answer"),
    "cut after its head": (always(HEAD, keep=False), "lost before the answer was complete"),
    "not JSON": (stream(b"data: {oops\n\n", STOP, DONE), "streamed an event that is not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_may_have_been_billed(name: str) -> None:
    answer, words = BROKEN[name]
    fault = the_fault(answer)
    assert words in fault.message
    assert (fault.kind, fault.type, fault.ambiguous) == (FaultKind.RETRY, ErrorType.PROVIDER_ERROR, True)


def test_silence_within_a_stream_is_bounded() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD + piece(chunk({"content": "a"})))
        await writer.drain()
        await asyncio.Event().wait()
        return False

    fault = the_fault(answer, timeout=Timeout(first_byte=0.05))
    assert "sent nothing for 0.05 s" in fault.message
    assert (fault.type, fault.ambiguous) == (ErrorType.TIMEOUT, True)
    fault = the_fault(answer, timeout=Timeout(total=0.05))
    assert "did not finish within 0.05 s" in fault.message


ERRORS: list[tuple[str, list[bytes], Callable[[dict[str, Any]], bool], int]] = [
    (
        "openai-chat",
        [chunk({"content": "half"}), b'data: {"error": {"message": "Oh.", "code": "server_error"}}\n\n'],
        lambda body: body["error"]["message"] == "Oh.",
        200,
    ),
    (
        "openai-responses",
        [b'event: error\ndata: {"type": "error", "code": "rate_limit_exceeded", "message": "Oh."}\n\n'],
        lambda body: body["error"]["code"] == "rate_limit_exceeded",
        200,
    ),
    (
        "openai-responses",
        [b'data: {"type": "error", "status": 429, "error": {"message": "Oh.", "headers": {"Retry-After": "7"}}}\n\n'],
        lambda body: body["error"]["message"] == "Oh.",
        429,
    ),
    (
        "openai-responses",
        [b'data: {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}}\n\n'],
        lambda body: body["error"]["code"] == "x",
        200,
    ),
]


@pytest.mark.parametrize(("dialect", "events", "holds", "status"), ERRORS)
def test_an_error_amid_the_stream_is_the_answer(
    dialect: str, events: list[bytes], holds: Callable[[dict[str, Any]], bool], status: int
) -> None:
    reply = the_reply(stream(*events), dialect=dialect)
    assert holds(json.loads(reply.body))
    assert reply.status == status
    if status == 429:
        assert reply.headers["retry-after"] == "7"


def test_items_fill_a_response_whose_last_event_holds_none() -> None:
    item = {"type": "message", "status": "completed", "content": [{"type": "output_text", "text": "Hi"}]}
    events = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    reply = the_reply(
        stream(*(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)), dialect="openai-responses"
    )
    assert json.loads(reply.body)["output"] == [item]


async def test_a_large_body_asks_for_a_stream_too() -> None:
    async with serving(stream(STOP, DONE)) as server, sender(server.port) as one:
        await one.send(b'{"model":"m","x":"' + b"a" * sending.LARGE_BODY + b'"}')
    assert json.loads(server.seen[0].body)["stream"] is True


def test_a_redirect_is_not_followed() -> None:
    fault = the_fault(always(http(b"", "307 Temporary Redirect", Location="http://elsewhere.example/v1")))
    assert "points to elsewhere.example" in fault.message
