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


def asked(project: ProjectFolder, **options: Any) -> list[str]:
    """Runs. The stages whose model was asked, a name for each call."""
    report = project.run(**options)
    names = [stage.name for stage in project.plan(**options).stages]
    calls = project.query(
        "SELECT stage FROM attempt WHERE event_id = (SELECT max(id) FROM event WHERE run_id = ? AND "
        "kind = 'invocation') ORDER BY id", report.summary["run"],
    )  # fmt: skip
    return [names[stage] for (stage,) in calls]


def two_hours_later(project: ProjectFolder) -> None:
    """All answers are older, and whatever else is stored."""
    with project.changed() as change:
        for table, column in (("result", "created_at"), ("task", "settled_at"), ("decision", "at"), ("review", "at")):
            change(f"UPDATE {table} SET {column} = {column} - 7200")


def decide(project: ProjectFolder, choice: str, *rows: str) -> None:
    """Somebody decides about all answers that wait, or about those of some rows."""
    items = agac.review_queue(project.root).items
    agac.decide(
        project.root,
        [agac.Decision(one.id, choice, reviewer="anna") for one in items if not rows or one.row_id in rows],
    )


REVIEWED = [
    {"name": "say", "prompt": "${text}", "max_age": "1h"},
    {"name": "ok", "review": {"on_reject": "fail"}},
    {"name": "more", "prompt": "more ${say}"},
]


def test_an_answer_that_grows_old_while_its_row_waits_for_people_still_counts(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    with project.asking(deciding(echo)):
        project.workflow(stages=REVIEWED, rows=2)
        project.run()
        two_hours_later(project)
        plan = planned(project)
        assert (plan["say"]["run"], plan["say"]["reuse"], plan["ok"]["blocked"]) == (0, 2, 2)
        assert asked(project) == []
        decide(project, "approve")
        two_hours_later(project)
        plan = planned(project)
        assert (plan["say"]["run"], plan["say"]["reuse"], plan["more"]["run"]) == (0, 2, 2)
        assert asked(project) == ["more", "more"]


def test_a_rejected_row_stays_as_it_is(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    with project.asking(deciding(echo)):
        project.workflow(stages=REVIEWED, rows=2)
        project.run()
        decide(project, "reject", "r-1")
        project.run()
        two_hours_later(project)
        plan = planned(project)
        reasons = {one["reason"]: one["tasks"] for one in plan["ok"]["blocked_reasons"]}
        assert reasons == {"rejected by a person": 1, "waits for a person": 1}
        assert plan["say"]["run"] == 0
        assert asked(project) == []


def test_what_failed_beside_a_review_is_tried_again(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    stages = [*REVIEWED[:2], {"name": "bad", "needs": [], "prompt": "fail ${text}"}]

    def answer(body: dict[str, Any]) -> Step:
        text = body["messages"][-1]["content"]
        return Step("half", finish="length") if "fail" in text else Step(text)

    with project.asking(deciding(answer)):
        project.workflow(stages=stages, rows=1)
        project.run()
        for _ in range(3):
            runs = {name: stage["run"] for name, stage in planned(project).items()}
            came = asked(project)
            assert runs == {name: came.count(name) for name in runs}
            decide(project, "approve")


def test_equal_rows_wait_for_a_row_that_people_look_at(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    stages = [
        {"name": "say", "prompt": "${text}"},
        {"name": "ok", "review": {"when": "kind == 'a'"}},
        {"name": "once", "dedupe": ["kind"]},
        {"name": "more", "prompt": "more ${kind}"},
    ]
    rows = [{"id": str(number), "kind": kind, "text": f"text {number}"} for number, kind in enumerate("abb")]
    with project.asking(deciding(echo)):
        project.workflow(stages=stages, rows=rows)
        project.run()
        plan = planned(project)
        assert (plan["more"]["run"], plan["once"]["blocked_reasons"][0]["reason"]) == (0, "waits for rows before it")
        assert asked(project) == []
        decide(project, "approve")
        assert planned(project)["more"]["run"] == 2
        assert asked(project) == ["more", "more"]


def test_groups_wait_for_a_row_that_people_look_at(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    stages = [
        {"name": "say", "prompt": "${text}"},
        {"name": "ok", "review": {"when": "kind == 'a'"}},
        {"name": "join", "group_by": ["kind"], "prompt": "${kind}: ${rows_json}"},
    ]
    rows = [{"id": str(number), "kind": kind, "text": f"text {number}"} for number, kind in enumerate("abb")]
    with project.asking(deciding(echo)):
        project.workflow(stages=stages, rows=rows)
        project.run()
        plan = planned(project)
        assert (plan["join"]["run"], plan["join"]["blocked"]) == (0, 2)
        assert asked(project) == []
        decide(project, "approve")
        assert planned(project)["join"]["run"] == 2
        assert asked(project) == ["join", "join"]


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
