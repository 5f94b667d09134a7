"""Stages whose cards are made of other cards: what their parts are asked, by calls and in batches, and what is said."""

import json
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.batchrun import Make, outcomes
from support.project import ProjectFolder

import agac
from agac.core.errors import ExitCode, SpecError

CARDS = {
    "draft.md": "---\ntool_only: true\ndescription: Writes.\n---\nYou draft.",
    "fix.md": "---\ntool_only: true\nmodel: local/other\n---\nYou fix.",
    "check.md": "---\ntool_only: true\n---\nYou check.",
    "steps.yaml": "type: chain\nsequence: [draft, fix]",
    "both.yaml": "type: parallel\nfan_out: [draft, fix]",
    "merged.yaml": "type: parallel\nfan_out: [draft, fix]\nfan_in: check",
    "loop.yaml": "type: evaluator_optimizer\ngenerator: draft\nevaluator: check\nmax_refinements: 2\ndefault: true",
    "desk.yaml": "type: router\nagents: [draft, steps, loop]",
    "wide.yaml": "type: parallel\nfan_out: [desk, loop]",
}
CHOICE = {"a": "draft", "b": "steps", "c": "loop", "d": "loop"}
RATINGS = {"a": ["GOOD"], "b": ["FAIR", "EXCELLENT"], "c": ["POOR", "FAIR"], "d": ["FAIR", "GOOD"]}


def answer(asked: dict[str, Any]) -> Step:
    """Who is asked, with the text of the row; a verdict by the number of refinements before; a choice by the text."""
    *_, said = asked["messages"]
    system, prompt = asked["messages"][0]["content"], said["content"]
    text = next(one for one in CHOICE if f"<{one}" in prompt)
    if system.startswith("Choose"):
        return Step(json.dumps({"agent": CHOICE[text], "reason": "so"}))
    if "needs improvement" in prompt:
        rating = RATINGS[text][prompt.count("+")]
        return Step(json.dumps({"rating": rating, "needs_improvement": rating < "G", "feedback": f"more {text}"}))
    if "more" in prompt:
        return Step(f"<{text}{'+' * (prompt.split('Your answer:')[1].count('+') + 1)}>")
    return Step(f"<{text} {system.split()[-1]}>")


def ready(project: ProjectFolder, agent: str, *more: dict[str, Any], **keys: Any) -> None:
    for name, card in CARDS.items():
        project.write(f"agentcards/{name}", card)
    project.rows({"id": text, "text": text} for text in CHOICE)
    project.workflow(stages=[{"name": "n", "agent": agent, "prompt": "Do <${text}>", **keys}, *more])


def ran(project: ProjectFolder, agent: str, **keys: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    ready(project, agent, **keys)
    with project.asking(deciding(answer)) as server:
        report = project.run()
        asked = len(server.asked)
        assert asked == report.summary["calls"]["count"]
        assert not any(stage.run for stage in agac.plan("reviews", project=project.root).stages)
        project.run()
        assert len(server.asked) == asked, "nothing is asked twice"
    project.assert_sound()
    assert report.exit_code == ExitCode.DONE
    return {one["id"]: one["result"] for one in project.envelopes()}, server.asked, report


def test_a_chain_hands_replies_on(project: ProjectFolder) -> None:
    results, asked, _ = ran(project, "steps")
    assert results == {text: f"<{text} fix.>" for text in CHOICE}
    assert sorted(one["messages"][-1]["content"] for one in asked if one["model"] == "other") == [
        f"<{text} draft.>" for text in CHOICE
    ]


def test_agents_side_by_side_are_joined_or_make_one_answer(project: ProjectFolder) -> None:
    results, asked, _ = ran(project, "both")
    assert results == {text: f"draft:\n<{text} draft.>\n\nfix:\n<{text} fix.>" for text in CHOICE}
    assert len(asked) == 8
    results, asked, _ = ran(project, "merged")
    assert results == {text: f"<{text} check.>" for text in CHOICE}
    last = {one["messages"][-1]["content"] for one in asked if one["messages"][0]["content"] == "You check."}
    assert "Do <a>\n\ndraft:\n<a draft.>\n\nfix:\n<a fix.>" in last


def test_an_answer_is_judged_until_it_is_good_enough(project: ProjectFolder) -> None:
    results, asked, report = ran(project, "loop")
    assert results == {"a": "<a draft.>", "b": "<b+>", "c": "<c++>", "d": "<d+>"}
    done = {one["name"]: (one["done"], one["skipped"]) for one in report.summary["stages"]}
    assert done == {
        "n": (4, 0), "n/judge-1": (4, 0), "n/refine-1": (3, 1), "n/judge-2": (3, 1), "n/refine-2": (1, 3),
    }  # fmt: skip
    assert len(asked) == 15
    shown = project.agac("inspect", "last", "a", "--stage", "n/refine-1", code=0).out
    assert 'not true: parts["n/judge-1"] != null' in shown


def test_one_agent_is_chosen_for_each_row(project: ProjectFolder) -> None:
    results, asked, report = ran(project, "desk")
    assert results == {"a": "<a draft.>", "b": "<b fix.>", "c": "<c++>", "d": "<d+>"}
    assert (len(asked), report.rows.done) == (4 + 1 + 2 + 5 + 4, 4)


def test_what_follows_sees_the_answer_that_counts_and_no_part(project: ProjectFolder) -> None:
    project.write("tools/look.py", "def look(row):\n    return {'seen': sorted(row), 'n': row['n']}\n")
    ready(project, "desk", {"name": "seen", "python": "tools/look.py:look"}, output_field="answer")
    with project.asking(deciding(answer)):
        assert project.run().exit_code == ExitCode.DONE
    results = {one["id"]: one["result"] for one in project.envelopes()}
    assert {one: result["n"]["answer"] for one, result in results.items()} == {
        "a": "<a draft.>", "b": "<b fix.>", "c": "<c++>", "d": "<d+>",
    }  # fmt: skip
    assert results["a"]["seen"] == ["id", "n", "text"]


def test_people_decide_on_the_answer_of_the_agent_that_was_chosen(project: ProjectFolder) -> None:
    ready(project, "desk", {"name": "look", "review": {}})
    with project.asking(deciding(answer)):
        project.run()
    waiting = project.query("SELECT json_extract(seen, '$.answer') FROM review ORDER BY 1")
    assert [one for (one,) in waiting] == ["<a draft.>", "<b fix.>", "<c++>", "<d+>"]


@pytest.mark.parametrize("agent", ["desk", "loop", "wide"])
def test_batches_give_what_calls_give(agent: str, batches_at: Make) -> None:
    project = batches_at()
    ready(project, agent)
    stage = {"name": "n", "agent": agent, "prompt": "Do <${text}>"}
    project.write("agentcards/fix.md", "You fix.".join(["---\ntool_only: true\n---\n", ""]))
    project.submit(stage)
    project.to_the_end()
    project.workflow("calls", stages=[stage])
    project.run("calls", fresh=True)
    assert outcomes(project) == outcomes(project, "calls")
    assert project.query("SELECT count(*) FROM batch") > [(1,)]
    project.assert_sound()


def test_the_budget_of_the_stage_is_for_all_parts(project: ProjectFolder) -> None:
    ready(project, "loop", budget={"calls": 6})
    with project.asking(deciding(answer)) as server:
        assert project.run().exit_code == ExitCode.LIMIT
        assert len(server.asked) == 6


def test_rows_that_a_condition_leaves_out_are_asked_nothing(project: ProjectFolder) -> None:
    ready(project, "desk", when='text != "c"')
    with project.asking(deciding(answer)) as server:
        project.run()
    assert {one["id"]: one["result"] for one in project.envelopes()}["c"] is None
    assert not any("<c" in one["messages"][-1]["content"] for one in server.asked)
    ready(project, "desk", when='text != "c"', otherwise="drop")
    with project.asking(deciding(answer)) as server:
        project.run()
        assert [one["id"] for one in project.envelopes()] == ["a", "b", "d"]
        assert server.asked == []


def test_row_runs_and_tasks_take_such_cards(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(project, "loop")
    for name, card in CARDS.items():
        project.write(f"cards/{name}", card.replace("You draft.", "You draft. Beside."))
    words = ["data/rows.csv", "o.jsonl", "--prompt", "Do <{text}>", "--id-field", "id", "--agent-card", "cards"]
    monkeypatch.chdir(project.root)
    with project.asking(deciding(answer)) as server:
        project.agac("process", *words, code=0)
        assert "You draft. Beside." in {one["messages"][0]["content"] for one in server.asked}
        lines = (project.root / "o.jsonl").read_text().splitlines()
        assert [json.loads(line)["result"] for line in lines] == ["<a Beside.>", "<b+>", "<c++>", "<d+>"]
        project.agac("process", *words[:1], "p.jsonl", *words[2:], "--agent", "steps", code=0)
        found = agac.run(task="Do <{text}>", inputs=[{"text": "c"}], agent="loop", project=project.root)
    assert [one.output for one in found] == ["<c++>"]


def test_what_is_wrong_with_prompts_and_conditions_is_said_once(project: ProjectFolder) -> None:
    project.write("agentcards/more.yaml", "type: chain\nsequence: [loop, desk]")
    ready(project, "more", prompt="${vars.x} ${txt}", when='size(parts["n/route"].agent) > 0 || txt == ""')
    with pytest.raises(SpecError) as refused:
        agac.plan("reviews", project=project.root)
    assert [problem.message for problem in refused.value.problems] == [
        "`parts` stands for results here; write row.parts",
    ]
    ready(project, "more", prompt="${vars.x} ${txt}", when='txt == "" || "a" in text')
    found = agac.validate("reviews", project=project.root)
    assert len(found.problems) == len({str(one) for one in found.problems}) == 3


def test_a_try_changes_one_part(project: ProjectFolder) -> None:
    ready(project, "steps")
    with project.asking(deciding(answer)):
        project.run()
        shown = project.agac(
            "try", "-a", "reviews", "--stage", "n/draft", "--model", "local/third", "--yes", code=0
        ).out
    assert "4 rows in both" in shown


def test_a_card_is_shown_as_what_it_becomes(project: ProjectFolder) -> None:
    project.configure("http://127.0.0.1:9/v1")
    ready(project, "desk")
    shown = project.agac("card", "show", "desk", code=0)
    assert shown.out.splitlines()[:5] == [
        "desk/route   (desk, local/small)",
        "desk/route → desk   (draft, local/small)",
        '    when parts["desk/route"].agent == "draft"',
        "desk → desk/steps/draft   (draft, local/small)",
        '    when parts["desk/route"].agent == "steps"',
    ]
    assert shown.err.splitlines()[-2:] == ["type: router", "at most 6 calls a row"]
    found = agac.show_card("wide", project=project.root)
    assert (found.type, found.most_calls, found.stages[-1]["does"]) == ("parallel", 6 + 5, "join")
    assert "<b>n/steps/draft</b>" in project.agac("graph", "reviews", "--mermaid", code=0).out


def test_a_card_of_agents_without_a_model_is_shown_without(project: ProjectFolder) -> None:
    project.write("agentcards/two.yaml", "type: chain\nsequence: [plain, plain]\n")
    project.write("agentcards/plain.md", "---\nname: plain\n---\nYou answer.\n")
    project.write("agac.yml", "")
    assert project.agac("card", "show", "two", code=0).out.splitlines() == [
        "two/plain   (plain)", "two/plain → two   (plain)",
    ]  # fmt: skip
