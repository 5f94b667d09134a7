"""`when`: rows that a stage passes over, and rows that leave; `on_empty`: stages to which no row comes."""

from typing import Any

import pytest
from support.project import ProjectFolder

ECHO = {"model": "local/echo"}
ROWS = [{"id": f"r-{n}", "kind": kind, "price": price} for n, (kind, price) in enumerate(
    [("good", "5"), ("bad", "20"), ("good", "30"), ("odd", ""), ("bad", "7")], 1
)]  # fmt: skip


def stage(name: str, prompt: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, **keys}


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(defaults=ECHO, stages=list(stages), **keys)


@pytest.fixture
def project(project: ProjectFolder) -> ProjectFolder:
    """A project of five rows."""
    project.rows(ROWS)
    return project


def rows_of(report: Any) -> dict[str, int]:
    return {name: count for name, count in report.summary["rows"].items() if count}


def test_a_skipped_stage_is_empty_in_prompts_and_null_where_it_is_written(project: ProjectFolder) -> None:
    workflow(
        project,
        stage("reply", "sorry ${id}", when='kind == "bad"'),
        stage("end", "${id}[${reply}]"),
        output={"stages": ["reply", "end"]},
    )
    report = project.run()
    assert report.exit_code == 0
    assert project.output() == [
        {"reply": None, "end": "r-1[]"},
        {"reply": "sorry r-2", "end": "r-2[sorry r-2]"},
        {"reply": None, "end": "r-3[]"},
        {"reply": None, "end": "r-4[]"},
        {"reply": "sorry r-5", "end": "r-5[sorry r-5]"},
    ]
    assert rows_of(report) == {"total": 5, "done": 5}
    assert (report.summary["stages"][0]["done"], report.summary["stages"][0]["skipped"]) == (2, 3)
    assert report.invocation["calls"] == 7
    project.assert_sound()
    assert project.run().invocation["rows_unchanged"] == 5
    (row,) = project.agac("inspect", "1", "r-1", "--json").json["rows"]
    assert row["stages"][0]["outcome"] == "skipped"
    assert row["stages"][0]["passed_over"] == {"when": 'kind == "bad"', "values": {"kind": "good"}}
    assert row["stages"][1]["prompt"] == [{"role": "user", "text": "r-1[]"}]
    assert not row["stages"][1]["stale"]
    text = project.agac("inspect", "1", "r-1").out
    assert 'kind == "bad"' in text
    assert "skipped" in text
    assert project.agac("why", "1", "r-1", "end").code == 0
    workflow(project, stage("reply", "sorry ${id}", when='kind == "bad"'))
    report = project.run()
    assert rows_of(report) == {"total": 5, "done": 2, "skipped": 3}, "a row without any result has its line, too"
    assert [(e["ok"], e["result"]) for e in project.envelopes()] == [
        (True, None), (True, "sorry r-2"), (True, None), (True, None), (True, "sorry r-5")
    ]  # fmt: skip
    project.assert_sound()


def test_a_dropped_row_leaves_and_is_listed_with_its_guard_and_values(project: ProjectFolder) -> None:
    workflow(
        project,
        stage("first", "${kind}"),
        stage("keep", "kept ${id}", when='first != "odd" && double(price) > 6.0', otherwise="drop"),
        stage("end", "${keep}!"),
        output={"include_input": True},
    )
    report = project.run()
    assert report.exit_code == 0
    assert rows_of(report) == {"total": 5, "done": 3, "dropped": 2}
    assert [e["result"] for e in project.envelopes()] == ["kept r-2!", "kept r-3!", "kept r-5!"]
    guard = {"stage": "keep", "when": 'first != "odd" && double(price) > 6.0'}
    first, odd = {"first": "good", "price": "5"}, {"first": "odd", "price": ""}
    assert project.envelopes(file="filtered.jsonl") == [
        {"id": "r-1", "row_number": 1, "values": first, "input": ROWS[0], **guard},
        {"id": "r-4", "row_number": 4, "values": odd, "input": ROWS[3], **guard},
    ]
    stages = {one["name"]: one for one in report.summary["stages"]}
    assert (stages["keep"]["dropped"], stages["end"]["done"], stages["end"]["dropped"]) == (2, 3, 0)
    project.assert_sound()
    assert project.run().invocation["calls"] == 0


def test_a_guard_that_cannot_be_decided_fails_the_row(project: ProjectFolder) -> None:
    workflow(project, stage("a", "${id}", when="double(price) > 6.0"), stop_loss=False)
    assert project.run().exit_code == 3
    (error,) = project.envelopes(file="errors.jsonl")
    assert error["id"] == "r-4"
    assert error["error"]["type"] == "GuardError"
    assert error["error"]["message"].startswith("stage 'a': when: ")
    project.assert_sound()


def test_rows_that_a_guard_made_leave_come_back_when_they_change_or_are_retried(project: ProjectFolder) -> None:
    workflow(project, stage("a", "a ${id}"), stage("b", "b ${a}", when='kind == "good"', otherwise="drop"))
    assert rows_of(project.run()) == {"total": 5, "done": 2, "dropped": 3}
    ended = project.agac("retry", "1", "--from", "a", "--yes", "--json", code=0)
    assert ended.json["invocation"]["calls"] == 7
    assert {name: count for name, count in ended.json["rows"].items() if count} == {"total": 5, "done": 2, "dropped": 3}
    changed = [dict(row) for row in ROWS]
    changed[0]["kind"], changed[1]["kind"] = "bad", "good"
    project.rows(changed)
    report = project.run()
    assert rows_of(report) == {"total": 5, "done": 2, "dropped": 3}
    assert report.invocation["calls"] == 1
    assert [e["id"] for e in project.envelopes()] == ["r-2", "r-3"]
    assert [e["id"] for e in project.envelopes(file="filtered.jsonl")] == ["r-1", "r-4", "r-5"]
    project.assert_sound()


def test_hidden_fields_are_never_sent(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "hello", "ssn": "CANARY-1"}])
    workflow(
        project,
        {"name": "whole", "visible": {"never": ["ssn"]}, "when": 'ssn.startsWith("CANARY")'},
        {"name": "one", "visible": {"only": ["text"]}, "needs": []},
    )
    assert project.run().exit_code == 0
    assert project.output() == [{"whole": '{\n  "id": "a",\n  "text": "hello"\n}', "one": '{\n  "text": "hello"\n}'}]
    assert "CANARY" not in str(project.query("SELECT reply FROM attempt"))
    workflow(project, {"name": "a", "prompt": "${ssn}", "visible": {"never": ["ssn"]}})
    assert "${ssn} is hidden from this stage by `visible`" in project.agac("validate", "-a", "reviews").out
    workflow(project, {"name": "a", "prompt": "x", "visible": {"never": ["ssm"]}})
    assert "names 'ssm', which does not exist; did you mean 'ssn'?" in project.agac("validate", "-a", "reviews").out


def test_a_plain_reply_becomes_a_field(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "hello"}])
    say, off = {"name": "say", "prompt": " ${text} \n"}, {"name": "off", "prompt": "2${say}", "enabled": False}
    workflow(
        project,
        say | {"output_field": "summary"},
        {"name": "end", "prompt": "<${say.summary}>"},
        output={"stages": ["say", "end"], "format": "csv", "merge": "replace"},
    )
    project.run()
    assert project.output() == [{"say": {"summary": "hello"}, "end": "<hello>"}]
    workflow(project, say, off, {"name": "end", "prompt": "<${say}>"})
    report = project.run()
    assert report.invocation["calls"] == 2, "the plain text is another result than the field"
    assert [one["name"] for one in report.summary["stages"]] == ["say", "end"], "a disabled stage is not there"


# `on_empty`: a stage of which no row has a result, in a run that had rows.

NONE = {"name": "good", "prompt": "${id}", "when": 'kind == "good"'}


def of_kinds(project: ProjectFolder, *stages: dict[str, Any], kinds: tuple[str, ...] = ("bad", "bad")) -> None:
    project.rows([{"id": f"r{n}", "kind": kind} for n, kind in enumerate(kinds)])
    workflow(project, *stages)


def test_an_error_fails_the_run_whose_files_are_written_and_a_warning_does_not(project: ProjectFolder) -> None:
    of_kinds(project, NONE | {"on_empty": "error"})
    said = project.agac("-q", "run", "-a", "reviews", code=1)
    assert "workflows/reviews.yml:" in said.err
    assert "stages[0].on_empty: no row has a result of stage 'good'" in said.err
    assert [line["result"] for line in project.envelopes()] == [None, None]
    again = project.agac("run", "-a", "reviews", "--json")
    assert again.code == again.json["exit_code"] == 1
    assert again.json["empty"] == [{"severity": "error", "message": "no row has a result of stage 'good'"}]
    of_kinds(project, NONE | {"on_empty": "warn"})
    said = project.agac("run", "-a", "reviews", code=0)
    assert "stages[0].on_empty: no row has a result of stage 'good'" in said.err
    assert "warning: " in said.err
    assert project.output() == [None, None]


def test_one_row_or_item_is_enough(project: ProjectFolder) -> None:
    of_kinds(project, NONE | {"on_empty": "error"}, kinds=("bad", "good"))
    for _ in range(2):  # it is reused at last, which is a result as well
        report = project.run()
        assert (report.exit_code, report.empty) == (0, [])
    path = "data/rows.jsonl"
    project.rows([{"id": "a", "items": []}, {"id": "b", "items": []}], path)
    each = {"name": "each", "explode": "items", "prompt": "${item}", "on_empty": "error"}
    project.workflow(path=path, defaults=ECHO, stages=[each])
    assert project.run().exit_code == 1
    project.rows([{"id": "a", "items": ["x"]}, {"id": "b", "items": []}], path)
    assert project.run().exit_code == 0


def test_rows_that_do_not_come_to_it_count_too(project: ProjectFolder) -> None:
    keep = {"name": "keep", "filter": 'kind == "good"'}
    last, group = {"name": "last", "prompt": "${id}"}, {"name": "all", "group_by": [], "prompt": "${rows_json}"}
    for stages in ([keep, last], [keep], [keep, group]):
        of_kinds(project, *stages[:-1], {**stages[-1], "on_empty": "error"})
        assert project.run().exit_code == 1


def test_an_input_without_rows_and_a_run_that_stopped_say_nothing(project: ProjectFolder) -> None:
    of_kinds(project, NONE | {"on_empty": "error"})
    project.write("data/rows.csv", "id,kind\n")
    assert project.run().exit_code == 0
    of_kinds(project, {"name": "first", "prompt": "${id}"}, NONE | {"on_empty": "error"}, kinds=("good",))
    report = project.run(until="first")
    assert (report.exit_code, report.empty) == (0, [])
