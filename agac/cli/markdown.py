"""Markdown for comments of pull requests: tables, folded details, and text of files and models in which nobody is
mentioned, nothing is linked, and no HTML is read."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from agac.core.text import plain

_REFERENCE = re.compile(r"[@#!$%&~](?=\w)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What forges link: people, issues, merge requests, snippets, milestones, labels; addresses."""

_SIGN = re.compile(r"[\\`*_{}\[\]~|$]|^\s*(?:[-+=#]|\d+(?=[.)]))", re.MULTILINE)
_JOINER = "\u2060"
"""Takes no room on the screen, and ends what a forge would link."""


def unlinked(text: str) -> str:
    """The text without control characters, in which a forge finds nobody to mention and nothing to link."""
    return _REFERENCE.sub(lambda match: match[0] + _JOINER, plain(text))


def escaped(text: str) -> str:
    """Text of a file or a model as Markdown that shows just that, on the lines that it has."""

    def escape(match: re.Match[str]) -> str:
        before, sign = match[0][:-1], match[0][-1]
        return f"{match[0]}{_JOINER}" if sign.isdigit() else f"{before}\\{sign}"

    return html.escape(_SIGN.sub(escape, unlinked(text)), quote=False)


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
