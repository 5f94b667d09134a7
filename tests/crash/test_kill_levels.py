"""kill -9 at every commit of a workflow whose stages make rows: the next run comes to what an undisturbed one does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made import assert_all_sound, errors, made, outcomes, parts, stored, values
from support.processes import kill_at, quiet_account
from support.project import ProjectFolder
from support.recount import assert_at_rest
from support.server import Server, simulator
from support.soak import few

from agac.api.report import RunReport

CONCURRENCY = 3
BOUND = 2 * CONCURRENCY
MOST = 200
"""Commits of one invocation, at the very most."""

CUT = """\
def cut(row):
    if row["text"] == "leave":
        return None
    if row["text"] == "many":
        return [{**row, "part": part, "items": row["items"][part::2]} for part in range(2)]
    return {**row, "part": 9}


def count(rows):
    return {"topic": rows[0]["topic"], "sums": [row["sum"] for row in rows]}
"""
STAGES: list[dict[str, Any]] = [
    {"name": "cut", "python": "tools/cut.py:cut"},
    {"name": "each", "explode": "items", "prompt": "each ${id} ${part} ${item}", "model": "local/echo"},
    {"name": "uniq", "dedupe": ["item"]},
    {"name": "say", "prompt": "say ${item} ${id}", "when": "item != 5"},
    {"name": "sum", "group_by": ["topic"], "reduce": {"max_rows": 3}, "prompt": "sum ${topic}: ${rows_json}"},
    {"name": "count", "group_by": ["topic"], "python": "tools/cut.py:count"},
    {"name": "end", "group_by": [], "prompt": "end ${rows_count}: ${rows_json}"},
]
TEXTS = ["many", "one", "leave", "one", "many", "one", "one"]
FILES = ("results.jsonl", "errors.jsonl", "filtered.jsonl")


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Always refuses one child, and answers all else by what is asked."""
    folder = tmp_path_factory.mktemp("refusing")
    with simulator(faults=[{"kind": "refusal", "match": "each r5 9 14"}], folder=folder) as server:
        yield server


def row(number: int, shift: int = 0) -> dict[str, Any]:
    items = [(number * 3 + place + shift) % 17 for place in range(number % 4 + 2)]
    if number == 5:
        items.append(14)
    return {"id": f"r{number}", "topic": f"t{number % 2}", "text": TEXTS[number % 7], "items": items}


def first_rows() -> list[dict[str, Any]]:
    return [row(number) for number in range(9)]


def other_rows() -> list[dict[str, Any]]:
    """Moved, without one, with another and a changed one."""
    rows = first_rows()
    rows[3] = row(3, shift=2)
    rows[4] |= {"topic": "t1"}
    return [*rows[5:], row(11), *rows[1:5]]


def prepared(root: Path, server: Server, rows: list[dict[str, Any]]) -> ProjectFolder:
    project = ProjectFolder(root)
    project.configure(server.base_url)
    project.write("tools/cut.py", CUT)
    project.rows(rows, "data/rows.jsonl")
    defaults = {"concurrency": CONCURRENCY}
    project.workflow(path="data/rows.jsonl", stages=STAGES, defaults=defaults, stop_loss=False)
    return project


def finished(project: ProjectFolder) -> RunReport:
    """A run that nobody disturbs, in this process: half of the time of a process of its own is its start."""
    report = project.run("reviews")
    assert report.exit_code == 3, report.invocation
    assert_all_sound(project, assert_at_rest)
    return report


def came_to(project: ProjectFolder) -> dict[str, Any]:
    """All that can be said of a run that ended: its files, and what became of each row at each stage."""
    files = {name: (project.root / "output/reviews" / name).read_bytes() for name in FILES}
    names = [stage["name"] for stage in STAGES]
    return {
        **files,
        **{f"made {name}": made(project, name) for name in names},
        **{f"values {name}": values(project, name) for name in names},
        **{f"outcomes {name}": outcomes(project, name) for name in names},
        **{f"errors {name}": errors(project, name) for name in names},
        "parts": parts(project),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {key: value for key, value in found.items() if value != expected[key]} == {}


def stored_calls(project: ProjectFolder) -> int:
    return int(project.query("SELECT count(*) FROM attempt")[0][0])


def looked_at(project: ProjectFolder, server: Server, had: int, kills: int = 1) -> int:
    """After a kill, or several: the database is whole. Gives how many calls were paid and not stored; `had` were stored
    before."""
    there = (project.root / ".agac/agac.db").exists()
    if not there or project.query("SELECT 1 FROM sqlite_master WHERE name = 'alike'") == []:
        return 0  # it was about to be made
    assert_all_sound(project)
    lost = quiet_account(server)["charged"] - (stored_calls(project) - had)
    assert 0 <= lost <= kills * BOUND
    return lost


EACH = [("nothing", share, 12) for share in few(range(1, 13), 12)]
THIRD = [("another input", share, 18) for share in few(range(1, 18), 18, first=8)]


@pytest.mark.parametrize(("before", "first", "step"), [*EACH, *THIRD])
def test_a_kill_at_each_commit(before: str, first: int, step: int, refusing: Server, tmp_path: Path) -> None:
    rows = first_rows() if before == "nothing" else other_rows()
    start = prepared(tmp_path / "start", refusing, first_rows())
    if before != "nothing":
        finished(start)
        start.rows(rows, "data/rows.jsonl")
    undisturbed = prepared(tmp_path / "undisturbed", refusing, rows)
    finished(undisturbed)
    expected = came_to(undisturbed)
    had = stored_calls(start) if before != "nothing" else 0
    distinct = needed(start, refusing, tmp_path)

    for number in range(first, MOST, step):
        project = copied(start, tmp_path / f"killed-{number}")
        refusing.reset()
        killed = project.agac("run", "-a", "reviews", env=kill_at(f"commit:{number}"))
        if killed.code != -9:
            assert killed.code == 3
            break
        lost = looked_at(project, refusing, had)
        assert finished(project).invocation["lost_calls_at_most"] >= lost
        assert_same(came_to(project), expected)
        account = quiet_account(refusing)
        assert account["distinct"] == distinct, "what an undisturbed run asks, and nothing else"
        assert account["duplicates"] <= lost + 2, "the refused row is asked once more by each run"
        shutil.rmtree(project.root)
    else:
        raise AssertionError("it never ended")


def needed(start: ProjectFolder, server: Server, folder: Path) -> int:
    """How many different calls an undisturbed run makes from here on."""
    project = copied(start, folder / "needed")
    server.reset()
    finished(project)
    return quiet_account(server)["distinct"]


def copied(start: ProjectFolder, target: Path) -> ProjectFolder:
    shutil.copytree(start.root, target)
    project = ProjectFolder.__new__(ProjectFolder)
    project.root = target
    return project


def test_kills_one_after_the_other(refusing: Server, tmp_path: Path) -> None:
    """Each invocation is killed a few commits on, until one comes to its end."""
    undisturbed = prepared(tmp_path / "undisturbed", refusing, first_rows())
    finished(undisturbed)
    project = prepared(tmp_path / "killed", refusing, first_rows())
    refusing.reset()
    kills = 0
    while project.agac("run", "-a", "reviews", env=kill_at(f"commit:{8 + kills % 5}")).code == -9:
        kills += 1
        looked_at(project, refusing, 0, kills)
        assert kills < MOST
    assert kills >= 3
    finished(project)
    assert_same(came_to(project), came_to(undisturbed))
    before = stored(project)
    ran = project.agac("run", "-a", "reviews", "--no-retry-failed", "--json")
    assert (ran.code, ran.json["invocation"]["calls"]) == (3, 0)
    assert stored(project) == before


@pytest.mark.parametrize("moment", ["statement", "committed", "os.rename"])
def test_kills_at_other_moments(moment: str, refusing: Server, tmp_path: Path) -> None:
    undisturbed = prepared(tmp_path / "undisturbed", refusing, other_rows())
    finished(undisturbed)
    expected = came_to(undisturbed)
    numbers = {"statement": range(20, 400, 53), "committed": range(2, 30, 4), "os.rename": range(1, 5)}[moment]
    for number in few(numbers, 6):
        project = prepared(tmp_path / f"killed-{number}", refusing, first_rows())
        refusing.reset()
        killed = project.agac("run", "-a", "reviews", env=kill_at(f"{moment}:{number}"))
        assert killed.code == -9, killed.err
        looked_at(project, refusing, 0)
        project.rows(other_rows(), "data/rows.jsonl")
        finished(project)
        assert_same(came_to(project), expected)
        shutil.rmtree(project.root)
