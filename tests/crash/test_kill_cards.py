"""kill -9 at commits of a run with a card of each type: the next run comes to what an undisturbed one does, and pays
nothing twice but what was in flight."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.project import ProjectFolder
from support.server import Server, simulator
from support.shipped import ROOT, shipped_project
from support.soak import few

import agac

CARDS = {
    "chain": "written_reply", "parallel": "second_opinions", "router": "front_desk",
    "evaluator_optimizer": "polished_reply", "orchestrator": "case_manager", "iterative_planner": "case_steps",
    "MAKER": "sure_topic",
}  # fmt: skip
CONCURRENCY = 2
MOMENTS = [f"{when}:{at}" for at in range(1, 12) for when in ("commit", "committed")]
CELLS = [(kind, moment) for kind in CARDS for moment in MOMENTS]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with simulator("--latency", "0.002") as found:
        yield found


def started(root: Path, kind: str, server: Server) -> ProjectFolder:
    """A project whose only stage has the shipped card of a type."""
    project = shipped_project(root)
    project.asks(server)
    server.reset()
    schema = {"output_schema": {"about": "order|repair|advice"}} if kind == "MAKER" else {}
    stage: dict[str, Any] = {"name": "ask", "agent": CARDS[kind], "prompt": "${question}", **schema}
    with (ROOT / "data/questions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:3]
    defaults = {"concurrency": CONCURRENCY, "max_tokens": 400}
    project.workflow(stages=[stage], rows=rows, vars={"shop": "Northwind"}, defaults=defaults)
    return project


def came_to(project: ProjectFolder) -> Any:
    """What became of each row at each part of the stage."""
    project.assert_sound()
    with agac.sql("SELECT row_id, stage, result FROM v_results ORDER BY 1, 2, 3", project=project.root) as found:
        return [project.envelopes(), list(found)]


PLAIN: dict[str, tuple[Any, dict[str, Any]]] = {}
"""What undisturbed runs came to, with the accounts of their servers, by type."""


@pytest.mark.parametrize(("kind", "moment"), few(CELLS, 15))
def test_a_card_of_each_type_survives_being_killed(kind: str, moment: str, server: Server, tmp_path: Path) -> None:
    if kind not in PLAIN:
        undisturbed = started(tmp_path / "plain", kind, server)
        undisturbed.agac("run", "-a", "reviews", code=0)
        PLAIN[kind] = came_to(undisturbed), server.account()
    project = started(tmp_path / "killed", kind, server)
    kills = 0
    for number in range(2):
        at = moment if not number else "committed:3"
        kills += project.agac("run", "-a", "reviews", kill=at).code == -9
    project.agac("run", "-a", "reviews", code=0)
    result, account = PLAIN[kind]
    assert came_to(project) == result
    now = server.account()
    assert now["distinct"] == account["distinct"]
    assert now["charged"] - account["charged"] <= 2 * CONCURRENCY * kills
