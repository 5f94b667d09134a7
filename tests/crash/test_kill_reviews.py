"""kill -9 at every commit of a run with reviews and of taking decisions: the next one comes to what an undisturbed one
does, and no decision is lost or counted twice."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.processes import kill_at
from support.project import ProjectFolder, python
from support.soak import few

import agac

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "${text}", "output_schema": {"label": "string"}},
    {"name": "approve", "review": {"on_reject": "drop"}},
    {"name": "reply", "prompt": "reply ${classify.label}", "model": "simulator/echo"},
]
DECIDE = """\
import agac
items = agac.review_queue(".").items
print(agac.decide(".", [agac.Decision(one.id, {"r-2": "reject"}.get(one.row_id, "edit"),
    None if one.row_id == "r-2" else {"label": one.row_id}, reviewer="anna") for one in items]).taken)
"""


REDO = """\
import agac
items = [one for one in agac.review_queue(".").items if "redo" not in one.why]
agac.decide(".", [agac.Decision(one.id, "redo", None, "again", "anna") for one in items])
"""


def decided(project: ProjectFolder, moment: str | None = None, what: str = DECIDE) -> int:
    """What taking all decisions in a process of its own exits with."""
    return python(project.root, "-c", what, env=kill_at(moment) if moment else None).code


def came_to(project: ProjectFolder) -> list[Any]:
    project.assert_sound()
    decisions = project.query("SELECT row_id, choice, value FROM decision ORDER BY row_id")
    return [project.envelopes(), decisions, project.query("SELECT row_id, state FROM review ORDER BY row_id")]


@pytest.mark.parametrize("at", few(range(1, 16), 7))
def test_a_kill_at_each_commit_of_runs_and_decisions(at: int, tmp_path: Path) -> None:
    start = ProjectFolder(tmp_path / "start")
    start.workflow(stages=STAGES, rows=5)
    plain, killed = (tmp_path / name for name in ("plain", "killed"))
    for root in (plain, killed):
        shutil.copytree(start.root, root)
    undisturbed, project = ProjectFolder(plain), ProjectFolder(killed)
    undisturbed.run()
    assert decided(undisturbed) == 0
    assert undisturbed.run().rows.done == 4

    for moment in ("commit", "committed"):
        project.agac("run", "-a", "reviews", kill=f"{moment}:{at}")
    assert project.run().rows.open == 5
    for moment in ("commit:1", "committed:1"):
        decided(project, moment)
    assert decided(project) == 0
    for moment in ("commit", "committed"):
        project.agac("run", "-a", "reviews", kill=f"{moment}:{at}")
    assert project.run().rows.done == 4
    assert came_to(project) == came_to(undisturbed)
    assert agac.review_queue(project.root).waiting == 0


@pytest.mark.parametrize("at", few(range(1, 16), 7))
def test_a_kill_while_answers_are_given_again(at: int, tmp_path: Path) -> None:
    start = ProjectFolder(tmp_path / "start")
    start.workflow(stages=[STAGES[0], {"name": "approve", "review": {"redo": {"max": 1}}}, STAGES[2]], rows=3)
    start.run()
    plain, killed = (tmp_path / name for name in ("plain", "killed"))
    for root in (plain, killed):
        shutil.copytree(start.root, root)
    undisturbed, project = ProjectFolder(plain), ProjectFolder(killed)
    assert (decided(undisturbed, what=REDO), undisturbed.run().rows.open) == (0, 3)

    for moment in ("commit:1", "committed:1"):
        decided(project, moment, REDO)
    decided(project, what=REDO)
    for moment in ("commit", "committed"):
        project.agac("run", "-a", "reviews", kill=f"{moment}:{at}")
    assert project.run().rows.open == 3
    assert [one.choices for one in agac.review_queue(project.root).items] == [("approve", "edit", "reject")] * 3
    for one in (undisturbed, project):
        assert (decided(one), one.run().rows.done) == (0, 2)
    assert came_to(project) == came_to(undisturbed)
