"""What a stored row was made of, what was made of it, and the groups that it is in, each by its id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agac.plan.definition import RecordedStage
from agac.store.db import Database
from agac.store.history import RowRecord, groups_of_row, member_ids, rows_above, rows_below
from agac.store.rows import State, group_sizes

STATES = {
    State.PENDING: "open",
    State.DONE: "done",
    State.FAILED: "failed",
    State.DROPPED: "dropped",
    State.FILTERED: "dropped",
    State.SKIPPED: "skipped",
}

MOST_IDS = 1000
"""Ids of children, parts or members that are told of each stage."""

_CHILDREN = {"items": "child", "rows": "child", "kept": "kept", "groups": "group"}


async def relatives(database: Database, stages: Sequence[RecordedStage], row: RowRecord) -> dict[str, Any]:
    """How the row came to be: `relation` is input, child, kept, group or part, `made_by` the stage; `parents` are the
    nearest first. `children` and `groups` are what was made of it, `members` what a group is made of (else None)."""
    above = await rows_above(database, row.key)
    below, groups = await rows_below(database, row.key, MOST_IDS), await groups_of_row(database, row.key)
    root = above[-1] if above else row
    return {
        **_made(stages, row),
        "row_number": root.ordinal,
        "place": row.place if _relation(stages, row) == "child" else None,
        "parents": [{"id": one.id, **_made(stages, one)} for one in above],
        "children": [
            {
                "made_by": stages[one.origin].name,
                "relation": "part" if one.parts else _CHILDREN[stages[one.origin].makes or "items"],
                "count": sum(one.states.values()),
                "states": _by_word(one.states),
                "ids": one.ids,
            }
            for one in below
        ],
        "members": await _members(database, row) if _relation(stages, row) == "group" else None,
        "groups": [{"id": name, "made_by": stages[origin].name} for origin, name in groups],
    }


def is_list(stage: RecordedStage, value: str | None) -> bool:
    """Whether a function gave a list of rows in the place of a row; `value` is its stored result."""
    return stage.makes == "rows" and value is not None and isinstance(json.loads(value), list)


def _made(stages: Sequence[RecordedStage], row: RowRecord) -> dict[str, Any]:
    made_by = None if row.origin is None else stages[row.origin].name
    return {"relation": _relation(stages, row), "made_by": made_by}


def _relation(stages: Sequence[RecordedStage], row: RowRecord) -> str:
    if row.origin is None:
        return "input"
    return "part" if row.place is not None and row.place < 0 else _CHILDREN[stages[row.origin].makes or "items"]


def _by_word(states: Mapping[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for state, count in states.items():
        word = STATES[State(state)]
        found[word] = found.get(word, 0) + count
    return found


async def _members(database: Database, group: RowRecord) -> dict[str, Any]:
    """Of how many rows a group is made, and of how many it lacks, since they failed before they came to it."""
    size = (await group_sizes(database, [group.key])).get(group.key)
    return {
        "count": size.rows if size else 0,
        "failed": size.failed if size else 0,
        "ids": await member_ids(database, group.key, MOST_IDS, failed=False),
        "failed_ids": await member_ids(database, group.key, MOST_IDS, failed=True),
    }
