"""Gives items to workers and takes back what came of them.

A worker is a process, perhaps on another machine. It gets items in chunks: requests to providers,
and calls of the project's functions. The store, lanes, budgets and retries stay here.
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

# What is sent to a worker is pickled, and holds no secret: the worker fills in `${VAR}` itself.


@dataclass(frozen=True, slots=True)
class CallItem:
    """A request to a provider, as `Sending.send` gets it."""

    number: int
    """The number of the item in the invocation."""
    provider: str
    """The name of the provider in the WorkerSetup."""
    transport: str
    """`body`, `sse`, `ws` or `auto`."""
    body: bytes
    """The request as JSON."""
    timeout: Timeout
    """The bounds of the request."""
    within: float | None = None
    """Seconds that bound the whole call."""
    fresh: bool = False
    """True if the call needs a new connection."""
    headers: Mapping[str, str] | None = None
    """Further headers."""


@dataclass(frozen=True, slots=True)
class FunctionItem:
    """A call of a `python:` stage's function, or of a tool's."""

    number: int
    """The number of the item in the invocation."""
    function: FunctionRef | ToolSpec
    """The function."""
    given: FunctionInput
    """A row, the rows of a group, or a tool's arguments."""
    processes: int | None = None
    """In how many processes it runs; None: in threads."""
    timeout: float | None = None
    """Seconds that it may take at most."""
    key: str = ""
    """What repeated calls of a tool have in common."""


Item = CallItem | FunctionItem


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items for one worker, which carries them out at the same time."""

    id: str
    """A name that no other chunk has."""
    items: tuple[Item, ...]
    """The items."""
    expires_at: float
    """When a call that was not begun is not sent any more, in seconds since 1970 by the worker's
    clock."""


class Ended(NamedTuple):
    """The outcome of an item."""

    number: int
    """The number of the item."""
    value: Any = None
    """Of a call, an HttpReply or a Fault; of a stage's function, `Returned` or a RowError; of a
    tool, the text or a ToolFailed."""
    unsent: bool = False
    """True if it was not begun, since its chunk had expired by the worker's clock, which is the
    value."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings that a worker gets when it starts. Only the keys of simulators in it are
    secret."""

    root: str
    """The project's folder on the worker's machine."""
    providers: Mapping[str, ProviderSpec]
    """The providers as agac.yml has them."""
    simulators: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """The base URLs and the keys of simulators that were started here, by provider."""
    functions: Sequence[FunctionRef | ToolSpec] = ()
    """The functions that stages and tools call."""
    asked: Sequence[str] = ()
    """The providers that calls may go to."""
    remote: str | None = None
    """The remote to which replies go, too, if there is one."""
    token: str = ""
    """The token of the store, under which they are there."""


class WorkerFacts(NamedTuple):
    """The facts that a worker tells about itself."""

    node: str
    """Its machine."""
    pid: int
    """The number of its process."""
    agac: str
    """Its version of agac."""
    python: str
    """Its version of Python."""
    missing: tuple[str, ...]
    """Variables of the project that it lacks."""
    now: float
    """Its clock, in seconds since 1970."""


class WorkerLost(Exception):
    """A worker cannot be reached, or died, so that the state of its items is unknown. The text
    says how that was noticed."""


class Worker(Protocol):
    """A worker as the pool sees it.

    All methods raise WorkerLost, after which `hello` may succeed again: another process may have
    taken its place, which knows no chunk."""

    name: str

    async def hello(self) -> WorkerFacts:
        """Waits until the worker is there. Raises UsageError if it can never be used: it has
        another version, or other files."""
        ...

    async def take(self, chunk: Chunk) -> None:
        """Begins with a chunk, and returns at once."""
        ...

    async def collect(self) -> list[Ended]:
        """Waits until an item ended, gathers some 20 ms more, and returns each ended item once.

        It returns after BEAT seconds at the latest, perhaps with nothing, as a sign of life; and at
        once after a refusal (429, 503)."""
        ...


OpenWorkers = Callable[
    [ExecutorFile, WorkerSetup, Mapping[str, str]], AbstractAsyncContextManager[Sequence[Worker]]
]
"""Starts workers, and ends them: `engine.workers.ray` has such a function. The mapping is this
process's environment with .env, which workers on this machine inherit. Raises UsageError."""


@dataclass(frozen=True, slots=True)
class RunExecutor:
    """The workers of an invocation."""

    settings: ExecutorFile
    """What agac.yml says of them."""
    setup: WorkerSetup
    """What they get when they start."""
    start: OpenWorkers | None
    """Starts them; None: there are none, and only what workers left at an earlier invocation is
    looked for."""


BEAT = 5.0
"""Seconds between two signs of life of a worker at most."""


# Items that are ready within a moment go together, to the worker that has the least to do. What a
# lost worker had is suspect: calls go back to the policy of retries, as calls that may be billed;
# functions are given out again. A chunk of suspects is half as large as the chunk in which they
# were, and from the second time on it has a worker for itself. An item that was alone in its chunk,
# and was lost with three workers, fails.

GATHER = 0.005
"""Seconds in which items are waited for that go into the same chunk."""

ALLOTMENT = 15.0
"""Seconds within which a worker has to begin a chunk's calls: one that slept longer sends none of
them."""

GRACE = 15.0
"""Seconds after the bounds of a call until it is given up."""

SILENT = 60.0
"""Seconds without a sign of life after which a worker's items are taken to be lost."""

BENCH = 2.0
"""Seconds without work for a worker that was lost; they double each time."""

MOST_BENCH = 60.0
"""The most of these seconds."""

FATAL = 3
"""Workers that may be lost with an item."""

MOST_LATE = 10_000
"""Calls that were given up and whose replies are still taken."""

LOGGED_EVERY = 60.0
"""Seconds between two messages that there are no workers."""

_ANY_SIZE = 1 << 30
"""The bound on the chunks of an item that was not lost."""

_log = logging.getLogger("agac.workers")


@dataclass(slots=True, eq=False)
class _OpenItem:
    """An item whose result is waited for."""

    item: Item
    """The item."""
    line: Any = None
    """What is written before a call is sent."""
    late: Callable[[HttpReply], None] | None = None
    """Takes a reply that came too late."""
    again: bool = True
    """True if it may be given to another worker."""
    begin: Callable[[], Awaitable[None]] | None = None
    """Is awaited before a function is given out."""
    lost: int = 0
    """Workers that were lost with it."""
    most: int = _ANY_SIZE
    """How large its chunk may be."""
    size: int = 0
    """How large its present chunk is."""
    due: float = inf
    """When it is given up, by the loop's clock."""
    reply: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """What came of it."""

    def tell(self, value: Any) -> None:
        """Sets what came of it, or an exception, if it is still waited for."""
        if self.reply.done():
            return
        if isinstance(value, WorkerLost | RunStopped):
            self.reply.set_exception(value)
        else:
            self.reply.set_result(value)


@dataclass(slots=True, eq=False)
class _Post:
    """A worker and the items that it has."""

    worker: Worker
    """The worker."""
    has: dict[int, _OpenItem] = field(default_factory=dict)
    """Its items, by number."""
    ready: bool = False
    """True if it can take items."""
    alone: bool = False
    """True if the items that it has are to have it for themselves."""
    heard: float = 0.0
    """When it showed the last sign of life, by the loop's clock."""
    ahead: float = 0.0
    """Seconds by which its clock is ahead of ours."""

    @property
    def may_take(self) -> bool:
        """True if it may get items."""
        return self.ready and not (self.alone and self.has)


class WorkerPool:
    """Gives items to workers, which are started with the first one."""

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
        """At most `most` calls are made at a time, in chunks of at most `chunk`.

        `write` makes the lines of a chunk's calls durable: their chunk, their worker, and what
        `call` was given. `wait` takes the seconds for which there are no workers, and `stop` why
        there will be none. `name` makes the names of chunks."""
        self.numbers = count(1)
        """Numbers for items."""
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
        self._before = dict[bytes, tuple[int, int]]()
        """`lost` and `most` of calls that may be made again, by the marks of the requests."""
        self._changed = asyncio.Event()
        self._over = False
        self._now = asyncio.get_running_loop().time

    async def call(
        self, item: CallItem, mark: bytes, line: Any, late: Callable[[HttpReply], None]
    ) -> Any:
        """Makes a call and returns an HttpReply or a Fault.

        `mark` stands for the request, even if it is sent again. `line` is written before it is
        sent; `late` takes a reply that comes after the call was given up. Raises RunStopped."""
        lost, most = self._before.pop(mark, (0, _ANY_SIZE))
        open_item = _OpenItem(item, line, late, lost=lost, most=most)
        reply = await self._put(open_item)
        if open_item.lost > lost:
            self._before[mark] = open_item.lost, open_item.most
        return reply

    async def function(
        self,
        item: FunctionItem,
        *,
        again: bool = True,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Calls a function and returns what it gave, as Ended has it.

        `begin` is awaited before a worker gets it. Raises RunStopped, what `begin` raises, and
        WorkerLost if it is unknown whether the function was called, and it may not be called
        `again`."""
        return await self._put(_OpenItem(item, again=again, begin=begin))

    def _put(self, item: _OpenItem) -> asyncio.Future[Any]:
        """Queues an item, and returns what will come of it."""
        if self._over:
            item.tell(RunStopped())
        queue = self._suspects if item.lost > 1 else self._queue
        queue.append(item)
        self._changed.set()
        return item.reply

    async def run(self) -> None:
        """Gives out items until it is cancelled."""
        await self._changed.wait()
        async with self._start() as workers, asyncio.TaskGroup() as group:
            self._posts = [_Post(worker) for worker in workers]
            self._slots = max(self._chunk, ceil(self._most / len(workers)))
            for work in (self._watch(), *(self._serve(post) for post in self._posts)):
                group.create_task(work)
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER)
                self._changed.clear()
                fair = ceil(len(self._queue) / max(1, sum(post.ready for post in self._posts)))
                while (chunk := self._next(fair)) is not None:
                    group.create_task(self._give(*chunk))

    def _next(self, fair: int) -> tuple[_Post, list[_OpenItem]] | None:
        """Takes a chunk of at most `fair` items for a worker; None: there is none, or no worker.

        The items are the worker's from now on."""
        posts = sorted(
            (post for post in self._posts if post.may_take), key=lambda post: len(post.has)
        )
        if posts and self._suspects:
            # the worker with the least to do gets nothing else before it is idle
            post = posts.pop(0)
            if not post.has:
                suspects = _taken(self._suspects, self._suspects[0].most)
                post.alone = bool(suspects)
                if suspects:
                    return self._assigned(post, suspects)
        if not posts or not self._queue:
            return None
        post = posts[0]
        post.alone = False
        items = _taken(self._queue, min(self._chunk, self._slots - len(post.has), fair))
        return self._assigned(post, items) if items else None

    def _assigned(self, post: _Post, items: list[_OpenItem]) -> tuple[_Post, list[_OpenItem]]:
        """Gives a worker the items of a chunk."""
        for item in items:
            item.size = len(items)
            if isinstance(item.item, CallItem):
                bounds = (item.item.within, item.item.timeout.total)
                seconds = min((bound for bound in bounds if bound is not None), default=inf)
                item.due = self._now() + ALLOTMENT + seconds + GRACE
            post.has[item.item.number] = item
        return post, items

    async def _give(self, post: _Post, chunk: list[_OpenItem]) -> None:
        """Sends a chunk to the worker that has it, once its calls are written."""
        name = self._name(next(self._chunks))
        lines = [(item.item.number, item.line) for item in chunk if item.line is not None]
        if lines:
            await self._write(name, post.worker.name, lines)
        await asyncio.gather(*(self._begin(post, item) for item in chunk if item.begin is not None))
        # an item may be lost by now
        items = tuple(item.item for item in chunk if post.has.get(item.item.number) is item)
        try:
            if items:
                await post.worker.take(Chunk(name, items, time.time() + post.ahead + ALLOTMENT))
        except WorkerLost as lost:
            self._lose(post, str(lost))
        except AgacError as error:
            self._end(error)

    async def _begin(self, post: _Post, item: _OpenItem) -> None:
        """Awaits `begin` of a function. If that fails, the function is not called."""
        assert item.begin is not None
        try:
            await item.begin()
        except Exception as error:  # noqa: BLE001  (it is raised where the function is waited for)
            post.has.pop(item.item.number, None)
            if not item.reply.done():
                item.reply.set_exception(error)

    async def _serve(self, post: _Post) -> None:
        """Takes what a worker has done, until there are no workers any more."""
        bench = BENCH
        while not self._over:
            try:
                post.ahead = (await post.worker.hello()).now - time.time()
                while True:
                    post.ready = True
                    post.heard = self._now()
                    self._changed.set()
                    items = await post.worker.collect()
                    for ended in items:
                        self._ended(post, ended)
                    if items:
                        bench = BENCH
            except WorkerLost as lost:
                _log.warning("worker %s is lost: %s", post.worker.name, lost)
                self._lose(post, str(lost))
                await asyncio.sleep(bench)
                bench = min(2 * bench, MOST_BENCH)
            except AgacError as error:
                self._end(error)

    def _ended(self, post: _Post, ended: Ended) -> None:
        """Takes what came of an item that a worker had."""
        item = post.has.pop(ended.number, None)
        if item is None:
            self._take_late(ended)
        elif ended.unsent:
            post.ahead = ended.value - time.time()  # its clock may have been set since
            self._put(item)
        else:
            item.tell(ended.value)

    def _take_late(self, ended: Ended) -> None:
        """Takes the reply to a call that was given up."""
        item = self._late.pop(ended.number, None)
        if item is not None and item.late is not None and isinstance(ended.value, HttpReply):
            item.late(ended.value)

    def _lose(self, post: _Post, why: str) -> None:
        """Gives up the items of a worker that will not end them in time."""
        text = f"worker {post.worker.name}: {why}"
        alone = post.alone
        lost = post.has
        post.ready = False
        post.alone = False
        post.has = {}
        for item in lost.values():
            item.lost += 1
            item.most = max(1, item.size // 2)
            is_cause = alone and item.size == 1 and item.lost >= FATAL
            message = f"{item.lost} workers were lost with it; {text}" if is_cause else text
            if isinstance(item.item, CallItem):
                kind = FaultKind.TASK if is_cause else FaultKind.RETRY
                self._give_up(item, kind, ErrorType.WORKER_LOST, message)
            elif is_cause:
                item.tell(RowError(ErrorType.WORKER_LOST, message))
            elif item.again:
                self._put(item)
            else:
                item.tell(WorkerLost(message))

    def _give_up(self, item: _OpenItem, kind: FaultKind, error: ErrorType, why: str) -> None:
        """Ends a call without an answer. A later answer is taken, too."""
        self._late[item.item.number] = item
        if len(self._late) > MOST_LATE:
            self._late.popitem(last=False)
        item.tell(Fault(kind, error, why, ambiguous=True))

    async def _watch(self) -> None:
        """Looks for silent workers and late calls, and says if there are no workers."""
        now = self._now()
        waits_since = now
        logged_at = -inf
        while not self._over:
            await asyncio.sleep(1.0)
            before = now
            now = self._now()
            for post in self._posts:
                if now - before > BEAT:  # this process slept, not the worker
                    post.heard = now
                self._look_at(post, now)
            waiting = len(self._queue) + len(self._suspects)
            if not waiting or any(post.ready for post in self._posts):
                waits_since = now
                if logged_at > -inf:
                    logged_at = -inf
                    self._wait(0.0)
            # the first message comes after ten seconds
            elif now - max(waits_since + 10 - LOGGED_EVERY, logged_at) >= LOGGED_EVERY:
                logged_at = now
                _log.warning(
                    "%d calls wait for workers: none of %d can be reached",
                    waiting,
                    len(self._posts),
                )
                self._wait(LOGGED_EVERY)

    def _look_at(self, post: _Post, now: float) -> None:
        """Gives up the items of a silent worker, and calls that take too long."""
        if post.ready and now - post.heard > SILENT:
            self._lose(post, f"it gave no sign of life for {SILENT:g} s")
        for number in [number for number, item in post.has.items() if item.due < now]:
            why = "no answer came from its worker within the bounds of the call"
            self._give_up(post.has.pop(number), FaultKind.RETRY, ErrorType.TIMEOUT, why)

    def _end(self, error: AgacError) -> None:
        """Ends all waits, since there will be no workers any more."""
        self._over = True
        self._stop(error)
        for post in self._posts:
            self._lose(post, error.message)
        self.give_back()

    def give_back(self) -> None:
        """Gives up what no worker has yet."""
        for item in (*self._queue, *self._suspects):
            item.tell(RunStopped())


def _taken(queue: deque[_OpenItem], most: int) -> list[_OpenItem]:
    """Takes items from the beginning of a queue that may be in one chunk, without those that are
    not waited for any more."""
    items: list[_OpenItem] = []
    while queue and len(items) < min(most, queue[0].most):
        item = queue.popleft()
        if not item.reply.done():
            items.append(item)
    return items
