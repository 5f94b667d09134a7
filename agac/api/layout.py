"""Where the boxes and lines of a drawing go: layers from top to bottom, few crossings, nothing on top of another.

Pure geometry, the same for the same input. Lengths are pixels; x grows to the right, y downwards. A line that passes a
layer holds a place in it, as a box does, and a label is such a place with a size: so no line runs behind a box, and no
label lies on anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from agac.api.layering import Cell, Link, Size, chain_of, layers_of, order

BESIDE = 28.0
"""Between neighbours in a layer."""
BETWEEN = 46.0
"""From a layer to the next."""
STEEP = 0.12
"""How much of the furthest way to the side, at most another BETWEEN, a layer is further from the next."""
PORT = 18.0
"""At most so far apart lines leave and enter a box."""
STRAIGHT = 8.0
"""How much more than to a box a line that passes several layers is drawn to itself."""
SWEEPS = 32


class Area(NamedTuple):
    """A rectangle; `x` and `y` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


class Route(NamedTuple):
    """A line: straight down from its first point to the second (they may be one), bent from there to the third, and so
    on in turn; it ends straight. It bends between layers only."""

    points: list[tuple[float, float]]
    label: Area | None


class Placement(NamedTuple):
    """Where everything is, boxes and lines in their given order, and how large the whole is, in pixels."""

    boxes: list[Area]
    routes: list[Route]
    width: float
    height: float


def place(boxes: Sequence[Size], links: Sequence[Link]) -> Placement:
    """Places all; ValueError where the links make a cycle."""
    layers = layers_of(len(boxes), links)
    labelled = {layers[link.target] for link in links if link.label}
    rank_of, rank = [], -1
    for layer in range(max(layers, default=-1) + 1):
        rank += 2 if layer in labelled else 1  # the labels stand in a layer of their own, right above the boxes
        rank_of.append(rank)
    cells = [Cell(size, rank_of[layer], passing=False) for size, layer in zip(boxes, layers, strict=True)]
    chains = [chain_of(cells, link) for link in links]
    ranks: list[list[Cell]] = [[] for _ in range(rank + 1)]
    for cell in [*cells, *(cell for chain in chains for cell in chain[1:-1])]:
        cell.place = len(ranks[cell.rank])
        ranks[cell.rank].append(cell)
    order(ranks)
    _spread(ranks)
    for chain in chains:
        _straighten(chain[1:-1], ranks)
    return _placement(cells, chains, links, ranks)


def _spread(ranks: list[list[Cell]]) -> None:
    """Gives each cell its x: near its neighbours above and below, in its layer's order, clear of those beside it."""
    for rank in ranks:
        _settle(rank, [(0.0, 1.0)] * len(rank))
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _settle(rank, [_wanted(cell, down, sweep) for cell in rank])


def _wanted(cell: Cell, down: bool, sweep: int) -> tuple[float, float]:
    """Where a cell would like to be, and how much; lines that pass pull each other straight."""
    one_way = cell.above if down else cell.below
    pulling = one_way if sweep < SWEEPS // 2 and one_way else [*cell.above, *cell.below]
    weights = [STRAIGHT if cell.passing and other.passing else 1.0 for other in pulling]
    if not pulling:
        return cell.x, 0.01
    return sum(w * other.x for w, other in zip(weights, pulling, strict=True)) / sum(weights), sum(weights)


def _settle(rank: list[Cell], wanted: list[tuple[float, float]]) -> None:
    """Puts a layer as near to what is wanted as its order and distances allow: least squares, in which neighbours that
    would overlap move as one block."""
    offset = 0.0
    offsets: list[float] = []
    blocks: list[tuple[float, float, int]] = []  # sum of what is wanted, of its weights, cells
    for i, (cell, (x, weight)) in enumerate(zip(rank, wanted, strict=True)):
        if i:
            offset += (rank[i - 1].size.width + cell.size.width) / 2 + BESIDE
        offsets.append(offset)
        total, count = weight * (x - offset), 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            before = blocks.pop()
            total, weight, count = total + before[0], weight + before[1], count + before[2]
        blocks.append((total, weight, count))
    shifts = [total / weight for total, weight, count in blocks for _ in range(count)]
    for cell, shift, along in zip(rank, shifts, offsets, strict=True):
        cell.x = shift + along


def _straighten(passing: list[Cell], ranks: list[list[Cell]]) -> None:
    """Puts a line's places right below each other, as far down as what stands beside them leaves room for."""
    run: list[Cell] = []
    least, most = -inf, inf
    for cell in passing:
        left, right = _room(cell, ranks[cell.rank])
        if max(least, left) > min(most, right):
            run, least, most = [], -inf, inf
        run.append(cell)
        least, most = max(least, left), min(most, right)
        x = min(max(sum(c.x for c in run) / len(run), least), most)
        for c in run:
            c.x = x


def _room(cell: Cell, rank: list[Cell]) -> tuple[float, float]:
    """How far to the left and to the right a cell may go."""
    left, right = -inf, inf
    if cell.place:
        other = rank[cell.place - 1]
        left = other.x + (other.size.width + cell.size.width) / 2 + BESIDE
    if cell.place + 1 < len(rank):
        other = rank[cell.place + 1]
        right = other.x - (other.size.width + cell.size.width) / 2 - BESIDE
    return left, right


def _placement(
    cells: list[Cell], chains: list[list[Cell]], links: Sequence[Link], ranks: list[list[Cell]]
) -> Placement:
    """Moves all into the quadrant from 0, 0 and gives each layer its y."""
    everything = [cell for rank in ranks for cell in rank]
    left = min((cell.x - cell.size.width / 2 for cell in everything), default=0.0)
    for cell in everything:
        cell.x -= left
    right = max((cell.x + cell.size.width / 2 for cell in everything), default=0.0)
    heights = [max(cell.size.height for cell in rank) for rank in ranks]
    tops = _tops(ranks, heights)

    def area(cell: Cell) -> Area:
        middle = tops[cell.rank] + heights[cell.rank] / 2
        return Area(cell.x - cell.size.width / 2, middle - cell.size.height / 2, *cell.size)

    routes = []
    for chain, link in zip(chains, links, strict=True):
        xs = [_port(chain[0], chain[0].below, chain[1]), *(cell.x for cell in chain[1:-1])]
        xs.append(_port(chain[-1], chain[-1].above, chain[-2]))
        points = [
            (x, y) for x, c in zip(xs, chain, strict=True) for y in (tops[c.rank], tops[c.rank] + heights[c.rank])
        ]
        source, target = area(chain[0]), area(chain[-1])
        points[0], points[-1] = (xs[0], source.y + source.height), (xs[-1], target.y)
        routes.append(Route(points, area(chain[-2]) if link.label else None))
    bottom = tops[-1] + heights[-1] if tops else 0.0
    return Placement([area(cell) for cell in cells], routes, right, bottom)


def _tops(ranks: list[list[Cell]], heights: list[float]) -> list[float]:
    """The y of each layer: the further lines go to the side, the further the next is down."""
    tops, y = [], 0.0
    for i, rank in enumerate(ranks):
        tops.append(y)
        beside_labels = any(all(cell.passing for cell in some) for some in ranks[i : i + 2])
        aside = max((abs(cell.x - lower.x) for cell in rank for lower in cell.below), default=0.0)
        y += heights[i] + BETWEEN * (0.6 if beside_labels else 1) + min(STEEP * aside, BETWEEN)
    return tops


def _port(cell: Cell, others: list[Cell], other: Cell) -> float:
    """Where on its edge a box is left for, or entered from, `other`: side by side in the order of their places."""
    order = sorted(others, key=lambda cell: cell.place)
    apart = min(PORT, cell.size.width / (len(order) + 1))
    return cell.x + (order.index(other) - (len(order) - 1) / 2) * apart
