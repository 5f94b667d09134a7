"""Few-shot `messages` of a stage on their way: sent, hashed, planned, explained, and shown again from the store."""

from typing import Any

import pytest
from scripted_server import scripted
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
    [stage] = agac.plan_run("reviews", project=project.root).as_json()["stages"]
    return {one["reason"]: one["tasks"] for one in stage["reasons"]}


def test_examples_stand_between_instructions_and_prompt(project: ProjectFolder) -> None:
    with scripted("ok") as server:
        project.configure(server.base_url)
        project.numbered(1, lang="en")
        project.workflow(stages=[STAGE])
        assert project.run().exit_code == 0
    [asked] = server.asked
    assert asked["messages"] == SENT


def test_examples_are_asked_again_with_a_repair(project: ProjectFolder) -> None:
    with scripted("no", '{"sentiment":"positive","reason":"r"}') as server:
        project.configure(server.base_url)
        project.numbered(1, lang="en")
        project.workflow(stages=[{**STAGE, "output_schema": SENTIMENT}])
        assert project.run().exit_code == 0
    assert server.asked[1]["messages"][:4] == SENT


def test_a_changed_example_asks_every_row_again_and_plan_says_why(project: ProjectFolder) -> None:
    project.numbered(3, lang="en")
    project.workflow(stages=[STAGE])
    project.run()
    assert reasons(project) == {}
    project.workflow(stages=[{**STAGE, "messages": [SHOTS[0], {"role": "assistant", "content": "negative"}]}])
    assert reasons(project) == {"messages changed": 3}
    project.workflow(stages=[{key: value for key, value in STAGE.items() if key != "messages"}])
    assert reasons(project) == {"messages changed": 3}


def test_a_row_that_changes_only_an_example_is_asked_again(project: ProjectFolder) -> None:
    project.numbered(3, lang="en")
    project.workflow(stages=[STAGE])
    project.run()
    path = project.root / "data/rows.csv"
    path.write_text(path.read_text("utf-8").replace("number 2,en", "number 2,de"), encoding="utf-8")
    assert reasons(project) == {"row changed": 1}


def test_a_variable_in_an_example_counts(project: ProjectFolder) -> None:
    shots = [{"role": "user", "content": "For ${vars.shop}?"}, SHOTS[1]]
    project.numbered(2)
    project.workflow(stages=[{"name": "say", "prompt": "${text}", "messages": shots}], vars={"shop": "a"})
    project.run()
    project.workflow(stages=[{"name": "say", "prompt": "${text}", "messages": shots}], vars={"shop": "b"})
    assert reasons(project) == {"vars changed": 2}


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


def test_why_shows_a_changed_answer_of_an_example(project: ProjectFolder) -> None:
    project.numbered(1, lang="en")
    project.workflow(stages=[STAGE])
    project.run()
    project.workflow(stages=[{**STAGE, "messages": [SHOTS[0], {"role": "assistant", "content": "bad"}]}])
    project.run()
    report = agac.why("last", "r-1", "classify", project=project.root).as_json()
    [difference] = report["differences"]
    assert difference["what"] == "assistant message"
    assert "+bad" in difference["diff"]
    assert "messages of classify" in project.agac("runs").out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("${txt}", "stages[0].messages[0].content: ${txt}: no such field; did you mean 'text'?"),
        ("${later}", "stages[0].messages[0].content: ${later} names a stage that is not upstream of 'say'"),
        ("${vars.nope}", "stages[0].messages[0].content: ${vars.nope}: no such variable; "),
    ],
)
def test_placeholders_of_examples_are_checked_like_those_of_the_prompt(
    project: ProjectFolder, content: str, said: str
) -> None:
    project.numbered(1)
    shots = [{"role": "user", "content": content}, SHOTS[1]]
    later = {"name": "later", "prompt": "${text}"}
    project.workflow(stages=[{"name": "say", "prompt": "${text}", "messages": shots}, later], vars={"shop": "a"})
    ran = project.agac("validate", code=2)
    assert said in ran.out


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
    with scripted("ok") as server:
        project.configure(server.base_url)
        project.numbered(1)
        project.workflow(stages=[{"name": "say", "agent": "judge", "prompt": "${text}"}])
        assert project.run().exit_code == 0
    assert [one["content"] for one in server.asked[0]["messages"][1:3]] == ["Is ${this} good?", "no"]
    shown = project.agac("card", "show", "judge", "--json").json
    assert shown["messages"] == [
        {"role": "user", "text": "Is ${this} good?"},
        {"role": "assistant", "text": "no"},
    ]
    why = agac.why("last", "r-1", "say", project=project.root).as_json()
    assert why["made_of"]["messages"][1]["text"] == "Is ${this} good?"
