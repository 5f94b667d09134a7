"""Tables, amounts, paths and messages on a line: plain text, the same in a terminal and in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agac.cli.live.text import cells, padded
from agac.cli.shown.words import counted


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell, whatever the terminal; numbers to the right. Nothing is ever cut off."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(cells(line[i]) for line in [list(header), *texts]) for i in range(len(header))]
    right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]

    def line(values: Sequence[str]) -> str:
        pairs = zip(values, widths, right, strict=True)
        return "  ".join(padded(v, w, right=r) for v, w, r in pairs).rstrip()

    return "\n".join([line(header), *(line(row) for row in texts)])


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text.replace("\r", "\\r").replace("\n", "\\n")  # a line is a row


def money(calls: dict[str, Any]) -> str:
    """What calls cost, never guessing: `$0.0123`, `simulated $0.0123`, and how many calls have no known price."""
    unpriced = calls["calls_without_price"]
    without = f"{counted(unpriced, 'call')} without a known price"
    if calls["cost_usd"] is None:
        return without
    text = f"{'simulated ' if calls['cost_is_simulated'] else ''}${calls['cost_usd']:,.4f}"
    return f"{text} and {without}" if unpriced else text


def from_here(path: Path) -> str:
    """A path as it can be typed in the current folder."""
    return os.path.relpath(path)


def first_line(text: str, most: int = 300) -> str:
    """A message on one line, and not for ever."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"
