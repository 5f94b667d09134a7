"""Markdown for comments of pull requests: tables, folded details, names and texts (`core.text.escaped`)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from agac.core.text import plain, unlinked


def code(text: str) -> str:
    """A name or a value within a line, in backticks: nothing in it is read as Markdown."""
    shown = plain(" ".join(text.split())) or "(empty)"
    ticks = _longer_than(shown, "`")
    return f"{ticks} {shown} {ticks}" if "`" in shown else f"`{shown}`"


def block(text: str, language: str = "") -> str:
    """Lines as they are."""
    fence = _longer_than(text, "```")
    return f"{fence}{language}\n{plain(text).rstrip()}\n{fence}"


def _longer_than(text: str, ticks: str) -> str:
    """So many backticks that none of the text ends what they enclose."""
    return max(ticks, "`" * (1 + max(map(len, re.findall("`+", text)), default=0)), key=len)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already (`escaped`, `code`), or numbers. `numbers` are the columns, from 0,
    that stand at the right."""
    marks = ["---:" if place in set(numbers) else "---" for place in range(len(header))]
    lines = [header, marks, *([_cell(one) for one in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return re.sub(r"(?<!\\)\|", r"\\|", "<br>".join(text.splitlines()))


def fold(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Details that are shown when somebody opens them. `summary` is plain text of one line; around the lines, which are
    Markdown, forges want blank ones."""
    yield from (f"<details><summary>{html.escape(unlinked(summary))}</summary>", "", *lines, "", "</details>")
