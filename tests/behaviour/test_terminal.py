"""What a person at a terminal is asked, and how they answer. tests/behaviour/test_progress.py has what they see."""

import contextlib
import fcntl
import os
import pty
import subprocess
import termios

import pytest
from support.project import ProjectFolder, clean_environment, command
from support.server import Server


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
    project.workflow(rows=20, confirm_above={"usd": 0.1})
    ended, seen = asked_on_terminal(project, keys)
    assert (ended, server.account()["requests"]) == (code, calls), seen
    assert "reviews is expected to cost $" in seen
    assert "confirm_above is $0.10. Continue? [y/N]" in seen
    assert "Traceback" not in seen
    if code == 2:
        assert seen.count("is expected to cost") == 1
        assert "no calls were made\r\n  Add --yes to continue; " in seen
