"""Few-shot `messages` of a stage on their way: sent, hashed, planned, explained, and shown again from the store."""

from typing import Any

from scripted_server import run_at
from support.project import SENTIMENT, ProjectFolder

import agac

SHOTS: list[dict[str, Any]] = [
    {"role": "user", "content": "Review: I hate ${lang}"},
    {"role": "assistant", "content": {"sentiment": "negative", "reason": "hate"}},
]
STAGE: dict[str, Any] = {
    "name": "classify", "instructions": "Be brief.", "prompt": "Review: ${text}", "messages": SHOTS,
}  # fmt: skip
SENT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Review: I hate en"},
    {"role": "assistant", "content": '{"sentiment":"negative","reason":"hate"}'},
    {"role": "user", "content": "Review: I love number 1"},
]


def reasons(project: ProjectFolder) -> dict[str, int]:
    [stage] = agac.plan("reviews", project=project.root).as_json()["stages"]
    return {one["reason"]: one["tasks"] for one in stage["reasons"]}


def test_examples_stand_between_instructions_and_prompt(project: ProjectFolder) -> None:
    """And they are asked again with a repair."""
    stages = [{**STAGE, "output_schema": SENTIMENT}]
    good = '{"sentiment":"positive","reason":"r"}'
    report, (asked, repair) = run_at(project, "no", good, columns={"lang": "en"}, stages=stages)
    assert report.exit_code == 0
    assert asked["messages"] == SENT
    assert repair["messages"][:4] == SENT


def test_a_changed_example_asks_every_row_again_and_plan_says_why(project: ProjectFolder) -> None:
    project.numbered(3, lang="en")
    project.workflow(stages=[STAGE])
    project.run()
    assert reasons(project) == {}
    project.workflow(stages=[{**STAGE, "messages": [SHOTS[0], {"role": "assistant", "content": "negative"}]}])
    assert reasons(project) == {"messages changed": 3}
    project.workflow(stages=[{key: value for key, value in STAGE.items() if key != "messages"}])
    assert reasons(project) == {"messages changed": 3}
    project.workflow(stages=[STAGE])
    path = project.root / "data/rows.csv"
    path.write_text(path.read_text("utf-8").replace("number 2,en", "number 2,de"), encoding="utf-8")
    assert reasons(project) == {"row changed": 1}, "that of which only an example changed"
    stage = {**STAGE, "messages": [{"role": "user", "content": "${vars.shop}?"}, SHOTS[1]]}
    project.workflow(stages=[stage], vars={"shop": "a"})
    project.run()
    project.workflow(stages=[stage], vars={"shop": "b"})
    assert reasons(project) == {"vars changed": 3}


def test_plan_why_and_inspect_show_them(project: ProjectFolder) -> None:
    project.numbered(1, lang="en")
    project.workflow(stages=[STAGE])
    shown = project.agac("plan", "-a", "reviews", "--show", "1").out
    dialogue = (
        '[user]\nReview: I hate en\n[assistant]\n{"sentiment":"negative","reason":"hate"}\n[user]\nReview: I love'
    )
    assert f"[system]\nBe brief.\n{dialogue}" in shown
    project.run()
    made_of = agac.why("last", "r-1", "classify", project=project.root).as_json()["made_of"]
    assert [one["role"] for one in made_of["messages"]] == ["system", "user", "assistant", "user"]
    row = project.agac("inspect", "last", "r-1").out
    assert 'prompt, assistant: {"sentiment":"negative","reason":"hate"}' in row
    assert "message, user: Review: I hate ${lang}" in project.agac("inspect", "last").out
    project.workflow(stages=[{**STAGE, "messages": [SHOTS[0], {"role": "assistant", "content": "bad"}]}])
    project.run()
    [difference] = agac.why("last", "r-1", "classify", project=project.root).as_json()["differences"]
    assert difference["what"] == "assistant message"
    assert "+bad" in difference["diff"]
    assert "messages of classify" in project.agac("runs").out


def test_placeholders_of_examples_are_checked_like_those_of_the_prompt(project: ProjectFolder) -> None:
    project.numbered(1)
    later = {"name": "later", "prompt": "${text}"}
    for content, said in (
        ("${txt}", "${txt}: no such field; did you mean 'text'?"),
        ("${later}", "${later} names a stage that is not upstream of 'say'"),
        ("${vars.nope}", "${vars.nope}: no such variable; "),
    ):
        stage = {"name": "say", "prompt": "${text}", "messages": [{"role": "user", "content": content}, SHOTS[1]]}
        project.workflow(stages=[stage, later], vars={"shop": "a"})
        assert f"stages[0].messages[0].content: {said}" in project.agac("validate", code=2).out


def test_a_row_that_lacks_an_examples_field_fails_alone(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "x", "lang": "en"}, {"id": "b", "text": "y"}], "data/rows.jsonl")
    project.workflow(stages=[STAGE], path="data/rows.jsonl")
    report = project.run()
    assert (report.summary["rows"]["done"], report.summary["rows"]["failed"]) == (1, 1)
    [error] = report.summary["errors"]
    assert "this row has no ${lang}" in error["example"]["message"]


def test_a_cards_examples_are_sent_and_shown(project: ProjectFolder) -> None:
    project.write("agentcards/judge.md", "---\nmessages: judge.txt\n---\nBe brief.\n")
    project.write("agentcards/judge.txt", "---USER\nIs ${this} good?\n---ASSISTANT\nno\n")
    report, (asked,) = run_at(project, "ok", stages=[{"name": "say", "agent": "judge", "prompt": "${text}"}])
    assert report.exit_code == 0
    assert [one["content"] for one in asked["messages"][1:3]] == ["Is ${this} good?", "no"]
    shown = project.agac("card", "show", "judge", "--json").json
    assert shown["messages"] == [{"role": "user", "text": "Is ${this} good?"}, {"role": "assistant", "text": "no"}]
    why = agac.why("last", "r-1", "say", project=project.root).as_json()
    assert why["made_of"]["messages"][1]["text"] == "Is ${this} good?"
