"""Processes, measured as the operating system counts them: CPU and peak memory by wait4, wall time around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BENCH = Path(__file__).resolve().parent
_SCRIPT = Path(sys.executable).with_name("agac")
AGAC: tuple[str, ...] = (str(_SCRIPT),) if _SCRIPT.exists() else (sys.executable, "-m", "agac")


def environment() -> dict[str, str]:
    """That of commands that are measured: compiled modules may be kept, as they are in an installation."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Used(NamedTuple):
    """What a process took: seconds of wall time and of CPU (user and system), peak memory in MB."""

    wall: float
    cpu: float
    memory: float


def measured(command: Sequence[str | Path], folder: Path) -> Used:
    """Runs a command to its end. Raises RuntimeError, with what it wrote to standard error, when it fails.

    The caller has to be small itself: Linux counts a parent's peak memory for a child until that runs its own program.
    """
    with (folder / "stderr").open("w+b") as said:
        started = time.perf_counter()
        words = [str(word) for word in command]
        process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for already
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(f"{command} ended with {process.returncode}: {said.read().decode()}")
    unit = 1024 if sys.platform == "linux" else 1024 * 1024
    return Used(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


class Account(NamedTuple):
    """What a server saw since it was last asked: `span` in seconds from the `first` (seconds since 1970) to the last
    request."""

    requests: int
    span: float
    cpu: float
    first: float

    @property
    def rate(self) -> float:
        """Requests a second, first to last."""
        return (self.requests - 1) / self.span if self.span else 0.0

    @property
    def share(self) -> float:
        """Part of one core that the server used meanwhile: near 1 it was the bottleneck."""
        return self.cpu / self.span if self.span else 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs beside us, in a process of its own."""

    base_url: str

    def account(self) -> Account:
        """What was asked, and forgets it."""
        with urllib.request.urlopen(self.base_url.removesuffix("/v1") + "/account") as answer:
            said = json.load(answer)
        return Account(said["requests"], said["last"] - said["first"], said["cpu"], said["first"])


@contextmanager
def stub(latency: float = 0.0) -> Iterator[Server]:
    """The stub server with so many seconds of latency."""
    command = [sys.executable, str(BENCH / "stub.py"), "--latency", str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield Server(f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/v1")
        process.stdin.close()


@contextmanager
def simulator(folder: Path, *flags: str) -> Iterator[Server]:
    """`agac simulate` on a free port."""
    command = [*AGAC, "simulate", "--port", "0", "--json", *flags]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield Server(json.loads(process.stdout.readline())["base_url"])
        finally:
            process.terminate()


def bare(table: Path, server: Server, concurrency: int) -> Used:
    """The raw client over a table."""
    database = table.with_name("bare.db")
    for file in table.parent.glob("bare.db*"):
        file.unlink()
    command = [sys.executable, BENCH / "bare.py", table, server.base_url, str(concurrency), database]
    return measured(command, table.parent)
