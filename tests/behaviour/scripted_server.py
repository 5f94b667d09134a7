"""A provider whose every answer is written in the test: for what a model never says on demand."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from threading import Lock, Thread
from typing import Any

from support.project import ProjectFolder

import agac


@dataclass(frozen=True)
class Step:
    """One answer: a completion that says `text`, or `body` as it is."""

    text: str = "ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    finish: str = "stop"

    def wire(self) -> bytes:
        if self.body is not None:
            return self.body.encode()
        message = {"role": "assistant", "content": self.text}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return json.dumps({"model": "small-2", "choices": [choice], "usage": usage}).encode()


class Scripted:
    """A server that gives what `decide` says to each request, and keeps what it was asked, and when."""

    def __init__(self, decide: Callable[[dict[str, Any]], Step]) -> None:
        self._decide = decide
        self._lock = Lock()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.base_url = ""

    def answer(self, body: bytes, headers: dict[str, str]) -> Step:
        asked = json.loads(body)
        with self._lock:
            self.times.append(time.monotonic())
            self.asked.append(asked)
            self.headers.append(headers)
        return self._decide(asked)


def scripted(*steps: str | Step) -> AbstractContextManager[Scripted]:
    """Serves the steps on loopback for the block, one after the other, the last one for ever."""
    left = [Step(step) if isinstance(step, str) else step for step in steps]
    given = chain(left, repeat(left[-1]))
    return deciding(lambda _: next(given))


@contextmanager
def answering(answer: Callable[[str], Step], project: ProjectFolder | None = None) -> Iterator[Scripted]:
    """Serves what a function says to what the user says last; it may wait, since each call has a thread of its own. The
    stages of `project`, where given, ask it."""
    with deciding(lambda asked: answer(asked["messages"][-1]["content"])) as server:
        if project is not None:
            project.configure(server.base_url)
        yield server


@contextmanager
def deciding(decide: Callable[[dict[str, Any]], Step]) -> Iterator[Scripted]:
    """Serves what a function says to each request, on loopback for the block."""
    script = Scripted(decide)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            step = script.answer(body, {name.lower(): value for name, value in self.headers.items()})
            wire = step.wire()
            self.send_response(step.status)
            for name, value in {"content-type": "application/json", **step.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(wire)))
            self.end_headers()
            self.wfile.write(wire)

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        script.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


def run_at(
    project: ProjectFolder,
    *steps: str | Step,
    rows: int = 1,
    columns: dict[str, str] | None = None,
    provider: dict[str, Any] | None = None,
    **workflow: Any,
) -> tuple[agac.RunReport, list[dict[str, Any]]]:
    """Runs a workflow over numbered rows, one after the other, at a server that gives these steps, `local` but for what
    `provider` says of it: the report, and the bodies of the requests."""
    with scripted(*steps) as server:
        project.configure(server.base_url, **(provider or {}))
        project.numbered(rows, **(columns or {}))
        project.workflow(**workflow)
        return project.run(concurrency=1), server.asked
