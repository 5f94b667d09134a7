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
    """Rows in an index's order. `name` tells lists apart; `start` stands before the first row of
    its list."""

    statement: str
    name: list[Any]
    values: Mapping[str, Any]
    start: tuple[Any, Any] = (_LOWEST, _LOWEST)


FROM_THE_END = IndexedRows("rows_by_place_back", [], {}, (-_LOWEST - 1, -_LOWEST - 1))
"""Rows of the input, the last one first."""


def in_id_order(beginning: str | None) -> list[IndexedRows]:
    """All rows by their ids; or those whose id is, or begins with, a text."""
    if beginning is None:
        # every number and text is below
        return [IndexedRows("rows_in_id_order", [], {"below": b""})]
    found = [
        IndexedRows(
            "rows_in_id_order", [1], {"below": beginning + "\U0010ffff"}, (beginning, _LOWEST)
        )
    ]
    if beginning.isascii() and beginning.isdigit() and len(beginning) < 16:
        number = int(beginning)
        found.insert(
            0, IndexedRows("rows_in_id_order", [0], {"below": number + 1}, (number, _LOWEST))
        )
    return found


async def page_of(
    database: Database,
    sources: Sequence[IndexedRows],
    values: Mapping[str, Any],
    after: str | None,
    limit: int,
    seconds: float,
) -> tuple[list[int], str | None, int]:
    """The keys of the next rows that are shown, the place after which the next page begins (None:
    there is none), and how many rows were looked at: MOST_LOOKED, or for so many seconds, at most.
    `after` is such a place."""
    ends = time.monotonic() + seconds
    keys = list[int]()
    looked = 0
    last = None
    name, *place = json.loads(after) if after is not None else ([],)
    for source in sources:
        if source.name < name:
            continue
        at = place if place and source.name == name else source.start
        look = min(limit + 1, AT_ONCE)
        while True:
            about = {**values, **source.values, "first": at[0], "second": at[1], "look": look}
            found = await select(database, source.statement, tuple[int, Any, Any, int], **about)
            for key, *at, shown in found:
                looked += 1
                if shown and last is not None:
                    return keys, last, looked
                if shown:
                    keys.append(key)
                    last = json.dumps([source.name, *at]) if len(keys) == limit else None
            if len(found) < look:
                break
            if looked >= MOST_LOOKED or time.monotonic() > ends:
                return keys, last or json.dumps([source.name, *at]), looked
            look = min(2 * look, AT_ONCE)
    return keys, None, looked
