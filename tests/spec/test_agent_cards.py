"""AgentCards and the examples before a prompt: what is read. What is refused: test_problem_words.py."""

import json
from typing import Any

import pytest
from support.tree import Tree

from agac.spec.agent_cards import Card, card_names, find_card, load_card


def load(tree: Tree, content: str, name: str = "agentcards/c.md", **variables: Any) -> tuple[Card | None, list[str]]:
    card, problems = load_card(tree.write(name, content), tree.project(), variables)
    return card, [str(problem) for problem in problems]


def good(tree: Tree, content: str, name: str = "agentcards/c.md", **variables: Any) -> Card:
    card, problems = load(tree, content, name, **variables)
    assert card is not None, problems
    assert problems == []
    return card


def test_front_matter_and_instruction(tree: Tree) -> None:
    card = good(
        tree,
        "---\nname: my tagger\ndescription: Tags.\nmodel: openai/gpt-4.1-mini\n"
        "request_params: {max_tokens: 200, temperature: 0, topP: 0.5, stopSequences: [END], service_tier: fast}\n"
        "---\n\nAssign one\ntopic label.\n\n",
    )
    assert (card.name, card.keys.description, card.file) == ("my_tagger", "Tags.", "agentcards/c.md")
    assert (card.instruction, card.keys.model) == ("Assign one\ntopic label.", "openai/gpt-4.1-mini")
    sampling = {"max_tokens": 200, "temperature": 0, "top_p": 0.5}
    assert card.params == {**sampling, "stop": ("END",), "service_tier": "priority"}
    assert str(card.where["model"]) == "agentcards/c.md:4:8"
    card = good(tree, "name: grader\ninstruction: Grade from 1 to 5.\nuse_history: false\n", "agentcards/g.yaml")
    assert (card.name, card.instruction) == ("grader", "Grade from 1 to 5.")


@pytest.mark.parametrize(
    "content",
    [
        "---\n---\nText.", "\n\n---\nmodel: a/b\n---\nText.", "\ufeff---\r\nmodel: a/b\r\n---\r\nText.\r\n",
        "---\ntype: AGENT\n---\n---SYSTEM\nText.",
        "---\ntype: agent\nschema_version: 1\ndefault: true\ntool_only: false\nhuman_input: false\n---\nText.",
        "---\nshell: false\nskills: []\nsubagents: false\n---\nText.", "---\ninstruction: Text.\n---\n",
    ],
)  # fmt: skip
def test_cards_to_accept(tree: Tree, content: str) -> None:
    assert good(tree, content).instruction == "Text."


def test_a_card_without_instruction_has_none_and_its_file_gives_the_name(tree: Tree) -> None:
    assert good(tree, "---\nmodel: a/b\n---\n").instruction is None
    assert good(tree, "---\n---\nI am {{agentName}}.", "agentcards/two words.md").instruction == "I am two_words."


def test_each_problem_of_a_card_has_its_own_place(tree: Tree) -> None:
    _, problems = load(tree, "---\nmodle: x\nshell: true\nname: ${NOBODY}\n---\n{{x}} ${y}")
    assert len(problems) == 5
    _, problems = load(tree, "---\n---\n\nAt ${vars.tone} {{currentDate}} {{nope}}\n$${ \\{{x}} {{ y }}", tone="x")
    assert [problem.split(";")[0].split(", and")[0] for problem in problems] == [
        "agentcards/c.md:4:17: warning: {{currentDate}} makes other requests every day",
        "agentcards/c.md:4:33: unknown placeholder {{nope}}",
        "agentcards/c.md:5:12: unknown placeholder {{ y }}",
    ]
    card, [problem] = load(tree, "---\nuse_history: true\n---\nText.")
    assert card is not None
    assert problem == "agentcards/c.md:2:1: warning: use_history: has no effect: rows share no history"
    tree.write("agentcards/c.md", "---\nmodle: x\n---\n")
    text = "input: {path: data/reviews.csv}\nstages:\n  - {name: a, agent: c}\n  - {name: b, agent: c}\n"
    assert tree.problems(text) == ["agentcards/c.md:2:1: modle: unknown key; did you mean 'model'?"]


def test_variables_fill_the_instruction_once_in_both_spellings(tree: Tree) -> None:
    content = "---\n---\n{{tone}} {{ agentType }} ${vars.tone} ${vars.deep.x} \\{{tone}} $${vars.tone}"
    card = good(tree, content, tone="kind", deep={"x": 1})
    assert card.instruction == "kind agent kind 1 {{tone}} ${vars.tone}"
    card = good(tree, "---\n---\n{{a}} ${vars.b}", a="${vars.b}", b="{{a}}")
    assert card.instruction == "${vars.b} {{a}}", "what is filled in is never filled again"
    _, problems = load(tree, "---\n---\nOf ${shop.town}", shop={"town": "Ulm"})
    assert problems == ["agentcards/c.md:3:4: a variable of the workflow is ${vars.shop.town}"]


def test_environment_variables_fill_front_matter_once_and_not_the_body(tree: Tree) -> None:
    tree.env = {"WHO": "${NOT} {{x}}", "MODEL": "m"}
    card = good(tree, "name: n\nmodel: a/${MODEL}\ndescription: ${NONE:x}\ninstruction: I am ${WHO}.\n", "c.yml")
    assert (card.keys.model, card.keys.description, card.instruction) == ("a/m", "x", "I am ${NOT} {{x}}.")
    _, problems = load(tree, "---\n---\nI am ${WHO}.")
    assert "move ${WHO} into prompt" in problems[0]


def test_finding_a_card(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("agentcards/support.md", "agentcards/grader.yaml", "agentcards/SKILL.md", "agentcards/notes.txt"):
        tree.write(name, "---\n---\nText.")
    tree.write("other/extra.md", "---\n---\nText.")
    outside = tmp_path_factory.mktemp("outside") / "x.md"
    outside.write_text("---\n---\nText.")
    project = tree.project()
    assert card_names(project) == ["grader", "support"]
    for name, file in (("support", "agentcards/support.md"), ("support.md", "agentcards/support.md"),
                       ("other/extra.md", "other/extra.md")):  # fmt: skip
        assert find_card(name, project) == (tree.root / file, "")
    assert (
        "https://x.example/c.md is elsewhere; read the card, and keep a copy"
        in find_card("https://x.example/c.md", project)[1]
    )
    assert find_card("suport", project) == (None, "no agent 'suport'; did you mean 'support'?")
    assert find_card("zzz", project) == (None, "no agent 'zzz'; agents in agentcards/: grader, support")
    assert find_card("SKILL", project) == (None, "SKILL.md describes a skill, not an agent")
    (tree.root / "agentcards/linked.md").symlink_to(outside)
    for name in ("../../x", "linked"):
        assert "leads out of the project" in find_card(name, project)[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("One.\n<!-- fast-agent-subagents -->\nTwo.", "One.\nTwo."),
        ("fast-agent-subagents\nOne.", "One."),
        ("One.\n<!--fast-agent-subagents\nDelegate.\n-->", "One.\n"),
        ("{{file:notes.md}}", "A note.\n"),
        ("Use no fast-agent-subagents.\n<!-- fast-agent-subagents-off -->\n<!-- x -->", None),
    ],
)
def test_no_model_is_sent_the_mark_of_agents_that_it_makes(tree: Tree, text: str, told: str | None) -> None:
    tree.write("agentcards/notes.md", "A note.\n<!-- fast-agent-subagents -->\n")
    tree.write("agentcards/c.md", f"---\nname: c\n---\n{text}\n")
    workflow, problems = tree.load("input: {path: data/reviews.csv}\nstages: [{name: a, agent: c}]\n")
    assert workflow is not None
    assert workflow.stages[0].system == (told or text)
    said = ["agentcards/c.md:4:1: warning: `fast-agent-subagents` is left out: no model makes agents in a run; "]
    assert [str(one).partition("name")[0] for one in problems] == (said if told else [])


# Messages before a prompt.

SHOTS = "---USER\nIs ${x} {{y}} good?\n---ASSISTANT\nYes.\n\nVery.\n"


def said(tree: Tree, stage: str) -> list[tuple[str, str]]:
    """Who says what before the prompt of a stage."""
    return [(one.role, one.content.text) for one in tree.stage(stage).examples]


def test_examples_are_templates_and_results_are_json_in_their_own_order(tree: Tree) -> None:
    pair = "[{role: user, content: 'Is ${review} good?'}, {role: assistant, content: {label: good, why: [a, 1]}}]"
    expected = [("user", "Is ${review} good?"), ("assistant", '{"label":"good","why":["a",1]}')]
    assert said(tree, f"{{name: a, messages: {pair}}}") == expected
    [user, _] = tree.stage(f"{{name: a, messages: {pair}}}").examples
    assert [one.name for one in user.content.placeholders] == ["review"]
    tree.write("agentcards/c.md", "---\nmessages: shots.txt\n---\nBe brief.\n")
    tree.write("agentcards/shots.txt", SHOTS)
    assert said(tree, f"{{name: a, agent: c, messages: {pair}}}") == expected, "they take the place of the card's"


def test_a_cards_files_are_sent_as_they_stand(tree: Tree) -> None:
    more = [
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "that?"}]},
        {"role": "assistant", "content": {"type": "text", "text": "No."}, "tool_calls": None},
    ]
    tree.write("agentcards/c.md", "---\nmessages: [shots.txt, more.json, last.txt]\n---\nBe brief.\n")
    tree.write("agentcards/shots.txt", SHOTS)
    tree.write("agentcards/more.json", json.dumps({"messages": more}))
    tree.write("agentcards/last.txt", "Good?\n---ASSISTANT\nYes.\n")  # a text before the first mark is the user's
    assert [(one.role, one.content.render({})) for one in tree.stage("{name: a, agent: c}").examples] == [
        ("user", "Is ${x} {{y}} good?"),
        ("assistant", "Yes.\n\nVery."),
        ("user", "And that?"),
        ("assistant", "No."),
        ("user", "Good?"),
        ("assistant", "Yes."),
    ]


@pytest.mark.parametrize("name", [".env", "sub/.env.local", "PROD.ENV", ".agac/notes.md", ".git/config", "link.md"])
def test_what_may_hold_secrets_is_in_no_prompt(tree: Tree, name: str) -> None:
    tree.write(name if name != "link.md" else ".env", "KEY=canary\n")
    if name == "link.md":
        (tree.root / name).symlink_to(tree.root / ".env")
    for content in (
        f"---\n---\n{{{{file:{name}}}}}",
        f"---\n---\n{{{{file_silent:{name}}}}}",
        f"---\nmessages: ../{name}\n---\nText.",
    ):
        _, [problem] = load(tree, content)
        assert "is never part of a prompt; write what is meant elsewhere" in problem
    for key in ("prompt", "instructions"):
        keys = {"prompt": "x"} | {key: name}
        stage = ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
        [problem] = tree.problems(
            f"input: data/reviews.csv\ndefaults: {{model: a/b}}\nstages: [{{name: a, {stage}}}]\n"
        )
        assert "is never part of a prompt" in problem
