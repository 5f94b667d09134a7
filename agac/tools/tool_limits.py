"""How often tools may be called, results that are kept for equal calls, and their size."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

from agac.spec.tools import ToolRules

KEPT_BYTES = 64_000_000
"""The most bytes of results that are kept in memory for equal calls."""
KEPT_EACH = 300
"""Bytes that a kept result takes besides its text."""

HEAD = 0.7
"""How much of a result that is cut is its beginning; the rest is its end."""


class Bounds:
    """Limits how often a tool is called, and how many times at once."""

    def __init__(self, rules: ToolRules, most: int | None) -> None:
        """`most`: calls at a time that what runs the tool can take; None: any number."""
        places = min(filter(None, (rules.concurrency, most)), default=None)
        self.places = nullcontext() if places is None else asyncio.Semaphore(places)
        self._rate = rules.rate
        self._due = -math.inf

    def wait(self, now: float) -> float:
        """Returns the seconds until one more call may begin, and counts it. All calls of one
        second may begin at once."""
        if self._rate is None:
            return 0.0
        self._due = max(self._due, now - max(1 - 1 / self._rate, 0.0))
        wait = max(self._due - now, 0.0)
        self._due += 1 / self._rate
        return wait


class KeptResults:
    """Results in memory; the least recently used ones are dropped first."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept = OrderedDict[bytes, tuple[str, float]]()
        """Each result with the time until which it may be used."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> str | None:
        """Returns a result that may still be used."""
        if key not in self._kept:
            return None
        text, expires = self._kept[key]
        if expires <= self._monotonic():
            return None
        self._kept.move_to_end(key)
        return text

    def keep(self, key: bytes, text: str, ttl: float | None) -> None:
        """Keeps a result for `ttl` seconds; None: for the whole run."""
        if key not in self._kept:
            self._bytes += KEPT_EACH
        earlier_text, _ = self._kept.pop(key, ("", 0))
        self._bytes += len(text) - len(earlier_text)
        expires = math.inf if ttl is None else self._monotonic() + ttl
        self._kept[key] = (text, expires)
        while self._bytes > KEPT_BYTES:
            _, (dropped_text, _) = self._kept.popitem(last=False)
            self._bytes -= KEPT_EACH + len(dropped_text)


def cut(text: str, most: int, why: str = "") -> str:
    """Returns the text, or the beginning and end of a text longer than `most` characters."""
    if len(text) <= most:
        return text
    head = int(most * HEAD)
    left = f"\n[… {len(text) - most:,} of {len(text):,} characters are left out{why} …]\n"
    return text[:head] + left + text[len(text) - (most - head) :]
