"""A chat completions server that is never the bottleneck: one fixed reply, a raw protocol, an optional latency.

    python bench/stub.py --latency 0.5      prints {"port": …} once it listens, ends when its standard input does

GET /account says how many requests came, when the first and the last one did (seconds since 1970), and how many seconds
of CPU the server used from the first one on; then it counts anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time

CONTENT = json.dumps({"sentiment": "positive", "topics": ["fit", "price"], "reason": "They like how it fits."})
BODY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": CONTENT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
    }
).encode()
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Account:
    """What was asked."""

    requests = 0
    first = 0.0
    last = 0.0
    cpu = 0.0

    def note(self) -> None:
        now = time.time()
        if not self.requests:
            self.first, self.cpu = now, time.process_time()
        self.last = now
        self.requests += 1

    def reply(self) -> bytes:
        cpu = time.process_time() - self.cpu if self.requests else 0.0
        body = json.dumps({"requests": self.requests, "first": self.first, "last": self.last, "cpu": cpu}).encode()
        self.requests, self.first, self.last = 0, 0.0, 0.0
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Stub(asyncio.Protocol):
    """One connection. Reads just enough HTTP to know where a request ends."""

    def __init__(self, account: Account, latency: float) -> None:
        self.account, self.latency, self.buffer = account, latency, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            self.answer(head.startswith(b"get /account"))

    def answer(self, account: bool) -> None:
        if account:
            self.transport.write(self.account.reply())
            return
        self.account.note()
        if self.latency:
            asyncio.get_running_loop().call_later(self.latency, self.write)
        else:
            self.transport.write(REPLY)

    def write(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(REPLY)


async def serve(latency: float) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    account = Account()
    server = await loop.create_server(lambda: Stub(account, latency), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args().latency))
