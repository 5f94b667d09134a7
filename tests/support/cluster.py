"""A Ray cluster of several nodes on this machine, to be killed in part: `python -m support.cluster` starts it.

The head has no CPU, so that nothing works there; CPUs of nodes are claims, of which a machine may have fewer.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.commands import clean_environment
from support.processes import wait_until
from support.services import starts

MEMORY = 80 << 20  # bytes of each node's object store
QUICKLY = {  # a node that died is noticed within seconds
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 2,
}
SERVICES = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class RayCluster:
    """A cluster that runs. A node is named by the id of its raylet's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.nodes: list[int] = []
        told = self._told()
        self.address: str = told["address"]
        self.client: str = told["client"]

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Ray prints to it, too
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"the cluster ended with {self._process.wait()}")

    def add_node(self, cpus: int = 2) -> int:
        """A node that is known to the head when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cpus}\n")
        self._process.stdin.flush()
        node: int = self._told()["node"]
        self.nodes.append(node)
        return node

    def workers(self, node: int) -> list[int]:
        """The processes of the actors on a node."""
        return [pid for pid, title in _children(node) if title.startswith("ray::") and title not in SERVICES]

    def busiest(self) -> list[int]:
        """The nodes, those first of which the workers have most connections open."""
        return sorted(self.nodes, key=lambda node: -sum(_sockets(pid) for pid in self.workers(node)))

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Sends a process of the cluster a signal, if it is there."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill_node(self, node: int) -> None:
        """SIGKILL, to a raylet and all that it started; it is one machine less for the head soon after."""
        self.nodes.remove(node)
        for pid in [node, *(pid for pid, _ in _children(node))]:
            _kill(pid)

    def kill_head(self) -> None:
        """SIGKILL, to the processes of the head: the cluster is lost."""
        for pid, _ in _children(self._process.pid):
            if pid not in self.nodes:
                for below, _ in _children(pid):
                    _kill(below)
                _kill(pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[tuple[int, str]]:
    """Processes that a process started, with their titles."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")[0].decode().strip()))
    return found


def _sockets(pid: int) -> int:
    found = 0
    for handle in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            found += str(handle.readlink()).startswith("socket:")
    return found


def cpu_seconds(pid: int) -> float:
    """CPU that a process used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(nodes: int = 3, cpus: int = 2, *, client: bool = False) -> Iterator[RayCluster]:
    """A cluster for the block; all of it is killed in the end. `client`: Ray Client reaches it, too."""
    starts("a cluster of Ray")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # Ray's sockets are in it: their paths may have 107 bytes
    (Path(folder) / "ray").mkdir()  # where it writes its address
    environment = clean_environment({
        "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parent.parent), "RAY_TMPDIR": folder,
        "RAY_DEDUP_LOGS": "0",
    })  # fmt: skip
    for name in ("AGAC_TEST_FORKS", "RAY_ADDRESS"):
        environment.pop(name, None)
    words = [sys.executable, "-W", "ignore", "-m", "support.cluster", folder, "client" if client else ""]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            made = RayCluster(process)
            for _ in range(nodes):
                made.add_node(cpus)
            yield made
        finally:
            below = [process.pid]
            for pid in below:  # grows
                below += [child for child, _ in _children(pid)]
            for pid in below:
                _kill(pid)
            wait_until(lambda: not any(_alive(pid) for pid in below[1:]), "the end of all of Ray's processes")
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def main(folder: str, client: str) -> None:
    """Starts a head, says its address, and a node for each line of standard input, which has its number of CPUs."""
    from ray.cluster_utils import Cluster

    common: dict[str, Any] = {"object_store_memory": MEMORY}
    head = {**common, "num_cpus": 0, "include_log_monitor": False, "no_monitor": True, "temp_dir": folder}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head |= {"ray_client_server_port": port} if client else {}
    made = Cluster(True, head_node_args={**head, "_system_config": QUICKLY, "include_dashboard": False})
    say(address=made.address, client=f"ray://{made.address.rpartition(':')[0]}:{port}")
    for line in sys.stdin:
        node = made.add_node(num_cpus=int(line), **common)
        say(node=node.all_processes["raylet"][0].process.pid)
    made.shutdown()  # whoever asked is gone without a word


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
