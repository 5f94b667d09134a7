"""A server that answers as it is told, and remembers what it was asked: for answers that no simulator would give."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

KEPT = 1 << 20
"""Bytes of a request's body that are kept."""


@dataclass(frozen=True)
class Answer:
    """What comes back. `drop`: the connection is cut before the request is read, after it, or within the body; `never`:
    nothing comes until the server ends. `length`: declared beforehand, told piece by piece, or by the end alone."""

    body: bytes | dict[str, Any] | list[Any] = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: Literal["", "unread", "unanswered", "body", "never"] = ""
    length: Literal["declared", "chunked", "end"] = "declared"

    @property
    def wire(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Asked:
    """A request: `body` holds its beginning, `size` is that of all of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    size: int


class Canned:
    """Gives the answers of a path in turn, the last one for ever; 404 to what it has none for."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.asked: list[Asked] = []
        self.over = threading.Event()
        self._answers: dict[str, list[Answer]] = {}

    def answers(self, call: str, *answers: Answer) -> None:
        """What is given to `call` (`POST /batches`), from now on."""
        self._answers[call] = list(answers)

    def posts(self) -> list[str]:
        """The paths of all POSTs."""
        return [one.path for one in self.asked if one.method == "POST"]

    def answer(self, method: str, path: str) -> Answer:
        left = self._answers.get(f"{method} {path.partition('?')[0].removeprefix('/v1')}")
        if not left:
            return Answer({"error": {"message": "no such thing"}}, 404)
        return left.pop(0) if len(left) > 1 else left[0]


@contextmanager
def canned() -> Iterator[Canned]:
    """Such a server for the block."""

    class Talk(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            answer = told.answer(self.command, self.path)
            if answer.drop == "unread":
                told.asked.append(Asked(self.command, self.path, dict(self.headers), b"", 0))
                self.cut()
                return
            told.asked.append(self.read())
            if answer.drop == "never":
                told.over.wait(30)
            if answer.drop in ("unanswered", "never"):
                self.cut()
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            wire = answer.wire
            if answer.length == "declared":
                self.send_header("Content-Length", str(len(wire)))
            elif answer.length == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Connection", "close")
            self.end_headers()
            if answer.drop == "body":
                wire = wire[: len(wire) // 2]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(wire), wire) if answer.length == "chunked" else wire)
            if answer.drop == "body":
                self.cut()
            elif answer.length == "chunked":
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_DELETE = handle_one  # noqa: N815 (http.server's names)

        def read(self) -> Asked:
            left = size = int(self.headers.get("Content-Length") or 0)
            kept = b""
            while left and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
                kept += piece if len(kept) < KEPT else b""
            return Asked(self.command, self.path, dict(self.headers), kept, size - left)

        def cut(self) -> None:
            self.close_connection = True
            self.connection.close()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Talk) as server:
        told = Canned(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield told
        finally:
            told.over.set()
            server.shutdown()
            thread.join()
