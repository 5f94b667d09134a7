"""Watching, signalling and ending real processes, at moments that are states and not times."""

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.commands import KILLER, Forked
from support.project import ProjectFolder, Ran
from support.server import Server

PATIENCE = 90.0
"""Seconds after which a test gives up waiting. No test expects anything to take nearly so long."""

processes = pytest.mark.processes
"""Marks tests that start, signal or kill processes of agac one after the other, for seconds: `make test` leaves them to
`make test-processes`, which CI runs after it."""

Process = subprocess.Popen[bytes] | Forked


def kill_at(moment: str) -> dict[str, str]:
    """The environment with which a process ends itself by SIGKILL, such as `commit:3` (see killed/sitecustomize.py)."""
    env = {"PYTHONPATH": _path(), "AGAC_TEST_KILL": moment}
    return env | {"PYTHONDONTWRITEBYTECODE": "1"}  # a rename for bytecode is none that counts


def asleep_at(moment: str) -> dict[str, str]:
    """The environment with which a process stops itself there, as SIGSTOP does; `asleep` waits for it."""
    return kill_at(moment) | {"AGAC_TEST_SIGNAL": "SIGSTOP"}


def little_room(pages: int) -> dict[str, str]:
    """The environment in which the disk is full once a database has so many pages."""
    return {"PYTHONPATH": _path(), "AGAC_TEST_PAGES": str(pages)}


def impatient(seconds: float = 0.2) -> dict[str, str]:
    """The environment in which nobody waits long for a lock on a database."""
    return {"PYTHONPATH": _path(), "AGAC_TEST_PATIENCE": str(seconds)}


def _path() -> str:
    return os.pathsep.join(filter(None, [KILLER, os.environ.get("PYTHONPATH")]))


def mounted(path: Path, size: str) -> bool:
    """Whether a small file system of its own is at `path` now."""
    path.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return shutil.which("mount") is not None and subprocess.run(words, capture_output=True).returncode == 0


@contextmanager
def small_files(most: int = 100_000) -> Iterator[None]:
    """Within the block no file of this process gets larger than `most` bytes: writing fails as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def wait_until(true: Callable[[], bool], what: str, process: Process | None = None) -> None:
    """Looks until `true`. Fails when the process ends before that, or nothing comes for a long time."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"ended with {process.returncode} before {what}: {out.decode()}{err.decode()}")
        if time.monotonic() > deadline:
            if process is not None:
                killed(process)
            raise AssertionError(f"waited in vain for: {what}")
        time.sleep(0.003)


def ended(process: Process, seconds: float = PATIENCE) -> Ran:
    """Waits for the end, but not for ever: whoever has not ended by then is killed, and the test fails."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still there after {seconds:.0f} s: {out.decode()}{err.decode()}") from None
    return Ran(process.returncode, out.decode(), err.decode())


def is_explained(ran: Ran, *words: str) -> None:
    """Exit 1, one error that says what and what to do, nothing that looks like a bug."""
    assert ran.code == 1, ran.err
    assert ran.err.count("error: ") == 1
    assert [word for word in words if word not in ran.err] == [], ran.err
    assert "Traceback" not in ran.err
    assert "bug" not in ran.err


def killed(process: Process) -> None:
    """SIGKILL, to the process alone, and its end."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)


def _mask(process: Process, field: str) -> int:
    """Signals as bits; none of a process that has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(rf"^{field}:\s*([0-9a-f]+)$", Path(f"/proc/{process.pid}/status").read_text(), re.M)
        assert found is not None, f"no {field}"
        return int(found[1], 16)
    return 0


def listening(process: Process) -> Process:
    """Waits until the process has its own ideas about SIGTERM: agac is up, and knows what to do with signals."""
    wait_until(lambda: bool(_mask(process, "SigCgt") & 1 << (signal.SIGTERM - 1)), "a handler of SIGTERM", process)
    return process


def interrupt(process: Process, number: signal.Signals = signal.SIGINT) -> None:
    """Sends a signal and waits until it was taken, so that a second one is not taken for the same."""
    process.send_signal(number)
    bit = 1 << (number - 1)
    wait_until(lambda: process.poll() is not None or not _mask(process, "ShdPnd") & bit, f"{number.name} taken")


def stopped(process: Process) -> None:
    """SIGSTOP, and its effect."""
    process.send_signal(signal.SIGSTOP)
    asleep(process)


def asleep(process: Process) -> Process:
    """Waits until the process has been stopped."""
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a stopped process", process)
    return process


def quiet_account(server: Server) -> dict[str, int]:
    """The account once nothing is under way any more."""
    account = server.account()

    def quiet() -> bool:
        nonlocal account
        before, account = account, server.account()
        return not account["in_flight"] and account == before

    wait_until(quiet, "a server without work")
    return account


def go_on_command(ran: Ran) -> list[str]:
    """The arguments of the command that an interrupted run printed to go on."""
    (line,) = [line for line in ran.err.splitlines() if "esume with: agac " in line]
    return line.partition("esume with: agac ")[2].split()


def row_count(project: ProjectFolder) -> int:
    """Rows that are settled, 0 while there is no database."""
    if not (project.root / ".agac/agac.db").exists():
        return 0
    try:
        return int(project.query("SELECT count(*) FROM row WHERE state > 0")[0][0])
    except Exception as error:  # the table is not there yet
        if "no such table" in str(error) or "unable to open" in str(error):
            return 0
        raise
