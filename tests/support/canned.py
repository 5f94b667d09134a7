"""Servers that answer as a test says, and remember what they were asked: for answers that no simulator would give."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

KEPT = 1 << 20
"""Bytes of a request's body that are kept."""


@dataclass(frozen=True)
class Answer:
    """What comes back. `drop`: the connection is cut before the request is read, after it, or within the body; `never`:
    nothing comes until the server ends. `length`: declared beforehand, told piece by piece, or by the end alone.
    `piece`: the most bytes that a piece has; each is sent by itself."""

    body: bytes | dict[str, Any] | list[Any] = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: Literal["", "unread", "unanswered", "body", "never"] = ""
    length: Literal["declared", "chunked", "end"] = "declared"
    piece: int = KEPT

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

    def __init__(self) -> None:
        self.base_url = ""
        self.asked: list[Asked] = []
        self._answers: dict[str, list[Answer]] = {}

    def answers(self, call: str, *answers: Answer) -> None:
        """What is given to `call` (`POST /batches`), from now on."""
        self._answers[call] = list(answers)

    def posts(self) -> list[str]:
        """The paths of all POSTs."""
        return [one.path for one in self.asked if one.method == "POST"]

    def take(self, talk: "Talk") -> Answer:
        left = self._answers.get(f"{talk.command} {talk.path.partition('?')[0].removeprefix('/v1')}")
        answer = Answer({"error": {"message": "no such thing"}}, 404)
        if left:
            answer = left.pop(0) if len(left) > 1 else left[0]
        self.asked.append(talk.asked(unread=answer.drop == "unread"))
        return answer


class Talk(BaseHTTPRequestHandler):
    """A request at a server of a test: `asked` reads it, and `take` gives what is answered."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a reply in one piece: the second of two would wait 40 ms to be let go
    over: threading.Event

    def take(self) -> Answer:
        raise NotImplementedError

    def asked(self, most: int = KEPT, *, unread: bool = False) -> Asked:
        left = size = 0 if unread else int(self.headers.get("Content-Length") or 0)
        kept = b""
        while left and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)
            kept += piece if len(kept) < most else b""
        return Asked(self.command, self.path, dict(self.headers), kept, size - left)

    def handle_one(self) -> None:
        answer = self.take()
        if answer.drop == "never":
            self.over.wait(30)
        if answer.drop in ("unread", "unanswered", "never"):
            self.cut()
            return
        if any(name.lower() == "date" for name in answer.headers):  # the clock of this server is another one
            self.send_response_only(answer.status)
        else:
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
        pieces = [wire]
        if answer.length == "chunked":
            pieces = [wire[at : at + answer.piece] for at in range(0, len(wire), answer.piece)]
            pieces = [b"%x\r\n%s\r\n" % (len(one), one) for one in pieces]
        for one in pieces:
            self.wfile.write(one)
            self.wfile.flush()
        if answer.drop == "body":
            self.cut()
        elif answer.length == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_DELETE = handle_one  # noqa: N815 (http.server's names)

    def cut(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that was killed is no error of ours."""


@contextmanager
def serving(take: Callable[[Talk], Answer]) -> Iterator[str]:
    """Serves on loopback what a function answers, each call in a thread of its own; gives the base URL."""
    kind = type("Served", (Talk,), {"take": lambda talk: take(talk), "over": threading.Event()})
    with Quiet(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            kind.over.set()
            server.shutdown()
            thread.join()


@contextmanager
def canned() -> Iterator[Canned]:
    """Such a server for the block."""
    told = Canned()
    with serving(told.take) as told.base_url:
        yield told


def completion(text: str, model: str = "small-2", finish: str = "stop") -> dict[str, Any]:
    """A chat completion that says this."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return {"model": model, "choices": [choice], "usage": usage}
