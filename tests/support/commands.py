"""`agac` commands and simulators as processes that are forked from one which has loaded everything: real, and cheap."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

KILLER = str(Path(__file__).parent / "killed")
ONE_COMMAND = 120.0
"""Seconds after which a command that has not ended is killed."""


class Forked:
    """A child of the template. It offers what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, report: socket.socket) -> None:
        self.pid, self._report = pid, report
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal."""
        if self.returncode is None:
            self._report.settimeout(timeout)
            try:
                self.returncode = int(self._report.recv(100))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("agac", timeout or 0) from None
            self._report.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that forks them."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, [KILLER, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, f"{KILLER}/template.py"], stdin=theirs, env={**os.environ, "PYTHONPATH": path}
        )
        theirs.close()

    def fork(
        self, program: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str], handles: Sequence[int]
    ) -> Forked:
        """A child that runs a program, with these three descriptors as its input, output and errors."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = {"program": program, "arguments": list(arguments), "folder": str(folder), "env": dict(env)}
        with theirs:
            socket.send_fds(self._requests, [json.dumps(asked).encode()], [*handles, theirs.fileno()])
        return Forked(int(ours.recv(100)), ours)

    def close(self) -> None:
        self._requests.close()
        self._process.wait(timeout=30)


@cache
def template() -> Template:
    """The one of this test process, until the tests end."""
    started = Template()
    atexit.register(started.close)
    return started


def run_forked(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """One command to its end: its exit code and what it wrote to its output and its errors."""
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
        handles = [nothing.fileno(), out.fileno(), err.fileno()]
        child = template().fork("agac", arguments, folder, env, handles)
        try:
            code = child.wait(ONE_COMMAND)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        return code, read(out), read(err)


def read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
