"""Carries out chunks in a worker: sends their calls and calls functions, all at the same time, and
puts replies into the remote before it returns them.

It knows no store, no limits and no retries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import socket
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from dotenv import dotenv_values
from multidict import CIMultiDict
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from agac.core.errors import AgacError, ErrorType, RowError, UsageError
from agac.core.json_text import strict_json
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.data.object_store import ObjectStore
from agac.engine.workers.pool import (
    BEAT,
    CallItem,
    Chunk,
    Ended,
    FunctionItem,
    Item,
    WorkerFacts,
    WorkerSetup,
)
from agac.providers.http import HttpReply, Sending, open_sender
from agac.providers.table import build_providers
from agac.spec.paths import home_of
from agac.spec.python_code import FunctionRef, source_hash
from agac.spec.tools import ToolSpec
from agac.store.packs import unzipped_lines
from agac.tools.processes import THREADS, open_function
from agac.tools.threads import Threads
from agac.tools.tool_functions import ToolFailed, ToolTimeout, load_tool

FOLDER = "v1/chunks"
"""The folder of replies in the remote, as FOLDER/TOKEN/CHUNK/N.replies: each is written once,
before the replies are returned."""

GATHER = 0.02
"""Seconds in which more items may end that are returned together."""

REMOTE = 10.0
"""Seconds for which replies are held until the remote has them."""

REFUSALS = (429, 503)
"""Statuses that are returned at once, so that the lane pauses."""

MOST_REPLIES = 100_000
"""Replies in an object of the remote."""

MOST_VALUES = 10_000
"""JSON values in one of them, with its headers."""

_Header = Annotated[str, StringConstraints(max_length=100_000)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]

_log = logging.getLogger("agac.workers")


class ChunkWorker:
    """Carries out chunks in this process and its event loop; `close` it."""

    def __init__(self, setup: WorkerSetup, env: Mapping[str, str] | None = None) -> None:
        """`env` are the values of `${VAR}`; None: this process's environment, over the project's
        .env if there is one."""
        self._setup = setup
        self._root = Path(setup.root)
        if env is None:
            written = dotenv_values(home_of(self._root) / ".env").items()
            env = {**{name: value for name, value in written if value is not None}, **os.environ}
        self._env = env
        self.said = list[str]()
        """Warnings that are shown where the run is."""
        self._has_warned = False
        rows, _ = build_providers(setup.providers, env)
        for name, (address, key) in setup.simulators.items():
            rows[name] = replace(rows[name].at_simulator(address, key), missing_variables=())
        self._providers = {name: rows[name] for name in setup.asked}
        providers = rows.values()
        self._redactor = Redactor(
            [secret for provider in providers for secret in provider.secrets],
            [value for provider in providers for value in provider.header_values],
        )
        self._senders: dict[tuple[str, str], Sending] = {}
        self._functions: dict[Any, asyncio.Future[Callable[[FunctionItem], Awaitable[Any]]]] = {}
        self._stack = AsyncExitStack()
        self._tasks = set[asyncio.Task[None]]()
        self._new = asyncio.Queue[tuple[str, Ended]]()
        """Ended items with their chunks. It holds no more than what was taken."""
        self._done = list[Ended]()
        """Ended items to return."""
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._objects = 0
        """How many objects with replies were written."""
        self._asked = 0
        """How often `collect` was called."""
        self._remote: ObjectStore | None = None

    async def hello(self) -> WorkerFacts:
        """Returns what this worker is. Raises UsageError, which names this machine, with all that
        keeps it from any work."""
        missing = sorted(
            {name for row in self._providers.values() for name in row.missing_variables}
        )
        problems = [
            problem
            for function in self._setup.functions
            if (problem := self._problem_of(function)) is not None
        ]
        if problems:
            text = f"worker on {socket.gethostname()}: {'; '.join(dict.fromkeys(problems))}"
            raise UsageError(
                text,
                remedy="Put the same project at the same path of all machines that work for it.",
            )
        if not missing:
            for name in self._providers:
                # raises if the address, a header or the certificates cannot be used
                self._sender(name, "body")
        python = platform.python_version()
        return WorkerFacts(
            socket.gethostname(), os.getpid(), version("agac"), python, (*missing,), time.time()
        )

    def _problem_of(self, function: FunctionRef | ToolSpec) -> str | None:
        """Says why a function cannot be called here; None: it can."""
        if isinstance(function, FunctionRef):
            home = self._root
            file = home / function.shown
            wanted = function.source_hash.hex()
        else:
            home = home_of(self._root)
            file = home / function.source.rpartition(":")[0]
            wanted = function.version
        if not file.is_file():
            return f"{file} is not there"
        if source_hash(file, home)[0].hex() != wanted:
            return f"{file}, or a file that it imports, is another one"
        return None

    async def take(self, chunk: Chunk) -> None:
        """Begins with a chunk."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        for item in chunk.items:
            task = asyncio.create_task(self._carry_out(chunk, item))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def collect(self) -> list[Ended]:
        """Returns what ended since the last time, as soon as there is any, or after BEAT seconds.

        Returns nothing if it was called again meanwhile: then the earlier caller is gone."""
        self._asked += 1
        asked = self._asked
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT):
                await self._ready.wait()
        if asked != self._asked:
            return []
        self._ready.clear()
        done = self._done
        self._done = []
        return done

    async def close(self) -> None:
        """Gives up what was begun, and closes every connection and process."""
        tasks = [*self._tasks, *([self._keeping] if self._keeping else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():
            await sender.close()
        await self._stack.aclose()

    async def _carry_out(self, chunk: Chunk, item: Item) -> None:
        """Carries out an item of a chunk."""
        now = time.time()
        if isinstance(item, FunctionItem):
            ended = Ended(item.number, await self._called(item))
        elif now >= chunk.expires_at:  # this process was suspended: another may have the item
            ended = Ended(item.number, now, unsent=True)
        else:
            ended = Ended(item.number, await self._sent(item))
        self._new.put_nowait((chunk.id, ended))

    async def _sent(self, item: CallItem) -> HttpReply | Fault:
        """Sends a call."""
        try:
            send: Any = self._sender(item.provider, item.transport).send
            more = {"headers": item.headers} if item.headers else {}  # not every sender takes them
            reply: HttpReply | Fault = await send(
                item.body, item.timeout, within=item.within, fresh=item.fresh, **more
            )
        # the worker's outermost frame: a fault of agac's costs one call
        except Exception as error:  # noqa: BLE001
            message = (
                f"the worker on {socket.gethostname()} could not ask: "
                f"{type(error).__name__}: {error}"
            )
            return Fault(
                FaultKind.TASK,
                ErrorType.PROVIDER_ERROR,
                self._redactor.clean(message),
                ambiguous=True,
            )
        if isinstance(reply, Fault):
            return reply
        headers = CIMultiDict(
            (name, self._redactor.clean(value)) for name, value in reply.headers.items()
        )
        return reply._replace(headers=headers, body=self._redactor.clean_bytes(reply.body))

    def _sender(self, name: str, transport: str) -> Sending:
        """Opens what sends calls to a provider."""
        if (name, transport) not in self._senders:
            row = self._providers[name]
            self._senders[name, transport] = open_sender(row, transport, self._redactor, self._env)
        return self._senders[name, transport]

    async def _called(self, item: FunctionItem) -> Any:
        """Calls a function."""
        function = item.function
        source = str(function) if isinstance(function, FunctionRef) else function.source
        key = (source, item.processes, item.timeout)
        try:
            opened = self._functions.get(key)
            if opened is None:
                opened = asyncio.ensure_future(self._opened(item))
                self._functions[key] = opened
            return await (await asyncio.shield(opened))(item)
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame: it costs one call
            if isinstance(error, AgacError):
                text = error.message
            else:
                text = f"{type(error).__name__}: {error}"
            text = self._redactor.clean(f"worker on {socket.gethostname()}: {text}")
            if isinstance(function, FunctionRef):
                return RowError(ErrorType.PYTHON_ERROR, text)
            return ToolFailed(text)

    async def _opened(self, item: FunctionItem) -> Callable[[FunctionItem], Awaitable[Any]]:
        """Opens a function and returns what calls it. Raises UsageError if that is not possible."""
        function = item.function
        if isinstance(function, FunctionRef):
            here = replace(function, file=self._root / function.shown)
            opened = open_function(here, self._root, item.processes, item.timeout)
            call = await self._stack.enter_async_context(opened)
            return lambda item: call(item.given)
        return self._tool(function, item.timeout)

    def _tool(
        self, spec: ToolSpec, timeout: float | None
    ) -> Callable[[FunctionItem], Awaitable[Any]]:
        """Opens a tool and returns what calls it."""
        function = load_tool(spec, self._root, {})
        threads = Threads(function.here, THREADS)
        self._stack.callback(threads.close)

        async def called(item: FunctionItem) -> str | ToolFailed:
            try:
                assert isinstance(item.given, dict)
                given = function.given(item.given, lambda: item.key)
                async with asyncio.timeout(timeout):
                    if function.is_async:
                        return await function.awaited(given)
                    text: str = await threads.call(given)
                    return text
            except ToolFailed as failed:
                return failed
            except TimeoutError:
                return ToolTimeout(
                    f"{spec.name} took longer than {timeout:g} s, and was given up", again=True
                )

        return called

    async def _keep(self) -> None:
        """Hands ended items to `collect`, until cancelled. Replies that may be paid are in the
        remote before that, if there is one."""
        while True:
            items = [await self._new.get()]
            value = items[0][1].value
            is_refusal = isinstance(value, HttpReply) and value.status in REFUSALS
            if not is_refusal:
                await asyncio.sleep(GATHER)
            while not self._new.empty():
                items.append(self._new.get_nowait())
            if self._setup.remote is not None:
                await self._put(items, self._setup.remote)
            self._done += [ended for _, ended in items]
            self._ready.set()

    async def _put(self, items: list[tuple[str, Ended]], url: str) -> None:
        """Puts the replies among ended items into the remote. If that fails, it warns once."""
        replies = defaultdict[str, list[tuple[int, HttpReply]]](list)
        for chunk, ended in items:
            if isinstance(ended.value, HttpReply) and ended.value.status < 400:
                replies[chunk].append((ended.number, ended.value))
        try:
            if self._remote is None:
                if "://" not in url and not (self._root / url).is_dir():
                    raise UsageError(f"the folder {self._root / url} is not there")
                self._remote = ObjectStore(url, self._root)
            async with asyncio.timeout(REMOTE):
                for chunk, of_chunk in replies.items():
                    self._objects += 1
                    name = f"{FOLDER}/{self._setup.token}/{chunk}/{self._objects}.replies"
                    await self._remote.create(name, packed_replies(of_chunk))
        # the worker's outermost frame: replies count without the remote
        except Exception as error:  # noqa: BLE001
            self._warn(f"no answer in {REMOTE:g} s" if isinstance(error, TimeoutError) else error)

    def _warn(self, why: object) -> None:
        """Warns once that replies are not kept."""
        if self._has_warned:
            return
        self._has_warned = True
        text = f"worker on {socket.gethostname()}: replies are not kept in the remote: {why}"
        self.said.append(self._redactor.clean(text))
        _log.warning("%s", self.said[-1])


def packed_replies(replies: Iterable[tuple[int, HttpReply]]) -> bytes:
    """Makes an object of the remote with replies to the calls of these numbers."""
    from zstandard import compress

    lines = (
        [number, reply.status, dict(reply.headers), b64encode(reply.body).decode(), *reply[3:]]
        for number, reply in replies
    )
    return compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def unpacked_replies(content: bytes) -> dict[int, HttpReply]:
    """Reads such an object. Raises ValueError and Damaged if it is none."""
    return dict(map(_reply_of, unzipped_lines(content, MOST_REPLIES, "replies")))


class _StoredReply(NamedTuple):
    """A line of such an object."""

    number: Annotated[int, Field(ge=0, lt=1 << 53)]
    """The number of the call."""
    status: Annotated[int, Field(ge=100, lt=600)]
    """The HTTP status."""
    headers: Annotated[dict[_Header, _Header], Field(max_length=1_000)]
    """The headers of the response."""
    body: str
    """Its body in base64."""
    duration: _Seconds
    """Seconds until its end."""
    ttft: _Seconds | None = None
    """Seconds until the first token."""
    time_to_response: _Seconds | None = None
    """Seconds until the first token that is no reasoning."""


_REPLY = TypeAdapter(_StoredReply, config=ConfigDict(strict=True, allow_inf_nan=False))


def _reply_of(line: bytes) -> tuple[int, HttpReply]:
    """Reads a line of such an object. Raises ValueError."""
    strict_json(line, MOST_VALUES)
    stored = _REPLY.validate_json(line)
    body = b64decode(stored.body, validate=True)
    return stored.number, HttpReply(stored.status, CIMultiDict(stored.headers), body, *stored[4:])
