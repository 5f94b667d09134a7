"""A provider whose every answer is written in the test: for what a model never says on demand."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from threading import Lock
from typing import Any

from support.canned import Answer, Talk, completion, serving
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
        return json.dumps(completion(self.text, finish=self.finish)).encode()


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

    def take(talk: Talk) -> Answer:
        asked = talk.asked(1 << 30)
        step = script.answer(asked.body, {name.lower(): value for name, value in asked.headers.items()})
        return Answer(step.wire(), step.status, {"content-type": "application/json", **step.headers})

    with serving(take) as script.base_url:
        yield script


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
