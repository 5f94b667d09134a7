"""The order of stages: what each needs, what is upstream of it, and what keeps them from having an order."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agac.spec.graph import StageNode
from agac.spec.models import StageFile
from agac.spec.stage_order import ordered
from agac.spec.yaml import parse_yaml


def graph_of(written: Iterable[dict[str, Any]]) -> tuple[list[StageFile], list[StageNode], list[str]]:
    """The stages, their graph, and what is wrong with it."""
    files = [StageFile(**one) for one in written]
    nodes, problems = ordered(files, parse_yaml("stages: []\n", "w.yml"))
    return files, nodes, [problem.message for problem in problems]


def made(*written: dict[str, Any]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    files, nodes, problems = graph_of(written)
    assert problems == []
    return [(files[node.index].name, node.needs, node.ancestors) for node in nodes]


def test_without_needs_stages_follow_each_other_and_branches_meet_again() -> None:
    follow = [("a", (), ()), ("b", ("a",), ("a",)), ("c", ("b",), ("a", "b"))]
    assert made({"name": "a"}, {"name": "b"}, {"name": "c"}) == follow
    found = made(
        {"name": "join", "needs": ["left", "right"]}, {"name": "start", "needs": []},
        {"name": "left", "needs": "start"}, {"name": "mid", "needs": "start"}, {"name": "right", "needs": "mid"},
    )  # fmt: skip
    assert found == [
        ("start", (), ()),
        ("left", ("start",), ("start",)),
        ("mid", ("start",), ("start",)),
        ("right", ("mid",), ("start", "mid")),
        ("join", ("left", "right"), ("start", "left", "mid", "right")),
    ]


def test_who_needs_a_disabled_stage_needs_what_that_needs() -> None:
    found = made(
        {"name": "a"}, {"name": "b", "enabled": False}, {"name": "c", "needs": ["a"]},
        {"name": "d", "enabled": False, "needs": ["b", "c"]}, {"name": "e", "needs": "d"},
    )  # fmt: skip
    assert found == [("a", (), ()), ("c", ("a",), ("a",)), ("e", ("a", "c"), ("a", "c"))]

    assert made({"name": "a", "enabled": False}, {"name": "b"}) == [("b", (), ())]


def test_each_circle_is_shown_once_with_its_way() -> None:
    _, _, problems = graph_of([
        {"name": "a", "needs": "c"}, {"name": "b", "needs": "a"}, {"name": "c", "needs": "b"},
        {"name": "d", "needs": ["c", "e"]}, {"name": "e", "needs": ["d"]}, {"name": "f", "needs": ["a"]},
    ])  # fmt: skip
    assert problems == [
        "these stages need each other in a circle: a → b → c → a; let one of them start",
        "these stages need each other in a circle: d → e → d; let one of them start",
    ]


@st.composite
def acyclic(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Stages in any order of the file, each needing some that come before it in a hidden order."""
    count = draw(st.integers(1, 12))
    written = []
    for index in range(count):
        needs = draw(st.lists(st.integers(0, index - 1), unique=True, max_size=4)) if index else []
        written.append({"name": f"s{index}", "needs": [f"s{need}" for need in needs], "enabled": draw(st.booleans())})
    return draw(st.permutations(written))


@given(acyclic())
def test_every_stage_comes_after_all_that_is_upstream_of_it(written: list[dict[str, Any]]) -> None:
    files, nodes, problems = graph_of(written)
    assert problems == []
    by_name: dict[str, StageNode] = {}
    for node in nodes:
        name = files[node.index].name
        assert set(node.needs) <= by_name.keys()
        assert node.ancestors == tuple(
            one for one in by_name if one in node.needs or any(one in by_name[need].ancestors for need in node.needs)
        )
        by_name[name] = node
    assert by_name.keys() == {one["name"] for one in written if one["enabled"]}
    assert upstream_in_full(written) == {name: set(node.ancestors) for name, node in by_name.items()}


def upstream_in_full(written: list[dict[str, Any]]) -> dict[str, set[str]]:
    """What is upstream of each enabled stage, by walking up every way."""
    needs = {one["name"]: one["needs"] for one in written}
    enabled = {one["name"] for one in written if one["enabled"]}

    def upstream(name: str) -> set[str]:
        return {above for need in needs[name] for above in {need, *upstream(need)}}

    return {name: upstream(name) & enabled for name in enabled}


def test_thousands_of_stages_need_no_recursion_and_a_group_cuts_their_chain() -> None:
    _, nodes, problems = graph_of({"name": f"s{n}"} for n in range(2_000))
    assert problems == []
    assert len(nodes[-1].ancestors) == 1_999
    _, nodes, problems = graph_of({"name": f"s{n}"} | ({"group_by": []} if n == 700 else {}) for n in range(1_000))
    assert problems == []
    assert len(nodes[-1].ancestors) == 299
