"""A workflow as a picture: what is drawn, and as Mermaid text. `svg.py` draws the same as an image.

Every text may be the user's: names, labels and counts' words are cut and escaped here and there, never trusted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WORDS = ("done", "reused", "failed", "skipped", "dropped")
"""Counts that have a colour, in the order in which they are shown; others come after them."""

MERMAID_LINE = 60
"""Characters of a line in a box."""

SHAPES = {
    "input": ("[(", ")]"),
    "python": ("[[", "]]"),
    "filter": ("{{", "}}"),
    "dedupe": ("{{", "}}"),
    "output": ("([", "])"),
}
"""How Mermaid brackets the kinds that are not plain boxes."""

COLOURS = {"ask": "#0969da", "python": "#8250df", "filter": "#bc4c00", "dedupe": "#bf3989", "select": "#1b7c83"}
COLOURS["rename"] = COLOURS["select"]
"""Of a kind's border: strong enough on light and on dark."""


@dataclass(frozen=True, slots=True)
class Node:
    """A box: a stage. `counts`: what became of its rows in the last run; None where there is none. `level`: 0 for the
    input's rows, more for rows made of them."""

    name: str
    kind: str
    label_lines: Sequence[str] = ()
    counts: Mapping[str, int] | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """A line from a stage to one that needs it, by their names; with a text or without."""

    source: str
    target: str
    label: str = ""


def linked(nodes: Sequence[Node], edges: Iterable[Edge]) -> list[tuple[int, int, Edge]]:
    """The places of each edge's ends among the nodes; ValueError for a name that is there twice or not at all."""
    places = {node.name: place for place, node in enumerate(nodes)}
    if len(places) < len(nodes):
        raise ValueError("two stages of a drawing have one name")
    edges = list(edges)
    if missing := {name for edge in edges for name in (edge.source, edge.target)} - places.keys():
        raise ValueError(f"an edge of a drawing ends at {min(missing)!r}, which is not in it")
    return [(places[edge.source], places[edge.target], edge) for edge in edges]


def one_line(text: str) -> str:
    """Text as one line of what XML can hold: each run of white space is a space, each other control a replacement."""
    shown = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cs"} or c in "\ufffe\uffff" else c for c in shown)


def figures(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts that are not nought, in the order in which they are shown."""
    order = {word: place for place, word in enumerate(WORDS)}
    return [(word, n) for word, n in sorted(counts.items(), key=lambda c: order.get(c[0], len(order))) if n > 0]


def mermaid(nodes: Sequence[Node], edges: Iterable[Edge]) -> str:
    """The graph as Mermaid text (a flowchart), as GitHub and others draw it in a ```mermaid block.

    Lines between levels are dotted. Mermaid draws 500 edges and 50,000 characters at most unless its page allows more.
    """
    lines = ["flowchart TD"]
    for i, node in enumerate(nodes):
        opening, closing = SHAPES.get(node.kind, ("[", "]"))
        lines.append(f'    n{i}{opening}"{_text(node)}"{closing}')
    for source, target, edge in linked(nodes, edges):
        arrow = "-->" if nodes[source].level == nodes[target].level else "-.->"
        label = f'|"{_quoted(edge.label)}"|' if edge.label.strip() else ""
        lines.append(f"    n{source} {arrow}{label} n{target}")
    for kind, colour in COLOURS.items():
        if members := ",".join(f"n{i}" for i, node in enumerate(nodes) if node.kind == kind):
            lines += [f"    classDef {kind} stroke:{colour},stroke-width:2px", f"    class {members} {kind}"]
    return "\n".join(lines) + "\n"


def _text(node: Node) -> str:
    level = f" · level {node.level}" if node.level else ""
    shown = [f"<b>{_quoted(node.name)}</b>", f"<i>{_quoted(node.kind)}{level}</i>", *map(_quoted, node.label_lines)]
    if node.counts is not None:
        shown.append(_quoted(" · ".join(f"{n:,} {word}" for word, n in figures(node.counts)) or "no rows"))
    return "<br/>".join(shown)


def _quoted(text: str) -> str:
    """Text inside Mermaid's quotes: what could be markup, Markdown or a link is written as its number."""
    line = one_line(text)
    cut = line if len(line) <= MERMAID_LINE else line[: MERMAID_LINE - 1] + "…"
    return re.sub(r"[^\w .,:/!=?…·-]|^\W|[.:-](?=\W|$)", lambda found: f"#{ord(found[0])};", cut) or "#160;"
