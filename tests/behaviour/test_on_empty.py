"""`on_empty`: a stage of which no row has a result, in a run that had rows."""

from typing import Any

from support.project import ProjectFolder

ECHO = {"model": "local/echo"}
NONE = {"name": "good", "prompt": "${id}", "when": 'kind == "good"'}


def workflow(project: ProjectFolder, *stages: dict[str, Any], kinds: tuple[str, ...] = ("bad", "bad")) -> None:
    project.rows([{"id": f"r{n}", "kind": kind} for n, kind in enumerate(kinds)])
    project.workflow(defaults=ECHO, stages=list(stages))


def test_a_warning_changes_no_exit_code(project: ProjectFolder) -> None:
    workflow(project, NONE | {"on_empty": "warn"})
    said = project.agac("run", "-a", "reviews", code=0)
    assert "stages[0].on_empty: no row has a result of stage 'good'" in said.err
    assert "warning: " in said.err
    assert project.output() == [None, None]


def test_an_error_fails_the_run_whose_files_are_written(project: ProjectFolder) -> None:
    workflow(project, NONE | {"on_empty": "error"})
    said = project.agac("-q", "run", "-a", "reviews", code=1)
    assert "workflows/reviews.yml:" in said.err
    assert "stages[0].on_empty: no row has a result of stage 'good'" in said.err
    assert [line["result"] for line in project.envelopes()] == [None, None]
    again = project.agac("run", "-a", "reviews", "--json")
    assert again.code == again.json["exit_code"] == 1
    assert again.json["empty"] == [{"severity": "error", "message": "no row has a result of stage 'good'"}]


def test_one_row_is_enough(project: ProjectFolder) -> None:
    workflow(project, NONE | {"on_empty": "error"}, kinds=("bad", "good"))
    for _ in range(2):  # it is reused at last, which is a result as well
        report = project.run()
        assert (report.exit_code, report.empty) == (0, [])


def test_rows_that_do_not_come_to_it_count_too(project: ProjectFolder) -> None:
    keep = {"name": "keep", "filter": 'kind == "good"'}
    last, group = {"name": "last", "prompt": "${id}"}, {"name": "all", "group_by": [], "prompt": "${rows_json}"}
    for stages in ([keep, last], [keep], [keep, group]):
        workflow(project, *stages[:-1], {**stages[-1], "on_empty": "error"})
        assert project.run().exit_code == 1


def test_lists_without_items(project: ProjectFolder) -> None:
    path = "data/rows.jsonl"
    project.rows([{"id": "a", "items": []}, {"id": "b", "items": []}], path)
    each = {"name": "each", "explode": "items", "prompt": "${item}", "on_empty": "error"}
    project.workflow(path=path, defaults=ECHO, stages=[each])
    assert project.run().exit_code == 1
    project.rows([{"id": "a", "items": ["x"]}, {"id": "b", "items": []}], path)
    assert project.run().exit_code == 0


def test_an_input_without_rows_and_a_run_that_stopped_say_nothing(project: ProjectFolder) -> None:
    workflow(project, NONE | {"on_empty": "error"})
    project.write("data/rows.csv", "id,kind\n")
    assert project.run().exit_code == 0
    workflow(project, {"name": "first", "prompt": "${id}"}, NONE | {"on_empty": "error"}, kinds=("good",))
    report = project.run(until="first")
    assert (report.exit_code, report.empty) == (0, [])
