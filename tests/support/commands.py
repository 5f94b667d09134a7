"""`agac` commands and simulators as processes that are forked from one which has loaded everything: real, and cheap."""

import asyncio
import atexit
import gc
import logging
import marshal
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from types import SimpleNamespace
from typing import IO, Self, TextIO

import pytest

from support.soak import SOAK

KILLER = str(Path(__file__).parent / "killed")
ONE_COMMAND = 120.0
"""Seconds after which a command that has not ended is killed."""


class Forked:
    """A child of the template. It offers what tests use of `subprocess.Popen`."""

    stdout: IO[bytes]
    stderr: IO[bytes]

    def __init__(self, pid: int, report: socket.socket) -> None:
        self.pid, self._report = pid, report
        self.returncode: int | None = None
        self._read: dict[IO[bytes], bytes] = {}

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

    def communicate(self, timeout: float = 3600.0) -> tuple[bytes, bytes]:
        """What it writes to its output and its errors, to its end."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as open_:
            for file in (self.stdout, self.stderr):
                if not file.closed:
                    open_.register(file, selectors.EVENT_READ)
            while open_.get_map():
                for key, _ in open_.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(key.fd, 1 << 16)
                    self._read[key.fileobj] = self._read.get(key.fileobj, b"") + data  # type: ignore[index, arg-type]
                    if not data:
                        open_.unregister(key.fileobj)
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("agac", timeout)
        self.wait(max(0.1, deadline - time.monotonic()))
        self.stdout.close()
        self.stderr.close()
        return self._read.get(self.stdout, b""), self._read.get(self.stderr, b"")

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


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """No key and no proxy of the machine reaches a test, nor that the tests are a job of a forge."""
    hidden = re.compile(r"API_KEY|TOKEN|PROXY|^(CI$|CI_|GITHUB_|GITLAB_|BITBUCKET_)", re.IGNORECASE)
    return {key: value for key, value in os.environ.items() if not hidden.search(key)} | dict(more or {})


class Template:
    """The process that forks them. `typed` is a folder for the PATH of a shell: `agac` in it is forked, and so are
    programs that `python -` reads or `python NAME.py` names. `python` runs nothing but agac and its simulator, and
    forks them, too."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "socket")
        self.typed, self.python = folder / "typed", folder / "python"

    def start(self) -> Self:
        """Starts it, to end when this process does. It loads for a while; whoever asks earlier waits for its answer."""
        folder = self.typed.parent
        self.typed.mkdir()
        asks = f'exec "{sys.executable}" -ISE "{KILLER}/asks.py"'
        # a tool server has an environment of its own, which does not name us
        typed = f'case "$AGAC_TEST_FORKS:$1" in ?*:-|?*:*.py) {asks} script "$@";; esac; exec "{sys.executable}" "$@"'
        scripts = {"typed/agac": f'{asks} agac "$@"', "typed/python": typed, "python": f'{asks} python "$@"'}
        for name, script in scripts.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
            path.chmod(0o755)
        path = os.pathsep.join(filter(None, [KILLER, os.environ.get("PYTHONPATH")]))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.socket)
            listening.listen(100)
            self._process = subprocess.Popen(
                [sys.executable, f"{KILLER}/template.py", self.socket, self.python, str(listening.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=clean_environment({"PYTHONPATH": path}),
                pass_fds=[listening.fileno()],
            )  # fmt: skip
        atexit.register(self._close)
        return self

    def fork(
        self, program: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str], handles: Sequence[int]
    ) -> Forked:
        """A child that runs a program, with these three descriptors as its input, output and errors."""
        report = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        report.connect(self.socket)
        asked = {"program": program, "arguments": list(arguments), "folder": str(folder), "env": dict(env)}
        socket.send_fds(report, [marshal.dumps(asked)], handles)
        return Forked(int(report.recv(100)), report)

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self.typed.parent)
        self._process.wait(timeout=30)


@cache
def template() -> Template:
    """The one of all workers where there are several (conftest.py starts it for them), else of this test process."""
    if there := os.environ.get("AGAC_TEST_FORKS"):
        return Template(Path(there).parent)
    started = Template(Path(mkdtemp(prefix="agac-tests-"))).start()
    os.environ["AGAC_TEST_FORKS"] = started.socket
    return started


class ForkedPython:
    """What `agac.simulator.server` takes for `sys`: the simulators that it starts are forked."""

    @property
    def executable(self) -> str:
        started = template()
        os.environ["AGAC_TEST_FORKS"] = started.socket  # a command that ran in this process took it away again
        return str(started.python)


def run_forked(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], program: str = "agac"
) -> tuple[int, str, str]:
    """One command to its end: its exit code and what it wrote to its output and its errors. The program `script` is a
    Python of which the arguments are those after its name."""
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
        handles = [nothing.fileno(), out.fileno(), err.fileno()]
        child = template().fork(program, arguments, folder, env, handles)
        try:
            code = child.wait(ONE_COMMAND)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        return code, read(out), read(err)


SWITCHES = {
    "AGAC_TEST_FORKS": [],
    "PYTHONIOENCODING": [],
    "AGAC_TEST_REAL": ["agac.providers.dialect.SIMULATOR_MARK"],
    "AGAC_TEST_PUSH": [f"agac.engine.sharding.shard_run.{name}" for name in ("EVERY", "PUSH_SECONDS", "BEAT_SECONDS")],
}
"""Variables that a command in this process may have, and what they set in it (see killed/sitecustomize.py)."""


def may_run_here(env: Mapping[str, str]) -> bool:
    """True if a command may run in the process of the tests: it changes nothing that only a process of its own has."""
    if SOAK or threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop():
        return False
    special = re.compile(r"AGAC_TEST_|PYTHON|LC_|LANG")
    return not any(
        special.match(name) and name not in SWITCHES and os.environ.get(name) != value for name, value in env.items()
    )


def run_here(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], handles: Sequence[int] | None = None
) -> tuple[int, str, str]:
    """One command in this process, to its end, as `run_forked` runs it: a third of the time. Descriptors, streams,
    environment, folder and loggers are the command's as long as it runs. What goes into other `handles` is not given.
    """
    from agac.cli.main import main

    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err, ExitStack() as after:
        files = handles or [nothing.fileno(), out.fileno(), err.fileno()]
        after.enter_context(_streams(files, env.get("PYTHONIOENCODING") or "utf-8"))
        after.enter_context(_surroundings(arguments, folder, env))
        after.enter_context(warnings.catch_warnings(action="ignore", category=ResourceWarning))  # as in any process
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code:
            gc.collect(0)  # what an error leaves open is closed now, as at the end of a process
        after.close()
        return code, read(out), read(err)


@contextmanager
def _streams(handles: Sequence[int], encoding: str) -> Iterator[None]:
    """Has the descriptors 0 to 2, and Python's streams, be these for the block."""
    names = ("stdin", "stdout", "stderr")
    streams = {name: getattr(sys, name) for each in names for name in (each, f"__{each}__")}
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, (name, handle) in enumerate(zip(names, handles, strict=True)):
            os.dup2(handle, number)
            opened = open(number, "w" if number else "r", encoding=encoding, closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
        yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _surroundings(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Gives the process the command line, the folder and the environment of a command for the block."""
    from agac.cli import main as module
    from agac.cli import streams, terminal

    def keep_output() -> None:
        keep()
        kept.append(sys.stdout)

    logger = logging.getLogger("agac")
    words, before, level, handlers = sys.argv, dict(os.environ), logger.level, [*logger.handlers]
    keep, kept = streams.keep_output, list[TextIO]()
    logger.handlers = []  # other tests may have left theirs, which would write into the command's streams
    here, patch = os.open(".", os.O_RDONLY), pytest.MonkeyPatch()
    streams.keep_output = keep_output
    module.gc = SimpleNamespace(**dict.fromkeys(("disable", "enable", "freeze", "unfreeze", "set_threshold"), _nothing))
    try:
        os.chdir(folder)
        _set_environment({**env, "PWD": str(folder)})
        for name, places in SWITCHES.items():
            if name in env:
                value = float(env[name]) if name == "AGAC_TEST_PUSH" else ""
                for place in places:
                    patch.setattr(place, value)
        sys.argv = ["agac", *arguments]
        yield
    finally:
        sys.argv = words
        _set_environment(before)
        os.fchdir(here)
        os.close(here)
        for handler in logger.handlers:
            handler.close()
        logger.handlers = handlers
        logger.setLevel(level)
        terminal._plain_only = False
        streams.keep_output = keep
        patch.undo()
        import_module("agac.api.blocks")._known.cache_clear()  # what a process knows of a remote
        for stream in kept:
            stream.close()


def _set_environment(env: Mapping[str, str]) -> None:
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    os.environ.update(env)


def _nothing(*_: object) -> None:
    """The collector of garbage is that of the tests: no command turns it off."""


def start_forked(arguments: Sequence[str], folder: Path, env: Mapping[str, str], program: str = "agac") -> Forked:
    """One command, to be watched, signalled or killed; its output and errors are pipes."""
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        child = template().fork(program, arguments, folder, env, [nothing.fileno(), their_out, their_err])
    os.close(their_out)
    os.close(their_err)
    child.stdout, child.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
    return child


def read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
