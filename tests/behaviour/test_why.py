"""`agac why` of a task that was asked more than once, or not at all."""

from typing import Any

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder

import agac

STAGES: list[dict[str, Any]] = [
    {"name": "one", "prompt": "Say ${text}"},
    {"name": "two", "prompt": "Again ${one} ${text}"},
    {"name": "three", "prompt": "Last ${two}"},
    {"name": "four", "prompt": "Other ${text}"},
]
BEFORE = "This run ran it before, "


@pytest.fixture
def ran(project: ProjectFolder) -> ProjectFolder:
    project.rows([{"id": "a", "text": "hello"}, {"id": "b", "text": "bye"}])
    project.run(project.workflow(stages=STAGES))
    return project


def told(project: ProjectFolder, stage: str, row: str = "a") -> dict[str, Any]:
    report: dict[str, Any] = agac.why("last", row, stage, project=project.root).as_json()
    return report


def test_a_changed_cell_is_told_within_its_run(ran: ProjectFolder) -> None:
    ran.rows([{"id": "a", "text": "hullo"}, {"id": "b", "text": "bye"}])
    ran.run()
    found = {stage: told(ran, stage)["asked_before_in_this_run"] for stage in ("one", "two", "three", "four")}
    assert {stage: one["because"] for stage, one in found.items()} == {
        "one": ["the row changed"],
        "two": ["the answer of stage one changed", "the row changed"],
        "three": ["the answer of stage two changed"],
        "four": ["the row changed"],
    }
    assert not any(one["same_question"] for one in found.values())
    shown = ran.agac("why", "1", "a", "one").out
    when = found["one"]["asked_at"]
    assert f"{BEFORE}{when}, with another request; since then: the row changed." in shown
    assert "The earlier request is not stored." in shown
    assert "No earlier run has run this stage for this row." in ran.agac("why", "1", "b", "one").out


def test_an_answer_that_changed_under_a_row_that_did_not(ran: ProjectFolder) -> None:
    with ran.asking(scripted("other", "again", "last")):
        ran.rows([{"id": "a", "text": "hello"}])
        agac.retry("last", agac.Retry(rows=("a",), from_stage="one"), project=ran.root)
    assert told(ran, "two")["asked_before_in_this_run"]["because"] == [
        "the answer of stage one changed",
        "perhaps the row too",
    ]
    assert told(ran, "one")["asked_before_in_this_run"]["same_question"]


def test_what_a_later_run_did_with_the_same_request_is_said(ran: ProjectFolder) -> None:
    agac.retry("last", agac.Retry(from_stage="two"), project=ran.root)
    assert "with the same request; run again because `agac retry --from two`" in ran.agac("why", "1", "a", "two").out
    assert told(ran, "one")["asked_before_in_this_run"] is None
    ran.run(limit=1)
    assert "Nothing changed since run 1: its answer is reused." in ran.agac("why", "last", "a", "one").out
    ran.run(fresh=True)
    said = "Nothing changed since run 2, but the task was run again: --fresh reuses nothing."
    assert said in ran.agac("why", "last", "a", "one").out
    ran.run(ran.workflow(stages=[{**stage, "max_age": 0.001} for stage in STAGES]))
    assert "run again because the answer was older than max_age" in ran.agac("why", "last", "a", "one").out


def test_a_task_that_failed_first_and_what_came_after_it(project: ProjectFolder) -> None:
    project.workflow(rows=[{"id": "a", "text": "hello"}], stages=STAGES)
    with project.asking(scripted("one", Step(status=400, body='{"error": {"message": "no"}}'))):
        assert project.run().exit_code == 3
    shown = project.agac("why", "last", "a", "three").out
    assert "outcome: not run yet" in shown
    assert "  messages: none: stage two failed, so this one was not asked\n" in shown
    assert "stage two failed, so this one was not asked" in project.agac("why", "last", "a", "four").out
    with project.asking(scripted("two", "three", "four")):
        assert project.run().exit_code == 0
    assert "run again because it had no valid answer then." in project.agac("why", "last", "a", "two").out


def test_a_stage_that_was_not_reached_and_a_row_that_cannot_be_used(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "hello"}, {"id": "b", "text": "x"}, {"id": "a", "text": "again"}])
    project.run(project.workflow(stages=STAGES), until="one")
    assert "stage two has no answer yet, so this one was not asked" in project.agac("why", "last", "a", "three").out
    project.write("data/rows.csv", "id,text\na,hello,more\n")
    project.run(fresh=True)
    row = str(project.query("SELECT id FROM row WHERE run_id = 2 AND ordinal = 1")[0][0])
    assert "the row cannot be used (InvalidRow)" in project.agac("why", "last", row, "one").out


GUARDED = [{"id": "r-1", "kind": "good"}, {"id": "r-2", "kind": "bad"}]


def guarded(project: ProjectFolder, guard: str, **keys: Any) -> None:
    project.rows(GUARDED)
    reply = {"name": "reply", "prompt": "sorry ${id}", "when": guard, **keys}
    project.run(project.workflow(stages=[reply, {"name": "end", "prompt": "${id} ${reply}"}]))


def test_a_row_that_was_passed_over_has_a_guard_and_values_instead_of_a_prompt(project: ProjectFolder) -> None:
    guarded(project, 'kind == "bad"')
    found = project.agac("why", "1", "r-1", "reply", "--json").json
    assert found["passed_over"] == {"when": 'kind == "bad"', "values": {"kind": "good"}}
    assert (found["outcome"], found["fingerprint"], found["made_of"]["messages"]) == ("skipped", None, None)
    text = project.agac("why", "1", "r-1", "reply").out
    assert 'not true: kind == "bad"   with kind = "good"\n' in text
    assert "fingerprint" not in text
    guarded(project, 'kind == "good"')
    differs = 'Changes since run 1:\n  when: "kind == \\"bad\\"" → "kind == \\"good\\""\n'
    asked_now = project.agac("why", "2", "r-1", "reply").out
    assert f'In run 1: skipped: not true: kind == "bad"   with kind = "good"\n{differs}' in asked_now
    assert f"In run 1: it was run\n{differs}" in project.agac("why", "2", "r-2", "reply").out


def test_what_follows_a_row_that_left_says_so(project: ProjectFolder) -> None:
    guarded(project, 'kind == "bad"', otherwise="drop")
    assert "stage reply made the row leave, so this one was not asked" in project.agac("why", "1", "r-1", "end").out
    assert "stage 'reply', upstream of this one, made the row leave" in project.agac("inspect", "1", "r-1").out


def test_a_stage_that_asks_no_model_says_what_it_does(project: ProjectFolder) -> None:
    project.rows(GUARDED)
    stages = [{"name": "named", "rename": {"kind": "sort"}}, {"name": "end", "prompt": "${sort}"}]
    project.run(project.workflow(stages=stages))
    does = '{"rename": {"kind": "sort"}}'
    assert f"This stage calls no model. It does: {does}\n" in project.agac("why", "1", "r-1", "named").out
    shown = project.agac("inspect", "1", "r-1").out
    assert f"Stage named: done\n  does: {does}\n  finished: " in shown
    assert "prompt, user: good\n" in shown
