"""Cuts groups that are too large for one call into trees: a call gets members first, then results
of parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import maxsize
from typing import NamedTuple

WIDTH = 64
"""Bits of a hash, as `keys.member_hash` makes it."""


class NodeId(NamedTuple):
    """Names a node within its group, only by what it holds.

    `low` and `high` are the ends of the longest prefix that all its members share: exactly its
    members have hashes from `low` to `high`. If one call does not hold all members of an equal
    hash, there are several such nodes: `low` equals `high`, and `after` counts the members in
    earlier ones."""

    height: int
    """1 for a node of members; else it is above its children."""
    low: int
    """The least hash that its members may have."""
    high: int
    """The greatest hash that its members may have."""
    after: int = 0
    """Members of the same hash in earlier nodes."""


class TreeNode(NamedTuple):
    """One call of a reduction."""

    id: NodeId
    """Its name."""
    rows: int
    """How many members, or results of children, it gets."""
    children: tuple[NodeId, ...]
    """The nodes below, in order: none at height 1, else at least two, of lower heights.

    A node with only one child is not made: the child takes its place. So a child may be more than
    one lower."""


@dataclass(frozen=True, slots=True)
class CallSize:
    """What one call may hold. Two results always fit: else no tree would end."""

    max_rows: int | None = None
    """How many members or results; None: any number."""
    max_tokens: int | None = None
    """How many tokens of their text; None: any number."""
    result_tokens: int = 0
    """How many tokens a node's result is taken to have."""

    @property
    def fan_in(self) -> int:
        """How many results one call holds."""
        by_tokens = maxsize
        if self.max_tokens is not None:
            by_tokens = self.max_tokens // max(self.result_tokens, 1)
        return max(2, min(self.max_rows or maxsize, by_tokens))


class Tree:
    """Makes the nodes of one group from its members, which come in ascending order of their hashes
    (else ValueError).

    The cuts follow the hashes of the members' ids (docs/guide/groups.md). Think of the hashes as a
    binary trie. A node of height 1 holds the members below a prefix when they fit into one call
    and those below the parent prefix do not; a node of height 2 holds the nodes of height 1 below
    such a prefix, and so on until one node, the whole group, is left. What lies outside a prefix
    does not count. So one member more or less changes only the nodes above it, and the cut of one
    of them; cuts by count would move all nodes.

    Members are streamed: as much as one call holds is in memory for each height.

    A node comes after its children, and the nodes of a height come in order, as early as they are
    known; the last one is the group itself. Without members there are no nodes. A member of more
    than `max_tokens` has a node for itself."""

    def __init__(self, size: CallSize) -> None:
        max_tokens = maxsize if size.max_tokens is None else size.max_tokens
        self._fan_in = size.fan_in
        self._cuts = [_Cut(size.max_rows or maxsize, max_tokens)]

    def add(self, hash_: int, tokens: int) -> Iterator[TreeNode]:
        """Takes a member, and yields the nodes that are known now."""
        for piece in self._cuts[0].add(_Piece(hash_, hash_, 1, tokens)):
            yield from self._up(piece, 0)

    def close(self) -> Iterator[TreeNode]:
        """Yields the other nodes, since there are no more members."""
        # the list grows meanwhile: what one cut gives last may begin the next one
        for height, cut in enumerate(self._cuts):
            for piece in cut.close():
                yield from self._up(piece, height)

    def _up(self, piece: _Piece, height: int) -> Iterator[TreeNode]:
        """Yields the node of a piece, which the cut of this height gave, and the nodes above that
        it completes."""
        if len(piece.children) == 1:
            (node_id,) = piece.children
        else:
            below = (1 << (piece.low ^ piece.high).bit_length()) - 1
            node_id = NodeId(height + 1, piece.low & ~below, piece.high | below, piece.after)
            yield TreeNode(node_id, piece.count, piece.children)
        if self._cuts[height].whole:
            return
        if height + 1 == len(self._cuts):
            self._cuts.append(_Cut(self._fan_in, maxsize))
        for above in self._cuts[height + 1].add(
            _Piece(piece.low, piece.high, 1, 0, (node_id,), piece.after)
        ):
            yield from self._up(above, height + 1)


def tree(members: Iterable[tuple[int, int]], size: CallSize) -> Iterator[TreeNode]:
    """Yields the nodes of a group of `members`, which are (hash, tokens), as `Tree` makes them."""
    growing = Tree(size)
    for hash_, tokens in members:
        yield from growing.add(hash_, tokens)
    yield from growing.close()


@dataclass(slots=True)
class _Piece:
    """Neighbours that may share a call."""

    low: int
    """The least hash in it."""
    high: int
    """The greatest hash in it."""
    count: int
    """How many members or nodes it has."""
    tokens: int
    """The tokens of their text."""
    children: tuple[NodeId, ...] = ()
    """Its nodes, if it has no members."""
    after: int = 0
    """Members of the same hash in earlier pieces."""

    def take(self, other: _Piece) -> None:
        """Adds the piece that follows this one."""
        self.high = other.high
        self.count += other.count
        self.tokens += other.tokens
        self.children += other.children


class _Cut:
    """Cuts one height: takes neighbours in order, and returns the pieces that fit into a call, as
    soon as they are known.

    It holds the complete subtries to the left of the path to the last piece, from the highest
    down, each with the depth at which it parts from the one before. All of them fit into one call:
    if not, the first is returned, since the prefix that it shares with the rest does not fit."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._held: deque[tuple[int, _Piece]] = deque()
        self._rows = 0
        """Members and nodes in all that is held."""
        self._tokens = 0
        """Their tokens."""
        self._floor = -1
        """The depth of the longest prefix on the path that does not fit into a call."""
        self._last = -1
        """The greatest hash so far."""
        self._given = 0
        """How many pieces were returned."""
        self.whole = False
        """True, once closed, if there was only one piece."""

    def add(self, new: _Piece) -> list[_Piece]:
        """Takes the next piece in order. Returns the pieces that are known to be cut now."""
        if new.low < self._last:
            raise ValueError("the members of a group must come in the order of their hashes")
        given: list[_Piece] = []
        depth = WIDTH - (self._last ^ new.low).bit_length() if self._held else -1
        self._last = new.high
        if depth <= self._floor:
            given += self._all()
            self._floor = depth
        self._join(depth)
        self._rows += new.count
        self._tokens += new.tokens
        if depth == WIDTH:
            self._append_equal(new)
        else:
            self._held.append((depth, new))
        given += self._too_many()
        self._given += len(given)
        return given

    def _append_equal(self, new: _Piece) -> None:
        """Holds a piece whose hash is that of the last one.

        Equal hashes have no deeper prefix: they are cut by order, each call as full as it can
        be."""
        _, last = self._held[-1]
        fits_rows = last.count + new.count <= self._max_rows
        if fits_rows and last.tokens + new.tokens <= self._max_tokens:
            last.take(new)
            return
        new.after = new.after or last.after + last.count
        self._held.append((WIDTH, new))

    def _too_many(self) -> list[_Piece]:
        """Removes pieces from the beginning until the rest fits into a call, and returns them."""
        given = []
        while len(self._held) > 1:
            if self._rows <= self._max_rows and self._tokens <= self._max_tokens:
                break
            _, first = self._held.popleft()
            self._rows -= first.count
            self._tokens -= first.tokens
            self._floor = min(self._held[0][0], WIDTH - 1)
            given.append(first)
        return given

    def close(self) -> list[_Piece]:
        """Returns what is held, since nothing follows. `whole` is known then."""
        given = self._all()
        self._given += len(given)
        self.whole = self._given == 1
        return given

    def _join(self, depth: int) -> None:
        """Joins the held pieces that part from each other below `depth`, since their prefix is
        complete."""
        held = self._held
        while len(held) > 1 and held[-1][0] > depth:
            _, last = held.pop()
            held[-1][1].take(last)

    def _all(self) -> list[_Piece]:
        """Removes all that is held, and returns it as one piece, which fits into a call."""
        self._join(-2)
        given = [piece for _, piece in self._held]
        self._held.clear()
        self._rows = 0
        self._tokens = 0
        return given
