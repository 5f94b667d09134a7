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
FIX = "fix"
"""The source of results that a person set by hand."""
REDO = "redo"
"""The choice of a person who wants another answer, and the source of what a task is asked again
with."""
OPEN = ("waiting", "conflict")
"""The states of reviews that want a decision."""


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
        content = (self.choice, self.value, self.reason, self.reviewer)
        if content != (other.choice, other.value, other.reason, other.reviewer):
            return False
        return self.forced or not other.forced


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


def counting(decisions: Sequence[StoredDecision], since: float) -> list[StoredDecision]:
    """Returns the decisions that were not discarded, neither with all before `since` nor by a
    later one."""
    discards = [decision.at for decision in decisions if decision.choice == DISCARD]
    since = max([since, *discards])
    return [
        decision for decision in decisions if decision.at >= since and decision.choice != DISCARD
    ]


def is_known(counted: Sequence[StoredDecision], new: StoredDecision) -> bool:
    """True if a new decision changes nothing about those that count: it is the last word of its
    person and, if it overrides, of all who did. One of a file is known if it was taken before at
    any time: the file may be imported again."""
    if new.source == FILE and not new.forced:
        return any(decision.repeats(new) for decision in counted)
    words = [decision for decision in counted if decision.reviewer == new.reviewer]
    if not words or not words[-1].repeats(new):
        return False
    if not new.forced:
        return True
    overriding = [decision.reviewer for decision in counted if decision.forced]
    return overriding[-1] == new.reviewer


def standing(
    decisions: Sequence[StoredDecision],
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
    last = max((decision.id for decision in decisions), default=0)
    valid = counting(decisions, since)
    overriding = [decision.reviewer for decision in valid if decision.forced]
    last_words = {decision.reviewer: decision for decision in valid if decision.source != TIMEOUT}
    if overriding:
        return Standing("decided", last_words[overriding[-1]], last)
    if not last_words:
        if valid:
            return Standing("decided", valid[-1], last)
        return Standing(last=last)
    groups = grouped(last_words.values(), lambda decision: decision.says(agree, answer))
    most, *others = sorted(groups.values(), key=len, reverse=True)
    leads = not others or len(others[0]) < len(most)
    if leads and len(most) >= reviewers:
        return Standing("decided", min(most, key=lambda decision: decision.id), last)
    return Standing("conflict" if others else "waiting", None, last)


decisions_of: Reads[[Sequence[bytes]], dict[bytes, list[StoredDecision]]] = reads(
    "decisions_of",
    StoredDecision,
    lambda decisions: grouped(decisions, lambda decision: decision.key),
)
"""The decisions about each of these keys, the oldest first."""

discarded_at: Reads[[str], float] = reads(
    "decisions_discarded", float, lambda times: times[0] or 0.0
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

waiting_reviews: Reads[..., int] = reads("reviews_wanted", int, lambda counts: counts[0])
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


def put_decision(writer: sqlite3.Connection, decision: StoredDecision) -> None:
    """Adds a decision; the store gives it its `id`."""
    writer.execute(sql("decision_put"), (decision.key, *decision[2:]))


# Results that a person set by hand, and answers that are to be given again: the last word of each
# task counts, for all rows with its id and its fingerprint. `value` is the result, or that answer,
# and `reason` is sent to the model.


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
    decisions = await select(database, "fixes", StoredDecision, workflow, REDO)
    by_key = {decision.key or b"": decision for decision in decisions if decision.value}
    old = frozenset(key for key, decision in by_key.items() if decision.at < since)
    return Fixes(
        workflow,
        {key: decision for key, decision in by_key.items() if key not in old},
        kind=REDO,
        discarded=old,
    )


async def fixes_of(database: Database, workflow: str, run: int, stages: Sequence[str]) -> Fixes:
    """Returns the results set by hand in a workflow, and what differs from them in a run with these
    stages."""
    decisions = await select(database, "fixes", StoredDecision, workflow, FIX)
    by_key = {decision.key or b"": decision for decision in decisions}
    rows = set[int]()
    for row_ids in slices(list(dict.fromkeys(fix.row_id for fix in by_key.values()))):
        tasks = await select(
            database, "fixable", tuple[int, Any, int, bytes, Any, Any], run, row_ids
        )
        for row, row_id, stage, fingerprint, stored_as, value in tasks:
            key = review_key(workflow, stages[stage], row_id, fingerprint, FIX)
            fix = by_key.get(key)
            if fix is not None and fix.value != (value if stored_as == key else None):
                rows.add(row)
    set_now = {key: fix for key, fix in by_key.items() if fix.value}
    return Fixes(workflow, set_now, frozenset(rows))
