"""What no test may do, and what all may use."""

import asyncio
import atexit
import gc
import inspect
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import soak  # noqa: F401 - loads the profile of hypothesis
from support.batchcase import BatchCase, Start
from support.batchrun import BatchProject, Make
from support.buckets import serving as serving_bucket
from support.commands import ForkedPython, clean_environment, template
from support.killed import ready_stores  # noqa: F401 - makes the stores of this process
from support.npm import Npm, npm_folder
from support.postgres import PostgresServer
from support.postgres import serving as serving_postgres
from support.project import ProjectFolder
from support.server import Faulty, Server, simulator
from support.services import mark_users, runs, starts_service
from support.virtual import run_virtually

from agac.engine.ask import retry_policy
from agac.store import db

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and what we start would inherit it: no Ctrl-C would ever come.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Many images switch bytecode off: each of the hundreds of processes that tests start would compile all of agac again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

gc.disable()  # until all is collected

# No test leaves this machine: to read all the authorities of the world again costs every process a tenth of a second.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "providers/certificates/nobody.pem")
for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)


# No test cuts the power, which is all that syncing to the disk is for: it takes as long as everything else of a run.
os.fsync = lambda _: None
db._PRAGMAS = ("PRAGMA synchronous = OFF", *db._PRAGMAS[1:])

# Tests make some hundred thousand small files, of which a disk takes longer than a file system in memory.
MEMORY, ENOUGH = "/dev/shm", 2 << 30
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize >= ENOUGH and not room.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # where folders of tests that fail stay
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="agac-", dir=MEMORY)
        atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)  # what killed processes left

# Every test writes YAML: by the C library in a tenth of the time.
yaml.SafeDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # type: ignore[misc]


def pytest_configure(config: pytest.Config) -> None:
    """One process forks for all workers, and loads while they collect."""
    if getattr(config.option, "numprocesses", None):
        template()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are chosen by their markers."""
    mark_users(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    runs(item)


def pytest_collection_finish() -> None:
    """Thousands of tests and all that is imported stay to the end: the collector need not look at them each time, nor
    at what has become more since then as often as Python thinks."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries complain of what was not collected in the end."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test may be a coroutine, and its hours of waiting milliseconds (`virtual_time`). Fixtures that give an
    asynchronous context are entered around it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**arguments)

    run = run_virtually if pyfuncitem.get_closest_marker("virtual_time") else asyncio.run
    run(whole())
    return True


class NetworkInTest(AssertionError):
    """A test tried to leave this machine."""


@pytest.fixture(autouse=True, scope="session")
def _only_loopback() -> Iterator[None]:
    """No test reaches the internet, and none finds a key of the machine."""
    patch = pytest.MonkeyPatch()
    for name in os.environ.keys() - clean_environment().keys():
        patch.delenv(name)
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(host).startswith(("127.", "::1", "localhost")):
            raise NetworkInTest(f"a test connects to {host}")
        connect(self, address)

    patch.setattr(socket.socket, "connect", guarded)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _forked_simulators() -> Iterator[None]:
    """Embedded simulators are forked from one that was loaded already, those of forked commands, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agac.simulator.server.sys", ForkedPython())
        yield


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Server]:
    with simulator() as server:
        yield server


@pytest.fixture
def server(_shared_server: Server) -> Server:
    """A simulator without latency or faults, its account at zero."""
    _shared_server.reset()
    return _shared_server


@pytest.fixture(scope="session")
@starts_service
def _postgres_server() -> Iterator[PostgresServer]:
    with serving_postgres() as server:
        yield server


@pytest.fixture
def postgres(_postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    """A PostgreSQL server with an empty database, whose password is in the environment."""
    _postgres_server.fresh("shop")
    for name, value in _postgres_server.env.items():
        monkeypatch.setenv(name, value)
    return _postgres_server


@pytest.fixture
@starts_service
def bucket() -> Iterator[dict[str, str]]:
    """The variables of the environment that lead to a bucket of S3."""
    with serving_bucket() as variables:
        yield variables


@pytest.fixture(scope="session")
@starts_service
def npm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Npm:
    """Gives the folder into which the packages of a package.json are installed."""
    return lambda manifest: npm_folder(manifest, request, tmp_path_factory)


@pytest.fixture(scope="session")
@starts_service
def ray_installed() -> None:
    """Skips the test where Ray does not install."""
    pytest.importorskip("ray", reason="Ray does not install here")


@pytest.fixture
def project(tmp_path: Path, server: Server) -> ProjectFolder:
    """A project whose stages ask `server`."""
    folder = ProjectFolder(tmp_path / "project")
    folder.configure(server.base_url)
    return folder


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed calls of this process are tried again after a fiftieth of the time, where no server says when."""
    monkeypatch.setattr(retry_policy._backoff, "multiplier", 0.02)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    """Starts simulators with faults: `faulty([{"kind": "server_error", "at": [1]}], "--rpm", "60")`."""
    with ExitStack() as stack:

        def start(faults: list[dict[str, Any]], *flags: str) -> Server:
            return stack.enter_context(simulator(*flags, faults=faults, folder=tmp_path / "faults"))

        yield start


@pytest.fixture
def case_at(faulty: Faulty, tmp_path: Path) -> Start:
    """Makes a case at a simulator with faults: a project whose rows are asked in one batch of so many `seconds`."""

    def start(api: str, *faults: dict[str, Any], seconds: float = 0.0, **more: Any) -> BatchCase:
        server = faulty(list(faults), "--batch-seconds", str(seconds))
        return BatchCase(tmp_path / "project", server, api, **more)

    return start


@pytest.fixture
def batches_at(tmp_path: Path, faulty: Faulty) -> Iterator[Make]:
    """Makes projects at simulators with faults, whose batches take so many seconds of the simulator's clock; they have
    to be sound in the end."""
    made: list[BatchProject] = []

    def start(
        *faults: dict[str, Any], seconds: float = 0.0, rows: int = 10, name: str = "project", **provider: Any
    ) -> BatchProject:
        project = BatchProject(tmp_path / name, faulty(list(faults), "--batch-seconds", str(seconds)), **provider)
        project.numbered(rows)
        made.append(project)
        return project

    yield start
    for project in made:
        project.assert_sound()
