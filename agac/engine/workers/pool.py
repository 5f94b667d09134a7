"""What goes to workers and comes back, and who gets what.

A worker is a process, perhaps on another machine. It gets items in chunks: requests to providers, and functions of the
project to be called. The store, lanes, budgets and retries stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agac.core.types import JSONValue
from agac.spec.project_models import ExecutorFile, ProviderSpec
from agac.spec.python_code import FunctionRef
from agac.spec.tools import ToolSpec
from agac.spec.workflow import Timeout

# What crosses the way to a worker is pickled, and holds no secret: `${VAR}` is filled in over there.


@dataclass(frozen=True, slots=True)
class CallItem:
    """One request to a provider, as `Sending.send` gets it. `number` is its own in an invocation; `provider` is a name
    of WorkerSetup's, `transport` is `body`, `sse`, `ws` or `auto`; `within` bounds the call, in seconds."""

    number: int
    provider: str
    transport: str
    body: bytes
    timeout: Timeout
    within: float | None = None
    fresh: bool = False
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class FunctionItem:
    """One call of a `python:` stage's function, or of a tool's; `given` are its row or its arguments. The function runs
    in so many `processes` (None: in threads) for `timeout` seconds at most; `key` is what tells repeated calls of a
    tool."""

    number: int
    function: FunctionRef | ToolSpec
    given: dict[str, JSONValue]
    processes: int | None = None
    timeout: float | None = None
    key: str = ""


Item = CallItem | FunctionItem


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items for one worker, which carries them out side by side. `id` names the chunk for ever. A call that was not
    begun by `expires_at`, in seconds since 1970 by the worker's own clock, is not sent any more."""

    id: str
    items: tuple[Item, ...]
    expires_at: float


class Ended(NamedTuple):
    """What came of the item `number`. Of a call an HttpReply or a Fault; of a stage's function `Returned` or a
    RowError; of a tool's the text or a ToolFailed. `unsent`: it was not begun, since its chunk had expired."""

    number: int
    value: Any = None
    unsent: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told when it starts; nothing of it is secret. `root` is the project's folder over there;
    `providers` are as agac.yml has them, `addresses` those of simulators that were started here, by provider;
    `functions` are called by stages and tools, `asked` are the providers that calls may go to. Replies go to the
    `remote` too, if there is one, under the store's `token`."""

    root: str
    providers: Mapping[str, ProviderSpec]
    addresses: Mapping[str, str] = field(default_factory=dict)
    functions: Sequence[FunctionRef | ToolSpec] = ()
    asked: Sequence[str] = ()
    remote: str | None = None
    token: str = ""


class WorkerFacts(NamedTuple):
    """What a worker says of itself: its machine, its process, the versions of agac and Python, variables of the project
    that it lacks, and its clock, in seconds since 1970."""

    node: str
    pid: int
    agac: str
    python: str
    missing: tuple[str, ...]
    now: float


class WorkerLost(Exception):
    """A worker cannot be reached, or died: nobody knows what became of its items. Its text says how it is known."""


class Worker(Protocol):
    """A worker as the pool sees it. All raise WorkerLost, after which `hello` may succeed again: a new process may have
    taken its place, which knows of no chunk."""

    name: str

    async def hello(self) -> WorkerFacts:
        """Waits until it is there. Raises UsageError where it can never be used: another version, other files."""
        ...

    async def take(self, chunk: Chunk) -> None:
        """Begins with a chunk, and returns at once."""
        ...

    async def collect(self) -> list[Ended]:
        """Waits until something ended, gathers some 20 ms more, and gives each item once. It returns at the latest
        after BEAT seconds, with nothing, as a sign of life; a refusal (429, 503) at once."""
        ...


OpenWorkers = Callable[[ExecutorFile, WorkerSetup, Mapping[str, str]], AbstractAsyncContextManager[Sequence[Worker]]]
"""Starts workers, and ends them: `engine.workers.ray` has one. The mapping is this process's environment with .env,
which workers that it starts on this machine inherit. Raises UsageError."""

BEAT = 5.0
"""Seconds between two signs of life of a worker at most."""
