"""Tables, amounts, paths and messages on a line: plain text, the same in a terminal and in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agac.cli.live.text import cells, padded
from agac.cli.shown.words import counted

ROW_OUTCOMES = ("done", "skipped", "failed", "dropped", "open")
TASK_OUTCOMES = ("done", "reused", "failed", "skipped", "dropped")
BY_GUARDS = ("skipped", "dropped")
"""Outcomes that most workflows do not have."""

LONG = 400
"""Characters of one value on a terminal, where it may be cut; in a file or a pipe nothing is."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell, whatever the terminal; numbers to the right. Nothing is ever cut off."""
    return "\n".join(table_lines(header, [rows]))


def table_lines(
    header: Sequence[str], blocks: Iterable[Sequence[Sequence[object]]], cell: Callable[[object], str] | None = None
) -> Iterator[str]:
    """The same for rows without end: columns are as wide as the widest cell so far, and only a block is kept.

    `cell` says how a value looks.
    """
    header = [_on_one_line(name) for name in header]
    widths = [cells(name) for name in header]
    right: list[bool] | None = None
    for rows in blocks:
        texts = [[_on_one_line((cell or _cell)(value)) for value in row] for row in rows]
        for line in texts:
            widths = [max(width, cells(text)) for width, text in zip(widths, line, strict=True)]
        if right is None:
            right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]
            yield _aligned(header, widths, right)
        yield from (_aligned(line, widths, right) for line in texts)


def _aligned(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    pairs = zip(texts, widths, right, strict=True)
    return "  ".join(padded(text, width, right=to_right) for text, width, to_right in pairs).rstrip()


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _on_one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")  # a line is a row


def outcome_names(names: Sequence[str], counts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The outcomes that a table has columns for: those of guards only where there are any."""
    return [name for name in names if name not in BY_GUARDS or any(one[name] for one in counts)]


def row_words(rows: Mapping[str, int]) -> str:
    """`60 rows, 58 done, 2 dropped`: what became of rows, but for what became of none."""
    names = [name for name in ROW_OUTCOMES if rows[name] or name == "done"]
    return ", ".join(f"{rows[name]:,} {name}" for name in names)


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


def shortened(text: str, *, cut: bool) -> str:
    """A value below others: further lines of it to the right, and with `cut` only the beginning of a long one."""
    shown = text if not cut or len(text) <= LONG else f"{text[:LONG]}… ({len(text):,} characters)"
    return shown.rstrip("\n").replace("\n", "\n    ")
