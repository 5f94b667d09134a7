"""Workers as actors of Ray: how a cluster is found, or started for a run, and how its processes are talked to. Nothing
else imports this module, nor Ray. Where that is not installed importing it raises UsageError."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, UsageError, lack_of
from agac.engine.workers.pool import BEAT, Chunk, Ended, WorkerFacts, WorkerLost, WorkerSetup
from agac.engine.workers.work import ChunkWorker
from agac.spec.project_models import ExecutorFile

if lack := lack_of("executor: ray", "ray"):
    raise UsageError(lack, remedy="Or run on this machine alone: --executor local.")

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it when it is imported: nothing is sent to its makers

import ray
from ray.exceptions import RayError

NAMESPACE = "agac"
REACHED_S = 5.0  # seconds in which a cluster has to take a connection; Ray itself would wait for minutes
MISSED = 4  # times in a row that its head takes none, BEAT seconds apart; after 60 s Ray ends the whole process
HERE = "Or run on this machine alone: --executor local."
STORE_BYTES = 200 << 20  # shared memory of a cluster that is started here: what goes to and fro is small

_log = logging.getLogger("agac.workers")


class _Actor:
    """The process: a ChunkWorker, and a mark of its own by which another one that takes its place is known."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._worker, self._mark = ChunkWorker(setup), os.urandom(8).hex()

    async def hello(self) -> tuple[str, WorkerFacts]:
        return self._mark, await self._worker.hello()

    async def take(self, mark: str, chunk: Chunk) -> None:
        if mark != self._mark:
            raise WorkerLost("another process is in its place")
        await self._worker.take(chunk)

    async def collect(self, mark: str) -> tuple[list[Ended], list[str]]:
        if mark != self._mark:
            raise WorkerLost("another process is in its place")
        ended = await self._worker.collect()
        said, self._worker.said[:] = self._worker.said[:], []
        return ended, said


class RayWorker:
    """An actor as the pool sees it. Ray starts its process again, perhaps on another machine, as often as it ends."""

    def __init__(self, name: str, setup: WorkerSetup, gone: asyncio.Future[str]) -> None:
        """`gone` gets the address of the cluster once nothing answers there any more."""
        # only agac repeats, and counts it: Ray starts a new process, and nothing of what the old one had
        how = ray.remote(_Actor).options(num_cpus=1, max_restarts=-1, max_task_retries=0, max_concurrency=100)
        self.name, self._setup, self._mark, self._gone = name, setup, "", gone
        self.actor: Any = how.remote(setup)

    async def hello(self) -> WorkerFacts:
        """See Worker. It waits for as long as the cluster has no room for the process."""
        facts: WorkerFacts
        self._mark, facts = await self._ask("hello")
        if problem := _refusal(facts, self._setup):
            raise problem
        self.name = f"{facts.node}:{facts.pid}"
        return facts

    async def take(self, chunk: Chunk) -> None:
        """See Worker."""
        await self._ask("take", self._mark, chunk)

    async def collect(self) -> list[Ended]:
        """See Worker."""
        ended: list[Ended]
        ended, said = await self._ask("collect", self._mark)
        for text in said:
            _log.warning("%s", text)
        return ended

    async def _ask(self, what: str, *given: Any) -> Any:
        """What the actor's method gives. Raises WorkerLost, what the method raises on purpose, and AgacError where
        there is no cluster any more."""
        waiting = (loop := asyncio.get_running_loop()).create_future()

        def end(ended: Any) -> None:  # in a thread of Ray's, perhaps when nobody waits any more
            with suppress(RuntimeError):  # nor is there a loop
                loop.call_soon_threadsafe(waiting.set_result, ended)

        try:
            if not ray.is_initialized():
                raise ConnectionError("the connection is lost")
            getattr(self.actor, what).remote(*given).future().add_done_callback(end)  # which may not be cancelled
            await asyncio.wait((waiting, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ConnectionError(f"nothing answers at {self._gone.result()}")
            return waiting.result().result()
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, (AgacError, WorkerLost)):
                raise cause from None
            text = _reason(error)
            if "No module named 'agac" in text:
                remedy = f"Install agac {version('agac')} on each machine of the cluster. {HERE}"
                raise UsageError("a machine of the Ray cluster has no agac", remedy=remedy) from error
            raise WorkerLost(text) from error
        except ConnectionError as error:  # of Ray Client, too, which tried for a while, and does so no more
            remedy = f"All that came is stored: run the same command again. {HERE}"
            raise AgacError(f"the Ray cluster is gone: {_reason(error)}", remedy=remedy) from error
        except RuntimeError as error:
            raise WorkerLost(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """The line of Ray's error that says what is the matter; the rest names ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    found = [line for line in lines if line.startswith(("The actor is dead because", "ModuleNotFoundError"))]
    first = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]  # a traceback is between them
    return (found[-1] if found else first)[:300]


def _refusal(facts: WorkerFacts, setup: WorkerSetup) -> UsageError | None:
    """Why a worker cannot be used, with its machine."""
    who, ours = f"the worker on {facts.node}", (version("agac"), platform.python_version())
    if (facts.agac, facts.python.rpartition(".")[0]) != (ours[0], ours[1].rpartition(".")[0]):
        text = f"{who} has agac {facts.agac} and Python {facts.python}; here are agac {ours[0]} and Python {ours[1]}"
        return UsageError(text, remedy=f"Install the same of both on all machines. {HERE}")
    if facts.missing:
        names = ", ".join(facts.missing)
        remedy = f"Set it there, or in a .env beside agac.yml on that machine. {HERE}"
        return UsageError(f"{who} has no value of the variable {names}", remedy=remedy)
    if setup.addresses and facts.node != socket.gethostname():
        text = f"the embedded simulator answers on this machine alone, and {who} is on another one"
        remedy = f"Name a provider in agac.yml that all machines reach, as one of `agac simulate`. {HERE}"
        return UsageError(text, remedy=remedy)
    return None


@asynccontextmanager
async def open_workers(
    settings: ExecutorFile, setup: WorkerSetup, env: Mapping[str, str]
) -> AsyncIterator[Sequence[RayWorker]]:
    """Workers of a cluster, for the time of the block: see OpenWorkers. Raises UsageError, AgacError."""
    own, gone = not ray.is_initialized(), asyncio.get_running_loop().create_future()
    # else the program that uses agac is connected already
    address = await asyncio.to_thread(_connect, settings, env) if own else None
    printer: Any = ray._private.worker  # untyped
    printed = printer.print_to_stdstream
    if own:  # what Ray would write to standard output, of who died, is said here, too
        printer.print_to_stdstream = lambda *_, **__: None
    is_client: Any = ray.util.client.ray.is_connected  # untyped
    watching = asyncio.create_task(_watch(address if is_client() else ray.get_runtime_context().gcs_address, gone))
    try:
        resources: dict[str, float] = await asyncio.to_thread(ray.cluster_resources)
        count = settings.workers or int(resources.get("CPU", 0)) or 1
        workers = [RayWorker(str(number), setup, gone) for number in range(1, count + 1)]
        try:
            yield workers
        finally:
            for worker in workers:
                with suppress(RayError, ConnectionError):
                    if not gone.done() and ray.is_initialized():  # else Ray would start a cluster for this
                        ray.kill(worker.actor)
    finally:
        watching.cancel()
        if own:
            await asyncio.to_thread(ray.shutdown)
        printer.print_to_stdstream = printed


async def _watch(head: str | None, gone: asyncio.Future[str]) -> None:
    """Says when the head is gone. (Where its address is not known, a client hears of it by its own connection.)"""
    missed = 0
    while head and missed < MISSED:
        await asyncio.sleep(BEAT)
        missed = 0 if await asyncio.to_thread(_answers, head) else missed + 1
    if head:
        gone.set_result(head)


def _connect(settings: ExecutorFile, env: Mapping[str, str]) -> str | None:
    """To the cluster that is meant; gives its address. Where there is none, one is started."""
    start = partial(ray.init, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
    where, named = "executor.ray", settings.ray
    if named == "auto":
        where, named = "RAY_ADDRESS", env.get("RAY_ADDRESS") or "auto"
    if named not in ("auto", "local") and not _answers(named):  # Ray itself tries for half a minute
        remedy = f"Start it, or correct the address. {HERE}"
        raise AgacError(f"{where}={named}: nothing takes connections there", remedy=remedy)
    address = _found(env) if named == "auto" else None if named == "local" else named
    try:
        if address is not None:
            with warnings.catch_warnings(action="ignore"):  # of Ray Client, of what is said here
                start(address=address)
            return address
        cpus = settings.workers and max(settings.workers, os.cpu_count() or 1)
        start(address="local", include_dashboard=False, num_cpus=cpus, object_store_memory=STORE_BYTES)
        return None
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        at = f"the Ray cluster at {address}" if address else "a Ray cluster of this machine"
        remedy = (
            f"Every machine needs the same Ray and Python as here: {ray.__version__}, {platform.python_version()}; "
            "and where it asks for a token: RAY_AUTH_MODE=token, and the token in ~/.ray/auth_token. "
        )
        raise AgacError(f"{at} cannot be used: {_reason(error)}", remedy=remedy + HERE) from error


def _found(env: Mapping[str, str]) -> str | None:
    """The address of the cluster that was started on this machine and takes connections; None: there is none."""
    file = Path(env.get("RAY_TMPDIR") or "/tmp") / "ray/ray_current_cluster"  # noqa: S108 - where Ray writes it
    there = file.read_text("utf-8").strip() if file.is_file() else ""
    return there if there and _answers(there) else None  # what a cluster left that was killed is there for ever


def _answers(address: str) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with suppress(OSError, ValueError), closing(socket.create_connection((host, int(port)), REACHED_S)):
        return True
    return False
