"""Decides outcomes, writes them with the record of every call that led to them, and counts them.

No other module does that."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.core.keys import canonical
from agac.core.types import Outcome
from agac.engine.ask.limits import is_free
from agac.engine.ask.validate import ValidReply
from agac.engine.decide.failures import FURTHER_RUNS
from agac.engine.decide.votes import Reviewed, VoteResult
from agac.engine.output.histograms import bucket_of
from agac.engine.stop_rules import StopRules
from agac.engine.totals import Totals
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
)
from agac.store.rows import OUTCOME_OF, WALKED, PriorTask, State, StoredRow
from agac.store.write_batch import WriteBatch
from agac.store.writer import Ledger


def record_call(
    write: WriteBatch, row: NewRow, stage: AnyStage, call: Call, *, keep_all: bool
) -> float | None:
    """Adds to a commit what one call, or one line of a batch, brought and cost. `keep_all`:
    whether replies are stored that were right at once. Returns what was spent in USD, None where
    the price is not known."""
    if call.body is not None and (keep_all or call.error or call.mended):
        call = call._replace(reply=stored_reply(call.body))
    write.calls.attempts.append((row, call))
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
    """Returns how an answer came about, as results remember it.

    `purpose` is that of its call; `position` counts the stage's models from 0."""
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


def _leave_note(stage: AnyStage) -> str:
    """Says as JSON which function let a row leave."""
    assert isinstance(stage, LocalStage)
    function = str(next(iter(stage.operation.body().values())))
    return canonical({"python": function, "values": {}})


def _error_note(error: RowError) -> str | None:
    """Returns as JSON what is stored of an error besides its message, if anything."""
    if not error.detail:
        return None
    name = "partial" if error.type is ErrorType.TRUNCATED else "traceback"
    return canonical({name: error.detail})


def _is_stored(prior: PriorTask | None, end: TaskEnd, agreement: str | None) -> bool:
    """True if the store has this end of a task already."""
    if prior is None or end.result is None or not end.result.id:
        return False
    stored = (prior.result_id, prior.fingerprint, prior.agreement)
    return stored == (end.result.id, end.fingerprint, agreement)


def _earlier_failures(prior: PriorTask | None, fingerprint: bytes | None) -> int:
    """Returns how often the same task failed before."""
    if prior is None or prior.fingerprint != fingerprint:
        return 0
    return prior.failures


def _is_final(error: RowError, failures: int) -> bool:
    """True if the next ordinary run does not try a failed task again.

    The answers of a vote that none leads are kept, so that the next run would find the same."""
    return error.type is ErrorType.NO_CONSENSUS or failures == FURTHER_RUNS + 1


class Settler:
    """Writes the outcomes of one run into its ledger, and counts them.

    Nothing here waits: they join the next commit."""

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
        self._earlier_ends: dict[int, RowEnd] = {}
        """The earlier ends of rows that were taken up, and of which nothing new is known."""

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
                    batch.counts.timings[stage.name, measure, bucket_of(seconds)] += 1
        self._ledger.count_call()
        self._totals.count_call(call, cost, stage)

    def given_up(self) -> None:
        """Counts a call that was cut off before its answer came, so that only its sending is
        known."""
        self._totals.calls.given_up += 1

    def note_wait(self, lane: str, seconds: float) -> None:
        """Notes for how long no call goes to a model. It is shown while it lasts, and stored with
        the invocation."""
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
        """Settles a task that has a result: `done` if it was asked for it, `reused` if the answer
        was there.

        `voted`: the result was made of the answers of replicas, and is stored already. `replica`,
        from 1: it is the answer of one of these; only their task is counted, once it is settled.
        `fixed`: the fingerprint of the task whose result a person set."""
        was_asked = outcome is Outcome.DONE
        fingerprint = fixed or result.fingerprint
        if was_asked:
            self._keep_result(stage, result, voted)
        end = self._end(row, stage, outcome, fingerprint)._replace(result=result, replica=replica)
        if replica:
            self._add(row, end)
            return
        agreement = None
        if voted is not None:
            agreement = voted.agreement
            end = end._replace(note=voted.note)
        if is_leave(stage, result.value):
            end = end._replace(outcome=Outcome.DROPPED, note=_leave_note(stage))
        if was_asked:
            self._stops.answered(stage.name)
        prior = row.prior.get(stage.index)
        is_stored = not was_asked and _is_stored(prior, end, agreement)
        counted_before = is_stored and row.again
        self._totals.tasks.done += was_asked
        self._totals.tasks.reused += not was_asked and not counted_before
        if not row.part and not counted_before:
            self._totals.stages[stage.name].count(end.outcome)
        if not is_stored:
            self._keep_end(row, stage, end, agreement)

    def _keep_end(
        self, row: ActiveRow, stage: AnyStage, end: TaskEnd, agreement: str | None
    ) -> None:
        """Stores the end of a task that has a result."""
        self._earlier_ends.pop(row.new.key, None)
        self._uncount(row, stage, row.prior.get(stage.index))
        batch = self._ledger.batch
        batch.tally((stage.name, PART if row.part else end.outcome.value, "", "")).tasks += 1
        if agreement and not row.part:
            batch.tally((stage.name, AGREEMENT, agreement, "")).tasks += 1
        self._add(row, end)
        if stage.makes == "rows":  # that they are too many may turn out only when they are made
            assert end.result is not None
            row.prior[stage.index] = PriorTask(
                row.new.key, stage.index, end.fingerprint, end.outcome, end.result.id, None, 0
            )

    def _keep_result(self, stage: AnyStage, result: Result, voted: VoteResult | None) -> None:
        """Stores a result that was asked for, unless it is stored already, and counts how it came
        about."""
        batch = self._ledger.batch
        if voted is None and not result.id:
            batch.tasks.results.append(result)
        if not isinstance(voted, Reviewed):
            count_way(batch, stage, result)

    def not_asked(
        self, row: ActiveRow, stage: AnyStage, outcome: Outcome, note: Callable[[], str] | None
    ) -> None:
        """Settles a stage without a task.

        It asks nothing and keeps nothing, and is done; or a guard did not let the row in, which
        continues without the stage (skipped) or leaves (dropped). `note` makes JSON with the guard
        and its values."""
        prior = row.prior.get(stage.index)
        self._uncount(row, stage, prior)
        self._forget_replicas(row, stage)
        self._ledger.batch.tally((stage.name, outcome.value, "", "")).tasks += 1
        end = self._end(row, stage, outcome, None)
        self._add(row, end._replace(note=note() if note else None))
        counted_before = row.again and prior is not None and prior.outcome is outcome
        if not counted_before:
            self._totals.stages[stage.name].count(outcome)

    def failed(
        self,
        row: ActiveRow,
        stage: AnyStage,
        fingerprint: bytes | None,
        error: RowError,
        reason: str | None = None,
        replica: int = 0,
    ) -> None:
        """Settles a task that failed. Its row fails too, since the stages that follow have nothing
        to work on.

        `replica`, from 1: one of the answers of which the task's would have been made did not
        come. `reason` is for plans alone."""
        end = self._end(row, stage, Outcome.FAILED, fingerprint)._replace(error=error)
        if replica:
            self._add(row, end._replace(replica=replica))
            return
        prior = row.prior.get(stage.index)
        is_new = prior is None or error is not prior.error  # else it was left as it is
        if is_new and error.type is not ErrorType.REJECTED:  # a rejection is no fault of the stage
            self._stops.failed(stage.name, error, row.new.row.id, fingerprint)
        counts = is_new and error.type in ANSWER_FAILURES
        failures = _earlier_failures(prior, fingerprint) + counts
        self._uncount(row, stage, prior)
        counted_as = (PART, "") if row.part else (Outcome.FAILED.value, error.type.value)
        self._ledger.batch.tally((stage.name, *counted_as, "")).tasks += 1
        if fingerprint is None:
            self._forget_replicas(row, stage)
        self._add(row, end._replace(failures=failures, note=_error_note(error)))
        self._earlier_ends.pop(row.new.key, None)
        stage_totals = self._totals.stages[stage.name]
        stage_totals.last_error = (error, row.new.row.id)
        if not row.part and (is_new or not row.again):
            stage_totals.failed += 1
            self._totals.rows.failed_for_good += counts and _is_final(error, failures)

    def undecided(self, row: ActiveRow, stage: AnyStage) -> None:
        """Raises AssertionError: in a run every answer that a guard looks at is there."""
        raise AssertionError(
            f"the guard of stage {stage.name!r} looks at an answer that is not there"
        )

    def _end(
        self, row: ActiveRow, stage: AnyStage, outcome: Outcome, fingerprint: bytes | None
    ) -> TaskEnd:
        """Makes the end of a task, as of now."""
        return TaskEnd(
            new=row.new,
            stage=stage.index,
            fingerprint=fingerprint,
            outcome=outcome,
            result=None,
            error=None,
            failures=0,
            at=self._clock(),
        )

    def _add(self, row: ActiveRow, end: TaskEnd) -> None:
        """Adds the end of a task to the next commit, and to the row's trace."""
        self._ledger.batch.tasks.ends.append(end)
        if row.notes is not None:
            row.notes.ends.append(end)

    def _forget_replicas(self, row: ActiveRow, stage: AnyStage) -> None:
        """Forgets the answers of replicas to an earlier content of the row, since the stage is not
        asked this time."""
        if stage.replicas > 1:
            self._ledger.batch.tasks.forgotten.append((row.new.key, stage.index, 1))

    def row_ended(
        self,
        row: ActiveRow,
        state: State,
        result: Result | None = None,
        *,
        failed: tuple[AnyStage, RowError] | None = None,
        settled: Collection[int] | None = None,
    ) -> None:
        """Settles a row that came to its end.

        `result` is the one that is written; None: the results of several are, or none of its own.
        `failed`: the stage that failed, and its error. `settled` are the stages that have an
        outcome now; None: all."""
        batch = self._ledger.batch
        self._earlier_ends.pop(row.new.key, None)
        if settled is not None:  # an earlier content of the row may have reached other stages
            left = {index: prior for index, prior in row.prior.items() if index not in settled}
            batch.tasks.forgotten += [(row.new.key, index, 0) for index in left]
            self.count_tasks(left, -1)
        stage, error = failed or (None, None)
        batch.rows.ends.append(RowEnd(row.new, state, result, stage.name if stage else None, error))
        if not (row.made or row.part):  # the store counts those
            self.count_row(state, 1, error.type if error else None)
            self._totals.rows.count(state, 1)
        if error is not None:
            self._totals.last_error = (error, row.new.row.id)

    def count_row(self, state: int, by: int, error_type: str | None = None) -> None:
        """Adds `by` to the count of input rows in `state`. Open rows have no count."""
        outcome = OUTCOME_OF.get(state)
        if outcome is not None:
            self._ledger.batch.tally(("", outcome.value, error_type or "", "")).tasks += by

    def row_moved(self, row: ActiveRow, old: int, state: State, result_id: int | None) -> None:
        """Moves a row that had come to its end from the state `old` to another, since other rows
        came or went. It keeps its result."""
        if old == state:
            return
        self._ledger.batch.rows.ends.append(
            RowEnd(row.new, state, Result(b"", "", id=result_id or 0), None, None)
        )
        if not row.made:
            for changed, by in ((old, -1), (state, 1)):
                self.count_row(changed, by)
                if changed != State.FAILED:
                    self._totals.rows.count(changed, by)

    def mark_batch_answers_used(self, row: ActiveRow) -> None:
        """Marks the batches' answers with which the row was walked as used.

        Tasks that wait for their user, and those at stages that could not be asked, are left."""
        for (stage, replica, _), ready in row.ready.items():
            if ready.then_do != "run" and stage not in row.held:
                self._ledger.batch.batched.used.append((row.new, stage, replica))

    def row_parked(self, row: ActiveRow, stage: AnyStage) -> None:
        """Counts a row that stays open, since it waits for a stage that is not asked in this
        invocation."""
        self._earlier_ends.pop(row.new.key, None)
        self._totals.rows.parked += not row.made
        self._totals.rows.made_parked += row.made
        self._totals.stages[stage.name].parked += 1

    def reopen_row(self, row: ActiveRow, old: StoredRow) -> None:
        """Reopens a settled row whose content did not change, so that it is processed again."""
        state = State(old.state)
        if state in WALKED or (state is State.FAILED and old.error_stage is not None):
            result = Result(b"", "", id=old.result_id) if old.result_id else None
            error = None
            if old.error_type:
                error = RowError(ErrorType(old.error_type), old.error_message or "")
            self._earlier_ends[row.new.key] = RowEnd(row.new, state, result, old.error_stage, error)

    def restore_outcomes(self) -> None:
        """Gives rows that were reopened, and of which nothing new is known, their earlier outcome
        back, since the run stopped."""
        for end in self._earlier_ends.values():
            self._ledger.batch.rows.ends.append(end)
            self.count_row(end.state, 1, end.error.type if end.error else None)
        self._earlier_ends.clear()

    def _uncount(self, row: ActiveRow, stage: AnyStage, prior: PriorTask | None) -> None:
        """Takes the count of an earlier outcome back, so that a task that is settled again is
        counted once."""
        if prior is not None and row.part:
            self._ledger.batch.tally((stage.name, PART, "", "")).tasks -= 1
        elif prior is not None:
            self.count_tasks({stage.index: prior}, -1)

    def count_tasks(self, tasks: Mapping[int, PriorTask], by: int) -> None:
        """Adds `by` to the counts of tasks by their outcomes: 1 for those of a row that is in the
        input again, -1 for those of one that left."""
        batch = self._ledger.batch
        for index, prior in tasks.items():
            name = self._stages[index].name
            error = prior.error.type.value if prior.error else ""
            batch.tally((name, prior.outcome.value, error, "")).tasks += by
            if prior.agreement is not None:
                batch.tally((name, AGREEMENT, prior.agreement, "")).tasks += by
