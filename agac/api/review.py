"""What people are asked about results, and what they decide: the queue of reviews, decisions that
are taken from anywhere (a terminal, a file, the monitor), and how people and the model agree.
Nothing here needs the workflow's lease: a decision is stored at once, and the next `agac run` goes
on with it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.comparison import Agreement
from agac.api.status import (
    database_path,
    made_in_python,
    no_runs_yet,
    refuse_unknown,
    workflow_name,
)
from agac.api.sync import blocking
from agac.core.arguments import refuse_fields
from agac.core.errors import RowError, UsageError
from agac.core.keys import seen_hash, snapshot
from agac.core.types import JSONValue, Moment, Report
from agac.engine.ask.validate import Checker
from agac.engine.walk.replay import RowViews
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.guards import STORED, Check, compile_guard
from agac.spec.loader import load_project, read_workflow, workflow_files
from agac.spec.operations import Review
from agac.spec.paths import home_of, project_root
from agac.store import decisions as store
from agac.store.db import Database, change, fetch, open_for_reading, slices, sql
from agac.store.decisions import Standing, StoredDecision, StoredReview
from agac.store.runs import definition_of, read_run
from agac.store.writer import open_database

STATES = ("waiting", "conflict", "decided", "applied", "stale")


@dataclass(frozen=True, slots=True)
class Decision(Report):
    """What somebody decides about a review, whose `item` is the id in hex. `value` is that of an
    edit. `seen` is what the review said of itself when it was shown (None: it is not compared);
    `source`: `terminal`, `file`, `monitor` or `api`. Of one that was stored `at` is when, in
    seconds since 1970."""

    item: str
    choice: str
    value: JSONValue = None
    reason: str = ""
    reviewer: str = ""
    source: str = "api"
    seen: str | None = None
    at: Moment | None = None

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class ReviewItem(Report):
    """An answer that people are asked about. `shown` is what they see beside it, by name; `answer`
    is None where it is `blind`; `schema` is what an edited value has to fit (None: it is a text).
    `why` is it asked: the condition with the values that it read, the `sample`, in `redo` the
    answers before that somebody wanted to have given again, each with the comment; nothing where
    every row is asked about, and where it is `blind`, as they tell of the answer. `decisions` are
    those that count, and `sure` is from 0 to 1."""

    id: str
    workflow: str
    run: int
    stage: str
    edit: str
    row_id: str
    shown: dict[str, JSONValue]
    answer: JSONValue
    schema: dict[str, Any] | None
    choices: tuple[str, ...]
    why: dict[str, JSONValue]
    blind: bool
    state: str
    sure: float
    since: Moment
    decisions: tuple[Decision, ...]
    seen: str


@dataclass(frozen=True, slots=True)
class ReviewPage(Report):
    """Some reviews, least sure first within a stage; `next` is what to give as `after` for those
    that follow, None where none do. `waiting` counts all that want a decision."""

    items: list[ReviewItem]
    next: str | None
    waiting: int


@dataclass(frozen=True, slots=True)
class DecisionProblem(Report):
    """Why a decision cannot be taken; `place` counts from 0."""

    place: int
    item: str
    message: str


@dataclass(frozen=True, slots=True)
class DecideReport(Report):
    """What became of decisions: `taken` now, the `same` before, `stale` as the answer has changed
    since; `conflicts` are the reviews that now have different decisions. With `problems` none was
    taken."""

    taken: int = 0
    same: int = 0
    stale: int = 0
    conflicts: list[str] = field(default_factory=list)
    problems: list[DecisionProblem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReviewedStage:
    """What a stage of a run asks people, and the stage whose answers they decide on."""

    review: Review
    judged: RecordedStage
    checker: Checker
    stages: Sequence[RecordedStage]

    @staticmethod
    def of(stages: Sequence[RecordedStage], name: str) -> ReviewedStage | None:
        """The same of a definition's stage; None where it has no such stage."""
        by_name = {one.name: one for one in stages}
        does = by_name[name].operation if name in by_name else None
        if not isinstance(does, Review):
            return None
        judged = by_name[does.edit]
        read = ((compile_guard(one.guard.text, STORED)[0], one.message) for one in judged.checks)
        judged = replace(
            judged,
            checks=tuple(Check(guard, message) for guard, message in read if guard is not None),
        )
        return ReviewedStage(does, judged, Checker(judged), stages)

    def choices(self, review: StoredReview) -> tuple[str, ...]:
        """What may be decided about a review."""
        often = len(review.why.get(store.REDO, ())) >= self.review.redo
        never: tuple[str, ...]
        if review.blind:
            never = ("approve", store.REDO)
        elif often:
            never = (store.REDO,)
        else:
            never = ()
        return tuple(one for one in self.review.choices if one not in never)

    def standing(
        self, review: StoredReview, found: Sequence[StoredDecision], since: float
    ) -> Standing:
        """How a review stands by the decisions about it."""
        asks = self.review
        return store.standing(
            found, review.seen["answer"], reviewers=asks.reviewers, agree=asks.agree, since=since
        )

    async def fault(self, database: Database, review: StoredReview, one: Decision) -> str | None:
        """Why this cannot be decided about the review."""
        if one.choice not in (choices := self.choices(review)):
            if review.blind:
                why = "it was asked without the answer"
            else:
                why = f"{review.row_id!r} has these choices"
            return (
                f"{one.choice!r} is no choice at stage {review.stage!r}; {why}: "
                f"{', '.join(choices)}"
            )
        if not one.reviewer:
            return "nobody is named as its reviewer"
        if one.choice == store.REDO and not one.reason:
            return "redo takes a reason: what is wrong with the answer, for the model"
        if one.choice != "edit":
            if one.value is None:
                return None
            return f"a value is given with {one.choice!r}; write edit"
        view = None
        if self.judged.checks:  # they may look at all that there is of the row
            views = RowViews(self.stages, self.stages[0].variables, database)
            view = (await views.ended([review.row_key])).get(review.row_key)
        checked = self.checker.check_value(one.value, view)
        if isinstance(checked, RowError):
            return checked.message
        return None


@dataclass
class _Definitions:
    """What the stages of runs ask people, each definition read once."""

    database: Database
    known: dict[tuple[int, str], ReviewedStage | None] = field(default_factory=dict)

    async def asked(self, review: StoredReview) -> ReviewedStage | None:
        key = review.run_id, review.stage
        if key not in self.known:
            there = await read_run(self.database, review.run_id) is not None  # gc drops runs
            if there:
                stages = recorded_stages(await definition_of(self.database, review.run_id))
            else:
                stages = ()
            self.known[key] = ReviewedStage.of(stages, review.stage)
        return self.known[key]


def _decision(one: StoredDecision) -> Decision:
    value = None if one.value is None else json.loads(one.value)
    own = one.key.hex() if one.key else ""
    return Decision(own, one.choice, value, one.reason, one.reviewer, one.source, None, one.at)


def _seen(review: StoredReview) -> str:
    return seen_hash(
        review.seen["shown"], review.seen["answer"], review.why.get(store.REDO, ())
    ).hex()


async def _items(database: Database, reviews: Sequence[StoredReview]) -> list[ReviewItem]:
    definitions = _Definitions(database)
    found = await store.decisions_of(database, [one.key for one in reviews])
    since = {
        name: await store.discarded_at(database, name) for name in {one.workflow for one in reviews}
    }
    items = []
    for one in reviews:
        asked = await definitions.asked(one)
        said = store.counting(found.get(one.key, ()), since[one.workflow])
        items.append(
            ReviewItem(
                one.key.hex(),
                one.workflow,
                one.run_id,
                one.stage,
                asked.review.edit if asked else "",
                str(one.row_id),
                one.seen["shown"],
                None if one.blind else one.seen["answer"],
                asked.judged.shape if asked else None,
                asked.choices(one) if asked else (),
                {} if one.blind else one.why,
                one.blind,
                one.state,
                one.sure,
                one.at,
                tuple(map(_decision, said)),
                _seen(one),
            )
        )
    return items


@blocking
async def review_queue(
    project: Path | str | None = None, *, workflow: str | None = None, stage: str | None = None,
    state: str = "waiting", after: str | None = None, limit: int = 50, reviewer: str | None = None,
) -> ReviewPage:  # fmt: skip
    """Reviews in a state by workflow and stage, the least sure first: `waiting`, `conflict`,
    `decided` and not taken up by a run yet, `applied`, or `stale`. With a `reviewer` those on
    which this one has not decided. Changes nothing. Raises UsageError for a workflow that is not
    there, and a `stage` without a workflow."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    if state not in STATES:
        raise UsageError(
            f"{state!r} is no state of a review", remedy=f"One of {', '.join(STATES)}."
        )
    if stage is not None and workflow is None:
        raise UsageError("a stage was named without its workflow", remedy="Name the workflow too.")
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return ReviewPage([], None, 0)
        which = partial(_which, workflow, stage, reviewer)
        old = await _review(database, after) if after is not None else None
        found = await store.review_page(database, state=state, limit=limit + 1, **which(old))
        items = await _items(database, found[:limit])
        waiting = await store.waiting_reviews(database, **which())
        return ReviewPage(items, items[-1].id if len(found) > limit and items else None, waiting)


def _which(
    workflow: str | None,
    stage: str | None = None,
    reviewer: str | None = None,
    after: StoredReview | None = None,
) -> dict[str, Any]:
    """What statements are given on the reviews of a workflow and a stage, or of all, from behind
    one of them on."""
    if after:
        begin = (after.workflow, after.stage, after.sure, after.key)
    else:
        begin = (workflow or "", stage or "", -1.0, b"")
    names = ("workflow", "stage", "sure", "key", "last_workflow", "last_stage", "reviewer")
    last = "\U0010ffff"
    return dict(zip(names, (*begin, workflow or last, stage or last, reviewer or ""), strict=True))


def _key(item: str) -> bytes:
    """The key of a review by its id; nothing has an empty one."""
    with suppress(ValueError):
        return bytes.fromhex(item)
    return b""


async def _review(database: Database, item: str) -> StoredReview | None:
    return (await store.reviews_of(database, [_key(item)])).get(_key(item))


@blocking
async def review_item(item: str, project: Path | str | None = None) -> ReviewItem | None:
    """One review by its id; None: there is none. Changes nothing."""
    async with open_for_reading(database_path(project_root(project))) as database:
        found = await _review(database, item) if database is not None else None
        if found is not None and database is not None:
            return (await _items(database, [found]))[0]
        return None


@dataclass(slots=True)
class StageReviews(Report):
    """What people were asked at a stage: how many reviews stand in each of the `states`, and
    `rejected` ones. How far people and the model agree: `blind`, where the answer was not shown;
    of the `sample` of rows that would have passed; and of the `others`. `is_gone`: no file has
    this review stage any more, so that no run takes decisions up."""

    workflow: str
    stage: str
    states: dict[str, int] = field(default_factory=dict)
    rejected: int = 0
    blind: Agreement = field(default_factory=Agreement)
    sample: Agreement = field(default_factory=Agreement)
    others: Agreement = field(default_factory=Agreement)
    is_gone: bool = False

    def add(self, review: StoredReview, said: StoredDecision) -> None:
        """Counts a decision."""
        answer = review.seen["answer"]
        kind = self.sample if "sample" in review.why else self.others
        self.rejected += said.choice == "reject"
        if said.choice in ("approve", "edit"):
            value = json.loads(said.value) if said.value is not None else answer
            (self.blind if review.blind else kind).add(answer, value)


def _has_stage(root: Path, workflow: str, stage: str) -> bool:
    """Whether a file of the workflow has this review stage, or cannot be read."""
    project, _ = load_project(root, {})
    if project is None:
        return True
    home = home_of(root)
    read = (
        read_workflow(path, project.shown(path), home)[0]
        for path in workflow_files(project, workflow)
    )
    return any(file is None or any(one.name == stage for one in file.stages) for file in read)


@dataclass(frozen=True, slots=True)
class ReviewReport(Report):
    """The stages at which people decided."""

    stages: list[StageReviews]


@blocking
async def review_report(
    project: Path | str | None = None, *, workflow: str | None = None
) -> ReviewReport:
    """How far people and the models agree, stage by stage, in one workflow or all. Changes
    nothing."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    stages: dict[tuple[str, str], StageReviews] = {}
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return ReviewReport([])
        for name, stage, state, count in await store.review_counts(database, **_which(workflow)):
            stages.setdefault((name, stage), StageReviews(name, stage)).states[state] = count
        definitions = _Definitions(database)
        since = {name: await store.discarded_at(database, name) for name, _ in stages}
        for state in ("applied", "decided"):
            after: StoredReview | None = None
            while page := await store.review_page(
                database, state=state, limit=512, **_which(workflow, after=after)
            ):
                found = await store.decisions_of(database, [one.key for one in page])
                for review in page:
                    asked = await definitions.asked(review)
                    stood = asked and asked.standing(
                        review, found.get(review.key, ()), since[review.workflow]
                    )
                    if stood and stood.decision is not None:
                        stages[review.workflow, review.stage].add(review, stood.decision)
                after = page[-1]
        for one in stages.values():
            if not await made_in_python(database, one.workflow):
                one.is_gone = not _has_stage(root, one.workflow, one.stage)
    return ReviewReport([stages[place] for place in sorted(stages)])


@blocking
async def decide(
    project: Path | str | None = None,
    decisions: Sequence[Decision] = (),
    *,
    force: bool = False,
    check: bool = False,
) -> DecideReport:
    """Stores what people decided, all of it or, where something is wrong with one of them,
    nothing. What is known already changes nothing, so it may be given again. With `force` they
    override what others decided; with `check` they are looked at, and nothing is stored. A crash
    before leaves nothing, one after it everything: it is one transaction. Raises UsageError where
    nothing was run."""
    path = database_path(project_root(project))
    if not path.exists():
        raise no_runs_yet(path)
    async with open_database(path) as database:
        known: dict[bytes, StoredReview] = {}
        for some in slices(list({_key(one.item) for one in decisions})):
            known |= await store.reviews_of(database, some)
        definitions = _Definitions(database)
        about: list[tuple[Decision, StoredReview, ReviewedStage]] = []
        problems = []
        for place, one in enumerate(decisions):
            review = known.get(_key(one.item))
            asked = await definitions.asked(review) if review is not None else None
            fault: str | None = f"there is no review {one.item!r}"
            if review is not None and asked is not None:
                fault = await asked.fault(database, review, one)
                about.append((one, review, asked))
            problems += [DecisionProblem(place, one.item, fault)] if fault is not None else []
        if problems or check:
            return DecideReport(problems=problems)
        return await change(database, lambda writer: _store(writer, about, force=force))


def _standing(
    writer: sqlite3.Connection, asked: ReviewedStage, review: StoredReview
) -> tuple[Standing, list[StoredDecision]]:
    """How a review stands within a transaction, and by which decisions."""
    found = fetch(writer, "decisions_of", StoredDecision, [review.key])
    since = fetch(writer, "decisions_discarded", float, review.workflow)[0] or 0.0
    return asked.standing(review, found, since), store.counting(found, since)


def _store(
    writer: sqlite3.Connection,
    about: Sequence[tuple[Decision, StoredReview, ReviewedStage]],
    *,
    force: bool,
) -> DecideReport:
    """Adds the decisions that are new, within a transaction, and says how their reviews stand."""
    taken = same = stale = 0
    conflicts = list[str]()
    for one, review, asked in about:
        (now,) = fetch(writer, "reviews_of", StoredReview, [review.key])
        if one.seen not in (None, _seen(now)):
            stale += 1
            continue
        value = snapshot(one.value) if one.choice == "edit" else None
        own = StoredDecision(
            now.key,
            0,
            now.workflow,
            now.stage,
            now.row_id,
            one.choice,
            value,
            one.reason,
            one.reviewer,
            time.time(),
            one.source,
            force,
        )
        before, counted = _standing(writer, asked, now)
        if store.is_known(counted, own):
            same += 1
            continue
        store.put_decision(writer, own)
        taken += 1
        stale += now.state == "stale"
        after, _ = _standing(writer, asked, now)
        if after.state == "conflict":
            conflicts.append(one.item)
        is_applied = (
            now.state == "applied"
            and after.decision is not None
            and after.decision == before.decision
        )
        if now.state != "stale" and not is_applied:
            writer.execute(sql("review_state"), (after.state, now.key))
    return DecideReport(taken, same, stale, conflicts)
