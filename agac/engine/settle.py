"""The one place where an outcome is decided and written: every road, sync or batch, ends here.

Nothing here waits: what is settled joins the ledger's next commit, with its counts, in one transaction.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.core.keys import canonical
from agac.core.types import Outcome
from agac.engine.budget import Pot
from agac.engine.patience import Patience
from agac.engine.policy import FURTHER_RUNS
from agac.engine.quantiles import bucket_of
from agac.engine.stops import StopRules
from agac.engine.totals import Totals
from agac.plan.steps import AnyStage, LocalStage
from agac.spec.workflow import KeepReplies
from agac.store.batch import HOW, Attempt, Call, NewRow, Result, RowEnd, Tally, TaskEnd, TimingKey
from agac.store.ledger import Ledger
from agac.store.rows import OUTCOME_OF, WALKED, PriorTask, State

COMPRESS_FROM = 1024
"""Bytes. Shorter replies are stored as they came: deflating them costs time and saves nothing."""


UNHURRIED = Patience(None, float)
"""Without `row_timeout` all rows share one."""


@dataclass(slots=True)
class Flight:
    """A row at work. `prior` holds what became of its tasks earlier in this run, by stage index; `purse` what it may
    spend in this invocation, from its first call on.

    `forced`: tried again also where failures are left alone else. Stages at and after the position `again_from` take
    only answers made at or after `since`.
    """

    new: NewRow
    prior: dict[int, PriorTask] = field(default_factory=dict)
    patience: Patience = UNHURRIED
    purse: Pot | None = None
    forced: bool = False
    again_from: int | None = None
    since: float = 0.0

    def takes_since(self, stage: int) -> float:
        """From when on earlier answers are taken for the stage, in seconds since 1970."""
        return self.since if self.again_from is not None and stage >= self.again_from else 0.0


LEFT = "null"
"""The stored result of a function that gave None: the row leaves."""


def is_leave(stage: AnyStage, value: str) -> bool:
    """Whether a result, JSON, is none, but the word of a function that the row is to leave."""
    return not stage.asks and value == LEFT


def told_of(stage: AnyStage) -> str:
    """What a local stage does, in its own words."""
    assert isinstance(stage, LocalStage)
    return str(next(iter(stage.operation.body().values())))


class Stood(Protocol):
    """A stored row with how it had ended."""

    @property
    def state(self) -> int: ...
    @property
    def result_id(self) -> int | None: ...
    @property
    def error_type(self) -> str | None: ...
    @property
    def error_message(self) -> str | None: ...
    @property
    def error_stage(self) -> str | None: ...


class Settler:
    """Writes outcomes of one run into its ledger, and counts them."""

    def __init__(
        self,
        ledger: Ledger,
        totals: Totals,
        stages: tuple[AnyStage, ...],
        clock: Callable[[], float],
        stops: StopRules,
        *,
        keep_replies: KeepReplies = "all",
    ) -> None:
        self._stops = stops
        self._ledger, self._totals, self._stages, self._clock = ledger, totals, stages, clock
        self._keeps_all = keep_replies == "all"
        self._stood: dict[int, RowEnd] = {}

    def call(self, flight: Flight, stage: AnyStage, fingerprint: bytes, call: Call) -> None:
        """Stores what one call brought and cost, whatever comes of it."""
        batch = self._ledger.batch
        kept = call.body if self._keeps_all or call.error or call.mended else None
        batch.attempts.append(Attempt(flight.new, stage.index, fingerprint, call, stored_reply(kept)))
        model = f"{call.endpoint.provider}/{call.endpoint.model}"
        error = call.error.type.value if call.error else ""
        simulated = call.endpoint.simulated
        cost = 0.0 if call.free else call.cost
        tally = batch.tally((stage.name, "call", error, model))
        tally.add_call(call.usage, cost, simulated)
        tally.held_cost += call.held_usd
        tally.held_tokens += call.held_tokens
        if call.answered:
            _time(batch.timings, stage.name, call)
        self._ledger.count_call()
        self._count_call(call, cost, stage)

    def asked_again(self, error: RowError) -> None:
        """The last call brought no answer, and is made again."""
        self._totals.waiting_for = error

    def given_up(self) -> None:
        """A call was cut off before its answer came: nothing is known of it but that it was sent."""
        self._totals.given_up += 1

    def _count_call(self, call: Call, cost: float | None, stage: AnyStage) -> None:
        totals, own = self._totals, self._totals.stage(stage.name)
        own.cost += cost or 0.0
        own.unpriced += cost is None
        own.simulated += call.endpoint.simulated
        if call.status is not None and call.status < 500 and not call.refused:
            totals.waiting_for = None
        totals.calls += 1
        totals.retries += call.again
        totals.repairs += call.purpose == "repair"
        totals.fallbacks += call.purpose == "fallback" and not call.again
        totals.ambiguous += call.ambiguous
        totals.input_tokens += call.usage.input_tokens or 0
        totals.output_tokens += call.usage.output_tokens or 0
        totals.cost += cost or 0.0
        totals.unpriced += cost is None
        totals.simulated += call.endpoint.simulated

    def task_done(self, flight: Flight, stage: AnyStage, result: Result, outcome: Outcome) -> None:
        """A task has its result: `done` when it was asked for it, `reused` when the answer was there."""
        batch, own = self._ledger.batch, self._totals.stage(stage.name)
        prior = flight.prior.get(stage.index)
        leaves = is_leave(stage, result.value)
        if outcome is Outcome.DONE:
            batch.results.append(result)
            self._totals.tasks_done += 1
            self._stops.answered(stage.name)
            if result.how:
                batch.tally((stage.name, HOW, result.how, "")).count += 1
        else:
            self._totals.tasks_reused += 1
        own.done += outcome is Outcome.DONE and not leaves
        own.reused += outcome is Outcome.REUSED and not leaves
        own.dropped += leaves
        same = prior and prior.result_id == result.id and result.id and prior.fingerprint == result.fingerprint
        if outcome is Outcome.REUSED and same:
            return  # it is written already
        self._stood.pop(flight.new.key, None)
        self._uncount(stage, prior)
        told = Outcome.DROPPED if leaves else outcome
        note = canonical({"python": told_of(stage), "values": {}}) if leaves else None
        batch.tally((stage.name, told.value, "", "")).count += 1
        task = TaskEnd(flight.new, stage.index, result.fingerprint, told, result, None, 0, self._clock(), note)
        batch.tasks.append(task)

    def task_skipped(self, flight: Flight, stage: AnyStage, note: str) -> None:
        """A guard said no: the row goes on without this result. `note` is JSON with the guard and its values."""
        self._not_asked(flight, stage, Outcome.SKIPPED, note)
        self._totals.stage(stage.name).skipped += 1

    def task_dropped(self, flight: Flight, stage: AnyStage, note: str) -> None:
        """A guard said no, and the row is to leave."""
        self._not_asked(flight, stage, Outcome.DROPPED, note)
        self._totals.stage(stage.name).dropped += 1

    def _not_asked(self, flight: Flight, stage: AnyStage, outcome: Outcome, note: str | None) -> None:
        batch = self._ledger.batch
        self._uncount(stage, flight.prior.get(stage.index))
        batch.tally((stage.name, outcome.value, "", "")).count += 1
        batch.tasks.append(TaskEnd(flight.new, stage.index, None, outcome, None, None, 0, self._clock(), note))

    def local_done(self, flight: Flight, stage: AnyStage) -> None:
        """A stage that asks nothing and keeps nothing did its work."""
        self._not_asked(flight, stage, Outcome.DONE, None)
        self._totals.stage(stage.name).done += 1

    def task_failed(self, flight: Flight, stage: AnyStage, fingerprint: bytes | None, error: RowError) -> None:
        """A task failed, and so will its row: the stages that follow have nothing to work on."""
        batch = self._ledger.batch
        prior = flight.prior.get(stage.index)
        if prior is None or error is not prior.error:  # else it was left as it is
            self._stops.failed(stage.name, error, flight.new.row.id, fingerprint)
        failures = prior.failures if prior and prior.fingerprint == fingerprint else 0
        failures += error.type in ANSWER_FAILURES
        self._totals.failed_for_good += failures == FURTHER_RUNS + 1 and error.type in ANSWER_FAILURES
        self._uncount(stage, prior)
        batch.tally((stage.name, Outcome.FAILED.value, error.type.value, "")).count += 1
        note = canonical({"traceback": error.detail}) if error.detail else None
        task = TaskEnd(flight.new, stage.index, fingerprint, Outcome.FAILED, None, error, failures, self._clock(), note)
        batch.tasks.append(task)
        self._stood.pop(flight.new.key, None)
        own = self._totals.stage(stage.name)
        own.failed += 1
        own.last_error = (error, flight.new.row.id)

    def row_failed(self, flight: Flight, stage: AnyStage, error: RowError, settled: Collection[int]) -> None:
        """A row of which a task failed came to its end. `settled` are the stages that have an outcome now."""
        self._end(flight, RowEnd(flight.new, State.FAILED, None, stage.name, error), settled)
        self._totals.rows_failed += 1
        self._totals.last_error = (error, flight.new.row.id)

    def row_filtered(self, flight: Flight, settled: Collection[int]) -> None:
        """A row leaves because of a guard."""
        self._end(flight, RowEnd(flight.new, State.FILTERED, None, None, None), settled)
        self._totals.rows_filtered += 1

    def row_done(self, flight: Flight, result: Result | None) -> None:
        """A row went through all stages. `result` is the one that is written; None: the results of several are."""
        self._end(flight, RowEnd(flight.new, State.DONE, result, None, None))
        self._totals.rows_done += 1

    def row_skipped(self, flight: Flight) -> None:
        """A row went through all stages, of which those whose results are written were all skipped."""
        self._end(flight, RowEnd(flight.new, State.SKIPPED, None, None, None))
        self._totals.rows_skipped += 1

    def _end(self, flight: Flight, end: RowEnd, settled: Collection[int] | None = None) -> None:
        """Writes a row's end; `settled` None: every stage has an outcome."""
        batch = self._ledger.batch
        self._stood.pop(flight.new.key, None)
        if settled is not None:  # what an earlier content of the row reached beyond
            self.forget(flight.new.key, {i: prior for i, prior in flight.prior.items() if i not in settled})
        batch.ends.append(end)
        self._count_end(end)

    def _count_end(self, end: RowEnd) -> None:
        error = end.error.type.value if end.error else ""
        self._ledger.batch.tally(("", OUTCOME_OF[end.state].value, error, "")).count += 1

    def row_parked(self, flight: Flight, stage: AnyStage) -> None:
        """A row waits for a stage that is not asked in this invocation: it stays open."""
        self._stood.pop(flight.new.key, None)
        self._totals.rows_parked += 1
        self._totals.stage(stage.name).parked += 1

    def take_up(self, flight: Flight, old: Stood) -> None:
        """A row that was settled before goes round again with the content that it had then."""
        state = State(old.state)
        if state in WALKED or (state is State.FAILED and old.error_stage is not None):
            result = Result(b"", "", id=old.result_id) if old.result_id else None
            error = RowError(ErrorType(old.error_type), old.error_message or "") if old.error_type else None
            self._stood[flight.new.key] = RowEnd(flight.new, state, result, old.error_stage, error)

    def put_back(self) -> None:
        """The run stopped: rows that were taken up, and of which nothing new is known, stand as they stood before."""
        for end in self._stood.values():
            self._ledger.batch.ends.append(end)
            self._count_end(end)
        self._stood.clear()

    def _uncount(self, stage: AnyStage, prior: PriorTask | None) -> None:
        """A task that is settled again is counted once."""
        if prior is not None:
            self._tally(stage, prior).count -= 1

    def _tally(self, stage: AnyStage, prior: PriorTask) -> Tally:
        error = prior.error.type.value if prior.error else ""
        return self._ledger.batch.tally((stage.name, prior.outcome.value, error, ""))

    def forget(self, key: int, tasks: Mapping[int, PriorTask]) -> None:
        """These tasks of a row no longer tell of anything, since it changed."""
        for index, prior in tasks.items():
            self._ledger.batch.forgotten.append((key, index))
            self._uncount(self._stages[index], prior)

    def leave(self, tasks: Mapping[int, PriorTask]) -> None:
        """A row left the input: its tasks are kept, but count no more."""
        for index, prior in tasks.items():
            self._uncount(self._stages[index], prior)

    def come_back(self, tasks: Mapping[int, PriorTask]) -> None:
        """A row that had left is there again: its tasks count as they stand."""
        for index, prior in tasks.items():
            self._tally(self._stages[index], prior).count += 1


def _time(timings: Counter[TimingKey], stage: str, call: Call) -> None:
    """Counts how long an answered call took."""
    timings[stage, "duration", bucket_of(call.duration)] += 1
    if call.ttft is not None:
        timings[stage, "ttft", bucket_of(call.ttft)] += 1
    if call.time_to_response is not None:
        timings[stage, "time_to_response", bucket_of(call.time_to_response)] += 1


def stored_reply(body: bytes | None) -> str | bytes | None:
    """A reply as the store keeps it: text while that is short, deflated when that is smaller."""
    if body is None:
        return None
    if len(body) >= COMPRESS_FROM:
        return zlib.compress(body, 1)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body, 1)
