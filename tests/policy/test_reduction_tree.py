"""Reductions as trees: what a call holds, and how little one more row changes."""

import math
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import chain, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core import keys
from agac.engine.walk.reduction_tree import WIDTH, CallSize, NodeId, TreeNode, tree

Members = list[tuple[int, int]]
"""(hash, tokens), in order."""

TOP = 1 << WIDTH
hashes = st.one_of(
    st.integers(0, TOP - 1),
    st.integers(0, 40),  # many neighbours, deep down
    st.integers(0, 40).map(lambda n: TOP - 1 - n),
    st.integers(0, WIDTH - 1).map(lambda n: 1 << n),  # a trie like a rope
    st.integers(0, 1000).map(lambda n: keys.member_hash(f"row-{n}")),
)
tokens = st.one_of(st.integers(0, 30), st.just(10), st.integers(80, 200))
sizes = st.builds(
    CallSize,
    max_rows=st.one_of(st.none(), st.integers(2, 9)),
    max_tokens=st.one_of(st.none(), st.integers(0, 120)),
    result_tokens=st.integers(0, 60),
)
with_ties = st.lists(st.tuples(hashes, tokens), max_size=150).map(sorted)
distinct = st.dictionaries(hashes, tokens, max_size=150).map(lambda found: sorted(found.items()))


def cut(pieces: Members, rows: int, limit: int) -> list[list[int]]:
    """The definition, by recursion: which of `pieces` share a call. Gives their places."""

    def fits(places: list[int]) -> bool:
        return len(places) == 1 or (len(places) <= rows and sum(pieces[p][1] for p in places) <= limit)

    def below(places: list[int], depth: int) -> Iterator[list[int]]:
        if fits(places):
            yield places
        elif depth < WIDTH:
            for _, side in groupby(places, lambda p: pieces[p][0] >> (WIDTH - 1 - depth) & 1):
                yield from below(list(side), depth + 1)
        else:  # equal hashes
            full: list[int] = []
            for place in places:
                if full and not fits([*full, place]):
                    yield full
                    full = []
                full.append(place)
            yield full

    return list(below(list(range(len(pieces))), 0)) if pieces else []


def by_definition(members: Members, size: CallSize) -> dict[int, set[tuple[int, ...]]]:
    """For each height the nodes made at it, each as the places of its members."""
    limit = sys.maxsize if size.max_tokens is None else size.max_tokens
    held = [tuple(places) for places in cut(members, size.max_rows or sys.maxsize, limit)]
    heights = {1: set(held)} if held else {}
    height = 1
    while len(held) > 1:
        height += 1
        cuts = cut([(members[places[0]][0], 0) for places in held], size.fan_in, sys.maxsize)
        joined = [[held[p] for p in places] for places in cuts]
        held = [tuple(chain.from_iterable(some)) for some in joined]
        heights[height] = {tuple(chain.from_iterable(some)) for some in joined if len(some) > 1}
    return heights


def made(members: Members, size: CallSize) -> dict[NodeId, TreeNode]:
    nodes = list(tree(members, size))
    by_id = {node.id: node for node in nodes}
    assert len(by_id) == len(nodes), "an id names one node"
    return by_id


def places_of(node: TreeNode, nodes: dict[NodeId, TreeNode], members: Members) -> list[int]:
    """Where the members of a node stand, found the way that a reader of a table of members finds them: by range."""
    if node.id.height > 1:
        return [place for child in node.children for place in places_of(nodes[child], nodes, members)]
    within = [place for place, (hash_, _) in enumerate(members) if node.id.low <= hash_ <= node.id.high]
    return within[node.id.after : node.id.after + node.rows] if node.id.low == node.id.high else within


@given(with_ties, sizes)
def test_the_nodes_are_those_of_the_definition(members: Members, size: CallSize) -> None:
    nodes = made(members, size)
    found: dict[int, set[tuple[int, ...]]] = {}
    for node in nodes.values():
        places = places_of(node, nodes, members)
        found.setdefault(node.id.height, set()).add(tuple(places))
        assert node.rows == len(node.children if node.id.height > 1 else places)
    assert found == by_definition(members, size)


@given(with_ties, sizes)
def test_a_node_comes_after_its_children_and_those_of_a_height_in_order(members: Members, size: CallSize) -> None:
    seen: set[NodeId] = set()
    last: dict[int, tuple[int, int]] = {}
    for node in tree(iter(members), size):
        assert seen.issuperset(node.children)
        seen.add(node.id)
        assert last.get(node.id.height, (-1, -1)) < (node.id.low, node.id.after)
        last[node.id.height] = (node.id.low, node.id.after)


@given(distinct, sizes, st.data())
def test_one_member_more_or_less_changes_few_nodes(members: Members, size: CallSize, data: st.DataObject) -> None:
    """Asked again is what was not there before: at each height at most as many nodes as the lowest height has parted
    into, and one. By rows alone a node parts in two; a member of many tokens may part it once for each bit."""
    if not members:
        return
    gone = data.draw(st.integers(0, len(members) - 1))
    more, less = made(members, size), made(members[:gone] + members[gone + 1 :], size)
    lowest = [sum(node.id.height == 1 for node in nodes.values()) for nodes in (more, less)]
    grown = lowest[0] - lowest[1]
    assert 0 <= grown <= (1 if size.max_tokens is None else min(WIDTH, size.max_rows or WIDTH))
    for nodes, others, at_most in ((more, less, grown + 1), (less, more, 1)):
        known = _contents(others, members, gone)
        asked = [node for node, held in _contents(nodes, members, gone).items() if held not in known.values()]
        for height in {node.height for node in asked}:
            assert sum(node.height == height for node in asked) <= at_most


def _contents(nodes: dict[NodeId, TreeNode], members: Members, gone: int) -> dict[NodeId, object]:
    """What each node asks about: the hashes of its members, or what its children ask about."""
    found: dict[NodeId, object] = {}
    for node in nodes.values():
        inside = tuple(h for h, _ in members if node.id.low <= h <= node.id.high)
        if len(inside) != node.rows:  # of the shorter tree
            inside = tuple(h for h in inside if h != members[gone][0])
        found[node.id] = inside if node.id.height == 1 else tuple(found[child] for child in node.children)
    return found


@given(with_ties, st.integers(2, 9))
def test_a_tree_is_as_deep_as_the_bits_and_the_equal_hashes_make_it(members: Members, rows: int) -> None:
    """Each height takes as many bits off the trie as a call holds full levels of it."""
    heights = max((node.id.height for node in tree(members, CallSize(max_rows=rows))), default=0)
    ties = max((len(list(some)) for _, some in groupby(h for h, _ in members)), default=1)
    assert heights <= 1 + math.ceil(WIDTH / int(math.log2(rows))) + math.ceil(math.log(ties, rows))


def test_two_results_go_into_a_call_whatever_they_come_to_and_members_out_of_order_are_refused() -> None:
    members = sorted((keys.member_hash(n), 10) for n in range(100))
    nodes = list(tree(members, CallSize(max_tokens=5, result_tokens=100)))
    assert [node.rows for node in nodes if node.id.height == 1] == [1] * 100
    assert {node.rows for node in nodes if node.id.height > 1} == {2}
    with pytest.raises(ValueError, match="order of their hashes"):
        list(tree([(2, 1), (1, 1)], CallSize(max_rows=5)))


def test_hashes_are_of_the_id_alone_and_spread() -> None:
    assert keys.member_hash("1") != keys.member_hash(1)
    assert keys.member_hash("a/3") == keys.member_hash("a/3")
    assert 0 <= min(keys.member_hash(n) for n in range(1000)) < TOP // 100
    assert TOP - TOP // 100 < max(keys.member_hash(n) for n in range(1000)) < TOP


def test_members_stream_through_in_flat_memory() -> None:
    def peak(count: int) -> int:
        """Bytes; the hashes lie as if drawn, and are made as they are read."""
        step = TOP // count
        members = ((n * step + n * 2654435761 % step, 120) for n in range(count))
        tracemalloc.start()
        try:
            for _ in tree(members, CallSize(max_rows=50)):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(30_000) < 200_000  # a list of the members: 6,000,000
