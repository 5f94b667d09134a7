"""Stages at which people decide (`review:`): rows wait, decisions are kept by what was shown, the next run goes on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder

import agac
from agac.engine.effects import ActiveRow
from agac.engine.executor import Executor

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["label", "confidence"],
    "additionalProperties": False,
}
CLASSIFY = {"name": "classify", "prompt": "classify ${text}", "output_schema": SCHEMA}
REPLY = {"name": "reply", "prompt": "reply ${classify.label}"}


def answer(asked: dict[str, Any]) -> Step:
    """To `classify low-3`, as sure as the text says: `{"label": "L3", "confidence": 0.3}`."""
    what, _, text = asked["messages"][-1]["content"].partition(" ")
    if what != "classify":
        return Step(f"{what}: {text}")
    number = int(text.rpartition("-")[2])
    return Step(json.dumps({"label": f"L{number}", "confidence": number / 10}))


@pytest.fixture
def model(project: ProjectFolder) -> Iterator[Scripted]:
    with project.asking(deciding(answer)) as server:
        yield server


def review(project: ProjectFolder, numbers: list[int], *after: dict[str, Any], **keys: Any) -> None:
    """A workflow that classifies rows, reviews what came of it and does what stands `after`."""
    project.rows([{"id": f"r{number}", "text": f"text-{number}"} for number in numbers])
    approve = {"name": "approve", "review": keys}
    project.workflow(stages=[CLASSIFY, approve, *(after or (REPLY,))])


def waiting(project: ProjectFolder, state: str = "waiting") -> dict[str, agac.ReviewItem]:
    """The reviews in a state, by row."""
    return {one.row_id: one for one in agac.review_queue(project.root, state=state, limit=1000).items}


def decide(project: ProjectFolder, row: str, choice: str, value: Any = None, **keys: Any) -> agac.DecideReport:
    items = waiting(project) | waiting(project, "conflict") | waiting(project, "decided")
    force = keys.pop("force", False)
    made = agac.Decision(items[row].id, choice, value, reviewer=keys.pop("reviewer", "anna"), **keys)
    return agac.decide(project.root, [made], force=force)


def results(project: ProjectFolder) -> dict[str, Any]:
    return {one["id"]: one["result"] for one in project.envelopes()}


def test_rows_that_meet_the_condition_wait_and_the_others_go_on(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 9], when="classify.confidence < 0.8")
    report = project.run()
    assert (report.exit_code, report.invocation["complete"], report.rows.done, report.rows.open) == (0, False, 1, 1)
    item = waiting(project)["r3"]
    assert (item.stage, item.edit, item.answer) == ("approve", "classify", {"label": "L3", "confidence": 0.3})
    assert (item.shown, item.sure) == ({"id": "r3", "text": "text-3"}, 0.3)
    assert item.why == {"when": "classify.confidence < 0.8", "values": {"classify.confidence": 0.3}}
    assert item.choices == ("approve", "edit", "reject")
    assert decide(project, "r3", "approve").taken == 1
    report = project.run()
    assert (report.exit_code, report.invocation["complete"], report.rows.done) == (0, True, 2)
    assert results(project) == {"r3": "reply: L3", "r9": "reply: L9"}
    assert len(model.asked) == 4
    project.assert_sound()


def test_an_edited_value_is_what_later_stages_and_outputs_see(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    assert decide(project, "r3", "edit", {"label": "X", "confidence": 1}).taken == 1
    wrong = decide(project, "r4", "edit", {"label": 7})
    assert (wrong.taken, len(wrong.problems)) == (0, 1)
    assert decide(project, "r4", "approve").taken == 1
    assert project.run().invocation["complete"]
    assert results(project) == {"r3": "reply: X", "r4": "reply: L4"}
    project.assert_sound()


@pytest.mark.parametrize(("on_reject", "code"), [("drop", 0), ("fail", 3), ("skip", 0)])
def test_a_rejected_result(project: ProjectFolder, model: Scripted, on_reject: str, code: int) -> None:
    review(project, [3], on_reject=on_reject)
    project.run()
    decide(project, "r3", "reject", reason="nonsense")
    report = project.run()
    assert report.exit_code == code
    (envelope,) = project.envelopes() or [{}]
    if on_reject == "drop":
        assert (report.rows.dropped, envelope) == (1, {})
        assert project.envelopes(file="filtered.jsonl")[0]["when"] == "rejected by anna: nonsense"
    elif on_reject == "fail":
        assert envelope["error"]["type"] == "Rejected"
        assert "rejected by anna: nonsense" in envelope["error"]["message"]
    else:
        assert envelope["result"] == "reply: "
    assert project.run().exit_code == code
    project.assert_sound()


def test_rows_that_wait_are_not_walked_again(
    project: ProjectFolder, model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    review(project, [3, 4])
    project.run()
    decide(project, "r3", "approve")
    walked: list[str] = []
    walk = Executor.walk

    async def noted(self: Executor, row: ActiveRow) -> None:
        walked.append(str(row.new.row.id))
        await walk(self, row)

    monkeypatch.setattr(Executor, "walk", noted)
    report = project.run()
    assert walked == ["r3"]
    assert (report.rows.done, report.rows.open, report.invocation["rows_parked"]) == (1, 1, 1)
    assert report.summary["stages"][1]["review"] == {
        "waiting": 1, "auto": 0, "approved": 1, "manual": 0, "rejected": 0,
    }  # fmt: skip
    project.assert_sound()


def test_the_commands_say_how_many_wait_and_what_to_type(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 9], when="classify.confidence < 0.8")
    dry = project.agac("plan", "-a", "reviews", code=0)
    assert "approve" in dry.out
    ran = project.agac("run", "-a", "reviews", code=0)
    line = "1 row waits for a person; decide with: agac review next -a reviews"
    assert line in ran.out
    assert "Reviewed at approve: 1 auto" in ran.out
    assert "did not select" not in ran.out
    status = project.agac("status", "last", code=0).out
    assert line in status
    assert "reviews, run 1: waiting" in status
    dry = project.agac("plan", "-a", "reviews", code=0)
    assert "approve: 1 blocked: waits for a person" in dry.out
    assert project.agac("run", "-a", "reviews", "--json", code=0).json["complete"] is False


def test_a_decision_that_is_changed_later_is_taken_up(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r4", "reject")
    project.run()
    assert results(project) == {"r3": "reply: L3"}
    assert decide(project, "r3", "edit", {"label": "Y", "confidence": 0}).taken == 1
    assert decide(project, "r4", "approve").taken == 1
    report = project.run()
    assert report.rows.done == 2
    assert results(project) == {"r3": "reply: Y", "r4": "reply: L4"}
    project.assert_sound()
