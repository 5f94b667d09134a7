"""What a person at a terminal sees: a live line in a pseudo-terminal, and the end below it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import subprocess
import termios
from collections.abc import Mapping

import pytest
from support.project import ProjectFolder, clean_environment, command
from support.server import Server, simulator


def seen_on_terminal(project: ProjectFolder, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Everything that the command writes to a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(arguments),
        cwd=project.root,
        env=clean_environment({"TERM": "xterm", "COLUMNS": "160", **(env or {})}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = bytearray()
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return process.wait(60), seen.decode("utf-8", "replace")


def test_a_terminal_shows_share_rate_eta_errors_and_cost_while_rows_are_worked_on(project: ProjectFolder) -> None:
    rules = [{"kind": "refusal", "match": "number 3"}]
    with simulator("--latency", "0.05", faults=rules, folder=project.root.parent / "faults") as server:
        project.configure(server.base_url)
        project.numbered(60)
        project.workflow()
        code, seen = seen_on_terminal(project, "run", "-a", "reviews", "--concurrency", "2")
    assert code == 3
    live = [line for line in re.split(r"[\r\n]", seen) if "ETA" in line]
    assert live, seen
    assert re.search(r"reviews [█░]+ \d+/60 \(\d+\.\d%\) \| [\d.]+/s \| ETA \d+s ", live[-1])
    assert re.search(r" \| simulated \$0\.00 \+ unknown prices \| [\d,]+ tokens", live[-1])
    assert any("errors" in line and "(last: Refused, row r-3" in line for line in live)
    assert "60 rows" in seen


def test_a_terminal_without_utf8_gets_a_bar_that_it_has(project: ProjectFolder) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}
    with simulator("--latency", "0.05") as server:
        project.configure(server.base_url)
        project.numbered(40)
        project.workflow()
        code, seen = seen_on_terminal(project, "run", "-a", "reviews", "--concurrency", "2", env=plain)
    assert code == 0
    assert re.search(r"reviews [#-]+ \d+/40", seen)
    assert "█" not in seen


def test_quiet_shows_nothing_on_a_terminal(project: ProjectFolder) -> None:
    project.numbered(3)
    project.workflow()
    assert seen_on_terminal(project, "run", "-a", "reviews", "--quiet") == (0, "")


def asked_on_terminal(project: ProjectFolder, keys: bytes) -> tuple[int, str]:
    """`agac run` on a terminal where these keys are pressed as soon as a question is there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(("run", "-a", "reviews")), cwd=project.root, env=clean_environment({"TERM": "xterm"}),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=make_terminal_ours,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()
    with contextlib.suppress(OSError):  # the other side is closed
        while piece := os.read(ours, 65536):
            seen += piece
            if seen.count(b"[y/N]") and keys:
                os.write(ours, keys)
                keys = b""
    os.close(ours)
    return process.wait(60), seen.decode("utf-8", "replace")


def make_terminal_ours() -> None:
    """In the child: keys that make signals, as Ctrl-C, reach it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(("keys", "code", "calls"), [(b"y\n", 0, 20), (b"n\n", 2, 0), (b"\n", 2, 0), (b"\x03", 130, 0)])
def test_a_run_above_confirm_above_is_asked_about_on_a_terminal(
    keys: bytes, code: int, calls: int, project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    project.numbered(20)
    project.workflow(confirm_above={"usd": 0.1})
    ended, seen = asked_on_terminal(project, keys)
    assert (ended, server.account()["requests"]) == (code, calls), seen
    assert "reviews is expected to cost $" in seen
    assert "confirm_above is $0.10. Go on? [y/N]" in seen
    assert "Traceback" not in seen
    if code == 2:
        assert seen.count("is expected to cost") == 1
        assert "nothing was asked\r\n  Add --yes to go on; " in seen
