"""Text as it is shown to people: its width, one line without control characters; durations; a row's command."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from unicodedata import combining, east_asian_width

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"  # hidden line ends, and characters that turn the direction
    "\ud800-\udfff]"  # lone surrogates
)
"""What would move, hide or recolour what a terminal shows."""


def plain(text: str) -> str:
    """`text` with an escape such as `\\x1b` for each character that a terminal would not show."""
    return UNSAFE.sub(lambda sign: f"\\x{ord(sign[0]):02x}" if sign[0] < "\u0100" else f"\\u{ord(sign[0]):04x}", text)


def on_one_line(text: str, encoding: str | None) -> str:
    """The text on one line, in characters that a stream of this encoding has."""
    line = plain(text).replace("\t", "\\t").replace("\n", "\\n")
    try:
        return line.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    except LookupError:
        return ascii(line)[1:-1]


def is_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding has every character."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cropped(text: str, width: int, mark: str = "…") -> str:
    """The text in at most `width` cells; `mark` stands for the missing part."""
    if cells(text) <= width:
        return text
    kept, used = [], len(mark)
    for char in text:
        used += cells(char)
        if used > width:
            break
        kept.append(char)
    return ("".join(kept) + mark)[:width] if width > 0 else ""


def beginning(text: str, most: int) -> str:
    """So many characters of the text, and how many more there are."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def padded(text: str, width: int, right: bool = False) -> str:
    """The text filled with blanks to `width` cells, after it or, with `right`, before it."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def waits_text(waits: Mapping[str, str]) -> str:
    """For which providers a run waits, and until when here; `waits` are moments by lane."""
    ends: dict[str, datetime] = {}
    for lane, until in waits.items():
        provider, end = lane.partition("/")[0], datetime.fromisoformat(until).astimezone()
        ends[provider] = max(end, ends.get(provider, end))
    return ", ".join(f"waiting for {plain(provider)} until {end:%H:%M:%S}" for provider, end in ends.items())


def duration(seconds: float) -> str:
    """`42s`, `3m 12s`, `2h 05m`, `3d 04h`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not minutes:
        return f"{second}s"
    if not hours:
        return f"{minute}m {second:02d}s"
    return f"{hours}h {minute:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24:02d}h"


# Text of files and models in comments of a forge.

_REFERENCE = re.compile(r"[@#!$%&~](?=\w)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What forges link: people, issues, merge requests, snippets, milestones, labels; addresses."""

_SIGN = re.compile(r"[\\`*_{}\[\]~|$]|^\s*(?:[-+=#]|:(?=:)|\d+(?=[.)]))", re.MULTILINE)
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


def row_command(run: int, row_id: str | int) -> str:
    """The command that shows a row. An id that begins like a flag comes after `--`."""
    words = ["--", str(row_id)] if str(row_id).startswith("-") else [str(row_id)]
    return shlex.join(["agac", "inspect", str(run), *words])


def merge_command(command: str) -> str:
    """The command that merges shards, with the flags of one that runs a shard which say what run it is."""
    return re.sub(r" --(shard|concurrency|budget|max-errors) \S+", "", command).replace("agac run", "agac merge", 1)
