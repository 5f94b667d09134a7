"""How wide a text is taken to be where no font can be asked: on the wide side of the usual sans serifs."""

from __future__ import annotations

import unicodedata


def text_width(text: str, size: float) -> float:
    """Pixels, at a font size in pixels."""
    return size * sum(map(_em, text))


def cut_to(text: str, size: float, room: float) -> str:
    """As much of the text as `room` pixels hold, with … where there is more."""
    if text_width(text, size) <= room:
        return text
    used = size * _em("…")
    for end, c in enumerate(text):
        used += size * _em(c)
        if used > room:
            return text[:end].rstrip() + "…"
    return text


def _em(c: str) -> float:
    if unicodedata.combining(c):
        return 0.0
    if unicodedata.east_asian_width(c) in "WF":
        return 1.0
    if c in "iljtfrI.,:;'|!()[]·` ":
        return 0.38
    return 0.92 if c in "mwMW@%" else 0.72 if c.isupper() or not c.isascii() else 0.6
