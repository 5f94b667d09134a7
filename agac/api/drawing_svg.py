"""A drawing as one SVG that needs nothing else, on light and on dark pages.

It asks no other host for anything, runs nothing, and has no ids, so that several may be in one
page. What does not fit is cut, and its whole text is the tool tip."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from agac.api.drawing import COUNT_WORDS, KIND_COLOURS, DrawnEdge, DrawnNode, figures
from agac.api.drawing_layout import Area, Cell, lay_out, port
from agac.core.text import squeezed

MARGIN = 28.0
PADDING = 16.0
"""From a box's side to its text."""

MIN_WIDTH = 168.0
MAX_WIDTH = 300.0
ROUNDING = 10.0
STRIPE = 5.0
"""Width of the coloured side of a box."""

BAR_HEIGHT = 6.0
BAR_GAP = 1.5
MAX_LINES = 3
"""Lines of one text in a box, at most."""

TIP = 7.0
"""How much of a line is its tip."""

SMALL = 12.0
"""The font size of all but names and kinds, in pixels."""

FIGURE_HEIGHT = 17.0
"""Height of a row of figures."""


class _Look(NamedTuple):
    """How a line of text in a box looks."""

    size: float
    """The font size that its width is measured at: bold is wider than its size."""

    height: float


LOOKS = {"kind": _Look(12.5, 17.0), "name": _Look(17.0, 21.0), "more": _Look(SMALL, 17.0)}

FONTS = {
    "text": "font-family:ui-sans-serif,system-ui,sans-serif;font-size:12px",
    ".name": "font-size:15px;font-weight:600",
    ".kind": "font-size:11px;font-weight:600;letter-spacing:.04em",
    ".line": "fill:none;stroke-width:1.5",
    ".between": "stroke-dasharray:5 4",
}

FILLS = {
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
    ".k-ask": KIND_COLOURS["ask"],
    ".k-python": KIND_COLOURS["python"],
    ".k-filter": KIND_COLOURS["filter"],
    ".k-dedupe": KIND_COLOURS["dedupe"],
    ".k-select,.k-rename": KIND_COLOURS["select"],
    ".k-others": ("#59636e", "#9198a1"),
}
"""By their selectors the colours of areas and texts, on a light and on a dark page."""

STROKES = {".box": ("#d1d9e0", "#3d444d"), ".line": ("#8c959f", "#656c76")}
"""By their selectors the colours of borders and lines, on a light and on a dark page."""


class _Line(NamedTuple):
    """A line of text in a box."""

    look: str
    """A key of LOOKS."""

    text: str
    """As much as fits."""

    whole: str | None
    """The whole text, in its first line."""


class _Figure(NamedTuple):
    """A count that is shown as a figure."""

    colour: str
    """The class of its dot."""

    text: str

    @property
    def width(self) -> float:
        """Pixels, with its dot before and the space after it."""
        return SMALL + text_width(self.text, SMALL) + SMALL


class _Box(NamedTuple):
    """A box, measured."""

    node: DrawnNode
    cell: Cell
    lines: list[_Line]
    """Kind, name, and the others, downwards."""

    figure_rows: list[list[_Figure]]
    """The figures below them, in rows."""


def svg(
    nodes: Sequence[DrawnNode],
    edges: Iterable[DrawnEdge],
    *,
    title: str = "workflow",
    styled: bool = True,
) -> str:
    """Writes the graph as an SVG document.

    `title` is its tool tip, and what a screen reader says. Without `styled` it is part of a page
    that has `page_style` in a file of its own, since the page's policy forbids styles within
    it."""
    boxes = [_measured(node) for node in nodes]
    by_name = {box.node.name: box for box in boxes}
    ends = [(by_name[source], by_name[target]) for source, target in edges]
    layout = lay_out(
        [box.cell for box in boxes], [(source.cell, target.cell) for source, target in ends]
    )
    width = f"{layout.width + 2 * MARGIN:.0f}"
    height = f"{layout.height + 2 * MARGIN:.0f}"
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
    for chain, (source, target) in zip(layout.chains, ends, strict=True):
        parts += _line_elements(chain, source.node, target.node)
    for box in boxes:
        parts += _box_elements(box)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def page_style(*, themed: bool = True) -> str:
    """Writes the style rules of drawings, for light and dark pages.

    With `themed`, the attribute `data-theme` of the page may choose one."""
    unless_light = ":root:not([data-theme=light]) " if themed else ""
    chosen_dark = _colours(1, "[data-theme=dark] ") if themed else ""
    return (
        f"{_rules(FONTS)}{_colours(0)}@media "
        f"(prefers-color-scheme:dark){{{_colours(1, unless_light)}}}{chosen_dark}"
    )


def text_width(text: str, size: float) -> float:
    """Estimates the width of a text in pixels, at a font size in pixels.

    No font can be asked, so this is on the wide side of the usual sans serifs."""
    return size * sum(map(_em, text))


def cut_to(text: str, size: float, room: float) -> str:
    """Cuts a text to `room` pixels, with … if there is more; a word is only cut if it is the
    first."""
    if text_width(text, size) <= room:
        return text
    used = size * _em("…")
    for end, character in enumerate(text):
        used += size * _em(character)
        if used > room:
            words = text[: end + 1].rpartition(" ")[0]
            return (words or text[:end]).rstrip() + "…"
    return text


def _em(character: str) -> float:
    """Estimates the width of a character at font size 1."""
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "iljtfrI.,:;'|!()[]·` ":
        return 0.38
    if character in "mwMW@%":
        return 0.92
    if character.isupper() or not character.isascii():
        return 0.72
    return 0.6


def _colours(side: int, where: str = "") -> str:
    """Writes the rules of the colours on light (0) or on dark (1), below what `where` selects."""
    fills = {selectors: f"fill:{colours[side]}" for selectors, colours in FILLS.items()}
    strokes = {selectors: f"stroke:{colours[side]}" for selectors, colours in STROKES.items()}
    return _rules(fills, where) + _rules(strokes, where)


def _rules(looks: Mapping[str, str], where: str = "") -> str:
    """Writes rules of CSS, each for its comma-separated selectors."""
    rules = []
    for selectors, look in looks.items():
        chosen = [f"{where}.agac-graph {selector}" for selector in selectors.split(",")]
        rules.append(f"{','.join(chosen)}{{{look}}}")
    return "".join(rules)


def _measured(node: DrawnNode) -> _Box:
    """Cuts the texts of a box to its greatest width, and measures it."""
    room = MAX_WIDTH - 2 * PADDING
    lines = _text_lines(node, room)
    rows = _figure_rows(node, room)
    widths = [
        *(text_width(line.text, LOOKS[line.look].size) for line in lines),
        *map(_row_width, rows),
    ]
    width = min(max(MIN_WIDTH, *(width + 2 * PADDING for width in widths)), MAX_WIDTH)
    height = sum(LOOKS[line.look].height for line in lines) + 20
    if rows:
        height += 10 + BAR_HEIGHT + FIGURE_HEIGHT * len(rows)
    return _Box(node, Cell(width, height), lines, rows)


def _text_lines(node: DrawnNode, room: float) -> list[_Line]:
    """Cuts the texts of a box into its lines."""
    level = f" · level {node.level}" if node.level else ""
    texts = [
        ("kind", squeezed(node.kind) + level),
        ("name", squeezed(node.name)),
        *(("more", squeezed(line)) for line in node.label_lines),
    ]
    lines = []
    for look, text in texts:
        first, *others = _cut(look, text, room)
        lines.append(_Line(look, first, text))
        lines += [_Line(look, line, None) for line in others]
    return lines


def _cut(look: str, text: str, room: float) -> list[str]:
    """Cuts a text into as many lines as it needs, up to MAX_LINES; names and kinds have one."""
    size = LOOKS[look].size
    if look != "more":
        return [cut_to(text, size, room)]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        is_last = len(lines) == MAX_LINES
        if is_last or not lines[-1] or text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return [cut_to(line, size, room) for line in lines]


def _figure_rows(node: DrawnNode, room: float) -> list[list[_Figure]]:
    """Arranges the counts of a box in as many rows as they need."""
    if node.counts is None:
        return []
    rows: list[list[_Figure]] = []
    for word, n in figures(node.counts):
        text = cut_to(f"{n:,} {squeezed(word)}", SMALL, room - 2 * SMALL)
        figure = _Figure(_colour_of(word), text)
        if rows and _row_width([*rows[-1], figure]) <= room:
            rows[-1].append(figure)
        else:
            rows.append([figure])
    return rows or [[_Figure("track", "no rows")]]


def _colour_of(word: str) -> str:
    """Gives the class of a count."""
    return word if word in COUNT_WORDS else "others"


def _row_width(row: list[_Figure]) -> float:
    return sum(figure.width for figure in row) - SMALL


def _box_elements(box: _Box) -> list[str]:
    """Writes a box: its tool tip, its frame, the coloured side, its texts, its counts."""
    x, y, width, height = box.cell.area
    kind = box.node.kind if box.node.kind in KIND_COLOURS else "others"
    parts = [
        f"<g><title>{'&#10;'.join(map(_escaped, _whole_texts(box)))}</title>",
        (
            f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{ROUNDING:g}"/>'
        ),
        f'<path class="k-{kind}" d="{_stripe(box.cell.area)}"/>',
    ]
    baseline = y + 8
    for line in box.lines:
        baseline += LOOKS[line.look].height
        classes = f"kind k-{kind}" if line.look == "kind" else line.look
        parts.append(
            f'<text class="{classes}" x="{x + PADDING:.1f}" y="{baseline:.1f}">'
            f"{_escaped(line.text)}</text>"
        )
    if box.figure_rows:
        bar = Area(x + PADDING, baseline + 12, width - 2 * PADDING, BAR_HEIGHT)
        parts += _bar_elements(box.node, bar)
        parts += _figure_elements(box.figure_rows, bar)
    return [*parts, "</g>"]


def _whole_texts(box: _Box) -> list[str]:
    """Lists the uncut texts of a box, its name first."""
    kind, name, *more = [line.whole for line in box.lines if line.whole is not None]
    return [name, kind, *more]


def _stripe(area: Area) -> str:
    """Writes the path along the left side of a box, within its round corners."""
    radius = f"{ROUNDING:g}"
    inner = f"{ROUNDING - STRIPE:g}"
    down = f"{area.height - 2 * ROUNDING:.1f}"
    outside = (
        f"a{radius} {radius} 0 0 0 -{radius} {radius}v{down}"
        f"a{radius} {radius} 0 0 0 {radius} {radius}"
    )
    inside = (
        f"a{inner} {radius} 0 0 1 -{inner} -{radius}v-{down}"
        f"a{inner} {radius} 0 0 1 {inner} -{radius}"
    )
    return f"M{area.x + ROUNDING:.1f} {area.y:.1f}{outside}{inside}z"


def _bar_elements(node: DrawnNode, bar: Area) -> list[str]:
    """Writes the bar that shows the shares of counts; each part is wide enough to be seen."""
    shares = [(_colour_of(word), n) for word, n in figures(node.counts or {})]
    if not shares:
        shares = [("track", 1)]
    least = min(5.0, bar.width / len(shares))
    scale = (bar.width + BAR_GAP - least * len(shares)) / sum(n for _, n in shares)
    x = bar.x
    parts = []
    for colour, n in shares:
        width = least + scale * n
        parts.append(
            f'<rect class="{colour}" x="{x:.1f}" y="{bar.y:.1f}" width="{width - BAR_GAP:.1f}" '
            f'height="{BAR_HEIGHT:g}" rx="2"/>'
        )
        x += width
    return parts


def _figure_elements(rows: list[list[_Figure]], bar: Area) -> list[str]:
    """Writes the figures below the bar, each with a dot in its colour."""
    parts = []
    y = bar.y + bar.height
    for row in rows:
        x = bar.x
        y += FIGURE_HEIGHT
        for figure in row:
            parts.append(
                f'<circle class="{figure.colour}" cx="{x + 4:.1f}" cy="{y - 4:.1f}" r="4"/>'
            )
            text = _escaped(figure.text)
            parts.append(f'<text class="figure" x="{x + SMALL:.1f}" y="{y:.1f}">{text}</text>')
            x += figure.width
    return parts


def _line_elements(chain: list[Cell], source: DrawnNode, target: DrawnNode) -> list[str]:
    """Writes a line with its tool tip and its tip."""
    points = _line_points(chain)
    x = points[-1][0]
    y = chain[-1].area.y
    classes = "line" if source.level == target.level else "line between"
    return [
        f"<g><title>{_escaped(f'{source.name} → {target.name}')}</title>",
        f'<path class="{classes}" d="{_line_path(points)}"/>',
        (
            f'<path class="tip" d="M{x - 4.5:.1f} {y - 8:.1f}L{x:.1f} {y - 0.5:.1f}L{x + 4.5:.1f} '
            f'{y - 8:.1f}z"/>'
        ),
        "</g>",
    ]


def _line_points(chain: list[Cell]) -> list[tuple[float, float]]:
    """Lists the points at which a line enters and leaves each layer, from the edge of its source
    to where its tip begins."""
    first = chain[0]
    last = chain[-1]
    xs = [
        port(first, first.below, chain[1]),
        *(cell.x for cell in chain[1:-1]),
        port(last, last.above, chain[-2]),
    ]
    points = [
        (x, y) for x, cell in zip(xs, chain, strict=True) for y in (cell.top, cell.top + cell.depth)
    ]
    return [
        (xs[0], first.area.y + first.height),
        *points[1:-2],
        (xs[-1], last.top - TIP),
        (xs[-1], last.area.y - TIP),
    ]


def _line_path(points: list[tuple[float, float]]) -> str:
    """Writes a path straight down through each layer, bent between them."""
    commands = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for i, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        if i % 2:
            half = (y0 + y1) / 2
            commands.append(f"C{x0:.1f} {half:.1f} {x1:.1f} {half:.1f} {x1:.1f} {y1:.1f}")
        else:
            commands.append(f"L{x1:.1f} {y1:.1f}")
    return "".join(commands)


def _escaped(text: str) -> str:
    return escape(squeezed(text))
