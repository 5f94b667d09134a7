"""How fast a run goes, and when a plain log hears of it."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 20.0
"""The rate is that of so long: it follows a lane that slows down, and does not jump with every reply."""

PLAIN_SECONDS = 10.0
PLAIN_SHARE = 0.1
PLAIN_SILENCE = 60.0
"""A log gets a line after ten seconds and another tenth of the rows, and after a minute in any case."""

PATIENCE_SECONDS = 1.0
"""Calls that are made again are told of when no answer has come for so long: one among many is nobody's concern."""


class Rate:
    """Rows a second over the last `WINDOW_SECONDS`. Feed it with counts that only grow."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, now: float, count: int) -> float:
        """Takes the count at a time, and gives the rate; 0.0 before anything is known."""
        seen = self._seen
        if not seen or now - seen[-1][0] >= WINDOW_SECONDS / 100:
            seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_SECONDS:
            seen.popleft()
        since, before = seen[0]
        return (count - before) / (now - since) if now > since else 0.0


class Waiting:
    """Since when no answer comes, as far as looks now and then can tell."""

    def __init__(self) -> None:
        self._since: float | None = None

    def long(self, now: float, *, waiting: bool) -> bool:
        """Whether it has been worth a word; `waiting` is how it looks now."""
        if not waiting:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= PATIENCE_SECONDS


class Log:
    """When the next lines of a plain log are due."""

    def __init__(self, now: float) -> None:
        self._last, self._share = now, 0.0
        self._told_at: float | None = None

    def first_told(self, now: float, *, waiting: bool) -> bool:
        """Whether it is time for a line of its own about calls that bring no answer: at once, then with the others."""
        if not waiting or (self._told_at is not None and now - self._told_at < PLAIN_SILENCE):
            return False
        self._told_at = now
        return True

    def due(self, now: float, share: float | None) -> bool:
        """Whether it is time for lines; `share` of the work that is done, None when nobody knows."""
        waited, grown = now - self._last, PLAIN_SHARE if share is None else round(share - self._share, 6)
        if waited < PLAIN_SECONDS or (grown < PLAIN_SHARE and waited < PLAIN_SILENCE):
            return False
        self._last, self._share = now, share or 0.0
        return True
