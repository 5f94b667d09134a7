"""What is said about a drawing, and drawings for streams that lack characters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agac.cli.shown.words import counted

if TYPE_CHECKING:
    from agac.api.graphing import GraphReport

MERMAID_EDGES, MERMAID_CHARACTERS = 500, 50_000
"""What a page with Mermaid's own settings draws at most (`maxEdges`, `maxTextSize`)."""


def mermaid_warning(report: GraphReport, text: str) -> str | None:
    """What to know of a text that most pages refuse to draw; None: they draw it."""
    edges = len(report.edges())
    if edges <= MERMAID_EDGES and len(text) <= MERMAID_CHARACTERS:
        return None
    return (
        f"{counted(edges, 'line')} in {counted(len(text), 'character')}: pages draw Mermaid text of {MERMAID_EDGES} "
        f"lines and {MERMAID_CHARACTERS:,} characters at most, unless their maxEdges and maxTextSize say otherwise; "
        "the SVG has no such bound"
    )


def unspelled(text: str, *, mermaid: bool) -> str:
    """The drawing in ASCII: every other character as its number, as each of the two forms writes it."""
    return re.sub(r"[^\x00-\x7f]", lambda found: f"{'' if mermaid else '&'}#{ord(found[0])};", text)
