"""The queue of reviews: what people are asked about results, and what they may decide.

Nothing here needs the workflow's lease: a decision is stored at once, and the next `agac run`
continues with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.status import database_path, refuse_unknown, workflow_name
from agac.api.sync import blocking
from agac.core.arguments import refuse_fields
from agac.core.errors import RowError, UsageError
from agac.core.keys import seen_hash
from agac.core.types import JSONValue, Moment, Report
from agac.engine.ask.validate import Checker
from agac.engine.walk.replay import RowViews
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.guards import STORED, Check, compile_guard
from agac.spec.operations import Review
from agac.spec.paths import project_root
from agac.store import decisions as store
from agac.store.db import Database, open_for_reading
from agac.store.decisions import Standing, StoredDecision, StoredReview
from agac.store.runs import definition_of, read_run

STATES = ("waiting", "conflict", "decided", "applied", "stale")

LAST_NAME = "\U0010ffff"
"""No name of a workflow or a stage comes after it."""


@dataclass(frozen=True, slots=True)
class Decision(Report):
    """What somebody decides about a review."""

    item: str
    """The id of the review, in hex."""

    choice: str
    """One of the review's choices, such as `approve` or `edit`."""

    value: JSONValue = None
    """The value of an edit."""

    reason: str = ""
    """A comment; `redo` needs one."""

    reviewer: str = ""
    """Who decides."""

    source: str = "api"
    """From where: `terminal`, `file`, `monitor` or `api`."""

    seen: str | None = None
    """The review's own `seen` when it was shown; None: it is not compared."""

    at: Moment | None = None
    """When it was stored, in seconds since 1970; None: it is not stored yet."""

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class ReviewItem(Report):
    """An answer that people are asked about."""

    id: str
    """The id of the review, in hex."""

    workflow: str
    """The workflow that asks."""

    run: int
    """The run that asks."""

    stage: str
    """The review stage."""

    edit: str
    """The stage whose answers are decided on."""

    row_id: str
    """The id of the row."""

    shown: dict[str, JSONValue]
    """What people see with the answer, by name."""

    answer: JSONValue
    """The answer; None if the review is `blind`."""

    schema: dict[str, Any] | None
    """What an edited value has to fit; None: it is a text."""

    choices: tuple[str, ...]
    """What may be decided."""

    why: dict[str, JSONValue]
    """Why people are asked.

    It has the condition with the values that it read, the `sample`, and in `redo` the earlier
    answers that somebody wanted to have given again, each with the comment. It is empty if every
    row is asked about, and if the review is `blind`, as it tells of the answer."""

    blind: bool
    """True if the answer is not shown."""

    state: str
    """One of STATES."""

    sure: float
    """How sure the model is of the answer, from 0 to 1."""

    since: Moment
    """When it was asked, in seconds since 1970."""

    decisions: tuple[Decision, ...]
    """The decisions that count."""

    seen: str
    """A hash of what is shown, to tell whether it has changed."""


@dataclass(frozen=True, slots=True)
class ReviewPage(Report):
    """Some reviews, least sure first within a stage."""

    items: list[ReviewItem]
    """The reviews."""

    next: str | None
    """The `after` of the next page; None: there is none."""

    waiting: int
    """How many reviews want a decision, on all pages."""


@dataclass(frozen=True, slots=True)
class ReviewedStage:
    """What a stage of a run asks people."""

    review: Review
    """The operation of the stage."""

    judged: RecordedStage
    """The stage whose answers they decide on."""

    checker: Checker
    """Checks an edited value."""

    stages: Sequence[RecordedStage]
    """All stages of the run."""

    @staticmethod
    def of(stages: Sequence[RecordedStage], name: str) -> ReviewedStage | None:
        """Reads it from a definition's stages; None if there is no such review stage."""
        by_name = {stage.name: stage for stage in stages}
        operation = by_name[name].operation if name in by_name else None
        if not isinstance(operation, Review):
            return None
        judged = by_name[operation.edit]
        checks = []
        for check in judged.checks:
            guard = compile_guard(check.guard.text, STORED)[0]
            if guard is not None:
                checks.append(Check(guard, check.message))
        judged = replace(judged, checks=tuple(checks))
        return ReviewedStage(operation, judged, Checker(judged), stages)

    def choices(self, review: StoredReview) -> tuple[str, ...]:
        """Lists what may be decided about a review."""
        excluded: tuple[str, ...] = ()
        if review.blind:
            excluded = ("approve", store.REDO)
        elif len(review.why.get(store.REDO, ())) >= self.review.redo:
            excluded = (store.REDO,)
        return tuple(choice for choice in self.review.choices if choice not in excluded)

    def standing(
        self, review: StoredReview, decisions: Sequence[StoredDecision], since: float
    ) -> Standing:
        """Computes the state of a review from the decisions about it."""
        return store.standing(
            decisions,
            review.seen["answer"],
            reviewers=self.review.reviewers,
            agree=self.review.agree,
            since=since,
        )

    async def fault(
        self, database: Database, review: StoredReview, decision: Decision
    ) -> str | None:
        """Says why this cannot be decided about the review; None if it can."""
        choices = self.choices(review)
        if decision.choice not in choices:
            reason = f"{review.row_id!r} has these choices"
            if review.blind:
                reason = "it was asked without the answer"
            return (
                f"{decision.choice!r} is no choice at stage {review.stage!r}; {reason}: "
                f"{', '.join(choices)}"
            )
        if not decision.reviewer:
            return "nobody is named as its reviewer"
        if decision.choice == store.REDO and not decision.reason:
            return "redo takes a reason: what is wrong with the answer, for the model"
        if decision.choice == "edit":
            return await self._fault_of_value(database, review, decision.value)
        if decision.value is not None:
            return f"a value is given with {decision.choice!r}; write edit"
        return None

    async def _fault_of_value(
        self, database: Database, review: StoredReview, value: JSONValue
    ) -> str | None:
        """Says why an edited value is no answer of the stage; None if it is one."""
        view = None
        if self.judged.checks:  # they may look at all that there is of the row
            views = RowViews(self.stages, self.stages[0].variables, database)
            view = (await views.ended([review.row_key])).get(review.row_key)
        checked = self.checker.check_value(value, view)
        if isinstance(checked, RowError):
            return checked.message
        return None


@dataclass
class ReviewedStages:
    """What the stages of runs ask people; each is read once."""

    database: Database
    """The store."""

    _read: dict[tuple[int, str], ReviewedStage | None] = field(default_factory=dict)

    async def of(self, review: StoredReview) -> ReviewedStage | None:
        """Reads the stage that asked for a review; None if its run was deleted."""
        key = review.run_id, review.stage
        if key not in self._read:
            stages: Sequence[RecordedStage] = ()
            if await read_run(self.database, review.run_id) is not None:
                stages = recorded_stages(await definition_of(self.database, review.run_id))
            self._read[key] = ReviewedStage.of(stages, review.stage)
        return self._read[key]


class ReviewFilter(NamedTuple):
    """Which reviews a statement is about. The default is all."""

    workflow: str | None = None
    """Only those of this workflow."""

    stage: str | None = None
    """Only those of this stage of the workflow."""

    reviewer: str | None = None
    """Only reviews that this person has not decided on."""

    def after(self, last: StoredReview | None = None) -> dict[str, Any]:
        """Gives the arguments of a statement for all reviews, or for those after `last`."""
        start = (self.workflow or "", self.stage or "", -1.0, b"")
        if last is not None:
            start = (last.workflow, last.stage, last.sure, last.key)
        workflow, stage, sure, key = start
        return {
            "workflow": workflow,
            "stage": stage,
            "sure": sure,
            "key": key,
            "last_workflow": self.workflow or LAST_NAME,
            "last_stage": self.stage or LAST_NAME,
            "reviewer": self.reviewer or "",
        }


@blocking
async def review_queue(
    project: Path | str | None = None, *, workflow: str | None = None, stage: str | None = None,
    state: str = "waiting", after: str | None = None, limit: int = 50, reviewer: str | None = None,
) -> ReviewPage:  # fmt: skip
    """Lists reviews in a state by workflow and stage, the least sure first.

    States are `waiting`, `conflict`, `decided` (no run has taken it up yet), `applied` and
    `stale`. With a `reviewer` those on which this person has not decided. Changes nothing. Raises
    UsageError for a workflow that does not exist, and for a `stage` without a workflow."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    if state not in STATES:
        raise UsageError(
            f"{state!r} is no state of a review", remedy=f"One of {', '.join(STATES)}."
        )
    if stage is not None and workflow is None:
        raise UsageError("a stage was named without its workflow", remedy="Name the workflow too.")
    which = ReviewFilter(workflow, stage, reviewer)
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return ReviewPage([], None, 0)
        last = await _stored_review(database, after) if after is not None else None
        arguments = which.after(last)
        reviews = await store.review_page(database, state=state, limit=limit + 1, **arguments)
        items = await _items(database, reviews[:limit])
        waiting = await store.waiting_reviews(database, **which.after())
    has_more = len(reviews) > limit and len(items) > 0
    return ReviewPage(items, items[-1].id if has_more else None, waiting)


@blocking
async def review_item(item: str, project: Path | str | None = None) -> ReviewItem | None:
    """Gives one review by its id; None if there is none. Changes nothing."""
    async with open_for_reading(database_path(project_root(project))) as database:
        if database is None:
            return None
        review = await _stored_review(database, item)
        if review is None:
            return None
        (shown,) = await _items(database, [review])
        return shown


def review_key_of(item: str) -> bytes:
    """Gives the key of a review by its id; a wrong id gives the empty key, which no review has."""
    with suppress(ValueError):
        return bytes.fromhex(item)
    return b""


def seen_of(review: StoredReview) -> str:
    """Gives the hash of what a review shows."""
    earlier = review.why.get(store.REDO, ())
    return seen_hash(review.seen["shown"], review.seen["answer"], earlier).hex()


async def _stored_review(database: Database, item: str) -> StoredReview | None:
    key = review_key_of(item)
    return (await store.reviews_of(database, [key])).get(key)


async def _items(database: Database, reviews: Sequence[StoredReview]) -> list[ReviewItem]:
    """Reads what people see of reviews."""
    stages = ReviewedStages(database)
    decisions = await store.decisions_of(database, [review.key for review in reviews])
    since = {
        workflow: await store.discarded_at(database, workflow)
        for workflow in {review.workflow for review in reviews}
    }
    items = []
    for review in reviews:
        stage = await stages.of(review)
        counting = store.counting(decisions.get(review.key, ()), since[review.workflow])
        items.append(_item(review, stage, counting))
    return items


def _item(
    review: StoredReview, stage: ReviewedStage | None, decisions: Sequence[StoredDecision]
) -> ReviewItem:
    """Describes a review for people, without what a blind one hides."""
    return ReviewItem(
        id=review.key.hex(),
        workflow=review.workflow,
        run=review.run_id,
        stage=review.stage,
        edit=stage.review.edit if stage else "",
        row_id=str(review.row_id),
        shown=review.seen["shown"],
        answer=None if review.blind else review.seen["answer"],
        schema=stage.judged.shape if stage else None,
        choices=stage.choices(review) if stage else (),
        why={} if review.blind else review.why,
        blind=review.blind,
        state=review.state,
        sure=review.sure,
        since=review.at,
        decisions=tuple(map(_decision, decisions)),
        seen=seen_of(review),
    )


def _decision(stored: StoredDecision) -> Decision:
    """Reads a stored decision."""
    return Decision(
        item=stored.key.hex() if stored.key else "",
        choice=stored.choice,
        value=None if stored.value is None else json.loads(stored.value),
        reason=stored.reason,
        reviewer=stored.reviewer,
        source=stored.source,
        at=stored.at,
    )
