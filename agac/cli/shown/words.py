"""Small pieces of text: counts, amounts, and text of others that must not take over a terminal."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"  # line ends in disguise, and what turns the reading direction
    "\ud800-\udfff]"  # lone surrogates
)


def plain(text: str) -> str:
    """`text` with an escape such as `\\x1b` for each character that would move, hide or recolour what is shown."""
    return _UNSAFE.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def counted(count: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def passed_over_words(passed_over: dict[str, Any]) -> str:
    """A guard that did not let a row in, on one line, with the values that it looked at."""
    if "python" in passed_over:
        return f"{passed_over['python']} gave None"
    guard = " ".join(passed_over["when"].splitlines())
    values = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in passed_over["values"].items()]
    return f"not true: {guard}" + (f"   with {', '.join(values)}" if values else "")


def megabytes(size: int) -> str:
    """A size on disk."""
    return f"{size / 1e6:,.1f} MB"


def selection_words(selection: dict[str, Any]) -> str:
    """Which rows of the input take part; empty for all."""
    if not selection:
        return ""
    limit, offset, sample = selection.get("limit"), selection.get("offset", 0), selection.get("sample")
    many = counted(limit, "row") if limit is not None else "all rows"
    if sample is not None:
        drawn = f"{counted(sample, 'row')} drawn with seed {selection.get('seed', 0)}"
        many = drawn if limit is None else f"{many} of {drawn}"
    return f"{many} from row {offset + 1:,}" if offset else many


def without(command: str, *flags: str) -> str:
    """A command without these flags and their values."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word in flags:
            next(words, None)
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return shlex.join(kept)


def without_switch(command: str, switch: str) -> str:
    """A command without a flag that takes no value."""
    return shlex.join(word for word in shlex.split(command) if word != switch)


def indented(text: str, by: str = "  ") -> str:
    """Every line of `text` further to the right."""
    return "\n".join(f"{by}{line}".rstrip() for line in text.split("\n"))


def duration(seconds: float) -> str:
    """`42s`, `3m 12s`, `2h 05m`, `3d 04h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
