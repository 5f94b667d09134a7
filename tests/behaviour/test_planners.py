"""Cards of type orchestrator and iterative_planner: agents whose tools are other cards, and what bounds them."""

import json
from typing import Any

import pytest
from support.project import ProjectFolder

import agac
from agac.testing import simulator

HELPER = (
    "---\nname: {0}\ndescription: Knows about {0}.\nrequest_params: {{max_tokens: 50}}\n---\nYou are the one for {0}.\n"
)
STAGE = {"name": "plan", "agent": "boss", "prompt": "${text}", "max_tokens": 50}


def asks(*agents: str, turn: int = 1) -> dict[str, Any]:
    """What the planner does in a turn: it asks these agents."""
    calls = [{"name": f"agent__{one}", "arguments": {"message": f"step of {one}"}} for one in agents]
    return {"match": "letting other agents work", "turn": turn, "calls": calls}


ANSWERS = [
    {"match": "You are the one for prices", "reply": "It costs 5."},
    {"match": "You are the one for dates", "reply": "It is Monday."},
    {"match": "letting other agents work", "reply": "5 on Monday."},
]


@pytest.fixture
def planned(project: ProjectFolder) -> ProjectFolder:
    project.configure()
    for name in ("prices", "dates"):
        project.write(f"agentcards/{name}.md", HELPER.format(name))
    return project


def card(project: ProjectFolder, keys: str, kind: str = "orchestrator") -> None:
    project.write("agentcards/boss.md", f"---\ntype: {kind}\nagents: [prices, dates]\n{keys}\n---\nBe brief.\n")


def problems(project: ProjectFolder, stage: dict[str, Any] = STAGE, **keys: Any) -> str:
    """What `agac validate` says; empty where all is well."""
    project.workflow(stages=[stage], rows=1, **keys)
    return project.agac("validate").out.replace("1 workflow valid: reviews\n", "")


@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        ("plan_type: full", "Orchestrator", "write down all steps"),
        ("plan_type: iterative", "orchestrator", "Plan one step at a time"),
        ("plan_iterations: 4", "iterative_planner", "Plan one step at a time"),
    ],
)
def test_a_planner_asks_its_agents_and_answers(planned: ProjectFolder, keys: str, kind: str, words: str) -> None:
    card(planned, keys, kind)
    planned.workflow(stages=[STAGE], rows=1)
    with simulator(script=[asks("prices", "dates"), *ANSWERS]) as model:
        assert planned.run().exit_code == 0
        assert planned.run().exit_code == 0  # which asks nothing
    assert len(model.requests) == 4, "its two turns, and one of each agent"
    system = model.requests[0]["messages"][0]["content"]
    assert words in system
    assert system.endswith("Be brief."), "the card's own instruction comes last"
    (result,) = planned.query("SELECT value FROM result JOIN task ON result_id = result.id")
    assert json.loads(result[0]) == "5 on Monday."
    shown = planned.agac("inspect", "last", "r-1", code=0).out
    for part in ("agent__prices", "It costs 5.", "step of dates", "It is Monday.", "5 on Monday."):
        assert part in shown
    planned.assert_sound()


def test_its_iterations_bound_its_turns(planned: ProjectFolder) -> None:
    card(planned, "plan_iterations: 2")
    planned.workflow(stages=[STAGE], rows=1)
    again = [asks("prices", "dates"), asks("dates", turn=2), asks("prices", "dates", turn=3), *ANSWERS]
    with simulator(script=again):
        assert planned.run().exit_code == 3
    ((error,),) = planned.query("SELECT error_type FROM task")
    assert error == "ToolLoopLimit"
    assert planned.query("SELECT count(*) FROM agent_turn WHERE agent = ''") == [(3,)]
    shown = planned.agac("card", "show", "boss", "--json", code=0).json
    assert shown["max_turns"] == 2


@pytest.mark.parametrize(
    ("budget", "requests"), [({"turns": 3}, 3), ({"tool_calls": 1}, 4), ({"usd": 0.00045}, 2), ({"calls": 2}, 2)]
)
def test_what_a_row_may_spend_ends_it_with_its_agents(planned: ProjectFolder, budget: Any, requests: int) -> None:
    card(planned, "", "iterative_planner")
    planned.workflow(stages=[STAGE], rows=1, row_budget=budget)
    script = [asks("prices"), asks("dates", turn=2), asks("prices", "dates", turn=3), *ANSWERS]
    with simulator(script=script) as model:
        planned.run()
    assert len(model.requests) == requests
    assert planned.query("SELECT error_type FROM task") == [("BudgetExceeded",)]


def test_without_a_limit_something_else_has_to_bound_it(planned: ProjectFolder) -> None:
    card(planned, "", "iterative_planner")
    assert "something else has to bound the planner; add `row_budget" in problems(planned)
    assert "\ntype: iterative_planner\n" in planned.agac("card", "show", "boss", code=0).err
    planned.write("agentcards/line.md", "---\ntype: chain\nsequence: [boss, dates]\n---\n")
    assert "boss" in planned.agac("card", "show", "line", code=0).out
    assert "add `row_budget" in problems(planned, {**STAGE, "agent": "line"})
    assert problems(planned, row_budget={"turns": 9}) == ""
    assert problems(planned, {**STAGE, "max_turns": 9}) == ""
    helped = "---\nname: top\nagents: [boss]\n---\nAsk the boss.\n"
    planned.write("agentcards/top.md", helped)
    assert "agentcards/boss.md" in problems(planned, {**STAGE, "agent": "top"})


def test_every_field_is_honoured_or_said_to_have_no_effect(planned: ProjectFolder) -> None:
    keys = "model: simulator/large\nrequest_params: {temperature: 0.5, max_iterations: 3, parallel_tool_calls: false}\n"
    card(planned, f"{keys}use_history: true\nsave_trajectory: true\nmessages: shots.txt\nplan_iterations: 9")
    planned.write("agentcards/shots.txt", "---USER\nWhen?\n---ASSISTANT\nNever.\n")
    shown = problems(planned)
    assert "use_history: has no effect" in shown
    assert "save_trajectory: has no effect" in shown
    with simulator(script=ANSWERS) as model:
        assert planned.run().exit_code == 0
    request = model.requests[0]
    assert (request["model"], request["temperature"], request["parallel_tool_calls"]) == ("large", 0.5, False)
    assert [one["content"] for one in request["messages"][1:3]] == ["When?", "Never."]
    assert planned.agac("card", "show", "boss", "--json", code=0).json["max_turns"] == 3, "the smaller bound"


def test_agents_call_each_other_five_deep(planned: ProjectFolder) -> None:
    for number in range(1, 7):
        below = f"agents: [d{number + 1}]\nplan_iterations: 2\ntype: orchestrator\n" if number < 6 else ""
        planned.write(f"agentcards/d{number}.md", f"---\nname: d{number}\n{below}---\nBe brief.\n")
    assert problems(planned, {**STAGE, "agent": "d2"}) == ""
    refused = problems(planned, {**STAGE, "agent": "d1"})
    assert "more than 5 agents call each other in a row: d1 → d2 → d3 → d4 → d5 → d6" in refused


def test_a_planner_may_be_a_tool_of_another(planned: ProjectFolder) -> None:
    card(planned, "description: Plans.")
    planned.write("agentcards/top.md", "---\nname: top\nagents: [boss]\n---\nAsk the boss.\n")
    planned.workflow(stages=[{**STAGE, "agent": "top"}], rows=1)
    top = {"match": "Ask the boss", "turn": 1, "calls": [{"name": "agent__boss", "arguments": {"message": "go"}}]}
    with simulator(script=[top, asks("prices"), *ANSWERS[:2], {"match": "Ask the boss", "reply": "so"}, *ANSWERS[2:]]):
        assert planned.run().exit_code == 0
    agents = planned.query("SELECT agent, count(*) FROM agent_turn GROUP BY agent ORDER BY agent")
    assert agents == [("", 2), ("plan/boss", 2), ("plan/boss/prices", 1)]


def test_a_row_run_has_a_planner(planned: ProjectFolder) -> None:
    card(planned, "plan_type: iterative")
    with simulator(script=[asks("dates"), *ANSWERS]):
        found = agac.run(task="{input}", inputs=["When?"], agent="boss", project=planned.root)
    assert (found[0].output, found[0].turns) == ("5 on Monday.", 3)
