"""Lists of batches and files, page by page: to their end, or until they are surely past what is looked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from agac.core.types import Fault
from agac.providers.batchreading import moment, text_of
from agac.providers.controlplane import ControlPlane

LEEWAY = 300.0
"""Seconds by which a provider's clock and ours may differ."""


async def listed(
    plane: ControlPlane,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    limit: int | None,
    cursor: str = "after",
    since: float | None = None,
) -> AsyncIterator[dict[str, Any] | Fault]:
    """What a list holds, each id once; a Fault ends it. `limit` None: the list has no pages.

    With `since` it ends early where it was seen to go from new to old and is past that moment by a whole page: an order
    is never taken for granted, since what is not found may be created again.
    """
    seen: set[str] = set()
    last: str | None = None
    order = _Order()
    was_past = False
    while True:
        asked = dict(query or {}) | ({} if limit is None else {"limit": limit, cursor: last})
        found = await plane.get(path, asked)
        if isinstance(found, Fault):
            yield found
            return
        entries = found.get("data")
        if not isinstance(entries, list):
            yield plane.unreadable(200, "a list without data", creates=False)
            return
        fresh = [one for one in entries if (name := text_of(one, "id")) and name not in seen]
        for one in fresh:
            seen.add(one["id"])
            order.saw(moment(one.get("created_at")))
            yield one
        last = text_of(found, "last_id") or (fresh[-1]["id"] if fresh else None)
        if limit is None or not fresh or not _more(found, len(entries), limit):
            return
        is_past = since is not None and order.past(since - LEEWAY)
        if is_past and was_past:
            return
        was_past = is_past


def _more(page: dict[str, Any], count: int, limit: int) -> bool:
    more = page.get("has_more")
    return more if isinstance(more, bool) else count >= limit


class _Order:
    """Whether what was seen goes from new to old."""

    __slots__ = ("_falls", "_last", "_rises")

    def __init__(self) -> None:
        self._last: float | None = None
        self._falls = self._rises = False

    def saw(self, at: float | None) -> None:
        if at is None:
            self._rises = True  # without its moment nothing is known of the order
            return
        if self._last is not None:
            self._falls |= at < self._last
            self._rises |= at > self._last
        self._last = at

    def past(self, moment: float) -> bool:
        return self._falls and not self._rises and self._last is not None and self._last < moment


async def none() -> AsyncIterator[Any]:
    """An empty list."""
    for one in list[Any]():
        yield one
