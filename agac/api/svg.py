"""A workflow as an image: one SVG that stands alone, on light and on dark, wherever it is shown.

It asks no other host for anything, runs nothing, and has no ids, so that several may stand in one page. What does not
fit is cut, and its whole text is the tool tip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from agac.api.drawing import WORDS, Edge, Node, figures, linked, one_line
from agac.api.layering import Link, Size
from agac.api.layout import Area, Placement, Route, place
from agac.api.textwidth import cut_to, text_width

MARGIN = 28.0
INSIDE = 16.0
"""From a box's side to its text."""
NARROWEST, WIDEST = 168.0, 300.0
"""Of a box."""
LABEL_WIDEST = 240.0
ROUND = 10.0
STRIPE = 5.0
BAR = 6.0
TIP = 7.0
"""How much of a line is its tip."""
SMALL = 12.0
"""The font size of all but names and kinds, in pixels."""
LOOKS = {"kind": (12.5, 17.0), "name": (17.0, 21.0), "more": (SMALL, 17.0)}
"""Of a line in a box: the size that its width is measured at (bold is wider than its size), and how far down it is."""

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
KINDS = ("ask", "python", "filter", "dedupe", "select", "rename")


class _Box(NamedTuple):
    """What a box shows, from the top down: lines as (look, text, whole text), rows of figures as (colour, text)."""

    node: Node
    size: Size
    lines: list[tuple[str, str, str]]
    rows: list[list[tuple[str, str]]]


def svg(nodes: Sequence[Node], edges: Iterable[Edge], *, title: str = "workflow") -> str:
    """The graph as an SVG document; `title` is its tool tip and what a screen reader says."""
    joined = linked(nodes, edges)
    boxes = [_box(node) for node in nodes]
    links = [Link(source, target, _label_size(_label(edge))) for source, target, edge in joined]
    placed = place([box.size for box in boxes], links)
    parts = _opening(placed, _escaped(title))
    for route, (source, target, edge) in zip(placed.routes, joined, strict=True):
        parts += _line(route, edge, between=nodes[source].level != nodes[target].level)
    for area, box in zip(placed.boxes, boxes, strict=True):
        parts += _stage(area, box)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def _opening(placed: Placement, title: str) -> list[str]:
    width, height = f"{placed.width + 2 * MARGIN:.0f}", f"{placed.height + 2 * MARGIN:.0f}"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="agac-graph" {size} role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="12"/>',
        f'<g transform="translate({MARGIN:.0f} {MARGIN:.0f})">',
    ]


def _style() -> str:
    """The rules: how things look, their colours on light, and those on dark."""

    def coloured(side: int) -> str:
        fills = (_rule(selectors, f"fill:{colours[side]}") for selectors, colours in COLOURS.items())
        return "".join(
            [*fills, *(_rule(selectors, f"stroke:{colours[side]}") for selectors, colours in STROKES.items())]
        )

    fonts = "".join(_rule(selectors, what) for selectors, what in FONTS.items())
    return f"{fonts}{coloured(0)}@media (prefers-color-scheme:dark){{{coloured(1)}}}"


def _rule(selectors: str, what: str) -> str:
    """A rule for this image alone, also where it stands in a page with others."""
    return ",".join(f".agac-graph {selector}" for selector in selectors.split(",")) + f"{{{what}}}"


def _box(node: Node) -> _Box:
    """Cuts the texts of a box to the widest that it may be, and measures it."""
    room = WIDEST - 2 * INSIDE
    kind = one_line(node.kind) + (f" · level {node.level}" if node.level else "")
    texts = [("kind", kind), ("name", one_line(node.name)), *(("more", one_line(line)) for line in node.label_lines)]
    lines = [(look, cut_to(text, LOOKS[look][0], room), text) for look, text in texts]
    rows = _rows(node, room)
    widths = [*(text_width(text, LOOKS[look][0]) for look, text, _ in lines), *map(_row_width, rows)]
    width = min(max(NARROWEST, *(width + 2 * INSIDE for width in widths)), WIDEST)
    height = sum(LOOKS[look][1] for look, _ in texts) + 20 + (10 + BAR + 17 * len(rows) if rows else 0)
    return _Box(node, Size(width, height), lines, rows)


def _rows(node: Node, room: float) -> list[list[tuple[str, str]]]:
    """The figures of a box, in as many rows as they need."""
    if node.counts is None:
        return []
    rows: list[list[tuple[str, str]]] = [[]]
    for word, n in figures(node.counts):
        piece = (_colour(word), cut_to(f"{n:,} {one_line(word)}", SMALL, room - 2 * SMALL))
        if rows[-1] and _row_width([*rows[-1], piece]) > room:
            rows.append([])
        rows[-1].append(piece)
    return rows if rows[0] else [[("track", "no rows")]]


def _row_width(row: list[tuple[str, str]]) -> float:
    return sum(_figure_width(text) for _, text in row) - SMALL


def _figure_width(text: str) -> float:
    """With its dot before and the space after it."""
    return SMALL + text_width(text, SMALL) + SMALL


def _colour(word: str) -> str:
    return word if word in WORDS else "others"


def _stage(area: Area, box: _Box) -> list[str]:
    x, y, width, height = area
    kind = box.node.kind if box.node.kind in KINDS else "others"
    (_, _, first), (_, _, name), *more = box.lines
    whole = [name, first, *(text for _, _, text in more)]
    parts = [
        f"<g><title>{'&#10;'.join(map(_escaped, whole))}</title>",
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{ROUND:g}"/>',
        f'<path class="k-{kind}" d="{_stripe(area)}"/>',
    ]
    at = y + 8
    for look, text, _ in box.lines:
        at += LOOKS[look][1]
        classes = f"kind k-{kind}" if look == "kind" else look
        parts.append(f'<text class="{classes}" x="{x + INSIDE:.1f}" y="{at:.1f}">{_escaped(text)}</text>')
    if box.rows:
        bar = Area(x + INSIDE, at + 12, width - 2 * INSIDE, BAR)
        parts += [*_bar(figures(box.node.counts or {}), bar), *_figures(box.rows, bar)]
    return [*parts, "</g>"]


def _stripe(area: Area) -> str:
    """Along the left side of a box, within its round corners."""
    far, near, down = f"{ROUND:g}", f"{ROUND - STRIPE:g}", f"{area.height - 2 * ROUND:.1f}"
    outside = f"a{far} {far} 0 0 0 -{far} {far}v{down}a{far} {far} 0 0 0 {far} {far}"
    inside = f"a{near} {far} 0 0 1 -{near} -{far}v-{down}a{near} {far} 0 0 1 {near} -{far}"
    return f"M{area.x + ROUND:.1f} {area.y:.1f}{outside}{inside}z"


def _bar(counts: list[tuple[str, int]], bar: Area) -> list[str]:
    """What became of the rows, each part at least wide enough to be seen."""
    x, apart = bar.x, 1.5
    shown = [(_colour(word), n) for word, n in counts] or [("track", 1)]
    least = min(5.0, bar.width / len(shown))
    scale = (bar.width + apart - least * len(shown)) / sum(n for _, n in shown)
    parts = []
    for colour, n in shown:
        width = least + scale * n
        parts.append(
            f'<rect class="{colour}" x="{x:.1f}" y="{bar.y:.1f}" width="{width - apart:.1f}" height="{BAR:g}" rx="2"/>'
        )
        x += width
    return parts


def _figures(rows: list[list[tuple[str, str]]], bar: Area) -> list[str]:
    parts, y = [], bar.y + bar.height
    for row in rows:
        x, y = bar.x, y + 17
        for colour, text in row:
            parts.append(f'<circle class="{colour}" cx="{x + 4:.1f}" cy="{y - 4:.1f}" r="4"/>')
            parts.append(f'<text class="figure" x="{x + SMALL:.1f}" y="{y:.1f}">{_escaped(text)}</text>')
            x += _figure_width(text)
    return parts


def _label(edge: Edge) -> str:
    return cut_to(one_line(edge.label), SMALL, LABEL_WIDEST)


def _label_size(label: str) -> Size | None:
    return Size(text_width(label, SMALL) + 14, 20) if label else None


def _line(route: Route, edge: Edge, *, between: bool) -> list[str]:
    x, y = route.points[-1]
    points = [*route.points[:-2], *((x, end - TIP) for _, end in route.points[-2:])]
    way = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for i, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        half = (y0 + y1) / 2
        bend = f"C{x0:.1f} {half:.1f} {x1:.1f} {half:.1f} {x1:.1f} {y1:.1f}"
        way.append(bend if i % 2 else f"L{x1:.1f} {y1:.1f}")
    whole = f"{edge.source} → {edge.target}" + (f": {edge.label}" if edge.label.strip() else "")
    parts = [
        f"<g><title>{_escaped(whole)}</title>",
        f'<path class="line{" between" if between else ""}" d="{"".join(way)}"/>',
        f'<path class="tip" d="M{x - 4.5:.1f} {y - 8:.1f}L{x:.1f} {y - 0.5:.1f}L{x + 4.5:.1f} {y - 8:.1f}z"/>',
    ]
    if route.label:
        left, top, width, height = route.label
        at = f'x="{left + width / 2:.1f}" y="{top + 14:.1f}"'
        parts += [
            f'<rect class="page" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>',
            f'<text class="label" text-anchor="middle" {at}>{_escaped(_label(edge))}</text>',
        ]
    return [*parts, "</g>"]


def _escaped(text: str) -> str:
    return escape(one_line(text))
