"""`messages` before a prompt: what may stand there, in a stage and in the files that a card names."""

import json
from typing import Any

PAIR = "[{role: user, content: 'Is ${review} good?'}, {role: assistant, content: {label: good, why: [a, 1]}}]"


def said(stage: Any) -> list[tuple[str, str]]:
    return [(one.role, one.content.text) for one in stage.examples]


def test_examples_are_templates_and_results_are_json_in_their_own_order(tree: Any) -> None:
    stage = tree.stage("{name: a, prompt: p, messages: " + PAIR + "}")
    assert said(stage) == [("user", "Is ${review} good?"), ("assistant", '{"label":"good","why":["a",1]}')]
    assert [one.name for one in stage.examples[0].content.placeholders] == ["review"]


def test_a_stage_without_examples_has_none(tree: Any) -> None:
    assert tree.stage("{name: a}").examples == ()


USER, ANSWER = "{role: user, content: q}", "{role: assistant, content: a}"


def card(tree: Any, keys: str = "messages: shots.txt") -> None:
    tree.write("agentcards/c.md", f"---\n{keys}\n---\nBe brief.\n")


TEXT = "---USER\nIs ${x} {{y}} good?\n---ASSISTANT\nYes.\n\nVery.\n"


def test_a_cards_files_are_sent_as_they_stand(tree: Any) -> None:
    card(tree, "messages: [shots.txt, more.json]")
    tree.write("agentcards/shots.txt", TEXT)
    more = [
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "that?"}]},
        {"role": "assistant", "content": {"type": "text", "text": "No."}, "tool_calls": None},
    ]
    tree.write("agentcards/more.json", json.dumps({"messages": more}))
    stage = tree.stage("{name: a, agent: c}")
    assert [(one.role, one.content.render({})) for one in stage.examples] == [
        ("user", "Is ${x} {{y}} good?"),
        ("assistant", "Yes.\n\nVery."),
        ("user", "And that?"),
        ("assistant", "No."),
    ]


def test_a_text_before_the_first_mark_is_the_users(tree: Any) -> None:
    card(tree)
    tree.write("agentcards/shots.txt", "Good?\n---ASSISTANT\nYes.\n")
    assert said(tree.stage("{name: a, agent: c}")) == [("user", "Good?"), ("assistant", "Yes.")]


def test_a_stages_examples_take_the_place_of_its_cards(tree: Any) -> None:
    card(tree)
    tree.write("agentcards/shots.txt", TEXT)
    stage = tree.stage("{name: a, agent: c, messages: " + f"[{USER}, {ANSWER}]" + "}")
    assert said(stage) == [("user", "q"), ("assistant", "a")]


def test_a_cards_files_lie_inside_the_project(tree: Any) -> None:
    card(tree, "messages: ../../secret.txt")
    [problem] = tree.stage_problems("{name: a, agent: c}")
    assert "'../../secret.txt' leads out of the project" in problem


def test_short_names_of_models_may_hold_variables(tree: Any) -> None:
    tree.write("agac.yml", "aliases: {fast: '${FAST}', own: 'openai/${NOPE}'}\n")
    tree.env = {"FAST": "openai/gpt-5.4-mini"}
    [problem] = tree.problems()
    assert problem == ("agac.yml:1:33: aliases.own: the environment variable NOPE is not set; set it or add it to .env")
