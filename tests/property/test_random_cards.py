"""Cards made of random other cards become a sound graph: what each part needs, sees and amends comes before it."""

import re
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign
from support.tree import Tree

from agac.core.errors import any_error
from agac.plan.stage import recorded_stages, stage_body
from agac.spec.graph import ESCALATED
from agac.spec.operations import Join

LEAVES = ("one", "two", "three")


def rates(card: Any) -> bool:
    """Whether its answer is one card's, and no texts side by side, which no evaluator may be."""
    if isinstance(card, str):
        return True
    members = [card.get("fan_in")] if card["type"] == "parallel" else card.get("sequence") or card.get("agents") or ()
    return all(one is not None and rates(one) for one in (*members, card.get("generator", "one")))


def cards(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A card, each of its members a leaf's name or a card again."""
    several = st.lists(below, min_size=1, max_size=3)
    judges = below.map(lambda card: card if rates(card) else "one")
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("chain"), "sequence": several, "cumulative": st.booleans()}),
        st.fixed_dictionaries({"type": st.just("parallel"), "fan_out": several}, optional={"fan_in": below}),
        st.fixed_dictionaries({"type": st.just("router"), "agents": several}),
        st.fixed_dictionaries(
            {"type": st.just("evaluator_optimizer"), "generator": below, "evaluator": judges},
            optional={"max_refinements": st.integers(1, 2)},
        ),
    )


def written(tree: Tree, card: Any) -> str:
    """Writes a card and those below it; gives its name, another one for each."""
    if isinstance(card, str):
        return card
    keys = {}
    for key, value in card.items():
        if key in ("fan_in", "generator", "evaluator"):
            keys[key] = written(tree, value)
        else:
            keys[key] = list(dict.fromkeys(written(tree, one) for one in value)) if isinstance(value, list) else value
    name = f"made{len([*(tree.root / 'agentcards').iterdir()])}"
    tree.write(f"agentcards/{name}.yaml", yaml.safe_dump(keys))
    return name


@campaign(test=30, soak=1_000)
@given(card=st.recursive(st.sampled_from(LEAVES), cards, max_leaves=6), when=st.sampled_from(["", "when: 'a || b'"]))
def test_random_cards_are_a_sound_graph(card: Any, when: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        for name in LEAVES:
            tree.write(f"agentcards/{name}.yaml", f"instruction: I am {name}.\n")
        stage = f"{{name: n, agent: {written(tree, card)}, prompt: 'Do ${{review}}'{', ' + when if when else ''}}}"
        workflow, problems = tree.load(
            f"input: {{path: data/reviews.csv}}\nstages:\n  - {stage}\n  - {{name: after, prompt: '${{n}}'}}\n"
        )
        assert workflow is not None
        assert not any_error(problems), list(map(str, problems))
        met: list[str] = []
        by_name = {one.name: one for one in workflow.stages}
        assert len(by_name) == len(workflow.stages)
        for one in workflow.stages[:-1]:
            assert {*one.needs, *one.ancestors, *((one.amends,) if one.amends else ())} <= {*met}
            read = {name.split(".")[0] for name in re.findall(r"\$\{(n[^}]*)\}", one.prompt.text)}
            read |= set(re.findall(r'parts\["([^"]*)"\]', one.guard.text)) if one.guard else set()
            read |= {name for _, name in one.operation.results} if isinstance(one.operation, Join) else set()
            assert read <= {*one.ancestors}, one.name
            assert bool(when) <= (one.guard is not None), "what the stage says holds for all parts"
            assert not one.name.endswith(ESCALATED)
            met.append(one.name)
        after = workflow.stages[-1]
        assert after.needs == (met[-1],)
        shown = {name for name in after.ancestors if name == "n" or by_name[name].amends}
        assert shown == {*after.ancestors}
        bodies = [stage_body(one) | {"model": "m"} for one in workflow.stages]
        again = recorded_stages({"stages": bodies, "vars": {}})
        for stored, one in zip(again, workflow.stages, strict=True):
            assert (stored.ancestors, stored.amended) == (one.ancestors, one.amended), one.name
