"""Stages at which people decide: what is asked of a row, and what a decision does to it. A row
without a decision waits, as it does for a batch; the next run finds what was decided by the
content of what was shown."""

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
    """What follows of the decisions about an answer: `how` it passes (`auto`, `approved`,
    `manual`), with this `value`, JSON text; `rejected`; `redo`: it is to be given again; or
    `waiting`."""

    how: str
    value: str = ""
    by: StoredDecision | None = None


Known = tuple[Sequence[StoredDecision], float | None]
"""What was decided about an answer, and until when people are waited for, once they are."""


class Reviewing:
    """One stage of a workflow at which people decide, ready for many rows."""

    def __init__(self, workflow: str, stage: AnyStage, stages: Sequence[AnyStage]) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Review)
        self.workflow = workflow
        self.stage = stage
        self.asks = stage.operation
        self._when: Evaluator | None = None
        if self.asks.when:
            integers = integers_of({one.name: one.schema for one in stages}, self.asks.when.names)
            self._when = Evaluator(self.asks.when, stages=stage.ancestors, integers=integers)
        by_name = {one.name: one for one in stages}
        own = {
            self.asks.edit,
            *(later for later, first in stage.amended if first == self.asks.edit),
        }
        # who gave the answer, the last first
        self.sources = [one for one in reversed(stage.ancestors) if one in own]
        judged = by_name[self.asks.edit]
        self.asked = [
            one for name in self.sources if isinstance(one := by_name[name], PlannedStage)
        ]
        self._checker: Checker | None
        if isinstance(judged, PlannedStage):
            self._checker = Checker(judged)
        else:
            self._checker = None
        self._all = not self._when and not self.asks.sample

    def is_skipped(self, view: RowView) -> bool:
        """Whether there is no answer to be decided on."""
        return view.known(self.stage).get(self.asks.edit) is SKIPPED

    def task(self, view: RowView, row_id: RowId) -> ReviewTask:
        """What is asked of a row. Raises GuardFailed."""
        stage = self.stage
        asks = self.asks
        known = view.known(stage)
        data = view.data(stage)
        answer = plain(known[asks.edit])
        named: Mapping[str, Any] = {**data, **known}
        shown = {".".join(way): plain(inside(named, way)) for way in asks.show} or data
        why: dict[str, JSONValue] | None = {} if self._all else None
        values: dict[str, Any] = {}
        if self._when is not None:
            seen = view.guard_values(stage)
            values = self._when.values(seen)
            if self._when.test(seen):
                why = {"when": asks.when.text if asks.when else "", "values": values}
        if why is None and share_of("sample", stage.name, row_id) < asks.sample:
            why = {"sample": asks.sample, "values": values}
        redone = [
            one for source in reversed(self.asked) for one in view.redone.get(source.name, ())
        ]
        if redone:  # who asked for another answer is shown it
            why = {**(why or {"values": values}), REDO: redone}
        numbers = (
            one
            for one in values.values()
            if isinstance(one, int | float) and not isinstance(one, bool)
        )
        return ReviewTask(
            review_key(self.workflow, stage.name, row_id, seen_hash(shown, answer, redone)),
            snapshot({"shown": shown, "answer": answer}),
            answer,
            why,
            share_of("blind", stage.name, row_id) < asks.blind,
            float(next((one for one in numbers if 0 <= one <= 1), 1)),
            view,
        )

    def verdict(self, task: ReviewTask, stood: Standing) -> Verdict:
        """What follows. A value that its stage would not take any more as an answer is no
        decision."""
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
        """How an answer stands by decisions from `since` on, and by the time gone by: that one has
        the number 0."""
        (found, due), asks = known or ((), None), self.asks
        stood = store.standing(
            found, task.answer, reviewers=asks.reviewers, agree=asks.agree, since=since
        )
        if stood.state == "decided" or asks.on_timeout == "wait" or due is None or due > now:
            return stood
        before = [one for one in counting(found, since) if one.source == TIMEOUT]
        if before:
            counts = before[-1]
        else:
            counts = self.entry(task, row_id, asks.on_timeout, now, TIMEOUT)
        return Standing("decided", counts, stood.last)

    def entry(
        self, task: ReviewTask, row_id: RowId, choice: str, at: float, source: str
    ) -> StoredDecision:
        """What is noted in the place of a person's decision."""
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
        """What becomes of a row whose answer was rejected; None: it goes on without it."""
        by = verdict.by
        if by and by.reviewer:
            who = f"rejected by {by.reviewer}"
        else:
            who = "rejected: nobody decided in time"
        said = f"{who}{f': {by.reason}' if by and by.reason else ''}"
        if self.asks.on_reject == "fail":
            return RowError(ErrorType.REJECTED, f"stage {self.stage.name!r}: {said}")
        if self.asks.on_reject == "drop":
            return RowRejected(canonical({"when": said, "values": {}}))
        return None


def reviewings(plan: Plan) -> dict[int, Reviewing]:
    """The stages of a plan at which people decide, by position."""
    own = [
        one
        for one in plan.stages
        if isinstance(one, LocalStage) and isinstance(one.operation, Review)
    ]
    return {stage.index: Reviewing(plan.workflow, stage, plan.stages) for stage in own}


async def known_of(database: Database, keys: Sequence[bytes]) -> dict[bytes, Known]:
    """What is known of these."""
    found = await store.decisions_of(database, keys)
    asked = await store.reviews_of(database, keys)
    return {
        key: (found.get(key, ()), asked[key].due if key in asked else None)
        for key in found.keys() | asked.keys()
    }


class Reviews:
    """Brings what people decided about the answers of an invocation, and settles it; what nobody
    decided waits. Decisions made before `since`, in seconds since 1970, were discarded. Its
    `look_ups` must be running. `redo`: rows were left open of which a stage is to be asked again,
    with what `redos` say from then on."""

    def __init__(
        self,
        work: Work,
        places: InvocationRef,
        ledger: Ledger,
        settler: Settler,
        since: float,
        redos: Fixes,
    ) -> None:
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
        own = self._own[stage.index]
        known = await self.look_ups.get(task.fingerprint)
        row_id = row.new.row.id
        batch = self._ledger.batch
        now = self._now()
        since = self._since
        source = next((judged.name for judged in own.asked if judged.name in row.judged), "")
        redo_key = b""
        if source:
            redo_key = review_key(own.workflow, source, row_id, row.judged[source][0], REDO)
        decided = counting(known[0] if known else (), since)
        if self._discards is not None and any(one.at < self._discards for one in decided):
            batch.reviews.decisions.append(own.entry(task, row_id, DISCARD, self._discards, "api"))
            since = self._discards
        if redo_key in self._redos.discarded:
            discarded = own.entry(task, row_id, DISCARD, self._discards or now, REDO)
            batch.reviews.decisions.append(discarded._replace(key=redo_key, stage=source))
        stood = own.standing(task, row_id, known, since=since, now=now)
        if stood.decision is not None and not stood.decision.id:
            batch.reviews.decisions.append(stood.decision)
        batch.reviews.sent.append((own.workflow, stage.name, row_id, task.fingerprint))
        verdict = own.verdict(task, stood)
        if verdict.how == REDO and verdict.by is not None:
            value = row.judged[source][1].value
            again = verdict.by._replace(key=redo_key, id=0, stage=source, value=value, source=REDO)
            self._redos.found[redo_key] = again
            batch.reviews.decisions.append(again)
            batch.reviews.ended.append(ReviewEnd(task.fingerprint, row.new, stood.last, "applied"))
            self.redo = True
            return Parked.REVIEW
        if verdict.how == "waiting":
            row.reviews.append(_question(own, asked, task, stood, known, now))
            return Parked.REVIEW
        state = "stale" if verdict.how == "auto" else "applied"
        batch.reviews.ended.append(ReviewEnd(task.fingerprint, row.new, stood.last, state))
        if verdict.how == "rejected":
            rejection = own.rejection(verdict)
            if rejection is not None:
                return rejection
        return self._settled(row, stage, own, task, verdict)

    def _settled(
        self, row: ActiveRow, stage: AnyStage, own: Reviewing, task: ReviewTask, verdict: Verdict
    ) -> Answer:
        """The answer that goes on: what was approved or passed is the result that it was."""
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
        """The row's walk ended: what it waits for is asked, unless it left."""
        batch = self._ledger.batch
        if row.dropped:
            batch.reviews.ended += [
                ReviewEnd(one.key, row.new, one.last, "stale") for one in row.reviews
            ]
        else:
            alone = not (row.waits or row.held or row.failed)
            batch.reviews.opened += [(one, alone) for one in row.reviews]


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
