"""How a group that is too large for one call is reduced as a tree: which members, then which results, a call holds.

The cuts follow the hashes of the members' ids (docs/guide/groups.md). Think of the hashes as a binary trie. A node
of height 1 holds the members below a prefix when they fit into one call and those below the parent prefix do not; a
node of height 2 holds the nodes of height 1 below such a prefix, and so on until one node, the whole group, is left. A
prefix knows nothing of what lies outside it, so one member more or less changes the nodes above it, and where one of
them parts in two, and no others; cuts by count would move all of them.

Members stream through: what is held at a time is one call's worth for each height.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import maxsize
from typing import NamedTuple

WIDTH = 64
"""Bits of a hash, as `keys.member_hash` gives it."""


class NodeId(NamedTuple):
    """Names a node within its group, by nothing but what it holds.

    `low` and `high` are the ends of the longest prefix that all its members share: exactly its members have hashes from
    `low` to `high`. But for members of equal hashes that one call does not hold: then `low` equals `high`, and `after`
    counts those of this hash that lie in earlier nodes.
    """

    height: int
    low: int
    high: int
    after: int = 0


class TreeNode(NamedTuple):
    """One call of a reduction: over `rows` members at height 1, over the results of `children` above it.

    Children are in order, at least two, each of a lower height (not always the next lower: a node that would have had
    one child is not made, the child stands in its place).
    """

    id: NodeId
    rows: int
    children: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class CallSize:
    """What one call may hold: `max_rows` members or results, `max_tokens` of their text; None: no such limit.

    `result_tokens` is what a node's result is taken to come to. Two results go into one call whatever they come to, as
    a tree without them would not end.
    """

    max_rows: int | None = None
    max_tokens: int | None = None
    result_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 2:
            raise ValueError(f"a call must hold two rows at least, not {self.max_rows}")

    @property
    def fan_in(self) -> int:
        """How many results one call holds."""
        by_tokens = maxsize if self.max_tokens is None else self.max_tokens // max(self.result_tokens, 1)
        return max(2, min(self.max_rows or maxsize, by_tokens))


class Tree:
    """The nodes of one group, as its members come: in ascending order of hash, ValueError where they do not.

    A node comes after its children, the nodes of a height in order, as early as they are known; the last one of all is
    the group itself. No members, no nodes. A member of more than `max_tokens` is a node alone.
    """

    def __init__(self, size: CallSize) -> None:
        max_tokens = maxsize if size.max_tokens is None else size.max_tokens
        self._fan_in = size.fan_in
        self._cuts = [_Cut(size.max_rows or maxsize, max_tokens)]

    def add(self, hash_: int, tokens: int) -> Iterator[TreeNode]:
        """The nodes that are known now that this member is."""
        for piece in self._cuts[0].add(_Piece(hash_, hash_, 1, tokens)):
            yield from self._up(piece, 0)

    def close(self) -> Iterator[TreeNode]:
        """The other nodes: no member comes any more."""
        for height, cut in enumerate(self._cuts):  # which grow meanwhile: what one gives last may begin the next
            for piece in cut.close():
                yield from self._up(piece, height)

    def _up(self, piece: _Piece, height: int) -> Iterator[TreeNode]:
        """The node that `piece`, given by the cut of this height, makes, and those that it completes above."""
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
        for above in self._cuts[height + 1].add(_Piece(piece.low, piece.high, 1, 0, (node_id,), piece.after)):
            yield from self._up(above, height + 1)


def tree(members: Iterable[tuple[int, int]], size: CallSize) -> Iterator[TreeNode]:
    """The nodes of a group of `members`, which are (hash, tokens), as `Tree` gives them."""
    growing = Tree(size)
    for hash_, tokens in members:
        yield from growing.add(hash_, tokens)
    yield from growing.close()


@dataclass(slots=True)
class _Piece:
    """Neighbours that may share a call: `low` and `high` are the least and the greatest hash in it."""

    low: int
    high: int
    count: int
    tokens: int
    children: tuple[NodeId, ...] = ()
    after: int = 0

    def take(self, other: _Piece) -> None:
        self.high = other.high
        self.count += other.count
        self.tokens += other.tokens
        self.children += other.children


class _Cut:
    """Cuts one height: takes what lies side by side, gives the pieces that fit into a call, as soon as they are known.

    Held are the complete subtries to the left of the path to the last one taken, from the highest down, each with the
    depth at which it parts from the one before. All of them fit into one call: else the first is given away, as the
    prefix that it shares with the rest does not fit. `floor` is the depth of the longest such prefix on the path.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._held: deque[tuple[int, _Piece]] = deque()
        self._rows = self._tokens = 0  # of all that is held
        self._floor = self._last = -1
        self._given = 0
        self.whole = False

    def add(self, new: _Piece) -> list[_Piece]:
        """Takes the next in order; gives what is known to be cut now."""
        if new.low < self._last:
            raise ValueError("the members of a group must come in the order of their hashes")
        given: list[_Piece] = []
        held = self._held
        parts = WIDTH - (self._last ^ new.low).bit_length() if held else -1
        self._last = new.high
        if parts <= self._floor:
            given += self._all()
            self._floor = parts
        self._join(parts)
        self._rows += new.count
        self._tokens += new.tokens
        last = held[-1][1] if parts == WIDTH else None
        if last is None:
            held.append((parts, new))
        # equal hashes have no deeper prefix: they are cut by order, each call as full as it can be
        elif last.count + new.count <= self._max_rows and last.tokens + new.tokens <= self._max_tokens:
            last.take(new)
        else:
            new.after = new.after or last.after + last.count
            held.append((WIDTH, new))
        while len(held) > 1 and (self._rows > self._max_rows or self._tokens > self._max_tokens):
            _, first = held.popleft()
            self._rows -= first.count
            self._tokens -= first.tokens
            self._floor = min(held[0][0], WIDTH - 1)
            given.append(first)
        self._given += len(given)
        return given

    def close(self) -> list[_Piece]:
        """Nothing comes any more: gives what is held, and `whole` is known."""
        given = self._all()
        self._given += len(given)
        self.whole = self._given == 1
        return given

    def _join(self, depth: int) -> None:
        """Makes one of those held that part from each other below `depth`: all of their prefix has come."""
        held = self._held
        while len(held) > 1 and held[-1][0] > depth:
            _, last = held.pop()
            held[-1][1].take(last)

    def _all(self) -> list[_Piece]:
        """Empties the held: one piece, as all of it fits into a call."""
        self._join(-2)
        given = [piece for _, piece in self._held]
        self._held.clear()
        self._rows = self._tokens = 0
        return given
