"""Runs workers as actors of Ray: finds a cluster, or starts one for a run, and talks to its
processes.

No other module imports this one, or Ray. If Ray is not installed, the import raises
UsageError."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import shutil
import socket
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import AgacError, UsageError, lack_of
from agac.core.text import split_lines
from agac.data.own_files import NotOurs, listener_of, own_bytes
from agac.engine.workers.pool import BEAT, Chunk, Ended, WorkerFacts, WorkerLost, WorkerSetup
from agac.engine.workers.work import ChunkWorker
from agac.spec.project_models import ExecutorFile

if lack := lack_of("executor: ray", "ray"):
    raise UsageError(lack, remedy="Or run on this machine alone: --executor local.")

# Ray reads this when it is imported: nothing is sent to its makers
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.exceptions import RayError

NAMESPACE = "agac"

REACHED_S = 5.0
"""Seconds in which a cluster has to take a connection and greet; Ray itself would wait for
minutes."""

CONNECT_S = 30.0
"""Seconds in which Ray has to connect to a cluster that is there."""

START_S = 120.0
"""Seconds in which Ray has to start a cluster on this machine, which takes 6 s if nothing else
works."""

MISSED = 4
"""How often in a row the head of a cluster may take no connection, BEAT seconds apart. After 60 s
Ray ends the whole process."""

HERE = "Or run on this machine alone: --executor local."

STORE_BYTES = 200 << 20
"""Shared memory of a cluster that is started here: little is sent to and from workers."""

FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A frame without settings: both sides of an HTTP/2 connection, and so of gRPC, begin with one."""

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + FRAME

ADDRESS_BYTES = 300
"""Bytes of a file that names a cluster."""

T = TypeVar("T")
_log = logging.getLogger("agac.workers")


class _Actor:
    """A ChunkWorker in a process of Ray, with a mark that tells it from another that takes its
    place."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._worker = ChunkWorker(setup)
        self._mark = os.urandom(8).hex()

    async def hello(self) -> tuple[str, WorkerFacts]:
        """Returns its mark, and what it is."""
        return self._mark, await self._worker.hello()

    async def take(self, mark: str, chunk: Chunk) -> None:
        """Begins with a chunk, if it has this mark."""
        if mark != self._mark:
            raise WorkerLost("another process is in its place")
        await self._worker.take(chunk)

    async def collect(self, mark: str) -> tuple[list[Ended], list[str]]:
        """Returns what ended, and warnings, if it has this mark."""
        if mark != self._mark:
            raise WorkerLost("another process is in its place")
        ended = await self._worker.collect()
        warned = list(self._worker.said)
        self._worker.said.clear()
        return ended, warned


class RayWorker:
    """An actor as the pool sees it. Ray starts its process again, perhaps on another machine,
    whenever it ends."""

    def __init__(self, name: str, setup: WorkerSetup, gone: asyncio.Future[str]) -> None:
        """`gone` gets the address of the cluster once nothing answers there any more."""
        # only agac repeats calls, and counts them: Ray starts a new process, without any task of
        # the old one
        how = ray.remote(_Actor).options(
            num_cpus=1, max_restarts=-1, max_task_retries=0, max_concurrency=100
        )
        self.name = name
        self._setup = setup
        self._mark = ""
        self._gone = gone
        self.actor: Any = how.remote(setup)

    async def hello(self) -> WorkerFacts:
        """Does what Worker says. It waits as long as the cluster has no room for the process."""
        facts: WorkerFacts
        self._mark, facts = await self._ask("hello")
        problem = _refusal(facts, self._setup)
        if problem:
            raise problem
        self.name = f"{facts.node}:{facts.pid}"
        return facts

    async def take(self, chunk: Chunk) -> None:
        """Does what Worker says."""
        await self._ask("take", self._mark, chunk)

    async def collect(self) -> list[Ended]:
        """Does what Worker says."""
        ended: list[Ended]
        ended, warnings_of_worker = await self._ask("collect", self._mark)
        for text in warnings_of_worker:
            _log.warning("%s", text)
        return ended

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor. Raises WorkerLost, what the method raises on purpose, and
        AgacError if there is no cluster any more."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()

        def end(ended: Any) -> None:  # in a thread of Ray's
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(waiting.set_result, ended)

        try:
            if not ray.is_initialized():
                raise ConnectionError("the connection is lost")
            # Ray's future may not be cancelled
            getattr(self.actor, method).remote(*arguments).future().add_done_callback(end)
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
                raise UsageError(
                    "a machine of the Ray cluster has no agac", remedy=remedy
                ) from error
            raise WorkerLost(text) from error
        except ConnectionError as error:  # also of Ray Client, which tried for a while
            remedy = f"All that came is stored: run the same command again. {HERE}"
            raise AgacError(f"the Ray cluster is gone: {_reason(error)}", remedy=remedy) from error
        except RuntimeError as error:
            raise WorkerLost(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """Returns the line of Ray's error that says what is wrong; the rest names ids."""
    lines = [line.strip() for line in split_lines(str(error)) if line.strip()]
    if not lines:
        return type(error).__name__
    for line in reversed(lines):
        if line.startswith(("The actor is dead because", "ModuleNotFoundError")):
            return line[:300]
    # a traceback is between the first line and the last one
    first = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
    return first[:300]


def _refusal(facts: WorkerFacts, setup: WorkerSetup) -> UsageError | None:
    """Makes the error of a worker that cannot be used, with its machine; None: it can."""
    who = f"the worker on {facts.node}"
    ours = (version("agac"), platform.python_version())
    if (facts.agac, facts.python.rpartition(".")[0]) != (ours[0], ours[1].rpartition(".")[0]):
        text = (
            f"{who} has agac {facts.agac} and Python {facts.python}; here are agac "
            f"{ours[0]} and Python {ours[1]}"
        )
        return UsageError(text, remedy=f"Install the same of both on all machines. {HERE}")
    if facts.missing:
        names = ", ".join(facts.missing)
        remedy = f"Set it there, or in a .env beside agac.yml on that machine. {HERE}"
        return UsageError(f"{who} has no value of the variable {names}", remedy=remedy)
    if setup.simulators and facts.node != socket.gethostname():
        text = f"the embedded simulator answers on this machine alone, and {who} is on another one"
        remedy = (
            "Name a provider in agac.yml that all machines reach, as one of `agac "
            f"simulate`. {HERE}"
        )
        return UsageError(text, remedy=remedy)
    return None


@asynccontextmanager
async def open_workers(
    settings: ExecutorFile, setup: WorkerSetup, env: Mapping[str, str]
) -> AsyncIterator[Sequence[RayWorker]]:
    """Opens workers of a cluster for the block, as OpenWorkers says. Raises UsageError,
    AgacError."""
    # else the program that uses agac is connected already
    connects = not ray.is_initialized()
    gone = asyncio.get_running_loop().create_future()
    address, started = await _connected(settings, env) if connects else (None, None)
    printer: Any = ray._private.worker  # untyped
    printed = printer.print_to_stdstream
    if connects:  # Ray would write to standard output that a process died, which is logged here
        printer.print_to_stdstream = lambda *_, **__: None
    is_client: Any = ray.util.client.ray.is_connected  # untyped
    watching = asyncio.create_task(
        _watch(address if is_client() else ray.get_runtime_context().gcs_address, gone)
    )
    try:
        workers = await _asked(partial(_workers, settings, setup, gone))
        try:
            yield workers
        finally:
            if not gone.done():
                await _asked(partial(_dismiss, workers))
    finally:
        watching.cancel()
        try:
            if connects:
                await _asked(partial(_end, started))
        finally:
            printer.print_to_stdstream = printed


def _workers(
    settings: ExecutorFile, setup: WorkerSetup, gone: asyncio.Future[str]
) -> list[RayWorker]:
    """Makes as many workers as the settings say, else one for each CPU."""
    resources: Any = ray.cluster_resources  # untyped
    count = settings.workers or int(resources().get("CPU", 0)) or 1
    return [RayWorker(str(number), setup, gone) for number in range(1, count + 1)]


def _dismiss(workers: Sequence[RayWorker]) -> None:
    """Ends the workers' processes."""
    for worker in workers:
        with suppress(RayError, ConnectionError):
            if ray.is_initialized():  # else Ray would start a cluster for this
                ray.kill(worker.actor)


async def _watch(head: str | None, gone: asyncio.Future[str]) -> None:
    """Sets `gone` when the head of a cluster is gone. If its address is not known, a client
    notices that by its own connection."""
    missed = 0
    while head and missed < MISSED:
        await asyncio.sleep(BEAT)
        try:
            reached = await _within(2 * REACHED_S, partial(_answers, head))
        except TimeoutError:  # its name was not found in time
            reached = False
        missed = 0 if reached else missed + 1
    if head:
        gone.set_result(head)


# A cluster is found, and Ray connected to it. Ray waits in C++ and in gRPC, and neither Ctrl-C nor
# a time-out gets there, so it is called in threads that the end of the process does not wait for.


class _Named(NamedTuple):
    """A cluster that is named somewhere."""

    address: str
    """Its address."""
    by: str
    """What names it, for messages."""


class _Started(NamedTuple):
    """A cluster that was started for a run."""

    folder: Path
    """Its folder."""
    over: threading.Event
    """Keeps the thread that started it until it is set: Linux ends Ray's processes with that
    thread."""


async def _connected(
    settings: ExecutorFile, env: Mapping[str, str]
) -> tuple[str | None, _Started | None]:
    """Connects Ray to the cluster that is meant, and returns its address; or starts one. Raises
    AgacError if that does not succeed in time."""
    at = "the Ray cluster"
    late = f"could not be looked for within {CONNECT_S:g} s"
    try:
        meant = await _within(CONNECT_S, partial(_meant, settings, env))
        if meant is None:
            at = "a Ray cluster of this machine"
            late = f"was not started within {START_S:g} s"
            started = _Started(
                Path(tempfile.mkdtemp(prefix="agac-", dir=env.get("RAY_TMPDIR"))), threading.Event()
            )
            await _within(
                START_S, partial(_start, settings, started), partial(_end, started), started.over
            )
            return None, started
        at = f"the Ray cluster at {meant.address} ({meant.by})"
        late = f"takes connections, and Ray was not connected to it within {CONNECT_S:g} s"
        await _within(CONNECT_S, partial(_init, address=meant.address), partial(_end, None))
    except TimeoutError:
        remedy = f"See that it works by itself, with Ray {ray.__version__}. {HERE}"
        raise AgacError(f"{at} {late}", remedy=remedy) from None
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        remedy = (
            f"Every machine needs the same Ray and Python as here: {ray.__version__}, "
            f"{platform.python_version()}; and where it asks for a token: RAY_AUTH_MODE=token, "
            "and the token in ~/.ray/auth_token. "
        )
        raise AgacError(f"{at} cannot be used: {_reason(error)}", remedy=remedy + HERE) from error
    return meant.address, None


async def _asked(work: Callable[[], T]) -> T:
    """Calls Ray once it is connected. Raises AgacError if it does not return in time."""
    try:
        return await _within(CONNECT_S, work)
    except TimeoutError:
        what = f"the Ray cluster did not answer within {CONNECT_S:g} s"
        raise AgacError(
            what, remedy=f"All that came is stored: run the same command again. {HERE}"
        ) from None


async def _within(
    seconds: float,
    work: Callable[[], T],
    undo: Callable[[], None] = lambda: None,
    over: threading.Event | None = None,
) -> T:
    """Does `work` in a thread, and returns its result. Raises TimeoutError.

    The thread ends with the process at the latest; with `over`, it stays until that is set. If
    `work` succeeds after the time is over, `undo` is called."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()

    def deliver(value: T) -> None:
        if waiting.done():
            threading.Thread(target=undo, daemon=True).start()
        else:
            waiting.set_result(value)

    def refuse(error: BaseException) -> None:
        if not waiting.done():
            waiting.set_exception(error)

    def carry_out() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(refuse, error)
            return
        try:
            loop.call_soon_threadsafe(deliver, value)
        except RuntimeError:  # the loop is closed
            undo()
        if over is not None:
            over.wait()

    threading.Thread(target=carry_out, name="agac-ray", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await waiting


def _init(**how: Any) -> None:
    """Connects Ray, or starts a cluster."""
    with warnings.catch_warnings(action="ignore"):  # Ray Client warns of what is logged here
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL, **how)


def _start(settings: ExecutorFile, started: _Started) -> None:
    """Starts a cluster that ends with this process, in a folder that no other user can open: Ray
    lets all users write into its own one."""
    cpus = settings.workers and max(settings.workers, os.cpu_count() or 1)
    try:
        _init(
            address="local",
            include_dashboard=False,
            num_cpus=cpus,
            object_store_memory=STORE_BYTES,
            _temp_dir=str(started.folder / "ray"),
        )
    except BaseException:
        _end(started)
        raise


def _end(started: _Started | None) -> None:
    """Ends Ray in this process, and the cluster that was started for it."""
    ray.shutdown()
    if started is not None:
        started.over.set()
        # processes of Ray may still be writing into it
        shutil.rmtree(started.folder, ignore_errors=True)


def _meant(settings: ExecutorFile, env: Mapping[str, str]) -> _Named | None:
    """Returns the cluster that is meant, which greets; None: one is to be started. Raises
    AgacError if one that was named does not greet."""
    by = "executor.ray"
    address = settings.ray
    if address == "auto":
        by = "RAY_ADDRESS"
        address = env.get("RAY_ADDRESS") or "auto"
    if address == "local":
        return None
    if address == "auto":
        return _found(env)
    problem = _problem(address)
    if problem:
        raise AgacError(
            f"{by}={address}: {problem}", remedy=f"Start it, or correct the address. {HERE}"
        )
    return _Named(address, by)


def _found(env: Mapping[str, str]) -> _Named | None:
    """Finds the cluster that this user started on this machine, if it greets; None: there is none.

    What another user may have written or may serve is ignored, which is logged: whoever serves a
    cluster gets the rows of the run."""
    # where Ray itself looks
    folder = env.get("RAY_TMPDIR") or env.get("TMPDIR") or "/tmp"  # noqa: S108
    file = Path(folder, "ray", "ray_current_cluster")
    try:
        text = own_bytes(file, ADDRESS_BYTES).decode("ascii", "replace").strip()
        if not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", text):
            raise NotOurs(f"{file} does not hold an address")
        if _problem(text):  # the file of a killed cluster is never removed
            return None
        owner = listener_of(text)
        if owner not in (None, os.geteuid()):
            raise NotOurs(f"{file} names {text}, where another user ({owner}) listens")
    except FileNotFoundError:
        return None
    except NotOurs as problem:
        what = (
            "ray: auto: %s. agac ignores it and starts a cluster for this run. To use one "
            "that runs, name it: "
        )
        _log.warning(f"{what}RAY_ADDRESS=host:port", problem)
        return None
    return _Named(text, str(file))


def _problem(address: str) -> str:
    """Says why a cluster cannot be at an address; empty: it may be there."""
    connection = _reached(address)
    if connection is None:
        return "nothing takes connections there"
    with connection, connection.makefile("rb") as answer:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return ""
        try:
            connection.sendall(GREETING)
            greeting = answer.read(len(FRAME))
        except TimeoutError:
            return (
                f"what takes connections there said nothing within {REACHED_S:g} s, so it "
                "is not Ray at work"
            )
        except OSError as error:
            return f"what takes connections there broke off: {error.strerror or error}"
    if greeting[3:4] == FRAME[3:4]:
        return ""
    return "what takes connections there is not Ray"


def _reached(address: str) -> socket.socket | None:
    """Connects to what listens at an address; None: nothing does."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with suppress(OSError, ValueError):
        return socket.create_connection((host.strip("[]"), int(port)), REACHED_S)
    return None


def _answers(address: str) -> bool:
    """True if anything takes connections at an address."""
    connection = _reached(address)
    if connection is not None:
        connection.close()
    return connection is not None
