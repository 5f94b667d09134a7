"""How far people and the models agree, stage by stage, in what people decided about results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agac.api.comparison import Agreement
from agac.api.review import ReviewedStages, ReviewFilter
from agac.api.status import database_path, made_in_python, refuse_unknown, workflow_name
from agac.api.sync import blocking
from agac.core.types import Report
from agac.spec.loader import load_project, read_workflow, workflow_files
from agac.spec.paths import home_of, project_root
from agac.store import decisions as store
from agac.store.db import Database, open_for_reading
from agac.store.decisions import StoredDecision, StoredReview

PAGE = 512
"""Reviews that are read at a time."""


@dataclass(slots=True)
class StageReviews(Report):
    """What people were asked at a stage, and how far they and the model agree."""

    workflow: str
    """The workflow that asked."""

    stage: str
    """The review stage."""

    states: dict[str, int] = field(default_factory=dict)
    """How many reviews are in each state."""

    rejected: int = 0
    """Answers that were rejected."""

    blind: Agreement = field(default_factory=Agreement)
    """Of reviews that did not show the answer."""

    sample: Agreement = field(default_factory=Agreement)
    """Of the sample of rows that would have passed."""

    others: Agreement = field(default_factory=Agreement)
    """Of all others."""

    is_gone: bool = False
    """True if no file has this review stage any more, so that no run takes decisions up."""

    def add(self, review: StoredReview, decision: StoredDecision) -> None:
        """Counts a decision."""
        if decision.choice == "reject":
            self.rejected += 1
        if decision.choice not in ("approve", "edit"):
            return
        answer = review.seen["answer"]
        value = answer
        if decision.value is not None:
            value = json.loads(decision.value)
        if review.blind:
            self.blind.add(answer, value)
        elif "sample" in review.why:
            self.sample.add(answer, value)
        else:
            self.others.add(answer, value)


@dataclass(frozen=True, slots=True)
class ReviewReport(Report):
    """The stages at which people decided."""

    stages: list[StageReviews]
    """By workflow and stage."""


@blocking
async def review_report(
    project: Path | str | None = None, *, workflow: str | None = None
) -> ReviewReport:
    """Reports how far people and the models agree, stage by stage, in one workflow or all. Changes
    nothing."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    which = ReviewFilter(workflow)
    stages: dict[tuple[str, str], StageReviews] = {}
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return ReviewReport([])
        for name, stage, state, count in await store.review_counts(database, **which.after()):
            stages.setdefault((name, stage), StageReviews(name, stage)).states[state] = count
        since = {name: await store.discarded_at(database, name) for name, _ in stages}
        async for review, decision in _decided(database, which, since):
            stages[review.workflow, review.stage].add(review, decision)
        for reviews in stages.values():
            if not await made_in_python(database, reviews.workflow):
                reviews.is_gone = not _has_stage(root, reviews.workflow, reviews.stage)
    return ReviewReport([stages[name] for name in sorted(stages)])


async def _decided(
    database: Database, which: ReviewFilter, since: Mapping[str, float]
) -> AsyncIterator[tuple[StoredReview, StoredDecision]]:
    """Yields the reviews that are decided, each with the decision that counts."""
    reviewed = ReviewedStages(database)
    async for page in _pages(database, which):
        decisions = await store.decisions_of(database, [review.key for review in page])
        for review in page:
            stage = await reviewed.of(review)
            if stage is None:
                continue
            about = decisions.get(review.key, ())
            standing = stage.standing(review, about, since[review.workflow])
            if standing.decision is not None:
                yield review, standing.decision


async def _pages(database: Database, which: ReviewFilter) -> AsyncIterator[list[StoredReview]]:
    """Yields all reviews that are decided, whether a run has taken that up or not."""
    for state in ("applied", "decided"):
        last: StoredReview | None = None
        while page := await store.review_page(
            database, state=state, limit=PAGE, **which.after(last)
        ):
            yield page
            last = page[-1]


def _has_stage(root: Path, workflow: str, stage: str) -> bool:
    """True if a file of the workflow has this review stage, or cannot be read."""
    project, _ = load_project(root, {})
    if project is None:
        return True
    home = home_of(root)
    for path in workflow_files(project, workflow):
        file = read_workflow(path, project.shown(path), home)[0]
        if file is None or any(each.name == stage for each in file.stages):
            return True
    return False
