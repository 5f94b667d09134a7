"""Workers as processes behind two pipes, without Ray: to be killed, stopped and counted."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agac.engine.workers.pool import Chunk, Ended, WorkerFacts, WorkerLost, WorkerSetup
from agac.spec.project_models import ExecutorFile
from support.commands import Forked, clean_environment, start_forked, template
from support.killed.worker_process import frame, framed
from support.project import ProjectFolder
from support.server import Server


class PipedWorker:
    """A worker in a process of its own. Where it ended, `hello` starts the next one. `taken` are chunks that it got."""

    def __init__(self, name: str, setup: WorkerSetup) -> None:
        self.name, self._setup = name, setup
        self.process: Forked | None = None
        self.taken: list[Chunk] = []
        self.starts = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._number = 0

    async def start(self) -> None:
        (their_input, given), (read, their_output) = os.pipe(), os.pipe()
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 26)
        read_pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
        )
        self._pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(given, "wb", 0))
        words = ["-c", "from worker_process import work; work()"]
        self.process = template().fork("script", words, Path.cwd(), os.environ, [their_input, their_output, 2])
        self._reading = asyncio.create_task(self._read(self.process, reader, read_pipe, self._pipe))
        os.close(their_input)
        os.close(their_output)
        self._pipe.write(framed(self._setup))
        self.starts += 1

    async def _read(
        self, process: Forked, reader: asyncio.StreamReader, *pipes: asyncio.ReadTransport | asyncio.WriteTransport
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, value = await frame(reader)
                if (waiter := self._waiting.pop(number, None)) is not None and not waiter.done():
                    waiter.set_result(value)
        code = await asyncio.to_thread(process.wait)
        for pipe in pipes:
            pipe.close()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(WorkerLost(f"its process ended with {code}"))
        self._waiting.clear()

    async def _ask(self, what: str, *given: Any) -> Any:
        if self.process is None or self.process.returncode is not None or self._pipe.is_closing():
            raise WorkerLost("its process ended")
        self._number += 1
        waiter = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._pipe.write(framed((self._number, what, given)))
        return await waiter

    async def hello(self) -> WorkerFacts:
        if self.process is None or self.process.returncode is not None:
            await self.start()
        facts: WorkerFacts = await self._ask("hello")
        return facts

    async def take(self, chunk: Chunk) -> None:
        self.taken.append(chunk)
        await self._ask("take", chunk)

    async def collect(self) -> list[Ended]:
        found: list[Ended] = await self._ask("collect")
        if found and os.environ.get("AGAC_TEST_DEAF"):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    async def end(self) -> None:
        if self.process is not None and self._reading is not None:
            if self.process.returncode is None:
                self.signal(signal.SIGKILL)
            await self._reading


class Crew:
    """Starts so many workers for a run, as `engine.workers.ray.open_workers` does."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.workers: list[PipedWorker] = []
        self.moments: list[tuple[Server, int, signal.Signals]] = []

    def strike(self, server: Server, requests: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends the worker that got most a signal as soon as so many requests arrived at the server."""
        self.moments.append((server, requests, number))

    async def _strike(self) -> None:
        for server, requests, number in self.moments:
            while (await asyncio.to_thread(server.account))["requests"] < requests:
                await asyncio.sleep(0)
            if number != signal.SIGCONT:  # which is for the one that was stopped
                struck = max(self.workers, key=lambda one: sum(len(chunk.items) for chunk in one.taken))
            struck.signal(number)

    @asynccontextmanager
    async def __call__(
        self, settings: ExecutorFile, setup: WorkerSetup, env: Mapping[str, str]
    ) -> AsyncIterator[Sequence[PipedWorker]]:
        self.workers = [PipedWorker(f"w{number}", setup) for number in range(1, self.count + 1)]
        striking = asyncio.create_task(self._strike())
        try:
            yield self.workers
        finally:
            striking.cancel()
            for worker in self.workers:
                await worker.end()

    @property
    def items(self) -> list[Any]:
        return [item for worker in self.workers for chunk in worker.taken for item in chunk.items]


def drive() -> None:
    """`agac` with a crew of two in the place of a cluster, as a process of its own that a test may kill. With
    AGAC_TEST_DEAF it dies of the first replies, before it could store any."""
    from agac.cli.main import main
    from agac.engine.workers import ray

    ray.open_workers = Crew()  # type: ignore[assignment]
    main()


def driver(project: ProjectFolder, *arguments: str, env: Mapping[str, str] | None = None) -> Forked:
    """Starts that in a project."""
    path = str(Path(__file__).parent.parent)
    text = f"import sys; sys.path.append({path!r}); from support.workers import drive; drive()"
    return start_forked(["-c", text, *arguments], project.root, clean_environment(env), "script")
