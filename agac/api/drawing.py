"""A drawing as values, boxes and the lines between them, and as Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agac.core.text import squeezed

# Every text may be the user's: names, labels and counts are cut and escaped before they are drawn,
# never trusted.

COUNT_WORDS = ("done", "reused", "failed", "skipped", "dropped")
"""Counts that have a colour, in the order in which they are shown; others come after them."""

KIND_COLOURS = {
    "ask": ("#0969da", "#58a6ff"),
    "python": ("#8250df", "#bc8cff"),
    "filter": ("#bc4c00", "#db6d28"),
    "dedupe": ("#bf3989", "#f778ba"),
    "select": ("#1b7c83", "#39c5cf"),
    "rename": ("#1b7c83", "#39c5cf"),
}
"""The colours of the kinds of stages, on a light and on a dark page. Mermaid draws the border of a
box in the light one, which is strong enough on both."""

MERMAID_LINE = 60
"""Characters of a line in a box, at most."""

MERMAID_BRACKETS = {
    "input": ("[(", ")]"), "python": ("[[", "]]"), "filter": ("{{", "}}"), "dedupe": ("{{", "}}"),
    "output": ("([", "])"),
}  # fmt: skip
"""How Mermaid brackets the kinds that are not plain boxes."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A box: a stage, the input or the results."""

    name: str
    """The name, which edges refer to."""

    kind: str
    """What kind of stage it is, such as `ask`; it decides the colour and Mermaid's shape."""

    label_lines: Sequence[str] = ()
    """Lines below name and kind."""

    counts: Mapping[str, int] | None = None
    """How many rows ended in which way in the last run; None without a run."""

    level: int = 0
    """How many stages made its rows; 0: they are the input's."""


class DrawnEdge(NamedTuple):
    """A line from a stage to one that needs it, by their names."""

    source: str
    target: str


def figures(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Lists the counts above zero, in the order in which they are shown."""
    words = dict.fromkeys([*COUNT_WORDS, *counts])
    return [(word, counts[word]) for word in words if counts.get(word, 0) > 0]


def mermaid(nodes: Sequence[DrawnNode], edges: Iterable[DrawnEdge]) -> str:
    """Writes the graph as Mermaid text (a flowchart), as GitHub and others draw it in a ```mermaid
    block.

    Lines between levels are dotted. Mermaid draws 500 edges and 50,000 characters at most unless
    its page allows more."""
    lines = ["flowchart TD", *(_mermaid_box(i, node) for i, node in enumerate(nodes))]
    numbers = {node.name: number for number, node in enumerate(nodes)}
    for edge in edges:
        source = numbers[edge.source]
        target = numbers[edge.target]
        arrow = "-->" if nodes[source].level == nodes[target].level else "-.->"
        lines.append(f"    n{source} {arrow} n{target}")
    lines += _mermaid_classes(nodes)
    return "\n".join(lines) + "\n"


def _mermaid_box(number: int, node: DrawnNode) -> str:
    """Writes the line of a box."""
    opening, closing = MERMAID_BRACKETS.get(node.kind, ("[", "]"))
    level = f" · level {node.level}" if node.level else ""
    shown = [
        f"<b>{_quoted(node.name)}</b>",
        f"<i>{_quoted(node.kind)}{level}</i>",
        *map(_quoted, node.label_lines),
    ]
    if node.counts is not None:
        counted = " · ".join(f"{n:,} {word}" for word, n in figures(node.counts))
        shown.append(_quoted(counted or "no rows"))
    return f'    n{number}{opening}"{"<br/>".join(shown)}"{closing}'


def _mermaid_classes(nodes: Sequence[DrawnNode]) -> Iterator[str]:
    """Yields the lines that colour the borders of boxes by their kinds."""
    for kind, (colour, _) in KIND_COLOURS.items():
        members = ",".join(f"n{i}" for i, node in enumerate(nodes) if node.kind == kind)
        if members:
            yield f"    classDef {kind} stroke:{colour},stroke-width:2px"
            yield f"    class {members} {kind}"


def _quoted(text: str) -> str:
    """Writes a text between Mermaid's quotes: a character that could be markup, Markdown or part
    of a link becomes its number."""
    line = squeezed(text)
    if len(line) > MERMAID_LINE:
        line = line[: MERMAID_LINE - 1] + "…"
    quoted = re.sub(r"[^\w .,:/!=?…·-]|^\W|[.:-](?=\W|$)", lambda match: f"#{ord(match[0])};", line)
    return quoted or "#160;"
