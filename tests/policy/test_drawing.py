"""Pictures of workflows: nothing lies on anything else, and no text of a user's becomes anything but text."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agac.api.drawing import DrawnEdge, DrawnNode, mermaid
from agac.api.drawing_layout import Area
from agac.api.drawing_svg import page_style, svg, text_width
from agac.core.text import squeezed

SVG = "{http://www.w3.org/2000/svg}"
Graph = tuple[list[DrawnNode], list[DrawnEdge]]
HARMLESS = {
    "svg": {"class", "viewBox", "width", "height", "role", "aria-label"},
    "title": set(),
    "style": set(),
    "g": {"transform"},
    "rect": {"class", "x", "y", "width", "height", "rx"},
    "path": {"class", "d"},
    "circle": {"class", "cx", "cy", "r"},
    "text": {"class", "x", "y", "text-anchor"},
}
"""All that is ever in a drawing, with its attributes: nothing that loads, links, names or runs anything."""
NASTY = [
    "<script>alert(1)</script>", '"\' onload="alert(1)', "]]> & &lt; &#0; <!-- --> <![CDATA[",
    "日本語 e\u0301 🙂 \u202eright to left", "two\nlines\tand \x00\x1b a control \ud800 \uffff", "o" * 5000, "W" * 60,
    " ", "url(https://example.com/x.css) @import 'x'",
]  # fmt: skip

texts = st.one_of(st.text(max_size=40), st.sampled_from(NASTY))
counts = st.one_of(
    st.none(),
    st.dictionaries(
        st.one_of(st.sampled_from(["done", "reused", "failed", "skipped", "dropped"]), texts),
        st.integers(0, 10**12),
        max_size=7,
    ),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to 60 stages, each needing some of those before it."""
    names = draw(st.lists(texts, max_size=60, unique=True))
    kinds = st.one_of(st.sampled_from(["ask", "python", "filter", "select", "rename", "dedupe", "input"]), texts)
    nodes = [
        DrawnNode(name, draw(kinds), draw(st.lists(texts, max_size=3)), draw(counts), draw(st.integers(0, 3)))
        for name in names
    ]
    edges = []
    for i in range(1, len(nodes)):
        for source in sorted(draw(st.sets(st.integers(0, i - 1), max_size=4))):
            edges.append(DrawnEdge(names[source], names[i]))
    return [nodes[i] for i in draw(st.permutations(range(len(nodes))))], edges


@dataclass
class Drawn:
    """A drawing, read back."""

    page: Area
    boxes: list[Area]
    lines: list[list[tuple[float, float]]]
    """Points along each."""
    texts: list[ET.Element]


def area(element: ET.Element) -> Area:
    return Area(*(float(element.get(name, "0")) for name in ("x", "y", "width", "height")))


def along(way: str) -> list[tuple[float, float]]:
    """Points along a path of M, L and C, close enough to each other to find a box between them."""
    points: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MLC])([^MLC]*)", way):
        values = [float(n) for n in numbers.split()]
        ends = list(zip(values[::2], values[1::2], strict=True))
        if command == "M":
            points += ends
            continue
        a, b, c, d = [points[-1], *ends] if command == "C" else [points[-1]] * 2 + [ends[0]] * 2
        for step in range(1, 41):
            t = step / 40
            u = 1 - t
            weights = (u**3, 3 * u * u * t, 3 * u * t * t, t**3)
            points.append(
                tuple(sum(w * p[axis] for w, p in zip(weights, (a, b, c, d), strict=True)) for axis in (0, 1))
            )
    return points


def read(drawing: str) -> Drawn:
    root = ET.fromstring(drawing)
    rects = list(root.iter(f"{SVG}rect"))
    pages = [rect for rect in rects if rect.get("class") == "page"]
    lines = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("class", "").startswith("line")]
    boxes = [area(rect) for rect in rects if rect.get("class") == "box"]
    return Drawn(area(pages[0]), boxes, [along(line) for line in lines], list(root.iter(f"{SVG}text")))


def overlap(a: Area, b: Area, apart: float = 0.0) -> bool:
    return (
        a.x < b.x + b.width + apart
        and b.x < a.x + a.width + apart
        and a.y < b.y + b.height + apart
        and b.y < a.y + a.height + apart
    )


slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@slow
@given(graphs())
def test_nothing_lies_on_anything_else_and_lines_go_down_past_all_boxes(graph: Graph) -> None:
    nodes, edges = graph
    drawn = read(svg(nodes, edges))
    boxes = dict(zip([node.name for node in nodes], drawn.boxes, strict=True))
    for a, b in combinations(drawn.boxes, 2):
        assert not overlap(a, b, apart=15)
    for box in drawn.boxes:
        assert 0 <= box.x <= box.x + box.width <= drawn.page.width - 55
        assert 0 <= box.y <= box.y + box.height <= drawn.page.height - 55
    for edge, line in zip(edges, drawn.lines, strict=True):
        source, target = boxes[edge.source], boxes[edge.target]
        for box in drawn.boxes:
            inside = Area(box.x + 0.2, box.y + 0.2, box.width - 0.4, box.height - 0.4)
            assert not any(overlap(Area(x, y, 0, 0), inside) for x, y in line)
        assert all(y1 <= y2 + 0.2 for (_, y1), (_, y2) in pairwise(line))
        (x0, y0), (x1, y1) = line[0], line[-1]
        assert y0 == pytest.approx(source.y + source.height, abs=0.2)
        assert y1 == pytest.approx(target.y - 7, abs=0.2)
        assert source.x < x0 < source.x + source.width
        assert target.x < x1 < target.x + target.width


@slow
@given(graphs())
def test_a_drawing_holds_nothing_but_shapes_and_every_text_cut_to_its_box_and_whole_as_its_tool_tip(
    graph: Graph,
) -> None:
    nodes, edges = graph
    root = ET.fromstring(svg(nodes, edges, title=NASTY[0]))
    for element in root.iter():
        assert set(element.attrib) <= HARMLESS[element.tag.removeprefix(SVG)]
        assert all(re.fullmatch("[a-z]+(-[a-z]+)?", name) for name in element.get("class", "").split())
    (style,) = root.iter(f"{SVG}style")
    assert style.text == ET.fromstring(svg([], [])).findtext(f"{SVG}style"), "no text of a user's is in it"
    assert not re.search(r"url|import|http|@(?!media)", style.text or "")
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert tips[0] == root.get("aria-label") == NASTY[0]
    for tip, edge in zip(tips[1:], edges, strict=False):
        assert tip == squeezed(f"{edge.source} → {edge.target}")
    for tip, node in zip(tips[1 + len(edges) :], nodes, strict=True):
        name, kind, *more = tip.split("\n")
        assert [name, *more] == [squeezed(text) for text in (node.name, *node.label_lines)]
        assert kind.startswith(squeezed(node.kind))
    stages = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}rect[@class='box']") is not None]
    for stage, node in zip(stages, nodes, strict=True):
        (box,) = stage.findall(f"{SVG}rect[@class='box']")
        inside = area(box)
        for text in stage.findall(f"{SVG}text"):
            x, y, words = float(text.get("x", "")), float(text.get("y", "")), text.text or ""
            assert inside.x < x <= x + text_width(words, 12) <= inside.x + inside.width
            assert inside.y < y < inside.y + inside.height
        (name,) = [text.text or "" for text in stage.findall(f"{SVG}text[@class='name']")]
        assert squeezed(node.name).startswith(name.removesuffix("…"))
        for bar in stage.findall(f"{SVG}rect"):
            part = area(bar)
            assert inside.x <= part.x <= part.x + part.width <= inside.x + inside.width
            assert part.width > 0


def test_the_bar_shows_what_became_of_the_rows_and_hides_nothing_small() -> None:
    found = {"dropped": 30, "failed": 1, "done": 999_969, "waiting": 0}
    root = ET.fromstring(svg([DrawnNode("a", "ask", counts=found)], []))
    parts = {rect.get("class"): area(rect).width for rect in root.iter(f"{SVG}rect")}
    assert list(parts)[2:] == ["done", "failed", "dropped"], "after the page and the box, in the order of the words"
    assert parts["done"] > 20 * parts["failed"]
    assert min(parts["failed"], parts["dropped"]) > 3
    figures = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "figure"]
    assert figures == ["999,969 done", "1 failed", "30 dropped"]
    assert "figure" not in [text.get("class") for text in read(svg([DrawnNode("a", "ask")], [])).texts]
    for nothing in ({}, {"done": 0, "failed": 0}):
        assert "no rows" in [text.text for text in read(svg([DrawnNode("a", "ask", counts=nothing)], [])).texts]
        assert "no rows" in mermaid([DrawnNode("a", "ask", counts=nothing)], [])


def test_chains_are_straight_branches_do_not_cross_levels_are_named_and_lines_between_them_broken() -> None:
    names = ["a", "a much longer name", "c", "d"]
    drawn = read(svg([DrawnNode(name, "ask") for name in names], [DrawnEdge(a, b) for a, b in pairwise(names)]))
    assert len({round(box.x + box.width / 2) for box in drawn.boxes}) == 1
    assert all(abs(x - line[0][0]) < 0.2 for line in drawn.lines for x, _ in line)
    names = ["a1", "b1", "b2", "a2", "a3", "b3"]  # two chains, whose stages stand in turn, the second pair crosswise
    edges = [DrawnEdge("a1", "a2"), DrawnEdge("a2", "a3"), DrawnEdge("b1", "b2"), DrawnEdge("b2", "b3")]
    boxes = dict(zip(names, read(svg([DrawnNode(name, "ask") for name in names], edges)).boxes, strict=True))
    assert len({boxes[f"a{i}"].x < boxes[f"b{i}"].x for i in (1, 2, 3)}) == 1
    nodes = [DrawnNode("a", "ask"), DrawnNode("b", "ask", level=1), DrawnNode("c", "ask", level=1)]
    drawing = svg(nodes, [DrawnEdge("a", "b"), DrawnEdge("b", "c")])
    assert [t.text for t in read(drawing).texts if "kind" in t.get("class", "")] == ["ask", *["ask · level 1"] * 2]
    assert re.findall('class="(line[^"]*)"', drawing) == ["line between", "line"]


def test_a_drawing_is_the_same_in_every_process() -> None:
    program = (
        "from agac.api.drawing import DrawnEdge, DrawnNode, mermaid\nfrom agac.api.drawing_svg import svg\n"
        "nodes = [DrawnNode(f's{i}', 'ask', [], {'done': i, 'z': 1, 'y': 2}) for i in range(20)]\n"
        "edges = [DrawnEdge(f's{i // 3}', f's{i}') for i in range(1, 20)]\n"
        "print(svg(nodes, edges), mermaid(nodes, edges))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_a_drawing_within_a_page_has_its_rules_in_a_file_of_the_page() -> None:
    nodes, edges = (
        [DrawnNode("a", "ask", ["m"], {"done": 2, "waiting": 1}), DrawnNode("b", "ask")],
        [DrawnEdge("a", "b")],
    )
    whole, part = svg(nodes, edges), svg(nodes, edges, styled=False)
    assert part == re.sub("<style>.*?</style>\n", "", whole)
    assert "style" not in part
    chosen = [one for one in page_style().split("}") if "data-theme=dark" in one]
    assert len(chosen) > 10
    assert all(one.startswith("[data-theme=dark] .agac-graph ") for one in chosen)
    assert page_style().count(":root:not([data-theme=light]) .agac-graph .done") == 1
