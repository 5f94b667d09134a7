"""The sender against real servers on loopback: what it sends, streamed or not, what it hands back, what it names a
failure."""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard
from aiohttp import compression_utils
from wire_servers import (
    AUTHORITY,
    BOUNDS,
    KEY,
    Answer,
    Seen,
    a_fault,
    a_reply,
    always,
    bounds,
    chat_body,
    http,
    never,
    post,
    sending,
    server_tls,
    serving,
)

from agac.core.errors import ErrorType, UsageError
from agac.core.types import FaultKind
from agac.providers import event_stream
from agac.providers import http as sender_module
from agac.providers.provider import Limits
from agac.providers.transport import EXCEPTION_RULES, exception_rule
from agac.spec.rules import Timeout

RETRY, FATAL, PROVIDER, TIMEOUT = FaultKind.RETRY, FaultKind.FATAL, ErrorType.PROVIDER_ERROR, ErrorType.TIMEOUT

# Events of a stream.


def chunk(delta: dict[str, Any] | None = None, **more: Any) -> bytes:
    event: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [], **more}
    if delta is not None:
        event["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: " + json.dumps(event).encode() + b"\n\n"


STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
BYE = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(*pieces: bytes, end: bytes = BYE, keep: bool = True) -> Answer:
    return always(HEAD + b"".join(map(piece, pieces)) + end, keep=keep)


async def test_long_lines_of_headers_cost_no_answer() -> None:
    long = http(b'{"a": 1}', X_Trace="x" * 20_000, Link="y" * 100_000)
    async with serving(always(long)) as server, sending(server.base_url) as sender:
        reply = a_reply(await sender.send(b"{}", BOUNDS))
    assert (reply.status, reply.body, len(reply.headers["x-trace"])) == (200, b'{"a": 1}', 20_000)


async def test_an_answer_in_a_compression_that_cannot_be_read_ends_the_run_and_is_not_asked_for_again() -> None:
    packed = http(zstandard.compress(b'{"a": 1}'), Content_Encoding="zstd")
    async with serving(always(packed)) as server, sending(server.base_url) as sender:
        found = await sender.send(b"{}", BOUNDS)
    assert server.seen[0].headers["accept-encoding"].startswith("gzip, deflate")
    if compression_utils.HAS_ZSTD:  # the library was installed for it
        assert a_reply(found).body == b'{"a": 1}'
        return
    fault = a_fault(found)
    assert (fault.kind, fault.type, fault.ambiguous) == (FATAL, PROVIDER, True)
    assert "compressed its answer in a way that was not asked for and cannot be read here: " in fault.message
    assert "zstd" in fault.message


async def test_a_call_is_one_post_of_the_given_bytes_with_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor is anything added: no cookie of an earlier answer, no credentials of a netrc file."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wire = '{"text":"grüße"}'.encode()
    answer = always(http(b'{"a": 1}', X_Request_Id="r1", Set_Cookie="tracking=1"))
    async with serving(answer) as server, sending(server.base_url, headers={"x-team": "data"}) as sender:
        reply, _ = [a_reply(await sender.send(wire, BOUNDS)) for _ in range(2)]
    assert (reply.status, reply.body, reply.headers["x-request-id"]) == (200, b'{"a": 1}', "r1")
    assert 0 < reply.duration < 60
    assert (reply.ttft, reply.time_to_response) == (None, None)
    assert server.connections == 1
    for seen in server.seen:
        assert (seen.line, seen.body) == ("POST /v1/chat/completions HTTP/1.1", wire)
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert (seen.headers["content-type"], seen.headers["x-team"]) == ("application/json", "data")
        assert seen.headers["user-agent"].startswith("agac/")
        assert "cookie" not in seen.headers


@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_status_is_an_answer_and_no_fault(streams: bool) -> None:
    async with serving(always(http(b"{}", "429 Too Many Requests", Retry_After="3"))) as server:
        answer = a_reply(await post(server.base_url, stream=streams))
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


async def test_calls_at_once_do_not_wait_for_a_connection() -> None:
    all_here = asyncio.Event()

    async def when_all_are_here(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if len(server.seen) == 40:
            all_here.set()
        await all_here.wait()
        writer.write(http())
        return True

    async with serving(when_all_are_here) as server, sending(server.base_url) as sender:
        for answer in await asyncio.gather(*(sender.send(b"{}", BOUNDS) for _ in range(40))):
            a_reply(answer)


async def trickle(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await asyncio.sleep(0.01)
    return False


async def silent_after_a_piece(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.write(HEAD + piece(chunk({"content": "a"})))
    await writer.drain()
    await asyncio.Event().wait()
    return False


LATE: list[tuple[Answer, str, bool, Timeout, bool, str]] = [
    # the answer, over what, streamed, the bounds; whether it may have been billed, and the message
    (never, "http", False, bounds(first_byte=0.05), True, "local sent nothing for 0.05 s"),
    (trickle, "http", False, bounds(total=0.2), True, "local did not finish within 0.2 s"),
    (never, "https", False, bounds(connect=0.05), False, "no connection to local (127.0.0.1) within 0.05 s"),
    (silent_after_a_piece, "http", True, bounds(first_byte=0.05), True, "local sent nothing for 0.05 s"),
    (silent_after_a_piece, "http", True, bounds(total=0.05), True, "local did not finish within 0.05 s"),
]


@pytest.mark.parametrize(("answer", "scheme", "streams", "timeout", "billed", "message"), LATE)
async def test_a_time_out_says_which_bound_it_was(
    answer: Answer, scheme: str, streams: bool, timeout: Timeout, billed: bool, message: str
) -> None:
    async with serving(answer) as server:
        server.scheme = scheme
        found = a_fault(await post(server.base_url, timeout=timeout, stream=streams))
    assert (found.kind, found.type, found.ambiguous) == (RETRY, TIMEOUT, billed)
    bound = "connect" if scheme == "https" else "first_byte" if timeout.first_byte else "total"
    assert found.message == f"{message} (timeout.{bound})"


BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
CUT = "was lost before the answer was complete"
BROKEN: dict[str, tuple[Answer, str]] = {
    **{
        name: (always(sent, keep=False), "")
        for name, sent in {
            "before a byte": b"",
            "within the headers": BODY[:28],
            "before the body": BODY,
            "within the body": BODY + b'{"choices": [',
            "within a chunk": CHUNKED + b"50\r\n{}",
            "between chunks": CHUNKED + b"2\r\n{}\r\n",
            "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
            "no number for a length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
            "broken compression": GZIP + b"Content-Length: 9\r\n\r\nnot gzip!",
            "half of the compression": GZIP
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + piece(gzip.compress(b"x" * 1000)[:10]),
        }.items()
    },
    "a stream between two events": (stream(chunk({"content": "half"})), CUT),
    "a stream within an event": (stream(chunk({"content": "half"})[:20]), CUT),
    "a stream without an end": (stream(chunk({"content": "a"}), end=b"", keep=False), CUT),
    "a stream after its head": (always(HEAD, keep=False), CUT),
    "a stream that is not JSON": (stream(b"data: {oops\n\n", STOP, DONE), "streamed an event that is not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_worth_another_try_and_may_have_been_billed(name: str) -> None:
    answer, words = BROKEN[name]
    async with serving(answer) as server:
        found = a_fault(await post(server.base_url, stream=name.startswith("a stream")))
        assert len(server.seen) == 1, "a call was sent twice"
    assert (found.kind, found.type, found.ambiguous) == (RETRY, PROVIDER, True)
    assert words in found.message


async def test_where_nobody_speaks_http_or_tls_nothing_was_billed() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        no_tls = a_fault(await post(f"https://127.0.0.1:{port}/v1"))
    nobody = a_fault(await post(f"http://127.0.0.1:{port}/v1"))
    assert no_tls.message.startswith("no TLS connection to local (127.0.0.1): ")
    assert nobody.message.startswith("local (127.0.0.1) cannot be reached: ")
    for found in (no_tls, nobody):
        assert (found.kind, found.type, found.ambiguous) == (RETRY, PROVIDER, False)


async def test_large_and_compressed_bodies_travel() -> None:
    large = json.dumps({"text": "x" * 3_000_000}).encode()
    for headers, body in (({}, large), ({"Content_Encoding": "gzip"}, gzip.compress(large))):
        async with serving(always(http(body, **headers))) as server:
            assert a_reply(await post(server.base_url, large)).body == large
        assert server.seen[0].body == large
    async with serving(stream(STOP, DONE)) as server:
        await post(server.base_url, b'{"model":"m","x":"' + b"a" * sender_module.LARGE_BODY + b'"}', stream=True)
    assert json.loads(server.seen[0].body)["stream"] is True


async def test_a_certificate_is_trusted_when_the_environment_names_its_authority_and_else_stops_the_run() -> None:
    async with serving(always(http()), tls=server_tls()) as server:
        found = a_fault(await post(server.base_url))
        assert server.seen == [], "the key went out before the certificate was checked"
        for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            a_reply(await post(server.base_url, env={variable: AUTHORITY}))
    assert (found.kind, found.ambiguous) == (FATAL, False)
    assert found.message.startswith("the certificate of 127.0.0.1 is not trusted: ")
    assert "Set SSL_CERT_FILE" in found.message


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://other.example/v1/chat/completions", "other.example"),
        ("", "another address"),
        ("/elsewhere", "another address"),
        ("http://[bad", "another address"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_redirect_is_not_followed_and_says_where_it_points(location: str, target: str, streams: bool) -> None:
    async with serving(always(http(b"", "308 Permanent Redirect", Location=location))) as server:
        found = a_fault(await post(server.base_url, stream=streams))
        assert len(server.seen) == 1
    assert (found.kind, found.status) == (FATAL, 308)
    assert f"points to {target}" in found.message
    assert "base_url" in found.message


async def test_a_call_that_is_given_up_leaves_the_pool_usable_and_closing_ends_those_that_wait() -> None:
    arrived = asyncio.Queue[int]()

    async def silent_but_once(seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await arrived.put(len(server.seen))
        if len(server.seen) != 2:
            await asyncio.Event().wait()
        writer.write(http())
        return True

    async with serving(silent_but_once) as server, sending(server.base_url) as sender:
        call = asyncio.create_task(sender.send(b"{}", BOUNDS))
        await arrived.get()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        a_reply(await sender.send(b"{}", BOUNDS))
        await arrived.get()
        waiting = asyncio.create_task(sender.send(b"{}", BOUNDS))
        await arrived.get()
        await sender.close()
        assert a_fault(await waiting).ambiguous


async def test_what_cannot_be_an_address_or_a_header_is_refused_and_a_key_not_shown() -> None:
    for address in ("", "localhost:8000/v1", "ftp://host/v1", "http://[bad/v1", f"http://{'a' * 64}.example/v1"):
        with pytest.raises(UsageError, match="the base_url of local is no address"):
            await post(address)
    for key in ("sk-first\nsk-second", "sk-“typographic”"):
        with pytest.raises(UsageError) as caught:
            await post("http://127.0.0.1/v1", api_key=key)
        assert "LOCAL_KEY" in caught.value.message
        assert "sk-" not in f"{caught.value.message} {caught.value.remedy}"


NEVER_RAISED_BY_A_REQUEST = {
    "WSServerHandshakeError",  # websockets only
    "WSMessageTypeError",
    "UploadAbortedError",  # only where an upload tracker aborts one
}


def test_every_exception_of_aiohttps_client_has_its_own_row_and_others_that_of_the_nearest_class() -> None:
    classes = {
        value
        for value in vars(aiohttp).values()
        if isinstance(value, type) and issubclass(value, (aiohttp.ClientError, aiohttp.ClientConnectionError))
    }
    unmapped = {cls.__name__ for cls in classes - EXCEPTION_RULES.keys()} - NEVER_RAISED_BY_A_REQUEST
    assert unmapped == set()
    assert len(classes) > 15

    class Newer(aiohttp.ServerDisconnectedError):
        pass

    assert exception_rule(Newer()) is EXCEPTION_RULES[aiohttp.ServerDisconnectedError]
    assert exception_rule(BrokenPipeError()) is EXCEPTION_RULES[OSError]
    assert exception_rule(TimeoutError()) is EXCEPTION_RULES[TimeoutError]
    not_found = EXCEPTION_RULES[aiohttp.ClientConnectorDNSError]
    assert (not_found.kind, not_found.ambiguous) == (RETRY, False)


async def test_a_stream_is_asked_for_and_put_together_as_one_body() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    answer = stream(chunk({"role": "assistant"}), chunk({"content": "Hel"}), chunk({"content": "lo"}) + STOP,
                    chunk(usage=usage) + DONE)  # fmt: skip
    async with serving(answer) as server, sending(server.base_url, stream=True) as sender:
        reply, *_ = [a_reply(await sender.send(b'{"model":"m"}', BOUNDS)) for _ in range(3)]
        assert server.connections == 1
    seen = server.seen[0]
    assert json.loads(seen.body) == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert seen.headers["accept"] == "text/event-stream, application/json"
    body = json.loads(reply.body)
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert (body["choices"][0]["finish_reason"], body["usage"], body["model"]) == ("stop", usage, "m")
    assert reply.ttft is not None
    assert reply.ttft == reply.time_to_response
    assert 0 <= reply.ttft <= reply.duration


async def test_a_server_that_counts_nothing_does_not_stream_or_leaves_out_the_last_event_is_understood() -> None:
    async with serving(stream(STOP, DONE)) as server:
        await post(server.base_url, stream=True, stream_usage=False)
    assert json.loads(server.seen[0].body) == {"model": "m", "stream": True}
    async with serving(always(http(chat_body("whole")))) as server:
        reply = a_reply(await post(server.base_url, stream=True))
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "whole"
    assert (reply.ttft, reply.time_to_response) == (None, None)
    async with serving(stream(chunk({"content": "a"}), STOP)) as server:
        reply = a_reply(await post(server.base_url, stream=True))
    assert json.loads(reply.body)["choices"][0]["finish_reason"] == "stop"


async def test_a_server_that_does_not_hang_up_after_its_last_event_costs_only_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "LAST_BYTES", 0.01)
    answer = stream(chunk({"content": "a"}), STOP, DONE, end=b"")
    async with serving(answer) as server, sending(server.base_url, stream=True) as sender:
        for _ in range(2):
            a_reply(await sender.send(b'{"model":"m"}', BOUNDS))
    assert server.connections == 2


async def test_thinking_counts_for_the_first_token_and_not_for_the_answer() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD + piece(chunk({"reasoning_content": "Hm."})))
        await writer.drain()
        await asyncio.sleep(0.02)  # the times that are to differ
        writer.write(piece(chunk({"content": "42"}) + STOP + DONE) + BYE)
        return True

    async with serving(answer) as server:
        reply = a_reply(await post(server.base_url, stream=True))
    assert reply.ttft is not None
    assert reply.time_to_response is not None
    assert reply.ttft < reply.time_to_response


ITEM = {"type": "message", "status": "completed", "content": [{"type": "output_text", "text": "Hi"}]}
ERROR_EVENT = {"type": "error", "code": "rate_limit_exceeded", "message": "Oh."}
FAILED = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}}
WITH_STATUS = {"type": "error", "status": 429, "error": {"message": "Oh.", "headers": {"Retry-After": "7"}}}
ENDS: list[tuple[str, list[Any], Callable[[Any], bool], int]] = [
    # the dialect, its events; what the body says, and the status
    ("openai-chat", [{"choices": [{"index": 0, "delta": {"content": "half"}}]}, {"error": {"message": "Oh."}}],
     lambda body: body["error"]["message"] == "Oh.", 200),
    ("openai-responses", [ERROR_EVENT], lambda body: body["error"]["code"] == "rate_limit_exceeded", 200),
    ("openai-responses", [WITH_STATUS], lambda body: body["error"]["message"] == "Oh.", 429),
    ("openai-responses", [FAILED], lambda body: body["error"]["code"] == "x", 200),
    # items fill a response whose last event holds none
    ("openai-responses", [{"type": "response.output_item.done", "output_index": 0, "item": ITEM},
                          {"type": "response.completed", "response": {"status": "completed", "output": []}}],
     lambda body: body["output"] == [ITEM], 200),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "events", "holds", "status"), ENDS)
async def test_what_ends_a_stream_is_the_answer(
    dialect: str, events: list[Any], holds: Callable[[Any], bool], status: int
) -> None:
    sent = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    async with serving(stream(*sent)) as server:
        reply = a_reply(await post(server.base_url, dialect=dialect, stream=True))
    assert holds(json.loads(reply.body))
    assert (reply.status, reply.headers.get("retry-after")) == (status, "7" if status == 429 else None)


TEXT = "x" * 999_000
"""A reply with this text is just allowed, and two of it are not, where `reply_mb` is 1."""
PLAIN = b"HTTP/1.1 200 OK\r\n"
ENDLESS = piece(b"x" * 65_536) * 20
LARGE: dict[str, tuple[bytes, bool]] = {
    "a gzip bomb": (GZIP + b"Connection: close\r\n\r\n" + gzip.compress(bytes(200_000_000), 1), False),
    "an endless body": (PLAIN + b"Transfer-Encoding: chunked\r\n\r\n" + ENDLESS, False),
    "a long body": (http(chat_body(TEXT * 2)), False),
    "an endless event": (HEAD + piece(b"data: ") + ENDLESS, True),
    "an endless line that is no event": (HEAD + ENDLESS, True),
    "an event of many lines": (HEAD + piece(b"data: " + b"x" * 99_000 + b"\n") * 12, True),
    "an endless answer": (HEAD + piece(chunk({"content": "x" * 90_000})) * 12, True),
}


@pytest.mark.parametrize(("answer", "streams"), LARGE.values(), ids=LARGE)
async def test_a_reply_is_read_as_far_as_it_may_be_large(answer: bytes, streams: bool) -> None:
    """What is read of it stays small, and nothing of it is tried again."""
    tracemalloc.start()
    try:
        async with serving(always(answer)) as server:
            fault = a_fault(await post(server.base_url, stream=streams, limits=Limits(reply_mb=1)))
            _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (fault.kind, fault.type, fault.ambiguous) == (FaultKind.TASK, ErrorType.REPLY_TOO_LARGE, True)
    assert "`limits: {reply_mb}` of local" in fault.message
    assert most < 16_000_000


async def test_a_reply_of_nearly_as_much_as_allowed_comes_whole_and_of_an_error_its_beginning() -> None:
    limits = Limits(reply_mb=1)
    async with serving(always(http(chat_body(TEXT)))) as server:
        assert a_reply(await post(server.base_url, limits=limits)).body == chat_body(TEXT)
    async with serving(stream(*[chunk({"content": "x"})] * 9_000, STOP, DONE)) as server:  # framed in more than that
        assert len(a_reply(await post(server.base_url, stream=True, limits=limits)).body) < 10_000
    async with serving(always(http(b"x" * 3_000_000, "500 No"))) as server:
        assert a_reply(await post(server.base_url, limits=limits)).status == 500
