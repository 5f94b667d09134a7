"""The one place where an outcome is decided and written, with the record of every call that led to
it, and counted."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.core.keys import canonical
from agac.core.types import Outcome, RowId
from agac.engine.ask.limits import is_free
from agac.engine.ask.validate import ValidReply
from agac.engine.decide.failures import FURTHER_RUNS
from agac.engine.decide.votes import Reviewed, VoteResult
from agac.engine.output.telemetry import bucket_of
from agac.engine.stop_rules import StopRules
from agac.engine.walk.effects import ActiveRow, is_leave
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.rules import KeepReplies
from agac.store.records import (
    AGREEMENT,
    HOW,
    PART,
    Call,
    NewRow,
    Result,
    RowEnd,
    TaskEnd,
    WriteBatch,
)
from agac.store.rows import OUTCOME_OF, WALKED, PriorTask, State, StoredRow
from agac.store.writer import Ledger


@dataclass(slots=True)
class StageTotals:
    """Counts of one stage in this invocation. Tasks: asked and `done`, `reused`, `failed`,
    `skipped` or `dropped` by the stage's guard; `parked` are those of rows that stay open here,
    `in_flight` those being asked now. `cost` is in USD, of the calls whose price is known;
    `unpriced` and `simulated` count calls."""

    done: int = 0
    reused: int = 0
    failed: int = 0
    skipped: int = 0
    dropped: int = 0
    parked: int = 0
    in_flight: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    requests: int = 0
    characters: int = 0
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Tasks that have an outcome."""
        return self.done + self.reused + self.failed + self.skipped + self.dropped


@dataclass(slots=True)
class Totals:
    """Counts of this invocation. Rows: `seen` in the input, of which `short` ones have fewer
    fields than the header and `unchanged` ones needed nothing, `rows_skipped` went through without
    a result, `rows_filtered` left because of a guard, `rows_dropped` repeat an id, `rows_parked`
    stay open at a stage that was not to be asked (of rows that stages made `made_parked`);
    `reviews` wait for people at its end; `left_failed` were not tried again, `failed_for_good`
    will not be by the next ordinary run.

    `calls` counts requests that ended, retries and re-asks included; `given_up` those that a
    second Ctrl-C cut off. `cost` is in USD, of the calls whose price is known. `stages` are in the
    order of the workflow; `unusable` counts rows that failed before any stage. `expected` is how
    many rows the run had when it was last read to its end; `all_read`: `seen` is all of them.
    `waiting_for` is why the last call brought no answer; `waits`: until when, in seconds since
    1970, no call goes to a model, by lane. `known_prompt` are tokens of calls of which the
    provider said what its cache had, `known_cached`; calls took `busy` seconds together, between
    `first_at` and `last_at`."""

    stages: defaultdict[str, StageTotals] = field(default_factory=lambda: defaultdict(StageTotals))
    expected: int | None = None
    all_read: bool = False
    unusable: int = 0
    seen: int = 0
    short: int = 0
    unchanged: int = 0
    rows_done: int = 0
    rows_failed: int = 0
    rows_skipped: int = 0
    rows_filtered: int = 0
    rows_dropped: int = 0
    left_failed: int = 0
    failed_for_good: int = 0
    rows_parked: int = 0
    made_parked: int = 0
    reviews: int = 0
    tasks_done: int = 0
    tasks_reused: int = 0
    collapsed: int = 0
    calls: int = 0
    retries: int = 0
    repairs: int = 0
    fallbacks: int = 0
    ambiguous: int = 0
    given_up: int = 0
    cost: float = 0.0
    unpriced: int = 0
    simulated: int = 0
    known_prompt: int = 0
    known_cached: int = 0
    busy: float = 0.0
    first_at: float = inf
    last_at: float = 0.0
    waiting_for: RowError | None = None
    waits: dict[str, float] = field(default_factory=dict)
    last_error: tuple[RowError, RowId] | None = None

    @property
    def settled(self) -> int:
        """Rows of the input that need nothing more in this invocation."""
        walked = self.rows_done + self.rows_skipped + self.rows_filtered
        return self.unchanged + walked + self.rows_failed + self.rows_dropped + self.rows_parked

    def count_call(self, call: Call, cost: float | None, stage: AnyStage) -> None:
        """Counts a call that cost so many USD, None where its price is not known."""
        for counts in (self, self.stages[stage.name]):
            counts.cost += cost or 0.0
            counts.unpriced += cost is None
            counts.simulated += call.endpoint.simulated
        if call.status is not None and call.status < 500 and not call.refused:
            self.waiting_for = None
        self.calls += 1
        attempt = call.attempt
        times = call.times
        self.retries += attempt.again
        self.repairs += attempt.purpose == "repair"
        self.fallbacks += attempt.purpose == "fallback" and not attempt.again
        self.ambiguous += call.ambiguous
        self.busy += times.duration
        self.first_at = min(self.first_at, times.started_at)
        self.last_at = max(self.last_at, times.started_at + times.duration)
        if call.usage.cached_tokens is not None:
            self.known_prompt += call.usage.input_tokens or 0
            self.known_cached += call.usage.cached_tokens


def record_call(
    write: WriteBatch, row: NewRow, stage: AnyStage, call: Call, *, keep_all: bool
) -> float | None:
    """Adds to a commit what one call, or one line of a batch, brought and cost. `keep_all`:
    whether replies are stored that were right at once. Returns what was spent in USD, None where
    the price is not known."""
    if call.body is not None and (keep_all or call.error or call.mended):
        call = call._replace(reply=stored_reply(call.body))
    write.attempts.append((row, call))
    spent = 0.0 if is_free(call) else call.cost
    error = call.error.type.value if call.error else ""
    delta = write.tally(
        (stage.name, "call", error, f"{call.endpoint.provider}/{call.endpoint.model}")
    )
    delta.add_call(call.usage, spent, call.endpoint.simulated)
    delta.held_cost += call.held.usd
    delta.held_tokens += call.held.tokens
    return spent


def stored_reply(body: bytes) -> str | bytes:
    """A reply as the store keeps it: text while that is short, deflated when that is smaller."""
    if len(body) < 1024:  # deflating those costs time and saves nothing
        with suppress(UnicodeDecodeError):
            return body.decode()
    return zlib.compress(body, 1)


def how_answered(purpose: str, position: int, checked: ValidReply) -> str:
    """How an answer came about, as results remember it; `position` counts the stage's models from
    0."""
    if purpose == "ask" and not checked.mended and not checked.misformatted:
        return ""
    ways = {"repair": purpose == "repair", "json_repair": checked.mended, "fallback": position > 0}
    return ",".join(
        way for way, taken in {**ways, "misformatted": checked.misformatted}.items() if taken
    )


def count_way(write: WriteBatch, stage: AnyStage, result: Result) -> None:
    """Counts how a new result came about, if its model did not give it at once."""
    if result.how:
        write.tally((stage.name, HOW, result.how, "")).tasks += 1


class Settler:
    """Writes outcomes of one run into its ledger, and counts them. Nothing here waits: they join
    the next commit."""

    def __init__(
        self,
        ledger: Ledger,
        totals: Totals,
        stages: tuple[AnyStage, ...],
        clock: Callable[[], float],
        stops: StopRules,
        keep_replies: KeepReplies,
    ) -> None:
        self._ledger = ledger
        self._totals = totals
        self._stages = stages
        self._clock = clock
        self._stops = stops
        self._keeps_all = keep_replies == "all"
        self._earlier_ends: dict[
            int, RowEnd
        ] = {}  # of rows that were taken up and of which nothing new is known

    def keep_call(self, row: ActiveRow, stage: AnyStage, call: Call) -> None:
        """Stores what one call brought and cost, whatever comes of it, and counts it."""
        batch = self._ledger.batch
        # replies in conversations are kept with these
        keep_all = self._keeps_all and stage.agent_spec is None
        cost = record_call(batch, row.new, stage, call, keep_all=keep_all)
        if call.answered:
            times = call.times
            took = (
                ("duration", times.duration),
                ("ttft", times.ttft),
                ("time_to_response", times.time_to_response),
            )
            for measure, seconds in took:
                if seconds is not None:
                    batch.timings[stage.name, measure, bucket_of(seconds)] += 1
        self._ledger.count_call()
        self._totals.count_call(call, cost, stage)

    def given_up(self) -> None:
        """A call was cut off before its answer came: nothing is known of it but that it was
        sent."""
        self._totals.given_up += 1

    def note_wait(self, lane: str, seconds: float) -> None:
        """No call goes to a model for so long: shown while it lasts, and in the record of the
        invocation."""
        self._totals.waits[lane] = self._clock() + seconds
        self._ledger.batch.waits = canonical(self._totals.waits)

    def task_done(
        self,
        row: ActiveRow,
        stage: AnyStage,
        result: Result,
        outcome: Outcome,
        replica: int = 0,
        voted: VoteResult | None = None,
        fixed: bytes | None = None,
    ) -> None:
        """A task has its result: `done` when it was asked for it, `reused` when the answer was
        there. `voted`: it was made of the answers of replicas, and is kept already. A `replica`,
        from 1, brought one of these: the task alone is counted, once it is settled. `fixed`: the
        fingerprint of the task whose result a person set."""
        asked = outcome is Outcome.DONE
        fingerprint = fixed or result.fingerprint
        if asked:
            self._keep_result(stage, result, voted)
        if replica:
            self._add(row, stage, outcome, fingerprint, result, replica=replica)
            return
        note = voted.note if voted else None
        agreement = voted.agreement if voted else None
        settled_as = outcome
        if is_leave(stage, result.value):
            assert isinstance(stage, LocalStage)
            function = str(next(iter(stage.operation.body().values())))
            settled_as = Outcome.DROPPED
            note = canonical({"python": function, "values": {}})
        if asked:
            self._stops.answered(stage.name)
        prior = row.prior.get(stage.index)
        # whether the store says this of the task already
        known = False
        if result.id and prior is not None and not asked:
            stored = (prior.result_id, prior.fingerprint, prior.agreement)
            known = stored == (result.id, fingerprint, agreement)
        counted_before = known and row.again
        self._totals.tasks_done += asked
        self._totals.tasks_reused += not asked and not counted_before
        if not row.part and not counted_before:
            self._count_settled(stage, settled_as)
        if known:
            return
        self._earlier_ends.pop(row.new.key, None)
        self._uncount(row, stage, prior)
        batch = self._ledger.batch
        batch.tally((stage.name, PART if row.part else settled_as.value, "", "")).tasks += 1
        if agreement and not row.part:
            batch.tally((stage.name, AGREEMENT, agreement, "")).tasks += 1
        self._add(row, stage, settled_as, fingerprint, result, note=note)
        if stage.makes == "rows":  # which may turn out to be too many only when they are made
            row.prior[stage.index] = PriorTask(
                row.new.key, stage.index, fingerprint, settled_as, result.id, None, 0
            )

    def _keep_result(self, stage: AnyStage, result: Result, voted: VoteResult | None) -> None:
        """Stores a result that was asked for, unless it is stored already, and counts how it came
        about."""
        batch = self._ledger.batch
        if voted is None and not result.id:
            batch.results.append(result)
        if not isinstance(voted, Reviewed):
            count_way(batch, stage, result)

    def _count_settled(self, stage: AnyStage, settled_as: Outcome) -> None:
        """Counts a task of a stage. One whose row leaves is counted as dropped alone."""
        totals = self._totals.stages[stage.name]
        totals.done += settled_as is Outcome.DONE
        totals.reused += settled_as is Outcome.REUSED
        totals.dropped += settled_as is Outcome.DROPPED

    def not_asked(
        self, row: ActiveRow, stage: AnyStage, outcome: Outcome, note: Callable[[], str] | None
    ) -> None:
        """A stage that asks nothing and keeps nothing is done; or a guard said no: the row goes on
        without the stage (skipped) or leaves there (dropped). `note` makes JSON with the guard and
        its values."""
        prior = row.prior.get(stage.index)
        self._uncount(row, stage, prior)
        self._forget_replicas(row, stage)
        self._ledger.batch.tally((stage.name, outcome.value, "", "")).tasks += 1
        self._add(row, stage, outcome, note=note() if note else None)
        if row.again and prior is not None and prior.outcome is outcome:
            return  # it was counted before
        own = self._totals.stages[stage.name]
        own.done += outcome is Outcome.DONE
        own.skipped += outcome is Outcome.SKIPPED
        own.dropped += outcome is Outcome.DROPPED

    def failed(
        self,
        row: ActiveRow,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None = None,
        replica: int = 0,
    ) -> None:
        """A task failed, and so will its row: the stages that follow have nothing to work on. A
        `replica`: one of the answers of which the task's would have been made did not come."""
        if replica:
            self._add(row, stage, Outcome.FAILED, fingerprint, error=error, replica=replica)
            return
        prior = row.prior.get(stage.index)
        new = row.new
        anew = prior is None or error is not prior.error  # else it was left as it is
        if anew and error.type is not ErrorType.REJECTED:  # which is nobody's fault
            self._stops.failed(stage.name, error, new.row.id, fingerprint)
        counts = anew and error.type in ANSWER_FAILURES
        failures = (prior.failures if prior and prior.fingerprint == fingerprint else 0) + counts
        self._uncount(row, stage, prior)
        if row.part:
            counted_as = (PART, "")
        else:
            counted_as = (Outcome.FAILED.value, error.type.value)
        self._ledger.batch.tally((stage.name, *counted_as, "")).tasks += 1
        if fingerprint is None:
            self._forget_replicas(row, stage)
        what = "partial" if error.type is ErrorType.TRUNCATED else "traceback"
        note = canonical({what: error.detail}) if error.detail else None
        self._add(
            row, stage, Outcome.FAILED, fingerprint, error=error, failures=failures, note=note
        )
        self._earlier_ends.pop(new.key, None)
        own = self._totals.stages[stage.name]
        own.last_error = (error, new.row.id)
        if not row.part and (anew or not row.again):
            own.failed += 1
            # the answers of a vote that none leads are kept, so that the next run would find the
            # same
            stays = error.type is ErrorType.NO_CONSENSUS or failures == FURTHER_RUNS + 1
            self._totals.failed_for_good += counts and stays

    def undecided(self, row: ActiveRow, stage: AnyStage) -> None:
        """Every answer that a guard looks at is there."""
        raise AssertionError(
            f"the guard of stage {stage.name!r} looks at an answer that is not there"
        )

    def _add(
        self,
        row: ActiveRow,
        stage: AnyStage,
        outcome: Outcome,
        fingerprint: bytes | None = None,
        result: Result | None = None,
        *,
        error: RowError | None = None,
        failures: int = 0,
        note: str | None = None,
        replica: int = 0,
    ) -> None:
        end = TaskEnd(
            row.new,
            stage.index,
            fingerprint,
            outcome,
            result,
            error,
            failures,
            self._clock(),
            note,
            replica,
        )
        self._ledger.batch.tasks.append(end)
        if row.notes is not None:
            row.notes.ends.append(end)

    def _forget_replicas(self, row: ActiveRow, stage: AnyStage) -> None:
        """The stage is not asked this time: answers of replicas to an earlier content of the row
        no longer count."""
        if stage.replicas > 1:
            self._ledger.batch.forgotten.append((row.new.key, stage.index, 1))

    def row_ended(
        self,
        row: ActiveRow,
        state: State,
        result: Result | None = None,
        *,
        failed: tuple[AnyStage, RowError] | None = None,
        settled: Collection[int] | None = None,
    ) -> None:
        """A row came to its end. `result` is the one that is written; None: the results of several
        are, or none of its own. `failed`: where, and why. `settled` are the stages that have an
        outcome now; None: all."""
        batch = self._ledger.batch
        totals = self._totals
        self._earlier_ends.pop(row.new.key, None)
        if settled is not None:  # what an earlier content of the row reached beyond
            left = {index: prior for index, prior in row.prior.items() if index not in settled}
            batch.forgotten += [(row.new.key, index, 0) for index in left]
            self.count_tasks(left, -1)
        stage, error = failed or (None, None)
        batch.ends.append(RowEnd(row.new, state, result, stage.name if stage else None, error))
        if not (row.made or row.part):  # the store counts those
            self.count_row(state, 1, error.type if error else None)
            totals.rows_done += state is State.DONE
            totals.rows_failed += state is State.FAILED
            totals.rows_skipped += state is State.SKIPPED
            totals.rows_filtered += state is State.FILTERED
        if error is not None:
            totals.last_error = (error, row.new.row.id)

    def count_row(self, state: int, by: int, error_type: str | None = None) -> None:
        """Counts a row of the input in a state (1), or no longer (-1); open ones are not
        counted."""
        outcome = OUTCOME_OF.get(state)
        if outcome is not None:
            self._ledger.batch.tally(("", outcome.value, error_type or "", "")).tasks += by

    def row_moved(self, row: ActiveRow, old: int, state: State, result_id: int | None) -> None:
        """A row that had come to its end is in another state, since other rows came or went; it
        keeps its result."""
        if old == state:
            return
        self._ledger.batch.ends.append(
            RowEnd(row.new, state, Result(b"", "", id=result_id or 0), None, None)
        )
        if not row.made:
            for one, change in ((old, -1), (state, 1)):
                self.count_row(one, change)
                self._totals.rows_filtered += change * (one == State.FILTERED)
                self._totals.rows_done += change * (one == State.DONE)
                self._totals.rows_skipped += change * (one == State.SKIPPED)

    def mark_batch_answers_used(self, row: ActiveRow) -> None:
        """The row was walked with what came of its tasks in batches; but for those that wait for
        their user, and those at stages that could not be asked."""
        for (stage, replica, _), ready in row.ready.items():
            if ready.then_do != "run" and stage not in row.held:
                self._ledger.batch.used.append((row.new, stage, replica))

    def row_parked(self, row: ActiveRow, stage: AnyStage) -> None:
        """A row waits for a stage that is not asked in this invocation: it stays open."""
        self._earlier_ends.pop(row.new.key, None)
        self._totals.rows_parked += not row.made
        self._totals.made_parked += row.made
        self._totals.stages[stage.name].parked += 1

    def reopen_row(self, row: ActiveRow, old: StoredRow) -> None:
        """A row that was settled before goes round again with the content that it had then."""
        state = State(old.state)
        if state in WALKED or (state is State.FAILED and old.error_stage is not None):
            result = Result(b"", "", id=old.result_id) if old.result_id else None
            if old.error_type:
                error = RowError(ErrorType(old.error_type), old.error_message or "")
            else:
                error = None
            self._earlier_ends[row.new.key] = RowEnd(row.new, state, result, old.error_stage, error)

    def restore_outcomes(self) -> None:
        """The run stopped: rows that were taken up, and of which nothing new is known, stand as
        they stood before."""
        for end in self._earlier_ends.values():
            self._ledger.batch.ends.append(end)
            self.count_row(end.state, 1, end.error.type if end.error else None)
        self._earlier_ends.clear()

    def _uncount(self, row: ActiveRow, stage: AnyStage, prior: PriorTask | None) -> None:
        """A task that is settled again is counted once."""
        if prior is not None and row.part:
            self._ledger.batch.tally((stage.name, PART, "", "")).tasks -= 1
        elif prior is not None:
            self.count_tasks({stage.index: prior}, -1)

    def count_tasks(self, tasks: Mapping[int, PriorTask], by: int) -> None:
        """Counts tasks as they stand (1), of a row that is in the input again; or no longer (-1),
        of one that left."""
        batch = self._ledger.batch
        for index, prior in tasks.items():
            name = self._stages[index].name
            error = prior.error.type.value if prior.error else ""
            batch.tally((name, prior.outcome.value, error, "")).tasks += by
            if prior.agreement is not None:
                batch.tally((name, AGREEMENT, prior.agreement, "")).tasks += by
