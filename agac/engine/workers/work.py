"""What a worker does: it sends the calls of its chunks and calls functions, all side by side, and
keeps replies in the remote before it gives them back. It knows no store, no limits and no retries.
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
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, strict_json
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
"""Of replies in the remote, as FOLDER/TOKEN/CHUNK/N.replies: written once, before they are given
back."""
GATHER = 0.02  # seconds in which more may end that goes back together
REMOTE = 10.0  # seconds for which replies are held back until the remote has them
REFUSALS = (429, 503)  # go back at once: the lane is to pause
MOST_REPLIES = 100_000  # of an object of the remote, and of one reply in it, headers and all
MOST_VALUES = 10_000

_Header = Annotated[str, StringConstraints(max_length=100_000)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]

_log = logging.getLogger("agac.workers")


class ChunkWorker:
    """Carries out chunks in this process and its event loop; `close` it. `said` are warnings for
    whoever it works for."""

    def __init__(self, setup: WorkerSetup, env: Mapping[str, str] | None = None) -> None:
        """`env` is what `${VAR}` means; None: this process's environment, over the project's .env
        if there is one."""
        self._setup = setup
        self._root = Path(setup.root)
        if env is None:
            written = dotenv_values(home_of(self._root) / ".env").items()
            env = {**{name: value for name, value in written if value is not None}, **os.environ}
        self._env = env
        self.said = list[str]()
        self._is_said = False
        rows, _ = build_providers(setup.providers, env)
        for name, (address, key) in setup.simulators.items():
            rows[name] = replace(rows[name].at_simulator(address, key), missing_variables=())
        self._providers = {name: rows[name] for name in setup.asked}
        known = rows.values()
        self._redactor = Redactor(
            [one for row in known for one in row.secrets],
            [one for row in known for one in row.header_values],
        )
        self._senders: dict[tuple[str, str], Sending] = {}
        self._functions: dict[Any, asyncio.Future[Callable[[FunctionItem], Awaitable[Any]]]] = {}
        self._stack = AsyncExitStack()
        self._tasks = set[asyncio.Task[None]]()
        self._new = asyncio.Queue[tuple[str, Ended]]()  # no longer than what was taken
        self._done = list[Ended]()
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._kept = self._asked = 0
        self._remote: ObjectStore | None = None

    async def hello(self) -> WorkerFacts:
        """What it is. Raises UsageError, which names this machine, for what keeps it from any
        work: all at once."""
        missing = sorted(
            {name for row in self._providers.values() for name in row.missing_variables}
        )
        problems = []
        for one in self._setup.functions:
            if isinstance(one, FunctionRef):
                shown = one.shown
            else:
                shown = one.source.rpartition(":")[0]
            if isinstance(one, FunctionRef):
                wanted = one.source_hash.hex()
            else:
                wanted = one.version
            home = self._root if isinstance(one, FunctionRef) else home_of(self._root)
            if not (home / shown).is_file():
                problems.append(f"{home / shown} is not there")
            elif source_hash(home / shown, home)[0].hex() != wanted:
                problems.append(f"{home / shown}, or a file that it imports, is another one")
        if problems:
            text = f"worker on {socket.gethostname()}: {'; '.join(dict.fromkeys(problems))}"
            raise UsageError(
                text,
                remedy="Put the same project at the same path of all machines that work for it.",
            )
        if not missing:
            for name in self._providers:
                # raises where its address, a header or the certificates cannot be used
                self._sender(name, "body")
        python = platform.python_version()
        return WorkerFacts(
            socket.gethostname(), os.getpid(), version("agac"), python, (*missing,), time.time()
        )

    async def take(self, chunk: Chunk) -> None:
        """Begins with a chunk."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        for item in chunk.items:
            task = asyncio.create_task(self._carry_out(chunk, item))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def collect(self) -> list[Ended]:
        """What ended since the last time, as soon as there is any, or after BEAT seconds. Nothing
        where it was asked for again meanwhile: the answer to the earlier question reaches nobody
        any more."""
        self._asked = own = self._asked + 1
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT):
                await self._ready.wait()
        if own != self._asked:
            return []
        self._ready.clear()
        done, self._done = self._done, []
        return done

    async def close(self) -> None:
        """Gives up what is under way, and closes every connection and process."""
        tasks = [*self._tasks, *([self._keeping] if self._keeping else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():
            await sender.close()
        await self._stack.aclose()

    async def _carry_out(self, chunk: Chunk, item: Item) -> None:
        if isinstance(item, FunctionItem):
            ended = Ended(item.number, await self._called(item))
        elif (
            now := time.time()
        ) >= chunk.expires_at:  # this process stood still, and others may have it by now
            ended = Ended(item.number, now, unsent=True)
        else:
            ended = Ended(item.number, await self._sent(item))
        self._new.put_nowait((chunk.id, ended))

    async def _sent(self, item: CallItem) -> HttpReply | Fault:
        try:
            send: Any = self._sender(item.provider, item.transport).send
            more = {"headers": item.headers} if item.headers else {}  # which not every way has
            reply: HttpReply | Fault = await send(
                item.body, item.timeout, within=item.within, fresh=item.fresh, **more
            )
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame: a fault of agac's costs one call
            words = (
                f"the worker on {socket.gethostname()} could not ask: "
                f"{type(error).__name__}: {error}"
            )
            return Fault(
                FaultKind.TASK,
                ErrorType.PROVIDER_ERROR,
                self._redactor.clean(words),
                ambiguous=True,
            )
        if isinstance(reply, Fault):
            return reply
        headers = CIMultiDict(
            (name, self._redactor.clean(value)) for name, value in reply.headers.items()
        )
        return reply._replace(headers=headers, body=self._redactor.clean_bytes(reply.body))

    def _sender(self, name: str, transport: str) -> Sending:
        if (name, transport) not in self._senders:
            row = self._providers[name]
            self._senders[name, transport] = open_sender(row, transport, self._redactor, self._env)
        return self._senders[name, transport]

    async def _called(self, item: FunctionItem) -> Any:
        if isinstance(item.function, FunctionRef):
            key = str(item.function)
        else:
            key = item.function.source
        try:
            opened = self._functions.get((key, item.processes, item.timeout))
            if opened is None:
                opened = self._functions[key, item.processes, item.timeout] = asyncio.ensure_future(
                    self._opened(item)
                )
            return await (await asyncio.shield(opened))(item)
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame: it costs one call
            if isinstance(error, AgacError):
                text = error.message
            else:
                text = f"{type(error).__name__}: {error}"
            text = self._redactor.clean(f"worker on {socket.gethostname()}: {text}")
            if isinstance(item.function, FunctionRef):
                return RowError(ErrorType.PYTHON_ERROR, text)
            return ToolFailed(text)

    async def _opened(self, item: FunctionItem) -> Callable[[FunctionItem], Awaitable[Any]]:
        """How a function is called. Raises UsageError where it cannot be had."""
        ref = item.function
        if isinstance(ref, FunctionRef):
            here = replace(ref, file=self._root / ref.shown)
            opened = open_function(here, self._root, item.processes, item.timeout)
            call = await self._stack.enter_async_context(opened)
            return lambda one: call(one.given)
        return self._tool(ref, item.timeout)

    def _tool(
        self, spec: ToolSpec, timeout: float | None
    ) -> Callable[[FunctionItem], Awaitable[Any]]:
        function = load_tool(spec, self._root, {})
        threads = Threads(function.here, THREADS)
        self._stack.callback(threads.close)

        async def called(item: FunctionItem) -> str | ToolFailed:
            try:
                assert isinstance(item.given, dict)
                given = function.given(item.given, lambda: item.key)
                async with asyncio.timeout(timeout):
                    text: str = await (
                        function.awaited(given) if function.is_async else threads.call(given)
                    )
                return text
            except ToolFailed as failed:
                return failed
            except TimeoutError:
                return ToolTimeout(
                    f"{spec.name} took longer than {timeout:g} s, and was given up", again=True
                )

        return called

    async def _keep(self) -> None:
        """Gives back what ended. Replies that may be paid are in the remote before that, if there
        is one."""
        while True:
            some = [await self._new.get()]
            value = some[0][1].value
            if not (isinstance(value, HttpReply) and value.status in REFUSALS):
                await asyncio.sleep(GATHER)
            while not self._new.empty():
                some.append(self._new.get_nowait())
            if self._setup.remote is not None:
                await self._put(some, self._setup.remote)
            self._done += [ended for _, ended in some]
            self._ready.set()

    async def _put(self, some: list[tuple[str, Ended]], url: str) -> None:
        replies = defaultdict[str, list[tuple[int, HttpReply]]](list)
        for chunk, one in some:
            if isinstance(one.value, HttpReply) and one.value.status < 400:
                replies[chunk].append((one.number, one.value))
        try:
            if self._remote is None:
                if "://" not in url and not (self._root / url).is_dir():
                    raise UsageError(f"the folder {self._root / url} is not there")
                self._remote = ObjectStore(url, self._root)
            async with asyncio.timeout(REMOTE):
                for chunk, found in replies.items():
                    self._kept += 1
                    name = f"{FOLDER}/{self._setup.token}/{chunk}/{self._kept}.replies"
                    await self._remote.create(name, packed_replies(found))
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame: replies count without the remote
            if not self._is_said:
                self._is_said = True
                if isinstance(error, TimeoutError):
                    why = f"no answer in {REMOTE:g} s"
                else:
                    why = str(error)
                text = (
                    f"worker on {socket.gethostname()}: replies are not kept in the remote: {why}"
                )
                self.said.append(self._redactor.clean(text))
                _log.warning("%s", self.said[-1])


def packed_replies(replies: Iterable[tuple[int, HttpReply]]) -> bytes:
    """An object of the remote with replies to the calls of these numbers."""
    from zstandard import compress

    lines = ([n, r.status, dict(r.headers), b64encode(r.body).decode(), *r[3:]] for n, r in replies)
    return compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def unpacked_replies(content: bytes) -> dict[int, HttpReply]:
    """The same read back. Raises ValueError and Damaged for what is none."""
    return dict(map(_reply_of, unzipped_lines(content, MOST_REPLIES, "replies")))


class _StoredReply(NamedTuple):
    """A line of such an object."""

    number: Annotated[int, Field(ge=0, lt=1 << 53)]
    status: Annotated[int, Field(ge=100, lt=600)]
    headers: Annotated[dict[_Header, _Header], Field(max_length=1_000)]
    body: str
    """In base64."""
    duration: _Seconds
    ttft: _Seconds | None = None
    time_to_response: _Seconds | None = None


_REPLY = TypeAdapter(_StoredReply, config=ConfigDict(strict=True, allow_inf_nan=False))


def _reply_of(line: bytes) -> tuple[int, HttpReply]:
    strict_json(line, MOST_VALUES)
    stored = _REPLY.validate_json(line)
    body = b64decode(stored.body, validate=True)
    return stored.number, HttpReply(stored.status, CIMultiDict(stored.headers), body, *stored[4:])
