"""Cards that are made of other cards become stages: which, and what is said of those that cannot."""

import pytest
from support.tree import Tree

from agac.spec.operations import Join
from agac.spec.project import Overrides
from agac.spec.workflow import WrittenStage

MEMBERS = ("draft", "check", "fix")
CARDS = {
    "steps.yaml": "type: Chain\nsequence: [draft, fix, check]\n",
    "told.yaml": "type: chain\nsequence: [draft, fix]\ncumulative: true\n",
    "both.yaml": "type: parallel\nfan_out: [draft, fix]\n",
    "merged.yaml": "type: parallel\nfan_out: [draft, fix]\nfan_in: check\n",
    "alone.yaml": "type: parallel\nfan_out: [draft]\nfan_in: check\ninclude_request: false\n",
    "loop.yaml": "type: evaluator_optimizer\ngenerator: draft\nevaluator: check\n"
    "min_rating: FAIR\nmax_refinements: 2\n",
    "desk.md": "---\ntype: router\nagents: [draft, fix]\nmodel: simulator/large\n---\nWho helps?\n",
    "one.yaml": "type: ROUTER\nagents: [fix]\n",
    "deep.yaml": "type: chain\nsequence: [loop, desk]\n",
    "wide.yaml": "type: router\nagents: [steps, loop]\n",
}


@pytest.fixture
def cards(tree: Tree) -> Tree:
    for name in MEMBERS:
        tree.write(f"agentcards/{name}.md", f"---\ntool_only: true\ndescription: I {name}.\n---\nYou {name}.\n")
    for name, text in CARDS.items():
        tree.write(f"agentcards/{name}", text)
    return tree


def stages(cards: Tree, agent: str, **keys: str) -> dict[str, WrittenStage]:
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    found = cards.stages(
        f"{{name: n, agent: {agent}, prompt: 'Do ${{review}}'{more}}}", "{name: after, prompt: '${n}'}"
    )
    assert found[-1].needs == (found[-2].name,)
    assert set(found[-1].ancestors) == {one.name for one in found[:-1] if one.name == "n" or one.amends}
    return {one.name: one for one in found[:-1]}


def prompts(found: dict[str, WrittenStage]) -> list[str]:
    return [one.prompt.text for one in found.values()]


def guards(found: dict[str, WrittenStage]) -> dict[str, str | None]:
    return {name: one.guard.text if one.guard else None for name, one in found.items()}


def test_a_chain_is_stages_that_follow_each_other(cards: Tree) -> None:
    found = stages(cards, "steps")
    assert [(one.name, one.needs, one.system) for one in found.values()] == [
        ("n/draft", (), "You draft."), ("n/fix", ("n/draft",), "You fix."), ("n", ("n/fix",), "You check."),
    ]  # fmt: skip
    assert prompts(found) == ["Do ${review}", "${n/draft}", "${n/fix}"]
    assert prompts(stages(cards, "told")) == ["Do ${review}", "Do ${review}\n\nReply of draft:\n${n/draft}"]


def test_a_parallel_is_stages_side_by_side_and_one_that_makes_one_answer(cards: Tree) -> None:
    found = stages(cards, "merged")
    assert [(one.name, one.needs) for one in found.values()] == [
        ("n/draft", ()), ("n/fix", ()), ("n", ("n/draft", "n/fix")),
    ]  # fmt: skip
    assert prompts(found)[2] == "Do ${review}\n\ndraft:\n${n/draft}\n\nfix:\n${n/fix}"
    assert prompts(stages(cards, "alone"))[1] == "draft:\n${n/draft}"
    joined = stages(cards, "both")["n"]
    assert joined.operation == Join((("draft", "n/draft"), ("fix", "n/fix")))
    assert joined.shape is None, "text"
    assert joined.operation.text({"n/draft": "A", "n/fix": {"b": 1}}) == 'draft:\nA\n\nfix:\n{"b":1}'


def test_a_router_is_a_question_and_agents_with_guards(cards: Tree) -> None:
    found = stages(cards, "desk")
    assert [(one.name, one.needs, one.amends) for one in found.values()] == [
        ("n/route", (), None), ("n", ("n/route",), None), ("n/fix", ("n",), "n"),
    ]  # fmt: skip
    assert guards(found) == {
        "n/route": None, "n": 'parts["n/route"].agent == "draft"', "n/fix": 'parts["n/route"].agent == "fix"',
    }  # fmt: skip
    assert prompts(found) == ["Do ${review}"] * 3
    route = found["n/route"]
    assert route.schema is not None
    assert route.schema.body["properties"]["agent"]["enum"] == ["draft", "fix"]
    assert route.system is not None
    assert (route.system[:11], route.system[-32:]) == ("Who helps?\n", "\n- draft: I draft.\n- fix: I fix.")
    assert [one.model for one in found.values()] == ["simulator/large", "simulator/small", "simulator/small"]
    assert [(name, one.system) for name, one in stages(cards, "one").items()] == [("n", "You fix.")]


def test_an_evaluator_optimizer_is_a_bounded_repair_by_a_judge(cards: Tree) -> None:
    found = stages(cards, "loop", output_schema="{text: string}")
    assert [(one.name, one.needs, one.amends) for one in found.values()] == [
        ("n", (), None), ("n/judge-1", ("n",), None), ("n/refine-1", ("n/judge-1",), "n"),
        ("n/judge-2", ("n/refine-1",), None), ("n/refine-2", ("n/judge-2",), "n"),
    ]  # fmt: skip
    enough = '.rating in ["FAIR", "GOOD", "EXCELLENT"])'
    assert guards(found) == {
        "n": None, "n/judge-1": None, "n/refine-1": f'parts["n/judge-1"] != null && !(parts["n/judge-1"]{enough}',
        "n/judge-2": 'parts["n/refine-1"] != null',
        "n/refine-2": f'parts["n/judge-2"] != null && !(parts["n/judge-2"]{enough}',
    }  # fmt: skip
    judge, refine = found["n/judge-2"], found["n/refine-2"]
    assert judge.schema is not None
    assert list(judge.schema.body["properties"]) == ["rating", "needs_improvement", "feedback"]
    assert (judge.system, refine.system) == ("You check.", "You draft.")
    assert "Do ${review}" in judge.prompt.text
    assert "${n/judge-2.feedback}" in refine.prompt.text
    assert refine.schema is not None
    assert refine.schema.body == (found["n"].schema or refine.schema).body


def test_cards_of_cards_are_named_by_the_way_to_them(cards: Tree) -> None:
    assert [*stages(cards, "deep")] == [
        "n/loop", "n/loop/judge-1", "n/loop/refine-1", "n/loop/judge-2", "n/loop/refine-2", "n/route", "n", "n/fix",
    ]  # fmt: skip
    assert stages(cards, "deep")["n/route"].prompt.text == "${n/loop}", "as it was amended"
    found = stages(cards, "wide")
    assert [*found][:4] == ["n/route", "n/draft", "n/fix", "n"]
    chosen = 'parts["n/route"].agent == "steps"'
    assert list(guards(found).values())[:4] == [None, chosen, chosen, chosen]
    assert found["n/loop"].amends == "n"
    assert found["n/loop/refine-1"].amends == "n/loop"
    assert str(guards(found)["n/loop/judge-1"]) == 'parts["n/route"].agent == "loop"'


def test_the_keys_of_the_stage_hold_for_all_parts(cards: Tree) -> None:
    found = stages(
        cards, "desk", when="'review != \"\" || false'", otherwise="drop", run_mode="batch", max_tokens="9",
        model="simulator/tiny", output_schema="{a: string}", checks="{'n.a != \"\"': empty}",
        visible="{only: [review]}",
    )  # fmt: skip
    assert guards(found)["n/route"] == 'review != "" || false'
    assert guards(found)["n"] == '(review != "" || false) && parts["n/route"].agent == "draft"'
    assert [one.otherwise for one in found.values()] == ["drop", "skip", "skip"]
    assert {one.settings.run_mode for one in found.values()} == {"batch"}
    assert {one.visibility is None for one in found.values()} == {False}
    assert [one.model for one in found.values()] == ["simulator/large", "simulator/tiny", "simulator/tiny"]
    assert [len(one.checks) for one in found.values()] == [0, 1, 1]
    assert [one.schema is not None and [*one.schema.body["properties"]] for one in found.values()] == [
        ["agent", "reason"], ["a"], ["a"],
    ]  # fmt: skip
    found = stages(cards, "steps", replicas="3", vote="a", output_schema="{a: string}", budget="5", on_empty="error")
    said = [
        (one.replicas, one.vote and one.vote.field, one.settings.budget is None, one.settings.on_empty)
        for one in found.values()
    ]
    assert said == [
        (1, None, True, None), (1, None, True, None), (3, "a", False, "error"),
    ]  # fmt: skip


def test_a_model_typed_is_for_parts_that_have_none(cards: Tree) -> None:
    text = "input: {path: data/reviews.csv}\nstages: [{name: n, agent: desk}]\n"
    found = cards.workflow(text, Overrides(model="simulator/typed")).stages
    assert [one.model for one in found] == ["simulator/large", "simulator/typed", "simulator/typed"]


def test_what_asks_once_more_asks_the_last_of_a_chain(cards: Tree) -> None:
    found = stages(cards, "told", escalate="{when: 'size(n) < 9', model: simulator/large}")
    assert [(one.name, one.needs, one.amends) for one in found.values()][2] == ("n/escalate", ("n",), "n")
    assert found["n/escalate"].prompt == found["n"].prompt


def test_names_are_free_and_no_card_is_its_own_part(cards: Tree) -> None:
    cards.write("agentcards/escalate.yaml", "instruction: More.\n")
    cards.write("agentcards/odd name.yaml", "instruction: Odd.\n")
    cards.write(
        "agentcards/again.yaml", "type: chain\nsequence: [fix, fix, escalate, odd name, agentcards/fix.md, fix]\n"
    )
    assert [*stages(cards, "again")] == ["n/fix", "n/fix-2", "n/escalate-2", "n/odd_name", "n/fix-3", "n"]


def test_a_member_may_be_called_by_another_too(cards: Tree) -> None:
    cards.write("agentcards/boss.yaml", "instruction: Lead.\nagents: [draft]\nmodel: simulator/boss\n")
    cards.write("agentcards/led.yaml", "type: chain\nsequence: [draft, boss]\n")
    found = stages(cards, "led")
    assert [*found] == ["n/draft-2", "n"]
    assert [child.name for child in found["n"].children] == ["n/draft"]


def test_members_are_found_beside_the_card_by_their_own_names_too(cards: Tree) -> None:
    cards.write("cards/loop.md", "---\ntype: chain\nsequence: [Writer, draft]\n---\n")
    cards.write("cards/w.md", "---\nname: Writer\n---\nYou are beside it.\n")
    found = stages(cards, "cards/loop.md")
    assert [one.system for one in found.values()] == ["You are beside it.", "You draft."]


REFUSED = [
    ("type: chain\nsequence: [ghost, draft, gone]", "", "sequence[0]: no agent 'ghost'; agents in agentcards/:"),
    ("type: chain\nsequence: [ghost, draft, gone]", "", "sequence[2]: no agent 'gone'; did you mean 'one'?"),
    ("type: chain\nsequence: [c]", "", "sequence[0]: these cards name each other in a circle: c → c"),
    ("type: parallel\nfan_out: [c]\nfan_in: loop", "", "fan_out[0]: these cards name each other in a circle: c → c"),
    ("type: chain\nsequence: [draft]\ntool_only: true", "", "a card with `tool_only: true` is only for other agents"),
    (
        "type: chain\nsequence: [draft]\ninstruction: Hi.",
        "",
        "warning: instruction: has no effect: a card of type chain",
    ),
    ("type: chain\nsequence: [draft]", "explode: review", "explode does not go with a card of type chain; explode the"),
    ("type: chain\nsequence: [draft]", "group_by: review", "group_by does not go with a card of type chain; make one"),
    (
        "type: chain\nsequence: [draft]",
        "instructions: Hi.",
        "instructions does not go with a card of type chain; write",
    ),
    ("type: chain\nsequence: [draft]", "tools: [read_file]", "tools does not go with a card of type chain; name them"),
    ("type: chain\nsequence: [draft]", "max_turns: 3", "max_turns does not go with a card of type chain; write"),
    ("type: chain\nsequence: [draft]", "tools_mode: stub", "tools_mode does not go with a card of type chain; give"),
    ("type: router\nagents: [draft, fix]", "replicas: 3", "replicas does not go with a card of type router; let it"),
    ("type: parallel\nfan_out: [draft, fix]", "output_schema: {a: string}", "name a card as `fan_in` that makes one"),
    ("type: chain\nsequence: [desk]", "escalate: {when: 'true', model: a/b}", "escalate does not go with a card of"),
    (
        "type: evaluator_optimizer\ngenerator: draft\nevaluator: both",
        "",
        "both.yaml:1:1: texts side by side rate",
    ),
    ("type: chain\nsequence: [draft]", "when: parts.x", "`parts` stands for results here; write row.parts"),
]


@pytest.mark.parametrize(("card", "key", "said"), REFUSED)
def test_cards_and_keys_to_refuse(cards: Tree, card: str, key: str, said: str) -> None:
    cards.write("agentcards/c.yaml", card)
    found = cards.stage_problems(f"{{name: a, agent: c{', ' + key if key else ''}}}")
    assert any(said in one for one in found), found


def test_all_is_said_at_once_and_each_problem_once(cards: Tree) -> None:
    cards.write("agentcards/c.yaml", "type: chain\nsequence: [ghost, bad, bad]\n")
    cards.write("agentcards/bad.md", "---\nmodle: x\n---\nHi.\n")
    assert len(cards.stage_problems("{name: a, agent: c}")) == 1, "the cards first"
    cards.write("agentcards/c.yaml", "type: chain\nsequence: [draft, desk]\n")
    assert len(cards.stage_problems("{name: a, agent: c, when: 'review > > 1'}")) == 1


def test_no_agent_calls_a_card_that_becomes_stages(cards: Tree) -> None:
    cards.write("agentcards/boss.md", "---\nagents: [loop]\n---\nYou lead.\n")
    [said] = cards.stage_problems("{name: a, agent: boss}")
    where = (
        "agentcards/boss.md:2:10: agents[0]: loop is of type evaluator_optimizer and becomes stages, so that no agent "
    )
    assert said == f"{where}can call it; ask it in a stage before this one, or name its cards here"
    cards.write("agentcards/boss.md", "---\nagents: [desk]\n---\nYou lead.\n")
    [said] = cards.stage_problems("{name: a, agent: boss}")
    assert "desk is of type router" in said


def test_agents_that_a_card_calls_are_found_beside_it(cards: Tree) -> None:
    cards.write("cards/plan.yaml", "type: orchestrator\nagents: [Helper, draft]\n")
    cards.write("cards/h.md", "---\nname: Helper\n---\nYou help beside it.\n")
    [found, _] = cards.stages("{name: n, agent: cards/plan.yaml}", "{name: after, prompt: '${n}'}")
    assert [one.system for one in found.children] == ["You help beside it.", "You draft."]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ("type: chain\nsequence: [ghost, draft]\ncumulative: 1", ["cumulative", "sequence[0]: no agent 'ghost'"]),
        ("type: maker\nworker: ghost\nk: 0", ["k: must be at least 1", "worker: no agent 'ghost'"]),
        ("type: orchestrator\nagents: [draft, ghost]\nplan_type: all", ["plan_type", "agents[1]: no agent 'ghost'"]),
        ("type: paralel\nfan_out: [draft]\nfan_inn: check", ["type: unknown type 'paralel'", "fan_inn: unknown key"]),
    ],
)
def test_members_that_are_missing_are_said_beside_other_problems(cards: Tree, card: str, said: list[str]) -> None:
    cards.write("agentcards/c.yaml", card)
    found = cards.stage_problems("{name: a, agent: c}")
    assert len(found) == len(said), found
    assert all(any(word in one for one in found) for word in said), found


def test_cards_that_become_too_many_stages_are_refused_soon(cards: Tree) -> None:
    for number in range(40):
        cards.write(f"agentcards/c{number}.yaml", f"type: chain\nsequence: [c{number + 1}, c{number + 1}]\n")
    cards.write("agentcards/c40.yaml", "instruction: Hi.\n")
    [said] = cards.stage_problems("{name: a, agent: c0}")
    assert "a stage becomes more than 500 stages" in said
