"""Live progress in a real terminal: tmux keeps the screen, moves text when it is resized, and knows the cursor.

Where tmux is missing these are skipped; tests/behaviour/test_progress.py checks the same on a pseudo-terminal.
"""

import re
from collections.abc import Iterator

import pytest
from support.processes import processes
from support.project import ProjectFolder
from support.server import simulator
from support.terminals import agac_line, in_tmux

pytestmark = processes

RUN = agac_line("run", "-a", "reviews", "--concurrency", "4")
LINE = r"^classify .*\d+/2,000 "


@pytest.fixture
def slow(project: ProjectFolder) -> Iterator[ProjectFolder]:
    """A project whose run takes long enough to be looked at."""
    with project.asking(simulator("--latency", "0.1")):
        project.workflow(rows=2000)
        yield project


def of_progress(screen: str) -> list[str]:
    return [line for line in screen.split("\n") if line.startswith(("classi", "stopping"))]


def fits(screen: str, columns: int) -> bool:
    """Whether there is one line of progress, painted for this width."""
    lines = of_progress(screen)
    bar = 20 if columns >= 141 else 10 if columns >= 100 else 0
    return len(lines) == 1 and len(lines[0]) < columns and len(re.findall("[█░]", lines[0])) == bar


def test_resizing_leaves_nothing_behind(slow: ProjectFolder) -> None:
    with in_tmux(slow.root, columns=130, lines=20) as window:
        window.type("seq 1 30")
        window.until_seen(r"^30$")
        window.type(RUN)
        window.until_seen(LINE)
        for columns, lines in ((60, 20), (40, 12), (200, 30), (30, 6), (130, 20)):
            window.resize(columns, lines)
            window.until(lambda: fits(window.text(), columns), f"one line in {columns} columns")  # noqa: B023
        window.press("C-c")
        window.until(lambda: window.text().count("PROMPT>") >= 1 and window.cursor_is_on, "the prompt")
        assert re.search(r"^29\n30\n(PROMPT>.*\n|.*pytest.*\n)*", window.history(), re.MULTILINE)


def test_ctrl_z_gives_the_terminal_back_nothing_is_painted_in_the_background_and_fg_paints_again(
    slow: ProjectFolder,
) -> None:
    with in_tmux(slow.root) as window:
        window.type(RUN)
        window.until_seen(LINE)
        window.press("C-z")
        window.until(lambda: window.text().count("PROMPT>") == 2 and window.cursor_is_on, "the prompt, with a cursor")
        assert of_progress(window.text()) == []
        window.type("bg")
        window.until(lambda: window.text().count("PROMPT>") == 3, "the prompt")
        calls = "SELECT count(*) FROM attempt"
        more = slow.query(calls)[0][0] + 40
        window.until(lambda: slow.query(calls)[0][0] >= more, "work that goes on")
        assert of_progress(window.text()) == []
        assert window.cursor_is_on
        window.type("fg")
        screen = window.until_seen(LINE)
        assert len(of_progress(screen)) == 1, screen
        assert not window.cursor_is_on
        window.press("C-c")
        window.until(lambda: window.text().count("PROMPT>") == 4 and window.cursor_is_on, "the prompt")
        left = window.history()
        assert "Interrupted; every answer is stored" in left
        assert of_progress(left) == [line for line in left.split("\n") if re.match(r"classify +local/small ", line)]
