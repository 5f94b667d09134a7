"""`messages` before a prompt: what may stand there, in a stage and in the files that a card names."""

import json
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("[]", "stages[0].messages: is empty; give a value or remove the key"),
        ("hello", 'stages[0].messages: expected a list, got the text "hello"'),
        ("[hello]", 'stages[0].messages[0]: expected a mapping, got the text "hello"'),
        ("[{role: user}]", "stages[0].messages[0]: missing key 'content'"),
        ("[{content: q}]", "stages[0].messages[0]: missing key 'role'"),
        (
            f"[{{role: system, content: s}}, {USER}, {ANSWER}]",
            "stages[0].messages[0].role: 'system': what the system message says stands in instructions",
        ),
        (
            f"[{USER}, {{role: bot, content: a}}]",
            "stages[0].messages[1].role: unknown value 'bot'; choose user, assist",
        ),
        (f"[{USER}, {{rol: user, content: a}}]", "stages[0].messages[1].rol: unknown key; did you mean 'role'?"),
        (
            f"[{USER}]",
            "stages[0].messages[0]: the last message is the user's, and so is the prompt; end with the assistant's",
        ),
        (
            f"[{ANSWER}, {USER}]",
            "stages[0].messages[0]: a dialogue begins with what a user says, but this is the assistant's message",
        ),
        (
            f"[{USER}, {USER}, {ANSWER}]",
            "stages[0].messages[1]: a dialogue goes on with the assistant here, but this is the user's message",
        ),
        (f"[{USER}, {{role: assistant, content: ''}}]", "messages[1].content: expected text, or a result as a mapping"),
        (f"[{USER}, {{role: assistant, content: 7}}]", "messages[1].content: expected text, or a result as a mapping"),
        (
            f"[{USER}, {{role: assistant, content: {{}}}}]",
            "messages[1].content: expected text, or a result as a mappin",
        ),
        (
            f"[{USER}, {{role: assistant, content: {{a: '${{x}}'}}}}]",
            "messages[1].content: holds a placeholder, which is filled in text only; write the JSON as text",
        ),
        (f"[{{role: user, content: '${{x'}}, {ANSWER}]", "messages[0].content: placeholder is never closed: '${x'"),
    ],
)
def test_words_of_messages(tree: Any, messages: str, expected: str) -> None:
    problems = tree.stage_problems(f"{{name: a, prompt: p, messages: {messages}}}")
    assert any(expected in problem for problem in problems), problems


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


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("other.txt", TEXT, "agentcards/c.md:2:11: messages: no such file: 'shots.txt'; "),
        ("shots.txt", "", "agentcards/shots.txt: is empty; write messages under lines ---USER and ---ASSISTANT"),
        ("shots.txt", "Just that.", "agentcards/shots.txt:1:1: the last message is the user's, and so is the prompt"),
        ("shots.txt", "---USER\nq\n---ASSISTANT\n\n", "agentcards/shots.txt:3:1: this ---ASSISTANT message is empty"),
        ("shots.txt", "---USER\nq\n---RESOURCE\nf\n", "agentcards/shots.txt:3:1: ---RESOURCE blocks are not supported"),
        ("shots.txt", "---ASSISTANT\na\n", "agentcards/shots.txt:1:1: a dialogue begins with what a user says, but"),
    ],
)
def test_words_of_a_cards_text_files(tree: Any, name: str, content: str, expected: str) -> None:
    card(tree)
    tree.write(f"agentcards/{name}", content)
    problems = tree.stage_problems("{name: a, agent: c}")
    assert any(problem.startswith(expected) for problem in problems), problems


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "agentcards/shots.json:1:2: is not JSON: Expecting property name enclosed in double quotes"),
        ("[]", 'agentcards/shots.json: holds no messages; write {"messages": [{"role": "user", "content": "…"}, …]}'),
        ('{"messages": [7]}', "agentcards/shots.json: messages[0]: role is user or assistant; what a system message"),
        ('{"messages": [{"role": "user"}]}', "agentcards/shots.json: messages[0]: content is text, or a list of parts"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
            "agentcards/shots.json: messages[0]: content is text, or a list of parts of type text, and not empty",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a", "tool_calls": {"x": 1}}]}',
            "agentcards/shots.json: messages[0]: holds calls of tools, which are not supported; write what was said",
        ),
    ],
)
def test_words_of_a_cards_json_files(tree: Any, content: str, expected: str) -> None:
    card(tree, "messages: shots.json")
    tree.write("agentcards/shots.json", content)
    problems = tree.stage_problems("{name: a, agent: c}")
    assert any(problem.startswith(expected) for problem in problems), problems


def test_a_cards_files_lie_inside_the_project(tree: Any) -> None:
    card(tree, "messages: ../../secret.txt")
    [problem] = tree.stage_problems("{name: a, agent: c}")
    assert "'../../secret.txt' leads out of the project" in problem


def test_short_names_of_models_may_hold_variables(tree: Any) -> None:
    tree.write("agac.yml", "aliases: {fast: '${FAST}', own: 'openai/${NOPE}'}\n")
    tree.env = {"FAST": "openai/gpt-5.4-mini"}
    [problem] = tree.problems()
    assert problem == ("agac.yml:1:33: aliases.own: the environment variable NOPE is not set; set it or add it to .env")
