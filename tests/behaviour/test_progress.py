"""Live progress on a pseudo-terminal: what is painted, how it fits, and what is left when it ends."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.processes import processes, wait_until
from support.project import ProjectFolder
from support.server import Server, simulator
from support.terminals import HIDE, SHOW, frames, on_pty

pytestmark = processes

PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
RUN = ("run", "-a", "reviews", "--concurrency", "4")
CLASSIFY = re.compile(
    r"classify [█░]{10} [\d,]+/2,000 \(\d+\.\d%\) \| [\d.]+/s \| ETA (\d+m )?\d+s \| simulated \$\d\.\d+"
)
TWO = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": {"sentiment": "string"}},
    {"name": "reply", "prompt": "Reply: ${text} ${classify.sentiment}"},
]


@contextmanager
def slow(project: ProjectFolder, rows: int = 2000, faults: list[dict[str, Any]] | None = None) -> Iterator[Server]:
    """A project of two stages whose run takes long enough to be looked at."""
    folder = project.root.parent / "faults"
    with project.asking(
        simulator("--latency", "0.1", faults=faults or [], folder=folder),
        prices={"small": {"input": 1.0, "output": 2.0}},
    ) as server:
        project.workflow(rows=rows, stages=TWO)
        yield server


def test_a_line_a_stage_is_painted_over_and_over_without_a_cursor_until_ctrl_c(project: ProjectFolder) -> None:
    refusals = [{"kind": "refusal", "match": "number 3"}]
    with slow(project, faults=refusals) as _, on_pty(project.root, *RUN) as terminal:
        terminal.until(r"errors [1-9]\d* \(last: Refused, row r-3\d?\)")
        terminal.until(r"reply +[█░]+ [1-9]")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    seen = terminal.seen
    painted = frames(seen)
    assert all(len(frame) in (2, 3) for frame in painted)
    last = [frame for frame in painted if len(frame) == 2][-1]
    assert CLASSIFY.match(last[0]), last
    assert re.match(r"reply    [█░]{10} [\d,]+/1,9\d\d \(", last[1]), last  # what failed before does not come here
    assert all(len(line) < 120 for frame in painted for line in frame)
    assert seen.count(HIDE) == seen.count(SHOW) == 1
    assert seen.index(HIDE) < seen.index("classify ") < seen.index(SHOW)
    after = seen[seen.index(SHOW) + len(SHOW) :]
    assert seen[: seen.index(SHOW)].endswith("\r\x1b[J")  # the block is gone
    assert after.startswith("Interrupted; every answer is stored")
    assert "\x1b[" not in re.sub(r"\x1b\[[\d;]*m", "", after)  # colours alone


def test_the_first_ctrl_c_says_what_is_waited_for_and_the_second_ends_it(project: ProjectFolder) -> None:
    """Every call from the ninth on gets no answer, so that four are in flight until the second Ctrl-C."""
    hang = [{"kind": "hang", "at": list(range(9, 100))}]
    with slow(project, faults=hang) as server, on_pty(project.root, *RUN) as terminal:
        terminal.until(r"classify +[█░]+ [1-9]")
        wait_until(lambda: server.account()["faults"].get("hang") == 4, "four calls that hang", terminal.process)
        terminal.press(b"\x03")
        terminal.until(r"stopping: waiting for 4 calls in flight \(Ctrl-C again cancels them\)")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    assert terminal.seen.count(SHOW) == 1


def test_an_error_amid_the_run_gives_the_cursor_back(project: ProjectFolder) -> None:
    fatal = [{"kind": "unauthorized", "match": "number 31"}]
    with slow(project, faults=fatal) as _, on_pty(project.root, *RUN) as terminal:
        assert terminal.ended() == 1
    assert terminal.seen.count(HIDE) == terminal.seen.count(SHOW) == 1
    assert terminal.seen.index(SHOW) < terminal.seen.index("stopped: ")


def test_lines_follow_the_width_when_the_terminal_is_resized(project: ProjectFolder) -> None:
    with slow(project) as _, on_pty(project.root, *RUN, columns=160) as terminal:
        terminal.until(r"classify [█░]{20} [1-9]")
        for columns in (40, 200, 30):
            terminal.resize(columns, 10)
            bar = r"[█░]{20} " if columns == 200 else ""
            painted = terminal.until(rf"\r\x1b\[\?7lclassi\S* +{bar}\d+/2,000[^\r]*\r\n[^\r]*\x1b\[\?7h\r")
            assert max(len(line) for line in frames(painted)[-1]) < columns
        terminal.press(b"\x03")
        assert terminal.ended() == 130


def test_without_utf8_bars_and_ids_are_ascii(project: ProjectFolder) -> None:
    with project.asking(simulator("--latency", "0.1", faults=[{"kind": "refusal"}], folder=project.root.parent / "f")):
        project.rows({"id": f"größe\x1b[2J-{i}", "text": f"I love number {i}"} for i in range(200))
        project.workflow(stop_loss=False)
        with on_pty(project.root, *RUN, env=PLAIN_LOCALE, columns=130, fresh=True) as terminal:
            seen = terminal.until(r"classify [#-]{10} [1-9]\d*/200 .*\(last: Refused, row gr\\xf6\\xdfe\\x1b\[2J-\d+\)")
            terminal.press(b"\x03")
            assert terminal.ended() in (1, 130)
    assert seen.isascii()
    assert "\x1b[2J" not in seen


def test_where_lines_cannot_be_painted_or_are_not_wanted(project: ProjectFolder) -> None:
    with slow(project, rows=8) as _:
        for env, flag, shown in (
            ({"TERM": "dumb"}, "--no-color", "8 rows, 8 done"),
            ({"CI": "true"}, "--no-color", "8 rows, 8 done"),
            ({}, "--quiet", ""),
        ):
            with on_pty(project.root, *RUN, "--fresh", flag, env=env) as terminal:
                assert terminal.ended() == 0
            assert "\x1b" not in terminal.seen
            assert shown in terminal.seen if shown else terminal.seen == ""


def test_no_color_leaves_the_lines_and_takes_the_colours(project: ProjectFolder) -> None:
    with slow(project) as _, on_pty(project.root, *RUN, env={"NO_COLOR": "1"}) as terminal:
        terminal.until(r"classify [█░]+ [1-9]")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    assert not re.search(r"\x1b\[[\d;]*m", terminal.seen)


def test_what_is_logged_stands_whole_above_the_lines(project: ProjectFolder) -> None:
    with slow(project) as _, on_pty(project.root, "--log-level", "debug", *RUN, columns=100) as terminal:
        terminal.until(r"DEBUG agac[^\r\n]*\r\n[^\x1b]*[\s\S]*classify [█░]+ [1-9]")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    lines = terminal.seen.split("\r\n")
    logged = [line for line in lines if " DEBUG agac" in line and "classify █" not in line]
    assert logged
    assert all(re.search(r"(\A|\r\x1b\[J)[^\x1b\r]*\Z", line) for line in logged)


def test_a_terminal_that_is_held_does_not_hold_the_run(project: ProjectFolder) -> None:
    with slow(project) as server, on_pty(project.root, *RUN) as terminal:
        terminal.until(r"classify [█░]+ [1-9]")
        terminal.press(b"\x13")  # Ctrl-S: the terminal takes nothing more
        wait_until(lambda: server.account()["requests"] > 150, "the run to go on")
        terminal.press(b"\x11\x03")
        assert terminal.ended() in (0, 130)
