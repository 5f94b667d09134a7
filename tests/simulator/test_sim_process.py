"""The simulator as a process: it says where it is, and never outlives its user."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest
from support.processes import processes
from support.project import ProjectFolder
from support.server import Server, started, told

from agac.api.project import open_project
from agac.core.keys import SIMULATOR_KEY
from agac.simulator import server
from agac.simulator.server import embedded_simulator
from agac.simulator.settings import Settings, SimulatorError

pytestmark = processes

COMMAND = [sys.executable, "-m", "agac.simulator"]


@pytest.fixture(autouse=True)
def _not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded simulator is a process of its own here, as it is for users."""
    monkeypatch.setattr(server, "sys", sys)


def is_gone(pid: int) -> bool:
    """Whether the process ended; one that nobody waited for yet counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z" if Path("/proc/self").exists() else False
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_names_a_server_that_answers_until_a_signal(number: signal.Signals) -> None:
    with started("--seed", "3") as (process, ready):
        assert ready["pid"] == process.pid
        assert ready["base_url"].startswith("http://127.0.0.1:")
        assert Server(ready["base_url"]).account()["requests"] == 0
        process.send_signal(number)
        assert process.wait(20) == 0


def test_the_end_of_standard_input_stops_it() -> None:
    with started() as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


PARENT = """
import asyncio
from agac.simulator.server import embedded_simulator

async def main():
    async with embedded_simulator() as base_url:
        print(base_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def children_of(pid: int) -> set[int]:
    """The children of a process."""
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as listing:
        rows = [line.split() for line in listing.communicate()[0].splitlines()]
        return {int(child) for child, parent in rows if int(parent) == pid and int(child) != listing.pid}


def child_of(pid: int, *, apart_from: set[int] | None = None) -> int:
    """The only child of a process; this one may have others already, from other tests."""
    (child,) = children_of(pid) - (apart_from or set())
    return child


def test_killed_parent_leaves_no_orphan_and_ctrl_c_reaches_the_parent_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        base_url = parent.stdout.readline().strip()
        assert Server(base_url).account()["requests"] == 0
        child = child_of(parent.pid)
        assert os.getsid(child) == child  # so that the terminal's signals are not for it
        parent.kill()
        parent.wait(20)
    assert wait_until_gone(child)
    with pytest.raises(urllib.error.URLError):
        Server(base_url).account()


def test_taken_port_is_said_and_exits_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*COMMAND, told("--port", str(port))]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "--port 0" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_wrong_settings_are_said_at_once_and_exit_2(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yml"
    faults.write_text("- {kind: cutt}\n- {kind: hang, rte: 1}\n")
    flags = ["--rpm", "0", "--latency", "soon", "--faults", str(faults)]
    ended = subprocess.run([*COMMAND, told(*flags)], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert len(lines) == 4
    assert "rpm is 0" in lines[0]
    assert "'soon'" in lines[1]
    assert "did you mean 'cut'?" in lines[2]
    assert "did you mean 'rate'?" in lines[3]


async def test_an_embedded_simulator_serves_its_program_alone(tmp_path: Path) -> None:
    """Other users of the host reach its port, and files of batches hold rows."""
    ProjectFolder(tmp_path)
    opened = open_project(tmp_path)
    async with opened.simulator() as placed:
        provider = placed(opened.providers["simulator"])
        key = provider.simulator_key
        assert len(key) >= 32
        with subprocess.Popen(["ps", "-A", "-o", "args="], stdout=subprocess.PIPE, text=True) as listing:
            assert key not in listing.communicate()[0]
        for path in ("/v1/files", "/v1/batches", "/openai/v1/files", "/v1/messages/batches", "/account", "/metrics"):
            address = provider.base_url.removesuffix("/v1") + path
            for others in ({}, {SIMULATOR_KEY: ""}, {SIMULATOR_KEY: key[:-1]}, {SIMULATOR_KEY: "\u00e9"}):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    urllib.request.urlopen(urllib.request.Request(address, headers=others), timeout=10)
        account = provider.base_url.removesuffix("/v1") + "/account"
        urllib.request.urlopen(urllib.request.Request(account, headers={SIMULATOR_KEY: key}), timeout=10).close()


async def test_embedded_simulator_is_there_within_the_block_only_whatever_lies_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aiohttp.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "faults.json").write_text('[{"kind": "quota"}]')
    monkeypatch.chdir(tmp_path)
    async with embedded_simulator(Settings(faults=Path("faults.json"))) as base_url:
        assert (await asyncio.to_thread(Server(base_url).account))["simulated"] is True
    with pytest.raises(urllib.error.URLError):
        Server(base_url).account()


async def test_embedded_simulator_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError) as caught:
        async with embedded_simulator(Settings(latency="soon", faults=tmp_path / "none.yml")):
            raise AssertionError("it started")
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 2
    assert "'soon'" in caught.value.problems[0]
    assert "none.yml" in caught.value.problems[1]


async def test_child_that_does_not_listen_is_ended_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.1)
    others = children_of(os.getpid())
    async with embedded_simulator():
        child = child_of(os.getpid(), apart_from=others)
        os.kill(child, signal.SIGSTOP)
    assert is_gone(child)


async def test_child_that_is_not_ready_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 0.001)
    with pytest.raises(SimulatorError, match="was not ready after") as caught:
        async with embedded_simulator():
            raise AssertionError("it started")
    assert caught.value.exit_code == 1
