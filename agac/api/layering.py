"""The layers of a drawing: which layer a box or a passing line is in, and where in its order.

Pure, and the same for the same input.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

PASSING = 8.0
"""What a line takes of a layer that it passes."""
SWEEPS = 24


class Size(NamedTuple):
    """How much room something takes, in pixels."""

    width: float
    height: float


class Link(NamedTuple):
    """A line from one box to another, by their places in the list; `label`: the size of its text."""

    source: int
    target: int
    label: Size | None = None


@dataclass(slots=True, eq=False)
class Cell:
    """What holds a place in a layer: a box, or a line that passes."""

    size: Size
    rank: int
    passing: bool
    above: list[Cell] = field(default_factory=list)
    below: list[Cell] = field(default_factory=list)
    place: int = 0
    x: float = 0.0  # of its middle


def layers_of(count: int, links: Sequence[Link]) -> list[int]:
    """For each box the length of the longest way to it."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for link in links:
        after[link.source].append(link.target)
        waiting[link.target] += 1
    ready = [box for box in range(count) if not waiting[box]]
    layers = [0] * count
    for box in ready:  # which grows
        for target in after[box]:
            layers[target] = max(layers[target], layers[box] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(ready) < count:
        raise ValueError("what needs itself cannot be drawn in layers")
    return layers


def chain_of(cells: list[Cell], link: Link) -> list[Cell]:
    """The cells of a line from its source to its target, joined to each other."""
    first, last = cells[link.source], cells[link.target]
    chain = [first, *(Cell(Size(PASSING, 0), rank, passing=True) for rank in range(first.rank + 1, last.rank)), last]
    if link.label:
        chain[-2].size = link.label
    for upper, lower in pairwise(chain):
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


def order(ranks: list[list[Cell]]) -> None:
    """Orders each layer by where its neighbours stand, downwards and upwards in turn; keeps what crosses least."""
    best, least = [list(rank) for rank in ranks], _crossings(ranks)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _sort(rank, down)
        if (crossings := _crossings(ranks)) < least:
            best, least = [list(rank) for rank in ranks], crossings
        if not least:
            break
    for rank, kept in zip(ranks, best, strict=True):
        rank[:] = kept
        _number(rank)


def _sort(rank: list[Cell], down: bool) -> None:
    rank.sort(key=lambda cell: _middle(cell.above if down else cell.below, cell.place))
    _number(rank)


def _number(rank: list[Cell]) -> None:
    for place, cell in enumerate(rank):
        cell.place = place


def _middle(cells: list[Cell], otherwise: float) -> float:
    return sum(cell.place for cell in cells) / len(cells) if cells else otherwise


def _crossings(ranks: list[list[Cell]]) -> int:
    """How many pairs of lines cross."""
    crossings = 0
    for rank in ranks:
        ended: list[int] = []
        for cell in rank:
            for place in (ends := sorted(lower.place for lower in cell.below)):
                crossings += len(ended) - bisect_right(ended, place)
            for place in ends:
                insort(ended, place)
    return crossings
