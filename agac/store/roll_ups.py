"""What the monitor reads: roll-ups, samples of lanes, and lists of rows by index and keyset, each
within bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, Reads, by, first, reads, select
from agac.store.records import LaneSample


class Lately(NamedTuple):
    """What a stage came to since a minute ('': the rows of the input): tasks settled, calls, their
    tokens and USD."""

    stage: str
    settled: int
    calls: int
    tokens: int
    usd: float


# run, minute
lately: Reads[[int, int], dict[str, Lately]] = reads("minutes_lately", Lately, by("stage"))
first_minute: Reads[[int], int | None] = reads("minute_first", int, first)
# of a run, the last ones first
asked_for: Reads[[int], list[dict[str, Any]]] = reads("inbox_of", dict[str, Any])
failures_like: Reads[[int, str, str | None, int], list[tuple[RowId, str]]] = reads(
    "failures_like", tuple[Any, str]
)
rows_shown: Reads[[Sequence[int]], dict[int, dict[str, Any]]] = reads(
    "rows_shown", tuple[int, dict[str, Any]], dict
)

made_failures: Reads[[int], list[tuple[int, str, str, int]]] = reads(
    "made_failures", tuple[int, str, str, int]
)
"""How rows of a run failed that stages made: the position of that stage, where ("": before any),
why, how many."""

# By a run, since when, and the length of a step; those of minutes in minutes, those of lanes in
# seconds.
minutes_of = reads("minutes_of", tuple[Any, ...])
minute_timings_of = reads("minute_timings_of", tuple[int, int, int])
lanes_of = reads("lanes_of", LaneSample)

# Rows in lists: some hundred are looked at by an index, in its order, and those that match are
# shown. A page goes on where the last one ended, whatever was added since.

MOST_LOOKED = 50_000
"""Rows that are looked at for a page at most. What is not found among them may be further on."""

AT_ONCE = 1024  # rows in one statement
_LOWEST = -(1 << 63)  # no key, place, number as an id, or repetition is less


class IndexedRows(NamedTuple):
    """Rows in an index's order."""

    statement: str
    """The name of the statement that reads them."""
    name: list[Any]
    """A name that distinguishes lists."""
    values: Mapping[str, Any]
    """Values of the statement."""
    start: tuple[Any, Any] = (_LOWEST, _LOWEST)
    """A place before the first row of the list."""


FROM_THE_END = IndexedRows("rows_by_place_back", [], {}, (-_LOWEST - 1, -_LOWEST - 1))
"""Rows of the input, the last one first."""


def in_id_order(beginning: str | None) -> list[IndexedRows]:
    """Returns all rows by their ids; or those whose id is, or begins with, a text."""
    if beginning is None:
        # every number and text is below
        return [IndexedRows("rows_in_id_order", [], {"below": b""})]
    texts = IndexedRows(
        "rows_in_id_order", [1], {"below": beginning + "\U0010ffff"}, (beginning, _LOWEST)
    )
    if beginning.isascii() and beginning.isdigit() and len(beginning) < 16:
        number = int(beginning)
        numbers = IndexedRows("rows_in_id_order", [0], {"below": number + 1}, (number, _LOWEST))
        return [numbers, texts]
    return [texts]


async def page_of(
    database: Database,
    sources: Sequence[IndexedRows],
    values: Mapping[str, Any],
    after: str | None,
    limit: int,
    seconds: float,
) -> tuple[list[int], str | None, int]:
    """Returns the keys of the next rows that are shown, the place after which the next page begins
    (None: there is none), and how many rows were looked at.

    `after` is such a place. It looks at MOST_LOOKED rows at most, or for this many seconds."""
    page = _Page(limit, time.monotonic() + seconds)
    name, *place = json.loads(after) if after is not None else ([],)
    for source in sources:
        if source.name < name:
            continue
        start = place if place and source.name == name else source.start
        if await page.take(database, source, values, start):
            return page.keys, page.next_place, page.looked
    return page.keys, None, page.looked


class _Page:
    """A page of rows that is being filled."""

    def __init__(self, limit: int, ends_at: float) -> None:
        self.keys = list[int]()
        self.looked = 0
        """The number of rows that were looked at."""
        self.next_place: str | None = None
        """The place after which the next page begins; known once the page is full or its time is
        over."""
        self._limit = limit
        self._ends_at = ends_at

    async def take(
        self,
        database: Database,
        source: IndexedRows,
        values: Mapping[str, Any],
        start: Sequence[Any],
    ) -> bool:
        """Takes rows of a list, from `start` on. Returns True if the page ends within the list."""
        at = start
        look = min(self._limit + 1, AT_ONCE)
        while True:
            about = {**values, **source.values, "first": at[0], "second": at[1], "look": look}
            rows = await select(database, source.statement, tuple[int, Any, Any, int], **about)
            for key, *at, shown in rows:
                self.looked += 1
                if not shown:
                    continue
                if self.next_place is not None:
                    return True
                self.keys.append(key)
                if len(self.keys) == self._limit:
                    self.next_place = json.dumps([source.name, *at])
            if len(rows) < look:
                return False
            if self.looked >= MOST_LOOKED or time.monotonic() > self._ends_at:
                self.next_place = self.next_place or json.dumps([source.name, *at])
                return True
            look = min(2 * look, AT_ONCE)
