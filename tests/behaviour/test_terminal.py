"""What a person at a terminal sees: a live line in a pseudo-terminal, and the end below it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Mapping

from support.project import ProjectFolder, clean_environment, command
from support.server import simulator


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
