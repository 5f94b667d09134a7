"""Stages side by side: who sees what, who waits for whom, and what becomes of the row."""

import json
from threading import Barrier
from typing import Any

from scripted_server import Step, answering
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

ECHO = {"model": "local/echo"}


def echo(name: str, prompt: str, needs: list[str] | None = None, **keys: Any) -> dict[str, Any]:
    """A stage that answers with its prompt."""
    return {"name": name, "prompt": prompt, "needs": needs or [], **keys}


def test_independent_stages_are_asked_at_the_same_time(project: ProjectFolder) -> None:
    """Each of four branches is answered only once all four have been asked."""
    all_asked = Barrier(4)

    def answer(text: str) -> Step:
        all_asked.wait(timeout=60)
        return Step(f"said {text}")

    with answering(answer, project):
        project.numbered(2)
        project.workflow(stages=[echo(f"b{n}", f"{n} of ${{id}}") for n in range(4)])
        report = project.run(concurrency=4)
    assert report.exit_code == 0
    assert project.output()[1] == {f"b{n}": f"said {n} of r-2" for n in range(4)}


def test_results_of_several_ends_or_of_chosen_stages_are_an_object_by_their_names(project: ProjectFolder) -> None:
    project.numbered(2)
    classify = {"name": "classify", "prompt": "${text}", "output_schema": SENTIMENT, "model": "local/small"}
    stages = [classify, echo("topics", "t ${id}"), echo("mid", "m ${topics}", ["topics"])]
    project.workflow(defaults=ECHO, stages=stages, output={"format": "csv"})
    assert project.run().exit_code == 0
    assert [list(row) for row in project.output()] == [["classify", "mid"]] * 2
    assert [row["mid"] for row in project.output()] == ["m t r-1", "m t r-2"]
    assert project.output()[0]["classify"]["sentiment"] == "positive"
    header = (project.root / "output/reviews/results.csv").read_text().splitlines()[0]
    assert header == "id,text,classify,mid,error"
    for chosen, written in ((["mid", "topics"], {"topics": "t r-1", "mid": "m t r-1"}), ("topics", "t r-1")):
        project.workflow(defaults=ECHO, stages=stages, output={"stages": chosen})
        assert project.run().invocation["calls"] == 0
        assert json.dumps(project.output()[0]) == json.dumps(written), "in the order of the workflow"


def test_a_stage_sees_only_what_is_upstream_of_it_whatever_came_first(project: ProjectFolder) -> None:
    """A column may be called as a stage of another branch: it is the column that is meant."""
    project.rows([{"id": str(n), "topics": f"column {n}"} for n in range(20)])
    project.workflow(
        defaults=ECHO,
        stages=[echo("topics", "the stage"), echo("first", "f ${id}"), echo("b", "${topics}", ["first"])],
        output={"stages": "b"},
    )
    project.run(concurrency=4)
    assert project.output() == [f"column {n}" for n in range(20)]
    project.workflow(defaults=ECHO, stages=[echo("a", "x"), echo("b", "${a.y} ${a}")])
    ran = project.agac("validate", "-a", "reviews", code=2)
    assert "${a} names a stage that is not upstream of 'b'; stages see only those that they need" in ran.out


def test_what_does_not_need_a_failed_stage_still_goes_on_and_the_first_of_two_failures_is_told(
    project: ProjectFolder, faulty: Faulty
) -> None:
    faults = [{"kind": "refusal", "match": "left r-2"}, {"kind": "length", "match": "far r-2"}]
    project.configure(faulty(faults).base_url)
    project.numbered(3)
    project.workflow(
        defaults=ECHO,
        stages=[
            echo("left", "left ${id}"),
            echo("right", "right ${id}"),
            echo("far", "far ${id}", ["right"]),
            echo("join", "${left} ${far}", ["left", "far"]),
        ],
    )
    report = project.run()
    assert report.exit_code == 3
    assert report.summary["rows"] | {"open": 0} == {
        "total": 3, "done": 2, "skipped": 0, "failed": 1, "dropped": 0, "open": 0,
    }  # fmt: skip
    stages = {stage["name"]: (stage["done"], stage["failed"]) for stage in report.summary["stages"]}
    assert stages == {"left": (2, 1), "right": (3, 0), "far": (2, 1), "join": (2, 0)}
    assert [(e["type"], e["stage"], e["rows"]) for e in report.summary["errors"]] == [("Refused", "left", 1)]
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["id"], error["error"]["type"]) == ("r-2", "Refused")
    project.assert_sound()
