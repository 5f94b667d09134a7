"""Stages at which people decide: what they are asked about a row, and what their decision does to
it. A row without a decision waits, as it does for a batch; the next run finds the decision by the
content that was shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, digest, review_key, seen_hash, share_of, snapshot
from agac.core.types import JSONValue, Outcome, RowId, inside
from agac.engine.ask.answers import Answer, Parked, ReviewTask, RowRejected, TaskReply, TaskRequest
from agac.engine.ask.lookups import LookupBatcher
from agac.engine.ask.validate import Checker
from agac.engine.decide.votes import Reviewed
from agac.engine.invocation import InvocationRef, Work
from agac.engine.settle import Settler
from agac.engine.walk.effects import ActiveRow, plain
from agac.plan.plan import Plan
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.field_shapes import integers_of
from agac.spec.guards import Evaluator
from agac.spec.operations import Review
from agac.spec.templates import SKIPPED
from agac.store import decisions as store
from agac.store.db import Database
from agac.store.decisions import DISCARD, REDO, TIMEOUT, Fixes, Standing, StoredDecision, counting
from agac.store.records import Endpoint, NewReview, Result, ReviewEnd
from agac.store.writer import Ledger


class Verdict(NamedTuple):
    """What follows from the decisions about an answer."""

    how: str
    """How it passes (`auto`, `approved`, `manual`); or `rejected`, `redo` (it is to be given again)
    or `waiting`."""
    value: str = ""
    """The answer that passes, as JSON."""
    by: StoredDecision | None = None
    """The decision that counts."""


Known = tuple[Sequence[StoredDecision], float | None]
"""The decisions about an answer, and the time (seconds since 1970) until which it waits for people,
if it does."""


class Reviewing:
    """One stage of a workflow at which people decide, prepared for many rows."""

    def __init__(self, workflow: str, stage: AnyStage, stages: Sequence[AnyStage]) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Review)
        self.workflow = workflow
        self.stage = stage
        self.asks = stage.operation
        self._when: Evaluator | None = None
        if self.asks.when:
            schemas = {other.name: other.schema for other in stages}
            integers = integers_of(schemas, self.asks.when.names)
            self._when = Evaluator(self.asks.when, stages=stage.ancestors, integers=integers)
        by_name = {other.name: other for other in stages}
        amending = (later for later, first in stage.amended if first == self.asks.edit)
        judged_names = {self.asks.edit, *amending}
        # the stages that gave the answer, the last first
        self.sources = [name for name in reversed(stage.ancestors) if name in judged_names]
        judged = by_name[self.asks.edit]
        gave = [by_name[name] for name in self.sources]
        self.asked = [source for source in gave if isinstance(source, PlannedStage)]
        self._checker: Checker | None
        if isinstance(judged, PlannedStage):
            self._checker = Checker(judged)
        else:
            self._checker = None
        self._all = not self._when and not self.asks.sample

    def is_skipped(self, view: RowView) -> bool:
        """True if there is no answer to be decided on."""
        return view.known(self.stage).get(self.asks.edit) is SKIPPED

    def task(self, view: RowView, row_id: RowId) -> ReviewTask:
        """Makes the task of a row: what people are asked about it, if they are. Raises
        GuardFailed."""
        stage = self.stage
        asks = self.asks
        known = view.known(stage)
        data = view.data(stage)
        answer = plain(known[asks.edit])
        named: Mapping[str, Any] = {**data, **known}
        shown = {".".join(path): plain(inside(named, path)) for path in asks.show} or data
        redone = [
            answer_before
            for source in reversed(self.asked)
            for answer_before in view.redone.get(source.name, ())
        ]
        why, values = self._why(view, row_id)
        if redone:  # people who asked for another answer are shown it
            why = {**(why or {"values": values}), REDO: redone}
        return ReviewTask(
            fingerprint=review_key(
                self.workflow, stage.name, row_id, seen_hash(shown, answer, redone)
            ),
            seen=snapshot({"shown": shown, "answer": answer}),
            answer=answer,
            why=why,
            blind=share_of("blind", stage.name, row_id) < asks.blind,
            sure=_confidence(values),
            view=view,
        )

    def _why(
        self, view: RowView, row_id: RowId
    ) -> tuple[dict[str, JSONValue] | None, dict[str, Any]]:
        """Returns why people are asked about a row (None: they are not), and the values that the
        condition looks at."""
        asks = self.asks
        why: dict[str, JSONValue] | None = {} if self._all else None
        values: dict[str, Any] = {}
        if self._when is not None:
            seen = view.guard_values(self.stage)
            values = self._when.values(seen)
            if self._when.test(seen):
                why = {"when": asks.when.text if asks.when else "", "values": values}
        if why is None and share_of("sample", self.stage.name, row_id) < asks.sample:
            why = {"sample": asks.sample, "values": values}
        return why, values

    def verdict(self, task: ReviewTask, stood: Standing) -> Verdict:
        """Returns what follows from the decisions. A value that its stage would no longer take as
        an answer is no decision."""
        decided = stood.decision
        if decided is None:
            return Verdict("auto" if task.why is None else "waiting", snapshot(task.answer))
        if decided.choice == "reject":
            return Verdict("rejected", "null", decided)
        if decided.choice == REDO:
            return Verdict(
                REDO if len((task.why or {}).get(REDO, ())) < self.asks.redo else "waiting",
                by=decided,
            )
        value = snapshot(task.answer)
        if decided.choice == "edit" and decided.says(None, None) != canonical([None, task.answer]):
            if self._checker:
                kept = self._checker.kept(json.loads(decided.value or "null"), task.view)
            else:
                kept = decided.value
            if kept is None:
                return Verdict("waiting")
            return Verdict("manual", kept, decided)
        return Verdict("approved", value, decided)

    def standing(
        self, task: ReviewTask, row_id: RowId, known: Known | None, *, since: float, now: float
    ) -> Standing:
        """Returns the state of an answer by the decisions from `since` on. If its time is over,
        that decides; such a decision has the number 0 until it is stored."""
        decisions, due = known or ((), None)
        asks = self.asks
        stood = store.standing(
            decisions, task.answer, reviewers=asks.reviewers, agree=asks.agree, since=since
        )
        if stood.state == "decided" or asks.on_timeout == "wait":
            return stood
        if due is None or due > now:
            return stood
        before = [decision for decision in counting(decisions, since) if decision.source == TIMEOUT]
        if before:
            counts = before[-1]
        else:
            counts = self.entry(task, row_id, asks.on_timeout, now, TIMEOUT)
        return Standing("decided", counts, stood.last)

    def entry(
        self, task: ReviewTask, row_id: RowId, choice: str, at: float, source: str
    ) -> StoredDecision:
        """Makes the entry that is stored in the place of a person's decision."""
        return StoredDecision(
            task.fingerprint,
            0,
            self.workflow,
            self.stage.name,
            row_id,
            choice,
            at=at,
            source=source,
        )

    def rejection(self, verdict: Verdict) -> RowError | RowRejected | None:
        """Returns what becomes of a row whose answer was rejected; None: it continues without
        it."""
        by = verdict.by
        if by and by.reviewer:
            said = f"rejected by {by.reviewer}"
        else:
            said = "rejected: nobody decided in time"
        if by and by.reason:
            said += f": {by.reason}"
        if self.asks.on_reject == "fail":
            return RowError(ErrorType.REJECTED, f"stage {self.stage.name!r}: {said}")
        if self.asks.on_reject == "drop":
            return RowRejected(canonical({"when": said, "values": {}}))
        return None


def reviewings(plan: Plan) -> dict[int, Reviewing]:
    """Prepares the stages of a plan at which people decide, by position."""
    return {
        stage.index: Reviewing(plan.workflow, stage, plan.stages)
        for stage in plan.stages
        if isinstance(stage, LocalStage) and isinstance(stage.operation, Review)
    }


def _confidence(values: Mapping[str, Any]) -> float:
    """Returns the first number from 0 to 1 among the values that a condition looks at; 1 if there
    is none."""
    for value in values.values():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and 0 <= value <= 1:
            return float(value)
    return 1.0


async def known_of(database: Database, keys: Sequence[bytes]) -> dict[bytes, Known]:
    """Reads the decisions about answers, and until when they wait, by the keys of reviews."""
    decisions = await store.decisions_of(database, keys)
    reviews = await store.reviews_of(database, keys)
    return {
        key: (decisions.get(key, ()), reviews[key].due if key in reviews else None)
        for key in decisions.keys() | reviews.keys()
    }


class Reviews:
    """Applies what people decided about the answers of an invocation, and settles it; undecided
    answers wait. Its `look_ups` must be running. `redo`: rows were left open, a stage of which is
    to be asked again."""

    def __init__(
        self,
        work: Work,
        places: InvocationRef,
        ledger: Ledger,
        settler: Settler,
        since: float,
        redos: Fixes,
    ) -> None:
        """Decisions made before `since`, in seconds since 1970, were discarded. `redos` are the
        answers that are to be given again; more are added here."""
        self._own = reviewings(work.plan)
        self._since = since
        self._now = work.clocks.wall
        self._redos = redos
        self.redo = False
        self._settler = settler
        self._ledger = ledger
        self._discards: float | None
        if work.retry is not None and work.retry.discard:
            self._discards = work.retry.since
        else:
            self._discards = None
        self.look_ups: LookupBatcher[bytes, Known] = LookupBatcher(
            partial(known_of, places.database)
        )

    async def ask(self, asked: TaskRequest) -> TaskReply:
        """Looks up what was decided about an answer: it passes, is rejected, or waits for
        people."""
        row = asked.row
        stage = asked.stage
        task = asked.task
        assert isinstance(task, ReviewTask)
        reviewing = self._own[stage.index]
        known = await self.look_ups.get(task.fingerprint)
        now = self._now()
        row_id = row.new.row.id
        source = next((judged.name for judged in reviewing.asked if judged.name in row.judged), "")
        redo_key = b""
        if source:
            judged_print = row.judged[source][0]
            redo_key = review_key(reviewing.workflow, source, row_id, judged_print, REDO)
        since = self._discard(reviewing, asked, task, known)
        batch = self._ledger.batch
        if redo_key in self._redos.discarded:
            discarded = reviewing.entry(task, row_id, DISCARD, self._discards or now, REDO)
            batch.reviews.decisions.append(discarded._replace(key=redo_key, stage=source))
        stood = reviewing.standing(task, row_id, known, since=since, now=now)
        if stood.decision is not None and not stood.decision.id:
            batch.reviews.decisions.append(stood.decision)
        batch.reviews.sent.append((reviewing.workflow, stage.name, row_id, task.fingerprint))
        verdict = reviewing.verdict(task, stood)
        if verdict.how == REDO and verdict.by is not None:
            value = row.judged[source][1].value
            again = verdict.by._replace(key=redo_key, id=0, stage=source, value=value, source=REDO)
            self._redos.found[redo_key] = again
            batch.reviews.decisions.append(again)
            batch.reviews.ended.append(ReviewEnd(task.fingerprint, row.new, stood.last, "applied"))
            self.redo = True
            return Parked.REVIEW
        if verdict.how == "waiting":
            row.reviews.append(_question(reviewing, asked, task, stood, known, now))
            return Parked.REVIEW
        state = "stale" if verdict.how == "auto" else "applied"
        batch.reviews.ended.append(ReviewEnd(task.fingerprint, row.new, stood.last, state))
        if verdict.how == "rejected":
            rejection = reviewing.rejection(verdict)
            if rejection is not None:
                return rejection
        return self._settled(row, stage, reviewing, task, verdict)

    def _discard(
        self, reviewing: Reviewing, asked: TaskRequest, task: ReviewTask, known: Known | None
    ) -> float:
        """Discards earlier decisions, if the retry is to. Returns from when on decisions count, in
        seconds since 1970."""
        if self._discards is None:
            return self._since
        decided = counting(known[0] if known else (), self._since)
        if not any(decision.at < self._discards for decision in decided):
            return self._since
        row_id = asked.row.new.row.id
        discarded = reviewing.entry(task, row_id, DISCARD, self._discards, "api")
        self._ledger.batch.reviews.decisions.append(discarded)
        return self._discards

    def _settled(
        self, row: ActiveRow, stage: AnyStage, own: Reviewing, task: ReviewTask, verdict: Verdict
    ) -> Answer:
        """Settles an answer that passes. An approved one remains the result that it was."""
        result = next((row.judged[name][1] for name in own.sources if name in row.judged), None)
        prior = row.prior.get(stage.index)
        if verdict.by is not None and (verdict.how in ("manual", "rejected") or result is None):
            by = verdict.by
            print_ = digest(canonical([task.fingerprint.hex(), verdict.value]))
            known = prior is not None and prior.fingerprint == print_
            endpoint = Endpoint("people", "", by.reviewer or TIMEOUT, False)
            number = (prior.result_id or 0) if known and prior else 0
            result = Result(print_, verdict.value, endpoint, by.at, id=number)
            if not number:
                self._ledger.batch.tasks.results.append(result)
        assert result is not None
        same = (
            prior is not None
            and prior.agreement == verdict.how
            and prior.result_id == result.id != 0
        )
        outcome = Outcome.REUSED if same else Outcome.DONE
        self._settler.task_done(
            row, stage, result, outcome, voted=Reviewed(verdict.value, 0, verdict.how)
        )
        return Answer(result, json.loads(verdict.value))

    def parked(self, row: ActiveRow) -> None:
        """Opens the reviews that a row waits for, at the end of its walk. If the row left, they
        are stale."""
        batch = self._ledger.batch
        if row.dropped:
            batch.reviews.ended += [
                ReviewEnd(review.key, row.new, review.last, "stale") for review in row.reviews
            ]
        else:
            alone = not (row.waits or row.held or row.failed)
            batch.reviews.opened += [(review, alone) for review in row.reviews]


def _question(
    own: Reviewing,
    asked: TaskRequest,
    task: ReviewTask,
    stood: Standing,
    known: Known | None,
    now: float,
) -> NewReview:
    """Returns what people are asked about an answer, and until when."""
    until = None
    if known and known[1]:
        until = known[1]
    elif own.asks.timeout is not None:
        until = now + own.asks.timeout
    return NewReview(
        task.fingerprint,
        own.workflow,
        asked.stage.name,
        asked.row.new,
        task.seen,
        canonical(task.why or {}),
        task.blind,
        stood.last,
        "conflict" if stood.state == "conflict" else "waiting",
        task.sure,
        until,
        now,
    )
