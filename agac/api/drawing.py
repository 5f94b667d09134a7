"""A drawing, boxes and lines between them, as Mermaid text, or as one SVG: its layers, places and
text widths."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise
from math import inf
from typing import NamedTuple

from agac.core.text import squeezed

# Every text may be the user's: names, labels and counts are cut and escaped before they are drawn,
# never trusted.

WORDS = ("done", "reused", "failed", "skipped", "dropped")
"""Counts that have a colour, in the order in which they are shown; others come after them."""

MERMAID_LINE = 60

BRACKETS = {
    "input": ("[(", ")]"), "python": ("[[", "]]"), "filter": ("{{", "}}"), "dedupe": ("{{", "}}"),
    "output": ("([", "])"),
}  # fmt: skip
"""How Mermaid brackets the kinds that are not plain boxes."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A box: a stage. `counts`: what became of its rows in the last run, if any. `level`: 0 for
    the input's rows."""

    name: str
    kind: str
    label_lines: Sequence[str] = ()
    counts: Mapping[str, int] | None = None
    level: int = 0


class DrawnEdge(NamedTuple):
    """A line from a stage to one that needs it, by their names."""

    source: str
    target: str


def figures(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts that are not nought, in the order in which they are shown."""
    return [
        (word, counts[word]) for word in dict.fromkeys([*WORDS, *counts]) if counts.get(word, 0) > 0
    ]


def mermaid(nodes: Sequence[DrawnNode], edges: Iterable[DrawnEdge]) -> str:
    """The graph as Mermaid text (a flowchart), as GitHub and others draw it in a ```mermaid block.
    Lines between levels are dotted. Mermaid draws 500 edges and 50,000 characters at most unless
    its page allows more."""
    lines = ["flowchart TD"]
    for i, node in enumerate(nodes):
        opening, closing = BRACKETS.get(node.kind, ("[", "]"))
        level = f" · level {node.level}" if node.level else ""
        shown = [
            f"<b>{_quoted(node.name)}</b>",
            f"<i>{_quoted(node.kind)}{level}</i>",
            *map(_quoted, node.label_lines),
        ]
        if node.counts is not None:
            shown.append(
                _quoted(
                    " · ".join(f"{n:,} {word}" for word, n in figures(node.counts)) or "no rows"
                )
            )
        text = "<br/>".join(shown)
        lines.append(f'    n{i}{opening}"{text}"{closing}')
    places = {node.name: place for place, node in enumerate(nodes)}
    for source, target in ((places[source], places[target]) for source, target in edges):
        arrow = "-->" if nodes[source].level == nodes[target].level else "-.->"
        lines.append(f"    n{source} {arrow} n{target}")
    for kind, colour in BORDERS.items():
        members = ",".join(f"n{i}" for i, node in enumerate(nodes) if node.kind == kind)
        if members:
            lines += [
                f"    classDef {kind} stroke:{colour},stroke-width:2px",
                f"    class {members} {kind}",
            ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Text inside Mermaid's quotes: what could be markup, Markdown or a link is written as its
    number."""
    line = squeezed(text)
    cut = line if len(line) <= MERMAID_LINE else line[: MERMAID_LINE - 1] + "…"
    return (
        re.sub(r"[^\w .,:/!=?…·-]|^\W|[.:-](?=\W|$)", lambda found: f"#{ord(found[0])};", cut)
        or "#160;"
    )


# Where the boxes and lines of a drawing go: layers from top to bottom, few crossings, nothing on
# top of another.
#
# Pure geometry, the same for the same input. Lengths are pixels; x grows to the right, y downwards.
# A line that passes a layer holds a place in it, as a box does: so no line runs behind a box.

PASSING = 8.0  # what a line takes of a layer that it passes
BESIDE = 28.0  # between neighbours in a layer
BETWEEN = 46.0  # from a layer to the next
# how much of the furthest way to the side, at most another BETWEEN, a layer is further from the
# next
STEEP = 0.12
PORT = 18.0  # at most so far apart lines leave and enter a box
STRAIGHT = 8.0  # how much more than to a box a line that passes several layers is drawn to itself
SWEEPS = 24
LAYOUT_SWEEPS = 32


class Area(NamedTuple):
    """A rectangle; `x` and `y` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True, eq=False)
class Cell:
    """What has a place in a layer: a box, or a passing line. `x` is its middle's; `top` and
    `depth` are the layer's."""

    width: float
    height: float
    passing: bool = False
    rank: int = 0
    above: list[Cell] = field(default_factory=list)
    below: list[Cell] = field(default_factory=list)
    place: int = 0
    x: float = 0.0
    top: float = 0.0
    depth: float = 0.0

    @property
    def area(self) -> Area:
        """Where it is."""
        middle = self.top + self.depth / 2
        return Area(self.x - self.width / 2, middle - self.height / 2, self.width, self.height)


def place(
    cells: Sequence[Cell], links: Iterable[tuple[Cell, Cell]]
) -> tuple[list[list[Cell]], float, float]:
    """Places all: the cells that each line goes through from source to target, and the whole's
    width and height."""
    links = list(links)
    above: dict[Cell, list[Cell]] = {cell: [] for cell in cells}
    for source, target in links:
        above[target].append(source)
    for cell in TopologicalSorter(
        above
    ).static_order():  # its layer is the length of the longest way to it
        cell.rank = max((source.rank + 1 for source in above[cell]), default=0)
    chains = []
    for first, last in links:
        passed = [
            Cell(PASSING, 0, passing=True, rank=between)
            for between in range(first.rank + 1, last.rank)
        ]
        chains.append([first, *passed, last])
        for upper, lower in pairwise(chains[-1]):
            upper.below.append(lower)
            lower.above.append(upper)
    everything = [*cells, *(cell for chain in chains for cell in chain[1:-1])]
    ranks: list[list[Cell]] = [[] for _ in {cell.rank for cell in cells}]
    for cell in everything:
        cell.place = len(ranks[cell.rank])
        ranks[cell.rank].append(cell)
    _order(ranks)
    # each cell gets its x: near its neighbours, in its layer's order, clear of those beside it
    for rank in ranks:
        _settle(rank, [(0.0, 1.0)] * len(rank))
    for sweep in range(LAYOUT_SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _settle(rank, [_wanted(cell, down, sweep) for cell in rank])
    for chain in chains:
        _straighten(chain[1:-1], ranks)
    left = min((cell.x - cell.width / 2 for cell in everything), default=0.0)
    for cell in everything:
        cell.x -= left
    return chains, max((cell.x + cell.width / 2 for cell in everything), default=0.0), _stack(ranks)


def _order(ranks: list[list[Cell]]) -> None:
    """Orders each layer by where its neighbours stand, downwards and upwards in turn; keeps what
    crosses least."""
    best = [list(rank) for rank in ranks]
    least = _crossings(ranks)
    for sweep in range(SWEEPS):
        if not least:
            break
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            _number(sorted(rank, key=lambda cell: _middle(cell, down)), rank)
        crossings = _crossings(ranks)
        if crossings < least:
            best = [list(rank) for rank in ranks]
            least = crossings
    for rank, kept in zip(ranks, best, strict=True):
        _number(kept, rank)


def _number(ordered: list[Cell], rank: list[Cell]) -> None:
    rank[:] = ordered
    for number, cell in enumerate(rank):
        cell.place = number


def _middle(cell: Cell, down: bool) -> float:
    neighbours = cell.above if down else cell.below
    if neighbours:
        return sum(other.place for other in neighbours) / len(neighbours)
    return cell.place


def _crossings(ranks: list[list[Cell]]) -> int:
    crossings = 0
    for rank in ranks:
        ended: list[int] = []
        for cell in rank:
            for place in (ends := sorted(lower.place for lower in cell.below)):
                crossings += len(ended) - bisect_right(ended, place)
            for place in ends:
                insort(ended, place)
    return crossings


def _wanted(cell: Cell, down: bool, sweep: int) -> tuple[float, float]:
    """Where a cell would like to be, and how much; lines that pass pull each other straight."""
    one_way = cell.above if down else cell.below
    if sweep < LAYOUT_SWEEPS // 2 and one_way:
        pulling = one_way
    else:
        pulling = [*cell.above, *cell.below]
    weights = [STRAIGHT if cell.passing and other.passing else 1.0 for other in pulling]
    if not pulling:
        return cell.x, 0.01
    return sum(w * other.x for w, other in zip(weights, pulling, strict=True)) / sum(weights), sum(
        weights
    )


def _settle(rank: list[Cell], wanted: list[tuple[float, float]]) -> None:
    """Puts a layer as near to what is wanted as order and distances allow: least squares; overlaps
    move as one."""
    offset = 0.0
    offsets: list[float] = []
    blocks: list[tuple[float, float, int]] = []  # sum of what is wanted, of its weights, cells
    for i, (cell, (x, weight)) in enumerate(zip(rank, wanted, strict=True)):
        if i:
            offset += _apart(rank[i - 1], cell) + BESIDE
        offsets.append(offset)
        total = weight * (x - offset)
        count = 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            before = blocks.pop()
            total = total + before[0]
            weight = weight + before[1]
            count = count + before[2]
        blocks.append((total, weight, count))
    shifts = [total / weight for total, weight, count in blocks for _ in range(count)]
    for cell, shift, along in zip(rank, shifts, offsets, strict=True):
        cell.x = shift + along


def _apart(cell: Cell, neighbour: Cell) -> float:
    return (cell.width + neighbour.width) / 2


def _straighten(passing: list[Cell], ranks: list[list[Cell]]) -> None:
    """Puts a line's places right below each other, as far down as what stands beside them leaves
    room for."""
    run: list[Cell] = []
    least = -inf
    most = inf
    for cell in passing:
        rank = ranks[cell.rank]
        left = max(
            (one.x + _apart(one, cell) + BESIDE for one in rank[: cell.place][-1:]), default=-inf
        )
        right = min(
            (one.x - _apart(one, cell) - BESIDE for one in rank[cell.place + 1 :][:1]), default=inf
        )
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


def _stack(ranks: list[list[Cell]]) -> float:
    """Gives each layer its y: the further lines go to the side, the further down the next. Returns
    the whole height."""
    y = bottom = 0.0
    for rank in ranks:
        depth = max(cell.height for cell in rank)
        for cell in rank:
            cell.top = y
            cell.depth = depth
        bottom = y + depth
        aside = max((abs(cell.x - lower.x) for cell in rank for lower in cell.below), default=0.0)
        y += depth + BETWEEN + min(STEEP * aside, BETWEEN)
    return bottom


def _port(cell: Cell, others: list[Cell], other: Cell) -> float:
    """Where on its edge a box is left for, or entered from, `other`: side by side in the order of
    their places."""
    order = sorted(others, key=lambda cell: cell.place)
    apart = min(PORT, cell.width / (len(order) + 1))
    return cell.x + (order.index(other) - (len(order) - 1) / 2) * apart


# How wide a text is taken to be where no font can be asked: on the wide side of the usual sans
# serifs.


def text_width(text: str, size: float) -> float:
    """Pixels, at a font size in pixels."""
    return size * sum(map(_em, text))


def cut_to(text: str, size: float, room: float) -> str:
    """As much of the text as `room` pixels hold, with … where there is more."""
    if text_width(text, size) <= room:
        return text
    used = size * _em("…")
    for end, c in enumerate(text):
        used += size * _em(c)
        if used > room:
            return (
                text[: end + 1].rpartition(" ")[0] or text[:end]
            ).rstrip() + "…"  # no word is cut that is not alone
    return text


def _em(c: str) -> float:
    if unicodedata.combining(c):
        return 0.0
    if unicodedata.east_asian_width(c) in "WF":
        return 1.0
    if c in "iljtfrI.,:;'|!()[]·` ":
        return 0.38
    if c in "mwMW@%":
        return 0.92
    if c.isupper() or not c.isascii():
        return 0.72
    return 0.6


# A workflow as an image: one SVG that stands alone, on light and on dark, wherever it is shown.
#
# It asks no other host for anything, runs nothing, and has no ids, so that several may stand in one
# page. What does not fit is cut, and its whole text is the tool tip.

MARGIN = 28.0
INSIDE = 16.0  # from a box's side to its text
NARROWEST = 168.0
WIDEST = 300.0
ROUND = 10.0
STRIPE = 5.0
BAR = 6.0
LINES = 3  # of a text in a box, at most
TIP = 7.0  # how much of a line is its tip
SMALL = 12.0  # the font size of all but names and kinds, in pixels
LOOKS = {"kind": (12.5, 17.0), "name": (17.0, 21.0), "more": (SMALL, 17.0)}
"""Of a line in a box: the size that its width is measured at (bold is wider than its size), and
how far down it is."""

FONTS = {
    "text": "font-family:ui-sans-serif,system-ui,sans-serif;font-size:12px",
    ".name": "font-size:15px;font-weight:600",
    ".kind": "font-size:11px;font-weight:600;letter-spacing:.04em",
    ".line": "fill:none;stroke-width:1.5",
    ".between": "stroke-dasharray:5 4",
}
COLOURS = {  # selectors: light, dark
    ".page": ("#f6f8fa", "#0d1117"),
    ".box": ("#ffffff", "#161b22"),
    ".track": ("#e7ebef", "#2a313c"),
    ".name,.figure": ("#1f2328", "#f0f6fc"),
    ".more,.label,.kind": ("#59636e", "#9198a1"),
    ".tip": ("#8c959f", "#656c76"),
    ".done": ("#1a7f37", "#3fb950"),
    ".reused": ("#1b7c83", "#39c5cf"),
    ".failed": ("#cf222e", "#f85149"),
    ".skipped": ("#818b98", "#7d8590"),
    ".dropped": ("#bc4c00", "#db6d28"),
    ".others": ("#bf8700", "#d29922"),
    ".k-ask": ("#0969da", "#58a6ff"),
    ".k-python": ("#8250df", "#bc8cff"),
    ".k-filter": ("#bc4c00", "#db6d28"),
    ".k-dedupe": ("#bf3989", "#f778ba"),
    ".k-select,.k-rename": ("#1b7c83", "#39c5cf"),
    ".k-others": ("#59636e", "#9198a1"),
}
STROKES = {".box": ("#d1d9e0", "#3d444d"), ".line": ("#8c959f", "#656c76")}
BORDERS = {
    kind: light
    for of, (light, _) in COLOURS.items()
    for kind in re.findall(r"\.k-(?!others)(\w+)", of)
}
"""Of the border of each kind of stage: strong enough on light and on dark."""


class _Box(NamedTuple):
    """What a box shows, downwards: lines as (look, text, whole text where it begins), figures as
    (colour, text)."""

    node: DrawnNode
    cell: Cell
    lines: list[tuple[str, str, str | None]]
    rows: list[list[tuple[str, str]]]


def svg(
    nodes: Sequence[DrawnNode],
    edges: Iterable[DrawnEdge],
    *,
    title: str = "workflow",
    styled: bool = True,
) -> str:
    """The graph as an SVG document; `title` is its tool tip and what a screen reader says. Not
    `styled`: it is part of a page that has `page_style` in a file of its own, since its policy
    forbids styles within it."""
    boxes = [_box(node) for node in nodes]
    named = {box.node.name: box for box in boxes}
    ends = [(named[source], named[target]) for source, target in edges]
    chains, inner_width, inner_height = place(
        [box.cell for box in boxes], [(a.cell, b.cell) for a, b in ends]
    )
    width = f"{inner_width + 2 * MARGIN:.0f}"
    height = f"{inner_height + 2 * MARGIN:.0f}"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    name = _escaped(title)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="agac-graph" {size} role="img" '
            f'aria-label="{name}">'
        ),
        f"<title>{name}</title>",
        *([f"<style>{page_style(themed=False)}</style>"] if styled else []),
        f'<rect class="page" width="{width}" height="{height}" rx="12"/>',
        f'<g transform="translate({MARGIN:.0f} {MARGIN:.0f})">',
    ]
    for chain, (source, target) in zip(chains, ends, strict=True):
        parts += _line(chain, source.node, target.node)
    for box in boxes:
        parts += _stage(box)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def page_style(*, themed: bool = True) -> str:
    """The rules of drawings, on light and on dark; where it is `themed`, `data-theme` of the page
    may choose one."""
    unless, chosen = (
        (":root:not([data-theme=light]) ", _colours(1, "[data-theme=dark] "))
        if themed
        else ("", "")
    )
    return (
        f"{_rules(FONTS)}{_colours(0)}@media "
        f"(prefers-color-scheme:dark){{{_colours(1, unless)}}}{chosen}"
    )


def _colours(side: int, where: str = "") -> str:
    """The rules of the colours on light (0) or on dark (1), below what `where` selects."""
    fills = {selectors: f"fill:{colours[side]}" for selectors, colours in COLOURS.items()}
    strokes = {selectors: f"stroke:{colours[side]}" for selectors, colours in STROKES.items()}
    return _rules(fills, where) + _rules(strokes, where)


def _rules(looks: Mapping[str, str], where: str = "") -> str:
    return "".join(
        ",".join(f"{where}.agac-graph {selector}" for selector in selectors.split(","))
        + f"{{{look}}}"
        for selectors, look in looks.items()
    )


def _box(node: DrawnNode) -> _Box:
    """Cuts the texts of a box to the widest that it may be, and measures it."""
    room = WIDEST - 2 * INSIDE
    kind = squeezed(node.kind) + (f" · level {node.level}" if node.level else "")
    texts = [
        ("kind", kind),
        ("name", squeezed(node.name)),
        *(("more", squeezed(line)) for line in node.label_lines),
    ]
    lines = [
        (look, line, None if i else text)
        for look, text in texts
        for i, line in enumerate(_cut(look, text, room))
    ]
    rows: list[list[tuple[str, str]]] = []
    for word, n in figures(node.counts or {}):  # in as many rows as they need
        piece = (
            word if word in WORDS else "others",
            cut_to(f"{n:,} {squeezed(word)}", SMALL, room - 2 * SMALL),
        )
        if rows and _row_width([*rows[-1], piece]) <= room:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    if node.counts is not None and not rows:
        rows = [[("track", "no rows")]]
    widths = [
        *(text_width(text, LOOKS[look][0]) for look, text, _ in lines),
        *map(_row_width, rows),
    ]
    width = min(max(NARROWEST, *(width + 2 * INSIDE for width in widths)), WIDEST)
    height = (
        sum(LOOKS[look][1] for look, *_ in lines) + 20 + (10 + BAR + 17 * len(rows) if rows else 0)
    )
    return _Box(node, Cell(width, height), lines, rows)


def _cut(look: str, text: str, room: float) -> list[str]:
    """A text in as many lines as it needs, of names and kinds one, of others LINES at most; what
    is more is cut."""
    size = LOOKS[look][0]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if (
            look != "more"
            or len(lines) == LINES
            or not lines[-1]
            or text_width(longer, size) <= room
        ):
            lines[-1] = longer
        else:
            lines.append(word)
    return [cut_to(line, size, room) for line in lines]


def _row_width(row: list[tuple[str, str]]) -> float:
    return sum(_figure_width(text) for _, text in row) - SMALL


def _figure_width(text: str) -> float:
    """With its dot before and the space after it."""
    return SMALL + text_width(text, SMALL) + SMALL


def _stage(box: _Box) -> list[str]:
    x, y, width, height = box.cell.area
    kind = box.node.kind if box.node.kind in BORDERS else "others"
    (_, _, first), (_, _, name), *more = box.lines
    whole = [text for text in (name, first, *(text for _, _, text in more)) if text is not None]
    # along the left side of the box, within its round corners
    far = f"{ROUND:g}"
    near = f"{ROUND - STRIPE:g}"
    down = f"{height - 2 * ROUND:.1f}"
    outside = f"a{far} {far} 0 0 0 -{far} {far}v{down}a{far} {far} 0 0 0 {far} {far}"
    inside = f"a{near} {far} 0 0 1 -{near} -{far}v-{down}a{near} {far} 0 0 1 {near} -{far}"
    parts = [
        f"<g><title>{'&#10;'.join(map(_escaped, whole))}</title>",
        (
            f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{ROUND:g}"/>'
        ),
        f'<path class="k-{kind}" d="M{x + ROUND:.1f} {y:.1f}{outside}{inside}z"/>',
    ]
    at = y + 8
    for look, text, _ in box.lines:
        at += LOOKS[look][1]
        classes = f"kind k-{kind}" if look == "kind" else look
        parts.append(
            f'<text class="{classes}" x="{x + INSIDE:.1f}" y="{at:.1f}">{_escaped(text)}</text>'
        )
    if box.rows:
        parts += _counts(box, Area(x + INSIDE, at + 12, width - 2 * INSIDE, BAR))
    return [*parts, "</g>"]


def _counts(box: _Box, bar: Area) -> list[str]:
    """What became of the rows: a bar, each part at least wide enough to be seen, and the figures
    below it."""
    x = bar.x
    apart = 1.5
    parts = list[str]()
    shown = [
        (word if word in WORDS else "others", n) for word, n in figures(box.node.counts or {})
    ] or [("track", 1)]
    least = min(5.0, bar.width / len(shown))
    scale = (bar.width + apart - least * len(shown)) / sum(n for _, n in shown)
    for colour, n in shown:
        width = least + scale * n
        parts.append(
            f'<rect class="{colour}" x="{x:.1f}" y="{bar.y:.1f}" width="{width - apart:.1f}" '
            f'height="{BAR:g}" rx="2"/>'
        )
        x += width
    y = bar.y + bar.height
    for row in box.rows:
        x = bar.x
        y = y + 17
        for colour, text in row:
            parts.append(f'<circle class="{colour}" cx="{x + 4:.1f}" cy="{y - 4:.1f}" r="4"/>')
            parts.append(
                f'<text class="figure" x="{x + SMALL:.1f}" y="{y:.1f}">{_escaped(text)}</text>'
            )
            x += _figure_width(text)
    return parts


def _line(chain: list[Cell], source: DrawnNode, target: DrawnNode) -> list[str]:
    """A line: straight down through each layer, bent between them; it ends straight, in a tip."""
    first = chain[0]
    last = chain[-1]
    xs = [
        _port(first, first.below, chain[1]),
        *(cell.x for cell in chain[1:-1]),
        _port(last, last.above, chain[-2]),
    ]
    points = [
        (x, y) for x, cell in zip(xs, chain, strict=True) for y in (cell.top, cell.top + cell.depth)
    ]
    x = xs[-1]
    y = last.area.y
    points = [
        (xs[0], first.area.y + first.height),
        *points[1:-2],
        (x, points[-2][1] - TIP),
        (x, y - TIP),
    ]
    way = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for i, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        half = (y0 + y1) / 2
        bend = f"C{x0:.1f} {half:.1f} {x1:.1f} {half:.1f} {x1:.1f} {y1:.1f}"
        way.append(bend if i % 2 else f"L{x1:.1f} {y1:.1f}")
    between = "" if source.level == target.level else " between"
    return [
        f"<g><title>{_escaped(f'{source.name} → {target.name}')}</title>",
        f'<path class="line{between}" d="{"".join(way)}"/>',
        (
            f'<path class="tip" d="M{x - 4.5:.1f} {y - 8:.1f}L{x:.1f} {y - 0.5:.1f}L{x + 4.5:.1f} '
            f'{y - 8:.1f}z"/>'
        ),
        "</g>",
    ]


def _escaped(text: str) -> str:
    return escape(squeezed(text))
