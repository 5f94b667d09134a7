"""Small servers on loopback that answer byte for byte as a test says, and remember what they were sent; and calls to
them."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault
from agac.providers.http import HttpReply, Sender, Sending, SocketSender
from agac.providers.provider import Provider
from agac.spec.rules import Timeout

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = str(CERTIFICATES / "authority.pem")
KEY = "sk-canary-0123456789abcdef"
BOUNDS = Timeout(connect=10, total=60)


def bounds(**of: float) -> Timeout:
    return Timeout(**{"connect": 10, "total": 60, **of})


@asynccontextmanager
async def sending(
    base_url: str, *, env: dict[str, str] | None = None, stream: bool = False, socket: str = "", **row: Any
) -> AsyncIterator[Sending]:
    """A sender to the provider `local`; over WebSockets where `socket` is `ws` or `auto`."""
    local = {"dialect": "openai-chat", "key_variable": "LOCAL_KEY", "api_key": KEY, **row}
    provider = Provider(name="local", base_url=base_url, **local)
    sender: Sending = Sender(provider, Redactor([KEY]), env=env or {}, stream=stream or bool(socket))
    if socket:
        assert isinstance(sender, Sender)
        sender = SocketSender(sender, fallback=socket == "auto")
    try:
        yield sender
    finally:
        await sender.close()


async def post(
    base_url: str, wire: bytes = b'{"model":"m"}', timeout: Timeout = BOUNDS, *, within: float | None = None, **of: Any
) -> HttpReply | Fault:
    """What comes of one call."""
    async with sending(base_url, **of) as sender:
        return await sender.send(wire, timeout, within=within)


def a_reply(answer: HttpReply | Fault) -> HttpReply:
    assert isinstance(answer, HttpReply), answer
    return answer


def a_fault(answer: HttpReply | Fault) -> Fault:
    assert isinstance(answer, Fault), answer
    assert KEY not in answer.message
    return answer


@dataclass
class Seen:
    """One request as it came. Header names are lower case."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answer = Callable[[Seen, asyncio.StreamWriter], Awaitable[bool]]
"""Writes an answer; False ends the connection."""


@dataclass
class Server:
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    scheme: str = "http"

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    return context


@asynccontextmanager
async def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server whose every request is answered by `answer`."""
    server = Server(scheme="https" if tls else "http")

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        number = server.connections
        server.writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while await answer_one(reader, writer, number):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(head[0], headers, body, number)
        server.seen.append(seen)
        more = await answer(seen, writer)
        with suppress(ConnectionError):
            await writer.drain()
        return more

    listening = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        with suppress(TimeoutError):
            await asyncio.wait_for(listening.wait_closed(), 5)


def http(body: bytes = b"{}", status: str = "200 OK", **headers: str) -> bytes:
    """An answer's bytes. Underscores in header names become dashes."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(answer: bytes, *, keep: bool = True) -> Answer:
    """The same bytes for every request; `keep` False ends the connection after them."""

    async def write(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer)
        return keep

    return write


async def never(_seen: Seen, _writer: asyncio.StreamWriter) -> bool:
    """No answer, until the client leaves."""
    await asyncio.Event().wait()
    return False


def chat_body(text: str = "hello") -> bytes:
    """A chat completion as OpenAI sends it."""
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
    ).encode()
