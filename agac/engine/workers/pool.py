"""What goes to workers and comes back, and who gets what.

A worker is a process, perhaps on another machine. It gets items in chunks: requests to providers,
and functions of the project to be called. The store, lanes, budgets and retries stay here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from typing import Any, NamedTuple, Protocol

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import Fault, FaultKind
from agac.engine.stop_rules import RunStopped
from agac.providers.http import HttpReply
from agac.spec.project_models import ExecutorFile, ProviderSpec
from agac.spec.python_code import FunctionInput, FunctionRef
from agac.spec.rules import Timeout
from agac.spec.tools import ToolSpec

# What crosses the way to a worker is pickled, and holds no secret: `${VAR}` is filled in over
# there.


@dataclass(frozen=True, slots=True)
class CallItem:
    """One request to a provider, as `Sending.send` gets it. `number` is its own in an invocation;
    `provider` is a name of WorkerSetup's, `transport` is `body`, `sse`, `ws` or `auto`; `within`
    bounds the call, in seconds."""

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
    """One call of a `python:` stage's function, or of a tool's; `given` is a row, the rows of a
    group, or a tool's arguments. The function runs in so many `processes` (None: in threads) for
    `timeout` seconds at most; `key` is what tells repeated calls of a tool."""

    number: int
    function: FunctionRef | ToolSpec
    given: FunctionInput
    processes: int | None = None
    timeout: float | None = None
    key: str = ""


Item = CallItem | FunctionItem


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items for one worker, which carries them out side by side. `id` names the chunk for ever. A
    call that was not begun by `expires_at`, in seconds since 1970 by the worker's own clock, is
    not sent any more."""

    id: str
    items: tuple[Item, ...]
    expires_at: float


class Ended(NamedTuple):
    """What came of the item `number`. Of a call an HttpReply or a Fault; of a stage's function
    `Returned` or a RowError; of a tool's the text or a ToolFailed. `unsent`: it was not begun,
    since its chunk had expired by the worker's clock, which is the value."""

    number: int
    value: Any = None
    unsent: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told when it starts; nothing of it is secret but the keys of simulators.
    `root` is the project's folder over there; `providers` are as agac.yml has them; `simulators`
    are the base URLs and the keys of those that were started here, by provider; `functions` are
    called by stages and tools, `asked` are the providers that calls may go to. Replies go to the
    `remote` too, if there is one, under the store's `token`."""

    root: str
    providers: Mapping[str, ProviderSpec]
    simulators: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    functions: Sequence[FunctionRef | ToolSpec] = ()
    asked: Sequence[str] = ()
    remote: str | None = None
    token: str = ""


class WorkerFacts(NamedTuple):
    """What a worker says of itself: its machine, its process, the versions of agac and Python,
    variables of the project that it lacks, and its clock, in seconds since 1970."""

    node: str
    pid: int
    agac: str
    python: str
    missing: tuple[str, ...]
    now: float


class WorkerLost(Exception):
    """A worker cannot be reached, or died: nobody knows what became of its items. Its text says
    how it is known."""


class Worker(Protocol):
    """A worker as the pool sees it. All raise WorkerLost, after which `hello` may succeed again: a
    new process may have taken its place, which knows of no chunk."""

    name: str

    async def hello(self) -> WorkerFacts:
        """Waits until it is there. Raises UsageError where it can never be used: another version,
        other files."""
        ...

    async def take(self, chunk: Chunk) -> None:
        """Begins with a chunk, and returns at once."""
        ...

    async def collect(self) -> list[Ended]:
        """Waits until something ended, gathers some 20 ms more, and gives each item once. It
        returns at the latest after BEAT seconds, with nothing, as a sign of life; a refusal (429,
        503) at once."""
        ...


OpenWorkers = Callable[
    [ExecutorFile, WorkerSetup, Mapping[str, str]], AbstractAsyncContextManager[Sequence[Worker]]
]
"""Starts workers, and ends them: `engine.workers.ray` has one. The mapping is this process's
environment with .env, which workers that it starts on this machine inherit. Raises UsageError."""


@dataclass(frozen=True, slots=True)
class RunExecutor:
    """Who works for an invocation. `start` None: nobody, and only what workers left at an earlier
    one is looked for."""

    settings: ExecutorFile
    setup: WorkerSetup
    start: OpenWorkers | None


BEAT = 5.0
"""Seconds between two signs of life of a worker at most."""


# Who gets what. Items that are ready within a moment go together, to the worker that has least to
# do. What a lost worker had is suspect: calls go back to the policy of retries, as calls that may
# be billed; functions are given out again. A chunk of suspects is half as large as that in which
# they were, and from the second time on it has a worker for itself; an item that stood alone there,
# and has cost three workers, fails.

GATHER = 0.005  # seconds in which items are waited for that go into the same chunk
# seconds within which a worker has to begin a chunk's calls: one that slept longer sends none of
# them
ALLOTMENT = 15.0
GRACE = 15.0  # seconds after the bounds of a call until nobody waits for it any more
SILENT = 60.0  # seconds without a sign of life after which a worker's items are taken to be lost
BENCH = 2.0  # seconds without work for a worker that was lost, which double each time
MOST_BENCH = 60.0
FATAL = 3  # workers that may be lost with an item; calls given up whose replies are still taken
MOST_LATE = 10_000
SAID = 60.0  # seconds between two messages that there are no workers

_log = logging.getLogger("agac.workers")


@dataclass(slots=True, eq=False)
class _OpenItem:
    """An item that somebody waits for. `line` is written before a call is sent, `late` told what
    came too late; `begin` is awaited before a function is given out. It may be given to others
    `again`; `lost` workers had it, which leaves it chunks of `most`; now it is in one of `size`."""

    item: Item
    line: Any = None
    late: Callable[[HttpReply], None] | None = None
    again: bool = True
    begin: Callable[[], Awaitable[None]] | None = None
    lost: int = 0
    most: int = 1 << 30
    size: int = 0
    due: float = inf
    reply: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def tell(self, value: Any) -> None:
        """What came of it, or an exception, for whoever still waits."""
        if not self.reply.done():
            (
                self.reply.set_exception
                if isinstance(value, WorkerLost | RunStopped)
                else self.reply.set_result
            )(value)


@dataclass(slots=True, eq=False)
class _Post:
    """A worker and what it has, by number. `ahead`: seconds by which its clock is before ours;
    `alone`: what it has, if anything, is to have it for itself."""

    worker: Worker
    has: dict[int, _OpenItem] = field(default_factory=dict)
    ready: bool = False
    alone: bool = False
    heard: float = 0.0
    ahead: float = 0.0


class WorkerPool:
    """Gives items to workers, which are started with the first one. `most` calls are made at a
    time; `write` makes the lines of a chunk's calls durable: their chunk, their worker, and what
    `call` was given. `wait` is told that there are no workers for so many seconds, `stop` why
    there will be none."""

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[Sequence[Worker]]],
        *,
        chunk: int,
        most: int,
        write: Callable[[str, str, Sequence[Any]], Awaitable[None]],
        wait: Callable[[float], None],
        stop: Callable[[AgacError], None],
        name: Callable[[int], str] = str,
    ) -> None:
        self.numbers = count(1)
        self._chunks = count(1)
        self._start = start
        self._chunk = chunk
        self._slots = chunk
        self._most = most
        self._write = write
        self._wait = wait
        self._stop = stop
        self._name = name
        self._queue = deque[_OpenItem]()
        self._suspects = deque[_OpenItem]()
        self._posts = list[_Post]()
        self._late = OrderedDict[int, _OpenItem]()
        self._before = dict[
            bytes, tuple[int, int]
        ]()  # `lost` and `most` of calls that may be made again
        self._changed = asyncio.Event()
        self._over = False
        self._now = asyncio.get_running_loop().time

    async def call(
        self, item: CallItem, mark: bytes, line: Any, late: Callable[[HttpReply], None]
    ) -> Any:
        """An HttpReply or a Fault; `mark` stands for the request, also when it is sent again.
        Raises RunStopped."""
        lost, most = self._before.pop(mark, (0, 1 << 30))
        came = await self._put(asked := _OpenItem(item, line, late, lost=lost, most=most))
        if asked.lost > lost:
            self._before[mark] = asked.lost, asked.most
        return came

    async def function(
        self,
        item: FunctionItem,
        *,
        again: bool = True,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """What a function gave, as Ended has it; `begin` is awaited before a worker is given it.
        Raises RunStopped, what `begin` raises, and WorkerLost where it may not be called `again`
        and nobody knows whether it was."""
        return await self._put(_OpenItem(item, again=again, begin=begin))

    def _put(self, one: _OpenItem) -> asyncio.Future[Any]:
        if self._over:
            one.tell(RunStopped())
        (self._suspects if one.lost > 1 else self._queue).append(one)
        self._changed.set()
        return one.reply

    async def run(self) -> None:
        """Gives out items until it is cancelled."""
        await self._changed.wait()
        async with self._start() as workers, asyncio.TaskGroup() as group:
            self._posts = [_Post(one) for one in workers]
            self._slots = max(self._chunk, ceil(self._most / len(workers)))
            for work in (self._watch(), *(self._serve(post) for post in self._posts)):
                group.create_task(work)
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER)
                self._changed.clear()
                fair = ceil(len(self._queue) / max(1, sum(post.ready for post in self._posts)))
                while (found := self._next(fair)) is not None:
                    group.create_task(self._give(*found))

    def _next(self, fair: int) -> tuple[_Post, list[_OpenItem]] | None:
        """A chunk of at most `fair` items, and who gets it: it is theirs from now on."""
        posts = [one for one in self._posts if one.ready and not (one.alone and one.has)]
        found = list[_OpenItem]()
        posts.sort(key=lambda one: len(one.has))
        # it gets nothing else before it is idle
        if posts and self._suspects and not (post := posts.pop(0)).has:
            found = _taken(self._suspects, self._suspects[0].most)
            post.alone = bool(found)
        if not found and posts and self._queue:
            post = posts[0]
            posts[0].alone = False
            found = _taken(self._queue, min(self._chunk, self._slots - len(post.has), fair))
        for one in found:
            one.size = len(found)
            if isinstance(one.item, CallItem):
                bounds = (
                    some for some in (one.item.within, one.item.timeout.total) if some is not None
                )
                one.due = self._now() + ALLOTMENT + min(bounds, default=inf) + GRACE
            post.has[one.item.number] = one
        return (post, found) if found else None

    async def _give(self, post: _Post, found: list[_OpenItem]) -> None:
        chunk = self._name(next(self._chunks))
        lines = [(one.item.number, one.line) for one in found if one.line is not None]
        if lines:
            await self._write(chunk, post.worker.name, lines)
        await asyncio.gather(*(self._begin(post, one) for one in found if one.begin is not None))
        # it may be lost by now
        items = tuple(one.item for one in found if post.has.get(one.item.number) is one)
        try:
            if items:
                await post.worker.take(Chunk(chunk, items, time.time() + post.ahead + ALLOTMENT))
        except WorkerLost as lost:
            self._lose(post, str(lost))
        except AgacError as error:
            self._end(error)

    async def _begin(self, post: _Post, one: _OpenItem) -> None:
        """Says that a function is about to be called, which is not called where that is refused."""
        assert one.begin is not None
        try:
            await one.begin()
        except Exception as error:  # noqa: BLE001  (it is for whoever waits for the function)
            post.has.pop(one.item.number, None)
            if not one.reply.done():
                one.reply.set_exception(error)

    async def _serve(self, post: _Post) -> None:
        """Hears what a worker says, for as long as there is one."""
        bench = BENCH
        while not self._over:
            try:
                post.ahead = (await post.worker.hello()).now - time.time()
                while True:
                    post.ready, post.heard = True, self._now()
                    self._changed.set()
                    for ended in (came := await post.worker.collect()):
                        self._ended(post, ended)
                    bench = BENCH if came else bench
            except WorkerLost as lost:
                _log.warning("worker %s is lost: %s", post.worker.name, lost)
                self._lose(post, str(lost))
                await asyncio.sleep(bench)
                bench = min(2 * bench, MOST_BENCH)
            except AgacError as error:
                self._end(error)

    def _ended(self, post: _Post, ended: Ended) -> None:
        one = post.has.pop(ended.number, None)
        if one is None:
            one = self._late.pop(ended.number, None)
            if one is not None and one.late is not None and isinstance(ended.value, HttpReply):
                one.late(ended.value)
        elif ended.unsent:
            post.ahead = ended.value - time.time()  # it may have been set since
            self._put(one)
        else:
            one.tell(ended.value)

    def _lose(self, post: _Post, why: str) -> None:
        """What a worker has will not come from it, or too late."""
        text = f"worker {post.worker.name}: {why}"
        alone = post.alone
        lost = post.has
        post.ready = False
        post.alone = False
        post.has = {}
        for one in lost.values():
            one.lost = one.lost + 1
            one.most = max(1, one.size // 2)
            is_cause = alone and one.size == 1 and one.lost >= FATAL
            said = f"{one.lost} workers were lost with it; {text}" if is_cause else text
            if isinstance(one.item, CallItem):
                self._give_up(
                    one,
                    FaultKind.TASK if is_cause else FaultKind.RETRY,
                    ErrorType.WORKER_LOST,
                    said,
                )
            elif is_cause:
                one.tell(RowError(ErrorType.WORKER_LOST, said))
            elif one.again:
                self._put(one)
            else:
                one.tell(WorkerLost(said))

    def _give_up(self, one: _OpenItem, kind: FaultKind, error: ErrorType, why: str) -> None:
        """A call has no answer so far; one that comes all the same is heard."""
        self._late[one.item.number] = one
        if len(self._late) > MOST_LATE:
            self._late.popitem(last=False)
        one.tell(Fault(kind, error, why, ambiguous=True))

    async def _watch(self) -> None:
        """Looks for workers that are silent, and says where there are none."""
        now = waits_since = self._now()
        said_at = -inf
        while not self._over:
            await asyncio.sleep(1.0)
            before, now = now, self._now()
            for post in self._posts:
                if now - before > BEAT:  # this process slept, and not they
                    post.heard = now
                if post.ready and now - post.heard > SILENT:
                    self._lose(post, f"it gave no sign of life for {SILENT:g} s")
                for number in [number for number, one in post.has.items() if one.due < now]:
                    late = "no answer came from its worker within the bounds of the call"
                    self._give_up(post.has.pop(number), FaultKind.RETRY, ErrorType.TIMEOUT, late)
            waiting = len(self._queue) + len(self._suspects)
            if any(post.ready for post in self._posts) or not waiting:
                waits_since = now
                if said_at > -inf:
                    said_at = -inf
                    self._wait(0.0)
            elif now - max(waits_since + 10 - SAID, said_at) >= SAID:  # not at the first moment
                said_at = now
                _log.warning(
                    "%d calls wait for workers: none of %d can be reached",
                    waiting,
                    len(self._posts),
                )
                self._wait(SAID)

    def _end(self, error: AgacError) -> None:
        """There will be no workers any more: nothing waits for them."""
        self._over = True
        self._stop(error)
        for post in self._posts:
            self._lose(post, error.message)
        self.give_back()

    def give_back(self) -> None:
        """What no worker has is not given out any more, and nothing waits for it."""
        for one in (*self._queue, *self._suspects):
            one.tell(RunStopped())


def _taken(queue: deque[_OpenItem], most: int) -> list[_OpenItem]:
    """Items from the beginning of a queue that may be in one chunk, those left out for which
    nobody waits any more."""
    found: list[_OpenItem] = []
    while queue and len(found) < min(most, queue[0].most):
        if not (one := queue.popleft()).reply.done():
            found.append(one)
    return found
