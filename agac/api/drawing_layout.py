"""Places the boxes and lines of a drawing: layers from top to bottom, few crossings, nothing on top
of anything else.

Pure geometry, the same for the same input. Lengths are pixels; x grows to the right, y downwards. A
line that passes a layer has a cell in it, as a box does, so that no line runs behind a box."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from math import inf
from typing import NamedTuple

PASSING_WIDTH = 8.0
"""Width of the cell of a line that passes a layer."""

CELL_GAP = 28.0
"""Between neighbours in a layer."""

LAYER_GAP = 46.0
"""From a layer to the next, at least."""

STEEPNESS = 0.12
"""Share of a layer's widest line to the side by which the next layer is further down, up to
another LAYER_GAP."""

PORT_GAP = 18.0
"""Between the lines that leave or enter a box, at most."""

STRAIGHT_WEIGHT = 8.0
"""How much more a line that passes several layers is pulled to itself than to a box."""

ORDER_SWEEPS = 24
LAYOUT_SWEEPS = 32


class Area(NamedTuple):
    """A rectangle."""

    x: float
    """Of its left side."""

    y: float
    """Of its upper side."""

    width: float
    height: float


@dataclass(slots=True, eq=False)
class Cell:
    """A piece of a layer: of a box, or of a line that passes the layer."""

    width: float
    height: float

    passing: bool = False
    """True if it is of a line."""

    rank: int = 0
    """The number of its layer."""

    above: list[Cell] = field(default_factory=list)
    """The cells of the layer above that lines connect with it."""

    below: list[Cell] = field(default_factory=list)
    """The cells of the layer below that lines connect with it."""

    position: int = 0
    """How many cells of the layer are to its left."""

    x: float = 0.0
    """Of its middle."""

    top: float = 0.0
    """The y of its layer."""

    depth: float = 0.0
    """The height of its layer."""

    @property
    def area(self) -> Area:
        """The rectangle that it covers."""
        middle = self.top + self.depth / 2
        return Area(self.x - self.width / 2, middle - self.height / 2, self.width, self.height)


class Layout(NamedTuple):
    """Cells that have their places."""

    chains: list[list[Cell]]
    """For each link the cells that its line goes through, from source to target."""

    width: float
    height: float


def lay_out(cells: Sequence[Cell], links: Iterable[tuple[Cell, Cell]]) -> Layout:
    """Gives each cell its place, and each line cells of its own in the layers that it passes."""
    links = list(links)
    _rank(cells, links)
    chains = [_chain(source, target) for source, target in links]
    everything = [*cells, *(cell for chain in chains for cell in chain[1:-1])]
    ranks: list[list[Cell]] = [[] for _ in {cell.rank for cell in cells}]
    for cell in everything:
        cell.position = len(ranks[cell.rank])
        ranks[cell.rank].append(cell)
    _order(ranks)
    _spread(ranks)
    for chain in chains:
        _straighten(chain[1:-1], ranks)
    left = min((cell.x - cell.width / 2 for cell in everything), default=0.0)
    for cell in everything:
        cell.x -= left
    width = max((cell.x + cell.width / 2 for cell in everything), default=0.0)
    return Layout(chains, width, _stack(ranks))


def port(cell: Cell, others: list[Cell], other: Cell) -> float:
    """Gives the x at which the line to `other` meets a box; the lines to all `others` are side by
    side, in the order of their cells."""
    order = sorted(others, key=lambda neighbour: neighbour.position)
    gap = min(PORT_GAP, cell.width / (len(order) + 1))
    return cell.x + (order.index(other) - (len(order) - 1) / 2) * gap


def _rank(cells: Sequence[Cell], links: Iterable[tuple[Cell, Cell]]) -> None:
    """Chooses the layer of each cell: the length of the longest way to it."""
    above: dict[Cell, list[Cell]] = {cell: [] for cell in cells}
    for source, target in links:
        above[target].append(source)
    for cell in TopologicalSorter(above).static_order():
        cell.rank = max((source.rank + 1 for source in above[cell]), default=0)


def _chain(source: Cell, target: Cell) -> list[Cell]:
    """Makes a cell in each layer between two, and connects them."""
    passed = [
        Cell(PASSING_WIDTH, 0, passing=True, rank=rank)
        for rank in range(source.rank + 1, target.rank)
    ]
    chain = [source, *passed, target]
    for upper, lower in pairwise(chain):
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


def _order(ranks: list[list[Cell]]) -> None:
    """Orders each layer by the positions of its neighbours, downwards and upwards in turn, and
    keeps the order with the fewest crossings."""
    best = [list(rank) for rank in ranks]
    fewest = _crossings(ranks)
    for sweep in range(ORDER_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _number(sorted(rank, key=lambda cell: _mean_position(cell, down)), rank)
        crossings = _crossings(ranks)
        if crossings < fewest:
            best = [list(rank) for rank in ranks]
            fewest = crossings
    for rank, kept in zip(ranks, best, strict=True):
        _number(kept, rank)


def _number(ordered: list[Cell], rank: list[Cell]) -> None:
    """Puts the cells of a layer into this order."""
    rank[:] = ordered
    for position, cell in enumerate(rank):
        cell.position = position


def _mean_position(cell: Cell, down: bool) -> float:
    """Gives the mean position of a cell's neighbours in the layer above, or in the one below."""
    neighbours = cell.above if down else cell.below
    if neighbours:
        return sum(other.position for other in neighbours) / len(neighbours)
    return cell.position


def _crossings(ranks: list[list[Cell]]) -> int:
    """Counts how often lines cross."""
    crossings = 0
    for rank in ranks:
        ended: list[int] = []
        for cell in rank:
            ends = sorted(lower.position for lower in cell.below)
            for position in ends:
                crossings += len(ended) - bisect_right(ended, position)
            for position in ends:
                insort(ended, position)
    return crossings


def _spread(ranks: list[list[Cell]]) -> None:
    """Gives each cell its x: near its neighbours, in its layer's order, clear of those next to
    it."""
    for rank in ranks:
        _settle(rank, [(0.0, 1.0)] * len(rank))
    for sweep in range(LAYOUT_SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _settle(rank, [_wanted(cell, down, sweep) for cell in rank])


def _wanted(cell: Cell, down: bool, sweep: int) -> tuple[float, float]:
    """Gives the x that suits a cell best, and the weight of that wish.

    Lines that pass pull each other straight."""
    neighbours = cell.above if down else cell.below
    if sweep >= LAYOUT_SWEEPS // 2 or not neighbours:
        neighbours = [*cell.above, *cell.below]
    if not neighbours:
        return cell.x, 0.01
    weights = [STRAIGHT_WEIGHT if cell.passing and other.passing else 1.0 for other in neighbours]
    pull = sum(weight * other.x for weight, other in zip(weights, neighbours, strict=True))
    return pull / sum(weights), sum(weights)


class _Block(NamedTuple):
    """Neighbours in a layer that move as one."""

    pull: float
    """Sum of the wanted shifts, each times its weight."""

    weight: float
    """Sum of the weights."""

    cells: int
    """How many cells it has."""

    @property
    def shift(self) -> float:
        return self.pull / self.weight


def _settle(rank: list[Cell], wanted: list[tuple[float, float]]) -> None:
    """Puts the cells of a layer as near to what is wanted as order and distances allow.

    Least squares: cells that would overlap become a block that moves as one."""
    offset = 0.0
    offsets: list[float] = []
    blocks: list[_Block] = []
    for i, (cell, (x, weight)) in enumerate(zip(rank, wanted, strict=True)):
        if i:
            offset += _touching(rank[i - 1], cell) + CELL_GAP
        offsets.append(offset)
        block = _Block(weight * (x - offset), weight, 1)
        while blocks and blocks[-1].shift > block.shift:
            left = blocks.pop()
            block = _Block(
                block.pull + left.pull, block.weight + left.weight, block.cells + left.cells
            )
        blocks.append(block)
    shifts = [block.shift for block in blocks for _ in range(block.cells)]
    for cell, shift, offset in zip(rank, shifts, offsets, strict=True):
        cell.x = shift + offset


def _touching(cell: Cell, neighbour: Cell) -> float:
    """Gives the distance between the middles of two neighbours that touch."""
    return (cell.width + neighbour.width) / 2


def _straighten(passing: list[Cell], ranks: list[list[Cell]]) -> None:
    """Puts the cells of a line right below each other, as far down as their neighbours leave
    room."""
    run: list[Cell] = []
    least = -inf
    most = inf
    for cell in passing:
        left, right = _room(cell, ranks[cell.rank])
        if max(least, left) > min(most, right):
            run = []
            least = -inf
            most = inf
        run.append(cell)
        least = max(least, left)
        most = min(most, right)
        x = min(max(sum(c.x for c in run) / len(run), least), most)
        for c in run:
            c.x = x


def _room(cell: Cell, rank: list[Cell]) -> tuple[float, float]:
    """Gives the least and the greatest x that the neighbours leave for a cell."""
    left = -inf
    right = inf
    if cell.position > 0:
        neighbour = rank[cell.position - 1]
        left = neighbour.x + _touching(neighbour, cell) + CELL_GAP
    if cell.position + 1 < len(rank):
        neighbour = rank[cell.position + 1]
        right = neighbour.x - _touching(neighbour, cell) - CELL_GAP
    return left, right


def _stack(ranks: list[list[Cell]]) -> float:
    """Gives each layer its y: the further its lines go to the side, the further down is the next.
    Returns the whole height."""
    y = 0.0
    bottom = 0.0
    for rank in ranks:
        depth = max(cell.height for cell in rank)
        for cell in rank:
            cell.top = y
            cell.depth = depth
        bottom = y + depth
        widest = max((abs(cell.x - lower.x) for cell in rank for lower in cell.below), default=0.0)
        y += depth + LAYER_GAP + min(STEEPNESS * widest, LAYER_GAP)
    return bottom
