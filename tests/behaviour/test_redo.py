"""Reviews at which the model can be made to answer again (`redo`): with a comment, so often, as a task of its own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder

import agac

SCHEMA = {"label": "string", "confidence": "number"}
CLASSIFY: dict[str, Any] = {"name": "classify", "prompt": "classify ${text}", "output_schema": SCHEMA}
REPLY = {"name": "reply", "prompt": "reply ${classify.label}"}


def answer(asked: dict[str, Any]) -> Step:
    """To `classify b` the label `b`; asked again with a comment, its last word; always sure where that is `sure`."""
    said = asked["messages"][-1]["content"]
    if said.startswith("reply"):
        return Step(said)
    word = said.split("\n")[1].split()[-1] if said.startswith("A person") else said.split()[-1]
    return Step(json.dumps({"label": word, "confidence": 1.0 if word == "sure" else 0.5}))


@pytest.fixture
def model(project: ProjectFolder) -> Iterator[Scripted]:
    with project.asking(deciding(answer)) as server:
        yield server


def review(project: ProjectFolder, *names: str, stage: dict[str, Any] = CLASSIFY, **keys: Any) -> None:
    project.rows([{"id": name, "text": name} for name in names])
    asks = {"redo": {"stage": "classify", "max": 2}, "when": "classify.confidence < 0.8", **keys}
    asks = {key: value for key, value in asks.items() if value is not None}
    project.workflow(stages=[stage, {"name": "approve", "review": asks}, REPLY])


def items(project: ProjectFolder, state: str = "waiting") -> dict[str, agac.ReviewItem]:
    return {one.row_id: one for one in agac.review_queue(project.root, state=state, limit=100).items}


def decide(project: ProjectFolder, row: str, choice: str, reason: str = "", who: str = "anna") -> agac.DecideReport:
    (item,) = [one for state in ("waiting", "conflict") for name, one in items(project, state).items() if name == row]
    return agac.decide(project.root, [agac.Decision(item.id, choice, None, reason, who)])


def results(project: ProjectFolder) -> dict[str, Any]:
    return {one["id"]: one["result"] for one in project.envelopes()}


def test_the_comment_goes_to_the_model_and_its_answer_is_reviewed_anew(project: ProjectFolder, model: Scripted) -> None:
    review(project, "a", "b")
    project.run()
    assert items(project)["a"].choices == ("approve", "edit", "reject", "redo")
    assert "reason" in decide(project, "a", "redo").problems[0].message
    assert decide(project, "a", "redo", "it is c").taken == 1
    plan = agac.plan("reviews", project=project.root)
    assert [(one.run, one.blocked) for one in plan.stages] == [(1, 0), (0, 2), (0, 2)]
    assert "somebody wants another answer" in project.agac("plan", "-a", "reviews", code=0).out
    report = project.run()
    assert (report.rows.done, report.rows.open, report.invocation["complete"]) == (0, 2, False)
    (said,) = [one["messages"] for one in model.asked[2:]]
    assert [one["role"] for one in said] == ["user", "assistant", "user"]
    assert json.loads(said[1]["content"]) == {"label": "a", "confidence": 0.5}
    assert "it is c" in said[2]["content"]
    again = items(project)["a"]
    assert (again.answer, again.why["redo"]) == (
        {"label": "c", "confidence": 0.5},
        [{"answer": {"label": "a", "confidence": 0.5}, "comment": "it is c"}],
    )
    decide(project, "a", "approve")
    decide(project, "b", "approve")
    assert project.run().invocation["complete"]
    assert results(project) == {"a": "reply c", "b": "reply b"}
    assert len(model.asked) == 5
    shown = project.agac("inspect", "last", "a", code=0).out
    assert "it is c" in shown
    assert "of earlier content" not in shown
    why = project.agac("why", "last", "a", "classify", code=0).out
    assert "it is c" in why
    assert "with another request; since then: somebody wants another answer." in why
    project.assert_sound()


def test_after_so_many_times_it_is_not_offered(project: ProjectFolder, model: Scripted) -> None:
    review(project, "a", redo={"max": 1})
    project.run()
    decide(project, "a", "redo", "it is c")
    project.run()
    assert items(project)["a"].choices == ("approve", "edit", "reject")
    (problem,) = decide(project, "a", "redo", "it is d").problems
    assert "'a' has these choices: approve, edit, reject" in problem.message
    assert project.run().rows.open == 1
    assert len(model.asked) == 2


def test_the_same_answer_again_and_one_that_is_sure_now_are_shown(project: ProjectFolder, model: Scripted) -> None:
    review(project, "a", "b")
    project.run()
    decide(project, "a", "redo", "really a")
    decide(project, "b", "redo", "be sure")
    project.run()
    assert {row: one.answer["label"] for row, one in items(project).items()} == {"a": "a", "b": "sure"}
    assert len(items(project)["a"].why["redo"]) == 1
    decide(project, "a", "redo", "still a")
    project.run()
    assert [one["comment"] for one in items(project)["a"].why["redo"]] == ["really a", "still a"]
    project.assert_sound()


def test_what_was_decided_holds_for_the_same_answer_to_another_prompt(project: ProjectFolder, model: Scripted) -> None:
    review(project, "a")
    project.run()
    decide(project, "a", "redo", "it is c")
    review(project, "a", stage={**CLASSIFY, "prompt": "classify: ${text}"})
    project.run()
    assert (items(project)["a"].run, items(project)["a"].answer) == (2, {"label": "c", "confidence": 0.5})
    assert len(model.asked) == 3
    review(project, "a")
    project.run()
    assert len(model.asked) == 4  # of the first prompt, too: it is another task
    assert project.run().invocation["calls"] == 0
    project.assert_sound()


def test_who_wants_another_answer_later_opens_a_row_that_was_done(project: ProjectFolder, model: Scripted) -> None:
    review(project, "a")
    project.run()
    decide(project, "a", "approve")
    project.run()
    (done,) = items(project, "applied").values()
    agac.decide(project.root, [agac.Decision(done.id, "redo", None, "it is c", "anna")])
    assert project.run().rows.open == 1
    decide(project, "a", "approve")
    assert project.run().invocation["complete"]
    assert results(project) == {"a": "reply c"}
    project.assert_sound()


def test_an_escalated_answer_is_asked_of_the_stronger_model_again(project: ProjectFolder, model: Scripted) -> None:
    escalated = {**CLASSIFY, "escalate": {"when": "classify.confidence < 0.8", "model": "local/large"}}
    review(project, "a", stage=escalated)
    project.run()
    decide(project, "a", "redo", "it is c")
    project.run()
    assert [one["model"] for one in model.asked] == ["small", "large", "large"]
    assert items(project)["a"].answer == {"label": "c", "confidence": 0.5}
    project.assert_sound()


def test_batches_rows_of_lists_and_two_reviewers(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "items": ["x", "y"]}], "data/rows.jsonl")
    classify = {"name": "classify", "explode": "items", "prompt": "${item}", "model": "simulator/small",
                "run_mode": "batch", "output_schema": {"label": "string"}}  # fmt: skip
    asks = {"redo": {}, "reviewers": 2, "show": ["item"]}
    project.workflow(stages=[classify, {"name": "approve", "review": asks}], path="data/rows.jsonl")
    project.agac("run", "-a", "reviews", "--wait", code=0)
    before = items(project)["a/0"]
    decide(project, "a/0", "redo", "no", "anna")
    project.agac("run", "-a", "reviews", "--wait", code=0)
    assert project.query("SELECT count(*) FROM batch") == [(1,)]
    decide(project, "a/0", "redo", "never", "ben")
    project.agac("run", "-a", "reviews", code=0)
    assert project.query("SELECT count(*) FROM batch") == [(2,)]
    assert set(items(project)) == {"a/1"}
    project.agac("run", "-a", "reviews", "--wait", code=0)
    again = items(project)["a/0"]
    assert (again.id != before.id, again.why["redo"][0]["comment"]) == (True, "no")
    project.assert_sound()


def test_a_retry_and_a_fresh_run_discard_what_was_said(project: ProjectFolder, model: Scripted) -> None:
    for again in (("retry", "last", "--from", "classify", "--yes"), ("run", "-a", "reviews", "--fresh")):
        review(project, "a")
        project.run()
        decide(project, "a", "redo", "it is c")
        project.run()
        assert items(project)["a"].answer["label"] == "c"
        project.agac(*again, code=0)
        assert items(project)["a"].answer["label"] == "c"
        project.agac(*again, "--discard-decisions", code=0)
        assert items(project)["a"].answer["label"] == "a"
        assert project.run().invocation["calls"] == 0
        project.assert_sound()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"redo": {"stage": "reply"}}, "the stage that is asked again is 'classify'"),
        ({"redo": {"max": 0}}, "must be at least 1"),
        ({"redo": {}, "choices": ["approve"]}, "redo has no effect: it is none of the choices"),
        ({"redo": None, "choices": ["redo"]}, "add another choice, such as approve"),
    ],
)
def test_what_cannot_be_done_again(project: ProjectFolder, model: Scripted, keys: dict[str, Any], problem: str) -> None:
    review(project, "a", **keys)
    with pytest.raises(agac.SpecError, match=problem):
        project.run()


def test_a_definition_without_it_is_as_it_was(project: ProjectFolder, model: Scripted) -> None:
    for keys, body in (({"redo": None}, {"edit": "classify"}), ({"redo": {"max": 3}}, {"edit": "classify", "redo": 3})):
        review(project, "a", when=None, **keys)
        project.run()
        ((text,),) = project.query("SELECT json_extract(body, '$.stages[1].operation.review') FROM definition "
                                   "ORDER BY created_at DESC LIMIT 1")  # fmt: skip
        found = json.loads(text)
        found.pop("choices", None)
        assert found == body
