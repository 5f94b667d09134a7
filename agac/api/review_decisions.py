"""Stores what people decided about reviews, from a terminal, a file, the monitor or a program."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agac.api.review import Decision, ReviewedStage, ReviewedStages, review_key_of, seen_of
from agac.api.status import database_path, no_runs_yet
from agac.api.sync import blocking
from agac.core.keys import snapshot
from agac.core.types import Report
from agac.spec.paths import project_root
from agac.store import decisions as store
from agac.store.db import Database, change, fetch, slices, sql
from agac.store.decisions import Standing, StoredDecision, StoredReview
from agac.store.writer import open_database


@dataclass(frozen=True, slots=True)
class DecisionProblem(Report):
    """Why a decision cannot be stored."""

    place: int
    """The number of the decision, from 0."""

    item: str
    """The id of its review."""

    message: str
    """What is wrong."""


@dataclass(frozen=True, slots=True)
class DecideReport(Report):
    """What became of decisions. With `problems` none was stored."""

    taken: int = 0
    """Decisions that are stored now."""

    same: int = 0
    """Decisions that were stored before."""

    stale: int = 0
    """Decisions about an answer that has changed since."""

    conflicts: list[str] = field(default_factory=list)
    """Reviews that now have different decisions."""

    problems: list[DecisionProblem] = field(default_factory=list)
    """What is wrong with decisions."""


class _Decided(NamedTuple):
    """A decision that can be stored, and what it is about."""

    decision: Decision
    review: StoredReview
    stage: ReviewedStage


@blocking
async def decide(
    project: Path | str | None = None,
    decisions: Sequence[Decision] = (),
    *,
    force: bool = False,
    check: bool = False,
) -> DecideReport:
    """Stores what people decided: all of it or, if something is wrong with one of them, nothing.

    What is stored already changes nothing, so it may be given again. With `force` they override
    what others decided; with `check` they are checked, and nothing is stored. It is one
    transaction: a crash before it leaves nothing, one after it everything. Raises UsageError if
    nothing was run."""
    path = database_path(project_root(project))
    if not path.exists():
        raise no_runs_yet(path)
    async with open_database(path) as database:
        decided, problems = await _checked(database, decisions)
        if problems or check:
            return DecideReport(problems=problems)
        return await change(database, lambda writer: _store(writer, decided, force=force))


async def _checked(
    database: Database, decisions: Sequence[Decision]
) -> tuple[list[_Decided], list[DecisionProblem]]:
    """Finds what decisions are about, and what is wrong with them."""
    reviews: dict[bytes, StoredReview] = {}
    for keys in slices(list({review_key_of(decision.item) for decision in decisions})):
        reviews |= await store.reviews_of(database, keys)
    stages = ReviewedStages(database)
    decided: list[_Decided] = []
    problems = []
    for number, decision in enumerate(decisions):
        review = reviews.get(review_key_of(decision.item))
        stage = await stages.of(review) if review is not None else None
        fault: str | None = f"there is no review {decision.item!r}"
        if review is not None and stage is not None:
            fault = await stage.fault(database, review, decision)
            decided.append(_Decided(decision, review, stage))
        if fault is not None:
            problems.append(DecisionProblem(number, decision.item, fault))
    return decided, problems


def _store(writer: sqlite3.Connection, decided: Sequence[_Decided], *, force: bool) -> DecideReport:
    """Adds the decisions that are new, within a transaction, and updates their reviews."""
    taken = 0
    same = 0
    stale = 0
    conflicts = list[str]()
    for decision, review, stage in decided:
        (now,) = fetch(writer, "reviews_of", StoredReview, [review.key])
        if decision.seen not in (None, seen_of(now)):
            stale += 1
            continue
        stored = _stored_decision(decision, now, force=force)
        before, counting = _standing(writer, stage, now)
        if store.is_known(counting, stored):
            same += 1
            continue
        store.put_decision(writer, stored)
        taken += 1
        after, _ = _standing(writer, stage, now)
        if after.state == "conflict":
            conflicts.append(decision.item)
        if now.state == "stale":
            stale += 1
        elif not _is_applied(now, before, after):
            writer.execute(sql("review_state"), (after.state, now.key))
    return DecideReport(taken, same, stale, conflicts)


def _stored_decision(decision: Decision, review: StoredReview, *, force: bool) -> StoredDecision:
    """Makes the record of a decision, taken now."""
    return StoredDecision(
        review.key,
        0,
        review.workflow,
        review.stage,
        review.row_id,
        decision.choice,
        snapshot(decision.value) if decision.choice == "edit" else None,
        decision.reason,
        decision.reviewer,
        time.time(),
        decision.source,
        force,
    )


def _standing(
    writer: sqlite3.Connection, stage: ReviewedStage, review: StoredReview
) -> tuple[Standing, list[StoredDecision]]:
    """Computes the state of a review within a transaction, and lists the decisions that count."""
    decisions = fetch(writer, "decisions_of", StoredDecision, [review.key])
    since = fetch(writer, "decisions_discarded", float, review.workflow)[0] or 0.0
    return stage.standing(review, decisions, since), store.counting(decisions, since)


def _is_applied(review: StoredReview, before: Standing, after: Standing) -> bool:
    """True if a run has already used what is decided now."""
    if review.state != "applied" or after.decision is None:
        return False
    return after.decision == before.decision
