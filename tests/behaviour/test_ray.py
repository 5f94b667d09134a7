"""Runs by workers of Ray: a real cluster of this machine. (Kills, lost heads and the like are in the cluster tests.)"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.processes import ended
from support.project import ProjectFolder
from support.server import Server

from agac.core.errors import AgacError, UsageError
from agac.spec.project_models import ExecutorFile

pytestmark = pytest.mark.usefixtures("ray_installed")
FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # of settings, with which a server of gRPC begins

PYTHON = """
import os

def size(row):
    return {"text": row["text"], "size": len(row["text"])}

def where() -> str:
    '''Says where this is.'''
    return f"process {os.getpid()}"
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A temp folder as Ray leaves it: all users can write into the one with the running cluster's address."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "ray").mkdir()
    (folder / "ray").chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_a_run_by_ray_writes_what_a_run_here_writes(project: ProjectFolder, server: Server, shared: Path) -> None:
    project.asks(server, api_key="${SIMULATED_KEY}")
    project.write(".env", "SIMULATED_KEY=sk-simulated-1234567890\n")
    project.write("tools/sizes.py", PYTHON)
    project.workflow(rows=30, stages=[
        {"name": "size", "python": "tools/sizes.py:size"},
        {"name": "classify", "prompt": "Classify: ${text}", "output_schema": {"sentiment": "positive|negative"}},
    ])  # fmt: skip
    project.agac("run", "-a", "reviews", code=0)
    (here,) = (project.root / "output/reviews").glob("results.jsonl")
    local, before = here.read_bytes(), server.account()["requests"]
    env = {"AGAC_REMOTE": "shared", "RAY_TMPDIR": str(shared)}
    ran = project.agac("run", "-a", "reviews", "--executor", "ray", "--fresh", env=env, code=0)
    assert "ray" not in ran.err.lower()
    assert [*shared.rglob("*")] == [shared / "ray"]  # it works in a folder of its own, which is gone
    assert here.read_bytes() == local
    assert server.account()["requests"] == 2 * before
    # the workers put every reply into the remote, and none holds the key
    kept = [one.read_bytes() for one in (project.root / "shared/v1/chunks").rglob("*.replies")]
    assert kept
    assert not any(b"sk-simulated" in one for one in kept)
    project.assert_sound()


@pytest.mark.parametrize("where", ["RAY_ADDRESS", "executor.ray"])
def test_a_cluster_that_is_not_there_is_said_at_once(where: str, project: ProjectFolder) -> None:
    project.workflow(rows=3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{taken.getsockname()[1]}"
        if where == "executor.ray":
            project.write("agac.yml", f'defaults: {{model: simulator/small}}\nexecutor: {{ray: "{address}"}}\n')
        env = {"RAY_ADDRESS": address.removeprefix("ray://")} if where == "RAY_ADDRESS" else {}
        ran = project.agac("run", "-a", "reviews", "--executor", "ray", env=env, code=1)
    assert f"{where}={env.get(where, address)}: nothing takes connections there" in ran.err
    assert "--executor local" in ran.err
    project.agac("run", "-a", "reviews", "--executor", "local", code=0)


class Listener:
    """Takes connections at a port of all addresses of this machine, says the same to each, and keeps them open."""

    def __init__(self, says: bytes = b"") -> None:
        self._says = says
        self._kept = list[socket.socket]()
        self._changed = threading.Condition()
        self._listening = socket.create_server(("", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            with self._changed:
                self._kept.append(connection)
                self._changed.notify_all()
            with suppress(OSError):  # who connected is gone
                connection.sendall(self._says)

    @property
    def connections(self) -> int:
        return len(self._kept)

    def reached(self, times: int) -> None:
        """Waits until so many connections were made."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._kept) >= times, 60)

    def close(self) -> None:
        """Closes the port and each connection, one that was taken while it closes, too."""
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which `close` does not
        self._serving.join()
        self._listening.close()
        for connection in self._kept:
            connection.close()


def test_an_address_that_others_can_have_left_is_not_followed(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    from agac.engine.workers import ray

    env = {"RAY_TMPDIR": str(shared)}
    with closing(Listener(FRAME)) as left:
        (shared / "ray/ray_current_cluster").write_text(left.address)
        assert ray._meant(ExecutorFile(), env) is None
        assert left.connections == 0
        assert f"{shared}/ray can be written by other users. agac ignores it and starts a cluster" in caplog.text
        assert "name it: RAY_ADDRESS=host:port" in caplog.text
        shared.chmod(0o700)
        assert ray._meant(ExecutorFile(), env) == (left.address, str(shared / "ray/ray_current_cluster"))
        (shared / "ray/ray_current_cluster").write_text("anything else")
        assert ray._meant(ExecutorFile(), env) is None
        assert "ray_current_cluster does not hold an address" in caplog.text
        assert ray._meant(ExecutorFile(), env | {"RAY_ADDRESS": left.address}) == (left.address, "RAY_ADDRESS")


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_does_not_greet_as_ray_does_is_not_waited_for(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from agac.engine.workers import ray

    monkeypatch.setattr(ray, "REACHED_S", 60.0 if says else 0.2)
    problem = "is not Ray" if says else "said nothing within 0.2 s"
    with closing(Listener(says)) as other, pytest.raises(AgacError, match=f"RAY_ADDRESS=.*{problem}"):
        asyncio.run(ray._connected(ExecutorFile(), {"RAY_ADDRESS": other.address}))


CONNECT = """
import asyncio, sys
from agac.engine.workers import ray
from agac.spec.project_models import ExecutorFile
ray.CONNECT_S = 0.5
try:
    asyncio.run(ray._connected(ExecutorFile(), {"RAY_ADDRESS": sys.argv[1]}))
except ray.AgacError as error:
    sys.exit(f"{error} {error.remedy}")
"""


@pytest.mark.parametrize("begin", ["", "ray://"])
def test_a_cluster_that_greets_and_says_no_more_ends_the_run(begin: str) -> None:
    with closing(Listener(FRAME)) as other:
        words = [sys.executable, "-c", CONNECT, begin + other.address]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert f"{begin}{other.address} (RAY_ADDRESS) takes connections, and Ray was not connected to it" in ran.stderr
    assert "--executor local" in ran.stderr


@pytest.mark.parametrize(("number", "says", "times"), [(signal.SIGINT, b"", 1), (signal.SIGTERM, FRAME, 2)])
def test_a_signal_ends_the_wait_for_a_cluster(
    number: signal.Signals, says: bytes, times: int, project: ProjectFolder
) -> None:
    project.workflow(rows=3)
    with closing(Listener(says)) as other:
        driver = project.start("run", "-a", "reviews", "--executor", "ray", env={"RAY_ADDRESS": other.address})
        other.reached(times)
        driver.send_signal(number)
        ran = ended(driver)
    assert ran.code == 130  # by no error, as after the time that agac waits
    assert "error" not in ran.err
    project.agac("run", "-a", "reviews", "--executor", "local", code=0)


def test_why_a_client_was_refused_is_said() -> None:
    from agac.engine.workers import ray

    told = "Initialization failure from server:\nTraceback (most recent call last):\n  …\nRuntimeError: no room"
    assert ray._reason(ConnectionAbortedError(told)) == "Initialization failure from server: RuntimeError: no room"
    assert ray._reason(ConnectionError("\n")) == "ConnectionError"


def test_without_ray_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "agac.engine.workers.ray", raising=False)
    with pytest.raises(UsageError, match=r"executor: ray needs ray.*pip install 'ray"):
        import agac.engine.workers.ray  # noqa: F401
