"""Terminals: a pseudo-terminal of Python's own, and a real one of tmux where that is installed."""

import contextlib
import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from support.processes import PATIENCE, wait_until
from support.project import clean_environment, command, fresh_command

SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"
QUIET_HOST = {"CI": "", "NO_COLOR": "", "COLUMNS": "", "LINES": ""}
"""The machine that runs the tests may be CI, and have ideas about terminals: those of a test come from the test."""


class PseudoTerminal:
    """A command on a pseudo-terminal of a size of its own. `seen` is all that was written to it so far."""

    def __init__(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int, lines: int) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            words, cwd=cwd, env=clean_environment({**QUIET_HOST, "TERM": "xterm", **env}),
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(theirs)
        self._bytes = b""

    @property
    def seen(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    def until(self, found: str) -> str:
        """Reads until the text, a regular expression, has come; gives all that came since the call."""
        start = len(self.seen)
        while not re.search(found, self.seen[start:]):
            assert self._read(), f"ended before {found!r}: {self.seen}"
        return self.seen[start:]

    def rest(self) -> str:
        """Reads to the end of the command."""
        while self._read():
            pass
        return self.seen

    def resize(self, columns: int, lines: int) -> None:
        """Gives the terminal another size; the system tells the processes in it."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        self.rest()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        os.close(self._ours)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)

    def _read(self) -> bool:
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            piece = os.read(self._ours, 65536)
            self._bytes += piece
            return bool(piece)
        return False


def _own_terminal() -> None:
    """In the child: it is the terminal that its signals come from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def on_pty(
    root: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    columns: int = 120,
    lines: int = 24,
    fresh: bool = False,
) -> Iterator[PseudoTerminal]:
    """agac on a pseudo-terminal; `fresh`: in an interpreter of its own."""
    words = (fresh_command if fresh else command)(arguments)
    terminal = PseudoTerminal(words, root, env or {}, columns, lines)
    try:
        yield terminal
    finally:
        terminal.close()


def frames(seen: str) -> list[list[str]]:
    """What was painted, one list of lines for each time, without what tells the terminal how."""
    painted = re.findall(r"\r\x1b\[\?7l([^\r]*)\x1b\[K\x1b\[J\x1b\[\?7h\r", seen.replace("\r\n", "\n"))
    return [frame.replace("\x1b[K", "").split("\n") for frame in painted]


class Tmux:
    """A window of tmux with a shell in it, on a server of its own."""

    def __init__(self, folder: Path, cwd: Path, env: Mapping[str, str], columns: int, lines: int) -> None:
        self._socket = str(folder / "s")
        size = ["-x", str(columns), "-y", str(lines)]
        told = {**QUIET_HOST, "PS1": "PROMPT> ", **env}
        shell = shlex.join(["env", "-u", "TMUX", *(f"{key}={value}" for key, value in told.items()), "sh", "-i"])
        own = clean_environment({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
        subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", "new-session", "-d", *size, shell],
            check=True, cwd=cwd, env=own,
        )  # fmt: skip
        self.until(lambda: "PROMPT>" in self.text(), "a prompt")

    def run(self, *words: str) -> str:
        ran = subprocess.run(["tmux", "-S", self._socket, *words], check=True, capture_output=True, timeout=PATIENCE)
        return ran.stdout.decode("utf-8", "replace")

    def type(self, line: str) -> None:
        self.run("send-keys", "-l", line)
        self.run("send-keys", "Enter")

    def press(self, key: str) -> None:
        self.run("send-keys", key)

    def text(self) -> str:
        """What stands on the screen."""
        return self.run("capture-pane", "-p")

    def history(self) -> str:
        """The same with all that scrolled away."""
        return self.run("capture-pane", "-p", "-S", "-")

    def until(self, true: Callable[[], bool], what: str) -> None:
        wait_until(true, what)

    def until_seen(self, pattern: str) -> str:
        """The screen, once the pattern is on it."""
        self.until(lambda: re.search(pattern, self.text(), re.MULTILINE) is not None, f"{pattern!r} on the screen")
        return self.text()

    def resize(self, columns: int, lines: int) -> None:
        self.run("resize-window", "-x", str(columns), "-y", str(lines))

    @property
    def cursor_is_on(self) -> bool:
        return self.run("display-message", "-p", "#{cursor_flag}").strip() == "1"


@contextlib.contextmanager
def in_tmux(root: Path, *, env: Mapping[str, str] | None = None, columns: int = 120, lines: int = 24) -> Iterator[Tmux]:
    """A window of tmux in this folder; skips the test where there is no tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed; test_progress.py tests the same on a pseudo-terminal")
    with tempfile.TemporaryDirectory(prefix="agac-tmux-") as folder:  # a socket's path must be short
        window = Tmux(Path(folder), root, env or {}, columns, lines)
        try:
            yield window
        finally:
            window.run("kill-server")


def agac_line(*arguments: str) -> str:
    """The command as it is typed: a job of the shell, which a fork is not."""
    return shlex.join(fresh_command(arguments))
