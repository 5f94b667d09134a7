"""`escalate`: a stronger model is asked about the rows whose answer is in doubt."""

import json
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.project import ProjectFolder

import agac
from agac.core.errors import ExitCode, SpecError

SCHEMA = {"label": "string", "sure": "number"}
SURE = {"a": 0.2, "b": 0.5, "c": 0.9}


def classify(doubt: str = "classify.sure < 0.4", **keys: Any) -> dict[str, Any]:
    escalate = {"when": doubt, "model": "local/large", **keys.pop("escalate", {})}
    return {"name": "classify", "prompt": "Text: ${text}", "output_schema": SCHEMA, "escalate": escalate, **keys}


REPLY = {"name": "reply", "prompt": "Reply: ${classify.label}"}


def answer(asked: dict[str, Any]) -> Step:
    """The model and the text as the label, as sure as `SURE` says of the small model; the prompt else."""
    kind, _, text = asked["messages"][-1]["content"].partition(": ")
    if kind != "Text":
        return Step(f"{kind}: {text}")
    sure = SURE[text] if asked["model"] == "small" else 1.0
    return Step(json.dumps({"label": f"{text} {asked['model']}", "sure": sure}))


def three(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.rows({"id": text, "text": text} for text in SURE)
    project.workflow(stages=list(stages), **keys)


def labels(project: ProjectFolder) -> dict[str, str | None]:
    return {one["id"]: one["result"] and one["result"]["label"] for one in project.envelopes()}


def stages(report: agac.RunReport) -> dict[str, tuple[int, int, int]]:
    return {one["name"]: (one["done"], one["reused"], one["skipped"]) for one in report.summary["stages"]}


def test_doubtful_rows_are_asked_again_and_what_follows_sees_the_second_answer(project: ProjectFolder) -> None:
    three(project, classify(), REPLY)
    with project.asking(deciding(answer)) as server:
        report = project.run()
    assert report.exit_code == ExitCode.DONE
    assert stages(report) == {"classify": (3, 0, 0), "classify/escalate": (1, 0, 2), "reply": (3, 0, 0)}
    assert sorted(one["result"] for one in project.envelopes()) == [
        "Reply: a large",
        "Reply: b small",
        "Reply: c small",
    ]
    small, large = ([one for one in server.asked if one["model"] == model] for model in ("small", "large"))
    assert len(large) == 1
    first = next(one for one in small if one["messages"] == large[0]["messages"])
    assert {**first, "model": "large"} == large[0], "the same request but for the model"


def test_moving_the_threshold_asks_nothing_twice(project: ProjectFolder) -> None:
    """As the end of a workflow it is written under the name of its stage."""
    three(project, {key: value for key, value in classify().items() if key != "escalate"})
    with project.asking(deciding(answer)) as server:
        project.run()
        for when, asked, escalated in (
            ("classify.sure < 0.4", 1, "a"), ("classify.sure < 0.6", 1, "ab"), ("classify.sure < 0.1", 0, ""),
            ("classify.sure < 2.0", 1, "abc"), ("classify.sure < 0.6", 0, "ab"),
        ):  # fmt: skip
            before = len(server.asked)
            three(project, classify(when))
            plan = agac.plan("reviews", project=project.root)
            first, second = plan.stages
            assert (first.run, first.reuse, second.run, second.undecided) == (0, 3, asked, 0)
            assert (second.reuse, second.skipped) == (len(escalated) - asked, 3 - len(escalated))
            report = project.run()
            assert len(server.asked) - before == asked
            assert stages(report)["classify"] == (0, 3, 0)
            assert labels(project) == {text: f"{text} {'large' if text in escalated else 'small'}" for text in SURE}
    project.assert_sound()


def test_a_vote_tells_its_agreement(project: ProjectFolder) -> None:
    def voting(asked: dict[str, Any]) -> Step:
        text = asked["messages"][-1]["content"].partition(": ")[2]
        split = asked["model"] == "small" and text != "c" and asked["seed"] == 3
        return Step(json.dumps({"label": f"{'no' if split else 'yes'} {asked['model']}", "sure": 1.0}))

    three(project, classify("agreement < 1.0", replicas=3, vote="label"))
    with project.asking(deciding(voting)) as server:
        dry = agac.plan("reviews", project=project.root)
        assert [one.undecided for one in dry.stages] == [0, 3]
        assert stages(project.run()) == {"classify": (3, 0, 0), "classify/escalate": (2, 0, 1)}
        again = agac.plan("reviews", project=project.root)
        assert [(one.run, one.reuse, one.skipped) for one in again.stages] == [(0, 3, 0), (0, 2, 1)]
    assert len(server.asked) == 9 + 2
    assert "seed" not in next(one for one in server.asked if one["model"] == "large")
    assert labels(project) == {"a": "yes large", "b": "yes large", "c": "yes small"}


def test_what_was_skipped_is_not_asked_again(project: ProjectFolder) -> None:
    three(project, classify("classify.sure < 0.8", when='text != "a"'))
    with project.asking(deciding(answer)):
        assert stages(project.run()) == {"classify": (2, 0, 1), "classify/escalate": (1, 0, 2)}
    assert labels(project) == {"a": None, "b": "b large", "c": "c small"}
    for command in (["inspect", "last", "a", "--stage"], ["why", "last", "a"]):
        shown = project.agac(*command, "classify/escalate", code=0).out
        assert "not true: classify != null   with classify = null" in shown


def test_a_field_called_parts_changes_nothing_about_that(project: ProjectFolder) -> None:
    project.rows({"id": text, "text": text, "parts": [1]} for text in SURE)
    project.workflow(stages=[classify("parts != [] && classify.sure < 2", when='text != "a"')])
    with project.asking(deciding(answer)) as server:
        assert stages(project.run()) == {"classify": (2, 0, 1), "classify/escalate": (2, 0, 1)}
        assert len(server.asked) == 4


def test_labels_are_held_against_the_answer_that_counts(project: ProjectFolder) -> None:
    """A row that failed when it was asked again is a failed one. What the other model took counts, too."""
    project.rows({"id": text, "text": text, "truth": f"{text} large"} for text in [*SURE, "d"])
    project.workflow(stages=[classify(expect={"label": "truth", "field": "label"}, repair=0), REPLY])

    def failing(asked: dict[str, Any]) -> Step:
        text = asked["messages"][-1]["content"].partition(": ")[2]
        if text == "d":
            return Step('{"label": "d large", "sure": 0}' if asked["model"] == "small" else "no")
        return answer(asked)

    prices = {"small": {"input": 1, "output": 1}, "large": {"input": 100, "output": 100}}
    with project.asking(deciding(failing), prices=prices) as server:
        found = agac.evaluate("reviews", project=project.root, yes=True)
        [one] = found.models
        assert (one.judged, one.right, one.failed, len(server.asked)) == (4, 1, 1, 6)
        dollars = project.query("SELECT sum(cost) FROM attempt")[0][0]
        assert one.usd_per_1000_rows == pytest.approx(dollars * 1000 / 4)
        large = agac.evaluate("reviews", models=["local/large"], project=project.root, yes=True)
        assert [(one.right, one.failed) for one in large.models] == [(3, 1)]
        project.run()
        tried = agac.trial(
            "reviews", "classify/escalate", model="local/small", sample=1, project=project.root, yes=True
        )
    assert (tried.stage, tried.tried, tried.failed) == ("classify/escalate", 1, 0)


def test_the_stage_s_budget_holds_for_both(project: ProjectFolder) -> None:
    three(project, classify("true", budget={"calls": 4}))
    with project.asking(deciding(answer)) as server:
        assert project.run(concurrency=1).exit_code == ExitCode.LIMIT
        assert len(server.asked) == 4
        assert project.agac("lint", code=0).out.startswith("1 workflow")
        assert "classify/escalate" in project.agac("graph", "reviews", "--mermaid", code=0).out


def test_a_review_is_of_the_answer_that_counts(project: ProjectFolder) -> None:
    three(project, classify(), {"name": "approve", "review": {"when": 'text != "c"'}}, REPLY)
    with project.asking(deciding(answer)):
        assert project.run().invocation["complete"] is False
        items = {one.row_id: one for one in agac.review_queue(project.root).items}
        assert {row: one.answer["label"] for row, one in items.items()} == {"a": "a large", "b": "b small"}
        edited = agac.Decision(items["a"].id, "edit", {"label": "mine", "sure": 1}, reviewer="anna")
        agac.decide(project.root, [edited, agac.Decision(items["b"].id, "approve", reviewer="anna")])
        assert project.run().invocation["complete"]
        replies = {one["id"]: one["result"] for one in project.envelopes()}
        assert replies == {"a": "Reply: mine", "b": "Reply: b small", "c": "Reply: c small"}


@pytest.mark.parametrize(
    ("escalate", "problem"),
    [
        ({"when": "clasify.sure < 1"}, "stages[0].escalate.when: "),
        ({"when": "agreement < 1.0"}, "agreement"),
        ({"when": "classify.sur < 1"}, "stages[0].escalate.when: "),
        ({"when": "classify.sure <"}, "stages[0].escalate.when: "),
        ({"model": "nobody/large"}, "stages[0].escalate.model: "),
        ({"run_mode": "batch"}, "stages[0].escalate.run_mode: "),
    ],
)
def test_what_is_wrong_with_it_is_said_at_its_place(
    project: ProjectFolder, escalate: dict[str, str], problem: str
) -> None:
    project.configure("http://127.0.0.1:1/v1")
    three(project, classify(escalate=escalate))
    with pytest.raises(SpecError) as raised:
        project.plan()
    [found] = raised.value.problems
    assert problem in str(found), str(found)


def test_a_change_is_told_once_for_both(project: ProjectFolder) -> None:
    with project.asking(deciding(answer)):
        three(project, classify())
        project.run()
        three(project, classify("classify.sure < 0.5", prompt="Text: ${text} ", checks={"classify.sure > 0.0": "x"}))
        project.run()
    said = project.agac("runs", code=0).out
    assert [said.count(f"{what} of classify") for what in ("prompt", "checks", "when")] == [1, 1, 1]


def test_an_agent_cannot_have_the_name_of_the_stage_that_asks_again(project: ProjectFolder) -> None:
    project.configure("http://127.0.0.1:1/v1")
    project.write("agentcards/escalate.md", "---\nmodel: local/small\n---\nYou help.\n")
    project.write("agentcards/asker.md", "---\nmodel: local/small\nagents: [escalate]\n---\nYou ask.\n")
    three(project, classify(agent="asker"))
    with pytest.raises(SpecError, match="an agent of 'classify' is called 'classify/escalate', as this stage"):
        project.plan()
