"""What a plan says of rows is what the next run does: cases in which the two once differed."""

from pathlib import Path
from typing import Any

from scripted_server import Step, deciding
from support.project import ProjectFolder

import agac


def echo(asked: dict[str, Any]) -> Step:
    """Answers with the question."""
    return Step(f"about {asked['messages'][-1]['content']}")


def planned(project: ProjectFolder, **options: Any) -> dict[str, dict[str, Any]]:
    """What a plan says of each stage."""
    report = agac.plan("reviews", agac.RunOptions(**options), project=project.root)
    return {stage["name"]: stage for stage in report.as_json()["stages"]}


def calls(report: agac.RunReport, stage: str) -> int:
    """How many tasks of a stage were asked in a run."""
    (found,) = [one for one in report.summary["stages"] if one["name"] == stage]
    done: int = found["done"]
    return done


def test_a_group_that_waits_for_people_is_asked_again_when_its_rows_change(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    stages = [
        {"name": "join", "group_by": ["kind"], "prompt": "${kind}: ${rows_json}"},
        {"name": "ok", "review": {}},
    ]
    rows = [{"id": "1", "kind": "a", "text": "red"}, {"id": "2", "kind": "b", "text": "red"}]
    with project.asking(deciding(echo)):
        project.workflow(stages=stages, rows=rows)
        project.run()
        assert len(agac.review_queue(project.root).items) == 2
        rows[0]["text"] = "green"
        project.rows(rows[:1])
        assert planned(project)["join"]["run"] == 1
        project.run()
    (item,) = agac.review_queue(project.root).items
    assert "green" in str(item.answer)
    assert project.query("SELECT id FROM row WHERE origin = 0 AND state <> 6") == [("a",)]


def test_an_item_that_waits_for_people_is_asked_again_when_it_changes(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    stages = [
        {"name": "about", "explode": "tags", "prompt": "${item}"},
        {"name": "ok", "review": {}},
    ]
    rows: list[dict[str, Any]] = [{"id": "1", "tags": ["p", "q"]}]
    with project.asking(deciding(echo)):
        project.workflow(stages=stages, rows=rows, path="data/rows.jsonl")
        project.run()
        rows[0]["tags"] = ["p", "r"]
        project.rows(rows, "data/rows.jsonl")
        assert planned(project)["about"]["run"] == 1
        project.run()
    assert sorted(item.answer for item in agac.review_queue(project.root).items) == ["about p", "about r"]
