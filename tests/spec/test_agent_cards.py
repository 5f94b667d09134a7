"""AgentCards: what is read, what is refused by the name of its field."""

from typing import Any

import pytest

from agac.spec.agent_cards import Card, card_names, find_card, load_card


def load(tree: Any, content: str, name: str = "agentcards/c.md", **variables: Any) -> tuple[Card | None, list[str]]:
    path = tree.write(name, content)
    card, problems = load_card(path, tree.project(), variables)
    return card, [str(problem) for problem in problems]


def good(tree: Any, content: str, name: str = "agentcards/c.md", **variables: Any) -> Card:
    card, problems = load(tree, content, name, **variables)
    assert card is not None, problems
    assert problems == []
    return card


def test_front_matter_and_instruction(tree: Any) -> None:
    card = good(
        tree,
        "---\nname: my tagger\ndescription: Tags.\nmodel: openai/gpt-4.1-mini\n"
        "request_params: {max_tokens: 200, temperature: 0, topP: 0.5, stopSequences: [END], service_tier: fast}\n"
        "---\n\n"
        "Assign one\ntopic label.\n\n",
    )
    assert (card.name, card.description, card.file) == ("my_tagger", "Tags.", "agentcards/c.md")
    assert (card.instruction, card.model) == ("Assign one\ntopic label.", "openai/gpt-4.1-mini")
    assert card.params == {
        "max_tokens": 200,
        "temperature": 0,
        "top_p": 0.5,
        "stop": ("END",),
        "service_tier": "priority",
    }
    assert str(card.where["model"]) == "agentcards/c.md:4:8"


def test_a_yaml_card_is_one_mapping(tree: Any) -> None:
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
def test_cards_to_accept(tree: Any, content: str) -> None:
    assert good(tree, content).instruction == "Text."


def test_a_card_without_instruction_has_none_and_its_file_gives_the_name(tree: Any) -> None:
    assert good(tree, "---\nmodel: a/b\n---\n").instruction is None
    assert good(tree, "---\n---\nI am {{agentName}}.", "agentcards/two words.md").instruction == "I am two_words."


def test_all_problems_of_a_card_come_together(tree: Any) -> None:
    _, problems = load(tree, "---\nmodle: x\nshell: true\nname: ${NOBODY}\n---\n{{x}} ${y}")
    assert len(problems) == 5


def test_each_double_brace_is_reported_at_its_own_place(tree: Any) -> None:
    _, problems = load(tree, "---\n---\n\nAt ${vars.tone} {{currentDate}} {{nope}}\n$${ \\{{x}} {{ y }}", tone="x")
    assert [problem.split(";")[0] for problem in problems] == [
        "agentcards/c.md:4:17: {{currentDate}} is not supported yet",
        "agentcards/c.md:4:33: unknown placeholder {{nope}}",
        "agentcards/c.md:5:12: unknown placeholder {{ y }}",
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${shop}", "agentcards/c.md:3:4: in a card a variable of the workflow is {{shop}}"),
        ("${shop.town}", "agentcards/c.md:3:4: a variable of the workflow is ${vars.shop.town}"),
        (
            "${review}",
            (
                "agentcards/c.md:3:4: instructions are the same for every row; move ${review} into prompt; "
                "in a card a variable of the workflow is {{review}}"
            ),
        ),
    ],
)
def test_a_dollar_placeholder_in_a_card_is_told_how_a_variable_is_written(
    tree: Any, written: str, expected: str
) -> None:
    assert load(tree, f"---\n---\nOf {written}", shop={"town": "Ulm"})[1] == [expected]


def test_history_only_warns(tree: Any) -> None:
    card, [problem] = load(tree, "---\nuse_history: true\n---\nText.")
    assert card is not None
    assert problem == "agentcards/c.md:2:1: warning: use_history: rows share no history; this has no effect"


def test_variables_fill_the_instruction_once_in_both_spellings(tree: Any) -> None:
    content = "---\n---\n{{tone}} {{ agentType }} ${vars.tone} ${vars.deep.x} \\{{tone}} $${vars.tone}"
    card = good(tree, content, tone="kind", deep={"x": 1})
    assert card.instruction == "kind agent kind 1 {{tone}} ${vars.tone}"
    card = good(tree, "---\n---\n{{a}} ${vars.b}", a="${vars.b}", b="{{a}}")
    assert card.instruction == "${vars.b} {{a}}", "what is filled in is never filled again"


def test_environment_variables_fill_front_matter_once_and_not_the_body(tree: Any) -> None:
    tree.env = {"WHO": "${NOT} {{x}}", "MODEL": "m"}
    card = good(tree, "name: n\nmodel: a/${MODEL}\ndescription: ${NONE:x}\ninstruction: I am ${WHO}.\n", "c.yml")
    assert (card.model, card.description, card.instruction) == ("a/m", "x", "I am ${NOT} {{x}}.")
    _, problems = load(tree, "---\n---\nI am ${WHO}.")
    assert "move ${WHO} into prompt" in problems[0]


def test_finding_a_card(tree: Any, tmp_path_factory: Any) -> None:
    for name in ("support.md", "grader.yaml", "SKILL.md", "notes.txt"):
        tree.write(f"agentcards/{name}", "---\n---\nText.")
    tree.write("other/extra.md", "---\n---\nText.")
    project = tree.project()
    assert card_names(project) == ["grader", "support"]
    assert find_card("support", project)[0] == tree.root / "agentcards/support.md"
    assert find_card("support.md", project)[0] == tree.root / "agentcards/support.md"
    assert find_card("other/extra.md", project)[0] == tree.root / "other/extra.md"
    assert find_card("suport", project) == (None, "no agent 'suport'; did you mean 'support'?")
    assert find_card("zzz", project) == (None, "no agent 'zzz'; agents in agentcards/: grader, support")
    assert find_card("SKILL", project) == (None, "SKILL.md describes a skill, not an agent")
    assert "leads out of the project" in find_card("../../x", project)[1]
    outside = tmp_path_factory.mktemp("outside") / "x.md"
    outside.write_text("---\n---\nText.")
    (tree.root / "agentcards/linked.md").symlink_to(outside)
    assert "leads out of the project" in find_card("linked", project)[1]


def test_a_broken_card_of_two_stages_is_told_once(tree: Any) -> None:
    tree.write("agentcards/c.md", "---\nmodle: x\n---\n")
    text = "input: {path: data/reviews.csv}\nstages:\n  - {name: a, agent: c}\n  - {name: b, agent: c}\n"
    assert tree.problems(text) == ["agentcards/c.md:2:1: modle: unknown key; did you mean 'model'?"]
