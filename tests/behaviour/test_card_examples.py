"""The example with a stage for each type of AgentCard, as its readers run it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.project import ProjectFolder
from support.shipped import shipped_project

TYPES = ["chain", "parallel", "router", "evaluator_optimizer", "orchestrator", "iterative_planner", "maker"]
ROWS = 6


def results(project: ProjectFolder, what: str) -> list[tuple[Any, ...]]:
    return project.query(f"SELECT row_id, stage, result FROM v_results WHERE replica = 0 AND {what} ORDER BY 1, 2")


@pytest.mark.parametrize("flags", [(), ("--run-mode", "batch", "--wait")], ids=["calls", "batches"])
def test_each_type_of_card_answers_every_row_and_nothing_is_asked_twice(flags: tuple[str, ...], tmp_path: Path) -> None:
    project = shipped_project(tmp_path / "copy")
    first = project.agac("run", "-a", "card_types", "--json", *flags, code=0).json
    assert first["rows"]["done"] == ROWS
    for envelope in project.envelopes("card_types"):
        assert envelope["ok"]
        assert list(envelope["result"]) == TYPES
        assert all(envelope["result"].values()), "each type has an answer"
    names = [stage["name"] for stage in first["stages"]]
    assert [name for name in names if "/" not in name] == TYPES
    assert {name.partition("/")[0] for name in names} == {*TYPES}
    outcomes = project.query("SELECT stage, outcome, count(*) FROM v_results WHERE replica = 0 GROUP BY 1, 2")
    by_stage = {name: sum(count for stage, _, count in outcomes if stage == name) for name in names}
    assert set(by_stage.values()) == {ROWS}, "every part has an outcome for every row"

    chosen = {row: json.loads(text)["agent"] for row, _, text in results(project, "stage = 'router/route'")}
    answered = results(project, "stage IN ('router', 'router/repairs', 'router/advice') AND result IS NOT NULL")
    parts = {"orders": "router", "repairs": "router/repairs", "advice": "router/advice"}
    assert {row: stage for row, stage, _ in answered} == {row: parts[agent] for row, agent in chosen.items()}
    ratings = results(project, "stage = 'evaluator_optimizer/judge-1'")
    again = {row for row, _, text in results(project, "stage = 'evaluator_optimizer/refine-1'") if text}
    assert again == {row for row, _, text in ratings if json.loads(text)["rating"] in ("POOR", "FAIR")}

    (before,) = project.query("SELECT count(*) FROM attempt")
    assert project.agac("run", "-a", "card_types", "--json", *flags, code=0).json["rows"]["done"] == ROWS
    assert project.query("SELECT count(*) FROM attempt") == [before]
    project.assert_sound()
