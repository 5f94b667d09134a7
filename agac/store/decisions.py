"""What people are asked about results (`review`), and what they said (`decision`): typed reads,
and what becomes of a review by its decisions. Decisions are written without the lease, in
transactions of their own; runs take them up."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agac.core.keys import canonical, review_key
from agac.core.types import JSONValue, RowId, inside
from agac.store.db import Database, Reads, by, grouped, reads, select, slices, sql

DISCARD = "discard"  # the choice of a line after which earlier decisions do not count
TIMEOUT = "timeout"  # the source of what counts as decided since nobody decided
FILE = "file"  # the source of lines of files
FIX = "fix"  # the source of results that somebody set by hand
# the choice of who wants another answer; and the source of what a task is asked again with
REDO = "redo"
OPEN = ("waiting", "conflict")  # the states of reviews that want a decision


class StoredDecision(NamedTuple):
    """A decision about a result."""

    key: bytes | None
    id: int
    workflow: str
    stage: str
    row_id: RowId
    choice: str
    value: str | None = None
    """The JSON text of an edit."""
    reason: str = ""
    reviewer: str = ""
    at: float = 0.0
    """When it was made (seconds since 1970)."""
    source: str = ""
    forced: bool = False

    def says(self, field: str | None, answer: JSONValue) -> str:
        """Returns what the decision amounts to if it is about `answer`: equal texts agree. `field`:
        the one in which they have to."""
        if self.choice in ("reject", REDO):
            return canonical([self.choice])
        value = json.loads(self.value) if self.value is not None else answer
        return canonical([None, inside(value, field.split(".") if field else ())])

    def repeats(self, other: StoredDecision) -> bool:
        """True if the same person decided the same before."""
        said = (self.choice, self.value, self.reason, self.reviewer)
        same = said == (other.choice, other.value, other.reason, other.reviewer)
        return same and (self.forced or not other.forced)


class StoredReview(NamedTuple):
    """A line of the table `review`."""

    key: bytes
    workflow: str
    stage: str
    row_id: RowId
    run_id: int
    row_key: int
    seen: dict[str, Any]
    why: dict[str, Any]
    blind: bool
    state: str
    """`waiting`, `conflict`, `decided`, `applied` or `stale`."""
    sure: float
    due: float | None
    at: float


class Standing(NamedTuple):
    """The state of a review by its decisions."""

    state: str = "waiting"
    """`decided`, `conflict` or `waiting`."""
    decision: StoredDecision | None = None
    """The decision that counts, if it is decided."""
    last: int = 0
    """The number of the newest decision."""


def counting(found: Sequence[StoredDecision], since: float) -> list[StoredDecision]:
    """Those that were not discarded: neither all before `since`, nor these."""
    since = max([since, *(one.at for one in found if one.choice == DISCARD)])
    return [one for one in found if one.at >= since and one.choice != DISCARD]


def is_known(counted: Sequence[StoredDecision], own: StoredDecision) -> bool:
    """True if a decision changes nothing next to those that count: it is the last word of its
    person, and where it overrides, of all who did. One of a file is known wherever it was taken
    before: the file may be imported again."""
    if own.source == FILE and not own.forced:
        return any(one.repeats(own) for one in counted)
    words = [one for one in counted if one.reviewer == own.reviewer]
    forced = [one.reviewer for one in counted if one.forced]
    return bool(words) and words[-1].repeats(own) and (not own.forced or forced[-1] == own.reviewer)


def standing(
    found: Sequence[StoredDecision],
    answer: JSONValue,
    *,
    reviewers: int,
    agree: str | None,
    since: float,
) -> Standing:
    """Returns the state of a review of `answer` by all decisions about it, in their order; those
    before `since` do not count.

    Each person's last word counts; the last one of a person who overrode the others counts alone,
    and one that no person made only if no person decided. As many as `reviewers` have to say the
    same, and more than say anything else."""
    last = max((one.id for one in found), default=0)
    valid = counting(found, since)
    forced = [one.reviewer for one in valid if one.forced]
    people = {one.reviewer: one for one in valid if one.source != TIMEOUT}
    if forced:
        return Standing("decided", people[forced[-1]], last)
    if not people:
        if valid:
            return Standing("decided", valid[-1], last)
        return Standing(last=last)
    groups = grouped(people.values(), lambda one: one.says(agree, answer))
    most, *others = sorted(groups.values(), key=len, reverse=True)
    if len(most) >= reviewers and (not others or len(others[0]) < len(most)):
        return Standing("decided", min(most, key=lambda one: one.id), last)
    return Standing("conflict" if others else "waiting", None, last)


decisions_of: Reads[[Sequence[bytes]], dict[bytes, list[StoredDecision]]] = reads(
    "decisions_of", StoredDecision, lambda found: grouped(found, lambda one: one.key)
)
"""The decisions about each of these keys, the oldest first."""

discarded_at: Reads[[str], float] = reads(
    "decisions_discarded", float, lambda found: found[0] or 0.0
)
"""From when on the decisions of a workflow count, in seconds since 1970."""

reviews_of: Reads[[Sequence[bytes]], dict[bytes, StoredReview]] = reads(
    "reviews_of", StoredReview, by("key")
)
review_page: Reads[..., list[StoredReview]] = reads("review_page", StoredReview)
"""Reviews in the order in which they are asked. By name: state, the workflow and the stage from
which on (`last_…`: up to which), and after which one: `sure` and `key`; `limit`; the `reviewer`
who has not decided on them, else ""."""

review_counts: Reads[..., list[tuple[str, str, str, int]]] = reads(
    "review_counts", tuple[str, str, str, int]
)
"""How many reviews there are by workflow, stage and state. By name: the `workflow` from which on,
and the last one."""

waiting_reviews: Reads[..., int] = reads("reviews_wanted", int, lambda found: found[0])
"""How many reviews want a decision, of a `reviewer` (else ""). By name: the workflow and the stage
from which on, and (`last_…`) up to which."""

asked_by: Reads[[str], list[int]] = reads("reviews_asked_by", int)
"""The runs of a workflow that want decisions."""

open_reviews: Reads[[str, int], dict[str, int]] = reads("reviews_open", tuple[str, int], dict)
"""How many reviews of a workflow and a run want a decision, by the name of the stage."""

rows_waiting: Reads[[Sequence[int], float], dict[int, str]] = reads(
    "reviews_waiting", tuple[int, str], dict
)
"""Those of these rows that wait for people and nothing else, at a moment: with the stage."""

rows_decided: Reads[[Sequence[int]], set[int]] = reads("reviews_decided", int, set)
"""Those of these rows of which something was decided that no run has taken up."""

any_decided: Reads[[int, int], bool] = reads("reviews_any_decided", int, bool)
"""True if there is such a row of a run that the stage at a position made."""


def put_decision(writer: sqlite3.Connection, one: StoredDecision) -> None:
    """Adds a decision; its `id` is given by the store."""
    writer.execute(sql("decision_put"), (one.key, *one[2:]))


# Results that somebody set by hand, and answers that are to be given again: the last word of each
# task counts, for all rows with its id and its fingerprint. `value` is the result, or that answer,
# and `reason` what the model is told.


@dataclass(frozen=True, slots=True)
class Fixes:
    """Results that are set by hand in a workflow, or are to be given again."""

    workflow: str = ""
    found: dict[bytes, StoredDecision] = field(default_factory=dict)
    rows: frozenset[int] = frozenset()
    """The keys of rows of a run whose results are not what is set, or no longer: they are walked
    again."""
    kind: str = FIX
    """The kind of the decisions: results that are set, or (`redo`) to be given again."""
    discarded: frozenset[bytes] = frozenset()
    """The keys of decisions that no longer count."""

    def of(self, stage: str, row_id: RowId, fingerprint: bytes) -> StoredDecision | None:
        """Returns what is set for a task."""
        if self.found:
            return self.found.get(review_key(self.workflow, stage, row_id, fingerprint, self.kind))
        return None


async def redos_of(database: Database, workflow: str, since: float = 0.0) -> Fixes:
    """Returns the answers of a workflow that people wanted to have given again; what they wrote
    before `since` is discarded."""
    said = {
        one.key or b"": one
        for one in await select(database, "fixes", StoredDecision, workflow, REDO)
        if one.value
    }
    old = frozenset(key for key, one in said.items() if one.at < since)
    return Fixes(
        workflow,
        {key: one for key, one in said.items() if key not in old},
        kind=REDO,
        discarded=old,
    )


async def fixes_of(database: Database, workflow: str, run: int, stages: Sequence[str]) -> Fixes:
    """Returns the results set by hand in a workflow, and what differs from them in a run with these
    stages."""
    every = await select(database, "fixes", StoredDecision, workflow, FIX)
    rows = set[int]()
    said = {one.key or b"": one for one in every}
    for some in slices(list(dict.fromkeys(one.row_id for one in said.values()))):
        tasks = await select(database, "fixable", tuple[int, Any, int, bytes, Any, Any], run, some)
        for row, row_id, stage, fingerprint, stored_as, value in tasks:
            fix = said.get(key := review_key(workflow, stages[stage], row_id, fingerprint, FIX))
            if fix is not None and fix.value != (value if stored_as == key else None):
                rows.add(row)
    return Fixes(workflow, {key: one for key, one in said.items() if one.value}, frozenset(rows))
