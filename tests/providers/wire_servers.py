"""Small servers on loopback that answer byte for byte as a test says, and remember what they were sent."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = str(CERTIFICATES / "authority.pem")


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


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    return context


@asynccontextmanager
async def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server whose every request is answered by `answer`."""
    server = Server()

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
